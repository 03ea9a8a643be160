"""``landbridge up`` on a disk that is full, with its registry: the way out that the documents tell."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

import landbridge
from landbridge.errors import StoreFull
from tests.cli.conftest import Place, until
from tests.ports import free_port
from tests.small_disk import mounted


@pytest.fixture
def small(place: Place, tmp_path: Path) -> Iterator[Place]:
    with mounted(tmp_path / "disk", 24) as folder:
        place.data = folder / "data"
        place.settings["LANDBRIDGE_DATA"] = str(place.data)
        yield place


def take_the_rest(folder: Path) -> None:
    """Another program uses every byte that is left."""
    with (folder / "ballast").open("ab", buffering=0) as file, pytest.raises(OSError, match="No space"):
        while True:
            file.write(bytes(4096))


def is_full(place: Place) -> bool:
    """Publish some messages. Are they refused for want of room?"""

    async def publish() -> bool:
        known = json.loads((place.folder / "home" / "contexts" / "local.json").read_text())
        async with landbridge.connect(known["url"], token=known["token"], patience=0.0) as bus:
            try:
                for _ in range(20):
                    await bus.publish("orders", b"x" * 100_000)
            except StoreFull:
                return True
            return False

    return asyncio.run(publish())


def room_of(place: Place) -> dict[str, str]:
    checks = json.loads(place.call("doctor", "--json").out)["checks"]
    found: dict[str, str] = next(check for check in checks if check["check"] == "room")
    return found


def test_up_on_a_full_disk(small: Place) -> None:
    port = str(free_port())
    with small.up("--http-port", port) as running:
        small.call("group", "create", "orders", "shipping")
        until(lambda: is_full(small))
        take_the_rest(small.data.parent)
        until(lambda: is_full(small))
        assert httpx.get(f"{running.ready['http']}/readyz").status_code == 503
        assert httpx.get(f"{running.ready['http']}/healthz").status_code == 200
        assert room_of(small)["state"] == "fail"
        taken = small.call("subscribe", "orders", "--group", "shipping", "--count", "5", "--json")
        assert len(taken.lines) == 5
        running.stop()
    # On another port: the registry has to be told, and has no room for its audit either.
    with small.up("--http-port", str(free_port())) as running:
        until(lambda: httpx.get(f"{running.ready['http']}/readyz").status_code == 503)
        until(lambda: is_full(small))
        deleted = small.call("topic", "delete", "orders", "--force", "--json")
        assert deleted.status == 0, deleted.err
        until(lambda: httpx.get(f"{running.ready['http']}/readyz").status_code == 200)
        assert small.call("publish", "orders", "again").status == 0
        assert room_of(small)["state"] != "fail"
