"""The long-term plan of a customer's bus: what its links are worth over days, and whose loss would cut whom
off.

The job ``routes`` makes it from the measurements of a window, the registry keeps it and hands its costs to
the terminals with the directory. They route by what they measure; the plan is for links not measured yet.
"""

from __future__ import annotations

import msgspec

from landbridge.core.routing.linkstate import COST_MOST
from landbridge.errors import BadRequest

#: What one plan may hold: links, and ids of terminals that some single point cuts off.
LINKS_MOST, CUT_OFF_MOST = 100_000, 100_000
_LONGEST_ID = 64


class PlannedLink(msgspec.Struct, frozen=True, kw_only=True):
    here: str  #: id of the end that comes first in the order of ids
    there: str
    cost: float  #: long-term, in ms
    availability: float  #: share of the window in which both ends reported it, above 0 to 1
    rtt: float  #: median round trip, ms
    rtt_95: float  #: a twentieth took longer
    loss: float  #: mean share of late or lost probes


class SinglePoint(msgspec.Struct, frozen=True, kw_only=True):
    """A terminal whose loss parts others."""

    terminal: str
    cut_off: list[str]  #: who would lose touch with the rest, sorted
    pairs: int  #: of terminals that would no longer reach each other


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    since: int  #: the window that it was made from, microseconds
    until: int
    #: Id of each terminal that was seen → may it carry what is neither from nor for it?
    terminals: dict[str, bool]
    links: list[PlannedLink]
    single_points: list[SinglePoint]


def long_term_cost(cost: float, availability: float) -> float:
    """A link that is up half of the time is worth a quarter, as in a live cost one that loses half of its
    probes."""
    return min(cost / availability**2, COST_MOST)


def check(plan: Plan, most_terminals: int) -> None:
    """BadRequest for a plan that is too large, or nonsense."""
    if len(plan.links) > LINKS_MOST:
        raise BadRequest(f"a plan of {len(plan.links)} links", hint=f"at most {LINKS_MOST}")
    if len(plan.terminals) > most_terminals or len(plan.single_points) > most_terminals:
        raise BadRequest(f"a plan of {len(plan.terminals)} terminals", hint=f"at most {most_terminals}")
    if sum(len(point.cut_off) for point in plan.single_points) > CUT_OFF_MOST:
        raise BadRequest(f"a plan that cuts more than {CUT_OFF_MOST} terminals off")
    if not 0 <= plan.since < plan.until:
        raise BadRequest("a plan of no window")
    if any(len(id) > _LONGEST_ID for id in plan.terminals):
        raise BadRequest("a plan with ids that are none")
    seen = set()
    for link in plan.links:
        ends = link.here, link.there
        figures = (link.cost, link.rtt, link.rtt_95)
        # Written so that a NaN fails too.
        sound = all(0 <= figure <= COST_MOST for figure in figures) and 0 <= link.loss <= 1
        if not sound or not 0 < link.availability <= 1:
            raise BadRequest(f"a plan with impossible figures of the link {link.here} – {link.there}"[:200])
        if link.here >= link.there or ends in seen or not plan.terminals.keys() >= set(ends):
            raise BadRequest(f"a plan with an odd link {link.here} – {link.there}"[:200])
        seen.add(ends)
    for point in plan.single_points:
        if point.pairs <= 0 or not plan.terminals.keys() >= {point.terminal, *point.cut_off}:
            raise BadRequest(f"a plan with an odd single point {point.terminal}"[:200])


def restricted(plan: Plan, known: set[str]) -> Plan:
    """The plan without terminals that are gone: it is about a window of time, and terminals come and go."""
    return msgspec.structs.replace(
        plan,
        terminals={id: carries for id, carries in plan.terminals.items() if id in known},
        links=[link for link in plan.links if link.here in known and link.there in known],
        single_points=[
            msgspec.structs.replace(point, cut_off=cut_off)
            for point in plan.single_points
            if point.terminal in known and (cut_off := [id for id in point.cut_off if id in known])
        ],
    )


def worst(plan: Plan, count: int) -> list[PlannedLink]:
    """The links whose cost is furthest above their round trip."""
    return sorted(plan.links, key=lambda link: -link.cost / max(link.rtt, 1.0))[:count]
