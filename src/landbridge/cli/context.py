"""``landbridge context``: named places to connect to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.options import Json
from landbridge.cli.output import Column
from landbridge.cli.text import mask
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.errors import BadContext

app = typer.Typer(no_args_is_help=True, help="Contexts: named places to connect to, each a URL and a token.")

LIST = [
    Column("", "mark", style="green"),
    Column("Context", "name", style="cyan"),
    Column("URL", "url"),
    Column("Trouble", "trouble", style="red"),
]
SHOW = [Column("URL", "url"), Column("Token", "token"), Column("CA", "ca"), Column("File", "file")]

Name = Annotated[str, typer.Argument(metavar="NAME", help="The context's name.", show_default=False)]


@app.command("list")
def list_contexts(json: Json = False) -> None:
    """List the contexts, the current one marked.

    \b
    Examples:
      landbridge context list
    """
    current = contexts.current()
    rows: list[dict[str, Any]] = []
    for name in contexts.names():
        row: dict[str, Any] = {"name": name, "current": name == current}
        try:
            row["url"] = contexts.load(name).url
        except BadContext as error:
            row["trouble"] = str(error)
        rows.append(row)
    output.emit(rows, _list)


def _list(rows: list[dict[str, Any]]) -> None:
    columns = LIST if any("trouble" in row for row in rows) else LIST[:-1]
    marked = [{**row, "mark": "*" if row["current"] else " "} for row in rows]
    output.table(
        columns, marked, empty="no contexts yet: 'landbridge up' makes one, 'landbridge context add' too"
    )


@app.command()
def use(name: Name, json: Json = False) -> None:
    """Make a context the current one, which commands and programs use unless they are told otherwise.

    \b
    Examples:
      landbridge context use local
    """
    contexts.use(name)
    output.emit({"current": name}, lambda _: output.done(f"{name} is the current context"))
    if os.environ.get("LANDBRIDGE_CONTEXT", name) != name:
        output.note("LANDBRIDGE_CONTEXT is set and wins over it")


@app.command()
def show(
    name: Annotated[
        str | None, typer.Argument(metavar="NAME", help="The current one, if none is named.")
    ] = None,
    show_token: Annotated[bool, typer.Option("--show-token", help="Print the token too.")] = False,
    json: Json = False,
) -> None:
    """Show a context. Its token is masked unless you ask for it.

    \b
    Examples:
      landbridge context show
      landbridge context show local --show-token
    """
    chosen = name or contexts.current()
    if chosen is None:
        raise BadContext("no context is in use")
    found = contexts.load(chosen)
    row = {
        "name": chosen,
        "url": found.url,
        "token": found.token if show_token else mask(found.token),
        "ca": found.ca,
        "file": str(contexts.home() / "contexts" / f"{chosen}.json"),
    }
    output.emit(row, lambda row: output.record(chosen, SHOW, row))


@app.command()
def add(
    name: Name,
    url: Annotated[
        str, typer.Option(metavar="URL", help="lb://127.0.0.1:7420, or lbs://host:7420 with TLS.")
    ],
    token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="LANDBRIDGE_TOKEN",
            help="'-' reads it from stdin, where nobody sees it.",
            show_envvar=True,
        ),
    ] = None,
    ca: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Certificates to trust, for a CA of your own.")
    ] = None,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
    json: Json = False,
) -> None:
    """Add a context, or replace one.

    \b
    Examples:
      landbridge context add east --url lbs://east.example.com --token - < token.txt
    """
    contexts.parse_url(url)
    if ca is not None and not ca.is_file():
        raise BadContext(f"there is no file {ca}", hint="--ca wants certificates in PEM format")
    found = Context(url, _token(token), None if ca is None else str(ca.resolve()))
    save(name, found)
    if use or contexts.current() is None:
        contexts.use(name)
    result = {"name": name, "url": url, "current": contexts.current() == name}
    output.emit(result, lambda _: output.done(f"the context {name} is {url}"))


def _token(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        given = str(typer.prompt("Token", hide_input=True, err=True))
    elif given is None or given == "-":
        given = sys.stdin.readline()
    token = given.strip()
    if not token:
        raise BadContext("no token was given", hint="make one with 'landbridge token create'")
    return token


def save(name: str, context: Context) -> None:
    try:
        contexts.save(name, context)
    except OSError as error:
        raise BadContext(
            f"the context {name} can't be written: {error.strerror}: {error.filename}",
            hint="LANDBRIDGE_HOME may name another folder",
        ) from None


@app.command()
def remove(name: Name, json: Json = False) -> None:
    """Remove a context. Its token stays valid: revoke it with 'landbridge token revoke'.

    \b
    Examples:
      landbridge context remove east
    """
    contexts.remove(name)
    output.emit({"removed": name}, lambda _: output.done(f"the context {name} is removed"))
