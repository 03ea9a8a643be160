"""``landbridge up``: a terminal with all it needs, in one process."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landbridge.cli import output
from landbridge.cli.options import Json, data_folder

if TYPE_CHECKING:
    from landbridge.node.assembly import Plan, Ready


def up(
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the data is kept.",
            show_default="$LANDBRIDGE_DATA, else ~/.local/share/landbridge",
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Other than this machine's own needs TLS.")
    ] = ("127.0.0.1"),
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port of the bus; 0 takes a free one.")] = 7420,
    http_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of /metrics and /healthz; 0 for none.")
    ] = 7480,
    registry: Annotated[
        bool,
        typer.Option(
            "--registry/--no-registry",
            help="Have a registry on the HTTP port, so that other terminals can be added.",
        ),
    ] = True,
    name: Annotated[str, typer.Option(help="What the terminal calls itself.")] = "local",
    context: Annotated[
        str,
        typer.Option(metavar="NAME", help="The context to make for it. A second terminal wants another one."),
    ] = "local",
    limit: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=VALUE", help="Set a limit, e.g. max_payload=8MiB or hello_within=5s. Repeatable."
        ),
    ] = None,
    tls_cert: Annotated[Path | None, typer.Option(metavar="FILE", help="Certificate chain, PEM.")] = None,
    tls_key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its private key, PEM.")] = None,
    auto_create: Annotated[
        bool,
        typer.Option("--auto-create/--no-auto-create", help="Make topics when they are first used."),
    ] = True,
    store: Annotated[
        Literal["sqlite", "memory"], typer.Option(help="memory forgets everything when it ends.")
    ] = "sqlite",
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="How much is logged, to stderr.")
    ] = "info",
    events: Annotated[
        bool, typer.Option("--events", help="Also pass events on, as 'landbridge events' does.")
    ] = False,
    event_port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --events: where the source connects.")
    ] = 9090,
    client_port: Annotated[
        int, typer.Option(min=0, max=65535, help="With --events: where the clients connect.")
    ] = 9099,
    event_topic: Annotated[
        str | None,
        typer.Option(metavar="TOPIC", help="With --events: pass them through topics.", show_default=False),
    ] = None,
    json: Json = False,
) -> None:
    """Start a terminal, until Ctrl-C or SIGTERM. The first start makes its credential and a context for it.

    \b
    Examples:
      landbridge up
      landbridge up --data ./bus --port 7430 --http-port 0 --context second
      landbridge up --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
    """
    from landbridge.node import logs

    logs.configure(log_level)
    from landbridge.cli.events import EventsPlan
    from landbridge.cli.loop import run
    from landbridge.node import assembly

    plan = assembly.Plan(
        data=None if store == "memory" else (data or data_folder()).absolute(),
        host=host,
        port=port,
        http_port=http_port or None,
        name=name,
        context=context,
        limits=limit or [],
        tls_cert=tls_cert,
        tls_key=tls_key,
        auto_create=auto_create,
        # On this machine alone, wherever the terminal listens: the protocol has no credentials.
        events=EventsPlan(event_port=event_port, client_port=client_port, topic=event_topic)
        if events
        else None,
    )
    run(_serve(plan, with_registry=registry and plan.http_port is not None))


async def _serve(plan: Plan, *, with_registry: bool) -> None:
    from landbridge.node import assembly

    membership = None
    if with_registry:
        from landbridge.node.embedded import Embedded

        membership = Embedded(plan.data, plan.name)
    await assembly.serve(plan, announce, membership)


def announce(ready: Ready) -> None:
    if output.choice.json:
        output.write_json(ready)
        return
    suffix = "" if ready.current else f" --context {ready.context}"
    commands = [
        f"landbridge subscribe orders{suffix}",
        f"landbridge publish orders '{{\"id\": 1}}'{suffix}",
        f"landbridge status tail{suffix}",
    ]
    facts = {
        "bus": ready.url,
        "data": ready.data or "in memory",
        "context": ready.context,
        "http": ready.http or "off",
        **({"registry": ready.registry} if ready.registry else {}),
        **({"events": f"source {ready.events[0]}, clients {ready.events[1]}"} if ready.events else {}),
    }
    if not output.on_terminal():
        for fact, value in facts.items():
            print(f"{fact:<8} {value}")
        for command in commands:
            print(f"try      {command}")
        print(end="", flush=True)
        return
    _panel(ready, facts, commands)


def _panel(ready: Ready, facts: dict[str, str], commands: list[str]) -> None:
    from rich.panel import Panel
    from rich.text import Text

    # Commands stand free of the frame, so that a triple click copies nothing but the command.
    lines = [Text(f"{fact:<8} ", style="dim").append(value, style="not dim") for fact, value in facts.items()]
    screen = output.console()
    screen.print(
        Panel(
            Text("\n").join(lines),
            title=f"[bold green]●[/] [bold]{ready.name}[/] is up",
            title_align="left",
            border_style="dim",
            expand=False,
            padding=(0, 1),
        )
    )
    screen.print("In another window:", style="dim")
    for command in commands:
        screen.print(f"  {command}", style="cyan", markup=False, soft_wrap=True)
    screen.print("Ctrl-C stops it; what is stored stays.", style="dim")
