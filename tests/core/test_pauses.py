"""Pauses as values: compared with an oracle on random sequences."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.pauses import LONGEST_NOTE, PauseNote, pause
from landbridge.errors import BadRequest

STEPS = st.lists(
    st.one_of(
        st.none(),
        st.tuples(st.sampled_from(["ana", "ben"]), st.sampled_from(["", "why", "other"]), st.booleans()),
    ),
    max_size=12,
)


@given(STEPS)
def test_a_pause_keeps_since_when_and_tells_the_last_reason(
    steps: list[tuple[str, str, bool] | None],
) -> None:
    found: PauseNote | None = None
    since = 0
    for now, step in enumerate(steps, 1):
        before = found
        if step is None:
            found = None
            continue
        who, note, delivery = step
        found = pause(before, now, who, note, delivery=delivery)
        since = since if before is not None else now
        assert (found.paused_at, found.note, found.delivery) == (since, note, delivery)
        # Who said the same again has changed nothing.
        same = before is not None and (before.note, before.delivery) == (note, delivery)
        assert (found is before) == same
        if not same:
            assert found.paused_by == who


def test_a_note_is_bounded() -> None:
    assert pause(None, 1, "ana", "x" * LONGEST_NOTE).note == "x" * LONGEST_NOTE
    with pytest.raises(BadRequest, match="2001 characters"):
        pause(None, 1, "ana", "x" * (LONGEST_NOTE + 1))


def test_a_pause_is_told_with_its_reason() -> None:
    assert pause(None, 1, "ana").told == "by ana"
    assert pause(None, 1, "ana", "until Monday").told == "by ana: until Monday"
