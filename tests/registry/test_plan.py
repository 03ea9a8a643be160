"""The long-term plan in the registry, over HTTP: who may put and read it, and who gets it."""

from __future__ import annotations

import asyncio

import pytest

from landbridge.core.log.store import Store
from landbridge.core.routing.plan import LINKS_MOST, Plan, PlannedLink, SinglePoint
from landbridge.core.trust import directory
from landbridge.errors import BadRequest, Forbidden, Unauthenticated, UnknownPlan, UnknownTerminal
from landbridge.stores.memory import MemoryStore
from tests.registry.site import Member, Site, Tenant
from tests.waiting import eventually


def link(one: str, other: str, cost: float = 20.0) -> PlannedLink:
    here, there = sorted((one, other))
    return PlannedLink(here=here, there=there, cost=cost, availability=0.99, rtt=12.0, rtt_95=30.0, loss=0.01)


def plan_of(tenant: Tenant, *more: PlannedLink) -> Plan:
    """Paris – rome – oslo: without rome the others are cut off."""
    paris, rome, oslo = tenant.paris.id, tenant.rome.id, tenant.oslo.id
    links = [link(paris, rome, 20.0), link(rome, oslo, 7.0), *more]
    return Plan(
        since=1_000_000,
        until=2_000_000,
        terminals={end: True for each in links for end in (each.here, each.there)},
        links=links,
        single_points=[SinglePoint(terminal=rome, cut_off=[oslo], pairs=1)],
    )


async def directory_of(site: Site, member: Member) -> directory.Directory:
    update = await member.registry.directory()
    assert update is not None
    return directory.verify(update.directory, site.registry.public_key)


async def test_a_plan_is_put_read_and_outlives_a_restart(store: Store) -> None:
    async with Site.running(store) as site:
        acme = await site.tenant("acme")
        with pytest.raises(UnknownPlan):
            await acme.admin.read_plan()
        put = await acme.admin.put_plan(plan_of(acme))
        assert put.plan == plan_of(acme)
        assert put.made_at == site.clock()
        assert await acme.admin.read_plan() == put
        if isinstance(store, MemoryStore):
            return
    async with Site.running(store, clock=site.clock) as again:
        admin = again.client(token=acme.token)
        assert await admin.read_plan() == put


async def test_terminals_get_its_costs_with_the_directory(quick: Site, acme: Tenant) -> None:
    before = await directory_of(quick, acme.oslo)
    assert before.planned == []
    waiting = asyncio.create_task(acme.rome.registry.directory(before.version, wait=30.0))
    await eventually(lambda: quick.registry.directories.waiting == 1)
    await acme.admin.put_plan(plan_of(acme))
    update = await waiting  # at once: a plan is a new version
    assert update is not None
    found = directory.verify(update.directory, quick.registry.public_key)
    assert found.version == before.version + 1
    ids = [entry.id for entry in found.terminals]
    costs = {frozenset((ids[here], ids[there])): cost for here, there, cost in found.planned}
    assert costs == {
        frozenset((acme.paris.id, acme.rome.id)): 20.0,
        frozenset((acme.rome.id, acme.oslo.id)): 7.0,
    }


async def test_those_that_are_gone_are_gone_from_the_plan(quick: Site, acme: Tenant) -> None:
    await acme.admin.put_plan(plan_of(acme))
    await acme.admin.revoke_terminal(acme.oslo.id)
    shown = (await acme.admin.read_plan()).plan
    assert shown.links == [link(acme.paris.id, acme.rome.id)]
    assert shown.single_points == []
    assert acme.oslo.id not in shown.terminals
    assert len((await directory_of(quick, acme.paris)).planned) == 1
    await acme.admin.remove_terminal(acme.rome.id, force=True)
    assert (await directory_of(quick, acme.paris)).planned == []
    assert (await acme.admin.read_plan()).plan.links == []


async def test_paths_and_next_hops_by_the_plan(quick: Site, acme: Tenant) -> None:
    await acme.admin.put_plan(plan_of(acme))
    found = await acme.admin.planned_paths(acme.paris.id)
    assert {path.terminal_id: (path.hops, path.cost) for path in found.items} == {
        acme.rome.id: ([acme.rome.id], 20.0),
        acme.oslo.id: ([acme.rome.id, acme.oslo.id], 27.0),
    }
    lisbon = await quick.join(acme, "lisbon")
    assert (await acme.admin.planned_paths(lisbon.id)).items == []  # not in the plan yet
    with pytest.raises(UnknownTerminal):
        await acme.admin.planned_paths("ter_nobody")


async def test_a_plan_is_its_customers_alone(quick: Site, acme: Tenant) -> None:
    other = await quick.tenant("other")
    await acme.admin.put_plan(plan_of(acme))
    with pytest.raises(UnknownPlan):
        await other.admin.read_plan()
    with pytest.raises(UnknownTerminal):
        await other.admin.planned_paths(acme.paris.id)
    # A plan that speaks of another's terminals says nothing of them, and changes nothing there.
    theirs = await directory_of(quick, acme.paris)
    put = await other.admin.put_plan(plan_of(other, link(acme.paris.id, acme.rome.id, 1.0)))
    assert put.plan == plan_of(other)
    assert await directory_of(quick, acme.paris) == theirs
    assert (await acme.admin.read_plan()).plan == plan_of(acme)


async def test_the_operator_puts_plans_for_customers_and_nobody_else_does(quick: Site, acme: Tenant) -> None:
    at = (await directory_of(quick, acme.paris)).version
    await quick.operator.put_customer_plan(acme.id, plan_of(acme))
    assert (await acme.admin.read_plan()).plan == plan_of(acme)
    now = await directory_of(quick, acme.paris)
    assert (now.version, len(now.planned)) == (at + 1, 2)
    other = await quick.tenant("other")
    with pytest.raises(Forbidden):
        await other.admin.put_customer_plan(acme.id, plan_of(acme))
    with pytest.raises(Forbidden):
        await quick.operator.put_plan(plan_of(acme))
    with pytest.raises(Forbidden):
        await quick.operator.read_plan()
    with pytest.raises(Unauthenticated):
        await acme.paris.registry.put_plan(plan_of(acme))  # a terminal is no admin


async def test_it_is_in_the_audit(quick: Site, acme: Tenant) -> None:
    await acme.admin.put_plan(plan_of(acme, link(acme.paris.id, "ter_gone")))
    with pytest.raises(BadRequest):
        await acme.admin.put_plan(plan_of(acme, link(acme.paris.id, acme.rome.id)))
    events = [event for event in (await acme.admin.audit(limit=1000)).items if event.op == "putPlan"]
    assert [event.outcome for event in events] == ["ok", "bad_request"]
    assert all(event.who.startswith("admin:") for event in events)
    assert "2 links, 1 single point; left out: 1 link" in events[0].detail
    await quick.operator.put_customer_plan(acme.id, plan_of(acme))
    [event] = [e for e in (await quick.operator.audit(limit=1000)).items if e.op == "putCustomerPlan"]
    assert (event.who, event.subject, event.outcome) == ("operator", acme.id, "ok")


async def test_a_plan_is_bounded(quick: Site, acme: Tenant) -> None:
    many = [link(f"a{n}", f"b{n}") for n in range(LINKS_MOST)]
    plan = plan_of(acme)
    with pytest.raises(BadRequest):
        await acme.admin.put_plan(Plan(since=1, until=2, terminals={}, links=many, single_points=[]))
    body = b'{"plan": "' + b"x" * (16 << 20) + b'"}'
    answer = await quick.http.put("/v1/plan", content=body, headers={"authorization": f"Bearer {acme.token}"})
    assert answer.status_code == 413
    with pytest.raises(UnknownPlan):
        await acme.admin.read_plan()
    assert (await acme.admin.put_plan(plan)).plan == plan


async def test_a_customer_that_is_removed_takes_its_plan_along(store: Store) -> None:
    async with Site.running(store) as site:
        acme = await site.tenant("acme")
        await acme.admin.put_plan(plan_of(acme))
        await site.operator.remove_message_bus_customer(acme.id)
        assert dict(await store.documents(0, "registry/plan")) == {}
