"""The Python blocks of docs/pipeline.md run, in their order and in one namespace; every option is in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import landbridge.sync
from landbridge.pipeline.connector import options

TEXT = (Path(__file__).parents[2] / "docs" / "pipeline.md").read_text()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run(spark: Any, bus: landbridge.sync.Bus, tmp_path: Path) -> None:
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", TEXT, re.S | re.M):
        exec(block.replace("checkpoints/", f"{tmp_path}/"), scope)
    assert scope["spark"] is spark
    large = bus.fetch("sales.large", 0)
    assert large.end == 10
    assert large.batches[0].batch.key(0) == b"eu"
    assert bus.fetch("copies", 0).end == 100


@pytest.mark.parametrize("name", options.OPTIONS)
def test_option_is_documented(name: str) -> None:
    assert re.search(rf"^\| [^|]*`{name}`", TEXT, re.M)
