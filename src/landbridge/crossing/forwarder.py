"""The forwarder: the consumer of every group whose consumers are at another terminal. It takes messages from
the group like any consumer, ships them to the terminal that was chosen for the group, and acks when they have
arrived there.

    lane       one topic's way to one other terminal (lane.py)
    placement  where a group's messages go at present, and why (placing.py)

Messages that several groups want at the same terminal are shipped once. While there is no path, no ticket or
no registry they stay where they are, in the topic's log, and nothing is lost.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection

import structlog

from landbridge.broker.group import Consumer, Group, Home
from landbridge.broker.topic import Topic
from landbridge.core.log.batch import Batch
from landbridge.core.log.ranges import Range, count
from landbridge.core.routing.routes import Routes
from landbridge.core.shipping.cutting import MOST_NAMES, frame_size, names_size
from landbridge.core.shipping.parcel import (
    Arrived,
    Ask,
    Compare,
    Control,
    EpochOver,
    Have,
    Missing,
    Stuck,
    Tell,
    Withdraw,
    Withdrawn,
)
from landbridge.core.time import SECOND
from landbridge.core.topic import new_group
from landbridge.crossing.carrier import Carrier
from landbridge.crossing.ground import Ground
from landbridge.crossing.lane import WINDOW, Hand, Lane, Pace
from landbridge.crossing.placing import Placement, Placing
from landbridge.crossing.records import ForwarderTotals, Records, ShipmentRecord
from landbridge.crossing.tickets import TicketBook
from landbridge.errors import BadRequest, BusError, TooLarge

log = structlog.get_logger("landbridge.forwarder")

#: Messages that the forwarder holds of a group at most; bytes are bounded by the window.
PREFETCH = 500_000
#: Seconds that a terminal which doesn't confirm is not chosen again.
SUSPECT_FOR = 30.0
#: Seconds that the clocks of the registry and of this terminal may differ. It counts only for a group that
#: was there before the registry answered this terminal for the first time; see core/shipping/beginnings.py.
MOST_SKEW = 600.0
#: Seconds to wait for an answer before the same question is asked again, and for a target to ask.
ASK_AGAIN, TARGET_AGAIN = 3.0, 0.5


class Forwarder:
    def __init__(
        self,
        ground: Ground,
        carrier: Carrier,
        routes: Routes,
        placing: Placing,
        say: Callable[[str, Control], None],
    ) -> None:
        """``say``: sends a control message to a terminal; it may get lost."""
        self.ground = ground
        self.carrier = carrier
        self.routes = routes
        self.tickets = TicketBook(ground, self.look_again, self._waits_for_ticket)
        self.records = Records()
        self.pace = Pace(ground.settings.catch_up_rate)
        self._placing = placing
        self._say = say
        #: (topic, group) → where its messages go.
        self.placements: dict[tuple[str, str], Placement] = {}
        #: (topic, terminal) → the lane there.
        self.lanes: dict[tuple[str, str], Lane] = {}
        #: Terminal → until when it is not chosen, microseconds.
        self.suspects: dict[str, int] = {}
        #: (topic, group) → makes the group.
        self._making: dict[tuple[str, str], asyncio.Task[None]] = {}
        #: (terminal, question) → who waits for the answer.
        self._asked: dict[tuple[str, Ask], list[asyncio.Future[Tell]]] = {}
        #: (terminal, question) → when it was last asked, microseconds, and what was confirmed then.
        self._comparing: dict[tuple[str, Compare], tuple[int, list[Range]]] = {}

    @property
    def totals(self) -> ForwarderTotals:
        return self.records.totals

    # -- placing groups ----------------------------------------------------------------------------

    def place(self) -> None:
        """Look at every group of every topic that the directory knows and this terminal has."""
        now = self.ground.now()
        self.suspects = {terminal: until for terminal, until in self.suspects.items() if until > now}
        seen = set()
        for entry in self.ground.topics.values():
            topic = self.ground.broker.topics.get(entry.name)
            if topic is None or topic.deleted or topic.spec.rule is not None:
                continue
            for name, added_at in entry.groups.items():
                seen.add((entry.name, name))
                self._place(topic, name, added_at)
        for key in [key for key in self.placements if key not in seen]:
            self._leave(self.placements.pop(key))

    def _place(self, topic: Topic, name: str, added_at: int) -> None:
        placement = self.placements.setdefault((topic.name, name), Placement(topic.name, name))
        group = topic.groups.get(name)
        if not self.ground.members(name):
            self._leave(placement)
            placement.target, placement.why = "", "the group has no terminals"
            if group is not None:
                group.forward(True)  # its messages wait until it has one
            return
        if group is None:
            if topic.spec.has_one_group and topic.groups:
                return
            self._make_group(topic, name, added_at)
            return
        self._compare(group)
        target, why = self._placing.choose(placement, group, set(self.suspects))
        if target is not None and target != placement.target:
            self._move(placement, group, target, why)

    def _make_group(self, topic: Topic, name: str, added_at: int) -> None:
        """Make a group that gets what was published since it was added; then place it."""
        key = topic.name, name
        if key in self._making:
            return

        async def make() -> None:
            try:
                floor = self.ground.beginning(topic)
                if floor is None:
                    since = max(0, added_at - int(MOST_SKEW * SECOND))
                    floor = await self.ground.broker.table.position(topic, since)
                if not topic.deleted and name not in topic.groups:
                    spec = new_group(topic.spec, name)
                    self.ground.broker.table.create_group(topic, spec, floor)
                    self._place(topic, name, added_at)
            except BusError as error:  # tried again with the next look at all groups
                self.ground.broker.report(topic.name, error)
            finally:
                del self._making[key]

        self._making[key] = asyncio.ensure_future(make())

    async def until_placed(self, topic: str) -> None:
        """Place the groups of a topic, and wait until those exist that have to be made."""
        self.place()
        await asyncio.gather(*(task for (name, _), task in self._making.items() if name == topic))

    def _move(self, placement: Placement, group: Group, target: str, why: str) -> None:
        ground, topic, before = self.ground, group.topic, placement.target
        lane_before = placement.hand.lane if placement.hand is not None else None
        withdrawn = self._leave(placement)
        placement.target, placement.since, placement.why = target, ground.now(), why
        if lane_before is not None and withdrawn:
            self.totals.failovers += 1
            epoch = lane_before.outbound.epoch
            self._say(before, Withdraw(topic.name, topic.created_at, group.name, withdrawn, epoch))
        ground.note(
            "place",
            topic=topic.name,
            group=group.name,
            detail=f"to {ground.name_of(target)}: {why}",
            cause="moved" if before else "found",
        )
        group.forward(target != ground.me)
        if target != ground.me:
            lane = self.lanes.get((topic.name, target))
            if lane is None or lane.topic is not topic:
                if lane is not None:
                    lane.close()  # of a topic of that name which was deleted since
                lane = self.lanes[topic.name, target] = Lane(self, topic, target)
            placement.hand = lane.hands[group.name] = hand = Hand(lane, self._lost)
            number = ground.broker.consuming.new_consumer()
            hand.consumer = Consumer(
                number, hand, 0, PREFETCH, group, prefetch_bytes=2 * WINDOW, patient=True
            )
            group.join(hand.consumer)
        group.pump()

    def _leave(self, placement: Placement) -> list[Range]:
        """Take a group's messages to its target no more. Returns those that were on their way."""
        hand, placement.hand = placement.hand, None
        if hand is None:
            return []
        gone = hand.lane.without(placement.group)
        group = hand.consumer.group
        if not group.deleted:
            group.leave(hand.consumer, counted=False)
        return gone

    def _lost(self, consumer: Consumer, error: BusError) -> None:
        group = consumer.group
        placement = self.placements.pop((group.topic.name, group.name), None)
        if placement is not None:
            log.warning("a group ended", topic=group.topic.name, group=group.name, detail=str(error))
            self._leave(placement)

    def suspect(self, terminal: str) -> None:
        """A terminal doesn't confirm: is there another one for the groups that go there?"""
        self.suspects[terminal] = self.ground.now() + int(SUSPECT_FOR * SECOND)
        self.place()

    # -- terminals that were restarted, and perhaps restored from a backup ---------------------------

    def compared(self, topic: Home, terminal: str, groups: Collection[str]) -> int:
        """The run of a terminal that the confirmations of these groups were compared with; 0 if it is not
        known, or they were not."""
        run = self._placing.run_of(terminal)
        found = [topic.groups[name].confirmed for name in groups if name in topic.groups]
        return 0 if any(confirmed.is_due(terminal, run) for confirmed in found) else run

    def run_of(self, terminal: str) -> int:
        return self._placing.run_of(terminal)

    def is_late(self, terminal: str, run: int) -> bool:
        """Was this run of a terminal followed by another one?"""
        return 0 < run < self._placing.run_of(terminal)

    def _compare(self, group: Group) -> None:
        """Ask each terminal that was restarted since what it has of the group's messages."""
        now, topic = self.ground.now(), group.topic
        for terminal in group.confirmed.due(self._placing.run_of):
            run = self.ground.run
            history = tuple(topic.log.history_of(run))
            question = Compare(topic.name, topic.created_at, group.name, run, history)
            asked_at, _ = self._comparing.get((terminal, question), (0, []))
            if not 0 <= now - asked_at < ASK_AGAIN * SECOND:
                self._comparing[terminal, question] = (now, group.confirmed.of(terminal))
                self._say(terminal, question)

    def _compared(self, terminal: str, answer: Have) -> None:
        """A terminal tells what it has. What it has lost is delivered again, as far as it is still here."""
        question = answer.compare
        _, asked = self._comparing.pop((terminal, question), (0, []))
        topic = self.ground.broker.topics.get(question.topic)
        if not asked or topic is None or topic.created_at != question.incarnation:
            return
        group = topic.groups.get(question.group)
        if group is None or answer.run != self._placing.run_of(terminal):
            return  # it was restarted once more, and is asked again
        lost = group.confirmed.compare(terminal, answer.run, asked, answer.floor, answer.runs)
        if not lost:
            return
        back = group.deliver_again(lost)
        gone = count(lost) - back
        name = self.ground.name_of(terminal)
        what = f"{name} has lost {count(lost)} messages that it had confirmed; {back} of them are sent again"
        log.warning("a terminal has lost messages", topic=topic.name, group=group.name, detail=what)
        self.ground.note(
            "restore",
            topic=topic.name,
            group=group.name,
            who=name,
            cause="lost" if gone else "sent_again",
            messages=count(lost),
            detail=what,
        )

    def held(self) -> dict[str, int]:
        """Topic → messages that are here and that a group elsewhere waits for."""
        held: dict[str, int] = {}
        for placement in self.placements.values():
            topic = self.ground.broker.topics.get(placement.topic)
            group = topic.groups.get(placement.group) if topic is not None else None
            if group is not None:
                lag = group.delivery.cursor.lag(group.topic.log.end)
                held[placement.topic] = max(held.get(placement.topic, 0), lag)
        return {topic: count for topic, count in held.items() if count}

    def check_size(self, topic: str, batch: Batch) -> None:
        """Raise TooLarge where a message needs a greater frame than is taken on any path to a group."""
        entry = self.ground.topics.get(topic)
        if entry is None or frame_size(MOST_NAMES, 1, 1, batch.size) <= self.routes.least_frame:
            return
        # Of many messages only the payloads are measured, which is most of them. Lanes measure the rest.
        size = batch.size if len(batch) == 1 else batch.largest_payload()
        frame = frame_size(min(names_size(entry.groups), MOST_NAMES), 1, 1, size)
        for group in entry.groups:
            members = self.ground.members(group)
            if members and not any(self._takes(member, frame) for member in members):
                names = ", ".join(map(self.ground.name_of, members))
                raise TooLarge(
                    f"a message of {size} bytes, in a frame of {frame}, is more than any path takes to the"
                    f" group {group} at {names}",
                    hint="send it in parts, or raise max_frame at the terminals on the way",
                )

    def _takes(self, terminal: str, frame: int) -> bool:
        """Whether a frame of so many bytes gets to a terminal, or nothing is known to the contrary."""
        if terminal == self.ground.me or self.routes.best(terminal) is None:
            return True
        return self.routes.wide(terminal, frame) is not None

    # -- lanes -------------------------------------------------------------------------------------

    def look_again(self, topic: str | None = None) -> None:
        """Paths, tickets or room have changed: send what waits, of this topic or of all."""
        for (name, _), lane in list(self.lanes.items()):
            if topic is None or name == topic:
                lane.look_again()

    def _waits_for_ticket(self, topic: str) -> bool:
        return any(lane.outbound.waiting() for (name, _), lane in self.lanes.items() if name == topic)

    def returned(self, id: bytes) -> None:
        """A hop has sent a shipment back."""
        for lane in self.lanes.values():
            shipment = lane.outbound.find(id)
            if shipment is not None:
                lane.returned(shipment)
                return

    def heard(self, source: str, message: Control) -> None:
        """A control message about shipments from here."""
        match message:
            case Arrived() | Stuck() | Missing() | EpochOver():
                lane = self.lanes.get((message.stream.topic, source))
                if lane is not None and lane.topic.created_at == message.stream.incarnation:
                    lane.heard(message)
            case Have():
                self._compared(source, message)
            case Withdrawn():
                self.totals.doubled += count(message.late)
            case Tell():
                for waiter in self._asked.pop((source, message.ask), []):
                    if not waiter.done():
                        waiter.set_result(message)
            case _:
                raise BadRequest(f"{type(message).__name__} for a source")

    # -- asking at the other end -------------------------------------------------------------------

    async def ask(self, terminal: str, question: Ask, within: float) -> Tell | None:
        """None if no answer came: the question or the answer got lost, or the message isn't settled yet."""
        waiter: asyncio.Future[Tell] = asyncio.get_running_loop().create_future()
        waiters = self._asked.setdefault((terminal, question), [])
        waiters.append(waiter)
        self._say(terminal, question)
        try:
            async with asyncio.timeout(within):
                return await waiter
        except TimeoutError:
            return None
        finally:
            waiters.remove(waiter)
            if not waiters and self._asked.get((terminal, question)) is waiters:
                del self._asked[terminal, question]

    async def acked(self, topic: Home, group: str, offset: int) -> None:
        """Wait until the group's consumer has acked a message, wherever that is. The question is repeated,
        because neither side keeps it for long."""
        question = Ask(topic.name, topic.created_at, group, offset, True)
        while True:
            target = self.went_to(topic.name, group, offset)
            if not target:
                await asyncio.sleep(TARGET_AGAIN)
            elif await self.ask(target, question, ASK_AGAIN) is not None:
                return

    def went_to(self, topic: str, group: str, offset: int) -> str:
        """The terminal that a message went to or goes to; empty if there is none yet."""
        record = self.record_of(topic, group, offset)
        if record is not None:
            return record.destination
        placement = self.placements.get((topic, group))
        return placement.target if placement is not None else ""

    def record_of(self, topic: str, group: str, offset: int) -> ShipmentRecord | None:
        return self.records.find(topic, group, offset)

    def close(self) -> None:
        for lane in self.lanes.values():
            lane.close()
        self.tickets.close()
        for task in self._making.values():
            task.cancel()
        for waiters in self._asked.values():
            for waiter in waiters:
                waiter.cancel()
