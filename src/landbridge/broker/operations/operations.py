"""All operations of a terminal, put together."""

from __future__ import annotations

from functools import partial
from typing import Protocol

from landbridge.broker.audit import AuditLog
from landbridge.broker.broker import Broker
from landbridge.broker.operations.audit import AuditOperations
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.operations.documents import DocumentOperations
from landbridge.broker.operations.errors import ErrorOperations
from landbridge.broker.operations.event_types import EventTypeOperations
from landbridge.broker.operations.events import EventOperations
from landbridge.broker.operations.groups import GroupOperations
from landbridge.broker.operations.letters import LetterOperations
from landbridge.broker.operations.limits import LimitsOperations, LogsHost
from landbridge.broker.operations.mail import MailOperations
from landbridge.broker.operations.messages import MessageOperations, NamedHost
from landbridge.broker.operations.nodes import NodeOperations, NodesHost
from landbridge.broker.operations.pausing import PausingOperations
from landbridge.broker.operations.rules import RuleOperations
from landbridge.broker.operations.schedules import ScheduleOperations
from landbridge.broker.operations.services import ServiceOperations, ServicesHost
from landbridge.broker.operations.sms import SmsOperations
from landbridge.broker.operations.terminal import InfoHost, TerminalOperations
from landbridge.broker.operations.tokens import TokenHost, TokenOperations
from landbridge.broker.operations.topics import TopicOperations
from landbridge.broker.operations.webhooks import WebhookOperations
from landbridge.broker.operations.websub import WebSubOperations
from landbridge.broker.outcomes import Outcomes
from landbridge.broker.routing import Routing
from landbridge.broker.rule_topics import demand
from landbridge.broker.stages import Stages
from landbridge.broker.tokens import Issued
from landbridge.protocol import operations as table


class OperationsHost(NamedHost, InfoHost, ServicesHost, TokenHost, LogsHost, NodesHost, Protocol):
    """The terminal, as far as its operations need it."""


class Operations(Dispatcher):
    """The dispatcher of a terminal that stands alone. Crossing registers more when the terminal joins."""

    def __init__(
        self,
        terminal: OperationsHost,
        broker: Broker,
        stages: Stages,
        outcomes: Outcomes,
        routing: Routing,
    ) -> None:
        super().__init__(AuditLog(broker), partial(demand, broker.topics))
        self.stages = stages
        #: The tokens made here, for ``token.list``.
        self.issued = Issued(broker)
        TopicOperations(broker, routing).register(self)
        RuleOperations(broker, routing).register(self)
        EventTypeOperations(broker).register(self)
        GroupOperations(broker).register(self)
        LetterOperations(broker).register(self)
        PausingOperations(broker, terminal).register(self)
        DocumentOperations(broker).register(self)
        ScheduleOperations(broker).register(self)
        self.webhooks = WebhookOperations(broker, routing)
        self.webhooks.register(self)
        self.mail = MailOperations(broker)
        self.mail.register(self)
        SmsOperations(broker).register(self)
        WebSubOperations(broker, terminal).register(self)
        TokenOperations(broker, terminal, self.issued).register(self)
        ServiceOperations(broker, terminal).register(self)
        TerminalOperations(broker, terminal).register(self)
        MessageOperations(broker, terminal).register(self)
        EventOperations(broker, outcomes).register(self)
        ErrorOperations(broker).register(self)
        LimitsOperations(broker, terminal).register(self)
        AuditOperations(broker).register(self)
        NodeOperations(broker, terminal).register(self)
        self.register(table.STAGE_COMMIT, stages.stage_commit)
        self.register(table.STAGE_SHOW, stages.stage_show)
        self.register(table.STAGE_DROP, stages.stage_drop)
