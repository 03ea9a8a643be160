"""``landbridge doctor``: looks at everything that has to be in order, and says what to do where it isn't."""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median_high as median
from typing import TYPE_CHECKING, Literal, NamedTuple

import typer

from landbridge import __version__
from landbridge.cli import output, units
from landbridge.cli.loop import run
from landbridge.cli.options import ContextName, flag, option, port
from landbridge.client import context as contexts
from landbridge.client.context import Context, parse_urls
from landbridge.core.sizes import little_of
from landbridge.core.text import printable
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError, Forbidden, StoreBusy
from landbridge.node.plan import data_folder

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import NodeRows, TerminalInfo

#: Exit status when a check has failed.
FAILED = 70
PACKAGES = [
    "msgspec", "uvloop", "typer", "rich", "structlog", "cryptography", "PyJWT", "uvicorn",
    "prometheus-client",
]  # fmt: skip
#: The states of nodes, in the order in which they are told.
NODE_STATES = ("live", "draining", "gone")
#: Seconds of an fsync. A slow one bounds how quickly single messages are acked, and nothing else.
SLOW_FSYNC = 0.025
#: Bytes free on the disk: a segment of the journal has up to 64 MiB.
NO_ROOM = 100 << 20
#: Seconds between the clocks of this machine and the terminal's.
CLOCK_OFF, CLOCK_WRONG = 1.0, 30.0
#: The same for the registry's clock, of which HTTP tells whole seconds, and not the latest ones. A terminal's
#: proof is refused when it is CLOCK_WRONG.
REGISTRY_CLOCK_OFF = 5.0
#: Seconds before a token's end.
EXPIRES_SOON = 3 * 86400.0
#: Seconds before the end of a certificate, which lives for thirty days and is renewed after twenty.
CERTIFICATE_ENDS_SOON = 5 * 86400.0
PINGS = 20
#: Seconds for one answer: of the terminal to the connection and to each request, of the registry.
ANSWER_WITHIN = 5.0
#: Seconds for the registry to answer the terminal, which may just have started.
REGISTRY_WITHIN = 3.0


State = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """What was found of one thing. ``hint``: what the user can do about it."""

    check: str
    state: State
    detail: str
    hint: str = ""


def doctor(
    data: Path | None = option(
        "The data folder to look at.",
        metavar="FOLDER",
        default="$LANDBRIDGE_DATA, else that of the context's terminal",
    ),
    port: int = port("The port that 'landbridge up' would use.", least=1, value=7420),
    http_port: int = port("And the one for HTTP.", least=1, value=7480),
    deep: bool = flag("Read the whole store and check every message's checksum.", "--deep"),
    context: ContextName = None,
) -> None:
    """Check versions, configuration, connection, registry, links, clock, ports and store. Status 70 if
    something has failed.

    Examples:
      landbridge doctor
      landbridge doctor --deep --data ./bus
    """
    checks = [*_software(), *_configuration()]
    where, found = _context(context)
    checks += found
    folder = (data or _folder_of(context)).absolute()
    if where is not None:
        checks += run(_terminal(where))
    checks += _registry(context)
    checks += [*_ports(where, port, http_port), *_folder(folder), *_store(folder, deep=deep)]
    ok = all(check.state != "fail" for check in checks)
    output.emit({"ok": ok, "checks": [check._asdict() for check in checks]}, lambda _: _show(checks))
    if not ok:
        raise typer.Exit(FAILED)


def _show(checks: list[Check]) -> None:
    width = max(len(check.check) for check in checks)
    if not output.on_terminal():
        for check in checks:
            print(f"{check.state:<4}  {check.check.ljust(width)}  {printable(check.detail)}")
            if check.hint:
                print(f"      {' ' * width}  hint: {printable(check.hint)}")
        return
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": Text("✓", "green"), "warn": Text("!", "bold yellow"), "fail": Text("✗", "bold red")}
    table = Table.grid(padding=(0, 2))
    for check in checks:
        table.add_row(marks[check.state], Text(check.check, "bold"), Text(printable(check.detail)))
        if check.hint:
            table.add_row(
                "", "", Text(f"→ {printable(check.hint)}", "dim" if check.state == "ok" else "yellow")
            )
    screen = output.console()
    screen.print(table)
    bad = {state: sum(check.state == state for check in checks) for state in ("warn", "fail")}
    if bad["fail"]:
        screen.print(f"\n{bad['fail']} failed, {bad['warn']} to look at", style="bold red")
    elif bad["warn"]:
        screen.print(f"\nworks, {bad['warn']} to look at", style="bold yellow")
    else:
        screen.print("\nall is well", style="bold green")


# -- software and configuration ------------------------------------------------------------------------


def _software() -> Iterator[Check]:
    python = ".".join(map(str, sys.version_info[:3]))
    recent = sys.version_info >= (3, 11)
    yield Check("python", "ok" if recent else "fail", python, "" if recent else "needs 3.11 or newer")
    import sqlite3
    from importlib.metadata import PackageNotFoundError, version

    versions, missing = [f"landbridge {__version__}"], []
    for package in PACKAGES:
        try:
            versions.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            missing.append(package)
    versions.append(f"SQLite {sqlite3.sqlite_version}")
    yield Check("packages", "ok", ", ".join(versions))
    if missing:
        hint = "pip install 'landbridge[terminal]'"
        yield Check("packages", "warn", f"missing: {', '.join(missing)}", hint)


def _configuration() -> Iterator[Check]:
    home = contexts.home()
    if not home.is_dir():
        yield Check("config", "warn", f"{home} is not there yet", "'landbridge up' makes it")
        return
    # Tokens are in the contexts' files: these must be ours alone. The folder around them may be seen.
    paths = [home / "contexts", *(home / "contexts").glob("*.json")]
    open_to_others = [path for path in paths if path.exists() and stat.S_IMODE(path.stat().st_mode) & 0o077]
    if open_to_others:
        seen = ", ".join(str(path) for path in open_to_others[:3])
        yield Check("config", "warn", f"others can read {seen}", f"chmod -R go= {home / 'contexts'}")
    else:
        yield Check("config", "ok", f"{home}, {counted(len(paths) - 1, 'context')}, readable by you alone")


def _context(name: str | None) -> tuple[Context | None, list[Check]]:
    try:
        where = contexts.resolve(context=name)
        parse_urls(where.url)
    except BusError as error:
        return None, [Check("context", "fail", str(error), error.hint)]
    chosen = name or ("from the environment" if os.environ.get("LANDBRIDGE_URL") else contexts.current())
    detail = f"{chosen}, {where.url}"
    left = _token_left(where.token)
    if left is None:
        check = Check("context", "ok", detail)
    elif left > 0:
        state: State = "ok" if left > EXPIRES_SOON else "warn"
        check = Check("context", state, f"{detail}, token valid for {units.span(left)}")
    else:
        hint = "restart the terminal, or get a new token"
        check = Check("context", "fail", f"{detail}: its token has expired", hint)
    return where, [check]


def _folder_of(context: str | None) -> Path:
    """The data folder of the terminal for which 'landbridge up' made the context; else the one that it would
    use."""
    chosen = context or (None if os.environ.get("LANDBRIDGE_URL") else contexts.current())
    if chosen is not None and not os.environ.get("LANDBRIDGE_DATA"):
        try:
            made_for = contexts.load(chosen).data
        except BusError:  # _context tells
            made_for = None
        if made_for and Path(made_for).is_dir():
            return Path(made_for)
    return data_folder()


def _token_left(token: str) -> float | None:
    """Seconds until it expires, as it says itself; None where it says nothing."""
    import base64
    import json

    try:
        claims = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        return float(claims["exp"]) - time.time()
    except (LookupError, TypeError, ValueError):
        return None


# -- the terminal --------------------------------------------------------------------------------------


async def _terminal(where: Context) -> list[Check]:
    from landbridge.client.bus import Bus
    from landbridge.client.wire import dial_of

    now = asyncio.get_running_loop().time
    try:
        async with (
            asyncio.timeout(ANSWER_WITHIN) as limit,
            Bus(dial_of(where), where.token, name="landbridge doctor") as bus,
        ):
            pings = []
            for _ in range(PINGS):
                pings.append(await bus.ping())
                limit.reschedule(now() + ANSWER_WITHIN)  # a terminal that is far away is slow, but it answers
            before = time.time()
            info = await bus.terminal.info()
            after = time.time()
            limit.reschedule(now() + REGISTRY_WITHIN + ANSWER_WITHIN)
            network = await _network(bus)
            outlets = await _outlets(bus)
            nodes = [] if not info.node else [_nodes(await bus.nodes.list())]
    except TimeoutError:
        return [Check("terminal", "fail", f"no answer from {where.url} within {ANSWER_WITHIN:.0f} s")]
    except BusError as error:
        return [Check("terminal", "fail", str(error), error.hint)]
    uptime = units.span((info.time - info.started_at) / 1e6)
    same = info.version == __version__
    hint = "" if same else f"this is version {__version__}; update the older one"
    detail = f"{info.name}, version {info.version}, up for {uptime}"
    if info.incarnation:
        detail += f", store {info.incarnation}"
    return [
        Check("terminal", "ok" if same else "warn", detail, hint),
        Check("latency", "ok", f"median {units.span(median(pings))}, worst {units.span(max(pings))}"),
        _clock(info.time / 1e6, before, after),
        *_condition(info),
        *outlets,
        *nodes,
        *network,
    ]


def _nodes(found: NodeRows) -> Check:
    """Of a terminal with several nodes: whether all of it is at one of them."""
    names = {state: [node.name for node in found.nodes if node.state == state] for state in NODE_STATES}
    detail = ", ".join(f"{state}: {' '.join(each)}" for state, each in names.items() if each)
    if found.free:
        hint = "they are taken within seconds, if a node is there that doesn't drain"
        return Check("nodes", "fail", f"{counted(found.free, 'unit')} at no node; {detail}", hint)
    if found.trouble:
        return Check(
            "nodes", "warn", f"the table of nodes can't be reached: {found.trouble}", "is its server up?"
        )
    if names["gone"]:
        hint = "start it again; a node that is gone for good leaves the list after a day"
        return Check("nodes", "warn", detail, hint)
    if len(names["live"]) < 2:
        return Check("nodes", "warn", detail, "start another one, to go on when this one is lost")
    versions = {node.version for node in found.nodes}
    if len(versions) > 1:
        return Check("nodes", "warn", f"of versions {', '.join(sorted(versions))}", "update the older ones")
    return Check("nodes", "ok", detail)


def _condition(info: TerminalInfo) -> Iterator[Check]:
    """What the terminal says of its disk and of its data."""
    if info.low:
        hint = "delete or trim topics, or give the disk more room: publishing then goes on by itself"
        free = "" if info.free is None else f", {units.size(info.free)} free on its disk"
        yield Check("room", "fail", f"the terminal refuses messages{free}", hint)
    elif info.free is not None:
        yield Check("room", "ok", f"{units.size(info.free)} free on the terminal's disk")
    for paused in info.paused[:20]:
        yield Check("paused", "warn", paused, "'landbridge topic resume', 'group resume', 'service unpause'")
    for finding in info.damage[:20]:
        yield Check("damage", "warn", finding, "see 'Damage' in docs/operations.md")


async def _outlets(bus: Bus) -> list[Check]:
    """Webhooks, mail and SMS outlets that send nothing, of those that the token may see."""
    found = []
    for noun, rows in (
        ("webhook", await bus.webhooks.list()),
        ("mail", await bus.mails.list()),
        ("sms", await bus.sms.list()),
    ):
        for row in rows:
            why = row.trouble or ("it is disabled" if row.state == "disabled" else "")
            if why:
                hint = f"'landbridge {noun} show {row.topic} {row.name}'"
                found.append(Check("outlets", "warn", f"{noun} {row.topic}/{row.name}: {why}", hint))
    return [*found[:20], *([Check("outlets", "warn", f"and {len(found) - 20} more")] if found[20:] else [])]


async def _network(bus: Bus) -> list[Check]:
    """How the terminal gets on with its registry and with the other terminals."""
    now = asyncio.get_running_loop().time
    end = now() + REGISTRY_WITHIN
    try:
        found = await bus.network.show()
        while not (found.registry_up or found.refusal or now() > end):
            await asyncio.sleep(0.2)
            found = await bus.network.show()
    except Forbidden:
        return [Check("links", "warn", "not looked at", "the context's token is not an admin's")]
    except BadRequest as error:
        return [Check("links", "ok", str(error))]  # it stands alone
    if found.refusal:
        hint = "was the terminal revoked, or its key rotated? is its clock right?"
        registry = Check("registry", "fail", f"it refuses this terminal: {found.refusal}", hint)
    elif found.registry_up:
        registry = Check("registry", "ok", "answers the terminal")
    else:
        hint = "links and routes go on; what needs a ticket waits where it is"
        registry = Check("registry", "fail", "doesn't answer the terminal", hint)
    up = f"up: {', '.join(found.links)}" if found.links else "none is up"
    down = "; ".join(found.failures.values())
    checks = [registry, Check("links", "warn" if down else "ok", up, down)]
    if found.certificate_ends_at:
        checks.append(_certificate(found.certificate_ends_at / 1e6 - time.time()))
    return checks


def _certificate(left: float) -> Check:
    """A terminal renews its certificate by itself when a third of its life is left."""
    if left > CERTIFICATE_ENDS_SOON:
        return Check("certificate", "ok", f"good for {units.span(left)}")
    if left > 0:
        hint = "it should have been renewed by now: does the registry answer?"
        return Check("certificate", "warn", f"good for {units.span(left)}", hint)
    return Check("certificate", "fail", f"ended {units.span(-left)} ago", "does the registry answer?")


def _registry(name: str | None) -> Iterator[Check]:
    """The registry that the context knows, as this machine sees it: its HTTP says what time it is there."""
    name = name or contexts.current()
    try:
        where = contexts.load(name) if name else None
    except BusError:
        return  # told already
    if where is None or where.registry is None:
        return
    import ssl
    from email.utils import parsedate_to_datetime

    import httpx

    try:
        trust = ssl.create_default_context(cafile=where.ca)
        before = time.time()
        answer = httpx.get(f"{where.registry}/v1/registry", verify=trust, timeout=ANSWER_WITHIN)
        after = time.time()
        answer.raise_for_status()
    except (httpx.HTTPError, OSError) as error:
        yield Check("registry from here", "fail", f"{where.registry}: {error}", "does it run there?")
        return
    yield Check("registry from here", "ok", where.registry)
    try:
        there = parsedate_to_datetime(answer.headers["date"]).timestamp() + 0.5
    except (KeyError, ValueError):
        return
    yield _clock(there, before, after, "registry clock", "the registry's", about=REGISTRY_CLOCK_OFF)


def _clock(
    there: float,
    before: float,
    after: float,
    check: str = "clock",
    whose: str = "the terminal's",
    about: float = CLOCK_OFF,
) -> Check:
    """``there``: the other clock, read between ``before`` and ``after`` of this one. ``about``: seconds that
    don't matter; half of the time that the answer took may be the measure's own fault and is added."""
    difference, about = there - (before + after) / 2, about + (after - before) / 2
    detail = f"{whose} is {units.span(abs(difference))} {'ahead' if difference > 0 else 'behind'}"
    if abs(difference) < about:
        return Check(check, "ok", detail)
    state: State = "warn" if abs(difference) < CLOCK_WRONG else "fail"
    return Check(check, state, detail, "set the clocks by NTP: delays, expiry and tokens depend on them")


def _ports(where: Context | None, port: int, http_port: int) -> Iterator[Check]:
    addresses = parse_urls(where.url) if where is not None else ()
    local = {address.port for address in addresses if contexts.is_loopback(address.host)}
    yield _port("bus port", port, "--port", "by the context's terminal" if port in local else "")
    yield _port("http port", http_port, "--http-port", "and healthy" if _healthy(http_port) else "")


def _port(check: str, port: int, option: str, known: str) -> Check:
    import socket

    try:
        socket.create_server(("127.0.0.1", port)).close()
    except OSError as error:
        if known:
            return Check(check, "ok", f"{port} is in use, {known}")
        hint = f"'landbridge up {option} …' takes another"
        return Check(check, "warn", f"{port} can't be had: {error.strerror}", hint)
    return Check(check, "ok", f"{port} is free")


def _healthy(port: int) -> bool:
    from http.client import HTTPConnection, HTTPException

    connection = HTTPConnection("127.0.0.1", port, timeout=1.0)
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().read(16).startswith((b"ok\n", b"degraded\n"))
    except (OSError, HTTPException):
        return False
    finally:
        connection.close()


# -- the disk ------------------------------------------------------------------------------------------


def _folder(folder: Path) -> Iterator[Check]:
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        hint = "give --data another folder, or mend its rights"
        yield Check("data", "fail", f"{there} can't be written", hint)
        return
    usage = shutil.disk_usage(there)
    free = usage.free
    detail = f"{folder}{'' if there == folder else ' (not there yet)'}, {units.size(free)} free"
    if free < NO_ROOM:
        yield Check("data", "fail", detail, "make room: a terminal without any refuses publishes")
    else:
        is_little = free < little_of(usage.total)
        yield Check("data", "warn" if is_little else "ok", detail, "make room in time" if is_little else "")
    try:
        seconds = _fsync_time(there)
    except OSError as error:
        yield Check("fsync", "fail", f"{there}: {error.strerror}", "is the disk full or read-only?")
        return
    slow = seconds > SLOW_FSYNC
    hint = "each single publish waits for it; publish in bulk, or use a faster disk" if slow else ""
    yield Check("fsync", "warn" if slow else "ok", f"median {units.span(seconds)}", hint)


def _fsync_time(folder: Path) -> float:
    """Seconds that a small write takes to be on disk."""
    import tempfile

    times = []
    with tempfile.TemporaryFile(dir=folder) as file:
        for _ in range(16):
            file.write(b"\0" * 4096)
            file.flush()
            begin = time.perf_counter()
            os.fsync(file.fileno())
            times.append(time.perf_counter() - begin)
    return median(times)


def _remote_store(folder: Path) -> Iterator[Check]:
    """The server that has the data."""
    from landbridge.node import logs
    from landbridge.node.remote_upkeep import reach

    try:
        with logs.warnings_alone():
            yield Check("store", "ok", run(reach(folder)))
    except BusError as error:
        yield Check("store", "fail", str(error), error.hint)


def _store(folder: Path, *, deep: bool) -> Iterator[Check]:
    from landbridge.node.stores import noted

    path = folder / "bus"
    if noted(folder):
        yield from _remote_store(folder)
        return
    if not path.exists():
        yield Check("store", "ok", "none yet")
        return
    if not os.access(path, os.R_OK):
        yield Check("store", "fail", f"{path} can't be read", "is it another user's?")
        return
    held = units.size(sum(file.stat().st_size for file in path.iterdir()))
    if not deep:
        yield Check("store", "ok", f"{path}, {held}", "--deep checks what is in it")
        return
    from landbridge.node.upkeep import check_stores

    try:
        found = check_stores(folder)
    except StoreBusy as error:
        yield Check("store", "warn", f"not checked: {error}", "stop the terminal to check its store")
        return
    except BusError as error:
        yield Check("store", "fail", str(error), error.hint)
        return
    findings = [f"{each.store}: {finding}" for each in found for finding in each.findings]
    repaired = [f"{each.store}: {text}" for each in found for text in each.repaired]
    if not findings:
        yield Check("store", "ok", f"{path}, {held}, every checksum is right")
    for text in repaired:
        yield Check("store", "warn", text)
    for finding in findings[:20]:
        hint = f"'landbridge store repair --data {folder}' says what is lost and repairs the rest"
        yield Check("store", "fail", finding, hint)
    if len(findings) > 20:
        yield Check("store", "fail", f"and {len(findings) - 20} more")
