"""``landbridge sql``, ``shell`` and ``pipeline run replay`` as processes; and what their rows look like."""

from __future__ import annotations

import json
import math
import time
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from landbridge.cli.pipeline_replay import parse_end, parse_rate
from tests.cli.conftest import Place, Result

pytest.importorskip("pyspark")

#: Seconds for a command that starts Spark, on a machine with other things to do.
LIMIT = 300


def run(place: Place, *arguments: str, input: bytes = b"") -> Result:
    process = place.start(*arguments, stdin=-1)
    try:
        out, err = process.communicate(input, timeout=LIMIT)
    except BaseException:
        process.kill()
        process.wait()
        raise
    return Result(process.returncode, out.decode(), err.decode())


# -- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, None),
        (True, True),
        (1.5, 1.5),
        (math.inf, "inf"),
        (b"text \xc3\xa9", "text é"),
        (bytearray(b"\xff\x00"), {"base64": "/wA="}),
        (datetime(2026, 1, 31, 12, 0, 0, 5, UTC), "2026-01-31T12:00:00.000005Z"),
        (date(2026, 1, 31), "2026-01-31"),
        (Decimal("1.50"), "1.50"),
        (timedelta(minutes=1), 60.0),
        ({1: [b"a"]}, {"1": ["a"]}),
    ],
    ids=str,
)
def test_values_become_json(value: Any, expected: Any) -> None:
    from landbridge.cli.rows import plain, text

    assert plain(value) == expected
    assert text(value) == (
        "" if expected is None else expected if isinstance(expected, str) else _compact(expected)
    )


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


@pytest.mark.parametrize(
    ("text", "rate"), [("1000/s", 1000), ("5k/s", 5000), ("600/m", 10), ("36/h", 0.01), ("7", 7)]
)
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["", "0/s", "fast", "5/d", "-1/s"])
def test_what_is_no_rate(text: str) -> None:
    with pytest.raises(ValueError, match="is not a rate"):
        parse_rate(text)


def test_a_replay_may_end_in_a_while() -> None:
    before = time.time()
    assert before + 1800 <= parse_end("+30m") <= time.time() + 1800
    assert parse_end("2026-01-31T12:00:00Z") == datetime(2026, 1, 31, 12, tzinfo=UTC).timestamp()
    with pytest.raises(ValueError, match="from now on"):
        parse_end("soon")


# -- what is refused before Spark is started ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["sql", "SELECT 1", "--format", "parquet"], "--out FOLDER"),
        (["sql", "SELECT 1", "--out", "/nowhere/at/all.csv"], "there is no folder"),
        (["sql", "SELECT 1", "-f", "report.sql"], "either a statement or --file"),
        (["sql", "-f", "/nowhere/report.sql"], "can't be read"),
        (["sql", "SELECT 1", "--format", "xml"], "xml"),
        (["shell", "--lake", "lake"], "--spark"),
        (["pipeline", "run", "replay", "a"], "either --to or --to-group"),
        (["pipeline", "run", "replay", "a", "--to", "a"], "replay into another topic"),
        (["pipeline", "run", "replay", "a", "--to", "b", "--since", "soon"], "not a time"),
        (["pipeline", "run", "replay", "a", "--to-group", "b", "--where", "true"], "--to a.again"),
    ],
)
def test_commands_that_make_no_sense(place: Place, arguments: list[str], said: str) -> None:
    result = place.call(*arguments, "--json")
    assert result.status
    assert said in json.dumps(result.error)


def test_a_group_gets_its_topic_again(shared: Place, topic: str) -> None:
    for n in range(3):
        shared.call("publish", topic, str(n))
    shared.call("group", "create", topic, "billing", "--from", "latest")
    replay = ("pipeline", "run", "replay", topic, "--to-group", "billing", "--json")
    counted = shared.call(*replay, "--dry-run").json
    assert (counted["rows"], counted["first"], counted["floor"]) == (3, 0, 3)
    assert shared.call("group", "show", topic, "billing", "--json").json["lag"] == 0
    assert shared.call(*replay).json["lag"] == 3


# -- with Spark ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_a_query_in_every_form(shared: Place, topic: str, tmp_path: Path) -> None:
    for n in range(3):
        shared.call("publish", topic, json.dumps({"amount": n}), "--key", "eu")
    query = f"SELECT offset, cast(key AS string) k, json, value FROM topic.`{topic}` ORDER BY offset"
    lines = run(shared, "sql", query, "--json").lines
    assert lines[2] == {"offset": 2, "k": "eu", "json": {"amount": 2}, "value": '{"amount": 2}'}
    out = tmp_path / "rows.csv"
    done = run(shared, "sql", "--format", "csv", "--out", str(out), "--limit", "1", input=query.encode())
    assert done.status == 0, done.err
    assert out.read_text() == 'offset,k,json,value\n0,eu,"{""amount"":0}","{""amount"": 0}"\n'


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_errors_of_sql_have_no_stack(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "1")
    result = run(shared, "sql", f"SELECT 1 / (offset - offset) FROM log.`{topic}`")
    assert result.status == 39
    lines = result.err.splitlines()
    assert lines[0].startswith("error: Division by zero")
    assert lines[2].removeprefix("  note: ").strip() == "^" * len("1 / (offset - offset)")
    assert "Traceback" not in result.err
    assert "\tat " not in result.err


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_a_shell_with_topics_as_tables(shared: Place, topic: str) -> None:
    pytest.importorskip("IPython")
    shared.call("publish", topic, "1")
    code = f"print(sql('SELECT count(*) n FROM topic.`{topic}`').collect()[0].n + topic('{topic}').count())"
    assert run(shared, "shell", "--spark", "-c", code, "--json").json["output"] == "2\n"


def test_a_shell_without_spark(shared: Place, topic: str) -> None:
    pytest.importorskip("IPython")
    code = f"bus.publish('{topic}', b'x').offset"
    assert run(shared, "shell", "-c", code, "--json").json["result"] == "0"


@pytest.mark.slow
@pytest.mark.timeout(3 * LIMIT)
def test_a_replay_into_a_topic(shared: Place, topic: str) -> None:
    for n in range(5):
        shared.call("publish", topic, json.dumps({"amount": n}))
    command = (
        "pipeline",
        "run",
        "replay",
        topic,
        "--to",
        f"{topic}.again",
        "--where",
        "json:amount::int > 1",
    )
    counted = run(shared, *command, "--dry-run", "--json").json
    assert (counted["event"], counted["rows"], counted["first"]) == ("dry-run", 3, 2)
    result = run(shared, *command, "--since", "1h ago")
    assert result.status == 0, result.err
    assert f"3 messages of {topic} replayed into {topic}.again" in result.out
    assert shared.call("topic", "show", f"{topic}.again", "--json").json["messages"] == 3
