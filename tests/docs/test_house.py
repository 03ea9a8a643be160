"""Rules that no linter knows: a class name is defined once, public names say what they are for."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
#: The synchronous façade repeats the names of the client on purpose.
FACADE = ROOT / "src/landbridge/client/sync.py"
#: What `landbridge pipeline init` writes is a project of its own.
TEMPLATES = "templates"


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for folder in ("src", "examples"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            if TEMPLATES not in path.parts:
                yield path, ast.parse(path.read_text())


def test_a_class_name_is_defined_once() -> None:
    found: dict[str, list[str]] = defaultdict(list)
    for path, tree in sources():
        if path != FACADE:
            for node in ast.walk(tree):
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(path.relative_to(ROOT)))
    assert {name: places for name, places in found.items() if len(places) > 1} == {}


def test_a_second_is_defined_once() -> None:
    places = [
        str(path.relative_to(ROOT))
        for path, tree in sources()
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(to, "id", "") == "SECOND" for to in node.targets)
    ]
    assert places == ["src/landbridge/core/time.py"]


@pytest.mark.parametrize("package", ["client", "registry"])
def test_public_names_have_docstrings(package: str) -> None:
    missing = []
    for path, tree in sources():
        if path.parent != ROOT / "src/landbridge" / package:
            continue
        name = path.name
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
