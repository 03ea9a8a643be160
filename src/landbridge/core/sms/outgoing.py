"""A message as an SMS: what an SMS outlet is, the request that it makes, what it may cost, and what a
provider's callbacks say.

Everything here is a function of the documents, of messages and of ``now``, in microseconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode

import msgspec
from msgspec.structs import replace

from landbridge.core.addresses import read_url
from landbridge.core.names import check_name
from landbridge.core.options import read_options
from landbridge.core.outlet import outlet
from landbridge.core.outlet.outlet import Admission, OutletState, StoredOutlet, block, check_spec
from landbridge.core.outlet.spec import OutletAttempt, Verdict
from landbridge.core.sms.segments import size_of
from landbridge.core.sms.spec import SmsProfile, SmsSpec
from landbridge.core.templates import MessageValues, Template
from landbridge.core.time import SECOND
from landbridge.errors import BadPayload, BadRequest, Unauthenticated

#: The collections of the documents, beside their topics.
COLLECTION, STATES = "$sms", "$sms-states"
#: Segments of one SMS, and of a budget, that may be asked for.
MOST_SEGMENTS, LARGEST_BUDGET = 20, 1_000_000_000
#: Fields of a request, characters of a secret, of an account, of a base URL, and of a field's name.
MOST_FIELDS, LONGEST_SECRET, LONGEST_ACCOUNT, LONGEST_BASE, LONGEST_NAME = 30, 500, 200, 300, 100
#: Fields of a callback.
MOST_OF_CALLBACK = 100
_DAY = 86400 * SECOND
_NUMBER = re.compile(r"\+[1-9][0-9]{6,14}\Z")
_SENDER = re.compile(r"[A-Za-z0-9 ]{1,11}\Z|[0-9]{3,8}\Z")
_NAMES = ("to", "from", "body", "callback", "id", "account")
_SAFE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}\Z")
_FORM = "application/x-www-form-urlencoded"

SmsCallback = Literal["receipts", "incoming"]


class StoredSms(StoredOutlet, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the operations write."""

    spec: SmsSpec
    #: What the account shows to the provider, and what callbacks are signed with.
    secret: str


class SmsDraft(NamedTuple):
    """An SMS that is ready."""

    to: str
    body: str
    segments: int


class SmsRequest(NamedTuple):
    """A request to a provider."""

    url: str
    body: bytes
    headers: dict[str, str]


class CalledBack(NamedTuple):
    """What a callback says, as a message."""

    topic: str
    payload: dict[str, Any]
    key: str
    headers: dict[str, str]
    #: The same whenever the provider says it again.
    idempotency_key: str


# -- options -------------------------------------------------------------------------------------------


def sms_spec(raw: dict[str, Any]) -> SmsSpec:
    """The options that these make. BadRequest says what is wrong with them."""
    spec = read_options(raw, SmsSpec, "SMS options")
    check_spec(spec, "SMS outlet", group_name(spec.name))
    if not _is_number(spec.sender) and not _SENDER.match(spec.sender):
        raise BadRequest(
            f"nobody can send SMS as {spec.sender[:40]!r}",
            hint="a number as +15551234567, a short code, or a name of at most 11 letters and digits",
        )
    to = Template(spec.to, "recipient")
    if not to.places and not _is_number(spec.to):
        raise BadRequest(f"no number: {spec.to[:40]!r}", hint="E.164, as +15551234567")
    Template(spec.body, "body")
    if not 0 < len(spec.account) <= LONGEST_ACCOUNT or not spec.account.isprintable() or ":" in spec.account:
        raise BadRequest(f"no account: {spec.account[:40]!r}")
    if not 1 <= spec.most_segments <= MOST_SEGMENTS:
        raise BadRequest(f"an SMS of {spec.most_segments} segments", hint=f"1 to {MOST_SEGMENTS}")
    for each in (spec.per_day, spec.per_month):
        if each is not None and not 0 < each <= LARGEST_BUDGET:
            raise BadRequest(f"a budget of {each} segments", hint="at least 1")
    _check_profile(spec.profile, spec.account)
    _check_callbacks(spec)
    return spec


def _check_profile(profile: SmsProfile, account: str) -> None:
    read_url(_url(profile, account))
    if not 0 < len(profile.fields) <= MOST_FIELDS:
        raise BadRequest(f"a request of {len(profile.fields)} fields", hint=f"1 to {MOST_FIELDS}")
    for name, text in profile.fields.items():
        if len(name) > LONGEST_NAME:
            raise BadRequest(f"a field's name of {len(name)} characters")
        _field_template(text)
    if not any("{{ to }}" in text for text in profile.fields.values()):
        raise BadRequest("no field of the request has {{ to }}")
    names = (profile.signature_header, profile.id_field, profile.status_field)
    for name in (*names, profile.from_field, profile.body_field):
        if not _SAFE_NAME.match(name):
            raise BadRequest(f"no name of a field: {name[:40]!r}")


def _check_callbacks(spec: SmsSpec) -> None:
    for topic in (spec.receipts, spec.incoming):
        if topic is not None:
            check_name(topic, "topic")
            if topic.startswith("$"):
                raise BadRequest(f"{topic[:60]} is the terminal's own")
    if spec.reached_at:
        read_url(spec.reached_at)
        if len(spec.reached_at) > LONGEST_BASE or "?" in spec.reached_at or "#" in spec.reached_at:
            raise BadRequest("reached_at is the start of a URL", hint="as https://bus.example")
    elif spec.receipts or spec.incoming:
        raise BadRequest(
            "where does the provider reach this terminal?", hint="give reached_at, as https://bus.example"
        )


def check_secret(secret: str) -> None:
    """BadRequest for what no provider gives."""
    if not 0 < len(secret) <= LONGEST_SECRET or not secret.isascii() or not secret.isprintable():
        raise BadRequest(f"a secret has 1 to {LONGEST_SECRET} printable ASCII characters")


def group_name(name: str) -> str:
    """The group of an SMS outlet."""
    return f"sms.{name}"


def _is_number(text: str) -> bool:
    """Whether it is a number as ITU-T E.164 has it."""
    return _NUMBER.match(text) is not None


def _field_template(text: str) -> Template:
    return Template(text, "field", _NAMES)


def _url(profile: SmsProfile, account: str) -> str:
    places = MessageValues(b"", {}, more={"account": quote(account, safe="")}, time=0)
    return Template(profile.url, "url", ("account",)).fill(places)


# -- sending -------------------------------------------------------------------------------------------


def draft(spec: SmsSpec, values: MessageValues) -> SmsDraft:
    """The SMS of a message. BadPayload where it can't be sent."""
    to = Template(spec.to, "recipient").fill(values).strip()
    if not _is_number(to):
        raise BadPayload(f"no number: {to[:40]!r}", hint="E.164, as +15551234567")
    text = Template(spec.body, "body").fill(values).replace("\r\n", "\n")
    text = text.encode(errors="replace").decode()
    body = "".join(each if each == "\n" or each.isprintable() else " " for each in text).strip()
    if not body:
        raise BadPayload("an SMS without text")
    segments = size_of(body).segments
    if segments > spec.most_segments:
        raise BadPayload(f"a text of {segments} segments, allowed are {spec.most_segments}")
    return SmsDraft(to, body, segments)


def request_of(stored: StoredSms, sms: SmsDraft, id: str) -> SmsRequest:
    """The request that asks the provider to send it. ``id``: of the message; its receipts will name it."""
    spec, profile = stored.spec, stored.spec.profile
    callback = _receipts_url(stored, id) if spec.receipts else ""
    more = {"to": sms.to, "from": spec.sender, "body": sms.body, "callback": callback, "id": id}
    values = MessageValues(b"", {}, more={**more, "account": spec.account}, time=0)
    filled = {name: _field_template(text).fill(values) for name, text in profile.fields.items()}
    fields = {name: text for name, text in filled.items() if text}
    headers = {"User-Agent": "landbridge", "Accept": "application/json", "Idempotency-Key": quote(id)}
    if profile.encoding == "form":
        headers["Content-Type"], body = _FORM, urlencode(fields).encode()
    else:
        headers["Content-Type"], body = "application/json", msgspec.json.encode(fields)
    if profile.auth == "basic":
        pair = f"{spec.account}:{stored.secret}".encode()
        headers["Authorization"] = f"Basic {base64.b64encode(pair).decode()}"
    elif profile.auth == "bearer":
        headers["Authorization"] = f"Bearer {stored.secret}"
    elif profile.auth == "key":
        headers["X-Api-Key"] = stored.secret
    return SmsRequest(_url(profile, spec.account), body, headers)


def provider_id(profile: SmsProfile, answer: bytes) -> str:
    """The provider's id of an SMS; empty where the answer has none."""
    found = MessageValues(answer, {}, more={}, time=0).get(f"payload.{profile.id_at}")
    return str(found)[:100] if isinstance(found, str | int) else ""


def verdict_of(status: int) -> Verdict:
    """What an answer means. 0: there was none. 401, 403 and 404 are about the account, not about this SMS."""
    if 200 <= status < 300:
        return "delivered"
    if status == 429:
        return "throttled"
    return "refused" if 400 <= status < 500 and status not in (401, 403, 404, 408, 425) else "failed"


# -- what it costs -------------------------------------------------------------------------------------


def admit(spec: SmsSpec, state: OutletState, segments: int, now: int) -> Admission:
    """Whether the budget allows so many segments now. They are counted before they are sent: a crash in
    between costs budget, never money."""
    day, of_day, of_month = _today(state, now)
    for most, used, ends in (
        (spec.per_day, of_day, (day + 1) * _DAY),
        (spec.per_month, of_month, _end_of_month(day)),
    ):
        if most is not None and segments > most:
            return Admission(state, "bury", f"{segments} segments, the budget is {most}")
        if most is not None and used + segments > most:
            return Admission(block(state, now, max(1.0, (ends - now) / SECOND)), "leave")
    return Admission(replace(state, spent=(day, of_day + segments, of_month + segments)), units=segments)


def refund(state: OutletState, attempt: OutletAttempt) -> OutletState:
    """The provider has said no: what was counted for the SMS is free again, if it is still that day."""
    if attempt.verdict == "delivered" or not attempt.status:
        return state
    return outlet.refund(state, attempt.at // _DAY, attempt.units)


def spent(state: OutletState, now: int) -> tuple[int, int]:
    """Segments of this day, and of this month."""
    return _today(state, now)[1:]


def _today(state: OutletState, now: int) -> tuple[int, int, int]:
    """(day, segments of it, segments of its month). A clock that was set back begins no new budget."""
    before, of_day, of_month = state.spent
    day = max(before, now // _DAY)
    if day == before:
        return day, of_day, of_month
    return day, 0, of_month if _month(day) == _month(before) else 0


def _date(day: int) -> datetime:
    return datetime.fromtimestamp(day * 86400, UTC)


def _month(day: int) -> tuple[int, int]:
    return _date(day).year, _date(day).month


def _end_of_month(day: int) -> int:
    following = (_date(day).replace(day=1) + timedelta(days=32)).replace(day=1)
    return int(following.timestamp()) * SECOND


# -- callbacks -----------------------------------------------------------------------------------------


def callback_url(spec: SmsSpec, what: SmsCallback) -> str:
    """Where the provider calls back."""
    return f"{spec.reached_at.rstrip('/')}/v1/topics/{spec.topic}/sms/{spec.name}/{what}"


def _receipts_url(stored: StoredSms, id: str) -> str:
    """Where the receipts of one message go to. Where a provider doesn't sign the URL, it is sealed here."""
    query = {"message": id}
    if stored.spec.profile.signature != "twilio":
        query["seal"] = _seal(stored, id)
    return f"{callback_url(stored.spec, 'receipts')}?{urlencode(query)}"


def _seal(stored: StoredSms, id: str) -> str:
    digest = hmac.digest(stored.secret.encode(), f"receipts\n{id}".encode(errors="replace"), "sha256")
    return digest.hex()[:32]


def read_callback(
    stored: StoredSms, what: SmsCallback, query: str, content_type: str, body: bytes, signature: str
) -> CalledBack:
    """What a callback says. Unauthenticated where the provider has not signed it."""
    spec, profile = stored.spec, stored.spec.profile
    fields = _fields(content_type, body)
    url = callback_url(spec, what) + (f"?{query}" if query else "")
    given = dict(parse_qsl(query))
    message, is_sealed = given.get("message", ""), True
    if profile.signature == "twilio":
        signed = _signed_by_twilio(url, fields)
        wanted = sign_as_twilio(stored.secret, url, fields)
    else:
        signed = body + message.encode(errors="replace")
        wanted = hmac.digest(stored.secret.encode(), body, "sha256").hex()
        seal = given.get("seal", "").encode(errors="replace")
        is_sealed = not message or hmac.compare_digest(_seal(stored, message).encode(), seal)
    if not hmac.compare_digest(wanted.encode(), signature.encode(errors="replace")) or not is_sealed:
        raise Unauthenticated(
            "the callback is not signed by the provider", hint="is reached_at the URL that it calls?"
        )
    topic = spec.receipts if what == "receipts" else spec.incoming
    if topic is None:
        raise BadRequest(f"this outlet takes no {what}")
    said = dict(fields)
    id, named = said.get(profile.id_field, ""), f"{spec.topic}/{spec.name}"
    payload: dict[str, Any] = {"outlet": named, "id": id}
    if what == "receipts":
        status = said.get(profile.status_field, "")
        payload |= {"message": message, "status": status, "final": status in profile.final}
        key, headers = message or id, {"sms-status": status}
    else:
        sender = said.get(profile.from_field, "")
        payload |= {"from": sender, "body": said.get(profile.body_field, "")}
        key, headers = sender, {"sms-from": sender}
    # Of what is signed alone: whoever repeats a call in another spelling has the same key.
    digest = hashlib.sha256(f"{what}\n{named}\n".encode() + signed).hexdigest()
    headers = {"content-type": "application/json", **headers}
    return CalledBack(topic, payload | {"fields": said}, key, headers, f"sms-{digest}")


def sign_as_twilio(secret: str, url: str, fields: list[tuple[str, str]]) -> str:
    """What Twilio has in X-Twilio-Signature: the URL and the fields, sorted by name."""
    digest = hmac.digest(secret.encode(), _signed_by_twilio(url, fields), "sha1")
    return base64.b64encode(digest).decode()


def _signed_by_twilio(url: str, fields: list[tuple[str, str]]) -> bytes:
    text = url + "".join(name + value for name, value in sorted(fields))
    return text.encode(errors="replace")


def _fields(content_type: str, body: bytes) -> list[tuple[str, str]]:
    try:
        if content_type == _FORM:
            return parse_qsl(
                body.decode(), keep_blank_values=True, max_num_fields=MOST_OF_CALLBACK, errors="strict"
            )
        if content_type == "application/json":
            found = msgspec.json.decode(body, type=dict[str, Any])
            return [(name, value if isinstance(value, str) else msgspec.json.encode(value).decode())
                    for name, value in found.items()]  # fmt: skip
    except (ValueError, msgspec.DecodeError, RecursionError) as error:
        raise BadPayload(f"the callback can't be read: {str(error)[:200]}") from None
    raise BadRequest(f"a callback of the type {content_type[:60]!r}", hint=f"{_FORM}, or application/json")
