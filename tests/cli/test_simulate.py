"""The fault simulator as a command. What it simulates is tested in tests/simulation."""

from __future__ import annotations

import pytest

from landbridge.testing.simulation import seeds
from landbridge.testing.simulation.seeds import Scenario, Story
from landbridge.testing.simulation.trouble import KINDS
from tests.cli.conftest import Place

SMALL = ["--terminals", "3", "--topics", "1", "--messages", "5", "--minutes", "0.2"]


def test_an_account_of_what_happened_and_the_verdict(place: Place) -> None:
    found = place.call("simulate", "--seed", "4", *SMALL, "--faults", "3", "--fault", "crash")
    assert found.status == 0, found.err
    assert "seed 4: 3 terminals" in found.out
    assert " s  crash " in found.out
    assert "starts again" in found.out
    for promise in ("lost", "doubled", "order", "custody"):
        assert f"{promise:<10}none" in found.out
    again = "landbridge simulate --seed 4 --minutes 0.2 --terminals 3 --topics 1 --messages 5 --faults 3"
    assert found.out.endswith(f"every promise was kept; again: {again} --fault crash\n")


def test_a_seed_is_the_same_for_programs_each_time(place: Place) -> None:
    one, other = (place.call("simulate", *SMALL, "--faults", "2", "--json") for _ in range(2))
    assert one.json == other.json
    assert one.json["published"] == one.json["stored"] > 0
    assert set(one.json["broken"]) == {"lost", "doubled", "order", "custody", "loops", "crashes"}


@pytest.mark.parametrize("shape", ["star", "line", "ring", "mesh"])
def test_several_seeds_of_a_shape(place: Place, shape: str) -> None:
    found = place.call("simulate", "--seeds", "2", *SMALL, "--shape", shape, "--faults", "2")
    assert found.status == 0, found.out
    assert found.out.startswith("2 seeds, 4 faults, ")
    assert found.out.endswith(": every promise was kept\n")


def test_a_broken_promise_fails_and_says_how_to_repeat_it(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    honest = seeds.simulate

    def broken(seed: int, scenario: Scenario) -> Story:
        story = honest(seed, scenario)
        if seed == 6:
            story.findings.append("delivered: p0:1 not to billing")
        return story

    monkeypatch.setattr(seeds, "simulate", broken)
    found = place.call("simulate", "--seed", "5", "--seeds", "3", *SMALL, "--faults", "0")
    assert found.status == 70
    assert "lost      1     an answered message" in found.out
    assert "\n  delivered: p0:1 not to billing" in found.out
    assert "a promise was broken; again: landbridge simulate --seed 6 " in found.out
    assert "seed 5:" not in found.out
    assert found.out.endswith("1 seed broke a promise\n")


def test_an_unknown_fault_is_refused_with_the_kinds_there_are(place: Place) -> None:
    error = place.call("simulate", "--fault", "meteor", "--json").error
    assert error["code"] == "bad_request"
    assert all(kind in error["hint"] for kind in KINDS)
    nothing = place.call("simulate", "--fault", "dark", "--without", "dark", "--json").error
    assert "no kind of fault is left" in nothing["message"]
