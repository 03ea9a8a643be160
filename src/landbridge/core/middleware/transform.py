"""The stage ``transform``: what code of users sees of a batch, and what it may give back."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from pathlib import PurePath
from typing import Any, TypeAlias

import msgspec

from landbridge.core.log.batch import HeaderValue
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.wording import counted
from landbridge.errors import BusError, InvalidMessage, MiddlewareFailed

KEYS = "change keys before storing: groups choose messages by them"
#: The group of entry points.
GROUP = "landbridge.middleware"


class TransformRow(msgspec.Struct):
    """A message on its way through a transform, which may change it."""

    payload: bytes
    headers: dict[str, HeaderValue]
    key: bytes
    #: The message's id and its topic: they can't be changed.
    id: str
    topic: str

    #: Which message of its batch it is, from 0.
    index: int = 0

    def json(self) -> Any:
        """The payload decoded as JSON. InvalidMessage, which refuses the batch, where it is none."""
        try:
            return msgspec.json.decode(self.payload)
        except (msgspec.MsgspecError, RecursionError, ValueError) as error:
            raise InvalidMessage(
                f"message {self.index} of the batch: the payload is no JSON: {str(error)[:200]}",
                hint="send JSON, in UTF-8",
                index=self.index,
            ) from None

    def set_json(self, value: Any) -> None:
        """Make this value, as JSON, the payload."""
        self.payload = msgspec.json.encode(value)


#: Changes the messages of a batch: those that it is given, in place, or others in the same order. It returns
#: None or a list of as many rows.
Transform: TypeAlias = Callable[[list[TransformRow]], "list[TransformRow] | None"]
#: What an entry point is: called with the options of the stage, it makes a transform.
MakeTransform: TypeAlias = Callable[[Mapping[str, Any]], Transform]


def rows_for(rows: BatchRows, topic: str) -> list[TransformRow]:
    """The messages of a batch, for a transform."""
    batch = rows.batch
    keys = batch.keys() or [b""] * len(rows)
    return [
        TransformRow(payload, rows.headers(at), keys[at], batch.id_of(at), topic, at)
        for at, payload in enumerate(rows.payloads)
    ]


def apply(transform: Transform, name: str, given: list[TransformRow]) -> list[TransformRow]:
    """Call a transform. MiddlewareFailed where it raises, or returns something else than as many rows."""
    count = len(given)
    try:
        found = transform(given)
    except BusError:
        raise  # it refuses the batch by an error of the bus
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:200]}"
        raise MiddlewareFailed(f"the transform {name} has raised {text}{_place(error)}") from None
    rows = given if found is None else found
    if not isinstance(rows, list) or len(rows) != count:
        got = counted(len(rows), "row") if isinstance(rows, list) else type(rows).__name__
        had = counted(count, "message")
        raise MiddlewareFailed(f"the transform {name} was given {had} and has returned {got}")
    for row in rows:
        if (
            not isinstance(row, TransformRow)
            or type(row.payload) is not bytes
            or type(row.key) is not bytes
            or not isinstance(row.headers, dict)
        ):
            raise MiddlewareFailed(f"the transform {name} has returned something else than rows")
    return rows


def _place(error: Exception) -> str:
    """Where an exception was raised: the file's name and the line."""
    frames = traceback.extract_tb(error.__traceback__)
    return f" ({PurePath(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""


def take_back(rows: BatchRows, name: str, changed: list[TransformRow], *, keeps_keys: bool) -> None:
    """Put what a transform has made of the messages into the batch. ``keeps_keys``: groups were told by now
    which keys have come, so those have to stay."""
    payloads, keys = [row.payload for row in changed], [row.key for row in changed]
    if keeps_keys and keys != (rows.batch.keys() or [b""] * len(rows)):
        raise MiddlewareFailed(f"the transform {name} has changed a key before delivery", hint=KEYS)
    try:
        rows.replace(payloads, [row.headers for row in changed], keys)
    except (TypeError, ValueError, OverflowError, msgspec.MsgspecError) as error:
        raise MiddlewareFailed(
            f"the transform {name} has returned headers that can't be stored: {str(error)[:200]}"
        ) from None
