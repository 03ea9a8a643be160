"""A line that is slower than its sender: what can't leave stays in the log, not in the sender's memory."""

from __future__ import annotations

import asyncio

import pytest

from landbridge.core.shipping.parcel import Parcel
from landbridge.crossing import peer
from landbridge.crossing.ground import Settings
from landbridge.testing import wan
from landbridge.testing.fleet import Fleet, until
from landbridge.testing.wan import Line
from tests.waiting import LIMIT, Reader

#: Small ones, so that little has to be sent until they are full.
HIGH_WATER, LINE_BUFFER = 512 << 10, 64 << 10
#: Bytes of frames that go between shipments, and around one.
AROUND = 16 << 10


class Watch:
    """What a link was given, in bytes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, link: peer.Peer) -> None:
        self.largest = 0
        #: Not written yet, after it was given something.
        self.most_unwritten = 0
        carry, flush = link.carry, link._outgoing.flush

        def watched_carry(parcel: Parcel, data: bytes | memoryview, fate: peer.Fate | None = None) -> None:
            self.largest = max(self.largest, len(data))
            carry(parcel, data, fate)

        def watched_flush() -> None:
            flush()
            self.most_unwritten = max(self.most_unwritten, link._transport.get_write_buffer_size())

        monkeypatch.setattr(link, "carry", watched_carry)
        monkeypatch.setattr(link._outgoing, "flush", watched_flush)


async def test_what_a_slow_line_does_not_take_is_not_piled_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer, "HIGH_WATER", HIGH_WATER)
    monkeypatch.setattr(wan, "BUFFER", LINE_BUFFER)
    payload, count = b"x" * 10_000, 2_400
    async with Fleet(settings=Settings()) as fleet:
        tokyo = await fleet.server("tokyo", settings=Settings(neighbours=[]))
        async with Line("127.0.0.1", tokyo.port, rate=16e6) as line:
            paris = await fleet.client("paris", settings=Settings(dial={"tokyo": line.url}))
            await fleet.topic("orders", billing=[tokyo])
            await fleet.linked()
            link = Watch(monkeypatch, paris.network.peers[tokyo.id])
            async with fleet.attach(paris) as here, fleet.attach(tokyo) as there:
                async with here.publisher("orders") as out:
                    for number in range(count):
                        await out.send(b"%d " % number + payload)
                async with (
                    Reader(there.subscribe("orders", group="billing")) as reader,
                    asyncio.timeout(LIMIT),
                ):
                    numbers = [int(found.split()[0]) for found in await reader.payloads(count)]
            assert numbers == list(range(count))
            await until(lambda: not paris.network.forwarder.held())
    # It was full at times, and never by more than the shipment that filled it.
    assert HIGH_WATER < link.most_unwritten <= HIGH_WATER + link.largest + AROUND
    assert link.largest < len(payload) * count / 10
