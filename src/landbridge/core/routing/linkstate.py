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

import heapq
import math
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Literal, TypeAlias

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from landbridge.core.trust.directory import Directory
from landbridge.errors import BadFrame, BusError, Unauthenticated

SECOND = 1_000_000
#: A state is told anew after so long although nothing has changed, and dropped when it is so old. Two
#: refreshes may be lost, or a clock be two minutes slow. One that is further ahead than AHEAD isn't believed:
#: its states would outlive it.
REFRESH = 60 * SECOND
EXPIRY = 180 * SECOND
AHEAD = 60 * SECOND
#: Between two states of one terminal: at least, and at most while changes keep coming.
GAP_LEAST, GAP_MOST = SECOND, 5 * SECOND
#: What one state may hold. A peer that sends more is refused; our own lists no more groups.
LINKS_MOST, GROUPS_MOST, BODY_MOST = 4096, 4096, 2 << 20
#: The greatest cost that a link may have, in ms. A figure beyond it is nonsense, not a slow line.
COST_MOST = 1e6
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
    """What a state says, whoever has made it. BadFrame if it says nothing or nonsense."""
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
    if not 0 <= state.load <= 1 or min(state.groups.values(), default=0) < 0:
        raise BadFrame("a link state with an impossible load or count")
    return state


class Verifier:
    """Who may say what, by one version of the directory."""

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
        for key in self._keys[state.origin]:
            try:
                Ed25519PublicKey.from_public_bytes(key).verify(signed.signature, message)
            except (InvalidSignature, ValueError):
                continue
            return state
        raise Unauthenticated(f"a link state that {state.origin!r} has not signed")


class LinkStates:
    """The newest state of every terminal, as far as this one has heard."""

    def __init__(
        self, me: str, *, epoch: int, sign: Sign, most: int = 20_000, most_bytes: int = 64 << 20
    ) -> None:
        """``epoch``: greater than in any earlier life of this terminal; its start in microseconds will do."""
        self.me = me
        #: Origin → its newest state. Our own is always what is so now, told or not.
        self.states: dict[str, LinkState] = {}
        #: Origins whose links, or presence, changed since the graph last took them.
        self.changed: set[str] = set()
        #: Why → how many states were refused. Codes of errors, "too_old", "too_new", "full".
        self.refused: Counter[str] = Counter()
        #: The last refusal in words, for the log; empty if there was none.
        self.last_refusal = ""
        #: Bytes of all bodies.
        self.bytes = 0
        self._sign = sign
        self._most = most
        self._most_bytes = most_bytes
        #: Origin → the state as it came, to be passed on. Our own: as last told.
        self._signed: dict[str, SignedLinkState] = {}
        #: Origin → when its state dies. Our own is not in it.
        self._expires: dict[str, int] = {}
        #: (when to look, origin), earliest first, one for each origin in _expires. A refreshed state is
        #: looked at too early, and put back.
        self._heap: list[tuple[int, str]] = []
        self._epoch = epoch
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
        """Keeps a state that is news, and says whether it is: then it goes on to the other neighbours. A
        refusal is no proof that the neighbour lies, its directory may be older or newer than ours: it is
        counted, not raised."""
        try:
            claimed = decode(signed.body)
            # What every neighbour repeats is sorted out before the signature: that costs 20 times as much.
            if self._is_known(claimed) or self._is_out_of_time(now, claimed):
                return False
            state = verify(signed)
        except BusError as error:
            return self._refuse(error.code, str(error))
        if state.origin == self.me:
            self._leap(now, state)
            return False
        before = self._signed.get(state.origin)
        size = self.bytes + len(signed.body) - (len(before.body) if before else 0)
        if size > self._most_bytes or (before is None and len(self._signed) >= self._most):
            return self._refuse("full", f"no room for the state of {state.origin!r}")
        self.bytes = size
        self._signed[state.origin] = signed
        # Not from when it came: a repetition must not prolong its life.
        dies = state.time + EXPIRY
        if state.origin not in self._expires:
            heapq.heappush(self._heap, (dies, state.origin))
        self._expires[state.origin] = dies
        self._put(state)
        return True

    def restrict(self, known: Collection[str]) -> None:
        """Drops every state of a terminal that isn't among these: revoked, or deleted."""
        for origin in self.states.keys() - set(known) - {self.me}:
            self._drop(origin)
        self._heap = [(dies, origin) for origin, dies in self._expires.items()]
        heapq.heapify(self._heap)

    def everything(self) -> Iterable[SignedLinkState]:
        return self._signed.values()

    def digest(self) -> dict[str, tuple[int, int]]:
        """What we know, for a new neighbour to send only what we don't."""
        known = {origin: state.age for origin, state in self.states.items() if origin != self.me}
        if self._told is not None:
            known[self.me] = self._told.age
        return known

    def newer_than(self, digest: Mapping[str, tuple[int, int]]) -> list[SignedLinkState]:
        """What a neighbour with this digest lacks."""
        ours = self.digest()
        return [
            self._signed[origin] for origin, age in ours.items() if age > tuple(digest.get(origin, (-1, -1)))
        ]

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
    ) -> SignedLinkState | None:
        """What is so now. The next state to tell the neighbours, if it is time; else ``advance`` gives it."""
        consumed = sorted((key, count) for key, count in (groups or {}).items() if count > 0)
        self._put(
            LinkState(
                origin=self.me,
                epoch=self._epoch,
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
            )
        )
        self._tell_at = self._next_telling(now)
        return self._tell(now)

    def advance(self, now: int) -> SignedLinkState | None:
        """Drops what is out of date. Our own next state, if it is time."""
        while self._heap and self._heap[0][0] <= now:
            _, origin = heapq.heappop(self._heap)
            dies = self._expires[origin]
            if dies <= now:
                self._drop(origin)
            else:
                heapq.heappush(self._heap, (dies, origin))
        return self._tell(now)

    def next_deadline(self) -> int | None:
        due = [entry[0] for entry in self._heap[:1]]
        if self._tell_at is not None:
            due.append(self._tell_at)
        return min(due, default=None)

    # -- inside ------------------------------------------------------------------------------------

    def _is_known(self, state: LinkState) -> bool:
        if state.origin == self.me:
            return state.age <= (self._epoch, self._sequence)
        known = self.states.get(state.origin)
        return known is not None and state.age <= known.age

    def _is_out_of_time(self, now: int, state: LinkState) -> bool:
        if state.time + EXPIRY <= now:
            self._refuse(
                "too_old", f"a state of {state.origin!r} made {(now - state.time) / SECOND:.0f} s ago"
            )
            return True
        if state.time > now + AHEAD:
            self._refuse(
                "too_new", f"the clock of {state.origin!r} is {(state.time - now) / SECOND:.0f} s ahead"
            )
            return True
        return False

    def _refuse(self, why: str, words: str) -> bool:
        self.refused[why] += 1
        self.last_refusal = words
        return False

    def _put(self, state: LinkState) -> None:
        before = self.states.get(state.origin)
        self.states[state.origin] = state
        if before is None or before.links != state.links or before.draining != state.draining:
            self.changed.add(state.origin)

    def _drop(self, origin: str) -> None:
        del self.states[origin], self._expires[origin]
        self.bytes -= len(self._signed.pop(origin).body)
        self.changed.add(origin)

    def _leap(self, now: int, heard: LinkState) -> None:
        """Somebody knows a newer state of ours than we do: we have restarted with a clock that was set back.
        Unless we leap over it, nobody would believe us until it dies."""
        self._epoch, self._sequence = heard.age
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
            # Others send to where nobody is until they know: bad news doesn't wait for the greater gap.
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
            self.states[self.me], epoch=self._epoch, sequence=self._sequence, time=now
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
