"""Regular expressions in sets: the same as one by one, changed at any time, within bounds."""

from __future__ import annotations

import random
import re
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.rules import regexps
from landbridge.core.rules.budget import USED_UP, Budget, RegexpAllowance
from landbridge.core.rules.content import MessageContent, content_of
from landbridge.core.rules.explanation import explain
from landbridge.core.rules.query import Rule, read_query
from landbridge.core.rules.regexps import Expression, ExpressionSet
from landbridge.core.rules.ruleset import RuleSet
from landbridge.errors import BadRequest


def rule(id: str, pattern: str, place: str = "payload") -> Rule:
    return Rule(id, read_query({"kind": "regexp", "pattern": pattern, "place": place}))


def test_texts_of_all_places() -> None:
    rules = RuleSet(
        [
            rule("payload", r"^order-\d+"),
            rule("key", "^eu", "key"),
            rule("header", "^a.*z$", "header:trace"),
            rule("event", r"\.created$", "ce:type"),
        ]
    )
    headers = [
        encode_headers({"trace": "a to z", "ce-type": "order.created"}),
        b"",
        b"",
        encode_headers({"trace": 5}),
    ]
    batch = Batch.decode(
        build([b"order-1", b"\xff order-2", b"order-3\xff", b"{}"], id=bytes(16), time=1,
              keys=[b"", b"eu", b"us", b"eu-7"], headers=headers)
    )  # fmt: skip
    assert rules.match_batch(batch) == (
        {"payload": [0, 2], "header": [0], "event": [0], "key": [1, 3]}, [], [],
    )  # fmt: skip


patterns = st.text("ab.|()*?^", max_size=6)
texts = st.text("abc\n", max_size=8)


@given(st.lists(patterns, min_size=1, max_size=30), st.lists(texts, min_size=1, max_size=3), st.data())
def test_a_set_is_each_of_its_expressions(many: list[str], some: list[str], data: st.DataObject) -> None:
    rules, known = RuleSet(), {}
    for n, pattern in enumerate(many):
        # Python's own expressions are the oracle for these few letters.
        try:
            rules.add(rule(f"r{n % 20}", pattern))
        except BadRequest:
            continue
        try:
            known[f"r{n % 20}"] = re.compile(pattern)
        except re.error:  # RE2 takes a little more than Python does
            rules.remove(f"r{n % 20}")
            known.pop(f"r{n % 20}", None)
            continue
        if data.draw(st.booleans()):
            rules.match(content_of(b""))
    for id in data.draw(st.sets(st.sampled_from(sorted(known)))) if known else ():
        rules.remove(id)
        del known[id]
    for text in some:
        wanted = {id for id, pattern in known.items() if pattern.search(text)}
        assert set(rules.match(content_of(text.encode())).rows) == wanted


def test_many_additions_and_removals() -> None:
    rules = RuleSet()
    for n in range(200):
        rules.add(rule(f"r{n}", f"x{n}y"))
        if n % 3 == 0 and n:
            rules.remove(f"r{n - 1}")
        wanted = {f"r{n}", "r0"}
        assert set(rules.match(content_of(f"x{n}y x0y".encode())).rows) == wanted
    assert len(rules) == 200 - 66
    rules.add(rule("r0", "other"))
    assert rules.match(content_of(b"x0y")).rows == {}
    with pytest.raises(BadRequest):
        rules.add(rule("r0", "("))
    assert set(rules.match(content_of(b"other")).rows) == {"r0"}


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ({"pattern": "("}, "pattern: .*missing"),
        ({"pattern": "(?=a)"}, "pattern: "),
        ({"pattern": r"(a)\1"}, "pattern: "),
        ({"pattern": "a" * 1025}, "pattern: 1,025 characters"),
        ({"pattern": "((a{30}){30}){2}"}, "pattern: "),
        ({"pattern": "((a{100}){100}){100}"}, "pattern: "),
        ({"pattern": "[\\pL]{500}"}, "pattern: "),
        ({"pattern": "a\ud800"}, "can't be written as JSON"),
        ({"pattern": "a", "place": "body"}, "place: there is no place 'body'"),
        ({"pattern": "a", "place": "header:"}, "place: there is no place"),
        ({"pattern": 5}, "query: pattern: "),
        ({"patern": "a", "pattern": "b"}, "there is no option 'patern'"),
        ({}, "pattern"),
    ],
)
def test_a_wrong_expression_is_refused(query: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        RuleSet([Rule("it", read_query({"kind": "regexp", **query}))])


def test_a_text_that_would_cost_too_much_is_not_searched() -> None:
    rules = RuleSet([rule("heavy", "(a|b|ab){0,300}(c?){300}d"), rule("light", "x")])
    found = rules.match(content_of(b"ab" * 10_000 + b"x"))
    assert found.rows == {"light": [0]}
    assert [each.rule for each in found.exceeded] == ["heavy"]
    assert "instructions on 20,001 bytes" in found.exceeded[0].cause
    assert rules.match(content_of(b"abdx")).rows == {"heavy": [0], "light": [0]}
    said = explain(rules.query("heavy"), content_of(b"ab" * 10_000))
    assert (said.matches, said.exceeded) == (False, True)


def test_a_set_that_is_too_large_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    """RE2 says of a set without enough memory that nothing matches. That must not happen unnoticed."""
    monkeypatch.setattr(regexps, "SET_MEMORY", 20_000)
    monkeypatch.setattr(regexps, "SET_MEMORY_EACH", 0)
    members = [(f"r{n}", Expression(f"[ab]*a{'[ab]' * (n % 9 + 5)}c|x{n}y", "pattern")) for n in range(40)]
    expressions = ExpressionSet()
    expressions.add(members)
    for n in (0, 7, 39):
        assert expressions.search(b"..x%dy.." % n, Budget(), RegexpAllowance(Budget()))[0] == [f"r{n}"]
    assert expressions._old is not None
    assert len(expressions._old._parts) > 1


def test_an_expression_that_repeats_much_does_not_slow_the_others_down() -> None:
    """By the CPU's time, and with much room: in one set they took a hundred times as long."""
    calm = RuleSet(rule(f"r{n}", f"order-{n}-[a-z]+") for n in range(300))
    both = RuleSet(
        [*(rule(f"r{n}", f"order-{n}-[a-z]+") for n in range(300)), rule("hostile", "[ab]*a[ab]{30}c")]
    )
    letters = random.Random(5)
    texts = [content_of(bytes(letters.choices(b"ab", k=2000)) + b"order-7-x") for _ in range(20)]

    def seconds(rules: RuleSet) -> float:
        begun = time.process_time()
        for content in texts:
            assert set(rules.match(content).rows) == {"r7"}
        return time.process_time() - begun

    seconds(calm)
    assert seconds(both) < 30 * seconds(calm) + 0.5
    both.remove("hostile")
    both.add(rule("hostile", "a[ab]{29}order"))
    assert set(both.match(texts[0]).rows) <= {"r7", "hostile"}


def test_the_places_of_a_message_share_what_all_rules_may_take() -> None:
    budget = Budget(regexp_steps=10_000)  # all together: 200,000
    rules = RuleSet(budget=budget)
    for n in range(60):
        rules.add(rule(f"r{n}", f"a[ab]{{50}}c|{n}x", f"header:h{n}"))
    headers = {f"h{n}": "b" * 100 + f"{n}x" for n in range(60)}
    matched = rules.match(MessageContent(b"", None, headers, None, ""))
    assert 20 <= len(matched.rows) < 60
    assert {each.cause for each in matched.exceeded} == {USED_UP}
    assert len(matched.rows) + len(matched.exceeded) == 60


def test_a_set_takes_no_more_than_all_rules_may() -> None:
    """Its automaton may need a state of all expressions for each byte, so one pass is not always cheap."""
    budget = Budget(regexp_steps=10_000)  # a set: 800,000
    rules = RuleSet([rule(f"r{n}", f"[ab]b[ab]b[ab]x{n}y") for n in range(200)], budget=budget)
    few = rules.match(content_of(b"ababax7y"))
    assert (list(few.rows), few.exceeded) == (["r7"], [])
    many = rules.match(content_of(b"ababax7y" * 40))
    assert {each.cause for each in many.exceeded} == {USED_UP}
    assert 0 < len(many.exceeded) < 200
