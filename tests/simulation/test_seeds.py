"""Random topologies, workloads and trouble; see chronicle.py for the rules that must hold.

One seed by itself, with what happened in it:

    landbridge simulate --seed 17

A seed that fails becomes the smallest scene that shows it, in test_found.py.
"""

from __future__ import annotations

import pytest

from landbridge.testing.simulation.seeds import Scenario, simulate

#: Seeds of large worlds and of small ones in `./dev test`, and those that `--all` adds.
LARGE, SMALL, LARGE_SLOW, SMALL_SLOW = 20, 90, 480, 700
#: Seeds per test, so that one that fails is soon told and none meets the time limit of a test.
EACH, EACH_SMALL, EACH_SLOW = 5, 15, 20
SMALL_WORLD = Scenario(terminals=5, topics=1, messages=15, faults=6, within=15.0)
#: Programs whose bytes come late so often that a ledger that forgets at a goodbye is found.
LATE_WORLD = Scenario(terminals=3, topics=1, messages=60, faults=15, kinds={"late": 1})
LATE, LATE_SLOW = 10, 50
HUGE_WORLD = Scenario(terminals=200, faults=40, within=60.0, topics=10, messages=20)


def check(seed: int, scenario: Scenario | None = None) -> None:
    story = simulate(seed, scenario)
    if story.findings:
        told = "\n  ".join(finding[:500] for finding in story.findings[:20])
        pytest.fail(
            f"seed {seed} of {scenario}, {len(story.findings)} findings after "
            f"{story.lasted:.0f} s and {story.faults}:\n  {told}",
            pytrace=False,
        )


@pytest.mark.parametrize("first", range(0, LARGE, EACH))
def test_nothing_is_lost_doubled_or_looped_whatever_breaks(first):
    for seed in range(first, first + EACH):
        check(seed)


@pytest.mark.parametrize("first", range(0, SMALL, EACH_SMALL))
def test_nothing_is_lost_doubled_or_looped_in_small_worlds(first):
    for seed in range(first, first + EACH_SMALL):
        check(seed, SMALL_WORLD)


@pytest.mark.parametrize(
    "seed", [*range(LATE), *(pytest.param(n, marks=pytest.mark.slow) for n in range(LATE, LATE + LATE_SLOW))]
)
def test_late_bytes_are_not_stored_again(seed):
    check(seed, LATE_WORLD)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(LARGE, LARGE + LARGE_SLOW, EACH_SLOW))
def test_five_hundred_seeds(first):
    for seed in range(first, first + EACH_SLOW):
        check(seed)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(SMALL, SMALL + SMALL_SLOW, EACH_SLOW))
def test_hundreds_of_seeds_of_small_worlds(first):
    for seed in range(first, first + EACH_SLOW):
        check(seed, SMALL_WORLD)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_terminals(seed):
    check(seed, HUGE_WORLD)


def test_a_seed_goes_the_same_way_each_time():
    one, other = simulate(7), simulate(7)
    assert one == other
    assert one.faults
    assert simulate(8).digest != one.digest
