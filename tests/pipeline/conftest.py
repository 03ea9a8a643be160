"""One Spark session and one terminal for all tests of this folder. Every test has topics of its own."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import landbridge.sync
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from tests.pipeline.site import Site, terminal_at


@pytest.fixture(scope="session")
def terminal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    # Small commits, so that the commits of stages have several pieces.
    path = tmp_path_factory.mktemp("terminal") / "bus"
    with terminal_at(path, limits=Limits(commit=64 << 10)) as running:
        yield running


@pytest.fixture(scope="session")
def token(terminal: Terminal) -> str:
    return terminal.issue_token("spark", ["admin"], 86400)


@pytest.fixture(scope="session")
def bus(terminal: Terminal, token: str) -> Iterator[landbridge.sync.Bus]:
    with landbridge.sync.connect(terminal.url, token=token) as connected:
        yield connected


@pytest.fixture(scope="session")
def spark(terminal: Terminal, token: str) -> Iterator[Any]:
    """With the terminal in its environment, which the JVM and the workers keep from their start."""
    from landbridge.pipeline import session

    patch = pytest.MonkeyPatch()
    patch.setenv("LANDBRIDGE_URL", terminal.url)
    patch.setenv("LANDBRIDGE_TOKEN", token)
    conf = {"spark.driver.memory": "1g", "spark.sql.shuffle.partitions": 1, "spark.log.level": "ERROR"}
    started = session("local[2]", **conf)
    yield started
    started.stop()
    patch.undo()


@pytest.fixture
def site(terminal: Terminal, token: str, bus: landbridge.sync.Bus, tmp_path: Path) -> Site:
    return Site(terminal.url, token, bus, tmp_path, f"t{uuid.uuid4().hex[:12]}")
