"""``landbridge pipeline run replay``: messages of the past into a topic, or to a group, again."""

from __future__ import annotations

import re
import sys
import time
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from landbridge.cli import output, units
from landbridge.cli.loop import ask, check_reachable
from landbridge.cli.options import ContextName, argument, flag, option
from landbridge.cli.pipeline_options import TELL_EVERY, Conf, Master, spark_session, stop_signals, where
from landbridge.cli.sql import AllowGaps, Lake
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.pipeline.jobs.replay import Extent, Replay, Replayed
    from landbridge.protocol.operations import GroupDetails

_RATE = re.compile(r"(\d+(?:\.\d+)?)(k?)(?:/(s|m|h))?")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0}


def parse_rate(text: str) -> float:
    """Messages per second: ``1000/s``, ``5k/s``, ``600/m``."""
    found = _RATE.fullmatch(text.strip())
    rate = 0.0 if found is None else float(found[1]) * (1000 if found[2] else 1)
    if found is None or not rate:
        raise ValueError(f"{text!r} is not a rate: 1000/s, 5k/s, 600/m")
    return rate / _SECONDS[found[3] or "s"]


def parse_end(text: str) -> float:
    """Seconds since 1970: a time, or a span from now on, ``+30m``."""
    try:
        return time.time() + units.parse_span(text.strip().removeprefix("+"))
    except ValueError:
        pass
    try:
        return units.parse_moment(text)
    except ValueError as error:
        raise ValueError(f"{error}; or +30m, from now on") from None


def replay(
    source: Annotated[str, argument("TOPIC", "What is replayed.")],
    to: str | None = option("Into this topic.", metavar="TOPIC"),
    to_group: str | None = option(
        "Or to this group of the same topic, all from --since on.", metavar="GROUP"
    ),
    since: str | None = option("Published at this time or later: ISO 8601, '2h ago'.", metavar="TIME"),
    until: str | None = option("Published before this time.", metavar="TIME"),
    condition: str | None = option("Only what meets this: json:amount::int > 10.", "--where", metavar="SQL"),
    lake: Lake = None,
    allow_gaps: AllowGaps = False,
    rate: float | None = option("At most so fast: 1000/s, 600/m.", metavar="RATE", parser=parse_rate),
    stop_at: float | None = option(
        "End by then, in good order: ISO 8601, +30m.", metavar="TIME", parser=parse_end
    ),
    name: str | None = option(
        "The replay that this is; else the same arguments are the same one.", metavar="NAME"
    ),
    dry_run: bool = flag("Count what it would be, and write nothing.", "--dry-run"),
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
) -> None:
    """Replay a topic, from its log or its archive, into another one: by time, by a condition, each message once.

    Run again, it goes on where it stopped.

    Examples:
      landbridge pipeline run replay orders --to orders.again --since '2h ago' --dry-run
      landbridge pipeline run replay orders --to orders.again --where "json:amount::int > 100" --rate 1000/s
      landbridge pipeline run replay orders --to orders.again --lake /data/lake --stop-at +30m --name monday
      landbridge pipeline run replay orders --to-group billing --since 2026-01-31T12:00:00Z
    """  # noqa: E501
    if (to is None) == (to_group is None):
        raise typer.BadParameter("give either --to or --to-group")
    if to_group is not None:
        if until or condition or lake or rate or stop_at or name:
            raise BadRequest(
                "a group gets its topic again from some time on, all of it: it takes --since alone",
                hint=f"replay into a topic of its own, --to {source}.again, and let the consumers read that",
            )
        _to_group(context, source, to_group, since, dry_run=dry_run)
        return
    from landbridge.pipeline.jobs.replay import Replay, identity

    assert to is not None
    job = Replay(
        source,
        to,
        since=_micros("--since", since),
        until=_micros("--until", until),
        where=condition or "",
        lake=lake,
        allow_gaps=allow_gaps,
        rate=rate,
        # By what was typed: '2h ago' is another moment when it is run again, and the same replay.
        called=name or identity(source, to, since, until, condition, lake),
    )
    _to_topic(job, stop_at, dry_run=dry_run, master=master, conf=conf, context=context)


def _micros(option: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        return int(units.parse_moment(text) * 1_000_000)
    except ValueError as error:
        raise typer.BadParameter(f"{option}: {error}") from None


def _to_group(context: str | None, topic: str, group: str, since: str | None, *, dry_run: bool) -> None:
    """A cursor that goes back: nothing is copied, and no Spark is needed."""
    moment = _micros("--since", since)

    async def look(bus: Bus) -> tuple[GroupDetails, int]:
        shown = await bus.groups.show(topic, group)
        if moment is None:
            return shown, (await bus.topics.show(topic)).first
        return shown, (await bus.topics.seek_time({topic: moment}))[topic]

    if dry_run:
        shown, first = ask(context, look)
        end = shown.floor + shown.lag
        fields = {"rows": max(0, end - first), "first": first, "end": end, "floor": shown.floor}
        rows = counted(fields["rows"], "message")
        output.tell(fields, f"{group} would go from offset {shown.floor:,} to {first:,}: {rows}")
        return
    place: Literal["earliest"] | None = "earliest" if moment is None else None
    moved = ask(context, lambda bus: bus.groups.seek(topic, group, to=place, time=moment))
    output.tell(moved, f"{group} goes on at offset {moved.floor:,} of {topic}, lag {moved.lag:,}")


def _to_topic(
    job: Replay,
    stop_at: float | None,
    *,
    dry_run: bool,
    master: str | None,
    conf: list[str] | None,
    context: str | None,
) -> None:
    from landbridge.pipeline.jobs.running import Place

    check_reachable(context)
    with spark_session(master, conf) as spark, stop_signals() as stop:
        place = Place(spark, "", where=where(context))
        if dry_run:
            extent = job.extent(place)
            output.tell({"event": "dry-run", "name": job.name, **extent._asdict()}, _would(job, extent))
            return
        done = job.run(place, stop=stop, stop_at=stop_at, tell=_Shown(job), warn=output.notice)
    fields = {"event": "end", "name": job.name, **done._asdict(), "finished": done.finished}
    output.tell(fields, _summary(job, done))


def _would(job: Replay, extent: Extent) -> str:
    if not extent.rows:
        return f"nothing of {job.source} would be replayed"
    assert extent.oldest is not None
    assert extent.newest is not None
    return (
        f"{counted(extent.rows, 'message')} of {job.source}, {units.size(extent.bytes)}, would be replayed "
        f"into {job.to}: offsets {extent.first} to {extent.end - 1}, {units.iso(extent.oldest)} to "
        f"{units.iso(extent.newest)}"
    )


def _summary(job: Replay, done: Replayed) -> str:
    text = (
        f"{counted(done.rows, 'message')} of {job.source} replayed into {job.to}, {units.span(done.seconds)}"
    )
    if done.finished:
        return f"{text}; all is replayed"
    newest = "" if done.newest is None else f", {units.iso(done.newest)}"
    return (
        f"{text}; stopped before offset {done.reached}{newest}, of {done.end}. The same again goes on there, "
        f"or --name {job.name}"
    )


class _Shown:
    """How far it is: a JSON line per chunk, or a notice now and then."""

    def __init__(self, job: Replay) -> None:
        self._job = job
        self._told_at = time.monotonic()

    def __call__(self, done: Replayed) -> None:
        if output.choice.json:
            output.write_json({"event": "chunk", **done._asdict()})
            return
        every = 1.0 if sys.stderr.isatty() else TELL_EVERY
        if time.monotonic() - self._told_at >= every and not done.finished:
            self._told_at = time.monotonic()
            speed = done.rows / done.seconds if done.seconds else 0.0
            output.notice(
                f"{self._job.to}: {done.rows:,} messages, {speed:,.0f}/s, "
                f"offset {done.reached:,} of {done.end:,}"
            )
