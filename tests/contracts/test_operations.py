"""The client's typed methods, over every way to reach a terminal."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

import pytest

import landbridge
import landbridge.sync
from landbridge.broker.operations import topics
from landbridge.broker.server import Terminal
from landbridge.client.nouns import NOUNS, Method
from landbridge.errors import BadRequest, Forbidden, TopicExists, UnknownTopic
from landbridge.protocol.operations import OPERATIONS, Operation, RetentionOptions
from landbridge.testing import attach


def methods() -> dict[str, Any]:
    return {
        f"{noun}.{name}": found
        for noun, kind in NOUNS.items()
        for name, found in vars(kind).items()
        if isinstance(found, Method)
    }


def test_every_operation_has_a_typed_method() -> None:
    assert {method._operation.name for method in methods().values()} == set(OPERATIONS)


async def test_topics(bus: Any) -> None:
    made = await bus.topics.create("orders", retention=RetentionOptions(max_age=60.0))
    assert (made.name, made.kind, made.messages, made.groups) == ("orders", "stream", 0, 0)
    await bus.topics.update("orders", retention=RetentionOptions(max_bytes=1000))
    await bus.publish("orders", b"1")
    shown = await bus.topics.show("orders")
    assert (shown.end, shown.options.retention.max_age, shown.options.retention.max_bytes) == (1, 60.0, 1000)
    there = (await bus.topics.wait({"orders": 0}))["orders"]
    assert (there.first, there.end, there.log) == (0, 1, shown.log)
    assert await bus.topics.seek_time({"orders": 0}) == {"orders": 0}
    with pytest.raises(TopicExists):
        await bus.topics.create("orders", kind="queue")
    assert (await bus.topics.delete("orders")).deleted == "orders"
    with pytest.raises(UnknownTopic):
        await bus.topics.show("orders")


async def test_changes_of_a_topic_at_the_same_time_all_happen(bus: Any) -> None:
    await bus.topics.create("orders")
    await asyncio.gather(
        bus.topics.update("orders", retention={"max_age": 5.0}),
        bus.topics.update("orders", ids="unique"),
        bus.topics.update("orders", retention={"max_bytes": 7_000}),
    )
    options = (await bus.topics.show("orders")).options
    assert (options.ids, options.retention.max_age, options.retention.max_bytes) == ("unique", 5.0, 7_000)


async def test_a_topic_that_is_changed_while_it_is_deleted_stays_deleted(
    terminal: Terminal, bus: Any
) -> None:
    await bus.topics.create("orders")
    await asyncio.gather(
        bus.topics.delete("orders"), bus.topics.update("orders", ids="unique"), return_exceptions=True
    )
    stored = [await terminal.store.documents(unit, "topic") for unit in range(terminal.store.units)]
    assert "orders" not in [name for documents in stored for name, _ in documents]


async def test_lists_come_whole(bus: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topics, "PAGE", 2)
    for number in range(5):
        await bus.topics.create(f"t{number}")
        await bus.groups.create("t0", f"g{number}")
    assert [row.name for row in await bus.topics.list(after="$status")] == [f"t{n}" for n in range(5)]
    assert [row.name for row in await bus.topics.list(after="t2")] == ["t3", "t4"]
    assert len(await bus.groups.list(topic="t0")) == 5


async def test_groups(bus: Any) -> None:
    for number in range(4):
        await bus.publish("orders", b"%d" % number)
    made = await bus.groups.create("orders", "g", offset=1, match={"key": "*"})
    assert (made.floor, made.lag, made.durable) == (1, 3, True)
    assert (await bus.groups.update("orders", "g", max_attempts=3)).discipline == "fifo"
    assert (await bus.groups.show("orders", "g")).options.max_attempts == 3
    assert (await bus.groups.seek("orders", "g", to="latest")).lag == 0
    assert (await bus.groups.advance("orders", "spark", to=2)).floor == 2
    assert (await bus.groups.redrive("orders", "g")).redriven == 0
    assert (await bus.groups.delete("orders", "g")).deleted == "orders/g"


async def test_tokens_status_and_the_terminal(bus: Any) -> None:
    made = await bus.tokens.create("shop", ["publish:orders"], life=60)
    assert [row.id for row in await bus.tokens.list(subject="shop")] == [made.id]
    assert (await bus.tokens.revoke(id=made.id)).revoked == made.id
    assert (await bus.status.set(topics={"orders": "off"})).topics == {"orders": "off"}
    assert await bus.status.show() == await bus.status.set()
    assert (await bus.terminal.info()).name == "terminal"
    assert "landbridge_topics" in await bus.terminal.metrics()


async def test_a_message_at_a_terminal_that_stands_alone(bus: Any) -> None:
    await bus.groups.create("orders", "g")
    receipt = await bus.publish("orders", b"1")
    assert (await bus.messages.wait("orders", receipt.offset)).until == "arrived"
    (place,) = (await bus.messages.where(receipt.id)).places
    assert (place.topic, place.offset, place.groups[0].waits_for) == ("orders", 0, "a consumer")
    for question in (bus.messages.why(receipt.id), bus.network.show(), bus.network.route("elsewhere")):
        with pytest.raises(BadRequest, match="this terminal stands alone"):
            await question


async def test_stages(bus: Any) -> None:
    assert (await bus.stages.show("s")).number is None
    assert (await bus.stages.commit("s", number=1, log=None, runs=[])).decided
    assert not (await bus.stages.commit("s", number=1, log=None, runs=[])).decided
    assert await bus.stages.drop("s", forget=True) is None


#: Which scopes are enough for which operation, beside admin. None: a token of any scopes. Written down here
#: again, so that nobody widens one by a slip in the table.
OBSERVE = ["observe", "operate"]
SEE_ORDERS = [*OBSERVE, "publish:orders", "subscribe:orders"]
LEAST: list[tuple[str, list[str] | None]] = [
    ("topic.create topic.update topic.delete type.register type.remove", ["operate"]),
    ("group.update group.seek group.redrive group.delete letter.redrive letter.delete", ["operate"]),
    ("topic.pause topic.resume group.pause group.resume service.pause service.unpause", ["operate"]),
    ("limits.set limits.reset", []),
    ("logs.level", ["operate"]),
    ("limits.show logs.show", ["observe", "operate"]),
    ("audit.list", ["subscribe:$audit"]),
    ("status.levels service.suspend service.resume", ["operate"]),
    (
        "status.show terminal.metrics terminal.figures service.list route.show topology.show network.show",
        OBSERVE,
    ),
    ("node.list node.show", OBSERVE),
    ("node.drain node.resume", ["operate"]),
    ("service.show service.ping service.info service.stats", [*OBSERVE, "self"]),
    (
        "topic.show group.list group.show message.where message.why webhook.list type.list type.show "
        "mail.list sms.list",
        SEE_ORDERS,
    ),
    ("letter.list", SEE_ORDERS),
    ("topic.wait topic.seek_time", [*OBSERVE, "subscribe:orders"]),
    ("message.wait", [*OBSERVE, "publish:orders"]),
    ("group.create", ["operate", "subscribe:orders"]),
    ("group.advance webhook.create webhook.update", ["subscribe:orders"]),
    ("mail.create mail.update sms.create sms.update", ["subscribe:orders"]),
    ("mail.show mail.test mail.pause mail.resume mail.replay mail.delete", None),
    ("sms.show sms.test sms.pause sms.resume sms.replay sms.delete sms.call", None),
    ("mail.bounce", ["operate"]),
    ("token.create token.list token.revoke", []),
    ("service.register service.rotate service.remove", []),
    ("service.update service.heartbeat", ["self"]),
    ("status.note", ["publish:$status"]),
    ("document.create document.read document.update document.delete", ["documents:jobs"]),
    ("document.list document.wait", ["documents:jobs"]),
    ("schedule.create schedule.update request.send event.trigger", ["publish:orders"]),
    ("schedule.list schedule.show", SEE_ORDERS),
    ("schedule.pause schedule.resume schedule.trigger schedule.backfill schedule.remove", None),
    ("node.find topic.watch event.outcome error.report error.list", None),
    ("stage.commit stage.show stage.drop", None),
    # Of a webhook that there is: its owner, or observers to show and operators to change it.
    ("webhook.show webhook.test webhook.pause webhook.resume webhook.replay webhook.rotate", None),
    ("webhook.delete", None),
    # To open a topic to all takes the right to read it, too, so no one scope is enough.
    ("websub.open", []),
    ("websub.close websub.delete", ["operate"]),
    ("websub.list websub.inspect", OBSERVE),
    ("websub.show", SEE_ORDERS),
    ("websub.feeds websub.read websub.call", None),
    ("rule.create", ["subscribe:orders"]),
    ("rule.test rule.show", [*OBSERVE, "subscribe:orders"]),
    ("rule.trace", ["subscribe:orders"]),
    ("rule.list rule.delete", None),
    ("topic.list terminal.info service.token token.show letter.summary", None),
]
ENOUGH = {name: scopes for names, scopes in LEAST for name in names.split()}
ARGUMENTS: dict[str, Any] = {
    "topic": "orders", "name": "orders", "offsets": {"orders": 0}, "times": {"orders": 0}, "to": 0,
    "subject": "s", "scopes": ["admin"], "cause": "c", "offset": 0, "there": "x", "id": "i", "stage": "s",
    "number": 0, "log": None, "runs": [], "collection": "jobs", "key": "a", "value": 1, "version": "1-1",
    "values": {}, "names": [], "level": "info", "group": "g",
    "service": "s", "credential": "c", "within": 0.0, "until": "stored", "when": "@daily", "code": "c",
    "url": "https://shop.example/", "source": "orders", "match": {}, "rule": "orders", "schema": True,
}  # fmt: skip
SCOPES = [
    "observe", "operate", "admin", "publish:orders", "subscribe:orders", "documents:jobs", "publish:$status",
    "publish:other", "subscribe:other", "documents:other",
]  # fmt: skip


def test_the_scope_of_every_operation_is_known() -> None:
    assert set(ENOUGH) == set(OPERATIONS)


@pytest.mark.parametrize("operation", OPERATIONS.values(), ids=lambda operation: operation.name)
async def test_no_other_scope_than_the_known_ones_is_enough(
    terminal: Terminal, operation: Operation[..., Any, Any]
) -> None:
    names: Any = operation.request
    wanted = {name: value for name, value in ARGUMENTS.items() if name in names.__struct_fields__}
    enough = ENOUGH[operation.name]
    if operation.name == "token.revoke":
        wanted.pop("subject")
    if operation.name == "type.remove":
        wanted.pop("version")
    if operation.name == "status.levels":
        wanted.pop("topic")  # to copy the log to a topic takes the right to publish there, too
    if operation.name == "websub.open":
        wanted.pop("source")  # a URL
    if operation.name.startswith("letter."):
        wanted.pop("offsets", None)  # of letters
    if operation.name.startswith("mail."):
        wanted |= {"server": "smtp://mail.example", "sender": "a@b.example", "to": ["a@b.example"]}
        wanted |= {"first": 0, "end": 1}
    if operation.name.startswith("sms."):
        wanted |= {"account": "AC1", "secret": "s", "sender": "+15550000001", "to": "+15550000002"}
    if operation.name.startswith(("mail.", "sms.")):
        wanted = {name: value for name, value in wanted.items() if name in names.__struct_fields__}
        wanted.pop("subject", None)
    if operation.name == "audit.list":
        wanted.pop("until")  # a moment
    if operation.name.startswith("service."):
        wanted = {
            name: value for name, value in wanted.items() if name not in ("version", "scopes", "credential")
        } | ({"credential": "c"} if operation.name == "service.token" else {})
    # A stage belongs to its first writer, so it is asked for by one subject.
    for scope in SCOPES if enough is None else [*SCOPES, "self"]:
        subject = "orders" if scope == "self" else "somebody"
        given = ["publish:other"] if scope == "self" else [scope]
        async with attach(terminal, subject=subject, scopes=given) as bus:
            try:
                await bus.call(operation.name, **wanted)
                refused = False
            except Forbidden:
                refused = True
            except landbridge.BusError:
                refused = False  # there is nothing of that name
        assert refused == (enough is not None and scope not in (*enough, "admin")), scope


def test_typed_methods_say_what_they_do() -> None:
    for name, method in methods().items():
        assert method.__doc__, name
    found = NOUNS["topics"](None, None).create  # type: ignore[arg-type, attr-defined]
    assert list(inspect.signature(found).parameters)[:2] == ["name", "kind"]
    assert found.__doc__.startswith("Create a topic")
