"""A process of its own that checks what may take long: messages by costly schemas, and large schemas.

The library that checks messages holds the interpreter until it is done, so that a thread would be no help.
The kernel ends the process when one check has taken ``MOST_SECONDS``: seconds of the processor, so that a
busy machine refuses nothing.
"""

from __future__ import annotations

import os
import sys
from collections import OrderedDict
from typing import Annotated, Any, BinaryIO

import msgspec
from msgspec import Meta

from landbridge.core.middleware import event_types
from landbridge.core.middleware.event_types import EventType, TypeRegistration
from landbridge.core.middleware.schema import Checker, compile_schema, first_error
from landbridge.errors import BusError

#: Seconds of the processor that one check may take.
MOST_SECONDS = 5
#: Compiled schemas that are kept.
MOST_COMPILED = 32
#: Bytes of the length in front of each message between the two processes.
HEAD = 4
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class CheckAsked(msgspec.Struct, tag="check"):
    """Which of these payloads is the first that doesn't fit the schema? Answered by a ``CheckVerdict`` for
    each, up to the first that doesn't."""

    schema: bytes
    payloads: list[bytes]


class RegistrationAsked(msgspec.Struct, tag="register"):
    """A type with one more version. Answered by a ``TypeRegistered``."""

    known: EventType | None
    wanted: TypeRegistration


class CheckVerdict(msgspec.Struct, omit_defaults=True):
    """Of one payload."""

    fits: bool
    field: str = ""
    reason: str = ""
    is_json: bool = True


class TypeRegistered(msgspec.Struct):
    """The type, or the error's code, message and hint."""

    type: EventType | None
    error: Annotated[list[str], Meta(max_length=3)] = []


Asked = CheckAsked | RegistrationAsked
_encode = msgspec.msgpack.Encoder().encode
_asked = msgspec.msgpack.Decoder(Asked).decode


def serve(requests: BinaryIO, answers: BinaryIO, seconds: int) -> None:
    """Answer until nobody asks any more."""
    compiled: OrderedDict[bytes, Checker] = OrderedDict()
    while raw := read_message(requests):
        asked = _asked(raw)
        if isinstance(asked, RegistrationAsked):
            limit_time(seconds)
            write_message(answers, _encode(_register(asked)))
            continue
        for payload in asked.payloads:
            limit_time(seconds)
            verdict = _judge(compiled, asked.schema, payload)
            write_message(answers, _encode(verdict))
            if not verdict.fits:
                break


def _judge(compiled: OrderedDict[bytes, Checker], schema: bytes, payload: bytes) -> CheckVerdict:
    checker = compiled.pop(schema, None) or compile_schema(msgspec.json.decode(schema))
    compiled[schema] = checker
    if len(compiled) > MOST_COMPILED:
        compiled.popitem(last=False)
    try:
        value: Any = msgspec.json.decode(payload)
    except _UNREADABLE as error:
        return CheckVerdict(False, reason=f"the payload is no JSON: {error}", is_json=False)
    if checker.is_valid(value):
        return CheckVerdict(True)
    return CheckVerdict(False, *first_error(checker, value, len(payload)))


def _register(asked: RegistrationAsked) -> TypeRegistered:
    try:
        return TypeRegistered(event_types.register(asked.known, asked.wanted))
    except BusError as error:
        return TypeRegistered(None, [error.code, str(error), error.hint or ""])


def read_message(stream: BinaryIO) -> bytes:
    """The next message; b"" at the end."""
    head = stream.read(HEAD)
    if len(head) < HEAD:
        return b""
    length = int.from_bytes(head)
    raw = stream.read(length)
    return raw if len(raw) == length else b""


def write_message(stream: BinaryIO, raw: bytes) -> None:
    """Send a message."""
    stream.write(len(raw).to_bytes(HEAD) + raw)
    stream.flush()


def limit_time(seconds: int) -> None:
    """From now on, so many of the processor. The kernel counts whole seconds."""
    try:
        import resource
    except ImportError:  # a system without such limits
        return
    used = os.times()
    until = int(used.user + used.system) + 1 + seconds
    _, hard = resource.getrlimit(resource.RLIMIT_CPU)
    resource.setrlimit(
        resource.RLIMIT_CPU, (until if hard == resource.RLIM_INFINITY else min(until, hard), hard)
    )


def main(seconds: int) -> None:
    """The process. ``seconds``: how many of the processor one check may take."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever prints, doesn't print into the answers
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, ValueError, OSError):
        pass
    try:
        serve(sys.stdin.buffer, answers, seconds)
    except (BrokenPipeError, KeyboardInterrupt):
        pass
