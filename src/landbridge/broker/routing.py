"""Routing: the messages of a topic into the topics of the rules that choose them (ADR 33).

A topic that rules choose from, their *source*, has a group of the terminal's own, ``$rules``. Its cursor says
how far the rules have come. A turn of a route reads a stretch behind the cursor, lets the rules choose in a
thread of its own, and stores what they chose together with the moved cursor in one commit: so a terminal that
is killed loses and doubles nothing, and retention waits for the rules as for any group. What is chosen is not
written again: the rule's topic names the stored batch and which of its messages it has.

A rule that would need more than its budget for a message is undecided. Then the message goes to the source's
dead letters, in the same commit; the other rules have chosen as always.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from functools import partial
from threading import Event
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit, ChosenFrom
from landbridge.broker.fair_thread import FairThread
from landbridge.broker.figures import GatewayFigure
from landbridge.broker.group import Group
from landbridge.broker.topic import Topic
from landbridge.core.delivery.delivery import Condemned
from landbridge.core.log.batch import Batch
from landbridge.core.names import CONTENT_DEAD, CONTENT_TOPIC, RULES_GROUP
from landbridge.core.rules.choice import RowChoice, encode_choice, runs_of
from landbridge.core.rules.query import Query, Rule, document_of, read_query, topic_of
from landbridge.core.rules.ruleset import CompiledQuery, RuleSet
from landbridge.core.topic import RuleSpec, TopicSpec, group_spec
from landbridge.errors import BacklogFull, BadRequest, BusError, UnknownTopic
from landbridge.stores.writer import Commit

T = TypeVar("T")

#: Messages, bytes and copies of one turn; a batch that is larger takes several turns.
TURN_MESSAGES, TURN_BYTES, TURN_COPIES = 1024, 1 << 20, 1024
#: Seconds after which a turn ends with the message that is being looked at: costly rules take up to a second
#: for one, and the rules of other sources wait for the same thread.
TURN_SECONDS = 0.1
#: Rules that are compiled in one turn: a tenth of a second, mostly.
TURN_CHANGES = 200
#: Compiled rules that the garbage collector leaves alone from then on: they stay, and to look through ten
#: thousand of them stops the terminal for some tenths of a second.
FREEZE_EVERY = 500
#: Seconds after which a turn that failed is tried again.
AGAIN_AFTER = 1.0
#: Seconds for which the topic of a rule keeps messages at most, unless somebody changes it.
LONGEST_KEPT = 7 * 86400.0


class SourceStretch(NamedTuple):
    """Messages of a source that follow each other."""

    first: int  #: offset of the batch's first message
    batch: Batch  #: as it is stored
    lo: int  #: which of its messages
    hi: int
    seen: Batch  #: as consumers get it, which is what the rules look at


class Chosen(NamedTuple):
    """Messages of a batch that a rule has chosen."""

    rule: str
    messages: Batch
    first: int  #: offset in the source of the batch that they are of
    source: ChosenFrom


class Routed(NamedTuple):
    """What a turn has found."""

    begin: int  #: the offset of the first message that was looked at, and the one behind the last
    end: int
    chosen: list[Chosen]
    undecided: list[tuple[int, Condemned, Batch, int]]  #: offset, cause, batch and place in it


class EnterRule(Protocol):
    """Writes the entry of the audit log in the commit that makes or removes a rule."""

    def __call__(
        self, commit: Commit, name: str, before: RuleSpec | None, after: RuleSpec | None
    ) -> None: ...


class RuleThread:
    """The rules of one source, compiled. Used by the thread alone."""

    def __init__(self, stop: Event, clock: Callable[[], float] = time.monotonic) -> None:
        self._rules = RuleSet()
        self._stop = stop
        self._clock = clock
        #: Rule → the offset from which on it chooses. Kept, because turns may come here again: after a commit
        #: that failed, or when an operator lets the rules choose again.
        self._begins: dict[str, int] = {}
        #: Rules that were compiled since the collector was last told to leave them alone.
        self._fresh = 0

    def change(self, changes: Iterable[tuple[str, RuleSpec | None]]) -> list[tuple[str, BusError]]:
        """Add rules, or remove those without a spec. Returns those that can't be used, with the reason."""
        refused: list[tuple[str, BusError]] = []
        for name, spec in changes:
            try:
                if spec is not None:
                    self._rules.add(Rule(name, read_query(spec.query)))
                    self._begins[name] = spec.begin
                    self._fresh += 1
                elif name in self._rules:
                    self._rules.remove(name)
                    self._begins.pop(name, None)
            except BusError as error:
                refused.append((name, error))
            except Exception as crash:  # a bug: the other rules must not be lost with this one
                refused.append((name, BusError(f"the rule can't be compiled: {crash!r}")))
        if self._fresh >= FREEZE_EVERY:
            self._fresh = 0
            gc.freeze()
        return refused

    def route(self, stretches: list[SourceStretch]) -> Routed:
        """Let the rules choose."""
        begin = end = stretches[0].first + stretches[0].lo
        routed = Routed(begin, end, [], [])
        ends_at = self._clock() + TURN_SECONDS
        for stretch in stretches:
            if stretch.batch.audience is not None and stretch.batch.origin is None:
                # Published here for some groups alone: a redrive. The rules have seen it before.
                end = stretch.first + stretch.hi
                continue
            end = self._look(stretch, ends_at, routed)
            if self._stop.is_set() or self._clock() >= ends_at or len(routed.chosen) >= TURN_COPIES:
                break
        return routed._replace(end=end)

    def _look(self, stretch: SourceStretch, ends_at: float, routed: Routed) -> int:
        """Let the rules choose from a stretch until the turn is over, from one message of it at least.
        Returns the offset behind the last message that they have looked at."""

        def is_over() -> bool:
            return self._clock() >= ends_at or self._stop.is_set()

        rows: dict[str, list[int]] = {}
        at = self._match(stretch, stretch.lo, stretch.hi, rows, routed, is_over)
        routed.chosen.extend(self._choices(stretch, rows))
        return stretch.first + at

    def _match(
        self,
        stretch: SourceStretch,
        lo: int,
        hi: int,
        rows: dict[str, list[int]],
        routed: Routed,
        is_over: Callable[[], bool],
    ) -> int:
        """Let the rules choose from some messages. Returns the place behind the last one that they have
        looked at."""
        try:
            matched, looked_at = self._rules.match_until(is_over, stretch.seen.slice(lo, hi))
        except Exception as crash:  # a bug: the message that shows it must not hold those behind it
            if hi - lo == 1:
                failed = Condemned(1, f"the rules failed: {crash!r}")
                routed.undecided.append((stretch.first + lo, failed, stretch.seen, lo))
                return hi
            while lo < hi:
                lo = self._match(stretch, lo, lo + 1, rows, routed, is_over)
                if is_over():
                    break
            return lo
        for rule, found in matched.rows.items():
            rows.setdefault(rule, []).extend([lo + row for row in found])
        causes: dict[int, list[str]] = {}
        for rule, row, cause in matched.exceeded:
            if stretch.first + lo + row >= self._begins.get(rule, 0):
                causes.setdefault(lo + row, []).append(f"rule {rule}: {cause}")
        for row, those in sorted(causes.items()):
            more = f" (and {len(those) - 1} more rules)" if len(those) > 1 else ""
            routed.undecided.append(
                (stretch.first + row, Condemned(1, f"{those[0]}{more}"), stretch.seen, row)
            )
        return lo + looked_at

    def _choices(self, stretch: SourceStretch, rows: dict[str, list[int]]) -> Iterator[Chosen]:
        first, batch = stretch.first, stretch.batch
        for rule, found in rows.items():
            if (begin := self._begins.get(rule, 0)) > first + found[0]:
                found = [row for row in found if first + row >= begin]
                if not found:
                    continue
            choice = RowChoice(first, runs_of(found))
            yield Chosen(rule, choice.of(batch), first, ChosenFrom(encode_choice(choice), batch.stored_size))


class RuleRoute:
    """The way from one source to the topics of its rules."""

    def __init__(self, routing: Routing, source: Topic, group: Group) -> None:
        self._routing, self._broker = routing, routing.broker
        self.source, self.group = source, group
        #: The topics of the rules, by name.
        self.rules: dict[str, Topic] = {}
        self._thread = RuleThread(routing.stop)
        #: Rules that came and went since the thread was told.
        self._changes: list[tuple[str, RuleSpec | None]] = []
        self._task: asyncio.Task[None] | None = None
        self._again: asyncio.TimerHandle | None = None
        source.on_grown = self.wake

    def add(self, topic: Topic) -> None:
        """A rule is on disk."""
        self.rules[topic.name] = topic
        self._changes.append((topic.name, topic.spec.rule))
        self.wake()

    def remove(self, name: str) -> None:
        """A rule is gone."""
        if self.rules.pop(name, None) is not None:
            self._changes.append((name, None))

    @property
    def is_compiling(self) -> bool:
        """Are there rules that wait for the next turn?"""
        return bool(self._changes) and self._task is not None

    def wake(self) -> None:
        """There may be something to do."""
        if self._task is None and self._again is None and self._is_behind():
            self._task = self._routing.spawn(self._work())

    def _is_behind(self) -> bool:
        group = self.group
        if group.deleted or group.damaged is not None or self._routing.stop.is_set():
            return False
        return group.delivery.cursor.floor < self.source.log.end or bool(self._changes)

    async def _work(self) -> None:
        try:
            while self._is_behind():
                await self._turn()
        except BusError as error:  # a full disk, or a batch that can't be read: nothing is skipped
            if not self._routing.stop.is_set():
                self._broker.report(self.source.name, error)
                self._again = asyncio.get_running_loop().call_later(AGAIN_AFTER, self._try_again)
        finally:
            self._task = None
        self.wake()  # a message may have come since the last look

    def _try_again(self) -> None:
        self._again = None
        self.wake()

    async def _turn(self) -> None:
        stretches = await self._read()
        changes, self._changes = self._changes[:TURN_CHANGES], self._changes[TURN_CHANGES:]
        if self._changes:
            stretches = []  # no message is looked at before all rules are there
        if not stretches and not changes:
            return
        refused, routed = await self._routing.run(
            self.source.name, partial(self._evaluate, changes, stretches)
        )
        for name, error in refused:
            self._broker.report(name, error)
        if routed is not None and routed.end > routed.begin:
            await self.source.writer.put(partial(self._store, routed))

    def _evaluate(
        self, changes: list[tuple[str, RuleSpec | None]], stretches: list[SourceStretch]
    ) -> tuple[list[tuple[str, BusError]], Routed | None]:
        """In the thread."""
        refused = self._thread.change(changes)
        return refused, self._thread.route(stretches) if stretches else None

    async def _read(self) -> list[SourceStretch]:
        """What the rules look at next."""
        log, at = self.source.log, self.group.catch_up().cursor.floor
        reader = self.source.reader_for(RULES_GROUP)
        found: list[SourceStretch] = []
        left = TURN_MESSAGES
        for first, batch in await log.fetch(at, TURN_BYTES) if at < log.end else ():
            lo = max(0, at - first)
            hi = min(len(batch), lo + left)
            seen = batch
            if reader is not log:
                changed = await reader.read(first)
                if changed is None or changed[0] != first or len(changed[1]) != len(batch):
                    break  # it was trimmed meanwhile
                seen = changed[1]
            found.append(SourceStretch(first, batch, lo, hi, seen))
            left -= hi - lo
            if not left:
                break
        return found

    def _store(self, routed: Routed, commit: BrokerCommit) -> None:
        """What was chosen, and the cursor behind it, in one commit."""
        source, group, log = self.source, self.group, self.source.log
        delivery = group.catch_up()
        before = delivery.cursor.floor
        if source.deleted or group.deleted or before < routed.begin:
            return  # the last: somebody has moved the cursor back meanwhile
        if routed.chosen or routed.undecided:
            commit.need_room()
        keeps, messages_chosen = commit.keeps(log), 0
        grown: set[Topic] = set()
        for rule, messages, first, chosen_from in routed.chosen:
            topic = self.rules.get(rule)
            if topic is None or topic.deleted or topic.spec.rule is None:
                continue
            if topic.spec.rule.begin >= routed.end:
                continue  # made anew meanwhile
            topic.save(commit)
            grown.add(topic)
            if keeps and first >= log.first:
                commit.append(topic.log, messages, held=(log.number, first), chosen=chosen_from)
            else:  # the source has let go of the batch meanwhile
                commit.append(topic.log, messages)
            messages_chosen += len(messages)
        group.copy_to_dead_topic(commit, routed.undecided)
        commit.on_stored.append(
            partial(self._routing.count, messages_chosen, undecided=len(routed.undecided))
        )
        delivery.seek(max(before, routed.end))
        group.save(commit)
        commit.on_stored.append(partial(self._stored, grown))
        commit.on_failed.append(partial(delivery.seek, before))

    def _stored(self, grown: set[Topic]) -> None:
        for topic in grown:
            try:
                topic.check_held()
            except BacklogFull:
                self.source.full_rules.add(topic)
        self.group.tell_watchers()
        if self.source.spec.retention.settled and not self.source.deleted:
            self._broker.trimmer.plan(self.source, soon=True)

    def close(self) -> None:
        self.source.on_grown = None
        if self._again is not None:
            self._again.cancel()


class Routing:
    """The rules of a terminal. What rules there are stands in the options of their topics."""

    def __init__(
        self, broker: Broker, spawn: Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]
    ) -> None:
        self.broker, self.spawn = broker, spawn
        self.routes: dict[str, RuleRoute] = {}  #: by the name of the source
        self.stop = Event()
        #: One thread: it would share one core with the others anyway, and a rule set is for one thread alone.
        #: Sources share its time, so that one whose rules are costly holds up no other one.
        self._thread = FairThread("landbridge-rules")
        #: Held while a rule is made or removed.
        self._changing = asyncio.Lock()
        self._routed = self._undecided = 0
        broker.figures.append(self._figures)

    async def open(self, unit: int) -> None:
        """Go on where the terminal was, with the topics of a unit."""
        topics = [topic for topic in self.broker.topics.values() if topic.writer.unit == unit]
        for topic in topics:
            rule = topic.spec.rule
            source = None if rule is None else self.broker.topics.get(rule.source)
            if source is not None and (group := source.groups.get(RULES_GROUP)) is not None:
                self._route(source, group).add(topic)
        for topic in topics:
            # Its last rule was deleted, and then the terminal was killed.
            if topic.name not in self.routes and (group := topic.groups.get(RULES_GROUP)) is not None:
                await self.broker.table.delete_group(group)

    def forget(self) -> None:
        """The rules of topics that are another node's from now on are evaluated there."""
        for source in [source for source, route in self.routes.items() if route.source.deleted]:
            self.routes.pop(source).close()

    def close(self) -> None:
        """Begin no turn any more. One that is not stored is made again after the next start."""
        self.stop.set()
        for route in self.routes.values():
            route.close()
        self._thread.close()

    async def until_idle(self) -> None:
        """Wait until the rules that are there are compiled."""
        for source, route in list(self.routes.items()):
            while route.is_compiling:
                await self.run(source, lambda: None)
            await self.run(source, lambda: None)

    async def run(self, source: str, work: Callable[[], T]) -> T:
        """Do something for the rules of a source, in the thread of the rules."""
        try:
            return await self._thread.run(source, work)
        except BusError:
            raise
        except Exception as crash:
            raise BusError(f"the rules failed: {crash!r}") from crash

    def _route(self, source: Topic, group: Group) -> RuleRoute:
        found = self.routes.get(source.name)
        if found is None or found.group is not group:
            found = self.routes[source.name] = RuleRoute(self, source, group)
        return found

    @property
    def rules(self) -> list[Topic]:
        """The topics of all rules, by name; without one that is still to be stored."""
        found = (topic for topic in self.broker.topics.values() if topic.spec.rule and topic.stored)
        return sorted(found, key=lambda topic: topic.name)

    def of_source(self, source: str) -> list[Topic]:
        """The topics of the rules that choose from a topic."""
        return [topic for topic in self.rules if topic.spec.rule and topic.spec.rule.source == source]

    # -- making and removing -------------------------------------------------------------------------

    async def create(
        self, query: Query, source: str, caller: TokenBearer, enter: EnterRule
    ) -> tuple[Topic, bool]:
        """The topic of a query's messages, and whether it is new. Its rule chooses from what is published
        from now on. BadRequest names what is wrong with the query."""
        broker, name, owner = self.broker, topic_of(query, source), caller.subject
        async with self._changing:
            found = broker.topics.get(name)
            if found is not None and found.stored and not found.deleted:
                return found, False
            if found is not None and found.deleted:
                await found.writer.drain()
                found = broker.topics.get(name)
            self._check_room(caller)
            origin = self._source(source, owner)
            await self.run(source, partial(CompiledQuery, query))
            if found is None:
                rule = RuleSpec(source=source, query=document_of(query), owner=owner)
                found = broker.table.create_topic(self._spec(name, origin, rule), owner)
            await origin.writer.put(partial(self._make, origin, found, enter))
        broker.observe("rule", name, "created", owner, after={"source": source, "query": document_of(query)})
        return found, True

    def _spec(self, name: str, source: Topic, rule: RuleSpec) -> TopicSpec:
        """The topic of a rule keeps its messages no longer than its source, and holds no more."""
        kept = source.spec.retention
        age = LONGEST_KEPT if kept.max_age is None else min(kept.max_age, LONGEST_KEPT)
        most = min(self.broker.limits.max_backlog, source.spec.max_backlog)
        return TopicSpec(
            name=name, retention=replace(kept, settled=False, max_age=age), max_backlog=most, rule=rule
        )

    def _make(self, source: Topic, topic: Topic, enter: EnterRule, commit: BrokerCommit) -> None:
        """The rule's topic and, for the first rule, the cursor of all, in one commit."""
        if source.deleted:
            raise UnknownTopic(f"the topic {source.name} was deleted")
        commit.need_room()
        end = commit.end_of(source.log)
        group = source.groups.get(RULES_GROUP)
        if group is None:
            dead_letter = CONTENT_DEAD if source.name == CONTENT_TOPIC else None
            spec = group_spec({"topic": source.name, "name": RULES_GROUP, "dead_letter": dead_letter})
            group = self.broker.table.create_group(source, spec, end)
            commit.on_failed.append(partial(_forget, group))
        assert topic.spec.rule is not None
        topic.spec = replace(topic.spec, rule=replace(topic.spec.rule, begin=end))
        topic.save(commit)
        group.save(commit)
        enter(commit, topic.name, None, topic.spec.rule)
        # At once when it is on disk: what follows in this very commit is the rule's already.
        commit.on_stored.append(lambda: self._route(source, group).add(topic))

    def _check_room(self, caller: TokenBearer) -> None:
        def own() -> int:
            rules = (topic.spec.rule for route in self.routes.values() for topic in route.rules.values())
            return sum(rule is not None and rule.owner == caller.subject for rule in rules)

        count = sum(len(route.rules) for route in self.routes.values())
        self.broker.shares.check("max_rules", "rules", count, own, caller)

    def _source(self, name: str, owner: str) -> Topic:
        source = self.broker.table.topic_for(name, who=owner)
        if source.spec.has_one_group:
            raise BadRequest(
                f"{name} is a queue, whose messages are for one group", hint="let rules choose from a stream"
            )
        if source.spec.rule is not None:
            raise BadRequest(f"{name} is the topic of a rule", hint=f"choose from {source.spec.rule.source}")
        return source

    async def delete(self, topic: Topic, who: str, enter: EnterRule) -> None:
        """Remove a rule with its topic."""
        rule = topic.spec.rule
        assert rule is not None
        async with self._changing:
            # Until the deletion is on disk the rule goes on: if that fails, it has missed nothing.
            entry = partial(enter, name=topic.name, before=rule, after=None)
            await self.broker.table.delete_topic(topic, who, entry)
            route = self.routes.get(rule.source)
            if route is not None:
                route.remove(topic.name)
            if route is not None and not route.rules:
                route.close()
                del self.routes[rule.source]
                if not route.group.deleted:
                    await self.broker.table.delete_group(route.group, who)
        self.broker.observe("rule", topic.name, "deleted", who)

    # -- figures -------------------------------------------------------------------------------------

    def count(self, messages: int, *, undecided: int) -> None:
        self._routed += messages
        self._undecided += undecided

    def _figures(self) -> Iterator[GatewayFigure]:
        rules = sum(len(route.rules) for route in self.routes.values())
        yield GatewayFigure("landbridge_rules", "rules now", {}, rules, counts=False)
        yield GatewayFigure("landbridge_routed", "messages put into topics of rules", {}, self._routed)
        yield GatewayFigure(
            "landbridge_undecided", "messages that a rule had no budget for", {}, self._undecided
        )


def _forget(group: Group) -> None:
    """A group that was to be stored, and was not: retention must not wait for it."""
    group.topic.groups.pop(group.name, None)
    group.close()
