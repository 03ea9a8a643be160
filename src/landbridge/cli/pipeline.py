"""``landbridge pipeline``: jobs on Spark, and what goes with them."""

from __future__ import annotations

from typing import Any

from landbridge.cli import pipeline_jobs as jobs
from landbridge.cli.options import CommandGroup, Commands
from landbridge.cli.pipeline_compact import compact
from landbridge.cli.pipeline_declarative import declarative
from landbridge.cli.pipeline_init import init
from landbridge.cli.pipeline_replay import replay
from landbridge.cli.pipeline_report import report


class _Jobs(CommandGroup):
    """Jobs by their names, and steps by where they are: ``module:step``."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in self.commands if name != "step"]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args and ":" in args[0]:
            return "step", self.commands["step"], args
        return super().resolve_command(ctx, args)


app = Commands(no_args_is_help=True, help="Run jobs on Spark: from topics to tables and back, exactly once.")
run = Commands(
    no_args_is_help=True,
    cls=_Jobs,
    help="Run a job, or a step of your own as MODULE:STEP. SIGTERM and Ctrl-C end it after its micro-batch.",
)
app.add_typer(run, name="run")
for job in (
    jobs.activity,
    jobs.archive,
    jobs.sequence,
    jobs.events,
    jobs.routes,
    jobs.route,
    jobs.step,
    replay,
):
    run.command()(job)
for verb in (init, declarative, report, compact):
    app.command()(verb)
