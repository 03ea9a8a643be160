import math
from itertools import pairwise

import msgspec
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from landbridge.core.routing import linkstate
from landbridge.core.routing.linkstate import (
    AHEAD,
    EXPIRY,
    GROUPS_MOST,
    REFRESH,
    LinkState,
    LinkStates,
    SignedLinkState,
    Verifier,
    decode,
    link_cost,
    sign,
)
from landbridge.core.time import SECOND
from landbridge.core.trust.directory import Directory, PublicKeys, TerminalEntry
from landbridge.errors import BadFrame, Unauthenticated

NOW = 1_700_000_000 * SECOND
CUSTOMER = "acme"
NAMES = ["me", "ams", "fra", "nyc", "gone"]
KEYS = {name: Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32) for n, name in enumerate(NAMES)}
STRANGER = Ed25519PrivateKey.from_private_bytes(b"x" * 32)


def public(key: Ed25519PrivateKey) -> PublicKeys:
    return PublicKeys(key.public_key().public_bytes_raw(), bytes(32))


DIRECTORY = Directory(
    customer=CUSTOMER,
    version=1,
    terminals=[TerminalEntry(id=n, name=n, mode="server", keys=[public(KEYS[n])]) for n in NAMES],
    revoked=["gone"],
)
VERIFY = Verifier(DIRECTORY)


def state(origin="ams", epoch=1, sequence=1, time=NOW, **more) -> LinkState:
    return LinkState(origin=origin, epoch=epoch, sequence=sequence, time=time, **more)


def signed(origin="ams", *args, **more) -> SignedLinkState:
    return sign(state(origin, *args, **more), KEYS[origin], CUSTOMER)


def database(**options) -> LinkStates:
    return LinkStates("me", epoch=NOW, sign=lambda state: sign(state, KEYS["me"], CUSTOMER), **options)


# -- signatures ------------------------------------------------------------------------------------


def test_what_is_signed_is_what_is_read():
    said = state(links={"fra": 12.5}, groups={"orders/billing": 2}, load=0.5, draining=True)
    assert VERIFY(sign(said, KEYS["ams"], CUSTOMER)) == said


def test_both_keys_are_good_during_a_rotation():
    entry = TerminalEntry(id="ams", name="ams", mode="server", keys=[public(STRANGER), public(KEYS["ams"])])
    verify = Verifier(Directory(customer=CUSTOMER, version=2, terminals=[entry]))
    assert verify(signed()) == verify(sign(state(), STRANGER, CUSTOMER)) == state()


@pytest.mark.parametrize(
    "forged",
    [
        sign(state("ams"), KEYS["fra"], CUSTOMER),  # a neighbour speaks for another
        sign(state("ams"), KEYS["ams"], "umbrella"),  # another customer's
        sign(state("who"), STRANGER, CUSTOMER),
        sign(state("gone"), KEYS["gone"], CUSTOMER),
        SignedLinkState(signed(links={"fra": 1.0}).body, signed().signature),
        SignedLinkState(signed().body, b""),
    ],
    ids=["by another", "customer", "unknown", "revoked", "changed", "unsigned"],
)
def test_forged_state_is_refused(forged):
    with pytest.raises(Unauthenticated):
        VERIFY(forged)
    states = database()
    assert not states.offer(NOW, forged, VERIFY)
    assert states.refused == {"unauthenticated": 1}
    assert states.states == {}
    assert states.bytes == 0


@given(at=st.integers(0, 10**6), flip=st.integers(1, 255))
def test_no_byte_of_a_state_can_be_changed(at, flip):
    whole = signed(links={"fra": 12.5}, groups={"orders/billing": 2})
    body = bytearray(whole.body)
    body[at % len(body)] ^= flip
    assert not database().offer(NOW, SignedLinkState(bytes(body), whole.signature), VERIFY)


@pytest.mark.parametrize(
    "nonsense",
    [
        {"links": {"fra": math.nan}},
        {"links": {"fra": -1.0}},
        {"links": {"fra": math.inf}},
        {"load": 1.5},
        {"load": math.nan},
        {"groups": {"orders/billing": -1}},
        {"max_frame": 1000},
        {"links": {str(n): 1.0 for n in range(linkstate.LINKS_MOST + 1)}},
        {"groups": {str(n): 1 for n in range(GROUPS_MOST + 1)}},
    ],
    ids=str,
)
def test_well_signed_nonsense_is_refused(nonsense):
    """Dijkstra's and Bellman's kin don't survive a NaN, and a member of the bus may be broken or bought."""
    with pytest.raises(BadFrame):
        VERIFY(signed(**nonsense))


@given(st.binary(max_size=200))
def test_garbage_is_refused(body):
    states = database()
    assert not states.offer(NOW, SignedLinkState(body, bytes(64)), VERIFY)
    assert states.refused.total() == 1


def test_too_long_a_body_is_not_even_decoded():
    with pytest.raises(BadFrame, match="bytes"):
        decode(bytes(linkstate.BODY_MOST + 1))


# -- the states of others ----------------------------------------------------------------------------


class LinkStatesMachine(RuleBasedStateMachine):
    """Against a list of all that was heard: what counts is the newest of each origin that isn't too old."""

    def __init__(self):
        super().__init__()
        self.now = NOW
        self.states = database()
        self.epochs = dict.fromkeys(NAMES, 1)
        self.sequences = dict.fromkeys(NAMES, 0)
        self.made: list[SignedLinkState] = []
        self.heard: list[LinkState] = []
        self.seen = {}  # what the graph knew when it last took the changes

    def newest(self):
        alive = [each for each in self.heard if each.time + EXPIRY > self.now]
        return {each.origin: each for each in sorted(alive, key=lambda each: each.age)}

    @rule(
        origin=st.sampled_from(["ams", "fra", "nyc"]),
        links=st.dictionaries(st.sampled_from(NAMES), st.sampled_from([1.0, 2.0]), max_size=2),
        slow=st.sampled_from([0, 0, 100, -50]),
        at_once=st.booleans(),
    )
    def make(self, origin, links, slow, at_once):
        self.sequences[origin] += 1
        last = max((m.time for m in map(VERIFY, self.made) if m.origin == origin), default=0)
        time = max(self.now - slow * SECOND, last)
        self.made.append(
            signed(origin, self.epochs[origin], self.sequences[origin], time, links=links, region=origin)
        )
        if at_once:
            self.hear(-1)

    @rule(origin=st.sampled_from(["ams", "fra", "nyc"]))
    def restart(self, origin):
        self.epochs[origin] += 1
        self.sequences[origin] = 0

    @precondition(lambda self: self.made)
    @rule(which=st.integers(0, 50))
    def hear(self, which):
        """Any that was ever made: again, late, or out of order."""
        one = self.made[which % len(self.made)]
        said = VERIFY(one)
        known = self.newest().get(said.origin)
        in_time = self.now - EXPIRY < said.time <= self.now + AHEAD
        news = in_time and (known is None or said.age > known.age)
        assert self.states.offer(self.now, one, VERIFY) == news
        if in_time:
            self.heard.append(said)

    @rule(seconds=st.sampled_from([1, 10, 59, 100, 180]))
    def wait(self, seconds):
        self.now += seconds * SECOND
        self.states.advance(self.now)

    @rule()
    def take_changes(self):
        changed, self.states.changed = self.states.changed, set()
        now = {origin: state.links for origin, state in self.states.states.items()}
        assert {o for o in NAMES if now.get(o) != self.seen.get(o)} <= changed
        self.seen = now

    @invariant()
    def knows_the_newest(self):
        assert self.states.states == self.newest()
        assert {said.origin: said for said in map(VERIFY, self.states.everything())} == self.newest()
        assert self.states.bytes == sum(len(one.body) for one in self.states.everything())


TestLinkStates = LinkStatesMachine.TestCase
TestLinkStates.settings = settings(stateful_step_count=30, max_examples=60)


def test_old_state_does_not_come_back_after_the_newer_one_died():
    states = database()
    old, new = signed(sequence=1, links={"fra": 1.0}), signed(sequence=2, time=NOW + SECOND)
    assert states.offer(NOW, old, VERIFY)
    assert states.offer(NOW + SECOND, new, VERIFY)
    states.advance(NOW + SECOND + EXPIRY)
    assert states.states == {}
    assert not states.offer(NOW + SECOND + EXPIRY, old, VERIFY)
    assert states.refused == {"too_old": 1}


def test_state_from_the_future_is_refused():
    states = database()
    assert not states.offer(NOW, signed(time=NOW + AHEAD + 1), VERIFY)
    assert states.refused == {"too_new": 1}


def test_duplicate_costs_no_check_of_the_signature():
    states, checked = database(), []

    def verify(one):
        checked.append(one)
        return VERIFY(one)

    assert [states.offer(NOW, signed(), verify) for _ in range(5)] == [True, False, False, False, False]
    assert len(checked) == 1


def test_database_is_bounded():
    states = database(most=2)
    assert [states.offer(NOW, signed(o), VERIFY) for o in ("ams", "fra", "nyc")] == [True, True, False]
    assert states.offer(NOW, signed("ams", sequence=2), VERIFY)  # room for what is known
    assert states.refused == {"full": 1}
    small = database(most_bytes=len(signed().body) + 10)
    assert small.offer(NOW, signed(), VERIFY)
    assert not small.offer(NOW, signed("fra"), VERIFY)
    assert not small.offer(NOW, signed(sequence=2, region="x" * 100), VERIFY)


def test_revoked_terminal_is_forgotten_at_once():
    states = database()
    for origin in ("ams", "fra"):
        states.offer(NOW, signed(origin), VERIFY)
    states.changed.clear()
    states.restrict({"me", "fra"})
    assert (set(states.states), states.changed) == ({"fra"}, {"ams"})
    assert states.offer(NOW, signed("ams"), VERIFY)
    states.advance(NOW + EXPIRY)
    assert states.states == {}


# -- our own state -----------------------------------------------------------------------------------


def tell(states: LinkStates, now: int, links: dict[str, float], **more) -> LinkState | None:
    told = states.own(now, mode="server", links=links, **more)
    return None if told is None else VERIFY(told)


def test_own_state_is_signed_and_numbered():
    states = database()
    first = tell(states, NOW, {"ams": 5.0}, groups={"orders/billing": 2, "orders/idle": 0}, region="eu")
    assert first == state(
        "me", NOW, 1, NOW, links={"ams": 5.0}, groups={"orders/billing": 2}, region="eu", mode="server"
    )
    second = tell(states, NOW + SECOND, {"ams": 6.0})
    assert second is not None
    assert second.age == (NOW, 2)


def test_own_change_counts_here_before_it_may_be_told():
    states = database()
    tell(states, NOW, {"ams": 5.0})
    states.changed.clear()
    assert tell(states, NOW + 1, {}) is None
    assert states.states["me"].links == {}
    assert states.changed == {"me"}


def test_nothing_new_is_told_every_minute():
    states = database()
    tell(states, NOW, {"ams": 5.0})
    times = []
    for now in range(NOW, NOW + 601 * SECOND, SECOND):
        if tell(states, now, {"ams": 5.0}) is not None:
            times.append(now - NOW)
    assert times == [n * REFRESH for n in range(1, 11)]


def test_change_is_told_by_the_timer_if_nobody_asks_again():
    states = database()
    tell(states, NOW, {"ams": 5.0})
    assert tell(states, NOW + 1, {"ams": 9.0}) is None
    due = NOW + SECOND
    assert states.advance(due - 1) is None
    told = states.advance(due)
    assert told is not None
    assert VERIFY(told).links == {"ams": 9.0}
    assert states.advance(due + REFRESH - 1) is None
    assert states.advance(due + REFRESH) is not None


def test_change_that_goes_back_in_time_is_no_news():
    states = database()
    tell(states, NOW, {"ams": 5.0})
    tell(states, NOW + 1, {"ams": 9.0})
    tell(states, NOW + 2, {"ams": 5.0})
    assert states.advance(NOW + 10 * SECOND) is None
    assert states.advance(NOW + REFRESH) is not None


def told_seconds(links_at, seconds: int) -> list[float]:
    """When states were told, if ``links_at`` says ten times a second how the links are."""
    states, times = database(), []
    for n in range(seconds * 10):
        now = NOW + n * SECOND // 10
        if tell(states, now, links_at(n)) is not None:
            times.append(n / 10)
    return times


def test_changes_that_keep_coming_are_told_ever_more_rarely():
    times = told_seconds(lambda n: {"ams": 1.0 + n}, 60)
    gaps = [b - a for a, b in pairwise(times)]
    assert gaps[:4] == pytest.approx([1, 2, 4, 5])
    assert min(gaps[3:]) == max(gaps[3:]) == pytest.approx(5)


def test_gap_is_short_again_after_a_quiet_time():
    times = told_seconds(lambda n: {"ams": 1.0 + (n if n < 300 or n > 450 else 300)}, 50)
    later = [t for t in times if t > 45]
    assert later[1] - later[0] == pytest.approx(1)


def test_lost_link_does_not_wait_for_the_longer_gap():
    states = database()
    for n in range(40):
        tell(states, NOW + n * SECOND, {"ams": 1.0 + n, "fra": 1.0})
    now = NOW + 39 * SECOND
    while tell(states, now, {"ams": now * 1.0 % 1000, "fra": 1.0}) is None:
        now += SECOND // 10
    assert tell(states, now + SECOND - 1, {"ams": 1.0}) is None
    told = tell(states, now + SECOND, {"ams": 1.0})
    assert told is not None
    assert told.links == {"ams": 1.0}


def test_number_of_consumers_is_no_news_but_the_first_and_the_last_are():
    states = database()
    tell(states, NOW, {}, groups={"orders/billing": 1})
    assert tell(states, NOW + 10 * SECOND, {}, groups={"orders/billing": 5}) is None
    assert tell(states, NOW + 20 * SECOND, {}, groups={}) is not None
    assert tell(states, NOW + 40 * SECOND, {}, groups={"orders/billing": 1}) is not None


def test_load_is_news_when_it_has_moved_far():
    states = database()
    tell(states, NOW, {}, load=0.5)
    assert tell(states, NOW + 10 * SECOND, {}, load=0.7) is None
    assert tell(states, NOW + 10 * SECOND, {}, load=0.75) is not None


def test_own_state_from_an_earlier_life_is_leapt_over():
    """After a restart with a clock that was set back, the others have a newer state of us than we make."""
    states = database()
    tell(states, NOW, {"ams": 5.0})
    ghost = sign(state("me", NOW + 999, 70, NOW, links={"fra": 1.0}), KEYS["me"], CUSTOMER)
    assert not states.offer(NOW, ghost, VERIFY)
    assert states.states["me"].links == {"ams": 5.0}
    told = states.advance(NOW)
    assert told is not None
    assert VERIFY(told).age > (NOW + 999, 70)
    assert VERIFY(told).links == {"ams": 5.0}


def test_forged_own_state_moves_nothing():
    states = database()
    tell(states, NOW, {})
    assert not states.offer(NOW, sign(state("me", NOW + 999, 70), STRANGER, CUSTOMER), VERIFY)
    assert states.advance(NOW) is None


def test_own_state_stays_within_what_others_accept():
    states = database()
    told = tell(
        states, NOW, {"ams": math.inf}, load=7.0, groups={f"t/{n}": 1 for n in range(GROUPS_MOST + 9)}
    )
    assert told is not None  # VERIFY has accepted it
    assert len(told.groups) == GROUPS_MOST


# -- links -------------------------------------------------------------------------------------------


def test_link_counts_if_both_ends_report_it_and_costs_the_greater():
    here, there = state("ams", links={"fra": 10.0}), state("fra", links={"ams": 30.0})
    assert link_cost(here, there) == link_cost(there, here) == 30.0
    assert link_cost(here, msgspec.structs.replace(there, links={})) == math.inf
    assert link_cost(here, None) == math.inf
