"""The routes: which method and path is which operation, and for whom. Nothing is decided here."""

from __future__ import annotations

from typing import Any

from litestar import Response, delete, get, patch, post, put
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, JSONBody

import landbridge
from landbridge.client import registry_documents as api
from landbridge.core.trust.tickets import Issue, Release, Renewal
from landbridge.errors import Unauthenticated
from landbridge.registry import customers, groups, terminals, topics
from landbridge.registry.call import Call, for_admin, for_both, for_operator, for_terminal
from landbridge.registry.problem import MEDIA_TYPE, Problem

#: Of a link state: a server has thousands of links.
_LONGEST_LINK_STATE = 4 << 20
#: Of a long-term plan: tens of thousands of links.
_LONGEST_PLAN = 16 << 20
_PROBLEM = ResponseSpec(Problem, description="Refused.", generate_examples=False, media_type=MEDIA_TYPE)


def _problems(*statuses: int) -> dict[str, Any]:
    return {"responses": dict.fromkeys(statuses, _PROBLEM)}


#: What the options of a handler are, by whom it is for.
_PUBLIC: dict[str, Any] = _problems(400, 429)
_OPERATOR: dict[str, Any] = {
    "guards": [for_operator],
    "security": [{"credential": []}],
    **_problems(400, 401, 403, 404, 409, 429),
}
_ADMIN: dict[str, Any] = {**_OPERATOR, "guards": [for_admin]}
_BOTH: dict[str, Any] = {**_OPERATOR, "guards": [for_both]}
_TERMINAL: dict[str, Any] = {
    "guards": [for_terminal],
    "security": [{"terminal": [], "timestamp": [], "nonce": [], "proof": []}],
    **_problems(400, 401, 403, 404, 410, 429),
}


# -- the registry and its customers --------------------------------------------------------------------


@get("/v1/registry", operation_id="showRegistry", summary="Public key of the registry", **_PUBLIC)
async def show_registry(request: Call) -> api.RegistryInfo:
    return api.RegistryInfo(registry_key=request.registry.public_key, version=landbridge.__version__)


@post(
    "/v1/operator/credentials",
    operation_id="rotateOperatorCredential",
    summary="A new credential for the operator; the old one ends",
    **_OPERATOR,
)
async def rotate_operator_credential(request: Call) -> api.CreatedCredential:
    return await request.registry.customers.rotate_operator(request.caller)


@post(
    "/v1/customers",
    operation_id="createMessageBusCustomer",
    summary="Create a customer, and its first admin credential",
    **_OPERATOR,
)
async def create_message_bus_customer(
    request: Call, data: JSONBody[api.CreateCustomer]
) -> api.CreatedCustomer:
    return await request.registry.customers.create(request.caller, data)


@get("/v1/customers", operation_id="listMessageBusCustomers", summary="All customers", **_OPERATOR)
async def list_message_bus_customers(
    request: Call, after: FromQuery[str] = "", limit: FromQuery[int] = 100
) -> api.CustomerPage:
    return request.registry.customers.listed(after, limit)


@delete(
    "/v1/customers/{customer:str}",
    operation_id="removeMessageBusCustomer",
    summary="Remove a customer with all that it has",
    **_OPERATOR,
)
async def remove_message_bus_customer(
    request: Call, customer: FromPath[str], force: FromQuery[bool] = False
) -> None:
    await request.registry.customers.remove(request.caller, customer, force=force)


@post(
    "/v1/customers/{customer:str}/credentials",
    operation_id="resetMessageBusCustomerCredential",
    summary="A new admin credential for a customer; all others end",
    **_OPERATOR,
)
async def reset_message_bus_customer_credential(
    request: Call, customer: FromPath[str]
) -> api.CreatedCredential:
    return await request.registry.customers.reset_credential(request.caller, customer)


@get("/v1/customer", operation_id="showMessageBusCustomer", summary="The customer itself", **_ADMIN)
async def show_message_bus_customer(request: Call) -> api.Customer:
    return customers.show(request.account)


@patch("/v1/customer", operation_id="updateMessageBusCustomer", summary="Change its name", **_ADMIN)
async def update_message_bus_customer(request: Call, data: JSONBody[api.UpdateCustomer]) -> api.Customer:
    return await request.registry.customers.update(request.caller, data)


@post(
    "/v1/customer/credentials",
    operation_id="rotateMessageBusCustomerCredential",
    summary="A new admin credential; the one that is used stays good beside it",
    **_ADMIN,
)
async def rotate_message_bus_customer_credential(request: Call) -> api.CreatedCredential:
    return await request.registry.customers.rotate_credential(request.caller)


@delete(
    "/v1/customer/credentials",
    operation_id="revokeMessageBusCustomerCredentials",
    summary="End all admin credentials but the one that is used",
    status_code=200,
    **_ADMIN,
)
async def revoke_message_bus_customer_credentials(request: Call) -> api.Customer:
    return await request.registry.customers.revoke_credentials(request.caller)


# -- terminals -----------------------------------------------------------------------------------------


@post("/v1/terminals", operation_id="createTerminal", summary="Create a terminal, and its key", **_ADMIN)
async def create_terminal(request: Call, data: JSONBody[api.CreateTerminal]) -> api.CreatedTerminal:
    return await request.registry.terminals.create(request.caller, data)


@get("/v1/terminals", operation_id="listTerminals", summary="All terminals", **_ADMIN)
async def list_terminals(
    request: Call, after: FromQuery[str] = "", limit: FromQuery[int] = 100
) -> api.TerminalPage:
    return request.registry.terminals.listed(request.account, after, limit)


@get("/v1/terminals/{terminal:str}", operation_id="showTerminal", summary="One terminal", **_ADMIN)
async def show_terminal(request: Call, terminal: FromPath[str]) -> api.Terminal:
    return terminals.show(request.account, request.account.terminal(terminal))


@patch("/v1/terminals/{terminal:str}", operation_id="updateTerminal", summary="Change a terminal", **_ADMIN)
async def update_terminal(
    request: Call, terminal: FromPath[str], data: JSONBody[api.UpdateTerminal]
) -> api.Terminal:
    return await request.registry.terminals.update(request.caller, terminal, data)


@delete("/v1/terminals/{terminal:str}", operation_id="removeTerminal", summary="Remove a terminal", **_ADMIN)
async def remove_terminal(request: Call, terminal: FromPath[str], force: FromQuery[bool] = False) -> None:
    await request.registry.terminals.remove(request.caller, terminal, force=force)


@post(
    "/v1/terminals/{terminal:str}/revocation",
    operation_id="revokeTerminal",
    summary="Cut a terminal off, at once and for ever",
    **_ADMIN,
)
async def revoke_terminal(request: Call, terminal: FromPath[str]) -> api.Terminal:
    return await request.registry.terminals.revoke(request.caller, terminal)


@post(
    "/v1/terminals/{terminal:str}/keys",
    operation_id="rotateTerminalKey",
    summary="A new key for a terminal; the old one stays good beside it unless told otherwise",
    **_ADMIN,
)
async def rotate_terminal_key(
    request: Call, terminal: FromPath[str], data: JSONBody[api.RotateKey]
) -> api.RotatedKey:
    return await request.registry.terminals.rotate_key(request.caller, terminal, data)


@post(
    "/v1/terminals/{terminal:str}/enrolments",
    operation_id="createTerminalEnrolment",
    summary="A token with which a machine becomes this terminal, once",
    **_ADMIN,
)
async def create_terminal_enrolment(request: Call, terminal: FromPath[str]) -> api.CreatedEnrolment:
    return await request.registry.terminals.create_enrolment(request.caller, terminal)


@post(
    "/v1/enrol",
    operation_id="enrolTerminal",
    summary="Become a terminal, by an enrolment token and the public half of a key of one's own",
    **_problems(400, 401, 409, 429),
)
async def enrol_terminal(request: Call, data: JSONBody[api.Enrol]) -> api.Enrolled:
    try:
        return await request.registry.terminals.enrol(data)
    except Unauthenticated as error:
        await request.turn_away("", error)
        raise


# -- groups --------------------------------------------------------------------------------------------


@post("/v1/groups", operation_id="createTerminalGroup", summary="Create a terminal group", **_ADMIN)
async def create_terminal_group(request: Call, data: JSONBody[api.CreateGroup]) -> api.TerminalGroup:
    return await request.registry.groups.create(request.caller, data)


@get("/v1/groups", operation_id="listTerminalGroups", summary="All terminal groups", **_ADMIN)
async def list_terminal_groups(
    request: Call, after: FromQuery[str] = "", limit: FromQuery[int] = 100
) -> api.GroupPage:
    return request.registry.groups.listed(request.account, after, limit)


@get("/v1/groups/{group:str}", operation_id="showTerminalGroup", summary="One terminal group", **_ADMIN)
async def show_terminal_group(request: Call, group: FromPath[str]) -> api.TerminalGroup:
    return groups.show(request.account, request.account.group(group))


@patch(
    "/v1/groups/{group:str}",
    operation_id="updateTerminalGroup",
    summary="Give a group other terminals",
    **_ADMIN,
)
async def update_terminal_group(
    request: Call, group: FromPath[str], data: JSONBody[api.UpdateGroup], force: FromQuery[bool] = False
) -> api.TerminalGroup:
    return await request.registry.groups.update(request.caller, group, data, force=force)


@delete("/v1/groups/{group:str}", operation_id="removeTerminalGroup", summary="Remove a group", **_ADMIN)
async def remove_terminal_group(request: Call, group: FromPath[str], force: FromQuery[bool] = False) -> None:
    await request.registry.groups.remove(request.caller, group, force=force)


@post(
    "/v1/groups/{group:str}/terminals",
    operation_id="addTerminalToGroup",
    summary="Add one or more terminals to a group",
    **_ADMIN,
)
async def add_terminal_to_group(
    request: Call, group: FromPath[str], data: JSONBody[api.AddTerminals]
) -> api.TerminalGroup:
    return await request.registry.groups.add_terminals(request.caller, group, data)


@delete(
    "/v1/groups/{group:str}/terminals/{terminal:str}",
    operation_id="removeTerminalFromGroup",
    summary="Take a terminal out of a group",
    status_code=200,
    **_ADMIN,
)
async def remove_terminal_from_group(
    request: Call, group: FromPath[str], terminal: FromPath[str], force: FromQuery[bool] = False
) -> api.TerminalGroup:
    return await request.registry.groups.remove_terminal(request.caller, group, terminal, force=force)


# -- topics --------------------------------------------------------------------------------------------


@post("/v1/topics", operation_id="createMessageBusTopic", summary="Create a topic, and its key", **_ADMIN)
async def create_message_bus_topic(request: Call, data: JSONBody[api.CreateTopic]) -> api.Topic:
    return await request.registry.topics.create(request.caller, data)


@get("/v1/topics", operation_id="listMessageBusTopics", summary="All topics", **_ADMIN)
async def list_message_bus_topics(
    request: Call, after: FromQuery[str] = "", limit: FromQuery[int] = 100
) -> api.TopicPage:
    return request.registry.topics.listed(request.account, after, limit)


@get("/v1/topics/{topic:str}", operation_id="showMessageBusTopic", summary="One topic", **_ADMIN)
async def show_message_bus_topic(request: Call, topic: FromPath[str]) -> api.Topic:
    return topics.show(request.account.topic(topic))


@patch("/v1/topics/{topic:str}", operation_id="updateMessageBusTopic", summary="Change a topic", **_ADMIN)
async def update_message_bus_topic(
    request: Call, topic: FromPath[str], data: JSONBody[api.UpdateTopic]
) -> api.Topic:
    return await request.registry.topics.update(request.caller, topic, data)


@delete("/v1/topics/{topic:str}", operation_id="removeMessageBusTopic", summary="Remove a topic", **_ADMIN)
async def remove_message_bus_topic(
    request: Call, topic: FromPath[str], force: FromQuery[bool] = False
) -> None:
    await request.registry.topics.remove(request.caller, topic, force=force)


@post(
    "/v1/topics/{topic:str}/groups",
    operation_id="addGroupToTopic",
    summary="Add one or more groups to a topic",
    **_ADMIN,
)
async def add_group_to_topic(request: Call, topic: FromPath[str], data: JSONBody[api.AddGroups]) -> api.Topic:
    return await request.registry.topics.add_groups(request.caller, topic, data)


@delete(
    "/v1/topics/{topic:str}/groups/{group:str}",
    operation_id="removeGroupFromTopic",
    summary="Take a group off a topic",
    status_code=200,
    **_ADMIN,
)
async def remove_group_from_topic(
    request: Call, topic: FromPath[str], group: FromPath[str], force: FromQuery[bool] = False
) -> api.Topic:
    return await request.registry.topics.remove_group(request.caller, topic, group, force=force)


@post(
    "/v1/topics/{topic:str}/keys",
    operation_id="rotateMessageBusTopicKey",
    summary="A new version of the topic's key; the older ones only decrypt",
    **_ADMIN,
)
async def rotate_message_bus_topic_key(request: Call, topic: FromPath[str]) -> api.Topic:
    return await request.registry.topics.rotate_key(request.caller, topic)


# -- by terminals --------------------------------------------------------------------------------------


@post("/v1/tickets/issue", operation_id="issueTicket", summary="A ticket to send with", **_TERMINAL)
async def issue_ticket(request: Call, data: JSONBody[api.IssueTicket]) -> Issue:
    return await request.registry.tickets.issue(request.caller, data)


@post("/v1/tickets/redeem", operation_id="redeemTicket", summary="The content key, for a ticket", **_TERMINAL)
async def redeem_ticket(request: Call, data: JSONBody[api.RedeemTicket]) -> Release:
    return await request.registry.tickets.redeem(request.caller, data)


@post("/v1/tickets/renew", operation_id="renewTicket", summary="Another five minutes", **_TERMINAL)
async def renew_ticket(request: Call, data: JSONBody[api.RenewTicket]) -> Renewal:
    return await request.registry.tickets.renew(request.caller, data)


@post(
    "/v1/directory",
    operation_id="readDirectory",
    summary="The signed directory, as soon as there is one newer than the version given",
    status_code=200,
    **_TERMINAL,
)
async def read_directory(
    request: Call, data: JSONBody[api.ReadDirectory]
) -> Response[api.DirectoryUpdate | None]:
    newer = await request.registry.directories.newer(request.caller, data)
    return Response(newer, status_code=204 if newer is None else 200)


@post(
    "/v1/link-state",
    operation_id="postLinkState",
    summary="What a terminal says of its links, and of the messages that it holds",
    status_code=204,
    request_max_body_size=_LONGEST_LINK_STATE,
    **_TERMINAL,
)
async def post_link_state(request: Call, data: JSONBody[api.PostLinkState]) -> None:
    await request.registry.topologies.report(request.caller, data)


@post(
    "/v1/certificate",
    operation_id="requestCertificate",
    summary="A certificate of thirty days, for the key of a certificate request",
    **_TERMINAL,
)
async def request_certificate(request: Call, data: JSONBody[api.CertificateRequest]) -> api.Certificate:
    return await request.registry.terminals.certificate(request.caller, data)


@post(
    "/v1/terminal/keys",
    operation_id="rotateOwnKey",
    summary="A terminal's own new key, by the key that it still has",
    **_TERMINAL,
)
async def rotate_own_key(request: Call, data: JSONBody[api.RotateOwnKey]) -> api.RotatedKey:
    return await request.registry.terminals.rotate_own_key(request.caller, data)


# -- looking -------------------------------------------------------------------------------------------


@get("/v1/topology", operation_id="readTopology", summary="The newest link states", **_ADMIN)
async def read_topology(request: Call) -> api.Topology:
    return request.registry.topologies.show(request.account)


@put(
    "/v1/plan",
    operation_id="putPlan",
    summary="The long-term plan of the links, in the place of the one before",
    request_max_body_size=_LONGEST_PLAN,
    **_ADMIN,
)
async def put_plan(request: Call, data: JSONBody[api.PutPlan]) -> api.StoredPlan:
    return await request.registry.plans.put(request.caller, request.account, data.plan)


@put(
    "/v1/customers/{customer:str}/plan",
    operation_id="putCustomerPlan",
    summary="The same, for any customer",
    request_max_body_size=_LONGEST_PLAN,
    **_OPERATOR,
)
async def put_customer_plan(
    request: Call, customer: FromPath[str], data: JSONBody[api.PutPlan]
) -> api.StoredPlan:
    return await request.registry.plans.put_for(request.caller, customer, data.plan)


@get("/v1/plan", operation_id="readPlan", summary="The long-term plan", **_ADMIN)
async def read_plan(request: Call) -> api.StoredPlan:
    return request.registry.plans.show(request.account)


@get(
    "/v1/plan/paths/{terminal:str}",
    operation_id="plannedPaths",
    summary="The best paths and next hops of a terminal, by the long-term plan",
    **_ADMIN,
)
async def planned_paths(request: Call, terminal: FromPath[str]) -> api.PlannedPaths:
    return await request.registry.plans.paths(request.account, terminal)


@get("/v1/audit", operation_id="readAudit", summary="Who did what, and what was refused", **_BOTH)
async def read_audit(request: Call, since: FromQuery[int] = 0, limit: FromQuery[int] = 100) -> api.AuditPage:
    return await request.registry.read_audit(request.caller, since, limit)


ALL: list[HTTPRouteHandler] = [value for value in globals().values() if isinstance(value, HTTPRouteHandler)]
