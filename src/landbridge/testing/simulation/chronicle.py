"""What was tried, promised and seen in one simulation, and the findings: what should not be so.

The rules:
    delivered   what a publisher got an answer for reaches a consumer of every group of its topic
    once        what has crossed is in the destination's log once for a group, whatever was sent again; among
                several terminals of a group a failover may double a message, which is counted
    in order    the messages of one producer stand in the destination's log in the order of publishing, where
                the group has one terminal from beginning to end; what a restored terminal had lost may
                come later
    no loop     no parcel comes to a terminal that it has been at; its hops and its ttl add up
    custody     what no consumer has begun to ack is on a disk, unsettled for the group, at every moment
    stored once what a publisher repeats, and what comes late on its old connection, is in the log once

A topic that is deleted takes with it what its log held, and a store that is restored what was stored after
the copy was made: ``forgiven``. All else must arrive all the same.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from landbridge.core.shipping.parcel import TTL, Parcel


class Incident(NamedTuple):
    """Something that happened to the world."""

    #: Virtual seconds.
    at: float
    kind: str
    what: str


class Chronicle:
    def __init__(self) -> None:
        #: Value → (topic, name of the terminal it was published at). A value is producer:number.
        self.published: dict[str, tuple[str, str]] = {}
        #: Those that were answered: promised.
        self.stored: set[str] = set()
        #: Group → values in the order in which its consumers saw them.
        self.seen: dict[str, list[str]] = {}
        #: (group, value) whose ack has been begun: nobody needs to keep it any longer.
        self.acked: set[tuple[str, str]] = set()
        #: (destination, source, group) → values in the order in which they were stored there.
        self.arrived: dict[tuple[str, str, str], list[str]] = {}
        #: Groups whose consumers or terminal crashed, were moved, or have several terminals.
        self.shaken: set[str] = set()
        #: (group, value) that may be lost, by a deletion or a restored store.
        self.forgiven: set[tuple[str, str]] = set()
        #: (group, value) that a restored terminal has lost and must be sent again by its source.
        self.owed: set[tuple[str, str]] = set()
        #: (terminal, value) that may be stored there again: a deletion took the record that it had arrived.
        self.again: set[tuple[str, str]] = set()
        #: (terminal, value) that may be stored there after later ones: the terminal has lost it once.
        self.late: set[tuple[str, str]] = set()
        #: Value → which life of its topic it was published in, where that is not the last one. Order is
        #: kept within a life.
        self.life: dict[str, int] = {}
        self.incidents: list[Incident] = []
        self.counts: Counter[str] = Counter()
        self.findings: list[str] = []

    def find(self, rule: str, what: str) -> None:
        self.findings.append(f"{rule}: {what}")

    # -- as it happens -----------------------------------------------------------------------------

    def parcel(self, me: str, parcel: Parcel) -> None:
        """A terminal is given a parcel."""
        self.counts["parcels"] += 1
        visited = parcel.visited
        if len(set(visited)) < len(visited):
            self.find("no loop", f"{parcel.id.hex()} at {me}, visited {visited}")
        if me in visited:
            self.counts["met again"] += 1  # declined there, for exactly this reason
        if parcel.ttl < 1 or parcel.ttl + len(visited) != TTL + 1:
            self.find("no loop", f"{parcel.id.hex()} at {me} with ttl {parcel.ttl} after {len(visited)} hops")

    def arrive(self, destination: str, source: str, groups: Iterable[str], values: Iterable[str]) -> None:
        values = list(values)
        for group in groups:
            self.arrived.setdefault((destination, source, group), []).extend(values)

    def see(self, group: str, value: str) -> None:
        self.seen.setdefault(group, []).append(value)

    # -- at the end --------------------------------------------------------------------------------

    def missing(self, groups: dict[str, list[str]], without: set[str]) -> list[tuple[str, str]]:
        """(group, value) of promises that no consumer has seen. ``groups``: topic → its groups; ``without``:
        terminals whose messages need not get anywhere."""
        seen = {group: set(values) for group, values in self.seen.items()}
        return [
            (group, value)
            for value in sorted(self.stored)
            for group in groups[self.published[value][0]]
            if value not in seen.get(group, ())
            and self.published[value][1] not in without
            and (group, value) not in self.forgiven
        ]

    def judge_arrivals(self, moved: set[str]) -> None:
        """``moved``: groups that had more than one terminal at some time."""
        for (destination, source, group), values in sorted(self.arrived.items()):
            doubles = sorted(
                value
                for value, count in Counter(values).items()
                if count > 1 and (destination, value) not in self.again
            )
            if doubles and group in moved:
                self.counts["doubled in a log after a move"] += len(doubles)
            elif doubles:
                self.find("once", f"{group} at {destination} from {source}: {doubles}")
            if group in moved:
                continue
            last: dict[tuple[str, int], int] = {}
            for value in values:
                name, _, number = value.rpartition(":")
                producer = (name, self.life.get(value, 0))
                late = int(number) < last.get(producer, -1)
                if late and (destination, value) not in self.again | self.late:
                    self.find("in order", f"{group} at {destination} from {source}: {value} too late")
                last[producer] = int(number)
        for group, values in sorted(self.seen.items()):
            doubled = sum(count - 1 for count in Counter(values).values())
            if doubled and group not in self.shaken and group not in moved:
                again = sorted(value for value, count in Counter(values).items() if count > 1)
                self.find("once", f"a consumer of {group} saw again, without any crash: {again}")
            kind = "after a move" if group in moved else "after a crash"
            self.counts[f"seen twice {kind}"] += doubled
            unknown = set(values) - self.published.keys()
            if unknown:
                self.find("once", f"{group} got what nobody published: {sorted(unknown)}")
