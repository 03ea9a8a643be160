"""From the name of an operation to its handler, by the table in ``landbridge.protocol.operations``.

The dispatcher reads the request, checks the scope that the table demands and calls the handler. A handler
gets the caller and the request, and returns the answer; it raises a BusError to refuse.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from landbridge.broker.authority import TokenBearer
from landbridge.core.trust.scopes import Scopes
from landbridge.errors import BadRequest
from landbridge.protocol.operations import OPERATIONS, Operation

R = TypeVar("R")
A = TypeVar("A")

#: Rows of one page. A caller asks again with ``after``.
PAGE = 1000


def may_see(caller: TokenBearer, topic: str) -> bool:
    """Whoever may publish to a topic or subscribe to it may see it."""
    return caller.scopes.may("publish", topic) or caller.scopes.may("subscribe", topic)


class Dispatcher:
    """The handlers of one terminal, by the names of their operations."""

    def __init__(self) -> None:
        self._handlers: dict[str, Callable[[Any, Any], Awaitable[object]]] = {}

    def register(self, operation: Operation[..., R, A], handler: Callable[[Any, R], Awaitable[A]]) -> None:
        """Answer an operation by this handler, in place of an earlier one."""
        self._handlers[operation.name] = handler

    async def call(self, caller: TokenBearer, name: str, arguments: dict[str, Any]) -> object:
        """Answer a call from the wire."""
        operation = OPERATIONS.get(name)
        if operation is None:
            raise BadRequest(f"no operation {name[:60]!r}", hint="is the terminal older than the client?")
        request = operation.read(arguments)
        demand(operation, caller.scopes, request)
        handler = self._handlers.get(name)
        if handler is None:  # crossing registers its own when the terminal joins others
            raise BadRequest("this terminal stands alone", hint="start it with a registry and an identity")
        return await handler(caller, request)


def demand(operation: Operation[..., Any, Any], scopes: Scopes, request: object) -> None:
    """Raise Forbidden unless the scopes allow the operation; see ``Operation.scope``."""
    scope, _, target = operation.scope.partition(":")
    if scope == "admin":
        scopes.demand_admin(f"use {operation.name}")
    elif scope:
        verbs = scope.split("|")
        named = getattr(request, target[1:-1]) if target.startswith("{") else target
        for topic in [named] if isinstance(named, str) else named or ():
            if not any(scopes.may(verb, topic) for verb in verbs):
                scopes.demand(verbs[-1], topic)
