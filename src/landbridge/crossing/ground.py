"""The common ground: what every part of the crossing knows. Which terminal this is, what the directory says
about the others, where the registry is, and the settings. The parts that do something (see network.py) are
built on it; the ground itself calls none of them.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Sequence
from typing import Any, Literal, Protocol

import msgspec
import structlog

from landbridge.broker.broker import Broker
from landbridge.broker.commit import CROSSING, DIRECTORY
from landbridge.broker.topic import Topic
from landbridge.client.registry_documents import NewDirectory
from landbridge.core import replies
from landbridge.core.log.store import PutDocument
from landbridge.core.names import is_reserved
from landbridge.core.routing.linkstate import SignedLinkState
from landbridge.core.shipping.beginnings import Beginnings, LogEnd
from landbridge.core.time import SECOND
from landbridge.core.trust import directory as directories
from landbridge.core.trust.directory import Directory, PublicKeys, SignedDirectory, TerminalEntry, TopicEntry
from landbridge.core.trust.identity import Identity, SecureKey
from landbridge.core.trust.registered_tokens import RegisteredTokens
from landbridge.core.trust.tickets import Issue, Release, Renewal
from landbridge.core.wording import did_you_mean
from landbridge.errors import BusError, Unauthenticated, UnknownTerminal

log = structlog.get_logger("landbridge.network")

#: How far an epoch may be ahead of the clock, microseconds: ten years. A terminal that names a later one is
#: not believed, or the epochs would come to an end.
LEAP_MOST = 10 * 365 * 86_400 * SECOND
#: Epochs that are reserved on disk at a time.
EPOCHS = 1 << 20


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a terminal that is linked to others. Spans are seconds."""

    #: Where the terminal is. Links within a region are preferred.
    region: str = ""
    #: Names or ids of the servers to dial; None = the terminal chooses.
    neighbours: list[str] | None = None
    #: Name or id → the address to dial instead of the one in the directory.
    dial: dict[str, str] = {}
    #: Between two probes of a link while parcels pass over it, and while none do.
    probe_busy: float = 2.0
    probe_idle: float = 10.0
    #: Bytes of parcels that may be kept for other terminals, and for this one while they can't be opened.
    max_transit: int = 4 << 30
    max_sealed: int = 4 << 30
    #: Bytes per second at which messages that an outage has delayed are sent; 0 = no limit.
    catch_up_rate: int = 32 << 20
    #: Links use certificates that the operator gave, not those of the registry's authority.
    own_certificates: bool = False
    #: Write every link state that is heard to the topic ``$links``.
    log_links: bool = False


class RegistryPort(Protocol):
    """What a terminal asks of the registry. Each raises Unavailable if the registry doesn't answer."""

    async def issue(self, topic: str) -> Issue: ...
    async def redeem(self, topic: str, ticket: bytes, box: bytes) -> Release: ...
    async def renew(self, ticket: bytes) -> Renewal: ...
    async def directory(self, version: int, wait: float, topics: Sequence[str]) -> NewDirectory | None: ...
    async def post_link_state(self, signed: SignedLinkState, held: dict[str, int]) -> None: ...


class Ground:
    def __init__(
        self,
        broker: Broker,
        customer: str,
        terminal: str,
        key: SecureKey,
        registry: RegistryPort,
        registry_key: bytes,
        settings: Settings | None = None,
    ) -> None:
        """``registry_key``: the public key (32 bytes) that directories are signed with."""
        self.broker = broker
        self.identity = Identity(customer, terminal, key)
        #: The id of this terminal.
        self.me = terminal
        self.registry = registry
        self.settings = settings or Settings()
        #: Bytes of the greatest frame on a link.
        self.max_frame = broker.limits.max_frame
        #: Seconds within which both ends of a new link must have proved who they are.
        self.max_handshake = broker.limits.hello_within
        #: SHA-256 of the certificate that this terminal listens with; empty without TLS.
        self.certificate_digest = b""
        #: When the certificate for links ends, microseconds; 0 if the registry has given none.
        self.certificate_ends_at = 0
        #: For links that are dialled; None = trust the authority that the directory names.
        self.client_tls: ssl.SSLContext | None = None
        self.mode: Literal["server", "client"] = "client"
        #: The newest directory; version 0 until one is known.
        self.directory = Directory(customer=customer, version=0)
        #: The same as the registry has signed it, to hand on to other terminals.
        self.signed_directory = SignedDirectory(b"", b"")
        #: The tokens that the registry signs for services, as far as this directory allows them.
        self.registered = RegisteredTokens()
        #: The topics of the directory that concern this terminal, by name.
        self.topics: dict[str, TopicEntry] = {}
        #: Terminals that replies are for: whoever has asked something of a consumer here, and this one.
        self.replying = [terminal]
        #: The version of the directory that they are from. A neighbour hands on a directory without topics,
        #: so ``directory`` may be newer.
        self.topics_version = 0
        #: Where groups begin that are added to topics.
        self.beginnings = Beginnings()
        #: Whether the registry answered when it was last asked.
        self.registry_up = False
        #: Why the registry refuses this terminal; None while it doesn't.
        self.refusal: BusError | None = None
        self._registry_key = registry_key
        #: Terminals of the directory that are not revoked, by id.
        self._entries: dict[str, TerminalEntry] = {}
        #: Terminal group → ids of its terminals.
        self._groups: dict[str, list[str]] = {}
        #: The run of this terminal as a source: another one after each start.
        self.run = 0
        #: The last epoch that was used, and the end of those that are reserved on disk.
        self._epoch = self._epochs_end = 0
        self._reserving: asyncio.Task[None] | None = None

    async def open(self) -> None:
        """Load what an earlier start has left: the epochs used so far, and the directory."""
        documents = dict(await self.broker.store.documents(0, CROSSING))
        # Somewhere in the next second: if this terminal was restored from a backup, the run that followed it
        # had another number.
        told = "later epochs than the clock's are not known any more"
        decode = self.broker.damage.decode
        epoch = decode("the epoch of this terminal's links", int, documents.get("epoch", b"0"), 0, told)
        self._epoch = max(epoch, self.now()) + secrets.randbelow(EPOCHS)
        await self._reserve_epochs()
        self.run = self.new_epoch()
        await self.broker.committing.begin_run(self.run)
        if DIRECTORY in documents:
            try:
                signed, topics = directories.kept(documents[DIRECTORY])
                self.adopt(signed)
                self.adopt_topics(topics)
            except (BusError, ValueError) as error:
                log.warning("the stored directory can't be used", detail=str(error))

        stored = self.broker.topics.get(replies.TOPIC)
        for name in () if stored is None else stored.groups:
            if (own := replies.terminal_of(name)) is not None:
                self.add_replying(own)
        self._enter_replies()
        if "beginnings" in documents:
            try:
                self.beginnings = Beginnings.decode(documents["beginnings"])
            except (msgspec.MsgspecError, ValueError) as error:
                log.warning("the stored beginnings can't be used", detail=str(error))

    def now(self) -> int:
        return self.broker.clock()

    def note(self, event: str, **details: Any) -> None:
        """Write an event to the status log."""
        self.broker.status.note(self.now(), event, **details)

    def new_epoch(self) -> int:
        """A number greater than any before, also across restarts and when the clock is set back."""
        self._epoch += 1
        if self._epoch + EPOCHS // 2 > self._epochs_end:
            self._reserving = asyncio.ensure_future(self._reserve_epochs())
        return self._epoch

    def leap(self, epoch: int) -> None:
        """Begin later epochs than this one, which another terminal knows of: this one was restored from a
        backup, and its clock set back."""
        self._epoch = max(self._epoch, min(epoch, self.now() + LEAP_MOST))

    async def _reserve_epochs(self) -> None:
        self._epochs_end = self._epoch + EPOCHS
        await self.broker.write([PutDocument(CROSSING, "epoch", str(self._epochs_end).encode())])

    # -- the directory -----------------------------------------------------------------------------

    @property
    def has_others(self) -> bool:
        """Does the customer have another terminal?"""
        return len(self._entries) > 1

    def entry(self, terminal: str) -> TerminalEntry | None:
        return self._entries.get(terminal)

    def knows(self, terminal: str) -> bool:
        return terminal in self._entries

    def keys_of(self, terminal: str) -> list[PublicKeys]:
        entry = self._entries.get(terminal)
        if entry is None or not entry.keys:
            raise Unauthenticated("the directory doesn't name this terminal, or no longer", hint="")
        return entry.keys

    def name_of(self, terminal: str) -> str:
        entry = self._entries.get(terminal)
        return terminal if entry is None else entry.name

    def find(self, name: str) -> str:
        """The id of a terminal, by its id or its name."""
        if name in self._entries:
            return name
        ids = {entry.name: entry.id for entry in self._entries.values()}
        if name not in ids:
            hint = did_you_mean(name[:100], list(ids), "see 'landbridge topology'")
            raise UnknownTerminal(f"there is no terminal {name[:100]!r}", hint=hint)
        return ids[name]

    def address_of(self, entry: TerminalEntry) -> str:
        dial = self.settings.dial
        return dial.get(entry.id) or dial.get(entry.name) or entry.address

    def members(self, group: str) -> list[str]:
        """The terminals where a group's consumers may be."""
        own = replies.terminal_of(group)
        if own is not None:  # a group of $replies, which the directory doesn't name
            return [own] if own in self._entries else []
        return [terminal for terminal in self._groups.get(group, []) if terminal in self._entries]

    def groups_of(self, topic: str) -> list[str] | None:
        entry = self.topics.get(topic)
        return None if entry is None else sorted(entry.groups)

    @property
    def carries(self) -> bool:
        """Whether parcels may pass through here that are neither from nor for this terminal."""
        entry = self._entries.get(self.me)
        return entry is not None and entry.carries

    def adopt(self, signed: SignedDirectory) -> bool:
        """Take a directory if the registry has signed it and it is newer than the known one. Returns whether
        it was taken."""
        found = directories.verify(signed, self._registry_key)
        if found.customer != self.identity.customer or found.version <= self.directory.version:
            return False
        self.directory, self.signed_directory = found, signed
        self.registered.follow(found)
        revoked = set(found.revoked)
        self._entries = {entry.id: entry for entry in found.terminals if entry.id not in revoked}
        self._groups = {group.name: group.terminals for group in found.groups}
        if self.me in self._entries:
            self.mode = self._entries[self.me].mode
        return True

    def adopt_topics(self, signed: SignedDirectory) -> bool:
        """Take the part of the directory that is about the topics of this terminal, unless a newer one is
        known. Returns whether it was taken."""
        found = directories.verify(signed, self._registry_key)
        if found.customer != self.identity.customer or found.version < self.topics_version:
            return False
        self.topics_version = found.version
        self.topics = {entry.name: entry for entry in found.topics}
        self._enter_replies()
        for entry in found.topics:
            # A terminal of the group needs the topic, so that messages for it have somewhere to wait.
            if any(self.me in self.members(group) for group in entry.groups):
                self.broker.table.topic_for(entry.name, create=True)
        return True

    def _enter_replies(self) -> None:
        """The topic of replies, which each terminal of the customer has without being told: one group for
        each terminal that replies go to."""
        groups = {replies.group_of(terminal): 0 for terminal in self.replying}
        self.topics[replies.TOPIC] = TopicEntry(name=replies.TOPIC, groups=groups, max_age=replies.KEEP)

    def add_replying(self, terminal: str) -> bool:
        """Replies are to go to a terminal. Is it one of the customer's?"""
        if not self.knows(terminal):
            return False
        if terminal not in self.replying:
            self.replying.append(terminal)
            self._enter_replies()
        return True

    def log_ends(self) -> dict[str, LogEnd]:
        """The topics that the registry may know, each with the end of its log now."""
        topics = self.broker.topics.values()
        return {each.name: (each.number, each.log.end) for each in topics if not is_reserved(each.name)}

    def confirm(self, ends: dict[str, LogEnd]) -> bool:
        """The registry has confirmed that ``topics`` is what it knows. ``ends``: the logs before it was
        asked. Returns whether the beginnings of groups have changed."""
        return self.beginnings.confirm(ends, self._is_complete)

    def _is_complete(self, name: str) -> bool:
        """Whether all groups of a topic are on disk here."""
        entry, topic = self.topics.get(name), self.broker.topics.get(name)
        groups = topic.groups if topic is not None else {}
        return entry is None or all(group in groups and groups[group].stored for group in entry.groups)

    def beginning(self, topic: Topic) -> int | None:
        """The offset that a group begins with which the registry has added to the topic. None: it isn't
        known."""
        begin = self.beginnings.of(topic.name, topic.number)
        return None if begin is None else max(topic.log.first, min(topic.log.end, begin))

    def dialling_tls(self) -> ssl.SSLContext:
        if self.client_tls is not None:
            return self.client_tls
        tls = ssl.create_default_context(cadata=self.directory.ca or None)
        tls.minimum_version = ssl.TLSVersion.TLSv1_3
        return tls
