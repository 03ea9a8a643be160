"""The loop that simulations run on, and the checkers: a checker that finds nothing must be able to."""

from __future__ import annotations

import asyncio
import random

import pytest

from landbridge.core.log.store import Append, PutDocument, Write
from landbridge.core.shipping.parcel import Kind, Parcel
from landbridge.testing.simulation.chronicle import Chronicle
from landbridge.testing.simulation.wires import Wires
from landbridge.testing.virtual import START, Stalled, VirtualClock, VirtualLoop, VirtualProcess


def test_an_hour_passes_when_nobody_has_anything_to_do():
    loop = VirtualLoop()
    clock = VirtualClock(loop, skew=2.0)
    loop.run(asyncio.sleep(3600))
    assert clock() == START + 3_602_000_000


def test_timers_fire_in_their_order_and_at_their_moment():
    loop = VirtualLoop()
    fired = []

    def fire(span):
        fired.append((span, round(loop.time(), 6)))

    async def main():
        for span in (3.0, 1.0, 2.0):
            loop.call_later(span, fire, span)
        await asyncio.sleep(5)

    loop.run(main())
    assert fired == [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0)]


def test_waiting_for_what_nobody_does_is_an_error_rather_than_a_hang():
    loop = VirtualLoop()

    async def main():
        await loop.create_future()

    with pytest.raises(Stalled):
        loop.run(main())


def test_a_killed_process_runs_no_further_line_and_others_go_on():
    loop = VirtualLoop()
    told = []

    async def work(name):
        try:
            while True:
                await asyncio.sleep(1)
                told.append(name)
                loop.call_later(0.5, told.append, f"{name} later")
        finally:
            told.append(f"{name} ends")

    async def main():
        paris, rome = VirtualProcess("paris"), VirtualProcess("rome")
        tasks = [loop.start(paris, work("paris")), loop.start(rome, work("rome"))]
        await asyncio.sleep(2.2)
        paris.kill()
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
        return list(told)

    seen = loop.run(main())
    assert [line for line in seen if "paris" in line] == ["paris", "paris later", "paris"]
    assert seen.count("rome") == 3


def test_a_clock_that_is_set_is_followed_when_the_terminal_looks():
    async def main():
        clock = VirtualClock(loop)
        before = clock()
        clock.set(5.0)
        assert clock() == before
        assert clock.resync() == 5_000_000
        assert clock() == before + 5_000_000

    loop = VirtualLoop()
    loop.run(main())


# -- wires -------------------------------------------------------------------------------------------


class Ear(asyncio.Protocol):
    def __init__(self):
        self.heard = []
        self.lost = []

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.heard.append((round(asyncio.get_running_loop().time(), 3), data))

    def connection_lost(self, exc):
        self.lost.append(exc)


def joined(scene):
    """Run a scene with two hosts: ``scene(wires, line, here, there, processes)``."""
    wires = Wires(random.Random(1))
    loop = wires.loop = VirtualLoop(wires)

    async def main():
        one, other = VirtualProcess("one"), VirtualProcess("other")
        wires.place(one, "a")
        wires.place(other, "b")
        there = Ear()

        async def listen():
            wires.listen(lambda: there, "b", 1)

        async def dial():
            _, ear = await loop.create_connection(Ear, "b", 1)
            return ear

        await loop.start(other, listen())
        line = wires.line("a", "b")
        line.ways[0].delay = line.ways[1].delay = 0.1
        here = await loop.start(one, dial())
        await asyncio.sleep(0)
        return await scene(wires, line, here, there, (one, other))

    return loop.run(main())


def test_a_black_hole_holds_bytes_back_until_it_is_healed():
    async def scene(wires, line, here, there, processes):
        here.transport.write(b"1")
        await asyncio.sleep(1)
        line.ways[0].dark = line.ways[1].dark = True
        here.transport.write(b"2")
        await asyncio.sleep(5)
        assert [data for _, data in there.heard] == [b"1"]
        line.heal()
        await asyncio.sleep(1)
        return there

    there = joined(scene)
    assert [data for _, data in there.heard] == [b"1", b"2"]
    assert there.lost == []


def test_a_killed_process_is_reset_and_one_without_power_is_silent_until_it_is_back():
    async def killed(wires, line, here, there, processes):
        wires.kill(processes[1])
        await asyncio.sleep(1)
        return here

    async def dark(wires, line, here, there, processes):
        wires.kill(processes[1], power=True)
        await asyncio.sleep(60)
        assert here.lost == []
        wires.power("b")
        await asyncio.sleep(1)
        return here

    for scene in (killed, dark):
        here = joined(scene)
        assert [type(error) for error in here.lost] == [ConnectionResetError]


def test_one_way_of_a_line_can_be_dark_alone():
    async def scene(wires, line, here, there, processes):
        line.ways[0].dark = True  # what "a" hears by
        here.transport.write(b"to b")
        there.transport.write(b"to a")
        await asyncio.sleep(1)
        return here, there

    here, there = joined(scene)
    assert (len(here.heard), len(there.heard)) == (0, 1)


def test_bytes_that_were_held_back_arrive_on_their_own_connection_after_its_sender_has_gone():
    async def scene(wires, line, here, there, processes):
        held = line.hold()
        here.transport.write(b"late")
        await asyncio.sleep(1)
        for end in held:
            end.peer.broken()
        await asyncio.sleep(5)
        assert (here.lost != [], there.heard, there.lost) == (True, [], [])
        for end in held:
            end.release()
        await asyncio.sleep(1)
        return there

    there = joined(scene)
    assert [data for _, data in there.heard] == [b"late"]
    assert [type(error) for error in there.lost] == [ConnectionResetError]


# -- the checkers ------------------------------------------------------------------------------------


def chronicle_of(values):
    chronicle = Chronicle()
    for value in values:
        chronicle.published[value] = ("orders", "paris")
        chronicle.stored.add(value)
    return chronicle


def test_checkers_find_what_is_missing_doubled_and_out_of_order():
    chronicle = chronicle_of(["p:0", "p:1", "p:2"])
    chronicle.see("billing", "p:0")
    assert chronicle.missing({"orders": ["billing"]}, set()) == [("billing", "p:1"), ("billing", "p:2")]
    assert chronicle.missing({"orders": ["billing"]}, {"paris"}) == []
    chronicle.arrive("rome", "paris", ["billing"], ["p:0", "p:2", "p:1", "p:1"])
    chronicle.judge_arrivals(moved=set())
    assert [finding.partition(":")[0] for finding in chronicle.findings] == ["once", "in order"]
    chronicle.findings.clear()
    chronicle.judge_arrivals(moved={"billing"})
    assert chronicle.findings == []
    assert chronicle.counts["doubled in a log after a move"] == 1


def test_a_consumer_that_sees_a_message_again_without_a_crash_is_found():
    chronicle = chronicle_of(["p:0"])
    chronicle.seen["billing"] = ["p:0", "p:0"]
    chronicle.judge_arrivals(moved=set())
    assert len(chronicle.findings) == 1
    chronicle.findings.clear()
    chronicle.shaken.add("billing")
    chronicle.judge_arrivals(moved=set())
    assert chronicle.findings == []


@pytest.mark.parametrize(
    ("ttl", "visited", "fine"),
    [(16, ["a"], True), (15, ["a", "b"], True), (14, ["a", "b", "a"], False), (16, ["a", "b"], False)],
)
def test_a_loop_and_hops_that_do_not_add_up_are_found(ttl, visited, fine):
    chronicle = Chronicle()
    chronicle.parcel("me", Parcel(b"id", Kind.SHIPMENT, "a", "z", ttl, visited, ["z"]))
    assert (chronicle.findings == []) is fine


def test_a_disk_says_who_could_still_get_a_message():
    from landbridge.broker import group as groups
    from landbridge.broker import topic as topics
    from landbridge.core.log.batch import build
    from landbridge.core.log.cursor import Cursor
    from landbridge.core.topic import group_spec, topic_spec
    from landbridge.stores.memory import MemoryStore
    from landbridge.testing.plain import at_once
    from landbridge.testing.simulation.disk import Disk

    store = MemoryStore()
    at_once(store.open())
    epoch = at_once(store.claim(0))
    cursor = Cursor(0)
    cursor.settle([(0, 1)])
    slot, snapshot = cursor.document()
    spec = topics.encode(topics.TopicDocument(3, topic_spec({"name": "orders"}), 1))
    group = groups.encode(group_spec({"topic": "orders", "name": "billing"}))
    batch = build([b"p:0", b"p:1"], id=bytes(16), time=1)
    writes: list[Write] = [
        PutDocument(topics.KIND, "orders", spec),
        PutDocument(groups.KIND, "3/billing", group),
        PutDocument(groups.CURSOR, f"3/billing/{slot:06}", snapshot),
        Append(3, 0, 2, 1, batch),
    ]
    at_once(store.commit(0, epoch, writes))
    at_once(store.close())
    disk = Disk(store)
    assert not disk.holds("orders", b"p:0", "billing")
    assert disk.holds("orders", b"p:1", "billing")
    assert disk.holds("orders", b"p:0", "a group that will start at the beginning")
    assert not disk.holds("orders", b"p:2", "billing")
    assert not disk.holds("payments", b"p:1", "billing")


def test_a_copy_of_a_store_does_not_follow_the_store():
    from landbridge.core.log.batch import build
    from landbridge.stores.memory import MemoryStore
    from landbridge.testing.plain import at_once

    store = MemoryStore()
    at_once(store.open())
    epoch = at_once(store.claim(0))
    at_once(store.commit(0, epoch, [Append(3, 0, 1, 1, build([b"p:0"], id=bytes(16), time=1))]))
    copy = store.copy()
    at_once(store.commit(0, epoch, [Append(3, 1, 2, 1, build([b"p:1"], id=bytes(16), time=1))]))
    at_once(copy.open())
    assert [batch.first for batch in at_once(copy.read(3, 0, 1000))] == [0]
    assert [batch.first for batch in at_once(store.read(3, 0, 1000))] == [0, 1]
