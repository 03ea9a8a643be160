"""What is read of a unit when this process becomes its owner: its topics, their groups, and how far each of
them is."""

from __future__ import annotations

from typing import Protocol

from landbridge.broker import group as groups
from landbridge.broker import reservations
from landbridge.broker import topic as topics
from landbridge.broker.commit import HISTORY, SETTINGS
from landbridge.broker.damage import Damage, decoded
from landbridge.broker.group import Group
from landbridge.broker.reservations import Reservations
from landbridge.broker.topic import Topic
from landbridge.broker.topic_table import EMPTY, NEXT_LOG, TopicTable
from landbridge.broker.transaction_ledger import TransactionLedger
from landbridge.core.log.cursor import Cursor
from landbridge.core.log.ranges import Range, normalise
from landbridge.core.log.store import LEDGER_ONLY, Store, keys_of
from landbridge.core.shipping.confirmed import Confirmed
from landbridge.core.shipping.history import decode as decode_history
from landbridge.core.topic import GroupSpec
from landbridge.errors import StoreCorrupt

#: More than any terminal has been started, or has deleted topics.
LATE_START = 1_000_000
GIVE_UP_TOPIC = "restore a backup, or give its messages up with 'landbridge topic delete NAME --force'"


class LoadingHost(Protocol):
    """What is asked of the broker."""

    store: Store
    damage: Damage
    damaged: dict[str, StoreCorrupt]
    table: TopicTable
    ledger: TransactionLedger
    reservations: Reservations

    @property
    def consuming(self) -> groups.Hub: ...


class UnitLoader:
    def __init__(self, broker: LoadingHost) -> None:
        self._broker = broker

    async def load(self, unit: int, acks: dict[tuple[int, str], list[Range]]) -> None:
        """Fill the unit's part of the topic table. ``acks``: what transactions in other units have settled,
        and the cursors may not know yet."""
        store, damage = self._broker.store, self._broker.damage
        bounds = await store.logs(unit)
        self._broker.ledger.load(unit, bounds)
        by_number: dict[int, Topic] = {}
        for name, raw in await store.documents(unit, topics.KIND):
            try:
                found = decoded(f"what is stored of the topic {name}", topics.decode, raw, GIVE_UP_TOPIC)
            except StoreCorrupt as error:
                self._broker.damaged[name] = error
                damage.note(str(error), error.hint, topic=name)
                continue
            by_number[found.log] = self._broker.table.add(
                found.spec,
                found.log,
                bounds.get(found.log, EMPTY),
                found.created_at,
                stored=True,
                key_bounds=bounds.get(keys_of(found.log, store.units)),
                known_as=found.known_as,
            )
        for key, raw in await store.documents(unit, HISTORY):
            if (topic := by_number.get(_number(key))) is not None:
                what = f"the history of the topic {topic.name}"
                topic.log.history = damage.decode(what, decode_history, raw, [], "", topic=topic.name)
        used = max([0, *by_number, *(number for number in bounds if number < LEDGER_ONLY)])
        stored = dict(await store.documents(unit, SETTINGS)).get(NEXT_LOG, b"1")
        # Where it is damaged: above the numbers of logs that were deleted.
        beyond = used // store.units + LATE_START
        next_log = damage.decode("the number of the next log", int, stored, beyond, "")
        self._broker.table.number_from(unit, max(used // store.units + 1, next_log))
        slots: dict[str, list[tuple[int, bytes]]] = {}
        for key, value in await store.documents(unit, groups.CURSOR):
            owner, _, slot = key.rpartition("/")
            slots.setdefault(owner, []).append((_number(slot), value))
        confirmed = dict(await store.documents(unit, groups.CONFIRMED))
        for key, raw in await store.documents(unit, groups.KIND):
            number, _, name = key.partition("/")
            topic = by_number.get(_number(number))
            if topic is not None:
                runs = normalise(acks.get((topic.log.number, name), ()))
                self._open_group(topic, name, raw, slots.get(key), confirmed.get(key), runs)
        lost = "messages that a transaction has acked may come again"
        for token, raw in await store.documents(unit, reservations.KIND):
            found_there = damage.decode(f"the reservation {token}", reservations.decode, raw, None, lost)
            if found_there is not None:
                self._broker.reservations.load(unit, bytes.fromhex(token), found_there)

    def _open_group(
        self,
        topic: Topic,
        name: str,
        raw: bytes,
        slots: list[tuple[int, bytes]] | None,
        confirmed: bytes | None,
        acks: list[Range],
    ) -> None:
        """``raw``, ``slots``, ``confirmed``: what is stored of the group, of its cursor, and of what has
        arrived elsewhere. A group whose options or cursor can't be read stops until somebody moves it."""
        damaged: StoreCorrupt | None = None
        spec, cursor = GroupSpec(topic=topic.name, name=name), Cursor(topic.log.first)
        where = f"group {name} of the topic {topic.name}"
        seek = f"'landbridge group seek {topic.name} {name} --to earliest' (or an offset, a time, 'latest')"
        try:
            spec = decoded(
                f"the options of the {where}", groups.decode, raw, f"it goes on without after {seek}"
            )
        except StoreCorrupt as error:
            damaged = error
        try:
            if slots is not None:
                cursor = decoded(f"the cursor of the {where}", Cursor.restore, slots, f"move it with {seek}")
        except StoreCorrupt as error:
            damaged, cursor.slots = error, max(slot for slot, _ in slots or [(0, b"")]) + 1
        cursor.settle(acks)
        group = Group(self._broker.consuming, topic, spec, cursor, durable=True, stored=damaged is None)
        # A crash may have come between a trim and the cursor that knew of it.
        group.delivery.trimmed(topic.log.first)
        if confirmed is not None:
            what = f"what has arrived elsewhere of the {where}"
            group.confirmed = self._broker.damage.decode(what, Confirmed.decode, confirmed, Confirmed(), "")
        if damaged is not None:
            group.damaged = damaged
            self._broker.damage.note(str(damaged), damaged.hint, topic=topic.name, group=name)
        topic.groups[name] = group


def _number(key: str) -> int:
    """The number in a document's key; -1 where nobody wrote that key."""
    return int(key) if key.isdecimal() else -1
