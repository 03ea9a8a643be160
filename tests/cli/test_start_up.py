"""Short commands stay short: what takes long to import is imported by whoever needs it."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from landbridge.cli.main import COMMANDS

HEAVY = [
    "landbridge.broker",
    "landbridge.crossing",
    "landbridge.stores",
    "uvicorn",
    "structlog",
    "cryptography",
    "jwt",
    "rich",
    "sqlite3",
    "httpx",
]


@pytest.mark.parametrize("names", [["publish"], list(COMMANDS)], ids=["publish", "all"])
def test_commands_import_nothing_heavy(names: list[str]) -> None:
    code = (
        "import json, sys; from landbridge.cli.main import build, get_command; "
        f"get_command(build({names!r})); import landbridge.cli.loop; print(json.dumps(sorted(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert not set(HEAVY) & set(json.loads(done.stdout))


def test_the_application_can_be_had_whole() -> None:
    from landbridge.cli import main

    assert {command.name for command in main.app.registered_commands} < set(COMMANDS)
    with pytest.raises(AttributeError):
        main.nothing  # noqa: B018
