"""The operations of a terminal as typed methods, by noun: ``bus.topics.create("orders", kind="queue")``.

Every method is made from an entry of the table in ``landbridge.protocol.operations``: its arguments are those
of the entry's request, its result is the entry's answer, its help is the entry's sentence. Arguments that
name a thing may be given by position. One class serves both buses: the methods of a noun that is marked
``Asynchronous`` are awaited, those of one that is marked ``Synchronous`` wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, ParamSpec, TypeVar, overload

import msgspec

from landbridge.errors import UnknownDocument
from landbridge.protocol import operations as table
from landbridge.protocol.operations import Operation

P = ParamSpec("P")
A = TypeVar("A")
Page = TypeVar("Page")
Row = TypeVar("Row")
W = TypeVar("W")


class Asynchronous:
    """Marks the nouns of ``landbridge.connect()``."""


class Synchronous:
    """Marks the nouns of ``landbridge.sync.connect()``."""


class Noun(Generic[W]):
    """Operations on one kind of thing."""

    def __init__(
        self, call: Callable[..., Coroutine[Any, Any, Any]], run: Callable[[Coroutine[Any, Any, Any]], Any]
    ) -> None:
        """``call`` is the asynchronous bus's; ``run`` makes the result of a method from its coroutine."""
        self.call = call
        self.run = run


class Method(Generic[P, A]):
    """An operation as a method of a noun."""

    def __init__(self, operation: Operation[P, Any, A]) -> None:
        self._operation: Operation[P, Any, Any] = operation
        self.__doc__ = operation.help

    @overload
    def __get__(self, noun: Noun[Asynchronous], owner: Any) -> Callable[P, Coroutine[Any, Any, A]]: ...
    @overload
    def __get__(self, noun: Noun[Synchronous], owner: Any) -> Callable[P, A]: ...
    @overload
    def __get__(self, noun: None, owner: Any) -> Method[P, A]: ...
    def __get__(self, noun: Noun[Any] | None, owner: Any) -> Any:
        if noun is None:
            return self

        def method(*args: P.args, **options: P.kwargs) -> Any:
            request = self._operation.request(*args, **options)
            arguments = msgspec.to_builtins(request, builtin_types=(bytes,))  # bytes stay bytes
            return noun.run(self._ask(noun, arguments))

        method.__name__ = self._operation.name
        method.__doc__ = self.__doc__
        method.__wrapped__ = self._operation.request  # type: ignore[attr-defined]  # for its signature
        return method

    async def _ask(self, noun: Noun[Any], arguments: dict[str, Any]) -> Any:
        answer = await noun.call(self._operation.name, **arguments)
        return msgspec.convert(answer, self._operation.answer)


class Pages(Method[P, list[Row]], Generic[P, Page, Row]):
    """An operation that answers by the page, as a method that returns the rows of all pages."""

    def __init__(self, operation: Operation[P, Any, Page], rows: Callable[[Page], list[Row]]) -> None:
        self._operation = operation
        self._rows = rows
        self.__doc__ = f"{operation.help} Returns the rows of all pages."

    async def _ask(self, noun: Noun[Any], arguments: dict[str, Any]) -> list[Row]:
        found: list[Row] = []
        while True:
            page = await super()._ask(noun, arguments)
            found += self._rows(page)
            if not page.next:
                return found
            arguments["after"] = page.next


class TopicCalls(Noun[W]):
    """``bus.topics``: the topics of the terminal."""

    create = Method(table.TOPIC_CREATE)
    update = Method(table.TOPIC_UPDATE)
    list = Pages(table.TOPIC_LIST, lambda page: page.topics)
    show = Method(table.TOPIC_SHOW)
    delete = Method(table.TOPIC_DELETE)
    pause = Method(table.TOPIC_PAUSE)
    resume = Method(table.TOPIC_RESUME)
    wait = Method(table.TOPIC_WAIT)
    watch = Method(table.TOPIC_WATCH)
    seek_time = Method(table.TOPIC_SEEK_TIME)


class GroupCalls(Noun[W]):
    """``bus.groups``: the groups of its topics."""

    create = Method(table.GROUP_CREATE)
    update = Method(table.GROUP_UPDATE)
    list = Pages(table.GROUP_LIST, lambda page: page.groups)
    show = Method(table.GROUP_SHOW)
    seek = Method(table.GROUP_SEEK)
    advance = Method(table.GROUP_ADVANCE)
    redrive = Method(table.GROUP_REDRIVE)
    pause = Method(table.GROUP_PAUSE)
    resume = Method(table.GROUP_RESUME)
    delete = Method(table.GROUP_DELETE)


class LetterCalls(Noun[W]):
    """``bus.letters``: the dead letters of groups."""

    summary = Method(table.LETTER_SUMMARY)
    list = Method(table.LETTER_LIST)
    redrive = Method(table.LETTER_REDRIVE)
    delete = Method(table.LETTER_DELETE)


class TokenCalls(Noun[W]):
    """``bus.tokens``: the tokens that the terminal has made."""

    create = Method(table.TOKEN_CREATE)
    list = Pages(table.TOKEN_LIST, lambda page: page.tokens)
    show = Method(table.TOKEN_SHOW)
    revoke = Method(table.TOKEN_REVOKE)


class ServiceCalls(Noun[W]):
    """``bus.services``: the registered services."""

    register = Method(table.SERVICE_REGISTER)
    update = Method(table.SERVICE_UPDATE)
    list = Pages(table.SERVICE_LIST, lambda page: page.services)
    show = Method(table.SERVICE_SHOW)
    suspend = Method(table.SERVICE_SUSPEND)
    resume = Method(table.SERVICE_RESUME)
    pause = Method(table.SERVICE_PAUSE)
    unpause = Method(table.SERVICE_UNPAUSE)
    rotate = Method(table.SERVICE_ROTATE)
    remove = Method(table.SERVICE_REMOVE)
    token = Method(table.SERVICE_TOKEN)
    heartbeat = Method(table.SERVICE_HEARTBEAT)
    ping = Method(table.SERVICE_PING)
    info = Method(table.SERVICE_INFO)
    stats = Method(table.SERVICE_STATS)


class StatusCalls(Noun[W]):
    """``bus.status``: the status log."""

    show = Method(table.STATUS_SHOW)
    set = Method(table.STATUS_LEVELS)
    note = Method(table.STATUS_NOTE)


class MessageCalls(Noun[W]):
    """``bus.messages``: where messages are, and why."""

    wait = Method(table.MESSAGE_WAIT)
    where = Method(table.MESSAGE_WHERE)
    why = Method(table.MESSAGE_WHY)


class TerminalCalls(Noun[W]):
    """``bus.terminal``: the terminal itself."""

    info = Method(table.TERMINAL_INFO)
    metrics = Method(table.TERMINAL_METRICS)
    figures = Method(table.TERMINAL_FIGURES)


class NetworkCalls(Noun[W]):
    """``bus.network``: this terminal among the others."""

    show = Method(table.NETWORK_SHOW)
    topology = Method(table.TOPOLOGY_SHOW)
    route = Method(table.ROUTE_SHOW)


class StageCalls(Noun[W]):
    """``bus.stages``: rows that wait to be published together, once (ADR 12)."""

    commit = Method(table.STAGE_COMMIT)
    show = Method(table.STAGE_SHOW)
    drop = Method(table.STAGE_DROP)


class RequestCalls(Noun[W]):
    """``bus.requests``: requests with JSON payloads; ``bus.request`` is quicker, and takes any payload."""

    send = Method(table.REQUEST_SEND)


class EventCalls(Noun[W]):
    """``bus.events``: events with an outcome; ``bus.trigger`` takes any payload, and functions, too."""

    trigger = Method(table.EVENT_TRIGGER)
    outcome = Method(table.EVENT_OUTCOME)


class ErrorCalls(Noun[W]):
    """``bus.errors``: the errors of the bus, and what services report of their own."""

    list = Method(table.ERROR_LIST)
    report = Method(table.ERROR_REPORT)


class DocumentCalls(Noun[W]):
    """``bus.documents``: small values under a name, changed by compared version."""

    create = Method(table.DOCUMENT_CREATE)
    read = Method(table.DOCUMENT_READ)
    update = Method(table.DOCUMENT_UPDATE)
    delete = Method(table.DOCUMENT_DELETE)
    list = Pages(table.DOCUMENT_LIST, lambda page: page.documents)
    wait = Method(table.DOCUMENT_WAIT)

    def watch(self, collection: str, *, topic: str = "", prefix: str = "") -> DocumentWatch:
        """The documents of a collection as they are, then each change as it happens, for ever. Iterate with
        ``async for``, or with ``for`` over a synchronous bus. Changes that follow each other closely may be
        seen as one. ``topic``: those that live with a topic; "*": those of every topic."""
        return DocumentWatch(self, collection, topic, prefix)


class DocumentSeen(msgspec.Struct, frozen=True):
    """What a watch yields."""

    key: str
    #: The document as it is now; None: it was deleted.
    document: table.Document | None
    #: The topic that it lives with; empty: none.
    topic: str = ""


class DocumentWatch:
    """Made by ``bus.documents.watch()``. After a lost connection or a restart of the terminal, it lists the
    collection again and yields what is different."""

    def __init__(self, noun: Noun[Any], collection: str, topic: str, prefix: str) -> None:
        self._noun = noun
        self._where = {"collection": collection, "topic": topic}
        self._prefix = prefix
        #: Topic and key → the version that was last yielded.
        self._versions: dict[tuple[str, str], str] = {}
        #: Where the terminal's changes go on; empty: the collection has to be listed.
        self._after = ""
        self._seen: deque[DocumentSeen] = deque()

    def __aiter__(self) -> DocumentWatch:
        return self

    def __iter__(self) -> DocumentWatch:
        return self

    def __next__(self) -> DocumentSeen:
        found: DocumentSeen = self._noun.run(self.__anext__())
        return found

    async def __anext__(self) -> DocumentSeen:
        while not self._seen:
            answer = await self._ask(table.DOCUMENT_WAIT, after=self._after)
            if answer.missed:
                await self._list()
            else:
                for topic, key in dict.fromkeys((change.topic, change.key) for change in answer.changes):
                    if key.startswith(self._prefix):
                        await self._look(topic, key)
            self._after = answer.after
        return self._seen.popleft()

    async def _ask(self, operation: Operation[..., Any, A], **arguments: Any) -> A:
        answer = await self._noun.call(operation.name, **(self._where | arguments))
        return msgspec.convert(answer, operation.answer)

    async def _list(self) -> None:
        left, after = set(self._versions), ""
        while True:
            page = await self._ask(table.DOCUMENT_LIST, prefix=self._prefix, after=after)
            for document in page.documents:
                left.discard((document.topic, document.key))
                self._see(document.topic, document.key, document)
            if not (after := page.next):
                break
        for topic, key in left:
            self._see(topic, key, None)

    async def _look(self, topic: str, key: str) -> None:
        found: table.Document | None = None
        try:
            found = await self._ask(table.DOCUMENT_READ, topic=topic, key=key)
        except UnknownDocument:
            pass
        self._see(topic, key, found)

    def _see(self, topic: str, key: str, document: table.Document | None) -> None:
        known = self._versions.get((topic, key))
        if document is None:
            if self._versions.pop((topic, key), None) is not None:
                self._seen.append(DocumentSeen(key, None, topic))
        elif document.version != known:
            self._versions[topic, key] = document.version
            self._seen.append(DocumentSeen(key, document, topic))


class ScheduleCalls(Noun[W]):
    """``bus.schedules``: messages at given times."""

    create = Method(table.SCHEDULE_CREATE)
    update = Method(table.SCHEDULE_UPDATE)
    list = Pages(table.SCHEDULE_LIST, lambda page: page.schedules)
    show = Method(table.SCHEDULE_SHOW)
    pause = Method(table.SCHEDULE_PAUSE)
    resume = Method(table.SCHEDULE_RESUME)
    trigger = Method(table.SCHEDULE_TRIGGER)
    backfill = Method(table.SCHEDULE_BACKFILL)
    remove = Method(table.SCHEDULE_REMOVE)


class WebhookCalls(Noun[W]):
    """``bus.webhooks``: messages of a topic that are sent to a URL."""

    create = Method(table.WEBHOOK_CREATE)
    update = Method(table.WEBHOOK_UPDATE)
    list = Pages(table.WEBHOOK_LIST, lambda page: page.webhooks)
    show = Method(table.WEBHOOK_SHOW)
    test = Method(table.WEBHOOK_TEST)
    pause = Method(table.WEBHOOK_PAUSE)
    resume = Method(table.WEBHOOK_RESUME)
    replay = Method(table.WEBHOOK_REPLAY)
    rotate = Method(table.WEBHOOK_ROTATE)
    delete = Method(table.WEBHOOK_DELETE)


class MailCalls(Noun[W]):
    """``bus.mails``: messages of a topic that are sent as mails."""

    create = Method(table.MAIL_CREATE)
    update = Method(table.MAIL_UPDATE)
    list = Pages(table.MAIL_LIST, lambda page: page.mails)
    show = Method(table.MAIL_SHOW)
    test = Method(table.MAIL_TEST)
    pause = Method(table.MAIL_PAUSE)
    resume = Method(table.MAIL_RESUME)
    replay = Method(table.MAIL_REPLAY)
    bounce = Method(table.MAIL_BOUNCE)
    delete = Method(table.MAIL_DELETE)


class SmsCalls(Noun[W]):
    """``bus.sms``: messages of a topic that are sent as SMS."""

    create = Method(table.SMS_CREATE)
    update = Method(table.SMS_UPDATE)
    list = Pages(table.SMS_LIST, lambda page: page.sms)
    show = Method(table.SMS_SHOW)
    test = Method(table.SMS_TEST)
    pause = Method(table.SMS_PAUSE)
    resume = Method(table.SMS_RESUME)
    replay = Method(table.SMS_REPLAY)
    delete = Method(table.SMS_DELETE)
    call = Method(table.SMS_CALL)


class LimitCalls(Noun[W]):
    """``bus.limits``: how much of everything the terminal allows."""

    show = Method(table.LIMITS_SHOW)
    set = Method(table.LIMITS_SET)
    reset = Method(table.LIMITS_RESET)


class LogCalls(Noun[W]):
    """``bus.logs``: what the terminal's process logs."""

    show = Method(table.LOGS_SHOW)
    level = Method(table.LOGS_LEVEL)


class NodeCalls(Noun[W]):
    """``bus.nodes``: the processes of a terminal that has several."""

    list = Method(table.NODE_LIST)
    show = Method(table.NODE_SHOW)
    find = Method(table.NODE_FIND)
    drain = Method(table.NODE_DRAIN)
    resume = Method(table.NODE_RESUME)


class AuditCalls(Noun[W]):
    """``bus.audit``: who has changed what of the terminal."""

    list = Pages(table.AUDIT_LIST, lambda page: page.entries)


class WebSubCalls(Noun[W]):
    """``bus.websub``: topics as feeds, and who has subscribed to them."""

    open = Method(table.WEBSUB_OPEN)
    close = Method(table.WEBSUB_CLOSE)
    show = Method(table.WEBSUB_SHOW)
    feeds = Pages(table.WEBSUB_FEEDS, lambda page: page.feeds)
    list = Pages(table.WEBSUB_LIST, lambda page: page.subscriptions)
    inspect = Method(table.WEBSUB_INSPECT)
    delete = Method(table.WEBSUB_DELETE)
    read = Method(table.WEBSUB_READ)
    call = Method(table.WEBSUB_CALL)


class RuleCalls(Noun[W]):
    """``bus.rules``: queries, and the topics of the messages that they choose."""

    create = Method(table.RULE_CREATE)
    list = Pages(table.RULE_LIST, lambda page: page.rules)
    show = Method(table.RULE_SHOW)
    test = Pages(table.RULE_TEST, lambda page: page.verdicts)
    trace = Method(table.RULE_TRACE)
    delete = Method(table.RULE_DELETE)


class TypeCalls(Noun[W]):
    """``bus.types``: the event types of topics, with their schemas."""

    register = Method(table.TYPE_REGISTER)
    list = Method(table.TYPE_LIST)
    show = Method(table.TYPE_SHOW)
    remove = Method(table.TYPE_REMOVE)


#: By the name of the bus's attribute.
NOUNS: dict[str, type[Noun[Any]]] = {
    "topics": TopicCalls,
    "types": TypeCalls,
    "groups": GroupCalls,
    "letters": LetterCalls,
    "tokens": TokenCalls,
    "services": ServiceCalls,
    "status": StatusCalls,
    "messages": MessageCalls,
    "terminal": TerminalCalls,
    "network": NetworkCalls,
    "stages": StageCalls,
    "documents": DocumentCalls,
    "schedules": ScheduleCalls,
    "webhooks": WebhookCalls,
    "mails": MailCalls,
    "sms": SmsCalls,
    "websub": WebSubCalls,
    "rules": RuleCalls,
    "requests": RequestCalls,
    "events": EventCalls,
    "errors": ErrorCalls,
    "limits": LimitCalls,
    "logs": LogCalls,
    "audit": AuditCalls,
    "nodes": NodeCalls,
}
