"""Terminals as real processes, and three ways to run a command: in this process (quick), as a process of its
own, and on a terminal that somebody looks at."""

from __future__ import annotations

import fcntl
import io
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any
from unittest.mock import patch

import pytest

import landbridge
from landbridge.cli.main import main

#: Seconds after which whoever waits has failed. Never the time that anything should take.
LIMIT = 150.0
LANDBRIDGE = [sys.executable, "-m", "landbridge"]
#: Of a process that runs for a while.
LOG_BYTES = 1 << 20


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Each of these starts processes, some a dozen: on a busy machine that takes minutes."""
    for item in items:
        if item.path.parent == Path(__file__).parent and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(4 * LIMIT))


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        assert self.status == 0, self.err
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        assert self.status == 0, self.err
        return [json.loads(line) for line in self.out.splitlines()]

    @property
    def error(self) -> Any:
        """What a failed command with --json says."""
        assert self.status
        assert not self.out
        return json.loads(self.err)["error"]


class Place:
    """A home and a data folder, and commands that use them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.data = folder / "data"
        self.settings = {"LANDBRIDGE_HOME": str(folder / "home"), "LANDBRIDGE_DATA": str(self.data)}

    @property
    def environment(self) -> dict[str, str]:
        clean = {name: value for name, value in os.environ.items() if not name.startswith("LANDBRIDGE_")}
        # Where compiled modules may not be written beside their sources, each process would compile anew.
        clean.pop("PYTHONDONTWRITEBYTECODE", None)
        if not os.access(landbridge.__path__[0], os.W_OK):
            clean["PYTHONPYCACHEPREFIX"] = str(self.folder.parent / "compiled")
        return {**clean, **self.settings, "COLUMNS": "120", "TERM": "xterm-256color"}

    def call(self, *arguments: str) -> Result:
        """Run a command in this process."""
        # Bytes as well as text may be written, as to real ones.
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        with patch.dict(os.environ, self.environment, clear=True), redirect_stdout(out), redirect_stderr(err):
            status = main(list(arguments))
        return Result(status, *(_bytes_of(file).decode() for file in (out, err)))

    def start(self, *arguments: str, **options: Any) -> subprocess.Popen[bytes]:
        options = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            **options,
        }
        return subprocess.Popen([*LANDBRIDGE, *arguments], env=self.environment, **options)

    def run(self, *arguments: str, input: bytes = b"", **options: Any) -> Result:
        """Run a command as a process."""
        process = self.start(*arguments, stdin=subprocess.PIPE, **options)
        return finish(process, input)

    @contextmanager
    def up(self, *arguments: str) -> Iterator[Up]:
        """A terminal without HTTP, unless the arguments name a port: its usual one may be in use."""
        http = () if "--http-port" in arguments else ("--http-port", "0")
        process = self.start("up", "--json", "--port", "0", *http, *arguments)
        try:
            yield Up(process)
        finally:
            if process.poll() is None:
                process.kill()
            process.communicate(timeout=LIMIT)


def finish(process: subprocess.Popen[bytes], input: bytes | None = None) -> Result:
    try:
        out, err = process.communicate(input, timeout=LIMIT)
    except BaseException:
        process.kill()
        process.communicate()  # also closes its pipes: whoever runs next would be blamed for them
        raise
    return Result(process.returncode, (out or b"").decode(), (err or b"").decode())


def _bytes_of(file: io.TextIOWrapper) -> bytes:
    buffer = file.buffer
    assert isinstance(buffer, io.BytesIO)
    return buffer.getvalue()


class Up:
    """A running ``landbridge up``."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        assert process.stdout is not None
        assert process.stderr is not None
        if hasattr(fcntl, "F_SETPIPE_SZ"):
            # Nobody reads its log before it ends, and a process whose pipe is full stands still.
            fcntl.fcntl(process.stderr, fcntl.F_SETPIPE_SZ, LOG_BYTES)
        line = process.stdout.readline()
        if not line:
            raise AssertionError(f"it did not start: {finish(process).err}")
        self.ready: dict[str, Any] = json.loads(line)

    def stop(self, number: int = signal.SIGTERM) -> Result:
        self.process.send_signal(number)
        return finish(self.process)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    """A place with a terminal that runs for all tests of a module; they use topics of their own."""
    place = Place(tmp_path_factory.mktemp("shared"))
    with place.up("--http-port", "0"):
        yield place


@pytest.fixture
def topic(request: pytest.FixtureRequest) -> str:
    """A topic's name that no other test uses."""
    return re.sub(r"[^A-Za-z0-9]+", "-", request.node.name).strip("-")[:100]


# -- a terminal that somebody looks at -----------------------------------------------------------------


def _take_terminal() -> None:
    """In the child: make its stdin the terminal whose Ctrl-C it gets."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


class Screen:
    """A process on a pseudo-terminal of 120 columns."""

    def __init__(self, place: Place, *arguments: str) -> None:
        self._controller, terminal = pty.openpty()
        self.process = place.start(
            *arguments,
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            start_new_session=True,
            preexec_fn=_take_terminal,
        )
        os.close(terminal)
        self._seen = b""

    @property
    def text(self) -> str:
        """Without colours and movements."""
        shown = re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07", b"", self._seen)
        return shown.decode(errors="replace").replace("\r\n", "\n")

    @property
    def raw(self) -> bytes:
        return self._seen

    def _read(self) -> bool:
        """Some more of it. False at the end."""
        if not select.select([self._controller], [], [], LIMIT)[0]:
            raise AssertionError(f"nothing more comes after {self.text!r}")
        try:
            data = os.read(self._controller, 1 << 16)
        except OSError:  # Linux's way to say that nobody has the terminal open any more
            return False
        self._seen += data
        return bool(data)

    def wait_for(self, text: str) -> str:
        while text not in self.text:
            if not self._read():
                raise AssertionError(f"it ended without {text!r}: {self.text!r}")
        return self.text

    def type(self, text: bytes) -> None:
        os.write(self._controller, text)

    def finish(self) -> tuple[int, str]:
        """(status, all of the screen)."""
        while self._read():
            pass
        return self.process.wait(LIMIT), self.text

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._controller)


@pytest.fixture
def screens() -> Iterator[Callable[..., Screen]]:
    opened: list[Screen] = []

    def start(place: Place, *arguments: str) -> Screen:
        opened.append(Screen(place, *arguments))
        return opened[-1]

    yield start
    for screen in opened:
        screen.close()


def read_line(stream: IO[bytes] | None) -> bytes:
    assert stream is not None
    return stream.readline()


def until(holds: Callable[[], Any]) -> Any:
    """Ask again and again until the answer is good."""
    end = time.monotonic() + LIMIT
    while not (answer := holds()):
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.05)  # whoever is asked has to get on with it, too
    return answer
