"""``landbridge type``: the event types of a topic, with their schemas."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from landbridge.cli import completion, output
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, Topic, argument, option
from landbridge.cli.output import columns
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.protocol.operations import TypeDetails

app = Commands(no_args_is_help=True, help="Event types: what kinds of messages a topic is for, with schemas.")

LIST = columns("Topic@cyan | Type=name@cyan | Versions=numbers | Description")
SHOW = columns("Topic | Versions=numbers | Description")
VERSIONS = columns("Version | Registered=registered_at:moment | By=registered_by | Schema=text")

Name = Annotated[
    str,
    argument(
        "TYPE",
        "The type's name; 'default' is the type of messages that name none.",
        autocompletion=completion.type_names,
    ),
]
SchemaFile = Annotated[str, argument("SCHEMA", "A file with a JSON Schema, or '-' for standard input.")]


@app.command()
def register(
    topic: Topic,
    name: Name,
    schema: SchemaFile,
    *,
    description: str | None = option("What such a message means.", metavar="TEXT"),
    compatibility: Literal["backward", "none"] = option(
        "backward: the schema takes what the version before takes. none: any schema.", value="backward"
    ),
    context: ContextName = None,
) -> None:
    """List an event type in a topic, or register a new version of its schema. A topic with the stage
    'validate' checks messages by it from now on.

    Examples:
      landbridge type register orders default order.schema.json
      landbridge type register orders order.paid paid.json --description 'somebody has paid'
      echo '{"type": "object"}' | landbridge type register orders default -
      landbridge type register orders order.paid strict.json --compatibility none
    """
    value = _read(schema)
    made = ask(
        context,
        lambda bus: bus.types.register(
            topic, name, schema=value, description=description, compatibility=compatibility
        ),
    )
    output.tell(made, f"the type {name} of {topic} has version {made.versions[-1]}")


@app.command("list")
def list_types(topic: Topic, context: ContextName = None) -> None:
    """List the event types of a topic.

    Examples:
      landbridge type list orders
      landbridge type list orders --json | jq -r '.[].name'
    """
    rows = ask(context, lambda bus: bus.types.list(topic)).types
    output.rows(
        LIST,
        rows,
        empty=f"{topic} lists no types: 'landbridge type register {topic} TYPE SCHEMA' adds one",
        show=lambda row: output.fields(row, numbers=", ".join(map(str, row.versions))),
    )


@app.command()
def show(
    topic: Topic,
    name: Name,
    *,
    version: int | None = option("Print the schema of this version alone, as JSON.", metavar="N"),
    context: ContextName = None,
) -> None:
    """Show an event type with all versions of its schema.

    Examples:
      landbridge type show orders default
      landbridge type show orders default --version 2 > order.schema.json
    """
    found = ask(context, lambda bus: bus.types.show(topic, name))
    if version is not None:
        schema = next((each.schema for each in found.schemas if each.version == version), None)
        if schema is None:
            raise BadRequest(f"there is no version {version}", hint=f"there are {found.versions}")
        print(msgspec.json.format(msgspec.json.encode(schema), indent=2).decode())
        return
    output.emit(found, _show)


def _show(found: TypeDetails) -> None:
    output.record(found.name, SHOW, output.fields(found, numbers=", ".join(map(str, found.versions))))
    print()
    rows = [output.fields(each, text=_text(each.schema)) for each in found.schemas]
    output.table(VERSIONS, rows, empty="  no versions")


def _text(schema: Any) -> str:
    return msgspec.json.encode(schema).decode()


@app.command()
def remove(
    topic: Topic,
    name: Name,
    *,
    version: int | None = option("Remove this version alone.", metavar="N"),
    context: ContextName = None,
) -> None:
    """Remove an event type, or one version of its schema. Messages that are stored stay as they are.

    Examples:
      landbridge type remove orders order.paid
      landbridge type remove orders order.paid --version 1
    """
    deleted = ask(context, lambda bus: bus.types.remove(topic, name, version=version))
    output.tell(deleted, f"{deleted.deleted} is removed")


def _read(place: str) -> Any:
    try:
        raw = sys.stdin.buffer.read() if place == "-" else Path(place).read_bytes()
        return msgspec.json.decode(raw)
    except OSError as error:
        raise BadRequest(f"{place} can't be read: {error.strerror or error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"{place} is no JSON: {error}") from None
