"""From the fields of a form to the arguments of an operation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias
from urllib.parse import parse_qsl

import msgspec

from landbridge.errors import BadRequest

#: The fields that a form has sent, in their order.
Fields: TypeAlias = list[tuple[str, str]]

#: Fields of one form, and bytes of it.
MOST_FIELDS, MOST_BYTES = 200, 4 << 20
#: Fields that are not arguments: the secret of the session, the page to go back to, the confirmation.
OWN = ("csrf", "back", "confirmed")


def read(body: bytes) -> Fields:
    """The fields of an urlencoded body. Browsers end lines by CR LF; the value has LF."""
    try:
        pairs = parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict")
    except ValueError as error:
        raise BadRequest(f"the form can't be read: {error}") from None
    return [(name, value.replace("\r\n", "\n")) for name, value in pairs]


def first(fields: Fields, name: str) -> str:
    """The value of a field; empty where there is none."""
    return next((value for each, value in fields if each == name), "")


def json_of(text: str, name: str, hint: str) -> Any:
    """The JSON of a field. BadRequest where it is none."""
    try:
        return msgspec.json.decode(text)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadRequest(f"{name} is not JSON: {error}", hint=hint) from None


def arguments(fields: Fields, lists: Iterable[str] = ()) -> dict[str, Any]:
    """The fields as arguments: ``retention.max_age`` is a field of ``retention``. One that was left empty is
    not given. ``lists``: those that are lists, each with a line for an element, or several fields."""
    many = set(lists)
    found: dict[str, Any] = {}
    for name, value in fields:
        if name in OWN or value == "":
            continue
        *path, last = name.split(".")
        place = found
        for step in path:
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise BadRequest(f"the field {name[:60]!r} is given twice")
        if name in many:
            place.setdefault(last, []).extend(line.strip() for line in value.splitlines() if line.strip())
        elif last in place and (place[last], value) != ("false", "true"):  # a box that is ticked
            raise BadRequest(f"the field {name[:60]!r} is given twice")
        else:
            place[last] = value
    return found
