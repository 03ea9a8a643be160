"""Writes the audit log: an entry for each change that an operation makes, in the very commit that makes the
change. Where the change lives in another unit than the topic ``$audit``, the commit has a handover with the
entry instead (ADR 18). So no change is without its entry, and no entry without its change (ADR 38).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import msgspec

from landbridge.broker.authority import TokenBearer
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.committing import Committing
from landbridge.broker.topic_table import TopicTable
from landbridge.broker.units import Units
from landbridge.core import audit
from landbridge.core.audit import AuditEntry
from landbridge.core.log.batch import Batch, build
from landbridge.core.status import StatusLog
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import Forbidden, StoreCorrupt
from landbridge.protocol.operations import Operation, TopicDelete
from landbridge.stores.writer import Commit, Writer


class AuditedCaller(TokenBearer, Protocol):
    """Who asks for an operation that changes something."""

    def enter(
        self, commit: Commit, name: str, before: object = None, after: object = None, *, what: str = ""
    ) -> None:
        """Write an entry of the audit log in the commit that makes the change. ``name``: of the thing.
        ``before`` and ``after``: structs or JSON values; None where there is nothing. ``what``: what kind of
        thing it is, where that is not the operation's noun."""

    def change_nothing(self) -> None:
        """Everything is as it was asked for already: there is no entry."""


class CallSource(TokenBearer, Protocol):
    """The connection that an operation came over."""

    #: Where it comes from, and what the program calls itself.
    peer: str
    name: str
    #: It is a part of the terminal that works for itself, or for strangers.
    is_part: bool

    @property
    def token_id(self) -> str:
        """Names the token that was shown, or the credential."""


class RefusalTotals(Protocol):
    """Counters since the start."""

    forbidden: int


class AuditedBroker(Protocol):
    """What the audit log asks of the broker."""

    clock: Callable[[], int]
    units: Units
    table: TopicTable
    committing: Committing
    status: StatusLog
    #: Topics whose document is damaged.
    damaged: dict[str, StoreCorrupt]

    @property
    def totals(self) -> RefusalTotals: ...

    def new_id(self) -> bytes: ...


class AuditedCall:
    """An operation that changes something, while it is answered."""

    def __init__(
        self, log: AuditLog, source: CallSource, operation: Operation[..., Any, Any], origin: str
    ) -> None:
        self._log, self._source, self._operation, self._origin = log, source, operation, origin
        #: Whether the handler has said what it changes.
        self.is_told = False

    @property
    def subject(self) -> str:
        return self._source.subject

    @property
    def scopes(self) -> Scopes:
        return self._source.scopes

    def enter(
        self, commit: Commit, name: str, before: object = None, after: object = None, *, what: str = ""
    ) -> None:
        """See ``AuditedCaller``."""
        self.is_told = True
        source = self._source
        if source.is_part:
            return  # nobody has asked for it who could be named; strangers could drive out all other entries
        from_, to, cut = audit.told(before, after)
        entry = AuditEntry(
            time=commit.now,
            operation=self._operation.name,
            what=what or self._operation.name.partition(".")[0],
            name=name,
            who=source.subject,
            token=source.token_id,
            peer=source.peer,
            origin=self._origin,
            program=source.name,
            before=from_,
            after=to,
            cut=cut,
        )
        assert isinstance(commit, BrokerCommit), "the audit log is the broker's"
        self._log.write(commit, entry)

    def change_nothing(self) -> None:
        """See ``AuditedCaller``."""
        self.is_told = True

    async def end(self, request: object) -> None:
        """The handler has changed something. One that has not said what gets an entry with what was asked
        for, in a commit of its own."""
        if not self.is_told and not self._source.is_part:
            asked = msgspec.to_builtins(request)
            name = "/".join(str(asked.pop(key)) for key in ("topic", "name") if key in asked)
            enter = partial(self.enter, name=name, after=asked)
            writer = self._log.writer
            if writer is None:
                self._log.tell(enter)
            else:
                await writer.put(enter)


class AuditLog:
    def __init__(self, broker: AuditedBroker) -> None:
        self._broker = broker

    @property
    def writer(self) -> Writer[BrokerCommit] | None:
        """Of the unit that the topic lives in, or of one that this node owns; None where it owns none."""
        broker = self._broker
        return (
            broker.table.topic_for(audit.TOPIC).writer
            if broker.units.has(audit.TOPIC)
            else next(iter(broker.units.writers), None)
        )

    def tell(self, enter: Callable[[Commit], None]) -> None:
        """Write an entry from a node that owns nothing. It is lost if the process ends just then."""
        commit = BrokerCommit(self._broker.clock(), -1)
        enter(commit)

    def call(self, source: CallSource, operation: Operation[..., Any, Any], origin: str = "") -> AuditedCall:
        return AuditedCall(self, source, operation, origin)

    def check(self, request: object) -> None:
        """StoreCorrupt where no entry can be written: then nothing is begun that would be without one. An
        administrator can give the damaged log up."""
        gives_up = isinstance(request, TopicDelete) and request.name == audit.TOPIC
        if audit.TOPIC in self._broker.damaged and not gives_up:
            raise self._broker.damaged[audit.TOPIC]

    def note_forbidden(self, source: CallSource, operation: Operation[..., Any, Any]) -> None:
        """Somebody has asked for what his token doesn't allow. That goes to the status log, where floods are
        gathered: in the audit log they would drive out what has been changed."""
        broker = self._broker
        broker.totals.forbidden += 1
        broker.status.note(
            broker.clock(),
            "refuse",
            who=source.subject,
            peer=source.peer,
            cause=Forbidden.code,
            detail=f"operation {operation.name}",
        )

    def write(self, commit: BrokerCommit, entry: AuditEntry) -> None:
        """Write an entry within a commit. What frees room on a full disk is audited too: there the commit has
        a handover, which is as small as what the disk's reserve is there for, and the entry follows when
        there is room."""
        broker = self._broker
        topic = broker.table.topic_for(audit.TOPIC) if broker.units.has(audit.TOPIC) else None
        raw = build([audit.encode(entry)], id=broker.new_id(), time=commit.now, keys=[entry.key])
        batch = Batch.decode(raw)
        if topic is not None and topic.writer.unit == commit.unit and commit.full is None:
            commit.can_shrink = True
            topic.save(commit)
            commit.append(topic.log, batch, needs_room=False)
        elif commit.unit < 0:
            broker.committing.tell(audit.TOPIC, batch)
        else:
            broker.units.handovers[commit.unit].add_untold(commit, audit.TOPIC, batch)
