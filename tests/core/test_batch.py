import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, Column, build, encode_headers
from landbridge.errors import BadFrame

ID = bytes(range(16))
I64 = st.integers(-(1 << 63), (1 << 63) - 1)
CELL = st.binary(max_size=12)
HEADER = st.text(max_size=4) | st.binary(max_size=4) | st.integers(-(1 << 63), (1 << 64) - 1) | st.booleans()
#: build's column → its values.
COLUMNS = {
    "keys": CELL,
    "headers": st.dictionaries(st.text(max_size=4), HEADER, max_size=2).map(encode_headers),
    "ids": st.text(max_size=6).map(str.encode),
    "times": I64,
    "priorities": st.integers(0, 9),
    "deliver_at": I64,
    "expires_at": I64,
}


@st.composite
def columns(draw):
    size = draw(st.integers(1, 9))
    given = draw(st.sets(st.sampled_from(sorted(COLUMNS))))
    made = {name: draw(st.lists(COLUMNS[name], min_size=size, max_size=size)) for name in sorted(given)}
    made["payloads"] = draw(st.lists(CELL, min_size=size, max_size=size))
    made["base"] = draw(st.sampled_from([0, 7, (1 << 32) - size]))
    return made


def encoded(columns) -> bytes:
    return build(**columns, id=ID, time=5)


def expected(columns) -> list[tuple]:
    """The oracle: the messages as rows."""
    size = len(columns["payloads"])
    own = [f"{ID.hex()}-{columns['base'] + index}" for index in range(size)]
    return list(
        zip(
            columns["payloads"],
            columns.get("keys", [b""] * size),
            columns.get("headers", [b""] * size),
            [id.decode() or own[index] for index, id in given_or(columns, "ids", b"")],
            columns.get("times", [5] * size),
            *(columns.get(name, [0] * size) for name in ("priorities", "deliver_at", "expires_at")),
            strict=True,
        )
    )


def given_or(columns, name, default):
    return enumerate(columns.get(name, [default] * len(columns["payloads"])))


def rows(batch) -> list[tuple]:
    """The messages, read by columns; what can be read one by one must say the same."""
    size = len(batch)
    nothing, zeros = [b""] * size, [0] * size
    read = list(
        zip(
            batch.payloads(),
            batch.keys() or nothing,
            batch.raw_headers() or nothing,
            map(batch.id_of, range(size)),
            batch.times() or [batch.time] * size,
            batch.priorities() or zeros,
            batch.deliver_at() or zeros,
            batch.expires_at() or zeros,
            strict=True,
        )
    )
    for index, (payload, key, headers, _, time, *_) in enumerate(read):
        assert (batch.payload(index), batch.key(index), batch.time_of(index)) == (payload, key, time)
        assert bool(batch.headers(index)) == (headers not in (b"", b"\x80"))
    assert batch.payload_bytes() == sum(map(len, batch.payloads()))
    assert batch.largest_payload() == max(map(len, batch.payloads()))
    for column in (Column.PAYLOAD, Column.KEY, Column.HEADERS, Column.ID):
        if batch.has(column):
            ends, run = batch.span(column)
            assert len(ends) == 4 * (size + 1)
            assert len(run) == ends.cast("i")[size] - ends.cast("i")[0]
    return read


def run_of(data, size) -> tuple[int, int]:
    lo = data.draw(st.integers(0, size - 1))
    return lo, data.draw(st.integers(lo + 1, size))


@given(columns())
def test_built_batch_is_read_back(columns):
    batch = Batch.decode(encoded(columns))
    batch.validate()
    assert rows(batch) == expected(columns)
    assert bytes(batch.encode()) == encoded(columns)
    for index, headers in given_or(columns, "headers", b""):
        assert encode_headers(batch.headers(index)) == headers


@given(columns(), st.data())
def test_slice_of_slice_equals_its_rows_before_and_after_encoding(columns, data):
    batch, wanted = Batch.decode(encoded(columns)), expected(columns)
    for _ in range(data.draw(st.integers(1, 3))):
        lo, hi = run_of(data, len(batch))
        batch, wanted = batch.slice(lo, hi), wanted[lo:hi]
        assert rows(batch) == wanted
        copied = Batch.decode(batch.encode())
        copied.validate()
        assert rows(copied) == wanted
        if data.draw(st.booleans()):
            batch = copied


@given(columns(), st.data())
def test_gathered_messages_keep_everything_in_the_order_asked(columns, data):
    lo, hi = run_of(data, len(columns["payloads"]))
    part, wanted = Batch.decode(encoded(columns)).slice(lo, hi), expected(columns)[lo:hi]
    indices = data.draw(st.lists(st.integers(0, len(part) - 1), min_size=1))
    gathered = part.gather(indices)
    gathered.validate()
    assert rows(gathered) == [wanted[index] for index in indices]


@pytest.mark.parametrize("bounds", [(-1, 1), (0, 0), (1, 1), (2, 1), (0, 4)])
def test_slice_outside_of_the_batch_is_refused(bounds):
    with pytest.raises(IndexError):
        Batch.decode(build([b"a", b"b", b"c"], id=ID, time=0)).slice(*bounds)


@pytest.mark.parametrize(
    "wrong",
    [{"payloads": []}, {"keys": [b"k"]}, {"priorities": [1, 2, 3]}, {"times": []}, {"id": b"short"}],
    ids=str,
)
def test_columns_that_do_not_fit_are_not_built(wrong):
    with pytest.raises(ValueError, match="batch"):
        build(**{"payloads": [b"a", b"b"], "id": ID, "time": 0} | wrong)


def read_as_a_stranger_would_have_us(data: bytes) -> None:
    """BadFrame, or a batch that can be read, cut and copied without any other exception."""
    try:
        batch = Batch.decode(data)
        batch.validate()
    except BadFrame:
        return
    rows(batch)
    rows(Batch.decode(batch.slice(len(batch) - 1, len(batch)).encode()))
    rows(batch.gather(range(len(batch) - 1, -1, -1)))


@given(st.binary(max_size=120), st.booleans())
def test_garbage_is_a_bad_frame(data, versioned):
    read_as_a_stranger_would_have_us(b"\x01" + data if versioned else data)


@given(columns(), st.data())
def test_truncated_batch_is_a_bad_frame(columns, data):
    whole = encoded(columns)
    with pytest.raises(BadFrame):
        Batch.decode(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(BadFrame):
        Batch.decode(whole + bytes(data.draw(st.integers(1, 9))))


@given(columns(), st.data())
def test_flipped_bits_are_found_or_harmless(columns, data):
    broken = bytearray(encoded(columns))
    for at in data.draw(st.lists(st.integers(0, 8 * len(broken) - 1), min_size=1, max_size=4)):
        broken[at // 8] ^= 1 << at % 8
    read_as_a_stranger_would_have_us(bytes(broken))


@given(columns(), st.data())
def test_lying_numbers_are_found_or_harmless(columns, data):
    broken = bytearray(encoded(columns))
    for _ in range(data.draw(st.integers(1, 2))):
        at = 4 * data.draw(st.integers(0, len(broken) // 4 - 1))
        lie = st.sampled_from([0, 1, 2, 0x7FFFFFFF, 0x80000000, 0xFFFFFFF8, 0xFFFFFFFF])
        struct.pack_into("<I", broken, at, data.draw(lie))
    read_as_a_stranger_would_have_us(bytes(broken))


def test_base_that_overflows_in_a_slice_is_a_bad_frame():
    data = build([b"a", b"b"], id=ID, time=0, base=(1 << 32) - 1)
    with pytest.raises(BadFrame):
        Batch.decode(data)


def test_ends_below_zero_are_a_bad_frame():
    broken = bytearray(build([b"ab"], id=ID, time=0))
    struct.pack_into("<2i", broken, 40, -2, 0)
    with pytest.raises(BadFrame, match="PAYLOAD"):
        Batch.decode(bytes(broken))


def test_priority_above_the_highest_is_a_bad_frame():
    batch = Batch.decode(build([b"a"], id=ID, time=0, priorities=[10]))
    with pytest.raises(BadFrame, match="priority of 10"):
        batch.validate()


def test_part_of_a_batch_is_for_the_same_groups():
    batch = Batch.decode(build([b"a", b"b"], id=ID, time=0))
    assert batch.slice(0, 1).audience is None
    batch.audience = frozenset({"g"})
    assert batch.slice(0, 1).audience == batch.gather([1]).audience == frozenset({"g"})


@given(st.lists(st.sampled_from([b"", b"a", b"aa", b"ab"]), min_size=1, max_size=6), st.data())
def test_sole_key_is_the_one_that_all_messages_have(keys, data):
    batch = Batch.decode(build([b""] * len(keys), id=ID, time=0, keys=keys))
    lo, hi = run_of(data, len(keys))
    different = set(keys[lo:hi])
    assert batch.slice(lo, hi).sole_key() == (keys[lo] if len(different) == 1 else None)


def test_same_bytes_cut_in_other_places_are_no_sole_key():
    batch = Batch.decode(build([b""] * 4, id=ID, time=0, keys=[b"a", b"aa", b"", b"a"]))
    assert batch.sole_key() is None


def test_default_columns_are_absent():
    batch = Batch.decode(
        build([b"a"], id=ID, time=0, keys=[b""], headers=[b""], ids=[b""], priorities=[0], deliver_at=[0])
    )
    assert [column for column in Column if batch.has(column)] == [Column.PAYLOAD]


@pytest.mark.parametrize(
    "raw",
    [
        b"\xc1",
        b"\x81\xa1a\xc0",  # a null
        b"\x81\xa1a\x80",  # a map in the map
        b"\x81\x01\x01",  # a name that is a number
        b"\x81\xa1a\xa1\xff",  # text that isn't UTF-8
        b"\x81\xa1a\xd6\xff\0\0\0\0",  # a timestamp
        b"\x81\xa1a\x81\x80\x01",  # a map as the key of a map
        b"\x81\xa1a" + b"\x91" * 100_000,  # nested without end
    ],
    ids=lambda raw: raw[:8].hex(),
)
def test_headers_that_are_no_map_of_scalars_are_a_bad_frame(raw):
    batch = Batch.decode(build([b"a"], id=ID, time=0, headers=[raw]))
    with pytest.raises(BadFrame):
        batch.validate()
