"""Mails as messages: what is stored, what is refused, and what the server says, to the stock client and to
peers that keep no rules."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import email
import email.policy
import json
import random
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from pathlib import Path
from typing import Any

import aiosmtplib
import pytest

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.errors import StoreFull
from landbridge.gateways.mail import smtp as gateway
from landbridge.node.assembly import dial_to
from landbridge.node.listening import Endpoint
from landbridge.node.mail import taking_mail
from landbridge.node.plan import SmtpPlan
from landbridge.testing import attach, run_terminal
from tests.certificates import self_signed

DOMAIN = "bus.example"


class Site:
    """A terminal that takes mail, with the credential of a service that may publish to orders.*."""

    def __init__(self, terminal: Terminal, bus: Bus, ports: list[int]) -> None:
        self.terminal, self.bus, self.ports = terminal, bus, ports
        self.credential = ""

    def client(self, secret: str | None = None, user: str = "shop", **options: Any) -> aiosmtplib.SMTP:
        options = {"start_tls": False} | options
        return aiosmtplib.SMTP(
            hostname="127.0.0.1",
            port=self.ports[0],
            username=user,
            password=secret or self.credential,
            **options,
        )

    async def talk(self, sent: bytes, *, port: int = 0) -> str:
        """All that the server says to these bytes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.ports[port])
        writer.write(sent)
        said = await reader.read()
        writer.close()
        return said.decode()

    def login(self) -> bytes:
        secret = base64.b64encode(f"\0shop\0{self.credential}".encode())
        return b"EHLO x\r\nAUTH PLAIN " + secret + b"\r\n"

    async def stored(self, topic: str) -> list[Any]:
        log = self.terminal.broker.table.topic(topic).log
        found: list[Any] = []
        async with self.bus.subscribe(topic, group="reader", start="earliest") as subscription:
            while len(found) < log.end - log.first:
                message = await subscription.poll(30)
                assert message is not None
                found.append(message)
                await message.ack()
        return found


@asynccontextmanager
async def site_of(tls: tuple[Path, Path] | None = None, **options: Any) -> AsyncIterator[Site]:
    async with run_terminal(**options) as terminal, attach(terminal) as bus:
        endpoint = Endpoint("127.0.0.1", *(tls or (None, None)))
        plan = SmtpPlan(port=0, tls_port=None if tls is None else 0, domain=DOMAIN)
        async with taking_mail(terminal, dial_to(terminal), plan, endpoint, endpoint.tls()) as told:
            ports = [int(word.rpartition(":")[2]) for word in told.split() if word.startswith("smtp")]
            site = Site(terminal, bus, ports)
            made = await bus.services.register("shop", scopes=["publish:orders.#"])
            assert made.credential
            site.credential = made.credential
            await bus.topics.create("orders")
            await bus.topics.create("orders.eu")
            await bus.topics.create("secret")
            yield site


@pytest.fixture
async def site(crashes: list[Any]) -> AsyncIterator[Site]:
    async with site_of() as made:
        yield made


def mail_to(*topics: str, body: str = "Hello\n", id: str = "<1@shop>") -> EmailMessage:
    mail = EmailMessage()
    mail["From"] = "Shop <shop@example.com>"
    mail["To"] = ", ".join(f"{topic}@{DOMAIN}" for topic in topics)
    mail["Subject"] = "Grüße"
    if id:
        mail["Message-ID"] = id
    mail.set_content(body)
    return mail


async def test_a_mail_is_a_message_with_all_of_it_as_payload(site: Site) -> None:
    mail = mail_to("orders")
    mail.add_attachment(b"\x00\xffPDF", maintype="application", subtype="pdf", filename="a.pdf")
    async with site.client() as client:
        await client.send_message(mail)
    [message] = await site.stored("orders")
    read = email.message_from_bytes(message.payload, policy=email.policy.default)
    assert [part.get_content() for part in read.iter_attachments()] == [b"\x00\xffPDF"]
    assert message.headers["content-type"] == "message/rfc822"
    assert message.headers["mail-subject"] == "Grüße"
    assert message.headers["mail-from"] == "Shop <shop@example.com>"
    assert message.headers["mail-id"] == "<1@shop>"
    assert message.headers["mail-sender"] == "shop@example.com"
    assert message.headers["mail-service"] == "shop"


async def test_the_content_of_a_mail_is_asked_for_by_its_address(site: Site) -> None:
    mail = mail_to("orders+content", body="plain é\n")
    in_json = EmailMessage()
    in_json["From"], in_json["To"] = "a@b.example", f"orders+content@{DOMAIN}"
    in_json.set_content("see below")
    in_json.add_attachment(b'{"n": 1}', maintype="application", subtype="json")
    async with site.client() as client:
        await client.send_message(mail)
        await client.send_message(in_json)
    text, parsed = await site.stored("orders")
    assert text.payload == "plain é\n".encode()
    assert text.headers["content-type"] == "text/plain"
    assert json.loads(parsed.payload) == {"n": 1}
    assert parsed.headers["content-type"] == "application/json"


async def test_a_mail_with_several_parts_has_no_one_content(site: Site) -> None:
    mail = mail_to("orders+content")
    mail.add_attachment(b"x", maintype="image", subtype="png")
    async with site.client() as client:
        with pytest.raises(aiosmtplib.SMTPDataError) as refused:
            await client.send_message(mail)
    assert refused.value.code == 554
    assert "2 parts" in refused.value.message
    assert await site.stored("orders") == []


async def test_a_repeated_mail_is_stored_once_and_another_one_of_its_id_is_refused(site: Site) -> None:
    async with site.client() as client:
        await client.send_message(mail_to("orders"))
    async with site.client() as client:
        await client.send_message(mail_to("orders"))
        with pytest.raises(aiosmtplib.SMTPDataError) as refused:
            await client.send_message(mail_to("orders", body="another"))
        assert refused.value.code == 554
        await client.send_message(mail_to("orders", id=""))
        await client.send_message(mail_to("orders", id=""))
    assert len(await site.stored("orders")) == 3


async def test_a_mail_to_several_topics_is_stored_in_all_or_in_none(site: Site) -> None:
    async with site.client() as client:
        await client.send_message(mail_to("orders", "orders.eu"))
        refused, _ = await client.send_message(mail_to("orders", "missing", "secret", id="<2@shop>"))
        assert {address: answer.code for address, answer in refused.items()} == {
            f"missing@{DOMAIN}": 550,
            f"secret@{DOMAIN}": 550,
        }
    assert len(await site.stored("orders")) == 2
    assert len(await site.stored("orders.eu")) == 1
    assert "missing" not in site.terminal.broker.topics


async def test_who_shows_no_right_credential_is_not_let_in(site: Site) -> None:
    token = site.terminal.issue_token("test", ["publish:orders"], 60)
    for user, secret in (("shop", "wrong"), ("shop", token), ("test", site.credential)):
        with pytest.raises(aiosmtplib.SMTPAuthenticationError) as refused:
            await site.client(secret, user).connect()
        assert refused.value.code == 535
    async with site.client(token, "test") as client:
        await client.send_message(mail_to("orders"))
    said = await site.talk(
        b"EHLO x\r\nMAIL FROM:<a@b.example>\r\nMAIL FROM:<>\r\nRCPT TO:<orders@bus.example>\r\nQUIT\r\n"
    )
    assert said.count("530 5.7.0") == 2
    assert "354" not in said


async def test_nothing_is_relayed(site: Site) -> None:
    for address in ("a@other.example", "orders@evil.bus.example", "orders", "orders%other.example@x.example"):
        said = await site.talk(
            site.login() + b"MAIL FROM:<a@b.c>\r\nRCPT TO:<" + address.encode() + b">\r\nQUIT\r\n"
        )
        assert "550 5.7.1" in said or "553" in said, address


@pytest.mark.parametrize(
    "ending", [b"\n.\r\n", b"\r.\r\n", b"\n.\n", b"\r\n.\n", b"\r\n.\r", b"\r\n\x00.\r\n"]
)
async def test_a_second_mail_is_not_smuggled_behind_the_first(site: Site, ending: bytes) -> None:
    """What other servers take for the end of a mail."""
    smuggled = b"MAIL FROM:<a@b.c>\r\nRCPT TO:<secret@bus.example>\r\nDATA\r\nSubject: 2\r\n\r\nsecond"
    said = await site.talk(
        site.login()
        + b"MAIL FROM:<a@b.c>\r\nRCPT TO:<orders@bus.example>\r\nDATA\r\nSubject: 1\r\n\r\nfirst"
        + ending
        + smuggled
        + b"\r\n.\r\nQUIT\r\n"
    )
    assert said.count("354 ") == 1
    is_plain = b"\x00" in ending
    assert ("554 5.6.0 a line ends in CR or LF alone" in said) is not is_plain
    assert len(await site.stored("orders")) == int(is_plain)


async def test_a_mail_that_is_too_large_is_refused_before_and_after_it_was_sent(crashes: list[Any]) -> None:
    async with site_of(limits=Limits(max_payload=4096)) as site:
        start = site.login() + b"MAIL FROM:<a@b.c>%s\r\nRCPT TO:<orders@bus.example>\r\nDATA\r\n"
        said = await site.talk(start % b" SIZE=5000" + b"QUIT\r\n")
        assert "552" in said
        assert "354" not in said
        said = await site.talk(start % b"" + b"x\r\n" * 2000 + b".\r\nQUIT\r\n")
        assert "552 5.3.4" in said
        assert "221" in said
        said = await site.talk(start % b"" + b"x" * 3000 + b"\r\n.\r\nQUIT\r\n")
        assert "500 5.6.0 a line" in said
        assert "221" in said
        assert await site.stored("orders") == []


async def test_a_line_without_end_costs_no_memory_and_ends_the_connection(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "OVERRUN", 64 << 10)
    async with site_of(limits=Limits(max_payload=4096)) as site:
        _reader, writer = await asyncio.open_connection("127.0.0.1", site.ports[0])
        writer.write(site.login() + b"MAIL FROM:<a@b.c>\r\nRCPT TO:<orders@bus.example>\r\nDATA\r\n")
        sent = 0
        with pytest.raises(ConnectionError):
            while sent < 64 << 20:
                writer.write(b"x" * 65536)
                sent += 65536
                await writer.drain()
            raise AssertionError("the server reads on")
        writer.close()


async def test_a_full_disk_is_told_as_such_and_the_mail_goes_through_later(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def full(*_: Any, **__: Any) -> None:
        raise StoreFull("no room")

    async with site.client() as client:
        with monkeypatch.context() as patch:
            patch.setattr(Bus, "publish", full)
            with pytest.raises(aiosmtplib.SMTPDataError) as refused:
                await client.send_message(mail_to("orders"))
        assert refused.value.code == 452
        await client.send_message(mail_to("orders"))
    assert len(await site.stored("orders")) == 1


async def test_a_paused_topic_is_a_refusal_for_now(site: Site) -> None:
    await site.bus.topics.pause("orders")
    async with site.client() as client:
        with pytest.raises(aiosmtplib.SMTPDataError) as refused:
            await client.send_message(mail_to("orders"))
    assert refused.value.code == 451


async def test_a_silent_connection_is_ended(crashes: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway, "IDLE", 0.05)
    async with site_of() as site:
        assert (await site.talk(b"EHLO x\r\n")).startswith("220 ")
        monkeypatch.setattr(gateway, "DATA_WITHIN", 0.05)
        said = await site.talk(
            site.login() + b"MAIL FROM:<a@b.c>\r\nRCPT TO:<orders@bus.example>\r\nDATA\r\nSubj"
        )
        assert "250 2.0.0" not in said
        assert await site.stored("orders") == []


async def test_the_stranger_who_waits_longest_gives_way(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MOST_STRANGERS_EACH", 3)
    async with site_of() as site:
        opened = [await asyncio.open_connection("127.0.0.1", site.ports[0]) for _ in range(6)]
        for reader, _ in opened[:3]:
            async with asyncio.timeout(30):
                try:
                    while await reader.read(1000):
                        pass
                except ConnectionError:
                    pass
        async with site.client() as client:
            await client.send_message(mail_to("orders"))
        for _, writer in opened:
            writer.close()


async def test_a_connection_tries_few_credentials(site: Site) -> None:
    wrong = b"AUTH PLAIN " + base64.b64encode(b"\0shop\0lbsc1_wrong") + b"\r\n"
    said = await site.talk(b"EHLO x\r\n" + wrong * 10 + b"QUIT\r\n")
    assert said.count("535 ") == 3
    assert "421 4.7.0" in said


async def test_credentials_travel_by_tls_alone_where_there_is_a_certificate(
    crashes: list[Any], tmp_path: Path
) -> None:
    cert, key = self_signed(tmp_path)
    trust = ssl.create_default_context(cafile=str(cert))
    async with site_of((cert, key)) as site:
        said = await site.talk(site.login() + b"QUIT\r\n")
        assert "538 5.7.11" in said
        with pytest.raises(aiosmtplib.SMTPException):
            await site.client().connect()
        async with site.client(start_tls=True, tls_context=trust) as client:
            await client.send_message(mail_to("orders"))
        implicit = aiosmtplib.SMTP(
            hostname="127.0.0.1",
            port=site.ports[1],
            use_tls=True,
            tls_context=trust,
            username="shop",
            password=site.credential,
        )
        async with implicit as client:
            await client.send_message(mail_to("orders", id="<2@shop>"))
        assert len(await site.stored("orders")) == 2


async def test_what_was_said_before_tls_is_not_taken_as_said_by_tls(
    crashes: list[Any], tmp_path: Path
) -> None:
    async with site_of(self_signed(tmp_path)) as site:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.ports[0])
        writer.write(b"EHLO x\r\nSTARTTLS\r\nEHLO injected\r\nMAIL FROM:<>\r\n")
        said = b""
        try:
            while chunk := await reader.read(1000):
                said += chunk
        except ConnectionError:
            pass
        writer.close()
        assert b"220 2.0.0" not in said


async def test_a_header_of_the_mail_is_one_line_of_its_message(site: Site) -> None:
    subject = "=?utf-8?q?a=0D=0ABcc=3A_b=40c?="
    raw = f"From: a@b.c\r\nSubject: {subject}\r\nDate: x\r\n\r\nbody\r\n"
    async with site.client() as client:
        await client.sendmail("a@b.c", f"orders@{DOMAIN}", raw)
    [message] = await site.stored("orders")
    assert message.headers["mail-subject"] == "a Bcc: b@c"
    assert message.payload == raw.encode()


async def test_lines_that_begin_with_a_dot_come_as_they_were_sent(site: Site) -> None:
    raw = "From: a@b.c\r\n\r\n.\r\n..two\r\n.end\r\n"
    async with site.client() as client:
        await client.sendmail("a@b.c", f"orders@{DOMAIN}", raw)
    [message] = await site.stored("orders")
    assert message.payload == raw.encode()


async def test_what_no_client_would_say_breaks_nothing(site: Site) -> None:
    """Random turns of commands, true and broken, in random order and cut anywhere."""
    chance = random.Random(3)
    wrong = base64.b64encode(b"\0shop\0lbsc1_" + b"a" * 60)
    said = [
        b"EHLO x", b"HELO x", b"EHLO", b"NOOP", b"RSET", b"VRFY orders", b"HELP", b"EXPN x", b"STARTTLS",
        b"MAIL FROM:<>", b"MAIL FROM:<a@b.c>", b"MAIL FROM:<a@b.c> SIZE=x", b"MAIL FROM:a b", b"MAIL",
        b"RCPT TO:<orders@bus.example>", b"RCPT TO:<bounce+x@bus.example>", b"RCPT TO:<>", b"RCPT TO:<\"@\">",
        b"AUTH", b"AUTH PLAIN", b"AUTH PLAIN !", b"AUTH PLAIN " + wrong, b"AUTH LOGIN", b"AUTH LOGIN YQ==",
        b"AUTH X Y Z", b"AUTH XOAUTH2 x", b"*", b"=", b"", b".", b"..", b"\xff\xfe", b"\0", b"x" * 3000,
        b"BDAT 5 LAST", b"QUIT x", b"Subject: x", b"DATA", b"an odd address",
    ]  # fmt: skip
    for _ in range(60):
        login = site.login() if chance.random() < 0.5 else b""
        ends = [b"\r\n", b"\r\n", b"\r\n", b"\n", b"\r"]
        odd = bytes(chance.choice(b'<>@"\\ ()[],.:;ab+') for _ in range(chance.randrange(20)))
        said[-1] = chance.choice([b"MAIL FROM:", b"RCPT TO:", b"VRFY "]) + odd
        talk = b"".join(chance.choice(said) + chance.choice(ends) for _ in range(chance.randrange(40)))
        _reader, writer = await asyncio.open_connection("127.0.0.1", site.ports[0])
        writer.write((login + talk)[: chance.randrange(2000)])
        if chance.random() < 0.5:
            writer.write_eof()
            with contextlib.suppress(ConnectionError):
                await _reader.read()
        writer.close()
    async with site.client() as client:
        await client.send_message(mail_to("orders"))
    assert (
        len([each for each in await site.stored("orders") if each.headers.get("mail-id") == "<1@shop>"]) == 1
    )


async def test_a_token_that_ends_ends_what_it_may(site: Site) -> None:
    client = site.client()
    async with client:
        await client.send_message(mail_to("orders"))
        await site.bus.services.suspend("shop")
        with pytest.raises(aiosmtplib.SMTPRecipientsRefused) as refused:
            await client.sendmail("a@b.c", f"orders@{DOMAIN}", "Message-ID: <3@x>\r\n\r\nx\r\n")
        assert refused.value.recipients[0].code == 550
    assert len(await site.stored("orders")) == 1
