"""Checks that may take long: in a process of their own, while everybody else goes on."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from landbridge.broker import checking_main, checking_process
from landbridge.broker.checking_process import CheckingProcess
from landbridge.broker.server import Terminal
from landbridge.core.middleware.event_types import TypeRegistration
from landbridge.core.middleware.validate import Misfit
from landbridge.errors import (
    BadRequest,
    InvalidMessage,
    SchemaIncompatible,
    ShuttingDown,
)
from landbridge.testing import attach, run_terminal

VALIDATE: Any = {"stage": "validate"}
#: More than the terminal checks by itself for some thousands of elements.
DEAR: dict[str, Any] = {"type": "array", "items": {"anyOf": [{"const": n} for n in range(200)]}}
#: Takes a minute for a message of some kilobytes.
ENDLESS: dict[str, Any] = {"items": {"enum": [{"a": [n] * 9} for n in range(400)]}}
LONG = [{"a": [399] * 9}] * 400_000


@pytest.fixture
def checking() -> Iterator[CheckingProcess]:
    checks = CheckingProcess(seconds=0)
    yield checks
    checks.close()


def registration(schema: Any, compatibility: Any = "backward") -> TypeRegistration:
    return TypeRegistration(schema=schema, now=1, who="me", description=None, compatibility=compatibility)


async def test_the_process_says_which_message_does_not_fit_and_where(checking: CheckingProcess) -> None:
    def ask(*payloads: bytes) -> Misfit | None:
        return checking.first_misfit(
            msgspec.json.encode({"properties": {"n": {"type": "integer"}}}), list(payloads)
        )

    assert await checking.run("t", lambda: ask(b"{}", b'{"n": 1}')) is None
    misfit = await checking.run("t", lambda: ask(b"{}", b'{"n": "x"}', b'{"n": []}'))
    assert misfit is not None
    assert (misfit.at, misfit.field) == (1, "/n")
    misfit = await checking.run("t", lambda: ask(b"{}", b"{"))
    assert misfit is not None
    assert (misfit.at, misfit.hint) == (1, "send JSON, in UTF-8")
    assert await checking.run("t", lambda: ask(b"1")) is None


async def test_a_check_without_end_is_ended_and_the_next_one_is_made(checking: CheckingProcess) -> None:
    def ask(schema: Any, *payloads: bytes) -> Misfit | None:
        return checking.first_misfit(msgspec.json.encode(schema), list(payloads))

    misfit = await checking.run("t", lambda: ask(ENDLESS, b"[]", msgspec.json.encode(LONG)))
    assert misfit is not None
    assert (misfit.at, misfit.reason) == (1, "its check takes more than 0 s")
    assert await checking.run("t", lambda: ask({}, b"1")) is None


async def test_a_process_that_is_killed_is_started_again(checking: CheckingProcess) -> None:
    def ask() -> Misfit | None:
        return checking.first_misfit(b"true", [b"1"])

    assert await checking.run("t", ask) is None
    assert checking._process is not None
    os.kill(checking._process.pid, signal.SIGSTOP)
    asking = asyncio.ensure_future(checking.run("t", ask))
    os.kill(checking._process.pid, signal.SIGKILL)
    (found,) = await asyncio.gather(asking, return_exceptions=True)
    # It may have been found dead before it was asked.
    assert found is None or f"status {-signal.SIGKILL}" in str(found)
    assert await checking.run("t", ask) is None


async def test_a_process_that_is_found_dead_leaves_nothing_open(checking: CheckingProcess) -> None:
    assert await checking.run("t", lambda: checking.first_misfit(b"true", [b"1"])) is None
    dead = checking._process
    assert dead is not None
    dead.kill()
    dead.wait()
    assert await checking.run("t", lambda: checking.first_misfit(b"true", [b"1"])) is None
    assert dead.stdin is not None
    assert dead.stdout is not None
    assert dead.stdin.closed
    assert dead.stdout.closed


async def test_closing_ends_a_check_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    checking, begun = CheckingProcess(), threading.Event()
    answer = checking_main.read_message

    def read(stream: Any) -> bytes:
        begun.set()
        return answer(stream)

    monkeypatch.setattr(checking_process, "read_message", read)
    payload = msgspec.json.encode(LONG)
    asking = asyncio.ensure_future(
        checking.run("t", lambda: checking.first_misfit(msgspec.json.encode(ENDLESS), [payload]))
    )
    await asyncio.to_thread(begun.wait)
    checking.close()
    with pytest.raises(ShuttingDown):
        await asking
    with pytest.raises(ShuttingDown):
        checking.first_misfit(b"true", [b"1"])


async def test_large_schemas_are_registered_as_small_ones_are(checking: CheckingProcess) -> None:
    large = {"properties": {f"p{n}": {"type": "string", "maxLength": n} for n in range(300)}}
    assert registration(large).is_costly
    first = await checking.register("t", None, registration(large))
    assert (first.newest, first.versions[0].schema) == (1, large)
    assert await checking.register("t", first, registration(large)) == first
    with pytest.raises(SchemaIncompatible, match="not backward compatible with version 1"):
        await checking.register("t", first, registration({**large, "required": ["p1"]}))
    with pytest.raises(BadRequest, match="the schema is none"):
        await checking.register("t", None, registration({**large, "type": "nothing"}))


async def test_everybody_else_goes_on_while_a_message_is_checked(
    monkeypatch: pytest.MonkeyPatch, crashes: list[Any]
) -> None:
    begun, go_on = threading.Event(), threading.Event()
    check = CheckingProcess.first_misfit

    def hold(self: CheckingProcess, schema: bytes, payloads: list[bytes]) -> Misfit | None:
        begun.set()
        assert go_on.wait(60.0)
        return check(self, schema, payloads)

    monkeypatch.setattr(CheckingProcess, "first_misfit", hold)
    async with run_terminal() as terminal, attach(terminal) as bus:
        for topic, schema in (("dear", DEAR), ("orders", {"type": "object"})):
            await bus.types.register(topic, "default", schema=schema)
            await bus.topics.update(topic, middleware=[VALIDATE])
        dear = asyncio.ensure_future(bus.publish("dear", [199] * 9000))
        await asyncio.to_thread(begun.wait)
        try:
            for n in range(20):  # by the stage of another topic, and by none
                await bus.publish("orders", {"n": n})
                await bus.publish("plain", n)
            with pytest.raises(InvalidMessage):
                await bus.publish("orders", [])
            assert not dear.done()
            behind = asyncio.ensure_future(bus.publish("dear", [1]))  # keeps its place
        finally:
            go_on.set()
        assert [(await dear).offset, (await behind).offset] == [0, 1]
        with pytest.raises(InvalidMessage) as refused:
            async with bus.publisher("dear") as out:
                await out.send_many([[1] * 9000, [1] * 8999 + [200]])
        assert refused.value.index == 1
        assert end(terminal, "dear") == 2


def end(terminal: Terminal, topic: str) -> int:
    return terminal.broker.topics[topic].log.end


async def test_to_say_where_a_message_does_not_fit_may_take_the_process(crashes: list[Any]) -> None:
    """A quick check whose explanation may take long."""
    schema = {"items": {"anyOf": [{"properties": {"a": {"const": n}}, "required": ["a"]} for n in range(20)]}}
    async with run_terminal() as terminal, attach(terminal) as bus:
        await bus.types.register("orders", "default", schema=schema)
        await bus.topics.update("orders", middleware=[VALIDATE])
        await bus.publish("orders", [{"a": 1}])
        assert terminal.broker.middleware.workshop.checking._process is None
        with pytest.raises(InvalidMessage) as refused:
            await bus.publish("orders", [{"a": 1}] * 80 + [{"a": 99}])
        assert (refused.value.index, refused.value.field) == (0, "/80")
        assert terminal.broker.middleware.workshop.checking._process is not None
        stages = terminal.broker.middleware.counts_of("orders")
        assert stages["validate"].refused == 1
