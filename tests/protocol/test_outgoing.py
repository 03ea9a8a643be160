"""Frames that are sent together leave together."""

from __future__ import annotations

import asyncio
from typing import Any

from landbridge.protocol import frames
from landbridge.protocol.session import Session
from landbridge.transport.outgoing import ENOUGH, Outgoing, gathering
from tests.waiting import turns


class Sink(asyncio.Transport):
    """Keeps what each write was given."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[bytes] = []

    def write(self, data: Any) -> None:
        self.writes.append(bytes(data))

    def writelines(self, buffers: Any) -> None:
        self.write(b"".join(buffers))

    def is_closing(self) -> bool:
        return False


def pings(*numbers: int) -> bytes:
    return b"".join(b"".join(Session.send(frames.Ping(number))) for number in numbers)


async def test_frames_of_a_turn_are_one_write() -> None:
    out = Outgoing(sink := Sink())
    out.send(frames.Ping(1))
    out.send(frames.Ping(2))
    assert sink.writes == []
    await turns()
    assert sink.writes == [pings(1, 2)]


async def test_frames_of_a_block_are_one_write_at_its_end_for_every_connection() -> None:
    one, other = Outgoing(first := Sink()), Outgoing(second := Sink())
    with gathering:
        one.send(frames.Ping(1))
        with gathering:
            other.send(frames.Ping(2))
        one.send(frames.Ping(3))
        assert first.writes == second.writes == []
    assert (first.writes, second.writes) == ([pings(1, 3)], [pings(2)])
    one.send(frames.Ping(4))
    await turns()
    assert first.writes == [pings(1, 3), pings(4)]


async def test_a_block_that_fails_writes_what_was_sent() -> None:
    out = Outgoing(sink := Sink())
    try:
        with gathering:
            out.send(frames.Ping(1))
            raise ZeroDivisionError
    except ZeroDivisionError:
        pass
    assert sink.writes == [pings(1)]


async def test_a_frame_that_is_sent_now_takes_along_what_waits() -> None:
    out = Outgoing(sink := Sink())
    out.send(frames.Ping(1))
    out.send_now(frames.Ping(2))
    assert sink.writes == [pings(1, 2)]
    await turns()
    assert sink.writes == [pings(1, 2)]


async def test_much_does_not_wait() -> None:
    out = Outgoing(sink := Sink())
    with gathering:
        out.send(frames.Publish(1, "orders", b"p", 1), bytes(ENOUGH))
        assert len(sink.writes) == 1
