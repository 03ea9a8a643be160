"""The operations of the terminal by HTTP: every entry of the table is a route by itself.

Names in the path are fields of the request. The other fields are the query of a GET or DELETE, and the JSON
body of the others. The terminal checks what the token may do.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator
from functools import partial
from typing import Any, NoReturn

import msgspec

from landbridge.errors import BadPayload, BadRequest, TimedOut
from landbridge.gateways.http.exchange import HttpRequest
from landbridge.gateways.http.pull import while_there
from landbridge.gateways.http.routes import Described, HttpRoute
from landbridge.gateways.http.sessions import SessionPool
from landbridge.protocol.http import caller_known
from landbridge.protocol.operations import OPERATIONS, Operation

#: Bytes of a body; a stranger may send less.
MOST_BYTES, MOST_OF_STRANGERS = 1 << 20, 16 << 10
#: Seconds that an operation may take: some of them wait for something to happen.
WITHIN = 65.0
#: The scope of operations that need no token: whoever asks shows a credential in the request.
ANYBODY = "anybody"
TEXT = b"text/plain; charset=utf-8"
#: Whole numbers are below this, and not below its negative.
_WORD = 1 << 63
_IN_QUERY = ("GET", "DELETE")


def routes() -> Iterator[HttpRoute]:
    """A route for each operation."""
    for operation in OPERATIONS.values():
        yield HttpRoute(operation.verb, operation.path, partial(perform, operation), describe(operation))


async def perform(operation: Operation[..., Any, Any], pool: SessionPool, request: HttpRequest) -> None:
    """Answer one request."""
    if operation.scope == ANYBODY:
        arguments = await arguments_of(operation, request, MOST_OF_STRANGERS)
        address = (request.scope.get("client") or ("",))[0]
        answer = await in_time(pool.answer_stranger(address, operation.name, arguments))
        caller_known(request.scope)
    else:
        needs = f", with the scope {operation.scope}" if operation.scope else ""
        async with pool.used(request.token, f"Authorization: Bearer TOKEN{needs}") as session:
            caller_known(request.scope)
            arguments = await arguments_of(operation, request, MOST_BYTES)
            address = str((request.scope.get("client") or ("",))[0])
            call = session.bus.call_for(address, operation.name, arguments)
            answer = await while_there(pool, request, in_time(call))
    if answer is None and operation.answer is type(None):
        await request.answer(204)
    elif operation.answer is str:
        await request.answer(200, str(answer).encode(), TEXT)
    else:
        await request.answer(status_of(operation), msgspec.json.encode(answer))


async def in_time(call: Any) -> Any:
    """The answer of the terminal, or TimedOut."""
    try:
        async with asyncio.timeout(WITHIN):
            return await call
    except TimeoutError:
        raise TimedOut(f"no answer within {WITHIN:.0f} s", hint="ask again") from None


def status_of(operation: Operation[..., Any, Any]) -> int:
    """The status of an answer: 201 where something was made."""
    if operation.answer is type(None):
        return 204
    return 201 if operation.name.endswith(".create") else 200


# -- the arguments of a request ------------------------------------------------------------------------


async def arguments_of(
    operation: Operation[..., Any, Any], request: HttpRequest, most: int
) -> dict[str, Any]:
    """What the path, the query and the body say, checked. ``most``: bytes of the body."""
    request.own_headers({})
    kind: Any = operation.request
    types = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    in_path = request.path_names
    others = [name for name in types if name not in in_path]
    texts = dict(in_path)
    found: dict[str, Any] = {}
    if operation.verb in _IN_QUERY:
        texts |= request.query(others)
        await request.body(MOST_OF_STRANGERS)  # a body of these verbs means nothing (RFC 9110 9.3.1)
    else:
        request.query(())
        found = read_object(await request.body(most))
        for name in in_path:
            if name in found:
                raise BadRequest(
                    f"{operation.name}: {name} stands in the path", hint="leave it out of the body"
                )
    found |= {name: _from_text(operation, name, text, types[name]) for name, text in texts.items()}
    operation.read(found)  # its mistakes are told here with the names that HTTP has
    return found


def _from_text(operation: Operation[..., Any, Any], name: str, text: str, kind: Any) -> Any:
    """A value of the path or query as the operation's request has it."""
    try:
        value = msgspec.to_builtins(msgspec.convert(text, kind, strict=False))
        return _whole(str(value)) if type(value) is int else value
    except (ValueError, msgspec.ValidationError) as error:
        raise BadRequest(f"{operation.name}: {name}={text[:60]!r}: {error}") from None


def read_object(body: bytes) -> dict[str, Any]:
    """A JSON object, strictly: two members of one name would be read differently by different programs, and
    JSON has neither NaN nor infinity. An empty body is an empty object."""
    if not body.strip():
        return {}
    try:
        msgspec.json.decode(body)  # refuses what json takes: halves of surrogate pairs
        found = json.loads(
            body.decode(),
            object_pairs_hook=_members,
            parse_constant=_refuse_constant,
            parse_int=_whole,
            parse_float=_fraction,
        )
    except (ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadPayload(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(found, dict):
        raise BadPayload("the body is not a JSON object")
    return found


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        seen: set[str] = set()
        twice = next(name for name, _ in pairs if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise ValueError(f"the member {twice[:60]!r} is there twice")
    return found


def _whole(text: str) -> int:
    """A whole number, of as many bits as a frame carries."""
    number = int(text)
    if not -_WORD <= number < _WORD:
        raise ValueError(f"the number {text[:40]} is beyond 64 bits")
    return number


def _fraction(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"the number {text[:40]} is too large")
    return number


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


# -- what the document says ----------------------------------------------------------------------------

#: Refusals of all operations, and of some.
_REFUSALS = (400, 401, 403, 404, 409, 410, 412, 413, 422, 429, 503, 504, 507)


def describe(operation: Operation[..., Any, Any]) -> Described:
    """What the OpenAPI document says of an operation."""
    kind: Any = operation.request
    in_path = {part[1:-1] for part in operation.path.split("/") if part.startswith("{")}
    others = [field for field in msgspec.structs.fields(kind) if field.encode_name not in in_path]
    query: dict[str, tuple[dict[str, Any], str]] = {}
    bodies: dict[str, tuple[Any, Any]] = {}
    if operation.verb in _IN_QUERY:
        query = {field.encode_name: ({"of": field.type, "required": field.required}, "") for field in others}
    elif others:
        bodies["application/json"] = (body_type(operation, [field.encode_name for field in others]), None)
    forms: dict[str, Any] = {"application/json": operation.answer}
    if operation.answer is type(None):
        forms = {}
    elif operation.answer is str:
        forms = {"text/plain": {"type": "string"}}
    scope = operation.scope
    return Described(
        name=operation.name,
        summary=operation.help,
        description=f"Needs the scope `{scope}`." if scope and scope != ANYBODY else "",
        tag=operation.name.partition(".")[0],
        query=query,
        bodies=bodies,
        answers={status_of(operation): ("Done.", forms)},
        refusals=_REFUSALS,
        needs_token=scope != ANYBODY,
    )


def body_type(operation: Operation[..., Any, Any], names: list[str]) -> Any:
    """The type of the body: the request without the names in its path."""
    kind: Any = operation.request
    fields = msgspec.structs.fields(kind)
    if len(names) == len(fields):
        return kind
    members: list[Any] = []
    for one in fields:
        if one.encode_name in names:
            if one.required:
                members.append((one.name, one.type))
            elif one.default_factory is not msgspec.NODEFAULT:
                members.append((one.name, one.type, msgspec.field(default_factory=one.default_factory)))
            else:
                members.append((one.name, one.type, one.default))
    title = "".join(word.capitalize() for word in operation.name.replace(".", "_").split("_"))
    return msgspec.defstruct(f"{title}Body", members, kw_only=True, forbid_unknown_fields=True)
