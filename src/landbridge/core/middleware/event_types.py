"""Event types: what kinds of messages a topic is for, each with its schemas, by version."""

from __future__ import annotations

import re
from typing import Any, Literal

import msgspec

from landbridge.core.log.batch import HeaderValue
from landbridge.core.middleware.compatibility import check_backward, is_equal
from landbridge.core.middleware.schema import check_form, check_schema, check_size
from landbridge.core.middleware.weight import COMPILED_HERE, is_large, weigh
from landbridge.errors import BadRequest, LimitReached, SchemaIncompatible, UnknownType

COLLECTION = "$types"
#: The type of messages that name none.
DEFAULT = "default"
#: Types of a topic, and versions that a type keeps.
MOST_TYPES, MOST_VERSIONS = 200, 50
#: The headers that name a message's type, and the version of its schema: the first that is there counts.
TYPE_HEADERS = ("ce-type", "type")
VERSION_HEADERS = ("ce-typeversion", "type-version")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,199}")
_NUMBER = re.compile(r"[1-9][0-9]{0,8}")


class SchemaVersion(msgspec.Struct, frozen=True, kw_only=True):
    """A schema of a type, as it was registered."""

    #: From 1; a number is never given twice.
    version: int
    schema: dict[str, Any] | bool
    #: Microseconds since 1970.
    registered_at: int
    registered_by: str


class EventType(msgspec.Struct, frozen=True, kw_only=True):
    """A type of a topic's messages."""

    description: str = ""
    #: The number of the newest version that there ever was.
    newest: int = 0
    #: Oldest first.
    versions: tuple[SchemaVersion, ...] = ()

    def find(self, version: int | None) -> SchemaVersion:
        """The schema of a version; None: the newest. UnknownType where there is none."""
        for each in reversed(self.versions):
            if version is None or each.version == version:
                return each
        listed = ", ".join(str(each.version) for each in self.versions) or "none"
        raise UnknownType(f"there is no version {version}", hint=f"these versions are there: {listed}")


encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(EventType).decode


def is_type_name(name: str) -> bool:
    """Can a type have this name?"""
    return _NAME.fullmatch(name) is not None


def check_type_name(name: str) -> str:
    """BadRequest for a name that a type can't have."""
    if not is_type_name(name):
        raise BadRequest(
            f"the name {name[:60]!r} of an event type",
            hint="1 to 200 letters, digits and . _ : -, with a letter or digit in front",
        )
    return name


class TypeRegistration(msgspec.Struct, frozen=True, kw_only=True):
    """One more version that somebody wants a type to have."""

    schema: Any
    now: int
    who: str
    #: None: as before.
    description: str | None
    compatibility: Literal["backward", "none"]

    @property
    def is_costly(self) -> bool:
        """May it take long to compile the schema and to compare it with the one before? BadRequest where it
        is none."""
        check_size(self.schema)
        if is_large(self.schema):
            return True
        check_form(self.schema)
        return weigh(self.schema).compiling > COMPILED_HERE


def register(known: EventType | None, wanted: TypeRegistration) -> EventType:
    """A type with one more version; as it is where its newest version has this very schema.
    BadRequest for a schema that is none, SchemaIncompatible for one that refuses what the newest one
    takes."""
    schema, now, who = wanted.schema, wanted.now, wanted.who
    check_schema(schema)
    before = known or EventType()
    text = before.description if wanted.description is None else wanted.description
    if before.versions and is_equal(before.versions[-1].schema, schema):
        return msgspec.structs.replace(before, description=text)
    if len(before.versions) >= MOST_VERSIONS:
        raise LimitReached(
            f"the type has {len(before.versions)} versions, as many as it may",
            hint="remove old ones: 'landbridge type remove TOPIC TYPE --version N'",
        )
    if before.versions and wanted.compatibility == "backward":
        newest = before.versions[-1]
        found = check_backward(newest.schema, schema)
        if found:
            shown = "; ".join(found[:5]) + (f"; and {len(found) - 5} more" if len(found) > 5 else "")
            raise SchemaIncompatible(f"not backward compatible with version {newest.version}: {shown}")
    version = SchemaVersion(version=before.newest + 1, schema=schema, registered_at=now, registered_by=who)
    return EventType(description=text, newest=version.version, versions=(*before.versions, version))


def without(known: EventType, version: int) -> EventType:
    """A type without one of its versions."""
    known.find(version)
    left = tuple(each for each in known.versions if each.version != version)
    return msgspec.structs.replace(known, versions=left)


def type_of(headers: dict[str, HeaderValue]) -> str:
    """The type that a message names."""
    for name in TYPE_HEADERS:
        if name in headers:
            return str(headers[name])
    return DEFAULT


def version_of(headers: dict[str, HeaderValue]) -> int | None:
    """The version that a message names; None where it names none, 0 where what it names is no version."""
    for name in VERSION_HEADERS:
        if name in headers:
            text = str(headers[name])
            return int(text) if _NUMBER.fullmatch(text) else 0
    return None
