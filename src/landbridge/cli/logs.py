"""``landbridge logs``: what the terminal's process writes to stderr."""

from __future__ import annotations

from typing import Annotated, Literal

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import Commands, ContextName, argument

app = Commands(
    no_args_is_help=True,
    help="The log of the terminal's process. What happens to messages is in 'landbridge status'.",
)


@app.command()
def level(
    level: Annotated[
        Literal["debug", "info", "warning", "error"] | None,
        argument("LEVEL", "From which level on; without, the one of now is shown.", show_default=False),
    ] = None,
    context: ContextName = None,
) -> None:
    """Show or set from which level on the terminal's process logs. A restart brings back --log-level.

    Examples:
      landbridge logs level
      landbridge logs level debug
    """
    wanted = level
    if wanted is None:
        found = ask(context, lambda bus: bus.logs.show())
    else:
        asked = wanted
        found = ask(context, lambda bus: bus.logs.level(asked))
    after = "" if found.level == found.at_start else f"; {found.at_start} after a restart"
    output.tell(found, f"the terminal logs from {found.level} on{after}")
