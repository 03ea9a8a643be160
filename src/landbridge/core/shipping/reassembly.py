"""Reassembly: the shipments for this terminal that are not in their topics' logs yet, in one table. It
decides what is stored when, and what the hops and the sources are told.

    held        in memory; the hops that brought it keep it too, and wait for an answer
    shelving    in a commit that puts it on the shelf; its hops wait
    shelved     on the shelf as it came, sealed; its hops were told that it is kept
    ready       opened, for the next commit of its source; its hops wait, unless it is on the shelf as well
    storing     in the commit of its source that is under way; likewise

A shipment that is in its log is not in the table any more. What is in memory is what is on disk (ADR 2): a
source's inbound changes when a commit was made, and shipments are judged and counted in on a copy of it, the
draft, while their commit is formed. A source has one commit under way at a time, so a commit that fails
leaves nothing to undo but the draft.

The table does no I/O. Its methods return what is to be done, as a list of the effects below.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from typing import TypeAlias

import msgspec

from landbridge.core.log.batch import Batch, Origin
from landbridge.core.log.ranges import Range, count, intersect
from landbridge.core.shipping.inbound import Inbound, Position, ShipmentSource, Verdict
from landbridge.core.shipping.parcel import Manifest, Missing, Parcel, Piece, Stream
from landbridge.core.time import SECOND
from landbridge.core.trust.seal import Header

#: Seconds that a shipment is held in memory before it goes to the shelf, and bytes of all that are held.
HELD_FOR = 0.5
MOST_HELD = 32 << 20
#: Seconds after a failure until the store is asked again.
RETRY_AFTER = 1.0
#: Seconds after which a shipment on the shelf that waits for an earlier one counts as given up by its source,
#: which would have sent it again each minute.
UNHEARD_FOR = 300.0
#: Seconds that a gap may last before its source is asked to fill it, and between two such questions.
MISSING_AFTER = 1.0
#: Shipments that are asked for at once.
MOST_MISSING = 256

#: Tells a hop what became of its parcel: None = kept here; an error's code = the hop has to keep it.
Fate: TypeAlias = Callable[[str | None], None]


class ArrivalState(Enum):
    HELD = "held"
    SHELVING = "shelving"
    SHELVED = "shelved"
    READY = "ready"
    STORING = "storing"


class Arrival:
    """A shipment that has come and is not in its topic's log yet."""

    def __init__(
        self, now: int, parcel: Parcel, header: Header, manifest: Manifest, data: memoryview
    ) -> None:
        self.parcel, self.header, self.manifest = parcel, header, manifest
        self.source = ShipmentSource(parcel.source, header.topic, manifest.incarnation)
        #: Epoch and sequence number: its place in the order of its source.
        self.key = (header.epoch, header.sequence)
        self.state = ArrivalState.HELD
        #: The sealed bytes; empty while only the shelf has them.
        self.data = data
        #: Its place on the shelf; None where it isn't there.
        self.place: int | None = None
        #: The hops that wait for an answer.
        self.hops: list[Fate] = []
        #: What is in it, while it is ready or being stored.
        self.pieces: list[tuple[Piece, Batch]] = []
        #: When it came, microseconds. Once it is on the shelf: when it last came, for its source sends it
        #: again until it has arrived.
        self.heard_at = now

    def judge(self, position: Position) -> Verdict:
        return position.judge(*self.key, self.manifest.oldest)


class GiveBack(msgspec.Struct):
    """A source gives messages of a group to another terminal, in a new epoch."""

    group: str
    epoch: int
    #: The number of the log that the places are of.
    log: int
    #: Offset at the source → offset here, of all messages that are here.
    places: dict[int, int]
    #: Those of them that no consumer here had seen when the commit was formed: settled and forgotten by it.
    taken: dict[int, int] = {}


class ArrivalTotals(msgspec.Struct):
    """Since the start. ``arrived`` counts messages, the others shipments and tickets."""

    arrived: int = 0
    repeated: int = 0
    shelved: int = 0
    refused: int = 0
    redeemed: int = 0
    renewed: int = 0


# -- effects -------------------------------------------------------------------------------------------


class Effect(msgspec.Struct, frozen=True):
    """Something that is to be done."""


class LoadInbound(Effect, frozen=True):
    """Read the source's inbound from the ledger, then call ``load``, or ``fail_load``."""

    source: ShipmentSource


class OpenSeal(Effect, frozen=True):
    """Open the shipment, from memory or from the shelf, then call ``open``, ``postpone`` or ``drop``."""

    arrival: Arrival


class PutOnShelf(Effect, frozen=True):
    """Then call ``shelve``, or ``fail_shelve``."""

    arrival: Arrival


class TakeFromShelf(Effect, frozen=True):
    place: int


class FormCommit(Effect, frozen=True):
    """Queue a commit for the source. When it is formed, call ``begin``, then ``take`` and ``count_in`` as
    long as there is room; when it was made ``commit``, or ``fail``."""

    source: ShipmentSource


class TellHops(Effect, frozen=True):
    hops: list[Fate]
    code: str | None


class ConfirmArrival(Effect, frozen=True):
    """Tell the source that the shipment is in its topic's log, on disk."""

    arrival: Arrival


class AskForMissing(Effect, frozen=True):
    terminal: str
    message: Missing


class TellEpochOver(Effect, frozen=True):
    """Tell the source that a later epoch has begun, in case it doesn't know."""

    arrival: Arrival
    latest: int


class NoteLoss(Effect, frozen=True):
    """Tell people that a source has lost messages which are here."""

    source: ShipmentSource
    first: int


class EndGiveBack(Effect, frozen=True):
    """The commit that was to take the messages back was made, or not."""

    source: ShipmentSource
    back: GiveBack
    is_stored: bool


class _Flow:
    """The shipments of one source."""

    def __init__(self, source: ShipmentSource) -> None:
        self.source = source
        #: What is stored, as it is on disk; None until it was read.
        self.inbound: Inbound | None = None
        self.is_loading = False
        #: The inbound with the commit under way counted in; None while there is none.
        self.draft: Inbound | None = None
        #: A commit was asked for and has neither been made nor failed.
        self.is_committing = False
        #: By epoch and sequence number.
        self.arrivals: dict[tuple[int, int], Arrival] = {}
        #: Of these, the ones that are ready and those being stored, each in the order of the source.
        self.ready: deque[Arrival] = deque()
        self.storing: list[Arrival] = []
        #: Where the source will be when all of these are stored.
        self.tip = Position()
        #: The shipment whose seal is being opened.
        self.opening: Arrival | None = None
        #: Orders to give back that wait for a commit, and those in the one under way.
        self.backs: list[GiveBack] = []
        self.giving: list[GiveBack] = []
        #: Offsets from which on the source has lost its log, as the commit under way has found.
        self.losses: list[int] = []
        #: After a failure: the store is not asked again before, microseconds.
        self.retry_at = 0
        #: The sequence number that is missing, and since when, or when it was last asked for.
        self.gap = (0, 0)

    def following(self) -> Arrival | None:
        """The shipment that comes after those that are ready. Mostly the one with the next number; else one
        of a later epoch, or one whose source says that everything before it has arrived."""
        if len(self.arrivals) == len(self.ready) + len(self.storing):
            return None
        found = self.arrivals.get(self.tip)
        if found is None:
            keys = [key for key, each in self.arrivals.items() if each.judge(self.tip) is Verdict.NEXT]
            found = self.arrivals[min(keys)] if keys else None
        return found


class Reassembly:
    def __init__(self) -> None:
        self.totals = ArrivalTotals()
        self._flows: dict[ShipmentSource, _Flow] = {}
        #: Bytes of the shipments that are held.
        self._held_bytes = 0
        #: When the shelf was last swept, microseconds.
        self._swept_at = 0

    def _flow(self, source: ShipmentSource) -> _Flow:
        if source not in self._flows:
            self._flows[source] = _Flow(source)
        return self._flows[source]

    def inbound(self, source: ShipmentSource) -> Inbound | None:
        """What has arrived of a source, as it is on disk; None until it was loaded."""
        return self._flow(source).inbound

    @property
    def on_shelf(self) -> int:
        """Shipments on the shelf."""
        return sum(each.place is not None for flow in self._flows.values() for each in flow.arrivals.values())

    # -- coming ------------------------------------------------------------------------------------

    def restore(self, arrival: Arrival, place: int) -> list[Effect]:
        """Enter a shipment that was on the shelf when the terminal started."""
        flow = self._flow(arrival.source)
        if arrival.key in flow.arrivals:
            return [TakeFromShelf(place)]
        flow.arrivals[arrival.key] = arrival
        arrival.state, arrival.place, arrival.data = ArrivalState.SHELVED, place, memoryview(b"")
        return self._look(0, flow)

    def arrive(self, now: int, arrival: Arrival, hop: Fate) -> list[Effect]:
        """A hop has brought a shipment."""
        flow = self._flow(arrival.source)
        twin = flow.arrivals.get(arrival.key)
        if twin is not None:
            self.totals.repeated += 1
            effects: list[Effect] = []
            if twin.place is None:
                # Another hop has brought it, and each has to keep its own until this one is on disk.
                twin.hops.append(hop)
            else:
                twin.heard_at = now
                effects.append(TellHops([hop], None))
            if arrival.manifest.oldest > twin.manifest.oldest:
                # What it waited for has arrived, in a run of this terminal that was lost.
                twin.manifest = msgspec.structs.replace(twin.manifest, oldest=arrival.manifest.oldest)
                effects += self._look_at(now, flow, twin)
            return effects
        arrival.hops.append(hop)
        if flow.inbound is not None and (done := self._end_old(flow.inbound, arrival)):
            return done
        flow.arrivals[arrival.key] = arrival
        self._held_bytes += len(arrival.data)
        effects = self._look_at(now, flow, arrival)
        return effects if flow.opening is arrival else effects + self._keep_in_bounds(arrival)

    def _end_old(self, inbound: Inbound, arrival: Arrival) -> list[Effect]:
        """End a shipment whose messages are here already or come again in a later epoch; nothing
        otherwise."""
        verdict = arrival.judge(inbound.position)
        if verdict is Verdict.REPEATED:
            self.totals.repeated += 1
            return [*self._end(arrival, None), ConfirmArrival(arrival)]
        if verdict is Verdict.STALE:
            return [*self._end(arrival, None), TellEpochOver(arrival, inbound.position.epoch)]
        return []

    def _end(self, arrival: Arrival, code: str | None) -> list[Effect]:
        """Forget a shipment. Its hops hear ``code``; None: they needn't keep it."""
        flow = self._flow(arrival.source)
        if flow.arrivals.get(arrival.key) is arrival:
            del flow.arrivals[arrival.key]
            if arrival.state is ArrivalState.HELD:
                self._held_bytes -= len(arrival.data)
        if flow.opening is arrival:
            flow.opening = None
        effects: list[Effect] = []
        if arrival.hops:
            effects.append(TellHops(arrival.hops, code))
        if arrival.place is not None:
            effects.append(TakeFromShelf(arrival.place))
        return effects

    def drop(self, now: int, arrival: Arrival) -> list[Effect]:
        """The shipment can't be opened or stored. No hop has to keep it: if it is its source's, the source
        sends it again."""
        flow = self._flow(arrival.source)
        if flow.arrivals.get(arrival.key) is not arrival:
            return []
        if arrival in flow.storing:
            flow.storing.remove(arrival)
            while flow.ready:  # they come after it, so they have to wait until it comes again
                self._set_apart(flow.ready.popleft())
            flow.tip = (flow.draft or flow.inbound or Inbound()).position
        # Where a commit is being formed, what comes next is looked for when it was made.
        return self._end(arrival, None) + ([] if flow.draft is not None else self._look(now, flow))

    def _set_apart(self, arrival: Arrival) -> None:
        """A shipment that was ready or being stored is only held again, or on the shelf."""
        arrival.pieces = []
        if arrival.place is not None:
            arrival.state = ArrivalState.SHELVED
        else:
            arrival.state = ArrivalState.HELD
            self._held_bytes += len(arrival.data)

    # -- what comes next ---------------------------------------------------------------------------

    def fail_load(self, now: int, source: ShipmentSource) -> None:
        flow = self._flow(source)
        flow.is_loading, flow.retry_at = False, now + int(RETRY_AFTER * SECOND)

    def load(self, now: int, source: ShipmentSource, inbound: Inbound) -> list[Effect]:
        """The source's inbound was read. Whoever reads it first counts: a commit may have been made since."""
        flow = self._flow(source)
        flow.is_loading = False
        if flow.inbound is not None:
            return []
        flow.inbound, flow.tip = inbound, inbound.position
        effects = self._end_all_old(flow, inbound)
        if flow.backs:
            effects += self._ask_for_commit(flow)
        return effects + self._look(now, flow)

    def _end_all_old(self, flow: _Flow, inbound: Inbound) -> list[Effect]:
        apart = [each for each in flow.arrivals.values() if each.state is not ArrivalState.READY]
        return [effect for each in apart for effect in self._end_old(inbound, each)]

    def look(self, now: int, terminal: str) -> list[Effect]:
        """A key for shipments of a terminal has come."""
        flows = [flow for flow in self._flows.values() if flow.source.terminal == terminal and flow.arrivals]
        return [effect for flow in flows for effect in self._look(now, flow)]

    def _look_at(self, now: int, flow: _Flow, arrival: Arrival) -> list[Effect]:
        """This shipment can be opened now. Is it the one that comes next?"""
        if flow.inbound is None or arrival.judge(flow.tip) is Verdict.NEXT:
            return self._look(now, flow)
        return []

    def _look(self, now: int, flow: _Flow) -> list[Effect]:
        """Have the shipment opened that comes next, if it is here."""
        if flow.inbound is None:
            if flow.is_loading or now < flow.retry_at:
                return []
            flow.is_loading = True
            return [LoadInbound(flow.source)]
        if flow.opening is not None:
            return []
        found = flow.following()
        if found is None or found.state is ArrivalState.SHELVING:
            return []
        if found.place is not None and now < flow.retry_at:
            return []
        flow.opening = found
        return [OpenSeal(found)]

    def postpone(self, arrival: Arrival) -> list[Effect]:
        """The shipment has no key yet; ``look`` tells that one has come."""
        self._flow(arrival.source).opening = None
        return self._keep_in_bounds(arrival)

    def open(self, now: int, arrival: Arrival, pieces: list[tuple[Piece, Batch]]) -> list[Effect]:
        """The shipment was opened, and this is in it."""
        flow = self._flow(arrival.source)
        if flow.opening is arrival:
            flow.opening = None
        is_here = flow.arrivals.get(arrival.key) is arrival
        # While it was read from the shelf, a commit before it may have failed, or its state may have changed.
        can_follow = is_here and arrival.state in (ArrivalState.HELD, ArrivalState.SHELVED)
        if not can_follow or arrival.judge(flow.tip) is not Verdict.NEXT:
            return self._look(now, flow)
        if arrival.state is ArrivalState.HELD:
            self._held_bytes -= len(arrival.data)
        arrival.state, arrival.pieces = ArrivalState.READY, pieces
        flow.ready.append(arrival)
        flow.tip = Position(arrival.key[0], arrival.key[1] + 1)
        return [*self._ask_for_commit(flow), *self._look(now, flow)]

    # -- the shelf ---------------------------------------------------------------------------------

    def _keep_in_bounds(self, arrival: Arrival) -> list[Effect]:
        if arrival.state is ArrivalState.HELD and self._held_bytes > MOST_HELD:
            return self._put_on_shelf(arrival)
        return []

    def _put_on_shelf(self, arrival: Arrival) -> list[Effect]:
        self._held_bytes -= len(arrival.data)
        arrival.state = ArrivalState.SHELVING
        return [PutOnShelf(arrival)]

    def shelve(self, now: int, arrival: Arrival, place: int) -> list[Effect]:
        """The shipment is on the shelf."""
        flow = self._flow(arrival.source)
        if flow.arrivals.get(arrival.key) is not arrival:
            return [TakeFromShelf(place)]  # it was dropped meanwhile, and its hops were told
        self.totals.shelved += 1
        arrival.state, arrival.place, arrival.data = ArrivalState.SHELVED, place, memoryview(b"")
        hops, arrival.hops = arrival.hops, []
        return [TellHops(hops, None), *self._look_at(now, flow, arrival)]

    def fail_shelve(self, now: int, arrival: Arrival, code: str) -> list[Effect]:
        """There is no room for it: its hops keep it. Whatever had to wait for it need not any more."""
        flow = self._flow(arrival.source)
        if flow.arrivals.get(arrival.key) is not arrival:
            return []
        return [*self._end(arrival, code), *self._look(now, flow)]

    # -- the commit --------------------------------------------------------------------------------

    def _ask_for_commit(self, flow: _Flow) -> list[Effect]:
        if flow.is_committing or flow.inbound is None:
            return []
        flow.is_committing = True
        return [FormCommit(flow.source)]

    def give_back(self, source: ShipmentSource, back: GiveBack) -> list[Effect]:
        flow = self._flow(source)
        flow.backs.append(back)
        return self._ask_for_commit(flow)

    def begin(self, source: ShipmentSource) -> tuple[Inbound, list[GiveBack]]:
        """The source's commit is being formed. Returns the draft to be written with it, and what is to be
        given back first."""
        flow = self._flow(source)
        assert flow.inbound is not None, "a commit is asked for when the inbound is known"
        flow.draft = flow.inbound.copy()
        flow.giving, flow.backs, flow.losses = flow.backs, [], []
        return flow.draft, flow.giving

    def take(self, source: ShipmentSource) -> Arrival | None:
        """The shipment that comes next in the commit that is being formed; None where there is none."""
        flow = self._flow(source)
        if not flow.ready or flow.draft is None:
            return None
        arrival = flow.ready.popleft()
        # Each one was opened when it followed the one before it, and whatever breaks the row empties it.
        assert arrival.judge(flow.draft.position) is Verdict.NEXT
        arrival.state = ArrivalState.STORING
        flow.storing.append(arrival)
        return arrival

    def count_in(self, now: int, arrival: Arrival, run: int) -> list[Batch]:
        """Count the shipment in the draft. Returns the batches to be appended to the topic's log: what the
        groups have not got yet, mostly all of it for all of them. ``run``: of this terminal."""
        draft, manifest = self._flow(arrival.source).draft, arrival.manifest
        assert draft is not None, "shipments are counted in while a commit is formed"
        everyone = frozenset(manifest.groups)
        lost = draft.begin_run(arrival.key[0], manifest.run, manifest.history)
        if lost is not None:
            self._flow(arrival.source).losses.append(lost)
        # A source that has not compared may not know that this terminal has lost something.
        is_believed = manifest.run == 0 or manifest.compared == run
        floors = manifest.groups if is_believed else dict.fromkeys(manifest.groups, 0)
        batches: list[Batch] = []
        for piece, batch in arrival.pieces:
            wanted = {group: tuple(draft.fresh(group, piece.runs)) for group in everyone}
            for runs in dict.fromkeys(wanted.values()):
                if not runs:
                    continue
                groups = frozenset(group for group in everyone if wanted[group] == runs)
                part, offsets = batch, list(piece.runs)
                if groups != everyone or count(runs) < len(batch):
                    part, offsets = _select(piece, batch, runs)
                part.audience = groups
                terminal, _, incarnation = arrival.source
                part.origin = Origin(
                    terminal, incarnation, offsets, arrival.parcel.visited, now, arrival.key[0]
                )
                batches.append(part)
        draft.apply(*arrival.key, floors, [run for piece in manifest.pieces for run in piece.runs])
        return batches

    def commit(self, now: int, source: ShipmentSource) -> list[Effect]:
        """The source's commit is on disk."""
        flow = self._flow(source)
        effects: list[Effect] = [EndGiveBack(source, back, True) for back in flow.giving]
        effects += [NoteLoss(source, first) for first in flow.losses]
        stored, flow.storing, flow.giving, flow.is_committing = flow.storing, [], [], False
        for arrival in stored:
            effects += [*self._end(arrival, None), ConfirmArrival(arrival)]
        if flow.inbound is not None and flow.draft is not None:
            before, after = flow.inbound.position, flow.draft.position
            flow.inbound, flow.draft = flow.draft, None
            if after != (before.epoch, before.next + len(stored)):  # a new epoch, or numbers were left out
                effects += self._end_all_old(flow, flow.inbound)
        if flow.ready or flow.backs:
            effects += self._ask_for_commit(flow)
        return effects + self._look(now, flow)

    def fail(self, now: int, source: ShipmentSource, code: str) -> list[Effect]:
        """The source's commit was not made: as if the shipments in it and those behind them had not come."""
        flow = self._flow(source)
        backs = [*flow.giving, *flow.backs]
        effects: list[Effect] = [EndGiveBack(source, back, False) for back in backs]
        for arrival in [*flow.storing, *flow.ready]:
            if arrival.place is None:
                effects += self._end(arrival, code)
            else:
                self._set_apart(arrival)
        flow.ready.clear()
        flow.storing, flow.giving, flow.backs, flow.draft, flow.is_committing = [], [], [], None, False
        flow.tip = (flow.inbound or Inbound()).position
        flow.retry_at = now + int(RETRY_AFTER * SECOND)
        return effects + self._look(now, flow)

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now: int) -> list[Effect]:
        effects: list[Effect] = []
        is_sweep = not 0 <= now - self._swept_at < UNHEARD_FOR * SECOND / 10
        if is_sweep:
            self._swept_at = now
        for flow in self._flows.values():
            if not flow.arrivals:
                continue
            for arrival in list(flow.arrivals.values()):
                waited = now - arrival.heard_at
                if arrival.state is ArrivalState.HELD and waited > HELD_FOR * SECOND:
                    # It goes to the shelf, so that its hops may forget it.
                    effects += self._put_on_shelf(arrival)
                elif is_sweep and arrival.state is ArrivalState.SHELVED and waited > UNHEARD_FOR * SECOND:
                    effects += self._sweep(flow, arrival)
            if flow.retry_at and now >= flow.retry_at:
                flow.retry_at = 0
                effects += self._look(now, flow)
            effects += self._look_for_gap(now, flow)
        return effects

    def _sweep(self, flow: _Flow, arrival: Arrival) -> list[Effect]:
        """Drop a shipment that waits for an earlier one and is no longer sent again: its source has begun a
        new epoch and perhaps has nothing for us in it. If it hasn't, it still has the messages."""
        if flow.inbound is None or arrival.judge(flow.inbound.position) is not Verdict.EARLY:
            return []
        return self._end(arrival, None)

    def _look_for_gap(self, now: int, flow: _Flow) -> list[Effect]:
        """Is the shipment missing that comes next, though later ones have been on the shelf for a while?"""
        waiting = [each for each in flow.arrivals.values() if each.state is ArrivalState.SHELVED]
        first = min(waiting, key=lambda each: each.key, default=None)
        if flow.inbound is None or first is None or first.judge(flow.tip) is not Verdict.EARLY:
            flow.gap = (0, 0)
            return []
        epoch, end = first.key
        following = flow.tip.expected(epoch, first.manifest.oldest)
        missing, since = flow.gap
        if missing == following and now - since <= MISSING_AFTER * SECOND:
            return []
        flow.gap = (following, now)
        wanted = [
            n for n in range(following, min(end, following + MOST_MISSING)) if (epoch, n) not in flow.arrivals
        ]
        if missing != following or not wanted:
            return []
        stream = Stream(flow.source.topic, flow.source.incarnation, epoch)
        return [AskForMissing(flow.source.terminal, Missing(stream, wanted))]


def _select(piece: Piece, batch: Batch, runs: Iterable[Range]) -> tuple[Batch, list[Range]]:
    """The messages of a piece that have these offsets, in the order of the piece."""
    indices: list[int] = []
    offsets: list[Range] = []
    at = 0
    for first, end in piece.runs:
        for low, high in intersect(list(runs), [(first, end)]):
            indices += range(at + low - first, at + high - first)
            offsets.append((low, high))
        at += end - first
    return batch.gather(indices), offsets
