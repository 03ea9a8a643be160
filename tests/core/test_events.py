from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.events.parser import LONGEST_LINE, parse, valid_id
from landbridge.core.events.queue import Queue

GOOD = [b"1|B", b"007|S|3", b"9223372036854775807|P|1|2", b"5|whatever", b"6"]
BAD = [
    b"", b"|B", b"x|B", b"-1|B", b"+1|B", b" 1|B", b"1_0|B", b"1.5|B", b"9223372036854775808|B", b"1" * 5000,
    b"1|P|1|" + b"2" * LONGEST_LINE, "١|B".encode(), b"\xff|B", b"1\r|B",
]  # fmt: skip


@pytest.mark.parametrize("line", BAD)
def test_line_without_a_number_has_no_place(line):
    assert parse([line]) == ([], [], [line])
    assert parse([b"1|B", line, b"2|B"]) == ([1, 2], [b"1|B", b"2|B"], [line])


def test_line_with_a_number_keeps_its_place():
    assert parse(GOOD) == ([1, 7, 9223372036854775807, 5, 6], GOOD, [])


@given(st.lists(st.one_of(st.sampled_from(GOOD + BAD), st.binary(max_size=8)), min_size=1))
def test_many_at_once_are_read_like_one_by_one(lines):
    columns = zip(*(parse([line]) for line in lines), strict=True)
    assert parse(lines) == tuple(list(chain.from_iterable(column)) for column in columns)


@pytest.mark.parametrize("name", [b"1", b"anna", b"a" * 64, b"x-y_z.1", b"*"])
def test_id(name):
    assert valid_id(name)


@pytest.mark.parametrize("name", [b"", b"a|b", b"a b", b"a\x00", b"\xc3\xa9", b"a" * 65, b"\t", b"a\x7f"])
def test_not_an_id(name):
    assert not valid_id(name)


def test_queue_gives_in_order_and_counts_bytes():
    queue = Queue(10)
    assert queue.put(b"abc")
    assert queue.put(b"defg")
    assert not queue.put(b"hijk")
    assert (queue.size, queue.take(1), queue.size) == (7, [b"abc"], 4)
    assert queue.put(b"hijklm")
    assert queue.take(100) == [b"defg", b"hijklm"]
    assert not queue
    assert queue.size == 0
