"""Who may do what: scopes, and tokens that end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import landbridge
from landbridge.broker.server import Terminal
from landbridge.errors import BadRequest, BusError, Forbidden, QueueTaken, Unauthenticated
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import LIMIT, Reader, eventually

# -- scopes -------------------------------------------------------------------------------------------

PATTERNS = [
    ("orders", {"orders"}),
    ("orders.*", {"orders.eu", "orders.us"}),
    ("orders.#", {"orders", "orders.eu", "orders.us", "orders.eu.de"}),
    ("*.eu", {"orders.eu", "mail.eu"}),
    ("#", {"orders", "orders.eu", "orders.us", "orders.eu.de", "mail.eu"}),
    ("#.de", {"orders.eu.de"}),
]
TOPICS = ["orders", "orders.eu", "orders.us", "orders.eu.de", "mail.eu"]


@pytest.mark.parametrize(("pattern", "allowed"), PATTERNS, ids=[pattern for pattern, _ in PATTERNS])
async def test_publish_scopes(terminal: Terminal, pattern: str, allowed: set[str]) -> None:
    async with attach(terminal, scopes=[f"publish:{pattern}"]) as bus:
        for topic in TOPICS:
            if topic in allowed:
                await bus.publish(topic, b"1")
            else:
                with pytest.raises(Forbidden):
                    await bus.publish(topic, b"1")
                with pytest.raises(Forbidden):
                    async with bus.transaction() as t:
                        await t.publish(topic, b"1")
            with pytest.raises(Forbidden):
                await bus.subscribe(topic, group="g").open()
    assert allowed == {name for name in terminal.broker.topics if not name.startswith("$")}


@pytest.mark.parametrize(("pattern", "allowed"), PATTERNS, ids=[pattern for pattern, _ in PATTERNS])
async def test_subscribe_scopes(terminal: Terminal, pattern: str, allowed: set[str]) -> None:
    async with attach(terminal) as admin:
        for topic in TOPICS:
            await admin.publish(topic, topic)
    async with attach(terminal, scopes=[f"subscribe:{pattern}"]) as bus:
        for topic in TOPICS:
            for group in ("g", None):
                if topic in allowed:
                    async with Reader(bus.subscribe(topic, group=group, start="earliest")) as reader:
                        assert (await reader.next()).text() == topic
                else:
                    with pytest.raises(Forbidden):
                        await bus.subscribe(topic, group=group).open()
            with pytest.raises(Forbidden):
                await bus.publish(topic, b"1")
        listed = await bus.call("topic.list")
        assert {row["name"] for row in listed["topics"]} == allowed


async def test_the_status_topic_has_to_be_spelled_out(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, scopes=["publish:#", "subscribe:#"]) as bus:
        with pytest.raises(Forbidden):
            async with Reader(bus.subscribe("$status", group="g")):
                pass
        with pytest.raises(Forbidden):
            await bus.publish("$status", b"forged")
        with pytest.raises(Forbidden):
            await bus.call("topic.show", name="$status")
        assert "$status" not in {row["name"] for row in (await bus.call("topic.list"))["topics"]}
    async with way.connect(terminal, scopes=["subscribe:$status"]) as bus:
        async with Reader(bus.subscribe("$status", group="g")) as reader:
            assert (await reader.next()).json()["event"]
        with pytest.raises(Forbidden):
            await bus.publish("$status", b"forged")
    async with way.connect(terminal) as admin:
        with pytest.raises(Forbidden):
            await admin.publish("$status", b"forged")


OPERATIONS: list[tuple[str, dict[str, Any]]] = [
    ("topic.create", {"name": "new"}),
    ("topic.update", {"name": "orders", "max_backlog": 5}),
    ("topic.delete", {"name": "orders", "force": True}),
    ("group.seek", {"topic": "orders", "name": "g", "to": 0}),
    ("group.delete", {"topic": "orders", "name": "g", "force": True}),
    ("group.redrive", {"topic": "orders", "name": "g"}),
    ("token.create", {"subject": "me", "scopes": ["admin"]}),
    ("token.list", {}),
    ("token.revoke", {"subject": "me"}),
    ("status.levels", {}),
    ("status.levels", {"default": "off"}),
    ("terminal.metrics", {}),
]


@pytest.mark.parametrize(("op", "args"), OPERATIONS, ids=[op for op, _ in OPERATIONS])
async def test_operations_of_the_administrator(
    terminal: Terminal, way: Way, op: str, args: dict[str, Any]
) -> None:
    async with attach(terminal, subject="root") as root:
        await root.publish("orders", b"1")
        await root.call("group.create", topic="orders", name="g")
    async with way.connect(terminal, scopes=["publish:#", "subscribe:#"]) as bus:
        with pytest.raises(Forbidden):
            await bus.call(op, **args)
    async with way.connect(terminal, subject="root") as root:
        await root.call(op, **args)


async def test_groups_need_the_right_to_subscribe(terminal: Terminal, way: Way) -> None:
    async with way.connect(terminal, scopes=["publish:orders", "subscribe:mail"]) as bus:
        await bus.publish("orders", b"1")
        with pytest.raises(Forbidden):
            await bus.call("group.create", topic="orders", name="g")
        await bus.call("group.create", topic="mail", name="g")
        with pytest.raises(Forbidden):
            await bus.call("group.list", topic="secret") if await make(terminal, "secret") else None


async def test_a_group_s_dead_letters_go_where_its_maker_may_publish(terminal: Terminal, way: Way) -> None:
    async with attach(terminal, subject="root") as root:
        await root.topics.create("jobs", kind="queue", producer="boss")
        await root.topics.create("private.dead", kind="queue", producer="boss")
        await root.groups.create("orders", "theirs", dead_letter="secret")
        for name in ("$transit", "$status", "$stage.x"):
            with pytest.raises(Forbidden):
                await root.groups.create("orders", "mine", dead_letter=name)
            with pytest.raises(Forbidden):
                await root.groups.update("orders", "theirs", dead_letter=name)
        with pytest.raises(QueueTaken):
            await root.groups.create("orders", "mine", dead_letter="jobs")
    async with way.connect(terminal, scopes=["subscribe:#", "publish:mine.#"]) as bus:
        for name in ("secret", "jobs", "$transit"):
            with pytest.raises(Forbidden):
                await bus.groups.create("orders", "mine", dead_letter=name)
        with pytest.raises(QueueTaken):
            await bus.groups.create("private", "mine")
        with pytest.raises(QueueTaken):
            await bus.subscribe("private", group="mine").open()
        await bus.groups.create("orders", "theirs", dead_letter="secret")  # as it is: nothing is made
        await bus.groups.create("orders", "mine", dead_letter="mine.letters")
        await bus.groups.create("orders", "default")
    assert set(terminal.broker.topics["orders"].groups) == {"theirs", "mine", "default"}


async def test_the_terminal_s_own_topics_have_no_dead_letters_by_default(terminal: Terminal) -> None:
    async with attach(terminal) as bus, Reader(bus.subscribe("$status", group="g")) as reader:
        message = await reader.next()
        await message.bury("unwanted")
        await eventually(
            lambda: terminal.broker.table.group("$status", "g").delivery.cursor.floor > message.offset
        )
        assert "$status.dead" not in terminal.broker.topics


async def test_a_forged_dead_letter_is_not_redriven(terminal: Terminal, way: Way) -> None:
    async with attach(terminal, subject="root") as root:
        await root.publish("orders", b"real")
        async with Reader(root.subscribe("orders", group="g")) as reader:
            await (await reader.next()).bury("bad")
            await eventually(lambda: "orders.dead" in terminal.broker.topics)
            await eventually(lambda: terminal.broker.topics["orders.dead"].log.end == 1)
            async with way.connect(terminal, scopes=["publish:orders.dead"]) as bus:
                headers = {"lb-topic": "orders", "lb-group": "g", "lb-offset": 0, "lb-attempts": 1}
                await bus.publish("orders.dead", b"forged", headers=headers)
            assert (await root.groups.redrive("orders", "g")).redriven == 1
            assert await reader.payloads(1) == [b"real"]
        assert terminal.broker.topics["orders"].log.end == 2


async def test_a_revocation_says_how_many_tokens_it_ends(bus: Any) -> None:
    made = [await bus.tokens.create("shop", ["publish:#"], life=60.0) for _ in range(2)]
    assert (await bus.tokens.revoke(id="nothing")).tokens == 0
    assert (await bus.tokens.revoke(id=made[0].id)).tokens == 1
    assert (await bus.tokens.revoke(subject="shop")).tokens == 2
    assert (await bus.tokens.revoke(subject="nobody")).tokens == 0


async def make(terminal: Terminal, topic: str) -> bool:
    async with attach(terminal, subject="root") as root:
        await root.publish(topic, b"1")
    return True


@pytest.mark.parametrize(
    ("op", "args"),
    [
        ("no.such", {}),
        ("nothing", {}),
        ("_topic", {}),
        ("call", {}),
        ("__init__.x", {}),
        ("topic.create", {}),
        ("topic.create", {"name": 5}),
        ("topic.create", {"name": "t", "colour": "red"}),
        ("topic.create", {"name": "t", "retention": 5}),
        ("topic.create", {"name": "t", "connection": 5}),
        ("topic.update", {"name": "orders", "retention": "long"}),
        ("topic.show", {"name": []}),
        ("topic.show", {"name": None}),
        ("topic.list", {"limit": "many"}),
        ("topic.list", {"after": 5}),
        ("topic.delete", {"name": {"a": 1}}),
        ("group.create", {"topic": 5, "name": "g"}),
        ("group.create", {"topic": "orders", "name": "g", "start": [1]}),
        ("group.create", {"topic": "orders", "name": "g", "start": "never"}),
        ("group.create", {"topic": "orders", "name": "g", "ack_within": "x"}),
        ("group.create", {"topic": "orders", "name": "ephemeral-1"}),
        ("group.seek", {"topic": "orders", "name": "there", "time": 1.5}),
        ("group.seek", {"topic": "orders", "name": "there", "to": True}),
        ("group.seek", {"topic": "orders", "name": "there", "to": "x"}),
        ("group.seek", {"topic": "orders", "name": "there"}),
        ("group.seek", {"topic": "orders", "name": "there", "to": 0, "time": 0}),
        ("group.list", {"topic": 5}),
        ("group.list", {"after": 5}),
        ("token.create", {"subject": 5, "scopes": ["admin"]}),
        ("token.create", {"subject": "s", "scopes": "admin"}),
        ("token.create", {"subject": "s", "scopes": ["root"]}),
        ("token.create", {"subject": "s", "scopes": []}),
        ("token.create", {"subject": "s", "scopes": ["admin"], "life": "long"}),
        ("token.create", {"subject": "s", "scopes": ["admin"], "life": 1e12}),
        ("token.create", {"subject": "s", "scopes": ["admin"], "life": -1}),
        ("token.revoke", {}),
        ("token.revoke", {"id": ["a"]}),
        ("status.levels", {"default": "loud"}),
        ("status.levels", {"topics": ["a"]}),
    ],
    ids=repr,
)
async def test_wrong_operations_are_refused(
    terminal: Terminal, op: str, args: dict[str, Any], crashes: list[Any]
) -> None:
    async with attach(terminal) as bus:
        await bus.call("group.create", topic="orders", name="there")
        with pytest.raises(BusError) as caught:
            await bus.call(op, **args)
        assert caught.value.code not in ("internal", "bad_frame")
        assert (await bus.call("terminal.info"))["name"] == "terminal"


@pytest.mark.parametrize("to", [1 << 62, (1 << 63) - 1, (1 << 64) - 1])
async def test_wild_moments_and_offsets(terminal: Terminal, to: int) -> None:
    async with attach(terminal) as bus:
        await bus.publish("orders", b"1")
        await bus.call("group.create", topic="orders", name="g")
        for args in ({"to": to}, {"time": to}):
            assert (await bus.call("group.seek", topic="orders", name="g", **args))["floor"] == 1


# -- tokens -------------------------------------------------------------------------------------------


async def test_a_token_made_by_the_terminal(terminal: Terminal) -> None:
    async with attach(terminal) as admin:
        made = await admin.call("token.create", subject="svc", scopes=["publish:orders"], life=60)
    async with landbridge.connect(terminal.url, token=made["token"]) as bus:
        await bus.publish("orders", b"1")
        with pytest.raises(Forbidden):
            await bus.publish("others", b"1")


async def test_no_entry_without_a_token(terminal: Terminal) -> None:
    with pytest.raises(Unauthenticated):
        await landbridge.connect(terminal.url, token="nonsense")
    other = Terminal(MemoryStore())
    await other.open()
    foreign = other.issue_token("test", ["admin"], 60)
    await other.close()
    with pytest.raises(Unauthenticated):
        await landbridge.connect(terminal.url, token=foreign)
    assert not terminal.connections


async def ended(bus: Any, reader: Reader) -> None:
    """The bus is of no more use, and says why."""
    with pytest.raises(Unauthenticated):
        await reader.next()
    with pytest.raises(Unauthenticated):
        async with asyncio.timeout(LIMIT):
            await bus.publish("orders", b"1")
    with pytest.raises(Unauthenticated):
        async with asyncio.timeout(LIMIT):
            await bus.call("terminal.info")


async def test_expiry_ends_a_live_connection(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed, life=60.0) as bus:
        reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
        clock.advance(59)
        await bus.publish("others", b"1")
        clock.advance(2)
        await ended(bus, reader)
        assert not timed.connections


async def test_expiry_needs_no_help(terminal: Terminal) -> None:
    """The same by the real clock: a token of one second."""
    async with attach(terminal, life=1.0) as bus:
        reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
        await ended(bus, reader)


async def test_revocation_by_id_ends_that_token(terminal: Terminal, way: Way) -> None:
    async with attach(terminal, subject="root") as root:
        made = await root.call("token.create", subject="svc", scopes=["admin"])
        other = await root.call("token.create", subject="svc", scopes=["admin"])
        async with (
            landbridge.connect(terminal.url, token=made["token"]) as bus,
            landbridge.connect(terminal.url, token=other["token"]) as spared,
        ):
            reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
            await root.call("token.revoke", id=made["id"])
            await ended(bus, reader)
            with pytest.raises(Unauthenticated):
                await landbridge.connect(terminal.url, token=made["token"])
            await spared.publish("orders", b"1")


async def test_revocation_by_subject_ends_all_of_them(terminal: Terminal, way: Way) -> None:
    async with attach(terminal, subject="root") as root, way.connect(terminal, subject="svc") as bus:
        reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
        await root.call("token.revoke", subject="svc")
        await ended(bus, reader)
        await root.publish("orders", b"1")


async def test_revocation_survives_a_restart(crashes: list[Any]) -> None:
    store = MemoryStore()
    async with run_terminal(store) as terminal, attach(terminal) as root:
        made = await root.call("token.create", subject="svc", scopes=["admin"])
        good = await root.call("token.create", subject="svc", scopes=["admin"])
        await root.call("token.revoke", id=made["id"])
    async with run_terminal(store) as terminal:
        with pytest.raises(Unauthenticated):
            async with attach(terminal, token=made["token"]):
                pass
        async with attach(terminal, token=good["token"]):
            pass


async def test_tokens_are_listed_until_they_expire(crashes: list[Any], clock: FakeClock) -> None:
    store = MemoryStore()
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        long = await bus.call("token.create", subject="shop", scopes=["publish:a", "subscribe:b"], life=100)
        short = await bus.call("token.create", subject="shop", scopes=["admin"], life=10)
        other = await bus.call("token.create", subject="other", scopes=["admin"], life=50)
        listed = await bus.call("token.list")
        assert [row["id"] for row in listed["tokens"]] == [short["id"], other["id"], long["id"]]
        assert listed["next"] == ""
        assert listed["tokens"][2] == {
            "id": long["id"], "subject": "shop", "scopes": ["publish:a", "subscribe:b"],
            "issued_at": clock.now, "expires_at": long["expires_at"], "revoked": False,
        }  # fmt: skip
        assert not any(made["token"] in str(listed) for made in (long, short, other))
        clock.advance(11)
        assert len((await bus.call("token.list", subject="shop"))["tokens"]) == 1
        await bus.call("token.revoke", id=long["id"])
        await bus.call("token.revoke", subject="other")
    async with run_terminal(store, clock=clock) as terminal, attach(terminal) as bus:
        listed = (await bus.call("token.list"))["tokens"]
        assert [(row["id"], row["revoked"]) for row in listed] == [(other["id"], True), (long["id"], True)]
        assert len(await store.documents(0, "token")) == 3
        await bus.call("token.create", subject="shop", scopes=["admin"], life=1)
        assert len(await store.documents(0, "token")) == 3  # what has expired is gone from the disk, too


async def test_tokens_are_listed_in_pages(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("landbridge.broker.operations.tokens.PAGE", 2)
    async with attach(terminal) as bus:
        made = [await bus.call("token.create", subject="s", scopes=["admin"], life=60 + n) for n in range(5)]
        found: list[str] = []
        after = ""
        while True:
            page = await bus.call("token.list", after=after)
            found += [row["id"] for row in page["tokens"]]
            after = page["next"]
            if not after:
                break
        assert found == [token["id"] for token in made]


async def test_a_revoked_service_gets_no_token_that_would_be_dead(terminal: Terminal) -> None:
    async with attach(terminal, subject="root") as root:
        await root.call("token.revoke", subject="svc")
        with pytest.raises(BadRequest, match="'svc' was revoked"):
            await root.call("token.create", subject="svc", scopes=["admin"])
        assert (await root.call("token.create", subject="svc-2", scopes=["admin"]))["token"]


async def test_leases_of_a_revoked_consumer_go_back_uncounted(terminal: Terminal) -> None:
    async with attach(terminal, subject="root") as root:
        await root.publish("orders", b"1")
        async with attach(terminal, subject="svc") as bus:
            reader = await Reader(bus.subscribe("orders", group="g")).__aenter__()
            await reader.next()
            await root.call("token.revoke", subject="svc")
        async with Reader(root.subscribe("orders", group="g")) as other:
            assert (await other.next()).attempt == 1


async def test_renew_keeps_the_connection(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed, life=60.0) as bus, Reader(bus.subscribe("orders", group="g")) as reader:
        for _ in range(5):
            clock.advance(50)
            await bus.renew(timed.issue_token("test", ["admin"], 60.0))
        (connection,) = timed.connections
        await bus.publish("orders", b"1")
        assert await reader.payloads(1) == [b"1"]
        await reader.subscription.flush()
        # And with the new token it comes back after a loss.
        connection._transport.abort()
        await bus.publish("orders", b"2")
        assert await reader.payloads(1) == [b"2"]


async def test_a_renewal_with_fewer_scopes_ends_the_subscriptions_that_they_do_not_allow(
    terminal: Terminal, way: Way
) -> None:
    async with way.connect(terminal) as bus:
        await bus.publish("orders", b"1")
        await bus.publish("mail", b"1")
        async with (
            Reader(bus.subscribe("orders", group="g")) as orders,
            Reader(bus.subscribe("mail", group="g")) as mail,
        ):
            await orders.next()
            await bus.renew(terminal.issue_token("test", ["subscribe:mail"], 60.0))
            with pytest.raises(Forbidden):
                await orders.next()
            assert await mail.payloads(1) == [b"1"]
        assert not terminal.broker.table.group("orders", "g").consumers


async def test_a_bad_renewal_changes_nothing(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with way.connect(timed, life=60.0) as bus:
        for token in ("nonsense", timed.issue_token("somebody-else", ["admin"], 60.0)):
            with pytest.raises(Unauthenticated):
                await bus.renew(token)
        (connection,) = timed.connections
        connection._transport.abort()
        await bus.publish("orders", b"1")
        assert {c.subject for c in timed.connections} == {"test"}


async def test_a_function_for_tokens_is_asked_again(timed: Terminal, clock: FakeClock) -> None:
    asked = 0

    def token() -> str:
        nonlocal asked
        asked += 1
        return timed.issue_token("svc", ["admin"], 60.0)

    async with (
        landbridge.connect(timed.url, token=token) as bus,
        Reader(bus.subscribe("orders", group="g")) as reader,
    ):
        before = asked
        for number in range(3):
            clock.advance(61)
            await eventually(lambda: bus.wire is not None)
            await bus.publish("orders", b"%d" % number)
            assert await reader.payloads(1) == [b"%d" % number]
            await reader.subscription.flush()
        assert asked == before + 3


async def test_who_is_refused_for_good_stops_trying(terminal: Terminal) -> None:
    async with attach(terminal, subject="root") as root, attach(terminal, subject="svc") as bus:
        terminal.authority.revoked.add("sub:svc")  # it hears of it when it comes back
        for connection in list(terminal.connections):
            if connection.subject == "svc":
                connection._transport.abort()
        with pytest.raises(Unauthenticated):
            async with asyncio.timeout(LIMIT):
                await bus.publish("orders", b"1")
        await root.ping()


@pytest.mark.parametrize("life", [0.0, -5.0, float("nan"), float("inf"), 1e18])
async def test_wild_lives_of_tokens(terminal: Terminal, life: float) -> None:
    async with attach(terminal) as root:
        with pytest.raises(BadRequest):
            await root.call("token.create", subject="svc", scopes=["admin"], life=life)
