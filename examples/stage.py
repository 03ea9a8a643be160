"""What the demos share: a place to show what happens, and processes of ``landbridge`` to start and kill."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import socket
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop
from rich.console import Console
from rich.table import Table

from landbridge.errors import BusError


class DemoStage:
    """Where a demo shows what happens. It collects what was measured, and which promises were broken."""

    def __init__(self, console: Console) -> None:
        self.console = console
        self.say = console.print
        #: What ``--json`` prints.
        self.facts: dict[str, Any] = {}
        #: (what was measured, the result), for the table at the end.
        self.results: list[tuple[str, str]] = []
        #: Promises that did not hold.
        self.broken: list[str] = []

    def check(self, holds: bool, promise: str) -> None:
        if not holds:
            self.broken.append(promise)
            self.say(f"  [red]broken:[/] {promise}")

    def note(self, fact: str, value: Any, text: str = "", form: str = "{:,}") -> None:
        """Keep a fact; with a text, also for the table at the end."""
        self.facts[fact] = value
        if text:
            self.results.append((text, form.format(value)))

    def show_results(self) -> None:
        table = Table("what", "result", title="\nThe result", title_justify="left")
        for row in self.results:
            table.add_row(*row)
        self.console.print(table)


class LandbridgeProcess:
    """A process of the command ``landbridge``, which prints one line of JSON when it is ready."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self._home = home
        self._arguments = arguments
        self._process: asyncio.subprocess.Process | None = None
        #: What it has printed.
        self.ready: dict[str, Any] = {}

    async def start(self) -> None:
        command = (sys.executable, "-m", "landbridge", *self._arguments, "--json", "--log-level", "error")
        environment = {**os.environ, "LANDBRIDGE_HOME": str(self._home)}
        pipe = asyncio.subprocess.PIPE
        self._process = await asyncio.create_subprocess_exec(
            *command, env=environment, stdout=pipe, stderr=pipe
        )
        out, err = self._process.stdout, self._process.stderr
        assert out is not None
        assert err is not None
        line = await out.readline()
        if not line:
            message = (await err.read()).decode()
            raise RuntimeError(f"'landbridge {' '.join(self._arguments)}' didn't start: {message}")
        # Its log is read and dropped, so that it never waits for us.
        self._reading = asyncio.ensure_future(_drop(err))
        self.ready = json.loads(line)

    async def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(number)
            await self._process.wait()

    def context(self, name: str) -> dict[str, Any]:
        """The context of this name that ``landbridge`` has made: a URL, a token and more."""
        context: dict[str, Any] = json.loads((self._home / "contexts" / f"{name}.json").read_bytes())
        return context


async def _drop(stream: asyncio.StreamReader) -> None:
    while await stream.read(1 << 16):
        pass


def start_up(folder: Path) -> LandbridgeProcess:
    """``landbridge up`` with its data in this folder, on a port that is the same when it is started again."""
    data, port = str(folder / "data"), str(free_port())
    return LandbridgeProcess(folder / "home", "up", "--data", data, "--port", port, "--http-port", "0")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


def perform(act: Callable[[DemoStage, Path], Awaitable[None]], *, as_json: bool = False) -> int:
    """Run a demo in a folder that is thrown away afterwards. Returns the exit status: 1 if a promise was
    broken."""
    stage = DemoStage(Console(stderr=as_json, highlight=False))

    async def main() -> None:
        with tempfile.TemporaryDirectory(prefix="landbridge-demo-") as folder:
            # SIGTERM, too, ends the processes that the demo has started.
            task = asyncio.ensure_future(act(stage, Path(folder)))
            for number in (signal.SIGTERM, signal.SIGINT):
                asyncio.get_running_loop().add_signal_handler(number, task.cancel)
            await task

    begin = time.perf_counter()
    try:
        uvloop.run(main())
    except BusError as error:
        stage.broken.append(f"{type(error).__name__}: {error}")
        stage.say(f"[red]error:[/] {error}")
    except asyncio.CancelledError:
        return 130
    if as_json:
        print(json.dumps({**stage.facts, "broken": stage.broken}))
    elif not stage.broken:
        stage.show_results()
        took = time.perf_counter() - begin
        stage.say(f"All promises kept, in {took:.0f} s. Next: [bold]landbridge up[/]")
        stage.say("Its console is at http://127.0.0.1:7480; [bold]landbridge console[/] signs you in.")
    return 1 if stage.broken else 0


def arguments(description: str | None) -> argparse.Namespace:
    """The command line of a demo."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--messages", type=int, default=100_000, help="how many orders to send")
    parser.add_argument("--json", action="store_true", help="print the facts as JSON")
    return parser.parse_args()
