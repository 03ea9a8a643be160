"""Packets out of a stream of bytes, whatever its pieces.

A length that is above the bound is refused when its bytes are here, before the packet itself: what is held is
never more than one packet of the allowed size, beside what was given at once.
"""

from __future__ import annotations

from landbridge.protocol.mqtt.decoding import decode
from landbridge.protocol.mqtt.packets import ConnectPacket, Packet
from landbridge.protocol.mqtt.reasons import BrokenPacket, Reason, malformed, protocol_error

#: Bytes that were read and are thrown away together.
_CUT = 64 << 10
#: The first byte of a CONNECT.
_CONNECT = 0x10


class PacketStream:
    """One direction of a connection. ``largest``: bytes of a packet, without its first byte and its length;
    it may be set between packets. ``version``: what the CONNECT says, once it has come; nothing else may come
    before."""

    def __init__(self, largest: int, version: int = 0) -> None:
        self.largest = largest
        self.version = version
        self._buffer = bytearray()
        #: Where in the buffer the next packet begins.
        self._at = 0
        #: Bytes from there on without which there is no use in looking again.
        self._needed = 2

    @property
    def held(self) -> int:
        """Bytes that are here and belong to no packet that was returned."""
        return len(self._buffer) - self._at

    def feed(self, data: bytes | bytearray) -> None:
        """Add bytes. Then ask for packets until there is none."""
        self._buffer += data

    def next(self) -> Packet | None:
        """The next packet; None until more bytes have come. BrokenPacket where the peer broke the protocol:
        there is no next packet after that."""
        if self.held < self._needed:
            self._cut()
            return None
        buffer, at = self._buffer, self._at
        if not self.version and buffer[at] != _CONNECT:
            raise protocol_error("the first packet is not a CONNECT")
        length = shift = 0
        for index in range(at + 1, at + 5):
            if index >= len(buffer):
                self._needed = len(buffer) - at + 1
                return None
            byte = buffer[index]
            length |= (byte & 0x7F) << shift
            if byte < 0x80:
                break
            shift += 7
        else:
            raise malformed("the length of a packet has more than four bytes")
        if not byte and shift:
            raise malformed("the length of a packet is longer than it has to be")
        if length > self.largest:
            raise BrokenPacket(
                Reason.PACKET_TOO_LARGE, f"a packet of {length} bytes, allowed are {self.largest}"
            )
        begin, end = index + 1, index + 1 + length
        if end > len(buffer):
            self._needed = end - at
            return None
        packet = decode(buffer[at], bytes(memoryview(buffer)[begin:end]), self.version)
        self._at, self._needed = end, 2
        if isinstance(packet, ConnectPacket):
            self.version = packet.version
        if self._at >= _CUT:
            self._cut()
        return packet

    def _cut(self) -> None:
        if self._at:
            del self._buffer[: self._at]
            self._at = 0
