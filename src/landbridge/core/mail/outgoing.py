"""A message as a mail: what a mail outlet is, the mail that it makes of messages, and what follows from what
the server says.

Everything here is a function of the documents, of messages and of ``now``, in microseconds.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import html
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from email.message import EmailMessage
from email.policy import SMTP
from email.utils import format_datetime
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from landbridge.core.addresses import LONGEST_URL, read_url
from landbridge.core.mail.incoming import BOUNCES
from landbridge.core.mail.spec import MailSpec
from landbridge.core.options import read_options
from landbridge.core.outlet.outlet import StoredOutlet, check_spec
from landbridge.core.outlet.spec import Verdict
from landbridge.core.templates import MessageValues, Template, one_line, value_of
from landbridge.core.time import SECOND
from landbridge.errors import BadPayload, BadRequest

#: The collections of the documents, beside their topics.
COLLECTION, STATES = "$mails", "$mail-states"
#: Templates of recipients, recipients of one mail, characters of an address and of a subject.
MOST_TO, MOST_RECIPIENTS, LONGEST_ADDRESS, LONGEST_SUBJECT = 20, 50, 254, 500
#: Seconds and messages of a digest. Its messages are leased while it waits.
LEAST_EVERY, LONGEST_EVERY, MOST_TOGETHER = 1.0, 86400.0, 1000
#: Mails that came back and are remembered.
MOST_BOUNCED = 100
LONGEST_PASSWORD = 1000
_SCHEMES = {"smtp": 587, "smtps": 465, "smtp+plain": 25}
_ADDRESS = re.compile(
    r"[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*"
    r"@[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*\Z"
)
#: Begins an encoded word (RFC 2047). ``email`` decodes one when a header is set, line ends included.
_WORD = "=?"
_BOUNCE = re.compile(r"([0-9a-f]{16})-([0-9a-f]{1,16})-([0-9a-f]{1,4})-([a-z2-7]{16})\Z")


class BouncedMail(msgspec.Struct, frozen=True):
    """A mail came back: its messages are given up when they are handed out again."""

    first: int
    end: int
    cause: str
    #: They were handed out again. Whoever has the address can say so any number of times.
    taken: bool = False


class StoredMail(StoredOutlet, frozen=True, kw_only=True, omit_defaults=True):
    """The document that the operations write."""

    spec: MailSpec
    #: Names it in the addresses to which its mails come back, which are sealed with the secret.
    id: str
    secret: str
    #: What the user shows to the server.
    password: str = ""
    bounced: tuple[BouncedMail, ...] = ()


class MailServer(NamedTuple):
    """Where mails are handed over."""

    host: str
    port: int
    tls: Literal["starttls", "tls", "none"]


class MailTarget(NamedTuple):
    """A mail that is ready, and for whom."""

    mail: EmailMessage
    recipients: list[str]


# -- options -------------------------------------------------------------------------------------------


def mail_spec(raw: dict[str, Any]) -> MailSpec:
    """The options that these make. BadRequest says what is wrong with them."""
    spec = read_options(raw, MailSpec, "mail options")
    check_spec(spec, "mail outlet", group_name(spec.name))
    server = read_server(spec.server)
    if spec.user and server.tls == "none" and server.host not in ("127.0.0.1", "::1", "localhost"):
        raise BadRequest(
            "a password would travel in the clear", hint="give the server as smtp:// or smtps://"
        )
    check_address(spec.sender, BadRequest)
    if not 0 < len(spec.to) <= MOST_TO:
        raise BadRequest(f"{len(spec.to)} recipients", hint=f"1 to {MOST_TO}")
    for each in spec.to:
        if not recipient_template(each).places:
            check_address(each, BadRequest)
        elif spec.digest is not None:
            # The messages of one mail may be for different people, who would read each other's.
            raise BadRequest("the recipients of a digest are fixed", hint="name them without {{ … }}")
    Template(spec.subject, "subject", ("count",))
    Template(spec.body, "body")
    if spec.digest is None:
        return spec
    if not LEAST_EVERY <= spec.digest.every <= LONGEST_EVERY:
        raise BadRequest(f"a digest every {spec.digest.every:g} seconds", hint="a second to a day")
    if not 2 <= spec.digest.most <= MOST_TOGETHER:
        raise BadRequest(f"a digest of {spec.digest.most} messages", hint=f"2 to {MOST_TOGETHER}")
    # One after the other: a mail that fails holds the messages behind it, in their order.
    return replace(spec, ordered=True)


def group_name(name: str) -> str:
    """The group of a mail outlet."""
    return f"mail.{name}"


def recipient_template(text: str) -> Template:
    """The template of a recipient."""
    return Template(text, "recipient")


def check_address(address: str, kind: type[BadRequest | BadPayload]) -> None:
    """An error of this kind for what is no plain address of one recipient."""
    if len(address) > LONGEST_ADDRESS or not _ADDRESS.match(address) or _WORD in address:
        raise kind(f"no mail address: {address[:60]!r}", hint="one address, as ops@example.com")


def check_password(password: str) -> None:
    """BadRequest for what no server takes as a password."""
    if len(password) > LONGEST_PASSWORD or not password.isprintable():
        raise BadRequest(f"a password has at most {LONGEST_PASSWORD} printable characters")


def read_server(url: str) -> MailServer:
    """What a server's URL names."""
    try:
        parts = urlsplit(url[: LONGEST_URL + 1])
    except ValueError:
        raise BadRequest(f"no mail server: {url[:60]!r}") from None
    if parts.scheme not in _SCHEMES or parts.path not in ("", "/") or parts.query or parts.fragment:
        raise BadRequest(
            f"no mail server: {url[:60]!r}",
            hint="smtp://HOST:PORT (STARTTLS), smtps://HOST:PORT, or smtp+plain://HOST:PORT in the clear",
        )
    # Hosts are read in one place, in all the ways of writing them.
    found = read_url(f"https://{parts.netloc}")
    port = found.port if parts.netloc.rpartition("]")[2].count(":") else _SCHEMES[parts.scheme]
    tls: Any = {"smtp": "starttls", "smtps": "tls", "smtp+plain": "none"}[parts.scheme]
    return MailServer(found.host, port, tls)


# -- mails ---------------------------------------------------------------------------------------------


def recipients_of(spec: MailSpec, values: MessageValues) -> list[str]:
    """For whom a message is. BadPayload where the message names none, or what is none."""
    found: list[str] = []
    for each in spec.to:
        template = recipient_template(each)
        place = template.only_place
        value = None if place is None else value_of(place, values)
        if isinstance(value, list):
            found += [str(one) for one in value[: MOST_RECIPIENTS + 1]]
        else:
            found.append(template.fill(values).strip())
    for address in found:
        check_address(address, BadPayload)
    unique = list(dict.fromkeys(found))
    if not 0 < len(unique) <= MOST_RECIPIENTS:
        raise BadPayload(f"{len(unique)} recipients, a mail has 1 to {MOST_RECIPIENTS}")
    return unique


def make_mail(spec: MailSpec, messages: list[MessageValues], id: str, now: int) -> MailTarget:
    """The mail of one message, or of several. ``id``: of the first message, which the mail's id has."""
    recipients = recipients_of(spec, messages[0])
    subject = Template(spec.subject, "subject", ("count",)).fill(messages[0])
    body = Template(spec.body, "body")
    if spec.html:
        escaped = [_EscapedValues(each) for each in messages]
        text = "\n<hr>\n".join(body.fill(each) for each in escaped)
    else:
        text = "\n\n".join(body.fill(each) for each in messages)
    mail = EmailMessage(policy=SMTP.clone(max_line_length=78))
    mail["From"] = spec.sender
    mail["To"] = ", ".join(recipients)
    mail["Subject"] = one_line(subject, LONGEST_SUBJECT).replace(_WORD, "= ?")
    mail["Date"] = format_datetime(datetime.fromtimestamp(now // SECOND, UTC))
    mail["Message-ID"] = mail_id(spec, id)
    mail["Auto-Submitted"] = "auto-generated"
    mail["Landbridge-Topic"] = spec.topic
    lines = text.replace("\r\n", "\n").encode(errors="replace").decode()
    plain = "".join(each if each >= " " or each in "\n\t" else "\ufffd" for each in lines)
    mail.set_content(plain, subtype="html" if spec.html else "plain", cte="base64")
    return MailTarget(mail, recipients)


class _EscapedValues(MessageValues):
    """The same values, which can't be HTML of their own."""

    def __init__(self, inner: MessageValues) -> None:
        self._inner = inner

    def get(self, name: str) -> Any:
        found = self._inner.get(name)
        if isinstance(found, list | dict):
            found = msgspec.json.encode(found).decode()
        return html.escape(found) if isinstance(found, str) else found


def mail_id(spec: MailSpec, id: str) -> str:
    """The Message-ID, which is the same when a message is sent again: a server that has the mail already can
    tell."""
    digest = hashlib.sha256(f"{spec.topic}\n{spec.name}\n{id}".encode(errors="replace")).hexdigest()[:32]
    return f"<{digest}@{spec.sender.rpartition('@')[2]}>"


def verdict_of(status: int, *, is_of_message: bool) -> Verdict:
    """What an answer of the server means. 0: there was none. ``is_of_message``: it is about this mail, and
    not about the connection or the credential."""
    if 200 <= status < 300:
        return "delivered"
    if status == 421:
        return "throttled"
    return "refused" if status >= 500 and is_of_message else "failed"


# -- mails that come back ------------------------------------------------------------------------------


def bounce_address(stored: StoredMail, first: int, count: int, domain: str) -> str:
    """Where a mail comes back to that can't be delivered: it names the outlet and its messages, sealed."""
    said = f"{stored.id}-{first:x}-{count:x}"
    return f"{BOUNCES}+{said}-{_seal(stored, said)}@{domain}"


class BounceTarget(NamedTuple):
    """What such an address names."""

    id: str
    first: int
    messages: int


def read_bounce(text: str) -> BounceTarget | None:
    """What the address names, if it is true; see ``is_sealed``."""
    found = _BOUNCE.match(text.lower())
    return None if found is None else BounceTarget(found[1], int(found[2], 16), int(found[3], 16))


def is_sealed(stored: StoredMail, text: str) -> bool:
    """Whether this bus has made the address."""
    said, _, seal = text.lower().rpartition("-")
    return hmac.compare_digest(_seal(stored, said), seal)


def _seal(stored: StoredMail, said: str) -> str:
    digest = hmac.digest(stored.secret.encode(), said.encode(), "sha256")
    return base64.b32encode(digest[:10]).decode().lower()


def bounce_of(bounced: Iterable[BouncedMail], offset: int) -> BouncedMail | None:
    """The mail of this message that came back; None: none did."""
    return next((each for each in bounced if each.first <= offset < each.end), None)
