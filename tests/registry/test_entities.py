"""Terminals, groups and topics: made, changed, removed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from landbridge.client.registry import RegistryClient
from landbridge.core.routing import linkstate
from landbridge.core.routing.linkstate import LinkState, SignedLinkState
from landbridge.core.trust import directory
from landbridge.core.trust.directory import Directory
from landbridge.errors import (
    BadName,
    BadRequest,
    GroupExists,
    NameTaken,
    StillHolds,
    TopicExists,
    Unauthenticated,
    UnknownGroup,
    UnknownTerminal,
)
from tests.registry.site import Member, Site, Tenant


async def known(site: Site, member: Member) -> Directory:
    signed = await member.registry.directory()
    assert signed is not None
    return directory.verify(signed.directory, site.registry.public_key)


def state(site: Site, member: Member, sequence: int = 1, **fields: Any) -> SignedLinkState:
    said = LinkState(
        **{"origin": member.id, "epoch": 1, "sequence": sequence, "time": site.clock(), **fields}
    )
    return linkstate.sign(said, member.key.signing_key(), member.identity.customer)


# -- terminals -----------------------------------------------------------------------------------------


async def test_update_changes_only_what_is_given(quick: Site, acme: Tenant) -> None:
    id = acme.paris.id
    await acme.admin.update_terminal(id, address="lbs://Paris.example:7420", region="eu")
    shown = await acme.admin.update_terminal(id, draining=True, transit=False, admin_cost=5.0)
    assert (shown.name, shown.address, shown.region) == ("paris", "lbs://paris.example:7420", "eu")
    (entry,) = [entry for entry in (await known(quick, acme.rome)).terminals if entry.id == id]
    assert (entry.draining, entry.transit, entry.admin_cost) == (True, False, 5.0)
    client = await acme.admin.update_terminal(id, mode="client")
    assert client.address == ""


@pytest.mark.parametrize(
    "address",
    [
        "paris.example:7420",
        "http://paris.example:7420",
        "lbs://paris.example",
        "lbs://user@paris.example:7420",
        "lbs://paris.example:7420/path",
        "lbs://paris.example:99999",
        "lbs://127.1:7420",
        "lbs://-paris:7420",
        "lbs://[fe80::1%eth0]:7420",
        "lbs://pa ris:7420",
        "lbs://[::1:7420",
        "lbs://" + "a." * 200 + "example:7420",
    ],
)
async def test_bad_addresses(quick: Site, acme: Tenant, address: str) -> None:
    with pytest.raises(BadRequest):
        await acme.admin.update_terminal(acme.paris.id, address=address)


async def test_a_client_has_no_address(quick: Site, acme: Tenant) -> None:
    with pytest.raises(BadRequest, match="dials out"):
        await acme.admin.create_terminal("lima", mode="client", address="lbs://lima.example:7420")


@pytest.mark.parametrize("cost", [-1.0, 1e9])
async def test_bad_admin_cost(quick: Site, acme: Tenant, cost: float) -> None:
    with pytest.raises(BadRequest):
        await acme.admin.update_terminal(acme.paris.id, admin_cost=cost)


async def test_revocation_reaches_the_directory(quick: Site, acme: Tenant) -> None:
    before = (await known(quick, acme.paris)).version
    shown = await acme.admin.revoke_terminal(acme.rome.id)
    assert shown.revoked_at == quick.clock()
    now = await known(quick, acme.paris)
    assert now.version > before
    assert now.revoked == [acme.rome.id]
    assert acme.rome.id not in {entry.id for entry in now.terminals}
    assert now.groups[0].terminals == []
    quick.clock.advance(5)
    assert (await acme.admin.revoke_terminal(acme.rome.id)).revoked_at == shown.revoked_at
    with pytest.raises(BadRequest, match="revoked"):
        await acme.admin.add_terminal_to_group("readers", acme.rome.id)
    with pytest.raises(BadRequest, match="revoked"):
        await acme.admin.rotate_terminal_key(acme.rome.id)


async def test_removed_terminal_leaves_groups_and_producers(quick: Site, acme: Tenant) -> None:
    await acme.admin.update_message_bus_topic("orders", producers=[acme.rome.id, acme.paris.id])
    await acme.admin.remove_terminal(acme.rome.id)
    assert (await acme.admin.show_terminal_group("readers")).terminals == []
    assert (await acme.admin.show_message_bus_topic("orders")).producers == [acme.paris.id]
    with pytest.raises(UnknownTerminal):
        await acme.admin.show_terminal(acme.rome.id)
    with pytest.raises(Unauthenticated):
        await acme.rome.registry.directory()


async def test_names_are_taken_or_bad(quick: Site, acme: Tenant) -> None:
    with pytest.raises(NameTaken):
        await acme.admin.create_terminal("paris")
    with pytest.raises(NameTaken):
        await acme.admin.update_terminal(acme.rome.id, name="paris")
    with pytest.raises(GroupExists):
        await acme.admin.create_terminal_group("readers")
    with pytest.raises(TopicExists):
        await acme.admin.create_message_bus_topic("orders")
    for bad in ("", "a b", "../x", "a..b", "x" * 201, "é"):
        with pytest.raises(BadName):
            await acme.admin.create_terminal(bad)
    for bad in ("", "$status", "a/b"):
        with pytest.raises(BadName):
            await acme.admin.create_terminal_group(bad)
        with pytest.raises(BadName):
            await acme.admin.create_message_bus_topic(bad)


# -- groups and topics ---------------------------------------------------------------------------------


async def test_groups(quick: Site, acme: Tenant) -> None:
    group = await acme.admin.add_terminal_to_group("readers", acme.oslo.id, acme.paris.id, acme.oslo.id)
    assert group.terminals == [acme.rome.id, acme.oslo.id, acme.paris.id]
    group = await acme.admin.update_terminal_group("readers", [acme.oslo.id])
    assert (group.terminals, group.topics) == ([acme.oslo.id], ["orders"])
    await acme.admin.remove_terminal_from_group("readers", acme.oslo.id)
    with pytest.raises(UnknownTerminal):
        await acme.admin.remove_terminal_from_group("readers", acme.oslo.id)
    await acme.admin.remove_terminal_group("readers")
    assert (await acme.admin.show_message_bus_topic("orders")).groups == {}
    assert (await acme.admin.list_terminal_groups()).items == []


async def test_terminals_by_their_names(quick: Site, acme: Tenant) -> None:
    """Wherever an id will do, a name does."""
    admin = acme.admin
    group = await admin.add_terminal_to_group("readers", "oslo", acme.oslo.id)
    assert group.terminals == [acme.rome.id, acme.oslo.id]
    assert (await admin.remove_terminal_from_group("readers", "rome")).terminals == [acme.oslo.id]
    assert (await admin.update_terminal_group("readers", ["paris"])).terminals == [acme.paris.id]
    assert (await admin.create_terminal_group("writers", ["oslo"])).terminals == [acme.oslo.id]
    assert (await admin.update_message_bus_topic("orders", producers=["paris"])).producers == [acme.paris.id]
    assert (await admin.show_terminal("oslo")).terminal_id == acme.oslo.id
    assert (await admin.rotate_terminal_key("oslo")).terminal_id == acme.oslo.id
    assert (await admin.create_terminal_enrolment("oslo")).terminal_id == acme.oslo.id
    await admin.remove_terminal("oslo")
    assert (await admin.show_terminal_group("writers")).terminals == []
    with pytest.raises(UnknownTerminal):
        await admin.add_terminal_to_group("readers", "nobody")


async def test_a_terminal_that_asks_no_more_is_silent(quick: Site, acme: Tenant) -> None:
    rome = await acme.admin.show_terminal("rome")
    assert (rome.seen_at, rome.silent) == (None, True)
    await acme.rome.registry.directory()
    seen = quick.clock()
    quick.clock.advance(30)
    rome = await acme.admin.show_terminal("rome")
    assert (rome.seen_at, rome.silent) == (seen, False)
    quick.clock.advance(31)
    assert (await acme.admin.show_terminal("rome")).silent


async def test_group_keeps_the_moment_it_was_added(quick: Site, acme: Tenant) -> None:
    first = quick.clock()
    quick.clock.advance(10)
    await acme.admin.create_terminal_group("auditors")
    topic = await acme.admin.add_group_to_topic("orders", "auditors", "readers")
    assert topic.groups == {"readers": first, "auditors": first + 10_000_000}
    with pytest.raises(UnknownGroup):
        await acme.admin.add_group_to_topic("orders", "nobody")


@pytest.mark.parametrize("age", [0.0, 59.0, 1e12, -5.0])
async def test_bad_max_age(quick: Site, acme: Tenant, age: float) -> None:
    with pytest.raises(BadRequest, match="max_age"):
        await acme.admin.update_message_bus_topic("orders", max_age=age)


# -- what still holds messages -------------------------------------------------------------------------

REMOVALS: dict[str, Callable[[RegistryClient, Tenant, bool], Awaitable[Any]]] = {
    "terminal": lambda admin, acme, force: admin.remove_terminal(acme.rome.id, force=force),
    "group": lambda admin, acme, force: admin.remove_terminal_group("readers", force=force),
    "topic": lambda admin, acme, force: admin.remove_message_bus_topic("orders", force=force),
    "terminal of a group": lambda admin, acme, force: admin.remove_terminal_from_group(
        "readers", acme.rome.id, force=force
    ),
    "terminals of a group": lambda admin, acme, force: admin.update_terminal_group(
        "readers", [], force=force
    ),
    "group of a topic": lambda admin, acme, force: admin.remove_group_from_topic(
        "orders", "readers", force=force
    ),
}


@pytest.mark.parametrize("what", REMOVALS)
async def test_removing_what_holds_messages_needs_force(quick: Site, acme: Tenant, what: str) -> None:
    await acme.rome.registry.post_link_state(state(quick, acme.rome), {"orders": 7})
    with pytest.raises(StillHolds, match=r"7 messages|7 of orders"):
        await REMOVALS[what](acme.admin, acme, False)
    await REMOVALS[what](acme.admin, acme, True)


@pytest.mark.parametrize("what", REMOVALS)
async def test_removing_what_holds_none_does_not(quick: Site, acme: Tenant, what: str) -> None:
    await acme.rome.registry.post_link_state(state(quick, acme.rome), {"orders": 7})
    await acme.rome.registry.post_link_state(state(quick, acme.rome, 2), {"orders": 0})
    await REMOVALS[what](acme.admin, acme, False)


async def test_removing_a_customer_that_holds_messages_needs_force(quick: Site, acme: Tenant) -> None:
    await acme.rome.registry.post_link_state(state(quick, acme.rome), {"orders": 7})
    with pytest.raises(StillHolds):
        await quick.operator.remove_message_bus_customer(acme.id)
    await quick.operator.remove_message_bus_customer(acme.id, force=True)


# -- link states ---------------------------------------------------------------------------------------


async def test_topology_has_the_newest_as_it_was_signed(quick: Site, acme: Tenant) -> None:
    old = state(quick, acme.rome, 1, links={acme.paris.id: 20.0})
    new = state(quick, acme.rome, 2, links={acme.paris.id: 30.0})
    await acme.rome.registry.post_link_state(new, {"orders": 3})
    await acme.rome.registry.post_link_state(old, {"orders": 99})
    (report,) = (await acme.admin.topology()).items
    assert SignedLinkState(report.body, report.signature) == new
    assert (report.terminal_id, report.links) == (acme.rome.id, {acme.paris.id: 30.0})
    assert (report.epoch, report.sequence, report.held) == (1, 2, {"orders": 3})


async def test_link_states_expire(quick: Site, acme: Tenant) -> None:
    await acme.rome.registry.post_link_state(state(quick, acme.rome), {"orders": 3})
    quick.clock.advance(179)
    assert len((await acme.admin.topology()).items) == 1
    quick.clock.advance(1)
    assert (await acme.admin.topology()).items == []
    # What it holds is not forgotten with it: it may be away.
    with pytest.raises(StillHolds):
        await acme.admin.remove_terminal(acme.rome.id)


async def test_forged_link_states(quick: Site, acme: Tenant) -> None:
    other = await quick.tenant("other")
    good = state(quick, acme.rome)
    forged = [
        state(quick, acme.paris),
        state(quick, acme.paris, origin=acme.rome.id),
        linkstate.sign(linkstate.decode(good.body), acme.rome.key.signing_key(), other.id),
        SignedLinkState(good.body, bytes(64)),
        SignedLinkState(good.body + b"\0", good.signature),
        SignedLinkState(b"", b""),
    ]
    for signed in forged:
        with pytest.raises(Exception, match="link state") as refusal:
            await acme.rome.registry.post_link_state(signed)
        assert refusal.value.code in ("unauthenticated", "bad_frame")  # type: ignore[attr-defined]
    with pytest.raises(BadRequest, match="negative"):
        await acme.rome.registry.post_link_state(good, {"orders": -1})
    assert (await acme.admin.topology()).items == []


async def test_large_link_state_is_taken_and_a_larger_one_is_not(quick: Site, acme: Tenant) -> None:
    links = {f"ter_{number:026}": 1.0 for number in range(4096)}
    groups = {"t" * 40 + f"/{number}": 1 for number in range(4096)}
    await acme.rome.registry.post_link_state(state(quick, acme.rome, links=links, groups=groups))
    too_large = SignedLinkState(bytes(4 << 20), bytes(64))
    with pytest.raises(Exception, match="Too Large") as refusal:
        await acme.rome.registry.post_link_state(too_large)
    assert refusal.value.code == "too_large"  # type: ignore[attr-defined]
