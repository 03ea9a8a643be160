"""Which node of a terminal a frame of a client is for, without I/O.

A client is connected to one node. What it asks for may live at others: then its frames go there over legs, of
which each is a session with the client's own token. The client's numbers of requests and subscriptions pass
unchanged, so an answer needs no translation. ``Router`` is the memory of one connection: which leg has which
subscription, and which requests have no answer yet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

import msgspec

from landbridge.errors import BadRequest
from landbridge.protocol import frames
from landbridge.protocol.frames import Frame
from landbridge.protocol.merging import is_mergeable
from landbridge.protocol.operations import OPERATIONS, Operation

#: What lives with no topic, in the place of a topic's name.
HOME = ""
#: In the place of a topic's name: all of them.
ALL = (None, "*")
#: The frames that are about the one topic that they name.
_OF_A_TOPIC = frames.Publish | frames.PublishOnce | frames.SendRequest | frames.Fetch
#: What the names of stages' topics begin with.
STAGE = "$stage."


class Owners(Protocol):
    """Which node owns what, as far as this node knows."""

    #: The node that asks.
    me: str

    def unit_of(self, topic: str) -> int | None:
        """The unit of a topic; None where that has to be found out first."""

    def node_of(self, unit: int) -> str | None:
        """The node that owns a unit and serves it; None while nobody does."""

    @property
    def nodes(self) -> Iterable[str]:
        """All nodes that own anything."""


class Here(NamedTuple):
    """This node answers."""


class There(NamedTuple):
    """The frame goes to another node, unchanged."""

    node: str
    unit: int


class Unknown(NamedTuple):
    """It has to be found out, or waited for, which node has the topic. Nothing that comes after this frame
    may be handled before."""

    topic: str


class Everywhere(NamedTuple):
    """The frame is for this node and for all that there are legs to."""


class Gather(NamedTuple):
    """Several nodes are asked, and their answers become one (``merging.py``)."""

    operation: Operation[..., Any, Any]
    #: Node → what it is asked for.
    asked: dict[str, dict[str, Any]]


Decision: TypeAlias = Here | There | Unknown | Everywhere | Gather
HERE, EVERYWHERE = Here(), Everywhere()


class ConsumedGroup(NamedTuple):
    """What a subscription consumes."""

    topic: str
    group: str  #: empty: the only one of its topic


class AskedThere(NamedTuple):
    """A request that a leg has not answered."""

    node: str
    unit: int
    #: The subscription that it asks for; None: none.
    subscription: int | None


def find(owners: Owners, topic: str) -> There | Here | Unknown:
    unit = owners.unit_of(topic) if topic else 0
    node = None if unit is None else owners.node_of(unit)
    if unit is None or node is None:
        return Unknown(topic)
    return HERE if node == owners.me else There(node, unit)


def awaited(owners: Owners, frame: Frame) -> Unknown | None:
    """What a frame has to wait for that another node has passed on to this one. By the table of nodes this
    one may have a unit that it is still loading."""
    topic: object = None
    if isinstance(frame, _OF_A_TOPIC | frames.Subscribe):
        topic = frame.topic
    elif isinstance(frame, frames.Stage):
        topic = STAGE + frame.stage
    elif isinstance(frame, frames.Call) and (operation := OPERATIONS.get(frame.op)) is not None:
        kind, _, named = operation.where.partition(":")
        if kind == "home":
            topic = HOME
        elif kind == "topic":
            topic = _named(operation, frame.args, named[1:-1])
    if not isinstance(topic, str) or topic in ALL:
        return None
    found = find(owners, topic)
    return found if isinstance(found, Unknown) else None


class Router:
    """Of one connection."""

    def __init__(self, owners: Owners) -> None:
        self._owners = owners
        #: Subscription → where it is. Those of this node aren't here.
        self.subscriptions: dict[int, There] = {}
        self._topics: dict[int, ConsumedGroup] = {}
        self.requests: dict[int, AskedThere] = {}

    # -- from the client ---------------------------------------------------------------------------

    def route(self, frame: Frame, here: Callable[[int], str | None]) -> Decision:
        """Where a frame is to go. ``here``: tells the topic of a subscription at this node, None where
        there is no such subscription here.
        BadRequest for a subscription whose number the client has used already."""
        if isinstance(frame, _OF_A_TOPIC):
            return self._to(frame.topic, frame.request)
        if isinstance(frame, frames.Settle | frames.Unsubscribe | frames.SendReply):
            found = self.subscriptions.get(frame.subscription)
            if found is None:
                return HERE
            if frame.request:
                self.requests[frame.request] = AskedThere(*found, None)
            if isinstance(frame, frames.Unsubscribe):
                self._forget(frame.subscription)
            return found
        if isinstance(frame, frames.Credit | frames.Pull):
            return self.subscriptions.get(frame.subscription, HERE)
        if isinstance(frame, frames.Subscribe):
            return self._subscribe(frame, here)
        if isinstance(frame, frames.Transact):
            return self._to(self._home_of(frame, here), frame.request)
        if isinstance(frame, frames.Call):
            return self._call(frame)
        if isinstance(frame, frames.Stage):
            return self._to(STAGE + frame.stage, frame.request)
        if isinstance(frame, frames.Renew | frames.Bye):
            return EVERYWHERE
        return HERE

    def _to(self, topic: str, request: int, subscription: int | None = None) -> There | Here | Unknown:
        found = find(self._owners, topic)
        if isinstance(found, There) and request:
            self.requests[request] = AskedThere(*found, subscription)
        return found

    def _subscribe(self, frame: frames.Subscribe, here: Callable[[int], str | None]) -> Decision:
        number = frame.subscription
        if number in self.subscriptions or here(number) is not None:
            raise BadRequest(f"subscription {number} exists")
        found = self._to(frame.topic, frame.request, number)
        if isinstance(found, There):
            self.subscriptions[number] = found
            self._topics[number] = ConsumedGroup(frame.topic, frame.group or "")
        return found

    def _home_of(self, frame: frames.Transact, here: Callable[[int], str | None]) -> str:
        """The topic in whose unit a transaction happens. It is the same decision as the broker's."""
        if frame.key and frame.publishes:
            return min(topic for topic, _ in frame.publishes)
        for number, _, _ in frame.acks:
            found = self._topics.get(number)
            topic = here(number) if found is None else found.topic
            if topic is not None:
                return topic
        if frame.apart:
            return frame.apart[0].topic
        if frame.documents:
            return frame.documents[0].topic
        return frame.publishes[0][0] if frame.publishes else HOME

    def divided(
        self, frame: frames.Transact, home: str, here: Callable[[int], ConsumedGroup | None]
    ) -> frames.Transact:
        """A transaction as the node ``home`` gets it, where it happens: of messages that the client holds at
        other nodes it has to be told what they are. ``here``: tells what a subscription at this node
        consumes."""
        acks, apart = [], list(frame.apart)
        for ack in frame.acks:
            number, lease, runs = ack
            there = self.subscriptions.get(number)
            of = here(number) if there is None else self._topics[number]
            if of is None or (self._owners.me if there is None else there.node) == home:
                acks.append(ack)
            else:
                apart.append(frames.ApartAck(of.topic, of.group, number, lease, runs))
        if len(acks) == len(frame.acks):
            return frame
        return msgspec.structs.replace(frame, acks=acks, apart=apart)

    # -- operations --------------------------------------------------------------------------------

    def _call(self, frame: frames.Call) -> Decision:
        operation = OPERATIONS.get(frame.op)
        if operation is None:
            return HERE  # refused here
        kind, _, named = operation.where.partition(":")
        if kind == "here":
            return HERE
        if kind == "home":
            return self._to(HOME, frame.request)
        if kind in ("every", "any"):
            return self._every(operation, frame)
        field = named[1:-1]
        if kind == "stage":
            value = frame.args.get(field)
            return self._to(STAGE + value, frame.request) if isinstance(value, str) else HERE
        if kind == "topics":
            return self._split(operation, frame, field)
        value = _named(operation, frame.args, field)
        if value in ALL:
            return self._every(operation, frame) if is_mergeable(operation.name) else HERE
        return self._to(value, frame.request) if isinstance(value, str) else HERE

    def _every(self, operation: Operation[..., Any, Any], frame: frames.Call) -> Decision:
        nodes = sorted({self._owners.me, *self._owners.nodes})
        if len(nodes) == 1:
            return HERE
        return Gather(operation, dict.fromkeys(nodes, frame.args))

    def _split(self, operation: Operation[..., Any, Any], frame: frames.Call, field: str) -> Decision:
        """Each owner is asked about its own topics."""
        named = frame.args.get(field)
        if not isinstance(named, dict) or not all(isinstance(topic, str) for topic in named):
            return HERE  # refused here
        shares: dict[str, dict[str, Any]] = {}
        for topic, value in named.items():
            found = find(self._owners, topic)
            if isinstance(found, Unknown):
                return found
            node = found.node if isinstance(found, There) else self._owners.me
            shares.setdefault(node, {})[topic] = value
        if set(shares) <= {self._owners.me}:
            return HERE
        return Gather(operation, {node: {**frame.args, field: share} for node, share in shares.items()})

    # -- from a leg --------------------------------------------------------------------------------

    def answered(self, node: str, frame: Frame) -> bool:
        """A leg has brought a frame. Is it for the client? What is not was given up meanwhile."""
        if isinstance(frame, frames.Deliver | frames.Requested | frames.Paused):
            return self._is_at(frame.subscription, node)
        if isinstance(frame, frames.Lost):
            if not self._is_at(frame.subscription, node):
                return False
            self._forget(frame.subscription)
            return True
        request: int = getattr(frame, "request", 0)
        if not request:
            return isinstance(frame, frames.Refused)  # of a settlement that nobody waits for
        under = self.requests.get(request)
        if under is None or under.node != node:
            return False
        if not isinstance(frame, frames.Replied) or frame.last:
            del self.requests[request]
        if isinstance(frame, frames.Refused) and under.subscription is not None:
            self._forget(under.subscription)
        return True

    def _forget(self, subscription: int) -> None:
        self.subscriptions.pop(subscription, None)
        self._topics.pop(subscription, None)

    def _is_at(self, subscription: int, node: str) -> bool:
        found = self.subscriptions.get(subscription)
        return found is not None and found.node == node

    def _held(self) -> Iterator[There]:
        yield from self.subscriptions.values()
        for under in self.requests.values():
            yield There(under.node, under.unit)

    def uses(self, node: str) -> bool:
        """Does the client wait for anything that comes from a node?"""
        return any(each.node == node for each in self._held())

    def moved(self) -> There | None:
        """Something that the client waits for, and that is elsewhere by now; None: nothing is."""
        return next((each for each in self._held() if self._owners.node_of(each.unit) != each.node), None)


def _named(operation: Operation[..., Any, Any], arguments: Mapping[str, Any], field: str) -> object:
    """The topic that arguments name: the value of the field, or of the first of several that has one."""
    value: object = None
    for name in field.split("|"):
        value = arguments[name] if name in arguments else _default(operation, name)
        if value is not None:
            return value
    return value


def _default(operation: Operation[..., Any, Any], name: str) -> object:
    request: Any = operation.request
    for field in msgspec.structs.fields(request):
        if field.name == name:
            return HOME if field.required else field.default
    raise KeyError(name)
