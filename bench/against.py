"""``./dev bench --against REV``: two revisions measured in turns on the same machine.

The new side is the working tree, the old side is REV in a temporary git worktree. Each side runs its own
``bench`` package, because the inside of the product may have moved between them. All that a revision has to
offer is ``bench.__main__.SCENARIOS``: name → function of (scale, times) that returns rows with ``as_dict``.

A run of one scenario is a process of its own. The order is old new, new old, old new …, so that a machine
that slowly gets busier hits both sides alike, and every pair gives one ratio. A ratio always says how many
times as good the new side is: above 1 is better, also for rows in which less is better."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from bench.report import shown

ROOT = Path(__file__).resolve().parent.parent
#: Environments for revisions with other requirements, one folder per set of requirements. Ignored by git.
ENVIRONMENTS = ".venv-bench"
#: Scales that are tried, from the full size down. Few, so that two comparisons on one machine mostly have
#: the same rows: the names of some rows contain a count.
SCALES = (1.0, 0.5, 0.2, 0.1)
#: Scales of the two runs that estimate how long a scenario takes: the first is the old side's.
ESTIMATES = (0.05, 0.15)
#: Seconds after which a run counts as hung.
HUNG = 900.0

#: What runs inside a revision. It gets the file for the answer, the scenario (empty: only list the names)
#: and the scale. Results go to a file, as a scenario may print.
_RUN = """
import json, sys
import landbridge
from bench.__main__ import SCENARIOS
answer, name, scale = sys.argv[1:]
rows = [row.as_dict() for row in SCENARIOS[name](float(scale), 1)] if name else []
with open(answer, "w") as file:
    json.dump({"landbridge": landbridge.__file__, "scenarios": list(SCENARIOS), "rows": rows}, file)
"""


class Failed(Exception):
    """The comparison cannot go on; the message is for the person who asked for it."""


@dataclass(frozen=True)
class Side:
    """One of the two revisions."""

    #: "old" or "new".
    name: str
    tree: Path
    #: The interpreter, with everything that the revision requires but the revision itself.
    python: str

    def scenarios(self) -> list[str]:
        return list(self._ask("", 1.0)["scenarios"])

    def measure(self, scenario: str, scale: float) -> list[dict[str, Any]]:
        """Run a scenario once. Returns its rows as `Row.as_dict` made them."""
        return list(self._ask(scenario, scale)["rows"])

    def _ask(self, scenario: str, scale: float) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="landbridge-bench-") as folder:
            path = Path(folder) / "answer.json"
            # The tree's own sources come before those that are installed in the environment.
            sources = os.pathsep.join([str(self.tree / "src"), str(self.tree)])
            with open(Path(folder) / "said", "w+") as said:
                process = subprocess.Popen(
                    [self.python, "-c", _RUN, str(path), scenario, str(scale)],
                    cwd=self.tree,
                    env={**os.environ, "PYTHONPATH": sources},
                    stdin=subprocess.DEVNULL,
                    stdout=said,
                    stderr=said,
                    start_new_session=True,  # so that its processes can be ended with it, and only they
                )
                try:
                    status = process.wait(HUNG)
                except subprocess.TimeoutExpired:
                    raise Failed(
                        f"{scenario} did not end within {HUNG:.0f} s on the {self.name} side"
                    ) from None
                finally:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
                if status or not path.exists():
                    said.seek(0)
                    last = "".join(said.readlines()[-12:])
                    raise Failed(f"{scenario or 'bench'} failed on the {self.name} side:\n{last}")
            answer: dict[str, Any] = json.loads(path.read_text())
        if not Path(answer["landbridge"]).resolve().is_relative_to(self.tree.resolve()):
            raise Failed(f"the {self.name} side imports landbridge from {answer['landbridge']}")
        return answer


@dataclass
class Comparison:
    """One row, measured on both sides."""

    scenario: str
    name: str
    unit: str
    #: "more" or "less".
    better: str
    #: Whether the row measures the machine alone (the bare ceiling and the like). Such a row is shown,
    #: because it tells how quiet the machine was, and never judged.
    bare: bool = False
    old: list[float] = field(default_factory=list)
    new: list[float] = field(default_factory=list)

    @property
    def ratios(self) -> list[float]:
        """How many times as good the new side was, sorted, one per pair. A pair without a positive value on
        both sides gives none: memory that did not grow has no ratio."""
        pairs = [(old, new) for old, new in zip(self.old, self.new, strict=True) if old > 0 and new > 0]
        return sorted(new / old if self.better == "more" else old / new for old, new in pairs)

    def as_dict(self, least: float) -> dict[str, Any]:
        ratios = self.ratios
        low, middle, high = quartiles(ratios) if ratios else (None, None, None)
        return {
            "scenario": self.scenario,
            "name": self.name,
            "unit": self.unit,
            "better": self.better,
            "bare": self.bare,
            "old": statistics.median(self.old),
            "new": statistics.median(self.new),
            "ratio": middle,
            "quartiles": [low, high],
            "ratios": ratios,
            "is_below": self.is_below(least),
        }

    def is_below(self, least: float) -> bool:
        return not self.bare and bool(self.ratios) and statistics.median(self.ratios) < least


def quartiles(values: list[float]) -> tuple[float, float, float]:
    """The lower quartile, the median and the upper quartile of at least one value."""
    if len(values) == 1:
        return values[0], values[0], values[0]
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, middle, high


# -- the old revision --------------------------------------------------------------------------------------


def _git(root: Path, *args: str) -> str:
    done = subprocess.run(["git", "-C", str(root), *args], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Failed(f"git {args[0]}: {done.stderr.strip()}")
    return done.stdout.strip()


@contextlib.contextmanager
def checked_out(root: Path, revision: str) -> Iterator[tuple[str, Path]]:
    """REV in a worktree of its own, which goes when the block ends. Yields its short hash and its folder."""
    commit = _git(root, "rev-parse", "--verify", "--quiet", "--short", f"{revision}^{{commit}}")
    with tempfile.TemporaryDirectory(prefix="landbridge-against-") as folder:
        tree = Path(folder) / "tree"
        try:
            _git(root, "worktree", "add", "--quiet", "--detach", str(tree), commit)
            yield commit, tree
        finally:
            with contextlib.suppress(Failed):  # if it could not be made
                _git(root, "worktree", "remove", "--force", str(tree))


def requirements(tree: Path) -> str:
    """A hash of what a revision needs to be installed. Two trees with the same can share an environment."""
    project = tomllib.loads((tree / "pyproject.toml").read_text())["project"]
    kept = [project.get(name) for name in ("requires-python", "dependencies", "optional-dependencies")]
    constraints = tree / "constraints.txt"
    text = json.dumps(kept, sort_keys=True) + (constraints.read_text() if constraints.exists() else "")
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def interpreter(root: Path, tree: Path, tell: Callable[[str], None]) -> str:
    """An interpreter with what the tree requires. Mostly that is the present one: it serves every revision
    with the same requirements. For others an environment is made once and kept."""
    key = requirements(tree)
    if key == requirements(root):
        return sys.executable
    folder = root / ENVIRONMENTS / key
    python, done = folder / "bin" / "python", folder / "is-complete"
    if not done.exists():
        tell(f"making an environment for other requirements in {ENVIRONMENTS}/{key} (once) …")
        shutil.rmtree(folder, ignore_errors=True)
        install = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "--no-input"]
        for command in (
            [sys.executable, "-m", "venv", str(folder)],
            [*install, "install", "--constraint", str(tree / "constraints.txt"), f"{tree}[dev]"],
            # The revision itself comes from its tree; only what it requires is kept.
            [*install, "uninstall", "--yes", "landbridge"],
        ):
            if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
                raise Failed(f"could not make an environment for the old side in {folder}")
        done.touch()
    return str(python)


# -- measuring in turns ------------------------------------------------------------------------------------


class Turns:
    """Runs scenarios in turns and keeps the comparisons, so that what was measured before a failure or ^C can
    still be shown."""

    def __init__(self, old: Side, new: Side, tell: Callable[[str], None]) -> None:
        self.old, self.new = old, new
        self.comparisons: list[Comparison] = []
        #: Rows that only one side has: (scenario, row, side). No row: the whole scenario.
        self.missing: list[tuple[str, str | None, str]] = []
        self._tell = tell

    def common(self, asked: list[str]) -> list[str]:
        """The scenarios that both sides have, of those asked for."""
        sides = {side.name: side.scenarios() for side in (self.old, self.new)}
        if unknown := [name for name in asked if not any(name in known for known in sides.values())]:
            raise Failed(f"no scenario {', '.join(unknown)}: there are {', '.join(sides['new'])}")
        for name in asked:
            for side, other in (("old", "new"), ("new", "old")):
                if name not in sides[other]:
                    self._skip(name, None, side)
        return [name for name in asked if all(name in known for known in sides.values())]

    def _skip(self, scenario: str, row: str | None, side: str) -> None:
        self.missing.append((scenario, row, side))
        self._tell(f"{scenario}{f': “{row}”' if row else ''} exists on the {side} side only: skipped")

    def estimate(self, scenario: str, seconds: float) -> tuple[float, float]:
        """Choose the scale of a scenario. Returns the scale and the seconds that a run will take. The two
        runs also fill the caches of both sides."""
        times = []
        for side, scale in zip((self.old, self.new), ESTIMATES, strict=True):
            begin = time.monotonic()
            side.measure(scenario, scale)
            times.append(time.monotonic() - begin)
        slope = max(0.0, (times[1] - times[0]) / (ESTIMATES[1] - ESTIMATES[0]))
        start = max(0.0, times[0] - slope * ESTIMATES[0])
        for scale in SCALES:
            if start + slope * scale <= seconds:
                break
        return scale, start + slope * scale

    def run(self, scenario: str, scale: float, pairs: int, progress: Callable[[str], None]) -> None:
        rows: dict[str, Comparison] = {}
        told: set[str] = set()
        for pair in range(pairs):
            order = (self.old, self.new) if pair % 2 == 0 else (self.new, self.old)
            found: dict[str, dict[str, dict[str, Any]]] = {}
            for side in order:
                progress(f"{scenario}, pair {pair + 1} of {pairs}, {side.name}")
                found[side.name] = {row["name"]: row for row in side.measure(scenario, scale)}
            for name, row in found["new"].items():
                if name not in found["old"]:
                    continue
                if name not in rows:
                    rows[name] = Comparison(
                        scenario, name, row["unit"], row["better"], row.get("bare", False)
                    )
                    self.comparisons.append(rows[name])
                rows[name].old.append(found["old"][name]["value"])
                rows[name].new.append(row["value"])
            for one, other in (("old", "new"), ("new", "old")):
                for name in found[one].keys() - found[other].keys() - told:
                    told.add(name)
                    self._skip(scenario, name, one)


# -- the command -------------------------------------------------------------------------------------------


def table(comparisons: list[Comparison], least: float) -> Table:
    out = Table(title="new against old: how many times as good")
    out.add_column("what")
    for column in ("old", "new"):
        out.add_column(column, justify="right")
    out.add_column("unit")
    out.add_column("ratio", justify="right")
    out.add_column("quartiles", justify="right")
    out.add_column("")
    for one in comparisons:
        if one.ratios:
            low, middle, high = quartiles(one.ratios)
            ratio, spread = f"{middle:.3f}", f"{low:.2f}–{high:.2f}"
        else:
            ratio, spread, high = "–", "", 0.0
        if one.bare:
            mark = "[dim]the machine alone[/]"
        elif one.is_below(least):
            mark = (
                f"[red]below {least:g}[/]"
                if high < least
                else f"[yellow]below {least:g}, within the spread[/]"
            )
        else:
            mark = ""
        medians = [shown(statistics.median(values), one.unit) for values in (one.old, one.new)]
        out.add_row(escape(one.name), *medians, one.unit, ratio, spread, mark)
    return out


@contextlib.contextmanager
def _exit_on_signals() -> Iterator[None]:
    """Let SIGTERM and SIGHUP unwind the stack as ^C does, so that worktree and processes go."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    before = {number: signal.signal(number, leave) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def compare(
    revision: str,
    scenarios: list[str],
    *,
    pairs: int = 5,
    seconds: float = 30.0,
    least: float = 0.95,
    as_json: bool = False,
    root: Path = ROOT,
) -> int:
    """Measure and print. Returns the exit status: 1 if a row is below ``least``, 2 if a run failed."""
    errors = Console(stderr=True)

    def tell(text: str) -> None:
        errors.print(escape(text), style="dim")

    status = 0
    turns: Turns | None = None
    try:
        with _exit_on_signals(), checked_out(root, revision) as (commit, tree):
            old = Side("old", tree, interpreter(root, tree, tell))
            new = Side("new", root, sys.executable)
            changed = " with uncommitted changes" if _git(root, "status", "--porcelain") else ""
            tell(f"old: {commit}; new: {_git(root, 'rev-parse', '--short', 'HEAD')}{changed}")
            turns = Turns(old, new, tell)
            with errors.status("reading the scenarios of both sides …") as line:
                planned = {}
                for name in turns.common(scenarios):
                    line.update(f"estimating how long {name} takes …")
                    planned[name] = turns.estimate(name, seconds)
                tell(f"about {2 * pairs * sum(one for _, one in planned.values()) / 60:.0f} min")
                for name, (scale, _) in planned.items():
                    begin = time.monotonic()
                    turns.run(name, scale, pairs, lambda text: line.update(f"{text} …"))
                    tell(f"{name} at {scale:g} of its full size: {time.monotonic() - begin:.0f} s")
    except Failed as failure:
        errors.print(f"bench: {escape(str(failure))}", style="red")
        status = 2
    except KeyboardInterrupt:
        tell("interrupted")
        status = 130
    # A pair that was cut short has no row yet: each comparison holds as many old values as new ones.
    found = turns.comparisons if turns else []
    if as_json:
        missing = (
            [{"scenario": s, "row": row, "only": side} for s, row, side in turns.missing] if turns else []
        )
        rows = [one.as_dict(least) for one in found]
        print(json.dumps({"rows": rows, "missing": missing, "least": least}, indent=1, ensure_ascii=False))
    elif found:
        Console().print(table(found, least))
    below = [one.name for one in found if one.is_below(least)]
    if below and not status:
        errors.print(f"bench: below {least:g}: {escape('; '.join(below))}", style="red")
        status = 1
    return status
