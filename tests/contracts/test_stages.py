"""Publishing once from a stage, whatever is repeated, lost or restarted."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.broker.stages import PREFIX
from landbridge.broker.topic import Topic
from landbridge.client.bus import Bus
from landbridge.core.log import record
from landbridge.core.log.batch import Batch, build
from landbridge.core.log.ranges import Range
from landbridge.core.log.store import Append, Bounds, Copy, PutDocument, Store, Trim, Write
from landbridge.errors import BadFrame, Forbidden, OffsetGone, StoreFull, UnknownTopic
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FaultyStore, attach, run_terminal


async def put(bus: Bus, stage: str, *payloads: bytes, topic: str = "orders") -> tuple[int, Range]:
    """Returns the stage's log, and the run there."""
    log, first = await bus.stage(stage, topic, build(payloads, id=bus.new_id(), time=1))
    return log, (first, first + len(payloads))


async def commit(
    bus: Bus, stage: str, number: int, log: int | None, *runs: Range, topic: str = "orders"
) -> bool:
    answer = await bus.call("stage.commit", stage=stage, number=number, log=log, runs=[(topic, list(runs))])
    return bool(answer["decided"])


async def rows(bus: Bus, topic: str = "orders") -> list[bytes]:
    found: list[bytes] = []
    try:
        while batches := (await bus.fetch(topic, len(found))).batches:
            found += [payload for each in batches for payload in each.batch.payloads()]
    except UnknownTopic:
        pass
    return found


class FullAt(FaultyStore):
    """No room for the n-th piece that is published from a stage."""

    def __init__(self, store: Store, piece: int) -> None:
        super().__init__(store)
        self._pieces_left = piece

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        if any(isinstance(write, PutDocument) and write.kind == "stage" for write in writes):
            self._pieces_left -= 1
            if not self._pieces_left:
                raise self.error
        return await super().commit(unit, epoch, writes)


class WatchedStore(FaultyStore):
    """Remembers what was written to logs."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.written: list[Append | Copy] = []

    async def commit(self, unit: int, epoch: int, writes: Sequence[Write]) -> Bounds:
        trimmed = await super().commit(unit, epoch, writes)
        self.written += [write for write in writes if isinstance(write, Append | Copy)]
        return trimmed

    def to(self, topic: Topic) -> list[Append | Copy]:
        return [write for write in self.written if write.log == topic.log.number]


def stages(terminal: Terminal) -> list[str]:
    return [name for name in terminal.broker.topics if name.startswith(PREFIX)]


async def test_nothing_is_seen_before_the_commit(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        log, run = await put(bus, "q", b"a", b"b")
        assert await rows(bus) == []
        assert await commit(bus, "q", 0, log, run)
        assert await rows(bus) == [b"a", b"b"]
        assert stages(terminal) == []


async def test_only_what_is_named_is_published_and_in_that_order(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        log, one = await put(bus, "q", b"1")
        await put(bus, "q", b"of a task that failed")
        _, two = await put(bus, "q", b"2", b"3", b"4")
        assert await commit(bus, "q", 0, log, (two[0] + 1, two[1]), one)
        assert await rows(bus) == [b"3", b"4", b"1"]


async def test_a_number_is_published_once_whatever_its_rerun_staged(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        log, run = await put(bus, "q", b"a", b"b")
        assert await commit(bus, "q", 7, log, run)
        log, first = await put(bus, "q", b"b")
        _, second = await put(bus, "q", b"a")
        assert not await commit(bus, "q", 7, log, first, second)
        assert not await commit(bus, "q", 6, log, first, second)
        assert await rows(bus) == [b"a", b"b"]
        log, run = await put(bus, "q", b"c")
        assert await commit(bus, "q", 8, log, run)
        assert await rows(bus) == [b"a", b"b", b"c"]


async def test_several_topics_are_one_commit(crashes: list[Any]) -> None:
    async with run_terminal(MemoryStore()) as terminal, attach(terminal) as bus:
        log, one = await put(bus, "q", b"1")
        _, two = await put(bus, "q", b"2", topic="bills")
        runs = [("orders", [one]), ("bills", [two])]
        commits = terminal.broker.commits
        await bus.call("stage.commit", stage="q", number=0, log=log, runs=runs)
        assert terminal.broker.commits <= commits + 2  # the rows with the decision; the stage
        assert (await rows(bus), await rows(bus, "bills")) == ([b"1"], [b"2"])


async def test_an_empty_commit_counts_too(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        assert (await bus.call("stage.commit", stage="q", number=0, log=None, runs=[])) == {"decided": True}
        log, run = await put(bus, "q", b"a")
        assert not await commit(bus, "q", 0, log, run)
        assert await rows(bus) == []


async def test_commits_at_once_are_one(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        log, run = await put(bus, "q", b"a")
        decided = await asyncio.gather(*(commit(bus, "q", 0, log, run) for _ in range(5)))
        assert sorted(decided) == [False] * 4 + [True]
        assert await rows(bus) == [b"a"]


async def test_a_dropped_stage_publishes_nothing_and_undoes_nothing(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        log, run = await put(bus, "q", b"a")
        await commit(bus, "q", 0, log, run)
        log, run = await put(bus, "q", b"b")
        await bus.call("stage.drop", stage="q")
        await bus.call("stage.drop", stage="q")
        assert stages(terminal) == []
        with pytest.raises(OffsetGone):
            await commit(bus, "q", 1, log, run)
        log, run = await put(bus, "q", b"again")
        assert not await commit(bus, "q", 0, log, run)
        await bus.call("stage.drop", stage="q", forget=True)
        assert await rows(bus) == [b"a"]
        assert not any([await terminal.store.documents(unit, "stage") for unit in range(4)])


async def test_runs_of_a_stage_that_was_made_anew_are_not_taken_for_others(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        log, run = await put(bus, "q", b"old")
        await bus.call("stage.drop", stage="q")
        await put(bus, "q", b"new")
        with pytest.raises(OffsetGone):
            await commit(bus, "q", 0, log, run)
        assert await rows(bus) == []


@pytest.mark.parametrize("run", [(0, 9), (5, 6)])
async def test_runs_that_are_not_there_are_refused(terminal: Terminal, run: Range) -> None:
    async with attach(terminal) as bus:
        log, _ = await put(bus, "q", b"a")
        with pytest.raises(OffsetGone):
            await commit(bus, "q", 0, log, run)


async def test_scopes_and_subjects(terminal: Terminal) -> None:
    async with attach(terminal, subject="one", scopes=["publish:orders"]) as bus:
        with pytest.raises(Forbidden):
            await put(bus, "q", b"a", topic="bills")
        log, run = await put(bus, "q", b"a")
        with pytest.raises(Forbidden):
            await commit(bus, "q", 0, log, run, topic="bills")
        async with attach(terminal, subject="two", scopes=["publish:#"]) as other:
            for attempt in (
                put(other, "q", b"b"),
                commit(other, "q", 0, log, run),
                other.call("stage.drop", stage="q"),
            ):
                with pytest.raises(Forbidden):
                    await attempt
        assert await commit(bus, "q", 0, log, run)
        with pytest.raises(BadFrame):
            await bus.stage("q", "orders", b"nonsense" * 9)


async def test_a_large_commit_goes_on_where_a_full_disk_stopped_it(crashes: list[Any]) -> None:
    """The decision stands once its first piece is stored: a rerun with other rows changes nothing."""
    store = FullAt(MemoryStore(), piece=3)
    async with (
        run_terminal(store, limits=Limits(commit=1)) as terminal,
        attach(terminal, patience=0.1) as bus,
    ):
        log, _ = await put(bus, "q", b"0")
        for n in range(1, 5):
            await put(bus, "q", b"%d" % n)
        with pytest.raises(StoreFull):
            await commit(bus, "q", 0, log, (0, 5))
        assert await rows(bus) == [b"0", b"1"]
        again, run = await put(bus, "q", b"other rows of the rerun")
        assert not await commit(bus, "q", 0, again, run)
        assert await rows(bus) == [b"%d" % n for n in range(5)]
        assert stages(terminal) == []


async def test_a_restart_brings_a_decided_commit_to_its_end(tmp_path: Path, crashes: list[Any]) -> None:
    path = tmp_path / "bus"
    store = FullAt(JournalStore(path), piece=3)
    async with (
        run_terminal(store, limits=Limits(commit=1)) as terminal,
        attach(terminal, patience=0.1) as bus,
    ):
        log, _ = await put(bus, "q", b"0")
        for n in range(1, 5):
            await put(bus, "q", b"%d" % n)
        with pytest.raises(StoreFull):
            await commit(bus, "q", 0, log, (0, 5))
        assert await rows(bus) == [b"0", b"1"]
    async with run_terminal(JournalStore(path)) as terminal, attach(terminal) as bus:
        while terminal.tasks:
            await asyncio.gather(*terminal.tasks)
        assert await rows(bus) == [b"%d" % n for n in range(5)]
        assert stages(terminal) == []
        log, run = await put(bus, "q", b"again")
        assert not await commit(bus, "q", 0, log, run)
    async with run_terminal(JournalStore(path)) as terminal, attach(terminal) as bus:
        assert await commit(bus, "q", 1, log, run)
        assert await rows(bus) == [*(b"%d" % n for n in range(5)), b"again"]


async def test_whole_batches_are_copied_and_cut_ones_are_appended(tmp_path: Path, crashes: list[Any]) -> None:
    store = WatchedStore(JournalStore(tmp_path / "bus"))
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        log, one = await put(bus, "q", b"1", b"2")
        _, two = await put(bus, "q", b"3" * 50_000, b"4")
        await commit(bus, "q", 0, log, (one[0] + 1, two[1]), one)
        orders = terminal.broker.topics["orders"]
        assert [type(write) for write in store.to(orders)] == [Append, Copy, Copy]
        assert await rows(bus) == [b"2", b"3" * 50_000, b"4", b"1", b"2"]
        assert orders.log.end == (await store.logs(0))[orders.log.number].end == 5
        assert await store.check() == []
    async with run_terminal(JournalStore(tmp_path / "bus")) as terminal, attach(terminal) as bus:
        assert await rows(bus) == [b"2", b"3" * 50_000, b"4", b"1", b"2"]
        assert await terminal.store.check() == []


async def test_what_a_stage_publishes_is_byte_for_byte_what_an_append_stores(crashes: list[Any]) -> None:
    store = WatchedStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        data = build([b"a", b"b"], id=bus.new_id(), time=1, keys=[b"k", b""])
        log, first = await bus.stage("q", "orders", data)
        await commit(bus, "q", 0, log, (first, first + 2))
        orders = terminal.broker.topics["orders"]
        assert [type(write) for write in store.to(orders)] == [Copy]
        assert orders.log.bytes == (await store.logs(0))[orders.log.number].bytes == len(data)
        assert (await store.read(orders.log.number, 0, 1))[0].data == record.wrap(Batch.decode(data)) == data


async def test_a_stage_trimmed_in_the_same_commit_is_no_source_and_no_trouble(crashes: list[Any]) -> None:
    """A copy of what is gone would be refused, and with it what others publish in that commit."""
    store = WatchedStore(MemoryStore())
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        log, (first, end) = await put(bus, "q", b"a", b"b")
        writer = terminal.broker.units.writers[0]
        put_work = writer.put

        def trim_before(work: Any) -> Any:
            def both(commit: BrokerCommit) -> Any:
                commit.writes.append(Trim(log, end))
                return work(commit)

            return put_work(both)

        writer.put = trim_before  # type: ignore[method-assign]  # a commit of two
        await commit(bus, "q", 0, log, (first, end))
        assert [type(write) for write in store.to(terminal.broker.topics["orders"])] == [Append]
        assert await rows(bus) == [b"a", b"b"]


async def test_groups_get_what_is_published_from_a_stage(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        async with bus.subscribe("orders", group="billing") as subscription:
            log, run = await put(bus, "q", b"a", b"b")
            await commit(bus, "q", 0, log, run)
            got = []
            async for message in subscription:
                got.append((message.offset, message.payload))
                if len(got) == 2:
                    break
        assert got == [(0, b"a"), (1, b"b")]


async def test_a_stage_that_retention_has_emptied_is_removed_at_the_next_start(crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        log, (_, end) = await put(bus, "late", b"of a writer whose job is over")
        await put(bus, "live", b"a")
        await terminal.broker.write([Trim(log, end)])
    async with run_terminal(store) as terminal:
        await asyncio.gather(*terminal.tasks)
        assert stages(terminal) == [f"{PREFIX}live"]
