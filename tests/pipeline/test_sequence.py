"""The jobs ``sequence`` and ``events``: their processors without a session, streams from topic to topic."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql.streaming.tws_tester import TwsTester

import landbridge.sync
from landbridge.errors import BadName, BadOption, SequenceGap
from landbridge.pipeline.jobs.running import Place, Trigger, run
from landbridge.pipeline.jobs.sequence.notifications import Events
from landbridge.pipeline.jobs.sequence.packs import pack, unpack
from landbridge.pipeline.jobs.sequence.policy import GapPolicy
from landbridge.pipeline.jobs.sequence.sequence import Numbering, Sequence, read_lines, stateful, transform
from landbridge.pipeline.jobs.sequence.sequencing import MEANINGLESS, Dispatching, Sequencing
from tests.events import oracle, random_lines, shuffled
from tests.pipeline.site import Site
from tests.pipeline.test_shard import rows, values

BY_HEADER = Numbering("key", "header:n")


def place(spark: Any, site: Site) -> Place:
    return Place(spark, site.checkpoint, Trigger(once=True), site.access)


def logged(bus: landbridge.sync.Bus, topic: str) -> list[tuple[bytes, bytes, dict[str, Any]]]:
    """(key, payload, headers) of a topic's log, in order."""
    found: list[tuple[bytes, bytes, dict[str, Any]]] = []
    while batches := bus.fetch(topic, len(found)).batches:
        for fetched in batches:
            batch = fetched.batch
            found += [(batch.key(n), batch.payload(n), batch.headers(n)) for n in range(len(batch))]
    return found


def messages(site: Site, which: str) -> list[tuple[bytes, bytes, dict[str, Any]]]:
    return logged(site.bus, site.topic(which))


# -- the processors, without a session ----------------------------------------------------------------


def packed(*tables: pa.Table) -> pd.DataFrame:
    return pd.DataFrame({"rows": [pack(table) for table in tables]})


def unpacked(frame: pd.DataFrame) -> pa.Table:
    return pa.concat_tables([unpack(each) for each in frame["rows"]])


def test_processor_takes_the_packs_of_a_micro_batch_together_and_keeps_the_rest() -> None:
    tester: Any = TwsTester(Sequencing(GapPolicy(), 16))
    out = tester.testInPandas(3, packed(rows(("a", 3), ("b", 2)), rows(("a", 1), first=2)))
    assert values(unpacked(out)) == ["a1@2"]
    assert tester.testInPandas(4, packed(rows(("a", 2)))).empty  # of another shard
    out = tester.testInPandas(3, packed(rows(("a", 2), ("b", 1), first=3)))
    assert sorted(values(unpacked(out))) == ["a2@3", "a3@0", "b1@4", "b2@1"]


def test_processor_has_one_timer_for_the_oldest_gap() -> None:
    tester: Any = TwsTester(Sequencing(GapPolicy(gap_within=5.0), 16), timeMode="ProcessingTime")
    tester.setProcessingTime(1000)
    assert tester.testInPandas(0, packed(rows(("a", 2)))).empty
    tester.setProcessingTime(3000)
    assert tester.testInPandas(0, packed(rows(("b", 2), ("c", 3), first=1))).empty
    assert list(tester.handle.listTimers()) == [6000]
    assert tester.setProcessingTime(5999).empty
    assert values(unpacked(tester.setProcessingTime(6000))) == ["a2@0"]
    assert list(tester.handle.listTimers()) == [8000]
    # The gap closes before its time: its timer goes with it.
    out = tester.testInPandas(0, packed(rows(("b", 1), ("c", 1), ("c", 2), first=3)))
    assert sorted(values(unpacked(out))) == ["b1@3", "b2@1", "c1@4", "c2@5", "c3@2"]
    assert list(tester.handle.listTimers()) == []


def lines(*given: bytes) -> pd.DataFrame:
    nothing = pa.nulls(len(given))
    table = pa.table({"value": pa.array(given), "source": pa.array([b""] * len(given), pa.binary())})
    table = table.append_column("sequence", nothing.cast(pa.int64()))
    return packed(read_lines(table.append_column("reason", nothing.cast(pa.string()))))


def test_events_are_told_in_order_and_what_is_no_event_is_set_aside() -> None:
    tester: Any = TwsTester(Dispatching(GapPolicy(), (b"9",)))
    out = unpacked(tester.testInPandas(0, lines(b"3|B", b"x|B", b"2|P|1|2"))).to_pylist()
    assert [(row["client"], row["line"], row["reason"]) for row in out] == [
        (None, b"x|B", "not an event: no sequence number")
    ]
    out = unpacked(tester.testInPandas(0, lines(b"1|Q|4|5", b"4|S|2"))).to_pylist()
    told: dict[bytes, list[bytes]] = {}
    for row in out:
        if not row["reason"]:
            told.setdefault(row["client"], []).append(row["line"])
    assert told == {b"1": [b"3|B"], b"2": [b"2|P|1|2", b"3|B"], b"9": [b"3|B"]}
    assert [row["line"] for row in out if row["reason"] == MEANINGLESS] == [b"1|Q|4|5"]


# -- options ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"source_from": "value", "sequence_from": "header:n"},
        {"source_from": "header:", "sequence_from": "header:n"},
        {"source_from": "json:path", "sequence_from": "header:n"},
        {"sequence_from": "offset"},
        {},
        {"format": "events", "sequence_from": "header:n"},
        {"format": "csv"},
    ],
)
def test_numbering_that_can_not_be_read_is_refused(options: dict[str, str]) -> None:
    with pytest.raises(BadOption):
        Numbering(**options)


def test_jobs_refuse_what_can_not_be() -> None:
    with pytest.raises(BadOption, match="read and written"):
        Sequence("a,b", "b", BY_HEADER, GapPolicy())
    with pytest.raises(BadName):
        Events("a", "b c", GapPolicy())
    with pytest.raises(BadOption, match="late"):
        Sequence("a", "b", BY_HEADER, GapPolicy(), late="keep")  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="id of a client"):
        Events("a", "b", GapPolicy(), users=("a|b",))


# -- from topic to topic ------------------------------------------------------------------------------


def publish(site: Site, given: Iterable[tuple[str, int]], which: str = "orders") -> None:
    with site.bus.publisher(site.topic(which)) as out:
        for source, number in given:
            out.send(b"%s %d" % (source.encode(), number), key=source, headers={"n": number, "kept": "yes"})


def numbers(site: Site, which: str = "copy") -> dict[bytes, list[int]]:
    found: dict[bytes, list[int]] = {}
    for key, payload, _ in messages(site, which):
        found.setdefault(key, []).append(int(payload.split()[1]))
    return found


def test_each_source_comes_out_in_order_and_once_also_across_a_restart(spark: Any, site: Site) -> None:
    dice = random.Random(1)
    given = [(f"s{source}", number) for source in range(7) for number in range(1, 41)]
    dice.shuffle(given)
    missing = ("s3", 1)
    given.remove(missing)
    publish(site, given[:150])
    with site.bus.publisher(site.topic()) as out:
        out.send(b"no number", key="s1", headers={"kept": "yes"})
        out.send(b"no source", headers={"n": 1})
        out.send(b"no digits", key="s1", headers={"n": "-1"})
    job = Sequence(site.topic(), site.topic("copy"), BY_HEADER, GapPolicy(), at_most=100)
    outcome = run(job, place(spark, site))
    assert (outcome.rows, outcome.batches) == (153, 2)
    publish(site, given[150:])
    publish(site, given[100:200])  # again
    run(job, place(spark, site))
    every = list(range(1, 41))
    assert numbers(site) == {b"s%d" % source: every for source in range(7) if source != 3}
    publish(site, [missing])
    run(job, place(spark, site))
    assert numbers(site) == {b"s%d" % source: every for source in range(7)}
    assert all(headers["kept"] == "yes" for _, _, headers in messages(site, "copy"))
    rejects = {payload: headers for _, payload, headers in messages(site, "copy.rejects")}
    assert rejects == {
        b"no number": {"kept": "yes", "reason": "no sequence number: nothing at header:n"},
        b"no source": {"n": "1", "reason": "no source: nothing at key"},
        b"no digits": {
            "n": "-1",
            "reason": "what is at header:n is not a number below 9223372036854775808",
        },
    }


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_what_comes_too_late_is_passed_on_and_refusing_stops_with_the_reason(spark: Any, site: Site) -> None:
    with site.bus.publisher(site.topic()) as out:
        for number in (2, 4, 6, 8):
            out.send({"from": {"who": "a"}, "n": number})
    numbering = Numbering("json:$.from.who", "json:$.n")
    strict = Sequence(site.topic(), site.topic("copy"), numbering, GapPolicy(hold=2, on_gap="refuse"))
    with pytest.raises(SequenceGap, match="source 'a': number 1 is missing") as caught:
        run(strict, place(spark, site))
    assert "on_gap=skip" in caught.value.hint
    # The same checkpoint, with another policy, goes on where it stopped.
    job = Sequence(site.topic(), site.topic("copy"), numbering, GapPolicy(hold=2), late="pass")
    run(job, place(spark, site))
    site.bus.publish(site.topic(), {"from": {"who": "a"}, "n": 1})
    run(job, place(spark, site))
    assert site.rows("copy") == [b'{"from":{"who":"a"},"n":%d}' % n for n in (2, 4, 6)]
    assert site.rows("copy.late") == [b'{"from":{"who":"a"},"n":1}']


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_micro_batch_that_is_run_again_gives_the_same_rows(spark: Any, site: Site) -> None:
    """Also where there is more than one row of a number, and a gap is given up."""
    dice = random.Random(2)
    given = [(f"s{source}", number) for source in range(5) for number in range(2, 40)] * 2
    dice.shuffle(given)
    publish(site, given)
    ordered = transform(
        site.read_stream(spark, minPartitions=3, includeHeaders="true"), BY_HEADER, GapPolicy(hold=8)
    )
    runs: list[list[Any]] = []

    def keep(frame: Any, number: int) -> None:
        runs.append([(row.source, row.sequence, row.offset, row.late) for row in frame.collect()])
        if len(runs) == 1:
            raise RuntimeError("after the rows were seen")

    def start() -> Any:
        writer = ordered.writeStream.foreachBatch(keep).option("checkpointLocation", site.checkpoint)
        with stateful(spark, once=True):
            return writer.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="after the rows were seen"):
        start().awaitTermination()
    start().awaitTermination()
    first, second = runs
    assert sorted(first) == sorted(second)
    assert len(first) > 100
    for source in {row[0] for row in first}:
        assert [row for row in first if row[0] == source] == [row for row in second if row[0] == source]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_gap_is_given_up_by_the_clock(spark: Any, site: Site) -> None:
    publish(site, [("a", 2), ("b", 1)])
    job = Sequence(site.topic(), site.topic("copy"), BY_HEADER, GapPolicy(gap_within=0.001))
    run(job, place(spark, site))
    publish(site, [("b", 2)])
    run(job, place(spark, site))
    assert numbers(site) == {b"b": [1, 2], b"a": [2]}
    # As docs/pipeline-sequence.md says.
    publish(site, [("b", 3)])
    with pytest.raises(Exception, match=r"TimeMode|timeMode"):
        run(Sequence(site.topic(), site.topic("copy"), BY_HEADER, GapPolicy()), place(spark, site))


def test_notifications_are_what_the_oracle_says(spark: Any, site: Site) -> None:
    events = random_lines(11, 3000, 12)
    users = [str(n) for n in range(1, 13)]
    batches = list(shuffled(5, events, 700))
    with site.bus.publisher(site.topic()) as out:
        out.send_many([line for batch in batches[:3] for line in batch])
    job = Events(site.topic(), site.topic("told"), GapPolicy(), users=tuple(users), at_most=900)
    run(job, place(spark, site))
    with site.bus.publisher(site.topic()) as out:
        out.send_many([line for batch in batches[2:] for line in batch] + [b"nonsense"])
    run(job, place(spark, site))
    got: dict[bytes, list[bytes]] = {}
    for key, line, _ in messages(site, "told"):
        got.setdefault(key, []).append(line)
    assert got == oracle(events, [user.encode() for user in users])
    assert [(line, headers) for _, line, headers in messages(site, "told.rejects")] == [
        (b"nonsense", {"reason": "not an event: no sequence number"})
    ]


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run(spark: Any, bus: landbridge.sync.Bus, tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline-sequence.md").read_text()
    scope: dict[str, Any] = {}
    for block in re.findall(r"^```py\n(.*?)^```", text, re.S | re.M):
        exec(block.replace("checkpoints/", f"{tmp_path}/"), scope)
    assert [payload for _, payload, _ in logged(bus, "readings.ordered")] == [
        b'{"degrees":%d}' % n for n in (21, 22, 23)
    ]
    told = [(key, line) for key, line, _ in logged(bus, "lines.told")]
    assert [line for key, line in told if key == b"anna"] == [b"3|B"]
    assert [line for key, line in told if key == b"bert"] == [b"1|F|anna|bert", b"2|P|anna|bert", b"3|B"]
