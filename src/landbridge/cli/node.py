"""``landbridge node``: the processes of a terminal that has several."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from landbridge.cli import completion, output
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument
from landbridge.cli.output import columns
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.protocol.operations import NodeRow

app = Commands(no_args_is_help=True, help="Nodes: several processes that are one terminal, on one store.")

LIST = columns("Node=name@cyan | State | Units=count:count | Home=home_mark | Bus=url | HTTP=http | Version")
SHOW = [*LIST[1:], *columns("Which=which | Id=id | Started=started_at:moment | Expires=expires_at:moment")]

Named = Annotated[
    str,
    argument("NODE", "The node's name: --node of 'landbridge up'.", autocompletion=completion.node_names),
]


@app.command("list")
def list_nodes(context: ContextName = None) -> None:
    """List the nodes of the terminal, and the units that each of them has.

    The node with the first unit is the home: it has the registry and the links to other terminals.

    Examples:
      landbridge node list
      landbridge node list --json
    """
    found = ask(context, lambda bus: bus.nodes.list())
    empty = "the terminal has one process alone: 'landbridge up --store URL --node NAME' makes nodes"
    output.rows(LIST, found.nodes, empty=empty, show=_row)
    if found.free:
        output.note(f"{counted(found.free, 'unit')} of {found.units} at no node")
    if found.together:
        output.note("all units are kept at one node")
    if found.trouble:
        output.note(f"the node that answers can't reach the table of nodes: {found.trouble}")


@app.command()
def show(node: Named, context: ContextName = None) -> None:
    """Show a node.

    Examples:
      landbridge node show one
    """
    found = ask(context, lambda bus: bus.nodes.show(node))
    output.emit(found, lambda row: output.record(row.name, SHOW, _row(row)))


@app.command()
def drain(node: Named, context: ContextName = None) -> None:
    """Have a node give its units to others and take none, before it is stopped or moved.

    It stays so when its process is started again, until 'landbridge node resume'. The last node keeps its
    units.

    Examples:
      landbridge node drain one
    """
    found = ask(context, lambda bus: bus.nodes.drain(node))
    output.tell(found, f"the node {node} gives its {counted(len(found.units), 'unit')} to others")


@app.command()
def resume(node: Named, context: ContextName = None) -> None:
    """Let a node that was drained take units again.

    Examples:
      landbridge node resume one
    """
    found = ask(context, lambda bus: bus.nodes.resume(node))
    output.tell(found, f"the node {node} takes units again")


def _row(row: NodeRow) -> dict[str, Any]:
    mark = "home" if row.home else ""
    return output.fields(row, count=len(row.units), home_mark=mark, which=_runs(row.units))


def _runs(units: list[int]) -> str:
    """0-3, 7"""
    runs: list[tuple[int, int]] = []
    for unit in units:
        if runs and runs[-1][1] == unit - 1:
            runs[-1] = (runs[-1][0], unit)
        else:
            runs.append((unit, unit))
    return ", ".join(str(first) if first == last else f"{first}-{last}" for first, last in runs)
