"""python -m bench [SCENARIO…] [--quick] [--times N] [--json]
python -m bench [SCENARIO…] --against REV [--pairs N] [--seconds S] [--least RATIO] [--json]"""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Console

from bench import (
    against,
    cluster,
    crossing,
    events,
    http,
    latency,
    middleware,
    report,
    requests,
    rules,
    scenarios,
    storage,
)
from bench.scenarios import Row


def _pipeline(scale: float, times: int) -> list[Row]:
    """Only here: it needs the extra [pipeline]."""
    from bench.pipeline import pipeline

    return pipeline(scale, times)


#: Run when no scenario is named.
DEFAULT = [*scenarios.SCENARIOS, "disk"]
#: By name. `--against` reads this table in both revisions:
#: a later revision has to offer it under this name too.
SCENARIOS = {
    **scenarios.SCENARIOS,
    "disk": storage.disk,
    "publish": latency.publish,
    "beside": latency.beside,
    "restart": storage.restart,
    "cluster": cluster.cluster,
    "crossing": crossing.crossing,
    "events": events.events,
    "http": http.http,
    "requests": requests.requests,
    "rules": rules.rules,
    "middleware": middleware.middleware,
    "pipeline": _pipeline,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev bench", description="Measure the bus; ratios in one run.")
    parser.add_argument(
        "scenario",
        nargs="*",
        help=f"of: {', '.join(SCENARIOS)}; by default {', '.join(DEFAULT)}, with --against also crossing",
    )
    parser.add_argument(
        "--quick", action="store_true", help="a tenth of the messages, once; nothing is saved"
    )
    parser.add_argument("--times", type=int, default=3, help="repetitions; the median counts (default 3)")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    compared = parser.add_argument_group("comparing revisions")
    compared.add_argument(
        "--against",
        metavar="REV",
        help="measure the working tree and the git revision REV in turns; nothing is saved",
    )
    compared.add_argument("--pairs", type=int, default=5, help="runs of each scenario per side (default 5)")
    compared.add_argument(
        "--seconds",
        type=float,
        default=30.0,
        help="scale a scenario down, to a tenth at the least, if one run would take longer (default 30)",
    )
    compared.add_argument(
        "--least",
        type=float,
        default=0.95,
        help="exit status 1 if a row of the new side is less than so many times as good (default 0.95)",
    )
    return parser


def main() -> int:
    parser = _parser()
    options = parser.parse_args()
    if options.against:
        if options.pairs < 1:
            parser.error("--pairs is at least 1")
        return against.compare(
            options.against,
            options.scenario or [*DEFAULT, "crossing"],
            pairs=options.pairs,
            seconds=options.seconds,
            least=options.least,
            as_json=options.json,
        )
    unknown = [name for name in options.scenario if name not in SCENARIOS]
    if unknown:
        parser.error(f"no scenario {', '.join(unknown)}: there are {', '.join(SCENARIOS)}")
    names = options.scenario or DEFAULT
    scale, times = (0.1, 1) if options.quick else (1.0, options.times)
    console = Console(stderr=True)
    rows: list[Row] = []
    for name in names:
        begin = time.perf_counter()
        with console.status(f"measuring {name} …"):
            rows += SCENARIOS[name](scale, times)
        console.print(f"{name}: {time.perf_counter() - begin:.0f} s", style="dim")
    if options.json:
        print(report.as_json(rows), end="")
    else:
        report.table(rows)
    if not options.quick:
        report.save(rows, "-".join(options.scenario) or "bus")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
