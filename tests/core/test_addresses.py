"""Which addresses a request may be sent to: tables, and every way to write an address."""

from __future__ import annotations

import socket
from collections.abc import Callable
from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.addresses import AllowList, is_public, read_address, read_url
from landbridge.errors import BadRequest

PUBLIC = [
    "1.1.1.1", "8.8.8.8", "93.184.216.34", "172.15.255.255", "172.32.0.1", "100.63.255.255",
    "223.255.255.255",
    "2606:4700::1111", "2a00:1450:4001::1", "::ffff:8.8.8.8", "64:ff9b::8.8.8.8", "2002:808:808::1",
]  # fmt: skip
CLOSED = [
    "0.0.0.0", "10.0.0.1", "100.64.0.1", "127.0.0.1", "127.255.255.254", "169.254.169.254", "172.16.0.1",
    "172.31.255.255", "192.0.0.8", "192.0.2.1", "192.88.99.1", "192.168.1.1", "198.18.0.1", "198.51.100.1",
    "203.0.113.1", "224.0.0.1", "239.255.255.255", "240.0.0.1", "255.255.255.255",
    "168.63.129.16", "::ffff:168.63.129.16",
    "::", "::1", "::127.0.0.1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1", "64:ff9b::169.254.169.254", "64:ff9b:1::1", "2002:7f00:1::", "2002:a00:1::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2", "2001:db8::1", "2001:10::1", "3fff::1", "100::1", "fc00::1",
    "fd12::1", "fe80::1", "fec0::1", "ff02::1", "5f00::1", "4000::1",
]  # fmt: skip


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses_are_public(text: str) -> None:
    assert is_public(ip_address(text))


@pytest.mark.parametrize("text", CLOSED)
def test_other_addresses_are_not(text: str) -> None:
    assert not is_public(ip_address(text))


def test_an_address_of_a_link_is_not_public() -> None:
    assert not is_public(IPv6Address("2606:4700::1111%eth0"))


@given(st.integers(0, (1 << 32) - 1))
def test_what_is_embedded_is_no_more_public_than_itself(value: int) -> None:
    inner = IPv4Address(value)
    for outer in (
        IPv6Address(0xFFFF << 32 | value),
        IPv6Address(value),
        IPv6Address((0x64FF9B << 96) | value),
        IPv6Address(0x2002 << 112 | value << 80),
    ):
        assert is_public(outer) == is_public(inner)
    assert not (is_public(inner) and not inner.is_global)  # ours is the stricter of the two


@pytest.mark.parametrize(
    "text",
    [
        "127.1",
        "0x7f.1",
        "2130706433",
        "0x7f000001",
        "017700000001",
        "0177.0.0.1",
        "127.0.1",
        "0X7F.0.0.1",
        "127.1.",
    ],
)
def test_loopback_in_every_spelling(text: str) -> None:
    assert read_address(text) == IPv4Address("127.0.0.1")


@given(
    st.integers(0, (1 << 32) - 1), st.integers(1, 4), st.lists(st.sampled_from("dxo"), min_size=4, max_size=4)
)
def test_spellings_are_read_as_the_system_reads_them(value: int, parts: int, bases: list[str]) -> None:
    shown: dict[str, Callable[[int], str]] = {
        "d": str,
        "x": hex,
        "o": lambda number: f"0{number:o}" if number else "0",
    }
    front = [value >> 8 * (3 - place) & 255 for place in range(parts - 1)]
    numbers = [*front, value & (1 << 8 * (5 - parts)) - 1]
    text = ".".join(shown[base](number) for base, number in zip(bases, numbers, strict=False))
    assert read_address(text) == IPv4Address(socket.inet_aton(text))


@given(st.text(alphabet="0123456789abcdefx._-:%[]@/\\ ", max_size=24))
def test_a_host_is_an_address_a_name_or_refused(text: str) -> None:
    try:
        target = read_url(f"http://{text}/")
    except BadRequest:
        return
    if target.address is None:
        # What the system takes for an address must not pass as a name.
        with pytest.raises(OSError, match="illegal IP address"):
            socket.inet_aton(target.host)


@pytest.mark.parametrize(
    "url",
    [
        "ftp://example.com/", "file:///etc/passwd", "http://", "http:///x", "//example.com/", "example.com",
        "http://user@example.com/", "http://user:pw@example.com/", "http://example.com:0/",
        "http://example.com:99999/", "http://exa mple.com/", "http://example.com\\@evil/", "http://[::1",
        "http://1.2.3.4.5/", "http://256.1.1.1/", "http://4294967296/", "http://a..b/",
        "http://example.com/\r\nX: y", "http://ex\u00e4mple.com/", "http://-a.com/", "http://[v1.x]/",
    ],
)  # fmt: skip
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(BadRequest):
        read_url(url)


def test_a_url_is_read() -> None:
    target = read_url("https://Hooks.Example.com.:8443/a/b?c=d#e")
    assert (target.scheme, target.host, target.port, target.path) == (
        "https",
        "hooks.example.com",
        8443,
        "/a/b?c=d",
    )
    assert target.authority == "hooks.example.com:8443"
    assert read_url("http://[2606:4700::1111]").authority == "[2606:4700::1111]"
    assert read_url("http://example.com?x").path == "/?x"


def test_an_operator_allows_networks_and_hosts() -> None:
    allowed = AllowList(["10.1.0.0/16", "fd00::/8", "hooks.example.com", "*.internal"])
    assert allowed.allows("any", ip_address("10.1.2.3"))
    assert allowed.allows("any", ip_address("::ffff:10.1.2.3"))
    assert not allowed.allows("any", ip_address("10.2.0.1"))
    assert not allowed.allows("any", ip_address("::ffff:10.2.0.1"))
    assert allowed.allows("any", ip_address("fd00::1"))
    assert allowed.allows("hooks.example.com", ip_address("127.0.0.1"))
    assert allowed.allows("a.b.internal", ip_address("192.168.0.1"))
    assert not allowed.allows("internal", ip_address("192.168.0.1"))
    assert not allowed.allows("notinternal", ip_address("192.168.0.1"))
    assert not AllowList().allows("localhost", ip_address("127.0.0.1"))


@pytest.mark.parametrize(
    "entry", ["10.0.0.1/8", "10.0.0.0/33", "fe80:::/8", "*", "", "a b", "127.1", "*.*.x"]
)
def test_an_odd_entry_is_refused(entry: str) -> None:
    with pytest.raises(BadRequest):
        AllowList([entry])
