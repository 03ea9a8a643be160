from __future__ import annotations

import time
from typing import Any

import pytest

from landbridge.cli import doctor
from landbridge.protocol.operations import TerminalInfo
from tests.cli.conftest import LIMIT, Place, until
from tests.ports import free_port


def checks(result: Any) -> dict[str, dict[str, str]]:
    import json

    return {check["check"]: check for check in json.loads(result.out)["checks"]}


def ports() -> list[str]:
    return ["--port", str(free_port()), "--http-port", str(free_port())]


def settled(place: Place, *arguments: str) -> Any:
    """What the doctor says when nothing depends on a moment's load any more, or else in the end."""
    steady = ("terminal", "latency", "clock", "registry", "registry from here", "registry clock", "http port")
    end = time.monotonic() + LIMIT
    while True:
        found = place.call("doctor", *arguments, "--json")
        states = {name: check["state"] for name, check in checks(found).items()}
        if all(states.get(name) == "ok" for name in steady) or time.monotonic() > end:
            return found


def test_all_is_well(place: Place) -> None:
    with place.up("--http-port", str(free_port())) as running:
        port, http_port = (running.ready[name].rpartition(":")[2] for name in ("url", "http"))
        # On a busy machine an answer may come too late: the doctor is right to say so, and is asked again.
        found = settled(place, "--deep", "--port", port, "--http-port", http_port)
        assert found.status == 0, found.out
        states = {name: check["state"] for name, check in checks(found).items()}
        busy = {"store": "warn"}  # it is open, so it can't be checked
        for disk in ("data", "fsync"):
            assert states.pop(disk) in ("ok", "warn")  # as the disk is
        names = "python packages config context terminal latency clock room registry links store"
        others = ["registry from here", "registry clock", "bus port", "http port"]
        assert states == dict.fromkeys([*names.split(), *others], "ok") | busy
        assert "in use, by the context's terminal" in checks(found)["bus port"]["detail"]
        assert "healthy" in checks(found)["http port"]["detail"]
        plain = until(lambda: (said := place.call("doctor", *ports())).status == 0 and said)
        assert "ok    terminal" in plain.out
        running.stop()
    found = place.call("doctor", "--deep", *ports(), "--json")
    assert found.status == 70  # nobody answers
    assert checks(found)["terminal"]["state"] == "fail"
    assert "landbridge up" in checks(found)["terminal"]["hint"]
    assert "every checksum is right" in checks(found)["store"]["detail"]
    assert checks(found)["bus port"]["detail"].endswith("is free")


def test_nothing_set_up(place: Place) -> None:
    found = place.call("doctor", *ports(), "--json")
    assert found.status == 70
    assert checks(found)["config"]["state"] == "warn"
    assert checks(found)["context"]["state"] == "fail"
    assert checks(found)["store"]["detail"] == "none yet"
    assert not place.data.exists()  # it looks, and makes nothing
    plain = place.call("doctor", *ports())
    assert plain.status == 70
    assert "fail  context" in plain.out
    assert "hint: " in plain.out


def test_the_data_is_that_of_the_contexts_terminal(place: Place) -> None:
    other = place.folder / "other"
    with place.up("--http-port", "0", "--data", str(other)) as running:
        del place.settings["LANDBRIDGE_DATA"]
        found = checks(place.call("doctor", *ports(), "--json"))
        assert found["data"]["detail"].startswith(f"{other}, ")
        assert found["store"]["detail"].startswith(f"{other / 'bus'}, ")
        running.stop()


def test_tokens_that_others_can_read(place: Place) -> None:
    place.call("context", "add", "c", "--url", "lb://127.0.0.1:1", "--token", "t")
    (place.folder / "home" / "contexts" / "c.json").chmod(0o644)
    found = checks(place.call("doctor", *ports(), "--json"))["config"]
    assert found["state"] == "warn"
    assert "chmod" in found["hint"]


def test_damaged_store_is_found(place: Place) -> None:
    with place.up("--http-port", "0") as running:
        for _ in range(5):
            place.call("publish", "orders", "x" * 100, "--repeat", "1000")
        running.stop()
    file = place.data / "bus" / "00000001.segment"
    data = bytearray(file.read_bytes())
    at = data.index(b"x" * 1000)
    data[at : at + 100] = b"y" * 100
    file.write_bytes(data)
    found = place.call("doctor", "--deep", *ports(), "--json")
    assert found.status == 70
    assert checks(found)["store"]["state"] == "fail"


def test_a_taken_port_is_told(place: Place) -> None:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        found = checks(place.call("doctor", "--port", port, "--http-port", str(free_port()), "--json"))[
            "bus port"
        ]
    assert found["state"] == "warn"
    assert "--port" in found["hint"]


def test_data_that_can_not_be_written(place: Place) -> None:
    (place.folder / "file").write_text("")
    found = checks(place.call("doctor", "--data", str(place.folder / "file" / "data"), *ports(), "--json"))[
        "data"
    ]
    assert found["state"] == "fail"


@pytest.mark.parametrize(("difference", "state"), [(0.01, "ok"), (-5.0, "warn"), (90.0, "fail")])
def test_clocks(difference: float, state: str) -> None:
    check = doctor._clock(1000.0 + difference, 999.9, 1000.1)
    assert check.state == state
    assert ("behind" if difference < 0 else "ahead") in check.detail


def test_slow_answer_does_not_make_a_clock_wrong() -> None:
    assert doctor._clock(1008.0, 1000.0, 1008.5).state == "ok"
    assert doctor._clock(1012.0, 1000.0, 1008.5).state == "warn"


def test_expired_token(place: Place) -> None:
    import base64
    import json

    def token(expires_at: float) -> str:
        claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_at}).encode()).decode().rstrip("=")
        return f"eyJh.{claims}.c2ln"

    for expires_at, state in (
        (time.time() - 10, "fail"),
        (time.time() + 3600, "warn"),
        (time.time() + 1e7, "ok"),
    ):
        place.call("context", "add", "c", "--url", "lb://127.0.0.1:1", "--token", token(expires_at))
        assert checks(place.call("doctor", *ports(), "--json"))["context"]["state"] == state


def test_tokens_that_say_nothing() -> None:
    for token in ("", "a.b", "a.!!!.c", "a.bnVsbA.c", "a.e30.c"):
        assert doctor._token_left(token) is None


@pytest.mark.parametrize(("days", "state"), [(20, "ok"), (1, "warn"), (-1, "fail")])
def test_a_certificate_that_ends(days: int, state: str) -> None:
    assert doctor._certificate(days * 86400.0).state == state


def test_what_the_terminal_says_of_its_disk_and_data() -> None:
    facts: dict[str, Any] = {
        "name": "t",
        "version": "1",
        "protocol": 1,
        "python": "",
        "platform": "",
        "time": 0,
    }
    counts: dict[str, Any] = {"started_at": 0, "start": 1, "topics": 0, "connections": 0, "store": ""}
    well = TerminalInfo(**facts, **counts, free=10 << 30)
    assert [(check.check, check.state) for check in doctor._condition(well)] == [("room", "ok")]
    ill = TerminalInfo(**facts, **counts, free=0, low=True, damage=["log 1 is lost"])
    room, damage = doctor._condition(ill)
    assert (room.state, damage.state) == ("fail", "warn")
    assert "delete or trim topics" in room.hint
    assert damage.detail == "log 1 is lost"
