"""Requests, events and errors from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import landbridge
from tests.cli.conftest import Place, finish, read_line

SERVICE = """
import landbridge

service = landbridge.Service("quotes")

@service.on("TOPIC", reply=True)
async def quote(value) -> dict:
    if value == "none":
        raise landbridge.ServiceFailed("no such thing", service_code="no_thing", status=404)
    if value == "crash":
        raise ValueError("a bug")
    return {"for": value}
"""


def test_requests_events_and_errors(shared: Place, topic: str, tmp_path: Path) -> None:
    (tmp_path / "quotes.py").write_text(SERVICE.replace("TOPIC", topic))
    nobody = shared.call("request", topic, "1")
    assert nobody.status == landbridge.errors.NoResponder.exit_status
    both = shared.call("request", topic, "1", "--all", "--durable")
    assert both.status == landbridge.errors.BadRequest.exit_status
    id = shared.call("trigger", topic, "7", "--json").json["id"]
    assert shared.call("outcome", id, "--json").json["state"] == "pending"

    process = shared.start("run", "quotes:service", "--json", cwd=tmp_path)
    read_line(process.stdout)
    outcome = shared.call("outcome", id, "--wait", "60s", "--json").json
    assert (outcome["state"], outcome["payload"]) == ("done", '{"for":7}')
    for more in ([], ["--durable", "--timeout", "60s"], ["--all"]):
        assert shared.call("request", topic, "1", *more).out == '{"for":1}\n'
    reply = shared.call("request", topic, "1", "--json").json
    assert json.loads(reply["payload"]) == {"for": 1}
    failed = shared.call("request", topic, '"none"')
    assert failed.status == landbridge.ServiceFailed.exit_status
    assert "no such thing" in failed.err
    shared.call("request", topic, '"crash"')
    process.terminate()
    finish(process)

    rows = shared.call("errors", "list", "--code", "failed", "--json").json
    assert [row["text"] for row in rows if row["topic"] == topic] == ["ValueError: a bug"]
    assert shared.call("errors", "list", "--service", "nobody", "--json").json == []
    seen = shared.call("errors", "tail", "--from", "earliest", "--count", "1")
    assert "ValueError: a bug" in seen.out
    codes = {row["code"] for row in shared.call("errors", "catalogue", "--json").json["errors"]}
    assert {"no_responder", "service_failed", "unknown_event"} <= codes
