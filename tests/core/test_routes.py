import itertools
import math
from random import Random

import msgspec
import pytest

from landbridge.core.routing.linkstate import LinkState, LinkStates, SignedLinkState, decode
from landbridge.core.routing.meter import Meter
from landbridge.core.routing.routes import HOLD, LOAD_COST, Routes
from landbridge.core.time import SECOND
from landbridge.core.trust.directory import Directory, TerminalEntry

NOW = 1_700_000_000 * SECOND
encode = msgspec.msgpack.encode


class Bus:
    """What one terminal, ``me``, knows of a bus. Signatures are left out: link states see to them."""

    def __init__(self, links: dict[str, float], *, clients="", stubs="", me="me"):
        """``links``: "a-b" → cost."""
        self.now = NOW
        self.me = me
        self.names = sorted({me} | {name for link in links for name in link.split("-")})
        self.sequences = itertools.count(1)
        self.links = dict(links)
        self.more: dict[str, dict] = {}
        self.directory = Directory(
            customer="acme",
            version=1,
            terminals=[
                TerminalEntry(
                    id=name,
                    name=name,
                    mode="client" if name in clients.split() else "server",
                    transit=name not in stubs.split(),
                    keys=[],
                )
                for name in self.names
            ],
        )
        self.states = LinkStates(me, epoch=1, sign=lambda state: SignedLinkState(encode(state), b""))
        self.routes = Routes(me, self.states, self.directory)
        self.tell(*self.names)

    def tell(self, *names):
        """These say how things are with them."""
        for name in names:
            links = {}
            for link, cost in self.links.items():
                here, there = link.split("-")
                if name in (here, there):
                    links[there if name == here else here] = cost
            if name == self.me:
                self.states.own(self.now, mode="server", links=links, **self.more.get(name, {}))
            else:
                state = LinkState(
                    origin=name,
                    epoch=1,
                    sequence=next(self.sequences),
                    time=self.now,
                    links=links,
                    **self.more.get(name, {}),
                )
                signed = SignedLinkState(encode(state), b"")
                assert self.states.offer(self.now, signed, lambda signed: decode(signed.body))
        self.routes.refresh(self.now)

    def set(self, **links: float | None):
        """``a_b=cost``, None for a link that is lost; both ends tell, a second later."""
        self.now += SECOND
        for name, cost in links.items():
            name = name.replace("_", "-")
            if cost is None:
                del self.links[name]
            else:
                self.links[name] = cost
        self.tell(*{end for name in links for end in name.split("_")})

    def say(self, name: str, **more):
        self.now += SECOND
        self.more[name] = more
        self.tell(name)

    def wait(self, seconds: float):
        self.now += round(seconds * SECOND)

    def route(self, there: str) -> str:
        path = self.routes.route(self.now, there)
        return "none" if path is None else " ".join(path.hops)

    def best(self, there: str, **more) -> str:
        path = self.routes.best(there, **more)
        return "none" if path is None else " ".join(path.hops)


def diamond(**more) -> Bus:
    return Bus({"me-a": 10, "a-z": 10, "me-b": 11, "b-z": 11}, **more)


# -- paths -------------------------------------------------------------------------------------------


def test_a_frame_that_terminals_on_the_best_path_do_not_take_goes_another_way():
    bus = diamond()
    bus.say("a", max_frame=1 << 20)
    assert bus.routes.max_frame(["a", "z"]) == bus.routes.least_frame == 1 << 20
    assert bus.routes.max_frame(["b", "z"]) == 16 << 20
    assert bus.route("z") == "a z"
    assert bus.routes.wide("z", 1 << 20) == ["a", "z"]
    assert bus.routes.wide("z", 2 << 20) == ["b", "z"]
    assert bus.routes.wide("z", 2 << 20, {"b"}) is None
    bus.say("z", max_frame=1 << 20)
    assert bus.routes.wide("z", 2 << 20) is None


def test_best_path_and_its_cost():
    bus = diamond()
    path = bus.routes.best("z")
    assert path is not None
    assert (path.hops, path.through, path.cost) == (("a", "z"), ("a",), 20)


def test_path_to_oneself_is_empty():
    path = diamond().routes.best("me")
    assert path is not None
    assert (path.hops, path.cost) == ((), 0)


def test_no_path_to_the_unknown_and_the_unlinked():
    bus = Bus({"me-a": 1, "y-z": 1})
    assert bus.best("nobody") == bus.best("z") == bus.route("nobody") == bus.route("z") == "none"
    assert bus.routes.alternates("z") == []


def test_best_path_avoids():
    bus = diamond()
    assert bus.best("z", avoid=["a"]) == "b z"
    assert bus.best("z", avoid=["a", "b"]) == "none"
    assert bus.best("z", avoid=["z"]) == "none"


def test_reroute_goes_through_nobody_twice():
    bus = Bus({"me-a": 1, "a-z": 1, "me-b": 9, "b-z": 9})
    assert bus.routes.hops(bus.now, "z") == ["a", "z"]
    assert bus.routes.hops(bus.now, "z", {"origin", "a", "me"}) == ["b", "z"]
    assert bus.routes.hops(bus.now, "z", {"a", "b"}) is None


def test_stub_is_reached_but_not_passed():
    bus = diamond(stubs="a")
    assert bus.best("z") == "b z"
    assert bus.best("a") == "a"


def test_client_is_reached_through_its_servers():
    bus = Bus({"me-a": 1, "me-b": 2, "a-c": 1, "b-c": 1}, clients="c")
    assert bus.route("c") == "a c"
    bus.set(a_c=None)
    assert bus.route("c") == "b c"


def test_one_sided_link_carries_nothing():
    bus = diamond()
    del bus.links["a-z"]
    bus.wait(1)
    bus.tell("z")  # only z has noticed
    assert bus.best("z") == "b z"


def test_terminal_that_is_being_emptied_is_the_last_resort():
    bus = diamond()
    assert bus.route("z") == "a z"
    bus.say("a", draining=True)
    assert bus.route("z") == "b z"  # at once, though no 30 s have passed
    assert bus.route("a") == "a"
    bus.set(b_z=None)
    assert bus.route("z") == "a z"


def test_alternates_are_disjoint():
    bus = Bus({"me-a": 1, "a-z": 1, "me-b": 2, "b-z": 2, "a-b": 0.1, "me-c": 9, "c-z": 9})
    assert [path.hops for path in bus.routes.alternates("z")] == [("b", "z"), ("c", "z")]
    assert [path.cost for path in bus.routes.alternates("z")] == [4, 18]


def test_direct_link_has_alternates():
    bus = Bus({"me-z": 1, "me-b": 2, "b-z": 2})
    assert [path.hops for path in bus.routes.alternates("z")] == [("b", "z")]


def test_only_path_has_no_alternate():
    assert Bus({"me-a": 1, "a-z": 1}).routes.alternates("z") == []


def test_alternate_shares_what_it_must():
    bus = Bus({"me-a": 1, "a-b": 1, "a-c": 5, "b-z": 1, "c-z": 5})
    assert bus.best("z") == "a b z"
    assert [path.hops for path in bus.routes.alternates("z")] == [("a", "c", "z")]


def test_single_points():
    bus = Bus({"me-a": 1, "a-b": 1, "b-c": 1, "b-d": 1, "c-d": 1, "me-x": 1, "x-y": 1, "me-y": 1})
    assert bus.routes.single_points() == {"a": ["b", "c", "d"], "b": ["c", "d"]}
    assert diamond().routes.single_points() == {}


# -- when the graph is looked at ---------------------------------------------------------------------


def test_changes_of_others_are_taken_over_once_a_second():
    bus = diamond()
    bus.wait(10)
    bus.links |= {"a-z": 50}
    bus.tell("a", "z")
    assert bus.best("z") == "b z"
    bus.links |= {"b-z": 500}
    bus.wait(0.5)
    bus.tell("b", "z")
    assert bus.best("z") == "b z"
    due = bus.now + SECOND // 2
    assert not bus.routes.refresh(due - 1)
    assert bus.routes.refresh(due)
    assert bus.best("z") == "a z"
    assert not bus.routes.refresh(due + SECOND)


def test_loss_of_an_own_link_counts_at_once():
    bus = diamond()
    bus.wait(10)
    bus.links |= {"a-z": 11}
    bus.tell("a")
    assert bus.route("z") == "a z"
    del bus.links["me-a"]
    bus.tell("me")
    assert bus.route("z") == "b z"


def test_answers_are_kept_until_the_graph_changes():
    bus = diamond()
    kept = bus.routes.best("z")
    bus.say("a", load=0.9, groups={"orders/billing": 3})
    assert bus.routes.best("z") is kept
    bus.set(a_z=10.5)
    assert bus.routes.best("z") is not kept


def test_expired_terminal_is_gone():
    bus = diamond()
    assert bus.route("z") == "a z"
    bus.wait(100)
    bus.tell("b", "z", "me")
    bus.wait(100)
    bus.states.advance(bus.now)
    assert bus.route("z") == "b z"
    assert bus.route("a") == "none"


def test_revoked_terminal_carries_nothing_from_then_on():
    bus = diamond()
    assert bus.route("z") == "a z"
    bus.routes.follow(msgspec.structs.replace(bus.directory, version=2, revoked=["a"]))
    assert bus.route("z") == "b z"
    assert bus.route("a") == "none"


# -- damping -----------------------------------------------------------------------------------------


def test_route_stays_while_the_other_is_not_much_better():
    bus = diamond()
    assert bus.route("z") == "a z"
    bus.wait(3600)
    bus.set(b_z=6)  # 17 instead of 20
    assert bus.best("z") == "b z"
    assert bus.route("z") == "a z"
    bus.set(b_z=4)  # 15
    assert bus.route("z") == "b z"


def test_route_changes_at_most_every_thirty_seconds():
    bus = diamond()
    assert bus.route("z") == "a z"
    since = bus.now
    bus.set(b_z=1)
    assert bus.route("z") == "a z"
    bus.now = since + HOLD - 1
    assert bus.route("z") == "a z"
    bus.now = since + HOLD  # though nothing has changed since
    assert bus.route("z") == "b z"


def test_dead_path_is_left_at_once():
    bus = diamond()
    assert bus.route("z") == "a z"
    bus.set(a_z=None)
    assert bus.route("z") == "b z"
    bus.set(b_z=None)
    assert bus.route("z") == "none"
    bus.set(a_z=10)
    assert bus.route("z") == "a z"


def test_path_in_use_knows_its_present_cost():
    bus = diamond()
    bus.routes.route(bus.now, "z")
    bus.set(a_z=13)
    path = bus.routes.route(bus.now, "z")
    assert path is not None
    assert (path.hops, path.cost) == (("a", "z"), 23)


def an_hour_of_noise(told, jitter=15.0, loss=0.05) -> tuple[int, int]:
    """How often the best of two equal paths changes, and how often the route does. ``told(meter, rtt)``: the
    cost that both ends report. ``jitter``: ms on average above 50; ``loss``: share that is retransmitted."""
    noise = Random(7)
    bus = Bus({"me-a": 50, "me-b": 50, "a-z": 1, "b-z": 1})
    meters = {"me-a": Meter(), "me-b": Meter()}
    best, routes = [], []
    for number in range(1800):
        bus.now += 2 * SECOND
        for link, meter in meters.items():
            rtt = 50 + noise.expovariate(1 / jitter) + (200 if noise.random() < loss else 0)
            meter.sent(bus.now, number)
            meter.echoed(bus.now + round(rtt * 1000), number)
            bus.links[link] = told(meter, rtt)
        bus.tell("me", "a", "b", "z")
        best.append(bus.best("z"))
        routes.append(bus.route("z"))
    switches = [sum(x != y for x, y in itertools.pairwise(way)) for way in (best, routes)]
    return switches[0], switches[1]


def test_noise_moves_routes_rarely():
    """Two bad lines that are equally bad, the worst case for a choice. Each damper does its part: the
    average, the steps, and the rule of 0.8 and 30 s."""
    raw, held = an_hour_of_noise(lambda meter, rtt: rtt)
    smooth, calm = an_hour_of_noise(lambda meter, rtt: meter.parts.total)
    stepped, route = an_hour_of_noise(lambda meter, rtt: meter.cost)
    print(f"best path: raw {raw}, smoothed {smooth}, in steps {stepped}; route: {held}, {calm}, {route}")
    assert raw > 500
    assert held <= 3600 // 30
    assert stepped < smooth < raw / 3
    assert max(calm, route) < raw / 15


def test_ordinary_noise_moves_no_route():
    raw, _ = an_hour_of_noise(lambda meter, rtt: rtt, jitter=3.0, loss=0.002)
    _, route = an_hour_of_noise(lambda meter, rtt: meter.cost, jitter=3.0, loss=0.002)
    print(f"best path: raw {raw}; route: {route}")
    assert raw > 500
    assert route < 5


# -- members of a group ------------------------------------------------------------------------------


def star() -> Bus:
    return Bus({"me-near": 10, "me-mid": 20, "me-far": 100})


EVERY = ["near", "mid", "far"]


def test_nearest_member_with_consumers_is_chosen():
    bus = star()
    counts = {"mid": 1, "far": 3}
    assert bus.routes.choose_member(bus.now, EVERY, None, lambda t: counts.get(t, 0)) == "mid"
    assert bus.routes.choose_member(bus.now, [*EVERY, "me"], None, lambda _: 1) == "me"


def test_load_counts():
    bus = star()
    bus.say("near", load=1.0)
    assert LOAD_COST > 20
    assert bus.routes.choose_member(bus.now, EVERY, None, lambda _: 1) == "mid"


def test_draining_member_gets_nothing_new():
    bus = star()
    bus.say("near", draining=True)
    assert bus.routes.choose_member(bus.now, EVERY, "near", lambda _: 1) == "mid"
    bus.say("mid", draining=True)
    bus.say("far", draining=True)
    assert bus.routes.choose_member(bus.now, EVERY, None, lambda _: 1) == "near"


def test_member_is_kept_unless_another_is_much_better():
    bus = star()
    choose = bus.routes.choose_member
    long_ago = bus.now - HOLD
    assert choose(bus.now, EVERY, "far", lambda _: 1, since=long_ago + 1) == "far"
    assert choose(bus.now, EVERY, "far", lambda _: 1, since=long_ago) == "near"
    bus.set(me_near=17)
    assert choose(bus.now, EVERY, "mid", lambda _: 1, since=long_ago) == "mid"


def test_member_that_lost_its_consumers_is_left_at_once():
    bus = star()
    assert bus.routes.choose_member(bus.now, EVERY, "near", lambda t: t == "far", since=bus.now) == "far"


def test_without_consumers_messages_wait_at_the_nearest():
    bus = star()
    assert bus.routes.choose_member(bus.now, EVERY, None, lambda _: 0) == "near"
    assert bus.routes.choose_member(bus.now, EVERY, "mid", lambda _: 0, since=bus.now) == "mid"


def test_lost_member_is_left_at_once_and_kept_only_if_nobody_is_left():
    bus = star()
    bus.set(me_near=None)
    choose = bus.routes.choose_member
    assert choose(bus.now, EVERY, "near", lambda _: 1, since=bus.now) == "mid"
    assert choose(bus.now, ["near"], "near", lambda _: 1) == "near"
    assert choose(bus.now, ["near"], None, lambda _: 1) is None
    assert choose(bus.now, ["near"], "mid", lambda _: 1) is None  # no longer a member
    assert choose(bus.now, [], None, lambda _: 1) is None


# -- explanations ------------------------------------------------------------------------------------


def test_explanation_names_paths_links_and_the_reason():
    bus = diamond()
    bus.route("z")
    bus.wait(60)
    bus.links |= {"b-z": 6}
    bus.tell("b")
    bus.wait(1)
    bus.tell("z")
    bus.route("z")
    meter = Meter()
    meter.sent(0, 1)
    meter.echoed(5000, 1)
    assert meter.parts is not None
    told = bus.routes.explain("z", parts={"a": meter.parts})
    assert told.best is not None
    assert told.current is not None
    assert (told.best.hops, told.current.hops) == (("b", "z"), ("a", "z"))
    assert "17.0, not below 0.8 of 20.0" in told.why
    assert [path.hops for path in told.alternates] == [("a", "z")]
    links = {(link.here, link.there): link for link in told.links}
    assert set(links) == {("me", "a"), ("a", "z"), ("me", "b"), ("b", "z")}
    assert links["me", "a"].parts == meter.parts
    assert links["b", "z"].parts is None
    assert (links["b", "z"].cost, links["b", "z"].here_says) == (6, 6)


@pytest.mark.parametrize(
    ("happens", "why"),
    [
        (lambda bus: None, "the first choice"),
        (lambda bus: bus.set(a_z=None), "the path before is dead: a > z"),
        (lambda bus: bus.set(b_z=1), "kept: b > z is better, but the last change was less than 30 s ago"),
        (lambda bus: (bus.wait(60), bus.set(b_z=1)), "cost 12.0 instead of 20.0 over a > z"),
        (lambda bus: bus.set(a_z=5), "it is the cheapest"),
        (lambda bus: bus.set(a_z=None, b_z=None), "no path leads there"),
        (
            lambda bus: bus.say("a", draining=True),
            "the path before goes through a terminal that is being emptied",
        ),
    ],
)
def test_reasons(happens, why):
    bus = diamond()
    bus.route("z")
    happens(bus)
    bus.route("z")
    assert bus.routes.explain("z").why.startswith(why)


def test_explanation_for_another_source_and_for_the_unknown():
    bus = diamond()
    bus.route("z")
    told = bus.routes.explain("me", source="z")
    assert told.best is not None
    assert told.best.hops == ("a", "me")
    assert told.current is None
    assert "z would choose" in told.why
    assert "directory" in bus.routes.explain("nobody").why
    assert bus.routes.explain("nobody").links == []


def test_link_that_was_lost_since_the_last_look_can_be_explained():
    bus = diamond()
    bus.wait(10)
    bus.links |= {"b-z": 12}
    bus.tell("b", "z")
    del bus.links["a-z"]
    bus.tell("z")  # within the same second: not taken over yet
    links = {(link.here, link.there): link for link in bus.routes.explain("z").links}
    assert links["a", "z"].there_says is None
    assert not math.isinf(links["a", "z"].cost)
