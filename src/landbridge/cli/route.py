"""``landbridge route``: the paths between terminals."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column

app = typer.Typer(no_args_is_help=True, help="Routes: the paths of messages between terminals.")


def milliseconds(cost: float) -> str:
    return f"{cost:.1f} ms" if cost < 100 else f"{cost:,.0f} ms"


def exact(cost: float) -> str:
    return f"{cost:.3f}"


PATHS = [
    Column("Path", "path", style="cyan"),
    Column("Cost", "cost", milliseconds, plain=exact),
    Column("", "mark", style="green"),
]
LINKS = [
    Column("From", "from", style="cyan"),
    Column("To", "to", style="cyan"),
    Column("Cost", "cost", milliseconds, plain=exact),
    Column("Says this end", "here_says", milliseconds, plain=exact),
    Column("Says that end", "there_says", milliseconds, plain=exact),
    Column("Made of", "made_of"),
]


@app.callback()
def routes() -> None:
    pass  # so that 'show' stays a word of the command line, also while it is the only one


@app.command()
def show(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="A terminal, by name or id.", show_default=False)
    ],
    there: Annotated[str, typer.Argument(metavar="TO", help="Another one.", show_default=False)],
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Show the best path between two terminals, the alternates, and what each link costs and why.

    \b
    Examples:
      landbridge route show paris tokyo
    """
    from landbridge.cli.loop import ask

    output.emit(ask(context, "route.show", there=there, source=source), _show)


def _show(route: dict[str, Any]) -> None:
    best, current = route["best"], route["current"]
    rows = [_path(best, "best")] if best else []
    if current and (not best or current["hops"] != best["hops"]):
        rows.append(_path(current, "in use"))
    rows += [_path(alternate, "alternate") for alternate in route["alternates"] if alternate]
    output.table(PATHS, rows, empty=f"no path from {route['from']} to {route['to']}")
    if route["links"]:
        print()
        links = [{**link, "made_of": parts(link["parts"])} for link in route["links"]]
        output.table(LINKS, links, empty="")
    if route["why"]:
        print()
        print(route["why"])


def _path(path: dict[str, Any], mark: str) -> dict[str, Any]:
    return {"path": " → ".join(path["hops"]), "cost": path["cost"], "mark": mark}


def parts(found: dict[str, Any] | None) -> str:
    """What a cost is made of, where this terminal has measured the link itself."""
    if not found:
        return ""
    return ", ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in found.items()
        if value
    )
