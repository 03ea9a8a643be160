"""``landbridge run``."""

from __future__ import annotations

import json
import signal
import sys
from pathlib import Path

import pytest

from landbridge.cli.service import find_service
from landbridge.errors import BadRequest
from tests.cli.conftest import Place, finish, read_line

SERVICE = """
import landbridge

service = landbridge.Service("billing")
other = landbridge.Service("other")

class Things:
    inner = service

@service.on("TOPIC")
async def bill(order: dict, bus: landbridge.Bus) -> None:
    if "bad" in order:
        raise ValueError("no good")
    await bus.publish("TOPIC.bills", {"for": order["id"]})
"""


@pytest.fixture
def code(tmp_path: Path, topic: str) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "billing.py").write_text(SERVICE.replace("TOPIC", topic))
    (tmp_path / "broken.py").write_text("import nothing_of_that_name\n")
    (tmp_path / "lonely.py").write_text("import landbridge\nalone = landbridge.Service('alone')\n")
    return tmp_path


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_service_runs_until_it_is_stopped(shared: Place, topic: str, code: Path, number: int) -> None:
    process = shared.start("run", "shop.billing:service", "--json", cwd=code)
    ready = json.loads(read_line(process.stdout))
    assert ready["service"] == "billing"
    assert ready["routes"] == [{"topic": topic, "group": "billing"}]
    shared.call("publish", topic, '{"bad": 1}')
    shared.call("publish", topic, '{"id": 7}')
    assert (
        shared.call("subscribe", f"{topic}.bills", "--from", "earliest", "--count", "1").out == '{"for":7}\n'
    )
    process.send_signal(number)
    done = finish(process)
    assert done.status == 0
    events = [json.loads(line) for line in done.err.splitlines()]
    assert [event["event"] for event in events if event["level"] == "info"] == [
        "running",
        "stopping",
        "stopped",
    ]
    failed = next(event for event in events if event["level"] == "error")
    assert "ValueError: no good" in failed["exception"]
    assert shared.call("group", "show", topic, "billing", "--json").json["consumers"] == []


def test_service_tells_when_the_terminal_is_away(place: Place, topic: str, code: Path) -> None:
    with place.up("--http-port", "0") as first:
        process = place.start("run", "shop.billing:service", "--json", cwd=code)
        read_line(process.stdout)
        port = first.ready["url"].rpartition(":")[2]
        first.stop()
    with place.up("--port", port, "--http-port", "0"):
        place.call("publish", topic, '{"id": 7}')
        read = ["subscribe", f"{topic}.bills", "--from", "earliest", "--count", "1"]
        assert place.call(*read).out == '{"for":7}\n'
        process.terminate()
        events = [json.loads(line) for line in finish(process).err.splitlines()]
    told = [event["event"] for event in events if event["level"] == "warning"]
    assert [line.partition(" at ")[0] for line in told] == ["lost the terminal", "back"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("nowhere:service", "there is no module nowhere"),
        ("shop.nowhere:service", "there is no module shop.nowhere"),
        ("shop.billing:nothing", "there is nothing at"),
        ("shop.billing:SERVICE.x", "there is nothing at"),
        ("shop.billing:bill", "a value of type function"),
        ("shop.billing:", "names no service"),
        ("shop.billing", "has 2 services"),
    ],
)
def test_what_is_not_a_service(code: Path, spec: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(code)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "modules", dict(sys.modules))
    with pytest.raises(BadRequest, match=message):
        find_service(spec)


def test_service_without_handlers_and_code_that_is_broken(shared: Place, code: Path) -> None:
    refused = shared.run("run", "lonely", "--json", "--log-level", "error", cwd=code)
    assert refused.status == 10
    broken = shared.run("run", "broken:service", cwd=code)
    assert broken.status == 10
    assert "nothing_of_that_name" in broken.err
    assert shared.run("run", "lonely", "--log-level", "loud", "--json").status == 10


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("service = 1 / 0\n", "ZeroDivisionError: division by zero"),
        ("service = (\n", "SyntaxError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_its_authors_affair(
    shared: Place, tmp_path: Path, content: str, said: str
) -> None:
    (tmp_path / "mine.py").write_text(content)
    refused = shared.run("run", "mine:service", "--json", cwd=tmp_path)
    assert (refused.status, refused.error["code"]) == (10, "bad_request")
    assert said in refused.error["message"]
    assert "line" in refused.error["hint"]
