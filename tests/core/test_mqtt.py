"""Sessions of MQTT, and the window of messages in flight."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.mqtt.session import (
    NEVER,
    StoredFilter,
    StoredSession,
    allowed_expiry,
    group_of,
    groups_of,
    is_of_session,
    is_over,
    left,
    session_key,
)
from landbridge.core.mqtt.window import LAST_ID, Window
from landbridge.core.names import check_name


@given(st.text(max_size=130), st.text(max_size=130), st.text(max_size=200))
def test_a_group_of_a_session_has_a_name_that_is_one(service: str, client: str, filter: str) -> None:
    name = check_name(group_of(service, client, filter), "group")
    assert is_of_session(name)
    assert not is_of_session("mqtt.bridge")
    assert name != group_of(service + "x", client, filter)
    assert name != group_of(service, client, filter + "/x")
    assert session_key(service, client) != session_key(service, client + "x")


def test_a_client_cant_name_itself_into_another_service() -> None:
    assert session_key("a", "bc") != session_key("ab", "c")
    assert group_of("a", "b", "c") != group_of("ab", "", "c")


def test_only_filters_of_qos_1_that_are_not_shared_have_groups_of_their_own() -> None:
    filters = [
        StoredFilter(filter="a", qos=1),
        StoredFilter(filter="b", qos=0),
        StoredFilter(filter="$share/g/a", qos=1),
    ]
    session = StoredSession(service="s", client_id="c", expiry=10.0, filters=filters)
    assert groups_of(session) == [group_of("s", "c", "a")]


def test_a_session_ends_so_long_after_its_client_is_gone() -> None:
    session = StoredSession(service="s", client_id="c", expiry=10.0)
    assert not is_over(session, 1 << 60)
    gone = left(session, 5_000_000)
    assert not is_over(gone, 14_999_999)
    assert is_over(gone, 15_000_000)
    assert allowed_expiry(NEVER, 100.0) == 100.0
    assert allowed_expiry(7, 100.0) == 7.0


@given(st.integers(1, 5), st.lists(st.booleans(), max_size=60))
def test_identifiers_in_flight_are_never_two_of_the_same(size: int, steps: list[bool]) -> None:
    window: Window[int] = Window(size)
    oracle: dict[int, int] = {}
    for number, put in enumerate(steps):
        if put and not window.is_full:
            id, was_sent = window.put(("f", "t", number), number)
            assert not was_sent
            assert id not in oracle
            assert 0 < id <= LAST_ID
            oracle[id] = number
        elif oracle:
            id = next(iter(oracle))
            assert window.take(id) == oracle.pop(id)
        assert len(window) == len(oracle) <= size
        assert window.items() == list(oracle.values())
    assert window.take(60_000) is None


def test_what_was_not_answered_goes_again_with_its_identifier() -> None:
    first: Window[str] = Window(10)
    for number in range(4):
        first.put(("f", "t", number), "x")
    first.take(2)
    second: Window[str] = Window(10, first.unanswered())
    assert second.put(("f", "t", 99), "new") == (2, False)
    assert second.put(("f", "t", 3), "again") == (4, True)
    assert second.put(("f", "t", 2), "again") == (3, True)
    # One that has not come again yet keeps its identifier, also for a third connection.
    assert second.unanswered()["f", "t", 0] == 1
    assert second.put(("f", "t", 100), "new")[0] not in (1, 2, 3, 4)


def test_a_message_that_comes_again_while_it_is_in_flight_is_not_sent_again() -> None:
    window: Window[str] = Window(2)
    id, _ = window.put(("f", "t", 1), "lease 1")
    assert window.holds(("f", "t", 1))
    window.renew(("f", "t", 1), "lease 2")
    assert window.take(id) == "lease 2"
    assert not window.holds(("f", "t", 1))


def test_identifiers_begin_again_after_the_last_one() -> None:
    window: Window[int] = Window(2)
    ids = []
    for number in range(LAST_ID + 2):
        id, _ = window.put(("f", "t", number), number)
        ids.append(id)
        window.take(id)
    assert ids[-3:] == [LAST_ID, 1, 2]
