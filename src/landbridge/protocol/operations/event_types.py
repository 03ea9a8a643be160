"""Operations on the event types of topics."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from landbridge.protocol.operations.common import SEE_ITS_TOPIC, Deleted, TopicName
from landbridge.protocol.operations.operation import Arguments, Result, about, operation

TypeName = Annotated[str, about("Name of the event type; 'default' is that of messages that name none.")]
Schema = Annotated[Any, about("The JSON Schema, as an object.")]
SchemaNumber = Annotated[int, about("The number of a version of its schema, from 1.")]


class OfTypes(Arguments, frozen=True):
    """The topic whose types are asked for."""

    topic: TopicName


class OfType(OfTypes, frozen=True):
    """An event type by its topic and name."""

    name: TypeName


class TypeRegister(OfType, frozen=True, kw_only=True):
    """An event type, or a new version of its schema."""

    schema: Schema
    description: Annotated[str | None, about("What such a message means; None leaves it as it is.")] = None
    compatibility: Annotated[
        Literal["backward", "none"],
        about(
            "'backward': the schema takes what the newest version takes, or is refused; 'none': any schema."
        ),
    ] = "backward"


class TypeRemove(OfType, frozen=True, kw_only=True):
    """An event type to remove, or one version of it."""

    version: Annotated[int | None, about("The version to remove; None: the type with all versions.")] = None


class TypeVersion(Result, frozen=True, kw_only=True):
    """One version of a type's schema."""

    version: SchemaNumber
    schema: Schema
    registered_at: Annotated[int, about("When it was registered, in microseconds.")]
    registered_by: Annotated[str, about("The subject that has registered it.")]


class TypeRow(Result, frozen=True, kw_only=True):
    """An event type."""

    topic: TopicName
    name: TypeName
    description: Annotated[str, about("What such a message means.")]
    versions: Annotated[list[int], about("The versions that there are, oldest first.")]
    schema: Annotated[Any, about("The schema of the newest version; None where there is none.")]


class TypeDetails(TypeRow, frozen=True, kw_only=True):
    """An event type with all its schemas."""

    schemas: Annotated[list[TypeVersion], about("Its versions, oldest first.")]


class TypeRows(Result, frozen=True, kw_only=True):
    """The event types of a topic."""

    types: Annotated[list[TypeRow], about("By name.")]


_TYPES = "/v1/topics/{topic}/types"
_TYPE = f"{_TYPES}/{{name}}"

TYPE_REGISTER = operation(
    "type.register", TypeRegister, TypeDetails, f"POST {_TYPE}",
    "List an event type in a topic, or register a new version of its schema.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
TYPE_LIST = operation(
    "type.list",
    OfTypes,
    TypeRows,
    f"GET {_TYPES}",
    "List the event types of a topic.",
    scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)
TYPE_SHOW = operation(
    "type.show", OfType, TypeDetails, f"GET {_TYPE}",
    "Show an event type with all versions of its schema.", scope=SEE_ITS_TOPIC,
    where="topic:{topic}",
)  # fmt: skip
TYPE_REMOVE = operation(
    "type.remove", TypeRemove, Deleted, f"DELETE {_TYPE}",
    "Remove an event type, or one version of its schema.", scope="operate",
    where="topic:{topic}",
)  # fmt: skip
