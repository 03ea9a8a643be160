"""``landbridge terminal``: the terminals of a customer, in its registry; and starting one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import msgspec
import typer

from landbridge.cli import output, units
from landbridge.cli.loop import run
from landbridge.cli.options import (
    CommandGroup,
    Commands,
    ContextName,
    LogLevel,
    OptionGroup,
    argument,
    flag,
    given,
    option,
)
from landbridge.cli.output import columns
from landbridge.cli.registry_access import admin, as_admin, change_terminal, of_terminal, terminals
from landbridge.node import terminal_file


class _StartByDefault(CommandGroup):
    """``landbridge terminal --config F`` is ``landbridge terminal start --config F``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = Commands(
    cls=_StartByDefault,
    no_args_is_help=True,
    help="Terminals: instances of the bus, one in each LAN. 'landbridge terminal start' starts one.",
)

LIST = columns(
    "Terminal=name@cyan | Id=terminal_id | Mode | Region | Address | State | Seen=seen_at:moment | "
    "Holds:count@yellow | Created=created_at:moment"
)
SHOW = [*LIST[1:], *columns("Transit | Admin cost (ms)=admin_cost | Keys=key_count:count")]

Mode = Literal["server", "client"]
Named = Annotated[str, argument("TERMINAL", "The terminal's name or id.")]


class TerminalOptions(OptionGroup):
    """What the registry knows of a terminal."""

    address: str | None = option("Where others dial it: lbs://host:port. A client has none.", metavar="URL")
    region: str | None = option("Where it is; clients prefer servers of their region.")
    transit: bool | None = option(
        "May a server carry what is neither from nor for it?", "--transit/--no-transit"
    )
    admin_cost: float | None = option("Added to the cost of each of its links.", metavar="MS", min=0)


@app.command()
def create(
    name: Annotated[str, argument("NAME", "What to call it.")],
    *,
    mode: Mode = option("A server has an address that others dial; a client dials out.", value="server"),
    options: TerminalOptions,
    key: bool = option("Make its key; or let it bring its own, by 'enrol'.", "--key/--no-key", value=True),
    write: Path | None = option("Write its landbridge.yml, for its owner alone.", metavar="FILE"),
    listen: str | None = option("For that file: where it will listen.", metavar="HOST:PORT"),
    context: ContextName = None,
) -> None:
    """Create a terminal. Its secure key is shown once, or written to a file; the registry keeps no copy.

    Examples:
      landbridge terminal create paris --address lbs://paris.example.com:7420 --write paris.yml
      landbridge terminal create tokyo --mode client --write tokyo.yml
    """
    access = admin(context)
    if write is not None:
        if not key:
            raise typer.BadParameter("--write needs a key to write: leave --no-key out")
        listen = listen or _listen_for(options.address)
        terminal_file.endpoint(listen)
    with terminal_file.created(write):
        made = access.ask(
            lambda client: client.create_terminal(name, mode=mode, make_key=key, **options.given())
        )
    result = output.fields(made, registry=access.url)
    if write is not None:
        identity = {key: result[key] for key in ("customer_id", "terminal_id", "secure_key")}
        where = {"registry": access.url, "registry_key": result["registry_key"], "registry_ca": access.ca}
        address, region = options.address, options.region
        said = {"name": name, "mode": mode, "address": address, "listen": listen, "region": region}
        terminal_file.write(write, {**identity, **said, **where})
        result |= {"secure_key": None, "file": str(write)}
    output.emit(result, lambda result: _show_created(result, write))


def _listen_for(address: str | None) -> str:
    """Where a terminal listens whose address is this one: on loopback there, else on all interfaces."""
    if not address:
        return terminal_file.DEFAULT_LISTEN
    from urllib.parse import urlsplit

    from landbridge.client.context import DEFAULT_PORT, is_loopback

    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError:
        return terminal_file.DEFAULT_LISTEN  # the registry will say what is wrong with it
    return f"127.0.0.1:{port}" if is_loopback(host) else f"0.0.0.0:{port}"


def _show_created(result: dict[str, Any], write: Path | None) -> None:
    if write is not None:
        where = f"of {result['customer_id']} at {result['registry']}"
        output.done(f"the terminal {result['name']} is {result['terminal_id']} {where}; its file is {write}")
        output.note(f"next: landbridge terminal --config {write}")
        return
    output.done(f"the terminal {result['name']} is there, at {result['registry']}")
    print(f"customer_id: {result['customer_id']}")
    print(f"terminal_id: {result['terminal_id']}")
    if result["secure_key"] is not None:
        print(f"secure_key: {result['secure_key']}")
        output.note("the secure key is not shown again")
    else:
        output.note(f"next: landbridge terminal enrol {result['name']}")
    print(f"registry_key: {result['registry_key']}")


@app.command("list")
def list_terminals(context: ContextName = None) -> None:
    """List the terminals of the customer.

    Examples:
      landbridge terminal list
    """
    empty = "no terminals yet: 'landbridge terminal create NAME'"
    output.rows(LIST, as_admin(context, terminals), empty=empty, show=_row)


def _row(terminal: RegisteredTerminal) -> dict[str, Any]:
    if terminal.revoked_at:
        state = "revoked"
    elif not terminal.keys:
        state = "to be enrolled"
    elif terminal.silent:
        state = "not seen" if terminal.seen_at is None else "silent"
    else:
        state = "draining" if terminal.draining else "good"
    holds = sum(terminal.held.values())
    return output.fields(terminal, state=state, holds=holds, key_count=len(terminal.keys))


@app.command()
def show(terminal: Named, context: ContextName = None) -> None:
    """Show a terminal.

    Examples:
      landbridge terminal show paris
    """
    found = of_terminal(context, terminal, lambda client, id: client.show_terminal(id))
    output.emit(found, lambda row: output.record(row.name, SHOW, _row(row)))


@app.command()
def update(
    terminal: Named,
    *,
    name: str | None = option("What to call it from now on."),
    mode: Mode | None = option("Server or client."),
    options: TerminalOptions,
    draining: bool | None = option("Give it nothing new, to empty it.", "--draining/--not-draining"),
    context: ContextName = None,
) -> None:
    """Change a terminal. What isn't given stays as it is.

    Examples:
      landbridge terminal update paris --address lbs://paris.example.com:7420
      landbridge terminal update paris --draining
    """
    changes = options.given() | given(name=name, mode=mode, draining=draining)
    if not changes:
        raise typer.BadParameter("nothing to change: give at least one option")
    change_terminal(
        context,
        terminal,
        lambda client, id: client.update_terminal(id, **changes),
        lambda _: f"the terminal {terminal} is changed",
    )


@app.command()
def remove(
    terminal: Named,
    force: bool = flag("Also with messages that others wait for: they are given up.", "--force"),
    context: ContextName = None,
) -> None:
    """Remove a terminal, also from its groups.

    Examples:
      landbridge terminal remove tokyo
    """

    async def work(client: RegistryClient, id: str) -> str:
        await client.remove_terminal(id, force=force)
        return id

    change_terminal(
        context,
        terminal,
        work,
        lambda _: f"the terminal {terminal} is removed",
        lambda removed: {"removed": removed},
    )
    _tell_of_context(terminal)


@app.command()
def revoke(terminal: Named, context: ContextName = None) -> None:
    """Cut a terminal off, at once and for ever: one that was stolen, or whose key was.

    Examples:
      landbridge terminal revoke tokyo
    """
    output.confirm(f"Cut {terminal} off for ever?")
    found = change_terminal(
        context,
        terminal,
        lambda client, id: client.revoke_terminal(id),
        lambda _: f"the terminal {terminal} is cut off",
    )
    _tell_of_context(found.name)


def _tell_of_context(terminal: str) -> None:
    """A terminal that was started on this machine has left a context. By now the context may be somebody
    else's, so the user is told of it, and it is not removed."""
    from landbridge.client import context as contexts

    if terminal in contexts.names():
        output.note(f"there is a context of its name: 'landbridge context remove {terminal}' ends that too")


@app.command()
def rotate(
    terminal: Named, end_old: bool = flag("The old key ends now.", "--end-old"), context: ContextName = None
) -> None:
    """A new secure key for a terminal, shown once. The old one stays good beside it until the next.

    Examples:
      landbridge terminal rotate tokyo
    """
    rotate_key(terminal, context, end_old=end_old)


def rotate_key(terminal: str, context: str | None, *, end_old: bool) -> None:
    made = of_terminal(
        context, terminal, lambda client, id: client.rotate_terminal_key(id, keep_old=not end_old)
    )

    def show(_: Any) -> None:
        output.done(f"{terminal} has a new secure key, shown this once: put it into its file and restart it")
        print(f"secure_key: {made.secure_key}")

    output.emit({"terminal_id": made.terminal_id, "secure_key": made.secure_key}, show)


@app.command()
def enrol(terminal: Named, context: ContextName = None) -> None:
    """A token with which a machine becomes this terminal, once, within ten minutes. It makes its own key.

    Examples:
      landbridge terminal create osaka --mode client --no-key
      landbridge terminal enrol osaka
    """
    made = of_terminal(context, terminal, lambda client, id: client.create_terminal_enrolment(id))
    command = f"landbridge terminal --enrol {made.token} --registry {admin(context).url}"

    def show(_: Any) -> None:
        output.note(f"on the machine of {terminal}, until {units.clock(made.expires_at)}:")
        print(command)

    output.emit(output.fields(made, command=command), show)


if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient
    from landbridge.client.registry_documents import RegisteredTerminal

    TerminalSettings: TypeAlias = OptionGroup
else:
    #: Every setting of a terminal, as a text.
    TerminalSettings = msgspec.defstruct(
        "TerminalSettings",
        [
            (key, str | None, option(setting.help, metavar=setting.metavar, default=setting.default))
            for key, setting in terminal_file.KEYS.items()
        ],
        bases=(OptionGroup,),
        kw_only=True,
    )


@app.command()
def start(
    *,
    config: Path | None = option("The terminal's file.", metavar="FILE", default=terminal_file.DEFAULT_FILE),
    enrol: str | None = option("Enrol first: make a key, and write the file.", metavar="TOKEN"),
    settings: TerminalSettings,
    log_level: LogLevel = "info",
) -> None:
    """Start a terminal, until Ctrl-C or SIGTERM. 'landbridge terminal --config FILE' does the same.

    Every setting can stand in the file, in LANDBRIDGE_TERMINAL_NAME, or here; what stands here wins.

    Examples:
      landbridge terminal --config paris.yml
      landbridge terminal start --config tokyo.yml --listen 127.0.0.1:7430 --http-port 0
      landbridge terminal --enrol TOKEN --registry https://registry.example.com
    """
    from landbridge.cli.up import announce
    from landbridge.node import assembly, member, nodes
    from landbridge.node.stores import address_of

    flags = settings.given()
    address_of(flags.get("store"))  # no password among the arguments
    file = config or Path(terminal_file.DEFAULT_FILE)
    if enrol is not None:
        run(member.enrol(file, enrol, terminal_file.read(None, os.environ, flags)))
    known = {} if file.exists() else terminal_file.read(None, os.environ, flags)
    # Without a file, all of it may be in the flags and the environment.
    if config is not None or not {"terminal_id", "secure_key"} <= known.keys():
        known = terminal_file.read(file, os.environ, flags)
    plan = msgspec.structs.replace(
        member.plan_of(known), sign_in=output.on_terminal() and not output.choice.json
    )

    async def main() -> None:
        if plan.node is not None:
            await nodes.serve_node(
                plan, announce, lambda _: member.MemberOfRegistry(plan, known), output.watching()
            )
            return
        await assembly.serve(plan, announce, member.MemberOfRegistry(plan, known), output.watching())

    run(main())
