"""Writes docs/cli.md from the commands, and docs/operations-reference.md from the table of operations:
``./dev docs``. A test fails when one of them is out of date."""

from __future__ import annotations

import inspect
import re
import types
import typing
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from typer.main import get_command

from landbridge.cli.main import app
from landbridge.errors import catalogue
from landbridge.protocol.operations import OPERATIONS, Operation

PATH = Path(__file__).with_name("cli.md")
OPERATIONS_PATH = Path(__file__).with_name("operations-reference.md")
INTRO = """# Command line

`landbridge NOUN VERB`. Every command takes `--json` (also for errors, on stderr) and `--help`; those that
connect take `--context NAME`. Spans are written `30s`, `5m`, `7d`; sizes `10MB`, `1GiB`; times as ISO 8601
or `2h ago`. The exit status is 0, 2 for a mistyped command, or the error's own ([errors](errors.md)).
`landbridge --install-completion` has the shell complete commands, options, and the names of contexts, topics,
groups, services and so on.

This page is made from the commands (`./dev docs`).
"""


def commands(command: Any, words: tuple[str, ...]) -> list[tuple[tuple[str, ...], Any]]:
    inner = getattr(command, "commands", None)
    if inner is None:
        return [(words, command)]
    return [found for name in sorted(inner) for found in commands(inner[name], (*words, name))]


def section(words: tuple[str, ...], command: Any) -> str:
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [
        p for p in command.params if p.param_type_name == "option" and not p.hidden and p.name != "help"
    ]
    usage = " ".join([*words, *("[OPTIONS]" for _ in options[:1]), *(_argument(p) for p in arguments)])
    text, _, examples = inspect.cleandoc(command.help or "").replace("\b\n", "").partition("Examples:")
    lines = [f"## {' '.join(words)}", "", text.strip(), "", "```text", usage, "```", ""]
    if examples.strip():
        lines += ["```text", inspect.cleandoc(examples).strip(), "```", ""]
    rows = [(_argument(p), p.help) for p in arguments if getattr(p, "help", None)]
    rows += [(_option(p), f"{p.help} {_usual(p)}") for p in options]
    if rows:
        lines += ["| | |", "|---|---|"]
        lines += [f"| `{_cell(name)}` | {_cell(text)} |" for name, text in rows]
        lines.append("")
    return "\n".join(lines)


def _argument(parameter: Any) -> str:
    name = str(parameter.metavar or parameter.name).upper()
    return name if parameter.required else f"[{name}]"


def _option(parameter: Any) -> str:
    """Its names, and what its value is."""
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return names
    value = parameter.type_descriptor
    choices = "|".join(str(choice) for choice in value.choices) if value.is_choice else ""
    return f"{names} {parameter.metavar or choices or 'TEXT'}"


def _usual(parameter: Any) -> str:
    said = parameter.show_default
    if isinstance(said, str):
        return f"By default: {said}."
    value = parameter.default
    if (parameter.is_flag and not parameter.secondary_opts) or not said or value in (None, "", ()):
        return ""
    if parameter.is_flag:
        value = (parameter.opts if value else parameter.secondary_opts)[0]
    return f"By default `{value:g}`." if isinstance(value, float) else f"By default `{value}`."


def _cell(text: str | None) -> str:
    return " ".join((text or "").split()).replace("|", "\\|")


def page() -> str:
    found = commands(get_command(app), ("landbridge",))
    return INTRO + "\n" + "\n".join(section(words, command) for words, command in found)


# -- operations ----------------------------------------------------------------------------------------

OPERATIONS_INTRO = """# Operations of a terminal

Everything that a terminal does besides moving messages. `bus.call("topic.create", name="orders")` calls an
operation by its name and returns plain dictionaries; `bus.topics.create("orders")` is the same with types
([the client](client.md#topics-groups-tokens)). The verb and the path are those that HTTP uses: names in
braces are fields of the request, the others are the query of a GET or DELETE and the body of a POST or PATCH.

Moments are microseconds since 1970, spans are seconds, sizes are bytes. An unknown argument is refused
(`bad_request`), a missing scope too (`forbidden`). A field without a default must be given.

This page is made from `landbridge/protocol/operations/` (`./dev docs`).
"""


def operations_page() -> str:
    seen: dict[str, Any] = {}
    parts = [_operation(operation, seen) for operation in OPERATIONS.values()]
    structures = []
    while left := [name for name in seen if seen[name] is not None]:
        for name in left:
            kind, seen[name] = seen[name], None
            structures.append((name, f"### {name}\n\n{_about(kind)}\n\n" + _fields(kind, "field", seen)))
    found = "\n".join(text for _, text in sorted(structures))
    return f"{OPERATIONS_INTRO}\n" + "\n".join(parts) + f"\n## Structures\n\n{found}"


def _operation(operation: Operation[..., Any, Any], seen: dict[str, Any]) -> str:
    request: Any = operation.request
    scope = f"needs `{operation.scope}`" if operation.scope else "any token"
    kind = "changes nothing" if operation.safe else "may change something"
    lines = [f"## {operation.name}", "", operation.help, ""]
    lines += [f"`{operation.verb} {operation.path}` · {scope} · {kind}", ""]
    if msgspec.structs.fields(request):
        lines.append(_fields(request, "argument", seen))
    answer: Any = operation.answer
    if _is_struct(answer) and answer.__module__.startswith("landbridge.protocol.operations."):
        lines += [f"Answers {_first_lower(_about(answer))}", "", _fields(answer, "answer", seen)]
    else:
        lines += [f"Answers {_type(answer, seen)}.", ""]
    return "\n".join(lines)


def _first_lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def _about(kind: Any) -> str:
    return " ".join((inspect.getdoc(kind) or "").replace("``", "`").split())


def _fields(kind: Any, what: str, seen: dict[str, Any]) -> str:
    hints = typing.get_type_hints(kind, include_extras=True)
    with_defaults = any(not field.required for field in msgspec.structs.fields(kind))
    columns = [what, "type", *(["default"] if with_defaults else []), ""]
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for field in msgspec.structs.fields(kind):
        hint = hints[field.name]
        cells = [f"`{field.encode_name}`", _type(hint, seen)]
        if with_defaults:
            cells.append("" if field.required else _default(field))
        lines.append(f"| {' | '.join([*cells, _cell(_meaning(kind, field.name, hint))])} |")
    return "\n".join([*lines, ""])


def _default(field: Any) -> str:
    value = field.default if field.default is not msgspec.NODEFAULT else field.default_factory()
    if value is msgspec.UNSET:
        return "not given"
    return "`none`" if value is None else f"`{msgspec.json.encode(value).decode()}`"


def _meaning(kind: Any, name: str, hint: Any) -> str:
    """A field's description: of its Meta, or the comment beside or above it."""
    if typing.get_origin(hint) is Annotated:
        for extra in hint.__metadata__:
            if isinstance(extra, msgspec.Meta) and extra.description:
                return extra.description
    for base in kind.__mro__:
        if name in vars(base).get("__annotations__", {}):
            found = re.search(
                rf"((?:^ *#:.*\n)*)^ +{name}:[^#\n]*(#:.*)?", inspect.getsource(base), re.MULTILINE
            )
            if found:
                return " ".join(text.strip(" #:") for text in (found[1] + (found[2] or "")).splitlines())
    return ""


def _type(hint: Any, seen: dict[str, Any]) -> str:
    """A type in words. A struct is a link to its own section, and noted in ``seen``."""
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is Annotated:
        return _type(arguments[0], seen)
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in arguments)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(_type(each, seen) for each in arguments if each is not msgspec.UnsetType)
    if origin is list or (origin is tuple and arguments[-1] is ...):
        return f"list of {_type(arguments[0], seen)}"
    if origin is dict:
        return f"map of {_type(arguments[0], seen)} to {_type(arguments[1], seen)}"
    if origin is tuple:
        if arguments[-1] is Ellipsis:
            return f"list of {_type(arguments[0], seen)}"
        return f"({', '.join(_type(each, seen) for each in arguments)})"
    if _is_struct(hint):
        seen.setdefault(hint.__name__, hint)
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    return "none" if hint is type(None) else str(hint.__name__)


def _is_struct(hint: Any) -> bool:
    return isinstance(hint, type) and issubclass(hint, msgspec.Struct)


# -- errors --------------------------------------------------------------------------------------------

#: The table of docs/errors.md, between what is written by hand.
ERRORS_PATH = Path(__file__).with_name("errors.md")
ERRORS_HEAD = (
    "| code | in Python | exit status | HTTP status | retriable | meaning |\n|---|---|---|---|---|---|\n"
)


def errors_page() -> str:
    """docs/errors.md with the table of all errors made anew from landbridge/errors.py."""
    before, _, rest = ERRORS_PATH.read_text().partition(ERRORS_HEAD)
    after = rest[rest.index("\n\n") :] if "\n\n" in rest else "\n"
    rows = (
        f"| `{kind.code}` | `{kind.__name__}` | {kind.exit_status} | {kind.http_status} | "
        f"{'yes' if kind.retriable else ''} | {kind.__doc__} |"
        for kind in catalogue()
    )
    return before + ERRORS_HEAD + "\n".join(rows) + after


if __name__ == "__main__":
    ERRORS_PATH.write_text(errors_page())
    PATH.write_text(page())
    OPERATIONS_PATH.write_text(operations_page())
