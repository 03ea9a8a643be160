"""``landbridge route``: the paths between terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from landbridge.cli import output, units
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument, option
from landbridge.cli.output import columns
from landbridge.cli.registry_access import as_admin, find_terminal, terminal_names

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient
    from landbridge.core.routing.meter import Parts
    from landbridge.protocol.operations import PathCost, RouteShown

app = Commands(no_args_is_help=True, help="Routes: the paths of messages between terminals.")


#: What the figures are, for who sees them for the first time.
COST = (
    "cost: milliseconds, measured all the time from round trip, its variation, loss and queue; least is best"
)
PATHS = columns("Path@cyan | Cost:cost | =mark@green")
LINKS = columns(
    "From@cyan | To@cyan | Cost:cost | Says this end=here_says:cost | Says that end=there_says:cost | "
    "Says the plan=planned:cost | Made of"
)


PLANNED = columns(
    "From@cyan | To@cyan | Cost:cost | Up=availability:share | Round trip=rtt:cost | "
    "1 of 20 above=rtt_95:cost | Loss:share"
)
SINGLE_POINTS = columns("Without=terminal@cyan | Is cut off=cut_off:list | Pairs lost=pairs:count")
NEXT_HOPS = columns("To@cyan | Next hop | Path:path | Cost:cost")


@app.command()
def show(
    source: Annotated[str, argument("FROM", "A terminal, by name or id.")],
    there: Annotated[str, argument("TO", "Another one.")],
    context: ContextName = None,
) -> None:
    """Show the best path between two terminals, the alternates, and what each link costs and why.

    Examples:
      landbridge route show paris tokyo
    """
    output.emit(ask(context, lambda bus: bus.network.route(there, source)), _show)


def _show(route: RouteShown) -> None:
    best, current = route.best, route.current
    rows = [_path(best, "best")] if best else []
    if current and (not best or current.hops != best.hops):
        rows.append(_path(current, "in use"))
    rows += [_path(alternate, "alternate") for alternate in route.alternates]
    output.table(PATHS, rows, empty=f"no path from {route.from_} to {route.to}")
    if rows:
        output.note(COST)
    if route.links:
        print()
        links = [output.fields(link, made_of=_made_of(link.parts)) for link in route.links]
        output.table(LINKS, links, empty="")
    if route.why:
        print()
        print(route.why)


def _path(path: PathCost, mark: str) -> dict[str, Any]:
    return {"path": " → ".join(path.hops), "cost": path.cost, "mark": mark}


def _made_of(parts: Parts | None) -> str:
    """What a cost is made of, where this terminal has measured the link itself."""
    return ", ".join(
        f"{name} {value:.1f}" if isinstance(value, float) else f"{name} {value}"
        for name, value in ({} if parts is None else output.fields(parts)).items()
        if value
    )


@app.command()
def plan(
    source: str | None = option("Also its next hops, by name or id.", "--from", metavar="TERMINAL"),
    worst: int = option("How many of the worst links to show.", metavar="COUNT", min=0, value=10),
    context: ContextName = None,
) -> None:
    """Show the long-term plan in the registry: single points of failure, the worst links, next hops.

    'landbridge pipeline run routes' makes it. What is so now is in 'landbridge route show' and 'topology'.

    Examples:
      landbridge route plan
      landbridge route plan --from paris
      landbridge route plan --json | jq .single_points
    """

    async def work(client: RegistryClient) -> dict[str, Any]:
        from landbridge.core.routing.plan import worst as worst_of

        stored = await client.read_plan()
        plan, names = stored.plan, await terminal_names(client)

        def name(id: str) -> str:
            return names.get(id, id)

        def link_row(link: Any) -> dict[str, Any]:
            figures = output.fields(link)
            return {"from": name(figures.pop("here")), "to": name(figures.pop("there"))} | figures

        def hop_row(path: Any) -> dict[str, Any]:
            hops = [name(hop) for hop in path.hops]
            return {"to": name(path.terminal_id), "next_hop": hops[0], "path": hops, "cost": path.cost}

        def point_row(point: Any) -> dict[str, Any]:
            cut_off = [name(id) for id in point.cut_off]
            return {"terminal": name(point.terminal), "cut_off": cut_off, "pairs": point.pairs}

        hops = None
        if source is not None:
            hops = (await client.planned_paths(await find_terminal(client, source))).items
        return {
            "made_at": stored.made_at,
            "since": plan.since,
            "until": plan.until,
            "terminals": len(plan.terminals),
            "links": len(plan.links),
            "single_points": [point_row(point) for point in plan.single_points],
            "worst_links": [link_row(link) for link in worst_of(plan, worst)],
            "next_hops": None if hops is None else [hop_row(path) for path in hops],
        }

    output.emit(as_admin(context, work), _show_plan)


def _show_plan(found: dict[str, Any]) -> None:
    output.table(SINGLE_POINTS, found["single_points"], empty="no terminal's loss cuts another off")
    print()
    output.table(PLANNED, found["worst_links"], empty="the plan has no links")
    if found["next_hops"] is not None:
        print()
        output.table(NEXT_HOPS, found["next_hops"], empty="the plan has no path from there")
    print()
    span = units.span((found["until"] - found["since"]) / units.SECOND)
    print(f"made {units.ago(found['made_at'])} from {span} of measurements")
