"""Services of a customer: registered here once, they use all its terminals. The registry signs their tokens.

A token is checked by the terminals alone. What ends a token before its time goes to them with the directory,
as a version: tokens that were made under an earlier one have ended.
"""

from __future__ import annotations

import math
from typing import Any

import msgspec

from landbridge.client import registry_documents as api
from landbridge.core.trust import credential, registered_tokens
from landbridge.core.trust.registered_tokens import LIFE, SKEW, narrowed
from landbridge.core.trust.service import ServiceSpec, service_spec
from landbridge.errors import BadRequest, LimitReached, NameTaken, Unauthenticated
from landbridge.registry import codec
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import (
    CustomerServiceRecord,
    RemovedService,
    ServiceCredentialRecord,
    TokenKeyRecord,
)
from landbridge.registry.groups import check_own_name
from landbridge.registry.limits import microseconds
from landbridge.registry.page import page
from landbridge.registry.state import RegistryState

#: Credentials of one service that are good at a time.
_OVERLAP = 2
#: Seconds that the credential before may stay good, at most.
_LONGEST_OVERLAP = 30 * 86400.0
#: Seconds after which no token is left that was made before, by any clock that the registry talks to.
_FORGOTTEN_AFTER = LIFE + SKEW
#: Seconds that terminals have to learn of a new key before it signs.
_KNOWN_WITHIN = 60.0
#: Keys of one customer whose tokens are taken at a time.
_MOST_KEYS = 8
#: What an update may change: all but the name.
_CHANGEABLE = tuple(name for name in ServiceSpec.__struct_fields__ if name != "name")


class CustomerServices:
    """Operations on services."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    # -- by the admin ------------------------------------------------------------------------------

    def register(self, change: Change, request: api.RegisterCustomerService) -> api.CreatedServiceCredential:
        """Register a service and make its first credential."""
        account = change.account
        spec = _spec(msgspec.to_builtins(request))
        if spec.name in account.services:
            raise NameTaken(f"there is a service {spec.name!r}")
        if len(account.services) >= self._state.limits.max_services:
            raise LimitReached(f"{len(account.services)} services are as many as a customer may have")
        if not change.customer.token_keys:
            key = self._state.keyring.new_token_key(account.id, change.now, change.now)
            change.put_customer(codec.replace(change.customer, token_keys=[key]))
        secret, made = _new_credential(change.now)
        service = CustomerServiceRecord(
            id=credential.new_id("svc"), spec=spec, credentials=[made], created_at=change.now
        )
        if spec.name in account.removed_services:  # tokens of an earlier service of that name stay ended
            service = _with_tokens_ended(change, service)
        change.put(service)
        change.detail = service.id
        return _created(account, service, secret)

    def list_page(self, caller: Caller, request: api.ListPage) -> api.CustomerServicePage:
        """List services by their names."""
        items, following = page(caller.own_account.services, request, self._state.limits)
        return api.CustomerServicePage(items=[_show(service) for service in items], next=following)

    def show(self, caller: Caller, request: api.OfCustomerService) -> api.CustomerService:
        """Show one service."""
        return _show(caller.own_account.service(request.service))

    def update(self, change: Change, request: api.UpdateCustomerService) -> api.CustomerService:
        """Change what the request gives."""
        service = change.account.service(request.service)
        raw: dict[str, Any] = msgspec.to_builtins(service.spec)
        spec = _spec(raw | msgspec.to_builtins(codec.given(request, *_CHANGEABLE)))
        loses = set(service.spec.scopes) - set(spec.scopes)
        changed = codec.replace(service, spec=spec)
        if loses:
            change.detail = f"without {' '.join(sorted(loses))}"
            changed = _with_tokens_ended(change, changed)
        # The directory has the names of services, and which tokens have ended: nothing else of them.
        return _show(change.put(changed, in_directory=bool(loses)))

    def suspend(self, change: Change, request: api.OfCustomerService) -> api.CustomerService:
        """End the tokens of a service, and make it no others."""
        service = change.account.service(request.service)
        if service.suspended_at:
            return _show(service)
        return _show(change.put(codec.replace(service, suspended_at=change.now)))

    def resume(self, change: Change, request: api.OfCustomerService) -> api.CustomerService:
        """Make tokens for a suspended service again. Those that it had before stay ended."""
        service = change.account.service(request.service)
        if not service.suspended_at:
            return _show(service)
        return _show(change.put(_with_tokens_ended(change, codec.replace(service, suspended_at=0))))

    def rotate_credential(
        self, change: Change, request: api.RotateServiceCredential
    ) -> api.CreatedServiceCredential:
        """Make another credential. The newest one stays good beside it for a while; an older one ends."""
        service = change.account.service(request.service)
        if not math.isfinite(request.overlap) or not 0 <= request.overlap <= _LONGEST_OVERLAP:
            raise BadRequest(
                f"an overlap of {request.overlap} s", hint=f"0 to {_LONGEST_OVERLAP:.0f} seconds"
            )
        secret, made = _new_credential(change.now)
        credentials = [made]
        if request.overlap:
            ends_at = change.now + microseconds(request.overlap)
            credentials += [codec.replace(service.credentials[0], ends_at=ends_at)]
        changed = codec.replace(service, credentials=credentials[:_OVERLAP])
        if not request.overlap:
            changed = _with_tokens_ended(change, changed)
        change.put(changed, in_directory=not request.overlap)
        change.detail = made.id
        return _created(change.account, changed, secret)

    def remove(self, change: Change, request: api.OfCustomerService) -> None:
        """Remove a service. What ends its tokens stays until none of them can live."""
        account, service = change.account, change.account.service(request.service)
        _forget_removed(change)
        left = [each for each in account.removed_services.values() if not _is_forgotten(each, change.now)]
        if len(left) >= self._state.limits.max_services:
            raise LimitReached(
                f"{len(left)} services were removed in the last minutes, and their tokens may still live",
                hint="suspend this one now, and remove it in ten minutes",
            )
        change.drop(service)
        change.put(RemovedService(name=service.key, removed_at=change.now))
        change.detail = service.id

    # -- the keys of tokens ------------------------------------------------------------------------

    def rotate_token_key(self, change: Change, request: api.RotateTokenKey) -> api.TokenKeys:
        """Make another key that signs tokens."""
        now, keys = change.now, change.customer.token_keys
        overlap = request.keep_old and bool(keys)
        signs_from = now + microseconds(_KNOWN_WITHIN) if overlap else now
        kept = [key for key in keys if overlap and (not key.until or now < key.until)]
        if len(kept) >= _MOST_KEYS:
            raise LimitReached(
                f"{len(kept)} keys, whose tokens may still live, are as many as there may be",
                hint="wait ten minutes, or end them all with keep_old=false",
            )
        until = signs_from + microseconds(_FORGOTTEN_AFTER)
        older = [key if key.until else codec.replace(key, until=until) for key in kept]
        made = self._state.keyring.new_token_key(change.account.id, now, signs_from)
        change.put_customer(codec.replace(change.customer, token_keys=[made, *older]))
        change.announce()
        change.detail = registered_tokens.key_id(made.public)
        return api.TokenKeys(items=[_show_key(key) for key in (made, *older)])

    # -- by services -------------------------------------------------------------------------------

    async def create_token(self, _: Caller, request: api.CreateServiceToken) -> api.CreatedServiceToken:
        """Make a token for a service that shows its credential. The refusal is the same for a service that is
        unknown, suspended or removed and for a credential that is wrong or has ended. Credentials are found
        by their digest, so the time that it takes tells nothing either."""
        digest = credential.digest(credential.SERVICE, request.credential)
        found = self._state.index.services.get(digest) if digest is not None else None
        if found is None:
            raise _not_a_service()
        account, name = found
        id = account.services[name].id
        if not _is_good(account.services[name], request.service, digest, self._state.clock()):
            raise _not_a_service()

        def work(change: Change) -> api.CreatedServiceToken:
            service = account.services.get(name)
            # Looked up again: it may have been suspended, removed or given other scopes meanwhile.
            if service is None or not _is_good(service, request.service, digest, change.now):
                raise _not_a_service()
            spec = service.spec
            scopes = narrowed(spec.scopes, request.scopes)
            if not scopes:
                raise BadRequest(
                    "a token without scopes can do nothing", hint="have an admin give the service scopes"
                )
            token, token_id, expires_at = registered_tokens.sign(
                self._state.keyring.token_key(change.customer, change.now),
                now=change.now,
                customer=account.id,
                version=change.customer.version,
                subject=spec.name,
                scopes=scopes,
                life=request.life,
            )
            change.detail = token_id
            return api.CreatedServiceToken(
                customer_id=account.id,
                name=spec.name,
                token=token,
                token_id=token_id,
                scopes=scopes,
                expires_at=expires_at,
            )

        return await self._state.serve(Caller(f"service:{id}", account), "createServiceToken", id, work)


def ended_tokens(account: Account, now: int) -> dict[str, int]:
    """Return the services some of whose tokens have ended before their time, each with the version of the
    directory from which on its tokens are good. Of a service that is suspended or removed, none are: what it
    gets when it comes back is made under a later version than this one. Where the last of the ended tokens
    has expired, nobody needs to know."""
    none_yet = account.customer.version + 1
    removed = account.removed_services.values()
    ended = {each.name: none_yet for each in removed if not _is_forgotten(each, now)}
    for name, service in account.services.items():
        if service.suspended_at:
            ended[name] = none_yet
        elif service.tokens_since and not _is_past(service.ended_at, now):
            ended[name] = service.tokens_since
        else:
            ended.pop(name, None)
    return dict(sorted(ended.items()))


def _spec(raw: dict[str, Any]) -> ServiceSpec:
    spec = service_spec(raw)
    check_own_name(spec.name, "service")
    return spec


def _next_version(change: Change) -> int:
    """The version of the directory that this change makes."""
    return change.customer.version + 1


def _with_tokens_ended(change: Change, service: CustomerServiceRecord) -> CustomerServiceRecord:
    return codec.replace(service, tokens_since=_next_version(change), ended_at=change.now)


def _forget_removed(change: Change) -> None:
    for removed in change.account.removed_services.values():
        if _is_forgotten(removed, change.now):
            change.drop(removed, in_directory=False)


def _is_forgotten(removed: RemovedService, now: int) -> bool:
    return _is_past(removed.removed_at, now)


def _is_past(moment: int, now: int) -> bool:
    return now > moment + microseconds(_FORGOTTEN_AFTER)


def _new_credential(now: int) -> tuple[str, ServiceCredentialRecord]:
    secret, digest = credential.new(credential.SERVICE)
    return secret, ServiceCredentialRecord(credential.new_id("cre"), digest, now)


def _is_good(service: CustomerServiceRecord, named: str, digest: bytes | None, now: int) -> bool:
    if named not in (service.spec.name, service.id) or service.suspended_at:
        return False
    return any(
        known.digest == digest and (not known.ends_at or now < known.ends_at) for known in service.credentials
    )


def _not_a_service() -> Unauthenticated:
    return Unauthenticated(
        "the service is unknown or suspended, or its credential is wrong or has ended",
        hint="an admin can make another credential with rotateServiceCredential",
    )


def _created(account: Account, service: CustomerServiceRecord, secret: str) -> api.CreatedServiceCredential:
    return api.CreatedServiceCredential(
        customer_id=account.id,
        service_id=service.id,
        name=service.key,
        credential_id=service.credentials[0].id,
        credential=secret,
    )


def _show(service: CustomerServiceRecord) -> api.CustomerService:
    spec = service.spec
    return codec.show(
        api.CustomerService,
        spec,
        service_id=service.id,
        state="suspended" if service.suspended_at else "active",
        scopes=list(spec.scopes),
        publishes=list(spec.publishes),
        subscribes=list(spec.subscribes),
        endpoints=list(spec.endpoints),
        created_at=service.created_at,
        suspended_at=service.suspended_at or None,
        credentials=[
            api.CustomerServiceCredential(
                credential_id=known.id, created_at=known.created_at, ends_at=known.ends_at or None
            )
            for known in service.credentials
        ],
    )


def _show_key(key: TokenKeyRecord) -> api.TokenKeyInfo:
    return codec.show(
        api.TokenKeyInfo, key, key_id=registered_tokens.key_id(key.public), until=key.until or None
    )
