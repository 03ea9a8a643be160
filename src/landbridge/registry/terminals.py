"""Terminals of a customer: their keys, their enrolment, their end."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from msgspec import UNSET

from landbridge.client import registry_documents as api
from landbridge.core.names import check_name
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import SecureKey, check_public_keys
from landbridge.errors import BadRequest, LimitReached, NameTaken, StillHolds, Unauthenticated
from landbridge.registry import authority, codec, credential
from landbridge.registry.account import Account, Change
from landbridge.registry.address import check_address
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Enrolment, Terminal
from landbridge.registry.page import page

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry

#: Keys of one terminal that are good at a time.
_OVERLAP = 2
#: Milliseconds; more is no cost but a closed road, and for that there is ``transit``.
_MOST_ADMIN_COST = 1e6
_SECOND = 1_000_000


class Terminals:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def create(self, caller: Caller, request: api.CreateTerminal) -> api.CreatedTerminal:
        def work(change: Change) -> api.CreatedTerminal:
            account = change.account
            if len(account.terminals) >= self._registry.limits.max_terminals:
                raise LimitReached(f"{len(account.terminals)} terminals are as many as a customer may have")
            _check_new_name(account, request.name)
            secret, keys = _new_keys(request.keys, make=request.make_key)
            terminal = Terminal(
                id=credential.new_id("ter"),
                name=request.name,
                mode=request.mode,
                address=check_address(request.address, mode=request.mode),
                region=_check_region(request.region),
                keys=keys,
                created_at=change.now,
                transit=request.transit,
                admin_cost=_check_cost(request.admin_cost),
            )
            change.put(terminal)
            change.detail = terminal.id
            return api.CreatedTerminal(
                customer_id=account.id,
                terminal_id=terminal.id,
                name=terminal.name,
                secure_key=secret,
                registry_key=self._registry.public_key,
            )

        return await self._registry.change(caller, "createTerminal", request.name, work)

    def listed(self, account: Account, after: str, limit: int) -> api.TerminalPage:
        items, following = page(account.terminals, after, limit, self._registry.limits.max_page)
        return api.TerminalPage(items=[show(account, terminal) for terminal in items], next=following)

    async def update(self, caller: Caller, id: str, request: api.UpdateTerminal) -> api.Terminal:
        def work(change: Change) -> api.Terminal:
            account = change.account
            terminal = account.terminal(id)
            if request.name is not UNSET and request.name != terminal.name:
                _check_new_name(account, request.name)
            mode = terminal.mode if request.mode is UNSET else request.mode
            address = terminal.address if request.address is UNSET else request.address
            if request.address is UNSET and mode == "client":
                address = ""
            terminal = codec.replace(
                terminal,
                name=terminal.name if request.name is UNSET else request.name,
                mode=mode,
                address=check_address(address, mode=mode),
                region=terminal.region if request.region is UNSET else _check_region(request.region),
                draining=terminal.draining if request.draining is UNSET else request.draining,
                transit=terminal.transit if request.transit is UNSET else request.transit,
                admin_cost=(
                    terminal.admin_cost if request.admin_cost is UNSET else _check_cost(request.admin_cost)
                ),
            )
            return show(account, change.put(terminal))

        return await self._registry.change(caller, "updateTerminal", id, work)

    async def remove(self, caller: Caller, id: str, *, force: bool) -> None:
        """Out of its groups and producers too. Nobody opens any more what it has sent."""

        def work(change: Change) -> None:
            account = change.account
            terminal = account.terminal(id)
            held = account.held_by(id)
            if held and not force:
                raise StillHolds(f"{terminal.name} ({id}) holds {held} messages")
            for group in account.groups.values():
                if id in group.terminals:
                    change.put(codec.replace(group, terminals=[t for t in group.terminals if t != id]))
            for topic in account.topics.values():
                if topic.producers is not None and id in topic.producers:
                    change.put(codec.replace(topic, producers=[t for t in topic.producers if t != id]))
            change.drop(account.enrolments.get(id))
            change.drop(account.held.get(id))
            change.drop(terminal)
            change.detail = terminal.name

        await self._registry.change(caller, "removeTerminal", id, work)

    async def revoke(self, caller: Caller, id: str) -> api.Terminal:
        """At once and for ever: no proof of it is good any more, and its peers hear of it by the
        directory."""

        def work(change: Change) -> api.Terminal:
            account = change.account
            terminal = account.terminal(id)
            if terminal.revoked_at:
                return show(account, terminal)
            change.drop(account.enrolments.get(id))
            terminal = change.put(codec.replace(terminal, revoked_at=change.now))
            change.after.append(lambda: account.forget_report(id))
            return show(account, terminal)

        return await self._registry.change(caller, "revokeTerminal", id, work)

    # -- keys --------------------------------------------------------------------------------------

    async def rotate_key(self, caller: Caller, id: str, request: api.RotateKey) -> api.RotatedKey:
        """By an admin."""

        def work(change: Change) -> api.RotatedKey:
            account = change.account
            secret, keys = _new_keys(request.keys, make=True)
            terminal = _rotated(account.terminal(id), keys[0], keep_old=request.keep_old)
            change.put(terminal)
            change.drop(account.enrolments.get(id))
            return api.RotatedKey(terminal_id=id, secure_key=secret, keys=terminal.keys)

        return await self._registry.change(caller, "rotateTerminalKey", id, work)

    async def rotate_own_key(self, caller: Caller, request: api.RotateOwnKey) -> api.RotatedKey:
        """By the terminal itself, with a proof by the key that it still has."""

        def work(change: Change) -> api.RotatedKey:
            terminal = change.account.terminal(caller.terminal)
            terminal = _rotated(terminal, check_public_keys(request.keys), keep_old=request.keep_old)
            change.put(terminal)
            return api.RotatedKey(terminal_id=terminal.id, secure_key=None, keys=terminal.keys)

        return await self._registry.change(caller, "rotateOwnKey", caller.terminal, work)

    async def certificate(self, caller: Caller, request: api.CertificateRequest) -> api.Certificate:
        def work(change: Change) -> api.Certificate:
            customer = change.customer
            terminal = change.account.terminal(caller.terminal)
            _require_not_revoked(terminal)  # since its proof was good
            certificate, expires_at = authority.certify(
                customer.authority.certificate,
                self._registry.authority_key(customer),
                request.csr,
                customer=customer.id,
                terminal=terminal.id,
                address=terminal.address,
                now=change.now,
                life=self._registry.limits.certificate_life,
            )
            return api.Certificate(
                certificate=certificate, ca=customer.authority.certificate, expires_at=expires_at
            )

        return await self._registry.serve(caller, "requestCertificate", caller.terminal, work)

    # -- enrolment ---------------------------------------------------------------------------------

    async def create_enrolment(self, caller: Caller, id: str) -> api.CreatedEnrolment:
        def work(change: Change) -> api.CreatedEnrolment:
            terminal = change.account.terminal(id)
            _require_not_revoked(terminal)
            token = credential.new(credential.ENROLMENT)
            digest = credential.digest(credential.ENROLMENT, token)
            assert digest is not None
            expires_at = change.now + round(self._registry.limits.enrolment_life * _SECOND)
            change.put(Enrolment(terminal=id, digest=digest, expires_at=expires_at), in_directory=False)
            return api.CreatedEnrolment(terminal_id=id, token=token, expires_at=expires_at)

        return await self._registry.change(caller, "createTerminalEnrolment", id, work)

    async def enrol(self, request: api.Enrol) -> api.Enrolled:
        """A terminal brings the public half of a key that it has made. What it had before ends: an enrolment
        is for a machine that has nothing yet."""
        digest = credential.digest(credential.ENROLMENT, request.token)
        found = self._registry.index.enrolments.get(digest) if digest is not None else None
        if found is None:
            raise _not_enrolled()
        account, id = found

        def work(change: Change) -> api.Enrolled:
            enrolment = account.enrolments.get(id)
            # Looked up again: of two that come at once with the same token, one is the second.
            if enrolment is None or enrolment.digest != digest or enrolment.expires_at <= change.now:
                raise _not_enrolled()
            terminal = account.terminal(id)
            name = terminal.name if request.name is None else request.name
            if name != terminal.name:
                _check_new_name(account, name)
            terminal = codec.replace(terminal, name=name, keys=[check_public_keys(request.keys)])
            change.put(terminal)
            change.drop(enrolment)
            return api.Enrolled(
                customer_id=account.id, terminal_id=id, name=name, registry_key=self._registry.public_key
            )

        return await self._registry.change(Caller("enrolment", account), "enrolTerminal", id, work)


def show(account: Account, terminal: Terminal) -> api.Terminal:
    held = account.held.get(terminal.id)
    return api.Terminal(
        terminal_id=terminal.id,
        name=terminal.name,
        mode=terminal.mode,
        address=terminal.address,
        region=terminal.region,
        keys=terminal.keys,
        created_at=terminal.created_at,
        revoked_at=terminal.revoked_at or None,
        draining=terminal.draining,
        transit=terminal.transit,
        admin_cost=terminal.admin_cost,
        held=held.topics if held is not None else {},
    )


def _new_keys(given: PublicKeys | None, *, make: bool) -> tuple[str | None, list[PublicKeys]]:
    """(the secure key, where it is made here; the public halves)."""
    if given is not None:
        return None, [check_public_keys(given)]
    if not make:
        return None, []
    secret = SecureKey.new()
    return str(secret), [secret.public]


def _rotated(terminal: Terminal, keys: PublicKeys, *, keep_old: bool) -> Terminal:
    _require_not_revoked(terminal)
    # A repeated rotation, whose answer was lost, must not push the old key out.
    older = [known for known in terminal.keys if known != keys] if keep_old else []
    return codec.replace(terminal, keys=[keys, *older][:_OVERLAP])


def _require_not_revoked(terminal: Terminal) -> None:
    if terminal.revoked_at:
        raise BadRequest(f"{terminal.id} has been revoked", hint="that is for ever: create a new terminal")


def _check_new_name(account: Account, name: str) -> None:
    check_name(name, "terminal")
    if any(terminal.name == name for terminal in account.terminals.values()):
        raise NameTaken(f"there is a terminal {name!r}")


def _check_region(region: str) -> str:
    return check_name(region, "region") if region else ""


def _check_cost(cost: float) -> float:
    if not math.isfinite(cost) or not 0 <= cost <= _MOST_ADMIN_COST:
        raise BadRequest(f"an admin_cost of {cost} ms", hint=f"0 to {_MOST_ADMIN_COST:.0f}")
    return cost


def _not_enrolled() -> Unauthenticated:
    return Unauthenticated(
        "the enrolment token is wrong, used or expired", hint="have an admin create another: it is good once"
    )
