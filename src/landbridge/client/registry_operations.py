"""The operations of the registry, each once: the client's methods, the HTTP routes, the OpenAPI document and
the table in ``docs/registry.md`` follow from here. A new operation is an entry below and a handler in the
registry.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, Literal, ParamSpec, TypeAlias, TypeVar, cast

import msgspec

from landbridge.client import registry_documents as api
from landbridge.core.trust.tickets import Issue, Release, Renewal

P = ParamSpec("P")
Q = TypeVar("Q", bound=api.Request)
A = TypeVar("A")
#: Who may ask: "both" are the operator and the admins of customers.
Who: TypeAlias = Literal["anybody", "operator", "admin", "both", "terminal"]


@dataclass(frozen=True, eq=False)
class RegistryOperation(Generic[P, Q, A]):
    """One operation. ``P`` are the arguments of its request ``Q``, ``A`` is its answer."""

    #: Name in the OpenAPI document and in the audit.
    name: str
    #: "VERB /path"; a name in braces is a member of the request.
    route: str
    who: Who
    request: Callable[P, Q]
    answer: type[A]
    #: One sentence.
    help: str

    @property
    def verb(self) -> str:
        """The HTTP method."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, with members of the request in braces."""
        return self.route.partition(" ")[2]

    @cached_property
    def in_path(self) -> list[str]:
        """Members of the request that stand in the path."""
        return re.findall(r"\{(\w+)\}", self.path)

    @cached_property
    def in_query(self) -> list[str]:
        """Members in the query: ``force``, and whatever a GET has beside its path."""
        names = [field.name for field in self.fields if field.name not in self.in_path]
        return names if self.verb == "GET" else [name for name in names if name == "force"]

    @cached_property
    def in_body(self) -> list[str]:
        """Members in the JSON body: all others."""
        elsewhere = {*self.in_path, *self.in_query}
        return [field.name for field in self.fields if field.name not in elsewhere]

    @property
    def fields(self) -> tuple[msgspec.structs.FieldInfo, ...]:
        """All members of the request."""
        return msgspec.structs.fields(cast(type[api.Request], self.request))


_op = RegistryOperation

# fmt: off

# -- the registry and its customers --------------------------------------------------------------------

SHOW_REGISTRY = _op("showRegistry", "GET /v1/registry", "anybody",
    api.Request, api.RegistryInfo, "Show the public key and the version of the registry")
ROTATE_OPERATOR_CREDENTIAL = _op("rotateOperatorCredential", "POST /v1/operator/credentials", "operator",
    api.Request, api.CreatedCredential, "Make a new credential for the operator; the old one ends")
CREATE_CUSTOMER = _op("createMessageBusCustomer", "POST /v1/customers", "operator",
    api.CreateCustomer, api.CreatedCustomer, "Create a customer and its first admin credential")
LIST_CUSTOMERS = _op("listMessageBusCustomers", "GET /v1/customers", "operator",
    api.ListPage, api.CustomerPage, "List all customers")
REMOVE_CUSTOMER = _op("removeMessageBusCustomer", "DELETE /v1/customers/{customer}", "operator",
    api.RemoveCustomer, type(None), "Remove a customer with everything that belongs to it")
RESET_CUSTOMER_CREDENTIAL = _op("resetMessageBusCustomerCredential",
    "POST /v1/customers/{customer}/credentials", "operator",
    api.OfCustomer, api.CreatedCredential, "Make a new admin credential for a customer; all its others end")
SHOW_CUSTOMER = _op("showMessageBusCustomer", "GET /v1/customer", "admin",
    api.Request, api.Customer, "Show the admin's own customer")
UPDATE_CUSTOMER = _op("updateMessageBusCustomer", "PATCH /v1/customer", "admin",
    api.UpdateCustomer, api.Customer, "Change the customer's name")
ROTATE_CUSTOMER_CREDENTIAL = _op("rotateMessageBusCustomerCredential", "POST /v1/customer/credentials",
"admin",
    api.Request, api.CreatedCredential, "Make a new admin credential; the one in use stays good beside it")
REVOKE_CUSTOMER_CREDENTIALS = _op("revokeMessageBusCustomerCredentials", "DELETE /v1/customer/credentials",
"admin",
    api.Request, api.Customer, "End all admin credentials but the one in use")

# -- terminals -----------------------------------------------------------------------------------------

CREATE_TERMINAL = _op("createTerminal", "POST /v1/terminals", "admin",
    api.CreateTerminal, api.CreatedTerminal, "Create a terminal and its key")
LIST_TERMINALS = _op("listTerminals", "GET /v1/terminals", "admin",
    api.ListPage, api.TerminalPage, "List all terminals")
SHOW_TERMINAL = _op("showTerminal", "GET /v1/terminals/{terminal}", "admin",
    api.OfTerminal, api.RegisteredTerminal, "Show one terminal")
UPDATE_TERMINAL = _op("updateTerminal", "PATCH /v1/terminals/{terminal}", "admin",
    api.UpdateTerminal, api.RegisteredTerminal, "Change a terminal")
REMOVE_TERMINAL = _op("removeTerminal", "DELETE /v1/terminals/{terminal}", "admin",
    api.RemoveTerminal, type(None), "Remove a terminal, from its groups and topics too")
REVOKE_TERMINAL = _op("revokeTerminal", "POST /v1/terminals/{terminal}/revocation", "admin",
    api.OfTerminal, api.RegisteredTerminal, "Cut a terminal off, at once and for ever")
ROTATE_TERMINAL_KEY = _op("rotateTerminalKey", "POST /v1/terminals/{terminal}/keys", "admin",
    api.RotateKey, api.RotatedKey,
    "Give a terminal a new key; the old one stays good beside it unless keep_old is false")
CREATE_TERMINAL_ENROLMENT = _op("createTerminalEnrolment", "POST /v1/terminals/{terminal}/enrolments",
"admin",
    api.OfTerminal, api.CreatedEnrolment, "Make a token with which a machine becomes this terminal, once")
ENROL_TERMINAL = _op("enrolTerminal", "POST /v1/enrol", "anybody",
    api.Enrol, api.Enrolled,
    "Become a terminal, by an enrolment token and the public half of a key of one's own")

# -- groups --------------------------------------------------------------------------------------------

CREATE_TERMINAL_GROUP = _op("createTerminalGroup", "POST /v1/groups", "admin",
    api.CreateGroup, api.TerminalGroup, "Create a terminal group")
LIST_TERMINAL_GROUPS = _op("listTerminalGroups", "GET /v1/groups", "admin",
    api.ListPage, api.GroupPage, "List all terminal groups")
SHOW_TERMINAL_GROUP = _op("showTerminalGroup", "GET /v1/groups/{group}", "admin",
    api.OfTerminalGroup, api.TerminalGroup, "Show one terminal group")
UPDATE_TERMINAL_GROUP = _op("updateTerminalGroup", "PATCH /v1/groups/{group}", "admin",
    api.UpdateGroup, api.TerminalGroup, "Replace the terminals of a group")
REMOVE_TERMINAL_GROUP = _op("removeTerminalGroup", "DELETE /v1/groups/{group}", "admin",
    api.RemoveGroup, type(None), "Remove a group, from its topics too")
ADD_TERMINAL_TO_GROUP = _op("addTerminalToGroup", "POST /v1/groups/{group}/terminals", "admin",
    api.AddTerminals, api.TerminalGroup, "Add one or more terminals to a group")
REMOVE_TERMINAL_FROM_GROUP = _op("removeTerminalFromGroup", "DELETE /v1/groups/{group}/terminals/{terminal}",
"admin",
    api.RemoveTerminalFromGroup, api.TerminalGroup, "Remove a terminal from a group")

# -- topics --------------------------------------------------------------------------------------------

CREATE_TOPIC = _op("createMessageBusTopic", "POST /v1/topics", "admin",
    api.CreateTopic, api.TopicInfo, "Create a topic and its key")
LIST_TOPICS = _op("listMessageBusTopics", "GET /v1/topics", "admin",
    api.ListPage, api.TopicPage, "List all topics")
SHOW_TOPIC = _op("showMessageBusTopic", "GET /v1/topics/{topic}", "admin",
    api.OfCrossingTopic, api.TopicInfo, "Show one topic")
UPDATE_TOPIC = _op("updateMessageBusTopic", "PATCH /v1/topics/{topic}", "admin",
    api.UpdateTopic, api.TopicInfo, "Change a topic")
REMOVE_TOPIC = _op("removeMessageBusTopic", "DELETE /v1/topics/{topic}", "admin",
    api.RemoveTopic, type(None),
    "Remove a topic with its keys: messages on their way can't be opened any more")
ADD_GROUP_TO_TOPIC = _op("addGroupToTopic", "POST /v1/topics/{topic}/groups", "admin",
    api.AddGroups, api.TopicInfo, "Add one or more groups to a topic")
REMOVE_GROUP_FROM_TOPIC = _op("removeGroupFromTopic", "DELETE /v1/topics/{topic}/groups/{group}", "admin",
    api.RemoveGroupFromTopic, api.TopicInfo, "Remove a group from a topic")
ROTATE_TOPIC_KEY = _op("rotateMessageBusTopicKey", "POST /v1/topics/{topic}/keys", "admin",
    api.OfCrossingTopic, api.TopicInfo, "Make a new version of the topic's key; the older ones only decrypt")

# -- services ------------------------------------------------------------------------------------------

REGISTER_SERVICE = _op("registerService", "POST /v1/services", "admin",
    api.RegisterCustomerService, api.CreatedServiceCredential,
    "Register a service for all terminals of the customer, and make its credential")
LIST_SERVICES = _op("listServices", "GET /v1/services", "admin",
    api.ListPage, api.CustomerServicePage, "List all services")
SHOW_SERVICE = _op("showService", "GET /v1/services/{service}", "admin",
    api.OfCustomerService, api.CustomerService, "Show one service")
UPDATE_SERVICE = _op("updateService", "PATCH /v1/services/{service}", "admin",
    api.UpdateCustomerService, api.CustomerService,
    "Change a service; its tokens end where scopes are taken away")
REMOVE_SERVICE = _op("removeService", "DELETE /v1/services/{service}", "admin",
    api.OfCustomerService, type(None),
    "Remove a service: its credentials, its tokens and its connections end")
SUSPEND_SERVICE = _op("suspendService", "POST /v1/services/{service}/suspension", "admin",
    api.OfCustomerService, api.CustomerService,
    "Suspend a service: its tokens and its connections end, and it gets no new tokens")
RESUME_SERVICE = _op("resumeService", "DELETE /v1/services/{service}/suspension", "admin",
    api.OfCustomerService, api.CustomerService, "Give a suspended service tokens again")
ROTATE_SERVICE_CREDENTIAL = _op("rotateServiceCredential", "POST /v1/services/{service}/credentials", "admin",
    api.RotateServiceCredential, api.CreatedServiceCredential,
    "Make a new credential for a service; the one before stays good for a time")
ROTATE_TOKEN_KEY = _op("rotateTokenKey", "POST /v1/customer/token-keys", "admin",
    api.RotateTokenKey, api.TokenKeys, "Make a new key that signs the tokens of services")
CREATE_SERVICE_TOKEN = _op("createServiceToken", "POST /v1/service-tokens", "anybody",
    api.CreateServiceToken, api.CreatedServiceToken,
    "Get a token of ten minutes at most, for the credential of a service")

# -- by terminals --------------------------------------------------------------------------------------

ISSUE_TICKET = _op("issueTicket", "POST /v1/tickets/issue", "terminal",
    api.IssueTicket, Issue, "Get a ticket to send with")
REDEEM_TICKET = _op("redeemTicket", "POST /v1/tickets/redeem", "terminal",
    api.RedeemTicket, Release, "Get the content key of a shipment, for its ticket")
RENEW_TICKET = _op("renewTicket", "POST /v1/tickets/renew", "terminal",
    api.RenewTicket, Renewal, "Make a ticket good for another five minutes")
READ_DIRECTORY = _op("readDirectory", "POST /v1/directory", "terminal",
    api.ReadDirectory, cast("type[api.NewDirectory | None]", api.NewDirectory),
    "Get the signed directory, as soon as it is newer than the version given")
POST_LINK_STATE = _op("postLinkState", "POST /v1/link-state", "terminal",
    api.PostLinkState, type(None), "Report a terminal's links and the messages that it holds")
REQUEST_CERTIFICATE = _op("requestCertificate", "POST /v1/certificate", "terminal",
    api.CertificateRequest, api.Certificate,
    "Get a certificate of thirty days, for the key of a certificate request")
ROTATE_OWN_KEY = _op("rotateOwnKey", "POST /v1/terminal/keys", "terminal",
    api.RotateOwnKey, api.RotatedKey,
    "Give the terminal that asks a new key; the request is proved with the old one")

# -- links, plans, audit -------------------------------------------------------------------------------

READ_TOPOLOGY = _op("readTopology", "GET /v1/topology", "admin",
    api.Request, api.Topology, "Show the newest link states")
PUT_PLAN = _op("putPlan", "PUT /v1/plan", "admin",
    api.PutPlan, api.StoredPlan, "Replace the long-term plan of the links")
PUT_CUSTOMER_PLAN = _op("putCustomerPlan", "PUT /v1/customers/{customer}/plan", "operator",
    api.PutCustomerPlan, api.StoredPlan, "Replace the long-term plan of any customer")
READ_PLAN = _op("readPlan", "GET /v1/plan", "admin",
    api.Request, api.StoredPlan, "Show the long-term plan")
PLANNED_PATHS = _op("plannedPaths", "GET /v1/plan/paths/{terminal}", "admin",
    api.OfTerminal, api.PlannedPaths,
    "Show the best paths and next hops from a terminal, by the long-term plan")
READ_AUDIT = _op("readAudit", "GET /v1/audit", "both",
    api.ReadAudit, api.AuditPage, "Show which operations were done and which were refused")

# fmt: on

#: Every operation, in the order above.
ALL: list[RegistryOperation[..., Any, Any]] = [
    value for value in globals().values() if isinstance(value, RegistryOperation)
]
