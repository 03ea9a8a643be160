"""How a command declares its options: once, in one line each, and in groups that several commands share.

    Topic = Annotated[str, argument("TOPIC", "The topic's name.")]

    class Retention(OptionGroup):
        max_age: float | None = span("Keep messages for this time.")
        max_bytes: int | None = size("Keep this many bytes.")

    @app.command()
    def create(name: Topic, retention: Retention, force: bool = flag("Even so.", "--force")) -> None: ...

``app`` is a ``Commands``: it puts the fields of a group in the place of the group, and adds ``--json``. A
function with options as defaults is for ``Commands`` to call; other code passes every argument.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import msgspec
import typer
from typer.core import TyperCommand
from typer.models import ParameterInfo

from landbridge.cli import completion, output, units
from landbridge.cli.other_names import CommandNames
from landbridge.errors import BadRequest

F = TypeVar("F", bound=Callable[..., Any])

# -- one option ----------------------------------------------------------------------------------------


def option(
    help: str,
    *names: str,
    metavar: str | None = None,
    value: Any = None,
    default: str | None = None,
    **more: Any,
) -> Any:
    """An option, as a parameter's default or in ``Annotated``.

    ``names``: where they aren't those of the parameter. ``value``: the default. ``default``: what the help
    says of the default, where the value doesn't say it."""
    if default is not None:
        more["show_default"] = default
    if metavar is None and ("min" in more or "max" in more):
        metavar = "N"
    info = typer.Option(*names, metavar=metavar, help=help, **more)
    info.value = value
    return info


def flag(help: str, name: str) -> Any:
    """An option without a value. Not given, it is False."""
    return option(help, name, value=False)


def span(help: str, *names: str, **more: Any) -> Any:
    """An option whose value is a span of time, in seconds for the command."""
    more.setdefault("parser", units.parse_span)
    return option(help, *names, metavar="SPAN", **more)


def size(help: str, *names: str, **more: Any) -> Any:
    """An option whose value is a number of bytes."""
    more.setdefault("parser", units.parse_size)
    return option(help, *names, metavar="SIZE", **more)


def start_of(help: str, default: str) -> Any:
    """The option ``--from``: where to begin reading."""
    return option(help, "--from", metavar="earliest|latest|TIME", parser=units.parse_start, default=default)


def port(help: str, *, value: int, least: int = 0) -> Any:
    """An option whose value is a port; 0 stands for any, or for none."""
    return option(help, min=least, max=65535, value=value, metavar="PORT")


def argument(metavar: str | None, help: str | None = None, *, value: Any = None, **more: Any) -> Any:
    more.setdefault("show_default", False)
    info = typer.Argument(metavar=metavar, help=help, **more)
    info.value = value
    return info


def argument_port(help: str) -> Any:
    return typer.Argument(help=help, min=0, max=65535)


# -- options of many commands --------------------------------------------------------------------------


def _choose_json(given: bool) -> bool:
    output.choice.json = output.choice.json or given
    return given


def _configure_log(level: str) -> str:
    from landbridge.node import logs

    logs.configure(level)
    return level


#: Its value isn't used: emit() and report() know. Every command has it.
Json = Annotated[bool, option("Print JSON, for programs.", "--json", callback=_choose_json, is_eager=True)]
ContextName = Annotated[
    str | None,
    option(
        "Use this context instead of the current one.",
        "--context",
        metavar="NAME",
        autocompletion=completion.context_names,
    ),
]
Registry = Annotated[
    bool, option("The registry's, which is known at all terminals of the customer.", "--registry")
]
ShowAll = Annotated[
    bool,
    flag("On a screen: those that the bus has for itself, too. Pipes and --json always have them.", "--all"),
]
ListenOn = Annotated[str, option("Address to listen on. Other than this machine's own needs TLS.")]
CertificateFile = Annotated[Path | None, option("Certificate chain, PEM.", metavar="FILE")]
KeyFile = Annotated[Path | None, option("Its private key, PEM.", metavar="FILE")]
#: Its value is in use before the command runs.
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error"],
    option("How much is logged, to stderr.", callback=_configure_log),
]
Topic = Annotated[str, argument("TOPIC", "The topic's name.", autocompletion=completion.topic_names)]
Note = Annotated[str, option("Why, for whoever looks at it.", value="")]
From = option("From when.", "--from", metavar="TIME", parser=units.parse_moment)
Until = Annotated[float | None, option("Until when.", metavar="TIME", parser=units.parse_moment)]
Group = Annotated[str, argument("GROUP", "The group's name.", autocompletion=completion.group_names)]
#: Where to begin, if not where the terminal would.
START = "Where to begin: an ISO 8601 time, '10m ago', -10m."


# -- groups of options ---------------------------------------------------------------------------------


class OptionGroup(msgspec.Struct, kw_only=True):
    """Options that belong together. A command that takes a group as a parameter takes each of its fields as
    an option."""

    def given(self, *names: str) -> dict[str, Any]:
        """Those of these fields (all, if none is named) that were given."""
        return given(**{name: getattr(self, name) for name in names or self.__struct_fields__})


class _Command(TyperCommand):
    """A command whose help names no type where there is no value to give."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


class CommandGroup(CommandNames):
    """A group of commands whose help does the same."""

    def get_params(self, ctx: Any) -> list[Any]:
        return _without_types(super().get_params(ctx))


def _without_types(params: list[Any]) -> list[Any]:
    for each in params:
        if getattr(each, "is_flag", False):
            each.metavar = ""
    return params


class Commands(typer.Typer):
    """A noun with its commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**{"cls": CommandGroup, **settings})

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        register = super().command(name, **{"cls": _Command, **settings})

        def add(function: F) -> F:
            register(_expanded(function))
            return function

        return add


def _expanded(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as typer is to see it: groups in their parts, ``--json`` at the end, and the examples of
    its docstring a line each."""
    groups: dict[str, type[OptionGroup]] = {}
    shown: list[inspect.Parameter] = []

    def show(name: str, kind: Any, default: Any) -> None:
        if isinstance(default, ParameterInfo):
            # mypy knows the declared type of an option, not the object that declares it.
            kind, default = Annotated[kind, default], default.value  # type: ignore[attr-defined]
        shown.append(
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        )

    for parameter in inspect.signature(function, eval_str=True).parameters.values():
        kind = parameter.annotation
        if isinstance(kind, type) and issubclass(kind, OptionGroup):
            groups[parameter.name] = kind
            hints = get_type_hints(kind, include_extras=True)
            for field in msgspec.structs.fields(kind):
                show(field.name, hints[field.name], field.default)
        else:
            show(parameter.name, kind, parameter.default)
    show("json", Json, False)
    show("running", typer.Context, inspect.Parameter.empty)

    @wraps(function)
    def command(json: bool, running: typer.Context, **values: Any) -> Any:
        output.choice.command = running.command_path
        for name, kind in groups.items():
            values[name] = kind(**{field: values.pop(field) for field in kind.__struct_fields__})
        return function(**values)

    command.__doc__ = (inspect.getdoc(function) or "").replace("\n\nExamples:", "\n\n\b\nExamples:")
    # Typer reads the options from here; mypy does not know that a function may have this attribute.
    command.__signature__ = inspect.Signature(shown)  # type: ignore[attr-defined]
    command.__annotations__ = {parameter.name: parameter.annotation for parameter in shown}
    return command


# -- values --------------------------------------------------------------------------------------------


def given(**options: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def pairs(settings: list[str] | None, what: str) -> dict[str, str]:
    """From ``name=value`` texts."""
    found: dict[str, str] = {}
    for setting in settings or ():
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise BadRequest(
                f"the {what} {setting!r} is not of the form name=value",
                hint=f"as in {name or 'name'}=value",
            )
        found[name] = value
    return found
