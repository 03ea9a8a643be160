"""``landbridge up``: a terminal with all it needs, in one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from landbridge.cli import output
from landbridge.cli.loop import run
from landbridge.cli.options import CertificateFile, KeyFile, ListenOn, LogLevel, flag, option, port, span
from landbridge.core.cluster.roster import LIFE
from landbridge.node.plan import EventsPlan, NodePlan, NodeReady, SmtpPlan, check_life, data_folder


def up(
    data: Path | None = option(
        "Where the data is kept.",
        metavar="FOLDER",
        default="$LANDBRIDGE_DATA, else ~/.local/share/landbridge",
    ),
    host: ListenOn = "127.0.0.1",
    port: int = port("Port of the bus; 0 takes a free one.", value=7420),
    http_port: int = port("Port of HTTP: messages, administration, /metrics; 0 for none.", value=7480),
    registry: bool = option(
        "Have a registry on the HTTP port, so that other terminals can be added.",
        "--registry/--no-registry",
        value=True,
    ),
    name: str = option("What the terminal calls itself.", value="local"),
    context: str = option(
        "The context to make for it. A second terminal wants another one.", metavar="NAME", value="local"
    ),
    limit: list[str] | None = option(
        "Set a limit, e.g. max_payload=8MiB or hello_within=5s. Repeatable.", metavar="NAME=VALUE"
    ),
    tls_cert: CertificateFile = None,
    tls_key: KeyFile = None,
    auto_create: bool = option(
        "Make topics when they are first used.", "--auto-create/--no-auto-create", value=True
    ),
    store: str | None = option(
        "journal (in the data folder), memory (forgets everything), or a server: redis://… or "
        "postgresql://…; "
        "@FILE reads the URL from a file.",
        metavar="STORE",
        default="$LANDBRIDGE_STORE, else journal",
    ),
    reset_operator: bool = flag(
        "Make a new credential for the registry's operator; the old one ends.", "--reset-operator"
    ),
    origin: list[str] | None = option(
        "Let pages of this web site use the HTTP port, e.g. https://console.example.com. Repeatable.",
        metavar="ORIGIN",
    ),
    node: str | None = option(
        "Be one of several nodes of the terminal, which share its --store.",
        metavar="NAME",
        show_default=False,
    ),
    node_life: float = span("Seconds without a sign of life after which a node counts as gone.", value=LIFE),
    together: bool = flag("Keep all units at one node, and the others ready.", "--together"),
    secret_file: Path | None = option(
        "The master key of the registry, which all nodes have in common.",
        metavar="FILE",
        default="master.key in the data folder",
    ),
    address: str | None = option(
        "Where other nodes and clients reach this one.", metavar="URL", default="where it listens"
    ),
    tls_ca: Path | None = option(
        "Certificates to trust for other nodes.", metavar="FILE", default="the system's, or its own"
    ),
    socketio: bool = flag("Serve Socket.IO at the HTTP port, too.", "--socketio"),
    log_level: LogLevel = "info",
    allow_outgoing: list[str] | None = option(
        "Let callbacks, webhooks, feeds, mail, SMS go to a place that isn't public: 10.1.0.0/16. Repeatable.",
        metavar="NETWORK",
    ),
    smtp: int | None = option(
        "Take mails as messages on this port, with STARTTLS if there is a certificate; 0: any free one.",
        min=0,
        max=65535,
        metavar="PORT",
    ),
    smtps: int | None = option(
        "The same with TLS from the start; needs --tls-cert.", min=0, max=65535, metavar="PORT"
    ),
    smtp_domain: str = option(
        "With --smtp: mails to TOPIC@DOMAIN are messages.", metavar="DOMAIN", value="localhost"
    ),
    events: bool = flag("Also pass events on, as 'landbridge events' does.", "--events"),
    event_port: int = port("With --events: where the source connects.", value=9090),
    client_port: int = port("With --events: where the clients connect.", value=9099),
    event_topic: str | None = option(
        "With --events: pass them through topics.", metavar="TOPIC", show_default=False
    ),
    mqtt: int | None = option(
        "Also serve MQTT on this port; 0 takes a free one.", "--mqtt", metavar="PORT", min=0, max=65535
    ),
) -> None:
    """Start a terminal, until Ctrl-C or SIGTERM. The first start makes its credential and a context for it.

    Examples:
      landbridge up
      landbridge up --data ./bus --port 7430 --http-port 0 --context second
      landbridge up --mqtt 1883
      landbridge up --store postgresql://landbridge@db.lan/bus
      landbridge up --host 0.0.0.0 --tls-cert cert.pem --tls-key key.pem
      landbridge up --store @bus.url --node one --secret-file bus.key
      landbridge up --smtp 2525 --smtp-domain bus.example
    """
    from landbridge.client.context import parse_url
    from landbridge.core.names import check_name
    from landbridge.node.stores import address_of

    server = None if store in ("memory", "journal") else address_of(store)
    plan = NodePlan(
        data=None if store == "memory" else (data or data_folder()).absolute(),
        store=server,
        host=host,
        port=port,
        http_port=http_port or None,
        name=name,
        context=context,
        limits=limit or [],
        tls_cert=tls_cert,
        tls_key=tls_key,
        auto_create=auto_create,
        allow_outgoing=allow_outgoing or [],
        smtp=None
        if smtp is None and smtps is None
        else SmtpPlan(port=smtp, tls_port=smtps, domain=smtp_domain),
        # On this machine alone, wherever the terminal listens: the protocol has no credentials.
        events=EventsPlan(event_port=event_port, client_port=client_port, topic=event_topic)
        if events
        else None,
        origins=origin or [],
        node=None if node is None else check_name(node, "node"),
        node_life=check_life(node_life),
        together=together,
        address=address,
        tls_ca=tls_ca,
        # The link is a secret: a log or a program that reads the output doesn't get it.
        sign_in=output.on_terminal() and not output.choice.json,
        mqtt_port=mqtt,
        socketio=socketio,
    )
    if address is not None:
        parse_url(address)
    with_registry = registry and plan.http_port is not None
    if reset_operator and not with_registry:
        raise typer.BadParameter("--reset-operator is for a terminal that has a registry")
    if socketio and plan.http_port is None:
        raise typer.BadParameter("--socketio is served at the HTTP port, which --http-port 0 leaves out")
    if node is not None:
        run(_serve_node(plan, secret_file, with_registry=with_registry))
        return
    only_nodes = {
        "--together": together,
        "--secret-file": secret_file,
        "--address": address,
        "--tls-ca": tls_ca,
    }
    if given := [option for option, value in only_nodes.items() if value]:
        raise typer.BadParameter(f"{given[0]} is for a node: give --node NAME, too")
    run(_serve(plan, with_registry=with_registry, reset_operator=reset_operator))


async def _serve_node(plan: NodePlan, secret_file: Path | None, *, with_registry: bool) -> None:
    from landbridge.node import nodes
    from landbridge.node.embedded import Embedded
    from landbridge.node.membership import Membership

    def membership(addresses: Callable[[], Sequence[str]]) -> Membership:
        if not with_registry:
            return Membership()
        return Embedded(plan.data, plan.name, store=plan.store, key_file=secret_file, nodes=addresses)

    await nodes.serve_node(plan, announce, membership, output.watching())


async def _serve(plan: NodePlan, *, with_registry: bool, reset_operator: bool) -> None:
    from landbridge.node import assembly

    membership = None
    if with_registry:
        from landbridge.node.embedded import Embedded

        membership = Embedded(plan.data, plan.name, reset_operator=reset_operator, store=plan.store)
    await assembly.serve(plan, announce, membership, output.watching())


def announce(ready: NodeReady) -> None:
    if output.choice.json:
        output.write_json(ready)
        return
    suffix = "" if ready.current else f" --context {ready.context}"
    commands = [
        f"landbridge subscribe orders{suffix}",
        f"landbridge publish orders '{{\"id\": 1}}'{suffix}",
        f"landbridge status tail{suffix}",
        *([f"landbridge console{suffix}"] if ready.http else []),
    ]
    facts = {
        "bus": ready.url,
        "data": ready.data or "in memory",
        **({"store": ready.store} if ready.store else {}),
        "context": ready.context,
        "http": ready.http or "off",
        **({"registry": ready.registry} if ready.registry else {}),
        **({"node": ready.node} if ready.node else {}),
        **({"mqtt": ready.mqtt} if ready.mqtt else {}),
        **({"smtp": ready.smtp} if ready.smtp else {}),
        **({"events": f"source {ready.events[0]}, clients {ready.events[1]}"} if ready.events else {}),
    }
    if not output.on_terminal():
        output.facts(facts)
        for command in commands:
            print(f"try      {command}", flush=True)
        return
    _panel(ready, facts, commands)


def _panel(ready: NodeReady, facts: dict[str, str], commands: list[str]) -> None:
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
    if ready.sign_in:
        screen.print("The console, by this link once:", style="dim")
        screen.print(f"  {ready.sign_in}", style="cyan", markup=False, soft_wrap=True)
    screen.print("In another window:", style="dim")
    for command in commands:
        screen.print(f"  {command}", style="cyan", markup=False, soft_wrap=True)
    screen.print("Ctrl-C stops it; what is stored stays.", style="dim")
