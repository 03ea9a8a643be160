"""What ``partial`` means, as plainly as it can be said: the oracle of the rules' tests."""

from __future__ import annotations

import fnmatch
import ipaddress
import itertools
from typing import Any

COMPARISONS = {
    "=": lambda a, b: a == b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}


def same(a: Any, b: Any) -> bool:
    """Equal as in JSON: 1 is 1.0 and not true."""
    return a == b and isinstance(a, bool) == isinstance(b, bool)


def accepts(alternative: Any, value: Any) -> bool:
    """Does one alternative accept one value that is there?"""
    if not isinstance(alternative, dict):
        return same(alternative, value)
    [(name, operand)] = alternative.items()
    if name == "exists":
        return bool(operand)
    if name == "numeric":
        pairs = zip(operand[::2], operand[1::2], strict=True)
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and all(COMPARISONS[sign](value, number) for sign, number in pairs)
    if name == "anything-but":
        if isinstance(operand, dict):
            [(inner, given)] = operand.items()
            return not any(accepts({inner: each}, value) for each in _list(given))
        return not any(same(each, value) for each in _list(operand))
    if not isinstance(value, str):
        return False
    if name in ("prefix", "suffix"):
        if isinstance(operand, dict):
            operand, value = operand["equals-ignore-case"].casefold(), value.casefold()
        return value.startswith(operand) if name == "prefix" else value.endswith(operand)
    if name == "equals-ignore-case":
        return value.casefold() == operand.casefold()
    if name == "wildcard":
        return fnmatch.fnmatchcase(value, operand.replace("[", "[[]").replace("?", "[?]"))
    assert name == "cidr"
    try:
        return ipaddress.ip_address(value) in ipaddress.ip_network(operand)
    except ValueError:
        return False


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def flat(value: Any) -> list[Any]:
    """A value as the list of what it stands for: arrays are their elements."""
    return list(itertools.chain.from_iterable(map(flat, value))) if isinstance(value, list) else [value]


def matches(pattern: dict[str, Any], value: Any) -> bool:
    """Does some element of the value have all fields of the pattern?"""
    return any(holds(pattern, each if isinstance(each, dict) else {}) for each in flat(value) or [{}])


def holds(pattern: dict[str, Any], element: dict[str, Any]) -> bool:
    for name, wanted in pattern.items():
        if name == "$or":
            if not any(holds(branch, element) for branch in wanted):
                return False
        elif isinstance(wanted, dict):
            if not matches(wanted, element.get(name)):
                return False
        else:
            found = (
                [each for each in flat(element[name]) if not isinstance(each, dict)]
                if name in element
                else []
            )
            is_absent = not found and {"exists": False} in wanted
            if not is_absent and not any(
                accepts(alternative, each) for alternative in wanted for each in found
            ):
                return False
    return True
