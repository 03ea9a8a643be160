from __future__ import annotations

import pytest

from landbridge.client import registry_documents as api
from landbridge.core.routing.plan import Plan
from landbridge.core.trust.identity import SecureKey
from landbridge.errors import BusError
from landbridge.registry import routes
from landbridge.registry.limits import RegistryLimits
from landbridge.stores.memory import MemoryStore
from tests.registry.site import Site, Tenant
from tests.registry.test_entities import state

#: Operations that only look. What of them is refused is noted too.
READS = {str(h.operation_id) for h in routes.ALL if h.http_methods == {"GET"}} | {"readDirectory"}


async def events(tenant: Tenant) -> list[api.AuditEvent]:
    return (await tenant.admin.audit(limit=1000)).items


async def test_has_every_operation(site: Site) -> None:
    acme = await site.tenant("acme")
    admin, id = acme.admin, acme.oslo.id
    await admin.update_message_bus_customer("acme-2")
    await admin.update_terminal(id, region="eu")
    await admin.rotate_terminal_key(id)
    await acme.oslo.registry.rotate_own_key(acme.oslo.key.public)
    enrolment = await admin.create_terminal_enrolment(id)
    await site.client().enrol(enrolment.token, SecureKey.new().public)
    await admin.add_terminal_to_group("readers", id)
    await admin.remove_terminal_from_group("readers", id)
    await admin.update_terminal_group("readers", [acme.rome.id])
    await admin.create_terminal_group("other")
    await admin.add_group_to_topic("orders", "other")
    await admin.remove_group_from_topic("orders", "other")
    await admin.update_message_bus_topic("orders", max_age=3600.0)
    await admin.rotate_message_bus_topic_key("orders")
    issue = await acme.paris.registry.issue("orders")
    await acme.paris.registry.renew(issue.ticket)
    frame = acme.paris.seal(issue, acme.rome, b"hello", site.clock())
    await acme.rome.open(acme.paris, frame, site.clock())
    await acme.rome.registry.post_link_state(state(site, acme.rome), {"orders": 1})
    with pytest.raises(BusError):
        await acme.rome.registry.certificate("nothing")
    plan = Plan(since=1, until=2, terminals={}, links=[], single_points=[])
    await admin.put_plan(plan)
    await site.operator.put_customer_plan(acme.id, plan)
    await admin.revoke_terminal(id)
    await admin.remove_terminal(id)
    await admin.remove_message_bus_topic("orders", force=True)
    await admin.remove_terminal_group("readers")
    shop = await admin.register_service("shop", ["publish:orders"])
    await site.client().create_service_token("shop", shop.credential)
    await admin.update_service("shop", owner="sales")
    await admin.rotate_service_credential("shop")
    await admin.suspend_service("shop")
    await admin.resume_service("shop")
    await admin.remove_service("shop")
    await admin.rotate_token_key()
    await admin.rotate_message_bus_customer_credential()
    await admin.revoke_message_bus_customer_credentials()
    ours = {event.op for event in await events(acme)}

    await site.operator.reset_message_bus_customer_credential(acme.id)
    await site.operator.remove_message_bus_customer(acme.id, force=True)
    renewed = await site.operator.rotate_operator_credential()
    theirs = {event.op for event in (await site.client(token=renewed.token).audit(limit=1000)).items}
    assert ours | theirs == {str(handler.operation_id) for handler in routes.ALL} - READS


async def test_says_who_what_and_how_it_ended(quick: Site, acme: Tenant) -> None:
    issue = await acme.paris.registry.issue("orders")
    with pytest.raises(BusError):
        await acme.oslo.registry.redeem("orders", issue.ticket, b"")
    issued, refused = (await events(acme))[-2:]
    assert (issued.who, issued.op, issued.subject) == (f"terminal:{acme.paris.id}", "issueTicket", "orders")
    assert (issued.outcome, issued.time, issued.detail) == ("ok", quick.clock(), issue.seal_id.hex())
    assert (refused.who, refused.op) == (f"terminal:{acme.oslo.id}", "redeemTicket")
    assert refused.outcome == "ticket_refused"
    assert issue.seal_id.hex() in refused.detail


async def test_has_refusals_of_every_kind(quick: Site, acme: Tenant) -> None:
    headers = {"authorization": f"Bearer {acme.token}"}
    await quick.http.get("/v1/terminals/ter_x", headers=headers)
    await quick.http.post("/v1/terminals", headers=headers, json={"name": 5})
    await quick.http.post("/v1/terminals", headers=headers, json={"name": "a b"})
    await quick.http.get("/v1/customers", headers=headers)
    await quick.http.get("/v1/terminals?limit=x", headers=headers)
    assert [(event.op, event.outcome) for event in (await events(acme))[-5:]] == [
        ("showTerminal", "unknown_terminal"),
        ("createTerminal", "bad_request"),
        ("createTerminal", "bad_name"),
        ("listMessageBusCustomers", "forbidden"),
        ("listTerminals", "bad_request"),
    ]


async def test_operator_sees_who_was_not_let_in(quick: Site, acme: Tenant) -> None:
    await quick.http.get("/v1/customer", headers={"authorization": "Bearer lbac1_wrong"})
    stranger = quick.member(acme.id, acme.paris.id, SecureKey.new())
    with pytest.raises(BusError):
        await stranger.registry.issue("orders")
    by_token, by_proof = (await quick.operator.audit()).items[-2:]
    assert (by_token.who, by_token.op, by_token.outcome) == ("?", "showMessageBusCustomer", "unauthenticated")
    assert (by_proof.op, by_proof.subject) == ("issueTicket", acme.paris.id)
    assert "lbac1_wrong" not in str(by_token)


async def test_pages(quick: Site, acme: Tenant) -> None:
    for number in range(5):
        await acme.admin.create_terminal_group(f"g{number}")
    whole = await events(acme)
    found: list[api.AuditEvent] = []
    while True:
        page = await acme.admin.audit(since=len(found), limit=3)
        if not page.items:
            break
        found += page.items
        assert page.next == len(found)
    assert found == whole
    assert [event.number for event in whole] == list(range(len(whole)))


async def test_is_bounded_for_each_customer() -> None:
    store = MemoryStore()
    async with Site.running(store, limits=RegistryLimits(audit_events=20)) as site:
        busy, calm = await site.tenant("busy"), await site.tenant("calm")
        before = await events(calm)
        for _ in range(100):
            await busy.paris.registry.issue("orders")
        assert 20 <= len(await events(busy)) <= 22
        assert (await events(busy))[-1].number >= 100
        assert await events(calm) == before
