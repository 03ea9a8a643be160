"""Damage in what the terminal's own parts keep: it is told, it stops nothing else, and there is a way out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from landbridge.broker.server import Terminal
from landbridge.broker.topic import KIND
from landbridge.core import audit
from landbridge.core.log.store import PutDocument
from landbridge.core.mail import outgoing as mail
from landbridge.core.sms import outgoing as sms
from landbridge.core.webhook import webhook
from landbridge.core.websub import feed as feeds
from landbridge.core.websub import subscription as core
from landbridge.errors import Forbidden, StoreCorrupt, UnknownFeed
from landbridge.node.assembly import dial_to
from landbridge.node.mail import mails_of
from landbridge.node.sms import sms_of
from landbridge.node.webhooks import webhooks_of
from landbridge.node.websub import hub_of
from landbridge.stores.journal.store import JournalStore
from landbridge.testing import attach, run_terminal
from tests.contracts.test_websub import BASE
from tests.receivers import LOOPBACK, OK, Receiver
from tests.subscribers import Subscriber
from tests.waiting import eventually


@asynccontextmanager
async def node(store: Path) -> AsyncIterator[tuple[Terminal, Any]]:
    async with (
        run_terminal(JournalStore(store)) as terminal,
        hub_of(terminal, dial_to(terminal, is_part=True), LOOPBACK),
        webhooks_of(terminal, dial_to(terminal, is_part=True), LOOPBACK),
        mails_of(terminal, dial_to(terminal, is_part=True), LOOPBACK),
        sms_of(terminal, dial_to(terminal, is_part=True), LOOPBACK),
        attach(terminal, patience=0.0) as bus,
    ):
        yield terminal, bus


async def subscribed(terminal: Terminal, bus: Any, topic: str, callback: str) -> str:
    asked = {"mode": "subscribe", "topic": feeds.feed_url(BASE, topic), "callback": callback}
    form = [(f"hub.{name}", value) for name, value in asked.items()]
    id = (await terminal.answer_stranger("192.0.2.1", "websub.call", {"form": form, "base": ""})).id
    group = core.group_name(id)
    await eventually(lambda: group in terminal.broker.topics[topic].groups)
    return id


OUTLETS = [each for kind in (webhook, mail, sms) for each in (kind.COLLECTION, kind.STATES)]


@pytest.mark.parametrize("what", [feeds.FEEDS, core.SUBSCRIPTIONS, core.STATES, *OUTLETS])
async def test_a_damaged_document_of_one_topic_stops_no_other(tmp_path: Path, what: str) -> None:
    store = tmp_path / "bus"
    async with Subscriber() as subscriber, Receiver(lambda _: OK) as receiver:
        async with node(store) as (terminal, bus):
            ids = {}
            for topic in ("bad", "good"):
                await bus.topics.create(topic)
                await bus.websub.open(topic, base=BASE)
                await bus.webhooks.create(topic, "hook", f"http://127.0.0.1:{receiver.port}/{topic}")
                await bus.mails.create(
                    topic, "hook", server="smtp://127.0.0.1:1", sender="a@b.example", to=("a@b.example",)
                )
                number: dict[str, Any] = {
                    "account": "AC1",
                    "secret": "s",
                    "sender": "+15550000001",
                    "to": "+15550000002",
                }
                await bus.sms.create(topic, "hook", **number)
                ids[topic] = await subscribed(terminal, bus, topic, f"{subscriber.callback}&t={topic}")
            key = dict.fromkeys(OUTLETS, "hook") | {feeds.FEEDS: feeds.KEY}
            path = f"{what}/bad/{key.get(what, ids['bad'])}\n"
            await terminal.broker.drain()
            await terminal.broker.write(
                [PutDocument("document", path, b"\xc1")], unit=terminal.broker.units.unit_of("bad")
            )
        async with node(store) as (terminal, bus):
            await bus.publish("good", b"1")
            await eventually(lambda: any(each.path == "/good" for each in receiver.requests))
            await eventually(lambda: any("t=good" in each.path for each in subscriber.got))
            # Whoever subscribes to others, or names what is no feed, learns nothing of it.
            await subscribed(terminal, bus, "good", f"{subscriber.callback}&t=new")
            with pytest.raises(UnknownFeed):
                await subscribed(terminal, bus, "none", subscriber.callback)
            await bus.topics.create("more")
            await bus.websub.open("more", base=BASE)
            if what in (feeds.FEEDS, core.SUBSCRIPTIONS, webhook.COLLECTION, mail.COLLECTION, sms.COLLECTION):
                found = [each for each in (await bus.terminal.info()).damage if what in each]
                assert len(found) == 1
            # The way out.
            await bus.webhooks.delete("bad", "hook")
            await bus.mails.delete("bad", "hook")
            await bus.sms.delete("bad", "hook")
            await bus.websub.delete("bad", ids["bad"])
            group = core.group_name(ids["bad"])
            await eventually(lambda: group not in terminal.broker.topics["bad"].groups)
            await bus.websub.close("bad")
            await bus.websub.open("bad", base=BASE)
            await subscribed(terminal, bus, "bad", f"{subscriber.callback}&t=bad")


async def test_an_administrator_gives_up_a_damaged_audit_log_and_it_begins_anew(tmp_path: Path) -> None:
    store = tmp_path / "bus"
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        await bus.topics.create("orders")
        await bus.publish("orders", b"1")
        await terminal.broker.write([PutDocument(KIND, audit.TOPIC, b"damaged")])
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        with pytest.raises(StoreCorrupt, match="audit"):
            await bus.topics.create("more")
        async with attach(terminal, subject="olga", scopes=["operate"]) as other:
            with pytest.raises(Forbidden):
                await other.topics.delete(audit.TOPIC, force=True)
        await bus.topics.delete(audit.TOPIC, force=True)
        await bus.topics.create("more")
    async with run_terminal(JournalStore(store)) as terminal, attach(terminal) as bus:
        entries = await bus.audit.list()
        assert [(each.operation, each.name) for each in entries] == [
            ("topic.delete", audit.TOPIC),
            ("topic.create", "more"),
        ]
        assert terminal.broker.topics["orders"].log.end == 1
