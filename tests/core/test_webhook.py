"""Webhooks without I/O: signatures, what answers mean, retries, the circuit, secrets."""

from __future__ import annotations

import base64
from datetime import UTC, datetime

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from standardwebhooks import Webhook, WebhookVerificationError

from landbridge.core.outlet import outlet
from landbridge.core.outlet.outlet import OutletState
from landbridge.core.outlet.spec import OutletAttempt, Verdict
from landbridge.core.time import SECOND
from landbridge.core.webhook import webhook as core
from landbridge.core.webhook.signature import (
    PRIVATE,
    public_key,
    read_secret,
    sign,
    webhook_id,
    write_secret,
)
from landbridge.core.webhook.spec import WebhookSpec
from landbridge.core.webhook.webhook import StoredWebhook, WebhookSecret
from landbridge.errors import BadName, BadRequest

NOW = 1_800_000_000 * SECOND
SPEC = WebhookSpec(topic="orders", name="shop", url="https://example.com/hook")
SECRET = write_secret(bytes(range(24)))


def attempt(verdict: Verdict, number: int = 1, **more: object) -> OutletAttempt:
    return OutletAttempt(id="m-0", at=NOW, seconds=0.1, verdict=verdict, number=number, offset=7, **more)  # type: ignore[arg-type]


@given(
    st.lists(st.binary(min_size=24, max_size=64), min_size=1, max_size=4, unique=True), st.text(), st.text()
)
def test_the_reference_library_takes_a_signature_with_each_of_the_secrets(
    raw: list[bytes], id: str, text: str
) -> None:
    secrets, body, shown = [write_secret(each) for each in raw], text.encode(errors="replace"), webhook_id(id)
    timestamp = int(datetime.now(UTC).timestamp())
    headers = {
        "webhook-id": shown,
        "webhook-timestamp": str(timestamp),
        "webhook-signature": sign(secrets, shown, timestamp, body),
    }
    for secret in secrets:
        judge = Webhook(secret)
        try:
            judge.verify(body, headers)
        except WebhookVerificationError:
            raise
        except ValueError:
            pass  # the signature is right; the library then reads the body as JSON
    with pytest.raises(WebhookVerificationError):
        Webhook(write_secret(b"x" * 25)).verify(body, headers)


@given(st.binary(min_size=32, max_size=32), st.integers())
def test_a_key_signs_what_its_public_one_verifies_and_the_reference_library_passes_over_it(
    raw: bytes, number: int
) -> None:
    body = b'{"n": %d}' % number
    key, timestamp = write_secret(raw, PRIVATE), int(datetime.now(UTC).timestamp())
    shown = public_key(key)
    assert shown.startswith("whpk_")
    assert public_key(SECRET) == ""
    by_secret, by_key = sign([SECRET, key], "m-0", timestamp, body).split()
    version, _, text = by_key.partition(",")
    assert version == "v1a"
    judge = Ed25519PublicKey.from_public_bytes(base64.b64decode(shown.removeprefix("whpk_")))
    judge.verify(base64.b64decode(text), b"m-0.%d.%b" % (timestamp, body))
    with pytest.raises(InvalidSignature):
        judge.verify(base64.b64decode(text), b"m-1.%d.%b" % (timestamp, body))
    headers = {"webhook-id": "m-0", "webhook-timestamp": str(timestamp)}
    both = headers | {"webhook-signature": f"{by_key} {by_secret}"}
    assert Webhook(SECRET).verify(body, both) == {"n": number}
    with pytest.raises(WebhookVerificationError):
        Webhook(SECRET).verify(body, headers | {"webhook-signature": by_key})


def test_the_example_of_the_specification() -> None:
    secret, body = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", b'{"test": 2432232314}'
    signature = sign([secret], "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, body)
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


@given(st.text())
def test_an_id_is_one_that_a_header_and_the_signature_can_have(id: str) -> None:
    shown = webhook_id(id)
    assert shown.isascii()
    assert shown.isprintable()
    assert "." not in shown
    assert " " not in shown
    assert shown
    assert webhook_id(id) == shown


@pytest.mark.parametrize(
    "text",
    ["", "whsk_", "whsk_" + base64.b64encode(b"x" * 31).decode(),
     "whpk_" + base64.b64encode(b"x" * 32).decode(),
     "whsec_", "whsec_!!!!", "whsec_" + base64.b64encode(b"x" * 23).decode(), "whsec_é",
     "whsec_" + base64.b64encode(b"x" * 65).decode(), base64.b64encode(b"x" * 32).decode()],
)  # fmt: skip
def test_what_is_no_secret_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(BadRequest) as caught:
        read_secret(text)
    assert len(text) < 10 or text not in str(caught.value)


@pytest.mark.parametrize(
    ("statuses", "verdict"),
    [
        ([200, 201, 204, 299], "delivered"),
        ([410], "gone"),
        ([429, 502, 504], "throttled"),
        ([0, 100, 301, 302, 304, 307, 308, 400, 401, 404, 409, 411, 500, 501, 503, 599, 999], "failed"),
    ],
)
def test_what_an_answer_means(statuses: list[int], verdict: str) -> None:
    assert {core.verdict_of(status) for status in statuses} == {verdict}


def test_a_message_is_tried_eight_times_over_28_hours_and_then_buried() -> None:
    waited: list[float] = []
    state, now = OutletState(), NOW
    while True:
        number = len(waited) + 1
        state, settlement, after = outlet.after_attempt(SPEC, state, attempt("failed", number), now)
        if settlement == "bury":
            break
        assert settlement == "requeue"
        waited.append(after)
        now += int(after * SECOND)
    assert len(waited) == 7
    wanted = (5, 300, 1800, 7200, 18000, 36000, 36000)
    assert all(base <= span <= 1.1 * base for span, base in zip(waited, wanted, strict=True))
    assert (state.buried, state.failed, state.delivered) == (1, 8, 0)


def test_an_ordered_message_holds_the_others_and_its_attempts_are_counted() -> None:
    spec, state, now = replace(SPEC, ordered=True), OutletState(), NOW
    for number in range(1, 8):
        assert outlet.number_of(state, spec, 7, 1) == number
        state, settlement, _ = outlet.after_attempt(spec, state, attempt("failed", number), now)
        assert (settlement, state.head) == ("leave", (7, number))
        assert outlet.circuit(state, now) == "open"
        now = state.blocked_until
        assert outlet.circuit(state, now) != "open"
        assert outlet.number_of(state, spec, 8, 1) == 1
    state, settlement, _ = outlet.after_attempt(spec, state, attempt("failed", 8), now)
    assert (settlement, state.head) == ("bury", None)


def test_the_circuit_opens_after_five_failures_longer_each_time_and_a_success_closes_it() -> None:
    state, now, spans = OutletState(), NOW, []
    for number in range(12):
        assert outlet.circuit(state, now) == ("half-open" if number >= 5 else "closed")
        state, _, _ = outlet.after_attempt(SPEC, state, attempt("failed"), now)
        if state.blocked_until > now:
            assert outlet.circuit(state, now) == "open"
            spans.append((state.blocked_until - now) / SECOND)
            now = state.blocked_until
    assert spans == [30, 60, 120, 240, 480, 600, 600, 600]
    state, settlement, _ = outlet.after_attempt(SPEC, state, attempt("delivered"), now)
    assert (settlement, outlet.circuit(state, now), state.failures) == ("ack", "closed", 0)


@pytest.mark.parametrize(
    ("verdict", "asked", "span"), [("throttled", None, 5), ("throttled", 90.0, 90), ("throttled", 1e9, 86400)]
)
def test_throttling_stops_all_and_costs_the_message_no_attempt(
    verdict: Verdict, asked: float | None, span: float
) -> None:
    state, settlement, _ = outlet.after_attempt(SPEC, OutletState(), attempt(verdict, retry_after=asked), NOW)
    assert (settlement, state.blocked_until) == ("leave", NOW + span * SECOND)
    assert outlet.circuit(state, state.blocked_until) == "half-open"


def test_retry_after_of_a_failure_is_honoured() -> None:
    found = outlet.after_attempt(SPEC, OutletState(), attempt("failed", status=503, retry_after=77.0), NOW)
    assert (found.settlement, found.after) == ("requeue", 77.0)


def test_410_and_five_days_of_failures_disable_and_resuming_begins_anew() -> None:
    stored = StoredWebhook(spec=SPEC, owner="o", created_at=1, secrets=(WebhookSecret(SECRET, 1),))
    gone, settlement, _ = outlet.after_attempt(SPEC, OutletState(), attempt("gone"), NOW)
    assert settlement == "leave"
    assert outlet.is_disabled(stored, gone)
    state, _, _ = outlet.after_attempt(SPEC, OutletState(), attempt("failed"), NOW)
    nearly, _, _ = outlet.after_attempt(SPEC, state, attempt("failed"), NOW + 5 * 86400 * SECOND - 1)
    assert not outlet.is_disabled(stored, nearly)
    state, settlement, _ = outlet.after_attempt(SPEC, nearly, attempt("failed"), NOW + 5 * 86400 * SECOND)
    assert settlement == "leave"
    assert outlet.is_disabled(stored, state)
    resumed = replace(stored, resumed_at=state.disabled_at + 1)
    assert not outlet.is_disabled(resumed, state)
    state = outlet.take_up(resumed, state)
    assert (state.disabled_at, state.failing_since, state.failures, state.blocked_until) == (0, 0, 0, 0)
    again, _, _ = outlet.after_attempt(SPEC, state, attempt("gone"), resumed.resumed_at + 1)
    assert outlet.is_disabled(resumed, outlet.take_up(resumed, again))


@given(st.lists(st.tuples(st.sampled_from(["delivered", "throttled", "failed"]), st.integers(1, 8))))
def test_state_stays_bounded_and_a_success_forgets_all_failures(
    steps: list[tuple[Verdict, int]],
) -> None:
    state, now = OutletState(), NOW
    for verdict, number in steps:
        state, _, after = outlet.after_attempt(SPEC, state, attempt(verdict, number), now)
        assert len(state.recent) <= outlet.MOST_ATTEMPTS
        assert state.blocked_until - now <= outlet.LONGEST_OPEN * SECOND
        if verdict == "delivered":
            assert outlet.circuit(state, max(now, state.blocked_until)) == "closed"
            assert not state.failing_since
        now += int(after * SECOND)
    assert state.delivered + state.failed == len(steps)


def test_rotation_keeps_the_old_secret_for_a_while() -> None:
    first = (WebhookSecret(SECRET, NOW),)
    new = write_secret(b"n" * 32)
    both = core.rotate(first, new, NOW, 60.0)
    assert core.valid_secrets(both, NOW) == [new, SECRET]
    assert core.valid_secrets(both, NOW + 60 * SECOND) == [new]
    assert core.valid_secrets(core.rotate(first, new, NOW, 0.0), NOW) == [new]
    with pytest.raises(BadRequest):
        core.rotate(both, new, NOW, 60.0)
    for letter in b"abc":
        both = core.rotate(both, write_secret(bytes([letter]) * 32), NOW, 60.0) if len(both) < 4 else both
    assert len(both) == 4
    with pytest.raises(BadRequest, match="as many as there may be"):
        core.rotate(both, write_secret(b"z" * 32), NOW, 60.0)


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "ftp://a.example"}, {"url": "http://user:pw@a.example"}, {"url": "x" * 3000},
        {"rate": 0.0}, {"rate": float("nan")}, {"rate": 1e9}, {"content_type": "a/b\r\nX: y"},
        {"content_type": ""}, {"match": {"key": "*" * 300}}, {"name": "a b"}, {"name": "x" * 300},
        {"topic": ""}, {"unknown": 1}, {"ordered": "yes"},
    ],
)  # fmt: skip
def test_wrong_options_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises((BadRequest, BadName)):
        core.webhook_spec({"topic": "orders", "name": "shop", "url": "https://a.example/", **wrong})


def test_the_content_type() -> None:
    assert core.content_type(None, None) == "application/json"
    assert core.content_type(None, "text/plain; charset=utf-8") == "text/plain; charset=utf-8"
    for bad in (5, "a\r\nb: c", "x" * 500, ""):
        assert core.content_type(None, bad) == "application/json"
    assert core.content_type("image/png", "text/plain") == "image/png"


@pytest.mark.parametrize("ordered", [False, True])
def test_a_clock_that_is_set_back_by_days_blocks_no_webhook_for_so_long(ordered: bool) -> None:
    spec = WebhookSpec(topic="t", name="w", url="https://x.example/", ordered=ordered)
    ahead = NOW + 30 * 86400 * SECOND
    state = outlet.after_attempt(spec, OutletState(), attempt("throttled", retry_after=86400.0), ahead).state
    assert outlet.circuit(state, ahead + 86000 * SECOND) == "open"
    assert outlet.circuit(state, NOW) != "open"
    # What blocks from now on is by the clock as it is now.
    state = outlet.after_attempt(spec, state, attempt("throttled", retry_after=60.0), NOW).state
    assert outlet.circuit(state, NOW + 59 * SECOND) == "open"
    assert outlet.circuit(state, NOW + 60 * SECOND) != "open"
