"""What may be a payload: bytes and str as they are, everything else as JSON; and what may go with one:
headers, or the failure of a service in place of a reply."""

from __future__ import annotations

from typing import Any

import msgspec

from landbridge.core.log.batch import Headers, HeaderValue
from landbridge.errors import BadPayload, BadRequest, BusError, ServiceFailed
from landbridge.protocol import frames

#: Characters of a failure's text.
LONGEST_TEXT = 4096


def _from_model(value: Any) -> Any:
    """A model of pydantic, as what JSON can say. Landbridge itself doesn't need pydantic."""
    if (dump := getattr(value, "model_dump", None)) is None:
        raise TypeError(f"JSON can't say a value of the type {type(value).__name__}")
    return dump(mode="json")


def _to_model(kind: Any, value: Any) -> Any:
    if (validate := getattr(kind, "model_validate", None)) is None:
        raise BadRequest(
            f"a payload can't be read as {kind!r}",
            hint="use a dataclass, a msgspec Struct or a pydantic model",
        )
    return validate(value)


_to_json = msgspec.json.Encoder(enc_hook=_from_model).encode


def encode(payload: Any) -> bytes:
    """Bytes for a payload: bytes-like, str, or anything that msgspec turns into JSON (dicts, lists, Structs,
    dataclasses, datetimes, UUIDs, …), with models of pydantic in it."""
    if type(payload) is bytes:
        return payload
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    try:
        return payload.encode() if isinstance(payload, str) else _to_json(payload)
    except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
        raise BadPayload(
            f"a payload of the type {type(payload).__name__} can't be sent: {error}",
            hint="send bytes, str, a dataclass, a msgspec Struct or something JSON can say",
        ) from None


def decode(payload: bytes, type: Any = Any) -> Any:
    """The value of a JSON payload, checked against a type. BadPayload if it doesn't fit."""
    try:
        return msgspec.json.decode(payload, type=type, dec_hook=_to_model)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadPayload(f"the payload is not what was expected: {error}") from None


def failure_of(error: BaseException) -> frames.Failure:
    """What a requester hears of an exception. A ServiceFailed says its own code and status; an error of the
    bus has both; any other exception is "failed", 500."""
    text = str(error)[:LONGEST_TEXT]
    if isinstance(error, ServiceFailed):
        status = error.status if 400 <= error.status <= 599 else 500
        return frames.Failure(error.service_code[:200], status, text)
    if isinstance(error, BusError):
        return frames.Failure(error.code, error.http_status, text)
    return frames.Failure("failed", 500, f"{type(error).__name__}: {text}"[:LONGEST_TEXT])


def check_headers(headers: Headers | None) -> dict[str, HeaderValue]:
    """Headers as frames have them. BadRequest for what can't be one."""
    found: dict[str, HeaderValue] = {}
    for name, value in headers.items() if headers else ():
        if not isinstance(name, str) or not isinstance(value, str | bytes | int | float):
            raise BadRequest(
                f"the header {name!r}: {value!r}", hint="text for text, bytes, a number or a boolean"
            )
        found[name] = value
    return found
