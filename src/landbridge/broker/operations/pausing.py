"""Operations that pause topics, groups and services, and let them go on."""

from __future__ import annotations

from typing import Protocol

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import Authority
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.operations.dispatcher import Dispatcher
from landbridge.broker.operations.groups import describe_group
from landbridge.broker.operations.topics import describe_topic
from landbridge.broker.pauses import Noting, PauseChange, PauseEdit
from landbridge.broker.services import Services
from landbridge.core import pauses
from landbridge.core.pauses import PauseNote
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table


class PausingHost(Protocol):
    """The terminal, as far as its services go."""

    services: Services

    @property
    def authority(self) -> Authority: ...


class PausingOperations:
    """The handlers of topic.pause, group.pause, service.pause, and of what ends them."""

    def __init__(self, broker: Broker, host: PausingHost) -> None:
        self._broker = broker
        self._host = host

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.TOPIC_PAUSE, self.pause_topic)
        dispatcher.register(table.TOPIC_RESUME, self.resume_topic)
        dispatcher.register(table.GROUP_PAUSE, self.pause_group)
        dispatcher.register(table.GROUP_RESUME, self.resume_group)
        dispatcher.register(table.SERVICE_PAUSE, self.pause_service)
        dispatcher.register(table.SERVICE_UNPAUSE, self.unpause_service)

    async def pause_topic(self, caller: AuditedCaller, request: table.TopicPause) -> table.TopicRow:
        edit = self._pause(caller, request.note, delivery=request.delivery)
        rule = self._broker.table.topic(request.name).spec.rule
        if rule is not None and not request.delivery:
            raise BadRequest(
                f"{request.name} is the topic of a rule: nobody publishes to it, and the rule goes on",
                hint=f"pause its groups with --delivery, or the source {rule.source}, or delete the rule",
            )
        return await self._change_topic(caller, request.name, edit)

    async def resume_topic(self, caller: AuditedCaller, request: table.OfTopic) -> table.TopicRow:
        return await self._change_topic(caller, request.name, _nothing)

    async def _change_topic(self, caller: AuditedCaller, name: str, edit: PauseEdit) -> table.TopicRow:
        topic = self._broker.table.topic(name)
        change = await self._broker.pauses.change_topic(topic, edit, _noting(caller, name))
        self._observe(caller, "topic", name, change)
        return describe_topic(topic)

    async def pause_group(self, caller: AuditedCaller, request: table.GroupPause) -> table.GroupRow:
        return await self._change_group(caller, request, self._pause(caller, request.note))

    async def resume_group(self, caller: AuditedCaller, request: table.OfGroup) -> table.GroupRow:
        return await self._change_group(caller, request, _nothing)

    async def _change_group(
        self, caller: AuditedCaller, request: table.OfGroup, edit: PauseEdit
    ) -> table.GroupRow:
        group, name = self._broker.table.group(request.topic, request.name), f"{request.topic}/{request.name}"
        change = await self._broker.pauses.change_group(group, edit, _noting(caller, name))
        self._observe(caller, "group", name, change)
        return describe_group(group)

    async def pause_service(self, caller: AuditedCaller, request: table.ServicePause) -> table.ServicePaused:
        return await self._change_service(caller, request.name, self._pause(caller, request.note))

    async def unpause_service(self, caller: AuditedCaller, request: table.OfService) -> table.ServicePaused:
        return await self._change_service(caller, request.name, _nothing)

    async def _change_service(self, caller: AuditedCaller, name: str, edit: PauseEdit) -> table.ServicePaused:
        if name not in self._broker.pauses.services:
            registry = self._host.authority.registered
            if registry is None or not registry.knows(name):
                self._host.services.get(name)  # or UnknownService
        change = await self._broker.pauses.change_service(name, edit, _noting(caller, name))
        self._observe(caller, "service", name, change)
        return table.ServicePaused(name=name, pause=change.after)

    def _pause(self, caller: AuditedCaller, note: str, *, delivery: bool = False) -> PauseEdit:
        now = self._broker.clock()
        pauses.pause(None, now, caller.subject, note)  # what is wrong is refused before anything is queued
        return lambda found: pauses.pause(found, now, caller.subject, note, delivery=delivery)

    def _observe(self, caller: AuditedCaller, what: str, name: str, change: PauseChange) -> None:
        if change.before != change.after:
            verb = "resumed" if change.after is None else "paused"
            self._broker.observe(what, name, verb, caller.subject, change.before, change.after)
        else:
            caller.change_nothing()


def _nothing(found: PauseNote | None) -> None:
    """There is no pause any more."""


def _noting(caller: AuditedCaller, name: str) -> Noting:
    def enter(commit: BrokerCommit, change: PauseChange) -> None:
        before, after = ({"pause": each} for each in change)
        caller.enter(commit, name, before, after)

    return enter
