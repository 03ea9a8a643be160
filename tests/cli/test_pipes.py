"""Publishing from stdin and subscribing to stdout, as real processes."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from landbridge.cli.publish import LONGEST_LINE
from tests.cli.conftest import LANDBRIDGE, LIMIT, Place, finish, read_line, until


def lines_of(place: Place, topic: str, count: int) -> list[str]:
    return place.call("subscribe", topic, "--from", "earliest", "--count", str(count)).out.split("\n")[:-1]


def test_every_line_is_a_message_in_order(shared: Place, topic: str) -> None:
    lines = [f"line {number}" for number in range(50_000)]
    published = shared.run("publish", topic, "--json", input="\n".join(lines).encode())
    assert published.json["published"] == 50_000
    assert lines_of(shared, topic, 50_000) == lines


@pytest.mark.parametrize(
    ("data", "payloads"),
    [
        (b"", []),
        (b"a", ["a"]),
        (b"a\n", ["a"]),
        (b"a\n\nb\n", ["a", "", "b"]),
        (b"\n", [""]),
        (b"a\r\n", ["a\r"]),
    ],
)
def test_what_a_line_is(shared: Place, topic: str, data: bytes, payloads: list[str]) -> None:
    assert shared.run("publish", topic, "-", "--json", input=data).json["published"] == len(payloads)
    if payloads:
        assert lines_of(shared, topic, len(payloads)) == payloads


def test_lines_with_a_key(shared: Place, topic: str) -> None:
    shared.run("publish", topic, "--key", "k", "--header", "a=b", "--expires", "1h", input=b"1\n2\n")
    seen = shared.call("subscribe", topic, "--from", "earliest", "--count", "2", "--json").lines
    assert [(m["payload"], m["key"], m["headers"]) for m in seen] == [
        ("1", "k", {"a": "b"}),
        ("2", "k", {"a": "b"}),
    ]


def test_a_file_as_stdin(shared: Place, topic: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_bytes(b"x" * 100 + b"\n" + b"y" * 3_000_000 + b"\nz")
    with (tmp_path / "lines").open("rb") as file:
        process = shared.start("publish", topic, "--json", stdin=file)
        assert finish(process).json["published"] == 3
    assert [len(line) for line in lines_of(shared, topic, 3)] == [100, 3_000_000, 1]


def test_lines_are_published_as_they_come(shared: Place, topic: str) -> None:
    shared.call("topic", "create", topic)
    writer = shared.start("publish", topic, stdin=subprocess.PIPE)
    reader = shared.start("subscribe", topic, "--from", "earliest")
    assert writer.stdin is not None
    for number in range(3):
        line = b"line %d\n" % number
        os.write(writer.stdin.fileno(), line[:3])
        os.write(writer.stdin.fileno(), line[3:])
        assert read_line(reader.stdout) == line
    assert b"3 messages stored" in writer.communicate(timeout=LIMIT)[0]
    reader.send_signal(signal.SIGINT)
    assert finish(reader).status == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_subscriber_leaves_in_good_order(shared: Place, topic: str, number: int) -> None:
    shared.call("publish", topic, "x", "--repeat", "3")
    reader = shared.start("subscribe", topic, "--group", "g")
    for _ in range(3):
        read_line(reader.stdout)
    reader.send_signal(number)
    left = finish(reader)
    assert (left.status, left.err) == (0, "")
    # What was printed is acked, and nothing is held.
    found = shared.call("group", "show", topic, "g", "--json").json
    assert (found["lag"], found["leased"], found["consumers"]) == (0, 0, [])


def test_interrupted_publisher_stores_what_it_has_read(shared: Place, topic: str) -> None:
    writer = shared.start("publish", topic, stdin=subprocess.PIPE)
    assert writer.stdin is not None
    os.write(writer.stdin.fileno(), b"a\nb\nhalf a li")
    until(lambda: shared.call("topic", "list", "--json").out.count(topic))
    writer.send_signal(signal.SIGINT)
    assert writer.wait(LIMIT) == 130
    out, err = writer.communicate()
    assert b"2 messages stored" in out
    assert err.decode() == f"made the topic {topic}\n"


def test_whoever_has_seen_enough_closes_the_pipe(shared: Place, topic: str) -> None:
    shared.call("publish", topic, "x" * 100, "--repeat", "20000")
    command = shlex.join(LANDBRIDGE)
    script = f"{command} subscribe {topic} --group g | head -n 3; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", script], env=shared.environment, capture_output=True, timeout=LIMIT, check=False
    )
    assert done.stderr == b""
    assert done.stdout.splitlines() == [b"x" * 100] * 3 + [b"0"]
    # Only what was written before the pipe was closed is acked.
    assert shared.call("group", "show", topic, "g", "--json").json["lag"] > 0


def test_listing_into_a_closed_pipe_is_quiet(shared: Place) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    process = shared.start("topic", "list", "--json", stdout=writing)
    os.close(writing)
    done = finish(process)
    assert (done.status, done.err) == (0, "")


def test_refusal_in_the_middle_says_what_was_stored(shared: Place, topic: str) -> None:
    # One that is too large for the terminal, after some that aren't.
    lines = b"x\n" * 5000 + b"y" * 5_000_000 + b"\n"
    refused = shared.run("publish", topic, "--json", input=lines)
    assert refused.status == 14
    assert refused.error["code"] == "too_large"
    stored = shared.call("topic", "show", topic, "--json").json["messages"]
    assert f"{stored:,} messages stored" in refused.error["notes"]


def test_a_line_without_end_is_refused(shared: Place, topic: str) -> None:
    refused = shared.run("publish", topic, "--json", input=b"x" * (LONGEST_LINE + 2_000_000))
    assert refused.error["code"] == "too_large"
