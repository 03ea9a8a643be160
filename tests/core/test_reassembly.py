"""The table of shipments that have come, against a naive model: whatever happens in whatever order, messages
are stored once and in order, and nobody is told that a shipment is kept or has arrived before that is on
disk."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from landbridge.core.log.batch import Batch, build
from landbridge.core.shipping import reassembly
from landbridge.core.shipping.inbound import Inbound, Position, ShipmentSource, Verdict
from landbridge.core.shipping.parcel import Manifest, Parcel, Piece
from landbridge.core.shipping.reassembly import (
    Arrival,
    ArrivalState,
    AskForMissing,
    ConfirmArrival,
    Effect,
    EndGiveBack,
    FormCommit,
    GiveBack,
    LoadInbound,
    OpenSeal,
    PutOnShelf,
    Reassembly,
    TakeFromShelf,
    TellHops,
)
from landbridge.core.trust.seal import Header

SECOND = 1_000_000
SOURCE = ShipmentSource("paris", "orders", 7)
RUN = 0  #: sources that don't tell theirs are believed
GROUP = "billing"
SIZE = 100
#: (epoch, sequence): which shipment.
Key = tuple[int, int]


def shipment(now: int, key: Key, seal: int, oldest: int, floor: int, offsets: list[int]) -> Arrival:
    epoch, sequence = key
    header = Header(
        source=SOURCE.terminal,
        destination="tokyo",
        topic=SOURCE.topic,
        seal_id=bytes([seal]),
        epoch=epoch,
        sequence=sequence,
        counter=0,
        meta=b"",
        signature=b"",
        ticket=b"",
        box=b"",
        inner=b"",
        sign=b"",
        start=0,
    )
    piece = Piece([(offset, offset + 1) for offset in offsets], False, SIZE)
    manifest = Manifest(SOURCE.incarnation, {GROUP: floor}, [piece], oldest)
    parcel = Parcel(b"", 0, SOURCE.terminal, "tokyo", 16, [SOURCE.terminal], [])
    return Arrival(now, parcel, header, manifest, memoryview(bytes(SIZE)))


class Sent:
    """A shipment as its source knows it."""

    def __init__(self, key: Key, seal: int, offsets: list[int]) -> None:
        self.key, self.seal, self.offsets = key, seal, offsets


class Disk:
    """What a crash leaves. ``log``: offsets at the source, in the order in which they were stored."""

    def __init__(self) -> None:
        self.log: list[int] = []
        self.taken_back: set[int] = set()
        self.ledger = Inbound().encode()
        self.shelf: dict[int, Arrival] = {}


class Arriving(RuleBasedStateMachine):
    """A source that numbers its shipments, hops that bring them in any order and more than once, a store that
    is slow and fails, a registry that gives keys when it likes. The model is ``Disk`` and
    ``must_be_next``."""

    @initialize()
    def begin(self) -> None:
        self.now = SECOND
        self.disk = Disk()
        self.keys: set[int] = set()
        self.next_place = 0
        # The source: what it has sent in all epochs, and what it doesn't know to have arrived.
        self.epoch, self.published = 1, 0
        self.sent: dict[Key, Sent] = {}
        self.unconfirmed: set[int] = set()
        self.start()

    def start(self) -> None:
        """The terminal starts with what is on disk; hops that have no answer keep their shipments."""
        self.table = Reassembly()
        self.loads = 0
        self.reads: list[Arrival] = []
        self.shelving: list[Arrival] = []
        self.removals: list[int] = []
        self.queued = False
        self.formed: tuple[bytes, list[int], list[int]] | None = None
        #: Shipments that somebody brought and that are neither on disk nor with the hop again.
        self.in_memory: dict[Key, list[list[str | None]]] = {}
        self.forgiven: set[Key] = set()
        for place, kept in self.disk.shelf.items():
            again = shipment(self.now, kept.key, kept.header.seal_id[0], 1, 0, [])
            again.manifest = kept.manifest
            self.perform(self.table.restore(again, place))

    # -- the terminal's doing ----------------------------------------------------------------------

    def perform(self, effects: list[Effect]) -> None:
        todo = list(effects)
        while todo:
            match todo.pop(0):
                case TellHops(hops, code):
                    for tell in hops:
                        tell(code)
                case ConfirmArrival(arrival):
                    assert set(self.offsets(arrival)) <= set(self.disk.log) | self.disk.taken_back
                    self.unconfirmed -= set(self.offsets(arrival)) - self.disk.taken_back
                case LoadInbound():
                    self.loads += 1
                case OpenSeal(arrival):
                    if arrival.header.seal_id[0] not in self.keys:
                        todo += self.table.postpone(arrival)
                    elif arrival.place is None:
                        todo += self.open(arrival)
                    else:
                        self.reads.append(arrival)
                case PutOnShelf(arrival):
                    self.shelving.append(arrival)
                case TakeFromShelf(place):
                    assert place in self.disk.shelf
                    self.removals.append(place)
                case FormCommit():
                    assert not self.queued, "one commit of a source at a time"
                    self.queued = True
                case EndGiveBack(_, back, is_stored):
                    assert not is_stored or not set(back.taken) & set(self.disk.log)
                case AskForMissing(_, message):
                    for sequence in message.sequences:
                        assert (message.stream.epoch, sequence) not in self.in_memory

    def offsets(self, arrival: Arrival) -> list[int]:
        return [first for piece in arrival.manifest.pieces for first, _ in piece.runs]

    def open(self, arrival: Arrival) -> list[Effect]:
        if arrival.header.seal_id[0] not in self.keys:
            return self.table.postpone(arrival)  # expired while it was read
        offsets = self.offsets(arrival)
        batch = Batch.decode(build([b"%d" % offset for offset in offsets], id=bytes(16), time=1))
        return self.table.open(self.now, arrival, [(arrival.manifest.pieces[0], batch)])

    def tell(self, key: Key, answers: list[str | None], code: str | None) -> None:
        """A hop hears what became of its shipment."""
        assert not answers, "each hop is told once"
        answers.append(code)
        told = self.in_memory.pop(key, None)
        if told is not None:
            told.remove(answers)
            if told:
                self.in_memory[key] = told
        if code is None and key not in self.forgiven:
            is_stale = key[0] < Inbound.decode(self.disk.ledger).position.epoch
            on_shelf = any(kept.key == key for kept in self.disk.shelf.values())
            in_log = set(self.sent[key].offsets) <= set(self.disk.log) | self.disk.taken_back
            assert is_stale or on_shelf or in_log, "kept before it was on disk"

    # -- the source --------------------------------------------------------------------------------

    @rule(count=st.integers(1, 3))
    def ship(self, count: int) -> None:
        offsets = list(range(self.published, self.published + count))
        self.published += count
        self.unconfirmed |= set(offsets)
        self.number(offsets)

    def number(self, offsets: list[int]) -> None:
        key = (self.epoch, 1 + sum(epoch == self.epoch for epoch, _ in self.sent))
        self.sent[key] = Sent(key, len(self.sent) // 3 % 250, offsets)

    @rule()
    def begin_epoch(self) -> None:
        """The source starts again: whatever it doesn't know to have arrived gets new numbers."""
        self.epoch += 1
        for offset in sorted(self.unconfirmed):
            self.number([offset])

    @property
    def oldest(self) -> int:
        numbers = [key[1] for key in self.sent if key[0] == self.epoch]
        pending = [n for n in numbers if set(self.sent[self.epoch, n].offsets) & self.unconfirmed]
        return min(pending, default=len(numbers) + 1)

    def bring(self, key: Key) -> None:
        sent = self.sent[key]
        floor = min(self.unconfirmed, default=self.published)
        oldest = self.oldest if key[0] == self.epoch else 1
        answers: list[str | None] = []
        self.in_memory.setdefault(key, []).append(answers)
        arrival = shipment(self.now, key, sent.seal, oldest, floor, sent.offsets)
        self.perform(self.table.arrive(self.now, arrival, partial(self.tell, key, answers)))

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def arrive(self, data: st.DataObject) -> None:
        """Any shipment: the next, an early one, a twin, a repeated one, one of an old epoch."""
        self.bring(data.draw(st.sampled_from(sorted(self.sent))))

    @precondition(lambda self: self.sent)
    @rule()
    def arrive_next(self) -> None:
        position = Inbound.decode(self.disk.ledger).position
        if (key := (position.epoch or 1, position.next)) in self.sent:
            self.bring(key)

    # -- the registry ------------------------------------------------------------------------------

    @precondition(lambda self: self.sent)
    @rule(data=st.data())
    def key_comes(self, data: st.DataObject) -> None:
        self.keys.add(data.draw(st.sampled_from(sorted({sent.seal for sent in self.sent.values()}))))
        self.perform(self.table.look(self.now, SOURCE.terminal))

    @precondition(lambda self: self.keys)
    @rule(data=st.data())
    def key_expires(self, data: st.DataObject) -> None:
        self.keys.discard(data.draw(st.sampled_from(sorted(self.keys))))

    @precondition(lambda self: self.reads)
    @rule()
    def refuse(self) -> None:
        """What is on the shelf can't be opened at all; its source has to send it again."""
        arrival = self.reads.pop(0)
        self.forgiven.add(arrival.key)
        self.perform(self.table.drop(self.now, arrival))

    # -- the store ---------------------------------------------------------------------------------

    @precondition(lambda self: self.loads)
    @rule(works=st.booleans())
    def load(self, works: bool) -> None:
        self.loads -= 1
        if works:
            self.perform(self.table.load(self.now, SOURCE, Inbound.decode(self.disk.ledger)))
        else:
            self.table.fail_load(self.now, SOURCE)

    @precondition(lambda self: self.reads)
    @rule()
    def read_from_shelf(self) -> None:
        self.perform(self.open(self.reads.pop(0)))

    @precondition(lambda self: self.shelving)
    @rule(is_full=st.booleans())
    def shelve(self, is_full: bool) -> None:
        arrival = self.shelving.pop(0)
        if is_full:
            self.perform(self.table.fail_shelve(self.now, arrival, "backlog_full"))
        else:
            self.next_place += 1
            self.disk.shelf[self.next_place] = arrival
            self.perform(self.table.shelve(self.now, arrival, self.next_place))

    @precondition(lambda self: self.queued and self.formed is None)
    @rule(room=st.integers(1, 4), seen=st.integers(0, 5), is_refused=st.booleans())
    def form(self, room: int, seen: int, is_refused: bool) -> None:
        """``seen``: of the messages that are to be given back, so many a consumer has got by now."""
        draft, backs = self.table.begin(SOURCE)
        position = Inbound.decode(self.disk.ledger).position
        taken: list[int] = []
        for back in backs:
            back.taken = {o: place for o, place in sorted(back.places.items())[seen:] if o in self.disk.log}
            draft.give_back(GROUP, [(offset, offset + 1) for offset in back.taken])
            taken += back.taken
        added: list[int] = []
        while room and (arrival := self.table.take(SOURCE)) is not None:
            room -= 1
            if is_refused:
                self.forgiven.add(arrival.key)
                self.perform(self.table.drop(self.now, arrival))
                break
            assert arrival.key[1] == position.expected(arrival.key[0], arrival.manifest.oldest), "in order"
            position = Position(arrival.key[0], arrival.key[1] + 1)
            payloads = [p for batch in self.table.count_in(self.now, arrival, RUN) for p in batch.payloads()]
            here = set(self.disk.log) - set(taken) | set(added)
            expected = [offset for offset in self.offsets(arrival) if offset not in here]
            assert [int(payload) for payload in payloads] == expected, "once, and all of it"
            added += expected
        self.formed = (draft.encode(), added, taken)

    @precondition(lambda self: self.formed)
    @rule()
    def commit(self) -> None:
        assert self.formed is not None
        self.disk.ledger, added, taken = self.formed
        self.disk.log = [offset for offset in self.disk.log if offset not in taken] + added
        self.disk.taken_back = (self.disk.taken_back | set(taken)) - set(added)
        self.unconfirmed |= set(taken)
        self.queued, self.formed = False, None
        self.write_removals()
        self.perform(self.table.commit(self.now, SOURCE))

    @precondition(lambda self: self.queued)
    @rule()
    def fail(self) -> None:
        """The commit fails, or the committer refuses to form one."""
        self.queued, self.formed = False, None
        self.perform(self.table.fail(self.now, SOURCE, "store_full"))

    @rule()
    def write_removals(self) -> None:
        """Until this happens, a restart finds on the shelf what is in the log already."""
        for place in self.removals:
            del self.disk.shelf[place]
        self.removals = []

    @precondition(lambda self: self.disk.log and self.table.inbound(SOURCE) is not None)
    @rule(data=st.data())
    def withdraw(self, data: st.DataObject) -> None:
        """Another terminal is to get some of the messages; then this one again, in a new epoch."""
        offsets = data.draw(st.lists(st.sampled_from(self.disk.log), unique=True))
        back = GiveBack(GROUP, self.epoch + 1, 1, {offset: offset for offset in offsets})
        self.perform(self.table.give_back(SOURCE, back))

    @rule()
    def restart(self) -> None:
        self.start()

    @rule(seconds=st.sampled_from([0.1, 0.6, 2.0, 400.0]))
    def time_passes(self, seconds: float) -> None:
        self.now += int(seconds * SECOND)
        self.perform(self.table.advance(self.now))

    # -- what must hold ----------------------------------------------------------------------------

    @invariant()
    def every_message_is_stored_once(self) -> None:
        assert len(self.disk.log) == len(set(self.disk.log))

    @invariant()
    def memory_is_bounded(self) -> None:
        arrivals = [each for flow in self.table._flows.values() for each in flow.arrivals.values()]
        held = SIZE * sum(each.state is ArrivalState.HELD for each in arrivals)
        assert held == self.table._held_bytes
        assert held <= reassembly.MOST_HELD or any(flow.opening for flow in self.table._flows.values())

    @invariant()
    def what_is_on_disk_is_what_is_in_memory(self) -> None:
        inbound = self.table.inbound(SOURCE)
        assert inbound is None or inbound.encode() == self.disk.ledger

    @invariant()
    def nothing_rests_that_could_be_stored(self) -> None:
        """A shipment that is here, comes next and has its key is on its way into the log."""
        if self.queued or self.loads or self.reads or self.shelving or self.table.inbound(SOURCE) is None:
            return
        flow, position = self.table._flows[SOURCE], Inbound.decode(self.disk.ledger).position
        here = [a for a in flow.arrivals.values() if a.judge(position) is Verdict.NEXT]
        following = flow.arrivals.get(position) or min(here, key=lambda each: each.key, default=None)
        is_late = following is not None and following.place is not None and self.now < flow.retry_at
        assert following is None or following.header.seal_id[0] not in self.keys or is_late

    def quiesce(self) -> None:
        """The store and the registry work again, until nothing is left to do."""
        self.keys = set(range(250))
        self.time_passes(2.0)
        self.perform(self.table.look(self.now, SOURCE.terminal))
        while self.loads or self.reads or self.shelving or self.queued:
            if self.loads:
                self.load(works=True)
            elif self.reads:
                self.read_from_shelf()
            elif self.shelving:
                self.shelve(is_full=False)
            else:
                if self.formed is None:
                    self.form(room=4, seen=0, is_refused=False)
                self.commit()

    def teardown(self) -> None:
        """In the end each message is in the log, the hops are told, and the shelf is empty."""
        if not hasattr(self, "table"):
            return
        self.quiesce()
        self.unconfirmed |= set(range(self.published)) - set(self.disk.log)
        self.begin_epoch()
        if not self.unconfirmed:
            return
        for key in sorted(self.sent):
            if key[0] == self.epoch:
                self.bring(key)
                self.quiesce()
        self.write_removals()
        assert sorted(self.disk.log) == list(range(self.published))
        assert (self.in_memory, self.unconfirmed, self.table.on_shelf) == ({}, set(), 0)
        assert not self.disk.shelf


@pytest.fixture(autouse=True, scope="module")
def little_room():
    """So little that a few shipments fill it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reassembly, "MOST_HELD", 3 * SIZE)
        yield


TestArriving = Arriving.TestCase
TestArriving.settings = settings(max_examples=100, stateful_step_count=60, deadline=None)


def test_what_had_to_wait_for_one_that_found_no_room_is_opened() -> None:
    state = Arriving()
    state.begin()
    state.ship(count=1)
    state.arrive_next()
    state.begin_epoch()
    state.keys.add(0)
    state.time_passes(seconds=0.6)
    state.bring((2, 1))
    state.load(works=True)
    state.shelve(is_full=True)
    state.nothing_rests_that_could_be_stored()
    assert state.queued
    state.teardown()


def test_what_is_left_when_a_commit_fails_is_opened() -> None:
    state = Arriving()
    state.begin()
    state.ship(count=1)
    state.arrive_next()
    state.begin_epoch()
    state.keys.add(0)
    state.load(works=True)
    state.fail()
    state.bring((2, 1))
    state.arrive_next()  # the first one again, which its source has numbered anew
    state.fail()
    state.nothing_rests_that_could_be_stored()
    assert state.queued
    state.teardown()
