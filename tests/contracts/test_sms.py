"""Messages as SMS, to a provider in Twilio's shape, and what it calls back with as messages."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx
import pytest

from landbridge.client.bus import Bus
from landbridge.core.sms.spec import SmsProfile
from landbridge.errors import BadRequest, Forbidden
from landbridge.gateways import outlets as sending
from landbridge.gateways.outgoing import OutgoingHttp, OutgoingLimits
from landbridge.node.assembly import dial_to
from landbridge.node.sms import sms_of
from landbridge.testing import FakeClock, attach
from landbridge.testing.sms_provider import LOSE, LOSE_BEFORE, TAKE, SmsProvider
from tests.contracts.web import Web, web
from tests.receivers import HANG, LOOPBACK, Received, Receiver, says
from tests.waiting import eventually

ONE, TWO = "+15550000001", "+15550000002"


class Scene:
    """A terminal with its HTTP port, and a provider."""

    def __init__(self, site: Web, bus: Bus, clock: FakeClock, provider: SmsProvider) -> None:
        self.site, self.bus, self.clock, self.provider = site, bus, clock, provider

    async def create(self, **options: Any) -> Any:
        await self.bus.topics.create("alerts")
        wanted: dict[str, Any] = {
            "account": self.provider.account,
            "secret": self.provider.secret,
            "sender": ONE,
            "to": TWO,
            "profile": SmsProfile(url=self.provider.url),
        } | options
        return await self.bus.sms.create("alerts", "ops", **wanted)

    async def show(self) -> Any:
        return await self.bus.sms.show("alerts", "ops")

    async def until(self, holds: Callable[[Any], Any]) -> Any:
        for _ in range(6000):
            shown = await self.show()
            if holds(shown):
                return shown
            await asyncio.sleep(0.005)
        raise AssertionError(f"this never came true; it is {shown}")

    async def stored(self, topic: str) -> list[Any]:
        found: list[Any] = []
        log = self.site.terminal.broker.table.topic(topic).log
        async with self.bus.subscribe(topic, group="reader", start="earliest") as subscription:
            while len(found) < log.end - log.first:
                message = await subscription.poll(30)
                assert message is not None
                found.append(message)
                await message.ack()
        return found


@asynccontextmanager
async def staged(allowed: list[str] = LOOPBACK, **provider: Any) -> AsyncIterator[Scene]:
    clock = FakeClock()
    async with AsyncExitStack() as stack:
        site = await stack.enter_async_context(web(clock=clock))
        http = OutgoingHttp(allowed, limits=OutgoingLimits(within=2.0))
        await stack.enter_async_context(sms_of(site.terminal, dial_to(site.terminal), (), http))
        made = await stack.enter_async_context(SmsProvider(**provider))
        bus = await stack.enter_async_context(attach(site.terminal, life=1e7))
        yield Scene(site, bus, clock, made)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(sending, "WRITE_AFTER", 0.01)


@pytest.fixture
async def scene(crashes: list[Any]) -> AsyncIterator[Scene]:
    async with staged() as made:
        yield made


async def test_a_message_is_an_sms_and_its_receipts_are_messages(scene: Scene) -> None:
    await scene.create(
        to="{{ payload.to }}", body="{{ payload.text }}", receipts="sms.receipts", reached_at=scene.site.url
    )
    receipt = await scene.bus.publish("alerts", {"to": TWO, "text": "Grüße €"})
    shown = await scene.until(lambda shown: shown.delivered == 1 and not shown.lag)
    [sms] = scene.provider.sent
    assert (sms.to, sms.sender, sms.body) == (TWO, ONE, "Grüße €")
    assert (shown.attempts[0].answer, shown.attempts[0].units, shown.today) == (sms.sid, 1, 1)
    assert scene.provider.secret not in repr(shown)
    await scene.provider.settled()
    assert scene.provider.callbacks == [204, 204]
    sent, delivered = await scene.stored("sms.receipts")
    assert json.loads(sent.payload)["final"] is False
    said = json.loads(delivered.payload)
    assert (said["message"], said["id"], said["status"]) == (receipt.id, sms.sid, "delivered")
    assert said["final"] is True
    assert said["outlet"] == "alerts/ops"
    assert (delivered.key, delivered.headers["sms-status"]) == (receipt.id, "delivered")


async def test_an_sms_that_comes_in_is_a_message_and_stored_once(scene: Scene) -> None:
    await scene.create(incoming="sms.in", reached_at=scene.site.url)
    url = (await scene.show()).incoming_url
    fields = {"MessageSid": "SM1", "From": TWO, "To": ONE, "Body": "hello & ü\n"}
    assert await scene.provider.call(url, fields) == 204
    assert await scene.provider.call(url, fields) == 204  # the answer was lost
    assert await scene.provider.call(url, fields | {"MessageSid": "SM2"}) == 204
    first, second = await scene.stored("sms.in")
    said = json.loads(first.payload)
    assert (said["from"], said["body"], said["id"]) == (TWO, "hello & ü\n", "SM1")
    assert (first.key, second.key) == (TWO, TWO)


async def test_what_the_provider_has_not_signed_is_not_taken(scene: Scene) -> None:
    await scene.bus.topics.create("sms.in")
    await scene.create(receipts="sms.receipts", incoming="sms.in", reached_at=scene.site.url)
    shown = await scene.show()
    forger = SmsProvider(secret="another")
    async with forger:
        assert await forger.receive(TWO, "x", shown.incoming_url) == 401
        other = shown.incoming_url.replace("/ops/", "/none/")
        assert await scene.provider.receive(TWO, "x", other) == 401
    async with httpx.AsyncClient() as client:
        assert (await client.post(shown.incoming_url, data={"Body": "x"})).status_code == 401
        signed = {"X-Twilio-Signature": "ü".encode("latin-1").decode("latin-1")}
        headers = {name.encode(): value.encode("latin-1") for name, value in signed.items()}
        odd = await client.post(shown.incoming_url, data={"Body": "x"}, headers=headers)
        assert odd.status_code == 401
        big = {"Body": "x" * 70_000}
        assert (await client.post(shown.incoming_url, data=big)).status_code == 413
        assert (await client.post(shown.incoming_url, json={})).status_code == 401
    # One for receipts is none for what comes in: the URL is signed.
    assert await scene.stored("sms.in") == []


async def test_numbers_that_are_none_and_texts_that_are_too_long_are_dead_letters(scene: Scene) -> None:
    await scene.create(to="{{ payload.to }}", body="{{ payload.text }}", most_segments=2)
    wrong: list[dict[str, Any]] = [
        {"to": "0155", "text": "x"},
        {"to": f"{TWO}\r\nTo: {ONE}", "text": "x"},
        {"to": f"{TWO}&To={ONE}", "text": "x"},
        {"to": [TWO], "text": "x"},
        {"to": TWO, "text": "x" * 307},
        {"to": TWO, "text": "   "},
        {"to": TWO},
    ]
    for payload in wrong:
        await scene.bus.publish("alerts", payload)
    await scene.bus.publish("alerts", {"to": TWO, "text": "a&Body=b\x00\x1b c"})
    shown = await scene.until(lambda shown: shown.buried == len(wrong) and not shown.lag)
    assert [sms.body for sms in scene.provider.sent] == ["a&Body=b   c"]
    assert shown.today == 1
    causes = [str(each.headers["lb-cause"]) for each in await scene.stored("alerts.dead")]
    assert sum("no number" in cause for cause in causes) == 4
    assert any("3 segments, allowed are 2" in cause for cause in causes)


async def test_what_the_provider_refuses_is_a_dead_letter_and_costs_nothing(crashes: list[Any]) -> None:
    async with staged(answer=lambda number: (400, "21610 unsubscribed") if number == 1 else TAKE) as scene:
        await scene.create(per_day=1)
        await scene.bus.publish("alerts", b"1")
        await scene.until(lambda shown: shown.buried == 1)
        await scene.bus.publish("alerts", b"2")
        shown = await scene.until(lambda shown: shown.delivered == 1 and not shown.lag)
        assert shown.today == 1
        [dead] = await scene.stored("alerts.dead")
        assert "21610 unsubscribed" in str(dead.headers["lb-cause"])


async def test_throttling_waits_as_long_as_the_provider_asks(crashes: list[Any]) -> None:
    async with staged(answer=lambda number: (429, "slow") if number == 1 else TAKE, retry_after=7) as scene:
        await scene.create()
        await scene.bus.publish("alerts", b"1")
        shown = await scene.until(lambda shown: shown.circuit == "open")
        assert shown.blocked_until == scene.clock() + 7_000_000
        assert not scene.provider.sent
        scene.clock.advance(8)
        await scene.until(lambda shown: shown.delivered == 1 and not shown.lag)
        assert len(scene.provider.sent) == 1


@pytest.mark.parametrize(("lost", "sms"), [(LOSE, 2), (LOSE_BEFORE, 1)])
async def test_a_lost_answer_sends_again_and_counts_again(
    crashes: list[Any], lost: tuple[int, str], sms: int
) -> None:
    async with staged(answer=lambda number: lost if number == 1 else TAKE) as scene:
        await scene.create()
        await scene.bus.publish("alerts", b"1")
        await scene.until(lambda shown: shown.failed == 1)
        scene.clock.advance(6)
        shown = await scene.until(lambda shown: shown.delivered == 1 and not shown.lag)
        assert len(scene.provider.sent) == sms
        assert shown.today == 2  # nobody knows whether the first one was sent


async def test_a_budget_that_is_used_up_waits_for_the_next_day(scene: Scene) -> None:
    await scene.create(per_day=3)
    for number in range(5):
        await scene.bus.publish("alerts", b"%d" % number)
    shown = await scene.until(lambda shown: shown.delivered == 3 and shown.circuit == "open")
    assert (shown.lag, shown.today, shown.buried) == (2, 3, 0)
    # From eight in the morning to midnight: after a whole day the sender's credential would expire, too, and
    # an SMS that is counted at that moment may be counted again.
    scene.clock.advance(16 * 3600)
    shown = await scene.until(lambda shown: shown.delivered == 5 and not shown.lag)
    assert (shown.today, shown.this_month) == (2, 5)
    assert sorted(sms.body for sms in scene.provider.sent) == [str(number) for number in range(5)]


async def test_another_provider_is_configured(crashes: list[Any]) -> None:
    answers = {"data": {"messages": [{"message_id": 77}]}}

    def answer(request: Received) -> bytes:
        return says(202, "Content-Type: application/json", body=json.dumps(answers).encode())

    async with staged() as scene, Receiver(answer) as receiver:
        profile = SmsProfile(
            url=f"http://127.0.0.1:{receiver.port}/v2/sms",
            encoding="json",
            fields={
                "destination": "{{ to }}",
                "text": "{{ body }}",
                "source": "{{ from }}",
                "ref": "{{ id }}",
                "hook": "{{ callback }}",
            },
            auth="bearer",
            id_at="data.messages.0.message_id",
            signature="hmac-sha256",
            signature_header="X-Signature",
            id_field="message_id",
            status_field="state",
            final=("DELIVRD",),
        )
        await scene.create(profile=profile, receipts="r", reached_at=scene.site.url)
        await scene.bus.publish("alerts", 'say "hi"', id="m1")
        shown = await scene.until(lambda shown: shown.delivered == 1)
        assert shown.attempts[0].answer == "77"
        [request] = receiver.requests
        sent = json.loads(request.body)
        url = sent.pop("hook")
        assert sent == {"destination": TWO, "text": 'say "hi"', "source": ONE, "ref": "m1"}
        assert request.headers["authorization"] == "Bearer secret"

        body = b'{"message_id": "77", "state": "DELIVRD"}'
        signature = hmac.digest(b"secret", body, "sha256").hex()
        async with httpx.AsyncClient() as client:
            headers = {"x-signature": signature, "content-type": "application/json"}
            assert url.startswith(f"{shown.receipts_url}?message=m1&seal=")
            assert (await client.post(url, content=body, headers=headers)).status_code == 204
        [receipt] = await scene.stored("r")
        assert json.loads(receipt.payload)["final"] is True


async def test_an_address_that_is_not_allowed_is_not_asked(crashes: list[Any]) -> None:
    async with staged([]) as scene:
        await scene.create()
        await scene.bus.publish("alerts", b"1")
        shown = await scene.until(lambda shown: shown.failed == 1)
        assert "--allow-outgoing" in shown.attempts[0].detail
        assert scene.provider.requests == 0


async def test_a_provider_that_hangs_and_a_wrong_secret_lose_nothing(crashes: list[Any]) -> None:
    async with staged() as scene, Receiver(lambda request: HANG):
        await scene.create(secret="wrong")
        for number in range(6):
            await scene.bus.publish("alerts", b"%d" % number)
        shown = await scene.until(lambda shown: shown.circuit == "open")
        assert shown.attempts[0].status == 401
        await scene.bus.sms.update("alerts", "ops", secret=scene.provider.secret)
        await scene.bus.sms.resume("alerts", "ops")
        scene.clock.advance(10)
        shown = await scene.until(lambda shown: shown.delivered == 6 and not shown.lag)
        assert (shown.buried, shown.today) == (0, 6)


async def test_options_that_no_sms_outlet_has(scene: Scene) -> None:
    wrong: dict[str, Any]
    for wrong in (
        {"sender": "no name that long"},
        {"to": "0155"},
        {"to": "{{ x }}"},
        {"account": "a:b"},
        {"secret": ""},
        {"secret": "a\r\nX: y"},
        {"per_day": 0},
        {"most_segments": 0},
        {"receipts": "r"},
        {"receipts": "$audit", "reached_at": "https://bus.example"},
        {"incoming": "r", "reached_at": "ftp://bus.example"},
        {"profile": SmsProfile(url="file:///etc/passwd")},
        {"profile": SmsProfile(fields={"To": "x"})},
        {"profile": SmsProfile(fields={})},
        {"profile": SmsProfile(id_field="a b")},
    ):
        with pytest.raises(BadRequest):
            await scene.create(**wrong)


async def test_who_may_not_publish_takes_no_callbacks(scene: Scene) -> None:
    await scene.bus.topics.create("alerts")
    async with attach(scene.site.terminal, subject="other", scopes=["subscribe:alerts"]) as other:
        base: dict[str, Any] = {"account": "AC1", "secret": "s", "sender": ONE, "to": TWO}
        with pytest.raises(Forbidden):
            await other.sms.create(
                "alerts", "mine", **base, incoming="secret", reached_at="https://x.example"
            )
        await other.sms.create("alerts", "mine", **base)
        with pytest.raises(BadRequest):  # the secret goes to no other URL
            profile = SmsProfile(url="https://evil.example/")
            await other.sms.update("alerts", "mine", profile=profile)
    await eventually(lambda: True)


async def test_a_test_is_sent_to_a_fixed_number(scene: Scene) -> None:
    await scene.create(per_day=1)
    tested = await scene.bus.sms.test("alerts", "ops")
    assert tested.attempt is not None
    assert tested.attempt.verdict == "delivered"
    again = await scene.bus.sms.test("alerts", "ops")
    assert again.attempt is not None
    assert "budget" in again.attempt.detail
    assert [sms.body for sms in scene.provider.sent] == ["Test of ops"]
    assert (await scene.show()).circuit == "closed"
