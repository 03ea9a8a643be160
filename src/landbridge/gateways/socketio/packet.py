"""Packets of Socket.IO (protocol 5): read strictly and without making values of their JSON, and written.

python-socketio reads the JSON of a packet into values, and takes any number of attachments. Here the
arguments of an event stay as they were written, so that a payload is stored byte for byte, and what a packet
may hold is bounded.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from socketio import packet

from landbridge.errors import BadFrame

CONNECT, DISCONNECT, EVENT, ACK = packet.CONNECT, packet.DISCONNECT, packet.EVENT, packet.ACK
BINARY_EVENT, BINARY_ACK = packet.BINARY_EVENT, packet.BINARY_ACK
#: Arguments of one event, its name included, and binary attachments of one packet.
MOST_ARGUMENTS, MOST_ATTACHMENTS = 4, 4
#: Type, number of attachments, namespace, id of the acknowledgement, JSON.
_FORM = re.compile(r"([0-6])(?:(?<=[56])(\d{1,2})-)?(?:(/[^,\[{\"]{0,100}),?)?(\d{1,15})?(.*)", re.DOTALL)
_read_list = msgspec.json.Decoder(list[msgspec.Raw]).decode


class StrictPacket(packet.Packet):  # type: ignore[misc]  # the library has no types
    """A packet from a client. ``data``: of CONNECT the JSON; of an event or acknowledgement its arguments,
    each as JSON."""

    def decode(self, encoded_packet: str) -> int:
        """Read the packet, and return how many attachments follow."""
        found = _FORM.fullmatch(encoded_packet)
        if found is None:
            raise BadFrame("a packet that is not one of Socket.IO")
        kind, attachments, namespace, id, text = found.groups()
        self.packet_type = int(kind)
        self.namespace = (namespace or "/").partition("?")[0]
        self.id = None if id is None else int(id)
        if self.packet_type in (CONNECT, DISCONNECT):
            self.data: Any = text.encode("utf-8", "surrogatepass")
            return 0
        self.data = _arguments(text)
        count = int(attachments or 0)
        if (self.packet_type in (BINARY_EVENT, BINARY_ACK)) != (count > 0) or count > MOST_ATTACHMENTS:
            raise BadFrame(f"a packet with {count} attachments", hint=f"at most {MOST_ATTACHMENTS}")
        return count

    @property
    def size(self) -> int:
        """Bytes of its arguments, and of the attachments that have come."""
        return sum(map(len, self.data)) + sum(map(len, self.attachments))


def _arguments(text: str) -> list[bytes]:
    try:
        found = _read_list(text.encode())  # a half of a surrogate pair can't be encoded
    except (msgspec.DecodeError, UnicodeEncodeError, RecursionError) as error:
        raise BadFrame(f"the arguments of an event are not a JSON array: {error}") from None
    if len(found) > MOST_ARGUMENTS:
        raise BadFrame(f"an event with {len(found)} arguments", hint=f"at most {MOST_ARGUMENTS}")
    return [bytes(argument) for argument in found]


def event_text(name: bytes, argument: bytes, *, id: int | None = None, attachments: int = 0) -> str:
    """An event for a client, whose argument is JSON. ``id``: the client's acknowledgement comes with it."""
    head = f"{BINARY_EVENT}{attachments}-" if attachments else f"{EVENT}"
    return f'{head}{"" if id is None else id}["{name.decode()}",{argument.decode()}]'


def ack_text(id: int, argument: bytes) -> str:
    """The answer to an event of the client that has this id."""
    return f"{ACK}{id}[{argument.decode()}]"
