"""Operations on services."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import msgspec
from msgspec.structs import replace

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import Authority, TokenBearer
from landbridge.broker.broker import Broker
from landbridge.broker.heartbeats import Heartbeats
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher
from landbridge.broker.services import MOST_KEYS, NEVER, RegisteredService, ServiceKey, Services
from landbridge.core.options import differences
from landbridge.core.time import SECOND
from landbridge.core.trust import credential
from landbridge.core.trust.scopes import Scopes
from landbridge.core.trust.service import LONGEST_TEXT, service_spec
from landbridge.errors import BadRequest, Forbidden, ServiceExists, Unauthenticated
from landbridge.protocol import operations as table

#: Seconds that a token lives which was traded for a credential.
TOKEN_LIFE = 600.0
#: Seconds that a credential may outlive its rotation.
LONGEST_OVERLAP = 30 * 86400.0
#: What a service may not say of itself.
_NOT_ITS_OWN = ("scopes", "owner")


class ServicesHost(Protocol):
    """The terminal, as far as services go."""

    services: Services
    heartbeats: Heartbeats

    @property
    def authority(self) -> Authority: ...

    def heard_from(self, subjects: Iterable[str]) -> dict[str, int]:
        """For those of these subjects that have connections now: how many. What has come over them is in the
        heartbeats."""


class ServiceOperations:
    """The handlers of service.*"""

    def __init__(self, broker: Broker, terminal: ServicesHost) -> None:
        self._broker = broker
        self._terminal = terminal

    @property
    def _services(self) -> Services:
        return self._terminal.services

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.SERVICE_REGISTER, self.create)
        dispatcher.register(table.SERVICE_UPDATE, self.update)
        dispatcher.register(table.SERVICE_LIST, self.list_page)
        dispatcher.register(table.SERVICE_SHOW, self.show)
        dispatcher.register(table.SERVICE_SUSPEND, self.suspend)
        dispatcher.register(table.SERVICE_RESUME, self.resume)
        dispatcher.register(table.SERVICE_ROTATE, self.rotate)
        dispatcher.register(table.SERVICE_REMOVE, self.remove)
        dispatcher.register(table.SERVICE_TOKEN, self.trade)
        dispatcher.register(table.SERVICE_HEARTBEAT, self.beat)
        dispatcher.register(table.SERVICE_PING, self.ping)
        dispatcher.register(table.SERVICE_INFO, self.info)
        dispatcher.register(table.SERVICE_STATS, self.stats)

    # -- registering -------------------------------------------------------------------------------

    async def create(self, caller: AuditedCaller, request: table.ServiceRegister) -> table.ServiceRegistered:
        name, services = request.name, self._services
        options = msgspec.to_builtins(request)
        options.pop("credential", None)
        self._check_not_revoked(name)
        self._terminal.authority.check_own(name)
        if name in services.damaged:
            await services.remove(name, caller)
        made: list[str] = []

        def edit(found: RegisteredService | None) -> RegisteredService:
            made.clear()
            if found is None:
                found = services.new(service_spec(options))
            elif found.implied:
                # It has scopes and nothing else yet.
                spec = service_spec({"scopes": found.spec.scopes, **options})
                found = replace(found, spec=spec, implied=False)
            elif found.spec != (wanted := service_spec(options)):
                raise ServiceExists(
                    f"the service {name} is registered with other options: {differences(found.spec, wanted)}"
                )
            if request.credential and not found.keys:
                text, digest = credential.new(credential.SERVICE)
                made.append(text)
                found = replace(found, keys=(ServiceKey(digest, self._broker.clock()),))
            return found

        service = await services.change(name, edit, caller)
        facts = self._details(service)
        return table.ServiceRegistered(**facts, credential=made[0] if made else None)

    def _check_not_revoked(self, name: str) -> None:
        if f"sub:{name}" in self._terminal.authority.revoked:
            raise BadRequest(
                f"the service {name[:100]!r} was revoked, with every token that it ever gets",
                hint="register it under another name",
            )

    async def update(self, caller: AuditedCaller, request: table.ServiceDescription) -> table.ServiceDetails:
        options = msgspec.to_builtins(request)
        if not caller.scopes.admin:
            for name in _NOT_ITS_OWN:
                if name in options:
                    raise Forbidden(f"a service can't set its own {name}", hint="needs the scope admin")

        def edit(found: RegisteredService | None) -> RegisteredService:
            found = self._services.get(request.name)
            spec = service_spec({**msgspec.to_builtins(found.spec), **options})
            if spec == found.spec and not (found.implied and "scopes" in options):
                return found
            return replace(found, spec=spec, implied=found.implied and "scopes" not in options)

        return self._describe(await self._services.change(request.name, edit, caller))

    async def suspend(self, caller: AuditedCaller, request: table.ServiceSuspend) -> table.ServiceDetails:
        note = request.note
        if len(note) > LONGEST_TEXT:
            raise BadRequest(f"a note of {len(note)} characters, allowed are {LONGEST_TEXT}")
        self._check_another(caller, request.name, "suspended")

        def edit(found: RegisteredService | None) -> RegisteredService:
            found = self._services.get(request.name)
            _check_may_operate(caller, found)
            same = (found.state, found.note) == ("suspended", note)
            return found if same else replace(found, state="suspended", note=note)

        return self._describe(await self._services.change(request.name, edit, caller))

    async def resume(self, caller: AuditedCaller, request: table.OfService) -> table.ServiceDetails:
        def edit(found: RegisteredService | None) -> RegisteredService:
            found = self._services.get(request.name)
            _check_may_operate(caller, found)
            return found if found.state == "active" else replace(found, state="active", note="")

        return self._describe(await self._services.change(request.name, edit, caller))

    async def rotate(self, caller: AuditedCaller, request: table.ServiceRotate) -> table.ServiceCredential:
        if not 0 <= request.overlap <= LONGEST_OVERLAP:
            raise BadRequest(f"an overlap of {request.overlap} s, allowed are 0 to {LONGEST_OVERLAP:.0f} s")
        self._check_not_revoked(request.name)
        made: list[str] = []
        before: list[ServiceKey] = []

        def edit(found: RegisteredService | None) -> RegisteredService:
            found, now = self._services.get(request.name), self._broker.clock()
            ends_at = now + int(request.overlap * SECOND)
            left = [
                replace(key, ends_at=min(key.ends_at, ends_at))
                for key in found.keys[: MOST_KEYS - 1]
                if ends_at > now
            ]
            text, digest = credential.new(credential.SERVICE)
            made[:], before[:] = [text], left
            return replace(found, keys=(ServiceKey(digest, now), *left))

        had = bool(self._services.get(request.name).keys)
        await self._services.change(request.name, edit, caller)
        ends_at = before[0].ends_at if before else self._broker.clock() if had else None
        return table.ServiceCredential(name=request.name, credential=made[0], before_ends_at=ends_at)

    async def remove(self, caller: AuditedCaller, request: table.OfService) -> table.Deleted:
        self._check_another(caller, request.name, "removed")
        await self._services.remove(request.name, caller)
        return table.Deleted(deleted=request.name)

    def _check_another(self, caller: TokenBearer, name: str, what: str) -> None:
        if name == caller.subject:
            raise BadRequest(
                f"{name} is your own service: if it were {what}, nobody might be left to bring it back",
                hint="act as another service: 'landbridge token create' and --context",
            )

    # -- tokens ------------------------------------------------------------------------------------

    async def trade(self, caller: TokenBearer, request: table.ServiceTrade) -> table.ServiceToken:
        """Whatever is wrong with the name or the credential, the answer is the same, and takes the same way:
        the digest of the credential is looked up, and that says whose it is."""
        now, authority = self._broker.clock(), self._terminal.authority
        wrong = Unauthenticated(
            "the service or its credential is wrong, or not accepted",
            hint="it was shown when the service was registered; 'landbridge service rotate' makes another",
        )
        if not request.credential.startswith(credential.SERVICE):
            raise wrong
        try:
            identity = authority.verify(now, request.credential)
        except Unauthenticated:
            raise wrong from None
        if identity.subject != request.service:
            raise wrong
        registered = self._services.get(identity.subject).spec.scopes
        scopes = list(registered if request.scopes is None else request.scopes)
        if not identity.scopes.cover(Scopes.parse(scopes)):
            raise Forbidden(
                f"the service {identity.subject} may not have all of {', '.join(scopes)[:200]}",
                hint=f"it may have: {', '.join(registered) or 'none'}",
            )
        life = min(TOKEN_LIFE, self._broker.limits.max_token_life, (identity.expires_at - now) / SECOND)
        token, _ = authority.issue(now, identity.subject, scopes, life)
        self._terminal.heartbeats.heard(identity.subject, now)
        ends_at = authority.verify(now, token).expires_at
        return table.ServiceToken(
            token=token,
            service=identity.subject,
            scopes=scopes,
            expires_at=ends_at,
            expires_in=(ends_at - now) / SECOND,
        )

    # -- how it is ---------------------------------------------------------------------------------

    async def beat(self, caller: TokenBearer, request: table.ServiceHeartbeat) -> None:
        self._services.get(request.name)
        self._terminal.heartbeats.beat(request)

    async def list_page(self, caller: TokenBearer, request: table.ServiceList) -> table.ServiceRows:
        names = [name for name in self._services.names() if name > request.after]
        most = max(1, min(request.limit, PAGE))
        page = names[:most]
        connections = self._terminal.heard_from(page)
        rows = []
        for name in page:
            service = self._services.get(name)
            spec = service.spec
            rows.append(
                table.ServiceRow(
                    **self._facts(service, connections.get(name, 0)),
                    version=spec.version,
                    owner=spec.owner,
                    description=spec.description,
                    scopes=list(spec.scopes),
                )
            )
        return table.ServiceRows(services=rows, next=page[-1] if len(names) > most else "")

    async def show(self, caller: TokenBearer, request: table.OfService) -> table.ServiceDetails:
        return self._describe(self._services.get(request.name))

    async def ping(self, caller: TokenBearer, request: table.OfService) -> table.ServicePing:
        """A terminal can't ask a client anything, by the protocol. So this tells of what has come by itself:
        frames of any kind, heartbeats, trades of the credential."""
        facts = self._facts_now(self._services.get(request.name))
        seen_at = facts["seen_at"]
        return table.ServicePing(
            name=request.name,
            state=facts["state"],
            connections=facts["connections"],
            seen_at=seen_at,
            age=None if seen_at is None else max(0, self._broker.clock() - seen_at) / SECOND,
            answered=False,
        )

    async def info(self, caller: TokenBearer, request: table.OfService) -> table.ServiceInfo:
        spec = self._services.get(request.name).spec
        return table.ServiceInfo(
            name=spec.name,
            version=spec.version,
            owner=spec.owner,
            description=spec.description,
            metadata=spec.metadata,
            publishes=list(spec.publishes),
            subscribes=list(spec.subscribes),
            endpoints=list(spec.endpoints),
            instances=list(self._terminal.heartbeats.instances(request.name)),
        )

    async def stats(self, caller: TokenBearer, request: table.OfService) -> table.ServiceStats:
        facts = self._facts_now(self._services.get(request.name))
        heartbeats = self._terminal.heartbeats
        return table.ServiceStats(
            name=request.name,
            connections=facts["connections"],
            seen_at=facts["seen_at"],
            health=facts["health"],
            instances=heartbeats.rows(request.name),
            endpoints=heartbeats.endpoints(request.name),
        )

    # -- answers -----------------------------------------------------------------------------------

    def _facts_now(self, service: RegisteredService) -> dict[str, Any]:
        name = service.spec.name
        return self._facts(service, self._terminal.heard_from([name]).get(name, 0))

    def _facts(self, service: RegisteredService, connections: int) -> dict[str, Any]:
        name, heartbeats = service.spec.name, self._terminal.heartbeats
        is_revoked = f"sub:{name}" in self._terminal.authority.revoked
        return {
            "name": name,
            "state": "revoked" if is_revoked else service.state,
            "note": service.note,
            "registered_at": service.registered_at,
            "changed_at": service.changed_at,
            "implied": service.implied,
            "connections": connections,
            "seen_at": heartbeats.seen_at(name),
            "health": heartbeats.health(name),
            "pause": self._broker.pauses.services.get(name),
        }

    def _details(self, service: RegisteredService) -> dict[str, Any]:
        now = self._broker.clock()
        keys = [
            table.CredentialRow(made_at=key.made_at, ends_at=None if key.ends_at == NEVER else key.ends_at)
            for key in service.keys
            if key.ends_at > now
        ]
        return {**self._facts_now(service), "options": service.spec, "credentials": keys}

    def _describe(self, service: RegisteredService) -> table.ServiceDetails:
        return table.ServiceDetails(**self._details(service))


def _check_may_operate(caller: TokenBearer, service: RegisteredService) -> None:
    """Whoever operates must not lock out those who administer."""
    if not caller.scopes.admin and Scopes.parse(service.spec.scopes).admin:
        raise Forbidden(
            f"{service.spec.name} is a service with the scope admin", hint="needs the scope admin"
        )
