"""Pipelines of one's own: functions between topics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

import landbridge.pipeline
from landbridge.broker.server import Terminal
from landbridge.errors import BadOption, JobFailed, OffsetGone, Unauthenticated, UnknownTopic
from landbridge.pipeline import Place, Trigger
from landbridge.pipeline.connector.failure import meaning
from tests.pipeline.site import Site
from tests.waiting import LIMIT


def place(spark: Any, site: Site) -> Place:
    return Place(spark, site.checkpoint, Trigger(once=True), site.access)


def until(holds: Callable[[], Any]) -> None:
    end = time.monotonic() + LIMIT
    while not holds():
        assert time.monotonic() < end, "this never came true"
        time.sleep(0.05)


def values(rows: Any) -> Any:
    return rows.select("value")


def test_messages_in_and_messages_out(spark: Any, site: Site) -> None:
    site.publish(10, key=b"eu", headers={"trace": b"1"})

    @landbridge.pipeline.step(source=site.topic(), sink=site.topic("copy"))
    def copies(rows: Any) -> Any:
        return rows.where("cast(cast(value as string) as int) % 2 = 0")

    seen: list[Any] = []
    done = landbridge.pipeline.run(copies, place(spark, site), tell=seen.append)
    assert (done.rows, done.batches, done.stopped) == (10, 1, False)
    assert [each.rows for each in seen if each.rows] == [10]
    assert site.rows("copy") == [b"0", b"2", b"4", b"6", b"8"]
    [batch] = site.bus.fetch(site.topic("copy"), 0).batches
    assert set(batch.batch.keys() or ()) == {b"eu"}
    # It goes on where it was, and its cursor is a group like any other.
    site.publish(2, first=10)
    assert landbridge.pipeline.run(copies, place(spark, site)).rows == 2
    assert site.rows("copy") == [b"0", b"2", b"4", b"6", b"8", b"10"]
    groups = site.bus.call("group.list", topic=site.topic(), after="")["groups"]
    assert [(each["name"], each["lag"]) for each in groups] == [("copies", 0)]


def test_fields_of_a_schema_and_rejects(spark: Any, site: Site) -> None:
    for payload in (
        b'{"id": 1, "amount": 50}',
        b"no JSON",
        b'{"id": 2, "amount": 200}',
        b'{"id": "x"}',
        b"\xff",
        b"[1]",
    ):
        site.bus.publish(site.topic(), payload, key=b"k")

    @landbridge.pipeline.step(
        source=site.topic(), sink=site.topic("invoices"), schema="id bigint, amount double"
    )
    def invoices(orders: Any) -> Any:
        return orders.where("amount > 100").selectExpr("cast(id as string) key", "id", "amount * 2 as total")

    landbridge.pipeline.run(invoices, place(spark, site))
    assert [json.loads(each) for each in site.rows("invoices")] == [{"id": 2, "total": 400.0}]
    assert site.rows("invoices.rejects") == [b"no JSON", b'{"id": "x"}', b"\xff", b"[1]"]
    rejected = site.read(spark, "invoices.rejects", includeHeaders="true").collect()
    reasons = [bytes(row.headers[0].value).decode() for row in rejected]
    assert reasons == ["not JSON", "not of the schema id bigint, amount double", "not UTF-8",
                       "not of the schema id bigint, amount double"]  # fmt: skip
    assert {bytes(row.key) for row in rejected} == {b"k"}


def test_the_rows_may_say_their_topic(spark: Any, site: Site) -> None:
    site.publish(4)
    names = {n: site.topic(f"out{n}") for n in (0, 1)}

    @landbridge.pipeline.step(source=site.topic())
    def split(rows: Any) -> Any:
        odd = "cast(cast(value as string) as int) % 2"
        return rows.selectExpr(f"case {odd} when 0 then '{names[0]}' else '{names[1]}' end as topic", "value")

    landbridge.pipeline.run(split, place(spark, site))
    assert [site.rows("out0"), site.rows("out1")] == [[b"0", b"2"], [b"1", b"3"]]


def test_a_step_is_a_function(spark: Any) -> None:
    @landbridge.pipeline.step(source="a", sink="b")
    def doubled(rows: Any) -> Any:
        """Twice."""
        return rows.selectExpr("id * 2 as id")

    assert [row.id for row in doubled(spark.range(3)).collect()] == [0, 2, 4]
    assert (doubled.name, doubled.__doc__) == ("doubled", "Twice.")


def test_what_a_step_refuses(spark: Any, site: Site) -> None:
    with pytest.raises(BadOption, match="at least one topic"):
        landbridge.pipeline.step(source=[])
    with pytest.raises(BadOption, match="needs rejects"):
        landbridge.pipeline.step(source="a", schema="id bigint")
    site.publish(1)
    nowhere = landbridge.pipeline.step(source=site.topic())(values)
    with pytest.raises(BadOption, match="no column topic"):
        landbridge.pipeline.run(nowhere, place(spark, site))
    wrong = landbridge.pipeline.step(source=site.topic(), sink="b", schema="bigint")(values)
    with pytest.raises(BadOption, match="not a list of columns"):
        landbridge.pipeline.run(wrong, place(spark, site))


def test_what_fails_is_told_as_our_own_error(spark: Any, site: Site) -> None:
    site.publish(1)
    beyond = landbridge.pipeline.step(
        source=site.topic(), sink=site.topic("copy"), startingOffsets=json.dumps({site.topic(): {"0": 7}})
    )(values)
    with pytest.raises(OffsetGone, match="there is no offset 7") as caught:
        landbridge.pipeline.run(beyond, place(spark, site))
    assert "failOnDataLoss=false" in caught.value.hint
    assert meaning(ValueError("anything else")) is None
    assert meaning(ValueError("landbridge.errors.Nonsense: x")) is None


def test_a_bug_in_a_step_is_told_in_one_sentence(spark: Any, site: Site) -> None:
    from pyspark.sql import functions as F

    site.publish(1)

    @landbridge.pipeline.step(source=site.topic(), sink=site.topic("copy"))
    def mistyped(rows: Any) -> Any:
        return rows.select("valeu")

    @landbridge.pipeline.step(source=site.topic(), sink=site.topic("copy"))
    def undefined(rows: Any) -> Any:
        return rows.wehre("true")

    @landbridge.pipeline.step(source=site.topic(), sink=site.topic("copy"))
    def divided(rows: Any) -> Any:
        return rows.select(F.udf(lambda value: str(1 // int(value)), "string")("value").alias("value"))

    for wrong, said in (
        (mistyped, "`valeu` cannot be resolved. Did you mean"),
        (undefined, "`wehre` is not supported"),
        (divided, "ZeroDivisionError: integer division or modulo by zero"),
    ):
        with pytest.raises(JobFailed) as caught:
            landbridge.pipeline.run(wrong, place(spark, site))
        assert said in str(caught.value)
        assert "\n" not in str(caught.value)
        assert __file__ in caught.value.__notes__[0]


def test_what_ends_a_stream_under_way_is_told(spark: Any, site: Site, terminal: Terminal) -> None:
    @landbridge.pipeline.step(source=site.topic(), sink=site.topic("copy"))
    def onward(rows: Any) -> Any:
        return rows.select("value")

    def failure(token: str, end: Callable[[], Any]) -> Exception:
        """What a stream fails with when that happens after its first rows."""
        seen: list[Any] = []
        failures: list[Exception] = []

        def main() -> None:
            try:
                place = Place(spark, site.checkpoint, Trigger(), {"url": site.url, "token": token})
                landbridge.pipeline.run(onward, place, tell=seen.append)
            except Exception as error:
                failures.append(error)

        site.publish(1)
        thread = threading.Thread(target=main)
        thread.start()
        until(lambda: any(each.rows for each in seen) or failures)
        end()
        thread.join(LIMIT)
        [failed] = failures
        return failed

    token = terminal.issue_token("mortal", ["publish:#", "subscribe:#"], 3600)
    revoked = failure(token, lambda: site.bus.call("token.revoke", subject="mortal"))
    assert isinstance(revoked, Unauthenticated)
    deleted = failure(site.token, lambda: site.bus.call("topic.delete", name=site.topic(), force=True))
    assert isinstance(deleted, UnknownTopic)
    assert site.topic() in str(deleted)
