"""The registered services of a terminal: who may use the bus (ADR 24).

A service is a document of unit 0. All of them are in memory, so that whoever connects is judged without the
disk. Changes are made one after the other; memory follows the disk.

Two kinds of registration need nobody to call ``service.register``. A token that is made for a name which is
not registered implies a service of that name, whose scopes follow its tokens. And a token that this process
makes for itself (``Terminal.issue_token``) says so: its subject counts as registered, in memory, where nobody
has registered it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import TokenIdentity
from landbridge.broker.broker import Broker
from landbridge.broker.commit import SETTINGS, BrokerCommit
from landbridge.broker.damage import decoded
from landbridge.broker.tokens import Issued
from landbridge.core.log.store import DeleteDocument, PutDocument
from landbridge.core.names import check_name, is_reserved
from landbridge.core.trust.scopes import Scopes
from landbridge.core.trust.service import ServiceSpec, ServiceState
from landbridge.core.wording import did_you_mean
from landbridge.errors import BadName, BadRequest, Forbidden, LimitReached, StoreCorrupt, UnknownService

KIND = "service"
#: The setting with the moment of the last removal: tokens made up to then are of no service registered since.
REMOVED_UNTIL = "services-removed-until"
#: The setting that says that the subjects of an earlier version's tokens are services by now.
ADOPTED = "services-adopted"
#: Credentials that a service may have at a time: the newest, and one whose overlap has not ended.
MOST_KEYS = 2
#: When a credential ends that has no end, in microseconds: beyond every clock, within every integer type.
NEVER = 1 << 62
REGISTER_AGAIN = "remove it with 'landbridge service remove', then register it again"


class ServiceKey(msgspec.Struct, frozen=True, array_like=True):
    """A credential, by its digest."""

    digest: bytes
    made_at: int  #: microseconds
    ends_at: int = NEVER


class RegisteredService(msgspec.Struct, frozen=True, kw_only=True):
    """A service, as it is stored."""

    spec: ServiceSpec
    state: ServiceState = "active"
    #: Why it is suspended.
    note: str = ""
    #: It was made by a token: its scopes follow the tokens that are made for it.
    implied: bool = False
    #: Microseconds: tokens that were made before are those of another service, which had the name earlier.
    since: int = 0
    registered_at: int = 0
    changed_at: int = 0
    #: Newest first.
    keys: tuple[ServiceKey, ...] = ()


class Attribution(NamedTuple):
    """Whose a credential is."""

    service: str
    key: ServiceKey


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(RegisteredService).decode


class Services:
    """The services of a terminal, by name."""

    def __init__(self, broker: Broker, changed: Callable[[str], None]) -> None:
        """``changed`` is called with a service's name when it is registered otherwise than before."""
        self._broker = broker
        self._changed = changed
        self._stored: dict[str, RegisteredService] = {}
        #: Name → the scopes of tokens that a terminal has made for its own process.
        self._here: dict[str, tuple[str, ...]] = {}
        #: Name → the scopes of those that are stored.
        self._scopes: dict[str, Scopes] = {}
        self._by_key: dict[bytes, Attribution] = {}
        #: Names whose documents can't be read. Nobody gets in by them.
        self.damaged: dict[str, StoreCorrupt] = {}
        self._removed_until = 0
        #: The latest moment that a token of this process says it was made at.
        self._issued_until = 0
        self._changing = asyncio.Lock()

    # -- life --------------------------------------------------------------------------------------

    async def open(self) -> None:
        """Load what is stored."""
        broker = self._broker
        settings = dict(await broker.store.documents(0, SETTINGS))
        # Where it is damaged: no token that exists is good for a service that is registered from now on.
        self._removed_until = broker.damage.decode(
            "the moment of the last removal of a service", int, settings.get(REMOVED_UNTIL, b"0"),
            broker.clock(), "",
        )  # fmt: skip
        self._use(await broker.store.documents(0, KIND))

    def follow(self, settings: Mapping[str, bytes], stored: Iterable[tuple[str, bytes]]) -> None:
        """Go by what another node has written."""
        removed = settings.get(REMOVED_UNTIL, b"0")
        self._removed_until = int(removed) if removed.isdigit() else self._broker.clock()
        self._use(stored)

    def _use(self, stored: Iterable[tuple[str, bytes]]) -> None:
        """Go by what is stored of the services."""
        damaged: dict[str, StoreCorrupt] = {}
        found: dict[str, RegisteredService] = {}
        for name, raw in stored:
            try:
                found[name] = decoded(f"what is stored of the service {name}", _decode, raw, REGISTER_AGAIN)
            except StoreCorrupt as error:
                damaged[name] = error
                if name not in self.damaged:
                    self._broker.damage.note(str(error), error.hint)
        before, broken = dict(self._stored), self.damaged
        self.damaged = damaged
        for name in [name for name in before if name not in found]:
            self._put(name, None)
        for name, service in found.items():
            if before.get(name) != service:
                self._put(name, service)
        for name in {*before, *found, *broken, *damaged}:
            if before.get(name) != self._stored.get(name) or (name in broken) != (name in damaged):
                self._changed(name)

    async def adopt(self, issued: Issued, revoked: Container[str]) -> None:
        """Once, after an update: register the subjects of the tokens that an earlier version has made."""
        if ADOPTED in dict(await self._broker.store.documents(0, SETTINGS)):
            return
        wanted: dict[str, list[str]] = {}
        for token in await issued.after(0, ""):
            if token.id not in revoked and f"sub:{token.subject}" not in revoked:
                wanted.setdefault(token.subject, []).extend(token.scopes)
        now = self._broker.clock()
        found = {
            name: RegisteredService(
                spec=ServiceSpec(name=name, scopes=widened((), scopes)),
                implied=True,
                registered_at=now,
                changed_at=now,
            )
            for name, scopes in wanted.items()
            if name not in self._stored and name not in self.damaged
        }
        writes = [PutDocument(KIND, name, _encode(service)) for name, service in found.items()]
        await self._broker.write([PutDocument(SETTINGS, ADOPTED, b"1"), *writes])
        for name, service in found.items():
            self._put(name, service)

    # -- who is let in -----------------------------------------------------------------------------

    def issued_at(self, now: int, subject: str) -> int:
        moment = max(now, self._since(subject))
        self._issued_until = max(self._issued_until, moment)
        return moment

    def admits(self, identity: TokenIdentity) -> bool:
        name = identity.subject
        found = self._stored.get(name)
        if name in self.damaged or identity.issued_at < self._since(name):
            return False
        if identity.behalf is not None and found is None:
            return name in self._here and Scopes.parse(self._here[name]).cover(identity.behalf)
        if found is None:
            return identity.own
        if found.state != "active":
            return False
        if identity.behalf is not None:
            return self._scopes_of(found).cover(identity.behalf)
        return identity.own or self._scopes_of(found).cover(identity.scopes)

    def met(self, identity: TokenIdentity) -> None:
        if identity.own:
            self.count_here(identity.subject, identity.scopes.as_texts())

    def by_credential(self, now: int, key: bytes) -> TokenIdentity | None:
        found = self._by_key.get(key)
        if found is None:
            return None
        service = self._stored[found.service]
        return TokenIdentity(
            found.service,
            f"key:{key.hex()[:16]}",
            Scopes.parse(service.spec.scopes),
            found.key.ends_at,
            max(found.key.made_at, service.since),
            key,
        )

    def _since(self, name: str) -> int:
        """Tokens of this name that were made before this moment are those of an earlier service."""
        found = self._stored.get(name)
        if found is not None:
            return found.since
        return self._removed_until + 1 if self._removed_until else 0

    def _scopes_of(self, service: RegisteredService) -> Scopes:
        name = service.spec.name
        if name not in self._scopes:
            self._scopes[name] = Scopes.parse(service.spec.scopes)
        return self._scopes[name]

    # -- asking ------------------------------------------------------------------------------------

    def find(self, name: str) -> RegisteredService | None:
        """The service of this name; None where there is none. StoreCorrupt where it can't be read."""
        if name in self.damaged:
            raise self.damaged[name]
        found = self._stored.get(name)
        if found is None and name in self._here:
            spec = ServiceSpec(name=name, scopes=self._here[name])
            return RegisteredService(spec=spec, implied=True, since=self._since(name))
        return found

    def get(self, name: str) -> RegisteredService:
        """The service of this name. UnknownService where there is none."""
        found = self.find(name)
        if found is None:
            hint = did_you_mean(name[:200], self.names(), UnknownService.default_hint)
            raise UnknownService(f"there is no service {name[:200]!r}", hint=hint)
        return found

    def names(self) -> list[str]:
        """All of them, sorted; not those that are damaged."""
        return sorted({*self._stored, *self._here} - self.damaged.keys())

    # -- changing ----------------------------------------------------------------------------------

    def count_here(self, name: str, scopes: Iterable[str]) -> None:
        """A part of this process has a token: its subject counts as registered for as long as this lives."""
        if name not in self._stored:
            self._here[name] = widened(self._here.get(name, ()), scopes)

    async def include(
        self, name: str, scopes: Iterable[str], *, revive: bool = False, caller: AuditedCaller | None = None
    ) -> RegisteredService:
        """A token with these scopes is to be made for a service. One that is not registered is registered by
        that; one that a token has registered gains the scopes. ``revive``: so does any other one, and one
        that is suspended is resumed, for whoever owns the machine that the terminal runs on."""
        scopes = tuple(scopes)
        Scopes.parse(scopes)

        def edit(found: RegisteredService | None) -> RegisteredService:
            if found is None:
                return self.new(ServiceSpec(name=name, scopes=widened((), scopes)), implied=True)
            if found.state != "active":
                if not revive:
                    raise BadRequest(
                        f"the service {name} is {found.state}, and so would the token be",
                        hint=f"resume it first: 'landbridge service resume {name}'",
                    )
                found = replace(found, state="active", note="")
            after = widened(found.spec.scopes, scopes)
            if after == found.spec.scopes:
                return found
            if not found.implied and not revive:
                raise Forbidden(
                    f"the scopes of the service {name} don't include all of {', '.join(scopes)[:200]}",
                    hint="ask for less, or give the service more: "
                    f"'landbridge service update {name} --scope …' with all its scopes",
                )
            return replace(found, spec=replace(found.spec, scopes=after))

        if revive and name in self.damaged:
            await self.remove(name, caller)
        return await self.change(name, edit, caller)

    def new(self, spec: ServiceSpec, *, implied: bool = False) -> RegisteredService:
        """A registration of now."""
        check_name(spec.name, "service")
        if is_reserved(spec.name):
            raise BadName(
                f"{spec.name!r} can't be the name of a service", hint="names with a leading $ are reserved"
            )
        now = self._broker.clock()
        return RegisteredService(
            spec=spec, implied=implied, since=self._since(spec.name), registered_at=now, changed_at=now
        )

    async def change(
        self,
        name: str,
        edit: Callable[[RegisteredService | None], RegisteredService],
        caller: AuditedCaller | None,
    ) -> RegisteredService:
        """Store what ``edit`` makes of a service (None: there is none yet), once all changes before are done.
        Nothing is written where that is the same object. ``caller``: who asks for it; None: the terminal."""
        async with self._changing:
            found = self.find(name)
            service = edit(found)
            if service is found:
                if caller is not None:
                    caller.change_nothing()
                return service
            if name not in self._stored and len(self._stored) >= self._broker.limits.max_services:
                raise LimitReached(f"there are {len(self._stored)} services, as many as max_services allows")
            service = replace(service, changed_at=self._broker.clock())
            if not service.registered_at:
                service = replace(service, registered_at=service.changed_at)

            def work(commit: BrokerCommit) -> None:
                commit.writes.append(PutDocument(KIND, name, _encode(service)))
                commit.on_stored.append(lambda: self._now(name, service))
                if caller is not None:
                    before = self._stored.get(name)
                    caller.enter(commit, name, _told(before), _told(service), what="service")

            await self._broker.units.writers[0].put(work)
            return service

    async def remove(self, name: str, caller: AuditedCaller | None) -> None:
        """Remove a service. Its tokens stay refused, whoever gets the name after it."""
        async with self._changing:
            if name not in self.damaged:
                self.get(name)
            until = max(self._broker.clock(), self._issued_until, self._since(name))

            def work(commit: BrokerCommit) -> None:
                commit.writes += [
                    DeleteDocument(KIND, name),
                    PutDocument(SETTINGS, REMOVED_UNTIL, str(until).encode()),
                ]
                commit.on_stored.append(forget)
                if caller is not None:
                    caller.enter(commit, name, _told(self._stored.get(name)), what="service")

            def forget() -> None:
                self._removed_until = until
                self._now(name, None)

            await self._broker.units.writers[0].put(work)

    def _now(self, name: str, service: RegisteredService | None) -> None:
        """What is on disk of a service has changed."""
        before = self._stored.get(name)
        change = "deleted" if service is None else "created" if before is None else "updated"
        self._broker.observe("service", name, change, "", *map(_described, (before, service)))
        self._put(name, service)
        if service is None:
            self.damaged.pop(name, None)
            self._here.pop(name, None)
        self._changed(name)

    def _put(self, name: str, service: RegisteredService | None) -> None:
        before = self._stored.pop(name, None)
        for key in () if before is None else before.keys:
            self._by_key.pop(key.digest, None)
        self._scopes.pop(name, None)
        if service is not None:
            self._stored[name] = service
            self._by_key.update({key.digest: Attribution(name, key) for key in service.keys})


def _described(service: RegisteredService | None) -> dict[str, Any] | None:
    """A service as observers hear of it."""
    return None if service is None else {"state": service.state, **msgspec.to_builtins(service.spec)}


def _told(service: RegisteredService | None) -> dict[str, Any] | None:
    """A service as the audit log has it: when its credentials were made, and nothing else of them."""
    described = _described(service)
    if described is None or service is None:
        return None
    return {**described, "note": service.note, "credentials made at": [key.made_at for key in service.keys]}


def widened(scopes: Iterable[str], more: Iterable[str]) -> tuple[str, ...]:
    """These scopes, and those of ``more`` that they don't include."""
    found = list(scopes)
    for scope in more:
        if not Scopes.parse(found).cover(Scopes.parse((scope,))):
            found.append(scope)
    return tuple(found)
