"""A mail as a message and a message as a mail, without a server."""

from __future__ import annotations

import email
import email.policy
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from landbridge.core.mail import incoming, outgoing
from landbridge.core.mail.report import read_report
from landbridge.core.mail.spec import MailSpec
from landbridge.core.templates import MessageValues
from landbridge.errors import BadName, BadPayload, BadRequest, BusError, Forbidden

DOMAIN = "bus.example"


@pytest.mark.parametrize(
    ("address", "found"),
    [
        (f"orders@{DOMAIN}", ("orders", "mail", "")),
        ("orders.eu@BUS.example.", ("orders.eu", "mail", "")),
        (f"orders+content@{DOMAIN}", ("orders", "content", "")),
        (f"bounce+abc-1@{DOMAIN}", ("", "mail", "abc-1")),
        (f"bounce@{DOMAIN}", ("bounce", "mail", "")),
    ],
)
def test_whom_an_address_names(address: str, found: tuple[str, str, str]) -> None:
    assert incoming.read_recipient(address, DOMAIN) == found


@pytest.mark.parametrize(
    ("address", "kind"),
    [
        ("orders", Forbidden),
        ("orders@other.example", Forbidden),
        (f"orders@x.{DOMAIN}", Forbidden),
        (f"a@b.c@{DOMAIN}", BadName),
        (f"../x@{DOMAIN}", BadName),
        (f"@{DOMAIN}", BadName),
        (f"orders+raw@{DOMAIN}", BadRequest),
        (f"{'x' * 300}@{DOMAIN}", BadName),
    ],
)
def test_whom_no_address_names(address: str, kind: type[BusError]) -> None:
    with pytest.raises(kind):
        incoming.read_recipient(address, DOMAIN)


@given(st.binary(max_size=400))
def test_any_bytes_are_a_mail_or_are_refused(raw: bytes) -> None:
    for form in ("mail", "content"):
        try:
            head = incoming.read_head(raw)
            found = incoming.content_of(raw, head, form)
            incoming.mail_key(head, "shop", form)
        except BadPayload:
            continue
        if form == "mail":
            assert found.payload == raw
        for value in found.headers.values():
            assert isinstance(value, str)
            assert len(value.splitlines()) <= 1
            value.encode()


def test_a_head_has_a_bound() -> None:
    with pytest.raises(BadPayload):
        incoming.read_head(b"X: " + b"x" * incoming.LONGEST_HEAD + b"\r\n\r\n")


def test_lines_end_in_cr_lf() -> None:
    incoming.check_lines(b"a\r\n\r\nb\r\n")
    for wrong in (b"a\nb", b"a\rb", b"a\r\r\n", b"a\r\n\n", b"\n.\n", b"\r"):
        with pytest.raises(BadPayload):
            incoming.check_lines(wrong)


def spec(**options: object) -> MailSpec:
    base = {"topic": "t", "name": "n", "server": "smtps://m.example", "sender": "bus@b.example"}
    return outgoing.mail_spec({**base, "to": ["{{ payload.to | ops@example.com }}"], **options})


#: Text, and text with what a mail's headers would take for an encoded word.
WORDS = st.text(max_size=200) | st.text(max_size=60).map(
    lambda text: f"=?utf-8?b?{b64encode(text.encode(errors='replace')).decode()}?="
)


@given(WORDS, st.text(max_size=400), st.text(max_size=60))
def test_whatever_a_message_says_a_mail_has_the_headers_of_its_outlet(
    subject: str, body: str, to: str
) -> None:
    told = spec(subject="{{ headers.s }}", body="{{ headers.b }}", to=["{{ headers.to }}"])
    headers = {"s": subject, "b": body, "to": to}
    values = MessageValues(b"", headers, more={"topic": "t"}, time=0)
    try:
        made = outgoing.make_mail(told, [values], "id", 1_700_000_000_000_000)
    except BadPayload:
        return
    raw = made.mail.as_bytes()
    assert b"\r" not in raw.replace(b"\r\n", b"")
    assert b"\n" not in raw.replace(b"\r\n", b"")
    read = email.message_from_bytes(raw, policy=email.policy.default)
    assert set(read.keys()) == {
        "From", "To", "Subject", "Date", "Message-ID", "Auto-Submitted", "Landbridge-Topic", "Content-Type",
        "Content-Transfer-Encoding", "MIME-Version",
    }  # fmt: skip
    assert len(made.recipients) == 1


@pytest.mark.parametrize(
    "text",
    [
        "=?utf-8?q?a=0D=0ABcc:_thief@evil.example?=",
        "=?utf-8?q?a=0A=0Aanother_body?=",
        "=?utf-7?q?+AA0-+AAo-Bcc:x?=",
        "=?=?utf-8?q?a=0D=0A.=0D=0A?=",
        "=?utf-8?q?=ED=A0=80?=",
        "a" * 495 + "=?utf-8?q?=0D=0ABcc:x?=",
    ],
)
def test_an_encoded_word_of_a_message_is_text_of_the_subject(text: str) -> None:
    """The line ends in it would begin another header, or the body."""
    values = MessageValues(b"", {"s": text}, more={"topic": "t"}, time=0)
    made = outgoing.make_mail(spec(subject="{{ headers.s }}"), [values], "id", 1_700_000_000_000_000)
    raw = made.mail.as_bytes()
    assert b"\n" not in raw.replace(b"\r\n", b"")
    read = email.message_from_bytes(raw, policy=email.policy.default)
    assert "Bcc" not in read
    assert read["Subject"] == text.replace("=?", "= ?")[:500].strip() or len(text) > 490
    assert read.get_content_type() == "text/plain"


@pytest.mark.parametrize(
    "address",
    ["=?utf-8?q?a=0D=0ABcc=3A_x=40y.example?=@b.example", "=?utf-8?q?a=2Cx=40y.example?=@b.example"],
)
def test_an_encoded_word_is_no_address(address: str) -> None:
    values = MessageValues(b"", {"to": address}, more={"topic": "t"}, time=0)
    with pytest.raises(BadPayload):
        outgoing.make_mail(spec(to=["{{ headers.to }}"]), [values], "id", 0)


@given(st.text(max_size=80))
def test_an_address_is_one_address_or_none(text: str) -> None:
    try:
        outgoing.check_address(text, BadPayload)
    except BadPayload:
        return
    assert text.count("@") == 1
    assert text.isascii()
    assert not set(text) & set(' ,;:<>()[]\\"\r\n\t\0')


@given(st.integers(0, (1 << 63) - 1), st.integers(1, 1000), st.text("0123456789abcdef-z2", max_size=50))
def test_addresses_to_come_back_to_are_sealed(first: int, count: int, forged: str) -> None:
    stored = outgoing.StoredMail(spec=spec(), owner="o", created_at=0, id="00ff" * 4, secret="s")
    address = outgoing.bounce_address(stored, first, count, DOMAIN)
    said = incoming.read_recipient(address, DOMAIN).bounce
    assert outgoing.read_bounce(said) == (stored.id, first, count)
    assert outgoing.is_sealed(stored, said.upper())
    other = outgoing.StoredMail(spec=spec(), owner="o", created_at=0, id=stored.id, secret="t")
    assert not outgoing.is_sealed(other, said)
    assert not outgoing.is_sealed(stored, forged)


@given(st.binary(max_size=500))
def test_any_bytes_are_a_report_or_none(raw: bytes) -> None:
    read_report(raw)
    start = b'Content-Type: multipart/report; boundary="x"\r\n\r\n--x\r\n'
    found = read_report(start + b"Content-Type: message/delivery-status\r\n\r\n" + raw)
    if found is not None:
        assert len(found.cause.splitlines()) <= 1


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("smtp://mail.example", ("mail.example", 587, "starttls")),
        ("smtps://mail.example:4465", ("mail.example", 4465, "tls")),
        ("smtp+plain://[::1]:25", ("::1", 25, "none")),
        ("smtp+plain://127.1", ("127.0.0.1", 25, "none")),
    ],
)
def test_what_a_server_is(url: str, found: tuple[str, int, str]) -> None:
    assert outgoing.read_server(url) == found


@pytest.mark.parametrize("url", ["", "smtp://", "smtp://[", "smtp://a:x", "mailto:a@b.c", "smtp://a/b?c"])
def test_what_no_server_is(url: str) -> None:
    with pytest.raises(BadRequest):
        outgoing.read_server(url)
