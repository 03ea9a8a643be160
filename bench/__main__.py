"""python -m bench [SCENARIO…] [--quick] [--times N]"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from bench import crossing, events, report, scenarios
from bench.scenarios import Row


def _pipeline(scale: float, times: int) -> list[Row]:
    """Only here: it needs the extra [pipeline]."""
    from bench.pipeline import pipeline

    return pipeline(scale, times)


#: By name; those of one terminal are run when none is named.
SCENARIOS = {
    **scenarios.SCENARIOS,
    "crossing": crossing.crossing,
    "events": events.events,
    "pipeline": _pipeline,
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure the bus; ratios in one run.")
    parser.add_argument("scenario", nargs="*", help=f"of: {', '.join(SCENARIOS)}; the first seven by default")
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the messages, once; nothing is saved"
    )
    parser.add_argument("--times", type=int, default=3, help="repetitions; the median counts (default 3)")
    options = parser.parse_args()
    unknown = [name for name in options.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}: there are {', '.join(SCENARIOS)}")
    names = options.scenario or list(scenarios.SCENARIOS)
    scale, times = (0.1, 1) if options.quick else (1.0, options.times)
    console = Console(stderr=True)
    rows: list[Row] = []
    for name in names:
        begin = time.perf_counter()
        with console.status(f"measuring {name} …"):
            rows += SCENARIOS[name](scale, times)
        console.print(f"{name}: {time.perf_counter() - begin:.0f} s", style="dim")
    report.table(rows)
    if not options.quick:
        report.save(rows, "-".join(options.scenario) or "bus")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
