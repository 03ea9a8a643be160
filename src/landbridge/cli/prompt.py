"""A prompt of IPython, for ``landbridge shell`` and ``landbridge console-shell``."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.options import option
from landbridge.errors import BadRequest, BusError

Command = Annotated[
    str | None, option("Run this and leave.", "--command", "-c", metavar="CODE", show_default=False)
]


def check_installed(command: str) -> None:
    try:
        import IPython.terminal.interactiveshell  # noqa: F401
    except ImportError:
        raise BadRequest(
            f"{command} needs IPython, which is not installed", hint="pip install 'landbridge[shell]'"
        ) from None


def prompt(
    names: dict[str, Any], banner: str, code: str | None, runner: Callable[..., Any] | None = None
) -> None:
    """Open a prompt with these names until the user leaves it, or run ``code`` and leave. ``runner`` runs
    the coroutine of a cell with ``await`` in it."""
    from IPython.terminal.interactiveshell import TerminalInteractiveShell
    from traitlets.config import Config

    config = Config()
    # What a program runs doesn't belong into anybody's history.
    config.HistoryManager.enabled = code is None and sys.stdin.isatty()
    config.TerminalInteractiveShell.banner1 = banner
    config.TerminalInteractiveShell.confirm_exit = False
    shell: Any = TerminalInteractiveShell.instance(user_ns=names, config=config)
    if runner is not None:
        shell.loop_runner, shell.autoawait = runner, True

    def report(self: Any, kind: Any, error: Any, trace: Any, tb_offset: Any = None) -> None:
        output.report(error)

    # Errors of ours say what to do; the place inside Landbridge or Spark helps nobody.
    shell.set_custom_exc((BusError,), report)
    try:
        if code is None:
            shell.mainloop()
        elif not (_run_as_json(shell, code) if output.choice.json else shell.run_cell(code)).success:
            raise typer.Exit(1)
    finally:
        TerminalInteractiveShell.clear_instance()


def _run_as_json(shell: Any, code: str) -> Any:
    """With --json: what the code has printed, and its last value."""
    from IPython.utils.capture import capture_output

    with capture_output(display=False) as captured:
        done = shell.run_cell(code)
    result = None if done.result is None else repr(done.result)
    output.write_json({"output": captured.stdout, "result": result})
    return done
