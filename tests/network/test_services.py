"""A service that the registry has registered, at several terminals: its tokens come from the registry, and
the terminals go by the directory."""

from __future__ import annotations

import asyncio

import pytest

from landbridge.client import registry_tokens
from landbridge.client.reading import Reading
from landbridge.client.registry_documents import CreatedServiceCredential
from landbridge.client.registry_tokens import ServiceTokens
from landbridge.errors import Forbidden, NameTaken, RegistryUnreachable, Unauthenticated
from landbridge.stores.memory import MemoryStore
from landbridge.testing.fleet import Fleet, FleetMember, until
from tests.waiting import LIMIT, Reader

SCOPES = ["publish:orders", "subscribe:orders"]


async def token_of(fleet: Fleet, made: CreatedServiceCredential) -> str:
    async with fleet._client() as stranger:
        return (await stranger.create_service_token(made.name, made.credential)).token


async def known_at(fleet: Fleet, *members: FleetMember) -> None:
    """Wait until these terminals have the newest directory."""
    newest = fleet.registry.index.accounts[fleet.customer].customer.version
    await until(lambda: all(member.network.directory.version >= newest for member in members))


async def ended(subscription: Reading) -> None:
    """Wait until the terminal ends a subscription."""
    async with asyncio.timeout(LIMIT):
        with pytest.raises(Unauthenticated):
            async for message in subscription:
                await message.ack()


async def test_it_publishes_here_and_consumes_there_until_it_is_suspended():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        made = await fleet.admin.register_service("shop", SCOPES)
        other = await fleet.admin.register_service("other", SCOPES)
        await known_at(fleet, paris, tokyo)
        token = await token_of(fleet, made)
        async with (
            fleet.attach(paris, token=token) as here,
            fleet.attach(tokyo, token=token) as there,
            fleet.attach(paris, token=await token_of(fleet, other)) as bystander,
            fleet.attach(paris) as admin,
        ):
            for number in range(3):
                await here.publish("orders", {"id": number})
            with pytest.raises(Forbidden):
                await here.publish("mail", b"1")
            async with Reader(there.subscribe("orders", group="billing")) as reader:
                assert await reader.payloads(3) == [b'{"id":0}', b'{"id":1}', b'{"id":2}']
                # The live connections end at both terminals, and nobody else's.
                await fleet.admin.suspend_service("shop")
                with pytest.raises(Unauthenticated):
                    await reader.next()
            await known_at(fleet, paris, tokyo)
            with pytest.raises(Unauthenticated):
                await here.publish("orders", {"id": 4})
            for member in (paris, tokyo):
                with pytest.raises(Unauthenticated):
                    async with fleet.attach(member, token=token):
                        pass
            await bystander.publish("orders", {"id": 5})
            await admin.publish("orders", {"id": 6})
            # Resumed, it goes on with a fresh token; the old one stays ended.
            await fleet.admin.resume_service("shop")
            await known_at(fleet, paris, tokyo)
            with pytest.raises(Unauthenticated):
                async with fleet.attach(paris, token=token):
                    pass
            fresh = await token_of(fleet, made)
            async with (
                fleet.attach(tokyo, token=fresh) as again,
                Reader(again.subscribe("orders", group="billing")) as reader,
            ):
                assert await reader.payloads(2) == [b'{"id":5}', b'{"id":6}']


async def test_a_removed_service_and_a_stolen_key_end_connections():
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        await fleet.topic("orders", billing=[paris])
        shop, other = (
            await fleet.admin.register_service("shop", SCOPES),
            await fleet.admin.register_service("other", SCOPES),
        )
        await known_at(fleet, paris)
        async with (
            fleet.attach(paris, token=await token_of(fleet, shop)) as one,
            fleet.attach(paris, token=await token_of(fleet, other)) as two,
            fleet.attach(paris) as admin,
        ):
            await fleet.admin.remove_service("shop")
            await ended(one.subscribe("orders", group="billing"))
            await two.publish("orders", b"1")
            await fleet.admin.rotate_token_key(keep_old=False)
            await ended(two.subscribe("orders", group="billing"))
            await admin.publish("orders", b"2")  # the terminal's own tokens are not concerned


async def test_what_a_terminal_does_for_a_service_ends_with_the_service():
    """A terminal publishes the messages of a schedule on behalf of its owner."""
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        await fleet.topic("orders", billing=[paris])
        await fleet.admin.register_service("shop", SCOPES)
        await known_at(fleet, paris)

        async def publish() -> None:
            token = paris.terminal.lend_token("shop", ["publish:orders"], [], 60.0)
            async with fleet.attach(paris, token=token) as bus:
                await bus.publish("orders", b"1")

        async def refused() -> None:
            await known_at(fleet, paris)
            with pytest.raises(Unauthenticated):
                await publish()

        await publish()
        await fleet.admin.suspend_service("shop")
        await refused()
        await fleet.admin.resume_service("shop")
        await known_at(fleet, paris)
        await publish()
        await fleet.admin.remove_service("shop")
        await refused()


async def test_without_the_registry_tokens_are_taken_and_none_are_made():
    async with Fleet() as fleet:
        paris = await fleet.server("paris", store=MemoryStore())
        await fleet.topic("orders", billing=[paris])
        made = await fleet.admin.register_service("shop", SCOPES)
        await fleet.admin.register_service("gone", SCOPES)
        gone = await fleet.admin.rotate_service_credential("gone")
        token, ended_token = await token_of(fleet, made), await token_of(fleet, gone)
        await fleet.admin.remove_service("gone")
        await known_at(fleet, paris)
        # The directory that is on disk counts after a restart as well.
        version = paris.network.directory.version
        await until(lambda: paris.network.following._answered == frozenset(paris.network.log_ends()))
        fleet.registry_up = False
        await fleet.stop(paris)
        await fleet.start(paris)
        assert paris.network.directory.version == version
        async with fleet.attach(paris, token=token) as bus:
            await bus.publish("orders", b"1")
        with pytest.raises(Unauthenticated):
            async with fleet.attach(paris, token=ended_token):
                pass
        with pytest.raises(RegistryUnreachable):
            await token_of(fleet, made)
        async with fleet.attach(paris) as admin:  # its own tokens need no registry
            await admin.publish("orders", b"2")


async def test_a_suspension_spreads_over_links_where_the_registry_is_away():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        made = await fleet.admin.register_service("shop", SCOPES)
        await known_at(fleet, paris, tokyo)
        await fleet.linked()
        async with fleet.attach(tokyo, token=await token_of(fleet, made)) as bus:
            await tokyo.network.following.close()  # it hears of nothing but from its neighbour
            await fleet.admin.suspend_service("shop")
            await ended(bus.subscribe("orders", group="billing"))


async def test_a_name_of_the_registry_is_not_given_away_by_a_terminal():
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        await fleet.admin.register_service("shop", SCOPES)
        await known_at(fleet, paris)
        async with fleet.attach(paris) as admin:
            with pytest.raises(NameTaken):
                await admin.tokens.create("shop", ["publish:orders"])
            assert (await admin.tokens.create("mine", ["publish:orders"])).subject == "mine"
            await fleet.admin.remove_service("shop")
            await known_at(fleet, paris)
            assert (await admin.tokens.create("shop", ["publish:orders"])).subject == "shop"


async def test_a_terminal_can_refuse_a_service_for_itself():
    async with Fleet() as fleet:
        paris, tokyo = await fleet.server("paris"), await fleet.server("tokyo")
        await fleet.topic("orders", billing=[tokyo])
        made = await fleet.admin.register_service("shop", SCOPES)
        await known_at(fleet, paris, tokyo)
        token = await token_of(fleet, made)
        async with fleet.attach(paris, token=token) as here, fleet.attach(paris) as admin:
            await here.publish("orders", b"1")
            await admin.tokens.revoke(subject="shop")
            await ended(here.subscribe("orders", group="billing"))
        async with fleet.attach(tokyo, token=token) as there:
            await there.publish("orders", b"2")


async def test_a_connection_goes_on_with_another_token_of_the_same_service():
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        await fleet.topic("orders", billing=[paris])
        made = await fleet.admin.register_service("shop", SCOPES)
        other = await fleet.admin.register_service("other", SCOPES)
        await known_at(fleet, paris)
        async with fleet.attach(paris, token=await token_of(fleet, made)) as bus:
            await bus.renew(await token_of(fleet, made))
            await bus.publish("orders", b"1")
            with pytest.raises(Unauthenticated):
                await bus.renew(await token_of(fleet, other))


async def test_tokens_stay_fresh_and_connections_go_on_with_them():
    async with Fleet() as fleet:
        paris = await fleet.server("paris")
        await fleet.topic("orders", billing=[paris])
        made = await fleet.admin.register_service("shop", SCOPES)
        await known_at(fleet, paris)
        async with (
            fleet._client() as stranger,
            ServiceTokens(stranger, "shop", made.credential, scopes=SCOPES[:1], life=4) as tokens,
        ):
            first = tokens.current()
            async with fleet.attach(paris, token=first) as bus:
                tokens.keep(bus)
                [connection] = [each for each in paris.terminal.connections if each.subject == "shop"]
                shown = connection.identity
                await until(lambda: connection.identity is not shown)
                assert tokens.current() != first
                await bus.publish("orders", b"1")
                with pytest.raises(Forbidden):
                    await bus.subscribe("orders", group="billing").open()


async def test_fresh_tokens_outlast_a_registry_that_is_away(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(registry_tokens, "AGAIN", 0.01)
    async with Fleet() as fleet, fleet._client() as stranger:
        with pytest.raises(Unauthenticated):
            async with ServiceTokens(stranger, "shop", "lbsc1_wrong"):
                pass
        made = await fleet.admin.register_service("shop", SCOPES)
        async with ServiceTokens(stranger, "shop", made.credential, life=2) as tokens:
            first = tokens.current()
            fleet.registry_up = False
            await until(lambda: "no new token" in caplog.text)
            assert tokens.current() == first
            fleet.registry_up = True
            await until(lambda: tokens.current() != first)
        for secret in (made.credential, first, tokens.current()):
            assert secret not in repr(tokens) + caplog.text
