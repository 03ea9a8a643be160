"""Nobody's ids, another's ids and unknown ids: in every route there is, so that a new one is covered too."""

from __future__ import annotations

import re
from typing import Any, cast

import pytest
from litestar.handlers import HTTPRouteHandler

from landbridge.client import registry_documents as api
from landbridge.client import registry_operations as op
from landbridge.core.trust import credential
from landbridge.core.trust.identity import SecureKey
from landbridge.registry import routes
from landbridge.registry.call import let_in
from tests.registry.site import Site, Tenant

PLAN = {"since": 1, "until": 2, "terminals": {}, "links": [], "single_points": []}
#: What a request for an operation may say, beside the ids in its path. ``{x}`` is filled in by the test.
BODIES: dict[type, dict[str, Any]] = {
    api.CreateCustomer: {"name": "new"},
    api.UpdateCustomer: {"name": "new"},
    api.CreateTerminal: {"name": "new"},
    api.UpdateTerminal: {"region": "eu"},
    api.RotateKey: {},
    api.RotateOwnKey: {"keys": {"sign": "", "wrap": ""}},
    api.CreateGroup: {"name": "new", "terminals": ["{terminal}"]},
    api.UpdateGroup: {"terminals": ["{terminal}"]},
    api.AddTerminals: {"terminals": ["{terminal}"]},
    api.CreateTopic: {"name": "new", "groups": ["{group}"], "producers": ["{terminal}"]},
    api.UpdateTopic: {"producers": ["{terminal}"]},
    api.AddGroups: {"groups": ["{group}"]},
    api.ReadDirectory: {},
    api.IssueTicket: {"topic": "{topic}"},
    api.RedeemTicket: {"topic": "{topic}", "ticket": "", "box": ""},
    api.RenewTicket: {"ticket": ""},
    api.PostLinkState: {"body": "", "signature": ""},
    api.CertificateRequest: {"csr": ""},
    api.PutPlan: {"plan": PLAN},
    api.PutCustomerPlan: {"plan": PLAN},
    api.Enrol: {"token": "lbet1_x", "keys": {"sign": "", "wrap": ""}},
    api.RegisterCustomerService: {"name": "new", "scopes": ["publish:#"]},
    api.UpdateCustomerService: {"scopes": ["admin"]},
    api.RotateServiceCredential: {"overlap": 0},
    api.RotateTokenKey: {},
    api.CreateServiceToken: {"service": "{service}", "credential": "lbsc1_x"},
}


def operation(handler: HTTPRouteHandler) -> str:
    return str(handler.operation_id)


def who(handler: HTTPRouteHandler) -> str:
    return str(handler.opt["who"])


def places(handler: HTTPRouteHandler) -> set[str]:
    """Which ids of a customer's things a request for it carries."""
    found = set(re.findall(r"\{(\w+)", path(handler)))
    return found | set(re.findall(r"\{(\w+)\}", str(body(handler))))


def path(handler: HTTPRouteHandler) -> str:
    (only,) = handler.paths
    return re.sub(r":str\}", "}", only)


def body(handler: HTTPRouteHandler) -> Any:
    (asked,) = (each for each in op.ALL if each.name == operation(handler))
    return BODIES[cast(type, asked.request)] if asked.in_body else None


def filled(value: Any, ids: dict[str, str]) -> Any:
    if isinstance(value, str):
        return re.sub(r"\{(\w+)\}", lambda match: ids[match[1]], value)
    if isinstance(value, list):
        return [filled(item, ids) for item in value]
    if isinstance(value, dict):
        return {key: filled(item, ids) for key, item in value.items()}
    return value


async def ask(site: Site, handler: HTTPRouteHandler, token: str, ids: dict[str, str]) -> Any:
    (method,) = handler.http_methods
    return await site.http.request(
        method,
        filled(path(handler), ids),
        json=filled(body(handler), ids),
        headers={"authorization": f"Bearer {token}"} if token else {},
    )


def ids_of(tenant: Tenant) -> dict[str, str]:
    return {
        "customer": tenant.id,
        "terminal": tenant.rome.id,
        "group": f"{'readers'}-{tenant.id}",
        "topic": f"{'orders'}-{tenant.id}",
        "service": f"{'shop'}-{tenant.id}",
    }


async def furnished(site: Site, name: str) -> Tenant:
    """A customer whose groups and topics have names of their own."""
    tenant = await site.tenant(name)
    ids = ids_of(tenant)
    await tenant.admin.create_terminal_group(ids["group"], [tenant.rome.id])
    await tenant.admin.create_message_bus_topic(ids["topic"], [ids["group"]])
    await tenant.admin.register_service(ids["service"], ["publish:#"])
    return tenant


#: In the place of another's ids: well-formed, and nobody's.
NOBODY = {
    "customer": "cus_aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "terminal": "ter_aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "group": "readers-cus_aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "topic": "orders-cus_aaaaaaaaaaaaaaaaaaaaaaaaaa",
    "service": "shop-cus_aaaaaaaaaaaaaaaaaaaaaaaaaa",
}


def without_ids(text: str, ids: dict[str, str]) -> str:
    for name, id in ids.items():
        text = text.replace(id, f"<{name}>")
    return text


ADMIN_ROUTES = [h for h in routes.ALL if who(h) == "admin"]


def test_every_route_has_exactly_one_guard_or_is_known_to_be_public() -> None:
    public = {operation(h) for h in routes.ALL if not h.guards}
    assert public == {"showRegistry", "enrolTerminal", "createServiceToken"}
    assert all(list(h.guards or ()) == [let_in] for h in routes.ALL if h.guards)
    assert {who(h) for h in routes.ALL if h.guards} == {"operator", "admin", "both", "terminal"}


@pytest.mark.parametrize("handler", [h for h in ADMIN_ROUTES if places(h)], ids=operation)
async def test_ids_of_another_customer_are_unknown(quick: Site, handler: HTTPRouteHandler) -> None:
    mine, other = await furnished(quick, "mine"), await furnished(quick, "other")
    before = await other.paris.registry.directory()
    foreign = await ask(quick, handler, mine.token, ids_of(other))
    unknown = await ask(quick, handler, mine.token, NOBODY)
    assert foreign.status_code == unknown.status_code == 404
    assert without_ids(foreign.text, ids_of(other)) == without_ids(unknown.text, NOBODY)
    assert await other.paris.registry.directory() == before


MIXED = [
    pytest.param(handler, place, id=f"{operation(handler)}-{place}")
    for handler in ADMIN_ROUTES
    if len(places(handler)) > 1
    for place in sorted(places(handler))
]


@pytest.mark.parametrize(("handler", "place"), MIXED)
async def test_one_id_of_another_customer_among_own_ones_is_unknown(
    quick: Site, handler: HTTPRouteHandler, place: str
) -> None:
    mine, other = await furnished(quick, "mine"), await furnished(quick, "other")
    mixed = {**ids_of(mine), place: ids_of(other)[place]}
    assert (await ask(quick, handler, mine.token, mixed)).status_code == 404


@pytest.mark.parametrize("handler", [h for h in routes.ALL if h.guards], ids=operation)
async def test_nobody_is_let_in_without_a_credential(quick: Site, handler: HTTPRouteHandler) -> None:
    tenant = await furnished(quick, "mine")
    answers = [
        await ask(quick, handler, token, ids_of(tenant))
        for token in ("", "lbac1_", "lbac1_" + "a" * 58, "garbage", credential.new(credential.ADMIN)[0])
    ]
    assert {(answer.status_code, answer.json()["code"]) for answer in answers} == {(401, "unauthenticated")}
    assert len({answer.text for answer in answers}) == 1


@pytest.mark.parametrize("handler", [h for h in routes.ALL if who(h) == "operator"], ids=operation)
async def test_an_admin_is_not_the_operator(quick: Site, handler: HTTPRouteHandler) -> None:
    tenant = await furnished(quick, "mine")
    assert (await ask(quick, handler, tenant.token, ids_of(tenant))).status_code == 403


@pytest.mark.parametrize("handler", ADMIN_ROUTES, ids=operation)
async def test_the_operator_has_no_customer(quick: Site, handler: HTTPRouteHandler) -> None:
    tenant = await furnished(quick, "mine")
    assert (await ask(quick, handler, quick.operator_token, ids_of(tenant))).status_code == 403


@pytest.mark.parametrize("handler", [h for h in routes.ALL if who(h) == "terminal"], ids=operation)
async def test_a_terminal_is_no_admin_and_an_admin_no_terminal(
    quick: Site, handler: HTTPRouteHandler
) -> None:
    tenant = await furnished(quick, "mine")
    assert (await ask(quick, handler, tenant.token, ids_of(tenant))).status_code == 401


@pytest.mark.parametrize(
    "handler", [h for h in routes.ALL if who(h) == "operator" and places(h)], ids=operation
)
async def test_unknown_customer(quick: Site, handler: HTTPRouteHandler) -> None:
    answer = await ask(quick, handler, quick.operator_token, NOBODY)
    assert (answer.status_code, answer.json()["code"]) == (404, "unknown_customer")


async def test_a_body_that_names_a_customer_is_refused(quick: Site) -> None:
    mine, other = await quick.tenant("mine"), await quick.tenant("other")
    for name in ("customer", "customer_id"):
        answer = await quick.http.post(
            "/v1/terminals",
            json={"name": "spy", name: other.id},
            headers={"authorization": f"Bearer {mine.token}"},
        )
        assert answer.status_code == 400
        assert "unknown field" in answer.json()["detail"]


async def test_identity_headers_of_a_client_mean_nothing(quick: Site) -> None:
    mine, other = await quick.tenant("mine"), await quick.tenant("other")
    headers = {
        "authorization": f"Bearer {mine.token}",
        "landbridge-terminal": other.rome.id,
        "landbridge-customer": other.id,
        "x-forwarded-user": other.id,
    }
    assert (await quick.http.get("/v1/customer", headers=headers)).json()["customer_id"] == mine.id


async def test_same_names_at_two_customers_are_two_things(quick: Site) -> None:
    mine, other = await quick.tenant("mine"), await quick.tenant("other")
    await mine.admin.remove_message_bus_topic("orders")
    await mine.admin.remove_terminal_group("readers")
    assert (await other.admin.show_message_bus_topic("orders")).groups.keys() == {"readers"}
    assert (await other.admin.show_terminal_group("readers")).terminals == [other.rome.id]


async def test_keys_of_one_customer_are_no_proof_at_another(quick: Site) -> None:
    mine, other = await quick.tenant("mine"), await quick.tenant("other")
    stolen = quick.member(other.id, other.rome.id, SecureKey.parse(str(mine.rome.key)))
    with pytest.raises(Exception, match="proof"):
        await stolen.registry.issue("orders")


async def test_lists_show_only_what_is_ones_own(quick: Site) -> None:
    mine, other = await quick.tenant("mine"), await quick.tenant("other")
    assert {t.terminal_id for t in (await mine.admin.list_terminals()).items} == {
        member.id for member in mine.members.values()
    }
    events = (await mine.admin.audit(limit=1000)).items
    assert events
    assert not any(other.id in str(event) or other.rome.id in str(event) for event in events)
