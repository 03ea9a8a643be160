"""Plots over time as SVG inside of HTML: bars, lines, sparklines and meters, without a script.

Colours are the classes ``s0`` … ``s7``, which the page defines for light and dark screens. Every column of a
plot has a ``<title>``, which browsers show under the pointer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from html import escape
from typing import NamedTuple

from landbridge.core.time import SECOND

WIDTH, HEIGHT = 760, 240
LEFT, RIGHT, TOP, BOTTOM = 58, 10, 10, 26
#: Seconds between two labels of the axis. The first one is taken that leaves at most MOST_TICKS labels.
TICKS = (60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 2 * 86400, 7 * 86400)
MOST_TICKS = 9
#: Number of colours that the page defines.
COLOURS = 8


class Series(NamedTuple):
    name: str
    #: A value for each moment; None: nothing was measured.
    values: Sequence[float | None]
    #: The class of its colour.
    colour: str


class TimeAxis(NamedTuple):
    """The moments of a plot."""

    #: Microseconds, evenly spaced.
    moments: Sequence[int]
    #: Microseconds from one to the next.
    step: int

    def x(self, index: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * index / max(1, len(self.moments))

    def moment(self, index: int) -> str:
        return datetime.fromtimestamp(self.moments[index] / SECOND, UTC).strftime("%Y-%m-%d %H:%M")


def text(words: str) -> str:
    """Text of a user: escaped, with a replacement for every character that can't be printed."""
    return escape("".join(c if c.isprintable() or c == "\n" else "�" for c in words))


def y_of(share: float) -> float:
    return TOP + (HEIGHT - TOP - BOTTOM) * (1 - share)


def bars(axis: TimeAxis, series: Sequence[Series], title: str, show: Callable[[float], str]) -> str:
    """Stacked bars, the first series at the bottom."""
    sums = [sum(each.values[i] or 0 for each in series) for i in range(len(axis.moments))]
    top = _ceiling(max(sums, default=0))
    body = [_grid([top * n / 4 for n in range(5)], lambda value: value / top, show)]
    gap = 1.0 if axis.x(1) - axis.x(0) > 4 else 0.0
    for i in range(len(axis.moments)):
        below = 0.0
        for each in series:
            value = each.values[i] or 0
            if value:
                low, high = y_of(below / top), y_of((below + value) / top)
                body.append(
                    f'<rect class="fill {each.colour}" x="{axis.x(i):.1f}" y="{high:.1f}" '
                    f'width="{axis.x(1) - axis.x(0) - gap:.1f}" height="{max(low - high, 0.6):.1f}"/>'
                )
                below += value
    return _svg([*body, _axis(axis), _pointers(axis, series, show)], title)


def lines(axis: TimeAxis, series: Sequence[Series], title: str, show: Callable[[float], str]) -> str:
    """Lines on a logarithmic scale."""
    known = [value for each in series for value in each.values if value is not None and value > 0]
    low = math.floor(math.log10(min(known, default=1.0)))
    high = max(low + 1, math.ceil(math.log10(max(known, default=10.0))))

    def share(value: float) -> float:
        return (math.log10(max(value, 10.0**low)) - low) / (high - low)

    body = [_grid([10.0**power for power in range(low, high + 1)], share, show)]
    for each in series:
        for run in _runs(each.values):
            points = [(axis.x(i + 0.5), y_of(share(value))) for i, value in run]
            if len(points) == 1:
                x, y = points[0]
                body.append(f'<circle class="fill {each.colour}" cx="{x:.1f}" cy="{y:.1f}" r="3"/>')
            else:
                path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
                body.append(f'<polyline class="line {each.colour}" points="{path}"/>')
    return _svg([*body, _axis(axis), _pointers(axis, series, show)], title)


def sparkline(
    values: Sequence[float | None], title: str, colour: str = "s0", *, stretch: bool = False
) -> str:
    """A line without axes, scaled to its largest value. ``stretch``: it fills the width that it is given."""
    width, height = 140, 28
    top = max((value for value in values if value is not None), default=0) or 1
    gaps = max(1, len(values) - 1)
    points = [
        (
            width * (i / gaps if stretch else (i + 0.5) / len(values)),
            height - 3 - (height - 6) * (value or 0) / top,
        )
        for i, value in enumerate(values)
    ]
    if len(points) == 1:
        points = [(0.0, points[0][1]), (float(width), points[0][1])]
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    area = f"{points[0][0]:.1f},{height} {path} {points[-1][0]:.1f},{height}" if points else ""
    fit = ' preserveAspectRatio="none"' if stretch else ""
    return (
        f'<svg class="spark" viewBox="0 0 {width} {height}"{fit} role="img" aria-label="{text(title)}">'
        f"<title>{text(title)}</title>"
        f'<polygon class="area {colour}" points="{area}"/>'
        f'<polyline class="line {colour}" points="{path}"/></svg>'
    )


def meter(share: float, title: str, colour: str = "s0") -> str:
    """A bar in the cell of a table. ``share`` is from 0 to 1."""
    return (
        f'<svg class="meter" viewBox="0 0 140 10" role="img" aria-label="{text(title)}">'
        f'<title>{text(title)}</title><rect class="track" width="140" height="10" rx="2"/>'
        f'<rect class="fill {colour}" width="{140 * min(1.0, max(0.0, share)):.1f}" height="10" rx="2"/>'
        "</svg>"
    )


def _svg(body: Sequence[str], title: str) -> str:
    return (
        f'<svg class="plot" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{text(title)}">'
        f"<title>{text(title)}</title>{''.join(body)}</svg>"
    )


def _grid(values: Sequence[float], share: Callable[[float], float], show: Callable[[float], str]) -> str:
    lines = []
    for value in values:
        y = y_of(share(value))
        lines.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        lines.append(
            f'<text class="tick" x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{show(value)}</text>'
        )
    return "".join(lines)


def _axis(axis: TimeAxis) -> str:
    """Labels at round moments, few enough to be read, with the day where it changes."""
    width = len(axis.moments) * axis.step
    every = next((each * SECOND for each in TICKS if width <= MOST_TICKS * each * SECOND), width)
    shown, day = [], ""
    for i, moment in enumerate(axis.moments):
        if moment % every:
            continue
        today, time = axis.moment(i).split(" ")
        label = time if every < 86400 * SECOND else ""
        if today != day:
            label = f"{today[5:]} {label}".strip()
            day = today
        shown.append(f'<text class="tick" x="{axis.x(i):.1f}" y="{HEIGHT - 8}">{label}</text>')
    return "".join(shown)


def _pointers(axis: TimeAxis, series: Sequence[Series], show: Callable[[float], str]) -> str:
    """An invisible column over each moment, whose title has the values."""
    columns = []
    for i in range(len(axis.moments)):
        values = [f"{each.name}: {show(value)}" for each in series if (value := each.values[i])]
        if values:
            said = "\n".join([f"{axis.moment(i)} UTC", *values])
            columns.append(
                f'<rect class="point" x="{axis.x(i):.1f}" y="{TOP}" width="{axis.x(1) - axis.x(0):.1f}" '
                f'height="{HEIGHT - TOP - BOTTOM}"><title>{text(said)}</title></rect>'
            )
    return "".join(columns)


def _runs(values: Sequence[float | None]) -> list[list[tuple[int, float]]]:
    """The runs of values between the gaps."""
    runs: list[list[tuple[int, float]]] = [[]]
    for i, value in enumerate(values):
        if value is not None:
            runs[-1].append((i, value))
        elif runs[-1]:
            runs.append([])
    return [run for run in runs if run]


def _ceiling(value: float) -> float:
    """The next round number whose quarters are round, too."""
    if value <= 4:
        return 4.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(power * factor for factor in (1, 2, 4, 6, 8, 10) if value <= power * factor)
