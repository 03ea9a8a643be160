"""Delivery: one group's reading of one log. Who holds what, until when, and what happens if it isn't settled.

A message of the log is, for a group, in exactly one of these states:

    settled     in the cursor: acked, expired, filtered out, buried
    leased      with a consumer, in a Lease
    delayed     not due yet: a requeue with a delay, or a deliver_at in the future
    condemned   to be buried: the shell copies it to the dead-letter topic and settles it in one commit
    set aside   being settled by a commit that is on its way in another unit of the store
    pending     all the rest: in the discipline, which says what goes next

Leases are runs of offsets, not single messages, so that the plain path costs nothing per message. Each has a
number that is never used again, which fences it: a settle must name the lease, and a lease that has
expired or whose consumer is gone is no longer there to be named, so two consumers can never both settle a
message.

``ack_within`` is the longest that a consumer may make no progress. A lease that waits behind another one of
the same consumer is not late while the one before makes progress; one that is stuck while later ones go
through is.

When leases of a consumer end without a settle, only the first message of the oldest one, in delivery order,
is counted as tried: it is the one that the consumer was busy with. The others were merely prefetched, and
must not be buried for it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from landbridge.core.delivery.discipline import BatchAt, Discipline, discipline
from landbridge.core.delivery.keyorder import KeyOrder
from landbridge.core.log.batch import Batch, Column
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.ranges import Range, clip, count, cut, intersect, normalise, subtract
from landbridge.core.time import SECOND

#: For a batch, whether each message is for the group; None where every one is.
Filter: TypeAlias = Callable[[Batch], Sequence[bool] | None]

#: How many messages ``take`` looks at one by one (filters, delays) before it lets others have a turn; also
#: how many come due at once.
SCAN = 1 << 12
#: As how many of these a short run counts, or one that is taken without a look at its messages.
RUN_COUNTS = 16
#: Runs that leases give back at once, when their consumer is gone or late.
GIVE_BACK_AT_ONCE = 1 << 9
#: A lease in more runs than this times those that are settled is changed in its place.
MANY = 16


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """How a group delivers. Spans are seconds."""

    discipline: str = "fifo"
    #: "key": a key's next message is handed out when the one before is settled. See ``keyorder``.
    order: str = "any"
    ack_within: float = 30.0
    max_attempts: int = 10
    #: Delay of the first requeue that names none; doubles with each attempt up to backoff_most.
    backoff: float = 1.0
    backoff_most: float = 60.0
    #: Settle as soon as a message is handed out: it is delivered once or, if that goes wrong, never.
    at_most_once: bool = False

    def delay(self, attempts: int) -> float:
        return min(self.backoff_most, self.backoff * 2.0 ** min(attempts - 1, 62))


@dataclass(slots=True, eq=False)
class Lease:
    number: int
    holder: Holder
    #: The runs in delivery order, and whether each run goes from its last offset to its first.
    handed: list[Range]
    newest_first: bool
    #: When it was handed out, or last made progress.
    touched: int
    #: Share of its batch's size that is not settled yet.
    bytes: int
    #: Its batch's time.
    published: int
    #: Offsets not settled yet, sorted, and how many they are.
    remaining: list[Range] = field(init=False)
    size: int = field(init=False)

    def __post_init__(self) -> None:
        self.remaining = normalise(self.handed)
        self.size = count(self.remaining)

    def head(self) -> int:
        """The first unsettled offset in delivery order."""
        for first, end in self.handed:
            left = clip(self.remaining, first, end)
            if left:
                return left[-1][1] - 1 if self.newest_first else left[0][0]
        raise AssertionError("an empty lease")  # it is dropped when its last message is settled


@dataclass(slots=True, eq=False)
class Holder:
    """A consumer, as far as delivery knows it: its leases, oldest first, and what they add up to."""

    number: int
    leases: dict[int, Lease] = field(default_factory=dict)
    messages: int = 0
    bytes: int = 0


class Handout(msgspec.Struct, frozen=True):
    """A run of messages given to a consumer: what becomes one Deliver frame."""

    lease: int  #: 0 where the group settles on delivery
    ranges: list[Range]  #: the offsets, in the order of the batch's messages
    batch: Batch
    newest_first: bool  #: the consumer takes the messages from the last to the first
    attempts: dict[int, int]  #: offset → attempt, where it isn't the first


class Condemned(msgspec.Struct, frozen=True):
    attempts: int
    cause: str


class Delivery:
    def __init__(
        self,
        cursor: Cursor,
        end: int,
        policy: Policy,
        *,
        group: str = "",
        first_lease: int = 1,
        filter: Filter | None = None,
    ) -> None:
        self.group = group
        self.cursor = cursor
        self.policy = policy
        self.filter = filter
        #: The log's end as far as this group knows it.
        self.end = end
        self.leases: dict[int, Lease]
        self.condemned: dict[int, Condemned]
        #: What is set aside, sorted.
        self._aside: list[Range] = []
        #: Offsets found expired since the shell last asked (for the status log).
        self.expired = 0
        #: The offset whose batch ``take`` stopped at because it wasn't in memory.
        self.missing: int | None = None
        #: ``take`` stopped because it had looked at SCAN messages: there may be more to hand out.
        self.more = False
        #: Consumers that may hold a lease for as long as they are there: the forwarder waits out an outage.
        self.patient: set[int] = set()
        self._holders: dict[int, Holder]
        #: Nothing below is delivered again: where the last seek went, or the log begins, if later.
        self._lowest = 0
        self._next_lease = first_lease
        self._pending: Discipline
        #: The discipline again, where the group has order per key.
        self._by_key: KeyOrder | None
        #: (due, offset): delayed ones, earliest first.
        self._delayed: list[tuple[int, int]]
        self._deadline: int | None
        self._begin()

    def _begin(self) -> None:
        """Start from what the cursor says, without any lease."""
        self.leases, self._holders, self.condemned = {}, {}, {}
        self._by_key = KeyOrder() if self.policy.order == "key" else None
        self._pending = self._by_key or discipline(self.policy.discipline)
        for first, end in subtract(list(self.cursor.unsettled(self.end)), self._aside):
            self._pending.add(first, end)
        self._delayed = []
        for offset, tried in self.cursor.tries.items():
            if clip(self._aside, offset, offset + 1):
                continue
            if tried.attempts >= self.policy.max_attempts:
                # A crash came before its burial, or max_attempts was lowered while it waited.
                self._pending.remove(offset, offset + 1)
                self.condemned[offset] = Condemned(tried.attempts, "max_attempts")
            elif tried.due:
                self._pending.remove(offset, offset + 1)
                self._delayed.append((tried.due, offset))
        heapq.heapify(self._delayed)
        self._deadline = self._delayed[0][0] if self._delayed else None
        if self._by_key is not None:
            aside = (offset for first, end in self._aside for offset in range(first, end))
            self._by_key.hold([*self.condemned, *(offset for _, offset in self._delayed), *aside])

    def _settle(self, ranges: Sequence[Range]) -> None:
        self.cursor.settle(ranges)
        if self._by_key is not None:
            self._by_key.settled(ranges)

    # -- the log -----------------------------------------------------------------------------------

    def grow(self, end: int, runs: Sequence[Range] | None = None) -> None:
        """The log has new messages up to ``end``. ``runs``: where all those stand that the filter may let
        through, sorted; the others are settled without being looked at."""
        # A seek or a trim may have gone past the end that was known here.
        low = max(self.end, self.cursor.floor)
        self.end = end
        if runs is None:
            self._pending.add(low, end)
            return
        new = [(low, end)] if low < end else []
        for first, last in intersect(new, runs):
            self._pending.add(first, last)
        left_out = subtract(new, runs)
        if left_out:
            self._settle(left_out)

    def trimmed(self, first: int) -> None:
        """Retention removed everything below ``first``."""
        self._lowest = max(self._lowest, first)
        gone = [(low, min(high, first)) for low, high in self.cursor.unsettled(first)]
        for low, high in gone:
            self._pending.remove(low, high)
        if gone:
            for offset in [offset for offset in self.condemned if offset < first]:
                del self.condemned[offset]
            self._delayed = [item for item in self._delayed if item[1] >= first]
            heapq.heapify(self._delayed)
            for lease in list(self.leases.values()):
                if below := clip(lease.remaining, 0, first):
                    self._shrink(lease, below)
            self._aside = subtract(self._aside, gone)
            self._settle(gone)

    def seek(self, floor: int) -> None:
        """Start again at ``floor``: earlier is settled, later is not. Leases are lost, and nothing is set
        aside any more."""
        self._lowest = floor
        self._aside = []
        self.cursor.seek(floor)
        self._begin()

    def replay(self, first: int, end: int) -> int:
        """Hand out again what is settled of these offsets, as if for the first time. What is not settled goes
        on as it is. Returns how many messages they are. Below the log's end alone: the group has not sought
        past it."""
        # The acks of what is handed out again may fail as well.
        self._lowest = min(self._lowest, first)
        wanted = [(first, min(end, self.end))]
        aside = [*self.cursor.unsettled(self.end), *self._aside]
        again = subtract(normalise(wanted), normalise(aside))
        self.cursor.unsettle(again)
        for begin, stop in again:
            self._pending.add(begin, stop)
        return count(again)

    def change(self, policy: Policy, filter: Filter | None) -> None:
        """Deliver differently from now on. Leases are lost, uncounted: what was handed out by the old rules
        is handed out again by the new ones."""
        self.policy = policy
        self.filter = filter
        self._begin()

    # -- handing out -------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """How many messages could be handed out now."""
        return self._pending.size

    @property
    def is_idle(self) -> bool:
        """Would ``take`` find nothing, whatever the time is?"""
        return not self._pending.size and not self._delayed

    @property
    def leased(self) -> int:
        """How many messages consumers hold."""
        return sum(holder.messages for holder in self._holders.values())

    def take(self, now: int, consumer: int, credit: int, batch_at: BatchAt) -> list[Handout]:
        """Hand at most ``credit`` messages to a consumer. Stops early, with ``missing`` set, at a batch that
        isn't in memory."""
        self._wake(now)
        self.missing = None
        self.more = False
        looked = 0
        handouts: list[Handout] = []
        runs: list[Range] = []  # of one batch, in delivery order
        current: tuple[int, Batch] | None = None
        pending = self._pending
        while credit > 0:
            if looked >= SCAN:
                self.more = True
                break
            run = pending.next_run(credit, batch_at)
            if run is None:
                self.missing, self.more = pending.missing, pending.more
                break
            first, end = run
            probe = end - 1 if pending.newest_first else first
            if current is None or not current[0] <= probe < current[0] + len(current[1]):
                found = batch_at(probe)
                if found is None:
                    self.missing = probe
                    break
                if current is not None:
                    self._hand_out(now, consumer, current, runs, handouts)
                current, runs = found, []
            first = max(first, current[0])
            end = min(end, current[0] + len(current[1]))
            if self._is_choosy(current[1]):
                if pending.newest_first:
                    first = max(first, end - SCAN)
                else:
                    end = min(end, first + SCAN)
                looked += max(RUN_COUNTS, end - first)
            else:
                looked += RUN_COUNTS
            pending.remove(first, end)
            wanted = self._select(now, current, first, end)
            runs += wanted[::-1] if pending.newest_first else wanted
            credit -= count(wanted)
        if current is not None:
            self._hand_out(now, consumer, current, runs, handouts)
        return handouts

    def _is_choosy(self, batch: Batch) -> bool:
        """Has each message of the batch to be looked at?"""
        return self.filter is not None or batch.has(Column.DELIVER_AT) or batch.has(Column.EXPIRES_AT)

    def _select(self, now: int, found: tuple[int, Batch], first: int, end: int) -> list[Range]:
        """Of these offsets, those to deliver now; the others are delayed or settled."""
        batch_first, batch = found
        if batch.audience is not None and self.group not in batch.audience:
            self._settle([(first, end)])
            return []
        if not self._is_choosy(batch):
            return [(first, end)]
        filter = self.filter
        part = batch.slice(first - batch_first, end - batch_first)
        deliver_at, expires_at = part.deliver_at(), part.expires_at()
        matches = filter(part) if filter is not None else None
        if matches is None and deliver_at is None and expires_at is None:
            return [(first, end)]
        if matches is not None and not any(matches):
            self._settle([(first, end)])
            return []
        chosen: list[Range] = []
        dropped: list[Range] = []
        for index in range(len(part)):
            offset = first + index
            if matches is not None and not matches[index]:
                dropped.append((offset, offset + 1))
            elif expires_at is not None and 0 < expires_at[index] <= now:
                dropped.append((offset, offset + 1))
                self.expired += 1
            elif deliver_at is not None and deliver_at[index] > now:
                self._delay(deliver_at[index], offset)
                if self._by_key is not None:
                    self._by_key.postponed(offset)
            else:
                chosen.append((offset, offset + 1))
        if dropped:
            self._settle(normalise(dropped))
        return normalise(chosen)

    def _hand_out(
        self, now: int, consumer: int, found: tuple[int, Batch], runs: list[Range], handouts: list[Handout]
    ) -> None:
        if not runs:
            return
        batch_first, batch = found
        newest_first = self._pending.newest_first
        if len(runs) == 1:
            part = batch.slice(runs[0][0] - batch_first, runs[0][1] - batch_first)
            size = batch.size * len(part) // len(batch)
        else:
            if newest_first:
                runs = runs[::-1]
            part = batch.gather([offset - batch_first for first, end in runs for offset in range(first, end)])
            size = part.size
        attempts = self._attempts(runs)
        number = 0
        if self.policy.at_most_once:
            self._settle(normalise(runs))
        else:
            number = self._next_lease
            self._next_lease += 1
            holder = self._holders.setdefault(consumer, Holder(consumer))
            handed = runs[::-1] if newest_first else runs
            lease = Lease(number, holder, handed, newest_first, now, size, batch.time)
            self.leases[number] = holder.leases[number] = lease
            holder.messages += lease.size
            holder.bytes += size
            deadline = now + int(self.policy.ack_within * SECOND)
            if consumer not in self.patient and (self._deadline is None or deadline < self._deadline):
                self._deadline = deadline
        handouts.append(Handout(number, runs, part, newest_first, attempts))

    def _attempts(self, runs: list[Range]) -> dict[int, int]:
        tries = self.cursor.tries
        if not tries:
            return {}
        offsets: Iterable[int]
        if count(runs) < len(tries):
            offsets = (offset for first, end in runs for offset in range(first, end) if offset in tries)
        else:
            sorted_runs = normalise(runs)
            offsets = (o for o in tries if clip(sorted_runs, o, o + 1))
        return {offset: tries[offset].attempts + 1 for offset in offsets}

    # -- settling ----------------------------------------------------------------------------------

    def _held(self, lease: int, consumer: int, ranges: Iterable[Range]) -> tuple[Lease | None, list[Range]]:
        found = self.leases.get(lease)
        if found is None or found.holder.number != consumer:
            return None, []
        wanted = normalise(ranges)
        if len(wanted) * MANY < len(found.remaining):
            return found, [part for first, end in wanted for part in clip(found.remaining, first, end)]
        return found, intersect(found.remaining, wanted)

    def _take_back(self, now: int, lease: int, consumer: int, ranges: Iterable[Range]) -> list[Range]:
        """Take from a lease what the consumer settles. Returns what it held of it."""
        found, held = self._held(lease, consumer, ranges)
        if found is not None and held:
            found.touched = now
            self._shrink(found, held)
        return held

    def _shrink(self, lease: Lease, ranges: Sequence[Range]) -> None:
        """Take from a lease some of what it holds."""
        left = lease.size - count(ranges)
        if not left:
            self._drop(lease)
            return
        if len(ranges) * MANY < len(lease.remaining):
            for first, end in ranges:
                cut(lease.remaining, first, end)
        else:
            lease.remaining = subtract(lease.remaining, ranges)
        freed = lease.bytes * (lease.size - left) // lease.size
        lease.holder.messages -= lease.size - left
        lease.holder.bytes -= freed
        lease.bytes -= freed
        lease.size = left

    def _drop(self, lease: Lease) -> None:
        holder = lease.holder
        del self.leases[lease.number]
        del holder.leases[lease.number]
        holder.messages -= lease.size
        holder.bytes -= lease.bytes
        if not holder.leases:
            del self._holders[holder.number]
            return
        # Progress on this lease was progress for those behind it; the first of them carries it on. Mostly
        # this was the oldest, so the search is short.
        if next(reversed(holder.leases)) > lease.number:
            for later in holder.leases.values():
                if later.number > lease.number:
                    later.touched = max(later.touched, lease.touched)
                    break

    def ack(self, now: int, lease: int, consumer: int, ranges: Iterable[Range]) -> list[Range]:
        """Settle. Returns what was accepted; what the consumer doesn't hold (any more) is not in it."""
        held = self._take_back(now, lease, consumer, ranges)
        if held:
            self._settle(held)
        return held

    def set_aside(self, now: int, lease: int, consumer: int, ranges: Iterable[Range]) -> list[Range]:
        """Take messages from a lease, to be settled when a commit of another unit is on disk: until then
        nobody gets them. Returns what the consumer held of them."""
        held = self._take_back(now, lease, consumer, ranges)
        self._aside = normalise([*self._aside, *held])
        return held

    def keep_aside(self, ranges: Sequence[Range]) -> list[Range]:
        """At the start, before anything is handed out: these were set aside before, and nobody gets them
        until it is known what becomes of them. Returns those that aren't settled."""
        held = intersect(list(self.cursor.unsettled(self.end)), normalise(ranges))
        self._aside = normalise([*self._aside, *held])
        self._begin()
        return held

    def settle_aside(self, ranges: Sequence[Range]) -> list[Range]:
        """The commit is on disk. Returns what was settled: not what a seek has made pending meanwhile."""
        settled = intersect(self._aside, ranges)
        self._aside = subtract(self._aside, settled)
        self._settle(settled)
        return settled

    def put_back(self, ranges: Sequence[Range]) -> None:
        """The commit failed: what was set aside for it is pending again."""
        for first, end in intersect(self._aside, ranges):
            self._pending.add(first, end)
        self._aside = subtract(self._aside, ranges)

    def published(self, lease: int) -> int:
        """When what was handed out with a lease was published; 0 where there is no such lease."""
        found = self.leases.get(lease)
        return 0 if found is None else found.published

    def held(self, lease: int, consumer: int, ranges: Iterable[Range]) -> list[Range]:
        """Which of these are still this consumer's to settle?"""
        return self._held(lease, consumer, ranges)[1]

    def holds(self, lease: int, consumer: int, ranges: Iterable[Range]) -> bool:
        """Are all of these still this consumer's to settle?"""
        wanted = normalise(ranges)
        return self._held(lease, consumer, wanted)[1] == wanted

    def unsettle(self, ranges: Sequence[Range]) -> None:
        """The commit of an ack failed: as if it had never come, and the lease were over."""
        for first, end in self._undo(ranges):
            self._pending.add(first, end)

    def _undo(self, ranges: Iterable[Range]) -> list[Range]:
        """Take a settle back, as far as that still makes sense: in the meantime the group may have sought
        forward or the log been trimmed; then it stays settled. Or it has sought back; then it isn't settled
        any more, and perhaps leased again."""
        low = self._lowest
        undone = normalise((max(first, low), end) for first, end in ranges)
        undone = subtract(undone, list(self.cursor.unsettled(self.end)))
        self.cursor.unsettle(undone)
        return undone

    def requeue(
        self,
        now: int,
        lease: int,
        consumer: int,
        ranges: Iterable[Range],
        after: float | None,
        cause: str = "",
    ) -> list[Range]:
        """Give messages back to be tried again after a delay, by default the policy's backoff."""
        held = self._take_back(now, lease, consumer, ranges)
        for first, end in held:
            for offset in range(first, end):
                self._try_again(now, offset, after, cause or "max_attempts")
        return held

    def _try_again(self, now: int, offset: int, after: float | None, cause: str) -> None:
        before = self.cursor.tries.get(offset)
        attempts = (before.attempts if before else 0) + 1
        if attempts >= self.policy.max_attempts:
            self.cursor.tried(offset, attempts, 0)
            self.condemned[offset] = Condemned(attempts, cause)
            return
        delay = self.policy.delay(attempts) if after is None else after
        if delay <= 0:
            self.cursor.tried(offset, attempts, 0)
            self._pending.add(offset, offset + 1)
        else:
            due = now + int(delay * SECOND)
            self.cursor.tried(offset, attempts, due)
            self._delay(due, offset)

    def bury(self, now: int, lease: int, consumer: int, ranges: Iterable[Range], cause: str) -> list[Range]:
        """Give messages up."""
        held = self._take_back(now, lease, consumer, ranges)
        for first, end in held:
            for offset in range(first, end):
                before = self.cursor.tries.get(offset)
                attempts = (before.attempts if before else 0) + 1
                # Stored as tried too often, so that a restart before its burial buries it all the same.
                self.cursor.tried(offset, max(attempts, self.policy.max_attempts), 0)
                self.condemned[offset] = Condemned(attempts, cause)
        return held

    def buried(self, offsets: Iterable[int]) -> list[Range]:
        """The shell has these in the dead-letter topic, or is about to in the same commit."""
        ranges = normalise((offset, offset + 1) for offset in offsets if offset in self.condemned)
        for first, end in ranges:
            for offset in range(first, end):
                del self.condemned[offset]
        self._settle(ranges)
        return ranges

    def unbury(self, condemned: Mapping[int, Condemned]) -> None:
        """The commit of a burial failed: they are still to be buried."""
        for first, end in self._undo((offset, offset + 1) for offset in condemned):
            for offset in range(first, end):
                self.condemned[offset] = condemned[offset]
                self.cursor.tried(offset, max(condemned[offset].attempts, self.policy.max_attempts), 0)

    def is_unseen(self, offset: int) -> bool:
        """Is it neither settled nor in a consumer's hands, now or before?"""
        if offset in self.cursor.tries or offset >= self.end or self.cursor.is_settled(offset):
            return False
        held = [self._aside, *(lease.remaining for lease in self.leases.values())]
        return not any(clip(runs, offset, offset + 1) for runs in held)

    def withdraw(self, offset: int) -> bool:
        """Settle a message that no consumer has seen; False if one has, or it is settled."""
        if not self.is_unseen(offset):
            return False
        self._pending.remove(offset, offset + 1)
        self._delayed = [item for item in self._delayed if item[1] != offset]
        heapq.heapify(self._delayed)
        self._settle([(offset, offset + 1)])
        return True

    def extend(self, now: int, lease: int, consumer: int) -> bool:
        """The consumer is still at it."""
        found = self.leases.get(lease)
        if found is None or found.holder.number != consumer:
            return False
        found.touched = now
        return True

    # -- giving back -------------------------------------------------------------------------------

    def release(self, now: int, consumer: int, *, counted: bool) -> int:
        """A consumer is gone. ``counted``: it vanished, so the message it was busy with counts as tried;
        otherwise it left in good order. Returns how many messages went back: not all where there are many,
        and the consumer still holds the others (``held_by``)."""
        returned = 0
        holder = self._holders.get(consumer)
        for index, lease in enumerate(_some(holder.leases.values()) if holder else ()):
            returned += self._give_back(now, lease, counted=counted and index == 0, cause="consumer_lost")
        return returned

    def _give_back(self, now: int, lease: Lease, *, counted: bool, cause: str) -> int:
        head = lease.head() if counted else None
        self._drop(lease)
        for first, end in lease.remaining:
            self._pending.add(first, end)
        if head is not None:
            self._pending.remove(head, head + 1)
            self._try_again(now, head, 0.0, cause)
        return count(lease.remaining)

    # -- time --------------------------------------------------------------------------------------

    def _delay(self, due: int, offset: int) -> None:
        heapq.heappush(self._delayed, (due, offset))
        if self._deadline is None or due < self._deadline:
            self._deadline = due

    def _wake(self, now: int) -> None:
        for _ in range(SCAN):
            if not self._delayed or self._delayed[0][0] > now:
                return
            _, offset = heapq.heappop(self._delayed)
            self._pending.add(offset, offset + 1)

    def next_deadline(self) -> int | None:
        """When ``advance`` has something to do, at the earliest."""
        return self._deadline

    def advance(self, now: int) -> int:
        """Let time pass: wake what is due, end leases that are late. Returns how many messages went back
        from late leases. Where there are many, some are left for later, and ``next_deadline`` is now."""
        self._wake(now)
        within = int(self.policy.ack_within * SECOND)
        returned = 0
        deadlines: list[int] = []
        for holder in list(self._holders.values()):
            if holder.number in self.patient:
                continue
            touched = 0
            for index, lease in enumerate(_some(holder.leases.values())):
                # Progress on an earlier lease counts for the later ones, which wait behind it. If the first
                # is stuck, so are they, but it is the first whose message the consumer is busy with.
                touched = max(touched, lease.touched)
                if touched + within <= now:
                    returned += self._give_back(now, lease, counted=index == 0, cause="ack_within")
                else:
                    deadlines.append(touched + within)
                    break
            else:
                if holder.leases:  # as many as are given back at once
                    deadlines.append(now)
                    break
        if self._delayed:  # looked at last: a late one may have been given back with a delay
            deadlines.append(self._delayed[0][0])
        self._deadline = min(deadlines, default=None)
        return returned

    def shift(self, delta: int) -> None:
        """The clock was set by ``delta`` microseconds: leases are spans and keep their length."""
        for lease in self.leases.values():
            lease.touched += delta
        if delta < 0 and self._deadline is not None:  # early does no harm: advance finds the right one
            self._deadline += delta

    def held_by(self, consumer: int) -> tuple[int, int]:
        """(messages, bytes) that a consumer has and hasn't settled."""
        holder = self._holders.get(consumer)
        return (holder.messages, holder.bytes) if holder else (0, 0)


def _some(leases: Iterable[Lease]) -> list[Lease]:
    """The first of these leases, as many as are given back at once."""
    found: list[Lease] = []
    room = GIVE_BACK_AT_ONCE
    for lease in leases:
        if room <= 0:
            break
        found.append(lease)
        room -= len(lease.remaining)
    return found
