"""Rules that no linter knows: a class name is defined once, public names say what they are for."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The synchronous façade repeats the names of the client on purpose.
FACADE = ROOT / "src/landbridge/client/sync.py"
#: What `landbridge pipeline init` writes is a project of its own.
TEMPLATES = "templates"


def sources() -> Iterator[tuple[Path, str]]:
    for folder in ("src", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if TEMPLATES not in path.parts:
                yield path, path.read_text()


def test_a_class_name_is_defined_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, text in sources():
        if path != FACADE:
            for name in re.findall(r"^class (\w+)[(:\[]", text, re.MULTILINE):
                found[name].append(str(path.relative_to(ROOT)))
    assert len(found) > 500, "classes are found"
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_second_is_defined_once() -> None:
    places = [
        str(path.relative_to(ROOT))
        for path, text in sources()
        if re.search(r"^SECOND\b.*=", text, re.MULTILINE)
    ]
    assert places == ["src/landbridge/core/time.py"]


@pytest.mark.parametrize("package", ["client", "registry"])
def test_public_names_have_docstrings(package: str) -> None:
    missing = []
    for path in sorted((ROOT / "src/landbridge" / package).glob("*.py")):
        name, tree = path.name, ast.parse(path.read_text())
        if ast.get_docstring(tree) is None:
            missing.append(name)
        for node in tree.body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                missing += [f"{name}: {each}" for each in _undocumented(node)]
    assert missing == []


def _undocumented(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    if node.name.startswith("_"):
        return
    is_overload = any(getattr(mark, "id", "") == "overload" for mark in node.decorator_list)
    if ast.get_docstring(node) is None and not is_overload:
        yield node.name
    if isinstance(node, ast.ClassDef) and not any(getattr(b, "id", "") == "Protocol" for b in node.bases):
        for child in node.body:
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                yield from (f"{node.name}.{each}" for each in _undocumented(child))
