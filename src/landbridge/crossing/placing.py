"""Placing: at which of its terminals a group gets its messages. The choice follows the consumers, which link
states tell of, and the cost of the path to them."""

from __future__ import annotations

import hashlib

from landbridge.broker.group import Group
from landbridge.core.routing.linkstate import LinkStates
from landbridge.core.routing.routes import Routes
from landbridge.core.time import SECOND
from landbridge.core.wording import counted
from landbridge.crossing.ground import Ground
from landbridge.crossing.lane import Hand
from landbridge.errors import GroupElsewhere

#: Seconds that a group stays here after its last consumer has left: it may only be restarting.
STAY = 10.0


class Placement:
    """A group of a topic, seen from this terminal."""

    def __init__(self, topic: str, group: str) -> None:
        self.topic = topic
        self.group = group
        #: The terminal that gets its messages; "" = none found yet; this terminal itself = they stay.
        self.target = ""
        #: When the target was chosen, microseconds.
        self.since = 0
        self.why = "no terminal of the group has been found yet"
        #: Takes the messages for the target; None while there is none, or they stay here.
        self.hand: Hand | None = None


class Placing:
    def __init__(self, ground: Ground, states: LinkStates, routes: Routes) -> None:
        self._ground = ground
        self._states = states
        self._routes = routes
        #: (topic, group) → when its last consumer here has left, microseconds.
        self._left_at: dict[tuple[str, str], int] = {}

    def run_of(self, terminal: str) -> int:
        """The run of a terminal, as its link state tells it; 0 = not known."""
        state = self._states.states.get(terminal)
        return 0 if state is None else state.epoch

    def crosses(self, group: Group) -> bool:
        """Whether the registry has this group for its topic: its consumers may be at other terminals."""
        entry = self._ground.topics.get(group.topic.name)
        return entry is not None and group.name in entry.groups

    def note_consumers(self, group: Group) -> None:
        """The consumers of a group at this terminal have changed."""
        if not group.own_consumers:
            self._left_at[group.topic.name, group.name] = self._ground.now()

    def consumers(self) -> dict[str, int]:
        """The consumers at this terminal, for its link state: key of the group → how many."""
        found = {}
        for entry in self._ground.topics.values():
            topic = self._ground.broker.topics.get(entry.name)
            for name in entry.groups:
                group = topic.groups.get(name) if topic is not None else None
                if (
                    group is not None
                    and self._ground.me in self._ground.members(name)
                    and group.own_consumers
                ):
                    found[self._key(entry.name, name)] = len(group.own_consumers)
        return found

    def _key(self, topic: str, group: str) -> str:
        """A group's name in a link state, which passes through terminals that need not know the topic."""
        text = "\0".join((self._ground.identity.customer, topic, group))
        return hashlib.sha256(text.encode()).hexdigest()[:24]

    def check_subscribe(self, group: Group) -> None:
        ground = self._ground
        if self.crosses(group) and ground.me not in ground.members(group.name):
            names = ", ".join(map(ground.name_of, ground.members(group.name)))
            raise GroupElsewhere(
                f"the group {group.name} of {group.topic.name} has its consumers at {names or 'no terminal'}",
                hint="connect there, or add this terminal to the group",
            )

    def choose(self, placement: Placement, group: Group, suspects: set[str]) -> tuple[str | None, str]:
        """The terminal that gets a group's messages, and why; None if there is none yet. ``suspects``:
        terminals to leave out if there are others."""
        ground, now, current = self._ground, self._ground.now(), placement.target
        key = self._key(placement.topic, placement.group)
        here = len(group.own_consumers)
        left_at = self._left_at.get((placement.topic, placement.group), 0)
        if current == ground.me and not here and now - left_at < STAY * SECOND:
            here = 1

        def consumers_of(terminal: str) -> int:
            if terminal == ground.me:
                return here
            state = self._states.states.get(terminal)
            return state.groups.get(key, 0) if state is not None else 0

        members = ground.members(placement.group)
        trusted = [member for member in members if member not in suspects] or members
        chosen = self._routes.choose_member(
            now, trusted, current or None, consumers_of, since=placement.since
        )
        if chosen is None:
            return None, "no terminal of the group can be reached"
        path = self._routes.best(chosen)
        cost = "no path" if path is None else "here" if not path.hops else f"cost {path.cost:.1f} ms"
        why = f"{counted(consumers_of(chosen), 'consumer')} there, {cost}"
        if len(members) > 1:
            why += f"; the better of {len(members)} terminals of the group"
        return chosen, why
