"""What an SMS takes and costs, by the alphabet of GSM and by the calendar."""

from __future__ import annotations

import hmac
from urllib.parse import parse_qsl, urlsplit

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from landbridge.core.outlet.outlet import OutletState
from landbridge.core.outlet.spec import OutletAttempt
from landbridge.core.sms import outgoing as core
from landbridge.core.sms.segments import size_of
from landbridge.core.sms.spec import SmsSpec
from landbridge.core.time import SECOND
from landbridge.errors import Unauthenticated

DAY = 86400 * SECOND


def test_segments_as_the_standard_counts_them() -> None:
    for text, alphabet, units, segments in (
        ("", "gsm-7", 0, 1),
        ("a" * 160, "gsm-7", 160, 1),
        ("a" * 161, "gsm-7", 161, 2),
        ("a" * 306, "gsm-7", 306, 2),
        ("a" * 307, "gsm-7", 307, 3),
        ("€" * 80, "gsm-7", 160, 1),
        # 153 septets: 76 of them, and one left over that no half of a character takes.
        ("€" * 153, "gsm-7", 306, 3),
        ("ç", "ucs-2", 1, 1),
        ("Ç", "gsm-7", 1, 1),
        ("ж" * 70, "ucs-2", 70, 1),
        ("ж" * 71, "ucs-2", 71, 2),
        ("😀" * 35, "ucs-2", 70, 1),
        # 67 units: 33 of them.
        ("😀" * 67, "ucs-2", 134, 3),
    ):
        assert size_of(text) == (alphabet, units, segments), text[:5]


@given(st.text(alphabet="a€ж😀\n", max_size=400))
def test_segments_hold_all_and_cut_no_character(text: str) -> None:
    found = size_of(text)
    whole, part = (160, 153) if found.alphabet == "gsm-7" else (70, 67)
    units = len(text.encode("utf-16-be")) // 2 if found.alphabet == "ucs-2" else found.units
    assert found.units == units
    if units <= whole:
        assert found.segments == 1
    else:
        assert -(-units // part) <= found.segments <= -(-units // (part - 1))


def spec(**options: object) -> SmsSpec:
    base = {"topic": "t", "name": "n", "account": "AC1", "sender": "+15550000000", "to": "+15550000001"}
    return core.sms_spec({**base, **options})


@given(
    st.lists(st.tuples(st.integers(0, 40 * 24), st.integers(1, 9)), max_size=60),
    st.integers(9, 30),
    st.integers(9, 100),
)
def test_no_day_and_no_month_costs_more_than_its_budget(
    sends: list[tuple[int, int]], per_day: int, per_month: int
) -> None:
    """An oracle that counts by the calendar."""
    told, state = spec(per_day=per_day, per_month=per_month), OutletState()
    days: dict[int, int] = {}
    months: dict[tuple[int, int], int] = {}
    begin = 20_600 * DAY
    for hours, segments in sorted(sends):
        now = begin + hours * 3600 * SECOND
        day, month = now // DAY, core._month(now // DAY)
        fits = days.get(day, 0) + segments <= per_day and months.get(month, 0) + segments <= per_month
        found = core.admit(told, state, segments, now)
        assert (found.verdict == "send") is fits
        if fits:
            days[day] = days.get(day, 0) + segments
            months[month] = months.get(month, 0) + segments
        else:
            assert found.verdict == "leave"
            assert now < found.state.blocked_until <= now + DAY
        state = found.state
    assert all(count <= per_day for count in days.values())


def test_a_clock_that_is_set_back_begins_no_new_budget() -> None:
    told, now = spec(per_day=1), 20_600 * DAY
    state = core.admit(told, OutletState(), 1, now).state
    assert core.admit(told, state, 1, now - DAY).verdict == "leave"
    assert core.admit(told, state, 1, now + DAY).verdict == "send"


def test_what_the_provider_refuses_is_free_again_and_what_was_lost_is_not() -> None:
    now = 20_600 * DAY + 5
    state = core.admit(spec(per_day=5), OutletState(), 3, now).state
    base = OutletAttempt(id="1", at=now, seconds=0.1, verdict="failed", units=3)
    assert core.refund(state, replace(base, status=0)).spent == state.spent
    assert core.refund(state, replace(base, verdict="delivered", status=201)).spent == state.spent
    assert core.refund(state, replace(base, status=500)).spent == (20_600, 0, 0)
    assert core.refund(state, replace(base, status=500, at=now - DAY)).spent == state.spent


def outlet(**profile: str) -> core.StoredSms:
    spec = core.sms_spec(
        {
            "topic": "alarms", "name": "oncall", "account": "AC1", "sender": "+15550000001",
            "to": "+15550000002", "receipts": "receipts", "reached_at": "https://bus.example",
            "profile": {**profile},
        }
    )  # fmt: skip
    return core.StoredSms(spec=spec, owner="o", created_at=0, secret="secret")


def test_a_call_in_another_spelling_is_the_same_call() -> None:
    stored = outlet()
    url = f"{core.callback_url(stored.spec, 'receipts')}?message=m1"
    fields = [("MessageSid", "SM1"), ("MessageStatus", "sent"), ("To", "+1")]
    signature = core.sign_as_twilio("secret", url, fields)
    keys = {
        core.read_callback(
            stored, "receipts", "message=m1", "application/x-www-form-urlencoded", body, signature
        ).idempotency_key
        for body in (
            b"MessageSid=SM1&MessageStatus=sent&To=%2B1",
            b"To=%2b1&MessageStatus=%73ent&MessageSid=SM1",
            b"MessageSidSM=1&MessageStatus=sent&To=%2B1",
        )
    }
    assert len(keys) == 1


def test_a_receipt_names_the_message_that_its_url_was_made_for() -> None:
    """Where the URL is not signed by the provider."""
    stored = outlet(signature="hmac-sha256", signature_header="X-Signature")
    request = core.request_of(stored, core.SmsDraft("+15550000002", "hi", 1), "m1")
    query = urlsplit(dict(parse_qsl(request.body.decode()))["StatusCallback"]).query
    body = b'{"MessageSid":"SM1","MessageStatus":"delivered"}'
    signature = hmac.digest(b"secret", body, "sha256").hex()

    def read(query: str) -> core.CalledBack:
        return core.read_callback(stored, "receipts", query, "application/json", body, signature)

    assert read(query).payload["message"] == "m1"
    assert read("").payload["message"] == ""
    assert read(f"{query}&more=1").idempotency_key == read(query).idempotency_key
    for forged in ("message=m2", query.replace("m1", "m2"), f"{query}&message=m2", "message=m1&seal=é"):
        with pytest.raises(Unauthenticated):
            read(forged)


def test_the_signature_is_twilios() -> None:
    """The example of Twilio's documentation."""
    fields = [
        ("CallSid", "CA1234567890ABCDE"),
        ("Caller", "+14158675309"),
        ("Digits", "1234"),
        ("From", "+14158675309"),
        ("To", "+18005551212"),
    ]
    url = "https://mycompany.com/myapp.php?foo=1&bar=2"
    assert core.sign_as_twilio("12345", url, fields) == "RSOYDt4T1cUTdK1PDd93/VVr8B8="
