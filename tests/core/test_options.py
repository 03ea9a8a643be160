"""What is wrong with options, in the words of whoever gave them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.options import differences
from landbridge.core.topic import group_spec, topic_spec
from landbridge.core.wording import counted
from landbridge.errors import BadRequest


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"kind": "queu"}, "topic options: kind: invalid enum value 'queu'", "one of: stream, queue"),
        ({"delivery": "never"}, "delivery: invalid enum value", "one of: at-least-once, at-most-once"),
        ({"max_backlog": "much"}, "max_backlog: expected int, got str", ""),
        ({"retention": {"max_age": "long"}}, "retention.max_age: expected float | null, got str", ""),
        (
            {"max_backlogs": 1},
            "there is no option 'max_backlogs'",
            "did you mean max_backlog? there are name",
        ),
        ({"retention": {"maxage": 1}}, "no option 'retention.maxage'", "did you mean max_age? there are set"),
        ({"zzz": 1}, "there is no option 'zzz'", "there are name, kind, "),
        ({"z" * 1_000_000: 1}, "'" + "z" * 60 + "'", "there are "),
    ],
)
def test_what_is_wrong_and_what_would_be_right(options: dict[str, Any], message: str, hint: str) -> None:
    with pytest.raises(BadRequest) as refused:
        topic_spec({"name": "t", **options})
    assert message in str(refused.value)
    assert refused.value.hint.startswith(hint)
    assert bool(refused.value.hint) == bool(hint)


def test_of_one_of_several_kinds_all_options_are_named() -> None:
    with pytest.raises(BadRequest) as refused:
        topic_spec({"name": "t", "middleware": [{"stage": "compress", "levl": 3}]})
    assert "there is no option 'middleware[0].levl'" in str(refused.value)
    assert refused.value.hint.startswith("did you mean level? there are transform: use, options, ")
    assert "; compress: level" in refused.value.hint


def test_values_of_a_group() -> None:
    with pytest.raises(BadRequest) as refused:
        group_spec({"topic": "t", "name": "g", "discipline": "random"})
    assert refused.value.hint == "one of: fifo, lifo, priority"
    with pytest.raises(BadRequest, match=r"no option 'match\.keys'") as refused:
        group_spec({"topic": "t", "name": "g", "match": {"keys": "x"}})
    assert refused.value.hint == "did you mean key? there are key, headers"


@given(st.dictionaries(st.text(), st.none() | st.text() | st.dictionaries(st.text(), st.integers())))
def test_any_options_are_taken_or_refused(options: dict[str, Any]) -> None:
    message = ""
    try:
        topic_spec({"name": "t", **options})
    except BadRequest as refused:
        message = str(refused)
    assert len(message) < 400


def test_differences_are_named() -> None:
    stream = topic_spec({"name": "t"})
    queue = topic_spec({"name": "t", "kind": "queue", "producer": "shop"})
    assert differences(stream, queue) == (
        "kind is stream, not queue; retention.settled is false, not true; producer is none, not shop"
    )
    plain = group_spec({"topic": "t", "name": "g"})
    chosen = group_spec({"topic": "t", "name": "g", "ack_within": 5, "match": {"key": "eu"}})
    assert "ack_within is 30, not 5" in differences(plain, chosen)
    assert "match.key is none, not eu" in differences(plain, chosen)
    assert differences(plain, plain) == ""


def test_counted() -> None:
    assert [counted(n, "message") for n in (0, 1, 2, 1000)] == [
        "0 messages",
        "1 message",
        "2 messages",
        "1,000 messages",
    ]
