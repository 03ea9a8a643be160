"""A webhook: what it is, and what follows from an answer.

A webhook has two documents beside its topic. One is written by the operations ``webhook.*``: options,
secrets, whether it is paused. The other one is written by the sender alone: how far it is with its retries,
and its last attempts. So neither has to wait for the other.

Everything here is a function of the documents and of ``now``, in microseconds.
"""

from __future__ import annotations

import hashlib
import re
from typing import Any, Literal, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from landbridge.core.addresses import read_url
from landbridge.core.names import check_name
from landbridge.core.options import read_options
from landbridge.core.rules.query import document_of, read_query
from landbridge.core.time import SECOND
from landbridge.core.topic import LONGEST, LONGEST_PATTERN, MOST_HEADERS
from landbridge.core.webhook.signature import read_secret
from landbridge.core.webhook.spec import Circuit, Verdict, WebhookAttempt, WebhookSpec
from landbridge.errors import BadRequest

#: The collections of the documents, beside their topics.
COLLECTION, STATES = "$webhooks", "$webhook-states"
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
#: Secrets that are valid at the same time, and seconds that the old ones are valid after a rotation.
MOST_SECRETS, OVERLAP = 4, 86400.0
#: Tests that wait.
MOST_TESTS = 10
#: Requests per second that a limit may allow. A message waits for its turn with a lease, so not too long.
LEAST_RATE, MOST_RATE = 1 / 60, 10_000.0
LONGEST_TYPE = 200
_MEDIA_TYPE = re.compile(r"[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[\x20-\x7e]*)?\Z")
_TYPE_IF_NONE = "application/json"

#: What becomes of a message: "leave": it goes back, and the attempt doesn't count there.
Settlement: TypeAlias = Literal["ack", "requeue", "bury", "leave"]


class WebhookSecret(msgspec.Struct, frozen=True):
    """A secret that requests are signed with."""

    secret: str
    made_at: int
    #: 0: it is the newest, and valid until the next rotation.
    expires_at: int = 0


class WebhookProbe(msgspec.Struct, frozen=True):
    """Somebody has asked for a test."""

    id: str
    at: int


class StoredWebhook(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the operations write."""

    spec: WebhookSpec
    #: The subject in whose name the topic is read.
    owner: str
    created_at: int
    #: Newest first.
    secrets: tuple[WebhookSecret, ...]
    #: The topic of the rule of its query; empty: it has no query.
    rule: str = ""
    #: When it was paused, by whom and why; 0: it is not.
    paused_at: int = 0
    paused_by: str = ""
    note: str = ""
    #: When it was told to go on the last time.
    resumed_at: int = 0
    tests: tuple[WebhookProbe, ...] = ()

    @property
    def reads(self) -> str:
        """The topic whose messages are sent: that of its rule, where it has a query."""
        return self.rule or self.spec.topic


class WebhookState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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
    #: Oldest first.
    recent: tuple[WebhookAttempt, ...] = ()


class AfterAttempt(NamedTuple):
    """What follows from an attempt."""

    state: WebhookState
    settlement: Settlement
    #: Seconds until the message is to be tried again, where it is requeued.
    after: float = 0.0


# -- options -------------------------------------------------------------------------------------------


def webhook_spec(raw: dict[str, Any]) -> WebhookSpec:
    """The options that these make. BadRequest says what is wrong with them."""
    spec = read_options(raw, WebhookSpec, "webhook options")
    check_name(spec.topic, "topic")
    check_name(spec.name, "webhook")
    check_name(group_name(spec.name), "group")
    read_url(spec.url)
    check_content_type(spec.content_type)
    if spec.rate is not None and not LEAST_RATE <= spec.rate <= MOST_RATE:
        raise BadRequest(f"a rate of {spec.rate:g} per second", hint=f"one in 60 seconds to {MOST_RATE:,.0f}")
    if spec.match is not None:
        patterns = [spec.match.key or "", *spec.match.headers, *spec.match.headers.values()]
        if len(spec.match.headers) > MOST_HEADERS or max(map(len, patterns)) > LONGEST_PATTERN:
            raise BadRequest(
                f"match has at most {MOST_HEADERS} headers and patterns of {LONGEST_PATTERN} characters"
            )
    return spec if spec.query is None else replace(spec, query=document_of(read_query(spec.query)))


def check_content_type(said: str | None) -> None:
    """BadRequest for what the header Content-Type can't have; None is the message's own."""
    if said is not None and (len(said) > LONGEST_TYPE or not _MEDIA_TYPE.match(said)):
        raise BadRequest(f"no media type: {said[:60]!r}", hint="such as application/json")


def group_name(name: str) -> str:
    """The group of a webhook."""
    return f"webhook.{name}"


def content_type(said: str | None, own: object) -> str:
    """The header Content-Type. ``said``: by the options. ``own``: the message's header of that name, whatever
    it is."""
    if said is not None:
        return said
    fits = isinstance(own, str) and len(own) <= LONGEST_TYPE and _MEDIA_TYPE.match(own)
    return str(own) if fits else _TYPE_IF_NONE


# -- secrets -------------------------------------------------------------------------------------------


def rotate(
    secrets: tuple[WebhookSecret, ...], secret: str, now: int, overlap: float
) -> tuple[WebhookSecret, ...]:
    """A new secret; those before are valid for ``overlap`` seconds more at most."""
    read_secret(secret)
    if not 0 <= overlap <= LONGEST:
        raise BadRequest(f"an overlap of {overlap:g} seconds")
    if any(each.secret == secret for each in secrets):
        raise BadRequest("the webhook has that secret already")
    end = now + int(overlap * SECOND)
    older = [
        replace(each, expires_at=min(each.expires_at or end, end))
        for each in secrets
        if overlap and (not each.expires_at or each.expires_at > now)
    ]
    if len(older) >= MOST_SECRETS:
        raise BadRequest(
            f"{len(older)} secrets are valid now, as many as there may be", hint="give no overlap, or wait"
        )
    return (WebhookSecret(secret, now), *older)


def valid_secrets(secrets: tuple[WebhookSecret, ...], now: int) -> list[str]:
    """Those that a request is signed with, newest first."""
    return [each.secret for each in secrets if not each.expires_at or each.expires_at > now]


# -- the circuit ---------------------------------------------------------------------------------------


def circuit(state: WebhookState, now: int) -> Circuit:
    """Whether requests are sent."""
    if _blocked_until(state, now) > now:
        return "open"
    return "half-open" if state.failures >= BREAK_AFTER or state.throttled else "closed"


def is_disabled(stored: StoredWebhook, state: WebhookState) -> bool:
    """Nothing is sent until somebody resumes it."""
    return bool(state.disabled_at) and stored.resumed_at <= state.begun_at


def take_up(stored: StoredWebhook, state: WebhookState) -> WebhookState:
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


def verdict_of(status: int) -> Verdict:
    """What an answer means. 0: there was none. A redirect is a failure: it is not followed."""
    if 200 <= status < 300:
        return "delivered"
    if status == 410:
        return "gone"
    return "throttled" if status in (429, 502, 504) else "failed"


def retry_delay(id: str, number: int) -> float | None:
    """Seconds until a message is tried again whose attempt of this number has failed; None: give it up."""
    if number > len(RETRIES):
        return None
    # Different for each message and each attempt, and the same for whoever asks again.
    chance = int.from_bytes(hashlib.sha256(f"{id}.{number}".encode()).digest()[:4], "big") / (1 << 32)
    return RETRIES[number - 1] * (1 + JITTER * chance)


def number_of(state: WebhookState, spec: WebhookSpec, offset: int, delivered: int) -> int:
    """The number of the attempt that comes. ``delivered``: as the group counts."""
    if spec.ordered and state.head is not None and state.head[0] == offset:
        return max(delivered, state.head[1] + 1)
    return delivered


def after_attempt(
    spec: WebhookSpec,
    state: WebhookState,
    attempt: WebhookAttempt,
    now: int,
    failing_for: float = FAILING_FOR,
) -> AfterAttempt:
    """What follows from an attempt with a message. ``failing_for``: seconds of nothing but failures that
    disable the webhook."""
    state = replace(state, recent=(*state.recent, attempt)[-MOST_ATTEMPTS:])
    if attempt.verdict == "delivered":
        state = replace(
            state,
            delivered=state.delivered + 1,
            last_success_at=now,
            failures=0,
            failing_since=0,
            opened=0,
            throttled=0,
            head=None,
        )
        # Not before blocked_until: another request at the same time may have been throttled.
        return AfterAttempt(state, "ack")
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
    spec: WebhookSpec, state: WebhookState, attempt: WebhookAttempt, now: int, asked: float
) -> AfterAttempt:
    delay = retry_delay(attempt.id, attempt.number)
    if not spec.ordered and state.failures >= BREAK_AFTER and _blocked_until(state, now) <= now:
        span = min(LONGEST_OPEN, OPEN_FOR * 2.0 ** min(state.opened, 32))
        state = _block(replace(state, opened=state.opened + 1), now, span)
    if delay is None:
        return AfterAttempt(replace(state, buried=state.buried + 1, head=None), "bury")
    delay = max(delay, asked)
    if spec.ordered and attempt.offset is not None:
        state = replace(_block(state, now, delay), head=(attempt.offset, attempt.number))
        return AfterAttempt(state, "leave")
    return AfterAttempt(state, "requeue", delay)


def after_test(state: WebhookState, attempt: WebhookAttempt, probe: WebhookProbe) -> WebhookState:
    """A test tells how the receiver is, and changes nothing else."""
    recent = (*state.recent, attempt)[-MOST_ATTEMPTS:]
    return replace(state, recent=recent, tested_to=max(state.tested_to, probe.at))


def _block(state: WebhookState, now: int, span: float) -> WebhookState:
    return replace(state, blocked_until=max(_blocked_until(state, now), now + int(span * SECOND)))


def _blocked_until(state: WebhookState, now: int) -> int:
    """Nothing blocks longer than LONGEST_BLOCK: a moment beyond that was written before somebody set the
    clock back."""
    return state.blocked_until if state.blocked_until <= now + int(LONGEST_BLOCK * SECOND) else 0


def _disable(state: WebhookState, now: int, why: str) -> WebhookState:
    return replace(state, disabled_at=now, disabled_why=why, head=None)
