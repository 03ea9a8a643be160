"""Tables into topics, once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import functions as f

from landbridge.broker.server import Terminal
from landbridge.broker.stages import PREFIX
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.connector.options import write_options
from landbridge.pipeline.connector.sink import (
    BatchWriter,
    StagedRows,
    StreamWriter,
    commit_staged,
    stage_rows,
)
from tests.pipeline.site import Site

pytestmark = pytest.mark.timeout(300)


def table(*values: bytes) -> Iterator[Any]:
    import pyarrow as pa

    return iter([pa.record_batch({"value": pa.array(values, pa.binary())})])


def stages(terminal: Terminal) -> list[str]:
    return [name for name in terminal.broker.topics if name.startswith(PREFIX)]


# -- writers, called directly -------------------------------------------------------------------------


def writer(site: Site, **options: str) -> BatchWriter:
    given = {"topic": site.topic(), **options}
    return BatchWriter(TerminalAccess.of(site.access), write_options(given, stream=False))


def staged(site: Site, stage: str, *values: bytes) -> StagedRows:
    return stage_rows(table(*values), stage, TerminalAccess.of(site.access), site.topic())


def test_rows_of_all_tasks_are_published_in_their_order(site: Site) -> None:
    made = writer(site)
    late, early = made.write(table(b"c", b"d")), made.write(table(b"a", b"b"))
    assert site.rows() == []
    made.commit([early, late])
    assert site.rows() == [b"a", b"b", b"c", b"d"]


def test_an_attempt_that_does_not_count_is_left_out(site: Site, terminal: Terminal) -> None:
    made = writer(site)
    made.write(table(b"a", b"of an attempt that failed"))
    counts = made.write(table(b"a", b"b"))
    made.commit([counts])
    assert site.rows() == [b"a", b"b"]
    assert PREFIX + made._stage not in terminal.broker.topics


def test_an_abort_after_the_commit_undoes_nothing(site: Site) -> None:
    made = writer(site)
    message = made.write(table(b"a"))
    made.commit([message])
    made.abort([message])
    made.abort([])
    assert site.rows() == [b"a"]


def test_an_abort_instead_of_the_commit_leaves_nothing(site: Site, terminal: Terminal) -> None:
    made = writer(site)
    made.abort([made.write(table(b"a")), None])
    assert site.rows() == []
    assert PREFIX + made._stage not in terminal.broker.topics


def test_a_batch_is_once_whatever_its_rerun_looks_like(site: Site) -> None:
    """The commit reached the terminal and its answer got lost; Spark aborts, and runs the batch again with
    other tasks, other rows in each, and another order."""
    access, stage = TerminalAccess.of(site.access), f"query-{site.name}"
    commit_staged(access, [staged(site, stage, b"a", b"b"), staged(site, stage, b"c")], 5)
    StreamWriter(access, write_options({}, stream=True)).abort([], 5)
    commit_staged(
        access, [staged(site, stage, b"c", b"a"), staged(site, stage), staged(site, stage, b"b")], 5
    )
    assert site.rows() == [b"a", b"b", b"c"]
    commit_staged(access, [staged(site, stage, b"d")], 6)
    assert site.rows() == [b"a", b"b", b"c", b"d"]


def test_a_named_producer_writes_each_of_its_batches_once(site: Site) -> None:
    for number, value in ((0, b"a"), (0, b"a"), (1, b"b"), (0, b"a"), (1, b"b")):
        made = writer(site, producerId=f"nightly-{site.name}", producerBatch=str(number))
        made.commit([made.write(table(value))])
    assert site.rows() == [b"a", b"b"]


def test_many_rows_take_several_commits_of_the_store(site: Site) -> None:
    values = [b"%08d" % n for n in range(50_000)]  # the terminal of these tests takes 64 kB per commit
    made = writer(site)
    made.commit([made.write(table(*values)), made.write(table(b"last"))])
    assert site.rows() == [*values, b"last"]


# -- with Spark ---------------------------------------------------------------------------------------


def numbers(spark: Any, count: int, partitions: int = 2) -> Any:
    return spark.range(0, count, 1, partitions).select(f.col("id").cast("string").alias("value"))


def test_a_batch_write(spark: Any, site: Site, terminal: Terminal) -> None:
    frame = numbers(spark, 1000).select("value", f.lit("k").alias("key"), f.lit(1).alias("ignored"))
    site.write(frame)
    assert site.rows("copy") == [b"%d" % n for n in range(1000)]
    batch = site.bus.fetch(site.topic("copy"), 0).batches[0].batch
    assert batch.key(0) == b"k"
    assert stages(terminal) == []


def test_rows_say_their_topics(spark: Any, site: Site) -> None:
    which = f.concat(f.lit(site.name), f.when(f.col("value") % 2 == 0, ".even").otherwise(".odd"))
    frame = numbers(spark, 10, 1).select("value", which.alias("topic"))
    frame.write.format("landbridge").options(**site.access).mode("append").save()
    assert site.rows("even") == [b"0", b"2", b"4", b"6", b"8"]
    assert site.rows("odd") == [b"1", b"3", b"5", b"7", b"9"]


def test_a_batch_write_that_fails_publishes_nothing(spark: Any, site: Site, terminal: Terminal) -> None:
    broken = f.when(f.col("value") == "900", f.raise_error(f.lit("boom"))).otherwise(f.col("value"))
    with pytest.raises(Exception, match="boom"):
        site.write(numbers(spark, 1000).select(broken.alias("value")))
    assert site.rows("copy") == []
    assert stages(terminal) == []


def test_a_topic_is_not_overwritten(spark: Any, site: Site) -> None:
    with pytest.raises(Exception, match="can't be overwritten"):
        options = {**site.access, "topic": site.topic()}
        numbers(spark, 1).write.format("landbridge").options(**options).mode("overwrite").save()
    with pytest.raises(Exception, match="there is no column value"):
        site.write(spark.range(3))


def register_faulty(spark: Any, when: str, marker: Path) -> None:
    """A sink whose first commit fails, before or after the terminal has it. Defined in here, for what is
    local is pickled with its code, and the workers don't see the tests."""
    from pyspark_landbridge import DefaultSource

    mark = str(marker)

    class FaultyWriter(StreamWriter):
        def commit(self, messages: Any, batchId: int) -> None:  # noqa: N803
            from pathlib import Path

            first = batchId == 1 and not Path(mark).exists()
            if first:
                Path(mark).touch()
            if first and when == "before":
                raise RuntimeError("the driver fails before the commit")
            super().commit(messages, batchId)
            if first:
                raise RuntimeError("the driver fails after the commit")

    class FaultySource(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return f"landbridge_faulty_{when}"

        def streamWriter(self, schema: Any, overwrite: bool) -> Any:  # noqa: N802
            return FaultyWriter(*self._to_write(schema, overwrite, stream=True))

    spark.dataSource.register(FaultySource)


@pytest.mark.slow
@pytest.mark.parametrize("when", ["before", "after"])
def test_a_stream_is_exactly_once_when_its_commit_fails(spark: Any, site: Site, when: str) -> None:
    site.publish(300)
    register_faulty(spark, when, site.folder / "failed")

    def run(partitions: int) -> Any:
        frame = site.read_stream(spark, maxOffsetsPerTrigger=100, minPartitions=partitions)
        sink = site.write_stream(frame.select("value")).format(f"landbridge_faulty_{when}")
        query = sink.trigger(availableNow=True).start()
        with_error: Any = None
        try:
            query.awaitTermination(120)
        except Exception as error:
            with_error = error
        return with_error

    assert f"fails {when} the commit" in str(run(1))
    assert len(site.rows("copy")) == (100 if when == "before" else 200)
    assert run(3) is None  # the same batch again, cut otherwise
    assert sorted(map(int, site.rows("copy"))) == list(range(300))


@pytest.mark.slow
def test_a_stream_from_topic_to_topic(spark: Any, site: Site) -> None:
    site.publish(50, key="k", headers={"a": "b"})
    frame = site.read_stream(spark, includeHeaders="true").drop("topic")
    query = site.write_stream(frame).trigger(availableNow=True).start()
    query.awaitTermination(120)
    site.publish(50, first=50)
    query = site.write_stream(frame).trigger(availableNow=True).start()
    query.awaitTermination(120)
    assert site.rows("copy") == [b"%d" % n for n in range(100)]
    batch = site.bus.fetch(site.topic("copy"), 0).batches[0].batch
    assert (batch.key(0), batch.headers(0)) == (b"k", {"a": "b"})
