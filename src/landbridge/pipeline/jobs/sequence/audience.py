"""The clients that the events of a sequence are for. No client connects here; the core's exchange counts a
client as connected from the first event that names it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from landbridge.core.events.exchange import Exchange, ExchangeState, Notifications
from landbridge.core.events.parser import valid_id

#: Type of event → the fields of its line that name clients. Broadcasts name none.
_NAMES = {b"F": (2, 3), b"U": (2, 3), b"P": (2, 3), b"S": (2,)}


class _AudienceState(msgspec.Struct, array_like=True):
    exchange: ExchangeState
    users: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_AudienceState).decode


class Audience:
    def __init__(self, users: Iterable[bytes] = ()) -> None:
        """``users`` are connected from the beginning."""
        self._exchange = Exchange()
        for user in users:
            self._exchange.join(user)

    @property
    def users(self) -> set[bytes]:
        return set(self._exchange.present)

    def save(self) -> bytes:
        return _encode(_AudienceState(self._exchange.save(), list(self._exchange.present)))

    def restore(self, saved: bytes | bytearray) -> None:
        state = _decode(saved)
        for user in state.users:
            self._exchange.join(user)
        self._exchange.restore(state.exchange)

    def tell(self, lines: list[bytes]) -> Iterator[tuple[bytes | None, bytes]]:
        """Yields (client, line), for each client in the order of the lines. (None, line): the line is not a
        valid event."""
        for some in self._runs(lines):
            # A payload may contain an LF, which would end the line for the clients.
            whole = [line for line in some if b"\n" not in line]
            told = self._exchange.dispatch(whole)
            yield from told.rows(self._told(told))
            broken = [line for line in some if b"\n" in line] if len(whole) < len(some) else []
            for line in told.malformed + broken:
                yield None, line

    def _told(self, told: Notifications) -> list[bytes]:
        return list(self._exchange.present if told.everyone else told.apart)

    def _runs(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        """Cut the lines into runs. A client joins with the first event that names it, and must not get the
        broadcasts before it. So a run ends before an event that names a new client, if the run has a
        broadcast. The new clients of a run have joined when it is yielded."""
        exchange = self._exchange
        first, broadcast = 0, False
        for at, line in enumerate(lines):
            fields = line.split(b"|")
            kind = fields[1] if len(fields) > 1 else b""
            if kind == b"B":
                broadcast = True
                continue
            if len(fields) > 4:
                continue
            named = [fields[place] for place in _NAMES.get(kind, ()) if place < len(fields)]
            new = [name for name in named if name not in exchange.present and valid_id(name)]
            if new:
                if broadcast:
                    yield lines[first:at]
                    first, broadcast = at, False
                for name in new:
                    exchange.join(name)
        if first < len(lines):
            yield lines[first:]
