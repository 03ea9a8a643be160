"""Every option that can be wrong says so, without Spark and without a terminal."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest

from landbridge.client.context import Context, save
from landbridge.errors import BadOption
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.connector.options import EARLIEST, LATEST, Bound, read_options, write_options

ORDERS = {"subscribe": "orders"}


def test_defaults_of_a_batch_read() -> None:
    options = read_options(ORDERS, stream=False)
    assert (options.topics, options.start, options.end) == (("orders",), Bound(EARLIEST), Bound(LATEST))
    assert options.fail_on_data_loss
    assert options.max_offsets_per_trigger is None


def test_defaults_of_a_stream() -> None:
    assert read_options(ORDERS, stream=True).start == Bound(LATEST)


def test_names_are_taken_in_any_case() -> None:
    options = read_options({"SUBSCRIBE": "b, a", "startingoffsets": "earliest"}, stream=True)
    assert (options.topics, options.start) == (("a", "b"), Bound(EARLIEST))


def test_moments_go_before_offsets() -> None:
    given = {
        **ORDERS,
        "startingTimestamp": "1767225600000",
        "startingOffsetsByTimestamp": '{"orders": {"0": 5}}',
        "startingOffsets": '{"orders": {"0": 23}}',
    }
    assert read_options(given, stream=True).start == Bound({"orders": 23}, 1767225600_000_000)
    del given["startingTimestamp"]
    assert read_options(given, stream=True).start == Bound({"orders": 23}, {"orders": 5000})
    given["startingTimestamp"] = "2026-01-01T00:00:00Z"
    assert read_options(given, stream=True).start.moment == 1767225600_000_000


@pytest.mark.parametrize("said", ['{"orders": [0]}', '{"orders": [0], "bills": [0]}'])
def test_assigned_topics(said: str) -> None:
    assert "orders" in read_options({"assign": said}, stream=True).topics


READ_WRONG: list[tuple[dict[str, Any], str]] = [
    ({}, "exactly one of"),
    ({**ORDERS, "subscribePattern": "#"}, "subscribe and subscribePattern"),
    ({"subscribe": "a b"}, "can't be the name of a topic"),
    ({"subscribe": ""}, "can't be the name"),
    ({"subscribePattern": "a..b"}, "not a pattern"),
    ({"assign": '{"orders": [0, 1]}'}, "one partition"),
    ({"assign": "orders"}, "not JSON"),
    ({"path": "orders"}, "not a path"),
    ({**ORDERS, "startingOffset": "earliest"}, "no option 'startingOffset'"),
    ({**ORDERS, "startingOffsets": "first"}, "startingOffsets is 'earliest', 'latest' or JSON"),
    ({**ORDERS, "startingOffsets": '{"orders": {"1": 0}}'}, "one partition"),
    ({**ORDERS, "startingOffsets": '{"orders": {"0": -3}}'}, "nothing is below"),
    ({**ORDERS, "startingOffsets": '{"orders"'}, "not JSON"),
    ({**ORDERS, "startingOffsets": '{"bills": {"0": 1}}'}, "speaks of bills"),
    ({**ORDERS, "startingOffsetsByTimestamp": '{"bills": {"0": 1}}'}, "speaks of bills"),
    ({**ORDERS, "startingTimestamp": "yesterday"}, "startingTimestamp is in milliseconds"),
    ({**ORDERS, "startingTimestamp": "2026-01-01T00:00:00"}, "with its zone"),
    ({**ORDERS, "failOnDataLoss": "no"}, "'true' or 'false'"),
    ({**ORDERS, "minPartitions": "0"}, "whole number from 1"),
    ({**ORDERS, "maxRecordsPerPartition": "1e6"}, "whole number"),
    ({**ORDERS, "topic": "orders"}, "of no use"),
]


@pytest.mark.parametrize(("options", "said"), READ_WRONG)
@pytest.mark.parametrize("stream", [False, True], ids=["batch", "stream"])
def test_wrong_option_of_a_read(options: dict[str, str], said: str, stream: bool) -> None:
    with pytest.raises(BadOption, match=said.replace("'", ".")):
        read_options(options, stream=stream)


@pytest.mark.parametrize(
    ("options", "stream", "said"),
    [
        ({"startingOffsets": "latest"}, False, "would read nothing"),
        ({"endingOffsets": "earliest"}, False, "can't be 'earliest'"),
        ({"endingOffsets": '{"orders": -2}'}, False, "can't be 'earliest'"),
        ({"maxOffsetsPerTrigger": "5"}, False, "of no use for a batch read"),
        ({"group": "spark"}, False, "of no use for a batch read"),
        ({"endingOffsets": "latest"}, True, "of no use for a stream"),
        ({"group": "a b"}, True, "can't be the name of a group"),
        ({"maxOffsetsPerTrigger": "5", "minOffsetsPerTrigger": "6"}, True, "is more than"),
        ({"maxTriggerDelay": "5s"}, True, "without minOffsetsPerTrigger"),
        ({"minOffsetsPerTrigger": "5", "maxTriggerDelay": "soon"}, True, "a span such as"),
    ],
)
def test_wrong_option_of_one_kind_of_read(options: dict[str, str], stream: bool, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        read_options({**ORDERS, **options}, stream=stream)


@pytest.mark.parametrize(
    ("options", "stream", "said"),
    [
        ({"topic": "a b"}, False, "can't be the name of a topic"),
        ({"subscribe": "orders"}, False, "of no use for a batch write"),
        ({"producerBatch": "1"}, False, "without producerId"),
        ({"producerId": "x", "producerBatch": "-1"}, False, "whole number from 0"),
        ({"producerId": "x"}, True, "needs no producerId"),
        ({"topics": "orders"}, True, "no option 'topics'"),
    ],
)
def test_wrong_option_of_a_write(options: dict[str, str], stream: bool, said: str) -> None:
    with pytest.raises(BadOption, match=said):
        write_options(options, stream=stream)


def test_a_mistyped_option_is_guessed() -> None:
    with pytest.raises(BadOption) as caught:
        read_options({**ORDERS, "startOffsets": "earliest"}, stream=True)
    assert caught.value.hint == "did you mean startingOffsets?"


def test_spans() -> None:
    given = {**ORDERS, "minOffsetsPerTrigger": "10", "maxTriggerDelay": "2m"}
    assert read_options(given, stream=True).max_trigger_delay == 120.0


# -- access -------------------------------------------------------------------------------------------


def test_a_context_is_looked_up_where_the_query_is_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path))
    save("office", Context("lb://127.0.0.1:7420", "very-secret"))
    access = TerminalAccess.of({"context": "office"})
    assert access.url == "lb://127.0.0.1:7420"
    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path / "elsewhere"))
    there = pickle.loads(pickle.dumps(access))
    assert there == access
    assert hash(there) == hash(access)
    assert "very-secret" not in repr(there)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"url": "lb://127.0.0.1:1", "context": "office"}, "not both"),
        ({"url": "127.0.0.1:1", "token": "very-secret"}, "not an address"),
        ({"url": "lb://example.com:1", "token": "very-secret"}, "in the clear"),
        ({"context": "nowhere", "token": "very-secret"}, "no context"),
        ({}, "nothing says where"),
    ],
)
def test_wrong_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, str], said: str
) -> None:
    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path))
    for name in ("LANDBRIDGE_URL", "LANDBRIDGE_TOKEN", "LANDBRIDGE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(BadOption, match=said) as caught:
        TerminalAccess.of(options)
    assert "very-secret" not in f"{caught.value!r} {caught.value} {caught.value.hint}"
