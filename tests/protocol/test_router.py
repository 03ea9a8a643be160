"""The router of frames: whatever the interleaving, a frame reaches the owner of what it is about, and an
answer comes back under the client's number, once."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from landbridge.errors import BadRequest
from landbridge.protocol import frames, merging
from landbridge.protocol.operations import OPERATIONS
from landbridge.protocol.router import EVERYWHERE, HERE, ConsumedGroup, Gather, Router, There, Unknown

NODES = ("me", "b", "c")
TOPICS = [f"t{number}" for number in range(6)]
PRODUCER = b"p"


class Table:
    me = "me"

    def __init__(self, owners: dict[int, str | None]) -> None:
        self.owners = owners

    def unit_of(self, topic: str) -> int | None:
        return None if topic == "match" else TOPICS.index(topic) if topic in TOPICS else 0

    def node_of(self, unit: int) -> str | None:
        return self.owners[unit]

    @property
    def nodes(self) -> Iterable[str]:
        return {node for node in self.owners.values() if node is not None}


OWNERS = st.lists(st.sampled_from(NODES), min_size=len(TOPICS), max_size=len(TOPICS))
TOPIC = st.sampled_from(TOPICS)


class Routing(RuleBasedStateMachine):
    """A client, its node, and legs to two others. Each leg is a queue there and a queue back."""

    def __init__(self) -> None:
        super().__init__()
        self.table = Table(dict.fromkeys(range(len(TOPICS)), "me"))
        self.router = Router(self.table)
        self.local: dict[int, str] = {}  # the node's own subscriptions
        self.there: dict[str, deque[Any]] = {node: deque() for node in NODES}
        self.back: dict[str, deque[Any]] = {node: deque() for node in NODES}
        self.sessions: dict[str, dict[int, str]] = {node: {} for node in NODES}
        self.next = 1
        self.sent: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.stored: dict[str, list[int]] = {topic: [] for topic in TOPICS}
        self.unanswered: set[int] = set()

    @rule(owners=OWNERS)
    @precondition(lambda self: not self.unanswered and not self.router.subscriptions and not self.local)
    def owners_change(self, owners: list[str]) -> None:
        self.table.owners = dict(enumerate(owners))

    def send(self, frame: Any, topic: str) -> None:
        decision = self.router.route(frame, self.local.get)
        owner = self.table.owners[TOPICS.index(topic)]
        assert decision == (HERE if owner == "me" else There(str(owner), TOPICS.index(topic)))
        if frame.request:
            self.unanswered.add(frame.request)
        if decision == HERE:
            self.serve("me", frame)
        else:
            self.there[str(owner)].append(frame)

    def number(self) -> int:
        self.next += 1
        return self.next

    @rule(topic=TOPIC)
    def publish(self, topic: str) -> None:
        frame = frames.Publish(self.number(), topic, PRODUCER, 1)
        self.sent[topic].append(frame.request)
        self.send(frame, topic)

    @rule(topic=TOPIC, subscription=st.integers(1, 4))
    def subscribe(self, topic: str, subscription: int) -> None:
        frame = frames.Subscribe(self.number(), subscription, topic)
        if subscription in self.router.subscriptions or subscription in self.local:
            with pytest.raises(BadRequest):
                self.router.route(frame, self.local.get)
        else:
            self.send(frame, topic)

    @rule(subscription=st.integers(1, 4), request=st.booleans())
    def settle(self, subscription: int, request: bool) -> None:
        frame = frames.Settle(self.number() if request else 0, subscription, [])
        known = self.router.subscriptions.get(subscription)
        decision = self.router.route(frame, self.local.get)
        assert decision == (known or HERE)
        if known is not None:
            self.there[known.node].append(frame)
            if request:
                self.unanswered.add(frame.request)

    @rule(subscription=st.integers(1, 4))
    def unsubscribe(self, subscription: int) -> None:
        frame = frames.Unsubscribe(self.number(), subscription)
        decision = self.router.route(frame, self.local.get)
        if isinstance(decision, There):
            self.unanswered.add(frame.request)
            self.there[decision.node].append(frame)
        else:
            self.local.pop(subscription, None)

    def serve(self, node: str, frame: Any) -> None:
        """The node's broker."""
        session = self.local if node == "me" else self.sessions[node]
        match frame:
            case frames.Publish():
                assert self.table.owners[TOPICS.index(frame.topic)] == node
                self.stored[frame.topic].append(frame.request)
                self.answer(node, frames.Stored(frame.request, 0))
            case frames.Subscribe():
                assert frame.subscription not in session
                session[frame.subscription] = frame.topic
                self.answer(
                    node, frames.Subscribed(frame.request, frame.subscription, "g", "stream", False, 1)
                )
            case frames.Unsubscribe():
                session.pop(frame.subscription, None)
                self.answer(node, frames.Done(frame.request))
            case frames.Settle():
                if frame.request:
                    self.answer(node, frames.Done(frame.request))

    def answer(self, node: str, frame: Any) -> None:
        if node == "me":
            self.unanswered.remove(frame.request)
        else:
            self.back[node].append(frame)

    @rule(node=st.sampled_from(NODES[1:]))
    def a_leg_brings_a_frame(self, node: str) -> None:
        if self.there[node]:
            self.serve(node, self.there[node].popleft())

    @rule(node=st.sampled_from(NODES[1:]))
    def a_leg_brings_an_answer(self, node: str) -> None:
        if self.back[node]:
            frame = self.back[node].popleft()
            assert self.router.answered(node, frame)
            self.unanswered.remove(frame.request)
            assert not self.router.answered(node, frame)  # nobody is told twice

    @rule(node=st.sampled_from(NODES[1:]), data=st.data())
    def a_subscription_is_lost(self, node: str, data: st.DataObject) -> None:
        if self.sessions[node] and not self.there[node] and not self.back[node]:
            subscription = data.draw(st.sampled_from(sorted(self.sessions[node])))
            del self.sessions[node][subscription]
            assert self.router.answered(node, frames.Lost(subscription, "x", "x"))

    @invariant()
    def what_waits_is_known(self) -> None:
        assert set(self.router.requests) == self.unanswered
        for topic in TOPICS:
            assert self.stored[topic] == self.sent[topic][: len(self.stored[topic])]

    @invariant()
    def a_move_concerns_whoever_waits(self) -> None:
        assert self.router.moved() is None
        held = {each.unit for each in self.router.subscriptions.values()}
        held |= {each.unit for each in self.router.requests.values()}
        before = dict(self.table.owners)
        for unit in before:
            self.table.owners[unit] = None
            assert (self.router.moved() is not None) == (unit in held)
            self.table.owners[unit] = before[unit]


TestRouting = Routing.TestCase
TestRouting.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def router(**owners: str) -> Router:
    """t0 belongs to a node, and so on."""
    found: dict[int, str | None] = dict.fromkeys(range(len(TOPICS)), "me")
    return Router(Table(found | {TOPICS.index(topic): node for topic, node in owners.items()}))


def nothing(subscription: int) -> str | None:
    return None


def call(op: str, **args: Any) -> frames.Call:
    return frames.Call(1, op, args)


def test_operations_go_where_the_table_says() -> None:
    found = router(t0="b", t1="c")
    at_b, at_c = There("b", 0), There("c", 1)
    for frame, expected in (
        (call("topic.show", name="t1"), at_c),
        (call("topic.show", name="t2"), HERE),
        (call("document.read", collection="x", key="k"), at_b),
        (call("document.read", collection="x", key="k", topic="t1"), at_c),
        (call("token.create", subject="x", scopes=[]), at_b),
        (call("terminal.metrics"), HERE),
        (call("rule.test", source="t1"), at_c),
        (call("rule.test", source="t2", rule="t1"), at_c),
        (call("topic.show", name=3), HERE),
        (call("no.such"), HERE),
        (call("topic.show", name="match"), Unknown("match")),
        (frames.Renew(1, "token"), EVERYWHERE),
        (frames.Ping(1), HERE),
    ):
        assert found.route(frame, nothing) == expected, frame


def test_lists_and_split_operations_ask_several_nodes() -> None:
    found = router(t0="b", t1="c")
    everywhere = found.route(call("topic.list"), nothing)
    assert isinstance(everywhere, Gather)
    assert set(everywhere.asked) == {"me", "b", "c"}
    split = found.route(call("topic.wait", offsets={"t0": 1, "t1": 2, "t2": 3}, within=4), nothing)
    assert isinstance(split, Gather)
    assert {node: args["offsets"] for node, args in split.asked.items()} == {
        "b": {"t0": 1}, "c": {"t1": 2}, "me": {"t2": 3},
    }  # fmt: skip
    assert router().route(call("topic.list"), nothing) == HERE
    assert found.route(call("group.list", topic="t0"), nothing) == There("b", 0)


def transact(publishes: list[str], acks: list[int], key: str = "") -> frames.Transact:
    return frames.Transact(
        1, PRODUCER, 1, 1, [(t, 0) for t in publishes], [(n, 1, [(0, 1)]) for n in acks], key=key
    )


def test_a_transaction_goes_where_its_acks_are_else_to_its_first_output() -> None:
    found = router(t0="b", t1="c")
    found.route(frames.Subscribe(1, 7, "t1"), nothing)
    assert found.route(transact(["t0"], [7]), nothing) == There("c", 1)
    assert found.route(transact(["t0", "t1"], []), nothing) == There("b", 0)
    assert found.route(transact(["t1", "t0"], [], "key"), nothing) == There("b", 0)
    assert found.route(transact(["t0"], [9]), {9: "t2"}.get) == HERE
    assert found.route(transact([], [7, 9]), {9: "t2"}.get) == There("c", 1)
    assert found.route(transact([], [9, 7]), {9: "t2"}.get) == HERE
    assert found.route(transact(["t0"], [7], "key"), nothing) == There("b", 0)


def test_a_transaction_tells_its_home_of_what_it_acks_at_other_nodes() -> None:
    found = router(t0="b", t1="c")
    found.route(frames.Subscribe(1, 7, "t1", "g"), nothing)
    found.route(frames.Subscribe(2, 8, "t0"), nothing)
    here = {9: ConsumedGroup("t2", "here")}.get
    frame = transact([], [7, 8, 9])
    assert found.divided(transact([], [7]), "c", here) == transact([], [7])
    apart = {
        7: frames.ApartAck("t1", "g", 7, 1, [(0, 1)]),
        8: frames.ApartAck("t0", "", 8, 1, [(0, 1)]),
        9: frames.ApartAck("t2", "here", 9, 1, [(0, 1)]),
    }
    for home, kept in (("c", 7), ("b", 8), ("me", 9)):
        divided = found.divided(frame, home, here)
        assert [number for number, _, _ in divided.acks] == [kept]
        assert divided.apart == [apart[number] for number in (7, 8, 9) if number != kept]
        assert divided.parts == frame.parts
    # One that isn't known anywhere goes along: the home refuses it.
    assert found.divided(transact([], [10, 7]), "c", here) == transact([], [10, 7])


def test_every_operation_that_asks_several_nodes_can_be_merged() -> None:
    for name, operation in OPERATIONS.items():
        kind, _, named = operation.where.partition(":")
        assert kind not in ("every", "any", "topics") or merging.is_mergeable(name), name
        request: Any = operation.request
        for field in msgspec.structs.fields(request):
            if kind == "topic" and field.name in named[1:-1].split("|") and field.default is None:
                assert merging.is_mergeable(name) or "|" in named, name
    assert set(merging.PAGES) <= set(OPERATIONS)


ROWS = st.lists(st.tuples(st.sampled_from("abcdef"), st.sampled_from("xyz")), unique=True, max_size=18)


@given(ROWS, st.integers(1, 5), st.integers(1, 7))
@settings(max_examples=60, deadline=None)
def test_pages_of_several_nodes_have_every_row_once_in_order(
    rows: list[tuple[str, str]], size: int, limit: int
) -> None:
    """Nodes have pages of ``size`` rows; the caller wants ``limit``."""
    at = {node: sorted(row for row in rows if hash(row[0]) % 3 == n) for n, node in enumerate(NODES)}
    found: list[tuple[str, str]] = []
    after = ""
    while True:
        last = tuple(after.split("/", 1)) if after else ("", "")
        answers = {}
        for node, all_rows in at.items():
            left = [row for row in all_rows if row > last]
            page = left[:size]
            answers[node] = {
                "groups": [{"topic": topic, "name": name} for topic, name in page],
                "next": "/".join(page[-1]) if len(left) > size else "",
            }
        merged = merging.merge("group.list", {"limit": limit}, answers, "me")
        assert len(merged["groups"]) <= limit
        found += [(row["topic"], row["name"]) for row in merged["groups"]]
        after = merged["next"]
        if not after:
            break
    assert found == sorted(rows)


def test_a_watch_goes_on_with_the_words_of_all_nodes() -> None:
    marks = merging.marks_of("", ["b", "c"])
    assert marks == {"b": "", "c": ""}
    news = {"topics": ["t1"], "gone": [], "whole": False, "more": 0, "since": "b/2"}
    merged = merging.merge_news("topic.watch", {"b": news}, {"b": "b/1", "c": "c/1"})
    assert merged["topics"] == ["t1"]
    assert merging.marks_of(merged["since"], ["b", "c", "d"]) == {"b": "b/2", "c": "c/1", "d": ""}
    assert merging.marks_of("nonsense", ["b"]) == {"b": ""}
