"""Order per key, against a dictionary that knows where each message is."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from landbridge.core.delivery import keyorder
from landbridge.core.delivery.delivery import Delivery, Policy
from landbridge.core.delivery.discipline import BATCH_COUNTS
from landbridge.core.delivery.filters import Match, filter_of
from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.log.cursor import Cursor
from landbridge.core.time import SECOND
from landbridge.core.topic import group_spec
from landbridge.errors import BadRequest

KEYS = st.sampled_from([b"", b"a", b"a", b"b", b"c"])
MESSAGE = st.tuples(
    KEYS,
    st.sampled_from([0, 0, 0, 0, 5]),  # deliver after so many seconds
    st.sampled_from([0, 0, 0, 0, 5]),  # expires after
    st.sampled_from([True, True, True, False]),  # is let through by the filter
)
#: What a message is, for which no other one of its key may be handed out.
OUT = ("leased", "delayed", "condemned", "aside")


def policy(**options) -> Policy:
    return Policy(order="key", max_attempts=3, **options)


class KeyOrderMachine(RuleBasedStateMachine):
    @initialize(at_most_once=st.sampled_from([False, False, False, True]), filtered=st.booleans())
    def begin(self, at_most_once, filtered):
        self.now = 1000 * SECOND
        self.policy = policy(at_most_once=at_most_once)
        self.filter = filter_of(Match(headers={"for": "us"})) if filtered else None
        self.messages: list[tuple[bytes, int, int, bool]] = []
        self.batches: dict[int, Batch] = {}
        self.loaded: set[int] = set()
        self.state: dict[int, str] = {}
        self.leases: dict[int, tuple[int, list[int]]] = {}
        self.since_commit: list[int] = []
        self.delivery = Delivery(Cursor(0), 0, self.policy, filter=self.filter, group="g")

    # -- the oracle --------------------------------------------------------------------------------

    def batch_at(self, offset):
        first = max(first for first in self.batches if first <= offset)
        return (first, self.batches[first]) if first in self.loaded else None

    def is_ready(self, offset) -> bool:
        """Pending, and not to be dropped or put off if somebody took it."""
        _, deliver_at, expires_at, ours = self.messages[offset]
        filtered = self.filter is not None and not ours
        expired = 0 < expires_at <= self.now
        return self.state[offset] == "pending" and not filtered and not expired and deliver_at <= self.now

    def others_of(self, offset) -> list[int]:
        key = self.messages[offset][0]
        return [o for o in self.state if key and o != offset and self.messages[o][0] == key]

    def may_go(self, offset) -> bool:
        others = self.others_of(offset)
        held_up = any(self.state[other] in OUT for other in others)
        return (
            self.is_ready(offset) and not held_up and not any(o < offset and self.is_ready(o) for o in others)
        )

    def put(self, offsets, state):
        for offset in offsets:
            self.state[offset] = state

    def follow(self):
        """Take over from the cursor what was dropped, and from time what came due or is put off."""
        for offset in self.state:
            if self.state[offset] == "pending" and self.delivery.cursor.is_settled(offset):
                assert not self.is_ready(offset)
                self.state[offset] = "settled"

    # -- what happens ------------------------------------------------------------------------------

    @rule(messages=st.lists(MESSAGE, min_size=1, max_size=5))
    def publish(self, messages):
        first = len(self.messages)
        for key, deliver_after, expires_after, ours in messages:
            deliver_at = deliver_after and self.now + deliver_after * SECOND
            expires_at = expires_after and self.now + expires_after * SECOND
            self.messages.append((key, deliver_at, expires_at, ours))
        rows = self.messages[first:]
        self.batches[first] = Batch.decode(
            build(
                [b"%d" % offset for offset in range(first, len(self.messages))],
                id=bytes(16),
                time=self.now,
                keys=[row[0] for row in rows],
                deliver_at=[row[1] for row in rows],
                expires_at=[row[2] for row in rows],
                headers=[encode_headers({"for": "us" if row[3] else "them"}) for row in rows],
            )
        )
        self.loaded.add(first)
        self.put(range(first, len(self.messages)), "pending")
        self.delivery.grow(len(self.messages))

    @rule(consumer=st.integers(1, 3), credit=st.integers(1, 6))
    def take(self, consumer, credit):
        self.wake()
        taken = 0
        for handout in self.delivery.take(self.now, consumer, credit, self.batch_at):
            offsets = [offset for first, end in handout.ranges for offset in range(first, end)]
            assert handout.batch.payloads() == [b"%d" % offset for offset in offsets]
            for offset in offsets:
                assert self.may_go(offset), f"{offset} of {self.state}"
                self.state[offset] = "settled" if self.policy.at_most_once else "leased"
            if not self.policy.at_most_once:
                self.leases[handout.lease] = consumer, offsets
            taken += len(offsets)
        self.follow()
        assert taken <= credit
        if self.delivery.missing is not None:
            self.loaded.add(max(first for first in self.batches if first <= self.delivery.missing))
        elif not self.delivery.more and taken < (1 if self.policy.at_most_once else credit):
            assert not [offset for offset in self.state if self.may_go(offset)]

    @precondition(lambda self: self.leases)
    @rule(verb=st.sampled_from(["ack", "ack", "requeue", "bury", "set_aside"]), data=st.data())
    def settle(self, verb, data):
        number = data.draw(st.sampled_from(sorted(self.leases)))
        consumer, left = self.leases[number]
        some = data.draw(st.sets(st.sampled_from(left), min_size=1))
        ranges = [(offset, offset + 1) for offset in sorted(some)]
        delivery = self.delivery
        if verb == "ack":
            delivery.ack(self.now, number, consumer, ranges)
            self.put(some, "settled")
            self.since_commit += some
        elif verb == "requeue":
            delivery.requeue(self.now, number, consumer, ranges, data.draw(st.sampled_from([0.0, 5.0])))
            for offset in some:
                tried = delivery.cursor.tries[offset]
                condemned = tried.attempts >= 3
                self.state[offset] = "condemned" if condemned else "delayed" if tried.due else "pending"
        elif verb == "bury":
            delivery.bury(self.now, number, consumer, ranges, "bad")
            self.put(some, "condemned")
        else:
            delivery.set_aside(self.now, number, consumer, ranges)
            self.put(some, "aside")
        self.keep(number, [offset for offset in left if offset not in some])

    def keep(self, number, left):
        consumer, _ = self.leases.pop(number)
        if left:
            self.leases[number] = consumer, left

    def those(self, state) -> list[int]:
        return [offset for offset, its in self.state.items() if its == state]

    @rule(stored=st.booleans())
    def end_the_other_commit(self, stored):
        ranges = [(offset, offset + 1) for offset in self.those("aside")]
        if stored:
            self.delivery.settle_aside(ranges)
        else:
            self.delivery.put_back(ranges)
        self.put(self.those("aside"), "settled" if stored else "pending")

    @rule()
    def bury(self):
        condemned = self.those("condemned")[:2]
        self.delivery.buried(condemned)
        self.put(condemned, "settled")

    @rule()
    def fail_the_commit(self):
        self.delivery.unsettle(sorted({(offset, offset + 1) for offset in self.since_commit}))
        for offset in self.since_commit:
            if not self.delivery.cursor.is_settled(offset) and self.state[offset] == "settled":
                self.state[offset] = "pending"
        self.since_commit = []

    @rule(consumer=st.integers(1, 3), counted=st.booleans())
    def leave(self, consumer, counted):
        self.delivery.release(self.now, consumer, counted=counted)
        for number in [number for number, (holder, _) in self.leases.items() if holder == consumer]:
            self.put(self.leases.pop(number)[1], "pending")
        self.put(self.delivery.condemned, "condemned")

    def wake(self):
        for offset in self.those("delayed"):
            if self.delivery.cursor.tries[offset].due <= self.now:
                self.state[offset] = "pending"

    @rule(seconds=st.sampled_from([1, 5, 31]))
    def pass_time(self, seconds):
        self.now += seconds * SECOND
        self.wake()
        self.delivery.advance(self.now)
        for number in [number for number in self.leases if number not in self.delivery.leases]:
            self.put(self.leases.pop(number)[1], "pending")
        self.put(self.delivery.condemned, "condemned")

    @rule()
    def evict(self):
        self.loaded.clear()

    @rule(ahead=st.integers(0, 2))
    def trim(self, ahead):
        first = min(len(self.messages), self.delivery.cursor.floor + ahead)
        self.delivery.trimmed(first)
        self.forget(first)

    def forget(self, first):
        self.put((offset for offset in list(self.state) if offset < first), "settled")
        self.since_commit = [offset for offset in self.since_commit if offset >= first]
        for number, (consumer, left) in list(self.leases.items()):
            left = [offset for offset in left if offset >= first]
            self.leases[number] = consumer, left
            if not left:
                del self.leases[number]

    @precondition(lambda self: self.messages)
    @rule(data=st.data())
    def withdraw(self, data):
        offset = data.draw(st.sampled_from(sorted(self.state)))
        if self.delivery.withdraw(offset):
            assert self.state[offset] == "pending"
            self.state[offset] = "settled"

    @rule(data=st.data())
    def seek(self, data):
        floor = data.draw(st.integers(0, len(self.messages)))
        self.delivery.seek(floor)
        self.leases, self.since_commit = {}, []
        for offset in self.state:
            self.state[offset] = "settled" if offset < floor else "pending"

    @rule(restart=st.booleans())
    def begin_again(self, restart):
        """Leases are gone; what is delayed or condemned stays so, and what is set aside if there is no
        restart."""
        if restart:
            slot, value = self.delivery.cursor.document()
            self.delivery.cursor._whole = True
            slot, value = self.delivery.cursor.document()
            assert slot == 0
            self.delivery = Delivery(
                Cursor.restore([(slot, value)]),
                len(self.messages),
                self.policy,
                filter=self.filter,
                group="g",
            )
            self.put(self.those("aside"), "pending")
            self.since_commit = []
        else:
            self.delivery.change(self.policy, self.filter)
        self.leases = {}
        self.put(self.those("leased"), "pending")
        for offset, tried in self.delivery.cursor.tries.items():
            if self.state[offset] == "pending" and tried.due:
                self.state[offset] = "delayed"
        self.put(self.delivery.condemned, "condemned")

    @invariant()
    def the_cursor_and_the_oracle_agree(self):
        for offset, state in self.state.items():
            assert self.delivery.cursor.is_settled(offset) == (state == "settled")

    @invariant()
    def no_key_is_with_two_consumers(self):
        held = [self.messages[o][0] for _, left in self.leases.values() for o in left if self.messages[o][0]]
        assert len(held) == len(set(held))


KeyOrderMachine.TestCase.settings = settings(max_examples=3 * settings().max_examples, stateful_step_count=30)
TestKeyOrder = KeyOrderMachine.TestCase


def log_of(keys: list[bytes]) -> tuple[Delivery, object]:
    batch = Batch.decode(build([b""] * len(keys), id=bytes(16), time=1, keys=keys))
    return Delivery(Cursor(0), len(keys), policy()), lambda offset: (0, batch)


def taken(delivery: Delivery, batch_at, credit: int = 100) -> list[tuple[int, int]]:
    """(lease, offset)"""
    return [
        (handout.lease, offset)
        for handout in delivery.take(0, 1, credit, batch_at)
        for first, end in handout.ranges
        for offset in range(first, end)
    ]


def test_different_keys_go_at_once_and_one_key_in_turn() -> None:
    delivery, batch_at = log_of([b"a", b"a", b"b", b"", b"", b"b"])
    assert [offset for _, offset in taken(delivery, batch_at)] == [0, 2, 3, 4]
    assert taken(delivery, batch_at) == []
    delivery.ack(0, 1, 1, [(2, 3)])
    assert [offset for _, offset in taken(delivery, batch_at)] == [5]


def test_what_waits_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyorder, "LOOK_AHEAD", 8)
    delivery, batch_at = log_of([b"hot"] * 50 + [b"other"])
    assert [offset for _, offset in taken(delivery, batch_at, 4)] == [0]
    pending = delivery._by_key
    assert pending is not None
    assert len(pending._waiting) <= 8 + BATCH_COUNTS
    seen = [0]
    while len(seen) < 51:
        (lease,) = delivery.leases
        delivery.ack(0, lease, 1, [(seen[-1], seen[-1] + 1)])
        found = [offset for _, offset in taken(delivery, batch_at, 1)]
        assert len(found) == 1
        seen += found
    assert seen == list(range(51))


def test_a_group_without_it_has_no_part_of_it() -> None:
    assert Delivery(Cursor(0), 0, Policy())._by_key is None


def test_it_is_for_first_in_first_out() -> None:
    assert group_spec({"topic": "t", "name": "g", "order": "key"}).policy().order == "key"
    with pytest.raises(BadRequest, match="order per key"):
        group_spec({"topic": "t", "name": "g", "order": "key", "discipline": "lifo"})
