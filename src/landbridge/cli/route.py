"""``landbridge route``: the paths between terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output, registry_access, units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.output import Column

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient

app = typer.Typer(no_args_is_help=True, help="Routes: the paths of messages between terminals.")


def milliseconds(cost: float) -> str:
    return f"{cost:.1f} ms" if cost < 100 else f"{cost:,.0f} ms"


def exact(cost: float) -> str:
    return f"{cost:.3f}"


#: What the figures are, for who sees them for the first time.
COST = (
    "cost: milliseconds, measured all the time from round trip, its variation, loss and queue; least is best"
)
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
    Column("Says the plan", "planned", milliseconds, plain=exact),
    Column("Made of", "made_of"),
]


def percent(share: float) -> str:
    return f"{share:.1%}" if share < 0.9995 else "100%"


PLANNED = [
    Column("From", "from", style="cyan"),
    Column("To", "to", style="cyan"),
    Column("Cost", "cost", milliseconds, plain=exact),
    Column("Up", "availability", percent, plain=exact),
    Column("Round trip", "rtt", milliseconds, plain=exact),
    Column("1 of 20 above", "rtt_95", milliseconds, plain=exact),
    Column("Loss", "loss", percent, plain=exact),
]
SINGLE_POINTS = [
    Column("Without", "terminal", style="cyan"),
    Column("Is cut off", "cut_off", ", ".join, plain=",".join),
    Column("Pairs lost", "pairs", units.count),
]
NEXT_HOPS = [
    Column("To", "to", style="cyan"),
    Column("Next hop", "next_hop"),
    Column("Path", "path", " → ".join, plain=",".join),
    Column("Cost", "cost", milliseconds, plain=exact),
]


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
    if rows:
        output.note(COST)
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


@app.command()
def plan(
    source: Annotated[
        str | None,
        typer.Option("--from", metavar="TERMINAL", help="Also its next hops, by name or id."),
    ] = None,
    worst: Annotated[int, typer.Option(metavar="COUNT", min=0, help="Show so many of the worst links.")] = 10,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Show the long-term plan in the registry: single points of failure, the worst links, next hops.

    'landbridge pipeline run routes' makes it. What is so now is in 'landbridge route show' and 'topology'.

    \b
    Examples:
      landbridge route plan
      landbridge route plan --from paris
      landbridge route plan --json | jq .single_points
    """

    async def work(client: RegistryClient) -> dict[str, Any]:
        from landbridge.core.routing.plan import worst as worst_of

        stored = await client.read_plan()
        names = await registry_access.terminal_names(client)

        def named(link: Any) -> dict[str, Any]:
            figures: dict[str, Any] = registry_access.plain(link)
            ends = {"from": name(figures.pop("here")), "to": name(figures.pop("there"))}
            return ends | figures

        def name(id: str) -> str:
            return names.get(id, id)

        hops = None
        if source is not None:
            found = await client.planned_paths(await registry_access.find_terminal(client, source))
            hops = [
                {
                    "to": name(path.terminal_id),
                    "next_hop": name(path.hops[0]),
                    "path": [name(hop) for hop in path.hops],
                    "cost": path.cost,
                }
                for path in found.items
            ]
        found_plan = stored.plan
        return {
            "made_at": stored.made_at,
            "since": found_plan.since,
            "until": found_plan.until,
            "terminals": len(found_plan.terminals),
            "links": len(found_plan.links),
            "single_points": [
                {
                    "terminal": name(point.terminal),
                    "cut_off": [name(id) for id in point.cut_off],
                    "pairs": point.pairs,
                }
                for point in found_plan.single_points
            ],
            "worst_links": [named(link) for link in worst_of(found_plan, worst)],
            "next_hops": hops,
        }

    found = registry_access.ask(registry_access.admin(context), work)
    output.emit(found, _show_plan)


def _show_plan(found: dict[str, Any]) -> None:
    output.table(SINGLE_POINTS, found["single_points"], empty="no terminal's loss cuts another off")
    print()
    output.table(PLANNED, found["worst_links"], empty="the plan has no links")
    if found["next_hops"] is not None:
        print()
        output.table(NEXT_HOPS, found["next_hops"], empty="the plan has no path from there")
    print()
    span = units.span((found["until"] - found["since"]) / 1_000_000)
    print(f"made {units.ago(found['made_at'])} from {span} of measurements")
