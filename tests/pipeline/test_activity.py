"""The job ``activity``: its rows against an oracle in plain Python, and against what a terminal was given."""

from __future__ import annotations

import datetime
import json
import random
import re
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pytest

from landbridge.core import latency, status
from landbridge.errors import BadOption
from landbridge.pipeline.jobs.activity.activity import Activity, transform
from landbridge.pipeline.jobs.activity.minutes import (
    BYTES,
    COUNTS,
    EVENTS,
    HISTOGRAMS,
    KEYS,
    MESSAGES,
    figures,
    merged,
)
from landbridge.pipeline.jobs.activity.table import ActivityTable, BatchFolder
from landbridge.pipeline.jobs.running import Place, Trigger, run
from tests.pipeline.busy import keep_busy
from tests.pipeline.site import Site

BEGIN = 1_800_000_000_000_000
MINUTE = 60_000_000


def generated(count: int, seed: int) -> list[status.Event]:
    """Events of every kind in three minutes, by a log of its own for each second."""
    draw = random.Random(seed)
    events: list[status.Event] = []
    for _ in range(count):
        log = status.StatusLog()
        now = BEGIN + draw.randrange(3 * MINUTE)
        topic, who = draw.choice(["orders", "bills"]), draw.choice(["ann", "bob"])
        kind = draw.choice([*MESSAGES.values(), *EVENTS.values(), "lag", "subscribe"])
        if kind in ("bury", "refuse", "error", "lag", "authenticate", "subscribe"):
            group = draw.choice(["", "g"])
            log.note(now, kind, who=who, topic=topic, group=group, cause="x", messages=draw.randrange(9))
        else:
            group = "" if kind in ("publish", "arrive") else draw.choice(["g", "h"])
            times = [
                (now - draw.randrange(1 << draw.randrange(1, 36)), draw.randrange(1, 9)) for _ in range(3)
            ]
            published = times if kind in HISTOGRAMS.values() else ()
            log.count(
                now, kind, who, topic, group, "why", messages=7, size=draw.randrange(999), published=published
            )
        events += [msgspec.json.decode(each, type=status.Event) for each in map(status.encode, log.take(now))]
    return events


def key_of(event: status.Event) -> tuple[int, str, str, str, str]:
    producing = event.event in ("publish", "arrive")
    role = "producer" if producing else "consumer" if event.group and event.who else ""
    return event.time // MINUTE * MINUTE, event.topic, event.group, role, event.who


def expected(events: list[status.Event]) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for event in events:
        if event.event == "subscribe":
            continue
        blank: dict[str, Any] = {**dict.fromkeys(COUNTS, 0), "lag": None}
        blank |= {name: Counter() for name in (*HISTOGRAMS, "causes")}
        row = rows.setdefault(key_of(event), blank)
        for column, kind in MESSAGES.items():
            row[column] += event.messages * (kind == event.event)
        for column, kind in EVENTS.items():
            row[column] += kind == event.event
        for column, kind in BYTES.items():
            row[column] += event.bytes * (kind == event.event)
        for column, kind in HISTOGRAMS.items():
            if kind == event.event:
                latency.add(row[column], event.latency)
        if event.event == "lag":
            row["lag"] = max(row["lag"] or 0, event.messages)
        if event.event in ("requeue", "expire", "bury", "refuse", "error"):
            once = event.event in ("refuse", "error")
            row["causes"][f"{event.event}: {event.cause}"] += 1 if once else event.messages
    return rows


def found(frame: Any) -> dict[tuple[Any, ...], dict[str, Any]]:
    rows = {}
    for row in frame.collect():
        fields = row.asDict()
        minute = fields.pop("minute").replace(tzinfo=datetime.UTC)
        key = (int(minute.timestamp()) * 1_000_000, *(fields.pop(name) for name in KEYS[1:]))
        assert key not in rows
        rows[key] = fields
    return rows


def frame_of(spark: Any, events: list[status.Event]) -> Any:
    payloads = [*map(msgspec.json.encode, events), b"no JSON", b'{"event": 1}']
    # From Arrow, which needs no Python worker.
    return spark.createDataFrame(pa.table({"value": pa.array(payloads, pa.binary())}))


def test_rows_are_those_of_the_oracle_however_the_log_was_cut(spark: Any) -> None:
    events = generated(400, seed=1)
    halves = [transform(frame_of(spark, events[part::2])) for part in range(2)]
    rows = found(figures(merged(halves[0].unionByName(halves[1]))))
    for key, row in expected(events).items():
        measured = rows.pop(key)
        assert {name: measured[name] for name in row} == row
        assert measured["published_per_second"] == pytest.approx(row["published"] / 60)
        for name in HISTOGRAMS:
            wanted = latency.percentiles(row[name], (0.5, 0.9, 0.99))
            assert [measured[f"{name}_{which}_ms"] for which in ("p50", "p90", "p99")] == [
                None if each is None else pytest.approx(each / 1000) for each in wanted
            ]
    assert rows == {}


def test_a_micro_batch_counts_once_and_folders_stay_few(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("landbridge.pipeline.jobs.activity.table.SPANS", (2,))
    table = ActivityTable(spark, str(tmp_path / "table"))
    with pytest.raises(BadOption, match="no table of activity"):
        table.read()
    events = generated(60, seed=2)
    parts = [events[number * 20 : number * 20 + 20] for number in range(3)]
    cut = [transform(frame_of(spark, part)).cache() for part in parts]
    for number in (0, 1, 1, 2):  # 1 is run again: Spark died before it knew that 1 was written
        table.write(cut[number], "query-1", number)
    assert found(table.read()) == expected(events)
    assert table.parts()[0] == [BatchFolder(0, 1), BatchFolder(2, 2)]
    assert table.parts()[1] == []  # those within others are gone
    (tmp_path / "table" / BatchFolder(2, 2).folder / "_SUCCESS").unlink()  # as if it had died while writing
    assert table.parts()[0] == [BatchFolder(0, 1)]
    with pytest.raises(BadOption, match="another query"):
        table.write(cut[0], "query-2", 0)


@pytest.fixture
def busy(site: Site) -> Site:
    return keep_busy(site)


def test_table_says_what_a_terminal_was_given_and_goes_on_after_a_restart(spark: Any, busy: Site) -> None:
    path = str(busy.folder / "minutes")
    place = Place(spark, busy.checkpoint, Trigger(once=True), busy.access)
    assert run(Activity(to=path), place).rows > 0
    of_topic = f"topic = '{busy.topic()}'"

    def totals() -> dict[str, Any]:
        rows = found(ActivityTable(spark, path).read().where(of_topic)).values()
        sums = {name: sum(row[name] for row in rows) for name in COUNTS}
        for name in (*HISTOGRAMS, "causes"):
            sums[name] = sum((Counter(row[name]) for row in rows), Counter())
        return sums

    first = totals()
    assert (first["published"], first["acked"], first["buried"]) == (50, 28, 2)
    assert first["delivered"] >= 30
    assert first["waiting"].total() == first["delivered"]
    assert first["latency"].total() == 28
    assert first["causes"]["bury: broken"] == 2
    assert first["published_bytes"] > 0
    again = run(Activity(to=path), place)  # from its checkpoint: only what came since
    assert totals() == first
    assert again.rows < 50


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_topic_gets_rows_once(spark: Any, busy: Site) -> None:
    job = Activity(to_topic=busy.topic("minutes"))
    place = Place(spark, busy.checkpoint, Trigger(once=True), busy.access)
    run(job, place)
    documents = [json.loads(row) for row in busy.rows("minutes")]
    mine = [document for document in documents if document["topic"] == busy.topic()]
    assert sum(document["published"] for document in mine) == 50
    assert sum(sum(document["latency"].values()) for document in mine) == 28
    key = busy.bus.fetch(busy.topic("minutes"), 0).batches[0].batch.key(0)
    assert key is not None
    assert key.count(b"|") == 2
    # Spark had not written down that this micro-batch was done: it runs again, and publishes nothing.
    for commit in Path(busy.checkpoint, "commits").glob("[0-9]*"):
        commit.unlink()
    run(job, place)
    assert [json.loads(row) for row in busy.rows("minutes")][: len(documents)] == documents
    published = Counter(json.loads(row)["topic"] for row in busy.rows("minutes"))
    assert published[busy.topic()] == len(mine)


@pytest.mark.parametrize(
    ("options", "says"),
    [({}, "one of the two"), ({"to": "x", "to_topic": "y"}, "one of the two"), ({"to_topic": "a b"}, "a b")],
)
def test_options_that_cant_be(options: dict[str, str], says: str) -> None:
    with pytest.raises(BadOption, match=says):
        Activity(**options)


TEXT = (Path(__file__).parents[2] / "docs" / "pipeline-activity.md").read_text()


@pytest.mark.parametrize("name", [*KEYS, *COUNTS, *HISTOGRAMS, "lag", "causes"])
def test_column_is_documented(name: str) -> None:
    assert re.search(rf"^\| [^|]*`{name}`", TEXT, re.M)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run(spark: Any, busy: Site) -> None:
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", TEXT, re.S | re.M):
        exec(block.replace("checkpoints/", f"{busy.folder}/").replace("tables/", f"{busy.folder}/"), scope)
    mine = scope["minutes"].where(f"topic = '{busy.topic()}' and role = 'consumer'").collect()
    assert sum(row["acked"] for row in mine) == 28
    assert all(row["latency_p99_ms"] > 0 for row in mine if row["acked"])
