"""The documents can't fall behind: every error, limit, operation, command and word is in them."""

from __future__ import annotations

import inspect
import re
import runpy
from http import HTTPStatus
from pathlib import Path

import pytest

from landbridge import errors
from landbridge.broker.limits import Limits
from landbridge.client.nouns import NOUNS, Method
from landbridge.core.status import LEVELS
from landbridge.testing.simulation.trouble import KINDS

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


def text(name: str) -> str:
    return (DOCS / name).read_text()


def leaves() -> list[type[errors.BusError]]:
    return [kind for kind in errors.BY_CODE.values() if not kind.__subclasses__()]


@pytest.mark.parametrize("kind", [*leaves(), errors.BusError], ids=lambda kind: kind.code)
def test_error_is_documented(kind: type[errors.BusError]) -> None:
    names = f"`{kind.code}` | `{kind.__name__}`"
    numbers = f"{kind.exit_status} | {kind.http_status} | {'yes' if kind.retriable else ''}"
    assert f"| {names} | {numbers} | {kind.__doc__} |" in text("errors.md").splitlines()


def test_no_other_error_is_documented() -> None:
    codes = re.findall(r"^\| `(\w+)` \|", text("errors.md"), re.MULTILINE)
    assert sorted(codes) == sorted([*(kind.code for kind in leaves()), errors.BusError.code])


@pytest.mark.parametrize("kind", errors.BY_CODE.values(), ids=lambda kind: kind.code)
def test_http_status_fits_the_branch(kind: type[errors.BusError]) -> None:
    """4xx asks the caller to change the request, 429 and 5xx to try again or to call the operator."""
    status = HTTPStatus(kind.http_status)
    if issubclass(kind, errors.Misuse):
        assert 400 <= status < 500
        assert status != 429
    elif issubclass(kind, errors.Unavailable):
        assert status in (429, 503, 504)
    elif issubclass(kind, errors.StoreFailure):
        assert status in (500, 503, 507)
    elif issubclass(kind, errors.PeerFault):
        assert status in (400, 502)
    elif kind is errors.ServiceFailed:
        assert status == 502  # an answer carries the service's own instead
    else:
        assert status == 500
    if kind.retriable:
        assert status in (429, 503, 504, 507)


def test_exit_statuses_differ() -> None:
    statuses = [kind.exit_status for kind in leaves()]
    assert len(set(statuses)) == len(statuses)


@pytest.mark.parametrize("limit", Limits.__struct_fields__)
def test_limit_is_documented(limit: str) -> None:
    assert f"| `{limit}` |" in text("operations.md")


@pytest.mark.parametrize("level", LEVELS)
def test_status_level_is_documented(level: str) -> None:
    assert f"| `{level}` |" in text("operations.md")


@pytest.mark.parametrize("noun", NOUNS)
def test_typed_methods_are_documented(noun: str) -> None:
    own = vars(NOUNS[noun]).items()
    methods = [name for name, found in own if isinstance(found, Method) or inspect.isfunction(found)]
    assert f"| `bus.{noun}` | {', '.join(f'`{name}`' for name in methods)} |" in text("client.md")


def documents() -> list[Path]:
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *DOCS.rglob("*.md")]


@pytest.mark.parametrize("path", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", path.read_text()):
        if "://" not in target:
            assert (path.parent / target).exists(), target


def test_references_are_up_to_date() -> None:
    scope = runpy.run_path(str(DOCS / "reference.py"), run_name="reference")
    assert text("cli.md") == scope["page"](), "run ./dev docs"
    assert text("operations-reference.md") == scope["operations_page"](), "run ./dev docs"
    assert text("errors.md") == scope["errors_page"](), "run ./dev docs"


@pytest.mark.parametrize("kind", KINDS)
def test_fault_is_documented(kind: str) -> None:
    assert f"| `{kind}` | {KINDS[kind].help} |" in text("simulate.md").splitlines()
