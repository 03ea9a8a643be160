"""Who expects a sealed backup must not get one that anybody can have made."""

from __future__ import annotations

from pathlib import Path

import pytest

from landbridge.broker.server import Terminal
from landbridge.errors import BadBackup
from landbridge.node import assembly, backup
from landbridge.stores.journal.store import JournalStore


async def test_a_plain_backup_in_place_of_a_sealed_one_is_refused(tmp_path: Path):
    data = tmp_path / "data"
    data.mkdir()
    terminal = Terminal(JournalStore(data / assembly.DATABASE), name="paris")
    await terminal.open()
    await terminal.close()
    backup.create(data, tmp_path / "forged", None, lambda done, whole: None)
    with pytest.raises(BadBackup):
        backup.verify(tmp_path / "forged", "the operator's passphrase", lambda done, whole: None)
