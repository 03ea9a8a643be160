"""A call: one HTTP request to the registry, and the guard that finds its caller before its body is
read."""

from __future__ import annotations

import base64
import binascii
from typing import Any, cast

import msgspec
from litestar.connection import ASGIConnection, Request
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler, HTTPRouteHandler
from litestar.types import Scope

from landbridge.client.registry_operations import Who
from landbridge.core.trust.identity import Proof, bad_proof, digest_of
from landbridge.errors import BadRequest, BusError, Forbidden, LimitReached, Unauthenticated
from landbridge.protocol.http import bearer_token, caller_known, digest_in
from landbridge.registry.caller import STRANGER, Caller
from landbridge.registry.registry import Registry

#: Stands for a proof that doesn't decode: it fails as every wrong one does, and takes as long.
_NO_PROOF = Proof(0, b"", b"")


class RegistryCall(Request[Any, Any, Any]):
    """A request, with the registry and the caller that a guard has found."""

    @property
    def registry(self) -> Registry:
        """The registry that is asked."""
        return cast(Registry, self.app.state.registry)

    @property
    def caller(self) -> Caller:
        """Who asks; a stranger where the operation is for anybody."""
        return cast(Caller, self.state.get("caller", STRANGER))

    @property
    def op(self) -> str:
        """Name of the operation; "" where the path is none."""
        handler = self.route_handler
        return str(handler.operation_id) if isinstance(handler, HTTPRouteHandler) else ""

    @property
    def source(self) -> str:
        """Address of the client."""
        return self.client.host if self.client is not None else "?"

    async def json(self) -> Any:
        """Decode the body as the type that the handler takes, strictly. Litestar would decode it as anything
        first, and then turn the string "1" into a number."""
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
        """Note a caller that was not let in; LimitReached if its address has had too many attempts."""
        registry = self.registry
        if not registry.attempts.count(registry.clock(), self.source):
            raise LimitReached("too many wrong credentials from your address", hint="wait a minute")
        await registry.state.refuse(STRANGER, self.op, subject, error, f"from {self.source}")


async def note_refusal(error: Exception, scope: Scope) -> None:
    """Note refused reads and requests that never became an operation. Other operations note their refusals
    themselves."""
    call = RegistryCall(scope)
    caller = call.state.get("caller")
    if caller is None or not (
        call.method == "GET" or call.state.get("is_unread") or isinstance(error, HTTPException)
    ):
        return
    if isinstance(error, HTTPException):
        error = BadRequest(error.detail)
    if isinstance(error, BusError):
        await call.registry.state.refuse(caller, call.op, scope["path"], error)


# -- who may ask ---------------------------------------------------------------------------------------


async def let_in(connection: ASGIConnection[Any, Any, Any, Any], handler: BaseRouteHandler) -> None:
    """Guard of all routes that are not for anybody: find the caller, and refuse one that the route is not
    for. Litestar calls it before the body is read. The route's option ``who`` is that of the operation.

    The headers alone decide: a proof signs the digest of the body that the headers announce. The body of a
    terminal that has proved itself is read here, so that another body than the one announced is refused."""
    call = cast(RegistryCall, connection)
    who: Who = handler.opt["who"]
    terminal = call.headers.get("landbridge-terminal", "") if who == "terminal" else ""
    try:
        if who == "terminal":
            caller = _by_proof(call, terminal)
        else:
            caller = call.registry.callers.by_token(bearer_token(call.headers.get("authorization", "")))
        caller_known(call.scope)
        if who == "terminal" and digest_of(await call.body()) != _digest(call):
            raise bad_proof()
    except Unauthenticated as error:
        await call.turn_away(terminal, error)
        raise
    if who == "operator" and caller.account is not None:
        await _forbid(call, caller, "this is for the registry's operator")
    if who == "admin" and caller.account is None:
        await _forbid(call, caller, "the operator has no customer of its own")
    call.state.caller = caller


def _by_proof(call: RegistryCall, terminal: str) -> Caller:
    registry = call.registry
    query = call.scope["query_string"].decode("latin-1")
    op = f"{call.method} {call.scope['path']}{'?' if query else ''}{query}"
    return registry.callers.by_proof(registry.clock(), terminal, op, _digest(call), _proof(call))


def _digest(call: RegistryCall) -> bytes:
    """What the headers say of the body. A request without a body need not say it."""
    header = call.headers.get("content-digest", "")
    return digest_in(header) if header else digest_of(b"")


async def _forbid(call: RegistryCall, caller: Caller, why: str) -> None:
    error = Forbidden(why, hint="use the other credential")
    await call.registry.state.refuse(caller, call.op, "", error)
    raise error


def _proof(call: RegistryCall) -> Proof:
    headers = call.headers
    try:
        return Proof(
            int(headers.get("landbridge-timestamp", "")[:20]),
            base64.b64decode(headers.get("landbridge-nonce", ""), validate=True),
            base64.b64decode(headers.get("landbridge-proof", ""), validate=True),
        )
    except (ValueError, binascii.Error):
        return _NO_PROOF
