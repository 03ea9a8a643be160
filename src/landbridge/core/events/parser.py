"""Events as lines: ``sequence|type|from|to``. The parser; what the types mean is the exchange's business.

The work is done for many lines at a time, because a gateway reads thousands of them with one system call.
"""

from __future__ import annotations

from typing import NamedTuple

#: Bytes of one line without its LF. A line is small: a number, a letter and two ids.
LONGEST_LINE = 256
#: Bytes of a client's id.
LONGEST_ID = 64
#: Sequence numbers stay below: they have to fit into a table's 64-bit column.
END_OF_NUMBERS = 1 << 63


class Parsed(NamedTuple):
    #: The sequence number of each line, in the order in which they came.
    numbers: list[int]
    lines: list[bytes]
    #: Lines that have no place in the sequence, because they don't begin with a number.
    malformed: list[bytes]


def parse(lines: list[bytes]) -> Parsed:
    """Read the sequence numbers of complete lines.

    Only the number is looked at. A line that has one keeps its place even if the rest of it is nonsense:
    otherwise everything behind it would wait for a number that never comes."""
    heads = [line.partition(b"|")[0] for line in lines]
    # int() alone would also take b"+1", b" 1" and b"1_0".
    if b"".join(heads).isdigit() and max(map(len, lines)) <= LONGEST_LINE:
        try:
            numbers = list(map(int, heads))
        except ValueError:  # an empty one among them
            pass
        else:
            if max(numbers) < END_OF_NUMBERS:
                return Parsed(numbers, lines, [])
    return _parse_one_by_one(lines)


def _parse_one_by_one(lines: list[bytes]) -> Parsed:
    parsed = Parsed([], [], [])
    for line in lines:
        head = line.partition(b"|")[0]
        # The length first: int() of a very long number is slow, and Python refuses it.
        if len(line) <= LONGEST_LINE and len(head) <= 19 and head.isdigit() and int(head) < END_OF_NUMBERS:
            parsed.numbers.append(int(head))
            parsed.lines.append(line)
        else:
            parsed.malformed.append(line)
    return parsed


def number_of(line: bytes) -> int:
    """The sequence number of a line that was parsed before."""
    return int(line.partition(b"|")[0])


def number_alone(line: bytes) -> bytes:
    """What is left of a line that must not reach anybody: its place in the sequence."""
    return line.partition(b"|")[0]


def valid_id(client: bytes) -> bool:
    """Printable ASCII without the separator, of a sensible length."""
    return (
        0 < len(client) <= LONGEST_ID
        and client.isascii()
        and client.decode().isprintable()
        and (b"|" not in client and b" " not in client)
    )
