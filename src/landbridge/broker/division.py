"""The units of a terminal's store, divided anew: in which unit of a store with another number of units
everything lives, and under which number. What others know of a log (its id) stays.

With as many units as before, everything stays where it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from landbridge.broker import commit, documents, handover, reservations, stages
from landbridge.broker import group as groups
from landbridge.broker import topic as topics
from landbridge.broker.commit import SETTINGS, START
from landbridge.broker.rule_topics import home_of, unit_of
from landbridge.broker.topic_table import NEXT_LOG
from landbridge.core.log import ledger
from landbridge.core.log.store import LEDGER_ONLY, PutLedger, keys_of
from landbridge.errors import BadRequest, StoreCorrupt

#: What the names of handovers' entries in ledgers begin with: they tell of units that are no more.
HANDED_OVER = b"handover/"
#: What the names of arrivals' entries begin with, in the ledger of a unit.
ARRIVED = b"from:"
FINISH = "start the terminal, stop it in good order, and copy again"


class PlacedDocument(NamedTuple):
    unit: int
    kind: str
    key: str
    value: bytes


class Division:
    """Where everything goes. ``stored``: the topics' documents. ``numbers``: the numbers of all logs that
    there are, or that were given before."""

    def __init__(
        self, was: int, units: int, stored: Iterable[tuple[str, bytes]], numbers: Iterable[int]
    ) -> None:
        self.was, self.units = was, units
        #: Number of a log, as it was → the name of its topic.
        self._names: dict[int, str] = {}
        #: The same → its number in the new division.
        self._numbers: dict[int, int] = {}
        highest = max((number for number in numbers if number < LEDGER_ONLY), default=0)
        #: Per unit: the next number that is free, as the broker counts them.
        self.next = [highest // units + 1] * units
        #: The greatest number of a start that any unit knows; None where no unit has begun.
        self._start: int | None = None
        #: The topics' documents, by name.
        self._topics: dict[str, topics.TopicDocument] = {}
        if was == units:
            return
        for name, raw in stored:
            try:
                found = self._topics[name] = topics.decode(raw)
            except (msgspec.MsgspecError, ValueError):
                raise StoreCorrupt(
                    f"what is stored of the topic {name} is damaged",
                    hint="restore a backup, or delete the topic: then its unit can be found",
                ) from None
            self._names[found.log] = name
        for number, name in self._names.items():
            unit = self._unit_of(name)
            stays = number % units == unit and number >= units
            self._numbers[number] = number if stays else self._given(unit)

    def _unit_of(self, topic: str) -> int:
        return unit_of(home_of(self._topics, topic), self.units)

    def _given(self, unit: int) -> int:
        number = self.next[unit] * self.units + unit
        self.next[unit] += 1
        return number

    def logs(self, log: int) -> list[int]:
        """The logs of the new division that get what a log has. A unit's own log goes to every unit: what its
        ledger says of a client or of another terminal has to be known wherever it is asked for. A log that no
        topic has is left behind."""
        if self.was == self.units:
            return [log]
        if log < self.was:
            return list(range(self.units))
        if log >= LEDGER_ONLY:
            number = self._numbers.get(log - LEDGER_ONLY * self.was)
            return [] if number is None else [keys_of(number, self.units)]
        return [self._numbers[log]] if log in self._numbers else []

    def document(self, unit: int, kind: str, key: str, value: bytes) -> PlacedDocument | None:
        """Where a document goes; None where it is left behind."""
        if self.was == self.units:
            return PlacedDocument(unit, kind, key, value)
        match kind:
            case topics.KIND:
                return self._topic(key, value)
            case groups.KIND | groups.CURSOR | groups.CONFIRMED | commit.HISTORY:
                number, slash, rest = key.partition("/")
                name = self._names.get(int(number)) if number.isdigit() else None
                if name is None:
                    return None  # of a topic that was deleted
                place = f"{self._numbers[int(number)]}{slash}{rest}"
                return PlacedDocument(self._unit_of(name), kind, place, value)
            case groups.PAUSE:
                return self._pause(key, value)
            case documents.KIND:
                topic = key.split("/", 2)[1]
                return PlacedDocument(self._unit_of(topic), kind, key, value)
            case stages.KIND:
                return self._stage(key, value)
            case handover.KIND | reservations.KIND:
                raise BadRequest("a transaction between units is not at its end", hint=FINISH)
        if kind == SETTINGS and key == NEXT_LOG:
            return None  # every unit gets one of its own
        if kind == SETTINGS and key == START:
            # Nodes count the starts of each unit. What follows all of them follows the greatest, and every
            # unit goes by that of unit 0 if its own is less.
            self._start = max(self._start or 0, self._number(value))
            return None
        return PlacedDocument(0, kind, key, value)

    @staticmethod
    def _number(raw: bytes) -> int:
        if not raw.isdigit():
            raise StoreCorrupt("the number of the last start is damaged", hint="start the terminal once")
        return int(raw)

    def _topic(self, name: str, raw: bytes) -> PlacedDocument:
        found = topics.decode(raw)
        number = self._numbers[found.log]
        known_as = found.known_as or (0 if number == found.log else found.log)
        moved = msgspec.structs.replace(found, log=number, known_as=0 if known_as == number else known_as)
        return PlacedDocument(self._unit_of(name), topics.KIND, name, topics.encode(moved))

    def _pause(self, key: str, value: bytes) -> PlacedDocument | None:
        """``topic/LOG``, ``group/LOG/NAME`` or, of the terminal as a whole, ``service/NAME``."""
        what, _, rest = key.partition("/")
        if what not in ("topic", "group"):
            return PlacedDocument(0, groups.PAUSE, key, value)
        number, slash, name = rest.partition("/")
        topic = self._names.get(int(number)) if number.isdigit() else None
        if topic is None:
            return None  # of a topic that was deleted
        place = f"{what}/{self._numbers[int(number)]}{slash}{name}"
        return PlacedDocument(self._unit_of(topic), groups.PAUSE, place, value)

    def _stage(self, stage: str, raw: bytes) -> PlacedDocument:
        if self.was > 1 and stages.decode(raw).left:
            raise BadRequest(f"what was put on the stage {stage} is being published", hint=FINISH)
        return PlacedDocument(unit_of(stages.PREFIX + stage, self.units), stages.KIND, stage, raw)

    def settings(self) -> list[PlacedDocument]:
        """What every unit has to know of the numbers that were given, after all documents were placed."""
        if self.was == self.units:
            return []
        placed = [
            PlacedDocument(unit, SETTINGS, NEXT_LOG, str(number).encode())
            for unit, number in enumerate(self.next)
        ]
        if self._start is not None:
            placed.append(PlacedDocument(0, SETTINGS, START, str(self._start).encode()))
        return placed

    def keeps(self, producer: bytes) -> bool:
        """Does an entry of a ledger mean anything in the new division?"""
        return self.was == self.units or not producer.startswith(HANDED_OVER)


def merged(entries: Sequence[PutLedger]) -> PutLedger:
    """One entry for what several units know of the same client: its transactions happened in any of them."""
    (first, *others) = entries
    if not others or first.producer.startswith(ARRIVED):
        return first
    known = [ledger.decode_transactions(each.entry or b"") for each in entries]
    floor = max(each.floor for each in known)
    stored = sorted({number for each in known for number in each.stored if number >= floor})
    last = max(each.last for each in known)
    lasts = [each.last for each in entries]
    return PutLedger(
        first.log,
        first.producer,
        ledger.encode(ledger.Transactions(floor, tuple(stored), last)),
        None if None in lasts else max(each for each in lasts if each is not None),
        max(each.born for each in entries),
    )
