"""Results for people and programs: a table on the screen, JSON and a picture in bench/results/."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.scenarios import Row

RESULTS = Path(__file__).parent / "results"


def shown(value: float, unit: str) -> str:
    if unit in ("msg/s", "deliveries/s", "topics/s"):
        return f"{value:,.0f}"
    return f"{value:.2f}"


def table(rows: list[Row]) -> None:
    out = Table(title="landbridge bench")
    for column, justify in (
        ("what", "left"),
        ("value", "right"),
        ("unit", "left"),
        ("target", "right"),
        ("", "left"),
    ):
        out.add_column(column, justify=justify)  # type: ignore[arg-type]
    for row in rows:
        target = ""
        if row.target is not None:
            target = ("≥ " if row.better == "more" else "≤ ") + shown(row.target, row.unit)
        mark = {True: "[green]met[/]", False: "[red]missed[/]", None: ""}[row.met]
        out.add_row(row.name, shown(row.value, row.unit), row.unit, target, mark)
    Console().print(out)


def as_json(rows: list[Row]) -> str:
    facts = {"cores": os.cpu_count(), "python": platform.python_version(), "machine": platform.machine()}
    found = {"machine": facts, "rows": [row.as_dict() for row in rows]}
    return json.dumps(found, indent=1, ensure_ascii=False) + "\n"


def save(rows: list[Row], name: str) -> None:
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{name}.json").write_text(as_json(rows))
    picture(rows, RESULTS / f"{name}.svg")


def picture(rows: list[Row], path: Path) -> None:
    """The throughputs as bars."""
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    matplotlib.rcParams["svg.hashsalt"] = "landbridge"
    bars = [
        row
        for row in rows
        if (row.unit in ("msg/s", "deliveries/s") and "100 B" in row.name) or "fan-out" in row.name
    ]
    if not bars:
        return
    figure, axes = plt.subplots(figsize=(9, 0.5 * len(bars) + 1.2))
    names = [row.name.replace(", 100 B", "") for row in bars]
    colours = ["#9aa5b1" if "ceiling" in row.name else "#2f6f9f" for row in bars]
    axes.barh(names, [row.value / 1e6 for row in bars], color=colours)
    for index, row in enumerate(bars):
        axes.text(row.value / 1e6, index, f" {row.value / 1e6:.2f} M", va="center", fontsize=9)
        if row.target is not None:
            axes.plot([row.target / 1e6] * 2, [index - 0.4, index + 0.4], color="#c0392b", lw=2)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_xlabel("million messages a second, 100 B, fsync before ack (red: target)")
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)
