"""The exchange: whom an event is for.

F  follow          to the one who is followed, the first time
U  unfollow        nobody is told
B  broadcast       to every client that is present
P  private message to the one it is addressed to
S  status update   to all followers of the one it comes from

Notifications are for present clients only; who follows whom is kept for everybody, also for those who aren't
there (the virtual queue of the seed).

Work is per notification, and for a broadcast per event: however many are present, the broadcasts of a
dispatch are put together once, and only those who also get something of their own get a text of their own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, KeysView
from itertools import accumulate
from typing import NamedTuple

import msgspec

#: What is missing at the end of a line with so many fields: ``5|B`` and ``6|S|32`` are whole.
_ABSENT = {2: (b"", b""), 3: (b"",)}
#: Instead of fewer or more fields than a line can have.
_NONSENSE = [b"", b"", b"", b""]


class Notifications(NamedTuple):
    """What a dispatch gives to whom. Each text is whole lines, the LF of the last one included."""

    #: For every present client that ``apart`` doesn't name; b"" for nothing.
    everyone: bytes
    #: Client → all that it gets, the broadcasts among it included.
    apart: dict[bytes, bytes]
    #: Lines that had their turn and no meaning.
    malformed: list[bytes]

    def of(self, client: bytes) -> bytes:
        return self.apart.get(client, self.everyone)

    def rows(self, clients: Iterable[bytes]) -> Iterator[tuple[bytes, bytes]]:
        """(client, line) for these clients: for each in order."""
        everyone = self.everyone.split(b"\n")[:-1]
        for client in clients:
            text = self.apart.get(client)
            for line in everyone if text is None else text.split(b"\n")[:-1]:
                yield client, line


class ExchangeState(msgspec.Struct, frozen=True, array_like=True):
    """Who follows whom, for storing."""

    following: dict[bytes, list[bytes]] = {}


encode_state = msgspec.msgpack.Encoder().encode
decode_state = msgspec.msgpack.Decoder(ExchangeState).decode


class Exchange:
    def __init__(self) -> None:
        #: Client → whom it follows, present or not. Nobody's set is empty.
        self.following: dict[bytes, set[bytes]] = {}
        #: Present client → what the dispatch under way has for it alone: (broadcasts before it, line).
        self._boxes: dict[bytes, list[tuple[int, bytes]]] = {}
        #: Client → its present followers and their boxes. Nobody's is empty.
        self._audiences: dict[bytes, dict[bytes, list[tuple[int, bytes]]]] = {}

    # -- who is there ------------------------------------------------------------------------------

    @property
    def present(self) -> KeysView[bytes]:
        return self._boxes.keys()

    def join(self, client: bytes) -> None:
        """From now on it is told what is for it."""
        if client in self._boxes:
            return
        box = self._boxes[client] = []
        for followed in self.following.get(client, ()):
            self._audiences.setdefault(followed, {})[client] = box

    def leave(self, client: bytes) -> None:
        """It is told nothing more. Whom it follows, and who follows it, stays."""
        if self._boxes.pop(client, None) is not None:
            for followed in self.following.get(client, ()):
                self._leave_audience(client, followed)

    def _leave_audience(self, client: bytes, followed: bytes) -> None:
        audience = self._audiences.get(followed)
        if audience is not None and audience.pop(client, None) is not None and not audience:
            del self._audiences[followed]

    # -- who follows whom --------------------------------------------------------------------------

    def follow(self, client: bytes, followed: bytes) -> bool:
        """False: it does already."""
        following = self.following.get(client)
        if following is None:
            following = self.following[client] = set()
        elif followed in following:
            return False
        following.add(followed)
        box = self._boxes.get(client)
        if box is not None:
            self._audiences.setdefault(followed, {})[client] = box
        return True

    def unfollow(self, client: bytes, followed: bytes) -> None:
        following = self.following.get(client)
        if following is not None and followed in following:
            following.remove(followed)
            if not following:
                del self.following[client]
            self._leave_audience(client, followed)

    def followers(self, client: bytes) -> set[bytes]:
        """All of them, present or not. Looks through everybody: for people, not for the hot path."""
        return {follower for follower, followed in self.following.items() if client in followed}

    # -- events ------------------------------------------------------------------------------------

    def dispatch(self, lines: Iterable[bytes]) -> Notifications:
        """Lines in sequence order, without their LF."""
        boxes, audiences = self._boxes, self._audiences
        broadcasts: list[bytes] = []
        before = 0  # len(broadcasts)
        touched: dict[bytes, list[tuple[int, bytes]]] = {}
        malformed: list[bytes] = []
        for line in lines:
            fields = line.split(b"|")
            if len(fields) != 4:
                fields = [*fields, *_ABSENT[len(fields)]] if len(fields) in _ABSENT else _NONSENSE
            kind, sender, receiver = fields[1], fields[2], fields[3]
            if kind == b"S" and sender:
                audience = audiences.get(sender)
                if audience is not None:
                    touched.update(audience)
                    item = (before, line)
                    for box in audience.values():
                        box.append(item)
            elif kind == b"B":
                broadcasts.append(line)
                before += 1
            elif kind == b"P" and receiver:
                if receiver in boxes:
                    touched[receiver] = box = boxes[receiver]
                    box.append((before, line))
            elif kind == b"F" and sender and receiver:
                if self.follow(sender, receiver) and receiver in boxes:
                    touched[receiver] = box = boxes[receiver]
                    box.append((before, line))
            elif kind == b"U" and sender and receiver:
                self.unfollow(sender, receiver)
            else:
                malformed.append(line)
        return Notifications(*_texts(broadcasts, touched), malformed)

    # -- state -------------------------------------------------------------------------------------

    def save(self) -> ExchangeState:
        return ExchangeState({client: list(followed) for client, followed in self.following.items()})

    def restore(self, state: ExchangeState) -> None:
        """Go on from there, with those who are present now."""
        present = list(self._boxes)
        self._boxes, self._audiences = {}, {}
        self.following = {client: set(followed) for client, followed in state.following.items() if followed}
        for client in present:
            self.join(client)


def _texts(
    broadcasts: list[bytes], touched: dict[bytes, list[tuple[int, bytes]]]
) -> tuple[bytes, dict[bytes, bytes]]:
    """Merge each box with the broadcasts, and empty it."""
    everyone = b"\n".join([*broadcasts, b""]) if broadcasts else b""
    # Where each broadcast ends in ``everyone``: those between two lines of a box are cut out in one piece.
    ends = [0, *accumulate(len(line) + 1 for line in broadcasts)]
    apart: dict[bytes, bytes] = {}
    for client, box in touched.items():
        parts: list[bytes] = []
        seen = 0
        for before, line in box:
            if before != seen:
                parts.append(everyone[ends[seen] : ends[before] - 1])
                seen = before
            parts.append(line)
        parts.append(everyone[ends[seen] : -1] if seen < len(broadcasts) else b"")
        if seen < len(broadcasts):
            parts.append(b"")
        apart[client] = b"\n".join(parts)
        box.clear()
    return everyone, apart
