"""What is on disk: everything that was answered, and no secret in the clear."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest

from landbridge.client.registry_documents import RegisteredTerminal, TerminalPage
from landbridge.core.log.store import Store
from landbridge.core.trust import directory
from landbridge.core.trust.identity import SecureKey
from landbridge.errors import StoreCorrupt, StoreFull, TicketExpired, Unauthenticated
from landbridge.stores.journal.store import JournalStore
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock, FaultyStore
from tests.registry.site import MASTER, Site, Tenant
from tests.registry.test_entities import state
from tests.waiting import eventually


def unseen(page: TerminalPage) -> list[RegisteredTerminal]:
    """Without when each was last seen, which is not kept."""
    return [msgspec.structs.replace(each, seen_at=None, silent=True) for each in page.items]


async def test_restart_keeps_everything(store: Store) -> None:
    clock = FakeClock()
    async with Site.running(store, clock=clock) as site:
        acme = await site.tenant("acme")
        await acme.admin.revoke_terminal(acme.oslo.id)
        await acme.admin.rotate_message_bus_topic_key("orders")
        await acme.rome.registry.post_link_state(state(site, acme.rome), {"orders": 3})
        lima = await acme.admin.create_terminal("lima", make_key=False)
        enrolment = await acme.admin.create_terminal_enrolment(lima.terminal_id)
        issue = await acme.paris.registry.issue("orders")
        frame = acme.paris.seal(issue, acme.rome, b"hello", clock())
        before = await acme.paris.registry.directory()
        shown = [
            await acme.admin.show_message_bus_customer(),
            unseen(await acme.admin.list_terminals()),
            await acme.admin.list_terminal_groups(),
            await acme.admin.list_message_bus_topics(),
        ]
        audit = (await acme.admin.audit(limit=1000)).items
        operator_token, public_key = site.operator_token, site.registry.public_key

    async with Site.running(store, clock=clock, operator_token=operator_token) as site:
        assert site.registry.operator_token is None
        assert site.registry.public_key == public_key
        admin = site.client(token=acme.token)
        assert shown == [
            await admin.show_message_bus_customer(),
            unseen(await admin.list_terminals()),
            await admin.list_terminal_groups(),
            await admin.list_message_bus_topics(),
        ]
        assert (await admin.audit(limit=1000)).items == audit
        assert len((await site.operator.list_message_bus_customers()).items) == 1
        rome = site.member(acme.id, acme.rome.id, acme.rome.key)
        paris = site.member(acme.id, acme.paris.id, acme.paris.key)
        after = await rome.registry.directory()
        assert before is not None
        assert after is not None
        assert directory.verify(after.directory, public_key) == directory.verify(before.directory, public_key)
        assert await rome.open(paris, frame, clock()) == b"hello"
        with pytest.raises(Unauthenticated):
            await site.member(acme.id, acme.oslo.id, acme.oslo.key).registry.directory()
        await site.client().enrol(enrolment.token, SecureKey.new().public)
        # A customer that is made now gets an audit log of its own.
        other = await site.tenant("other")
        assert not any(acme.rome.id in str(event) for event in (await other.admin.audit(limit=1000)).items)


async def test_removed_customer_stays_removed(store: Store) -> None:
    async with Site.running(store) as site:
        acme = await site.tenant("acme")
        await site.operator.remove_message_bus_customer(acme.id)
        token = site.operator_token
    async with Site.running(store, operator_token=token) as site:
        assert (await site.operator.list_message_bus_customers()).items == []
        with pytest.raises(Unauthenticated):
            await site.client(token=acme.token).show_message_bus_customer()


async def test_no_secret_is_in_the_file(tmp_path: Path) -> None:
    async with Site.running(JournalStore(tmp_path / "registry")) as site:
        acme = await site.tenant("acme")
        registry = site.registry
        account = registry.index.accounts[acme.id]
        topic = account.topics["orders"]
        customer = account.customer
        vault = registry.state.keyring.vault
        lima = await acme.admin.create_terminal("lima", make_key=False)
        enrolment = await acme.admin.create_terminal_enrolment(lima.terminal_id)
        issue = await acme.paris.registry.issue("orders")
        await acme.rome.open(
            acme.paris, acme.paris.seal(issue, acme.rome, b"hello", site.clock()), site.clock()
        )
        renewal = await acme.paris.registry.renew(issue.ticket)
        secrets = {
            "master key": MASTER,
            "signing key": registry.state.keyring.signing_key.private_bytes_raw(),
            "topic key": vault.topic_private(
                customer.id, customer.sealing_key, "orders", topic.keys[0]
            ).private_bytes_raw(),
            "authority's key": registry.state.keyring.authority_key(customer)[-60:],
            "operator's token": site.operator_token.encode(),
            "customer's token": acme.token.encode(),
            "enrolment token": enrolment.token.encode(),
            "secure key": str(acme.paris.key).encode(),
            "terminal's signing key": acme.paris.key.signing_key().private_bytes_raw(),
            "terminal's wrapping key": acme.paris.key.wrapping_key().private_bytes_raw(),
            "ticket": issue.ticket[20:60],
            "renewed ticket": renewal.ticket[20:60],
        }
        public = {
            "topic's public key": topic.keys[0].public,
            "terminal's public key": acme.paris.key.public.sign,
        }
        live = b"".join(path.read_bytes() for path in sorted((tmp_path / "registry").iterdir()))
    closed = b"".join(path.read_bytes() for path in sorted((tmp_path / "registry").iterdir()))
    assert len(closed) > 10_000
    for what, value in public.items():  # that this looks in the right place
        assert value in live + closed, what
    for what, value in secrets.items():
        assert value not in live + closed, what


async def test_another_master_key_opens_nothing(store: Store) -> None:
    async with Site.running(store) as site:
        await site.tenant("acme")
    with pytest.raises(StoreCorrupt, match="doesn't open"):
        async with Site.running(store, master=bytes(32)):
            pass
    async with Site.running(store):  # the refused start has left the store free, and as it was
        pass


async def test_master_key_rotates(store: Store) -> None:
    clock, fresh = FakeClock(), os.urandom(32)
    async with Site.running(store, clock=clock) as site:
        acme = await site.tenant("acme")
        frame = acme.paris.seal(await acme.paris.registry.issue("orders"), acme.rome, b"hello", clock())
        await site.registry.rotate_master_key(fresh)
        assert await acme.rome.open(acme.paris, frame, clock()) == b"hello"
    with pytest.raises(StoreCorrupt):
        async with Site.running(store, clock=clock):
            pass
    async with Site.running(store, clock=clock, master=fresh) as site:
        rome = site.member(acme.id, acme.rome.id, acme.rome.key)
        paris = site.member(acme.id, acme.paris.id, acme.paris.key)
        assert await rome.open(paris, frame, clock()) == b"hello"
        await paris.registry.issue("orders")


# -- a store that fails --------------------------------------------------------------------------------


async def test_what_could_not_be_stored_has_not_happened() -> None:
    faulty = FaultyStore(MemoryStore())
    async with Site.running(faulty) as site:
        acme = await site.tenant("acme")
        before = await acme.paris.registry.directory()
        faulty.failing = True
        for call in (
            acme.admin.create_terminal("lima"),
            acme.admin.revoke_terminal(acme.oslo.id),
            acme.admin.remove_message_bus_topic("orders"),
            acme.paris.registry.issue("orders"),  # no ticket without its audit event
        ):
            with pytest.raises(StoreFull):
                await call
        assert await acme.paris.registry.directory() == before
        faulty.failing = False
        assert await acme.oslo.registry.directory() is not None
        await acme.admin.create_terminal("lima")


async def test_who_goes_away_leaves_nothing_half_done() -> None:
    inner = MemoryStore()
    faulty = FaultyStore(inner)
    async with Site.running(faulty) as site:
        acme = await site.tenant("acme")
        faulty.gate.clear()
        revoking = asyncio.create_task(acme.admin.revoke_terminal(acme.oslo.id))
        creating = asyncio.create_task(acme.admin.create_terminal("lima"))
        await eventually(lambda: len(site.registry.state.running) == 2)
        revoking.cancel()
        creating.cancel()
        faulty.gate.set()
        await eventually(lambda: not site.registry.state.running)
        names = {terminal.name for terminal in (await acme.admin.list_terminals()).items}
        assert names == {"paris", "rome", "oslo", "lima"}
        with pytest.raises(Unauthenticated):
            await acme.oslo.registry.directory()
        token = site.operator_token
    async with Site.running(inner, operator_token=token) as site:
        admin = site.client(token=acme.token)
        assert {terminal.name for terminal in (await admin.list_terminals()).items} == names


async def test_many_tickets_share_commits() -> None:
    faulty = FaultyStore(MemoryStore())
    async with Site.running(faulty) as site:
        acme = await site.tenant("acme")
        before = faulty.commits
        faulty.gate.clear()
        asking = [asyncio.create_task(acme.paris.registry.issue("orders")) for _ in range(50)]
        await eventually(lambda: len(site.registry.state.running) == 50)
        faulty.gate.set()
        issued = await asyncio.gather(*asking)
        assert len({issue.seal_id for issue in issued}) == 50
        assert faulty.commits - before <= 3
        assert len((await acme.admin.audit(limit=1000)).items) >= 50


async def test_ticket_of_a_registry_with_other_keys_is_refused(quick: Site, acme: Tenant) -> None:
    async with Site.running(MemoryStore()) as other:
        theirs = await other.tenant("acme")
        ticket = (await theirs.paris.registry.issue("orders")).ticket
    with pytest.raises(Exception, match="not a ticket") as refusal:
        await acme.paris.registry.renew(ticket)
    assert not isinstance(refusal.value, TicketExpired)


async def test_the_host_is_known_by_its_id_whatever_customers_call_themselves(store: Store) -> None:
    """A customer that takes the name of the host's gets nothing by it."""
    async with Site.running(store) as site:
        hostile = await site.tenant("aaa")
        host, token = await site.registry.host_account("local", "")
        assert token is not None
        await site.client(token=token).update_message_bus_customer("renamed")
        await hostile.admin.update_message_bus_customer("local")
        operator = site.operator_token
    async with Site.running(store, operator_token=operator) as site:
        again, token = await site.registry.host_account("local", "")
        assert (again.id, token) == (host.id, None)
        # Removed, it is made anew, under a name that is free.
        await site.operator.remove_message_bus_customer(host.id)
        made, token = await site.registry.host_account("local", "")
        assert made.id not in (host.id, hostile.id)
        assert made.customer.name == "local-2"
        assert token is not None


async def test_the_host_of_an_earlier_build_is_known_by_the_id_that_its_terminal_has_kept(
    store: Store,
) -> None:
    async with Site.running(store) as site:
        hostile, acme = await site.tenant("local"), await site.tenant("acme")
        host, token = await site.registry.host_account("local", acme.id)
        assert (host.id, token) == (acme.id, None)
        assert (await site.registry.host_account("local", hostile.id))[0].id == acme.id
