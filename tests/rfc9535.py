"""The examples and tables of RFC 9535, as documents and the paths that are asked of them, for the doors of
the rules: HTTP and Spark. The answers are the library's."""

from __future__ import annotations

import random
from typing import Any

import jsonpath_rfc9535

from tests.core import test_rules_jsonpath as tables


def _rows(test: Any) -> list[tuple[str, Any]]:
    """The table that a test is parametrised with."""
    rows: list[tuple[str, Any]] = test.pytestmark[0].args[1]
    return rows


#: Documents, and the paths that the RFC asks of each.
ASKED: list[tuple[Any, list[str]]] = [
    (tables.STORE, [path for path, _ in _rows(tables.test_the_book_store_of_the_rfc)]),
    *((document, [*rows]) for document, rows in tables.SELECTED),
    (tables.FILTERED, [path for path, _ in _rows(tables.test_the_table_of_filters_of_the_rfc)]),
    (
        tables.COMPARED,
        [f"$[?{comparison}]" for comparison, _ in _rows(tables.test_the_table_of_comparisons_of_the_rfc)],
    ),
]
PATHS = sorted({path for _, paths in ASKED for path in paths})


def selects(path: str, document: Any) -> bool:
    """The library's own answer."""
    return bool(jsonpath_rfc9535.find(path, document))


def documents(count: int, seed: int = 9535) -> list[Any]:
    """Those of the RFC, and others with the same names and values in other places."""
    chance = random.Random(seed)
    names = ["a", "b", "c", "o", "j", "k", "x", "e", "isbn", "price", "book", "store", "author"]
    values = [None, True, False, 0, 1, 2.5, 9, "j", "kilo", "y", "", "fiction"]

    def made(depth: int) -> Any:
        kind = chance.random() if depth else 1.0
        if kind < 0.35:
            return [made(depth - 1) for _ in range(chance.randint(0, 4))]
        if kind < 0.8:
            return {name: made(depth - 1) for name in chance.sample(names, chance.randint(0, 5))}
        return chance.choice(values)

    return [document for document, _ in ASKED] + [made(4) for _ in range(count)]
