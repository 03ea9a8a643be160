"""Options that many commands share."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import typer

from landbridge.cli import output
from landbridge.errors import BadRequest


def _choose_json(given: bool) -> bool:
    output.choice.json = output.choice.json or given
    return given


#: Its value isn't used: emit() and report() know.
Json = Annotated[
    bool, typer.Option("--json", help="Print JSON, for programs.", callback=_choose_json, is_eager=True)
]
ContextName = Annotated[
    str | None,
    typer.Option("--context", metavar="NAME", help="Use this context instead of the current one."),
]
Registry = Annotated[
    bool, typer.Option("--registry", help="The registry's, which is known at all terminals of the customer.")
]
Topic = Annotated[str, typer.Argument(metavar="TOPIC", help="The topic's name.", show_default=False)]
Group = Annotated[str, typer.Argument(metavar="GROUP", help="The group's name.", show_default=False)]


def given(**options: Any) -> dict[str, Any]:
    """Those that were given."""
    return {name: value for name, value in options.items() if value is not None}


def pairs(settings: list[str], what: str) -> dict[str, str]:
    """From ``name=value`` texts."""
    found: dict[str, str] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not name or not equals:
            raise BadRequest(f"the {what} {setting!r} is not of the form name=value")
        found[name] = value
    return found


def data_folder() -> Path:
    """Where ``landbridge up`` keeps its data unless it is told otherwise."""
    given = os.environ.get("LANDBRIDGE_DATA")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "landbridge"
