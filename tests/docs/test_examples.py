"""Every Python block and every console line of the documents runs, against a real terminal."""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import re
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from threading import Thread
from types import ModuleType

import pytest

from landbridge.client.context import Context, save, use
from landbridge.testing import run_terminal

ROOT = Path(__file__).parents[2]
#: Guides whose examples have tests of their own: test_any_language.py, test_mqtt_guide.py and
#: test_socketio_guide.py.
ELSEWHERE = ("any-language.md", "mqtt.md", "socketio.md")
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(path for path in (ROOT / "docs").glob("*.md") if path.name not in ELSEWHERE),
]


def blocks() -> Iterator[tuple[str, str, str]]:
    """(place, language, text), in the order in which a reader meets them."""
    for path in DOCUMENTS:
        text = path.read_text()
        for match in re.finditer(r"^```(python|console)\n(.*?)^```", text, re.S | re.M):
            line = text[: match.start()].count("\n") + 2
            yield f"{path.name}:{line}", match[1], match[2]


@pytest.fixture
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A terminal in a thread of its own, as the current context."""
    loop = asyncio.new_event_loop()
    thread = Thread(target=loop.run_forever)
    thread.start()
    running = run_terminal(port=0)
    terminal = asyncio.run_coroutine_threadsafe(running.__aenter__(), loop).result()
    before = dict(os.environ)
    os.environ["LANDBRIDGE_HOME"] = str(tmp_path_factory.mktemp("home"))
    try:
        save("local", Context(terminal.url, terminal.issue_token("docs", ["admin"], 3600.0)))
        use("local")
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
        asyncio.run_coroutine_threadsafe(running.__aexit__(None, None, None), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


@pytest.mark.timeout(600)
def test_examples_run(terminal: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one test, because the later ones use what the earlier ones have made."""
    failures = []
    for place, language, text in blocks():
        try:
            if language == "python":
                run_python(text, monkeypatch)
            else:
                run_console(text)
        except Exception:
            failures.append(f"{place}\n{traceback.format_exc()}")
    assert not failures, "\n\n".join(failures)


def run_python(code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = compile(code, "example", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    module = ModuleType("example")  # dataclasses look their module up
    monkeypatch.setitem(sys.modules, "example", module)
    result = eval(compiled, module.__dict__)
    if inspect.iscoroutine(result):
        asyncio.run(asyncio.wait_for(result, 60))


def run_console(lines: str) -> None:
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path}
    for line in lines.splitlines():
        if line.startswith("$ "):
            done = subprocess.run(
                line[2:], shell=True, check=False, capture_output=True, text=True, timeout=60, env=environment
            )
            assert done.returncode == 0, f"{line}\n{done.stdout}\n{done.stderr}"
