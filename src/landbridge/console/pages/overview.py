"""The overview: what the terminal does now, and did in the last minutes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from markupsafe import Markup

from landbridge.console.action import Action
from landbridge.console.page import Fragment, Page, PageView
from landbridge.console.samples import EVERY, Sample
from landbridge.plots.timeline import sparkline

#: Points of a short history.
POINTS = 90


async def figures(view: PageView) -> dict[str, Any]:
    if not view.may("observe"):
        return {"figures": None}
    samples = list(view.samples.ring)
    return {
        "figures": view.samples.figures,
        "last": samples[-1] if samples else None,
        "plots": {name: _plot(samples, *plot) for name, plot in PLOTS.items()},
        "minutes": max(1, round(len(samples) * EVERY / 60)),
    }


async def terminal(view: PageView) -> dict[str, Any]:
    return {"info": await view.bus.terminal.info()}


#: What has a short history: its value of a sample, what the plot is called, its colour.
PLOTS: dict[str, tuple[Callable[[Sample], float | None], str, str]] = {
    "published": (lambda sample: sample.published, "Messages in", "s0"),
    "delivered": (lambda sample: sample.delivered, "Messages out", "s1"),
    "commit": (lambda sample: sample.commit, "Time of a commit", "s4"),
    "answer": (lambda sample: sample.answer, "Time of an answer", "s5"),
    "lag": (lambda sample: sample.lag, "Lag", "s2"),
    "failed": (lambda sample: sample.requeued + sample.buried + sample.refused, "Failures", "s3"),
    "free": (lambda sample: sample.free, "Free disk", "s7"),
    "connections": (lambda sample: sample.connections, "Connections", "s6"),
}


def _plot(samples: list[Sample], value: Callable[[Sample], float | None], title: str, colour: str) -> Markup:
    """The last minutes as a line. Where there are too many samples, a point is the largest of some."""
    step = max(1, -(-len(samples) // POINTS))
    values = []
    for begin in range(0, len(samples), step):
        known = [each for each in map(value, samples[begin : begin + step]) if each is not None]
        values.append(max(known, default=None))
    return Markup(sparkline(values or [None], f"{title}, the last minutes", colour, stretch=True))


PAGES = [
    Page(
        "/",
        "Overview",
        "overview.html",
        fragments=[
            Fragment("figures", "_figures.html", figures, every=EVERY),
            Fragment("terminal", "_terminal.html", terminal, every=10.0),
        ],
    )
]
ACTIONS: list[Action] = []
