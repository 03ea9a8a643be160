"""Operations on rules."""

from __future__ import annotations

from functools import partial

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.fair_thread import FairThread
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher
from landbridge.broker.operations.events import read_payload
from landbridge.broker.routing import Routing
from landbridge.broker.rule_topics import may
from landbridge.broker.topic import Topic
from landbridge.broker.turns import TOPIC_COUNTS, Turns
from landbridge.core.log.batch import encode_headers
from landbridge.core.rules.content import MessageContent, content_of
from landbridge.core.rules.explanation import explain
from landbridge.core.rules.query import read_query
from landbridge.core.topic import RuleSpec
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, UnknownMessage, UnknownTopic
from landbridge.protocol import operations as table

#: Rules that one page of a test asks, some of them with all of their budget.
TEST_PAGE = 100


class RuleOperations:
    """The handlers of rule.*"""

    def __init__(self, broker: Broker, routing: Routing) -> None:
        self._broker, self._routing = broker, routing
        #: Tests share a thread: one may take as long as its rules' budgets allow.
        self._testing = FairThread("landbridge-rule-tests")

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.RULE_CREATE, self.create)
        dispatcher.register(table.RULE_LIST, self.list_page)
        dispatcher.register(table.RULE_SHOW, self.show)
        dispatcher.register(table.RULE_TEST, self.test)
        dispatcher.register(table.RULE_TRACE, self.trace)
        dispatcher.register(table.RULE_DELETE, self.delete)

    async def create(self, caller: AuditedCaller, request: table.RuleCreate) -> table.RuleMade:
        query = read_query(request.match)
        topic, is_new = await self._routing.create(query, request.source, caller, caller.enter)
        if not is_new:
            caller.change_nothing()
        return table.RuleMade(**msgspec.structs.asdict(self._row(topic)), is_new=is_new)

    async def list_page(self, caller: TokenBearer, request: table.RuleList) -> table.RuleRows:
        rows: list[table.RuleRow] = []
        turns = Turns()
        for topic in self._routing.rules:
            await turns.looked_at(TOPIC_COUNTS)
            if topic.name <= request.after or topic.deleted:
                continue
            if request.source not in (None, _rule_of(topic).source) or not self._may_see(caller, topic):
                continue
            if len(rows) >= PAGE:
                return table.RuleRows(rules=rows, next=rows[-1].rule)
            rows.append(self._row(topic))
        return table.RuleRows(rules=rows, next="")

    def _may_see(self, caller: TokenBearer, topic: Topic) -> bool:
        scopes = caller.scopes
        return scopes.has("observe") or may(self._broker.topics, scopes, "subscribe", topic.name)

    async def show(self, caller: TokenBearer, request: table.OfRule) -> table.RuleDetails:
        topic = self._topic(request.rule)
        begin = _rule_of(topic).begin
        row = msgspec.structs.asdict(self._row(topic))
        return table.RuleDetails(**row, created_at=topic.created_at, begin=begin)

    async def delete(self, caller: AuditedCaller, request: table.RuleDelete) -> table.Deleted:
        topic = self._topic(request.rule)
        if caller.subject != _rule_of(topic).owner:
            caller.scopes.demand_rank("operate", f"delete the rule of {_rule_of(topic).owner}")
        lag = max((group.delivery.cursor.lag(topic.log.end) for group in topic.groups.values()), default=0)
        if lag and not request.force:
            raise BadRequest(
                f"the topic of the rule holds {counted(lag, 'message')} that a group hasn't settled",
                hint="use --force to delete them",
            )
        await self._routing.delete(topic, caller.subject, caller.enter)
        return table.Deleted(deleted=topic.name)

    async def trace(self, caller: TokenBearer, request: table.RuleTrace) -> table.RuleTraced:
        topic = self._topic(request.rule)
        source, offset = _rule_of(topic).source, request.offset
        if not topic.log.first <= offset < topic.log.end:
            has = f"it has the offsets {topic.log.first} to {topic.log.end - 1}"
            hint = has if topic.log.first < topic.log.end else "it has no messages"
            raise UnknownMessage(f"{topic.name} has no message at offset {offset}", hint=hint)
        found = await topic.log.choice_at(offset)
        if found is None:
            return table.RuleTraced(source=source, offset=None)
        first, choice = found
        return table.RuleTraced(source=source, offset=choice.offset_at(offset - first))

    async def test(self, caller: TokenBearer, request: table.RuleTest) -> table.RuleVerdicts:
        headers = encode_headers(request.headers)
        content = content_of(read_payload(request.payload), request.key.encode(), headers)
        if request.match is not None:
            if request.rule is not None:
                raise BadRequest("a test asks a query or a rule, not both")
            asked, more = [("", request.match)], False
        else:
            asked, more = self._asked(request)
        verdicts = await self._testing.run(caller.subject, partial(_verdicts, asked, content))
        return table.RuleVerdicts(verdicts=verdicts, next=asked[-1][0] if more else "")

    def _asked(self, request: table.RuleTest) -> tuple[list[tuple[str, dict[str, object]]], bool]:
        """The rules of a page, and whether there are more."""
        if request.rule is not None:
            topics = [self._topic(request.rule)]
            if _rule_of(topics[0]).source != request.source:
                raise UnknownTopic(f"{request.source} has no rule {request.rule}")
        else:
            topics = [
                topic for topic in self._routing.of_source(request.source) if topic.name > request.after
            ]
        page = [(topic.name, _rule_of(topic).query) for topic in topics[:TEST_PAGE]]
        return page, len(topics) > TEST_PAGE

    def _topic(self, name: str) -> Topic:
        topic = self._broker.topics.get(name)
        if topic is None or topic.spec.rule is None or topic.deleted or not topic.stored:
            raise UnknownTopic(f"there is no rule {name[:200]!r}", hint="see 'landbridge rule list'")
        return topic

    def _row(self, topic: Topic) -> table.RuleRow:
        rule = _rule_of(topic)
        route = self._routing.routes.get(rule.source)
        lag = 0 if route is None else route.group.delivery.cursor.lag(route.source.log.end)
        return table.RuleRow(
            rule=topic.name,
            source=rule.source,
            match=rule.query,
            owner=rule.owner,
            messages=topic.log.end - topic.log.first,
            end=topic.log.end,
            groups=len(topic.groups),
            lag=lag,
        )


def _rule_of(topic: Topic) -> RuleSpec:
    assert topic.spec.rule is not None
    return topic.spec.rule


def _verdicts(asked: list[tuple[str, dict[str, object]]], content: MessageContent) -> list[table.RuleVerdict]:
    """In a thread."""
    return [
        table.RuleVerdict(**msgspec.structs.asdict(explain(read_query(query), content)), rule=name)
        for name, query in asked
    ]
