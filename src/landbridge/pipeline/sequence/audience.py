"""Whom the events of a sequence are for, where nobody connects: the core's exchange, with users that are
counted as connected from the first event on that names them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from landbridge.core.events.exchange import Exchange, ExchangeState, Notifications
from landbridge.core.events.parser import valid_id

#: What an event of each type names, by the place in its line. Broadcasts name nobody.
_NAMES = {b"F": (2, 3), b"U": (2, 3), b"P": (2, 3), b"S": (2,)}


class _State(msgspec.Struct, array_like=True):
    exchange: ExchangeState
    users: list[bytes]


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_State).decode


class Audience:
    def __init__(self, users: Iterable[bytes] = ()) -> None:
        """``users``: who is there from the beginning."""
        self._exchange = Exchange()
        for user in users:
            self._exchange.join(user)

    @property
    def users(self) -> set[bytes]:
        return set(self._exchange.present)

    def save(self) -> bytes:
        return _encode(_State(self._exchange.save(), list(self._exchange.present)))

    def restore(self, saved: bytes | bytearray) -> None:
        state = _decode(saved)
        for user in state.users:
            self._exchange.join(user)
        self._exchange.restore(state.exchange)

    def tell(self, lines: list[bytes]) -> Iterator[tuple[bytes | None, bytes]]:
        """Lines in order in; (client, line) out, in the same order for each client. (None, line): the line
        means nothing."""
        for some in self._runs(lines):
            # A payload of a topic may have an LF in it, which ends a line for those who are told.
            whole = [line for line in some if b"\n" not in line]
            told = self._exchange.dispatch(whole)
            yield from told.rows(self._told(told))
            broken = [line for line in some if b"\n" in line] if len(whole) < len(some) else []
            for line in told.malformed + broken:
                yield None, line

    def _told(self, told: Notifications) -> list[bytes]:
        return list(self._exchange.present if told.everyone else told.apart)

    def _runs(self, lines: list[bytes]) -> Iterator[list[bytes]]:
        """The lines in runs during which nobody comes who would miss a broadcast: a user is there from its
        first event on, and not for the broadcasts before. Who comes has joined when its run is given."""
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
