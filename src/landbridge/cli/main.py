"""The command ``landbridge``: its list of commands, and how errors become exit statuses.

0    done
2    the command line itself is wrong
10…  the error's own status, see landbridge.errors
70   a fault in Landbridge (with a traceback), or a failed check of ``doctor``
130  interrupted
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterable, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.main import get_command

from landbridge import __version__
from landbridge.cli import output
from landbridge.cli.options import CommandGroup, Commands, option
from landbridge.cli.other_names import Refusal
from landbridge.errors import BusError

MESSAGES, SETUP, TERMINAL = "Messages", "Topics, groups, access", "The terminal"
CROSSING, SPARK = "Across LANs", "Topics as tables"

#: name → (module, what in it, panel of the help). In the order of the help. Only what a command line names is
#: imported and built: that is half of the time that a short command takes.
COMMANDS = {
    "publish": ("publish", "publish", MESSAGES),
    "subscribe": ("subscribe", "subscribe", MESSAGES),
    "request": ("request", "request", MESSAGES),
    "trigger": ("request", "trigger", MESSAGES),
    "outcome": ("request", "outcome", MESSAGES),
    "run": ("service", "run_service", MESSAGES),
    "topic": ("topic", "app", SETUP),
    "group": ("group", "app", SETUP),
    "letter": ("letter", "app", SETUP),
    "type": ("event_type", "app", SETUP),
    "schedule": ("schedule", "app", SETUP),
    "webhook": ("webhook", "app", SETUP),
    "mail": ("mail", "app", SETUP),
    "sms": ("sms", "app", SETUP),
    "websub": ("websub", "app", SETUP),
    "rule": ("rule", "app", SETUP),
    "service": ("services", "app", SETUP),
    "token": ("token", "app", SETUP),
    "context": ("context", "app", SETUP),
    "registry": ("registry", "registry", CROSSING),
    "customer": ("customer", "app", CROSSING),
    "terminal": ("terminal", "app", CROSSING),
    "key": ("key", "app", CROSSING),
    "route": ("route", "app", CROSSING),
    "topology": ("topology", "topology", CROSSING),
    "network": ("topology", "network", CROSSING),
    "where": ("message", "where", CROSSING),
    "why": ("message", "why", CROSSING),
    "pipeline": ("pipeline", "app", SPARK),
    "sql": ("sql", "sql", SPARK),
    "shell": ("shell", "shell", SPARK),
    "up": ("up", "up", TERMINAL),
    "console": ("console", "console", TERMINAL),
    "http": ("http", "http", TERMINAL),
    "events": ("events", "events", TERMINAL),
    "demo": ("demo", "demo", TERMINAL),
    "simulate": ("simulate", "simulate", TERMINAL),
    "console-shell": ("console_shell", "console_shell", TERMINAL),
    "status": ("status", "app", TERMINAL),
    "audit": ("audit", "app", TERMINAL),
    "node": ("node", "app", TERMINAL),
    "limits": ("limits", "app", TERMINAL),
    "logs": ("logs", "app", TERMINAL),
    "errors": ("errors", "app", TERMINAL),
    "info": ("info", "info", TERMINAL),
    "doctor": ("doctor", "doctor", TERMINAL),
    "backup": ("backup", "app", TERMINAL),
    "store": ("store", "app", TERMINAL),
    "docs": ("docs", "app", TERMINAL),
    "version": ("main", "version", TERMINAL),
}

#: The seven steps from nothing to a message, by the names of their HTTP operations. Each is another command's
#: second name. They run, and aren't in the help.
STEPS = {
    "createMessageBusCustomer": ("customer", "create", CROSSING),
    "createTerminal": ("terminal", "create", CROSSING),
    "createTerminalGroup": ("group", "create_terminal_group", CROSSING),
    "addTerminalToGroup": ("group", "add_terminal", CROSSING),
    "createMessageBusTopic": ("topic", "create_crossing", CROSSING),
    "addGroupToTopic": ("topic", "add_group", CROSSING),
    "sendMessage": ("publish", "publish", MESSAGES),
}

if TYPE_CHECKING:
    #: All of it; made when it is asked for.
    app: typer.Typer


def __getattr__(name: str) -> Any:
    if name == "app":
        return build(COMMANDS)
    raise AttributeError(name)


class _Ordered(CommandGroup):
    def list_commands(self, ctx: Any) -> list[str]:
        return [name for name in COMMANDS if name in self.commands]


def build(names: Iterable[str]) -> typer.Typer:
    """The application with these commands."""
    built = Commands(
        name="landbridge",
        cls=_Ordered,
        no_args_is_help=True,
        rich_markup_mode="rich",
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="A durable message bus.\n\nStart one with [cyan]landbridge up[/], then publish and subscribe.",
    )
    built.callback()(landbridge)
    for name in names:
        module, attribute, panel = (COMMANDS | STEPS)[name]
        command = getattr(import_module(f"landbridge.cli.{module}"), attribute)
        if isinstance(command, typer.Typer):
            built.add_typer(command, name=name, rich_help_panel=panel)
        else:
            built.command(name, rich_help_panel=panel)(command)
    return built


def _version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


def landbridge(
    version: Annotated[
        bool, option("Print the version.", "--version", callback=_version, is_eager=True)
    ] = False,
) -> None:
    pass


def version() -> None:
    """Print the version.

    Examples:
      landbridge version --json
    """
    import platform

    fields = {"version": __version__, "python": platform.python_version(), "platform": platform.platform()}
    output.emit(fields, lambda _: print(f"landbridge {__version__}"))


def main(arguments: Sequence[str]) -> int:
    """Run a command line. Returns its exit status."""
    # Known before anything is parsed, so that errors of the command line are JSON too.
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    output.choice.json = "--json" in own
    # A name that isn't one, an option or a shell that wants completions: then it takes them all.
    known = bool(arguments) and arguments[0] in COMMANDS | STEPS
    names = arguments[:1] if known and "_LANDBRIDGE_COMPLETE" not in os.environ else COMMANDS
    try:
        command = get_command(build(names))
        result = command.main(list(arguments), prog_name="landbridge", standalone_mode=False)
        sys.stdout.flush()
        return result if isinstance(result, int) else 0
    except BusError as error:
        output.report(error)
        return error.exit_status
    except Refusal as error:
        _refuse(error)
        return 2
    except typer.Abort:
        print("aborted", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except SystemExit as error:
        # typer's answer to a closed pipe.
        if isinstance(error.__context__, BrokenPipeError):
            return _closed_pipe()
        raise
    except BrokenPipeError:
        return _closed_pipe()
    except Exception:
        _crash()
        return 70


def _refuse(error: Any) -> None:
    if output.choice.json:
        hint = f"see '{error.ctx.command_path} --help'" if getattr(error, "ctx", None) is not None else ""
        refused = BusError(_plain(error.format_message()), hint=hint)
        output.report(refused, code="usage")
    else:
        from typer.rich_utils import rich_format_error

        error.message = _plain(error.message)
        rich_format_error(error)


def _plain(message: str) -> str:
    """Without what pydantic writes in front of what a parser of ours has raised."""
    return message.replace("Value error, ", "")


def _closed_pipe() -> int:
    """Whoever read our output has seen enough, as ``head`` does. Nothing is left to say, also not at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _crash() -> None:
    if output.choice.json:
        kind, error, _ = sys.exc_info()
        message = f"{kind.__name__ if kind else 'error'}: {error}"
        output.report(BusError(message, hint="this is a fault in landbridge; the traceback follows"))
    traceback.print_exc()
