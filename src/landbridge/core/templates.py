"""Templates: text with places that a message fills.

``{{ payload.customer.name }}`` is a value of a JSON payload, ``{{ payload }}`` all of it as text;
``{{ key }}``, ``{{ id }}``, ``{{ topic }}``, ``{{ offset }}``, ``{{ time }}`` and ``{{ headers.NAME }}`` are
what the names say. ``{{ payload.name | friend }}`` says what stands there where the message has no such
value; without it, such a message can't be sent. There is nothing else: no loops, no conditions, no functions.
What a message has is never read as a template, so nobody who publishes can change what is filled in
elsewhere.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

from landbridge.core.time import SECOND
from landbridge.errors import BadPayload, BadRequest

#: Characters of a template, places in it, and characters of what it makes.
LONGEST_TEMPLATE, MOST_PLACES, LONGEST_TEXT = 64 << 10, 100, 1 << 20
_PLACE = re.compile(r"\{\{([^{}]*)\}\}")
_PATH = re.compile(r"payload(\.[^.\s|]+)*\Z|headers\.[^\s|]+\Z")
_PLAIN = ("key", "id", "topic", "offset", "time")


class TemplatePlace(NamedTuple):
    """What a message fills in."""

    name: str
    #: Where the message has nothing there; None: it can't be sent.
    otherwise: str | None


class MessageValues:
    """What of a message a template may name. ``more``: further names."""

    def __init__(
        self,
        payload: bytes,
        headers: Mapping[str, object],
        *,
        more: Mapping[str, str],
        time: int,
    ) -> None:
        self._payload = payload
        self._headers = headers
        self._more = {**more, "time": _moment(time)}
        self._parsed: Any = msgspec.UNSET

    def get(self, name: str) -> Any:
        """The value of a name; None where there is none."""
        if name == "payload":
            return self._payload.decode(errors="replace")
        if name.startswith("payload."):
            return self._at(name.split(".")[1:])
        if name.startswith("headers."):
            value = self._headers.get(name.removeprefix("headers."))
            return value.decode(errors="replace") if isinstance(value, bytes) else value
        return self._more.get(name)

    def _at(self, path: list[str]) -> Any:
        if self._parsed is msgspec.UNSET:
            try:
                self._parsed = msgspec.json.decode(self._payload)
            except (msgspec.DecodeError, RecursionError):
                self._parsed = None
        found = self._parsed
        for part in path:
            if isinstance(found, dict):
                found = found.get(part)
            elif isinstance(found, list) and part.isdecimal() and len(part) < 7:
                found = found[int(part)] if int(part) < len(found) else None
            else:
                return None
        return found


class Template:
    """A text with places. ``more``: names that may be used beside those of every message."""

    def __init__(self, text: str, what: str, more: tuple[str, ...] = ()) -> None:
        if len(text) > LONGEST_TEMPLATE:
            raise BadRequest(f"{what}: {len(text)} characters, allowed are {LONGEST_TEMPLATE}")
        #: Text and places, in turn; it begins and ends with text.
        self.parts: list[str | TemplatePlace] = []
        for index, part in enumerate(_PLACE.split(text)):
            self.parts.append(_place(part, what, (*_PLAIN, *more)) if index % 2 else part)
        for each in self.parts:
            if isinstance(each, str) and ("{{" in each or "}}" in each):
                raise BadRequest(f"{what}: '{{{{' and '}}}}' enclose a name", hint="as {{ payload.name }}")
        if len(self.places) > MOST_PLACES:
            raise BadRequest(f"{what}: {len(self.places)} places, allowed are {MOST_PLACES}")

    @property
    def places(self) -> list[TemplatePlace]:
        """What a message fills in."""
        return [part for part in self.parts if isinstance(part, TemplatePlace)]

    @property
    def only_place(self) -> TemplatePlace | None:
        """The place that is all of it; None where there is more or less."""
        if len(self.places) == 1 and "".join(part for part in self.parts if isinstance(part, str)) == "":
            return self.places[0]
        return None

    def fill(self, values: MessageValues) -> str:
        """The text for a message. BadPayload where the message lacks something, or makes it too long."""
        made = [part if isinstance(part, str) else text_of(value_of(part, values)) for part in self.parts]
        if sum(map(len, made)) > LONGEST_TEXT:
            raise BadPayload(f"a text of more than {LONGEST_TEXT} characters")
        return "".join(made)


def value_of(place: TemplatePlace, values: MessageValues) -> Any:
    """What stands at a place for a message. BadPayload where there is nothing."""
    found = values.get(place.name)
    if found is not None:
        return found
    if place.otherwise is None:
        raise BadPayload(f"the message has no {place.name}")
    return place.otherwise


def text_of(value: object) -> str:
    """A value of JSON as text."""
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    return msgspec.json.encode(value).decode()


def one_line(text: str, longest: int) -> str:
    """A text without line ends and other control characters: as one line of a header."""
    kept = "".join(" " if ord(each) < 32 or 127 <= ord(each) < 160 else each for each in text)
    return " ".join(kept.replace("\u2028", " ").replace("\u2029", " ").split())[:longest]


def _place(text: str, what: str, plain: tuple[str, ...]) -> TemplatePlace:
    name, bar, otherwise = (each.strip() for each in text.partition("|"))
    if name not in plain and not _PATH.match(name):
        raise BadRequest(
            f"{what}: nothing is called {name[:60]!r}",
            hint=f"payload, payload.NAME, headers.NAME, {', '.join(plain)}",
        )
    return TemplatePlace(name, otherwise if bar else None)


def _moment(time: int) -> str:
    return datetime.fromtimestamp(time // SECOND, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
