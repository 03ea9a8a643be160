import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.status import LEVELS, TOPIC, Event, Levels, StatusLog, encode, parse_levels

LEVEL = st.sampled_from(LEVELS)
WHO, TOPICS = st.sampled_from(["ann", "bob"]), st.sampled_from(["t", "u", TOPIC])
LEVELS_SET = st.builds(
    Levels,
    default=LEVEL,
    topics=st.dictionaries(TOPICS, LEVEL),
    producers=st.dictionaries(WHO, LEVEL),
    consumers=st.dictionaries(WHO, LEVEL),
)
HAPPENING = st.tuples(st.sampled_from(["publish", "deliver", "ack"]), WHO, TOPICS, st.integers(1, 9))


def drained(log: StatusLog, now: int = 0) -> list[Event]:
    return [msgspec.json.decode(encode(event), type=Event) for event in log.take(now)]


def level(levels, event, who, topic) -> str:
    people = levels.producers if event == "publish" else levels.consumers
    return people.get(who, levels.topics.get(topic, levels.default))


@given(LEVELS_SET, st.lists(HAPPENING))
def test_counted_events_add_up_to_what_happened_at_their_level(levels, happenings):
    log = StatusLog(levels)
    wanted: dict[tuple, list[tuple[int, int]]] = {}
    told = 0
    for now, (event, who, topic, messages) in enumerate(happenings, 1):
        log.count(now, event, who, topic, messages=messages, size=2 * messages, offsets=[(0, messages)])
        if topic != TOPIC and level(levels, event, who, topic) in ("batches", "messages"):
            wanted.setdefault((event, who, topic), []).append((now, messages))
            told += level(levels, event, who, topic) == "messages"
    events = drained(log)
    assert [event.time for event in events] == sorted(event.time for event in events)
    assert sum(bool(event.offsets) for event in events) == told
    found: dict[tuple, list[Event]] = {}
    for event in events:
        found.setdefault((event.event, event.who, event.topic), []).append(event)
    assert found.keys() == wanted.keys()
    for key, seen in wanted.items():
        assert len(found[key]) == (len(seen) if level(levels, *key) == "messages" else 1)
        assert sum(event.messages for event in found[key]) == sum(messages for _, messages in seen)
        assert sum(event.bytes for event in found[key]) == 2 * sum(messages for _, messages in seen)
        assert sum(event.batches for event in found[key]) == len(seen)
        assert found[key][-1].time == seen[-1][0]
        if level(levels, *key) == "batches":
            assert found[key][0].since == seen[0][0]
    assert not log
    assert drained(log) == []


@given(LEVELS_SET, st.sampled_from(["refuse", "bury", "error", "connect", "publish"]), WHO, TOPICS)
def test_errors_are_noted_from_level_errors_on_and_the_rest_from_batches_on(levels, event, who, topic):
    log = StatusLog(levels)
    log.note(1, event, who=who, topic=topic, cause="why")
    enough = LEVELS[1:] if event in ("refuse", "bury", "error") else LEVELS[2:]
    noted = topic != TOPIC and level(levels, event, who, topic) in enough
    assert bool(log) == noted
    assert [(e.event, e.who, e.topic, e.cause) for e in drained(log)] == [(event, who, topic, "why")] * noted


def test_overflow_is_counted_and_told():
    log = StatusLog()
    for now in range(StatusLog.MOST + 5):
        log.note(now, "error", cause="flood")
    events = drained(log, now=1 << 40)
    assert len(events) == StatusLog.MOST + 1
    assert (events[-1].cause, events[-1].messages) == ("status_overflow", 5)
    assert drained(log) == []


def test_what_it_holds_is_bounded_also_for_counted_events():
    log = StatusLog()
    for who in range(StatusLog.MOST + 5):
        log.count(1, "ack", str(who), "t", messages=1)
    assert len(drained(log)) == StatusLog.MOST + 1


@pytest.mark.parametrize("raw", [{"default": "x"}, {"topics": {"t": "x"}}, {"producer": {}}, {"default": 1}])
def test_unknown_levels_are_refused(raw):
    with pytest.raises(msgspec.ValidationError):
        parse_levels(raw)


@given(LEVELS_SET)
def test_levels_survive_as_a_document(levels):
    assert parse_levels(msgspec.to_builtins(levels)) == levels
