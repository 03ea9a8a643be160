"""Tickets through the registry. Core decides (tests/core/test_tickets.py), by facts looked up here."""

from __future__ import annotations

import pytest

from landbridge.core.trust.seal import look
from landbridge.errors import TicketExpired, TicketRefused, Unauthenticated, UnknownTopic
from landbridge.registry.limits import RegistryLimits
from landbridge.stores.memory import MemoryStore
from tests.registry.site import Site, Tenant

DAY = 86400


async def sealed(site: Site, acme: Tenant, text: bytes = b"hello") -> tuple[bytes, bytes, bytes]:
    """(frame, ticket, box) from paris to rome."""
    now = site.clock()
    frame = acme.paris.seal(await acme.paris.registry.issue("orders"), acme.rome, text, now)
    header = look(acme.rome.identity, [acme.paris.identity.public], acme.paris.id, frame, now)
    return frame, header.ticket, header.box


async def test_member_opens_and_others_do_not(quick: Site, acme: Tenant) -> None:
    frame, ticket, box = await sealed(quick, acme)
    assert await acme.rome.open(acme.paris, frame, quick.clock()) == b"hello"
    for stranger in (acme.oslo, acme.paris):
        with pytest.raises(TicketRefused, match="in no group"):
            await stranger.registry.redeem("orders", ticket, box)


async def test_membership_counts_when_it_is_redeemed(quick: Site, acme: Tenant) -> None:
    _, ticket, box = await sealed(quick, acme)
    await acme.admin.add_terminal_to_group("readers", acme.oslo.id)
    await acme.oslo.registry.redeem("orders", ticket, box)
    await acme.admin.remove_terminal_from_group("readers", acme.rome.id)
    with pytest.raises(TicketRefused):
        await acme.rome.registry.redeem("orders", ticket, box)
    await acme.admin.remove_group_from_topic("orders", "readers")
    with pytest.raises(TicketRefused):
        await acme.oslo.registry.redeem("orders", ticket, box)


async def test_producers(quick: Site, acme: Tenant) -> None:
    await acme.admin.update_message_bus_topic("orders", producers=[acme.oslo.id])
    with pytest.raises(TicketRefused, match="may not send"):
        await acme.paris.registry.issue("orders")
    await acme.oslo.registry.issue("orders")
    await acme.admin.update_message_bus_topic("orders", producers=None)
    await acme.paris.registry.issue("orders")


async def test_dies_after_five_minutes_and_is_renewed(quick: Site, acme: Tenant) -> None:
    _, ticket, box = await sealed(quick, acme)
    quick.clock.advance(299)
    await acme.rome.registry.redeem("orders", ticket, box)
    quick.clock.advance(1)
    with pytest.raises(TicketExpired):
        await acme.rome.registry.redeem("orders", ticket, box)
    renewed = await acme.rome.registry.renew(ticket)
    await acme.rome.registry.redeem("orders", renewed.ticket, box)
    # Renewed by a receiver, it is for that one alone; by the sender, for all.
    await acme.admin.add_terminal_to_group("readers", acme.oslo.id)
    with pytest.raises(TicketRefused, match="another terminal"):
        await acme.oslo.registry.redeem("orders", renewed.ticket, box)
    again = await acme.paris.registry.renew(ticket)
    await acme.oslo.registry.redeem("orders", again.ticket, box)


async def test_ticket_life_is_a_setting() -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(ticket_life=2.0)) as site:
        acme = await site.tenant("acme")
        _, ticket, box = await sealed(site, acme)
        site.clock.advance(2)
        with pytest.raises(TicketExpired):
            await acme.rome.registry.redeem("orders", ticket, box)


async def test_late_open_policies(quick: Site, acme: Tenant) -> None:
    _, ticket, _ = await sealed(quick, acme)
    await acme.admin.update_message_bus_topic("orders", late_open="sender_only")
    with pytest.raises(TicketRefused, match="by their sender"):
        await acme.rome.registry.renew(ticket)
    await acme.paris.registry.renew(ticket)
    await acme.admin.update_message_bus_topic("orders", late_open="never")
    with pytest.raises(TicketExpired, match="not renewed"):
        await acme.paris.registry.renew(ticket)


async def test_not_renewed_after_max_age(quick: Site, acme: Tenant) -> None:
    await acme.admin.update_message_bus_topic("orders", max_age=3600.0)
    _, ticket, box = await sealed(quick, acme)
    quick.clock.advance(3599)
    renewed = await acme.rome.registry.renew(ticket)
    await acme.rome.registry.redeem("orders", renewed.ticket, box)
    quick.clock.advance(1)
    with pytest.raises(TicketExpired):
        await acme.rome.registry.renew(ticket)


async def test_of_another_customer(quick: Site, acme: Tenant) -> None:
    other = await quick.tenant("other")
    _, ticket, box = await sealed(quick, other)
    said = set()
    for bad in (ticket, b"", b"x" * 150, ticket[:-1] + bytes([ticket[-1] ^ 1])):
        with pytest.raises(TicketRefused) as refusal:
            await acme.rome.registry.redeem("orders", bad, box)
        said.add(str(refusal.value))
        with pytest.raises(TicketRefused) as refusal:
            await acme.rome.registry.renew(bad)
        said.add(str(refusal.value))
    assert len(said) == 1


async def test_of_another_topic_or_with_another_box(quick: Site, acme: Tenant) -> None:
    await acme.admin.create_message_bus_topic("bills", ["readers"])
    _, ticket, box = await sealed(quick, acme)
    _, _, other_box = await sealed(quick, acme)
    with pytest.raises(TicketRefused, match="another topic"):
        await acme.rome.registry.redeem("bills", ticket, box)
    with pytest.raises(TicketRefused, match="box"):
        await acme.rome.registry.redeem("orders", ticket, other_box)
    with pytest.raises(UnknownTopic):
        await acme.rome.registry.redeem("nothing", ticket, box)


async def test_revoked_sender(quick: Site, acme: Tenant) -> None:
    _, ticket, box = await sealed(quick, acme)
    await acme.admin.revoke_terminal(acme.paris.id)
    with pytest.raises(TicketRefused, match="revoked"):
        await acme.rome.registry.redeem("orders", ticket, box)
    with pytest.raises(TicketRefused, match="revoked"):
        await acme.rome.registry.renew(ticket)


async def test_removed_sender(quick: Site, acme: Tenant) -> None:
    _, ticket, box = await sealed(quick, acme)
    await acme.admin.remove_terminal(acme.paris.id)
    with pytest.raises(TicketRefused):
        await acme.rome.registry.redeem("orders", ticket, box)
    with pytest.raises(Unauthenticated):
        await acme.paris.registry.issue("orders")


async def test_topic_made_anew_does_not_open_what_was_sealed_for_the_old_one(
    quick: Site, acme: Tenant
) -> None:
    _, ticket, box = await sealed(quick, acme)
    await acme.admin.remove_message_bus_topic("orders")
    with pytest.raises(UnknownTopic):
        await acme.rome.registry.renew(ticket)
    await acme.admin.create_message_bus_topic("orders", ["readers"])
    with pytest.raises(TicketRefused, match="box"):
        await acme.rome.registry.redeem("orders", ticket, box)


async def test_old_key_versions_only_decrypt_and_end_with_max_age(quick: Site, acme: Tenant) -> None:
    await acme.admin.update_message_bus_topic("orders", max_age=2.0 * DAY)
    frame, ticket, box = await sealed(quick, acme)
    rotated = await acme.admin.rotate_message_bus_topic_key("orders")
    assert [key.kv for key in rotated.keys] == [2, 1]
    assert (await acme.paris.registry.issue("orders")).kv == 2
    assert await acme.rome.open(acme.paris, frame, quick.clock()) == b"hello"
    for _ in range(2):
        quick.clock.advance(DAY)
        await acme.paris.registry.issue("orders")  # brings the daily rotation
    assert [key.kv for key in (await acme.admin.show_message_bus_topic("orders")).keys] == [4, 3, 2, 1]
    quick.clock.advance(DAY)
    await acme.paris.registry.issue("orders")
    # The second was in use until the end of the first day: a ticket from then can be renewed until now.
    assert [key.kv for key in (await acme.admin.show_message_bus_topic("orders")).keys] == [5, 4, 3, 2]
    with pytest.raises(TicketExpired):
        await acme.rome.registry.renew(ticket)
    with pytest.raises(TicketExpired):
        await acme.rome.registry.redeem("orders", ticket, box)


async def test_tickets_outlive_the_daily_rotation_of_what_seals_them(quick: Site, acme: Tenant) -> None:
    _, ticket, box = await sealed(quick, acme)
    for _ in range(5):
        quick.clock.advance(DAY)
        await acme.paris.registry.issue("orders")
    renewed = await acme.rome.registry.renew(ticket)
    await acme.rome.registry.redeem("orders", renewed.ticket, box)
    assert len(quick.registry.state.keyring.kept.ticket_keys) == 6
    for _ in range(40):
        quick.clock.advance(DAY)
        await acme.paris.registry.issue("orders")
    assert len(quick.registry.state.keyring.kept.ticket_keys) <= 34


async def test_rotations_on_demand_are_bounded() -> None:
    async with Site.running(MemoryStore(), limits=RegistryLimits(max_key_versions=3)) as site:
        acme = await site.tenant("acme")
        await acme.admin.rotate_message_bus_topic_key("orders")
        await acme.admin.rotate_message_bus_topic_key("orders")
        with pytest.raises(Exception, match="versions of its key"):
            await acme.admin.rotate_message_bus_topic_key("orders")
