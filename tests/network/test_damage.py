"""A parcel that can't be read on the shelf of a terminal in transit: everything else goes on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from landbridge.core.log.store import PutDocument
from landbridge.crossing.shelf import GROUP
from landbridge.stores.journal.store import JournalFolder, JournalStore
from landbridge.testing.fleet import Fleet
from tests.network.test_crossing import take
from tests.waiting import LIMIT, eventually


def spoil_batch(folder: Path, offset: int) -> None:
    """Change a bit of a batch on the shelf."""
    store = JournalFolder(folder)
    store.open()
    # The shelf was made after the topic, which has no messages here.
    log = max(log for log, bounds in store.logs().items() if bounds.first <= offset < bounds.end)
    row = store.row_at(log, offset)
    path = store.segments.held[row.segment].path
    store.close()
    with path.open("r+b") as file:
        file.seek(row.position + row.length // 2)
        byte = file.read(1)[0]
        file.seek(row.position + row.length // 2)
        file.write(bytes([byte ^ 1]))


@pytest.mark.parametrize("what", ["batch", "directory", "epoch", "beginnings"])
async def test_a_terminal_in_transit_starts_with_damage(
    tmp_path: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with Fleet() as fleet:
        hub = await fleet.server("hub", store=JournalStore(tmp_path / "bus"))
        left, right = await fleet.client("left"), await fleet.client("right")
        await fleet.topic("orders", billing=[right])
        await fleet.linked()
        async with fleet.attach(left) as here:
            await here.publish("orders", {"id": 0}, until="arrived")
            # It keeps what comes now.
            monkeypatch.setattr(hub.network.carrier, "has_room", lambda terminal: False)
            for number in range(1, 4):
                await here.publish("orders", {"id": number})
                await eventually(lambda: len(hub.network.carrier.transits) == number)  # noqa: B023
            shelf = hub.terminal.broker.table.group("$transit", GROUP)
            first = next(iter(shelf.delivery.cursor.unsettled(shelf.topic.log.end)))[0]
            await fleet.stop(hub)
            if what == "batch":
                spoil_batch(tmp_path / "bus", first)
            else:
                store = JournalFolder(tmp_path / "bus")
                store.open()
                store.commit([PutDocument("network", what, b"\xff garbage")])
                store.close()
            await fleet.start(hub)
            if what == "batch":
                assert len(hub.terminal.broker.damage.found) == 1
                assert "$transit" in hub.terminal.broker.damage.found[0]
            async with fleet.attach(right) as there, asyncio.timeout(LIMIT):
                found = await take(there, "orders", "billing", 4)
                assert sorted(each["id"] for each in found) == [0, 1, 2, 3], "the source has sent it again"
