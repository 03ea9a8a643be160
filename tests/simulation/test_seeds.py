"""Random topologies, workloads and trouble; see chronicle.py for the rules that must hold.

One seed by itself, with what happened in it:

    SEED=17 pytest -s tests/simulation/test_seeds.py -k named_seed            TERMINALS=12 unless you say so

A seed that fails becomes the smallest scene that shows it, in test_found.py.
"""

from __future__ import annotations

import os

import pytest

from landbridge.testing.simulation.seeds import Story, simulate

#: Seeds of `./dev test`, and those that `--all` adds.
ORDINARY, SLOW = 40, 1060
#: Seeds per test, so that one that fails is soon told and none meets the time limit of a test.
EACH, EACH_SLOW = 5, 20
#: Terminals of the large runs.
MANY = 200


def check(outcome: Story, terminals: int = 12) -> None:
    if outcome.findings:
        told = "\n  ".join(finding[:500] for finding in outcome.findings[:20])
        pytest.fail(
            f"seed {outcome.seed} with {terminals} terminals, {len(outcome.findings)} findings after "
            f"{outcome.lasted:.0f} s and {outcome.faults}:\n  {told}",
            pytrace=False,
        )


@pytest.mark.parametrize("first", range(0, ORDINARY, EACH))
def test_nothing_is_lost_doubled_or_looped_whatever_breaks(first):
    for seed in range(first, first + EACH):
        check(simulate(seed))


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(ORDINARY, ORDINARY + SLOW, EACH_SLOW))
def test_a_thousand_seeds(first):
    for seed in range(first, first + EACH_SLOW):
        check(simulate(seed))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(2))
def test_two_hundred_terminals(seed):
    check(simulate(seed, MANY, faults=40, within=60.0, topics=10, messages=20), MANY)


@pytest.mark.skipif("SEED" not in os.environ, reason="SEED=… names one")
def test_named_seed():
    terminals = int(os.environ.get("TERMINALS", "12"))
    outcome = simulate(int(os.environ["SEED"]), terminals)
    print(f"\n{outcome.lasted:.0f} virtual seconds\nfaults {outcome.faults}\ncounts {outcome.counts}")
    check(outcome, terminals)


def test_a_seed_goes_the_same_way_each_time():
    one, other = simulate(7), simulate(7)
    assert one.digest == other.digest
    assert one.faults
    assert one.counts == other.counts
    assert simulate(8).digest != one.digest
