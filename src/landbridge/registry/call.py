"""A call: one HTTP request to the registry, and the guards that say whose it is before anything of it is
read.
"""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

import msgspec
from litestar.connection import ASGIConnection, Request
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Scope

from landbridge.core.trust.identity import Proof
from landbridge.errors import BadRequest, BusError, Forbidden, LimitReached, Unauthenticated
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.registry import Registry

#: Nobody's: fails as every other wrong one does, and takes as long.
_NO_PROOF = Proof(0, b"", b"")
_LONGEST = 200


class Call(Request[Any, Any, Any]):
    @property
    def registry(self) -> Registry:
        return cast(Registry, self.app.state.registry)

    @property
    def caller(self) -> Caller:
        return cast(Caller, self.state.caller)

    @property
    def account(self) -> Account:
        account = self.caller.account
        assert account is not None, "a guard has let nobody else in"
        return account

    @property
    def op(self) -> str:
        handler = self.route_handler
        return str(handler.operation_id) if isinstance(handler, HTTPRouteHandler) else ""

    @property
    def source(self) -> str:
        return self.client.host if self.client is not None else "?"

    async def json(self) -> Any:
        """The body as what the handler takes, strictly: Litestar would decode it as anything first, and then
        turn the string "1" into a number."""
        field = self.route_handler.parsed_data_field
        assert field is not None
        try:
            return msgspec.json.decode(await self.body(), type=field.annotation)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            raise self._unread(f"the body is not what {self.op} takes: {error}") from None
        except RecursionError:
            raise self._unread("the body is nested too deeply") from None

    def _unread(self, why: str) -> BadRequest:
        self.state.is_unread = True
        return BadRequest(why)

    async def turn_away(self, subject: str, error: Unauthenticated) -> None:
        """Note somebody who was not let in, unless there are too many of them."""
        registry = self.registry
        if not registry.attempts.count(registry.clock(), self.source):
            raise LimitReached("too many wrong credentials from your address", hint="wait a minute")
        await registry.note("?", self.op, subject[:_LONGEST], error.code, f"from {self.source}")


async def note_refusal(error: Exception, scope: Scope) -> None:
    """Operations note what they refuse themselves. Reads don't, nor does what never became an operation."""
    call = Call(scope)
    caller = call.state.get("caller")
    if caller is None or not (
        call.method == "GET" or call.state.get("is_unread") or isinstance(error, HTTPException)
    ):
        return
    if isinstance(error, HTTPException):
        error = BadRequest(error.detail)
    if isinstance(error, BusError):
        await call.registry.refuse(caller, call.op, scope["path"], error)


# -- guards --------------------------------------------------------------------------------------------

Connection = ASGIConnection[Any, Any, Any, Any]


async def for_operator(connection: Connection, _: BaseRouteHandler) -> None:
    call = cast(Call, connection)
    caller = await _by_token(call)
    if caller.account is not None:
        await _forbid(call, caller, "this is for the registry's operator")
    call.state.caller = caller


async def for_admin(connection: Connection, _: BaseRouteHandler) -> None:
    call = cast(Call, connection)
    caller = await _by_token(call)
    if caller.account is None:
        await _forbid(call, caller, "the operator has no customer of its own")
    call.state.caller = caller


async def for_both(connection: Connection, _: BaseRouteHandler) -> None:
    call = cast(Call, connection)
    call.state.caller = await _by_token(call)


async def for_terminal(connection: Connection, _: BaseRouteHandler) -> None:
    call = cast(Call, connection)
    terminal = call.headers.get("landbridge-terminal", "")
    query = call.scope["query_string"].decode("latin-1")
    op = f"{call.method} {call.scope['path']}{'?' if query else ''}{query}"
    body = await call.body()
    try:
        registry = call.registry
        call.state.caller = registry.callers.by_proof(registry.clock(), terminal, op, body, _proof(call))
    except Unauthenticated as error:
        await call.turn_away(terminal, error)
        raise


async def _by_token(call: Call) -> Caller:
    # RFC 9110 11.1: the scheme's case doesn't matter.
    scheme, _, token = call.headers.get("authorization", "").partition(" ")
    try:
        return call.registry.callers.by_token(token.strip() if scheme.lower() == "bearer" else "")
    except Unauthenticated as error:
        await call.turn_away("", error)
        raise


async def _forbid(call: Call, caller: Caller, why: str) -> None:
    error = Forbidden(why, hint="use the other credential")
    await call.registry.refuse(caller, call.op, "", error)
    raise error


def _proof(call: Call) -> Proof:
    headers = call.headers
    try:
        return Proof(
            int(headers.get("landbridge-timestamp", "")[:20]),
            base64.b64decode(headers.get("landbridge-nonce", ""), validate=True),
            base64.b64decode(headers.get("landbridge-proof", ""), validate=True),
        )
    except (ValueError, binascii.Error):
        return _NO_PROOF
