"""Link states: what each terminal says about itself and its links, signed, and known to every other one.

A terminal that hears a state newer than what it has keeps it and passes it on to its other neighbours; so
news crosses the bus once over each link, and needs no registry. Every terminal speaks for itself, a client
too: its servers carry its state but can't change it. A link counts only if both ends report it, at the
greater of their two costs, so nobody can draw traffic by a link that isn't there or by one that is better
than its peer finds it.

States are ordered by (epoch, sequence): the epoch is greater after each restart, the sequence with each
state. Each bears the time at which it was made and dies 180 s after it, whoever repeats it: that is why an
old state can't come back once the newer one that replaced it has been dropped.
"""

from __future__ import annotations

import math
import secrets
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from landbridge.core.time import SECOND
from landbridge.core.trust.directory import Directory
from landbridge.core.trust.primitives import is_signed
from landbridge.errors import BadFrame, BusError, Unauthenticated

#: A state is told again after REFRESH although nothing has changed, and dropped EXPIRY after it was made: so
#: two refreshes may be lost, or a clock be two minutes slow. A state from further ahead than AHEAD isn't
#: believed, because it would outlive its terminal.
REFRESH = 60 * SECOND
EXPIRY = 180 * SECOND
AHEAD = 60 * SECOND
#: The gap between two states of one terminal: at least, and at most while changes keep coming.
GAP_LEAST, GAP_MOST = SECOND, 5 * SECOND
#: What one state may hold: links, groups, bytes. A state that holds more is refused; our own lists no more
#: groups.
LINKS_MOST, GROUPS_MOST, BODY_MOST = 4096, 4096, 2 << 20
#: The greatest cost that a link may have, in ms. A figure beyond it is nonsense, not a slow line.
COST_MOST = 1e6
#: The limit for a frame of a terminal that doesn't tell its own, in bytes.
MAX_FRAME = 16 << 20
#: The smallest limit for a frame that a terminal may have, in bytes: a message of 32 KiB fits, whatever the
#: names of its groups are.
LEAST_FRAME = 64 << 10
#: A change of load that is worth telling at once.
_LOAD_STEP = 0.25
_LABEL = b"landbridge/1 link state"


class LinkState(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    origin: str  #: id of the terminal that speaks
    epoch: int  #: greater after each of its restarts
    sequence: int  #: greater with each of its states; from 1 in each epoch
    time: int  #: when it was made, microseconds
    region: str = ""
    mode: Literal["server", "client"] = "server"
    links: dict[str, float] = {}  #: peer's id → cost in ms, as measured at this end
    groups: dict[str, int] = {}  #: "topic/group" → connected consumers; none is left out
    load: float = 0.0  #: 0 idle, 1 can do no more
    draining: bool = False  #: gets nothing new
    directory_version: int = 0  #: of the directory that it goes by
    #: Of each link, in their order: round trip in tenths of a ms, loss in thousandths. Nobody routes by it;
    #: the long-term plan is made from it. Empty: not told.
    quality: list[tuple[int, int]] = []
    #: Bytes of the greatest frame that it takes on a link.
    max_frame: int = MAX_FRAME

    @property
    def age(self) -> tuple[int, int]:
        """Of two states of one origin the greater is the newer."""
        return self.epoch, self.sequence


class SignedLinkState(msgspec.Struct, frozen=True, array_like=True):
    body: bytes
    signature: bytes


#: Turns a signed state into what it says, or raises.
Verify: TypeAlias = Callable[[SignedLinkState], LinkState]
Sign: TypeAlias = Callable[[LinkState], SignedLinkState]

_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(LinkState).decode


def _signed_bytes(customer: str, body: bytes) -> bytes:
    # The customer isn't in the body: whoever checks knows its own, and the state of another one doesn't fit.
    name = customer.encode()
    return _LABEL + struct.pack("<H", len(name)) + name + body


def sign(state: LinkState, key: Ed25519PrivateKey, customer: str) -> SignedLinkState:
    body = _encode(state)
    return SignedLinkState(body, key.sign(_signed_bytes(customer, body)))


def decode(body: bytes) -> LinkState:
    """What a state says; its signature isn't checked. BadFrame if it makes no sense."""
    if len(body) > BODY_MOST:
        raise BadFrame(f"a link state of {len(body)} bytes; at most {BODY_MOST}")
    try:
        state = _decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadFrame(f"a link state that doesn't decode: {error}") from None
    if len(state.links) > LINKS_MOST or len(state.groups) > GROUPS_MOST:
        raise BadFrame(f"a link state with {len(state.links)} links and {len(state.groups)} groups")
    # Written so that a NaN fails too.
    if not all(0 <= cost <= COST_MOST for cost in state.links.values()):
        raise BadFrame("a link state with an impossible cost")
    if len(state.quality) not in (0, len(state.links)) or any(min(each) < 0 for each in state.quality):
        raise BadFrame("a link state with an impossible quality")
    if state.max_frame < LEAST_FRAME:
        raise BadFrame(f"a link state with a limit of {state.max_frame} bytes for a frame")
    if not 0 <= state.load <= 1 or min(state.groups.values(), default=0) < 0:
        raise BadFrame("a link state with an impossible load or count")
    return state


class Verifier:
    """Checks signatures, by the keys in one version of the directory."""

    def __init__(self, directory: Directory) -> None:
        self._customer = directory.customer
        self._revoked = frozenset(directory.revoked)
        #: Of each terminal the keys that it may sign with: two during a rotation.
        self._keys = {entry.id: [pair.sign for pair in entry.keys] for entry in directory.terminals}

    def __call__(self, signed: SignedLinkState) -> LinkState:
        state = decode(signed.body)
        if state.origin in self._revoked:
            raise Unauthenticated(f"a link state of the revoked terminal {state.origin!r}")
        if state.origin not in self._keys:
            raise Unauthenticated(f"a link state of the unknown terminal {state.origin!r}")
        message = _signed_bytes(self._customer, signed.body)
        if not any(is_signed(key, signed.signature, message) for key in self._keys[state.origin]):
            raise Unauthenticated(f"a link state that {state.origin!r} has not signed")
        return state


class LinkStates:
    """The newest state of every terminal, as far as this one has heard."""

    def __init__(
        self, me: str, *, epoch: int, sign: Sign, most: int = 20_000, most_bytes: int = 64 << 20
    ) -> None:
        """``epoch``: greater than in any earlier life of this terminal; its start in microseconds will do."""
        self.me = me
        #: Origin → its newest state. Our own is always up to date, whether it was told yet or not.
        self.states: dict[str, LinkState] = {}
        #: Origins whose links, or presence, changed since the graph last took them.
        self.changed: set[str] = set()
        #: Cause → how many states were refused for it: codes of errors, "too_old", "too_new", "full".
        self.refused: Counter[str] = Counter()
        #: Bytes of all bodies.
        self.bytes = 0
        #: No terminal has a smaller limit for a frame.
        self.least_frame: float = math.inf
        self._sign = sign
        self._most = most
        self._most_bytes = most_bytes
        #: Origin → the state as it came, to be passed on. Our own: as last told.
        self._signed: dict[str, SignedLinkState] = {}
        #: No state of another terminal expires before this moment.
        self._expiry_from: float = math.inf
        #: Greater than in any earlier life of this terminal. Set before the first state is told.
        self.epoch = epoch
        self._sequence = 0
        #: Our own state as last told, and when. None: nothing yet.
        self._told: LinkState | None = None
        self._told_at = 0
        #: Until the next change may be told; grows while changes keep coming.
        self._gap = GAP_LEAST
        #: When our own state is to be told next; None before ``own`` was called.
        self._tell_at: int | None = None

    # -- others ------------------------------------------------------------------------------------

    def offer(self, now: int, signed: SignedLinkState, verify: Verify) -> bool:
        """Keep a state if it is newer than the known one. Returns whether it was: then the caller passes it
        on to the other neighbours. A refusal is counted, not raised: it is no proof that the neighbour lies,
        whose directory may be older or newer than ours."""
        try:
            claimed = decode(signed.body)
            # Repeats come from every neighbour. They are left out before the signature is checked, which
            # costs 20 times as much.
            if self._is_known(claimed) or self._is_out_of_time(now, claimed):
                return False
            state = verify(signed)
        except BusError as error:
            self.refused[error.code] += 1
            return False
        if state.origin == self.me:
            self._leap(now, state)
            return False
        before = self._signed.get(state.origin)
        size = self.bytes + len(signed.body) - (len(before.body) if before else 0)
        if size > self._most_bytes or (before is None and len(self._signed) >= self._most):
            self.refused["full"] += 1
            return False
        self.bytes = size
        self._signed[state.origin] = signed
        # Counted from when it was made, not from when it came: a repetition must not prolong its life.
        self._expiry_from = min(self._expiry_from, state.time + EXPIRY)
        self._put(state)
        return True

    def restrict(self, known: Collection[str]) -> None:
        """Drop the states of all terminals but these: the others were revoked or deleted."""
        for origin in self.states.keys() - set(known) - {self.me}:
            self._drop(origin)

    def everything(self) -> Iterable[SignedLinkState]:
        return self._signed.values()

    # -- our own -----------------------------------------------------------------------------------

    def own(
        self,
        now: int,
        *,
        mode: Literal["server", "client"],
        links: Mapping[str, float],
        quality: Sequence[tuple[int, int]] = (),
        groups: Mapping[str, int] | None = None,
        region: str = "",
        load: float = 0.0,
        draining: bool = False,
        directory_version: int = 0,
        max_frame: int = MAX_FRAME,
    ) -> SignedLinkState | None:
        """Set our own state. Returns it signed if it is time to tell the neighbours; otherwise ``advance``
        returns it later."""
        consumed = sorted((key, count) for key, count in (groups or {}).items() if count > 0)
        self._put(
            LinkState(
                origin=self.me,
                epoch=self.epoch,
                sequence=self._sequence,
                time=now,
                region=region,
                mode=mode,
                links={peer: min(max(cost, 0.0), COST_MOST) for peer, cost in links.items()},
                quality=list(quality),
                groups=dict(consumed[:GROUPS_MOST]),
                load=min(max(load, 0.0), 1.0),
                draining=draining,
                directory_version=directory_version,
                max_frame=max_frame,
            )
        )
        self._tell_at = self._next_telling(now)
        return self._tell(now)

    def advance(self, now: int) -> SignedLinkState | None:
        """Drop states that have expired. Returns our own state, signed, if it is time to tell it."""
        if now >= self._expiry_from:
            ends = {o: state.time + EXPIRY for o, state in self.states.items() if o != self.me}
            for origin in [origin for origin, end in ends.items() if end <= now]:
                self._drop(origin)
            self._expiry_from = min((end for end in ends.values() if end > now), default=math.inf)
        return self._tell(now)

    # -- inside ------------------------------------------------------------------------------------

    def _is_known(self, state: LinkState) -> bool:
        if state.origin == self.me:
            return state.age <= (self.epoch, self._sequence)
        known = self.states.get(state.origin)
        return known is not None and state.age <= known.age

    def _is_out_of_time(self, now: int, state: LinkState) -> bool:
        if now - EXPIRY < state.time <= now + AHEAD:
            return False
        self.refused["too_new" if state.time > now else "too_old"] += 1
        return True

    def _put(self, state: LinkState) -> None:
        before = self.states.get(state.origin)
        self.states[state.origin] = state
        self.least_frame = min(self.least_frame, state.max_frame)
        if before is None or before.links != state.links or before.draining != state.draining:
            self.changed.add(state.origin)

    def _drop(self, origin: str) -> None:
        del self.states[origin]
        self.bytes -= len(self._signed.pop(origin).body)
        self.changed.add(origin)

    def _leap(self, now: int, heard: LinkState) -> None:
        """Others know a newer state of this terminal than it has told: it has restarted with a clock that was
        set back. Unless its next state is newer still, nobody would believe it until the old one expires."""
        # Not the heard epoch itself, which is that of another run of this terminal.
        self.epoch, self._sequence = heard.epoch + 1 + secrets.randbelow(1 << 20), 0
        self._told = None
        if self._tell_at is not None:
            self._tell_at = now

    def _next_telling(self, now: int) -> int:
        told, state = self._told, self.states[self.me]
        if told is None:
            return now
        lost = (
            not told.links.keys() <= state.links.keys()
            or not told.groups.keys() <= state.groups.keys()
            or state.draining > told.draining
        )
        if lost:
            # Until others know, they send to where nothing takes it: a loss doesn't wait for the longer gap.
            return self._told_at + GAP_LEAST
        changed = (
            told.links != state.links
            # How many consumers there are, beyond whether there are any, waits for the next state.
            or told.groups.keys() != state.groups.keys()
            or abs(told.load - state.load) >= _LOAD_STEP
            or (told.draining, told.region, told.mode, told.directory_version)
            != (state.draining, state.region, state.mode, state.directory_version)
        )
        return self._told_at + (self._gap if changed else REFRESH)

    def _tell(self, now: int) -> SignedLinkState | None:
        if self._tell_at is None or now < self._tell_at:
            return None
        is_change = self._told is not None and self._tell_at < self._told_at + REFRESH
        # Changes keep coming when this one waited for the gap, or came soon after it.
        soon = is_change and now - self._told_at < 2 * self._gap
        self._gap = min(2 * self._gap, GAP_MOST) if soon else GAP_LEAST
        self._sequence += 1
        state = msgspec.structs.replace(
            self.states[self.me], epoch=self.epoch, sequence=self._sequence, time=now
        )
        signed = self._sign(state)
        before = self._signed.get(self.me)
        self.bytes += len(signed.body) - (len(before.body) if before else 0)
        self.states[self.me] = self._told = state
        self._signed[self.me] = signed
        self._told_at = now
        self._tell_at = now + REFRESH
        return signed


def link_cost(here: LinkState | None, there: LinkState | None) -> float:
    """The cost of the link between two terminals; infinite where not both report it."""
    if here is None or there is None:
        return math.inf
    return max(here.links.get(there.origin, math.inf), there.links.get(here.origin, math.inf))
