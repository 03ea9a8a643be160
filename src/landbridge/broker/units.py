"""Which units of the store are here: what this process owns of them, and who is asked about the others."""

from __future__ import annotations

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.handover import Handovers
from landbridge.broker.owned import OwnedUnits
from landbridge.broker.rule_topics import home_of, unit_of
from landbridge.broker.surroundings import Elsewhere
from landbridge.broker.topic import Topic
from landbridge.errors import NotOwner
from landbridge.stores.writer import Writer


class Units:
    """The units of a terminal's store, as this process has them."""

    def __init__(self, number: int, topics: dict[str, Topic]) -> None:
        """``number``: of units that the store has. ``topics``: those that are loaded."""
        self.number = number
        self._topics = topics
        #: The writer of each unit, and what each unit owes to the others.
        self.writers: OwnedUnits[Writer[BrokerCommit]] = OwnedUnits(self.not_owner)
        self.handovers: OwnedUnits[Handovers] = OwnedUnits(self.not_owner)
        #: The other nodes of this terminal; None where it has no nodes, and owns all units.
        self.elsewhere: Elsewhere | None = None
        #: Units that are being loaded: this process has claimed them, and doesn't know yet what is in them.
        self.loading: set[int] = set()

    @property
    def owned(self) -> frozenset[int]:
        """The units that this process owns."""
        return self.writers.units - self.loading

    def owns(self, unit: int) -> bool:
        """Does this process own a unit?"""
        return unit in self.writers and unit not in self.loading

    def not_owner(self, unit: int) -> NotOwner:
        """The error for what lives in a unit that this process doesn't own."""
        owner = "" if self.elsewhere is None else self.elsewhere.owner_of(unit)
        where = f"the node {owner} has it" if owner else "no node has it at the moment"
        return NotOwner(f"unit {unit} of the terminal is not at this node: {where}")

    def unit_of(self, topic: str) -> int:
        """The unit that a topic lives in, or would live in."""
        return unit_of(home_of(self._topics, topic), self.number)

    def writer_for(self, topic: str) -> Writer[BrokerCommit]:
        """The writer of the unit that a topic lives in, or would live in."""
        return self.writers[self.unit_of(topic)]

    def has(self, topic: str) -> bool:
        """Does the topic live in a unit that this process owns, or would it?"""
        found = self._topics.get(topic)
        unit = self.unit_of(topic) if found is None else found.writer.unit
        return self.owns(unit)

    def has_log(self, log: int) -> bool:
        """Does this process own the unit of a log?"""
        return self.owns(log % self.number)

    def check_has(self, topic: str) -> None:
        """NotOwner where it doesn't."""
        if not self.has(topic):
            raise self.not_owner(self.unit_of(topic))

    def topics_in(self, unit: int) -> list[Topic]:
        """The topics of a unit."""
        return [topic for topic in self._topics.values() if topic.writer.unit == unit]
