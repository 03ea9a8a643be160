"""The broker: the topics of one terminal and all that happens to them. It owns the logs: it gives the
offsets, forms the commits and makes what is stored visible. This file puts its parts together:

- ``units.py``: which units of the store are here; ``unit_life.py``: how one comes and goes,
  ``unit_loading.py``: what is read of it.
- ``topic_table.py``: topics and groups, found, made and deleted.
- ``publishing.py``: batches of clients on their way in. ``consuming.py``: subscriptions and what is told of
  deliveries. ``transactions.py``: both at once; ``transaction_ledger.py``: which have happened;
  ``reservations.py``: what they ack in other units.
- ``committing.py``: what goes along with each commit, and what follows when it is on disk.
- ``status_topic.py``: the topic ``$status``. ``changes.py``: what observers are told.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterable

import msgspec

from landbridge.broker.changes import Changes
from landbridge.broker.clock import Clock
from landbridge.broker.committing import Committing
from landbridge.broker.consuming import Consuming
from landbridge.broker.damage import Damage
from landbridge.broker.documents import Documents
from landbridge.broker.figures import GatewayFigure
from landbridge.broker.group import Group
from landbridge.broker.limits import Limits
from landbridge.broker.log import Cache
from landbridge.broker.middleware import Middleware
from landbridge.broker.pauses import Pauses
from landbridge.broker.publishing import Publishing
from landbridge.broker.requests import Requests
from landbridge.broker.reservations import Reservations, TransactionAttempts
from landbridge.broker.room import DiskRoom
from landbridge.broker.set_limits import SetLimits
from landbridge.broker.shares import Shares
from landbridge.broker.status_topic import StatusTopic
from landbridge.broker.surroundings import Crossing, Elsewhere
from landbridge.broker.topic import Topic
from landbridge.broker.topic_changes import TopicChanges
from landbridge.broker.topic_table import TopicTable
from landbridge.broker.totals import Totals
from landbridge.broker.transaction_ledger import TransactionLedger
from landbridge.broker.transactions import Transacting
from landbridge.broker.trimmer import Trimmer
from landbridge.broker.unit_life import UnitLife
from landbridge.broker.units import Units
from landbridge.core.log.store import Store, Write
from landbridge.core.names import is_reserved
from landbridge.core.status import StatusLog
from landbridge.core.time import SECOND, uuid7
from landbridge.errors import BusError, StoreCorrupt
from landbridge.stores.writer import adding


class Broker:
    def __init__(
        self,
        store: Store,
        limits: Limits,
        *,
        name: str,
        clock: Callable[[], int] | None = None,
        auto_create: bool = True,
    ) -> None:
        #: The terminal's name, which is a part of the identity of its logs.
        self.name = name
        self.store = store
        #: The object changes while the terminal runs: see ``set_limits``.
        self.limits = msgspec.structs.replace(limits)
        self.clock: Callable[[], int] = clock or Clock()
        self.auto_create = auto_create
        self.topics: dict[str, Topic] = {}
        self.topic_changes = TopicChanges()
        self.totals = Totals()
        #: What else the metrics have: figures of gateways in this process.
        self.figures: list[Callable[[], Iterable[GatewayFigure]]] = []
        self.status = StatusLog()
        self.damage = Damage(self.status, lambda: self.clock())
        #: Topics whose document is damaged: name → why nobody can use them. Their messages are kept.
        self.damaged: dict[str, StoreCorrupt] = {}
        self.cache = Cache(limits.cache)
        #: The other terminals of this customer; None where this one stands alone.
        self.crossing: Crossing | None = None
        self.units = Units(store.units, self.topics)
        self.documents = Documents(store, self.units.unit_of, self._note_damaged)
        self.trimmer = Trimmer(self)
        self.room = DiskRoom(self, self.trimmer.run)
        self.ledger = TransactionLedger(self)
        self.committing = Committing(self)
        #: What observers are told.
        self._changes = Changes(self, self.committing.tell, lambda: store.is_low)
        self.table = TopicTable(self)
        self.publishing = Publishing(self)
        self.middleware = Middleware(self.publishing, self.cache)
        self.shares = Shares(self.limits)
        self.figures += [self.middleware.figures, self.shares.figures]
        #: Requests and replies that are not written to disk.
        self.requests = Requests(self.limits, self.totals, self.clock)
        #: Limits that an operator has set.
        self.set_limits = SetLimits(self)
        self.set_limits.on_change.append(lambda: self.cache.resize(self.limits.cache))
        #: What an operator has paused.
        self.pauses = Pauses(self)
        self.consuming = Consuming(self)
        #: Messages that transactions of other units ack, and the transactions of these units that do so.
        self.reservations, self.attempts = Reservations(self), TransactionAttempts(self)
        self.transacting = Transacting(self)
        self.status_topic = StatusTopic(self)
        self.life = UnitLife(self)
        self._ticker: asyncio.TimerHandle | None = None

    async def open(self) -> None:
        """Own all units of the store from now on."""
        for finding in self.store.findings:
            self.damage.note(finding)
        await self.life.open()
        self._tick()

    async def open_shared(self, elsewhere: Elsewhere) -> None:
        """Begin as a node that owns no unit yet: see ``UnitLife.take``."""
        for finding in self.store.findings:
            self.damage.note(finding)
        self.life.open_shared(elsewhere)
        self._tick()

    async def close(self) -> None:
        """Write what has come, and stop."""
        if self._ticker is not None:
            self._ticker.cancel()
        self.requests.close()
        await self.trimmer.close()
        await self.middleware.close()
        await self.transacting.close()
        await self.reservations.close()
        for handovers in self.units.handovers:
            await handovers.close()
        self.status_topic.write()
        self._changes.write()
        # What has come is written before the groups are closed, for a closed group writes nothing.
        for writer in self.units.writers:
            writer.poke()
        await self.drain()
        for topic in self.topics.values():
            for group in topic.groups.values():
                group.close()
        for writer in self.units.writers:
            await writer.close()

    async def drain(self) -> None:
        """Wait until all that is queued is written."""
        for writer in self.units.writers:
            await writer.drain()

    @property
    def commits(self) -> int:
        """Commits to the store since the start."""
        return sum(writer.commits for writer in self.units.writers)

    @property
    def commit_seconds(self) -> float:
        """What the commits have taken since the start, together."""
        return sum(writer.commit_seconds for writer in self.units.writers)

    async def write(self, writes: Iterable[Write], *, unit: int = 0) -> None:
        """Commit these to a unit, with whatever cursors of it have changed, and wait."""
        await self.units.writers[unit].put(adding(writes))

    def report(self, topic: str, error: BusError) -> None:
        """Tell the status log of an error that nobody waits for."""
        self.status.note(self.clock(), "error", topic=topic, cause=error.code, detail=str(error))

    def new_id(self) -> bytes:
        return uuid7(self.clock(), os.urandom(10))

    def _tick(self) -> None:
        """Once a second: write the status log, follow the wall clock, trim."""
        self._ticker = asyncio.get_running_loop().call_later(1.0, self._tick)
        if isinstance(self.clock, Clock) and (jump := self.clock.resync()):
            self.status.note(self.clock(), "clock", detail=f"set by {jump / SECOND:+.1f} s")
            for topic in self.topics.values():
                for group in topic.groups.values():
                    group.shift(jump)
        self.committing.catch_up()
        self.room.tick()
        self.status_topic.tick()
        self._changes.write()
        self.trimmer.tick()
        self.ledger.tick()
        self.reservations.tick()

    def time_passed(self) -> None:
        """The clock was moved by hand: leases, delays, retention and the status log look at it now."""
        for topic in list(self.topics.values()):
            for group in list(topic.groups.values()):
                group.shift(0)
        self.status_topic.write()
        self.trimmer.tick()
        self.requests.time_passed()

    def observe(
        self, what: str, name: str, change: str, who: str = "", before: object = None, after: object = None
    ) -> None:
        """Tell observers of a change that is on disk, as an event of the topic ``$bus``. ``what``: "topic",
        "group", "service", … ``change``: "created", "updated", "deleted", … ``who``: the subject that has
        asked for it. ``before`` and ``after``: structs or JSON values; of an update, the difference is
        told."""
        self._changes.note(what, name, change, who, before, after)

    def observe_group(
        self, group: Group, change: str, who: str, before: object = None, after: object = None
    ) -> None:
        """The same for a change of a group."""
        if group.durable and not is_reserved(group.name):
            self.observe("group", f"{group.topic.name}/{group.name}", change, who, before, after)

    def _note_damaged(self, topic: str, error: StoreCorrupt) -> None:
        self.damage.note(str(error), error.hint, topic=topic)
