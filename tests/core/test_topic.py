import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.names import MAX_LENGTH
from landbridge.core.topic import GroupSpec, TopicSpec, group_spec, topic_spec
from landbridge.errors import BadName, BadRequest

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
NAME = st.sampled_from(["t", "a.b", "$x", "a b", ""])
RETENTION = st.fixed_dictionaries(
    {},
    optional={
        "settled": st.booleans(),
        "max_age": st.floats() | JSON,
        "max_bytes": st.integers() | JSON,
        "discard": st.sampled_from(["settled", "any"]) | JSON,
    },
)
TOPIC = st.fixed_dictionaries(
    {"name": NAME},
    optional={
        "kind": st.sampled_from(["stream", "queue", "heap"]),
        "retention": RETENTION | JSON,
        "max_backlog": st.integers() | JSON,
        "producer": JSON,
        "delivery": st.sampled_from(["at-least-once", "at-most-once", "never"]),
    },
)
SPAN = st.floats() | st.integers(0, 100)
GROUP = st.fixed_dictionaries(
    {"topic": NAME, "name": NAME},
    optional={
        "discipline": st.sampled_from(["fifo", "lifo", "priority", "random"]),
        "ack_within": SPAN,
        "max_attempts": st.integers(-1, 20) | JSON,
        "backoff": SPAN,
        "backoff_most": SPAN,
        "dead_letter": st.none() | NAME,
        "match": JSON | st.fixed_dictionaries({"key": st.text(max_size=3)}),
    },
)


@given(TOPIC)
def test_topic_options_are_refused_or_sound(raw):
    try:
        spec = topic_spec(raw)
    except (BadRequest, BadName):
        return
    assert spec.max_backlog > 0
    assert spec.retention.discard in ("settled", "any")
    assert spec.kind == "queue" or (spec.producer is None and spec.delivery == "at-least-once")
    assert topic_spec(msgspec.to_builtins(spec)) == spec
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=TopicSpec) == spec


@given(GROUP)
def test_group_options_are_refused_or_sound(raw):
    try:
        spec = group_spec(raw)
    except (BadRequest, BadName):
        return
    policy = spec.policy()
    for attempts in (1, 2, 60, 1 << 40):  # every span can be counted in microseconds of 64 bits
        assert 0 <= int(policy.delay(attempts) * 1_000_000) < 1 << 62
    assert 0 < policy.ack_within * 1_000_000 < 1 << 62
    assert policy.max_attempts > 0
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(spec), type=GroupSpec) == spec


@pytest.mark.parametrize(
    "options",
    [
        {"kind": "heap"},
        {"colour": "red"},
        {"max_backlog": 0},
        {"retention": {"discard": "some"}},
        {"retention": {"max_age": -1.0}},
        {"retention": {"max_bytes": 0}},
        {"kind": "queue", "retention": 5},
        {"kind": "queue", "retention": ["settled"]},
        {"producer": "ann"},
        {"delivery": "at-most-once"},
    ],
    ids=str,
)
def test_wrong_topic_options_are_refused(options):
    with pytest.raises(BadRequest):
        topic_spec({"name": "t"} | options)


@pytest.mark.parametrize(
    "options",
    [
        {"discipline": "random"},
        {"ack_within": 0},
        {"ack_within": 1e300},
        {"max_attempts": 0},
        {"backoff": -1.0},
        {"backoff": float("nan")},
        {"backoff_most": float("inf")},
        {"backoff_most": float("nan")},
        {"dead_letter": "t"},
    ],
    ids=str,
)
def test_wrong_group_options_are_refused(options):
    with pytest.raises(BadRequest):
        group_spec({"topic": "t", "name": "g"} | options)


def test_queue_forgets_what_is_settled_unless_told_otherwise():
    assert topic_spec({"name": "t", "kind": "queue"}).retention.settled
    assert topic_spec({"name": "t", "kind": "queue", "retention": None}).retention.settled
    assert not topic_spec({"name": "t", "kind": "queue", "retention": {"settled": False}}).retention.settled
    assert not topic_spec({"name": "t"}).retention.settled


def test_dead_letters_have_a_topic_unless_told_otherwise():
    def spec(**options):
        return group_spec({"topic": "t", "name": "g", **options})

    assert spec().dead_topic == "t.dead"
    assert spec(dead_letter="d").dead_topic == "d"
    assert spec(dead_letter="").dead_topic == ""


def test_topic_whose_dead_letter_topic_would_have_too_long_a_name_must_name_another():
    topic = "t" * MAX_LENGTH
    with pytest.raises(BadName):
        group_spec({"topic": topic, "name": "g"})
    assert group_spec({"topic": topic, "name": "g", "dead_letter": ""}).dead_topic == ""
