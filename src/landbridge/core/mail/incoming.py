"""A mail as a message: for which topic it is, what of it is the payload, and what the bus says to a server
that delivers it."""

from __future__ import annotations

import email
import hashlib
import re
from collections.abc import Iterator
from email.errors import HeaderParseError
from email.header import decode_header, make_header
from email.message import Message as Mail
from typing import Literal, NamedTuple, TypeAlias, get_args

import msgspec

from landbridge.core.log.batch import HeaderValue
from landbridge.core.names import check_name
from landbridge.errors import (
    BadPayload,
    BadRequest,
    BusError,
    Forbidden,
    KeyReused,
    StoreFull,
    TooLarge,
    Unauthenticated,
    Unavailable,
    UnknownTopic,
)

#: What of a mail becomes the payload. "mail": all of it, as it came. "content": its one part.
MailForm: TypeAlias = Literal["mail", "content"]
#: Of a payload that is a whole mail.
MAIL_TYPE = "message/rfc822"
#: Bytes of the headers of a mail, and characters of one that goes along as a header of the message.
LONGEST_HEAD, LONGEST_FIELD = 64 << 10, 1000
#: Parts that a mail may have where its content is asked for.
MOST_PARTS = 100
#: Fields of a mail that go along as headers of its message.
_FIELDS = {
    "mail-from": "from",
    "mail-to": "to",
    "mail-subject": "subject",
    "mail-date": "date",
    "mail-id": "message-id",
    "mail-reply-to": "in-reply-to",
}
_BLANK = re.compile(r"[\s\x00-\x1f\x7f]+")
#: The local part of addresses to which reports of mails that could not be delivered come back.
BOUNCES = "bounce"


class Recipient(NamedTuple):
    """For whom a mail is: a topic, or what the bus sent as a mail that comes back."""

    topic: str
    form: MailForm
    #: Of a mail that comes back: what follows ``bounce+`` in its address; empty for a topic.
    bounce: str = ""


class MailContent(NamedTuple):
    """What of a mail is stored."""

    payload: bytes
    headers: dict[str, HeaderValue]


def read_recipient(address: str, domain: str) -> Recipient:
    """Whom an address names. Forbidden for an address elsewhere: the bus is no relay."""
    local, at, host = address.rpartition("@")
    if not at or host.rstrip(".").lower() != domain.lower():
        raise Forbidden(f"no relay: mail is taken for {domain} alone")
    name, plus, said = local.strip('"').partition("+")
    if name == BOUNCES and plus:
        return Recipient("", "mail", said)
    if plus and said not in get_args(MailForm):
        raise BadRequest(f"no option {said[:40]!r} of an address", hint="TOPIC+content@, or TOPIC@")
    return Recipient(check_name(name, "topic"), "content" if said == "content" else "mail")


def check_lines(mail: bytes) -> None:
    """BadPayload for a line that ends in CR or LF alone: other servers may see the end of the mail there,
    and a second mail behind it (SMTP smuggling)."""
    ends = mail.count(b"\r\n")
    if mail.count(b"\r") != ends or mail.count(b"\n") != ends:
        raise BadPayload(
            "a line ends in CR or LF alone", hint="lines of a mail end in CR LF (RFC 5321 2.3.8)"
        )


def mail_key(head: Mail, sender: str, form: MailForm) -> str | None:
    """The idempotency key of a mail, which is the same when it is sent again; None for one without id."""
    said = str(head.get("message-id", "")).strip()
    if not said:
        return None
    digest = hashlib.sha256(f"{form}\n{sender}\n{said}".encode(errors="surrogateescape")).hexdigest()
    return f"mail-{digest}"


def read_head(mail: bytes) -> Mail:
    """The headers of a mail. BadPayload where they are too long."""
    end = mail.find(b"\r\n\r\n")
    head = mail if end < 0 else mail[: end + 4]
    if len(head) > LONGEST_HEAD:
        raise BadPayload(f"{len(head)} bytes of headers, allowed are {LONGEST_HEAD}")
    return email.message_from_bytes(head)


def content_of(mail: bytes, head: Mail, form: MailForm) -> MailContent:
    """What of a mail is stored. BadPayload where its content is asked for and it has none, or several."""
    found = {name: _field(head, field) for name, field in _FIELDS.items()}
    headers: dict[str, HeaderValue] = {name: text for name, text in found.items() if text}
    if form == "mail":
        return MailContent(mail, {**headers, "content-type": MAIL_TYPE})
    part = _one_part(email.message_from_bytes(mail))
    kind = part.get_content_type()
    payload = part.get_payload(decode=True)
    if not isinstance(payload, bytes):
        raise BadPayload("the mail's content can't be read")
    if part.get_content_maintype() == "text" or kind == "application/json":
        payload = _as_utf8(payload, part.get_content_charset() or "utf-8").replace(b"\r\n", b"\n")
    if kind == "application/json":
        try:
            msgspec.json.decode(payload)
        except (msgspec.DecodeError, RecursionError) as error:
            raise BadPayload(f"the mail's content is no JSON: {str(error)[:200]}") from None
    return MailContent(payload, {**headers, "content-type": kind})


def _one_part(mail: Mail) -> Mail:
    """The one part of a mail, or its one part of JSON."""
    parts = []
    for part in _leaves(mail):
        parts.append(part)
        if len(parts) > MOST_PARTS:
            raise BadPayload(f"a mail of more than {MOST_PARTS} parts")
    of_json = [part for part in parts if part.get_content_type() == "application/json"]
    chosen = of_json or parts
    if len(chosen) != 1:
        raise BadPayload(
            f"a mail of {len(parts)} parts, {len(of_json)} of them JSON: which one is its content?",
            hint="send one part, or one of application/json; or all of the mail, to TOPIC@",
        )
    return chosen[0]


def _leaves(mail: Mail) -> Iterator[Mail]:
    waiting = [mail]
    while waiting:
        part = waiting.pop()
        inner = part.get_payload()
        if isinstance(inner, list):
            waiting += [each for each in reversed(inner) if isinstance(each, Mail)]
        else:
            yield part


def _as_utf8(payload: bytes, charset: str) -> bytes:
    try:
        return payload.decode(charset).encode()
    except (LookupError, UnicodeError):
        raise BadPayload(f"the mail's content is no text in {charset[:40]!r}") from None


def _field(head: Mail, name: str) -> str:
    """A header of the mail as one line of text; empty where there is none."""
    said = head.get(name)
    if said is None:
        return ""
    raw = str(said)[: 4 * LONGEST_FIELD]
    try:
        text = str(make_header(decode_header(raw)))
    except (HeaderParseError, LookupError, ValueError):
        text = raw
    line = _BLANK.sub(" ", text).strip()[:LONGEST_FIELD]
    return line.encode(errors="replace").decode()


def answer_to(error: BusError) -> str:
    """What a server that delivers a mail is told: 4 is tried again later, 5 is given up."""
    code = "554 5.6.0"
    if isinstance(error, StoreFull):
        code = "452 4.3.1"
    elif isinstance(error, UnknownTopic):
        code = "550 5.1.1"
    elif isinstance(error, Forbidden | Unauthenticated):
        code = "550 5.7.1"
    elif isinstance(error, TooLarge):
        code = "552 5.3.4"
    elif isinstance(error, Unavailable) or error.retriable:
        code = "451 4.3.0"
    elif isinstance(error, KeyReused):
        return f"{code} a mail of this Message-ID was stored before, with another content"
    elif error.http_status >= 500:
        code = "451 4.3.0"
    text = _BLANK.sub(" ", str(error)).encode("ascii", "replace").decode()
    return f"{code} {text[:400]}"
