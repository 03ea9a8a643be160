"""Terminals of a customer: their keys, their enrolment, their certificates, their removal and revocation."""

from __future__ import annotations

import math

from msgspec import UNSET

from landbridge.client import registry_documents as api
from landbridge.core.names import check_name
from landbridge.core.trust import credential
from landbridge.core.trust.directory import PublicKeys
from landbridge.core.trust.identity import SecureKey, check_public_keys
from landbridge.errors import BadRequest, LimitReached, NameTaken, StillHolds, Unauthenticated
from landbridge.registry import authority, codec
from landbridge.registry.account import Account
from landbridge.registry.address import check_address
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import Enrolment, TerminalRecord
from landbridge.registry.limits import microseconds
from landbridge.registry.page import page
from landbridge.registry.state import RegistryState

#: Keys of one terminal that are good at a time.
_OVERLAP = 2
#: A terminal that runs asks for the directory at least once in a longest wait. After this many it is silent.
_SILENT_AFTER = 2
#: Milliseconds. To keep parcels off a terminal altogether, there is ``transit``.
_MOST_ADMIN_COST = 1e6


class Terminals:
    """Operations on terminals."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    def create(self, change: Change, request: api.CreateTerminal) -> api.CreatedTerminal:
        """Create a terminal. Its key is made here, brought along, or brought later by an enrolment."""
        account = change.account
        if len(account.terminals) >= self._state.limits.max_terminals:
            raise LimitReached(f"{len(account.terminals)} terminals are as many as a customer may have")
        _check_new_name(account, request.name)
        secret, keys = _new_keys(request.keys, make=request.make_key)
        terminal = TerminalRecord(
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
            registry_key=self._state.keyring.public_key,
        )

    def list_page(self, caller: Caller, request: api.ListPage) -> api.TerminalPage:
        """List terminals by their ids."""
        account = caller.own_account
        items, following = page(account.terminals, request, self._state.limits)
        return api.TerminalPage(items=[self._show(account, terminal) for terminal in items], next=following)

    def show(self, caller: Caller, request: api.OfTerminal) -> api.RegisteredTerminal:
        """Show one terminal."""
        return self._show(caller.own_account, caller.own_account.terminal(request.terminal))

    def update(self, change: Change, request: api.UpdateTerminal) -> api.RegisteredTerminal:
        """Change what the request gives. A terminal that becomes a client loses its address."""
        terminal = change.account.terminal(request.terminal)
        if request.name is not UNSET and request.name != terminal.name:
            _check_new_name(change.account, request.name)
        changes = codec.given(request, "name", "mode", "region", "draining", "transit", "admin_cost")
        changed = codec.replace(terminal, **changes)
        address = request.address
        if address is UNSET:
            address = "" if changed.mode == "client" else terminal.address
        _check_region(changed.region)
        _check_cost(changed.admin_cost)
        changed = codec.replace(changed, address=check_address(address, mode=changed.mode))
        return self._show(change.account, change.put(changed))

    def remove(self, change: Change, request: api.RemoveTerminal) -> None:
        """Remove a terminal, from its groups and producers too. What it has sent can't be opened any more."""
        account, terminal = change.account, change.account.terminal(request.terminal)
        id = terminal.id
        held = account.held_by(id)
        if held and not request.force:
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
        account.seen.pop(id, None)
        change.detail = terminal.name

    def revoke(self, change: Change, request: api.OfTerminal) -> api.RegisteredTerminal:
        """Cut a terminal off, at once and for ever: its proofs are refused, and its peers learn it from the
        directory."""
        account = change.account
        terminal = account.terminal(request.terminal)
        if terminal.revoked_at:
            return self._show(account, terminal)
        change.drop(account.enrolments.get(terminal.id))
        return self._show(account, change.put(codec.replace(terminal, revoked_at=change.now)))

    def _show(self, account: Account, terminal: TerminalRecord) -> api.RegisteredTerminal:
        held, seen = account.held.get(terminal.id), account.seen.get(terminal.id)
        since = self._state.clock() - microseconds(_SILENT_AFTER * self._state.limits.max_wait)
        return codec.show(
            api.RegisteredTerminal,
            terminal,
            terminal_id=terminal.id,
            revoked_at=terminal.revoked_at or None,
            held=held.topics if held is not None else {},
            seen_at=seen,
            silent=seen is None or seen < since,
        )

    # -- keys --------------------------------------------------------------------------------------

    def rotate_key(self, change: Change, request: api.RotateKey) -> api.RotatedKey:
        """Give a terminal a new key, by an admin."""
        account = change.account
        secret, keys = _new_keys(request.keys, make=True)
        terminal = change.put(
            _rotated(account.terminal(request.terminal), keys[0], keep_old=request.keep_old)
        )
        change.drop(account.enrolments.get(terminal.id))
        return api.RotatedKey(terminal_id=terminal.id, secure_key=secret, keys=terminal.keys)

    def rotate_own_key(self, change: Change, request: api.RotateOwnKey) -> api.RotatedKey:
        """Give a terminal a new key, by itself: the request is proved with the key that it still has."""
        terminal = change.account.terminal(change.caller.terminal)
        keys = check_public_keys(request.keys)
        terminal = change.put(_rotated(terminal, keys, keep_old=request.keep_old))
        return api.RotatedKey(terminal_id=terminal.id, secure_key=None, keys=terminal.keys)

    def certificate(self, change: Change, request: api.CertificateRequest) -> api.Certificate:
        """Make a certificate for the terminal that asks."""
        customer = change.customer
        terminal = change.account.terminal(change.caller.terminal)
        _require_not_revoked(terminal)  # it may have been revoked since its proof was checked
        certificate, expires_at = authority.certify(
            customer.authority.certificate,
            self._state.keyring.authority_key(customer),
            request.csr,
            customer=customer.id,
            terminal=terminal.id,
            address=terminal.address,
            now=change.now,
            life=self._state.limits.certificate_life,
        )
        ca = customer.authority.certificate
        return api.Certificate(certificate=certificate, ca=ca, expires_at=expires_at)

    # -- enrolment ---------------------------------------------------------------------------------

    def create_enrolment(self, change: Change, request: api.OfTerminal) -> api.CreatedEnrolment:
        """Make a token with which a machine becomes the terminal, once."""
        terminal = change.account.terminal(request.terminal)
        _require_not_revoked(terminal)
        id = terminal.id
        token, digest = credential.new(credential.ENROLMENT)
        expires_at = change.now + microseconds(self._state.limits.enrolment_life)
        change.put(Enrolment(terminal=id, digest=digest, expires_at=expires_at), in_directory=False)
        return api.CreatedEnrolment(terminal_id=id, token=token, expires_at=expires_at)

    async def enrol(self, _: Caller, request: api.Enrol) -> api.Enrolled:
        """Give a terminal the public half of a key that its machine has made. Keys that it had before end: an
        enrolment is for a machine that has none yet."""
        digest = credential.digest(credential.ENROLMENT, request.token)
        found = self._state.index.enrolments.get(digest) if digest is not None else None
        if found is None:
            raise _not_enrolled()
        account, id = found

        def work(change: Change) -> api.Enrolled:
            enrolment = account.enrolments.get(id)
            # Looked up again: another machine may have used the same token meanwhile.
            if enrolment is None or enrolment.digest != digest or enrolment.expires_at <= change.now:
                raise _not_enrolled()
            terminal = account.terminal(id)
            name = terminal.name if request.name is None else request.name
            if name != terminal.name:
                _check_new_name(account, name)
            change.put(codec.replace(terminal, name=name, keys=[check_public_keys(request.keys)]))
            change.drop(enrolment)
            key = self._state.keyring.public_key
            return api.Enrolled(customer_id=account.id, terminal_id=id, name=name, registry_key=key)

        return await self._state.change(Caller("enrolment", account), "enrolTerminal", id, work)


def _new_keys(given: PublicKeys | None, *, make: bool) -> tuple[str | None, list[PublicKeys]]:
    """Return (the secure key if it is made here, the public halves)."""
    if given is not None:
        return None, [check_public_keys(given)]
    if not make:
        return None, []
    secret = SecureKey.new()
    return str(secret), [secret.public]


def _rotated(terminal: TerminalRecord, keys: PublicKeys, *, keep_old: bool) -> TerminalRecord:
    _require_not_revoked(terminal)
    # A rotation that is repeated because its answer was lost must not push the old key out.
    older = [known for known in terminal.keys if known != keys] if keep_old else []
    return codec.replace(terminal, keys=[keys, *older][:_OVERLAP])


def _require_not_revoked(terminal: TerminalRecord) -> None:
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
