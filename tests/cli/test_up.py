"""``landbridge up`` as a process: its first start, its next ones, and its end."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

import landbridge
import landbridge.sync
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.errors import ContextTaken, TerminalUnreachable
from landbridge.node import assembly
from landbridge.testing import FakeClock, attach, run_terminal
from tests.certificates import self_signed
from tests.cli.conftest import LIMIT, Place, Screen, finish, read_line, until
from tests.ports import free_port

TOKEN = re.compile(r"eyJ[\w-]+\.[\w-]+\.[\w-]+")


def token_of(place: Place, context: str = "local") -> str:
    return str(place.call("context", "show", context, "--show-token", "--json").json["token"])


# -- starting ------------------------------------------------------------------------------------------


def test_first_start_makes_the_context_and_the_next_one_keeps_it(place: Place) -> None:
    port = str(free_port())
    with place.up("--port", port, "--http-port", "0") as first:
        assert first.ready == {
            "url": f"lb://127.0.0.1:{port}", "data": str(place.data), "context": "local", "current": True,
            "http": None, "name": "local", "pid": first.process.pid,
        }  # fmt: skip
        token = token_of(place)
        assert place.call("publish", "orders", "kept").status == 0
        stopped = first.stop()
        assert stopped.status == 0
    with place.up("--port", port, "--http-port", "0") as second:
        assert token_of(place) == token
        assert place.call("subscribe", "orders", "--from", "earliest", "--count", "1").out == "kept\n"
        assert second.stop(signal.SIGINT).status == 0


def test_folders_and_files_are_ours_alone(place: Place) -> None:
    with place.up("--http-port", "0"):
        home = place.folder / "home"
        for path in (home / "contexts", place.data, place.data / "bus"):
            assert path.stat().st_mode & 0o777 == 0o700
        for path in (home / "contexts" / "local.json", *(place.data / "bus").iterdir()):
            assert path.stat().st_mode & 0o777 == 0o600


def test_another_port_moves_the_context(place: Place) -> None:
    with place.up("--http-port", "0") as first:
        first.stop()
    with place.up("--http-port", "0") as second:
        assert place.call("context", "show", "--json").json["url"] == second.ready["url"]
        assert place.call("info").status == 0


def test_a_second_terminal_does_not_take_the_context_of_the_first(place: Place) -> None:
    other = ["--data", str(place.folder / "other"), "--http-port", "0", "--log-level", "error"]
    with place.up("--http-port", "0") as first:
        before = place.call("context", "show", "--show-token", "--json").json
        assert before["data"] == str(place.data)
        refused = place.run("up", "--port", "0", "--json", *other)
        assert refused.status == 17
        assert refused.error["code"] == "context_taken"
        assert str(place.data) in refused.error["message"]
        assert "--context NAME" in refused.error["hint"]
        with place.up(*other, "--context", "second") as second:
            assert second.ready["url"] != first.ready["url"]
            assert place.call("context", "show", "--show-token", "--json").json == before
            assert place.call("info", "--context", "second").status == 0
        first.stop()
    # It belongs to the first, running or not, until it is removed or the data is gone.
    assert place.run("up", "--port", "0", "--json", *other).error["code"] == "context_taken"
    shutil.rmtree(place.data / "bus")
    with place.up(*other) as moved:
        assert place.call("context", "show", "--json").json["url"] == moved.ready["url"]


def test_a_context_of_a_terminal_in_memory_is_free_when_that_has_ended(place: Place) -> None:
    memory = ["--store", "memory", "--http-port", "0", "--log-level", "error"]
    with place.up(*memory) as first:
        refused = place.run("up", "--port", "0", "--json", *memory)
        assert refused.error["code"] == "context_taken"
        assert first.ready["url"] in refused.error["message"]
        assert place.call("info").status == 0
    with place.up(*memory) as second:
        assert place.call("info", "--json").json["url"] == second.ready["url"]


def test_a_context_in_use_stays_the_current_one(place: Place) -> None:
    place.call("context", "add", "mine", "--url", "lb://127.0.0.1:1", "--token", "t")
    with place.up("--http-port", "0", "--context", "second", "--name", "east") as running:
        assert (running.ready["context"], running.ready["current"]) == ("second", False)
        assert place.call("info", "--context", "second", "--json").json["name"] == "east"
    assert [row["name"] for row in place.call("context", "list", "--json").json] == ["mine", "second"]


def test_for_people_on_a_terminal(place: Place, screens: Callable[..., Screen]) -> None:
    screen = screens(place, "up", "--port", "0", "--http-port", "0")
    text = screen.wait_for("Ctrl-C stops it")
    assert "local is up" in text
    assert "\n  landbridge publish orders '{\"id\": 1}'\n" in text
    assert not TOKEN.search(text)
    screen.type(b"\x03")
    status, text = screen.finish()
    assert status == 0
    assert "stopping" in text
    assert "Traceback" not in text


def test_for_people_on_a_pipe(place: Place) -> None:
    process = place.start("up", "--port", "0", "--store", "memory", "--http-port", "0")
    assert read_line(process.stdout).startswith(b"bus      lb://127.0.0.1:")
    assert read_line(process.stdout) == b"data     in memory\n"
    process.terminate()
    assert finish(process).status == 0


def test_logs_are_json_without_tokens(place: Place) -> None:
    with place.up("--http-port", "0", "--log-level", "debug") as running:
        token = token_of(place)
        place.call("token", "create", "--subject", "s", "--scope", "admin")
        log = running.stop().err
    events = [json.loads(line) for line in log.splitlines()]
    assert [event["event"] for event in events] == ["open", "listening", "context", "stopping", "closed"]
    assert list(events[0])[:3] == ["time", "level", "event"]
    assert token not in log
    assert not TOKEN.search(log)


def test_limits(place: Place) -> None:
    with place.up(
        "--store", "memory", "--http-port", "0", "--limit", "max_payload=10", "--limit", "max_topics=2"
    ):
        assert place.call("publish", "a", "x" * 11, "--json").error["code"] == "too_large"
        assert place.call("publish", "a", "x" * 10).status == 0


def test_limits_in_units(place: Place) -> None:
    limits = ["--limit", "max_payload=1KiB", "--limit", "max_topics=1k", "--limit", "max_token_life=2d"]
    with place.up("--store", "memory", "--http-port", "0", *limits):
        assert place.call("publish", "a", "x" * 1025, "--json").error["code"] == "too_large"
        assert place.call("publish", "a", "x" * 1024).status == 0
        token = ["token", "create", "--subject", "s", "--scope", "admin", "--life"]
        assert place.call(*token, "2d").status == 0
        assert place.call(*token, "3d").status == 10


# -- refusing to start ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "status", "message"),
    [
        (["--host", "0.0.0.0"], 10, "in the clear"),
        (["--limit", "nonsense=1"], 10, "no limit"),
        (["--limit", "max_topics=-1"], 10, "not above 0"),
        (["--limit", "max_frame=32KiB"], 10, "below 65536"),
        (["--limit", "max_payload=8MX"], 10, "'8MX' is not a size: 4096, 10MB, 1GiB"),
        (["--limit", "hello_within=soon"], 10, "'soon' is not a span of time"),
        (["--tls-cert", "/nowhere"], 10, "belong together"),
        (["--tls-cert", "/nowhere", "--tls-key", "/nowhere"], 10, "No such file"),
        (["--data", "/proc/nowhere"], 65, "/proc/nowhere"),
    ],
)
def test_what_it_refuses(place: Place, arguments: list[str], status: int, message: str) -> None:
    refused = place.run("up", "--json", "--port", "0", "--http-port", "0", *arguments)
    assert refused.status == status
    assert message in refused.error["message"]
    assert not (place.folder / "home").exists()


def test_taken_ports_and_folders(place: Place) -> None:
    with place.up("--http-port", str(free_port())) as running:
        port, http_port = running.ready["url"].rpartition(":")[2], running.ready["http"].rpartition(":")[2]
        token = token_of(place)
        other = ["--log-level", "error", "--json"]
        assert place.run("up", "--port", "0", *other).error["code"] == "store_busy"
        elsewhere = ["--store", "memory", *other]
        assert place.run("up", "--port", port, "--http-port", "0", *elsewhere).error["code"] == "unreachable"
        refused = place.run("up", "--port", "0", "--http-port", http_port, *elsewhere)
        assert "--http-port" in refused.error["hint"]
        assert token_of(place) == token  # who didn't start has changed nothing


def test_home_that_can_not_be_written(place: Place) -> None:
    (place.folder / "home").write_text("a file")
    refused = place.run("up", "--port", "0", "--http-port", "0", "--log-level", "error", "--json")
    assert refused.error["code"] == "bad_context"


# -- stopping ------------------------------------------------------------------------------------------


def test_stop_with_subscribers_and_publishers_connected(place: Place) -> None:
    with place.up("--http-port", "0") as running:
        place.call("topic", "create", "orders")
        reader = place.start("subscribe", "orders", "--group", "g")
        writer = place.start("publish", "orders", stdin=subprocess.PIPE)
        assert writer.stdin is not None
        writer.stdin.write(b"before\n")
        writer.stdin.flush()
        assert read_line(reader.stdout) == b"before\n"
        # What is printed is acked a moment later; what isn't acked would come again.
        until(lambda: place.call("group", "show", "orders", "g", "--json").json["lag"] == 0)
        port = running.ready["url"].rpartition(":")[2]
        assert running.stop().status == 0
    # They wait for it to come back, and go on.
    writer.stdin.write(b"between\n")
    writer.stdin.flush()
    with place.up("--port", port, "--http-port", "0"):
        assert read_line(reader.stdout) == b"between\n"
        out, _ = writer.communicate(timeout=LIMIT)
        assert b"2 messages stored" in out
        reader.terminate()
        done = finish(reader)
        assert done.status == 0
        lost, back = done.err.splitlines()
        assert lost.startswith(f"lost the terminal at lb://127.0.0.1:{port}, trying again")
        assert back.startswith(f"back at the terminal at lb://127.0.0.1:{port} after ")


def test_killed_terminal_keeps_what_it_has_acked(place: Place) -> None:
    port = str(free_port())
    with place.up("--port", port, "--http-port", "0") as running:
        place.call("publish", "orders", "x", "--repeat", "1000")
        running.process.kill()
    with place.up("--port", port, "--http-port", "0"):
        assert place.call("topic", "show", "orders", "--json").json["messages"] == 1000


def test_second_signal_ends_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    exits: list[int] = []
    monkeypatch.setattr(os, "_exit", exits.append)

    async def main() -> None:
        with assembly.signals() as stop:
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.wait_for(stop.wait(), LIMIT)
            assert exits == []
            os.kill(os.getpid(), signal.SIGINT)
            async with asyncio.timeout(LIMIT):
                while not exits:
                    await asyncio.sleep(0)

    asyncio.run(main())
    assert exits == [130]


# -- the context ---------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path))
    monkeypatch.delenv("LANDBRIDGE_CONTEXT", raising=False)
    return tmp_path


HERE = Context("lb://127.0.0.1:7420", "")


async def test_context_is_kept_until_its_token_is_near_its_end(home: Path) -> None:
    clock = FakeClock()
    async with run_terminal(clock=clock) as terminal:
        await assembly.keep_context(terminal, "local", HERE)
        first = contexts.load("local")
        assert terminal.authority.verify(clock(), first.token).scopes.admin
        clock.advance(300 * 86400)
        await assembly.keep_context(terminal, "local", HERE)
        assert contexts.load("local") == first
        clock.advance(40 * 86400)
        await assembly.keep_context(terminal, "local", HERE)
        assert contexts.load("local").token != first.token


async def test_context_is_renewed_when_its_token_is_not_taken(home: Path) -> None:
    async with run_terminal() as terminal:
        await assembly.keep_context(terminal, "local", HERE)
        first = contexts.load("local")
        terminal.revoke(terminal.authority.verify(terminal.broker.clock(), first.token).token_id)
        await assembly.keep_context(terminal, "local", HERE)
        second = contexts.load("local")
        assert second.token != first.token
    async with run_terminal() as other:  # whose key is another
        await assembly.keep_context(other, "local", HERE)
        assert contexts.load("local").token != second.token


async def test_context_of_another_machine_is_never_taken(home: Path) -> None:
    far = Context("lbs://east.example.com:7420", "t")
    contexts.save("local", far)
    async with run_terminal() as terminal:
        with pytest.raises(ContextTaken, match=r"leads to lbs://east\.example\.com"):
            await assembly.keep_context(terminal, "local", HERE)
        assert contexts.load("local") == far


async def test_token_of_the_context_is_listed(home: Path) -> None:
    async with run_terminal() as terminal, attach(terminal) as bus:
        await assembly.keep_context(terminal, "local", HERE)
        identity = terminal.authority.verify(terminal.broker.clock(), contexts.load("local").token)
        [row] = (await bus.call("token.list"))["tokens"]
        assert (row["id"], row["subject"], row["scopes"]) == (identity.token_id, "admin", ["admin"])


async def test_context_without_admin_or_damaged_is_replaced(home: Path) -> None:
    async with run_terminal() as terminal:
        weak = Context(HERE.url, terminal.issue_token("x", ["publish:a"], 365 * 86400))
        contexts.save("local", weak)
        await assembly.keep_context(terminal, "local", HERE)
        assert contexts.load("local").token != weak.token
        (home / "contexts" / "local.json").write_text("{")
        await assembly.keep_context(terminal, "local", HERE)
        assert contexts.load("local").url == HERE.url


# -- TLS -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(certificate, key), signed by itself, for localhost."""
    return self_signed(tmp_path_factory.mktemp("tls"))


def test_all_addresses_with_tls(place: Place, certificate: tuple[Path, Path]) -> None:
    cert, key = map(str, certificate)
    http_port = str(free_port())
    listen = ["--host", "0.0.0.0", "--http-port", http_port, "--store", "memory"]
    with place.up(*listen, "--tls-cert", cert, "--tls-key", key) as running:
        assert running.ready["url"].startswith("lbs://localhost:")
        assert place.call("publish", "orders", "x").status == 0
        looked_at = ["--port", str(free_port()), "--http-port", str(free_port())]
        until(lambda: place.call("doctor", *looked_at, "--json").status == 0)
        import ssl

        trust = ssl.create_default_context(cafile=cert)
        assert httpx.get(f"{running.ready['http']}/healthz", verify=trust).text == "ok\n"
        # A program needs no context.
        with landbridge.sync.connect(running.ready["url"], token=token_of(place), ca=cert) as bus:
            assert bus.publish("orders", b"y").offset == 1
        with pytest.raises(TerminalUnreachable, match="no TLS"):
            landbridge.sync.connect(running.ready["url"], token=token_of(place))
        # In the clear, nobody answers.
        plain = running.ready["url"].replace("lbs://", "lb://")
        place.call("context", "add", "plain", "--url", plain, "--token", "t")
        assert place.call("info", "--context", "plain").status in (53, 54)


# -- HTTP ----------------------------------------------------------------------------------------------


def test_metrics_and_health(place: Place) -> None:
    with place.up("--http-port", str(free_port())) as running:
        place.call("publish", "orders", "x", "--repeat", "5")
        with httpx.Client(base_url=running.ready["http"]) as http:
            assert http.get("/healthz").text == "ok\n"
            refused = http.get("/metrics")
            assert refused.status_code == 401
            assert refused.headers["www-authenticate"] == "Bearer"
            assert refused.headers["content-type"] == "application/problem+json"
            found = http.get("/metrics", headers={"authorization": f"Bearer {token_of(place)}"})
            assert found.status_code == 200
            assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
            assert 'landbridge_topic_messages_total{topic="orders"} 5.0' in found.text
        assert running.stop().status == 0
