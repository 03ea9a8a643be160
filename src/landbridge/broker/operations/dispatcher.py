"""From the name of an operation to its handler, by the table in ``landbridge.protocol.operations``.

The dispatcher reads the request, checks the scope that the table demands and calls the handler. A handler
gets the caller and the request, and returns the answer; it raises a BusError to refuse. A handler that
changes something says so by the caller's ``enter``, within the commit (``broker/audit.py``).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeVar

from landbridge.broker.audit import AuditLog, CallSource
from landbridge.broker.authority import TokenBearer
from landbridge.broker.rule_topics import Specified, may
from landbridge.core.trust.scopes import RANKS, Scopes
from landbridge.errors import BadRequest, Forbidden, Unauthenticated
from landbridge.protocol.operations import ANYBODY, OPERATIONS, Operation

R = TypeVar("R")
A = TypeVar("A")

#: Rows of one page. A caller asks again with ``after``.
PAGE = 1000


def may_see(topics: Mapping[str, Specified], caller: TokenBearer, topic: str) -> bool:
    """Whoever may publish to a topic or subscribe to it may see it; so may observers."""
    scopes = caller.scopes
    return scopes.has("observe") or any(may(topics, scopes, verb, topic) for verb in ("publish", "subscribe"))


class StrangerCaller:
    """A caller without a token, who may do nothing that needs one."""

    subject = ""
    scopes = Scopes.parse(())


class Dispatcher:
    """The handlers of one terminal, by the names of their operations."""

    def __init__(self, audit: AuditLog, demand_topic: Callable[[Scopes, Sequence[str], str], None]) -> None:
        """``demand_topic``: raises Forbidden unless scopes allow one of some verbs with a topic."""
        self._audit, self._demand_topic = audit, demand_topic
        self._handlers: dict[str, Callable[[Any, Any], Awaitable[object]]] = {}

    def register(self, operation: Operation[..., R, A], handler: Callable[[Any, R], Awaitable[A]]) -> None:
        """Answer an operation by this handler, in place of an earlier one."""
        self._handlers[operation.name] = handler

    async def call(
        self, caller: CallSource, name: str, arguments: dict[str, Any], origin: str = ""
    ) -> object:
        """Answer a call from the wire. ``origin``: whom a gateway says that it asks for."""
        operation = OPERATIONS.get(name)
        if operation is None:
            raise BadRequest(f"no operation {name[:60]!r}", hint="is the terminal older than the client?")
        request = operation.read(arguments)
        try:
            demand(operation, caller, request, self._demand_topic)
            if not operation.is_audited:
                return await self._handle(operation, caller, request)
            self._audit.check(request)
            call = self._audit.call(caller, operation, origin)
            answer = await self._handle(operation, call, request)
        except Forbidden:
            self._audit.note_forbidden(caller, operation)
            raise
        await call.end(request)
        return answer

    async def answer_stranger(self, name: str, arguments: dict[str, Any]) -> object:
        """Answer a call of somebody who shows no token."""
        operation = OPERATIONS.get(name)
        if operation is None or operation.scope != ANYBODY:
            raise Unauthenticated(f"{name[:60]} needs a token")
        return await self._handle(operation, StrangerCaller(), operation.read(arguments))

    async def _handle(self, operation: Operation[..., R, Any], caller: TokenBearer, request: R) -> object:
        handler = self._handlers.get(operation.name)
        if handler is None:  # crossing registers its own when the terminal joins others
            raise BadRequest("this terminal stands alone", hint="start it with a registry and an identity")
        return await handler(caller, request)


def demand(
    operation: Operation[..., Any, Any],
    caller: TokenBearer,
    request: object,
    demand_topic: Callable[[Scopes, Sequence[str], str], None],
) -> None:
    """Raise Forbidden unless the caller's scopes allow the operation; see ``Operation.scope``."""
    if operation.scope in ("", ANYBODY):
        return
    alternatives, _, target = operation.scope.partition(":")
    scopes, words = caller.scopes, alternatives.split("|")
    ranks = [word for word in words if word in RANKS]
    if any(scopes.has(rank) for rank in ranks):
        return
    verbs = [word for word in words if word not in RANKS]
    if not verbs:
        scopes.demand_rank(ranks[0], f"use {operation.name}")
    named = getattr(request, target[1:-1]) if target.startswith("{") else target
    for name in [named] if isinstance(named, str) else named or ():
        if "self" in verbs:
            if name != caller.subject:
                scopes.demand_rank(ranks[0], f"use {operation.name} for another service")
        else:
            demand_topic(scopes, verbs, name)
