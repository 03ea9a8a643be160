"""The Python blocks of docs/pipeline-steps.md run, in order and in one namespace; every option is in it."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest

import landbridge.sync
from landbridge.pipeline import step

TEXT = (Path(__file__).parents[2] / "docs" / "pipeline-steps.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run(spark: Any, bus: landbridge.sync.Bus, tmp_path: Path) -> None:
    bus.publish("returns", {"id": 7, "region": "eu"})
    scope: dict[str, Any] = {"landbridge": landbridge}
    for block in re.findall(r"^```py\n(.*?)^```", TEXT, re.S | re.M):
        exec(block.replace("checkpoints/", f"{tmp_path}/"), scope)
    assert scope["spark"] is spark
    [batch] = bus.fetch("desk.eu", 0).batches
    assert list(batch.batch.payloads()) == [b'{"id":7,"kind":"returns"}']


@pytest.mark.parametrize("name", [name for name in inspect.signature(step).parameters if name != "options"])
def test_option_is_documented(name: str) -> None:
    assert f"| `{name}` |" in TEXT
