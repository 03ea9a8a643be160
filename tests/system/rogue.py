"""A terminal that keeps no rules: a link spoken by hand, and frames read from a recorded wire."""

from __future__ import annotations

import asyncio
import os
from typing import Any

import msgspec

from landbridge.core.shipping.parcel import Kind
from landbridge.core.trust.identity import Handshake, Identity
from landbridge.errors import BusError, from_wire
from landbridge.protocol import frames
from landbridge.protocol.session import Role, Session
from landbridge.testing.wan import Way
from tests.waiting import LIMIT


class Recording:
    """A tap of a line: everything that passed, in both directions."""

    def __init__(self) -> None:
        self.bytes = {"forth": bytearray(), "back": bytearray()}

    def __call__(self, way: Way, data: bytes) -> None:
        self.bytes[way.name] += data

    def shipments(self) -> list[tuple[frames.Carry, bytes]]:
        """The shipments that the one that dialled has sent."""
        session = Session(Role.TERMINAL)
        found = []
        # Join and Prove come first; after those the session speaks as a link does.
        for frame, tail in _events(session, bytes(self.bytes["forth"])):
            if isinstance(frame, frames.Prove):
                session.link()
            if isinstance(frame, frames.Carry) and frame.kind == Kind.SHIPMENT:
                found.append((frame, bytes(tail)))
        return found


def _events(session: Session, data: bytes) -> Any:
    """Frame by frame: the session's state changes in between."""
    at = 0
    while len(data) - at >= 8:
        length = int.from_bytes(data[at : at + 4], "little")
        if len(data) - at - 8 < length:
            return
        yield from session.receive_data(data[at : at + 8 + length])
        at += 8 + length


class Rogue:
    """Dials a terminal as ``identity``, whoever's key is in it, and says whatever it is told to."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self._session = Session(Role.CLIENT)
        self._events: list[Any] = []
        self._number = 0
        self._writer: asyncio.StreamWriter
        self._reader: asyncio.StreamReader

    async def open(self, address: tuple[str, int]) -> None:
        self._reader, self._writer = await asyncio.open_connection(*address)

    async def dial(self, address: tuple[str, int], there: str) -> None:
        """Until the link is up. The error that the other side names where it isn't."""
        await self.open(address)
        try:
            await self._prove(there)
        except BaseException:
            await self.close()
            raise

    async def _prove(self, there: str) -> None:
        nonce = os.urandom(16)
        self._session.join()
        self.send(frames.Join(frames.VERSION, self.identity.customer, self.identity.terminal, nonce))
        challenge = await self.hear(frames.Challenge)
        customer, me = self.identity.customer, self.identity.terminal
        handshake = Handshake(customer, me, there, nonce, challenge.nonce)
        self.send(frames.Prove(handshake.sign(self.identity, "dialler")))
        await self.hear(frames.Linked)

    def send(self, frame: frames.Frame, *tail: bytes) -> None:
        self._writer.writelines(self._session.send(frame, *tail))

    async def carry(self, frame: frames.Carry, data: bytes, **changes: Any) -> str:
        """Hand over a parcel as the hop before. "" = the other side has kept it; else why not."""
        self._number += 1
        changes = {"number": self._number, "visited": [frame.source, self.identity.terminal], **changes}
        self.send(msgspec.structs.replace(frame, **changes), data)
        while True:
            match await self.hear(frames.Kept, frames.Declined):
                case frames.Kept(numbers) if self._number in numbers:
                    return ""
                case frames.Declined(number, code) if number == self._number:
                    return code

    async def hear(self, *kinds: type[frames.Frame]) -> Any:
        """The next frame of these kinds. BusError where the other side ends the connection."""
        async with asyncio.timeout(LIMIT):
            while True:
                for frame, _ in self._take():
                    if isinstance(frame, frames.Closing):
                        raise from_wire(frame.code, frame.message, frame.hint)
                    if isinstance(frame, kinds):
                        return frame
                data = await self._reader.read(1 << 16)
                if not data:
                    raise BusError("the connection ended without a word")
                self._events += self._session.receive_data(data)

    def _take(self) -> Any:
        while self._events:
            yield self._events.pop(0)

    async def close(self) -> None:
        self._writer.close()
        try:
            await self._writer.wait_closed()
        except OSError:
            pass
