"""Everything that can be asked of a terminal beside messages: one method per operation, named as on the wire.

topic.create topic.update topic.list topic.show topic.delete
group.create group.update group.list group.show group.seek group.redrive group.delete
token.create token.list token.revoke
status.levels status.note
terminal.info terminal.metrics

topic.wait topic.seek_time group.advance

in stages.py, stage.commit stage.show stage.drop
in inquiries.py, message.wait message.where message.why route.show topology.show network.show
"""

from __future__ import annotations

import asyncio
import inspect
import typing
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from landbridge.broker.broker import Broker, unsettle
from landbridge.broker.group import Group
from landbridge.broker.metrics import render
from landbridge.broker.stages import Stages
from landbridge.broker.tokens import Issued, IssuedToken
from landbridge.broker.topic import KIND as TOPIC_KIND
from landbridge.broker.topic import Topic
from landbridge.broker.topic import encode as encode_topic
from landbridge.core.delivery.delivery import SECOND
from landbridge.core.log.batch import Batch, build, encode_headers
from landbridge.core.log.store import PutDocument
from landbridge.core.log.topic import group_spec, topic_spec
from landbridge.core.names import check_name
from landbridge.core.options import differences, explain
from landbridge.core.status import TOPIC as STATUS_TOPIC
from landbridge.core.status import parse_levels
from landbridge.core.wording import counted
from landbridge.crossing.inquiries import Inquiries
from landbridge.errors import BadRequest, GroupExists, LeaseLost, OffsetGone, TopicExists

if TYPE_CHECKING:
    from landbridge.broker.commit import Commit
    from landbridge.broker.connection import Connection
    from landbridge.broker.server import Terminal

#: Rows of one answer; the caller asks again with ``after``.
PAGE = 1000
REVOKED = "revoked"
#: Characters of a note's detail.
LONGEST_NOTE = 1024
#: Seconds that topic.wait waits at most.
LONGEST_WAIT = 60.0
#: Messages per commit of a redrive.
REDRIVE_AT_ONCE = 1000


class Operations:
    def __init__(self, terminal: Terminal) -> None:
        self._terminal = terminal
        self._broker: Broker = terminal.broker
        self._inquiries = Inquiries(terminal)
        self.stages = Stages(terminal)
        #: The tokens made here, for ``token.list``.
        self.issued = Issued(terminal.broker)

    async def call(self, connection: Connection, op: str, args: dict[str, Any]) -> object:
        method: Callable[..., Awaitable[object]] | None = None
        if not op.startswith("_"):
            name = op.replace(".", "_") if "." in op else ""
            for place in (self, self._inquiries, self.stages):
                method = method or getattr(place, name, None)
        if method is None:
            raise BadRequest(f"no operation {op[:60]!r}", hint="is the terminal older than the client?")
        _check_arguments(op, method, args)
        return await method(connection, **args)

    # -- topics ------------------------------------------------------------------------------------

    async def topic_create(self, connection: Connection, name: str, **options: Any) -> object:
        connection.scopes.demand_admin("create topics")
        if "max_backlog" not in options:
            options["max_backlog"] = self._broker.limits.max_backlog
        spec = topic_spec({"name": name, **options})
        if name.startswith("$"):
            raise BadRequest("names with a leading $ belong to the terminal")
        topic = self._broker.topics.get(name)
        if topic is not None:
            if topic.spec != spec:
                raise TopicExists(
                    f"the topic {name} exists with other options: {differences(topic.spec, spec)}",
                    hint="'landbridge topic update' changes it; a kind can't be changed",
                )
        else:
            topic = self._broker.create_topic(spec)
        await self._save(topic)
        return _describe_topic(topic)

    async def topic_update(self, connection: Connection, name: str, **options: Any) -> object:
        connection.scopes.demand_admin("change topics")
        topic = self._broker.topic(name)
        old = msgspec.to_builtins(topic.spec)
        if options.get("kind", old["kind"]) != old["kind"]:
            raise BadRequest("a topic's kind can't be changed")
        if isinstance(options.get("retention"), dict):  # anything else is refused below
            options["retention"] = {**old["retention"], **options["retention"]}
        spec = topic_spec({**old, **options})
        document = msgspec.structs.replace(topic.document, spec=spec)
        await self._broker.write([PutDocument(TOPIC_KIND, name, encode_topic(document))])
        topic.spec = spec
        self._broker.trimmer.plan(topic, soon=True)
        return _describe_topic(topic)

    async def _save(self, topic: Topic) -> None:
        if not topic.stored:
            await self._broker.write(
                [PutDocument(TOPIC_KIND, topic.name, encode_topic(topic.document))], after=topic._saved
            )

    def _visible(self, connection: Connection, topic: str) -> bool:
        return connection.scopes.may("publish", topic) or connection.scopes.may("subscribe", topic)

    async def topic_list(self, connection: Connection, after: str = "", limit: int = PAGE) -> object:
        names = sorted(n for n in self._broker.topics if n > after and self._visible(connection, n))
        page = names[: max(1, min(limit, PAGE))]
        rows = [_describe_topic(self._broker.topics[name]) for name in page]
        return {"topics": rows, "next": page[-1] if len(names) > len(page) else ""}

    def _topic(self, connection: Connection, name: str) -> Topic:
        if not self._visible(connection, name):  # before the look, which would tell whether there is one
            connection.scopes.demand("subscribe", name)
        return self._broker.topic(name)

    async def topic_show(self, connection: Connection, name: str) -> object:
        topic = self._topic(connection, name)
        return {
            **_describe_topic(topic),
            "options": msgspec.to_builtins(topic.spec),
            "groups": [_describe_group(group) for group in topic.groups.values()],
            "crossing": self._crossing(name),
        }

    def _crossing(self, topic: str) -> list[str] | None:
        crossing = self._broker.crossing
        return None if crossing is None else crossing.groups_of(topic)

    async def topic_wait(
        self, connection: Connection, offsets: dict[str, int], within: float = 0.0
    ) -> dict[str, tuple[int, int]]:
        """Wait until one of these topics has a message at or beyond the offset given for it. Returns the
        (first, end) of each log, at once or after ``within`` seconds at the latest."""
        for name in offsets:
            connection.scopes.demand("subscribe", name)
        logs = {name: self._broker.topic(name).log for name in offsets}
        now = asyncio.get_running_loop().time
        until = now() + min(within, LONGEST_WAIT)
        while logs and all(logs[name].end <= offset for name, offset in offsets.items()) and now() < until:
            growing = [log.growth() for log in logs.values()]
            await asyncio.wait(growing, timeout=until - now(), return_when=asyncio.FIRST_COMPLETED)
            for growth in growing:
                growth.cancel()
        return {name: (log.first, log.end) for name, log in logs.items()}

    async def topic_seek_time(self, connection: Connection, times: dict[str, int]) -> dict[str, int]:
        """For each topic the first offset that this terminal took at or after a time, in microseconds; the
        end of the log where there is none."""
        for name in times:
            connection.scopes.demand("subscribe", name)
        return {name: self._broker.position(self._broker.topic(name), time) for name, time in times.items()}

    async def topic_delete(self, connection: Connection, name: str, force: bool = False) -> object:
        connection.scopes.demand_admin("delete topics")
        topic = self._broker.topic(name)
        if name.startswith("$"):
            raise BadRequest(f"{name} belongs to the terminal")
        lag = max((group.delivery.cursor.lag(topic.log.end) for group in topic.groups.values()), default=0)
        if lag and not force:
            raise BadRequest(
                f"the topic {name} holds {counted(lag, 'message')} that a group hasn't settled",
                hint="use --force to delete them",
            )
        await self._broker.delete_topic(topic)
        return {"deleted": name}

    # -- groups ------------------------------------------------------------------------------------

    async def group_create(
        self,
        connection: Connection,
        topic: str,
        name: str,
        start: int | str | None = None,
        offset: int | None = None,
        **options: Any,
    ) -> object:
        """``start``: "earliest", "latest" or a time in microseconds; or ``offset``."""
        connection.scopes.demand("subscribe", topic)
        if start is not None and offset is not None:
            raise BadRequest("a group begins at a start or at an offset, not at both")
        broker = self._broker
        spec = group_spec({"topic": topic, "name": name, **options})
        if name.startswith("ephemeral-"):
            raise BadRequest("names that start with 'ephemeral-' are given by the terminal")
        found = broker.topic_for(topic)
        group = found.groups.get(name)
        if group is not None:
            if group.spec != spec:
                raise GroupExists(
                    f"the group {name} of {topic} exists with other options: {differences(group.spec, spec)}",
                    hint="'landbridge group update' changes it",
                )
        else:
            floor = None if offset is None else self._offset(found, offset)
            group = broker.create_group(found, spec, start)
            if floor is not None:
                group.seek(floor)
        if not group.stored:
            group.changed()  # the commit that was to store it may have failed
        await broker.write([])
        return _describe_group(group)

    async def group_update(self, connection: Connection, topic: str, name: str, **options: Any) -> object:
        connection.scopes.demand_admin("change groups")
        group = self._broker.group(topic, name)
        group.change(group_spec({**msgspec.to_builtins(group.spec), **options}))
        await self._broker.write([])
        return _describe_group(group)

    async def group_list(self, connection: Connection, topic: str | None = None, after: str = "") -> object:
        if topic is not None:
            topics = [self._topic(connection, topic)]
        else:
            names = sorted(n for n in self._broker.topics if self._visible(connection, n))
            topics = [self._broker.topics[name] for name in names]
        rows: list[dict[str, Any]] = []
        last = tuple(after.split("/", 1)) if after else ("", "")
        for found in topics:
            for group in sorted(found.groups.values(), key=lambda g: g.name):
                if (found.name, group.name) > last:
                    rows.append(_describe_group(group))
                if len(rows) >= PAGE:
                    return {"groups": rows, "next": f"{found.name}/{group.name}"}
        return {"groups": rows, "next": ""}

    async def group_show(self, connection: Connection, topic: str, name: str) -> object:
        self._topic(connection, topic)
        group = self._broker.group(topic, name)
        return {
            **_describe_group(group),
            "options": msgspec.to_builtins(group.spec),
            "consumers": [
                {"who": c.connection.who, "held": group.delivery.held_by(c.number)[0], "prefetch": c.prefetch}
                for c in group.consumers.values()
            ],
        }

    async def group_seek(
        self,
        connection: Connection,
        topic: str,
        name: str,
        to: int | str | None = None,
        time: int | None = None,
    ) -> object:
        """``to``: an offset, "earliest" or "latest"; or ``time``, microseconds."""
        connection.scopes.demand_admin("seek")
        broker = self._broker
        group = broker.group(topic, name)
        if (to is None) == (time is None):
            raise BadRequest("seek wants either 'to' or 'time'")
        if isinstance(to, int):
            floor = self._offset(group.topic, to)
        else:
            at = time if to is None else to
            assert at is not None
            floor = broker.position(group.topic, at)
        group.seek(floor)
        await broker.write([])
        return _describe_group(group)

    async def group_advance(self, connection: Connection, topic: str, name: str, to: int) -> object:
        """Settle everything below an offset, for a group whose consumer reads by offset: a Spark query. The
        group is made if there is none, and never goes back."""
        connection.scopes.demand("subscribe", topic)
        broker = self._broker
        found = broker.topic(topic)
        group = found.groups.get(name)
        to = max(found.log.first, min(to, found.log.end))
        if group is None:
            group = broker.create_group(found, group_spec({"topic": topic, "name": name}), "latest")
            group.seek(to)
        else:
            if broker.crossing is not None:
                broker.crossing.check_subscribe(group)
            if group.own_consumers:
                raise BadRequest(
                    f"the group {name} of {topic} has consumers of its own", hint="use another group's name"
                )
            if to > group.delivery.cursor.floor:
                group.seek(to)
        await broker.write([])
        if found.spec.retention.settled:
            broker.trimmer.plan(found, soon=True)
        return _describe_group(group)

    @staticmethod
    def _offset(topic: Topic, offset: int) -> int:
        if offset < topic.log.first:
            raise OffsetGone(f"offset {offset} of {topic.name} is gone, the oldest is {topic.log.first}")
        return min(offset, topic.log.end)

    async def group_delete(
        self, connection: Connection, topic: str, name: str, force: bool = False
    ) -> object:
        connection.scopes.demand_admin("delete groups")
        group = self._broker.group(topic, name)
        lag = group.delivery.cursor.lag(group.topic.log.end)
        if lag and not force:
            raise BadRequest(
                f"the group {name} hasn't settled {counted(lag, 'message')}",
                hint="use --force to delete it all the same",
            )
        await self._broker.delete_group(group)
        return {"deleted": f"{topic}/{name}"}

    async def group_redrive(self, connection: Connection, topic: str, name: str) -> object:
        """Give a group its dead letters again: each goes back into the topic, for this group alone, and is
        settled in the dead-letter topic in the same commit. A redrive is a cursor like any other, so it
        can be repeated and interrupted without a letter being lost or sent twice."""
        connection.scopes.demand_admin("redrive")
        broker = self._broker
        group = broker.group(topic, name)
        dead = broker.topics.get(group.spec.dead_topic)
        if dead is None:
            return {"redriven": 0}
        reader = self._redrive_group(dead, topic, name)
        redriven = 0
        consumer = broker.new_consumer()  # the operation itself
        while True:
            handouts = reader.catch_up().take(broker.clock(), consumer, REDRIVE_AT_ONCE, dead.log.batch_at)
            if not handouts:
                if reader.delivery.missing is not None:
                    await dead.log.read(reader.delivery.missing)
                    continue
                if reader.delivery.more:
                    continue
                break
            try:
                await self._put_back(
                    group, reader, [(h.lease, h.ranges, h.batch) for h in handouts], consumer
                )
            except BaseException:
                reader.delivery.release(broker.clock(), consumer, counted=False)
                raise
            redriven += sum(len(handout.batch) for handout in handouts)
        reader.changed()
        return {"redriven": redriven}

    def _redrive_group(self, dead: Topic, topic: str, name: str) -> Group:
        reader = f"redrive.{topic}.{name}"[-200:]
        found = dead.groups.get(reader)
        if found is not None:
            return found
        match = {"headers": {"lb-topic": topic, "lb-group": name}}
        spec = group_spec({"topic": dead.name, "name": reader, "match": match, "dead_letter": ""})
        return self._broker.create_group(dead, spec, "earliest")

    async def _put_back(
        self,
        group: Group,
        reader: Group,
        letters: list[tuple[int, list[tuple[int, int]], Batch]],
        consumer: int,
    ) -> None:
        broker = self._broker
        batches = []
        for _, _, batch in letters:
            headers = [
                encode_headers({k: v for k, v in batch.headers(i).items() if not k.startswith("lb-")})
                for i in range(len(batch))
            ]
            again = Batch.decode(
                build(
                    batch.payloads(),
                    id=broker.new_id(),
                    time=broker.clock(),
                    keys=batch.keys(),
                    headers=headers,
                    ids=[batch.id_of(i).encode() for i in range(len(batch))],
                    priorities=batch.priorities(),
                )
            )
            again.audience = frozenset({group.name})
            batches.append(again)

        def work(commit: Commit) -> None:
            group.topic.save(commit)
            if not all(reader.delivery.holds(lease, consumer, ranges) for lease, ranges, _ in letters):
                raise LeaseLost("the letters were given back meanwhile", hint="redrive again")
            for again in batches:
                commit.append(group.topic, again)
            for lease, ranges, _ in letters:
                held = reader.delivery.ack(commit.now, lease, consumer, ranges)
                commit.undo.append(partial(unsettle, reader, held))
            reader.save(commit)

        await broker.perform(work)

    # -- tokens, status, the terminal itself --------------------------------------------------------

    async def token_create(
        self, connection: Connection, subject: str, scopes: list[str], life: float = 3600.0
    ) -> object:
        connection.scopes.demand_admin("create tokens")
        most = self._broker.limits.max_token_life
        if not 0 < life <= most:
            raise BadRequest(f"a life of {life} s, allowed are up to {most} s")
        if f"sub:{subject}" in self._terminal.authority.revoked:
            # It would be dead from the start: whoever revokes a service means its future tokens as well.
            raise BadRequest(
                f"the service {subject[:100]!r} was revoked, with every token that it ever gets",
                hint="give the token to a service of another name",
            )
        now = self._broker.clock()
        token, token_id = self._terminal.authority.issue(now, subject, scopes, life)
        expires_at = now + int(life * SECOND)
        await self.issued.remember(IssuedToken(token_id, subject, scopes, now, expires_at))
        return {"token": token, "id": token_id, "subject": subject, "expires_at": expires_at}

    async def token_list(self, connection: Connection, subject: str | None = None, after: str = "") -> object:
        """What was made and has not expired, from the one that ends first. The tokens themselves are kept
        nowhere."""
        connection.scopes.demand_admin("list tokens")
        moment, _, last = after.partition("/")
        if after and not (moment.isascii() and moment.isdecimal()):
            raise BadRequest(f"token.list after {after[:60]!r}", hint="give the 'next' of the page before")
        revoked = self._terminal.authority.revoked
        rows: list[dict[str, Any]] = []
        for token in self.issued.after(int(moment or 0), last):
            if subject is None or token.subject == subject:
                ended = token.id in revoked or f"sub:{token.subject}" in revoked
                rows.append({**msgspec.to_builtins(token), "revoked": ended})
            if len(rows) >= PAGE:
                return {"tokens": rows, "next": f"{token.expires_at}/{token.id}"}
        return {"tokens": rows, "next": ""}

    async def token_revoke(
        self, connection: Connection, id: str | None = None, subject: str | None = None
    ) -> object:
        """By id, or every token of a subject; live connections end at once."""
        connection.scopes.demand_admin("revoke tokens")
        if (id is None) == (subject is None):
            raise BadRequest("name a token by id or by subject")
        entry = id if id is not None else f"sub:{subject}"
        await self._broker.write([PutDocument(REVOKED, str(entry), b"")])
        self._terminal.revoke(str(entry))
        return {"revoked": entry}

    async def status_levels(self, connection: Connection, **levels: Any) -> object:
        """Without arguments: what is set. With: set it, from now on."""
        connection.scopes.demand_admin("see or set status levels")
        if levels:
            try:
                wanted = parse_levels({**msgspec.to_builtins(self._broker.status.levels), **levels})
            except msgspec.ValidationError as error:
                raise BadRequest(f"status levels: {error}") from None
            await self._broker.set_levels(wanted)
        return msgspec.to_builtins(self._broker.status.levels)

    async def status_note(
        self, connection: Connection, cause: str, detail: str = "", topic: str = "", messages: int = 0
    ) -> object:
        """Something that a gateway saw go wrong, for the status log: an error event in the caller's name.
        As bounded as the terminal's own: see StatusLog.MOST."""
        connection.scopes.demand("publish", STATUS_TOPIC)
        if not 0 <= messages < 1 << 62:
            raise BadRequest(f"a note of {messages} messages")
        self._broker.status.note(
            self._broker.clock(),
            "error",
            who=connection.subject,
            topic=check_name(topic, "topic") if topic else "",
            cause=check_name(cause, "cause"),
            detail=detail[:LONGEST_NOTE],
            messages=messages,
        )
        return None

    async def terminal_info(self, connection: Connection) -> object:
        return self._terminal.info()

    async def terminal_metrics(self, connection: Connection) -> object:
        connection.scopes.demand_admin("read metrics")
        return render(self._terminal)


def _check_arguments(op: str, method: Callable[..., Any], args: dict[str, Any]) -> None:
    """By the method's signature, in the words of the wire."""
    takes = {name: p for name, p in inspect.signature(method).parameters.items() if name != "connection"}
    named = [name for name, p in takes.items() if p.kind is not p.VAR_KEYWORD]
    more = len(named) < len(takes)  # options of its own, which are read by the method
    for name in args:
        if name not in named and (not more or name in ("connection", "self")):
            hint = f"it takes {', '.join(named)}" if named else "it takes none"
            raise BadRequest(f"{op}: there is no argument {name[:60]!r}", hint=hint)
    missing = [name for name in named if takes[name].default is inspect.Parameter.empty and name not in args]
    if missing:
        raise BadRequest(f"{op}: {' and '.join(missing)} missing", hint=f"it takes {', '.join(named)}")
    for name, kind in typing.get_type_hints(method, localns={"Connection": object}).items():
        if name in args and name in named:
            try:
                msgspec.convert(args[name], kind)
            except msgspec.ValidationError as error:
                message, hint = explain(error, kind, name)
                raise BadRequest(f"{op}: {message}", hint=hint) from None


def _describe_topic(topic: Topic) -> dict[str, Any]:
    log = topic.log
    return {
        "name": topic.name,
        "kind": topic.spec.kind,
        "first": log.first,
        "end": log.end,
        "messages": log.end - log.first,
        "bytes": log.bytes,
        "groups": len(topic.groups),
        "created_at": topic.created_at,
    }


def _describe_group(group: Group) -> dict[str, Any]:
    cursor, end = group.catch_up().cursor, group.topic.log.end
    return {
        "topic": group.topic.name,
        "name": group.name,
        "discipline": group.spec.discipline,
        "floor": cursor.floor,
        "lag": cursor.lag(end),
        "leased": sum(lease.size for lease in group.delivery.leases.values()),
        "retrying": len(cursor.tries),
        "consumers": len(group.consumers),
        "durable": group.durable,
    }
