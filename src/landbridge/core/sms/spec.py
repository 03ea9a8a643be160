"""The options of an SMS outlet. Apart from the rest, because clients read them, too."""

from __future__ import annotations

from typing import Literal

import msgspec

from landbridge.core.outlet.spec import OutletSpec

TWILIO_FIELDS = {
    "To": "{{ to }}",
    "From": "{{ from }}",
    "Body": "{{ body }}",
    "StatusCallback": "{{ callback }}",
}


class SmsProfile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a provider is asked over HTTP, and what it answers. The defaults are Twilio's."""

    #: A template of ``account``.
    url: str = "https://api.twilio.com/2010-04-01/Accounts/{{ account }}/Messages.json"
    #: How the fields are sent.
    encoding: Literal["form", "json"] = "form"
    #: Templates of ``to``, ``from``, ``body``, ``callback``, ``id`` and ``account``. A field that is empty is
    #: left out.
    fields: dict[str, str] = msgspec.field(default_factory=TWILIO_FIELDS.copy)
    #: How the secret is shown: with the account (basic), alone (bearer), or in the header X-Api-Key.
    auth: Literal["basic", "bearer", "key", "none"] = "basic"
    #: Where the answer has the provider's id: a path into JSON, with dots.
    id_at: str = "sid"
    #: How callbacks are signed: as Twilio does, or by the hexadecimal HMAC-SHA256 of the body.
    signature: Literal["twilio", "hmac-sha256"] = "twilio"
    signature_header: str = "X-Twilio-Signature"
    #: Fields of callbacks.
    id_field: str = "MessageSid"
    status_field: str = "MessageStatus"
    from_field: str = "From"
    body_field: str = "Body"
    #: Statuses after which no other one comes.
    final: tuple[str, ...] = ("delivered", "undelivered", "failed", "canceled", "read")


class SmsSpec(OutletSpec, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is sent to whom."""

    #: Who shows itself to the provider.
    account: str
    #: The number or the name that the SMS come from.
    sender: str
    #: Templates.
    to: str
    body: str = "{{ payload }}"
    profile: SmsProfile = SmsProfile()
    #: Segments of a day and of a month (UTC); None: no limit.
    per_day: int | None = None
    per_month: int | None = None
    #: Segments of one SMS.
    most_segments: int = 10
    #: Topics of delivery receipts, and of SMS that come in; None: none are taken.
    receipts: str | None = None
    incoming: str | None = None
    #: How the provider reaches the terminal's HTTP port: https://bus.example
    reached_at: str = ""
