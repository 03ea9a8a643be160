"""Templates: what they say of a message, and that a message says nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.templates import (
    LONGEST_TEMPLATE,
    LONGEST_TEXT,
    MOST_PLACES,
    MessageValues,
    Template,
    one_line,
)
from landbridge.errors import BadPayload, BadRequest

PAYLOAD = {
    "name": "Ada",
    "n": 1.5,
    "yes": True,
    "none": None,
    "list": [1, {"a": "b"}],
    "nested": {"a": {"b": "deep"}},
    "evil": "{{ payload.secret }}",
    "secret": "s3cret",
}


def values(payload: Any = PAYLOAD, headers: dict[str, Any] | None = None) -> MessageValues:
    raw = payload if isinstance(payload, bytes) else msgspec.json.encode(payload)
    return MessageValues(raw, headers or {}, more={"topic": "t", "key": "k"}, time=0)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("plain", "plain"),
        ("{{payload.name}} {{ payload.name }}!", "Ada Ada!"),
        ("{{ payload.n }} {{ payload.yes }}", "1.5 true"),
        ("{{ payload.list }} {{ payload.list.1.a }}", '[1,{"a":"b"}] b'),
        ("{{ payload.nested.a.b }}", "deep"),
        ("{{ payload.none | nobody }} {{ payload.x.y | }}.", "nobody ."),
        ("{{ payload.evil }}", "{{ payload.secret }}"),
        ("{{ topic }}/{{ key }} {{ time }}", "t/k 1970-01-01 00:00:00 UTC"),
        ("{{ headers.x-site.name }}", "here"),
        ("{ payload } {x} }", "{ payload } {x} }"),
    ],
)
def test_what_a_template_makes(text: str, made: str) -> None:
    assert Template(text, "x").fill(values(headers={"x-site.name": "here"})) == made


@pytest.mark.parametrize(
    "text",
    [
        "{{ }}", "{{ x }}", "{{ payload. }}", "{{ payload.a b }}", "{{ payload", "payload }}",
        "{{ {{ payload }} }}",
        "{{ payload.__class__() }} {{ 1+1 }}", "{% if x %}", "{{ headers }}", "{{ payload|upper|x }} {{ y }}",
        "x" * (LONGEST_TEMPLATE + 1), "{{ payload }}" * (MOST_PLACES + 1),
    ],
)  # fmt: skip
def test_what_is_no_template(text: str) -> None:
    if text == "{% if x %}":  # text like any other
        assert Template(text, "x").fill(values()) == text
        return
    with pytest.raises(BadRequest):
        Template(text, "x")


@pytest.mark.parametrize(
    "payload", [b"", b"no json", b"[1, 2", b"\xff", b"[" * 100_000, {"other": 1}, [1], None]
)
def test_a_message_without_the_value_can_not_be_filled_in(payload: Any) -> None:
    with pytest.raises(BadPayload):
        Template("{{ payload.name }}", "x").fill(values(payload))
    assert Template("{{ payload.name | x }}", "x").fill(values(payload)) == "x"


def test_a_text_has_a_bound() -> None:
    big = values({"x": "a" * (LONGEST_TEXT // 10)})
    with pytest.raises(BadPayload):
        Template("{{ payload.x }}" * 11, "x").fill(big)


@given(st.text(max_size=200))
def test_what_is_filled_in_stands_there_as_it_is(text: str) -> None:
    wanted = text.encode(errors="replace").decode()
    assert Template("<{{ payload.x }}>", "x").fill(values({"x": wanted})) == f"<{wanted}>"


@given(st.text(max_size=300), st.integers(1, 100))
def test_one_line_has_no_line_ends(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert len(line) <= longest
    assert len(line.splitlines()) <= 1
    assert not any(ord(each) < 32 or 127 <= ord(each) < 160 for each in line)
