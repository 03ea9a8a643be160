"""Middleware: what becomes of batches on their way into a topic and out of it, through every door."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any

import msgspec
import pytest

from landbridge.broker import transforms
from landbridge.broker.keys import TopicKeys
from landbridge.broker.server import Terminal
from landbridge.core.log import record
from landbridge.core.log.batch import Batch, build
from landbridge.core.middleware.redact import Redaction
from landbridge.core.middleware.rows import BatchRows
from landbridge.core.middleware.spec import RedactStage
from landbridge.core.middleware.transform import GROUP, Transform, TransformRow
from landbridge.errors import (
    BadPayload,
    BadRequest,
    Forbidden,
    InvalidMessage,
    MiddlewareFailed,
    SchemaIncompatible,
    ShuttingDown,
    TooLarge,
    TooOld,
    UnknownType,
)
from landbridge.protocol import frames
from landbridge.stores.memory import MemoryStore
from landbridge.testing import attach, run_terminal
from tests.waiting import eventually, until

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "name": {"type": "string"}},
    "required": ["id"],
}
VALIDATE: Any = {"stage": "validate"}
COMPRESS: Any = {"stage": "compress"}


async def read(bus: Any, topic: str, count: int, group: str = "g") -> list[Any]:
    """So many messages of a topic, acked."""
    found = []
    async for message in bus.subscribe(topic, group=group):
        found.append(message)
        await message.ack(wait=True)
        if len(found) == count:
            return found
    raise AssertionError("the subscription has ended")


def end(terminal: Terminal, topic: str) -> int:
    return terminal.broker.topics[topic].log.end


# -- validate ------------------------------------------------------------------------------------------


@pytest.fixture
async def orders(bus: Any) -> Any:
    """A bus with a topic that checks its messages."""
    await bus.topics.create("orders", middleware=[VALIDATE])
    await bus.types.register("orders", "default", schema=ORDER)
    return bus


async def test_a_refused_message_names_its_index_and_field(terminal: Terminal, orders: Any) -> None:
    with pytest.raises(InvalidMessage) as refused:
        async with orders.publisher("orders") as out:
            await out.send_many([{"id": 1}, {"id": 2, "name": 3}, {"id": 4}])
    assert (refused.value.index, refused.value.field) == (1, "/name")
    assert "message 1 of the batch, /name" in str(refused.value)
    assert "string" in str(refused.value)
    assert end(terminal, "orders") == 0, "the whole batch is refused"
    with pytest.raises(InvalidMessage) as missing:
        await orders.publish("orders", {"name": "x"})
    assert missing.value.field == "/id"
    with pytest.raises(InvalidMessage, match="no JSON"):
        await orders.publish("orders", b"{")
    assert (await orders.publish("orders", {"id": 1})).offset == 0


async def test_after_a_refusal_the_producer_goes_on(terminal: Terminal, orders: Any) -> None:
    good = await asyncio.gather(
        *(orders.publish("orders", {"id": "bad" if n == 3 else n}) for n in range(8)), return_exceptions=True
    )
    assert [n for n, each in enumerate(good) if isinstance(each, InvalidMessage)] == [3]
    # The synchronous bus is called from several threads here, in whatever order.
    assert sorted(m.json()["id"] for m in await read(orders, "orders", 7)) == [0, 1, 2, 4, 5, 6, 7]


async def test_a_message_names_its_type_and_version(terminal: Terminal, orders: Any) -> None:
    await orders.types.register("orders", "order.paid", schema={"required": ["paid"]})
    await orders.types.register("orders", "order.paid", schema={"required": []})
    with pytest.raises(InvalidMessage) as refused:
        await orders.publish("orders", {}, headers={"type": "order.paid", "type-version": "1"})
    assert refused.value.field == "/paid"
    await orders.publish("orders", {}, headers={"ce-type": "order.paid"})
    with pytest.raises(InvalidMessage, match="there is no version 7") as unknown:
        await orders.publish("orders", {}, headers={"type": "order.paid", "type-version": 7})
    assert unknown.value.field == "headers/type-version"
    assert unknown.value.hint == "these versions are there: 1, 2"
    with pytest.raises(
        InvalidMessage, match=r"headers/type: the topic doesn't list the type 'order\.lost'"
    ) as unlisted:
        await orders.publish("orders", {}, headers={"type": "order.lost"})
    assert "default, order.paid" in unlisted.value.hint
    await orders.topics.update("orders", middleware=[{**VALIDATE, "unlisted": "accept"}])
    await orders.publish("orders", b"no JSON at all", headers={"type": "order.lost"})
    with pytest.raises(InvalidMessage, match="version 7"):
        await orders.publish("orders", {}, headers={"type": "order.paid", "type-version": 7})
    assert end(terminal, "orders") == 2


async def test_a_new_version_takes_what_the_one_before_takes(orders: Any) -> None:
    wider = {**ORDER, "properties": {**ORDER["properties"], "note": {"type": "string"}}}
    assert (await orders.types.register("orders", "default", schema=wider)).versions == [1, 2]
    assert (await orders.types.register("orders", "default", schema=wider)).versions == [1, 2], "no change"
    with pytest.raises(SchemaIncompatible, match=r"version 2: at /name: it is required now"):
        await orders.types.register("orders", "default", schema={**wider, "required": ["id", "name"]})
    strict = {**wider, "required": ["id", "name"]}
    await orders.types.register("orders", "default", schema=strict, compatibility="none")
    with pytest.raises(InvalidMessage):
        await orders.publish("orders", {"id": 1})
    await orders.types.remove("orders", "default", version=3)
    await orders.publish("orders", {"id": 1})
    assert (
        await orders.types.register("orders", "default", schema=strict, compatibility="none")
    ).versions == [1, 2, 4]


async def test_types_are_listed_shown_and_removed(orders: Any) -> None:
    await orders.types.register("orders", "order.paid", schema=True, description="somebody has paid")
    rows = (await orders.types.list("orders")).types
    assert [(row.name, row.description, row.versions) for row in rows] == [
        ("default", "", [1]),
        ("order.paid", "somebody has paid", [1]),
    ]
    shown = await orders.types.show("orders", "default")
    assert (shown.schema, shown.schemas[0].registered_by) == (ORDER, "test")
    await orders.types.remove("orders", "order.paid")
    with pytest.raises(UnknownType):
        await orders.types.show("orders", "order.paid")
    with pytest.raises(UnknownType):
        await orders.types.remove("orders", "../x")
    with pytest.raises(BadRequest, match="nothing is fetched"):
        await orders.types.register("orders", "x", schema={"$ref": "https://example.com/schema.json"})


async def test_types_go_with_their_topic_and_stay_after_a_restart(crashes: list[Any]) -> None:
    store = MemoryStore(units=4)
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[VALIDATE, COMPRESS])
        await bus.types.register("orders", "default", schema=ORDER)
        await bus.publish("orders", {"id": 1, "name": "a" * 1000})
    async with run_terminal(store) as terminal, attach(terminal) as bus:
        with pytest.raises(InvalidMessage):
            await bus.publish("orders", {})
        (message,) = await read(bus, "orders", 1)
        assert message.json() == {"id": 1, "name": "a" * 1000}
        await bus.topics.delete("orders", force=True)
        await bus.topics.create("orders", middleware=[VALIDATE])
        assert (await bus.types.list("orders")).types == []


@pytest.mark.parametrize(
    ("middleware", "text"),
    [
        ([{"stage": "polish"}], "invalid value 'polish'"),
        ([COMPRESS, VALIDATE], "not the last stage"),
        ([VALIDATE, VALIDATE], "twice"),
        ([{**COMPRESS, "level": 40}], "level 40"),
        ([{"stage": "redact"}], "nothing is named"),
        ([{"stage": "redact", "fields": ["card"]}], "no JSON pointer"),
        ([{"stage": "redact", "patterns": ["("]}], "the pattern"),
        ([{"stage": "redact", "fields": ["/a"], "except_groups": ["g"]}], "except_groups"),
        ([{"stage": "authorise", "claims": ["shoe.size"]}], "no claim"),
        ([{"stage": "transform", "use": "nobody.has.it"}], "no entry point"),
        ([VALIDATE] * 17, "17 stages"),
    ],
)
async def test_wrong_settings_are_refused(terminal: Terminal, middleware: list[Any], text: str) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders")
        with pytest.raises(BadRequest, match=text):
            await bus.call("topic.update", name="orders", middleware=middleware)
        with pytest.raises(BadRequest, match=text):
            await bus.call("topic.create", name="others", middleware=middleware)
        assert (await bus.topics.show("orders")).options.middleware == ()
        assert "others" not in terminal.broker.topics


async def test_a_repeat_is_answered_as_before_whatever_the_middleware_says_now(terminal: Terminal) -> None:
    """A batch that was stored comes again, from the same producer with the same number."""
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[VALIDATE])
        await bus.types.register("orders", "default", schema=True)
        batch = build([b'{"id": 1}'], id=b"i" * 16, time=1)
        publish = lambda request: frames.Publish(request, "orders", b"producer", 1, 0, 1)  # noqa: E731
        first = await bus.ask_patiently(publish, batch)
        once = await bus.publish("orders", {"id": 1}, idempotency_key="k-1")
        await bus.types.register("orders", "default", schema=False, compatibility="none")
        counts = terminal.broker.middleware.counts_of("orders")["validate"]
        worked = counts.messages
        assert (await bus.ask_patiently(publish, batch)).first == first.first
        again = await bus.publish("orders", {"id": 1}, idempotency_key="k-1")
        assert (again.offset, again.repeated) == (once.offset, True)
        assert (counts.messages, counts.refused) == (worked, 0), "a repeat isn't worked on"
        with pytest.raises(InvalidMessage):
            await bus.publish("orders", {"id": 1}, idempotency_key="k-2")
        with pytest.raises(InvalidMessage):
            await bus.ask_patiently(lambda r: frames.Publish(r, "orders", b"producer", 2, 1, 1), batch)
        assert end(terminal, "orders") == 2


async def test_what_is_forgotten_while_it_waits_is_not_stored_past_the_stages(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The chain passes over a batch that is stored already; when its commit is formed it may be forgotten."""
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[VALIDATE])
        await bus.types.register("orders", "default", schema=False)
        monkeypatch.setattr(TopicKeys, "has", lambda self, name: True)
        with pytest.raises(TooOld):
            await bus.publish("orders", {"id": 1}, idempotency_key="k-1")
        assert end(terminal, "orders") == 0
        with pytest.raises(InvalidMessage):
            await bus.publish("orders", {"id": 1})


async def test_a_refused_output_refuses_its_transaction(terminal: Terminal, orders: Any) -> None:
    await orders.publish("in", b"1")
    async for message in orders.subscribe("in", group="g"):
        with pytest.raises(InvalidMessage):
            async with orders.transaction() as t:
                await t.publish("other", b"x")
                await t.publish("orders", {"id": "x"})
                await t.ack(message)
        assert "other" not in terminal.broker.topics or end(terminal, "other") == 0
        async with orders.transaction() as t:
            await t.publish("orders", {"id": 5})
            await t.ack(message)
        break
    assert end(terminal, "orders") == 1


async def test_events_and_staged_rows_go_through_the_middleware(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[VALIDATE, COMPRESS])
        await bus.types.register("orders", "default", schema=ORDER)
        with pytest.raises(InvalidMessage):
            await bus.trigger("orders", {"id": "x"})
        await bus.trigger("orders", {"id": 1})
        good = build([b'{"id": %d, "name": "%s"}' % (n, b"n" * 300) for n in range(50)], id=b"i" * 16, time=1)
        bad = build([b"{}"], id=b"j" * 16, time=1)
        stage = await bus.ask_patiently(lambda request: frames.Stage(request, "s", "orders"), good)
        log, at = stage.result
        with pytest.raises(InvalidMessage):
            await bus.ask_patiently(lambda request: frames.Stage(request, "s", "orders"), bad)
        await bus.stages.commit("s", number=0, log=log, runs=[("orders", [(at, at + 50)])])
        assert end(terminal, "orders") == 51
        assert terminal.broker.topics["orders"].log.bytes < 3000
        terminal.broker.topics["orders"].log.forget()
        assert [message.json()["id"] for message in await read(bus, "orders", 51)] == [1, *range(50)]


async def test_settings_change_while_messages_are_on_their_way(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders")
        await bus.types.register("orders", "default", schema=True)
        async with bus.publisher("orders") as out:
            for n in range(30):
                await out.send_many([{"n": n * 100 + k} for k in range(100)])
                await bus.topics.update("orders", middleware=[VALIDATE, COMPRESS] if n % 2 else [])
        await bus.topics.update("orders", middleware=[])
        await eventually(lambda: terminal.broker.topics["orders"].chain is None)
        assert [message.json()["n"] for message in await read(bus, "orders", 3000)] == list(range(3000))


async def test_requests_go_through_the_middleware_as_well(terminal: Terminal) -> None:
    stages: Any = [
        {"stage": "authorise"},
        VALIDATE,
        {"stage": "redact", "fields": ["/pin"], "at": "deliver", "except_groups": ["quotes"]},
    ]
    async with attach(terminal) as bus, attach(terminal, subject="shop") as shop:
        await bus.topics.create("quote", middleware=stages)
        await bus.types.register("quote", "default", schema=ORDER)
        async with bus.subscribe("quote", group="quotes", reply=True) as asked:
            answering = asyncio.ensure_future(answer(asked))
            reply = await shop.request("quote", {"id": 1, "pin": 7}, headers={"lb-producer": "root", "n": 1})
            said = {"n": 1, "lb-producer": "shop"}
            assert reply.json() == [{"id": 1, "pin": "[redacted]"}, said]
            sent = await shop.requests.send("quote", {"id": 2})
            assert sent.value == [{"id": 2}, {"lb-producer": "shop"}]
            with pytest.raises(InvalidMessage) as refused:
                await shop.request("quote", {"id": "x"})
            assert refused.value.field == "/id"
            with pytest.raises(InvalidMessage):
                await shop.requests.send("quote", {})
            answering.cancel()


async def answer(asked: Any) -> None:
    """Reply with the payload and the headers of each request."""
    async for message in asked:
        await message.reply([message.json(), message.headers])


async def test_a_chain_without_stages_stays_until_nothing_is_under_way(terminal: Terminal) -> None:
    """A later batch must not come past one that the chain has taken from its queue."""
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[COMPRESS])
        chain = terminal.broker.topics["orders"].chain
        assert chain is not None
        batch = Batch.decode(build([b"x" * 500_000], id=b"i" * 16, time=1))
        running = asyncio.ensure_future(chain.run(batch, next(iter(terminal.connections))))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert chain.change(()) is not running.done()
        await running
        await eventually(lambda: not chain.change(()))


async def test_a_terminal_that_ends_tells_who_waits(crashes: list[Any]) -> None:
    async with run_terminal() as terminal:
        bus = await attach(terminal).open()
        await bus.topics.create("orders", middleware=[COMPRESS])
        chain = terminal.broker.topics["orders"].chain
        assert chain is not None
        batches = [Batch.decode(build([b"x" * 500_000], id=bytes(16), time=1)) for _ in range(100)]
        connection = next(iter(terminal.connections))
        waiting = [asyncio.ensure_future(chain.run(batch, connection)) for batch in batches]
        await asyncio.sleep(0)
    ended = await asyncio.gather(*waiting)
    assert isinstance(ended[-1], ShuttingDown)
    await bus.close()


# -- compress ------------------------------------------------------------------------------------------


async def test_compressed_topics_read_like_others(terminal: Terminal) -> None:
    payloads = [msgspec.json.encode({"id": n, "text": "lorem ipsum " * 20}) for n in range(3000)]
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[COMPRESS])
        await bus.topics.create("plain")
        for topic in ("orders", "plain"):
            async with bus.publisher(topic) as out:
                for n, payload in enumerate(payloads):
                    await out.send(payload, key=f"k{n % 3}", priority=n % 10, headers={"n": n})
        logs = [terminal.broker.topics[topic].log for topic in ("orders", "plain")]
        assert logs[0].bytes * 5 < logs[1].bytes
        for log in logs:
            log.forget()  # they are read from the store
        for discipline in ("fifo", "lifo", "priority"):
            seen = []
            for topic in ("orders", "plain"):
                await bus.groups.create(topic, discipline, discipline=discipline)
                found = []
                async for message in bus.subscribe(topic, group=discipline, prefetch=200):
                    found.append((message.payload, message.key, message.priority, message.headers))
                    await message.ack()
                    if len(found) == len(payloads):
                        break
                seen.append(found)
            assert seen[0] == seen[1]
        fetched = await bus.fetch("orders", 1000)
        assert fetched.batches[0].batch.payload(0) in payloads


async def test_what_is_damaged_or_too_large_is_refused(terminal: Terminal) -> None:
    """A record that promises less than it holds, or more than a batch may be."""
    batch = Batch.decode(build([b"0" * 5_000_000], id=b"i" * 16, time=1))
    from landbridge.core.log.packing import MOST, pack, unpack
    from landbridge.errors import BadFrame

    pack(batch, 1)
    assert batch.packed is not None
    assert len(batch.packed) < 5000
    good = bytes(record.wrap(batch))
    assert record.unwrap(good).payload(0) == b"0" * 5_000_000
    with pytest.raises(BadFrame, match="its record says 10"):
        unpack(batch.packed, 10)
    with pytest.raises(BadFrame, match="allowed are"):
        unpack(batch.packed, MOST + 1)
    for at in range(0, len(batch.packed), 7):
        broken = bytearray(batch.packed)
        broken[at] ^= 0x55
        try:
            unpack(bytes(broken), batch.size)
        except BadFrame:
            pass
    with pytest.raises(BadFrame):
        unpack(batch.packed[:-1], batch.size)
    with pytest.raises(BadFrame):
        unpack(batch.packed + b"more", batch.size)


async def test_redriven_messages_are_compressed_and_not_checked_again(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[VALIDATE, COMPRESS])
        await bus.types.register("orders", "default", schema=True)
        await bus.publish("orders", {"text": "x" * 2000})
        async for message in bus.subscribe("orders", group="g"):
            await message.bury("no")
            break
        await eventually(
            lambda: "orders.dead" in terminal.broker.topics and end(terminal, "orders.dead") == 1
        )
        await bus.types.register("orders", "default", schema=False, compatibility="none")
        assert (await bus.groups.redrive("orders", "g")).redriven == 1
        assert terminal.broker.topics["orders"].log.bytes < 1000
        (message,) = await read(bus, "orders", 1)
        assert message.json() == {"text": "x" * 2000}


# -- authorise -----------------------------------------------------------------------------------------


async def test_messages_say_who_has_published_them(terminal: Terminal) -> None:
    stage: Any = {"stage": "authorise", "claims": ["owner", "metadata.team", "customer"], "payload": "by"}
    async with attach(terminal) as admin:
        await admin.topics.create("orders", middleware=[stage])
        await admin.services.register(
            "shop", scopes=["publish:orders"], owner="Ann", metadata={"team": "sales"}
        )
        made = await admin.tokens.create("shop", ["publish:orders"])
        async with attach(terminal, token=made.token) as shop:
            forged: Any = {"lb-producer": "root", "LB-Claim-owner": "Eve", "n": 1}
            await shop.publish("orders", {"id": 1}, headers=forged)
            await shop.publish("orders", {"id": 2})
            with pytest.raises(InvalidMessage, match="no JSON object"):
                await shop.publish("orders", [1])
        one, two = await read(admin, "orders", 2)
        says = {"lb-producer": "shop", "lb-claim-owner": "Ann", "lb-claim-metadata.team": "sales"}
        assert (one.headers, two.headers) == ({"n": 1, **says}, says)
        by = {"subject": "shop", "owner": "Ann", "metadata.team": "sales"}
        assert (one.json(), two.json()) == ({"id": 1, "by": by}, {"id": 2, "by": by})


async def test_claims_can_be_demanded(terminal: Terminal) -> None:
    stage: Any = {"stage": "authorise", "require": {"metadata.team": ["sales", "billing"], "owner": []}}
    async with attach(terminal) as admin:
        await admin.topics.create("orders", middleware=[stage])
        services: list[tuple[str, dict[str, Any]]] = [
            ("good", {"owner": "Ann", "metadata": {"team": "sales"}}),
            ("other", {"owner": "Ann", "metadata": {"team": "fraud"}}),
            ("none", {}),
        ]
        for name, options in services:
            await admin.services.register(name, scopes=["publish:orders"], **options)
            made = await admin.tokens.create(name, ["publish:orders"])
            async with attach(terminal, token=made.token) as bus:
                if name == "good":
                    await bus.publish("orders", b"x")
                else:
                    with pytest.raises(Forbidden, match=r"metadata\.team"):
                        await bus.publish("orders", b"x")
        assert end(terminal, "orders") == 1


# -- redact --------------------------------------------------------------------------------------------

PAY = {
    "card": {"number": "4111 1111", "cvc": "123"},
    "lines": [{"tax": 1}, {"tax": 2}],
    "mail": "a@b.example",
}


async def test_fields_headers_and_patterns_are_redacted_before_storing(terminal: Terminal) -> None:
    stages: list[Any] = [
        {"stage": "redact", "fields": ["/card/cvc", "/lines/*/tax"], "replacement": None},
        {"stage": "redact", "headers": ["x-ip"], "patterns": [r"[a-z]+@[a-z.]+"], "replacement": r"\0"},
    ]
    async with attach(terminal) as bus:
        await bus.topics.create("pay", middleware=stages)
        await bus.publish("pay", PAY, headers={"X-IP": "10.0.0.1", "from": "b@c.example", "n": 1})
        (message,) = await read(bus, "pay", 1)
        assert message.json() == {"card": {"number": "4111 1111"}, "lines": [{}, {}], "mail": r"\0"}
        assert message.headers == {"X-IP": r"\0", "from": r"\0", "n": 1}
        with pytest.raises(InvalidMessage, match="no JSON"):
            await bus.publish("pay", b"4111 1111")


async def test_redaction_before_delivery_spares_the_groups_that_are_named(terminal: Terminal) -> None:
    stage: Any = {"stage": "redact", "fields": ["/card"], "at": "deliver", "except_groups": ["fraud"]}
    async with attach(terminal) as bus:
        await bus.topics.create("pay", middleware=[COMPRESS, stage])
        await bus.publish("pay", PAY)
        await bus.publish("pay", b"4111 1111")
        full = await read(bus, "pay", 2, "fraud")
        assert (full[0].json(), full[1].payload) == (PAY, b"4111 1111")
        less = await read(bus, "pay", 2, "mail")
        assert less[0].json() == {**PAY, "card": "[redacted]"}
        assert less[1].payload == b"[redacted]"
        fetched = await bus.fetch("pay", 0)
        assert b"4111" not in b"".join(each.batch.encode() for each in fetched.batches)
        # A dead letter has what the group's consumers had.
        await bus.groups.seek("pay", "mail", to="earliest")
        async for message in bus.subscribe("pay", group="mail"):
            await message.bury("no")
            break
        await eventually(lambda: "pay.dead" in terminal.broker.topics and end(terminal, "pay.dead") == 1)
        (letter,) = await read(bus, "pay.dead", 1)
        assert b"4111" not in letter.payload
        # One that was buried before there was a redaction comes back without what is redacted now.
        await bus.groups.seek("pay", "fraud", to="earliest")
        async for message in bus.subscribe("pay", group="fraud"):
            await message.bury("no")
            break
        await eventually(lambda: end(terminal, "pay.dead") == 2)
        await bus.topics.update("pay", middleware=[RedactStage(fields=("/card",), at="deliver")])
        assert (await bus.groups.redrive("pay", "fraud")).redriven == 1
        assert [b"4111" in each.payload for each in await read(bus, "pay", 2, "fraud")] == [False, False]
        await bus.topics.update("pay", middleware=[])
        await bus.groups.seek("pay", "mail", to="earliest")
        assert (await read(bus, "pay", 1, "mail"))[0].json() == PAY


# -- transform -----------------------------------------------------------------------------------------

STUCK = threading.Event()


def make_transform(options: Mapping[str, Any]) -> Transform:
    """The entry point of these tests: does what its options say."""
    if options.get("broken"):
        raise ValueError("it can't be made")

    def transform(rows: list[TransformRow]) -> list[TransformRow] | None:
        if (what := options["do"]) == "raise":
            raise KeyError("amount")
        if what == "wait":
            STUCK.wait(20)
        if what == "lose":
            return rows[1:]
        if what == "text":
            rows[0].payload = "text"  # type: ignore[assignment]
        if what == "refuse":
            raise BadPayload("not on a Sunday")
        if what == "grow":
            for row in rows:
                row.payload *= 1000
        for row in rows:
            if what == "count":
                row.set_json({**row.json(), "size": len(rows)})
                row.headers["by"] = row.topic
            if what == "key":
                row.key = b"k"
        return None

    return transform


@pytest.fixture
def entry_point(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    entry = EntryPoint("shop.do", "tests.contracts.test_middleware:make_transform", GROUP)
    monkeypatch.setattr(EntryPoint, "load", lambda self: make_transform)
    monkeypatch.setattr(transforms, "entry_points", lambda group: EntryPoints([entry]))
    STUCK.clear()
    yield
    STUCK.set()


def transform(do: str, **options: Any) -> Any:
    return {"stage": "transform", "use": "shop.do", "options": {"do": do}, **options}


@pytest.mark.usefixtures("entry_point")
async def test_a_transform_changes_messages(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[transform("count"), transform("key"), VALIDATE])
        await bus.types.register("orders", "default", schema={"required": ["size"]})
        async with bus.publisher("orders") as out:
            await out.send_many([{"id": 1}, {"id": 2}])
        one, two = await read(bus, "orders", 2)
        assert (one.json(), two.json()) == ({"id": 1, "size": 2}, {"id": 2, "size": 2})
        assert (one.headers, one.key) == ({"by": "orders"}, "k")
        assert one.id.rpartition("-")[2] == "0", "a message keeps its id"


@pytest.mark.usefixtures("entry_point")
async def test_a_transform_that_fails_refuses_its_batch(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        for do, text in (
            ("raise", r"has raised KeyError: 'amount' \(test_middleware\.py, line \d+\)"),
            ("lose", "given 1 message and has returned 0 rows"),
            ("text", "something else than rows"),
        ):
            await bus.topics.create(f"orders.{do}", middleware=[transform(do)])
            with pytest.raises(MiddlewareFailed, match=text):
                await bus.publish(f"orders.{do}", b"x")
        await bus.topics.create("orders.json", middleware=[transform("count")])
        async with bus.publisher("orders.json") as out:
            with pytest.raises(
                InvalidMessage, match="message 1 of the batch: the payload is no JSON"
            ) as no_json:
                await out.send_many([{}, b"no JSON"])
                await out.flush()
        assert (no_json.value.index, end(terminal, "orders.json")) == (1, 0)
        await bus.topics.create("orders", middleware=[transform("refuse")])
        with pytest.raises(BadPayload, match="Sunday"):
            await bus.publish("orders", b"x")
        await bus.topics.update("orders", middleware=[transform("grow")])
        with pytest.raises(TooLarge):
            await bus.publish("orders", b"x" * 5000)
        await bus.publish("orders", b"x")
        assert end(terminal, "orders") == 1
        with pytest.raises(MiddlewareFailed, match="can't be made: ValueError"):
            broken: Any = {"stage": "transform", "use": "shop.do", "options": {"broken": True}}
            await bus.topics.update("orders", middleware=[broken])


@pytest.mark.usefixtures("entry_point")
async def test_a_transform_has_a_budget_of_time_and_holds_nobody_else_up(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("slow", middleware=[transform("wait", within=0.05)])
        await bus.topics.create("quick", middleware=[transform("count", within=10)])
        for _ in range(transforms.MOST_STUCK):
            with pytest.raises(MiddlewareFailed, match=r"more than 0\.05 s for 1 message"):
                await bus.publish("slow", b"x")
            await bus.publish("quick", {"id": 1})
        with pytest.raises(MiddlewareFailed, match="have not come back"):
            await bus.publish("slow", b"x")
        STUCK.set()

        async def goes_on() -> bool:
            try:
                await bus.publish("slow", b"x")
            except MiddlewareFailed:
                return False
            return True

        await until(goes_on)


@pytest.mark.usefixtures("entry_point")
async def test_a_transform_before_delivery_works_once_for_groups_that_share_it(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[transform("count", at="deliver")])
        await bus.publish("orders", {"id": 1})
        for group in ("a", "b"):
            (message,) = await read(bus, "orders", 1, group)
            assert message.json() == {"id": 1, "size": 1}
        assert terminal.broker.middleware.counts_of("orders")["transform"].messages == 1
        # A failure stops the groups and loses nothing.
        await bus.publish("orders", b"x" * 5000)
        await bus.topics.update("orders", middleware=[transform("grow", at="deliver")])
        with pytest.raises(TooLarge):
            await read(bus, "orders", 1, "a")
        await bus.topics.update("orders", middleware=[])
        await read(bus, "orders", 1, "a")
        for what in ("raise", "key"):
            await bus.topics.update("orders", middleware=[transform(what, at="deliver")])
            if what == "raise":
                await bus.publish("orders", {"id": 2})
            with pytest.raises(MiddlewareFailed):
                await read(bus, "orders", 1, "a")
        await bus.topics.update("orders", middleware=[])
        assert [message.json() for message in await read(bus, "orders", 1, "a")] == [{"id": 2}]


@pytest.mark.usefixtures("entry_point")
async def test_what_a_stage_needs_may_be_missing(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[transform("count")])
        await bus.topics.create("checked", middleware=[VALIDATE])
        await bus.topics.create("packed", middleware=[])
        monkeypatch.setattr(transforms, "entry_points", lambda group: EntryPoints([]))
        monkeypatch.setitem(sys.modules, "jsonschema_rs", None)
        monkeypatch.setitem(sys.modules, "zstandard", None)
        with pytest.raises(MiddlewareFailed, match="no entry point") as missing:
            await bus.publish("orders", {"id": 1})
        assert "entry point of the group" in missing.value.hint
        for stage, text in ((VALIDATE, "jsonschema-rs"), (COMPRESS, "zstandard")):
            with pytest.raises(MiddlewareFailed, match=text) as missing:
                await bus.topics.update("packed", middleware=[stage])
            assert "pip install" in missing.value.hint
        with pytest.raises(MiddlewareFailed, match="jsonschema-rs"):
            await bus.types.register("checked", "default", schema=True)


# -- beside others -------------------------------------------------------------------------------------


async def test_a_chain_shares_the_loop_with_others(terminal: Terminal) -> None:
    """While a large batch is checked, the loop has many turns."""
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[VALIDATE])
        await bus.types.register("orders", "default", schema=ORDER)
        payloads = [b'{"id": 1, "name": "%s"}' % (b"n" * 100)] * 4000
        chain = terminal.broker.topics["orders"].chain
        assert chain is not None
        counting = asyncio.ensure_future(count_turns())
        batch = Batch.decode(build(payloads, id=b"i" * 16, time=1))
        outcome = await chain.run(batch, next(iter(terminal.connections)))
        counting.cancel()
        assert outcome is batch
        assert turns >= 3


async def test_a_large_message_is_looked_at_in_a_thread(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can't be divided, and would hold everybody."""
    threads: list[bool] = []
    work = Redaction.work

    def watched(self: Redaction, rows: BatchRows, lo: int, hi: int) -> None:
        threads.append(threading.current_thread() is threading.main_thread())
        work(self, rows, lo, hi)

    monkeypatch.setattr(Redaction, "work", watched)
    async with attach(terminal) as bus:
        await bus.topics.create("orders", middleware=[RedactStage(patterns=("4[0-9]+",))])
        await bus.publish("orders", ["card 4111"] * 50_000)
        await bus.publish("orders", ["card 4111"])
        large, small = await read(bus, "orders", 2)
        assert large.json() == ["card [redacted]"] * 50_000
        assert small.json() == ["card [redacted]"]
        assert threads == [False, True]
        await bus.topics.update("orders", middleware=[VALIDATE])
        await bus.types.register("orders", "default", schema={"items": {"type": "integer"}})
        with pytest.raises(InvalidMessage):
            await bus.publish("orders", ["x"] * 50_000)


async def test_figures_of_stages_are_in_the_metrics(orders: Any) -> None:
    await orders.publish("orders", {"id": 1})
    with pytest.raises(InvalidMessage):
        await orders.publish("orders", {})
    text = await orders.terminal.metrics()
    labels = '{stage="validate",topic="orders"}'
    assert f"landbridge_middleware_messages_total{labels} 1.0" in text
    assert f"landbridge_middleware_refused_batches_total{labels} 1.0" in text
    assert f"landbridge_middleware_seconds_total{labels}" in text


async def test_nothing_is_made_for_topics_without_middleware(terminal: Terminal) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"x")
        topic = terminal.broker.topics["orders"]
        assert topic.chain is None
        assert topic.views is None
        assert topic.reader_for("g") is topic.log
