"""Operations on groups."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.group import Enter, Group, Home
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher, may_see
from landbridge.broker.topic import Topic
from landbridge.broker.turns import TOPIC_COUNTS, Turns
from landbridge.core.names import RULES_GROUP
from landbridge.core.options import differences
from landbridge.core.topic import group_spec, new_group
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, GroupExists, OffsetGone, OtherLog
from landbridge.protocol import operations as table


class GroupOperations:
    """The handlers of group.*"""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.GROUP_CREATE, self.create)
        dispatcher.register(table.GROUP_UPDATE, self.update)
        dispatcher.register(table.GROUP_LIST, self.list_page)
        dispatcher.register(table.GROUP_SHOW, self.show)
        dispatcher.register(table.GROUP_SEEK, self.seek)
        dispatcher.register(table.GROUP_ADVANCE, self.advance)
        dispatcher.register(table.GROUP_DELETE, self.delete)

    async def create(self, caller: AuditedCaller, request: table.GroupCreate) -> table.GroupRow:
        broker, topic, name = self._broker, request.topic, request.name
        if request.start is not None and request.offset is not None:
            raise BadRequest("a group begins at a start or at an offset, not at both")
        options = msgspec.to_builtins(request)
        options = {key: options[key] for key in options if key not in ("start", "offset")}
        group_spec(options)  # what is wrong is refused before a topic is made
        broker.table.check_group_name(name)
        found = broker.table.topic_for(topic, who=caller.subject, enter=topic_made(caller, topic))
        group = found.groups.get(name)
        # Its topic's discipline, unless it names one; and what is there already keeps the one that it has.
        default = found.spec.discipline if group is None else group.spec.discipline
        spec = group_spec({"discipline": default, **options})
        if group is None:
            if request.offset is not None:
                floor = _floor(found, request.offset)
            else:
                floor = await broker.table.position(found, request.start)
            if spec.dead_letter:
                broker.publishing.check_target(caller, spec.dead_letter)
                await broker.publishing.kind_elsewhere(caller, spec.dead_letter)
            # Another caller may have made it meanwhile.
            enter = partial(caller.enter, name=f"{topic}/{name}", after=spec, what="group")
            group = found.groups.get(name) or broker.table.create_group(
                found, spec, floor, who=caller.subject, enter=enter
            )
        elif group.spec != spec:
            raise GroupExists(
                f"the group {name} of {topic} exists with other options: {differences(group.spec, spec)}",
                hint="'landbridge group update' changes it",
            )
        if not group.stored:
            group.changed()  # the commit that was to store the group may have failed
        await self._save(group)
        caller.change_nothing()  # or else its making has an entry
        return describe_group(group)

    async def update(self, caller: AuditedCaller, request: table.GroupOptions) -> table.GroupRow:
        group = self._group(request.topic, request.name)
        spec = group_spec({**msgspec.to_builtins(group.spec), **msgspec.to_builtins(request)})
        if spec.dead_letter:
            self._broker.publishing.check_target(caller, spec.dead_letter)
            await self._broker.publishing.kind_elsewhere(caller, spec.dead_letter)
        before = group.spec
        group.change(spec)
        if before == spec:
            caller.change_nothing()
        else:
            name = f"{request.topic}/{request.name}"
            group.owe_entry(partial(caller.enter, name=name, before=before, after=spec, what="group"))
        await self._save(group)
        self._broker.observe_group(group, "updated", caller.subject, before, spec)
        return describe_group(group)

    def _group(self, topic: str, name: str) -> Group:
        return changeable(self._broker, topic, name)

    async def _save(self, group: Group) -> None:
        """Wait until what has changed of a group is on disk."""
        await save_group(group)

    async def list_page(self, caller: TokenBearer, request: table.GroupList) -> table.GroupRows:
        if request.topic is not None:
            topics = [self._broker.table.topic(request.topic)]
        else:
            begin = request.after.partition("/")[0]
            topics = [self._broker.topics[n] for n in sorted(n for n in self._broker.topics if n >= begin)]
        rows: list[table.GroupRow] = []
        last = tuple(request.after.split("/", 1)) if request.after else ("", "")
        turns = Turns()
        for found in topics:
            await turns.looked_at(TOPIC_COUNTS * (1 + len(found.groups)))
            if request.topic is None and not may_see(self._broker.topics, caller, found.name):
                continue
            for group in sorted(found.groups.values(), key=lambda g: g.name):
                if (found.name, group.name) > last:
                    rows.append(describe_group(group))
                if len(rows) >= PAGE:
                    return table.GroupRows(groups=rows, next=f"{found.name}/{group.name}")
        return table.GroupRows(groups=rows, next="")

    async def show(self, caller: TokenBearer, request: table.OfGroup) -> table.GroupDetails:
        group = self._broker.table.group(request.topic, request.name)
        consumers = [
            table.ConsumerRow(
                who=each.connection.who,
                held=group.delivery.held_by(each.number)[0],
                prefetch=each.prefetch,
            )
            for each in group.consumers.values()
        ]
        return table.GroupDetails(
            **_facts(group), options=group.spec, consumers=consumers, closed_until=group.closed_until()
        )

    async def seek(self, caller: AuditedCaller, request: table.GroupSeek) -> table.GroupRow:
        broker = self._broker
        group = broker.table.group(request.topic, request.name)
        to, time = request.to, request.time
        if (to is None) == (time is None):
            raise BadRequest("seek wants either 'to' or 'time'")
        if isinstance(to, int):
            floor = _floor(group.topic, to)
        else:
            at = time if to is None else to
            assert at is not None
            floor = await broker.table.position(broker.table.topic(request.topic), at)
        before = {"floor": group.delivery.cursor.floor}
        name = f"{request.topic}/{request.name}"
        broker.reservations.let_go(group)
        group.seek(floor)
        group.owe_entry(partial(caller.enter, name=name, before=before, after={"floor": floor}))
        await self._save(group)
        if (rules := broker.table.topic(request.topic).on_grown) is not None:
            rules()  # they go on from there
        broker.observe_group(group, "moved", caller.subject, before, {"floor": floor})
        return describe_group(group)

    async def advance(self, caller: TokenBearer, request: table.GroupAdvance) -> table.GroupRow:
        """A consumer that reads by offset is a Spark query, for example."""
        broker, topic, name = self._broker, request.topic, request.name
        found = broker.table.topic(topic)
        if request.log not in (None, found.log_id):
            raise OtherLog(f"offset {request.to} is of the log {request.log}, and {topic} has {found.log_id}")
        group = found.groups.get(name)
        to = max(found.log.first, min(request.to, found.log.end))
        broker.table.check_group_name(name)
        if group is None:
            group = broker.table.create_group(found, new_group(found.spec, name), to, who=caller.subject)
        else:
            if broker.crossing is not None:
                broker.crossing.check_subscribe(group)
            if group.own_consumers:
                raise BadRequest(
                    f"the group {name} of {topic} has consumers of its own", hint="use another group's name"
                )
            if to > group.delivery.cursor.floor:
                broker.reservations.let_go(group)
                group.seek(to)
        await self._save(group)
        if found.spec.retention.settled:
            broker.trimmer.plan(found, soon=True)
        return describe_group(group)

    async def delete(self, caller: AuditedCaller, request: table.GroupDelete) -> table.Deleted:
        group = self._group(request.topic, request.name)
        lag = group.delivery.cursor.lag(group.topic.log.end)
        if lag and not request.force:
            raise BadRequest(
                f"the group {group.name} hasn't settled {counted(lag, 'message')}",
                hint="use --force to delete it all the same",
            )
        enter = partial(caller.enter, name=f"{request.topic}/{request.name}", before=group.spec)
        await self._broker.table.delete_group(group, caller.subject, enter)
        return table.Deleted(deleted=f"{request.topic}/{request.name}")


def changeable(broker: Broker, topic: str, name: str) -> Group:
    """A group that is to be changed. BadRequest for the one whose cursor rules move."""
    group = broker.table.group(topic, name)
    if name == RULES_GROUP and group.damaged is None:
        raise BadRequest(
            f"the group {name} of {topic} says how far rules have come",
            hint="it goes with the last rule: 'landbridge rule list', 'landbridge rule delete'",
        )
    return group


def _floor(topic: Topic | Home, offset: int) -> int:
    """An offset that a group can be moved to: one in the log, or its end."""
    if offset < topic.log.first:
        raise OffsetGone(f"offset {offset} of {topic.name} is gone, the oldest is {topic.log.first}")
    return min(offset, topic.log.end)


def topic_made(caller: AuditedCaller, name: str) -> Enter:
    """Writes the entry of a topic that an operation on something else makes on its way."""
    return partial(caller.enter, name=name, after={"name": name}, what="topic")


async def save_group(group: Group) -> None:
    """Write down what has changed of a group, with what the audit log has of it, and wait for that."""
    if group.durable:
        await group.topic.writer.put(group.save)


def describe_group(group: Group) -> table.GroupRow:
    return table.GroupRow(**_facts(group), consumers=len(group.consumers))


def _facts(group: Group) -> dict[str, Any]:
    cursor, end = group.catch_up().cursor, group.topic.log.end
    return {
        "topic": group.topic.name,
        "name": group.name,
        "discipline": group.spec.discipline,
        "floor": cursor.floor,
        "lag": cursor.lag(end),
        "leased": group.delivery.leased,
        "retrying": len(cursor.tries),
        "durable": group.durable,
        "pause": group.pause,
    }
