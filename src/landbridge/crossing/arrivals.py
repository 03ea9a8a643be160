"""Arrivals: parcels for this terminal. A shipment is opened, put into its topic's log for the groups that it
is for, and confirmed; all of that once, in the order in which its source has sent it.

What can't be opened now (the registry hasn't given the key, or a shipment before it is still on its way) is
put on a shelf as it is: stored, so the hop before may forget it, but not confirmed to its source.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import structlog

from landbridge.core.log.batch import Batch, Origin
from landbridge.core.log.ranges import Range, count, intersect, normalise
from landbridge.core.log.store import PutLedger
from landbridge.core.log.topic import group_spec
from landbridge.core.shipping.inbound import Inbound, Source, Verdict
from landbridge.core.shipping.parcel import (
    Arrived,
    Manifest,
    Missing,
    Parcel,
    Piece,
    Stream,
    Stuck,
    Withdraw,
    Withdrawn,
    decode_manifest,
    unpack,
)
from landbridge.core.trust.seal import Header, Opener, look
from landbridge.crossing.peer import Fate
from landbridge.crossing.questions import locate
from landbridge.crossing.shelf import Shelf
from landbridge.errors import BusError, TicketExpired, TicketRefused, Unavailable

if TYPE_CHECKING:
    from landbridge.broker.commit import Commit
    from landbridge.broker.group import Group
    from landbridge.broker.topic import Topic
    from landbridge.crossing.network import Network

log = structlog.get_logger("landbridge.arrivals")

SECOND = 1_000_000
#: Seconds after which a key that could not be had is asked for again, and how that grows.
KEY_AGAIN, KEY_AGAIN_MOST = 1.0, 15.0
#: Seconds after which a shipment that waits for one before it counts as given up by its source, which would
#: have sent it again each minute.
UNHEARD_FOR = 300.0
#: Seconds that a shipment is held in memory before it goes to the shelf, and bytes of all that are.
HELD_FOR = 0.5
MOST_HELD = 32 << 20
#: Seconds that a gap may last before its source is asked to fill it, and between two such questions.
MISSING_AFTER = 1.0
#: Shipments that are asked for at once.
MOST_MISSING = 256


class Here(NamedTuple):
    """A shipment that has come and is not in its topic's log yet."""

    parcel: Parcel
    header: Header
    manifest: Manifest
    data: memoryview
    #: Tells the hop before, which has to keep it until then.
    decide: Fate
    #: When it came, microseconds.
    since: int

    @property
    def source(self) -> Source:
        return Source(self.parcel.source, self.header.topic, self.manifest.incarnation)

    @property
    def key(self) -> tuple[int, int]:
        return self.header.epoch, self.header.sequence


class Waiting(NamedTuple):
    """A shipment on the shelf."""

    place: int
    parcel: Parcel
    header: Header
    manifest: Manifest
    #: When it last came, microseconds: its source sends it again until it has arrived.
    heard_at: int


class Totals(msgspec.Struct):
    arrived: int = 0
    repeated: int = 0
    shelved: int = 0
    refused: int = 0
    redeemed: int = 0
    renewed: int = 0


class Arrivals:
    def __init__(self, network: Network, shelf: Shelf) -> None:
        self._network = network
        self._broker = network.broker
        self._shelf = shelf
        self.opener = Opener(network.identity)
        self.totals = Totals()
        self._inbounds: dict[Source, Inbound] = {}
        #: Source → (epoch, sequence) of what is being stored → who has brought it meanwhile. The inbound
        #: counts it in already, so a twin looks like one that is here: it isn't before the commit is made.
        self._storing: dict[Source, dict[tuple[int, int], list[Fate]]] = {}
        #: Counts the failed commits of a source: whatever was to follow one of them has failed too.
        self._generations: dict[Source, int] = {}
        #: Source → (epoch, sequence) → what is on the shelf.
        self.waiting: dict[Source, dict[tuple[int, int], Waiting]] = {}
        #: (source terminal, seal id) → the task that fetches its key.
        self._fetching: dict[tuple[str, bytes], asyncio.Task[None]] = {}
        #: Confirmations of this turn of the loop.
        self._confirm: dict[tuple[str, Stream], list[int]] = {}
        #: Source → the sequence number that is missing, and since when, or when it was last asked for.
        self._gaps: dict[Source, tuple[int, int]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._swept_at = 0
        #: Source → (epoch, sequence) → what is held in memory; and the bytes of all of them.
        self._held: dict[Source, dict[tuple[int, int], Here]] = {}
        self._held_bytes = 0

    async def open(self) -> None:
        for place, parcel in await self._shelf.load():
            _, data = await self._shelf.read(place)
            try:
                here = self._look(parcel, data, _nobody)
            except BusError as error:
                self._refuse(parcel, error)
                self._shelf.remove(place)
            else:
                self._shelved(here, place)
        for source in list(self.waiting):
            self._next(source)

    async def close(self) -> None:
        tasks = [*self._tasks, *self._fetching.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _now(self) -> int:
        return self._network.now()

    # -- shipments ---------------------------------------------------------------------------------

    def _look(self, parcel: Parcel, data: memoryview, decide: Fate) -> Here:
        network, now = self._network, self._now()
        header = look(network.identity, network.keys_of(parcel.source), parcel.source, data, now)
        return Here(parcel, header, decode_manifest(header.meta), data, decide, now)

    def received(self, parcel: Parcel, data: memoryview, decide: Fate) -> None:
        try:
            here = self._look(parcel, data, decide)
        except BusError as error:
            # Forged or changed on the way, or sealed with keys that we don't know of. Not to be had again
            # from the hop before; if its source has sent it, it sends it again.
            self._refuse(parcel, error)
            decide(None)
            return
        source, header = here.source, here.header
        storing = self._storing.get(source, {}).get(here.key)
        if storing is not None:
            self.totals.repeated += 1
            storing.append(decide)
            return
        verdict = self.inbound(source).judge(*here.key, here.manifest.oldest)
        waiting = self.waiting.get(source, {}).get(here.key)
        if verdict is Verdict.NEXT and self.opener.has(parcel.source, header.seal_id, self._now()):
            self._apply(here, None)
            self._next(source)
        elif verdict is Verdict.REPEATED:
            self.totals.repeated += 1
            decide(None)
            self._arrived(source, header)
        elif verdict is Verdict.STALE:
            decide(None)
        elif waiting is not None:
            decide(None)  # a repeat of one that is on the shelf
            self.waiting[source][here.key] = waiting._replace(heard_at=self._now())
        elif self._held_bytes + len(data) > MOST_HELD:
            self._put_on_shelf(here)
        else:
            self._hold(here)
            if verdict is Verdict.NEXT:
                self._next(source)

    def _hold(self, here: Here) -> None:
        """Keep it in memory for a moment: mostly its key, or the one before it, is as good as here. Until
        then it is still the hop's to keep."""
        held = self._held.setdefault(here.source, {})
        twin = held.get(here.key)
        if twin is not None:
            # It came twice, by two hops, and each has to keep its own until this one is stored.
            held[here.key] = twin._replace(decide=partial(_both, twin.decide, here.decide))
            return
        held[here.key] = here
        self._held_bytes += len(here.data)

    def _let_go(self, source: Source, key: tuple[int, int]) -> Here | None:
        found = self._held.get(source, {}).pop(key, None)
        if found is not None:
            self._held_bytes -= len(found.data)
            if not self._held[source]:
                del self._held[source]
        return found

    def _put_on_shelf(self, here: Here) -> None:
        def stored(place: int) -> None:
            here.decide(None)
            self.totals.shelved += 1
            self._shelved(here, place)
            self._next(here.source)

        def refuse(error: BusError) -> None:
            here.decide(error.code)

        self._shelf.put(here.parcel, here.data, stored, refuse)

    def _shelved(self, here: Here, place: int) -> None:
        waiting = self.waiting.setdefault(here.source, {})
        twin = waiting.get(here.key)
        if twin is not None:
            self._shelf.remove(twin.place)
        waiting[here.key] = Waiting(place, here.parcel, here.header, here.manifest, self._now())

    def _next(self, source: Source) -> None:
        """Is what comes next among those that are here already?"""
        while source in self._held and self._next_held(source):
            pass
        waiting = self.waiting.get(source)
        if not waiting:
            self.waiting.pop(source, None)
            return
        inbound = self.inbound(source)
        for key in _candidates(waiting, inbound):
            found = waiting[key]
            verdict = inbound.judge(*key, found.manifest.oldest)
            if verdict is Verdict.EARLY or key in self._storing.get(source, {}):
                continue
            if verdict is not Verdict.NEXT:
                del waiting[key]
                self._shelf.remove(found.place)
                if verdict is Verdict.REPEATED:
                    self._arrived(source, found.header)
                continue
            if not self.opener.has(source.terminal, found.header.seal_id, self._now()):
                self._fetch_key(source, found.header, found.parcel)
                return
            del waiting[key]
            self._run(self._apply_from_shelf(source, found))
            return
        if not waiting:
            del self.waiting[source]

    def _next_held(self, source: Source) -> bool:
        """The same for those in memory. True if one was dealt with, so that another may come next."""
        inbound = self.inbound(source)
        held = self._held[source]
        for key in _candidates(held, inbound):
            found = held[key]
            if (storing := self._storing.get(source, {}).get(key)) is not None:
                self._let_go(source, key)
                storing.append(found.decide)
                return True
            verdict = inbound.judge(*key, found.manifest.oldest)
            if verdict is Verdict.EARLY:
                continue
            if verdict is Verdict.NEXT:
                if not self.opener.has(source.terminal, found.header.seal_id, self._now()):
                    self._fetch_key(source, found.header, found.parcel)
                    return False
                self._let_go(source, key)
                self._apply(found, None)
                return True
            self._let_go(source, key)
            found.decide(None)
            if verdict is Verdict.REPEATED:
                self._arrived(source, found.header)
            return True
        return False

    async def _apply_from_shelf(self, source: Source, found: Waiting) -> None:
        try:
            _, data = await self._shelf.read(found.place)
        except BusError as error:
            self._refuse(found.parcel, error)
            self._shelf.remove(found.place)
            return
        here = Here(found.parcel, found.header, found.manifest, data, _nobody, self._now())
        verdict = self.inbound(source).judge(*here.key, here.manifest.oldest)
        if verdict is Verdict.NEXT and here.key not in self._storing.get(source, {}):
            self._apply(here, found)
        else:
            # A repeat of it has overtaken it while it was read: applied now, it would turn the order back.
            self.waiting.setdefault(source, {})[here.key] = found
        self._next(source)

    def inbound(self, source: Source) -> Inbound:
        found = self._inbounds.get(source)
        if found is None:
            topic = self._broker.topics.get(source.topic)
            raw = self._broker.store.ledger(topic.log.number, _ledger_key(source)) if topic else None
            found = self._inbounds[source] = Inbound.decode(raw) if raw else Inbound()
        return found

    def _apply(self, here: Here, shelved: Waiting | None) -> None:
        """Open the next shipment and store what is in it."""
        source, header, manifest = here.source, here.header, here.manifest
        try:
            pieces = unpack(manifest, self.opener.open(header, here.data, self._now()))
            topic = self._topic(source.topic, manifest)
        except TicketExpired:  # its key was there a moment ago
            if shelved is None:
                self._put_on_shelf(here)
            else:
                self.waiting.setdefault(source, {})[here.key] = shelved
            return
        except BusError as error:
            self._refuse(here.parcel, error)
            if shelved is not None:
                self._shelf.remove(shelved.place)
            here.decide(None)
            return
        inbound = self.inbound(source)
        batches = self._fresh(here, pieces, inbound)
        runs = [run for piece in manifest.pieces for run in piece.runs]
        inbound.apply(*here.key, manifest.groups, runs)
        self._storing.setdefault(source, {})[here.key] = []
        state = inbound.encode()
        generation = self._generations.get(source, 0)

        def work(commit: Commit) -> None:
            if self._generations.get(source, 0) != generation:
                raise Unavailable("a shipment before this one could not be stored")
            topic.save(commit)
            for batch in batches:
                commit.append(topic, batch)
            commit.writes.append(PutLedger(topic.log.number, _ledger_key(source), state))
            if shelved is not None:
                self._shelf.remove_in(commit, shelved.place)
            commit.after.append(partial(self._stored, here, topic, batches))

        def refuse(error: BusError) -> None:
            # As if it and all behind it had not come: what is on disk says what is next.
            self._generations[source] = generation + 1
            self._inbounds.pop(source, None)
            if shelved is not None:
                self.waiting.setdefault(source, {})[here.key] = shelved
            if source in self.waiting:
                asyncio.get_running_loop().call_later(KEY_AGAIN, self._next, source)
            self._decide_all(here, error.code)

        self._broker.committer.put(work, refuse)

    def _topic(self, name: str, manifest: Manifest) -> Topic:
        topic = self._broker.topic_for(name, create=True)
        for group in manifest.groups:
            if group not in topic.groups:
                spec = group_spec({"topic": name, "name": group})
                self._broker.create_group(topic, spec, "latest")
        return topic

    def _fresh(self, here: Here, pieces: list[tuple[Piece, Batch]], inbound: Inbound) -> list[Batch]:
        """What of it isn't here yet, for whom. Mostly all of it for all of them."""
        found: list[Batch] = []
        source, everyone = here.source, frozenset(here.manifest.groups)
        for piece, batch in pieces:
            wanted = {group: inbound.fresh(group, piece.runs) for group in everyone}
            parts = {
                tuple(runs): frozenset(g for g in wanted if wanted[g] == runs) for runs in wanted.values()
            }
            for runs, groups in parts.items():
                if not runs:
                    continue
                part, offsets = batch, list(piece.runs)
                if groups != everyone or count(runs) < len(batch):
                    part, offsets = _part(piece, batch, list(runs))
                part.audience = groups
                part.origin = Origin(
                    source.terminal, source.incarnation, offsets, here.parcel.visited, self._now()
                )
                found.append(part)
        return found

    def _stored(self, here: Here, topic: Topic, batches: list[Batch]) -> None:
        messages = sum(map(len, batches))
        self.totals.arrived += messages
        self._broker.status.count(
            self._now(),
            "arrive",
            here.parcel.source,
            topic.name,
            messages=messages,
            size=sum(batch.size for batch in batches),
            published=[(batch.time, len(batch)) for batch in batches],
        )
        self._decide_all(here, None)
        self._arrived(here.source, here.header)
        if here.source in self.waiting:
            self._next(here.source)  # a twin of it may be on the shelf

    def _decide_all(self, here: Here, code: str | None) -> None:
        """It is stored, or isn't: tell everybody who has brought it."""
        storing = self._storing[here.source]
        others = storing.pop(here.key)
        if not storing:
            del self._storing[here.source]
        for decide in (here.decide, *others):
            decide(code)

    def _arrived(self, source: Source, header: Header) -> None:
        key = (source.terminal, Stream(source.topic, source.incarnation, header.epoch))
        if not self._confirm:
            asyncio.get_running_loop().call_soon(self._tell_arrived)
        self._confirm.setdefault(key, []).append(header.sequence)

    def _tell_arrived(self) -> None:
        confirm, self._confirm = self._confirm, {}
        for (terminal, stream), sequences in confirm.items():
            self._network.say(terminal, Arrived(stream, sequences))

    def _refuse(self, parcel: Parcel, error: BusError) -> None:
        self.totals.refused += 1
        log.warning("parcel refused", source=parcel.source, code=error.code, detail=str(error))
        self._network.note("refuse", who=parcel.source, cause=error.code, detail=str(error))

    # -- keys --------------------------------------------------------------------------------------

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._ran)

    def _ran(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("crash", exc_info=error)

    def _fetch_key(self, source: Source, header: Header, parcel: Parcel) -> None:
        key = (source.terminal, header.seal_id)
        if key not in self._fetching:
            self._fetching[key] = asyncio.ensure_future(self._fetch(source, header, parcel, key))

    async def _fetch(self, source: Source, header: Header, parcel: Parcel, key: tuple[str, bytes]) -> None:
        """Redeem a ticket, renewing it first where that is needed and allowed."""
        backoff = KEY_AGAIN
        try:
            while True:
                try:
                    await self._redeem(header)
                    break
                except Unavailable:
                    await asyncio.sleep(backoff)
                    backoff = min(2 * backoff, KEY_AGAIN_MOST)
                except BusError as error:
                    self._cannot_open(source, header, parcel, error)
                    return
        finally:
            del self._fetching[key]
        for other in [*self._held, *self.waiting]:
            if other.terminal == source.terminal:
                self._next(other)

    async def _redeem(self, header: Header) -> None:
        registry = self._network.registry
        try:
            release = await registry.redeem(header.topic, header.ticket, header.box)
        except TicketExpired:
            renewal = await registry.renew(header.ticket)
            self.totals.renewed += 1
            release = await registry.redeem(header.topic, renewal.ticket, header.box)
        self.opener.learn(header, release, self._now())
        self.totals.redeemed += 1

    def _cannot_open(self, source: Source, header: Header, parcel: Parcel, error: BusError) -> None:
        """The registry says no. Its source is asked to seal it again, or to give it up."""
        self._refuse(parcel, error)
        key = (header.epoch, header.sequence)
        found = self.waiting.get(source, {}).pop(key, None)
        if found is not None:
            self._shelf.remove(found.place)
        held = self._let_go(source, key)
        if held is not None:
            held.decide(None)
        if isinstance(error, TicketExpired | TicketRefused):
            entry = self._network.topics.get(source.topic)
            dead = isinstance(error, TicketExpired) and entry is not None and entry.late_open == "never"
            stream = Stream(source.topic, source.incarnation, header.epoch)
            code = "ticket_dead" if dead else error.code
            self._network.say(source.terminal, Stuck(stream, header.sequence, code))

    # -- giving back -------------------------------------------------------------------------------

    def heard(self, source: str, message: Withdraw) -> None:
        self._run(self._withdraw(source, message))

    async def _withdraw(self, terminal: str, message: Withdraw) -> None:
        """Another terminal gets these: settle here what no consumer has seen."""
        topic = self._broker.topics.get(message.topic)
        group = topic.groups.get(message.group) if topic is not None else None
        if group is None:
            return
        source = Source(terminal, message.topic, message.incarnation)
        places = await locate(group, terminal, message.incarnation, normalise(message.runs))
        group.catch_up()
        wanted: dict[int, int] = {}
        if not self.inbound(source).has_come_back(message.group, message.epoch):
            wanted = {o: place for o, (place, _) in places.items() if group.delivery.is_unseen(place)}
        self._give_back(source, group, wanted, set(places))

    def _give_back(self, source: Source, group: Group, wanted: dict[int, int], found: set[int]) -> None:
        """The cursor and the ledger let go in one commit: what the cursor has settled and the ledger still
        knew would never be taken again if it came again. So the cursor moves only when the commit is formed;
        what a consumer has got by then comes twice, which is better than never. ``wanted``: offset at the
        source → offset here. ``found``: all offsets that are here."""
        inbound = self.inbound(source)
        inbound.give_back(group.name, [(offset, offset + 1) for offset in wanted])
        state = inbound.encode()
        generation = self._generations.get(source, 0)
        taken: dict[int, int] = {}

        def work(commit: Commit) -> None:
            if self._generations.get(source, 0) != generation:
                raise Unavailable("a shipment before this could not be stored")
            taken.update({o: place for o, place in wanted.items() if group.delivery.withdraw(place)})
            group.save(commit)
            commit.writes.append(PutLedger(group.topic.log.number, _ledger_key(source), state))
            commit.after.append(done)

        def done() -> None:
            self._network.note(
                "withdraw", topic=source.topic, group=group.name, messages=len(taken), who=source.terminal
            )
            late = normalise((offset, offset + 1) for offset in found - taken.keys())
            self._network.say(source.terminal, Withdrawn(source.topic, source.incarnation, group.name, late))

        def refuse(error: BusError) -> None:
            self._generations[source] = generation + 1
            self._inbounds.pop(source, None)
            group.unsettle(normalise((place, place + 1) for place in taken.values()))

        self._broker.committer.put(work, refuse)

    # -- time --------------------------------------------------------------------------------------

    def advance(self, now: int) -> None:
        self.opener.advance(now)
        self._shelve(now)
        if not 0 <= now - self._swept_at < UNHEARD_FOR * SECOND / 10:
            self._swept_at = now
            self._sweep(now)
        self._gaps = {source: gap for source, gap in self._gaps.items() if source in self.waiting}
        for source, waiting in self.waiting.items():
            if waiting:
                self._look_for_gap(now, source, *min(waiting))

    def _shelve(self, now: int) -> None:
        """What has been held for long enough is stored, so that the hop before may forget it."""
        for source, held in list(self._held.items()):
            for key, found in list(held.items()):
                if now - found.since > HELD_FOR * SECOND:
                    self._let_go(source, key)
                    self._put_on_shelf(found)

    def _sweep(self, now: int) -> None:
        """Drop from the shelf what waits for one before it and is no longer sent again: its source has begun
        a new epoch and perhaps has nothing for us in it. If it hasn't, it still has the messages."""
        for source, waiting in list(self.waiting.items()):
            for key, found in list(waiting.items()):
                is_early = self.inbound(source).judge(*key, found.manifest.oldest) is Verdict.EARLY
                if is_early and now - found.heard_at > UNHEARD_FOR * SECOND:
                    del waiting[key]
                    self._shelf.remove(found.place)
            if not waiting:
                del self.waiting[source]

    def _look_for_gap(self, now: int, source: Source, epoch: int, first: int) -> None:
        """Is what comes next missing, though later ones have been here for a while?"""
        inbound = self.inbound(source)
        oldest = self.waiting[source][epoch, first].manifest.oldest
        if inbound.judge(epoch, first, oldest) is not Verdict.EARLY:
            return
        following = max(oldest, inbound.next if epoch == inbound.epoch else 1)
        missing, since = self._gaps.get(source, (0, 0))
        if missing != following:
            self._gaps[source] = (following, now)
        elif now - since > MISSING_AFTER * SECOND:
            self._gaps[source] = (following, now)
            sequences = list(range(following, min(first, following + MOST_MISSING)))
            self._network.say(
                source.terminal, Missing(Stream(source.topic, source.incarnation, epoch), sequences)
            )


def _candidates(here: Mapping[tuple[int, int], object], inbound: Inbound) -> list[tuple[int, int]]:
    """Which of these (epoch, sequence) may come next: the one after the last, if it is there. Otherwise any,
    in order, for the source may have begun a new epoch."""
    following = (inbound.epoch, inbound.next)
    return [following] if following in here else sorted(here)


def _nobody(code: str | None) -> None:
    """The hop before has been told already."""


def _both(one: Fate, other: Fate, code: str | None) -> None:
    one(code)
    other(code)


def _ledger_key(source: Source) -> bytes:
    return f"from:{source.terminal}:{source.incarnation}".encode()


def _part(piece: Piece, batch: Batch, runs: list[Range]) -> tuple[Batch, list[Range]]:
    """The messages of a piece that have these offsets, in the order of the piece."""
    indices: list[int] = []
    offsets: list[Range] = []
    at = 0
    for first, end in piece.runs:
        for low, high in intersect(runs, [(first, end)]):
            indices += range(at + low - first, at + high - first)
            offsets.append((low, high))
        at += end - first
    return batch.gather(indices), offsets
