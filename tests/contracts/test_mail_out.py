"""Messages as mails, to a real server: what it gets, and what becomes of a message that it doesn't take."""

from __future__ import annotations

import asyncio
import email.utils
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiosmtplib
import pytest

from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.mail import outgoing as core
from landbridge.core.mail.spec import MailDigest
from landbridge.core.templates import MessageValues
from landbridge.errors import BadRequest, Forbidden, OutletExists, UnknownOutlet
from landbridge.gateways import outlets as sending
from landbridge.gateways.mail.sender import MailSenders
from landbridge.node.assembly import dial_to
from landbridge.node.listening import Endpoint
from landbridge.node.mail import mails_of, taking_mail
from landbridge.node.plan import SmtpPlan
from landbridge.testing import FakeClock, attach, run_terminal
from tests.mail_receiver import LOSE, MailReceiver
from tests.receivers import LOOPBACK
from tests.waiting import eventually

DOMAIN = "bus.example"


class Scene:
    """A terminal that sends mails, and takes those that come back."""

    def __init__(
        self, terminal: Terminal, bus: Bus, clock: FakeClock, senders: MailSenders, port: int
    ) -> None:
        self.terminal, self.bus, self.clock, self.senders, self.port = terminal, bus, clock, senders, port

    async def create(self, receiver: MailReceiver, **options: Any) -> None:
        await self.bus.topics.create("alerts")
        wanted = {"server": receiver.url, "sender": "bus@example.com", "to": ["ops@example.com"]} | options
        await self.bus.mails.create("alerts", "ops", **wanted)

    async def until(self, holds: Callable[[Any], Any]) -> Any:
        for _ in range(6000):
            shown = await self.bus.mails.show("alerts", "ops")
            if holds(shown):
                return shown
            await asyncio.sleep(0.005)
        raise AssertionError(f"this never came true; it is {shown}")

    async def dead(self) -> list[tuple[bytes, str]]:
        found: list[tuple[bytes, str]] = []
        async with self.bus.subscribe("alerts.dead", group="reader", start="earliest") as subscription:
            log = self.terminal.broker.table.topic("alerts.dead").log
            while len(found) < log.end - log.first:
                message = await subscription.poll(30)
                assert message is not None
                found.append((message.payload, str(message.headers["lb-cause"])))
                await message.ack()
        return found


@asynccontextmanager
async def staged(allowed: list[str] = LOOPBACK, clock: FakeClock | None = None) -> AsyncIterator[Scene]:
    clock = clock or FakeClock()
    async with (
        run_terminal(clock=clock) as terminal,
        mails_of(terminal, dial_to(terminal), allowed, DOMAIN) as senders,
        attach(terminal, life=1e7) as bus,
    ):
        plan, here = SmtpPlan(port=0, domain=DOMAIN), Endpoint("127.0.0.1")
        async with taking_mail(terminal, dial_to(terminal), plan, here, None, senders) as told:
            yield Scene(terminal, bus, clock, senders, int(told.split()[0].rpartition(":")[2]))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(sending, "WRITE_AFTER", 0.01)


@pytest.fixture
async def scene(crashes: list[Any]) -> AsyncIterator[Scene]:
    async with staged() as made:
        yield made


async def test_a_message_is_mailed_as_its_templates_say(scene: Scene) -> None:
    async with MailReceiver(password="s3cret") as receiver:
        await scene.create(
            receiver,
            user="bus",
            password="s3cret",
            to=["{{ payload.mail }}", "ops@example.com"],
            subject="{{ payload.level }}: {{ headers.site | somewhere }}",
            body="Dear {{ payload.name | friend }},\n{{ payload.text }}",
        )
        payload = {"mail": ["a@example.com", "b@example.com"], "level": "Grün", "text": "a <b> {{ key }}"}
        await scene.bus.publish("alerts", payload, headers={"site": "Köln"})
        await scene.until(lambda shown: shown.delivered == 1 and not shown.lag)
        [mail] = receiver.mails
        assert mail["Subject"] == "Grün: Köln"
        assert mail["To"] == "a@example.com, b@example.com, ops@example.com"
        assert receiver.texts == ["Dear friend,\na <b> {{ key }}"]
        assert receiver.logins == [("bus", "s3cret")]
        [(back_to, recipients)] = receiver.envelopes
        assert recipients == ["a@example.com", "b@example.com", "ops@example.com"]
        assert back_to.startswith("bounce+")
    shown = await scene.bus.mails.show("alerts", "ops")
    assert "s3cret" not in repr(shown)
    assert "s3cret" not in repr([each async for each in _audit(scene)])


async def _audit(scene: Scene) -> AsyncIterator[Any]:
    async with scene.bus.subscribe("$audit", group="reader", start="earliest") as subscription:
        while (message := await subscription.poll(0.2)) is not None:
            yield message.payload


@pytest.mark.parametrize(
    "payload",
    [
        {"to": "a@example.com\r\nBcc: b@example.com"},
        {"to": "a@example.com, b@example.com"},
        {"to": "a@example.com>\r\nRCPT TO:<b@example.com"},
        {"to": "Boss <a@example.com>"},
        {"to": ["a@example.com"] * 1 + ["x"]},
        {"to": []},
        {"to": "ü@example.com"},
        {"to": {"a@example.com": 1}},
        {"other": 1},
    ],
)
async def test_a_payload_names_addresses_and_nothing_else(scene: Scene, payload: Any) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver, to=["{{ payload.to }}"])
        await scene.bus.publish("alerts", payload)
        await scene.until(lambda shown: shown.buried == 1 and not shown.lag)
        assert receiver.raw == []
    [(_, cause)] = await scene.dead()
    assert "no mail address" in cause or "no payload.to" in cause or "0 recipients" in cause


async def test_a_payload_can_make_no_header_and_end_no_mail(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver, subject="{{ payload.s }}", body="{{ payload.b }}")
        evil = {
            "s": "a\r\nBcc: evil@example.com\r\n\r\nbody\u2028x\x00y",
            "b": "1\r\n.\r\nMAIL FROM:<x@example.com>\r\nRCPT TO:<evil@example.com>\r\n\n.\n\r.\x00",
        }
        await scene.bus.publish("alerts", evil)
        await scene.until(lambda shown: shown.delivered == 1)
        [mail] = receiver.mails
        assert mail["Bcc"] is None
        assert mail["Subject"] == "a Bcc: evil@example.com body x y"
        assert receiver.envelopes[0][1] == ["ops@example.com"]
        assert "RCPT TO:<evil@example.com>" in receiver.texts[0]
        assert len(receiver.raw) == 1


async def test_an_encoded_word_in_a_payload_makes_no_header(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver, subject="{{ payload.s }}")
        await scene.bus.publish("alerts", {"s": "=?utf-8?q?a=0D=0ABcc:_evil@example.com=0D=0A=0D=0Abody?="})
        await scene.until(lambda shown: shown.delivered == 1)
        [mail] = receiver.mails
        assert mail["Bcc"] is None
        assert mail["Subject"] == "= ?utf-8?q?a=0D=0ABcc:_evil@example.com=0D=0A=0D=0Abody?="
        assert len(receiver.raw) == 1


async def test_a_message_that_no_mail_can_be_made_of_for_a_bug_holds_up_no_other(
    scene: Scene, crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    make = core.make_mail

    def breaks(spec: Any, values: list[MessageValues], *rest: Any) -> Any:
        if values[0].get("payload") == "poison":
            raise ValueError("a bug")
        return make(spec, values, *rest)

    monkeypatch.setattr(core, "make_mail", breaks)
    async with MailReceiver() as receiver:
        await scene.create(receiver)
        await scene.bus.publish("alerts", b"poison")
        await scene.bus.publish("alerts", b"good")
        await scene.until(lambda shown: shown.delivered == 1)
        assert len(receiver.raw) == 1
    assert {str(context["exception"]) for context in crashes} == {"a bug"}
    crashes.clear()


async def test_what_is_filled_into_html_is_no_html(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver, html=True, body="<b>{{ payload.x }}</b> {{ payload }}")
        await scene.bus.publish("alerts", {"x": "<script>"})
        await scene.until(lambda shown: shown.delivered == 1)
        assert receiver.mails[0].get_content_type() == "text/html"
        assert "<b>&lt;script&gt;</b>" in receiver.texts[0]
        assert "<script>" not in receiver.texts[0]


async def test_a_mail_whose_answer_was_lost_goes_again_with_the_same_id(scene: Scene) -> None:
    async with MailReceiver(lambda number: LOSE if number == 1 else "250 OK") as receiver:
        await scene.create(receiver)
        await scene.bus.publish("alerts", b"1")
        await scene.until(lambda shown: shown.failed == 1)
        scene.clock.advance(6)
        await scene.until(lambda shown: shown.delivered == 1 and not shown.lag)
        first, second = receiver.mails
        assert first["Message-ID"] == second["Message-ID"]
        assert receiver.texts == ["1", "1"]


async def test_a_refusal_for_now_is_tried_again_and_one_for_good_is_a_dead_letter(scene: Scene) -> None:
    answers = iter(["451 later", "250 OK", "554 5.7.1 spam"])
    async with MailReceiver(lambda number: next(answers)) as receiver:
        await scene.create(receiver, ordered=True)
        await scene.bus.publish("alerts", b"1")
        await scene.until(lambda shown: shown.failed == 1)
        scene.clock.advance(6)
        await scene.until(lambda shown: shown.delivered == 1)
        await scene.bus.publish("alerts", b"2")
        shown = await scene.until(lambda shown: shown.buried == 1 and not shown.lag)
        assert shown.circuit == "closed"
    [(payload, cause)] = await scene.dead()
    assert payload == b"2"
    assert "554" in cause
    assert "5.7.1 spam" in cause


async def test_a_recipient_that_is_refused_is_named_and_the_others_get_the_mail_once(scene: Scene) -> None:
    async with MailReceiver(to=lambda who: "550 who?" if who.startswith("b@") else "250 OK") as receiver:
        await scene.create(receiver, to=["a@example.com", "b@example.com"])
        await scene.bus.publish("alerts", b"1")
        await scene.until(lambda shown: shown.buried == 1 and not shown.lag)
        assert [recipients for _, recipients in receiver.envelopes] == [["a@example.com"]]
    [(_, cause)] = await scene.dead()
    assert "taken for the other recipients" in cause
    assert "b@example.com: 550 who?" in cause


async def test_a_wrong_password_opens_the_circuit_and_loses_nothing(scene: Scene) -> None:
    async with MailReceiver(password="right") as receiver:
        await scene.create(receiver, user="bus", password="wrong")
        for number in range(8):
            await scene.bus.publish("alerts", b"%d" % number)
        shown = await scene.until(lambda shown: shown.circuit == "open")
        assert shown.attempts[0].status == 535
        assert shown.buried == 0
        await scene.bus.mails.update("alerts", "ops", user="bus", password="right")
        await scene.bus.mails.resume("alerts", "ops")
        scene.clock.advance(10)
        await scene.until(lambda shown: shown.delivered == 8 and not shown.lag)
        assert sorted(receiver.texts) == [str(number) for number in range(8)]


async def test_a_digest_is_one_mail_of_several_messages(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver, digest=MailDigest(every=3600, most=5), subject="{{ count }} alerts")
        for number in range(10):
            await scene.bus.publish("alerts", b"%d" % number)
        shown = await scene.until(lambda shown: shown.delivered == 10 and not shown.lag)
        assert [each["Subject"] for each in receiver.mails] == ["5 alerts", "5 alerts"]
        assert receiver.texts == ["0\n\n1\n\n2\n\n3\n\n4", "5\n\n6\n\n7\n\n8\n\n9"]
        assert [each.messages for each in shown.attempts] == [5, 5]


async def test_a_digest_goes_when_its_time_has_come_and_again_as_a_whole(scene: Scene) -> None:
    async with MailReceiver(lambda number: LOSE if number == 1 else "250 OK") as receiver:
        await scene.create(receiver, digest=MailDigest(every=1, most=50))
        for number in range(3):
            await scene.bus.publish("alerts", b"%d" % number)
        await scene.until(lambda shown: shown.failed == 1)
        scene.clock.advance(6)
        await scene.until(lambda shown: shown.delivered == 3 and not shown.lag)
        assert receiver.texts == ["0\n\n1\n\n2"] * 2


async def test_a_mail_that_comes_back_is_a_dead_letter_with_its_cause(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver)
        for number in range(3):
            await scene.bus.publish("alerts", b"%d" % number)
        await scene.until(lambda shown: shown.delivered == 3 and not shown.lag)
        place = receiver.texts.index("1")
        back_to = receiver.envelopes[place][0]
        await _send_back(scene, back_to, report("delayed"))
        await _send_back(scene, back_to, "From: a@b.c\r\nSubject: I am away\r\n\r\nso long\r\n")
        assert scene.senders.bounces == 0
        for _ in range(2):  # the server asks twice where it has no answer
            await _send_back(scene, back_to, report("failed"))
            await scene.until(lambda shown: not shown.lag)
        shown = await scene.until(lambda shown: shown.buried >= 1)
        assert len(receiver.raw) == 3
        assert shown.delivered == 3
    dead = await scene.dead()
    # Whoever has the address can say so again: that makes no more dead letters.
    assert [payload for payload, _ in dead] == [b"1"]
    assert "the mail came back: rfc822; ops@example.com 5.1.1" in dead[0][1]
    metrics = await scene.bus.terminal.metrics()
    assert "landbridge_smtp_bounces_total 4" in metrics
    assert 'landbridge_mail_buried_total{mail="ops",topic="alerts"} 1' in metrics
    # Whoever mails it again wants it sent.
    async with MailReceiver() as another:
        await scene.bus.mails.update("alerts", "ops", server=another.url)
        await scene.bus.mails.replay("alerts", "ops", first=1, end=2)
        await eventually(lambda: another.raw)
        assert another.texts == ["1"]


async def test_nobody_but_the_bus_makes_addresses_to_come_back_to(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver)
        await scene.bus.publish("alerts", b"1")
        await scene.until(lambda shown: shown.delivered == 1)
        back_to = receiver.envelopes[0][0]
    forged = back_to.replace("-0-1-", "-0-2-")
    assert forged != back_to
    for address in (forged, f"bounce+x@{DOMAIN}", f"bounce+{'0' * 16}-0-1-{'a' * 16}@{DOMAIN}"):
        with pytest.raises(aiosmtplib.SMTPRecipientsRefused):
            await _send_back(scene, address, report("failed"))
    client = aiosmtplib.SMTP(hostname="127.0.0.1", port=scene.port, start_tls=False)
    async with client:
        with pytest.raises(aiosmtplib.SMTPResponseException):  # only a report has no sender
            await client.sendmail("a@b.c", back_to, report("failed"))


async def _send_back(scene: Scene, address: str, mail: str) -> None:
    async with aiosmtplib.SMTP(hostname="127.0.0.1", port=scene.port, start_tls=False) as client:
        await client.sendmail("", address, mail)


def report(action: str) -> str:
    return (
        "From: mailer-daemon@example.com\r\nMIME-Version: 1.0\r\n"
        'Content-Type: multipart/report; report-type=delivery-status; boundary="x"\r\n\r\n'
        "--x\r\n\r\nIt came back.\r\n--x\r\nContent-Type: message/delivery-status\r\n\r\n"
        "Reporting-MTA: dns; example.com\r\n\r\n"
        f"Final-Recipient: rfc822; ops@example.com\r\nAction: {action}\r\nStatus: 5.1.1\r\n"
        "Diagnostic-Code: smtp; 550 nobody\r\n here\r\n\r\n--x--\r\n"
    )


async def test_a_mail_goes_to_no_server_that_is_not_allowed(crashes: list[Any]) -> None:
    async with staged([]) as scene, MailReceiver() as receiver:
        await scene.create(receiver)
        await scene.bus.publish("alerts", b"1")
        shown = await scene.until(lambda shown: shown.failed == 1)
        assert "--allow-outgoing" in shown.attempts[0].detail
        assert receiver.raw == []


async def test_a_test_shows_what_the_server_says(scene: Scene) -> None:
    async with MailReceiver(password="right") as receiver:
        await scene.create(receiver, user="bus", password="right")
        tested = await scene.bus.mails.test("alerts", "ops")
        assert tested.attempt is not None
        assert tested.attempt.verdict == "delivered"
        assert receiver.mails[0]["Subject"] == "Test of ops"
        await scene.bus.mails.update("alerts", "ops", to=("{{ payload.to }}",))
        tested = await scene.bus.mails.test("alerts", "ops")
        assert tested.attempt is not None
        assert tested.attempt.verdict == "delivered"
        assert len(receiver.raw) == 1


async def test_options_that_no_mail_outlet_has(scene: Scene) -> None:
    base: dict[str, Any] = {"server": "smtp://mail.example.com", "sender": "a@b.c", "to": ["a@b.c"]}
    wrong: dict[str, Any]
    for wrong in (
        {"server": "http://mail.example.com"},
        {"server": "smtp://user:pass@mail.example.com"},
        {"server": "smtp://"},
        {"server": "smtp+plain://mail.example.com", "user": "u", "password": "p"},
        {"sender": "a"},
        {"sender": "a@b.c\r\nX: y"},
        {"to": []},
        {"to": ["{{ payload.x"]},
        {"to": ["{{ payload.x }}"], "digest": MailDigest(every=60)},
        {"subject": "{{ 1 + 1 }}"},
        {"subject": "{{ payload.__class__ }} {{ x }}"},
        {"body": "{% for x in y %}{{ x }}"},
        {"user": "u"},
        {"digest": MailDigest(every=0.1)},
        {"digest": MailDigest(every=60, most=1)},
        {"rate": 0.0},
    ):
        with pytest.raises(BadRequest):
            await scene.bus.mails.create("alerts", "ops", **base | wrong)


async def test_what_is_there_already_and_who_may_change_it(scene: Scene) -> None:
    async with MailReceiver() as receiver:
        await scene.create(receiver)
        await scene.create(receiver)
        with pytest.raises(OutletExists):
            await scene.create(receiver, subject="another")
        async with attach(scene.terminal, subject="other", scopes=["subscribe:alerts"]) as other:
            with pytest.raises(Forbidden):
                await other.mails.show("alerts", "ops")
            with pytest.raises(Forbidden):
                await other.mails.pause("alerts", "ops")
            with pytest.raises(Forbidden):
                await other.mails.bounce("alerts", "ops", first=0, end=1)
        assert [each.name for each in await scene.bus.mails.list()] == ["ops"]
        await scene.bus.mails.pause("alerts", "ops")
        await scene.bus.publish("alerts", b"1")
        assert (await scene.bus.mails.show("alerts", "ops")).state == "paused"
        await scene.bus.mails.resume("alerts", "ops")
        await scene.until(lambda shown: shown.delivered == 1)
        await scene.bus.mails.delete("alerts", "ops")
        with pytest.raises(UnknownOutlet):
            await scene.bus.mails.show("alerts", "ops")


async def test_a_password_goes_to_no_other_server(scene: Scene) -> None:
    async with MailReceiver(password="right") as receiver, MailReceiver(password="right") as another:
        await scene.create(receiver, user="bus", password="right")
        with pytest.raises(BadRequest):
            await scene.bus.mails.update("alerts", "ops", server=another.url)
        assert another.logins == []


def test_the_bounce_address_fits_into_an_address() -> None:
    spec = core.mail_spec(
        {"topic": "t", "name": "n", "server": "smtp://m.example", "sender": "a@b.c", "to": ["a@b.c"]}
    )
    stored = core.StoredMail(spec=spec, owner="o", created_at=0, id="0" * 16, secret="s")
    address = core.bounce_address(stored, (1 << 62) - 1, 1000, "bus.example")
    said = address.partition("@")[0].partition("+")[2]
    assert len(address.partition("@")[0]) <= 64  # RFC 5321 4.5.3.1.1
    assert core.read_bounce(said) == ("0" * 16, (1 << 62) - 1, 1000)
    assert core.is_sealed(stored, said)
    assert email.utils.parseaddr(address)[1] == address


@pytest.mark.parametrize(
    "host", ["a" * 64 + ".example", "a" + ".b" * 120 + "." + "c" * 70], ids=["label", "end"]
)
async def test_a_server_whose_name_nobody_can_look_up_is_a_failed_attempt(scene: Scene, host: str) -> None:
    await scene.bus.topics.create("alerts")
    await scene.bus.mails.create(
        "alerts", "ops", server=f"smtp+plain://{host[:253]}:25", sender="a@example.com", to=("b@example.com",)
    )
    await scene.bus.publish("alerts", b"x")
    shown = await scene.until(lambda shown: shown.failed)
    assert shown.attempts[0].detail.startswith("no address of ")
    assert shown.lag == 1
