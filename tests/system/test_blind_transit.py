"""What a terminal in transit can see, and what it can do with what it sees: nothing.

left ── c ── right        c carries, and is searched: disk, mapped files, log, memory, both wires
"""

from __future__ import annotations

import base64
import os
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from landbridge.client.registry import RegistryClient
from landbridge.core.log.batch import build
from landbridge.core.shipping.parcel import (
    Arrived,
    Kind,
    Manifest,
    Piece,
    Stream,
    encode_control,
    encode_manifest,
)
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.seal import Header, Sealer, control, look
from landbridge.core.trust.tickets import release_info
from landbridge.errors import BusError, Unauthenticated
from landbridge.protocol import frames
from tests.system.fleet_process import FleetProcess, Member, stored
from tests.system.rogue import Recording, Rogue
from tests.waiting import Reader, until


def now() -> int:
    return time.time_ns() // 1000


async def taken(member: Member, topic: str, group: str, count: int) -> list[str]:
    async with (
        member.connect("reader") as bus,
        Reader(bus.subscribe(topic, group=group)) as reader,
    ):
        return [payload.decode() for payload in await reader.payloads(count)]


# -- seeing -------------------------------------------------------------------------------------------


def folder_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def mapped_files(pid: int, folder: Path) -> dict[str, bytes]:
    """The files of this folder that the process has in its memory, also those without a name any more."""
    found = {}
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        parts = line.split(maxsplit=5)
        if len(parts) == 6 and str(folder) in parts[5]:
            link = Path(f"/proc/{pid}/map_files/{parts[0]}")
            try:
                found[parts[5]] = link.read_bytes()
            except OSError:
                continue
    return found


def memory(pid: int) -> bytes:
    """All that the process has written to; empty where we may not look."""
    found = bytearray()
    try:
        with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
            for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
                span, rights, *_ = line.split()
                if not rights.startswith("rw"):
                    continue
                first, end = (int(part, 16) for part in span.split("-"))
                file.seek(first)
                try:
                    found += file.read(end - first)
                except OSError:
                    continue
    except OSError:
        return b""
    return bytes(found)


def spellings(secret: bytes) -> list[bytes]:
    return [
        secret,
        secret.hex().encode(),
        base64.b64encode(secret).rstrip(b"="),
        base64.urlsafe_b64encode(secret).rstrip(b"="),
    ]


async def secrets_of(fleet: FleetProcess, header: Header, receiver: Member) -> dict[str, bytes]:
    """What opens a shipment, had the way in which its receiver gets it."""
    identity = receiver.identity
    async with RegistryClient(fleet.url, identity=identity) as registry:
        release = await registry.redeem(header.topic, header.ticket, header.box)
    info = release_info(fleet.customer, release.topic, release.seal_id, identity.terminal)
    return {"ticket": header.ticket, "CEK": identity.unwrap(release.wrapped, info), "box": header.box}


async def test_a_transit_sees_neither_messages_nor_topics_nor_keys(tmp_path: Path) -> None:
    word = uuid.uuid4().hex
    topic, text = f"topic-{word}", f"plaintext-{word}"
    async with FleetProcess(tmp_path) as fleet:
        c = await fleet.add("c")
        left = await fleet.add("left", "client", dials={"c": 0.0})
        right = await fleet.add("right", "client", dials={"c": 0.0})
        first, last = Recording(), Recording()
        left.lines["c"].taps.append(first)
        right.lines["c"].taps.append(last)
        # Recorded from the first byte on: the links are made anew.
        left.lines["c"].reset()
        right.lines["c"].reset()
        await fleet.topic(topic, billing=[right])
        await fleet.linked(left, right, c)
        async with left.connect("sender") as bus:
            for number in range(100):
                await bus.publish(topic, f"{text} {number}")
            assert len(await taken(right, topic, "billing", 100)) == 100
            # And some that stay: on the shelf of the one in the middle.
            right.lines["c"].black_hole()
            for number in range(100, 120):
                await bus.publish(topic, f"{text} {number}")

            async def on_the_shelf() -> bool:
                return bool((await c.ask("network.show"))["in_transit"])

            await until(on_the_shelf)
        seen = {
            "wire left–c": bytes(first.bytes["forth"] + first.bytes["back"]),
            "wire c–right": bytes(last.bytes["forth"] + last.bytes["back"]),
            "memory": memory(c.process.pid),
            **mapped_files(c.process.pid, c.folder),
            **folder_bytes(c.folder),
        }
        shipments = first.shipments()
        headers = [
            look(right.identity, [left.identity.public], frame.source, data, now())
            for frame, data in shipments
        ]
        # Not the group's name: which terminals are in a terminal group is what all terminals are told.
        secret = {"plaintext": text.encode(), "topic": topic.encode()}
        secret |= await secrets_of(fleet, headers[0], right)
        assert {header.topic for header in headers} == {topic}
        found = {
            (name, place)
            for name, value in secret.items()
            for place, held in seen.items()
            if any(spelling in held for spelling in spellings(value))
        }
        assert found == set()
        # The search finds what is there: where it goes is no secret, and its source has it in the clear.
        places = [place for place, held in seen.items() if held and right.id.encode() in held]
        assert {"wire left–c", "wire c–right", f"{c.database}/00000001.segment"} <= set(places)
        if os.geteuid() == 0:
            assert "memory" in places
            assert text.encode() in memory(left.process.pid)
        assert any(text.encode() in held for held in folder_bytes(left.folder).values())
        right.lines["c"].heal()
        assert len(await taken(right, topic, "billing", 20)) == 20


# -- doing --------------------------------------------------------------------------------------------


class Trial:
    """left sends to right, both servers; a rogue is the hop between them whenever it likes."""

    def __init__(self, fleet: FleetProcess, left: Member, right: Member, rogue: Identity) -> None:
        self.fleet, self.left, self.right, self.rogue = fleet, left, right, rogue
        self.recording = Recording()
        left.lines["right"].taps.append(self.recording)

    async def dial(self, member: Member, identity: Identity | None = None) -> Rogue:
        link = Rogue(identity or self.rogue)
        await link.dial(member.address, member.id)
        return link

    async def publish(self, *values: str) -> None:
        async with self.left.connect("sender") as bus:
            for value in values:
                await bus.publish("orders", value)

    async def totals(self, member: Member, part: str) -> Any:
        return (await member.ask("network.show"))[part]


@asynccontextmanager
async def trial(folder: Path) -> AsyncIterator[Trial]:
    async with FleetProcess(folder) as fleet:
        right = await fleet.add("right")
        left = await fleet.add("left", dials={"right": 0.0})
        made = await fleet.admin.create_terminal("rogue", mode="client")
        assert made.secure_key is not None
        rogue = Identity(fleet.customer, made.terminal_id, SecureKey.parse(made.secure_key))
        found = Trial(fleet, left, right, rogue)
        left.lines["right"].reset()
        await fleet.topic("orders", billing=[right])
        await fleet.linked(left, right)

        async def rogue_is_known() -> bool:
            shown = [await member.ask("topology.show") for member in (left, right)]
            return all(any(t["name"] == "rogue" for t in one["terminals"]) for one in shown)

        await until(rogue_is_known)
        yield found


async def test_a_captured_shipment_replayed_redirected_or_changed_does_nothing(tmp_path: Path) -> None:
    async with trial(tmp_path) as at:
        await at.publish("one", "two", "three")
        assert await taken(at.right, "orders", "billing", 3) == ["one", "two", "three"]
        frame, data = at.recording.shipments()[0]
        link = await at.dial(at.right)
        # Replayed: kept, because the true one would be, and not stored again.
        for _ in range(3):
            assert await link.carry(frame, data) == ""
        arrivals = await at.totals(at.right, "arrivals")
        assert (arrivals["arrived"], arrivals["repeated"]) == (3, 3)
        # In another's name, and with any bit of it turned round.
        await link.carry(frame, data, source=at.rogue.terminal)
        places = [0, 1, 9, 40, len(data) // 2, len(data) - 1]
        for place in places:
            changed = bytearray(data)
            changed[place] ^= 1
            await link.carry(frame, bytes(changed))
        arrivals = await at.totals(at.right, "arrivals")
        # A change of the payload alone is never looked at: its number has come already.
        assert arrivals["refused"] >= 4
        assert arrivals["arrived"] == 3
        # For another terminal: left has a key for what is between it and right, but this is not for it.
        other = await at.dial(at.left)
        await other.carry(frame, data, destination=at.left.id, source=at.right.id)
        assert (await at.totals(at.left, "arrivals"))["refused"] == 1
        await link.close()
        await other.close()
        # And the true ones still come.
        await at.publish("four")
        assert await taken(at.right, "orders", "billing", 1) == ["four"]
        await at.right.kill()
        assert stored(at.right.database, "orders") == ["one", "two", "three", "four"]


async def sealed(at: Trial, values: list[str]) -> list[tuple[frames.Carry, bytes]]:
    """Shipments 1, 2, 3, … of a log that left might have, sealed with its keys and a ticket of its own."""
    identity = at.left.identity
    async with RegistryClient(at.fleet.url, identity=identity) as registry:
        issue = await registry.issue("orders")
    sealer, sealed_at = Sealer(identity, issue, now()), now()
    found = []
    for index, value in enumerate(values):
        batch = bytes(build([value.encode()], id=uuid.uuid4().bytes, time=sealed_at))
        piece = Piece([(index, index + 1)], False, len(batch))
        manifest = Manifest(1, {"billing": 0}, [piece], 1)
        data = sealer.seal(
            at.right.id,
            [at.right.identity.public],
            now=sealed_at,
            epoch=1,
            sequence=index + 1,
            meta=encode_manifest(manifest),
            plaintext=batch,
            messages=1,
        )
        carry = frames.Carry(
            0, uuid.uuid4().bytes, Kind.SHIPMENT, identity.terminal, at.right.id, 8, [], [at.right.id]
        )
        found.append((carry, data))
    return found


async def test_shipments_that_come_in_disorder_and_damaged_are_put_in_order_once(tmp_path: Path) -> None:
    async with trial(tmp_path) as at:
        link = await at.dial(at.right)
        values = [f"p:{number}" for number in range(8)]
        made = await sealed(at, values)
        damaged = [(frame, data[:-1] + bytes([data[-1] ^ 1])) for frame, data in made]
        # Damaged ones first: they take nobody's place. Then the true ones, the last first, some twice.
        for frame, data in [damaged[0], *made[:3:-1], damaged[2], *made[3::-1], *made[::2]]:
            assert await link.carry(frame, data) == ""
        assert await taken(at.right, "orders", "billing", 8) == values
        await link.close()
        await at.right.kill()
        assert stored(at.right.database, "orders") == values


async def test_a_forged_confirmation_ends_nobodys_duty(tmp_path: Path) -> None:
    async with trial(tmp_path) as at:
        await at.publish("one")
        assert await taken(at.right, "orders", "billing", 1) == ["one"]
        _, data = at.recording.shipments()[0]
        header = look(at.right.identity, [at.left.identity.public], at.left.id, data, now())

        async def on_the_way() -> int:
            return sum(lane["on_the_way"] for lane in await at.totals(at.left, "lanes"))

        async def confirmed() -> bool:
            return await on_the_way() == 0

        async def sent() -> bool:
            return await on_the_way() == 1

        await until(confirmed)
        at.left.lines["right"].black_hole()
        await at.publish("two")
        await until(sent)
        link = await at.dial(at.left)
        # The rogue knows all the numbers; what it lacks is the key between the two.
        incarnation = msgspec.msgpack.decode(header.meta)[0]
        stream = Stream("orders", incarnation, header.epoch)
        arrived = encode_control(Arrived(stream, list(range(1, 100))))
        forged = control(
            at.rogue, at.left.id, [at.left.identity.public], kind="message", plaintext=arrived, now=now()
        )
        carry = frames.Carry(
            0, uuid.uuid4().bytes, Kind.CONTROL, at.right.id, at.left.id, 8, [], [at.left.id]
        )
        await link.carry(carry, forged)
        # In its own name it may say so, of its own streams: there are none.
        await link.carry(carry, forged, source=at.rogue.terminal)
        assert await on_the_way() == 1
        await link.close()
        at.left.lines["right"].heal()
        assert await taken(at.right, "orders", "billing", 1) == ["two"]


async def test_another_customers_terminal_gets_no_link_no_ticket_and_no_answer(tmp_path: Path) -> None:
    async with trial(tmp_path) as at:
        customer, admin = await at.fleet.new_customer("other")
        made = await admin.create_terminal("stranger", mode="client")
        assert made.secure_key is not None
        key = SecureKey.parse(made.secure_key)
        stranger = Identity(customer, made.terminal_id, key)
        for claim in (
            stranger,
            Identity(at.fleet.customer, stranger.terminal, key),  # says that it is of this customer
            Identity(at.fleet.customer, at.left.id, key),  # says that it is left
            Identity(at.fleet.customer, at.rogue.terminal, key),
        ):
            with pytest.raises(Unauthenticated):
                await at.dial(at.right, claim)
        async with RegistryClient(at.fleet.url, identity=stranger) as registry:
            with pytest.raises(BusError):
                await registry.issue("orders")
        async with RegistryClient(
            at.fleet.url, identity=Identity(at.fleet.customer, at.left.id, key)
        ) as registry:
            with pytest.raises(Unauthenticated):
                await registry.issue("orders")
        # Frames without a link, and calls without a token.
        for frame in (
            frames.Call(1, "topology.show", {}),
            frames.Hello(frames.VERSION, "no token"),
            frames.Kept([1]),
        ):
            link = Rogue(stranger)
            await link.open(at.right.address)
            link.send(frame)
            with pytest.raises(BusError):
                await link.hear(frames.Done, frames.Welcome)
            await link.close()
        await at.publish("one")
        assert await taken(at.right, "orders", "billing", 1) == ["one"]


async def test_a_revoked_terminal_is_cut_off_at_once(tmp_path: Path) -> None:
    async with trial(tmp_path) as at:
        link = await at.dial(at.right)
        async with RegistryClient(at.fleet.url, identity=at.rogue) as registry:
            await registry.issue("orders")
            await at.fleet.admin.revoke_terminal(at.rogue.terminal)
            with pytest.raises(Unauthenticated):
                await registry.issue("orders")
            with pytest.raises(Unauthenticated):
                await registry.directory()
        with pytest.raises(Unauthenticated):
            await link.hear(frames.Kept)  # whatever it hears next is that it is over
        await link.close()
        with pytest.raises(Unauthenticated):
            await at.dial(at.right)
        # A terminal that runs, with links of its own: the same.
        await at.fleet.admin.revoke_terminal(at.left.id)

        async def alone() -> bool:
            shown = await at.right.ask("topology.show")
            return not shown["links"] and "left" not in {t["name"] for t in shown["terminals"]}

        await until(alone)
