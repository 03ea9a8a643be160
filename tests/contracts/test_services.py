"""Registered services: who may use a terminal, by which credential and tokens, and for how long."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest

import landbridge
from landbridge.broker.limits import Limits
from landbridge.broker.server import Terminal
from landbridge.broker.services import ADOPTED, KIND
from landbridge.broker.tokens import IssuedToken
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.time import SECOND
from landbridge.core.trust import credential
from landbridge.errors import (
    BadName,
    BadRequest,
    BusError,
    Forbidden,
    LimitReached,
    ServiceExists,
    StoreCorrupt,
    Unauthenticated,
    UnknownService,
)
from landbridge.protocol.operations import EndpointFigures
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, attach, run_terminal
from tests.contracts.ways import Way
from tests.waiting import LIMIT, Reader

SCOPES = ["publish:orders.#", "subscribe:orders.#"]


@asynccontextmanager
async def root_of(terminal: Terminal) -> AsyncIterator[landbridge.Bus]:
    async with attach(terminal, subject="root") as bus:
        yield bus


async def refused(terminal: Terminal, token: str) -> bool:
    """Does nobody get in by this token or credential?"""
    try:
        async with attach(terminal, token=token):
            return False
    except Unauthenticated:
        return True


async def has_ended(bus: Any) -> None:
    """The connection was ended by the terminal, for good."""
    with pytest.raises(Unauthenticated):
        async with asyncio.timeout(LIMIT):
            while True:
                await bus.ping()


# -- registering --------------------------------------------------------------------------------------


async def test_a_service_is_registered_once(bus: Any) -> None:
    made = await bus.services.register("shop", version="1.4.0", owner="sales", scopes=SCOPES)
    assert made.credential.startswith("lbsc1_")
    assert (made.name, made.state, made.implied, made.options.version) == ("shop", "active", False, "1.4.0")
    again = await bus.services.register("shop", version="1.4.0", owner="sales", scopes=SCOPES)
    assert again.credential is None
    assert (again.registered_at, again.changed_at) == (made.registered_at, made.changed_at)
    with pytest.raises(ServiceExists, match=r"version is 1\.4\.0, not 2\.0\.0"):
        await bus.services.register("shop", version="2.0.0", owner="sales", scopes=SCOPES)
    changed = await bus.services.update("shop", version="2.0.0")
    assert (changed.options.version, changed.options.owner) == ("2.0.0", "sales")
    shown = await bus.services.show("shop")
    assert (shown.options, len(shown.credentials)) == (changed.options, 1)
    assert (await bus.services.remove("shop")).deleted == "shop"
    for question in (bus.services.show("shop"), bus.services.rotate("shop"), bus.services.remove("shop")):
        with pytest.raises(UnknownService):
            await question


async def test_the_list_comes_by_the_page(bus: Any) -> None:
    for number in range(5):
        await bus.services.register(f"s{number}", credential=False)
    page = await bus.call("service.list", limit=2, after="s0")
    assert ([row["name"] for row in page["services"]], page["next"]) == (["s1", "s2"], "s2")
    rows = {row.name: row for row in await bus.services.list()}
    assert [name for name in rows if name.startswith("s")] == [f"s{n}" for n in range(5)]
    # The test's own token was made in the terminal's process.
    assert (rows["test"].implied, rows["test"].connections, rows["s0"].connections) == (True, 1, 0)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"name": "a b"}, BadName),
        ({"name": "$bus"}, BadName),
        ({"name": "x" * 201}, BadName),
        ({"version": "one"}, BadRequest),
        ({"scopes": ["root"]}, BadRequest),
        ({"scopes": ["publish:a..b"]}, BadName),
        ({"publishes": ["a b"]}, BadName),
        ({"owner": "x" * 2001}, BadRequest),
        ({"metadata": {"a": 5}}, BadRequest),
        ({"endpoints": [{"name": "a", "colour": "red"}]}, BadRequest),
        ({"endpoints": [{"name": f"e{n}"} for n in range(101)]}, BadRequest),
        ({"secret": "mine"}, BadRequest),
    ],
    ids=repr,
)
async def test_a_registration_that_makes_no_sense(
    terminal: Terminal, options: dict[str, Any], error: type[BusError]
) -> None:
    async with root_of(terminal) as root:
        with pytest.raises(error):
            await root.call("service.register", **{"name": "shop", **options})
        assert [row.name for row in await root.services.list()] == ["root"]


async def test_the_owner_of_the_machine_is_let_in_whatever_was_done_to_its_service(clock: FakeClock) -> None:
    """What ``landbridge up`` does for the credential in its context."""
    store = MemoryStore(units=4)
    async with run_terminal(store, clock=clock) as terminal, root_of(terminal) as root:
        await root.services.register("admin", scopes=["observe"])
        await root.services.suspend("admin")
        service = await terminal.services.include("admin", ["admin"], revive=True)
        assert (service.state, service.spec.scopes) == ("active", ("observe", "admin"))
        await terminal.broker.write([PutDocument(KIND, "admin", b"\xc1garbage")])
    async with run_terminal(store, clock=clock) as terminal:
        service = await terminal.services.include("admin", ["admin"], revive=True)
        assert (service.state, service.spec.scopes) == ("active", ("admin",))
        token, _ = terminal.authority.issue(clock.now, "admin", ["admin"], 60)
        assert not await refused(terminal, token)


async def test_there_are_only_so_many_services() -> None:
    async with run_terminal(limits=Limits(max_services=2)) as terminal, root_of(terminal) as root:
        await root.services.register("a")
        await root.services.register("b")
        with pytest.raises(LimitReached, match="max_services"):
            await root.services.register("c")
        with pytest.raises(LimitReached, match="max_services"):
            await root.tokens.create("c", SCOPES)
        await root.services.register("a")  # it is there
        await root.services.remove("a")
        await root.services.register("c")


async def test_registrations_outlive_the_terminal() -> None:
    store = MemoryStore(units=4)
    async with run_terminal(store) as terminal, root_of(terminal) as root:
        made = await root.services.register("shop", owner="sales", scopes=SCOPES)
        bad = await root.services.register("bad", scopes=SCOPES)
        await root.services.suspend("bad", note="leaks")
        assert made.credential
        assert bad.credential
    async with run_terminal(store) as terminal, root_of(terminal) as root:
        shown = await root.services.show("shop")
        assert (shown.options.owner, shown.registered_at) == ("sales", made.registered_at)
        assert not await refused(terminal, made.credential)
        assert (await root.services.show("bad")).note == "leaks"
        assert await refused(terminal, bad.credential)


async def test_two_changes_at_once_are_both_made(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        await root.services.register("shop", scopes=SCOPES)
        await asyncio.gather(
            root.services.update("shop", version="2.0.0"),
            root.services.update("shop", owner="sales"),
            root.services.suspend("shop"),
            *(root.services.rotate("shop", overlap=5.0) for _ in range(3)),
        )
        shown = await root.services.show("shop")
        assert (shown.options.version, shown.options.owner, shown.state) == ("2.0.0", "sales", "suspended")
        assert len(shown.credentials) == 2
        made = await asyncio.gather(*(root.services.register("twice") for _ in range(4)))
        assert sum(each.credential is not None for each in made) == 1


# -- credentials --------------------------------------------------------------------------------------


async def test_a_credential_is_as_good_as_a_token(terminal: Terminal, way: Way) -> None:
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
    async with landbridge.connect(terminal.url, token=made.credential) as bus:
        await bus.publish("orders.eu", b"1")
        with pytest.raises(Forbidden):
            await bus.publish("mail", b"1")
        with pytest.raises(Forbidden):
            await bus.topics.create("orders.us")
        (connection,) = terminal.connections
        assert connection.subject == "shop"


async def test_a_credential_is_traded_for_a_token_of_ten_minutes(timed: Terminal, clock: FakeClock) -> None:
    async with root_of(timed) as root:
        made = await root.services.register("shop", scopes=SCOPES)
    arguments = {"service": "shop", "credential": made.credential}
    traded = await timed.answer_stranger("127.0.0.1", "service.token", arguments)
    assert traded.scopes == SCOPES
    assert 599 <= traded.expires_in <= 600
    assert traded.expires_at == clock.now + traded.expires_in * SECOND
    narrow = await timed.answer_stranger(
        "127.0.0.1", "service.token", {**arguments, "scopes": ["publish:orders.eu"]}
    )
    async with attach(timed, token=traded.token) as bus, attach(timed, token=narrow.token) as little:
        await bus.publish("orders.us", b"1")
        await little.publish("orders.eu", b"1")
        with pytest.raises(Forbidden):
            await little.publish("orders.us", b"1")
        clock.advance(601)
        await has_ended(bus)
        await has_ended(little)
    assert await refused(timed, traded.token)
    for scopes in (
        ["admin"],
        ["publish:#"],
        ["observe"],
        ["documents:a"],
        ["publish:orders.eu", "publish:x"],
    ):
        with pytest.raises(Forbidden):
            await timed.answer_stranger("127.0.0.1", "service.token", {**arguments, "scopes": scopes})
    for scopes in ([], ["root"], ["publish:"]):
        with pytest.raises((BadRequest, BadName)):
            await timed.answer_stranger("127.0.0.1", "service.token", {**arguments, "scopes": scopes})


async def test_wrong_and_unknown_get_the_same_answer(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
        other = await root.services.register("other", scopes=SCOPES)
        out = await root.services.register("out", scopes=SCOPES)
        banned = await root.services.register("banned", scopes=SCOPES)
        await root.services.suspend("out")
        await root.tokens.revoke(subject="banned")
        token = (await root.tokens.create("root", ["admin"])).token
    assert made.credential
    assert other.credential
    stranger = credential.new(credential.SERVICE)[0]
    pairs = [
        ("shop", stranger),
        ("nobody", stranger),
        ("nobody", made.credential),
        ("shop", other.credential),
        ("out", out.credential),
        ("banned", banned.credential),
        ("shop", made.credential[:-1] + ("a" if made.credential[-1] != "a" else "b")),
        ("shop", made.credential.upper()),
        ("shop", made.credential + "\0"),
        ("shop", "lbsc1_"),
        ("shop", ""),
        ("root", token),
        ("", made.credential),
    ]
    answers = set()
    for service, shown in pairs:
        with pytest.raises(Unauthenticated) as caught:
            await terminal.answer_stranger(
                "127.0.0.1", "service.token", {"service": service, "credential": shown}
            )
        answers.add((str(caught.value), caught.value.hint))
    assert len(answers) == 1


async def test_wrong_and_unknown_take_the_same_time(terminal: Terminal) -> None:
    """Not to the microsecond: but neither of the two does work that the other doesn't."""
    async with root_of(terminal) as root:
        await root.services.register("shop", scopes=SCOPES)
    wrong = credential.new(credential.SERVICE)[0]
    counts: dict[str, list[int]] = {"shop": [], "nobody": []}
    lookups = 0
    inner = terminal.services.by_credential

    def counting(now: int, key: bytes) -> Any:
        nonlocal lookups
        lookups += 1
        return inner(now, key)

    terminal.services.by_credential = counting  # type: ignore[method-assign]
    for service in counts:
        before = lookups
        with pytest.raises(Unauthenticated):
            await terminal.answer_stranger("a", "service.token", {"service": service, "credential": wrong})
        counts[service].append(lookups - before)
    assert counts["shop"] == counts["nobody"] == [1]


async def test_a_stranger_may_trade_a_credential_and_nothing_else(terminal: Terminal) -> None:
    for name in ("topic.list", "terminal.info", "service.register", "service.list", "no.such", "__init__"):
        with pytest.raises(Unauthenticated):
            await terminal.answer_stranger("127.0.0.1", name, {})
    for arguments in ({}, {"service": 5, "credential": "x"}, {"service": "a", "credential": "b", "life": 9}):
        with pytest.raises(BadRequest):
            await terminal.answer_stranger("127.0.0.1", "service.token", arguments)


async def test_an_address_can_ask_only_so_often(clock: FakeClock) -> None:
    limits = Limits(max_requests_of_strangers=3)
    async with run_terminal(limits=limits, clock=clock) as terminal:
        arguments = {"service": "a", "credential": "b"}
        for _ in range(3):
            with pytest.raises(Unauthenticated):
                await terminal.answer_stranger("10.0.0.1", "service.token", arguments)
        with pytest.raises(LimitReached, match="more than 3 requests a minute"):
            await terminal.answer_stranger("10.0.0.1", "service.token", arguments)
        with pytest.raises(Unauthenticated):
            await terminal.answer_stranger("10.0.0.2", "service.token", arguments)
        clock.advance(21)
        with pytest.raises(Unauthenticated):
            await terminal.answer_stranger("10.0.0.1", "service.token", arguments)
        with pytest.raises(LimitReached):
            await terminal.answer_stranger("10.0.0.1", "service.token", arguments)


async def test_a_rotation_ends_the_credential_before(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        first = await root.services.register("shop", scopes=SCOPES)
        async with landbridge.connect(terminal.url, token=first.credential) as bus:
            reader = await Reader(bus.subscribe("orders.eu", group="g")).__aenter__()
            second = await root.services.rotate("shop")
            assert second.before_ends_at is not None
            with pytest.raises(Unauthenticated):
                await reader.next()
            await has_ended(bus)
        assert first.credential
        assert await refused(terminal, first.credential)
        assert not await refused(terminal, second.credential)


async def test_a_rotation_with_an_overlap(timed: Terminal, clock: FakeClock) -> None:
    async with root_of(timed) as root:
        first = await root.services.register("shop", scopes=SCOPES)
        assert first.credential
        async with attach(timed, token=first.credential) as old:
            second = await root.services.rotate("shop", overlap=60.0)
            assert second.before_ends_at == clock.now + 60 * SECOND
            async with attach(timed, token=second.credential) as new:
                clock.advance(59)
                await old.publish("orders.eu", b"1")
                await new.publish("orders.eu", b"1")
                assert not await refused(timed, first.credential)
                clock.advance(2)
                await has_ended(old)
                await new.publish("orders.eu", b"2")
        assert await refused(timed, first.credential)
        third = await root.services.rotate("shop", overlap=60.0)
        assert [row.ends_at for row in (await root.services.show("shop")).credentials] == [
            None, clock.now + 60 * SECOND,
        ]  # fmt: skip
        fourth = await root.services.rotate("shop", overlap=60.0)
        assert await refused(timed, second.credential)  # two at a time
        assert not await refused(timed, third.credential)
        assert not await refused(timed, fourth.credential)
        for overlap in (-1.0, float("nan"), float("inf"), 31 * 86400.0):
            with pytest.raises(BadRequest):
                await root.services.rotate("shop", overlap=overlap)


async def test_a_service_without_a_credential_gets_its_first_by_rotation(bus: Any) -> None:
    made = await bus.services.register("shop", scopes=SCOPES, credential=False)
    assert made.credential is None
    first = await bus.services.rotate("shop")
    assert first.before_ends_at is None
    assert (await bus.services.token("shop", first.credential)).service == "shop"


async def test_a_context_may_hold_a_credential(
    terminal: Terminal, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from landbridge.client import context

    monkeypatch.setenv("LANDBRIDGE_HOME", str(tmp_path))
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
    assert made.credential
    context.save("shop", context.Context(terminal.url, made.credential))
    async with landbridge.connect(context="shop") as bus:
        await bus.publish("orders.eu", b"1")


# -- suspended, removed, narrowed ---------------------------------------------------------------------


async def test_a_suspended_service_is_out_at_once(terminal: Terminal, way: Way) -> None:
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
        assert made.credential
        traded = await root.services.token("shop", made.credential)
        async with (
            attach(terminal, token=made.credential) as by_credential,
            attach(terminal, token=traded.token) as by_token,
        ):
            reader = await Reader(by_token.subscribe("orders.eu", group="g")).__aenter__()
            async with way.connect(terminal, subject="operator", scopes=["operate"]) as operator:
                suspended = await operator.services.suspend("shop", note="it floods orders")
                assert (suspended.state, suspended.note) == ("suspended", "it floods orders")
                with pytest.raises(Unauthenticated):
                    await reader.next()
                await has_ended(by_credential)
                await has_ended(by_token)
                assert not [c for c in terminal.connections if c.subject == "shop"]
                assert await refused(terminal, made.credential)
                assert await refused(terminal, traded.token)
                with pytest.raises(Unauthenticated):
                    await root.services.token("shop", made.credential)
                with pytest.raises(BadRequest, match="suspended"):
                    await root.tokens.create("shop", SCOPES[:1])
                resumed = await operator.services.resume("shop")
                assert (resumed.state, resumed.note) == ("active", "")
        assert not await refused(terminal, made.credential)
        assert not await refused(terminal, traded.token)


async def test_a_name_that_is_given_again_has_none_of_the_tokens_before(
    timed: Terminal, clock: FakeClock
) -> None:
    """Also where all of it happens in the same microsecond, and after a restart."""
    async with root_of(timed) as root:
        made = await root.services.register("shop", scopes=SCOPES)
        assert made.credential
        old = [made.credential, (await root.services.token("shop", made.credential)).token]
        old.append((await root.tokens.create("shop", SCOPES, life=1e6)).token)
        for again in range(3):
            async with attach(timed, token=old[-1]) as bus:
                await root.services.remove("shop")
                await has_ended(bus)
            assert [row.revoked for row in await root.tokens.list(subject="shop")] == [True] * (1 + again)
            for token in old:
                assert await refused(timed, token)
            anew = await root.services.register("shop", scopes=["admin"])
            assert anew.credential
            for token in old:
                assert await refused(timed, token)
            fresh = (await root.services.token("shop", anew.credential)).token
            assert not await refused(timed, fresh)
            old += [anew.credential, fresh, (await root.tokens.create("shop", ["admin"], life=1e6)).token]


async def test_what_was_removed_stays_so_after_a_restart(clock: FakeClock) -> None:
    store = MemoryStore(units=4)
    async with run_terminal(store, clock=clock) as terminal, root_of(terminal) as root:
        old = (await root.tokens.create("shop", SCOPES, life=1e6)).token
        await root.services.remove("shop")
    clock.now -= 3600 * SECOND  # and somebody has set the clock back
    async with run_terminal(store, clock=clock) as terminal, root_of(terminal) as root:
        assert await refused(terminal, old)
        new = (await root.tokens.create("shop", SCOPES, life=1e6)).token
        assert await refused(terminal, old)
        assert not await refused(terminal, new)
    async with run_terminal(store, clock=clock) as terminal:
        assert await refused(terminal, old)
        assert not await refused(terminal, new)


async def test_fewer_scopes_end_what_had_more(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
        assert made.credential
        wide = (await root.services.token("shop", made.credential)).token
        narrow = (await root.services.token("shop", made.credential, ["publish:orders.eu"])).token
        async with (
            attach(terminal, token=wide) as by_wide,
            attach(terminal, token=narrow) as by_narrow,
            attach(terminal, token=made.credential) as by_credential,
        ):
            reader = await Reader(by_credential.subscribe("orders.eu", group="g")).__aenter__()
            await root.services.update("shop", scopes=["publish:orders.*"])
            await has_ended(by_wide)
            with pytest.raises(Forbidden):
                await reader.next()  # the connection goes on, with what the service may now
            await by_credential.publish("orders.eu", b"1")
            await by_narrow.publish("orders.eu", b"1")
            await root.services.update("shop", scopes=["publish:orders.*", "publish:mail"])
            await by_credential.publish("mail", b"1")
        assert await refused(terminal, wide)


async def test_a_revoked_service_is_dead_for_good(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
        assert made.credential
        async with attach(terminal, token=made.credential) as bus:
            await root.tokens.revoke(subject="shop")
            await has_ended(bus)
        assert (await root.services.show("shop")).state == "revoked"
        for attempt in (
            root.services.register("shop", scopes=SCOPES),
            root.services.rotate("shop"),
            root.tokens.create("shop", SCOPES),
        ):
            with pytest.raises(BadRequest, match="revoked"):
                await attempt


# -- tokens make services -----------------------------------------------------------------------------


async def test_a_token_makes_a_service(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        await root.tokens.create("shop", ["publish:orders"])
        await root.tokens.create("shop", ["publish:mail"])
        (row,) = [row for row in await root.services.list() if row.name == "shop"]
        assert (row.implied, row.scopes) == (True, ["publish:orders", "publish:mail"])
        # From here on somebody takes care of what it may.
        made = await root.services.register("shop", version="1.0.0")
        assert (made.implied, made.options.scopes) == (False, ("publish:orders", "publish:mail"))
        assert made.credential
        await root.tokens.create("shop", ["publish:mail"])
        with pytest.raises(Forbidden, match="publish:other"):
            await root.tokens.create("shop", ["publish:other"])
        assert (await root.services.show("shop")).options.scopes == ("publish:orders", "publish:mail")
        with pytest.raises(BadRequest):
            await root.tokens.create("nobody", [])
        with pytest.raises(UnknownService):
            await root.services.show("nobody")


async def test_tokens_of_an_earlier_version_stay_good(clock: FakeClock) -> None:
    store = MemoryStore(units=4)
    tokens = {}
    async with run_terminal(store, clock=clock) as terminal:
        now = clock.now
        for name, scopes, life in (
            ("shop", ["publish:orders"], 3600), ("shop", ["admin"], 7200), ("gone", ["admin"], 1),
            ("banned", ["admin"], 3600), ("one", ["publish:a"], 3600),
        ):  # fmt: skip
            token, id = terminal.authority.issue(now, name, scopes, life)
            tokens[name, scopes[0]] = token
            await terminal.operations.issued.remember(IssuedToken(id, name, scopes, now, now + life * SECOND))
            if name == "one":
                await terminal.broker.write([PutDocument("revoked", id, b"")])
        await terminal.broker.write([PutDocument("revoked", "sub:banned", b"")])
        await terminal.broker.write([DeleteDocument("settings", ADOPTED)])
    clock.advance(2)
    async with run_terminal(store, clock=clock) as terminal, root_of(terminal) as root:
        assert not await refused(terminal, tokens["shop", "publish:orders"])
        assert not await refused(terminal, tokens["shop", "admin"])
        assert await refused(terminal, tokens["banned", "admin"])
        assert await refused(terminal, tokens["one", "publish:a"])
        rows = {row.name: row for row in await root.services.list()}
        assert set(rows) == {"root", "shop"}
        assert (rows["shop"].implied, rows["shop"].scopes) == (True, ["publish:orders", "admin"])
        await root.services.remove("shop")
    async with run_terminal(store, clock=clock) as terminal:  # once, and not again
        assert await refused(terminal, tokens["shop", "admin"])


async def test_a_token_whose_subject_nobody_has_registered_is_refused(terminal: Terminal) -> None:
    token, _ = terminal.authority.issue(terminal.broker.clock(), "nobody", ["admin"], 60)
    assert await refused(terminal, token)
    async with root_of(terminal) as root:
        await root.services.register("nobody", scopes=["publish:a"])
        assert await refused(terminal, token)  # it says admin, and the service isn't that


# -- hostile ------------------------------------------------------------------------------------------


async def test_a_service_can_t_help_itself_to_more(terminal: Terminal, way: Way) -> None:
    async with root_of(terminal) as root:
        await root.services.register("victim", scopes=["admin"])
        await root.services.register("shop", scopes=SCOPES)
    async with way.connect(terminal, subject="shop", scopes=SCOPES) as bus:
        for attempt in (
            bus.tokens.create("shop", ["admin"]),
            bus.tokens.create("shop", SCOPES),
            bus.services.update("shop", scopes=["admin"]),
            bus.services.update("shop", scopes=SCOPES),
            bus.services.update("shop", owner="root"),
            bus.services.update("victim", description="mine"),
            bus.services.register("shop", scopes=["admin"]),
            bus.services.register("other", scopes=["publish:a"]),
            bus.services.heartbeat("victim", health="failing"),
            bus.services.show("victim"),
            bus.services.stats("victim"),
            bus.services.list(),
            bus.services.suspend("victim"),
            bus.services.rotate("shop"),
            bus.services.rotate("victim"),
            bus.services.remove("victim"),
        ):
            with pytest.raises(Forbidden):
                await attempt
        mine = await bus.services.update("shop", version="2.0.0", description="sells", metadata={"a": "b"})
        assert (mine.options.version, mine.options.scopes) == ("2.0.0", tuple(SCOPES))
        await bus.services.heartbeat("shop")
        assert (await bus.services.show("shop")).health == "ok"


async def test_an_operator_can_t_lock_out_the_admins(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        await root.services.register("chief", scopes=["admin"])
        await root.services.register("shop", scopes=SCOPES)
        await root.services.register("operator", scopes=["operate"])
        with pytest.raises(BadRequest, match="your own service"):
            await root.services.suspend("root")
        with pytest.raises(BadRequest, match="your own service"):
            await root.services.remove("root")
        async with attach(terminal, subject="operator", scopes=["operate"]) as operator:
            await operator.services.suspend("shop")
            for attempt in (operator.services.suspend("chief"), operator.services.resume("chief")):
                with pytest.raises(Forbidden):
                    await attempt
            with pytest.raises(BadRequest, match="your own service"):
                await operator.services.suspend("operator")
        await root.services.suspend("chief")
        await root.services.resume("chief")


async def test_forged_credentials_do_not_get_in(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        made = await root.services.register("shop", scopes=["admin"])
    assert made.credential
    good = made.credential
    forged = [
        credential.new(credential.SERVICE)[0],
        credential.new(credential.ADMIN)[0],
        good.replace("lbsc1_", "lbac1_"),
        good[:-1],
        good + "a",
        good.swapcase(),
        "lbsc1_",
        "lbsc1_" + "a" * 60,
        "lbsc1_" + "é" * 60,
        "lbsc1_" + "a" * 8000,
        "lbsc1_\0",
    ]
    for text in forged:
        assert await refused(terminal, text)
    assert not await refused(terminal, good)
    stored = dict(await terminal.store.documents(0, KIND))
    assert good.encode() not in stored["shop"]  # its digest alone is kept
    async with root_of(terminal) as root:
        shown = msgspec.json.encode(await root.services.show("shop"))
        assert good.encode() not in shown


async def test_a_renewal_is_by_the_same_service(terminal: Terminal) -> None:
    async with root_of(terminal) as root:
        shop = await root.services.register("shop", scopes=SCOPES)
        other = await root.services.register("other", scopes=["admin"])
    assert shop.credential
    assert other.credential
    async with attach(terminal, token=shop.credential) as bus:
        with pytest.raises(Unauthenticated):
            await bus.renew(other.credential)
        await bus.renew((await bus.services.token("shop", shop.credential, ["publish:orders.eu"])).token)
        with pytest.raises(Forbidden):
            await bus.publish("orders.us", b"1")
        await bus.renew(shop.credential)
        await bus.publish("orders.us", b"1")


async def test_a_damaged_registration_lets_nobody_in(clock: FakeClock) -> None:
    store = MemoryStore(units=4)
    async with run_terminal(store, clock=clock) as terminal, root_of(terminal) as root:
        made = await root.services.register("shop", scopes=SCOPES)
        other = await root.services.register("other", scopes=SCOPES)
        token = (await root.tokens.create("shop", SCOPES)).token
        await terminal.broker.write([PutDocument(KIND, "shop", b"\xc1garbage")])
    assert made.credential
    assert other.credential
    async with run_terminal(store, clock=clock) as terminal, root_of(terminal) as root:
        assert any("the service shop" in found for found in terminal.broker.damage.found)
        assert not await refused(terminal, other.credential)
        for old in (made.credential, token):
            assert await refused(terminal, old)
        with pytest.raises(StoreCorrupt):
            await root.services.show("shop")
        assert "shop" not in {row.name for row in await root.services.list()}
        anew = await root.services.register("shop", scopes=SCOPES)
        assert anew.credential
        for old in (made.credential, token):
            assert await refused(terminal, old)
        assert not await refused(terminal, anew.credential)


# -- how it is ----------------------------------------------------------------------------------------


async def test_heartbeats_add_up(timed: Terminal, clock: FakeClock, way: Way) -> None:
    async with attach(timed, subject="root", life=1e5) as root:
        await root.services.register("shop", scopes=SCOPES, credential=False)
        ping = await root.services.ping("shop")
        assert (ping.connections, ping.seen_at, ping.age, ping.answered) == (0, None, None, False)
        async with way.connect(timed, subject="shop", scopes=SCOPES, life=1e5) as bus:
            for instance, requests, p99 in (("a", 10, 0.5), ("b", 5, 0.2), ("b", 7, 0.1)):
                figures = EndpointFigures(
                    name="sell", requests=requests, errors=1, last_error=f"of {instance}",
                    processing=1.5, p50=0.05, p99=p99,
                )  # fmt: skip
                await bus.services.heartbeat("shop", instance=instance, endpoints=[figures])
            await bus.services.heartbeat("shop", instance="c", health="degraded", detail="no database")
            stats = await root.services.stats("shop")
            (sell,) = stats.endpoints
            assert (sell.requests, sell.errors, sell.last_error) == (17, 2, "of b")
            assert (sell.processing, sell.p50, sell.p99) == (3.0, 0.05, 0.5)
            assert (stats.health, stats.connections) == ("degraded", 1)
            assert [(row.instance, row.health) for row in stats.instances] == [
                ("a", "ok"), ("b", "ok"), ("c", "degraded"),
            ]  # fmt: skip
            assert (await root.services.info("shop")).instances == ["a", "b", "c"]
            clock.advance(120)
            assert (await root.services.show("shop")).health is None  # it has said nothing for a while
        seen = await root.services.ping("shop")
        assert seen.connections == 0
        assert seen.age is not None
        clock.advance(4000)
        assert (await root.services.stats("shop")).instances == []
        await root.services.remove("shop")
        await root.services.register("shop", credential=False)
        assert (await root.services.ping("shop")).seen_at is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"health": "fine"},
        {"instance": "x" * 201},
        {"instance": "a\nb"},
        {"detail": "x" * 2001},
        {"endpoints": [{"name": f"e{n}"} for n in range(101)]},
        {"endpoints": [{"name": "e", "requests": -1}]},
        {"endpoints": [{"name": "e", "requests": 1 << 63}]},
        {"endpoints": [{"name": "e", "processing": float("nan")}]},
        {"endpoints": [{"name": "e", "p99": float("inf")}]},
        {"endpoints": [{"name": "e", "last_error": "x" * 501}]},
        {"endpoints": [{"name": "e\0"}]},
    ],
    ids=lambda wrong: str(wrong)[:60],
)
async def test_a_heartbeat_that_makes_no_sense(terminal: Terminal, wrong: dict[str, Any]) -> None:
    async with attach(terminal, subject="shop") as bus:
        with pytest.raises(BadRequest):
            await bus.call("service.heartbeat", name="shop", **wrong)
        assert (await bus.services.stats("shop")).instances == []


async def test_processes_of_a_service_are_bounded(terminal: Terminal) -> None:
    async with attach(terminal, subject="shop") as bus:
        for number in range(50):
            await bus.services.heartbeat("shop", instance=f"{number:03}")
        rows = (await bus.services.stats("shop")).instances
        assert [row.instance for row in rows] == [f"{number:03}" for number in range(30, 50)]


async def test_a_live_connection_is_a_sign_of_life(terminal: Terminal) -> None:
    async with root_of(terminal) as root, attach(terminal, subject="shop", scopes=SCOPES) as bus:
        await bus.ping()
        first = await root.services.ping("shop")
        assert (first.connections, first.state) == (1, "active")
        await bus.ping()
        second = await root.services.ping("shop")
        assert first.seen_at is not None
        assert second.seen_at is not None
        assert first.seen_at < second.seen_at
