"""``landbridge simulate``: the fault simulator. Real terminals on virtual time, and what can go wrong."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import typer

from landbridge.cli import output
from landbridge.cli.options import OptionGroup, option
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.testing.simulation.seeds import Scenario, Story

#: Exit status when a promise was broken.
BROKEN = 70
#: For each virtual minute, where the command line does not say it: faults, and messages of each producer.
FAULTS, MESSAGES = 20, 80
#: What a finding of each kind would be.
MEANINGS = {
    "lost": "an answered message that a group never got",
    "doubled": "a message that is in a log twice",
    "order": "a producer's messages in another order",
    "custody": "a message that was on no disk for a moment",
    "loops": "a parcel that came back to where it had been",
    "crashes": "an error in the program",
}
#: Findings of a promise that are printed.
SHOWN = 10


class WorldOptions(OptionGroup):
    minutes: float = option(
        "Virtual minutes in which faults happen.", min=0.1, max=600, value=0.5, metavar="MINUTES"
    )
    terminals: int = option("Terminals.", min=2, max=500, value=12)
    shape: Literal["tree", "star", "line", "ring", "mesh"] = option(
        "How the terminals are linked.", value="tree"
    )
    topics: int = option("Topics, each with one or two groups.", min=1, max=50, value=2)
    consumers: int = option("Consumers of a group at one terminal, at most.", min=1, max=20, value=2)
    messages: int | None = option(
        "Messages of each producer.", min=1, max=100_000, default=f"{MESSAGES} a minute"
    )
    skew: float = option(
        "Seconds by which clocks are wrong from the beginning, at most.",
        min=0,
        max=25,
        value=10.0,
        metavar="SECONDS",
    )
    faults: int | None = option("Number of faults.", min=0, max=10_000, default=f"{FAULTS} a minute")
    fault: list[str] | None = option("Only faults of this kind; may be repeated.", metavar="KIND")
    without: list[str] | None = option("No faults of this kind; may be repeated.", metavar="KIND")


def simulate(
    world: WorldOptions,
    seed: int = option("The first seed. A seed goes the same way each time.", min=0, value=0, metavar="SEED"),
    seeds: int = option("Number of seeds.", min=1, max=1_000_000, value=1),
) -> None:
    """Run terminals in this process on virtual time, break what can break, and judge the promises.

    The exit status is 70 if a promise was broken. Kinds of faults: see docs/simulate.md.

    Examples:
      landbridge simulate
      landbridge simulate --seeds 100
      landbridge simulate --seed 7 --minutes 2 --terminals 20 --fault crash --fault late
    """
    scenario = _scenario(world)
    stories = []
    for story in _played(seed, seeds, scenario):
        if output.choice.json:
            output.write_json(_fields(story, world))
        elif story.findings or seeds == 1:
            _tell(story, world)
        stories.append((story.seed, bool(story.findings), story.stored, sum(story.faults.values())))
    broken = [seed for seed, is_broken, *_ in stories if is_broken]
    if seeds > 1 and not output.choice.json:
        messages, faults = (sum(column) for column in list(zip(*stories, strict=True))[2:])
        held = f"{counted(len(broken), 'seed')} broke a promise" if broken else "every promise was kept"
        print(f"{counted(seeds, 'seed')}, {counted(faults, 'fault')}, {counted(messages, 'message')}: {held}")
    if broken:
        raise typer.Exit(BROKEN)


def _scenario(world: WorldOptions) -> Scenario:
    try:
        from landbridge.testing.simulation.seeds import Scenario
        from landbridge.testing.simulation.trouble import DEFAULT, KINDS
    except ModuleNotFoundError as missing:
        hint = "pip install 'landbridge[terminal]'"
        raise BadRequest(f"the simulator needs {missing.name}, which is not installed", hint=hint) from None
    for kind in (*(world.fault or ()), *(world.without or ())):
        if kind not in KINDS:
            raise BadRequest(f"there is no fault {kind!r}", hint=f"the kinds are {', '.join(KINDS)}")
    chosen = dict.fromkeys(world.fault) if world.fault else DEFAULT
    kinds = {kind: KINDS[kind].weight or 1 for kind in chosen if kind not in (world.without or ())}
    faults = round(world.minutes * FAULTS) if world.faults is None else world.faults
    if faults and not kinds:
        raise BadRequest("no kind of fault is left", hint="leave out --without, or give --faults 0")
    return Scenario(
        terminals=world.terminals,
        shape=world.shape,
        topics=world.topics,
        consumers=world.consumers,
        messages=world.messages or max(1, round(world.minutes * MESSAGES)),
        faults=faults,
        within=world.minutes * 60,
        skew=world.skew,
        kinds=kinds,
    )


def _played(first: int, seeds: int, scenario: Scenario) -> Iterator[Story]:
    """The stories, with a bar while there are several and somebody looks."""
    from landbridge.testing.simulation.seeds import simulate

    numbers = range(first, first + seeds)
    if seeds == 1 or output.choice.json or not sys.stderr.isatty():
        yield from (simulate(number, scenario) for number in numbers)
        return
    from rich.progress import track

    screen = output.console(stderr=True)
    yield from (
        simulate(number, scenario) for number in track(numbers, "seeds", console=screen, transient=True)
    )


def _again(story: Story, world: WorldOptions) -> str:
    """The command that repeats the seed."""
    words = [f"landbridge simulate --seed {story.seed}"]
    for field in msgspec.structs.fields(world):
        value = getattr(world, field.name)
        if value is not None and value != field.default.value:
            words += [f"--{field.name} {each}" for each in (value if isinstance(value, list) else [value])]
    return " ".join(words)


def _fields(story: Story, world: WorldOptions) -> dict[str, Any]:
    found = output.fields(story, broken=story.broken(), again=_again(story, world))
    del found["findings"]
    found["incidents"] = [incident._asdict() for incident in story.incidents]
    return found


def _tell(story: Story, world: WorldOptions) -> None:
    """The account of one seed."""
    print(f"seed {story.seed}: {world.terminals} terminals, {story.lasted:.0f} virtual seconds\n")
    for at, kind, what in story.incidents:
        print(f"{at:9.2f} s  {kind:<21}{what}")
    numbers = f"{counted(story.published, 'message')} published, {story.stored} answered"
    print(f"\n{numbers}, {story.delivered:,} delivered (once for each group)")
    if story.forgiven:
        print(f"{story.forgiven:,} excused (once for each group) by a deleted topic or a restored store")
    for name, count in sorted(story.counts.items()):
        if count:
            print(f"  {name}: {count}")
    print()
    for promise, findings in story.broken().items():
        print(f"{promise:<10}{len(findings) or 'none':<6}{MEANINGS[promise]}")
        for finding in findings[:SHOWN]:
            print(f"  {finding}")
        if len(findings) > SHOWN:
            print(f"  and {len(findings) - SHOWN} more")
    verdict = "a promise was broken" if story.findings else "every promise was kept"
    print(f"\n{verdict}; again: {_again(story, world)}")
