from __future__ import annotations

import time
from datetime import datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.cli import units


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("5m", 300),
        ("7d", 604800),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("2w", 1209600),
        ("15 min", 900),
        ("1h 30 m", 5400),
        ("1.5", 1.5),
        ("0", 0),
    ],
)
def test_spans(text: str, seconds: float) -> None:
    assert units.parse_span(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "5 minutes", "-5s", "1d x", "inf", "nan", "-1", "5M"])
def test_spans_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a span"):
        units.parse_span(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("4096", 4096),
        ("10MB", 10_000_000),
        ("10m", 10_000_000),
        ("1GiB", 1 << 30),
        ("1.5 kB", 1500),
        ("2TiB", 2 << 40),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert units.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "10iB", "ten", "-1", "1e9", "10 XB"])
def test_sizes_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        units.parse_size(text)


def test_none_is_without_limit() -> None:
    assert units.parse_span_or_none("none") == units.parse_size_or_none("none") == units.UNLIMITED


def test_moments() -> None:
    assert units.parse_moment("2026-01-31T12:00:00Z") == 1769860800
    assert units.parse_moment("2026-01-31T12:00:00+01:00") == 1769857200
    assert units.parse_moment("2026-01-31 12:00") == datetime(2026, 1, 31, 12).timestamp()
    assert units.parse_moment("10m ago") == pytest.approx(time.time() - 600, abs=60)
    assert units.parse_moment("-10m") == pytest.approx(time.time() - 600, abs=60)


def test_starts() -> None:
    assert units.parse_start("earliest") == "earliest"
    assert units.parse_start("latest") == "latest"
    assert units.parse_start("1h ago") == pytest.approx(time.time() - 3600, abs=60)
    with pytest.raises(ValueError, match="'earliest', 'latest'"):
        units.parse_start("yesterday")


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_500_000, "1.5 MB"),
        (123_456_789, "123 MB"),
        (10**18, "1000 PB"),
    ],
)
def test_sizes_for_people(size: int, text: str) -> None:
    assert units.size(size) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.000012, "12 µs"),
        (0.0015, "1.5 ms"),
        (30, "30 s"),
        (600, "10 min"),
        (7200, "2 h"),
        (604800, "7 d"),
        (-2, "-2 s"),
    ],
)
def test_spans_for_people(seconds: float, text: str) -> None:
    assert units.span(seconds) == text


def test_moments_for_people() -> None:
    now = time.time_ns() // 1000
    assert units.ago(now) == "now"
    assert units.ago(now - 60_000_000) == "60 s ago"
    assert units.ago(now + 3_600_000_000 * 5) == "in 5 h"
    assert units.iso(1769860800_123_456) == "2026-01-31T12:00:00.123Z"
    assert len(units.clock(now)) == len("12:34:56.789")
    assert units.clock(1769860800_000_000).startswith("2026-01-31 ")


@given(st.integers(0, 1 << 62))
def test_a_size_reads_back_within_its_digits(size: int) -> None:
    assert units.parse_size(units.size(size)) == pytest.approx(size, rel=0.06)
