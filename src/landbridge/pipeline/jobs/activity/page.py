"""A report as one file of HTML that loads nothing and runs nothing.

Names and causes come from users. They enter the page through ``_text`` or the plots, which escape them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files
from typing import TypeVar

from landbridge.core.time import SECOND
from landbridge.core.wording import counted
from landbridge.pipeline.jobs.activity.report import ActivityReport
from landbridge.plots.timeline import COLOURS, Series, TimeAxis, bars, lines, meter, sparkline, text

K = TypeVar("K")

#: Topics that have a colour of their own in a plot. The others share one.
NAMED = COLOURS - 1
#: The browser may load nothing and run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: The most rows of a table.
LONGEST = 50

#: column → its colour.
FAILURES = {"requeued": "s1", "expired": "s5", "buried": "s3", "refused": "s4", "errors": "s6"}


def page(report: ActivityReport, *, source: str, made_at: int) -> str:
    """``source`` says where the figures are from, for people."""
    axis = TimeAxis(sorted(report.steps), report.step * SECOND)
    span = f"{_moment(report.begin)} – {_moment(report.end)} UTC"
    sections = [
        _numbers(report),
        _messages(report, axis),
        _latency(report, axis),
        _topics(report, axis),
        _groups(report, axis),
        _failures(report, axis),
        _consumers(report),
        _producers(report),
    ]
    if not report.total.delivered and not report.total.taken:
        note = (
            "Nothing was published or delivered in this time, or the status log is below its level batches."
        )
        sections.insert(1, f'<p class="empty">{note}</p>')
    style = files("landbridge.pipeline.jobs.activity").joinpath("report.css").read_text()
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>Landbridge activity, {escape(span)}</title><style>{style}</style></head><body><main>"
        f"<header><h1>Activity</h1><p>{escape(span)} · per {_step(report.step)} · "
        f"from {_text(source)}</p></header>{''.join(sections)}"
        f"<footer>Made {_moment(made_at)} UTC by landbridge pipeline report. Latency is counted from the "
        "producer’s time, in buckets whose middles are within 6 %.</footer></main></body></html>\n"
    )


# -- sections -----------------------------------------------------------------------------------------


def _numbers(report: ActivityReport) -> str:
    total = report.total
    waiting, ack = total.spans("waiting"), total.spans("latency")
    size = f"{_rate(report, total.taken)}, {_size(total.published_bytes)}"
    again = f"{_count(total.requeued)} requeued, {_count(total.expired)} expired"
    tiles = [
        ("Messages in", _big(total.taken), size),
        ("Delivered", _big(total.delivered), _rate(report, total.delivered)),
        ("Acked", _big(total.acked), _rate(report, total.acked)),
        ("Waiting, p99", _span(waiting[2]), f"median {_span(waiting[0])}"),
        ("To the ack, p99", _span(ack[2]), f"median {_span(ack[0])}"),
        ("Lag", _big(report.lag), counted(len(report.groups), "group")),
        ("Failed", _big(total.failures), again),
    ]
    shown = "".join(
        f'<div class="tile{" bad" if name == "Failed" and total.failures else ""}"><dt>{name}</dt>'
        f"<dd>{value}</dd><p>{more}</p></div>"
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _messages(report: ActivityReport, axis: TimeAxis) -> str:
    ordered = report.busiest()
    named, rest = ordered[:NAMED], ordered[NAMED:]
    series = [
        Series(name, [report.topic_steps[name].get(at, 0) for at in axis.moments], f"s{number}")
        for number, name in enumerate(named)
    ]
    if rest:
        values = [sum(report.topic_steps[name].get(at, 0) for name in rest) for at in axis.moments]
        series.append(Series(f"{len(rest)} others", values, f"s{NAMED}"))
    title = f"Messages per {_step(report.step)}, by topic"
    return _plotted(title, bars(axis, series, title, _short), axis, series, _count)


def _latency(report: ActivityReport, axis: TimeAxis) -> str:
    wanted = [
        ("waiting, median", "waiting", 0, "s0 thin"),
        ("waiting, p99", "waiting", 2, "s0"),
        ("to the ack, median", "latency", 0, "s1 thin"),
        ("to the ack, p99", "latency", 2, "s1"),
    ]
    if report.total.crossing:
        wanted.append(("from other LANs, p99", "crossing", 2, "s2"))
    series = [
        Series(name, [report.steps[at].spans(of)[which] for at in axis.moments], colour)
        for name, of, which, colour in wanted
    ]
    title = "Latency since the publish, on a logarithmic scale"
    return _plotted(title, lines(axis, series, title, _span), axis, series, _span)


def _topics(report: ActivityReport, axis: TimeAxis) -> str:
    def cells(name: str) -> list[str]:
        figures = report.topics[name]
        steps = [report.topic_steps[name].get(at, 0) for at in axis.moments]
        most = f"{name}: at most {max(steps):,} per {_step(report.step)}"
        return [
            _text(name), sparkline(steps, most), _count(figures.taken), _size(figures.published_bytes),
            _rate(report, figures.taken), _count(figures.delivered), _count(figures.acked),
            _span(figures.spans("latency")[2]), _bad(figures.buried + figures.errors),
        ]  # fmt: skip

    heads = ["Topic", "Messages", "In", "Size", "Rate", "Delivered", "Acked", "To the ack, p99", "Failed"]
    return _listed("Topics", heads, report.busiest(), cells, texts=2)


def _groups(report: ActivityReport, axis: TimeAxis) -> str:
    def cells(key: tuple[str, str]) -> list[str]:
        figures, steps = report.groups[key], report.lag_steps.get(key, {})
        # A lag is reported when it has changed. Until then it stays what it was.
        known, last = [], 0
        for at in axis.moments:
            last = steps.get(at, last)
            known.append(last)
        line = sparkline(known, f"lag of {key[1]}: at most {max(known):,}", "s5") if steps else "–"
        ack = figures.spans("latency")
        return [
            *map(_text, key), line, _count(report.lag_of(*key)), _count(figures.delivered),
            _count(figures.acked), _span(figures.spans("waiting")[2]), _span(ack[0]), _span(ack[2]),
            _count(figures.requeued), _bad(figures.buried),
        ]  # fmt: skip

    heads = [
        "Topic", "Group", "Lag over time", "Lag", "Delivered", "Acked", "Waiting, p99",
        "To the ack, median", "p99", "Requeued", "Buried",
    ]  # fmt: skip
    ordered = sorted(report.groups, key=lambda key: (-(report.lag_of(*key) or 0), key))
    return _listed("Groups, by lag", heads, ordered, cells, texts=3)


def _failures(report: ActivityReport, axis: TimeAxis) -> str:
    series = [
        Series(name, [getattr(report.steps[at], name) for at in axis.moments], colour)
        for name, colour in FAILURES.items()
        if getattr(report.total, name)
    ]
    if not series:
        return _section("What went wrong", '<p class="empty">Nothing.</p>')
    title = f"What went wrong, per {_step(report.step)}"
    causes = sorted(report.total.causes.items(), key=lambda item: (-item[1], item[0]))
    rows = [[*map(_text, cause.partition(": ")[::2]), _count(count)] for cause, count in causes[:LONGEST]]
    why = _table(["Event", "Cause", "Times"], rows, texts=2, of=len(causes))
    return _plotted(title, bars(axis, series, title, _short), axis, series, _count, why)


def _consumers(report: ActivityReport) -> str:
    longest = max((figures.spans("latency")[2] or 0 for figures in report.consumers.values()), default=0) or 1

    def cells(key: tuple[str, str, str]) -> list[str]:
        topic, group, who = key
        figures = report.consumers[key]
        ack = figures.spans("latency")
        return [
            _text(who), _text(topic), _text(group),
            meter((ack[2] or 0) / longest, f"{who}: {_span(ack[2])}", "s1"),
            _span(ack[2]), _span(ack[0]), _span(figures.spans("waiting")[2]),
            _count(figures.delivered), _count(figures.acked), _count(figures.requeued),
        ]  # fmt: skip

    heads = [
        "Consumer", "Topic", "Group", "To the ack, p99", "", "Median", "Waiting, p99",
        "Delivered", "Acked", "Requeued",
    ]  # fmt: skip
    return _listed("Slowest consumers", heads, report.slowest(), cells, texts=4)


def _producers(report: ActivityReport) -> str:
    def cells(key: tuple[str, str]) -> list[str]:
        topic, who = key
        figures = report.producers[key]
        return [
            _text(who), _text(topic), _count(figures.taken), _size(figures.published_bytes),
            _rate(report, figures.taken), _span(figures.spans("crossing")[2]),
        ]  # fmt: skip

    heads = ["Producer, or terminal", "Topic", "Messages", "Size", "Rate", "Crossing, p99"]
    ordered = sorted(report.producers, key=lambda key: (-report.producers[key].taken, key))
    return _listed("Producers", heads, ordered, cells, texts=2)


# -- parts --------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _listed(
    title: str, heads: Sequence[str], keys: Sequence[K], cells: Callable[[K], list[str]], *, texts: int
) -> str:
    """A section with a table: a row for each key, up to LONGEST."""
    return _section(title, _table(heads, [cells(key) for key in keys[:LONGEST]], texts=texts, of=len(keys)))


def _plotted(
    title: str,
    plot: str,
    axis: TimeAxis,
    series: Sequence[Series],
    show: Callable[[float | None], str],
    more: str = "",
) -> str:
    """A plot with its legend, and its numbers as a table for those who can't see it or want them."""
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true"><rect class="fill {each.colour}" '
        f'width="12" height="12" rx="2"/></svg>{_text(each.name)}</li>'
        for each in series
    )
    rows = [
        [axis.moment(i), *(show(each.values[i]) for each in series)]
        for i in range(len(axis.moments))
        if any(each.values[i] for each in series)
    ]
    numbers = _table(["UTC", *(each.name for each in series)], rows, texts=1, of=len(rows))
    return _section(
        title,
        f'<ul class="legend">{legend}</ul>{plot}'
        f"<details><summary>As a table</summary>{numbers}</details>{more}",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int, of: int) -> str:
    """Cells are HTML already. The first ``texts`` columns are words, the others numbers. ``of`` is the number
    of rows that there are."""
    if not rows:
        return '<p class="empty">None.</p>'

    def cells(tag: str, values: Iterable[str]) -> str:
        return "".join(
            f"<{tag}>{value}</{tag}>" if i < texts else f'<{tag} class="n">{value}</{tag}>'
            for i, value in enumerate(values)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows)
    left = f'<p class="empty">and {of - len(rows):,} more</p>' if of > len(rows) else ""
    head = cells("th", map(text, heads))
    return (
        f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>{left}'
    )


# -- words --------------------------------------------------------------------------------------------


def _text(words: str) -> str:
    return text(words) or "–"


def _bad(count: int) -> str:
    return f'<b class="bad">{count:,}</b>' if count else "0"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _big(value: float | None) -> str:
    """To be read at a glance; the exact number is its title."""
    return "–" if value is None else f'<span title="{value:,.0f}">{_short(value)}</span>'


def _short(value: float) -> str:
    for power, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= power:
            return f"{value / power:.3g}{unit}"
    return f"{value:.3g}"


def _rate(report: ActivityReport, count: int) -> str:
    return f"{_short(count / report.seconds)}/s"


def _size(value: float) -> str:
    return f"{_short(value)}{'' if value >= 1000 else ' '}B"


def _span(milliseconds: float | None) -> str:
    if milliseconds is None:
        return "–"
    for most, unit, name in ((1, 1e-3, "µs"), (1e3, 1, "ms"), (120e3, 1e3, "s"), (7200e3, 60e3, "min")):
        if milliseconds < most:
            return f"{milliseconds / unit:.3g} {name}"
    hours = milliseconds / 3600e3
    return f"{hours:.3g} h" if hours < 48 else f"{hours / 24:.3g} d"


def _step(seconds: int) -> str:
    named = {60: "minute", 3600: "hour", 86400: "day", 7 * 86400: "week"}
    return named.get(seconds) or (
        f"{seconds // 60} minutes" if seconds < 3600 else f"{seconds // 3600} hours"
    )


def _moment(microseconds: int) -> str:
    return datetime.fromtimestamp(microseconds / SECOND, UTC).strftime("%Y-%m-%d %H:%M")
