"""Topics as tables, read by a real Spark; and its readers called directly, where that says as much."""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import functions as f
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from landbridge.broker.server import Terminal
from landbridge.core.log.planning import LogPosition, to_json
from landbridge.core.log.store import Trim
from landbridge.errors import BadOption, OffsetGone, OtherLog, UnknownTopic
from landbridge.pipeline import lag
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.connector.failure import failure
from landbridge.pipeline.connector.options import read_options
from landbridge.pipeline.connector.source import BatchReader, StreamReader, Task
from tests.pipeline.site import Site, site_at


def value_schema() -> Any:
    from pyspark.sql.types import BinaryType, LongType, StructField, StructType

    return StructType([StructField("value", BinaryType()), StructField("offset", LongType())])


def batch_reader(site: Site, **options: Any) -> BatchReader:
    given = {"subscribe": site.topic(), **site.access, **options}
    return BatchReader(value_schema(), TerminalAccess.of(given), read_options(given, stream=False))


def stream_reader(site: Site, **options: Any) -> StreamReader:
    given = {"subscribe": site.topic(), "startingOffsets": "earliest", **site.access, **options}
    return StreamReader(value_schema(), TerminalAccess.of(given), read_options(given, stream=True))


def values(reader: Any, tasks: Any) -> list[bytes]:
    return [value for task in tasks for rows in reader.read(task) for value in rows.column(0).to_pylist()]


def at(site: Site, offset: int, which: str = "orders") -> dict[str, Any]:
    """As a checkpoint has it."""
    there = site.bus.topics.wait({site.topic(which): offset})[site.topic(which)]
    return to_json({site.topic(which): LogPosition(offset, there.log, there.before)})


def plain(site: Site, offset: int, which: str = "orders") -> dict[str, Any]:
    """As a user gives it, and as 0.1 has kept it."""
    return {site.topic(which): {"0": offset}}


def trim(terminal: Terminal, topic: str, before: int) -> None:
    """As retention would: everything below is gone. The offset has to be where a batch begins."""
    import asyncio

    found = terminal.broker.table.topic(topic)

    async def work() -> None:
        await terminal.broker.write([Trim(found.log.number, before)], unit=found.writer.unit)
        found.log.trim((await terminal.store.logs(found.writer.unit))[found.log.number])
        assert found.log.first == before

    asyncio.run_coroutine_threadsafe(work(), found.writer._loop).result(30)


# -- readers, called directly -------------------------------------------------------------------------


def test_a_range_is_cut_into_tasks_that_have_every_row_once(site: Site) -> None:
    site.publish(1000)
    reader = batch_reader(site, minPartitions="7")
    tasks = reader.partitions()
    assert len(tasks) == 7
    assert values(reader, tasks) == [b"%d" % n for n in range(1000)]
    tasks = batch_reader(site, maxRecordsPerPartition="300").partitions()
    assert [sum(map(len, task.spans)) for task in tasks if isinstance(task, Task)] == [250] * 4


def test_a_compressed_topic_reads_like_any_other(site: Site, terminal: Terminal) -> None:
    stages: Any = [{"stage": "compress"}, {"stage": "redact", "patterns": ["7"], "at": "deliver"}]
    site.bus.topics.create(site.topic(), middleware=stages)
    payloads = [b'"%d %s"' % (n, b"the same in each " * 20) for n in range(3000)]
    with site.bus.publisher(site.topic()) as out:
        out.send_many(payloads)
    assert terminal.broker.topics[site.topic()].log.bytes * 10 < sum(map(len, payloads))
    reader = batch_reader(site, maxRecordsPerPartition="700")
    shown = [payload.replace(b"7", b"[redacted]") for payload in payloads]
    assert values(reader, reader.partitions()) == shown


def test_offsets_bound_a_batch_read(site: Site) -> None:
    site.publish(100)
    start, end = json.dumps(plain(site, 10)), json.dumps(plain(site, 13))
    reader = batch_reader(site, startingOffsets=start, endingOffsets=end)
    assert values(reader, reader.partitions()) == [b"10", b"11", b"12"]
    everything = batch_reader(site, startingOffsets=json.dumps({site.topic(): -2}), endingOffsets="latest")
    assert len(values(everything, everything.partitions())) == 100


def test_a_moment_bounds_a_batch_read(site: Site) -> None:
    site.publish(3)
    time.sleep(0.005)  # the option has milliseconds
    middle = time.time_ns() // 1_000_000
    time.sleep(0.005)
    site.publish(3, first=3)
    later = batch_reader(site, startingTimestamp=str(middle))
    earlier = batch_reader(site, endingOffsetsByTimestamp=json.dumps({site.topic(): middle}))
    assert values(later, later.partitions()) == [b"3", b"4", b"5"]
    assert values(earlier, earlier.partitions()) == [b"0", b"1", b"2"]


def test_a_pattern_reads_every_topic_that_it_covers(site: Site) -> None:
    site.publish(2, "orders.eu")
    site.publish(3, "orders.us")
    site.publish(5, "bills")
    options = {**site.access, "subscribePattern": f"{site.name}.orders.*"}
    reader = BatchReader(value_schema(), TerminalAccess.of(options), read_options(options, stream=False))
    assert len(values(reader, reader.partitions())) == 5


def test_a_topic_that_is_not_there_is_told(site: Site) -> None:
    with pytest.raises(UnknownTopic, match=site.topic()):
        batch_reader(site).partitions()
    with pytest.raises(UnknownTopic):
        stream_reader(site).initialOffset()


def test_offsets_that_are_gone_fail_or_are_left_out(site: Site, terminal: Terminal) -> None:
    for n in range(10):
        site.bus.publish(site.topic(), b"%d" % n)
    tasks = batch_reader(site).partitions()  # planned while it was there
    trim(terminal, site.topic(), 4)
    with pytest.raises(OffsetGone, match="offsets 0 to 3 are gone"):
        values(batch_reader(site), tasks)
    assert values(batch_reader(site, failOnDataLoss="false"), tasks) == [b"%d" % n for n in range(4, 10)]
    start = json.dumps(plain(site, 1))
    with pytest.raises(OffsetGone, match="no offset 1"):
        batch_reader(site, startingOffsets=start).partitions()
    with pytest.raises(OffsetGone, match="no offset 1"):
        stream_reader(site, startingOffsets=start).initialOffset()
    rest = batch_reader(site, startingOffsets=start, failOnDataLoss="false")
    assert len(values(rest, rest.partitions())) == 6
    beyond = json.dumps(plain(site, 99))
    with pytest.raises(OffsetGone, match="ends at 10, before 99"):
        batch_reader(site, endingOffsets=beyond).partitions()


@pytest.mark.parametrize("once", [False, True])
@pytest.mark.parametrize("now_has", [3, 20])
def test_a_topic_that_was_made_anew_is_another_log(site: Site, now_has: int, once: bool) -> None:
    site.publish(10)
    start = at(site, 10)
    site.make_anew(now_has, first=100)
    reader, lenient = stream_reader(site), stream_reader(site, failOnDataLoss="false")
    for each in (reader, lenient) if once else ():
        each.prepareForTriggerAvailableNow()
    with pytest.raises(OtherLog, match=r"offset 10 is of the log .* made anew at") as caught:
        reader.latestOffset(start, ReadAllAvailable())
    assert "new checkpoint folder" in caught.value.hint
    # Whoever says that loss is no matter gets the new log, and all of it.
    begin = lenient.latestOffset(start, ReadAllAvailable())
    assert lenient.partitions(start, begin) == []
    end = lenient.latestOffset(begin, ReadAllAvailable())
    assert end == at(site, now_has)
    assert len(values(lenient, lenient.partitions(begin, end))) == now_has


def test_a_topic_that_is_made_anew_before_its_rows_are_read(site: Site) -> None:
    site.publish(10)
    for reader in (batch_reader(site), batch_reader(site, failOnDataLoss="false")):
        site.make_anew(10)
        tasks = reader.partitions()
        site.make_anew(20, first=100)
        if reader._options.fail_on_data_loss:
            with pytest.raises(OtherLog, match="made anew"):
                values(reader, tasks)
        else:
            assert values(reader, tasks) == []


def test_a_group_is_not_moved_by_offsets_of_another_log(site: Site) -> None:
    site.publish(10)
    reader = stream_reader(site, group="spark")
    start = reader.initialOffset()
    end = reader.latestOffset(start, ReadAllAvailable())
    site.make_anew(20)
    reader.commit(end)
    assert site.bus.call("topic.show", name=site.topic())["groups"] == []


def test_the_same_topic_of_another_terminal_is_another_log(site: Site, tmp_path: Path) -> None:
    site.publish(10)
    start = at(site, 10)
    with site_at(tmp_path / "second.db", site.folder, site.name) as second:
        second.publish(20)
        with pytest.raises(OtherLog, match="offset 10 is of"):
            stream_reader(second).latestOffset(start, ReadAllAvailable())
        given = json.dumps(start)  # offsets that are given with their log
        for reader in (stream_reader, batch_reader):
            with pytest.raises(OtherLog, match="offset 10 is of"):
                begin = reader(second, startingOffsets=given)
                begin.initialOffset() if isinstance(begin, StreamReader) else begin.partitions()


def test_a_terminal_that_was_restored_is_noticed(site: Site, tmp_path: Path) -> None:
    live, backup = tmp_path / "live", tmp_path / "backup"
    with site_at(live, site.folder, site.name) as before:
        before.publish(10)
    shutil.copytree(live, backup)
    with site_at(live, site.folder, site.name) as before:
        kept = at(before, 10)
        before.publish(10, first=10)
        start, end = at(before, 12), at(before, 20)
    with site_at(backup, site.folder, site.name) as restored:
        with pytest.raises(OtherLog, match="ends at 10 now: the terminal was restored"):
            stream_reader(restored).latestOffset(end, ReadAllAvailable())
        restored.publish(30, first=100)
        for now in (False, True):
            reader = stream_reader(restored)
            if now:
                reader.prepareForTriggerAvailableNow()
            with pytest.raises(OtherLog, match=r"the message before offset 20 .* was restored"):
                reader.latestOffset(end, ReadAllAvailable())
        # The micro-batch that was planned and not done is not read from the new history.
        with pytest.raises(OtherLog, match="the message before offset 12 "):
            stream_reader(restored).partitions(start, end)
        # What was read before the backup was made is the same.
        assert stream_reader(restored).latestOffset(kept, ReadAllAvailable()) == at(restored, 40)


def test_a_checkpoint_of_0_1_is_refused(site: Site) -> None:
    site.publish(10)
    reader, old = stream_reader(site, failOnDataLoss="false"), plain(site, 4)
    for call in (
        lambda: reader.latestOffset(old, ReadAllAvailable()),
        lambda: reader.partitions(old, plain(site, 8)),
        lambda: reader.commit(old),
    ):
        with pytest.raises(OtherLog, match=r"made by Landbridge 0\.1: it has offset 4") as caught:
            call()
    hint = caught.value.hint
    given = hint[hint.index("{") : hint.rindex("}") + 1]
    assert stream_reader(site, startingOffsets=given).initialOffset() == at(site, 4)


def test_what_is_available_now_is_checked_for_loss(site: Site, terminal: Terminal) -> None:
    for n in range(10):
        site.bus.publish(site.topic(), b"%d" % n)
    start = at(site, 4)
    trim(terminal, site.topic(), 6)
    reader = stream_reader(site)
    reader.prepareForTriggerAvailableNow()
    with pytest.raises(OffsetGone, match="there is no offset 4, it has 6 to 9"):
        reader.latestOffset(start, ReadAllAvailable())


@pytest.mark.parametrize("once", [False, True])
def test_a_trimmed_log_begins_where_it_begins(site: Site, terminal: Terminal, once: bool) -> None:
    options = {**site.access, "subscribePattern": f"{site.name}.#"}
    reader = StreamReader(value_schema(), TerminalAccess.of(options), read_options(options, stream=True))
    start = reader.initialOffset()
    for n in range(10):
        site.bus.publish(site.topic(), b"%d" % n)
    trim(terminal, site.topic(), 6)
    if once:
        reader.prepareForTriggerAvailableNow()
    got = []
    for _ in range(3):
        end = reader.latestOffset(start, ReadMaxRows(3))
        got += values(reader, reader.partitions(start, end))
        start = end
    assert got == [b"6", b"7", b"8", b"9"]
    assert end == at(site, 10)
    assert stream_reader(site).initialOffset() == at(site, 6)
    batch = batch_reader(site)
    assert values(batch, batch.partitions()) == got


def test_a_stream_begins_where_it_is_told(site: Site) -> None:
    site.publish(10)
    assert stream_reader(site).initialOffset() == at(site, 0)
    assert stream_reader(site, startingOffsets="latest").initialOffset() == at(site, 10)
    assert stream_reader(site, startingOffsets=json.dumps(plain(site, 4))).initialOffset() == at(site, 4)
    assert stream_reader(site, startingTimestamp="0").initialOffset() == at(site, 0)


def test_admission_and_what_is_reported(site: Site) -> None:
    site.publish(10)
    reader = stream_reader(site, maxOffsetsPerTrigger="4")
    limit = reader.getDefaultReadLimit()
    assert limit == ReadMaxRows(4)
    assert reader.reportLatestOffset() is None
    assert reader.latestOffset(at(site, 0), limit) == at(site, 4)
    assert reader.reportLatestOffset() == at(site, 10)
    assert reader.latestOffset(at(site, 4), ReadAllAvailable()) == at(site, 10)


def test_what_is_available_now_ends(site: Site) -> None:
    site.publish(10)
    reader = stream_reader(site)
    reader.prepareForTriggerAvailableNow()
    site.publish(5)
    assert reader.latestOffset(at(site, 0), ReadAllAvailable()) == at(site, 10)
    assert reader.latestOffset(at(site, 10), ReadAllAvailable()) == at(site, 10)


def test_too_few_are_held_back_until_the_delay_is_over(site: Site) -> None:
    site.publish(3)
    patient = stream_reader(site, minOffsetsPerTrigger="4", maxTriggerDelay="1h")
    assert patient.latestOffset(at(site, 0), ReadAllAvailable()) == at(site, 0)
    hasty = stream_reader(site, minOffsetsPerTrigger="4", maxTriggerDelay="0s")
    assert hasty.latestOffset(at(site, 0), ReadAllAvailable()) == at(site, 3)
    site.publish(1)
    assert patient.latestOffset(at(site, 0), ReadAllAvailable()) == at(site, 4)
    patient.prepareForTriggerAvailableNow()
    assert patient.latestOffset(at(site, 3), ReadAllAvailable()) == at(site, 4)


def test_a_topic_that_appears_joins_a_pattern(site: Site) -> None:
    site.publish(2, "orders.eu")
    options = {**site.access, "subscribePattern": f"{site.name}.#", "startingOffsets": "latest"}
    reader = StreamReader(value_schema(), TerminalAccess.of(options), read_options(options, stream=True))
    start = reader.initialOffset()
    site.publish(3, "orders.us")
    end = reader.latestOffset(start, ReadAllAvailable())
    assert end == {**at(site, 2, "orders.eu"), **at(site, 0, "orders.us")}  # it begins at its beginning
    assert reader.partitions(start, end) == []
    start, end = end, reader.latestOffset(end, ReadAllAvailable())
    assert end == {**at(site, 2, "orders.eu"), **at(site, 3, "orders.us")}
    assert len(values(reader, reader.partitions(start, end))) == 3


def test_a_query_is_a_group(site: Site) -> None:
    site.publish(10)
    reader = stream_reader(site, group="spark")
    reader.initialOffset()
    assert site.bus.call("group.show", topic=site.topic(), name="spark")["lag"] == 10
    reader.commit(at(site, 7))
    assert site.bus.call("group.show", topic=site.topic(), name="spark")["lag"] == 3
    reader.commit(at(site, 2))  # of a query that was restarted
    assert site.bus.call("group.show", topic=site.topic(), name="spark")["lag"] == 3


def test_offsets_for_topics_that_a_pattern_does_not_cover(site: Site) -> None:
    site.publish(1)
    options = {**site.access, "subscribePattern": f"{site.name}.#", "startingOffsets": '{"other": 0}'}
    reader = BatchReader(value_schema(), TerminalAccess.of(options), read_options(options, stream=False))
    with pytest.raises(BadOption, match=r"offsets for other, and the pattern .* covers"):
        reader.partitions()


# -- with Spark ---------------------------------------------------------------------------------------

pytestmark = pytest.mark.timeout(300)  # the first test of a run starts Spark


def test_a_batch_read_has_the_columns(spark: Any, site: Site) -> None:
    site.bus.publish(site.topic(), b"one", key="k", headers={"a": "b"}, priority=7)
    site.bus.publish(site.topic(), b"two")
    frame = site.read(spark, includeHeaders="true", includeMetadata="true")
    first, second = frame.orderBy("offset").collect()
    assert (bytes(first.key), bytes(first.value), first.topic) == (b"k", b"one", site.topic())
    assert (first.partition, first.offset, first.timestampType, first.priority) == (0, 0, 0, 7)
    assert [(each.key, bytes(each.value)) for each in first.headers] == [("a", b"b")]
    assert abs(first.timestamp.timestamp() - time.time()) < 3600
    assert (second.key, second.headers, second.priority, second.origin) == (None, None, 0, None)
    assert frame.columns[-4:] == ["headers", "id", "priority", "origin"]
    assert site.read(spark).columns[-1] == "timestampType"


def test_a_schema_chooses_columns_and_a_range_is_split(spark: Any, site: Site) -> None:
    site.publish(1000)
    options = {**site.access, "subscribe": site.topic(), "minPartitions": 3}
    frame = spark.read.format("landbridge").schema("value binary").options(**options).load()
    assert frame.columns == ["value"]
    counts = frame.groupBy(f.spark_partition_id()).count().collect()
    assert sorted(row["count"] for row in counts) == [333, 333, 334]
    total = frame.select(f.sum(f.col("value").cast("string").cast("int"))).first()[0]
    assert total == sum(range(1000))


def test_the_token_is_shown_nowhere(spark: Any, site: Site, capfd: pytest.CaptureFixture[str]) -> None:
    site.publish(1)
    frame = site.read(spark)
    frame.explain(True)
    frame.explain("formatted")
    seen = capfd.readouterr()
    plan = frame._jdf.queryExecution().toString()
    with pytest.raises(Exception, match=r"there is no option .nonsense") as caught:
        site.read(spark, nonsense="1").collect()
    with pytest.raises(Exception, match="there is no topic") as missing:
        site.read(spark, "missing").collect()
    for shown in (seen.out, seen.err, plan, repr(caught.value), str(caught.value), str(missing.value)):
        assert site.token not in shown
    assert site.topic() not in seen.err


def test_wrong_options_are_told_by_spark(spark: Any, site: Site) -> None:
    with pytest.raises(Exception, match="exactly one of subscribe, subscribePattern and assign"):
        spark.read.format("landbridge").options(**site.access).load().collect()
    with pytest.raises(Exception, match="a topic has no column 'payload'"):
        options = {**site.access, "subscribe": site.topic()}
        spark.read.format("landbridge").schema("payload binary").options(**options).load().collect()


def run_to_end(frame: Any, site: Site, got: list[Any]) -> Any:
    """Take what is available now, adding each micro-batch's rows to ``got``."""

    def keep(rows: Any, number: int) -> None:
        got.append([bytes(row.value) for row in rows.orderBy("topic", "offset").collect()])

    query = (
        frame.writeStream.foreachBatch(keep)
        .option("checkpointLocation", site.checkpoint)
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination(120)
    assert query.exception() is None
    return query


@pytest.mark.slow
def test_a_stream_goes_on_from_its_checkpoint(spark: Any, site: Site) -> None:
    site.publish(10)
    got: list[list[bytes]] = []
    query = run_to_end(site.read_stream(spark, maxOffsetsPerTrigger=4, group="spark"), site, got)
    assert [len(batch) for batch in got] == [4, 4, 2]
    progress = query.recentProgress
    assert [lag(each)[site.topic()] for each in progress if each["numInputRows"]] == [6, 2, 0]
    site.publish(5, first=10)
    run_to_end(site.read_stream(spark, group="spark", minPartitions=2), site, got)
    assert [value for batch in got for value in batch] == [b"%d" % n for n in range(15)]
    # A batch counts as settled when Spark begins the one after.
    assert site.bus.call("group.show", topic=site.topic(), name="spark")["floor"] == 10


def test_a_stream_is_not_continued_in_another_log(spark: Any, site: Site) -> None:
    site.publish(10)
    got: list[list[bytes]] = []
    run_to_end(site.read_stream(spark), site, got)
    site.make_anew(20, first=100)
    with pytest.raises(StreamingQueryException) as caught:
        run_to_end(site.read_stream(spark), site, got)
    error = failure(caught.value)
    assert (error.code, len(got)) == ("other_log", 1)
    assert "new checkpoint folder" in error.hint


@pytest.mark.slow
def test_a_stream_sees_what_comes(spark: Any, site: Site) -> None:
    site.publish(3)
    got: list[bytes] = []
    frame = site.read_stream(spark, startingOffsets="latest")

    def keep(rows: Any, number: int) -> None:
        got.extend(bytes(row.value) for row in rows.collect())

    query = frame.writeStream.foreachBatch(keep).option("checkpointLocation", site.checkpoint).start()
    try:
        query.processAllAvailable()
        site.publish(2, first=3)
        query.processAllAvailable()
        assert got == [b"3", b"4"]
    finally:
        query.stop()
