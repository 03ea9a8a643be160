"""A report as one file of HTML: nothing is loaded from anywhere, and nothing in it runs.

Names and causes come from users. They enter by ``_text`` alone, which escapes them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from html import escape
from importlib.resources import files

from landbridge.core.wording import counted
from landbridge.pipeline.activity.plot import COLOURS, Frame, Series, bars, lines, meter, sparkline, text
from landbridge.pipeline.activity.report import SECOND, Report

#: Topics that have a colour of their own in a plot; the others are one.
NAMED = COLOURS - 1
#: A browser is to load nothing and to run nothing.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"
#: Rows of a table.
LONGEST = 50

#: column → its colour.
FAILURES = {"requeued": "s1", "expired": "s5", "buried": "s3", "refused": "s4", "errors": "s6"}


def page(report: Report, *, source: str, made_at: int) -> str:
    """``source``: where it is from, for people."""
    frame = Frame(sorted(report.steps), report.step * SECOND)
    span = f"{_moment(report.begin)} – {_moment(report.end)} UTC"
    sections = [
        _numbers(report),
        _messages(report, frame),
        _latency(report, frame),
        _topics(report, frame),
        _groups(report, frame),
        _failures(report, frame),
        _consumers(report),
        _producers(report),
    ]
    if not report.total.delivered and not report.total.taken:
        note = (
            "Nothing was published or delivered in this time, or the status log is below its level batches."
        )
        sections.insert(1, f'<p class="empty">{note}</p>')
    style = files("landbridge.pipeline.activity").joinpath("report.css").read_text()
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


def _numbers(report: Report) -> str:
    total = report.total
    tiles = [
        (
            "Messages in",
            _big(total.taken),
            f"{_rate(total.taken / report.seconds)}, {_size(total.published_bytes)}",
        ),
        ("Delivered", _big(total.delivered), _rate(total.delivered / report.seconds)),
        ("Acked", _big(total.acked), _rate(total.acked / report.seconds)),
        ("Waiting, p99", _span(total.spans("waiting")[2]), f"median {_span(total.spans('waiting')[0])}"),
        ("To the ack, p99", _span(total.spans("latency")[2]), f"median {_span(total.spans('latency')[0])}"),
        ("Lag", _big(report.lag), counted(len(report.groups), "group")),
        (
            "Failed",
            _big(total.failures),
            f"{_count(total.requeued)} requeued, {_count(total.expired)} expired",
        ),
    ]
    shown = "".join(
        f'<div class="tile{" bad" if name == "Failed" and total.failures else ""}"><dt>{name}</dt>'
        f"<dd>{value}</dd><p>{more}</p></div>"
        for name, value, more in tiles
    )
    return f'<dl class="tiles">{shown}</dl>'


def _messages(report: Report, frame: Frame) -> str:
    ordered = report.busiest()
    named, rest = ordered[:NAMED], ordered[NAMED:]
    series = [
        Series(name, [report.topic_steps[name].get(at, 0) for at in frame.moments], f"s{number}")
        for number, name in enumerate(named)
    ]
    if rest:
        values = [sum(report.topic_steps[name].get(at, 0) for name in rest) for at in frame.moments]
        series.append(Series(f"{len(rest)} others", values, f"s{NAMED}"))
    title = f"Messages per {_step(report.step)}, by topic"
    return _plotted(title, bars(frame, series, title, _short), frame, series, _count)


def _latency(report: Report, frame: Frame) -> str:
    spans = {name: [report.steps[at].spans(name) for at in frame.moments] for name in ("waiting", "latency")}
    wanted = (
        ("waiting, median", "waiting", 0, "s0 thin"),
        ("waiting, p99", "waiting", 2, "s0"),
        ("to the ack, median", "latency", 0, "s1 thin"),
        ("to the ack, p99", "latency", 2, "s1"),
    )
    series = [Series(name, [each[which] for each in spans[of]], colour) for name, of, which, colour in wanted]
    if report.total.crossing:
        crossing = [report.steps[at].spans("crossing")[2] for at in frame.moments]
        series.append(Series("from other LANs, p99", crossing, "s2"))
    title = "Latency since the publish, on a logarithmic scale"
    return _plotted(title, lines(frame, series, title, _span), frame, series, _span)


def _topics(report: Report, frame: Frame) -> str:
    rows = []
    for name in report.busiest()[:LONGEST]:
        figures = report.topics[name]
        steps = [report.topic_steps[name].get(at, 0) for at in frame.moments]
        rows.append(
            [
                _text(name),
                sparkline(steps, f"{name}: at most {max(steps):,} per {_step(report.step)}"),
                _count(figures.taken),
                _size(figures.published_bytes),
                _rate(figures.taken / report.seconds),
                _count(figures.delivered),
                _count(figures.acked),
                _span(figures.spans("latency")[2]),
                _bad(figures.buried + figures.errors),
            ]
        )
    heads = ["Topic", "Messages", "In", "Size", "Rate", "Delivered", "Acked", "To the ack, p99", "Failed"]
    return _section("Topics", _table(heads, rows, texts=2, of=len(report.topics)))


def _groups(report: Report, frame: Frame) -> str:
    rows = []
    ordered = sorted(report.groups, key=lambda key: (-(report.lag_of(*key) or 0), key))
    for topic, group in ordered[:LONGEST]:
        figures = report.groups[topic, group]
        steps = report.lag_steps.get((topic, group), {})
        # A lag is told when it has changed: until then it is what it was.
        known, last = [], 0
        for at in frame.moments:
            last = steps.get(at, last)
            known.append(last)
        rows.append(
            [
                _text(topic),
                _text(group),
                sparkline(known, f"lag of {group}: at most {max(known):,}", "s5") if steps else "–",
                _count(report.lag_of(topic, group)),
                _count(figures.delivered),
                _count(figures.acked),
                _span(figures.spans("waiting")[2]),
                _span(figures.spans("latency")[0]),
                _span(figures.spans("latency")[2]),
                _count(figures.requeued),
                _bad(figures.buried),
            ]
        )
    heads = [
        "Topic", "Group", "Lag over time", "Lag", "Delivered", "Acked", "Waiting, p99",
        "To the ack, median", "p99", "Requeued", "Buried",
    ]  # fmt: skip
    return _section("Groups, by lag", _table(heads, rows, texts=3, of=len(report.groups)))


def _failures(report: Report, frame: Frame) -> str:
    series = [
        Series(name, [getattr(report.steps[at], name) for at in frame.moments], colour)
        for name, colour in FAILURES.items()
        if getattr(report.total, name)
    ]
    if not series:
        return _section("What went wrong", '<p class="empty">Nothing.</p>')
    title = f"What went wrong, per {_step(report.step)}"
    causes = sorted(report.total.causes.items(), key=lambda item: (-item[1], item[0]))
    rows = [[*map(_text, _parted(cause)), _count(count)] for cause, count in causes[:LONGEST]]
    why = _table(["Event", "Cause", "Times"], rows, texts=2, of=len(causes))
    return _plotted(title, bars(frame, series, title, _short), frame, series, _count, why)


def _consumers(report: Report) -> str:
    ordered = report.slowest()
    longest = max((figures.spans("latency")[2] or 0 for figures in report.consumers.values()), default=0) or 1
    rows = []
    for topic, group, who in ordered[:LONGEST]:
        figures = report.consumers[topic, group, who]
        delivery, ack = figures.spans("waiting"), figures.spans("latency")
        bar = meter((ack[2] or 0) / longest, f"{who}: {_span(ack[2])}", "s1")
        rows.append(
            [
                _text(who), _text(topic), _text(group), bar, _span(ack[2]), _span(ack[0]), _span(delivery[2]),
                _count(figures.delivered), _count(figures.acked), _count(figures.requeued),
            ]
        )  # fmt: skip
    heads = [
        "Consumer", "Topic", "Group", "To the ack, p99", "", "Median", "Waiting, p99",
        "Delivered", "Acked", "Requeued",
    ]  # fmt: skip
    return _section("Slowest consumers", _table(heads, rows, texts=4, of=len(ordered)))


def _producers(report: Report) -> str:
    ordered = sorted(report.producers, key=lambda key: (-report.producers[key].taken, key))
    rows = []
    for topic, who in ordered[:LONGEST]:
        figures = report.producers[topic, who]
        rows.append(
            [
                _text(who), _text(topic), _count(figures.taken), _size(figures.published_bytes),
                _rate(figures.taken / report.seconds), _span(figures.spans("crossing")[2]),
            ]
        )  # fmt: skip
    heads = ["Producer, or terminal", "Topic", "Messages", "Size", "Rate", "Crossing, p99"]
    return _section("Producers", _table(heads, rows, texts=2, of=len(ordered)))


# -- parts --------------------------------------------------------------------------------------------


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _plotted(
    title: str,
    plot: str,
    frame: Frame,
    series: Sequence[Series],
    show: Callable[[float | None], str],
    more: str = "",
) -> str:
    """A plot, what its colours are, and its numbers for those who can't see it or want them."""
    legend = "".join(
        f'<li><svg class="swatch" viewBox="0 0 12 12" aria-hidden="true"><rect class="fill {each.colour}" '
        f'width="12" height="12" rx="2"/></svg>{_text(each.name)}</li>'
        for each in series
    )
    rows = [
        [frame.moment(i), *(show(each.values[i]) for each in series)]
        for i in range(len(frame.moments))
        if any(each.values[i] for each in series)
    ]
    numbers = _table(["UTC", *(each.name for each in series)], rows, texts=1, of=len(rows))
    return _section(
        title,
        f'<ul class="legend">{legend}</ul>{plot}'
        f"<details><summary>As a table</summary>{numbers}</details>{more}",
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, texts: int, of: int) -> str:
    """Cells are HTML already; the first ``texts`` columns are words, the others numbers."""
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


def _text(said: str) -> str:
    return text(said) or "–"


def _parted(cause: str) -> tuple[str, str]:
    event, _, why = cause.partition(": ")
    return event, why


def _bad(count: int) -> str:
    return f'<b class="bad">{count:,}</b>' if count else "0"


def _count(value: float | None) -> str:
    return "–" if value is None else f"{value:,.0f}"


def _big(value: float | None) -> str:
    """To be read at a glance; pointed at, exactly."""
    return "–" if value is None else f'<span title="{value:,.0f}">{_short(value)}</span>'


def _short(value: float) -> str:
    for power, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= power:
            return f"{value / power:.3g}{unit}"
    return f"{value:.3g}"


def _rate(value: float) -> str:
    return f"{_short(value)}/s"


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
