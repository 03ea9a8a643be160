"""The types that MQTT's packets are made of (MQTT 5, 1.5), read from and written to bytes."""

from __future__ import annotations

from landbridge.protocol.mqtt.reasons import malformed

#: The greatest variable byte integer, and so the longest packet: 256 MB less one.
LARGEST_VARINT = 268_435_455
#: Bytes of a text and of binary data.
LONGEST = 65_535


class FieldReader:
    """Reads the fields of one packet, in order. What reaches beyond its end is malformed."""

    __slots__ = ("_data", "_end", "at")

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._end = len(data)
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes that were not read yet."""
        return self._end - self.at

    def _take(self, count: int) -> int:
        begin = self.at
        if self._end - begin < count:
            raise malformed("a field reaches beyond the end of its packet")
        self.at = begin + count
        return begin

    def byte(self) -> int:
        """One byte."""
        return self._data[self._take(1)]

    def flag(self) -> int:
        """A byte that is 0 or 1."""
        value = self.byte()
        if value > 1:
            raise malformed(f"a byte of {value} where 0 or 1 belongs")
        return value

    def short(self) -> int:
        """Two bytes."""
        begin = self._take(2)
        return self._data[begin] << 8 | self._data[begin + 1]

    def long(self) -> int:
        """Four bytes."""
        begin = self._take(4)
        return int.from_bytes(self._data[begin : begin + 4], "big")

    def varint(self) -> int:
        """A variable byte integer, in as few bytes as it takes (1.5.5)."""
        value = shift = 0
        for _ in range(4):
            byte = self.byte()
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                if not byte and shift:
                    raise malformed("a variable byte integer is longer than it has to be")
                return value
            shift += 7
        raise malformed("a variable byte integer of more than four bytes")

    def binary(self) -> bytes:
        """Binary data with its length before it."""
        length = self.short()
        begin = self._take(length)
        return self._data[begin : begin + length]

    def text(self) -> str:
        """Text in UTF-8. U+0000 and surrogates may not stand in it (1.5.4)."""
        raw = self.binary()
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            raise malformed("a text is not UTF-8") from None
        if "\0" in text:
            raise malformed("a text has the character U+0000")
        return text

    def rest(self) -> bytes:
        """All that was not read yet."""
        begin, self.at = self.at, self._end
        return self._data[begin:]

    def end(self) -> None:
        """Nothing may follow."""
        if self.at != self._end:
            raise malformed(f"{self._end - self.at} bytes behind the end of a packet")


def put_varint(value: int) -> bytes:
    """A variable byte integer."""
    if value < 0x80:
        return bytes((value,))
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def put_binary(value: bytes) -> bytes:
    """Binary data with its length before it."""
    return len(value).to_bytes(2, "big") + value


def put_text(value: str) -> bytes:
    """Text in UTF-8 with its length before it."""
    return put_binary(value.encode())


def fitting(value: str, most: int = LONGEST) -> str:
    """A text cut so that its UTF-8 has at most so many bytes, and without what MQTT doesn't allow in one."""
    raw = value.replace("\0", "").encode(errors="replace")
    return raw[:most].decode(errors="ignore")
