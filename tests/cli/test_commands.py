"""Every command that asks something of a terminal, for people and for programs."""

from __future__ import annotations

import base64
import builtins
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from landbridge import __version__
from landbridge.__main__ import run
from landbridge.cli.main import COMMANDS, build
from landbridge.cli.other_names import OURS
from tests.cli.conftest import Place, Screen, until

# -- topics and groups ---------------------------------------------------------------------------------


def test_topic_with_all_its_options(shared: Place, topic: str) -> None:
    options = ["--max-age=30d", "--max-bytes=10GB", "--drop-settled", "--discard=any", "--max-backlog=1GiB"]
    made = shared.call("topic", "create", topic, *options, "--json").json
    assert made["name"] == topic
    found = shared.call("topic", "show", topic, "--json").json["options"]
    assert found["retention"] == {
        "settled": True,
        "max_age": 2592000.0,
        "max_bytes": 10**10,
        "discard": "any",
    }
    assert found["max_backlog"] == 1 << 30
    shared.call("topic", "update", topic, "--max-age", "none", "--retain-settled", "--json")
    found = shared.call("topic", "show", topic, "--json").json["options"]
    assert found["retention"] == {"settled": False, "max_age": None, "max_bytes": 10**10, "discard": "any"}


def test_queue_with_its_options(shared: Place, topic: str) -> None:
    options = ["--kind=queue", "--producer=shop", "--delivery=at-most-once"]
    assert shared.call("topic", "create", topic, *options, "--json").json["kind"] == "queue"
    found = shared.call("topic", "show", topic, "--json").json["options"]
    assert (found["producer"], found["delivery"]) == ("shop", "at-most-once")
    shown = shared.call("topic", "show", topic).out
    assert "at-most-once" in shown
    assert "shop" in shown


def test_topic_for_people(shared: Place, topic: str) -> None:
    assert shared.call("topic", "create", topic).out == f"the stream {topic} is there\n"
    assert shared.call("topic", "update", topic, "--max-age", "1d").out == f"the topic {topic} is changed\n"
    shared.call("publish", topic, "12345")
    rows = shared.call("topic", "list").out.splitlines()
    assert rows[0].split() == ["TOPIC", "KIND", "MESSAGES", "SIZE", "GROUPS", "CREATED"]
    assert next(row.split()[:3] for row in rows if row.startswith(f"{topic} ")) == [topic, "stream", "1"]
    shown = shared.call("topic", "show", topic).out
    assert "Offsets      0 to 0" in shown
    assert "Max age      86400" in shown
    assert shared.call("topic", "delete", topic).out == f"the topic {topic} is deleted\n"


def test_topic_update_wants_a_change(shared: Place, topic: str) -> None:
    assert shared.call("topic", "update", topic).status == 2


def test_topic_delete_spares_what_is_unsettled(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x")
    shared.call("group", "create", topic, "g")
    assert shared.call("topic", "delete", topic, "--json").error["code"] == "bad_request"
    assert shared.call("topic", "delete", topic, "--force", "--json").json == {"deleted": topic}
    assert shared.call("topic", "show", topic).status == 20


def test_long_lists_are_read_to_their_end(place: Place) -> None:
    with place.up("--store", "memory", "--http-port", "0"):
        lines = "".join(f'{{"n": {number}}}\n' for number in range(3))
        assert place.run("publish", "t", input=lines.encode()).status == 0
        from landbridge.sync import connect

        context = place.call("context", "show", "--show-token", "--json").json
        with connect(context["url"], token=context["token"]) as bus:
            for number in range(1005):
                bus.call("topic.create", name=f"many.{number:04}")
        names = [row["name"] for row in place.call("topic", "list", "--json").json]
        assert [name for name in names if name.startswith("many.")] == [f"many.{n:04}" for n in range(1005)]


def test_group_with_all_its_options(shared: Place, topic: str) -> None:
    options = [
        "--discipline=priority", "--ack-within=1m", "--max-attempts=5", "--backoff=2s", "--backoff-most=5m",
        "--dead-letter=none", "--match-key=eu-*", "--match-header=source=s*", "--from=latest",
    ]  # fmt: skip
    shared.call("publish", topic, "before")
    made = shared.call("group", "create", topic, "g", *options, "--json").json
    assert made["lag"] == 0
    found = shared.call("group", "show", topic, "g", "--json").json["options"]
    assert found == {
        "topic": topic, "name": "g", "discipline": "priority", "order": "any", "ack_within": 60.0,
        "max_attempts": 5, "backoff": 2.0, "backoff_most": 300.0, "dead_letter": "",
        "match": {"key": "eu-*", "headers": {"source": "s*"}}, "hours": [],
    }  # fmt: skip
    shown = shared.call("group", "show", topic, "g").out
    assert "key=eu-* source=s*" in shown
    assert "no consumers" not in shown  # a pipe gets a table with its heads


def test_group_for_people(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    assert "lag 3" in shared.call("group", "create", topic, "g").out
    rows = shared.call("group", "list", topic).out.splitlines()
    assert rows[0].split()[:4] == ["TOPIC", "GROUP", "DISCIPLINE", "LAG"]
    assert rows[1].split()[:4] == [topic, "g", "fifo", "3"]
    assert [row["name"] for row in shared.call("group", "list", topic, "--json").json] == ["g"]
    assert "offset 2" in shared.call("group", "seek", topic, "g", "--to", "2").out
    assert shared.call("group", "delete", topic, "g").status == 10
    assert "deleted" in shared.call("group", "delete", topic, "g", "--force").out
    assert shared.call("group", "show", topic, "g", "--json").error["code"] == "unknown_group"


def test_group_starts_at_a_time(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x")
    assert shared.call("group", "create", topic, "a", "--from", "-10m", "--json").json["lag"] == 1
    assert shared.call("group", "create", topic, "b", "--from", "2100-01-01", "--json").json["lag"] == 0


@pytest.mark.parametrize(
    ("target", "floor"),
    [
        (["--to", "1"], 1),
        (["--to", "earliest"], 0),
        (["--to", "latest"], 3),
        (["--time", "10m ago"], 0),
        (["--time", "-10m"], 0),
        (["--time", "2100-01-01T00:00:00Z"], 3),
    ],
)
def test_group_seek(shared: Place, topic: str, target: list[str], floor: int) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    shared.call("group", "create", topic, "g")
    assert shared.call("group", "seek", topic, "g", *target, "--json").json["floor"] == floor


def test_group_seek_beyond_the_end_says_where_it_is(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    shared.call("group", "create", topic, "g")
    moved = shared.call("group", "seek", topic, "g", "--to", "999").out
    assert moved == f"g goes on at offset 3 of {topic}, its end (there is no offset 999 yet), lag 0\n"
    assert "there is no offset" not in shared.call("group", "seek", topic, "g", "--to", "3").out


@pytest.mark.parametrize(
    "target", [[], ["--to", "1", "--time", "-1m"], ["--to", "first"], ["--time", "soon"]]
)
def test_group_seek_wants_one_target(shared: Place, topic: str, target: list[str]) -> None:
    refused = shared.call("group", "seek", topic, "g", *target, "--json")
    assert refused.status == 2
    assert refused.error["code"] == "usage"


def test_group_redrive(shared: Place, topic: str) -> None:
    assert shared.call("group", "create", topic, "g", "--json").status == 0
    assert shared.call("group", "redrive", topic, "g", "--json").json == {"redriven": 0}
    assert shared.call("group", "redrive", topic, "g").out == f"0 messages redriven to g of {topic}\n"


# -- publishing and subscribing ------------------------------------------------------------------------


def test_publish_with_a_key_is_stored_once(shared: Place, topic: str) -> None:
    first, again = (
        shared.call("publish", topic, "x", "--idempotency-key", "k", "--json").json for _ in range(2)
    )
    assert (first.pop("repeated"), again.pop("repeated")) == (False, True)
    assert first == again
    assert "was stored before" in shared.call("publish", topic, "x", "--idempotency-key", "k").out
    refused = shared.call("publish", topic, "y", "--idempotency-key", "k", "--json")
    assert (refused.status, refused.error["code"]) == (47, "key_reused")
    assert shared.call("publish", topic, "x", "--idempotency-key", "k", "--repeat", "2").status == 2


def test_a_work_queue_and_where_the_status_log_goes(shared: Place, topic: str) -> None:
    options = ["--kind=work", "--prefetch=3", "--discipline=lifo", "--ids=unique"]
    assert shared.call("topic", "create", topic, *options, "--json").json["kind"] == "work"
    found = shared.call("topic", "show", topic, "--json").json["options"]
    assert (found["prefetch"], found["discipline"], found["ids"]) == (3, "lifo", "unique")
    assert "3" in shared.call("topic", "show", topic).out
    assert shared.call("status", "topic", f"{topic}.log", "--json").json["topic"] == f"{topic}.log"
    assert f"{topic}.log" in shared.call("status", "show").out
    assert shared.call("status", "topic", "--off", "--json").json["topic"] == ""
    assert shared.call("status", "topic").status == 2


def test_publish_prints_the_receipt(shared: Place, topic: str) -> None:
    receipt = shared.call("publish", topic, "one", "--json").json
    assert receipt["topic"] == topic
    assert receipt["offset"] == 0
    assert "at offset 1, id " in shared.call("publish", topic, "two").out


def test_a_topic_that_was_made_by_the_way_is_told(shared: Place, topic: str) -> None:
    made = shared.call("publish", topic, "x")
    assert made.err == f"made the topic {topic}\n"
    assert shared.call("publish", topic, "x").err == ""
    assert shared.call("publish", topic, "x", "--repeat", "3").err == ""
    typo = f"{topic}s"
    assert shared.call("publish", typo, "x", "--repeat", "3").err == (
        f"made the topic {typo}; did you mean {topic}?\n"
    )
    typo = f"x{topic}"
    read = shared.call("subscribe", typo, "--group", "g", "--wait", "10ms")
    assert read.err.startswith(f"made the topic {typo}; did you mean {topic}")
    assert shared.call("subscribe", typo, "--group", "g", "--wait", "10ms").err == ""
    told = shared.call("publish", f"{topic}-other", "x", "--json")
    assert told.status == 0
    assert json.loads(told.err)["notice"].startswith(f"made the topic {topic}-other")


def test_a_topic_of_dead_letters_is_not_suggested(shared: Place, topic: str) -> None:
    shared.call("topic", "create", f"{topic}.dead")
    assert "did you mean" not in shared.call("publish", f"{topic}.deal", "x").err


def test_a_topic_that_was_created_is_not_told(shared: Place, topic: str) -> None:
    shared.call("topic", "create", topic)
    assert shared.call("publish", topic, "x").err == ""
    assert shared.call("subscribe", "$status", "--wait", "10ms").err == ""


def test_everything_about_a_message_arrives(shared: Place, topic: str) -> None:
    arguments = [
        "--key=eu",
        "--header=source=shop",
        "--header=n=1=2",
        "--priority=7",
        "--expires=1h",
        "--delay=0s",
    ]
    receipt = shared.call("publish", topic, '{"id": 1}', *arguments, "--json").json
    [message] = shared.call("subscribe", topic, "--from", "earliest", "--count", "1", "--json").lines
    assert message.pop("time") > 0
    assert message == {
        "offset": 0, "id": receipt["id"], "key": "eu", "headers": {"source": "shop", "n": "1=2"},
        "priority": 7, "attempt": 1, "payload": '{"id": 1}',
    }  # fmt: skip


def test_expired_and_delayed_messages_stay_away(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "late", "--delay", "1h")
    shared.call("publish", topic, "gone", "--expires", "0s")
    shared.call("publish", topic, "now")
    assert shared.call("subscribe", topic, "--from", "earliest", "--count", "1").out == "now\n"


def test_bytes_that_are_no_text(shared: Place, topic: str) -> None:
    file = shared.folder / "raw"
    file.write_bytes(b"\xff\x00\n")
    shared.call("publish", topic, "--file", str(file))
    [message] = shared.call("subscribe", topic, "--from", "earliest", "--count", "1", "--json").lines
    assert base64.b64decode(message["payload_base64"]) == b"\xff\x00\n"
    assert "payload" not in message


def test_repeat(shared: Place, topic: str) -> None:
    many = shared.call("publish", topic, "x", "--repeat", "10000", "--key", "k", "--json").json
    assert many["published"] == 10000
    assert shared.call("topic", "show", topic, "--json").json["messages"] == 10000
    assert "3 messages stored" in shared.call("publish", topic, "x", "--repeat", "3").out


@pytest.mark.parametrize(
    "arguments",
    [
        ["x", "--file", "y"],
        ["x", "--priority", "10"],
        ["x", "--delay", "soon"],
        ["-", "--repeat", "2"],
        ["x", "--repeat", "0"],
    ],
)
def test_publish_misuse(shared: Place, topic: str, arguments: list[str]) -> None:
    refused = shared.call("publish", topic, *arguments, "--json")
    assert refused.status == 2
    assert refused.error["code"] == "usage"


def test_publish_refusals_have_the_errors_status(shared: Place, topic: str) -> None:
    assert shared.call("publish", topic, "--file", "/nowhere", "--json").error["code"] == "bad_request"
    assert shared.call("publish", topic, "x", "--header", "novalue").status == 10
    assert shared.call("publish", "bad name", "x").status == 11
    assert shared.call("publish", "$status", "x").status == 31


def test_subscribe_takes_turns_with_its_group(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "5")
    first = shared.call("subscribe", topic, "--group", "g", "--count", "2", "--json").lines
    assert [message["offset"] for message in first] == [0, 1]
    assert shared.call("group", "show", topic, "g", "--json").json["floor"] == 2
    rest = shared.call("subscribe", topic, "--group", "g", "--count", "3", "--json").lines
    assert [(message["offset"], message["attempt"]) for message in rest] == [(2, 1), (3, 1), (4, 1)]


def test_subscribe_to_a_pattern(shared: Place, topic: str) -> None:
    for part in ("eu", "us"):
        shared.call("publish", f"{topic}.{part}", part)
    seen = shared.call("subscribe", f"{topic}.*", "--group", "g", "--count", "2", "--json").lines
    assert sorted((message["topic"], message["payload"]) for message in seen) == [
        (f"{topic}.eu", "eu"),
        (f"{topic}.us", "us"),
    ]
    assert shared.call("group", "show", f"{topic}.eu", "g", "--json").json["floor"] == 1
    assert shared.call("subscribe", f"{topic}.*x").status == 11


def test_order_per_key(shared: Place, topic: str) -> None:
    shared.call("group", "create", topic, "g", "--order", "key")
    assert shared.call("group", "show", topic, "g", "--json").json["options"]["order"] == "key"
    assert shared.call("group", "update", topic, "g", "--discipline", "lifo").status == 10


def test_docs_asyncapi(shared: Place, topic: str, tmp_path: Path) -> None:
    shared.call("group", "create", topic, "g", "--order", "key")
    out = tmp_path / "asyncapi.json"
    told = shared.call("docs", "asyncapi", "--out", str(out), "--json").json
    document = json.loads(out.read_text())
    assert told["channels"] == len(document["channels"])
    assert document["channels"][topic]["address"] == topic
    assert document["operations"][f"receive/{topic}/g"]["x-landbridge"]["order"] == "key"
    assert shared.call("docs", "asyncapi").json["asyncapi"] == "3.0.0"


def test_looking_without_ack_changes_nothing(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "5")
    for _ in range(2):
        seen = shared.call("subscribe", topic, "--group", "g", "--no-ack", "--count", "5", "--json").lines
        assert [(message["offset"], message["attempt"]) for message in seen] == [(n, 1) for n in range(5)]
    assert shared.call("group", "show", topic, "g", "--json").json["lag"] == 5


def test_leases_of_what_is_only_looked_at_are_extended(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    shared.call("group", "create", topic, "g", "--ack-within", "600ms", "--max-attempts", "1")
    # Without it the messages would be buried after 0.6 s, and there would be a topic of dead letters.
    seen = shared.call("subscribe", topic, "--group", "g", "--no-ack", "--wait", "1.5s", "--json").lines
    assert [message["offset"] for message in seen] == [0, 1, 2]
    assert shared.call("group", "show", topic, "g", "--json").json["lag"] == 3
    assert shared.call("topic", "show", f"{topic}.dead").status == 20


def test_subscribe_ends_when_nothing_comes(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    assert shared.call("subscribe", topic, "--from", "10m ago", "--wait", "1s").out == "x\nx\nx\n"


def test_batches_together(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    batches = shared.call("subscribe", topic, "--from", "earliest", "--count", "3", "--batch", "--json").lines
    assert [message["offset"] for batch in batches for message in batch] == [0, 1, 2]


def test_subscribe_to_what_is_not_there(place: Place) -> None:
    with place.up("--store", "memory", "--http-port", "0", "--no-auto-create"):
        assert place.call("subscribe", "nothing", "--json").error["code"] == "unknown_topic"
        assert place.call("publish", "nothing", "x").status == 20
        place.call("topic", "create", "everything")
        for command in (["publish", "everythin", "x"], ["subscribe", "everythin"]):
            assert place.call(*command, "--json").error["hint"].startswith("did you mean everything? ")
        assert (
            place.call("publish", "everythin", "x", "--repeat", "2", "--json")
            .error["hint"]
            .startswith("did you mean everything? ")
        )


# -- tokens, status, information -----------------------------------------------------------------------


def test_token_is_printed_alone(shared: Place) -> None:
    made = shared.call("token", "create", "--subject", "shop", "--scope", "publish:a", "--json").json
    assert made["subject"] == "shop"
    assert shared.call("token", "create", "--subject", "shop", "--scope", "publish:a").out.startswith("eyJ")
    assert shared.call("token", "revoke", made["id"], "--json").json == {"revoked": made["id"], "tokens": 1}
    assert "revoked" in shared.call("token", "revoke", "--subject", "nobody").out


def test_tokens_are_listed(shared: Place) -> None:
    create = ["token", "create", "--subject", "lister", "--scope", "publish:a", "--scope", "subscribe:b"]
    made = shared.call(*create, "--json").json
    [row] = shared.call("token", "list", "--subject", "lister", "--json").json
    assert (row["id"], row["scopes"], row["revoked"]) == (made["id"], ["publish:a", "subscribe:b"], False)
    shared.call("token", "revoke", made["id"])
    head, line = shared.call("token", "list", "--subject", "lister").out.splitlines()
    assert head.split() == ["ID", "SUBJECT", "SCOPES", "ISSUED", "EXPIRES", "REVOKED"]
    assert line.startswith(f"{made['id']}  lister   publish:a subscribe:b")
    assert line.endswith("yes")
    assert made["token"] not in shared.call("token", "list", "--json").out
    saved = shared.call(*create, "--save-as", "lister").out
    ids = [row["id"] for row in shared.call("token", "list", "--subject", "lister", "--json").json]
    assert len(ids) == 2
    assert any(saved.rstrip().endswith(f"by token {id}") for id in ids)


def test_token_as_a_context(shared: Place, topic: str) -> None:
    scopes = ["--scope", f"publish:{topic}", "--scope", f"subscribe:{topic}"]
    made = shared.call(
        "token", "create", "--subject", "seller", *scopes, "--save-as", "seller", "--json"
    ).json
    assert made["context"] == "seller"
    assert "token" not in made
    assert shared.call("publish", topic, "x", "--context", "seller").status == 0
    assert shared.call("publish", "other", "x", "--context", "seller", "--json").error["code"] == "forbidden"
    assert shared.call("status", "show", "--context", "seller").status == 31
    shared.call("token", "revoke", "--subject", "seller")
    assert shared.call("publish", topic, "x", "--context", "seller").status == 30
    assert "acts as other until" in shared.call(
        "token", "create", "--subject", "other", *scopes, "--life", "1d", "--save-as", "other"
    ).out  # fmt: skip


def test_a_token_does_not_replace_a_context_that_has_more(shared: Place) -> None:
    create = ("token", "create", "--subject", "thief", "--scope", "publish:#", "--json", "--save-as")
    before = shared.call("context", "show", "local", "--show-token", "--json").json
    assert shared.call(*create, "local").error["code"] == "context_taken"
    assert shared.call("context", "show", "local", "--show-token", "--json").json == before
    assert shared.call("token", "list", "--subject", "thief", "--json").json == []
    for _ in range(2):  # its own may be replaced
        assert shared.call(*create, "thief").status == 0


@pytest.mark.parametrize("arguments", [[], ["abc", "--subject", "x"]])
def test_token_revoke_wants_one_thing(shared: Place, arguments: list[str]) -> None:
    assert shared.call("token", "revoke", *arguments).status == 2


def test_status_levels(shared: Place) -> None:
    assert shared.call("status", "show", "--json").json["default"] == "batches"
    shared.call("status", "level", "messages", "--topic", "a")
    shared.call("status", "level", "off", "--topic", "b")
    shared.call("status", "level", "errors", "--producer", "p")
    found = shared.call("status", "level", "errors", "--consumer", "c", "--json").json
    assert found == {
        "default": "batches", "topics": {"a": "messages", "b": "off"}, "producers": {"p": "errors"},
        "consumers": {"c": "errors"}, "topic": "",
    }  # fmt: skip
    assert "producer" in shared.call("status", "show").out
    for option, name in (("--topic", "a"), ("--topic", "b"), ("--producer", "p"), ("--consumer", "c")):
        found = shared.call("status", "level", "default", option, name, "--json").json
    assert found == {"default": "batches", "topics": {}, "producers": {}, "consumers": {}, "topic": ""}
    assert shared.call("status", "level", "errors", "--json").json["default"] == "errors"
    assert shared.call("status", "level", "default", "--json").json["default"] == "batches"
    assert shared.call("status", "level", "loud").status == 2
    assert shared.call("status", "level", "off", "--topic", "a", "--producer", "b").status == 2


def test_status_tail(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x")
    # The terminal's own parts (schedules, callbacks) connect first.
    events = shared.call("status", "tail", "--from", "earliest", "--count", "18", "--json").lines
    assert [event["event"] for event in events[:2]] == ["connect", "authenticate"]
    plain = shared.call("status", "tail", "--from", "earliest", "--count", "18").out
    assert "connect" in plain
    assert "admin@127.0.0.1:" in plain


def test_info(shared: Place) -> None:
    found = shared.call("info", "--json").json
    assert found["version"] == __version__
    assert found["url"].startswith("lb://127.0.0.1:")
    assert "JournalStore" in shared.call("info").out


def test_version(place: Place) -> None:
    assert place.call("version").out == f"landbridge {__version__}\n"
    assert place.call("version", "--json").json["version"] == __version__
    assert place.call("--version").out == f"{__version__}\n"


# -- contexts ------------------------------------------------------------------------------------------


def test_contexts(place: Place) -> None:
    url = "lbs://east.example.com:7420"
    assert place.call("context", "list", "--json").json == []
    assert place.call("context", "show").status == 12
    made = place.call(
        "context", "add", "east", "--url", url, "--token", "secret-token-of-the-east", "--json"
    ).json
    assert made == {"name": "east", "url": url, "current": True}
    assert "west" in place.call("context", "add", "west", "--url", "lb://localhost", "--token", "b").out
    assert place.call("context", "list", "--json").json == [
        {"name": "east", "current": True, "url": url},
        {"name": "west", "current": False, "url": "lb://localhost"},
    ]
    assert place.call("context", "list").out.splitlines()[1].split() == ["*", "east", url]
    assert place.call("context", "use", "west", "--json").json == {"current": "west"}
    assert place.call("context", "show", "--json").json["name"] == "west"
    assert place.call("context", "remove", "west", "--json").json == {"removed": "west"}
    assert "current" in place.call("context", "use", "east").out
    assert "removed" in place.call("context", "remove", "east").out


def test_context_hides_its_token(place: Place) -> None:
    token = "a-token-that-is-quite-long-0123456789"
    place.call("context", "add", "c", "--url", "lb://localhost", "--token", token)
    assert place.call("context", "show", "c", "--json").json["token"] == "…456789"
    assert token not in place.call("context", "show", "c").out
    assert place.call("context", "show", "c", "--show-token", "--json").json["token"] == token
    file = place.folder / "home" / "contexts" / "c.json"
    assert file.stat().st_mode & 0o777 == 0o600


def test_context_takes_a_token_from_stdin(place: Place) -> None:
    added = place.run("context", "add", "c", "--url", "lb://localhost", "--token", "-", input=b"from-stdin\n")
    assert added.status == 0, added.err
    assert place.call("context", "show", "c", "--show-token", "--json").json["token"] == "from-stdin"
    assert place.run("context", "add", "c", "--url", "lb://localhost", input=b"\n").status == 12


@pytest.mark.parametrize(
    "arguments",
    [["--url", "http://x"], ["--url", "lb://example.com"], ["--url", "lbs://x", "--ca", "/nowhere"]],
)
def test_context_refuses_bad_addresses(place: Place, arguments: list[str]) -> None:
    assert (
        place.call("context", "add", "c", *arguments, "--token", "t", "--json").error["code"] == "bad_context"
    )


def test_certificates_that_are_gone_or_none(place: Place) -> None:
    file = place.folder / "ca.pem"
    file.write_text("no certificate")
    place.call("context", "add", "c", "--url", "lbs://127.0.0.1:1", "--token", "t", "--ca", str(file))
    assert place.call("info", "--json").error["code"] == "bad_context"
    file.unlink()
    assert "ca.pem" in place.call("info", "--json").error["message"]


def test_damaged_context_is_listed_with_its_trouble(place: Place) -> None:
    place.call("context", "add", "good", "--url", "lb://localhost", "--token", "t")
    (place.folder / "home" / "contexts" / "bad.json").write_text("{")
    assert "can't be read" in place.call("context", "list").out
    assert place.call("topic", "list", "--context", "bad").status == 12


# -- errors --------------------------------------------------------------------------------------------


def test_nowhere_to_connect_to(place: Place) -> None:
    refused = place.call("topic", "list")
    assert refused.status == 12
    assert refused.err.startswith("error: nothing says where to connect to\n  hint: ")
    assert refused.out == ""


def test_nobody_answers(place: Place) -> None:
    place.call("context", "add", "c", "--url", "lb://127.0.0.1:1", "--token", "t")
    refused = place.call("topic", "list", "--json")
    assert refused.status == 53
    assert refused.error["code"] == "unreachable"
    assert refused.error["hint"]


def test_wrong_token(shared: Place) -> None:
    url = shared.call("info", "--json").json["url"]
    shared.call("context", "add", "wrong", "--url", url, "--token", "t")
    assert shared.call("topic", "list", "--context", "wrong").status == 30


def test_usage_errors(place: Place) -> None:
    assert place.call("topic", "lst").status == 2
    assert "Did you mean" in place.call("pubish", "x").err
    assert place.call("topic", "create").status == 2
    assert place.call("publish", "--nonsense", "--json").error["code"] == "usage"
    said = place.call("publish", "x", "y", "--delay", "soon", "--json").error["message"]
    assert said.startswith("Invalid value for '--delay': 'soon' is not a span of time")


@pytest.mark.parametrize(
    ("typed", "ours"),
    [
        ("pub", "'publish'"),
        ("topic ls", "'list'"),
        ("topic rm", "'delete'"),
        ("limits list", "'show'"),
        ("user", "'service' or 'token'"),
    ],
)
def test_names_that_other_tools_have(place: Place, typed: str, ours: str) -> None:
    refused = place.call(*typed.split(), "--json")
    assert refused.status == 2
    assert refused.error["message"].endswith(f"Did you mean {ours}?")


def test_names_that_are_suggested_exist() -> None:
    whole: Any = get_command(build(COMMANDS))
    verbs = {verb for each in whole.commands.values() for verb in getattr(each, "commands", ())}
    for names in OURS.values():
        assert all(name in COMMANDS or name in verbs for name in names), names


def test_patterns_of_other_buses(shared: Place) -> None:
    for pattern in ("orders.>", "plant/+/temperature"):
        refused = shared.call("subscribe", pattern, "--count", "1", "--json")
        assert refused.error["code"] == "bad_name"
        assert "in a pattern '*' is one word and '#' any number" in refused.error["hint"]


def test_an_interrupt_before_anything_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def interrupted(name: str, *more: Any, **settings: Any) -> Any:
        if name == "landbridge.cli.main":
            raise KeyboardInterrupt
        return real(name, *more, **settings)

    monkeypatch.setattr(builtins, "__import__", interrupted)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == 130


def test_unknown_exceptions_show_where_they_happened(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(COMMANDS, "version", ("test", "version", ""))
    crashed = place.call("version")
    assert crashed.status == 70
    assert "Traceback" in crashed.err
    assert "ModuleNotFoundError" in place.call("version", "--json").err.splitlines()[0]


# -- on a terminal -------------------------------------------------------------------------------------


def test_table_on_a_terminal(shared: Place, topic: str, screens: Callable[..., Screen]) -> None:
    shared.call("publish", topic, "x" * 1500, "--repeat", "1500")
    status, screen = screens(shared, "topic", "list").finish()
    assert status == 0
    row = next(line for line in screen.splitlines() if topic in line)
    assert "1,500" in row
    assert "2.3 MB" in row
    assert "ago" in row or "now" in row


def test_lists_on_a_terminal_leave_out_what_the_bus_has_for_itself(
    shared: Place, topic: str, screens: Callable[..., Screen]
) -> None:
    shared.call("group", "create", topic, "g")
    shared.call("rule", "create", '{"n": [1]}', "--source", topic)
    until(lambda: "$audit" in shared.call("topic", "list").out)
    made = next(row["rule"] for row in shared.call("rule", "list", "--source", topic, "--json").json)

    def listed(*args: str) -> str:
        status, screen = screens(shared, *args).finish()
        assert status == 0
        return screen

    shown, whole = listed("topic", "list"), listed("topic", "list", "--all")
    assert topic in shown
    assert topic in whole
    assert [name in shown for name in ("$audit", made[:12])] == [False, False]
    assert [name in whole for name in ("$audit", made[:12])] == [True, True]
    assert {"$audit", made} <= {row["name"] for row in shared.call("topic", "list", "--json").json}
    assert "$rules" not in listed("group", "list")
    assert "$rules" in listed("group", "list", "--all")
    assert "$rules" in listed("group", "list", topic)


def test_messages_on_a_terminal(shared: Place, topic: str, screens: Callable[..., Screen]) -> None:
    shared.call("publish", topic, '{"id": 1}', "--key", "\x1b[31mred", "--header", "a=b", "--priority", "3")
    shared.call("publish", topic, "evil \x1b]0;title\x07")
    screen = screens(shared, "subscribe", topic, "--from", "earliest", "--count", "2", "--batch")
    status, text = screen.finish()
    assert status == 0
    assert '{"id": 1}' in text
    assert "\\x1b[31mred" in text
    assert "p3" in text
    assert "a: b" in text
    assert "evil \\x1b]0;title\\x07" in text
    assert b"\x1b]0;" not in screen.raw


def test_errors_on_a_terminal_are_red(shared: Place, screens: Callable[..., Screen]) -> None:
    screen = screens(shared, "topic", "show", "nowhere")
    status, text = screen.finish()
    assert status == 20
    assert "error: there is no topic 'nowhere'" in text
    assert b"\x1b[1;31merror: " in screen.raw


def test_delete_asks_whoever_is_there(shared: Place, topic: str, screens: Callable[..., Screen]) -> None:
    shared.call("topic", "create", topic)
    screen = screens(shared, "topic", "delete", topic)
    screen.wait_for("[y/N]")
    screen.type(b"n\n")
    assert screen.finish()[0] == 1
    assert shared.call("topic", "show", topic).status == 0
    screen = screens(shared, "topic", "delete", topic)
    screen.wait_for("[y/N]")
    screen.type(b"y\n")
    assert screen.finish()[0] == 0
    assert shared.call("topic", "show", topic).status == 20


def test_a_group_that_exists_says_so(shared: Place, topic: str, screens: Callable[..., Screen]) -> None:
    shared.call("publish", topic, "x")
    shared.call("group", "create", topic, "g")
    _, text = screens(shared, "subscribe", topic, "--group", "g", "--from", "latest", "--count", "1").finish()
    assert "goes on where it is" in text


def test_publishing_waits_for_somebody_to_type(
    shared: Place, topic: str, screens: Callable[..., Screen]
) -> None:
    assert screens(shared, "publish", topic).finish()[0] == 2
    screen = screens(shared, "publish", topic, "-")
    screen.type(b"typed\n\x04")
    status, text = screen.finish()
    assert status == 0
    assert "1 message stored" in text


def test_progress_on_a_terminal(shared: Place, topic: str, screens: Callable[..., Screen]) -> None:
    status, text = screens(shared, "publish", topic, "x" * 100, "--repeat", "600000", "--key", "k").finish()
    assert status == 0
    assert "600,000 messages stored" in text
    assert "/s" in text


# -- all of them ---------------------------------------------------------------------------------------


def commands() -> list[list[str]]:
    from typer.main import get_command

    from landbridge.cli.main import build

    def below(path: list[str], command: object) -> list[list[str]]:
        verbs = getattr(command, "commands", {}).items()
        return [each for name, verb in verbs for each in below([*path, name], verb)] or [path]

    # A step of one's own is named by where it is.
    return [path for path in below([], get_command(build(COMMANDS))) if path[-1] != "step"]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_help_has_an_example_and_json(place: Place, command: list[str]) -> None:
    shown = place.call(*command, "--help")
    assert shown.status == 0
    assert "Examples:" in shown.out
    assert "--json" in shown.out
    assert f"landbridge {' '.join(command)}" in shown.out.partition("Examples:")[2]


def test_help_lists_every_command(place: Place) -> None:
    shown = place.call("--help").out
    assert all(name in shown for name in COMMANDS)
    assert place.call("topic").out.count("create") >= 1


# -- completion ----------------------------------------------------------------------------------------


def offered(place: Place, line: str) -> list[str]:
    """What a shell offers at the end of a line."""
    words = line.split(" ")
    place.settings |= {
        "_LANDBRIDGE_COMPLETE": "complete_bash",
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(words) - 1),
    }
    try:
        return place.run().out.split()
    finally:
        for name in ("_LANDBRIDGE_COMPLETE", "COMP_WORDS", "COMP_CWORD"):
            del place.settings[name]


def test_the_shell_offers_topics_groups_and_contexts(shared: Place) -> None:
    shared.call("group", "create", "tab-orders", "tab-billing")
    shared.call("group", "create", "tab-other", "tab-shipping")
    assert offered(shared, "landbridge topic show tab-") == ["tab-orders", "tab-other"]
    assert offered(shared, "landbridge group show tab-orders tab-") == ["tab-billing"]
    assert offered(shared, "landbridge context use lo") == ["local"]
    assert offered(shared, "landbridge topic list --context lo") == ["local"]
    assert offered(shared, "landbridge limits show max_pay") == ["max_payload"]
    assert offered(shared, "landbridge limits set max_pay") == ["max_payload="]
    schema = shared.folder / "schema.json"
    schema.write_text("{}")
    shared.call("type", "register", "tab-orders", "tab.placed", str(schema))
    assert offered(shared, "landbridge type show tab-orders tab") == ["tab.placed"]
    # In a shell, "$status" would be a variable: such names are for those who have typed the sign.
    assert offered(shared, "landbridge topic show '$stat") == ["$status"]
    assert not [name for name in offered(shared, "landbridge topic show ") if name.startswith("$")]


def test_the_shell_offers_nothing_where_no_terminal_answers(place: Place) -> None:
    assert place.call("context", "add", "gone", "--url", "lb://127.0.0.1:1", "--token", "t").status == 0
    assert offered(place, "landbridge topic show x") == []
