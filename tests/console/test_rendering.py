"""How values are written into pages."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from landbridge.console.rendering import ms, written_size
from landbridge.core.sizes import parse_size


@given(st.one_of(st.integers(0, 1 << 53), st.integers(0, 1 << 20).map(lambda n: n << 30)))
def test_a_size_in_a_form_is_the_size(value: int) -> None:
    assert parse_size(written_size(value)) == value


def test_sizes_and_times_are_written_for_people() -> None:
    sizes = (None, 0, 1500, 10_000_000, 64 << 30)
    assert [written_size(size) for size in sizes] == ["none", "0", "1500", "10MB", "64GiB"]
    assert [ms(seconds) for seconds in (None, 0.0, 0.0005, 0.0123)] == [
        "–",
        "< 0.01 ms",
        "0.50 ms",
        "12.3 ms",
    ]
