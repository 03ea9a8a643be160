import itertools

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from landbridge.core.delivery.delivery import SCAN, Delivery, Policy
from landbridge.core.delivery.filters import Match, filter_of
from landbridge.core.log.batch import Batch, build
from landbridge.core.log.cursor import Cursor, Try
from landbridge.core.log.ranges import normalise
from landbridge.core.time import SECOND

CONSUMER = st.sampled_from([1, 1, 1, 2, 3])
MESSAGE = st.tuples(
    st.sampled_from([0, 0, 5, 9]),  # priority
    st.sampled_from([0, 0, 0, 0, 5, 30, 1000]),  # deliver after so many seconds
    st.sampled_from([0, 0, 0, 0, 5, 30]),  # expires after
    st.sampled_from([b"ours", b"ours", b"theirs"]),  # key
)
#: What is rare goes into one rule, so that the others have their turns.
MEDDLING = ["evict", "trim", "seek", "restart", "restart", "change", "replay", "set_clock", "leave", "leave"]
PLAIN = (0, 0, 0, b"ours")
POLICY = st.builds(
    Policy,
    discipline=st.sampled_from(["fifo", "lifo", "priority"]),
    max_attempts=st.integers(1, 3),
    at_most_once=st.sampled_from([False] * 7 + [True]),
)


def offsets_of(ranges) -> list[int]:
    return [offset for first, end in ranges for offset in range(first, end)]


def singles(offsets) -> list[tuple[int, int]]:
    return [(offset, offset + 1) for offset in offsets]


class DeliveryMachine(RuleBasedStateMachine):
    """Against a dict: offset → the one state that it is in."""

    @initialize(policy=POLICY, filtered=st.booleans(), sizes=st.lists(st.integers(1, 3), max_size=4))
    def begin(self, policy, filtered, sizes):
        self.now = 1000 * SECOND
        self.filter = filter_of(Match(key="ours")) if filtered else None
        self.messages: list[tuple] = []  # (priority, deliver_at, expires_at, key, is for our group)
        self.batches: dict[int, Batch] = {}
        self.loaded: set[int] = set()  # firsts of the batches in memory
        self.trimmed_to = self.skipped_to = self.lowest = 0
        self.state: dict[int, str] = {}
        self.due: dict[int, int] = {}  # of the delayed
        self.tries: dict[int, Try] = {}
        self.sorted: set[int] = set()  # whose priority was looked at since they are pending
        self.leases: dict[int, tuple[int, list[int]]] = {}  # number → consumer, what is left, in order
        self.touched: dict[int, tuple[int, int]] = {}  # number → consumer, time; of past ones too
        self.expired = 0
        self.acked: list[int] = []  # since the last good commit
        self.lease_numbers = itertools.count(1)
        self.disk: dict[int, bytes] = {}
        self.policy = policy
        self.delivery = Delivery(Cursor(0), 0, policy, filter=self.filter, group="g")
        self.commit(outcome="done")
        for size in sizes:
            self.publish([PLAIN] * size, None)

    # -- the oracle --------------------------------------------------------------------------------

    def move(self, offset, state, due=0):
        self.state[offset] = state
        self.sorted.discard(offset)
        self.due.pop(offset, None)
        if state == "settled":
            self.tries.pop(offset, None)
        elif state == "delayed":
            self.due[offset] = due

    def those(self, state) -> list[int]:
        return [offset for offset, its in sorted(self.state.items()) if its == state]

    def wake(self):
        for offset in [offset for offset, due in self.due.items() if due <= self.now]:
            self.move(offset, "pending")

    def first_of(self, offset) -> int:
        return max(first for first in self.batches if first <= offset)

    def batch_at(self, offset):
        first = self.first_of(offset)
        assert offset < first + len(self.batches[first])
        return (first, self.batches[first]) if first in self.loaded else None

    def next_offset(self) -> tuple[int | None, int | None]:
        """(what is delivered next, what is missing)"""
        pending = self.those("pending")
        if self.policy.discipline == "priority":
            for offset in pending:
                if offset not in self.sorted and self.first_of(offset) not in self.loaded:
                    return None, offset
                self.sorted.add(offset)
            pending.sort(key=lambda offset: (-self.messages[offset][0], offset))
        if not pending:
            return None, None
        offset = pending[-1 if self.policy.discipline == "lifo" else 0]
        return (offset, None) if self.first_of(offset) in self.loaded else (None, offset)

    def wanted(self, credit) -> tuple[list[int], int | None]:
        """What a take must give, in order, and what it finds missing."""
        self.wake()
        taken: list[int] = []
        missing = None
        while len(taken) < credit:
            offset, missing = self.next_offset()
            if offset is None:
                break
            _, deliver_at, expires_at, key, ours = self.messages[offset]
            if not ours or (self.filter is not None and key != b"ours"):
                self.move(offset, "settled")
            elif 0 < expires_at <= self.now:
                self.move(offset, "settled")
                self.expired += 1
            elif deliver_at > self.now:
                self.move(offset, "delayed", deliver_at)
            else:
                self.move(offset, "leased")
                taken.append(offset)
        return taken, missing

    def try_again(self, offset, after):
        attempts = self.tries[offset].attempts + 1 if offset in self.tries else 1
        delay = min(60.0, 2.0 ** (attempts - 1)) if after is None else after
        due = self.now + int(delay * SECOND) if delay and attempts < self.policy.max_attempts else 0
        self.tries[offset] = Try(attempts, due)
        if attempts >= self.policy.max_attempts:
            self.move(offset, "condemned")
        else:
            self.move(offset, "delayed" if due else "pending", due)

    def end_lease(self, number, *, counted) -> int:
        _, left = self.leases.pop(number)
        for offset in left:
            self.move(offset, "pending")
        if counted:
            self.try_again(left[0], 0)
        return len(left)

    def late_at(self, number) -> int:
        """A lease waits behind the earlier ones of its consumer: their progress is its own."""
        consumer = self.leases[number][0]
        progress = [at for n, (who, at) in self.touched.items() if who == consumer and n <= number]
        return max(progress) + 30 * SECOND

    def leases_of(self, consumer) -> list[int]:
        return [number for number, (holder, _) in sorted(self.leases.items()) if holder == consumer]

    # -- the log -----------------------------------------------------------------------------------

    @rule(
        messages=st.lists(st.just(PLAIN) | MESSAGE, min_size=1, max_size=5),
        audience=st.sampled_from([None, None, None, frozenset("g"), frozenset("h")]),
    )
    def publish(self, messages, audience):
        first = len(self.messages)
        for priority, deliver_after, expires_after, key in messages:
            deliver_at = deliver_after and self.now + deliver_after * SECOND
            expires_at = expires_after and self.now + expires_after * SECOND
            ours = audience in (None, frozenset("g"))
            self.messages.append((priority, deliver_at, expires_at, key, ours))
        priorities, deliver_at, expires_at, keys, _ = zip(*self.messages[first:], strict=True)
        batch = Batch.decode(
            build(
                [b"%d" % offset for offset in range(first, len(self.messages))],
                id=bytes(16),
                time=self.now,
                keys=keys,
                priorities=priorities,
                deliver_at=deliver_at,
                expires_at=expires_at,
            )
        )
        batch.audience = audience
        self.batches[first] = batch
        self.loaded.add(first)
        for offset in range(first, len(self.messages)):
            self.move(offset, "pending" if offset >= self.skipped_to else "settled")
        self.delivery.grow(len(self.messages))

    @rule(happening=st.sampled_from(MEDDLING), data=st.data())
    def meddle(self, happening, data):
        getattr(self, happening)(data.draw)

    def evict(self, draw):
        self.loaded.clear()

    def trim(self, draw):
        self.trimmed_to = draw(st.integers(self.trimmed_to, min(self.trimmed_to + 3, len(self.messages))))
        self.forget_trimmed()

    def forget_trimmed(self):
        gone = range(self.trimmed_to)
        for offset in gone:
            self.move(offset, "settled")
        for number, (consumer, left) in list(self.leases.items()):
            self.leases[number] = consumer, [offset for offset in left if offset not in gone]
        self.leases = {number: lease for number, lease in self.leases.items() if lease[1]}
        self.delivery.trimmed(self.trimmed_to)

    def seek(self, draw):
        self.skipped_to = draw(st.integers(self.trimmed_to, len(self.messages) + 2))
        self.delivery.seek(self.skipped_to)
        self.leases = {}
        self.lowest = self.skipped_to
        for offset in self.state:
            self.tries.pop(offset, None)
            self.move(offset, "settled" if offset < self.skipped_to else "pending")

    def replay(self, draw):
        if self.skipped_to > len(self.messages):
            return
        first = draw(st.integers(self.trimmed_to, len(self.messages)))
        end = draw(st.integers(first, len(self.messages) + 1))
        again = [offset for offset in self.those("settled") if first <= offset < end]
        for offset in again:
            self.move(offset, "pending")
        assert self.delivery.replay(first, end) == len(again)
        self.lowest, self.skipped_to = min(self.lowest, first), 0

    # -- handing out and settling ------------------------------------------------------------------

    @rule(consumer=CONSUMER, credit=st.integers(1, 6))
    def take(self, consumer, credit):
        wanted, missing = self.wanted(credit)
        handouts = self.delivery.take(self.now, consumer, credit, self.batch_at)
        given: list[int] = []
        for handout in handouts:
            offsets = offsets_of(handout.ranges)
            assert handout.batch.payloads() == [b"%d" % offset for offset in offsets]
            assert len({self.first_of(offset) for offset in offsets}) == 1
            assert handout.attempts == {o: self.tries[o].attempts + 1 for o in offsets if o in self.tries}
            if handout.newest_first:
                offsets.reverse()
            given += offsets
            if self.policy.at_most_once:
                assert handout.lease == 0
                self.acked += offsets
                for offset in offsets:
                    self.move(offset, "settled")
            else:
                assert handout.lease == next(self.lease_numbers)
                self.leases[handout.lease] = consumer, offsets
                self.touched[handout.lease] = consumer, self.now
        assert given == wanted
        assert self.delivery.missing == missing
        assert not self.delivery.more
        if missing is not None:
            self.loaded.add(self.first_of(missing))

    @precondition(lambda self: self.touched)
    @rule(
        verb=st.sampled_from(["ack", "ack", "requeue", "requeue", "bury", "extend", "set_aside"]),
        after=st.sampled_from([None, 0.0, 5.0]),
        right=st.sampled_from([True, True, True, False]),
        data=st.data(),
    )
    def settle(self, verb, after, right, data):
        number = data.draw(st.sampled_from(sorted(self.leases if self.leases and right else self.touched)))
        holder, left = self.leases.get(number, (1, []))
        consumer = holder if right else data.draw(CONSUMER)
        any_offsets = st.sets(st.integers(0, len(self.messages)))
        asked = data.draw(st.integers(0, len(left)).map(lambda size: left[:size]) | any_offsets)
        held = sorted(set(asked) & set(left)) if consumer == holder else []
        ranges = singles(asked)
        if verb == "ack":
            accepted = self.delivery.ack(self.now, number, consumer, ranges)
        elif verb == "requeue":
            accepted = self.delivery.requeue(self.now, number, consumer, ranges, after)
        elif verb == "bury":
            accepted = self.delivery.bury(self.now, number, consumer, ranges, "bad")
        elif verb == "set_aside":
            accepted = self.delivery.set_aside(self.now, number, consumer, ranges)
        else:
            held = left if consumer == holder else []
            assert self.delivery.extend(self.now, number, consumer) == bool(held)
        if held:
            self.touched[number] = consumer, self.now
        if verb == "extend":
            return
        assert offsets_of(accepted) == held
        if held:
            self.leases[number] = consumer, [offset for offset in left if offset not in held]
            if not self.leases[number][1]:
                del self.leases[number]
        for offset in held:
            if verb == "ack":
                self.acked.append(offset)
                self.move(offset, "settled")
            elif verb == "requeue":
                self.try_again(offset, after)
            elif verb == "set_aside":
                self.move(offset, "aside")
            else:
                tried = self.tries[offset].attempts if offset in self.tries else 0
                self.tries[offset] = Try(max(tried + 1, self.policy.max_attempts), 0)
                self.move(offset, "condemned")

    @precondition(lambda self: "aside" in self.state.values())
    @rule(stored=st.booleans(), data=st.data())
    def end_commit_of_another_unit(self, stored, data):
        asked = data.draw(st.sets(st.integers(0, len(self.messages)), min_size=1))
        aside = sorted(set(self.those("aside")) & asked)
        ranges = normalise(singles(asked))
        if stored:
            assert offsets_of(self.delivery.settle_aside(ranges)) == aside
        else:
            self.delivery.put_back(ranges)
        for offset in aside:
            self.move(offset, "settled" if stored else "pending")

    def leave(self, draw):
        consumer, counted = draw(CONSUMER), draw(st.booleans())
        returned = 0
        for index, number in enumerate(self.leases_of(consumer)):
            returned += self.end_lease(number, counted=counted and index == 0)
        assert self.delivery.release(self.now, consumer, counted=counted) == returned

    @precondition(lambda self: "condemned" in self.state.values())
    @rule(data=st.data())
    def bury(self, data):
        asked = data.draw(st.sets(st.integers(0, len(self.messages))))
        condemned = sorted(set(self.those("condemned")) & asked)
        assert offsets_of(self.delivery.buried(asked)) == condemned
        for offset in condemned:
            self.move(offset, "settled")

    # -- time --------------------------------------------------------------------------------------

    @rule(seconds=st.sampled_from([5, 25, 30]), in_time=st.booleans())
    def pass_time(self, seconds, in_time):
        self.now += seconds * SECOND
        if in_time:  # else the timer comes late
            self.advance()

    @precondition(lambda self: self.delivery.next_deadline() is not None)
    @rule()
    def pass_time_to_the_deadline(self):
        self.now = max(self.now, self.delivery.next_deadline() or 0)
        self.advance()

    def advance(self):
        self.wake()
        returned = 0
        for consumer in (1, 2, 3):
            late = [number for number in self.leases_of(consumer) if self.late_at(number) <= self.now]
            for index, number in enumerate(late):
                returned += self.end_lease(number, counted=index == 0)
        assert self.delivery.advance(self.now) == returned
        deadline = self.delivery.next_deadline()
        assert deadline is None or deadline > self.now

    def set_clock(self, draw):
        seconds = draw(st.sampled_from([-100, -20, 20, 100]))
        self.now += seconds * SECOND
        self.delivery.shift(seconds * SECOND)
        self.touched = {n: (consumer, at + seconds * SECOND) for n, (consumer, at) in self.touched.items()}

    # -- storing -----------------------------------------------------------------------------------

    @rule(outcome=st.sampled_from(["done", "done", "failed", "unknown"]))
    def commit(self, outcome):
        slot, value = self.delivery.cursor.document()
        if outcome != "failed":
            self.disk[slot] = value
            self.stored = set(self.those("settled")), self.tries.copy(), self.skipped_to
        if outcome != "done":
            self.delivery.cursor.rewrite()
            self.delivery.unsettle(normalise(singles(self.acked)))
            for offset in self.acked:
                if self.state[offset] == "settled" and offset >= max(self.lowest, self.trimmed_to):
                    self.move(offset, "pending")
        self.acked = []

    def rebuild(self, policy, settled, aside):
        """All that is left are the settled ones, those set aside, and the tries."""
        self.policy = policy
        self.leases = {}
        for offset in self.state:
            tried = self.tries.get(offset, Try(0, 0))
            if offset in settled:
                self.move(offset, "settled")
            elif offset in aside:
                self.move(offset, "aside")
            elif tried.attempts >= policy.max_attempts:
                self.move(offset, "condemned")
            else:
                self.move(offset, "delayed" if tried.due else "pending", tried.due)

    def change(self, draw):
        self.filter = filter_of(Match(key="ours")) if draw(st.booleans()) else None
        self.rebuild(draw(POLICY), set(self.those("settled")), self.those("aside"))
        self.delivery.change(self.policy, self.filter)

    def restart(self, draw):
        """With other options perhaps. Leases are lost; what was not stored never was."""
        policy = draw(st.just(self.policy) | POLICY)
        if draw(st.booleans()):
            self.commit(outcome="done")
        settled, self.tries, self.skipped_to = self.stored[0], self.stored[1].copy(), self.stored[2]
        self.acked, self.touched, self.expired, self.lowest = [], {}, 0, 0
        self.rebuild(policy, settled | set(range(self.skipped_to)), [])
        first_lease = next(self.lease_numbers)
        self.lease_numbers = itertools.count(first_lease)
        self.delivery = Delivery(
            Cursor.restore(self.disk.items()), len(self.messages), policy,
            first_lease=first_lease, filter=self.filter, group="g",
        )  # fmt: skip
        self.forget_trimmed()
        # What was reserved for a transaction that is not at its end.
        reserved = draw(st.just(set()) | st.sets(st.integers(0, len(self.messages))))
        aside = [offset for offset, state in self.state.items() if state != "settled" and offset in reserved]
        assert offsets_of(self.delivery.keep_aside(singles(reserved))) == sorted(aside)
        for offset in aside:
            self.move(offset, "aside")

    # -- what always holds -------------------------------------------------------------------------

    @invariant()
    def every_offset_is_in_exactly_one_state(self):
        delivery = self.delivery
        end = len(self.messages)
        unsettled = offsets_of(delivery.cursor.unsettled(end))
        assert unsettled == [offset for offset, state in sorted(self.state.items()) if state != "settled"]
        leased = [offset for lease in delivery.leases.values() for offset in offsets_of(lease.remaining)]
        assert sorted(leased) == self.those("leased")
        assert sorted(delivery.condemned) == self.those("condemned")
        assert delivery.pending == len(self.those("pending"))
        elsewhere = len(unsettled) - len(leased) - len(delivery.condemned) - delivery.pending
        assert elsewhere == len(self.those("delayed")) + len(self.those("aside"))
        assert delivery.cursor.tries == self.tries
        assert delivery.expired == self.expired

    @invariant()
    def leases_are_as_handed_out(self):
        assert {n: (lease.holder.number, lease.head()) for n, lease in self.delivery.leases.items()} == {
            n: (consumer, left[0]) for n, (consumer, left) in self.leases.items()
        }
        for consumer in (1, 2, 3):
            numbers = self.leases_of(consumer)
            assert self.delivery.held_by(consumer) == (
                sum(len(self.leases[number][1]) for number in numbers),
                sum(self.delivery.leases[number].bytes for number in numbers),
            )

    @invariant()
    def nothing_waits_past_the_deadline(self):
        moments = [*self.due.values(), *map(self.late_at, self.leases)]
        if moments:
            deadline = self.delivery.next_deadline()
            assert deadline is not None
            assert deadline <= min(moments)

    def teardown(self):
        """Consumers that settle what they get, and a clock that goes on, bring everything to its end."""
        if not hasattr(self, "stored"):
            return
        self.delivery.settle_aside(normalise(singles(self.those("aside"))))
        for offset in self.those("aside"):
            self.move(offset, "settled")
        for _ in range(20 + 4 * len(self.messages)):
            self.loaded = set(self.batches)
            self.take(1, len(self.messages) + 1)
            for number, (consumer, left) in list(self.leases.items()):
                acked = self.delivery.ack(self.now, number, consumer, singles(left))
                assert offsets_of(acked) == sorted(left)
                del self.leases[number]
                for offset in left:
                    self.move(offset, "settled")
            self.delivery.buried(self.those("condemned"))
            for offset in self.those("condemned"):
                self.move(offset, "settled")
            if self.delivery.next_deadline() is None:
                break
            self.pass_time_to_the_deadline()
        self.every_offset_is_in_exactly_one_state()
        assert set(self.state.values()) <= {"settled"}


TestDelivery = DeliveryMachine.TestCase
TestDelivery.settings = settings(max_examples=6 * settings().max_examples, stateful_step_count=40)


# -- the rules one by one --------------------------------------------------------------------------

NOW = 1000 * SECOND


class Log:
    """Plain batches, all in memory."""

    def __init__(self, *sizes, **columns):
        self.batches = []
        self.end = 0
        for size in sizes:
            data = build([b"x" * 10] * size, id=bytes(16), time=0, **columns)
            self.batches.append((self.end, Batch.decode(data)))
            self.end += size

    def __call__(self, offset):
        return next(item for item in self.batches if item[0] <= offset < item[0] + len(item[1]))

    def delivery(self, **policy) -> Delivery:
        return Delivery(Cursor(0), self.end, Policy(**policy))


def given(handouts) -> list[int]:
    """The offsets, in the order in which the consumer gets them."""
    return [offset for h in handouts for offset in offsets_of(h.ranges)[:: -1 if h.newest_first else 1]]


def test_expired_lease_returns_message_to_head():
    log = Log(3)
    delivery = log.delivery()
    (first,) = delivery.take(NOW, 1, 1, log)
    assert given([first]) == [0]
    assert delivery.advance(NOW + 30 * SECOND) == 1
    (again,) = delivery.take(NOW + 30 * SECOND, 2, 3, log)
    assert given([again]) == [0, 1, 2]
    assert again.attempts == {0: 2}


def test_late_ack_of_a_lost_lease_is_refused():
    log = Log(1)
    delivery = log.delivery()
    (lost,) = delivery.take(NOW, 1, 1, log)
    delivery.advance(NOW + 30 * SECOND)
    (held,) = delivery.take(NOW + 30 * SECOND, 1, 1, log)
    assert delivery.ack(NOW + 31 * SECOND, lost.lease, 1, [(0, 1)]) == []
    assert delivery.ack(NOW + 31 * SECOND, held.lease, 2, [(0, 1)]) == []
    assert delivery.ack(NOW + 31 * SECOND, held.lease, 1, [(0, 1)]) == [(0, 1)]
    assert delivery.ack(NOW + 31 * SECOND, held.lease, 1, [(0, 1)]) == []


def test_far_delay_does_not_hide_the_deadline_of_a_lease():
    log = Log(2)
    delivery = log.delivery()
    (lease,) = delivery.take(NOW, 1, 1, log)
    delivery.requeue(NOW, lease.lease, 1, [(0, 1)], 3600.0)
    delivery.advance(NOW + 30 * SECOND)  # what the timer of the first lease was set for
    delivery.take(NOW + 30 * SECOND, 1, 1, log)
    assert delivery.next_deadline() == NOW + 60 * SECOND


def test_clock_set_back_does_not_lengthen_a_lease():
    log = Log(1)
    delivery = log.delivery()
    delivery.take(NOW, 1, 1, log)
    delivery.shift(-500 * SECOND)
    assert delivery.next_deadline() == NOW - 470 * SECOND
    assert delivery.advance(NOW - 470 * SECOND - 1) == 0
    assert delivery.advance(NOW - 470 * SECOND) == 1


def test_lease_that_waited_behind_a_finished_one_has_its_full_time():
    log = Log(1, 1)
    delivery = log.delivery()
    first, second = delivery.take(NOW, 1, 2, log)
    delivery.ack(NOW + 29 * SECOND, first.lease, 1, [(0, 1)])
    assert delivery.advance(NOW + 30 * SECOND) == 0
    assert delivery.next_deadline() == NOW + 59 * SECOND
    assert delivery.ack(NOW + 58 * SECOND, second.lease, 1, [(1, 2)]) == [(1, 2)]


def test_lease_is_not_late_while_the_one_before_makes_progress():
    log = Log(2, 1)
    delivery = log.delivery()
    first, second = delivery.take(NOW, 1, 3, log)
    delivery.ack(NOW + 25 * SECOND, first.lease, 1, [(0, 1)])
    assert delivery.advance(NOW + 54 * SECOND) == 0
    assert list(delivery.leases) == [first.lease, second.lease]
    assert delivery.advance(NOW + 55 * SECOND) == 2


def test_stuck_lease_is_late_though_later_ones_make_progress():
    log = Log(1, 2)
    delivery = log.delivery()
    _, second = delivery.take(NOW, 1, 3, log)
    delivery.ack(NOW + 20 * SECOND, second.lease, 1, [(1, 2)])
    assert delivery.advance(NOW + 30 * SECOND) == 1
    assert list(delivery.leases) == [second.lease]
    assert delivery.next_deadline() == NOW + 50 * SECOND


@pytest.mark.parametrize("lose", ["advance", "release"])
def test_prefetched_messages_are_not_buried_with_the_one_that_kills_the_consumer(lose):
    log = Log(2, 1, 1)
    delivery = log.delivery(max_attempts=2)
    now = NOW
    for _ in range(2):
        assert given(delivery.take(now, 1, 4, log)) == [0, 1, 2, 3]
        now += 30 * SECOND
        if lose == "advance":
            assert delivery.advance(now) == 4
        else:
            assert delivery.release(now, 1, counted=True) == 4
    assert {offset: why.attempts for offset, why in delivery.condemned.items()} == {0: 2}
    assert delivery.cursor.tries.keys() == {0}


def test_consumer_that_leaves_in_good_order_costs_no_attempt():
    log = Log(2)
    delivery = log.delivery(max_attempts=1)
    delivery.take(NOW, 1, 2, log)
    assert delivery.release(NOW, 1, counted=False) == 2
    assert delivery.cursor.tries == {}
    assert delivery.pending == 2


def test_lifo_with_gaps_goes_from_the_newest_to_the_oldest():
    log = Log(6, keys=[b"a", b"b", b"a", b"b", b"b", b"a"])
    delivery = Delivery(Cursor(0), 6, Policy(discipline="lifo"), filter=filter_of(Match(key="a")))
    assert given(delivery.take(NOW, 1, 6, log)) == [5, 2, 0]
    assert next(iter(delivery.leases.values())).head() == 5


def test_attempts_and_delays_survive_a_restart():
    log = Log(3)
    delivery = log.delivery(max_attempts=2)
    (lease,) = delivery.take(NOW, 1, 3, log)
    delivery.requeue(NOW, lease.lease, 1, [(0, 1)], 60.0)
    delivery.requeue(NOW, lease.lease, 1, [(1, 2)], 0.0)
    again = Delivery(Cursor.restore([delivery.cursor.document()]), 3, Policy(max_attempts=2))
    assert again.next_deadline() == NOW + 60 * SECOND
    (handout,) = again.take(NOW, 1, 3, log)
    assert (given([handout]), handout.attempts) == ([1, 2], {1: 2})
    again.requeue(NOW, handout.lease, 1, [(1, 2)], None)
    assert again.condemned.keys() == {1}
    last = Delivery(Cursor.restore([again.cursor.document()]), 3, Policy(max_attempts=2))
    assert last.condemned.keys() == {1}


def test_trimmed_messages_are_neither_buried_nor_woken_nor_held():
    log = Log(5)
    delivery = log.delivery()
    (lease,) = delivery.take(NOW, 1, 5, log)
    delivery.bury(NOW, lease.lease, 1, [(0, 1), (4, 5)], "bad")
    delivery.requeue(NOW, lease.lease, 1, [(1, 2)], 1.0)
    delivery.trimmed(3)
    assert delivery.condemned.keys() == {4}
    assert delivery.buried([0, 4]) == [(4, 5)]
    assert delivery.held_by(1)[0] == 1
    assert delivery.ack(NOW, lease.lease, 1, [(2, 4)]) == [(3, 4)]
    assert delivery.take(NOW + SECOND, 1, 5, log) == []
    assert delivery.cursor.floor == 5


def test_lowered_max_attempts_condemns_what_waits_and_does_not_wake_it():
    log = Log(1)
    delivery = log.delivery(max_attempts=5)
    (lease,) = delivery.take(NOW, 1, 1, log)
    delivery.requeue(NOW, lease.lease, 1, [(0, 1)], 60.0)
    again = Delivery(Cursor.restore([delivery.cursor.document()]), 1, Policy(max_attempts=1))
    assert again.condemned.keys() == {0}
    again.advance(NOW + 60 * SECOND)
    assert again.take(NOW + 60 * SECOND, 1, 1, log) == []


def test_messages_below_a_seek_past_the_end_are_not_delivered_when_they_come():
    log = Log(5)
    delivery = Delivery(Cursor(0), 0, Policy())
    delivery.seek(3)
    delivery.grow(5)
    assert given(delivery.take(NOW, 1, 5, log)) == [3, 4]


@pytest.mark.parametrize(
    ("meanwhile", "pending"),
    [
        (lambda delivery: None, 4),
        (lambda delivery: delivery.seek(4), 0),
        (lambda delivery: delivery.trimmed(3), 1),
        (lambda delivery: delivery.seek(0), 4),
    ],
    ids=["nothing", "seek forward", "trim", "seek back"],
)
def test_failed_ack_gives_back_only_what_is_still_there_to_give(meanwhile, pending):
    log = Log(4)
    delivery = log.delivery()
    (lease,) = delivery.take(NOW, 1, 4, log)
    acked = delivery.ack(NOW, lease.lease, 1, [(0, 4)])
    meanwhile(delivery)
    delivery.unsettle(acked)
    assert (delivery.pending, delivery.cursor.lag(4)) == (pending, pending)


def test_failed_ack_does_not_hand_out_twice_what_was_sought_back_to():
    log = Log(1)
    delivery = log.delivery()
    (lease,) = delivery.take(NOW, 1, 1, log)
    acked = delivery.ack(NOW, lease.lease, 1, [(0, 1)])
    delivery.seek(0)
    assert given(delivery.take(NOW, 2, 1, log)) == [0]
    delivery.unsettle(acked)
    assert delivery.take(NOW, 3, 1, log) == []


def test_backoff_doubles_up_to_its_most():
    policy = Policy(backoff=1.0, backoff_most=5.0)
    assert [policy.delay(attempts) for attempts in (1, 2, 3, 4, 1000)] == [1.0, 2.0, 4.0, 5.0, 5.0]


def test_take_lets_others_have_a_turn_after_many_messages_that_it_does_not_hand_out():
    log = Log(SCAN, SCAN, 1, keys=None)
    delivery = Delivery(Cursor(0), log.end, Policy(), filter=lambda batch: [len(batch) == 1] * len(batch))
    rounds = 0
    while not (handouts := delivery.take(NOW, 1, SCAN, log)):
        assert delivery.more
        rounds += 1
    assert 1 <= rounds <= 2
    assert not delivery.more
    assert given(handouts) == [2 * SCAN]
    assert delivery.cursor.floor == 2 * SCAN


def test_scan_ends_also_when_credit_is_small():
    log = Log(SCAN + 10)
    delivery = Delivery(Cursor(0), log.end, Policy(), filter=lambda batch: [False] * len(batch))
    assert delivery.take(NOW, 1, 3, log) == []
    assert delivery.more
    while delivery.more:
        assert delivery.take(NOW, 1, 3, log) == []
    assert delivery.pending == 0


def test_bytes_that_a_consumer_holds_are_what_it_keeps_in_memory():
    log = Log(4, keys=[b"a", b"b", b"a", b"b"])
    whole = log.batches[0][1].size
    plain, filtered = log.delivery(), Delivery(Cursor(0), 4, Policy(), filter=filter_of(Match(key="a")))
    plain.take(NOW, 1, 2, log)
    assert plain.held_by(1) == (2, whole // 2)
    (handout,) = filtered.take(NOW, 1, 4, log)
    assert filtered.held_by(1) == (2, handout.batch.size)
    filtered.ack(NOW, handout.lease, 1, [(0, 4)])
    assert filtered.held_by(1) == (0, 0)


def test_holds_tells_whether_all_is_still_the_consumers():
    log = Log(4)
    delivery = log.delivery()
    (handout,) = delivery.take(NOW, 1, 3, log)
    assert delivery.holds(handout.lease, 1, [(2, 3), (0, 2)])
    assert not delivery.holds(handout.lease, 1, [(0, 4)])
    assert not delivery.holds(handout.lease, 2, [(0, 1)])
    delivery.ack(NOW, handout.lease, 1, [(1, 2)])
    assert not delivery.holds(handout.lease, 1, [(0, 3)])
    assert delivery.holds(handout.lease, 1, [(0, 1), (2, 3)])
