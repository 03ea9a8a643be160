"""The bad network itself: what its lines do to a connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from landbridge.testing.wan import BUFFER, Line
from tests.waiting import LIMIT, eventually, turns


class Echo(asyncio.Protocol):
    """Says everything again, and ends when its peer has ended."""

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


@asynccontextmanager
async def echo(**options) -> AsyncIterator[tuple[Line, asyncio.StreamReader, asyncio.StreamWriter]]:
    """A line to an echo, and a connection through it."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0)
    async with Line(*server.sockets[0].getsockname(), **options) as line:
        reader, writer = await asyncio.open_connection(*line.address)
        async with asyncio.timeout(LIMIT):
            yield line, reader, writer
        writer.close()
        try:
            await writer.wait_closed()
        except OSError:
            pass
    server.close()
    await server.wait_closed()


async def test_what_goes_in_comes_out_in_order():
    async with echo(delay=0.001, jitter=0.003, seed=1) as (line, reader, writer):
        line.forth.loss = 0.1
        sent = b"".join(number.to_bytes(4, "little") for number in range(50_000))
        for at in range(0, len(sent), 1000):
            writer.write(sent[at : at + 1000])
            await asyncio.sleep(0)
        assert await reader.readexactly(len(sent)) == sent
        assert (line.forth.passed, line.back.passed) == (len(sent), len(sent))


async def test_more_than_it_holds_waits_at_its_sender():
    async with echo() as (line, reader, writer):
        line.silence("forth")
        data = bytes(BUFFER * 3)
        writer.write(data)
        await asyncio.sleep(0.1)
        # What is not held by the line or by the sockets is still with the one that writes.
        assert writer.transport.get_write_buffer_size() > 0
        line.heal()
        assert await reader.readexactly(len(data)) == data


async def test_a_black_hole_holds_and_a_healed_line_gives():
    async with echo() as (line, reader, writer):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        line.black_hole()
        writer.write(b"inside")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(reader.readexactly(6), 0.1)
        line.heal()
        # The bytes that a cancelled read has not taken are still there.
        assert await reader.readexactly(6) == b"inside"


@pytest.mark.parametrize("way", ["forth", "back"])
async def test_one_way_is_silent(way):
    async with echo() as (line, reader, writer):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        line.silence(way)
        writer.write(b"inside")
        heard_there = line.forth.passed
        await turns(200)
        if way == "back":
            await eventually(lambda: line.forth.passed == 12)
        else:
            assert line.forth.passed == heard_there == 6
        assert line.back.passed == 6
        line.heal()
        assert await reader.readexactly(6) == b"inside"


async def test_a_connection_that_is_made_in_a_black_hole_opens_when_it_is_healed():
    async with echo() as (line, _, _):
        line.black_hole()
        reader, writer = await asyncio.open_connection(*line.address)
        writer.write(b"hello")
        await turns(200)
        line.heal()
        assert await reader.readexactly(5) == b"hello"
        writer.close()
        await writer.wait_closed()


async def test_a_reset_is_a_reset_and_new_connections_may_be_made():
    async with echo() as (line, reader, writer):
        writer.write(b"before")
        await reader.readexactly(6)
        line.reset()
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        again, writing = await asyncio.open_connection(*line.address)
        writing.write(b"again")
        assert await again.readexactly(5) == b"again"
        line.cut()
        with pytest.raises(ConnectionResetError):
            await again.readexactly(1)
        writing.close()
        with pytest.raises(ConnectionResetError):
            refused, _ = await asyncio.open_connection(*line.address)
            await refused.readexactly(1)
        await eventually(lambda: line.connections == 0)


async def test_an_end_comes_behind_what_was_sent():
    async with echo(delay=0.01) as (line, reader, writer):
        writer.write(b"the last")
        writer.write_eof()
        assert await reader.read() == b"the last"
        await eventually(lambda: line.connections == 0)


async def test_taps_see_what_passes():
    async with echo() as (line, reader, writer):
        seen = []
        line.taps.append(lambda way, data: seen.append((way.name, data)))
        writer.write(b"hello")
        await reader.readexactly(5)
        assert seen == [("forth", b"hello"), ("back", b"hello")]
