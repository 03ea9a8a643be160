"""``landbridge context``: named places to connect to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
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
    Column("Registry", "registry"),
    Column("Trouble", "trouble", style="red"),
]
SHOW = [
    Column("URL", "url"),
    Column("Token", "token"),
    Column("CA", "ca"),
    Column("Data", "data"),
    Column("Registry", "registry"),
    Column("Its credential", "registry_token"),
    Column("Its operator's", "operator_token"),
    Column("File", "file"),
]

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
            found = contexts.load(name)
            row["url"] = found.url
            if found.registry:
                row["registry"] = found.registry
        except BadContext as error:
            row["trouble"] = str(error)
        rows.append(row)
    output.emit(rows, _list)


def _list(rows: list[dict[str, Any]]) -> None:
    there = {key for row in rows for key in row}
    columns = [column for column in LIST if column.key not in ("registry", "trouble") or column.key in there]
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

    def shown(token: str | None) -> str | None:
        return token if show_token or not token else mask(token)

    row = {
        "name": chosen,
        "url": found.url,
        "token": shown(found.token),
        "ca": found.ca,
        "data": found.data,
        "registry": found.registry,
        "registry_token": shown(found.registry_token),
        "operator_token": shown(found.operator_token),
        "file": str(contexts.home() / "contexts" / f"{chosen}.json"),
    }
    output.emit(row, lambda row: output.record(chosen, SHOW, row))


@app.command()
def add(
    name: Name,
    url: Annotated[
        str | None, typer.Option(metavar="URL", help="lb://127.0.0.1:7420, or lbs://host:7420 with TLS.")
    ] = None,
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
    registry: Annotated[
        str | None, typer.Option(metavar="URL", help="Where a registry is, for what a customer sets up.")
    ] = None,
    registry_token: Annotated[
        str | None,
        typer.Option(
            metavar="TOKEN",
            envvar="LANDBRIDGE_REGISTRY_TOKEN",
            help="The credential of the customer there; '-' as above.",
            show_envvar=True,
        ),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="That credential is of the registry's operator.")
    ] = False,
    use: Annotated[bool, typer.Option("--use", help="Make it the current one.")] = False,
    json: Json = False,
) -> None:
    """Add a context, or replace one. It leads to a terminal, to a registry, or to both.

    \b
    Examples:
      landbridge context add east --url lbs://east.example.com --token - < token.txt
      landbridge context add acme --registry https://registry.example.com --registry-token - < token.txt
    """
    if url is None and registry is None:
        raise typer.BadParameter("give --url, --registry or both")
    if url is not None:
        contexts.parse_url(url)
    if registry is not None:
        _check_registry(registry)
    if ca is not None and not ca.is_file():
        raise BadContext(f"there is no file {ca}", hint="--ca wants certificates in PEM format")
    found = Context(
        url or "",
        "" if url is None else _token(token),
        None if ca is None else str(ca.resolve()),
        registry=registry,
    )
    if registry is not None:
        credential = _token(registry_token)
        field = "operator_token" if operator else "registry_token"
        found = msgspec.structs.replace(found, **{field: credential})
    save(name, found)
    if use or contexts.current() is None:
        contexts.use(name)
    result = {"name": name, "url": found.url, "current": contexts.current() == name}
    output.emit(result, lambda _: output.done(f"the context {name} is {url or registry}"))


def _check_registry(url: str) -> None:
    from landbridge.client.registry import RegistryClient

    RegistryClient(url)  # refuses what can't be one; nothing is asked of it


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
