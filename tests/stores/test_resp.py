"""The protocol of Redis as bytes, and URLs of stores."""

from __future__ import annotations

import asyncio
import string
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.store_address import StoreAddress, parse_address
from landbridge.errors import BadRequest
from landbridge.stores.redis.resp import ErrorReply, encode, read_reply


def wire(value: Any) -> bytes:
    """A reply as a server writes it."""
    if value is None:
        return b"$-1\r\n"
    if isinstance(value, int):
        return b":%d\r\n" % value
    if isinstance(value, bytes):
        return b"$%d\r\n%b\r\n" % (len(value), value)
    return b"*%d\r\n%b" % (len(value), b"".join(map(wire, value)))


REPLIES = st.recursive(
    st.none() | st.integers(-(2**63), 2**63 - 1) | st.binary(max_size=40),
    lambda inner: st.lists(inner, max_size=5),
    max_leaves=20,
)


async def fed(data: bytes, step: int) -> Any:
    reader = asyncio.StreamReader(limit=1 << 16)
    reading = asyncio.ensure_future(read_reply(reader))
    for at in range(0, len(data), step):
        reader.feed_data(data[at : at + step])
        await asyncio.sleep(0)
    reader.feed_eof()
    return await reading


@given(REPLIES, st.integers(1, 50))
def test_replies_are_read_however_they_are_cut(value: Any, step: int) -> None:
    data = wire(value)
    assert asyncio.run(fed(data, step)) == value


@given(REPLIES, st.integers(1, 200))
def test_a_reply_that_ends_early_is_none(value: Any, lacking: int) -> None:
    data = wire(value)[:-lacking] if lacking < len(wire(value)) else b""
    with pytest.raises((asyncio.IncompleteReadError, ValueError)):
        asyncio.run(fed(data, 1000))


async def test_errors_are_values_and_other_beginnings_are_refused() -> None:
    error = await fed(b"-MOVED 17 10.0.0.1:6379\r\n", 3)
    assert isinstance(error, ErrorReply)
    assert (error.code, str(error)) == ("MOVED", "MOVED 17 10.0.0.1:6379")
    assert await fed(b"+OK\r\n", 1) == b"OK"
    for wrong in (b"HTTP/1.1 400 Bad Request\r\n", b"$x\r\n", b"\r\n"):
        with pytest.raises(ValueError, match=r"."):
            await fed(wrong, 100)


@given(st.lists(st.binary(max_size=10_000) | st.integers() | st.text(max_size=20), min_size=1, max_size=6))
def test_commands_are_arrays_of_their_arguments(command: list[Any]) -> None:
    def text(argument: Any) -> bytes:
        if isinstance(argument, int):
            return b"%d" % argument
        return argument.encode() if isinstance(argument, str) else argument

    data = b"".join(encode(command))
    assert asyncio.run(fed(data, 1 << 20)) == [text(argument) for argument in command]
    views = [memoryview(each) if isinstance(each, bytes) else each for each in command]
    assert b"".join(encode(views)) == data


# -- addresses


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("redis://db.lan", StoreAddress("redis", (("db.lan", None),))),
        ("rediss://u:p%40%2F@a:1,b:2/3", StoreAddress("rediss", (("a", 1), ("b", 2)), "u", "p@/", "3")),
        ("redis://[::1]:7?units=8&name=x", StoreAddress("redis", (("::1", 7),), name="x", units=8)),
        ("redis://h?replicas=0&ca=/f", StoreAddress("redis", (("h", None),), replicas=0, ca="/f")),
        (
            "postgres://u@h/db?sslmode=require",
            StoreAddress("postgresql", (("h", None),), "u", "", "db", options=(("sslmode", "require"),)),
        ),
        (
            "postgresql:///db?host=/run",
            StoreAddress("postgresql", (), database="db", options=(("host", "/run"),)),
        ),
    ],
)
def test_addresses_are_read(text: str, wanted: StoreAddress) -> None:
    assert parse_address(text) == wanted


def test_what_is_shown_of_an_address_leads_to_the_same_store() -> None:
    text = "postgresql://u@a:1,b:2/db?name=x&sslmode=verify-full"
    address = parse_address(f"{text.replace('u@', 'u:pw@')}&units=8&password=pw&sslpassword=pw")
    assert str(address) == text
    assert address.has_secret
    assert "pw" not in repr(address)
    assert not parse_address(text).has_secret
    assert str(parse_address("redis://h?replicas=0&ca=/a/b")) == "redis://h?replicas=0&ca=/a/b"


@pytest.mark.parametrize(
    "text",
    [
        "mysql://secret:secret@h/db",
        "redis:/secret",
        "redis://:secret@h:0",
        "redis://:secret@h:70000",
        "redis://:secret@h?units=0",
        "redis://:secret@h?units=many",
        "redis://:secret@h?name=Upper",
        "redis://:secret@h?name={x}",
        "redis://:secret@h?replicas=-1",
        "redis://:secret@h/0#x",
        "redis://:secret@a:b:c",
        "redis://:secret@h?=&&=",
        "redis://u:12345/secret@h",
        "redis://:secret@h?db=3",
        "redis://h?password=secret",
    ],
)
def test_what_is_no_address_is_refused_without_being_repeated(text: str) -> None:
    with pytest.raises(BadRequest) as refused:
        parse_address(text)
    assert "secret" not in f"{refused.value} {refused.value.hint}"


@given(st.text(string.printable, max_size=30))
def test_no_text_breaks_the_reader(text: str) -> None:
    for scheme in ("redis", "postgresql"):
        with suppress(BadRequest):
            address = parse_address(f"{scheme}://user:s3cr3t@{text}")
            assert "s3cr3t" not in f"{address} {address!r}"
