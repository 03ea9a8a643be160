"""``landbridge events`` and ``landbridge console-shell``, as processes."""

from __future__ import annotations

import json
import signal
import socket
import sys

import pytest

from tests.cli.conftest import LIMIT, Place, finish, read_line


def client(port: int, name: bytes) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", port), timeout=LIMIT)
    connection.sendall(name + b"\n")
    return connection


def probe(source: socket.socket, reader: socket.socket, first: int) -> int:
    """Broadcasts until the client gets one. Returns the next number."""
    reader.settimeout(0.05)
    while True:
        source.sendall(b"%d|B\n" % first)
        first += 1
        try:
            assert reader.recv(1000)
        except TimeoutError:
            continue
        reader.settimeout(LIMIT)
        return first


def test_events_pass_without_a_terminal(place: Place) -> None:
    process = place.start("events", "0", "0", "--json")
    ready = json.loads(read_line(process.stdout))
    assert (ready["terminal"], ready["topic"]) == (None, None)
    with (
        client(ready["client_port"], b"7") as reader,
        socket.create_connection(("127.0.0.1", ready["event_port"])) as source,
    ):
        number = probe(source, reader, 1)
        # The last one waits for a number that never comes.
        source.sendall(b"%d|B\n" % (number + 3) + b"%d|P|1|7\n" % (number + 1) + b"%d|U|1|7\n" % number)
        assert reader.recv(1000).endswith(b"%d|P|1|7\n" % (number + 1))
        process.send_signal(signal.SIGTERM)
        while reader.recv(1000):
            pass
    ended = finish(process)
    assert ended.status == 0
    summary = json.loads(ended.err.splitlines()[-1])
    assert (summary["dispatched"], summary["held"]) == (number + 1, 1)


def test_events_through_topics_survive_their_gateway(shared: Place) -> None:
    for first in (1, 3):
        process = shared.start("events", "0", "0", "--json", "--topic", "survivors")
        ready = json.loads(read_line(process.stdout))
        assert (ready["terminal"], ready["topic"]) == ("local", "survivors")
        with socket.create_connection(("127.0.0.1", ready["event_port"])) as source:
            source.sendall(b"%d|B\n%d|B\n" % (first + 1, first))
        while shared.call("group", "show", "survivors", "dispatch", "--json").json["floor"] < first + 1:
            pass
        process.send_signal(signal.SIGTERM)
        assert finish(process).status == 0
    assert shared.call("topic", "show", "survivors", "--json").json["end"] == 4


def test_topic_needs_a_terminal(place: Place) -> None:
    failed = place.call("events", "0", "0", "--topic", "events", "--json")
    assert failed.error["code"] == "bad_context"


def test_strangers_have_to_be_allowed(place: Place) -> None:
    failed = place.call("events", "0", "0", "--host", "0.0.0.0", "--json")
    assert failed.error["code"] == "bad_request"
    assert "--allow-strangers" in failed.error["hint"]


def test_taken_port_is_told(place: Place) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        failed = place.run("events", str(taken.getsockname()[1]), "0", "--json")
    assert failed.status == 53
    assert "can't listen" in failed.err


def test_shell_has_a_bus_an_exchange_and_a_gateway(place: Place) -> None:
    code = (
        "receipt = await bus.publish('a', 1)\n"
        "e = Exchange(); e.join(b'1')\n"
        "other = await start(event_port=0, client_port=0)\n"
        "print(receipt.offset, e.dispatch([b'1|B']).of(b'1'), 0 < gateway.event_port != other.event_port)"
    )
    shown = place.run("console-shell", "0", "0", "--memory", "-c", code)
    assert (shown.status, shown.out) == (0, "0 b'1|B\\n' True\n"), shown.err


def test_shell_reaches_the_terminal_of_the_context(shared: Place) -> None:
    shown = shared.run("console-shell", "0", "0", "-c", "print(bus.terminal_name)")
    assert (shown.status, shown.out) == (0, "local\n")


def test_shell_reads_what_is_typed(place: Place) -> None:
    typed = b"x = (await bus.publish('a', 1)).offset\nprint('offset', x)\nexit\n"
    shown = place.run("console-shell", "0", "0", "--memory", input=typed)
    assert shown.status == 0
    assert "offset 0" in shown.out


def test_failed_code_is_a_failed_command(place: Place) -> None:
    assert place.run("console-shell", "0", "0", "--memory", "-c", "1/0").status == 1


def test_shell_without_ipython_says_so(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "IPython.terminal.interactiveshell", None)
    failed = place.call("console-shell", "0", "0", "--memory")
    assert failed.status == 10
    assert "landbridge[shell]" in failed.err
