"""Sentences about numbers and names."""

from __future__ import annotations

import pytest

from landbridge.core.wording import MOST, counted, did_you_mean, nearest

KNOWN = ["paris", "tokyo", "osaka"]


@pytest.mark.parametrize(
    ("name", "meant"), [("tokio", "tokyo"), ("prais", "paris"), ("osak", "osaka"), ("rome", None), ("", None)]
)
def test_a_mistyped_name_is_recognised(name: str, meant: str | None) -> None:
    assert nearest(name, KNOWN) == meant


def test_a_name_is_not_meant_to_be_itself() -> None:
    assert nearest("tokyo", KNOWN) is None


def test_of_very_many_names_only_some_are_looked_at() -> None:
    names = [f"x{number}" for number in range(MOST)]
    assert nearest("tokio", [*names[1:], "tokyo"]) == "tokyo"
    assert nearest("tokio", [*names, "tokyo"]) is None


def test_hints() -> None:
    assert did_you_mean("tokio", KNOWN) == "did you mean tokyo?"
    assert did_you_mean("tokio", KNOWN, "see the list") == "did you mean tokyo? see the list"
    assert did_you_mean("rome", KNOWN, "see the list") == "see the list"
    assert did_you_mean("rome", KNOWN) == ""


def test_numbers() -> None:
    assert [counted(number, "message") for number in (0, 1, 2000)] == [
        "0 messages",
        "1 message",
        "2,000 messages",
    ]
