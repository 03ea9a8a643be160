"""``landbridge context``: named places to connect to."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from msgspec.structs import replace

from landbridge.cli import completion, output
from landbridge.cli.options import Commands, argument, flag, option
from landbridge.cli.output import columns
from landbridge.client import context as contexts
from landbridge.client.context import Context
from landbridge.core.text import mask
from landbridge.errors import BadContext

app = Commands(no_args_is_help=True, help="Contexts: named places to connect to, each a URL and a token.")

LIST = columns("=mark@green | Context=name@cyan | URL | Registry | Trouble@red")
SHOW = columns(
    "URL | Token | CA | Data | Registry | Its credential=registry_token | "
    "Its operator's=operator_token | File"
)

Name = Annotated[str, argument("NAME", "The context's name.", autocompletion=completion.context_names)]


@app.command("list")
def list_contexts() -> None:
    """List the contexts, the current one marked.

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
def use(name: Name) -> None:
    """Make a context the current one, which commands and programs use unless they are told otherwise.

    Examples:
      landbridge context use local
    """
    contexts.use(name)
    output.tell({"current": name}, f"{name} is the current context")
    if os.environ.get("LANDBRIDGE_CONTEXT", name) != name:
        output.note("LANDBRIDGE_CONTEXT is set and wins over it")


@app.command()
def show(
    name: str | None = argument("NAME", "The current one, if none is named.", show_default=True),
    show_token: bool = flag("Print the token too.", "--show-token"),
) -> None:
    """Show a context. Its token is masked unless you ask for it.

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
    url: str | None = option("lb://127.0.0.1:7420, or lbs://host:7420 with TLS.", metavar="URL"),
    token: str | None = option(
        "'-' reads it from stdin, where nobody sees it.",
        metavar="TOKEN",
        envvar="LANDBRIDGE_TOKEN",
        show_envvar=True,
    ),
    ca: Path | None = option("Certificates to trust, for a CA of your own.", metavar="FILE"),
    registry: str | None = option("Where a registry is, for what a customer sets up.", metavar="URL"),
    registry_token: str | None = option(
        "The credential of the customer there; '-' as above.",
        metavar="TOKEN",
        envvar="LANDBRIDGE_REGISTRY_TOKEN",
        show_envvar=True,
    ),
    operator: bool = flag("That credential is of the registry's operator.", "--operator"),
    use: bool = flag("Make it the current one.", "--use"),
) -> None:
    """Add a context, or replace one. It leads to a terminal, to a registry, or to both.

    Examples:
      landbridge context add east --url lbs://east.example.com --token - < token.txt
      landbridge context add acme --registry https://registry.example.com --registry-token - < token.txt
    """
    if url is None and registry is None:
        raise typer.BadParameter("give --url, --registry or both")
    if url is not None:
        contexts.parse_urls(url)
    if registry is not None:
        from landbridge.client.registry import RegistryClient

        RegistryClient(registry)  # refuses what can't be the URL of one; nothing is asked of it
    if ca is not None and not ca.is_file():
        raise BadContext(f"there is no file {ca}", hint="--ca wants certificates in PEM format")
    found = Context(url or "", "", None if ca is None else str(ca.resolve()), registry=registry)
    if url is not None:
        found = replace(found, token=_token(token))
    if registry is not None:
        field = "operator_token" if operator else "registry_token"
        found = replace(found, **{field: _token(registry_token)})
    contexts.save(name, found)
    if use or contexts.current() is None:
        contexts.use(name)
    result = {"name": name, "url": found.url, "current": contexts.current() == name}
    output.tell(result, f"the context {name} is {url or registry}")


def _token(given: str | None) -> str:
    if given is None and sys.stdin.isatty():
        given = str(typer.prompt("Token", hide_input=True, err=True))
    elif given is None or given == "-":
        given = sys.stdin.readline()
    token = given.strip()
    if not token:
        raise BadContext("no token was given", hint="make one with 'landbridge token create'")
    return token


@app.command()
def remove(name: Name) -> None:
    """Remove a context. Its token stays valid: revoke it with 'landbridge token revoke'.

    Examples:
      landbridge context remove east
    """
    contexts.remove(name)
    output.tell({"removed": name}, f"the context {name} is removed")
