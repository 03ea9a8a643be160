from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.time import SECOND
from landbridge.core.trust import rate
from landbridge.core.trust.rate import AddressRate

ASKED = st.lists(st.tuples(st.integers(0, 20 * SECOND), st.sampled_from("ab")), max_size=60)


@given(ASKED, st.integers(1, 5))
def test_an_address_gets_what_its_bucket_has(asked, most):
    """The oracle counts what is in a bucket that fills steadily."""
    allowed = AddressRate(most, 10.0)
    each = 10 * SECOND // most
    filled = {"a": most * each, "b": most * each}
    last = dict.fromkeys(filled, 0)
    now = 0
    for pause, address in asked:
        now += pause
        filled[address] = min(most * each, filled[address] + now - last[address])
        last[address] = now
        enough = filled[address] >= each
        assert allowed.take(now, address) == enough
        filled[address] -= each if enough else 0


def test_a_clock_that_was_set_back_locks_nobody_out_for_long():
    allowed = AddressRate(2, 10.0)
    assert allowed.take(1000 * SECOND, "a")
    assert not allowed.take(0, "a")
    assert allowed.take(6 * SECOND, "a")
    assert allowed.take(0, "b")


def test_so_many_addresses_are_remembered(monkeypatch):
    monkeypatch.setattr(rate, "MOST_ADDRESSES", 2)
    allowed = AddressRate(1, 10.0)
    assert [allowed.take(0, address) for address in "abab"] == [True, True, False, False]
    assert allowed.take(0, "c")
    assert not allowed.take(0, "b")
    assert allowed.take(0, "a")  # it was forgotten
