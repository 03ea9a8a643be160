"""Options from outside: read into a document, compared with one that is there, and what is wrong with them is
told in the words of whoever gave them."""

from __future__ import annotations

import re
import types
import typing
from difflib import get_close_matches
from typing import Any, Literal, TypeVar

import msgspec

from landbridge.errors import BadRequest

T = TypeVar("T")

#: Characters of a stranger's text that an error repeats.
LONGEST_QUOTE = 60

#: msgspec says where a value is at the end of its text: "… - at `$.retention.max_age`".
_PLACE = re.compile(r" - at `\$\.?([^`]*)`$")
#: A place in a list, or any.
_ITEM = re.compile(r"\[(?:\.\.\.|[0-9]+)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `([^`]*)`")


def read_options(raw: object, kind: type[T], what: str) -> T:
    """The document that they make. BadRequest says which of them is wrong, and what it may be."""
    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:
        message, hint = explain(error, kind)
        raise BadRequest(f"{what}: {message}", hint=hint) from None


def explain(error: msgspec.ValidationError, kind: Any, name: str = "") -> tuple[str, str]:
    """What is wrong, and a hint. ``name`` is what the whole value is called."""
    text = str(error)
    place = _PLACE.search(text)
    path = place[1] if place else ""
    if place:
        text = text[: place.start()]
    where = ".".join(part for part in (name, path) if part)
    inner = _kind_at(kind, path)
    unknown = _UNKNOWN.fullmatch(text)
    if unknown:
        structs = _structs_of(inner)
        fields = {each: [field.name for field in msgspec.structs.fields(each)] for each in structs}
        names = list(dict.fromkeys(name for found in fields.values() for name in found))
        listed = ", ".join(names)
        if len(structs) > 1:  # which of them it is can't be told
            tagged = ((each.__struct_config__.tag, found) for each, found in fields.items())
            listed = "; ".join(f"{tag}: {', '.join(found) or 'none'}" for tag, found in tagged)
        said = unknown[1][:LONGEST_QUOTE]
        near = get_close_matches(said, names, n=1)
        option = ".".join(part for part in (where, said) if part)
        hint = f"did you mean {near[0]}? " if near else ""
        return f"there is no option {option!r}", f"{hint}there are {listed}" if names else hint
    allowed = _values_of(inner)
    said = (text[:1].lower() + text[1 : 2 * LONGEST_QUOTE]).replace("`", "")
    return f"{where}: {said}" if where else said, f"one of: {', '.join(allowed)}" if allowed else ""


def differences(found: Any, wanted: Any) -> str:
    """In which options two documents of a kind differ: "kind is stream, not queue"."""
    here, there = _flat(msgspec.to_builtins(found)), _flat(msgspec.to_builtins(wanted))
    names = [*here, *(name for name in there if name not in here)]
    return "; ".join(
        f"{name} is {_said(here.get(name))}, not {_said(there.get(name))}"
        for name in names
        if here.get(name) != there.get(name)
    )


def _flat(document: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for name, value in document.items():
        if isinstance(value, dict) and value:
            flat.update(_flat(value, f"{before}{name}."))
        else:
            flat[before + name] = value or None if isinstance(value, dict) else value
    return flat


def _said(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:g}" if isinstance(value, float) else str(value) or "empty"


def _kind_at(kind: Any, path: str) -> Any:
    """The type of what is at a path of a struct; None where that can't be told."""
    for part in _ITEM.sub(".[]", path).split(".") if path else ():
        if part == "[]":  # the values of a list or of a dictionary
            inner = (typing.get_args(each) for each in _options_of(kind))
            # Of a dictionary the second one; of tuple[X, ...] the first.
            kind = next((each[-1] if each[-1] is not ... else each[0] for each in inner if each), None)
            continue
        struct = _struct_of(kind)
        if struct is None:
            return None
        if part == struct.__struct_config__.tag_field:  # which struct of a union it is
            tags = [each.__struct_config__.tag for each in _options_of(kind) if _struct_of(each)]
            return Literal[tuple(tags)]
        kind = typing.get_type_hints(struct).get(part)
    return kind


def _struct_of(kind: Any) -> type[msgspec.Struct] | None:
    """The struct that it is, or may be."""
    return next(iter(_structs_of(kind)), None)


def _structs_of(kind: Any) -> list[type[msgspec.Struct]]:
    """The structs that it may be."""
    return [each for each in _options_of(kind) if isinstance(each, type) and issubclass(each, msgspec.Struct)]


def _options_of(kind: Any) -> tuple[Any, ...]:
    """The members of a union; of anything else, the type itself."""
    return typing.get_args(kind) if typing.get_origin(kind) in (typing.Union, types.UnionType) else (kind,)


def _values_of(kind: Any) -> list[str]:
    """What a Literal allows, alone or in a union."""
    literals = (each for each in _options_of(kind) if typing.get_origin(each) is Literal)
    return [str(value) for each in literals for value in typing.get_args(each)]
