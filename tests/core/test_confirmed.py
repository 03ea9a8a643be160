"""What has arrived where, against a model that keeps every offset."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.ranges import normalise
from landbridge.core.shipping.confirmed import MOST_RANGES, Confirmed
from landbridge.core.shipping.inbound import Inbound, LostLife
from landbridge.errors import StoreCorrupt

offsets = st.lists(st.integers(0, 30), max_size=12).map(
    lambda found: normalise((offset, offset + 1) for offset in found)
)


def each(runs):
    return {offset for first, end in runs for offset in range(first, end)}


@given(
    said=st.lists(st.tuples(st.sampled_from("ab"), offsets)),
    later=offsets,
    floor=st.integers(0, 30),
    has=offsets,
    first=st.integers(0, 30),
)
def test_what_a_terminal_has_lost_is_what_it_confirmed_and_has_not(said, later, floor, has, first):
    confirmed = Confirmed()
    model: dict[str, set[int]] = {"a": set(), "b": set()}
    for terminal, runs in said:
        confirmed.add(terminal, 1, runs)
        model[terminal] |= each(runs)
    is_known = bool(model["a"])
    assert confirmed.due(lambda terminal: 2 if terminal == "a" else 1) == ["a"] * is_known
    asked = confirmed.of("a")
    confirmed.add("a", 2, later)  # while the question is under way
    lost = confirmed.compare("a", 2, asked, floor, has)
    expected = {offset for offset in model["a"] if offset >= floor} - each(has)
    assert each(lost) == expected
    assert each(confirmed.of("a")) == (model["a"] | each(later)) - expected
    assert not confirmed.due(lambda terminal: 2 if terminal == "a" else 1)
    assert each(confirmed.of("b")) == model["b"], "the other terminal has lost nothing"
    again = Confirmed.decode(confirmed.document(first))
    for terminal in "ab":
        assert each(again.of(terminal)) == {each for each in each_of(confirmed, terminal) if each >= first}


def each_of(confirmed, terminal):
    return each(confirmed.of(terminal))


def test_a_run_that_is_not_known_is_not_asked_for():
    confirmed = Confirmed()
    confirmed.add("a", 1, [(0, 5)])
    assert not confirmed.due(lambda terminal: 0)


def test_memory_is_bounded_and_errs_on_the_side_of_sending_again():
    confirmed = Confirmed()
    wanted = set(range(0, 20 * MOST_RANGES, 2))
    for offset in wanted:
        confirmed.add("a", 1, [(offset, offset + 1)])
    assert len(confirmed.of("a")) <= 2 * MOST_RANGES
    assert each_of(confirmed, "a") >= wanted
    assert len(Confirmed.decode(confirmed.document(0)).of("a")) <= MOST_RANGES


def test_a_document_that_is_damaged_is_told():
    with pytest.raises(StoreCorrupt, match="doesn't decode"):
        Confirmed.decode(b"\xc1")


# -- the other end --------------------------------------------------------------------------------------


@given(floor=st.integers(0, 30), runs=offsets, given_back=offsets, began=st.integers(0, 30))
def test_a_source_that_lost_its_log_sends_new_messages_and_the_old_ones_stay_known(
    floor, runs, given_back, began
):
    inbound = Inbound()
    inbound.begin_run(1, 1, [(1, 0)])
    inbound.apply(1, 1, {"billing": floor}, runs)
    inbound.give_back("billing", given_back)
    here = each(runs) - each(given_back)
    told, also = inbound.known("billing", 2, [(1, 0), (2, began)])
    assert set(range(told)) | each(also) == {offset for offset in here if offset < began}
    has_lost = inbound.begin_run(5, 2, [(1, 0), (2, began)]) is not None
    inbound = inbound.copy()
    assert inbound.run == 2
    wanted = inbound.fresh("billing", [(0, 40)])
    assert each(wanted) == set(range(40)) - {offset for offset in here if offset < began}
    assert inbound.lost == ([LostLife(began, 5)] if has_lost else [])
    assert has_lost or all(offset < began for offset in here)
    assert inbound.own_end(4) == (began if has_lost else inbound.own_end(5))
    assert inbound.begin_run(6, 2, [(2, began)]) is None, "the same run"
