"""An outlet: what is stored of it, and what follows from an answer.

An outlet has two documents beside its topic. One is written by operations: options, secrets, whether it is
paused. The other one is written by the sender alone: how far it is with its retries, and its last attempts.
So neither has to wait for the other.

Everything here is a function of the documents and of ``now``, in microseconds.
"""

from __future__ import annotations

import hashlib
from typing import Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from landbridge.core.names import check_name
from landbridge.core.outlet.spec import Circuit, OutletAttempt, OutletSpec
from landbridge.core.time import SECOND
from landbridge.core.topic import LONGEST_PATTERN, MOST_HEADERS
from landbridge.errors import BadRequest

#: Seconds before each repetition; an attempt after the last one buries the message.
RETRIES = (5.0, 300.0, 1800.0, 7200.0, 18000.0, 36000.0, 36000.0)
#: Part of a delay that is added at random, so that not all come back at once.
JITTER = 0.1
#: The longest Retry-After that is honoured, in seconds.
LONGEST_RETRY_AFTER = 86400.0
#: The longest time without requests: what a receiver asks for, or a retry with its jitter.
LONGEST_BLOCK = max(LONGEST_RETRY_AFTER, RETRIES[-1] * (1 + JITTER))
#: Seconds of nothing but failures after which a webhook is disabled.
FAILING_FOR = 5 * 86400.0
#: Failures in a row that open the circuit; seconds that it stays open, doubled each time, and at most.
BREAK_AFTER, OPEN_FOR, LONGEST_OPEN = 5, 30.0, 600.0
#: Seconds without requests after an answer that throttles, where it names no span.
THROTTLED_FOR = 5.0
#: Attempts that are kept, characters of an answer, and of the reason for having none.
MOST_ATTEMPTS, LONGEST_ANSWER, LONGEST_DETAIL = 20, 200, 300
#: Tests that wait.
MOST_TESTS = 10
#: Requests per second that a limit may allow. A message waits for its turn with a lease, so not too long.
LEAST_RATE, MOST_RATE = 1 / 60, 10_000.0

#: What becomes of a message: "leave": it goes back, and the attempt doesn't count there.
Settlement: TypeAlias = Literal["ack", "requeue", "bury", "leave"]


class OutletProbe(msgspec.Struct, frozen=True):
    """Somebody has asked for a test."""

    id: str
    at: int


class StoredOutlet(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the operations write."""

    spec: OutletSpec
    #: The subject in whose name the topic is read.
    owner: str
    created_at: int
    #: When it was paused, by whom and why; 0: it is not.
    paused_at: int = 0
    paused_by: str = ""
    note: str = ""
    #: When it was told to go on the last time.
    resumed_at: int = 0
    tests: tuple[OutletProbe, ...] = ()

    @property
    def reads(self) -> str:
        """The topic whose messages are sent."""
        return self.spec.topic


class OutletState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the sender writes."""

    delivered: int = 0
    failed: int = 0
    #: Messages given up.
    buried: int = 0
    last_success_at: int = 0
    #: Failures since the last success, and the moment of the first of them; 0: there are none.
    failures: int = 0
    failing_since: int = 0
    #: No request before this moment.
    blocked_until: int = 0
    #: How often in a row the circuit was opened.
    opened: int = 0
    #: Throttled in a row.
    throttled: int = 0
    #: When it was disabled, and why; 0: it is not.
    disabled_at: int = 0
    disabled_why: str = ""
    #: The ``resumed_at`` that it goes by.
    begun_at: int = 0
    #: Of an ordered webhook: the offset of the message that holds the others, and its attempts so far.
    head: tuple[int, int] | None = None
    #: Tests asked for up to this moment are done.
    tested_to: int = 0
    #: Why the topic can't be read at the moment.
    trouble: str = ""
    #: What counts against a budget: (day, units of it, units of its month), days since 1970.
    spent: tuple[int, int, int] = (0, 0, 0)
    #: Oldest first.
    recent: tuple[OutletAttempt, ...] = ()


class AfterAttempt(NamedTuple):
    """What follows from an attempt."""

    state: OutletState
    settlement: Settlement
    #: Seconds until the message is to be tried again, where it is requeued.
    after: float = 0.0


class Admission(NamedTuple):
    """Whether a message may be sent now."""

    state: OutletState
    #: "leave": not now, the state says until when.
    verdict: Literal["send", "bury", "leave"] = "send"
    cause: str = ""
    #: What the state counts for it against a budget.
    units: int = 0


# -- options -------------------------------------------------------------------------------------------


def check_spec(spec: OutletSpec, noun: str, group: str) -> None:
    """BadRequest for what no outlet can be told. ``group``: whose messages it sends."""
    check_name(spec.topic, "topic")
    check_name(spec.name, noun)
    check_name(group, "group")
    if spec.rate is not None and not LEAST_RATE <= spec.rate <= MOST_RATE:
        raise BadRequest(f"a rate of {spec.rate:g} per second", hint=f"one in 60 seconds to {MOST_RATE:,.0f}")
    if spec.match is not None:
        patterns = [spec.match.key or "", *spec.match.headers, *spec.match.headers.values()]
        if len(spec.match.headers) > MOST_HEADERS or max(map(len, patterns)) > LONGEST_PATTERN:
            raise BadRequest(
                f"match has at most {MOST_HEADERS} headers and patterns of {LONGEST_PATTERN} characters"
            )


# -- the circuit ---------------------------------------------------------------------------------------


def circuit(state: OutletState, now: int) -> Circuit:
    """Whether requests are sent."""
    if _blocked_until(state, now) > now:
        return "open"
    return "half-open" if state.failures >= BREAK_AFTER or state.throttled else "closed"


def is_disabled(stored: StoredOutlet, state: OutletState) -> bool:
    """Nothing is sent until somebody resumes it."""
    return bool(state.disabled_at) and stored.resumed_at <= state.begun_at


def take_up(stored: StoredOutlet, state: OutletState) -> OutletState:
    """Begin anew where somebody has resumed it: at once, and as if nothing had failed."""
    if stored.resumed_at <= state.begun_at:
        return state
    return replace(
        state,
        begun_at=stored.resumed_at,
        failures=0,
        failing_since=0,
        blocked_until=0,
        opened=0,
        throttled=0,
        disabled_at=0,
        disabled_why="",
        head=None,
    )


# -- answers -------------------------------------------------------------------------------------------


def retry_delay(id: str, number: int) -> float | None:
    """Seconds until a message is tried again whose attempt of this number has failed; None: give it up."""
    if number > len(RETRIES):
        return None
    # Different for each message and each attempt, and the same for whoever asks again.
    chance = int.from_bytes(hashlib.sha256(f"{id}.{number}".encode()).digest()[:4], "big") / (1 << 32)
    return RETRIES[number - 1] * (1 + JITTER * chance)


def number_of(state: OutletState, spec: OutletSpec, offset: int, delivered: int) -> int:
    """The number of the attempt that comes. ``delivered``: as the group counts."""
    if spec.ordered and state.head is not None and state.head[0] == offset:
        return max(delivered, state.head[1] + 1)
    return delivered


def after_attempt(
    spec: OutletSpec,
    state: OutletState,
    attempt: OutletAttempt,
    now: int,
    failing_for: float = FAILING_FOR,
) -> AfterAttempt:
    """What follows from an attempt with a message. ``failing_for``: seconds of nothing but failures that
    disable the webhook."""
    state = replace(state, recent=(*state.recent, attempt)[-MOST_ATTEMPTS:])
    if attempt.verdict == "delivered":
        state = replace(
            state,
            delivered=state.delivered + attempt.messages,
            last_success_at=now,
            failures=0,
            failing_since=0,
            opened=0,
            throttled=0,
            head=None,
        )
        # Not before blocked_until: another request at the same time may have been throttled.
        return AfterAttempt(state, "ack")
    if attempt.verdict == "refused":
        # The receiver answers, and says that this message will never be taken: the next one may be.
        state = replace(
            state,
            failed=state.failed + 1,
            buried=state.buried + attempt.messages,
            failures=0,
            failing_since=0,
            opened=0,
            throttled=0,
            head=None,
        )
        return AfterAttempt(state, "bury")
    state = replace(
        state,
        failed=state.failed + 1,
        failures=state.failures + 1,
        failing_since=state.failing_since or now,
    )
    if attempt.verdict == "gone":
        return AfterAttempt(_disable(state, now, "the receiver answered 410, it wants no more"), "leave")
    if now - state.failing_since >= failing_for * SECOND:
        return AfterAttempt(_disable(state, now, "nothing but failures for five days"), "leave")
    asked = min(attempt.retry_after or 0.0, LONGEST_RETRY_AFTER)
    if attempt.verdict == "throttled":
        span = asked or min(LONGEST_OPEN, THROTTLED_FOR * 2.0 ** min(state.throttled, 32))
        return AfterAttempt(_block(replace(state, throttled=state.throttled + 1), now, span), "leave")
    return _after_failure(spec, state, attempt, now, asked)


def _after_failure(
    spec: OutletSpec, state: OutletState, attempt: OutletAttempt, now: int, asked: float
) -> AfterAttempt:
    delay = retry_delay(attempt.id, attempt.number)
    if not spec.ordered and state.failures >= BREAK_AFTER and _blocked_until(state, now) <= now:
        span = min(LONGEST_OPEN, OPEN_FOR * 2.0 ** min(state.opened, 32))
        state = _block(replace(state, opened=state.opened + 1), now, span)
    if delay is None:
        return AfterAttempt(replace(state, buried=state.buried + attempt.messages, head=None), "bury")
    delay = max(delay, asked)
    if spec.ordered and attempt.offset is not None:
        state = replace(_block(state, now, delay), head=(attempt.offset, attempt.number))
        return AfterAttempt(state, "leave")
    return AfterAttempt(state, "requeue", delay)


def after_burial(state: OutletState) -> OutletState:
    """A message was given up before it was sent."""
    return replace(state, buried=state.buried + 1)


def refund(state: OutletState, day: int, units: int) -> OutletState:
    """What was counted on a day against a budget was not used: it is free again, if it is still that day."""
    today, of_day, of_month = state.spent
    if day != today:
        return state
    return replace(state, spent=(today, max(0, of_day - units), max(0, of_month - units)))


def block(state: OutletState, now: int, span: float) -> OutletState:
    """Send nothing for so many seconds."""
    return _block(state, now, min(span, LONGEST_BLOCK))


def after_test(state: OutletState, attempt: OutletAttempt, probe: OutletProbe) -> OutletState:
    """A test tells how the receiver is, and changes nothing else."""
    recent = (*state.recent, attempt)[-MOST_ATTEMPTS:]
    return replace(state, recent=recent, tested_to=max(state.tested_to, probe.at))


def _block(state: OutletState, now: int, span: float) -> OutletState:
    return replace(state, blocked_until=max(_blocked_until(state, now), now + int(span * SECOND)))


def _blocked_until(state: OutletState, now: int) -> int:
    """Nothing blocks longer than LONGEST_BLOCK: a moment beyond that was written before somebody set the
    clock back."""
    return state.blocked_until if state.blocked_until <= now + int(LONGEST_BLOCK * SECOND) else 0


def _disable(state: OutletState, now: int, why: str) -> OutletState:
    return replace(state, disabled_at=now, disabled_why=why, head=None)
