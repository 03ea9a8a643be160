"""Replays: what goes again, in which order, and that it goes once however often it is tried."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from landbridge.errors import BadName, BadOption, BadStatement, OtherLog
from landbridge.pipeline.connector.access import TerminalAccess
from landbridge.pipeline.jobs.replay import Chunk, Extent, Replay, identity, reached_by
from landbridge.pipeline.jobs.running import Place
from tests.pipeline.site import Site
from tests.pipeline.test_views import archive, examples


def replay(site: Site, **options: Any) -> Replay:
    return Replay(site.topic(), site.topic("again"), **options)


def place(spark: Any, site: Site) -> Place:
    return Place(spark, "", where=site.access)


@pytest.mark.parametrize(
    ("options", "kind"),
    [
        ({"to": "a"}, BadOption),
        ({"to": "b c"}, BadName),
        ({"called": "x y"}, BadName),
        ({"rate": 0.0}, BadOption),
        ({"since": 5, "until": 5}, BadOption),
    ],
)
def test_what_makes_no_sense_is_refused(options: dict[str, Any], kind: type[Exception]) -> None:
    with pytest.raises(kind):
        Replay(**{"source": "a", "to": "b", **options})


def test_the_same_arguments_are_the_same_replay() -> None:
    assert Replay("a", "b", where="x").name == Replay("a", "b", where="x", rate=5.0).name
    assert Replay("a", "b", where="x").name != Replay("a", "b", where="y").name
    assert Replay("a", "b", called="monday").name == "monday"
    assert identity("a", None) != identity("a", "None")


def test_how_far_a_replay_is_is_known_to_the_terminal(site: Site) -> None:
    access, name = TerminalAccess.of(site.access), f"replay-{site.name}"
    assert reached_by(access, name, 3, 1000) == 3
    site.bus.call("stage.commit", stage=name, number=617, log=None, runs=[])
    assert reached_by(access, name, 3, 1000) == 617
    assert reached_by(access, name, 700, 1000) == 700
    assert reached_by(access, name, 3, 10) == 10
    assert site.rows("again") == []


def test_what_matches_goes_again_once_and_in_order(spark: Any, site: Site) -> None:
    with site.bus.publisher(site.topic()) as out:
        for n in range(20):
            out.send({"amount": n}, key=f"k{n % 3}", headers={"h": f"v{n}"} if n % 2 else None)
    job = replay(site, where="json:amount::int >= 5 AND cast(key AS string) <> 'k0'")
    expected = [n for n in range(5, 20) if n % 3]
    extent = job.extent(place(spark, site))
    assert extent.rows == len(expected)
    assert (extent.first, extent.end) == (5, 20)
    assert extent.bytes == sum(len(b'{"amount":%d}' % n) for n in expected)
    assert extent.oldest is not None
    assert extent.newest is not None
    assert extent.oldest <= extent.newest < time.time_ns() // 1000
    assert site.rows("again") == []  # so far it was only counted
    done = job.run(place(spark, site))
    assert (done.rows, done.reached, done.newest) == (len(expected), 20, extent.newest)
    assert done.finished
    (fetched,) = site.bus.fetch(site.topic("again"), 0).batches
    messages = fetched.batch
    assert [messages.payloads()[i] for i in range(len(messages))] == [b'{"amount":%d}' % n for n in expected]
    for index, n in enumerate(expected):
        assert messages.key(index) == b"k%d" % (n % 3)
        headers = {"h": f"v{n}"} if n % 2 else {}
        assert messages.headers(index) == headers | {"replayed-from": f"{site.topic()}@{n}"}
    again = job.run(place(spark, site))
    assert (again.rows, again.began) == (0, 20)
    site.bus.publish(site.topic(), {"amount": 20}, key="k2")
    assert job.run(place(spark, site)).rows == 1  # what has come since
    assert len(site.rows("again")) == len(expected) + 1
    with pytest.raises(BadStatement, match="`amont`"):
        replay(site, where="amont > 3").extent(place(spark, site))


def test_a_replay_that_was_stopped_goes_on_with_other_chunks(spark: Any, site: Site) -> None:
    site.publish(30)
    stop = threading.Event()
    job = replay(site, called=f"slow-{site.name}", rate=10.0)
    done = job.run(place(spark, site), stop=stop, tell=lambda _: stop.set())
    assert (done.rows, done.reached, done.finished) == (10, 10, False)
    late = job.run(place(spark, site), stop_at=time.time() - 1)
    assert (late.rows, late.reached) == (0, 10)
    rest = replay(site, called=f"slow-{site.name}").run(place(spark, site))
    assert (rest.rows, rest.began, rest.finished) == (20, 10, True)
    assert site.rows("again") == [b"%d" % n for n in range(30)]


def test_the_archive_is_replayed_with_the_log(spark: Any, site: Site) -> None:
    site.publish(4)
    lake = archive(spark, site)
    moment = time.time_ns() // 1000
    site.publish(3, first=4)
    assert replay(site, lake=lake, until=moment).extent(place(spark, site)).rows == 4
    assert replay(site, lake=lake, since=moment).extent(place(spark, site)).first == 4
    assert replay(site, since=moment, until=moment + 1).extent(place(spark, site)) == Extent(
        0, 0, 0, 0, None, None
    )
    assert replay(site, lake=lake).run(place(spark, site)).rows == 7
    assert site.rows("again") == [b"%d" % n for n in range(7)]


def test_a_topic_that_was_made_anew_is_replayed_from_its_beginning(spark: Any, site: Site) -> None:
    site.publish(10)
    job = replay(site, called=f"again-{site.name}")
    assert job.run(place(spark, site)).rows == 10
    site.make_anew(20, first=100)
    done = job.run(place(spark, site))
    assert (done.rows, done.began, done.reached) == (20, 0, 20)
    assert site.rows("again") == [b"%d" % n for n in [*range(10), *range(100, 120)]]
    assert job.run(place(spark, site)).rows == 0
    # While it runs, it is of one log.
    views = job._views(place(spark, site))
    views.span(site.topic())
    site.make_anew(20)
    with pytest.raises(OtherLog, match="made anew meanwhile"):
        job.rows(views, 0, 5)


def test_a_replay_of_0_1_is_refused(spark: Any, site: Site) -> None:
    site.publish(10)
    job = replay(site)
    site.bus.call("stage.commit", stage=job.name, number=4, log=None, runs=[])
    with pytest.raises(OtherLog, match=r"begun by Landbridge 0\.1") as caught:
        job.run(place(spark, site))
    assert "--name" in caught.value.hint
    assert site.rows("again") == []


class Counted(Replay):
    """A replay whose rows are made up: offsets that match."""

    def rows(self, views: Any, first: int | None = None, end: int | None = None, columns: Any = ()) -> Any:
        offsets: list[int] = views
        begin, stop = first or 0, end or 0

        class Frame:
            def groupBy(self, column: Any) -> Frame:  # noqa: N802
                text = str(column)
                self.width = int(text.rsplit(" ", 1)[-1].rstrip(")'>"))
                return self

            def count(self) -> Frame:
                return self

            def collect(self) -> list[tuple[int, int]]:
                found: dict[int, int] = {}
                for offset in offsets:
                    if begin <= offset < stop:
                        index = (offset - begin) // self.width
                        found[index] = found.get(index, 0) + 1
                return list(found.items())

        return Frame()


@pytest.mark.parametrize("rate", [1.0, 7.0, 50.0, None])
@pytest.mark.parametrize(
    "offsets", [[], [0], [99], list(range(100)), list(range(40, 60)), [3, 4, 5, 50, 51, 97]], ids=len
)
def test_chunks_cover_the_source_and_are_as_large_as_the_rate(
    spark: Any, offsets: list[int], rate: float | None
) -> None:
    views: Any = offsets
    chunks = list(Counted("a", "b", rate=rate).chunks(views, 0, 100))
    assert [chunk.first for chunk in chunks] == [0, *(chunk.end for chunk in chunks[:-1])]
    assert chunks[-1].end == 100
    for chunk in chunks:
        inside = sum(chunk.first <= offset < chunk.end for offset in offsets)
        assert inside <= (rate or 100)
        assert bool(chunk.rows) >= bool(inside)  # a chunk that is said to be empty isn't read
    assert list(Counted("a", "b").chunks(views, 5, 5)) == []
    assert all(isinstance(chunk, Chunk) for chunk in chunks)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_of_the_document_run(spark: Any) -> None:
    scope = examples("pipeline-replay.md")
    assert (scope["extent"].rows, scope["done"].rows) == (5, 5)
