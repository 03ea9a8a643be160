"""Pauses, limits, the log level and the audit log from the command line."""

from __future__ import annotations

import json

import pytest

import landbridge.testing
from landbridge.cli import publish
from tests.cli.conftest import Place


def test_a_topic_and_a_group_are_paused_and_resumed(shared: Place, topic: str) -> None:
    shared.call("group", "create", topic, "g")
    assert "PAUSED" not in shared.call("group", "list", topic).out
    assert shared.call("topic", "pause", topic, "--note", "why not").out == f"the topic {topic} is paused\n"
    refused = shared.call("request", topic, "x", "--json")  # a publish would wait for a while
    assert (refused.status, refused.error["code"]) == (100, "topic_paused")
    assert "by admin: why not" in shared.call("topic", "show", topic).out
    assert "by admin: why not" in shared.call("topic", "list").out
    checks = shared.call("doctor", "--json").json["checks"]
    found = [check["detail"] for check in checks if check["check"] == "paused"]
    assert f"the topic {topic}, by admin: why not" in found
    assert shared.call("topic", "resume", topic).out == f"the topic {topic} takes messages\n"
    paused = shared.call("topic", "pause", topic, "--delivery", "--json").json["pause"]
    assert (paused["delivery"], paused["paused_by"]) == (True, "admin")
    shared.call("topic", "resume", topic)
    assert shared.call("group", "pause", topic, "g", "--note", "look").out.startswith("the group g of")
    shared.call("publish", topic, "x")
    waited = shared.call("subscribe", topic, "--group", "g", "--wait", "0.2s")
    assert (waited.out, waited.err) == ("", "paused by admin: look\n")
    assert "by admin: look" in shared.call("group", "list", topic).out
    assert "by admin: look" in shared.call("group", "show", topic, "g").out
    shared.call("group", "resume", topic, "g")
    assert shared.call("subscribe", topic, "--group", "g", "--count", "1").out == "x\n"


def test_a_service_is_paused(shared: Place, topic: str) -> None:
    shared.call("service", "register", "waiter", "--no-credential")
    assert shared.call("service", "pause", "waiter", "--note", "n").out == "the service waiter is paused\n"
    assert "by admin: n" in shared.call("service", "show", "waiter").out
    assert "by admin: n" in shared.call("service", "list").out
    assert shared.call("service", "unpause", "waiter").out == "the service waiter goes on\n"
    assert shared.call("service", "pause", "nobody", "--json").error["code"] == "unknown_service"


def test_limits_are_set_shown_and_reset(shared: Place) -> None:
    shown = shared.call("limits", "set", "max_schedules=500", "request_bytes=32MiB", "hello_within=5s").out
    assert "set by admin" in shown
    rows = shared.call("limits", "show", "max_schedules", "request_bytes", "hello_within", "--json").json
    assert [(row["value"], row["source"]) for row in rows] == [(500, "set"), (32 << 20, "set"), (5.0, "set")]
    assert shared.call("limits", "set", "max_schedules=0", "--json").error["code"] == "bad_request"
    assert shared.call("limits", "set", "max_schedules=many").status == 2
    assert (
        shared.call("limits", "set", "max_schedules", "500", "--json").error["hint"]
        == "as in max_schedules=value"
    )
    assert shared.call("limits", "show", "nothing", "--json").error["code"] == "bad_request"
    shared.call("limits", "reset", "max_schedules", "request_bytes", "hello_within")
    assert shared.call("limits", "show", "max_schedules", "--json").json[0]["source"] == "default"
    assert "max_frame" in shared.call("limits", "show").out


def test_the_log_level(shared: Place) -> None:
    told = shared.call("logs", "level", "debug").out
    assert told.startswith("the terminal logs from debug on; ")
    before = shared.call("logs", "level", "--json").json
    assert before["level"] == "debug"
    assert shared.call("logs", "level", before["at_start"], "--json").json["level"] == before["at_start"]
    assert shared.call("logs", "level", "loud").status == 2


def test_changes_are_listed_and_followed(shared: Place, topic: str) -> None:
    shared.call("topic", "create", topic)
    shared.call("topic", "update", topic, "--max-age", "1d")
    rows = shared.call("audit", "list", topic, "--json").json
    assert [row["operation"] for row in rows] == ["topic.create", "topic.update"]
    assert rows[1]["from"]["retention"]["max_age"] == 604800.0
    assert rows[1]["to"]["retention"]["max_age"] == 86400.0
    assert rows[1]["program"] == "landbridge topic update"
    assert rows[1]["peer"].startswith("127.0.0.1:")
    assert len(shared.call("audit", "list", topic, "--limit", "1", "--json").json) == 1
    assert shared.call("audit", "list", topic, "--what", "group", "--json").json == []
    assert shared.call("audit", "list", topic, "--until", "1h ago", "--json").json == []
    shown = shared.call("audit", "list", topic, "--who", "admin", "--since", "1h ago").out.splitlines()
    assert "topic.update" in shown[2]
    before, _, after = shown[2].partition(" from retention=")[2].partition(" to retention=")
    assert [json.loads(each)["max_age"] for each in (before, after)] == [604800.0, 86400.0]
    followed = shared.call("audit", "follow", "--from", "earliest", "--count", "1", "--json").lines
    assert "operation" in followed[0]
    assert shared.call("audit", "follow", "--from", "earliest", "--count", "1").out


async def test_who_publishes_to_a_paused_topic_is_told_what_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(publish, "TELL_AFTER", 0.0)
    async with landbridge.testing.bus() as bus:
        await bus.topics.create("orders")
        job = publish._Job("orders", {}, None, None, "stored", None)
        await job._tell_of_pause(bus)
        assert capsys.readouterr().err == ""
        await bus.topics.pause("orders", note="moving")
        await job._tell_of_pause(bus)
        assert ": moving; trying on for a while" in capsys.readouterr().err
