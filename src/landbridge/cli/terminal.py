"""``landbridge terminal``: the terminals of a customer, in its registry; and starting one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from landbridge.cli import output, registry_access, units
from landbridge.cli.options import ContextName, Json, given
from landbridge.cli.output import Column
from landbridge.node import terminal_file

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient


class _StartByDefault(TyperGroup):
    """``landbridge terminal --config F`` is ``landbridge terminal start --config F``."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in ctx.help_option_names:
            args = ["start", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=_StartByDefault,
    no_args_is_help=True,
    help="Terminals: instances of the bus, one in each LAN. With --config FILE: start one.",
)

LIST = [
    Column("Terminal", "name", style="cyan"),
    Column("Id", "terminal_id"),
    Column("Mode", "mode"),
    Column("Region", "region"),
    Column("Address", "address"),
    Column("State", "state"),
    Column("Holds", "holds", units.count, "yellow"),
    Column("Created", "created_at", units.ago, plain=units.iso),
]
SHOW = [
    *LIST[1:],
    Column("Transit", "transit"),
    Column("Admin cost (ms)", "admin_cost"),
    Column("Keys", "key_count", units.count),
]

Mode = Literal["server", "client"]
Named = Annotated[
    str, typer.Argument(metavar="TERMINAL", help="The terminal's name or id.", show_default=False)
]
Address = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where others dial it: lbs://host:port. A client has none."),
]
Region = Annotated[str | None, typer.Option(help="Where it is; clients prefer servers of their region.")]
Transit = Annotated[
    bool | None,
    typer.Option("--transit/--no-transit", help="May a server carry what is neither from nor for it?"),
]
AdminCost = Annotated[
    float | None, typer.Option(metavar="MS", min=0, help="Added to the cost of each of its links.")
]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="What to call it.", show_default=False)],
    mode: Annotated[
        Mode, typer.Option(help="A server has an address that others dial; a client dials out.")
    ] = "server",
    address: Address = None,
    region: Region = None,
    transit: Transit = None,
    admin_cost: AdminCost = None,
    key: Annotated[
        bool, typer.Option("--key/--no-key", help="Make its key; or let it bring its own, by 'enrol'.")
    ] = True,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write its landbridge.yml, for its owner alone.")
    ] = None,
    listen: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="For that file: where it will listen.")
    ] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Create a terminal. Its secure key is shown once, or written to a file; the registry keeps no copy.

    \b
    Examples:
      landbridge terminal create paris --address lbs://paris.example.com:7420 --write paris.yml
      landbridge terminal create tokyo --mode client --write tokyo.yml
    """
    access = registry_access.admin(context)
    if write is not None:
        if not key:
            raise typer.BadParameter("--write needs a key to write: leave --no-key out")
        listen = listen or _listen_for(address)
        terminal_file.endpoint(listen)
        terminal_file.create(write)
    options: dict[str, Any] = given(address=address, region=region, transit=transit, admin_cost=admin_cost)
    try:
        made = registry_access.ask(
            access, lambda client: client.create_terminal(name, mode=mode, make_key=key, **options)
        )
    except BaseException:
        if write is not None:
            write.unlink()
        raise
    result = registry_access.plain(made)
    if write is not None:
        identity = {key: result[key] for key in ("customer_id", "terminal_id", "secure_key")}
        where = {"registry": access.url, "registry_key": result["registry_key"], "registry_ca": access.ca}
        said = {"name": name, "mode": mode, "address": address, "listen": listen, "region": region}
        terminal_file.write(write, {**identity, **said, **where})
        result = {**result, "secure_key": None, "file": str(write)}
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
        output.done(f"the terminal {result['name']} is {result['terminal_id']}; its file is {write}")
        output.note(f"next: landbridge terminal --config {write}")
        return
    output.done(f"the terminal {result['name']} is there")
    print(f"customer_id: {result['customer_id']}")
    print(f"terminal_id: {result['terminal_id']}")
    if result["secure_key"] is not None:
        print(f"secure_key: {result['secure_key']}")
        output.note("the secure key is not shown again")
    else:
        output.note(f"next: landbridge terminal enrol {result['name']}")
    print(f"registry_key: {result['registry_key']}")


@app.command("list")
def list_terminals(context: ContextName = None, json: Json = False) -> None:
    """List the terminals of the customer.

    \b
    Examples:
      landbridge terminal list
    """
    found = registry_access.ask(registry_access.admin(context), registry_access.terminals)
    rows = registry_access.plain(found)
    empty = "no terminals yet: 'landbridge terminal create NAME'"
    output.emit(rows, lambda rows: output.table(LIST, list(map(_row, rows)), empty=empty))


def _row(terminal: dict[str, Any]) -> dict[str, Any]:
    if terminal["revoked_at"]:
        state = "revoked"
    elif not terminal["keys"]:
        state = "to be enrolled"
    else:
        state = "draining" if terminal["draining"] else "good"
    holds = sum(terminal["held"].values())
    return {**terminal, "state": state, "holds": holds, "key_count": len(terminal["keys"])}


@app.command()
def show(terminal: Named, context: ContextName = None, json: Json = False) -> None:
    """Show a terminal.

    \b
    Examples:
      landbridge terminal show paris
    """

    async def work(client: RegistryClient) -> Any:
        return await client.show_terminal(await registry_access.find_terminal(client, terminal))

    found = registry_access.plain(registry_access.ask(registry_access.admin(context), work))
    output.emit(found, lambda row: output.record(row["name"], SHOW, _row(row)))


@app.command()
def update(
    terminal: Named,
    name: Annotated[str | None, typer.Option(help="What to call it from now on.")] = None,
    mode: Annotated[Mode | None, typer.Option(help="Server or client.")] = None,
    address: Address = None,
    region: Region = None,
    draining: Annotated[
        bool | None, typer.Option("--draining/--not-draining", help="Give it nothing new, to empty it.")
    ] = None,
    transit: Transit = None,
    admin_cost: AdminCost = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Change a terminal. What isn't given stays as it is.

    \b
    Examples:
      landbridge terminal update paris --address lbs://paris.example.com:7420
      landbridge terminal update paris --draining
    """
    options: dict[str, Any] = given(
        name=name,
        mode=mode,
        address=address,
        region=region,
        draining=draining,
        transit=transit,
        admin_cost=admin_cost,
    )
    if not options:
        raise typer.BadParameter("nothing to change: give at least one option")

    async def work(client: RegistryClient) -> Any:
        found = await registry_access.find_terminal(client, terminal)
        return await client.update_terminal(found, **options)

    found = registry_access.plain(registry_access.ask(registry_access.admin(context), work))
    output.emit(found, lambda _: output.done(f"the terminal {terminal} is changed"))


@app.command()
def remove(
    terminal: Named,
    force: Annotated[
        bool, typer.Option("--force", help="Also with messages that others wait for: they are given up.")
    ] = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Remove a terminal, also from its groups.

    \b
    Examples:
      landbridge terminal remove tokyo
    """

    async def work(client: RegistryClient) -> str:
        found = await registry_access.find_terminal(client, terminal)
        await client.remove_terminal(found, force=force)
        return found

    removed = registry_access.ask(registry_access.admin(context), work)
    output.emit({"removed": removed}, lambda _: output.done(f"the terminal {terminal} is removed"))
    _tell_of_context(terminal)


@app.command()
def revoke(terminal: Named, context: ContextName = None, json: Json = False) -> None:
    """Cut a terminal off, at once and for ever: one that was stolen, or whose key was.

    \b
    Examples:
      landbridge terminal revoke tokyo
    """
    output.confirm(f"Cut {terminal} off for ever?")

    async def work(client: RegistryClient) -> Any:
        return await client.revoke_terminal(await registry_access.find_terminal(client, terminal))

    found = registry_access.plain(registry_access.ask(registry_access.admin(context), work))
    output.emit(found, lambda _: output.done(f"the terminal {terminal} is cut off"))
    _tell_of_context(found["name"])


def _tell_of_context(terminal: str) -> None:
    """A terminal that was started on this machine has left a context, which may also be somebody else's by
    now: so it is told of, not removed."""
    from landbridge.client import context as contexts

    if terminal in contexts.names():
        output.note(f"there is a context of its name: 'landbridge context remove {terminal}' ends that too")


@app.command()
def rotate(
    terminal: Named,
    end_old: Annotated[bool, typer.Option("--end-old", help="The old key ends now.")] = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """A new secure key for a terminal, shown once. The old one stays good beside it until the next.

    \b
    Examples:
      landbridge terminal rotate tokyo
    """
    from landbridge.cli.key import rotate_terminal

    rotate_terminal(terminal, context, end_old=end_old)


@app.command()
def enrol(terminal: Named, context: ContextName = None, json: Json = False) -> None:
    """A token with which a machine becomes this terminal, once, within ten minutes. It makes its own key.

    \b
    Examples:
      landbridge terminal create osaka --mode client --no-key
      landbridge terminal enrol osaka
    """
    access = registry_access.admin(context)

    async def work(client: RegistryClient) -> Any:
        return await client.create_terminal_enrolment(await registry_access.find_terminal(client, terminal))

    made = registry_access.plain(registry_access.ask(access, work))
    command = f"landbridge terminal --enrol {made['token']} --registry {access.url}"

    def show(_: Any) -> None:
        output.note(f"on the machine of {terminal}, until {units.clock(made['expires_at'])}:")
        print(command)

    output.emit({**made, "command": command}, show)


@app.command()
def start(
    config: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The terminal's file.", show_default=terminal_file.DEFAULT_FILE),
    ] = None,
    enrol: Annotated[
        str | None, typer.Option(metavar="TOKEN", help="Enrol first: make a key, and write the file.")
    ] = None,
    customer_id: Annotated[str | None, typer.Option(metavar="ID", help="Its customer.")] = None,
    terminal_id: Annotated[str | None, typer.Option(metavar="ID", help="Its own id.")] = None,
    secure_key: Annotated[
        str | None,
        typer.Option(metavar="@FILE", help="A file with its secret, or the secret itself."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="What it calls itself.")] = None,
    mode: Annotated[str | None, typer.Option(metavar="server|client", help="What it should be.")] = None,
    address: Annotated[
        str | None, typer.Option(metavar="URL", help="Where others should dial it, lbs://host:port.")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where it listens.", show_default=terminal_file.DEFAULT_LISTEN
        ),
    ] = None,
    http_port: Annotated[
        str | None,
        typer.Option(metavar="PORT", help="For messages and metrics; 0 for none.", show_default="7480"),
    ] = None,
    registry: Annotated[str | None, typer.Option(metavar="URL", help="Its registry.")] = None,
    registry_key: Annotated[
        str | None, typer.Option(metavar="KEY", help="The registry's public key, base64.")
    ] = None,
    registry_ca: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificates to trust for the registry.")
    ] = None,
    data: Annotated[str | None, typer.Option(metavar="FOLDER", help="Where its data is kept.")] = None,
    context: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The context to make for it.", show_default="its name"),
    ] = None,
    tls_cert: Annotated[
        str | None, typer.Option(metavar="FILE", help="Certificate chain of your own, PEM.")
    ] = None,
    tls_key: Annotated[str | None, typer.Option(metavar="FILE", help="Its private key, PEM.")] = None,
    tls_ca: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Certificates to trust for links, too."),
    ] = None,
    auto_create: Annotated[
        str | None, typer.Option(metavar="true|false", help="Make topics when they are first used.")
    ] = None,
    limits: Annotated[
        str | None, typer.Option("--limits", metavar="NAME=VALUE,…", help="Limits, as --limit of 'up'.")
    ] = None,
    region: Annotated[str | None, typer.Option(help="Prefer servers of this region.")] = None,
    neighbours: Annotated[
        str | None, typer.Option(metavar="NAME,…", help="Dial these servers and no others.")
    ] = None,
    dial: Annotated[
        str | None, typer.Option(metavar="NAME=URL,…", help="Dial a server at another address.")
    ] = None,
    probe_busy: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Between probes of a busy link.", show_default="2s")
    ] = None,
    probe_idle: Annotated[
        str | None, typer.Option(metavar="SPAN", help="Between probes of an idle one.", show_default="10s")
    ] = None,
    max_transit: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Kept for other terminals.", show_default="4GiB")
    ] = None,
    max_sealed: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="Kept until it can be opened.", show_default="4GiB"),
    ] = None,
    catch_up_rate: Annotated[
        str | None,
        typer.Option(metavar="SIZE", help="A second, after an outage; 0: no limit.", show_default="32MiB"),
    ] = None,
    own_certificates: Annotated[
        str | None,
        typer.Option(metavar="true|false", help="Links use certificates that were given."),
    ] = None,
    log_links: Annotated[
        str | None,
        typer.Option(metavar="true|false", help="Write link states to $links, for 'pipeline run routes'."),
    ] = None,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged, to stderr.")
    ] = "info",
    json: Json = False,
) -> None:
    """Start a terminal, until Ctrl-C or SIGTERM. 'landbridge terminal --config FILE' does the same.

    Every setting can stand in the file, in LANDBRIDGE_TERMINAL_NAME, or here; what stands here wins.

    \b
    Examples:
      landbridge terminal --config paris.yml
      landbridge terminal start --config tokyo.yml --listen 127.0.0.1:7430 --http-port 0
      landbridge terminal --enrol TOKEN --registry https://registry.example.com
    """
    # Before anything else is a local name: the flags, by key.
    said = {key: value for key, value in locals().items() if key in terminal_file.KEYS and value is not None}
    from landbridge.node import logs

    logs.configure(log_level)
    from landbridge.node import member

    file = config or Path(terminal_file.DEFAULT_FILE)
    if enrol is not None:
        member.enrol(file, enrol, terminal_file.read(None, os.environ, said))
    # Without a file, all of it may be in the flags and the environment.
    is_complete = config is None and not file.exists() and {"terminal_id", "secure_key"} <= _known(said)
    member.start(terminal_file.read(None if is_complete else file, os.environ, said))


def _known(flags: dict[str, Any]) -> set[str]:
    prefix = terminal_file.PREFIX
    return {*flags, *(name.removeprefix(prefix).lower() for name in os.environ if name.startswith(prefix))}
