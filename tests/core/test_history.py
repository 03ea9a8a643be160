"""Histories of logs, against terminals that are restarted and restored at will."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.shipping import history
from landbridge.core.shipping.history import MOST_RUNS, first_change, with_run
from landbridge.errors import StoreCorrupt

DEEDS = st.sampled_from(["publish", "publish", "restart", "backup", "restore", "tell"])


@given(st.lists(DEEDS, max_size=60))
def test_a_destination_keeps_nothing_that_its_source_has_lost(deeds):
    log, told, stored = list[int](), list[int](), list[tuple[int, int]]()
    run = began = 1
    began, value, known = 0, 0, 0
    backup = (list(log), list(stored))
    has_lost = False
    for deed in deeds:
        match deed:
            case "publish":
                if not stored or stored[-1][0] != run:
                    stored = with_run(stored, run, began)
                value += 1
                log.append(value)
            case "restart":
                run, began = run + 1, len(log)
            case "backup":
                backup = (list(log), list(stored))
            case "restore":
                log, stored = list(backup[0]), list(backup[1])
                run, began, has_lost = run + 1, len(log), True
            case "tell":
                current = stored if stored and stored[-1][0] == run else with_run(stored, run, began)
                if known != run:
                    change = first_change(current, known)
                    kept = told[:change]
                    assert kept == log[: len(kept)], "what is known is what the source has"
                    if not has_lost and len(current) < MOST_RUNS:
                        assert kept == told, "nothing is forgotten without need"
                told, known, has_lost = list(log), run, False


def test_what_is_remembered_is_bounded_and_errs_on_the_side_of_forgetting():
    found = list[tuple[int, int]]()
    for run in range(1, 100):
        found = with_run(found, run, 10 * run)
    assert len(found) == MOST_RUNS
    for known in range(100):
        assert first_change(found, known) <= 10 * (known + 1)
    assert history.decode(history.encode(found)) == found


def test_a_run_before_all_that_is_known_may_have_changed_everything():
    assert first_change([(5, 10), (7, 30)], 9) == 10


def test_damage_is_told():
    with pytest.raises(StoreCorrupt, match="doesn't decode"):
        history.decode(b"\xc1")
