"""``landbridge pipeline``: jobs on Spark, and what goes with them."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer
from typer.core import TyperGroup

#: name → (module, function), in the order of the help.
JOBS = {
    "activity": ("pipeline_activity", "activity"),
    "archive": ("pipeline_archive", "archive"),
    "sequence": ("pipeline_sequence", "sequence"),
    "events": ("pipeline_sequence", "events"),
    "routes": ("pipeline_routes", "routes"),
    "step": ("pipeline_step", "step"),
    "replay": ("pipeline_replay", "replay"),
}
VERBS: dict[str, tuple[str, str]] = {
    "init": ("pipeline_init", "init"),
    "declarative": ("pipeline_declarative", "declarative"),
    "report": ("pipeline_report", "report"),
    "compact": ("pipeline_compact", "compact"),
}


class _Jobs(TyperGroup):
    """Jobs by their names, and steps by where they are: ``module:step``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in self.commands if name != "step"]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and ":" in args[0]:
            return "step", self.commands["step"], args
        return super().resolve_command(ctx, args)


app = typer.Typer(
    no_args_is_help=True, help="Run jobs on Spark: from topics to tables and back, exactly once."
)
run = typer.Typer(
    no_args_is_help=True,
    cls=_Jobs,
    help="Run a job, or a step of your own as MODULE:STEP. SIGTERM and Ctrl-C end it after its micro-batch.",
)
app.add_typer(run, name="run")
for target, table in ((run, JOBS), (app, VERBS)):
    for name, (module, attribute) in table.items():
        target.command(name)(getattr(import_module(f"landbridge.cli.{module}"), attribute))
