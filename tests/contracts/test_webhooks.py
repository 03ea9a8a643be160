"""Webhooks against receivers of this machine: what they get, and what becomes of it when nobody takes it."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import msgspec
import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.client.bus import Bus
from landbridge.core.delivery.filters import Match
from landbridge.core.outlet import outlet
from landbridge.core.time import SECOND
from landbridge.core.webhook import webhook as core
from landbridge.core.webhook.signature import PRIVATE, public_key, webhook_id, write_secret
from landbridge.errors import (
    BadRequest,
    Forbidden,
    LimitReached,
    OffsetGone,
    UnknownGroup,
    UnknownWebhook,
    WebhookExists,
)
from landbridge.gateways import outlets as sending_of
from landbridge.gateways import webhooks as gateway
from landbridge.gateways.outgoing import OutgoingHttp, OutgoingLimits
from landbridge.node.assembly import dial_to
from landbridge.node.webhooks import webhooks_of
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.receivers import HANG, LOOPBACK, OK, Received, Receiver, says
from tests.waiting import eventually

JSON = b'{"n": 1}'


def _has_failed(times: int, shown: Any) -> bool:
    return bool(shown.failed >= times)


class Scene:
    """A terminal that sends webhooks."""

    def __init__(
        self, terminal: Terminal, bus: Bus, clock: FakeClock | None, senders: gateway.WebhookSenders
    ) -> None:
        self.terminal, self.bus, self.clock, self.senders = terminal, bus, clock, senders
        #: Which webhook the test is about.
        self.webhook = ("orders", "shop")

    async def create(self, receiver: Receiver, **options: Any) -> str:
        await self.bus.topics.create("orders")
        made = await self.bus.webhooks.create("orders", "shop", receiver.url, **options)
        return made.secret

    async def show(self) -> Any:
        return await self.bus.webhooks.show(*self.webhook)

    async def until_it_signs_with(self, shown: str) -> None:
        """Until the sender has heard of a rotation: a moment after it is on disk."""

        def signs() -> bool:
            stored: Any = self.senders.senders["orders", "shop"].stored
            newest = stored.secrets[0].secret
            return shown in (newest, public_key(newest))

        await eventually(signs)

    async def until(self, holds: Callable[[Any], Any]) -> Any:
        """Wait until what is shown is so. With a clock of the test's, time passes meanwhile."""
        found: list[Any] = []

        async def look() -> bool:
            shown = await self.show()
            found[:] = [shown]
            return bool(holds(shown))

        for _ in range(6000):
            if await look():
                return found[0]
            await asyncio.sleep(0.005)
        raise AssertionError(f"this never came true; it is {found[0]}")


@asynccontextmanager
async def staged(
    clock: FakeClock | None = None,
    store: Any = None,
    allowed: list[str] | None = None,
    within: float = 2.0,
    **options: Any,
) -> AsyncIterator[Scene]:
    more: dict[str, Any] = {} if clock is None else {"clock": clock}
    http = OutgoingHttp(LOOPBACK if allowed is None else allowed, limits=OutgoingLimits(within=within))
    async with (
        run_terminal(store, **more, **options) as terminal,
        webhooks_of(terminal, dial_to(terminal), (), http) as senders,
        attach(terminal, life=1e7) as bus,
    ):
        yield Scene(terminal, bus, clock, senders)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at the clock often: it is moved by hand."""
    monkeypatch.setattr(sending_of, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(sending_of, "WRITE_AFTER", 0.01)


@pytest.fixture
async def scene(crashes: list[Any]) -> AsyncIterator[Scene]:
    async with staged() as made:
        yield made


@pytest.fixture
async def timed(crashes: list[Any]) -> AsyncIterator[Scene]:
    async with staged(FakeClock()) as made:
        yield made


async def test_a_message_is_posted_with_a_signature_that_the_reference_library_takes(scene: Scene) -> None:
    async with Receiver() as receiver:
        secret = await scene.create(receiver)
        headers = {"content-type": "application/cloudevents+json"}
        receipt = await scene.bus.publish("orders", JSON, headers=headers)
        await eventually(lambda: receiver.requests)
        (request,) = receiver.requests
        request.verify(secret)
        assert (request.path, request.body, request.id) == ("/hook?a=b", JSON, receipt.id)
        assert request.headers["content-type"] == "application/cloudevents+json"
        assert request.headers["landbridge-topic"] == "orders"
        shown = await scene.until(lambda shown: shown.delivered == 1)
        assert (shown.lag, shown.state, shown.circuit, shown.owner) == (0, "active", "closed", "test")
        (attempt,) = shown.attempts
        assert (attempt.id, attempt.status, attempt.verdict, attempt.offset) == (
            receipt.id, 204, "delivered", 0,
        )  # fmt: skip


async def test_bytes_and_ids_of_any_kind_are_sent(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.create(receiver)
        for id in ("a.b", "a b", "ü\n"):
            await scene.bus.publish("orders", b"\xff\x00" + id.encode(), id=id)
        await eventually(lambda: len(receiver.requests) == 3)
        assert {body[2:].decode() for body in receiver.bodies} == {"a.b", "a b", "ü\n"}
        assert all(request.id.startswith("sha256-") for request in receiver.requests)


async def test_a_webhook_begins_where_it_is_told_and_sends_what_matches(scene: Scene) -> None:
    async with Receiver() as receiver, Receiver() as other:
        for number in range(3):
            await scene.bus.publish("orders", b"%d" % number, key="eu" if number else "us")
        await scene.bus.webhooks.create("orders", "new", receiver.url)
        await scene.bus.webhooks.create("orders", "eu", other.url, start="earliest", match=Match(key="eu"))
        await scene.bus.publish("orders", b"3", key="us")
        await eventually(lambda: receiver.requests and len(other.requests) == 2)
        assert receiver.bodies == [b"3"]
        assert sorted(other.bodies) == [b"1", b"2"]
        changed = await scene.bus.webhooks.update("orders", "eu", match=Match(key="us"), url=receiver.url)
        assert changed.url == receiver.url
        await scene.bus.publish("orders", b"4", key="us")
        await eventually(lambda: receiver.bodies.count(b"4") == 2)


PAID = {"state": ["paid"]}


@pytest.mark.parametrize("source", ["orders", "$content"])
async def test_a_webhook_by_query_sends_what_its_rule_chooses(crashes: list[Any], source: str) -> None:
    async with staged(store=MemoryStore(units=4)) as scene, Receiver() as receiver:
        bus, topic = scene.bus, None if source == "$content" else source
        made = await bus.webhooks.create(source, "paid", receiver.url, query=PAID, ordered=True)
        assert (await bus.rules.list())[0].rule == made.rule
        for number in range(6):
            await bus.publish(topic, {"state": "paid" if number % 2 else "open", "n": number})
        await eventually(lambda: len(receiver.requests) == 3)
        assert [msgspec.json.decode(body)["n"] for body in receiver.bodies] == [1, 3, 5]
        receiver.requests[0].verify(made.secret)
        assert receiver.requests[2].headers["landbridge-topic"] == made.rule
        assert receiver.requests[2].headers["landbridge-offset"] == "2"
        scene.webhook = (source, "paid")
        shown = await scene.until(lambda shown: shown.lag == 0)
        assert shown.options.query == {"kind": "partial", "match": PAID}
        assert (await bus.webhooks.replay(source, "paid", first=1)).messages == 2
        await eventually(lambda: len(receiver.requests) == 5)
        # The same query in another spelling is the same webhook, and another query another one.
        again = await bus.webhooks.create(
            source, "paid", receiver.url, query={"kind": "partial", "match": PAID}, ordered=True
        )
        assert (again.rule, again.secret) == (made.rule, "")
        with pytest.raises(WebhookExists):
            await bus.webhooks.create(source, "paid", receiver.url, query={"n": [1]}, ordered=True)
        entries = [(entry.what, entry.name) for entry in await bus.audit.list(operation="webhook.create")]
        assert {("rule", made.rule), ("webhook", f"{source}/paid")} <= set(entries)
        await bus.webhooks.delete(source, "paid")
        assert await bus.groups.list(topic=made.rule) == []
        assert [rule.groups for rule in await bus.rules.list()] == [0]


async def test_a_webhook_whose_rule_is_deleted_says_so_and_can_be_created_again(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_of, "AGAIN_AFTER", 0.01)
    monkeypatch.setattr(sending_of, "LONGEST_AGAIN", 0.01)
    reads = ["subscribe:orders"]
    async with Receiver() as receiver, attach(scene.terminal, subject="shop", scopes=reads) as shop:
        await scene.create(receiver)
        await scene.bus.webhooks.delete("orders", "shop")
        made = await shop.webhooks.create("orders", "shop", receiver.url, query=PAID)
        await scene.bus.rules.delete(made.rule)
        shown = await scene.until(lambda shown: shown.lag is None and shown.trouble)
        assert f"its rule {made.rule} was deleted" in shown.trouble
        await scene.bus.publish("orders", {"state": "paid", "n": 1})
        again = await shop.webhooks.create("orders", "shop", receiver.url, query=PAID)
        assert (again.rule, again.secret, again.lag) == (made.rule, "", 0)
        await scene.bus.publish("orders", {"state": "paid", "n": 2})
        await scene.until(lambda shown: shown.delivered == 1 and not shown.trouble)
        assert [msgspec.json.decode(body)["n"] for body in receiver.bodies] == [2]
        await scene.bus.topics.delete("orders")
        assert await scene.bus.webhooks.list() == []


async def test_what_a_webhook_by_query_needs(scene: Scene) -> None:
    async with attach(scene.terminal, subject="shop", scopes=["subscribe:orders.#"]) as shop:
        await scene.bus.topics.create("invoices")
        with pytest.raises(Forbidden):
            await shop.webhooks.create("invoices", "w", "https://a.example/", query=PAID)
        with pytest.raises(Forbidden):
            await shop.webhooks.create("$content", "w", "https://a.example/", query=PAID)
        with pytest.raises(BadRequest, match="an array is expected"):
            await shop.webhooks.create("orders.eu", "w", "https://a.example/", query={"state": "paid"})
        await scene.bus.topics.create("jobs", kind="queue")
        with pytest.raises(BadRequest, match="queue"):
            await scene.bus.webhooks.create("jobs", "w", "https://a.example/", query=PAID)
        assert await scene.bus.rules.list() == []
        assert await scene.bus.webhooks.list() == []


async def test_a_failed_message_is_sent_again_with_the_same_id_and_the_others_go_on(timed: Scene) -> None:
    def answer(request: Received) -> bytes:
        is_first = sum(each.id == request.id for each in receiver.requests) == 1
        return says(500, body=b"out of order") if request.body == b"1" and is_first else OK

    async with Receiver(answer) as receiver:
        await timed.create(receiver)
        for number in range(3):
            await timed.bus.publish("orders", b"%d" % number)
        shown = await timed.until(lambda shown: shown.delivered == 2 and shown.failed == 1)
        assert (shown.lag, sorted(receiver.bodies)) == (1, [b"0", b"1", b"2"])
        (failed,) = [each for each in shown.attempts if each.verdict == "failed"]
        assert (failed.status, failed.answer, failed.number) == (500, "out of order", 1)
        assert timed.clock
        timed.clock.advance(6)
        shown = await timed.until(lambda shown: shown.delivered == 3)
        first, second = [request for request in receiver.requests if request.body == b"1"]
        assert first.id == second.id
        assert first.headers["webhook-timestamp"] != second.headers["webhook-timestamp"]
        assert second.headers["landbridge-attempt"] == "2"


async def test_an_ordered_webhook_sends_one_at_a_time_and_a_failing_message_holds_the_rest(
    timed: Scene,
) -> None:
    refuse = [3]

    def answer(request: Received) -> bytes:
        if request.body == b"1" and refuse[0]:
            refuse[0] -= 1
            return says(503)
        return OK

    async with Receiver(answer) as receiver:
        await timed.create(receiver, ordered=True)
        for number in range(4):
            await timed.bus.publish("orders", b"%d" % number)
        assert timed.clock
        for failures in (1, 2, 3):
            await timed.until(partial(_has_failed, failures))
            assert receiver.bodies == [b"0", *[b"1"] * failures]
            timed.clock.advance(3600)
        await timed.until(lambda shown: shown.delivered == 4)
        assert receiver.bodies == [b"0", b"1", b"1", b"1", b"1", b"2", b"3"]
        numbers = [request.headers["landbridge-attempt"] for request in receiver.requests]
        assert numbers == ["1", "1", "2", "3", "4", "1", "1"]
        assert receiver.busiest == 1


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_message_that_nobody_takes_is_buried_after_eight_attempts(
    timed: Scene, ordered: bool
) -> None:
    async with Receiver(lambda request: says(400) if request.body == b"bad" else OK) as receiver:
        await timed.create(receiver, ordered=ordered)
        await timed.bus.publish("orders", b"bad")
        await timed.bus.publish("orders", b"good")
        assert timed.clock
        for number in range(1, 9):
            await timed.until(partial(_has_failed, number))
            timed.clock.advance(40_000)
        # What was being sent when time jumped is sent again.
        shown = await timed.until(lambda shown: shown.buried and shown.delivered and not shown.lag)
        assert max(attempt.number for attempt in shown.attempts) == 8
        async with timed.bus.subscribe("orders.dead", group="g") as dead:
            letter = await dead.poll(30)
            assert letter is not None
            assert letter.payload == b"bad"


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (says(302, "Location: http://127.0.0.1:1/"), 302, ""),
        (HANG, 0, "no answer within"),
        (b"SSH-2.0-OpenSSH\r\n\r\n", 0, "RemoteProtocolError"),
        (says(500, body=b"x" * (4 << 20)), 500, ""),
    ],
    ids=["redirect", "hang", "no HTTP", "megabytes"],
)
async def test_what_is_no_success_fails(timed: Scene, answer: bytes, status: int, said: str) -> None:
    async with Receiver(lambda request: answer) as receiver:
        await timed.create(receiver)
        await timed.bus.publish("orders", b"1")
        shown = await timed.until(lambda shown: shown.failed == 1)
        (attempt,) = shown.attempts
        assert (attempt.verdict, attempt.status, len(receiver.requests)) == ("failed", status, 1)
        assert said in attempt.detail
        labels = '{topic="orders",webhook="shop"}'
        assert f"landbridge_webhook_failures_total{labels} 1.0" in await timed.bus.terminal.metrics()
        assert len(attempt.answer) <= outlet.LONGEST_ANSWER


async def test_megabytes_after_a_success_are_a_success(scene: Scene) -> None:
    async with Receiver(lambda request: says(200, body=b"x" * (4 << 20))) as receiver:
        await scene.create(receiver)
        await scene.bus.publish("orders", b"1")
        await scene.until(lambda shown: shown.delivered == 1)


async def test_many_slow_receivers_do_not_hold_up_a_quick_one(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway, "MOST_AT_ONCE", 4)
    hangs = Receiver(lambda request: HANG, address="0.0.0.0")
    async with staged(within=600.0) as scene, Receiver() as quick, hangs as slow:
        await scene.create(quick)
        await scene.bus.publish("orders", b"0")
        await scene.until(lambda shown: shown.delivered == 1)
        await scene.bus.topics.create("reports")
        for number in range(2, 8):
            url = f"http://127.0.0.{number}:{slow.port}/"
            await scene.bus.webhooks.create("reports", f"slow{number}", url)
        for _ in range(4):
            await scene.bus.publish("reports", b"{}")
        await eventually(lambda: len(slow.requests) == 2)
        for number in range(1, 4):
            await scene.bus.publish("orders", b"%d" % number)
            await scene.until(lambda shown: shown.lag == 0)
        assert quick.bodies == [b"0", b"1", b"2", b"3"]
        assert len(slow.requests) == 2  # not one of them has been answered meanwhile


async def test_410_disables_with_an_event_and_resume_begins_anew(scene: Scene) -> None:
    answers = [says(410)]
    async with (
        Receiver(lambda request: answers[0]) as receiver,
        scene.bus.subscribe("$status", group="watch", start="latest") as status,
    ):
        await scene.create(receiver)
        await scene.bus.publish("orders", b"1")
        shown = await scene.until(lambda shown: shown.state == "disabled")
        assert "410" in shown.disabled_why
        causes = ""
        while "webhook_disabled" not in causes:
            note = await status.poll(30)
            causes += "" if note is None else note.text()
        assert "webhook shop of orders" in causes
        await scene.bus.publish("orders", b"2")
        assert len(receiver.requests) == 1
        answers[0] = OK
        assert (await scene.bus.webhooks.resume("orders", "shop")).state == "active"
        shown = await scene.until(lambda shown: shown.delivered == 2)
        assert (shown.lag, shown.failing_since) == (0, None)


async def test_429_stops_all_for_as_long_as_it_says_and_counts_no_attempt(timed: Scene) -> None:
    answers = [says(429, "Retry-After: 100")]
    async with Receiver(lambda request: answers[0]) as receiver:
        await timed.create(receiver, ordered=True)
        for number in range(3):
            await timed.bus.publish("orders", b"%d" % number)
        shown = await timed.until(lambda shown: shown.failed == 1)
        assert shown.circuit == "open"
        assert timed.clock
        assert shown.blocked_until - timed.clock() == 100 * SECOND
        timed.clock.advance(99)
        answers[0] = OK
        assert (await timed.show()).delivered == 0
        timed.clock.advance(1)
        await timed.until(lambda shown: shown.delivered == 3)
        assert receiver.bodies == [b"0", b"0", b"1", b"2"]
        assert {request.headers["landbridge-attempt"] for request in receiver.requests} == {"1"}


async def test_the_circuit_opens_and_one_request_finds_out_whether_it_may_close(timed: Scene) -> None:
    answers = [says(500)]
    async with Receiver(lambda request: answers[0]) as receiver:
        await timed.create(receiver)
        for number in range(30):
            await timed.bus.publish("orders", b"%d" % number)
        await timed.until(lambda shown: shown.circuit == "open" and not receiver.busy)
        before = len(receiver.requests)
        assert before < 5 + gateway.CONCURRENCY
        assert timed.clock
        timed.clock.advance(31)
        await timed.until(lambda shown: shown.failed == before + 1 and shown.circuit == "open")
        answers[0] = OK
        timed.clock.advance(61)
        await timed.until(lambda shown: shown.circuit == "closed")
        timed.clock.advance(400)
        # What was being sent when time jumped is sent again.
        await timed.until(lambda shown: shown.delivered >= 30 and not shown.lag)
        assert set(receiver.bodies) == {b"%d" % number for number in range(30)}


async def test_an_address_that_is_not_allowed_is_refused_and_gets_nothing(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with staged(allowed=[]) as scene, Receiver() as receiver:
        with pytest.raises(BadRequest, match=r"may not send to 127\.0\.0\.1") as refused:
            await scene.create(receiver)
        assert "--allow-outgoing 127.0.0.1" in str(refused.value.hint)
        # One that was made while the address was allowed.
        with monkeypatch.context() as earlier:
            earlier.setattr(scene.terminal.operations.webhooks, "check_url", lambda url: None)
            await scene.create(receiver)
        with pytest.raises(BadRequest, match="may not send to"):
            await scene.bus.webhooks.update("orders", "shop", url="http://10.0.0.1/")
        await scene.bus.publish("orders", b"1")
        shown = await scene.until(lambda shown: shown.failed == 1)
        assert "may not send to" in shown.attempts[0].detail
        assert receiver.requests == []


async def test_a_name_that_leads_to_another_address_later_gets_nothing_there(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = ["127.0.0.1"]

    async def resolve(host: str, port: int) -> list[str]:
        return found

    async with staged(FakeClock()) as scene, Receiver() as receiver:
        assert scene.clock
        form: Any = scene.senders.form
        monkeypatch.setattr(form._http, "_resolve", resolve)
        await scene.bus.topics.create("orders")
        url = receiver.url.replace("127.0.0.1", "rebind.example")
        await scene.bus.webhooks.create("orders", "shop", url)
        await scene.bus.publish("orders", b"1")
        await scene.until(lambda shown: shown.delivered == 1)
        found[0] = "10.0.0.1"
        await scene.bus.publish("orders", b"2")
        shown = await scene.until(lambda shown: shown.failed == 1)
        assert "may not send to" in shown.attempts[0].detail
        assert receiver.bodies == [b"1"]
        found[0] = "127.0.0.1"
        scene.clock.advance(10)
        await scene.until(lambda shown: shown.delivered == 2)


async def test_a_pause_keeps_messages_and_a_test_is_sent_all_the_same(scene: Scene) -> None:
    async with Receiver() as receiver:
        secret = await scene.create(receiver)
        paused = await scene.bus.webhooks.pause("orders", "shop", note="moving")
        assert paused.state == "paused"
        await scene.bus.publish("orders", JSON)
        tested = await scene.bus.webhooks.test("orders", "shop")
        assert tested.attempt is not None
        assert (tested.attempt.status, tested.attempt.id) == (204, tested.id)
        (request,) = receiver.requests
        request.verify(secret)
        shown = await scene.show()
        assert (shown.lag, shown.note, shown.paused_by) == (1, "moving", "test")
        await scene.bus.webhooks.resume("orders", "shop")
        await eventually(lambda: JSON in receiver.bodies)


async def test_a_rotation_signs_with_both_secrets_until_the_old_one_ends(timed: Scene) -> None:
    async with Receiver() as receiver:
        given = write_secret(b"g" * 24)
        assert await timed.create(receiver, secret=given) == given
        rotated = await timed.bus.webhooks.rotate("orders", "shop", overlap=60.0)
        assert rotated.secret not in ("", given)
        await timed.until_it_signs_with(rotated.secret)
        await timed.bus.publish("orders", b"1")
        await eventually(lambda: len(receiver.requests) == 1)
        assert receiver.requests[0].headers["webhook-signature"].count("v1,") == 2
        assert timed.clock
        timed.clock.advance(61)
        await timed.bus.publish("orders", b"2")
        await eventually(lambda: len(receiver.requests) == 2)
        assert receiver.requests[1].headers["webhook-signature"].count("v1,") == 1
        shown = await timed.show()
        assert shown.secrets == [None]
        assert given not in str(shown)


async def test_a_webhook_signs_with_a_key_that_is_never_shown(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.bus.topics.create("orders")
        made = await scene.bus.webhooks.create("orders", "shop", receiver.url, asymmetric=True)
        assert (made.secret, made.public_key[:5]) == ("", "whpk_")
        again = await scene.bus.webhooks.create("orders", "shop", receiver.url, asymmetric=True)
        assert (again.secret, again.public_key) == ("", "")
        await scene.bus.publish("orders", b"1")
        await eventually(lambda: len(receiver.requests) == 1)
        assert _verified(receiver.requests[0], made.public_key) == "v1a"
        # A rotation makes the same kind again; both are shown and sign until the old one ends.
        rotated = await scene.bus.webhooks.rotate("orders", "shop", overlap=60.0)
        assert (rotated.secret, (await scene.show()).public_keys) == (
            "",
            [rotated.public_key, made.public_key],
        )
        await scene.until_it_signs_with(rotated.public_key)
        await scene.bus.publish("orders", b"2")
        await eventually(lambda: len(receiver.requests) == 2)
        for key in (made.public_key, rotated.public_key):
            assert _verified(receiver.requests[1], key) == "v1a"
        back = await scene.bus.webhooks.rotate("orders", "shop", asymmetric=False, overlap=0.0)
        assert (back.secret[:6], back.public_key) == ("whsec_", "")
        await scene.until_it_signs_with(back.secret)
        await scene.bus.publish("orders", JSON)
        await eventually(lambda: len(receiver.requests) == 3)
        receiver.requests[2].verify(back.secret)
        key = write_secret(b"k" * 32, PRIVATE)
        given = await scene.bus.webhooks.rotate("orders", "shop", secret=key)
        assert (given.secret, given.public_key) == ("", public_key(key))
        assert key not in str(await scene.show())


def _verified(request: Received, key: str) -> str:
    """The version of the signature that a public key verifies; empty where there is none."""
    judge = Ed25519PublicKey.from_public_bytes(base64.b64decode(key.removeprefix("whpk_")))
    head = f"{request.id}.{request.headers['webhook-timestamp']}."
    for each in request.headers["webhook-signature"].split():
        version, _, text = each.partition(",")
        try:
            judge.verify(base64.b64decode(text), head.encode() + request.body)
        except InvalidSignature:
            continue
        return version
    return ""


async def test_a_list_shows_the_paths_of_urls_to_those_who_may_look_after_them(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.create(receiver)
        for scopes, sees in ((["publish:orders"], False), (["observe"], True)):
            async with attach(scene.terminal, subject="other", scopes=scopes) as bus:
                (row,) = await bus.webhooks.list(topic="orders")
                assert (row.url == receiver.url) == sees
                assert "hook" in row.url or not sees
                assert row.url.startswith(f"http://127.0.0.1:{receiver.port}/")
                assert "a=b" not in row.url or sees


async def test_a_replay_sends_a_range_again(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.create(receiver, ordered=True)
        for number in range(6):
            await scene.bus.publish("orders", b"%d" % number)
        await scene.until(lambda shown: shown.delivered == 6)
        done = await scene.bus.webhooks.replay("orders", "shop", first=2, end=4)
        assert done.messages == 2
        await scene.until(lambda shown: shown.delivered == 8 and shown.lag == 0)
        assert receiver.bodies[6:] == [b"2", b"3"]
        assert [request.id for request in receiver.requests[6:]] == [
            request.id for request in receiver.requests[2:4]
        ]
        done = await scene.bus.webhooks.replay("orders", "shop", begin=0)
        assert done.messages == 6
        await scene.until(lambda shown: shown.delivered == 14 and shown.lag == 0)
        for wrong in ({}, {"first": 0, "begin": 0}, {"first": 0, "until": 5}, {"begin": 0, "end": 5}):
            with pytest.raises(BadRequest):
                await scene.bus.webhooks.replay("orders", "shop", **wrong)
        with pytest.raises(OffsetGone):
            await scene.bus.webhooks.replay("orders", "shop", first=-1)


async def test_deleting_ends_it_with_its_group_and_the_name_is_free(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.create(receiver)
        await scene.bus.publish("orders", b"1")
        await scene.until(lambda shown: shown.delivered == 1)
        assert (await scene.bus.webhooks.delete("orders", "shop")).deleted == "orders/shop"
        with pytest.raises(UnknownWebhook):
            await scene.show()
        with pytest.raises(UnknownGroup):
            await scene.bus.groups.show("orders", "webhook.shop")
        await scene.bus.publish("orders", b"2")
        made = await scene.bus.webhooks.create("orders", "shop", receiver.url, start="earliest")
        assert made.delivered == 0
        shown = await scene.until(lambda shown: shown.delivered == 2)
        assert shown.lag == 0
        assert sorted(receiver.bodies) == [b"1", b"1", b"2"]


async def test_a_topic_that_is_deleted_takes_its_webhooks_along(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.create(receiver, match=Match(key="eu"))
        await scene.bus.topics.create("reports")
        await scene.bus.webhooks.create("reports", "other", receiver.url)
        await scene.bus.topics.delete("orders")
        assert [row.topic for row in await scene.bus.webhooks.list()] == ["reports"]
        for collection in (core.COLLECTION, core.STATES):
            assert not (await scene.terminal.broker.documents.find(collection, "orders", "", "", 10))[0]
        await eventually(lambda: len(scene.senders.states) == 1)
        await scene.bus.publish("reports", b"1")
        await eventually(lambda: receiver.bodies == [b"1"])
        assert "orders" not in scene.terminal.broker.topics
        await scene.bus.publish("orders", b"2", key="eu")
        assert await scene.bus.groups.list(topic="orders") == []
        # The name is free.
        made = await scene.bus.webhooks.create("orders", "shop", receiver.url, start="earliest")
        assert made.delivered == 0
        await scene.until(lambda shown: shown.delivered == 1)


async def test_a_group_that_is_gone_is_not_made_by_the_sender(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_of, "AGAIN_AFTER", 0.01)
    monkeypatch.setattr(sending_of, "LONGEST_AGAIN", 0.01)
    async with Receiver() as receiver:
        await scene.create(receiver, match=Match(key="eu"))
        await scene.bus.groups.delete("orders", "webhook.shop")
        shown = await scene.until(lambda shown: shown.trouble)
        assert shown.lag is None
        assert "webhook.shop" in shown.trouble
        await scene.bus.publish("orders", b"early", key="eu")
        assert await scene.bus.groups.list(topic="orders") == []
        # Who makes it once more gets the group back, with its match.
        made = await scene.bus.webhooks.create("orders", "shop", receiver.url, match=Match(key="eu"))
        assert (made.secret, made.lag) == ("", 0)
        await scene.bus.publish("orders", b"us", key="us")
        await scene.bus.publish("orders", b"eu", key="eu")
        shown = await scene.until(lambda shown: shown.delivered == 1 and shown.lag == 0)
        assert (shown.trouble, receiver.bodies) == ("", [b"eu"])


@pytest.mark.parametrize("ordered", [False, True])
async def test_what_was_sent_is_noted_though_a_backlog_waits(timed: Scene, ordered: bool) -> None:
    answers = [says(500)]
    async with Receiver(lambda request: answers[0]) as receiver:
        await timed.create(receiver, ordered=ordered)
        await timed.bus.webhooks.pause("orders", "shop")
        for number in range(30):
            await timed.bus.publish("orders", b"%d" % number)
        await timed.bus.webhooks.resume("orders", "shop")
        shown = await timed.until(lambda shown: shown.circuit == "open" and not receiver.busy)
        # Every request has an attempt in the state on disk, and the group has counted each.
        assert shown.failed == len(receiver.requests) == (1 if ordered else gateway.CONCURRENCY)
        assert timed.clock
        answers[0] = OK
        timed.clock.advance(31)
        shown = await timed.until(lambda shown: shown.delivered == 30 and not shown.lag)
        assert set(receiver.bodies) == {b"%d" % number for number in range(30)}
        # What was taken is acked, also the one request with which the circuit closes: nothing comes twice.
        assert len(receiver.requests) == 30 + shown.failed


async def test_a_request_is_waited_for_also_where_reading_ends_by_itself_meanwhile(
    timed: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def hand_on(
        sender: sending_of.OutletSender, subscription: Any, width: int, sending: set[asyncio.Task[None]]
    ) -> None:
        """Ends in the same turn of the loop in which the circuit opens, as it may where more waits."""
        for _ in range(2):
            sending.add(asyncio.ensure_future(sender._deliver([await subscription.poll()])))
        await sender._close.wait()

    monkeypatch.setattr(sending_of.OutletSender, "_hand_on", hand_on)
    monkeypatch.setattr(outlet, "BREAK_AFTER", 1)
    async with Receiver(lambda request: HANG if request.body == b"slow" else says(500)) as receiver:
        await timed.create(receiver)
        await timed.bus.publish("orders", b"slow")
        await timed.bus.publish("orders", b"bad")
        shown = await timed.until(lambda shown: shown.failed == 2)
        assert (shown.circuit, [attempt.offset for attempt in shown.attempts]) == ("open", [0, 1])
        assert sorted(receiver.bodies) == [b"bad", b"slow"]


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_crash_of_the_sender_is_told_and_loses_no_message(
    crashes: list[Any], monkeypatch: pytest.MonkeyPatch, ordered: bool
) -> None:
    monkeypatch.setattr(sending_of, "AGAIN_AFTER", 0.01)
    broken = [True]

    def broken_id(id: str) -> str:
        if broken[0] and id == "bad":
            raise RuntimeError("a bug")
        return webhook_id(id)

    monkeypatch.setattr(gateway, "webhook_id", broken_id)
    async with staged(FakeClock()) as timed, Receiver() as receiver:
        await timed.create(receiver, ordered=ordered)
        for id in ("good", "bad", "after"):
            await timed.bus.publish("orders", id.encode(), id=id)
        await eventually(lambda: crashes)
        if not ordered:
            await timed.until(lambda shown: shown.delivered == 2)
        broken[0] = False
        assert timed.clock
        timed.clock.advance(6)
        await timed.until(lambda shown: shown.delivered == 3 and shown.lag == 0)
        assert sorted(receiver.bodies) == [b"after", b"bad", b"good"]
        if ordered:
            assert receiver.bodies == [b"good", b"bad", b"after"]
    assert {str(context["exception"]) for context in crashes} == {"a bug"}
    crashes.clear()


async def test_an_owner_that_is_suspended_removed_or_may_less_is_sent_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending_of, "AGAIN_AFTER", 0.01)
    monkeypatch.setattr(sending_of, "LONGEST_AGAIN", 0.01)
    services = scene.bus.services
    await services.register("shop", scopes=["subscribe:orders"])
    await scene.bus.topics.create("orders")
    async with Receiver() as receiver:
        async with attach(scene.terminal, subject="shop", scopes=["subscribe:orders"]) as shop:
            await shop.webhooks.create("orders", "shop", receiver.url)
        await scene.bus.publish("orders", b"0")
        await scene.until(lambda shown: shown.delivered == 1)
        await services.suspend("shop")
        await scene.until(lambda shown: shown.trouble)
        await scene.bus.publish("orders", b"1")
        await services.resume("shop")
        await scene.until(lambda shown: shown.delivered == 2 and not shown.trouble)
        await services.update("shop", scopes=["subscribe:invoices"])
        await scene.until(lambda shown: shown.trouble)
        await scene.bus.publish("orders", b"2")
        await services.update("shop", scopes=["subscribe:#"])
        await scene.until(lambda shown: shown.delivered == 3 and not shown.trouble)
        await services.remove("shop")
        await scene.until(lambda shown: shown.trouble)
        await scene.bus.publish("orders", b"3")
        assert (await scene.show()).lag == 1
        assert receiver.bodies == [b"0", b"1", b"2"]


async def test_who_may_do_what(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.bus.topics.create("orders")
        reads, other = ["subscribe:orders"], ["subscribe:orders"]
        async with (
            attach(scene.terminal, subject="shop", scopes=reads) as shop,
            attach(scene.terminal, subject="other", scopes=other) as stranger,
            attach(scene.terminal, subject="ops", scopes=["operate"]) as operator,
        ):
            made = await shop.webhooks.create("orders", "w", receiver.url)
            assert made.secret.startswith("whsec_")
            again = await shop.webhooks.create("orders", "w", receiver.url)
            assert (again.secret, again.owner) == ("", "shop")
            with pytest.raises(WebhookExists):
                await stranger.webhooks.create("orders", "w", receiver.url)
            for call in ("show", "test", "pause", "resume", "rotate", "delete"):
                with pytest.raises(Forbidden):
                    await getattr(stranger.webhooks, call)("orders", "w")
            with pytest.raises(Forbidden):
                await stranger.webhooks.update("orders", "w", url=receiver.url)
            with pytest.raises(Forbidden):
                await stranger.webhooks.replay("orders", "w", first=0)
            # An operator may not have somebody else's topic sent to him.
            with pytest.raises(Forbidden):
                await operator.webhooks.update("orders", "w", url=receiver.url)
            assert (await operator.webhooks.pause("orders", "w")).state == "paused"
            assert (await operator.webhooks.resume("orders", "w")).state == "active"
            with pytest.raises(Forbidden):
                await shop.documents.read("$webhooks", "w", topic="orders")


async def test_the_number_of_webhooks_is_bounded_and_queues_that_settle_early_have_none(
    crashes: list[Any],
) -> None:
    async with staged(limits=Limits(max_webhooks=2), store=MemoryStore(units=4)) as scene, Receiver() as r:
        for name in ("a", "b"):
            await scene.bus.topics.create(name)
            await scene.bus.webhooks.create(name, "w", r.url)
        with pytest.raises(LimitReached):
            await scene.bus.webhooks.create("a", "x", r.url)
        await scene.bus.publish("b", b"1")
        await eventually(lambda: r.requests)
        await scene.bus.topics.create("q", kind="queue", delivery="at-most-once")
        with pytest.raises(BadRequest, match="settles a message"):
            await scene.bus.webhooks.create("q", "w", r.url)


async def test_a_rate_is_kept(scene: Scene) -> None:
    async with Receiver() as receiver:
        await scene.create(receiver, rate=1000.0)
        for number in range(20):
            await scene.bus.publish("orders", b"%d" % number)
        await scene.until(lambda shown: shown.delivered == 20)
