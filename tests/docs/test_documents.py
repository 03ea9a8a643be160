"""The documents can't fall behind: every error, limit, operation, command and word is in them."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

from landbridge import errors
from landbridge.broker.limits import Limits
from landbridge.broker.operations import Operations
from landbridge.core.status import LEVELS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text()


def leaves() -> list[type[errors.BusError]]:
    return [kind for kind in errors.BY_CODE.values() if not kind.__subclasses__()]


@pytest.mark.parametrize("kind", leaves(), ids=lambda kind: kind.code)
def test_error_is_documented(kind: type[errors.BusError]) -> None:
    row = f"| `{kind.code}` | `{kind.__name__}` | {kind.exit_status} | {'yes' if kind.retriable else ''} |"
    assert row in text("errors.md")
    assert kind.code in (errors.__doc__ or "")


def test_exit_statuses_differ() -> None:
    statuses = [kind.exit_status for kind in leaves()]
    assert len(set(statuses)) == len(statuses)


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_limit_is_documented(limit: str) -> None:
    assert f"| `{limit}` |" in text("operations.md")


@pytest.mark.parametrize("level", LEVELS)
def test_status_level_is_documented(level: str) -> None:
    assert f"| `{level}` |" in text("operations.md")


def operations() -> list[str]:
    return [n.replace("_", ".", 1) for n in vars(Operations) if not n.startswith("_") and n != "call"]


@pytest.mark.parametrize("operation", operations())
def test_operation_is_documented(operation: str) -> None:
    assert f"`{operation}`" in text("client.md")


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_command_reference_is_up_to_date() -> None:
    scope = runpy.run_path(str(DOCS / "reference.py"), run_name="reference")
    assert text("cli.md") == scope["page"](), "run ./dev docs"
