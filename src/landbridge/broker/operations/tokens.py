"""Operations on tokens."""

from __future__ import annotations

from functools import partial
from typing import Protocol

import msgspec

from landbridge.broker.audit import AuditedCaller
from landbridge.broker.authority import Authority, TokenBearer, check_scopes
from landbridge.broker.broker import Broker
from landbridge.broker.commit import BrokerCommit
from landbridge.broker.operations.dispatcher import PAGE, Dispatcher
from landbridge.broker.services import Services
from landbridge.broker.tokens import REVOKED, Issued, IssuedToken
from landbridge.core.log.store import PutDocument
from landbridge.core.time import SECOND
from landbridge.errors import BadRequest
from landbridge.protocol import operations as table


class TokenHost(Protocol):
    """The terminal, as far as tokens go."""

    services: Services

    @property
    def authority(self) -> Authority: ...

    def revoke(self, entry: str) -> None:
        """Stop accepting a token's id or ``sub:SUBJECT``, and end the connections that have it."""


class CallerWithToken(TokenBearer, Protocol):
    """Who asks, with the token or the credential that was shown."""

    @property
    def token_id(self) -> str: ...

    @property
    def expires_at(self) -> int: ...


class TokenOperations:
    """The handlers of token.*"""

    def __init__(self, broker: Broker, terminal: TokenHost, issued: Issued) -> None:
        self._broker = broker
        self._terminal = terminal
        self._issued = issued

    def register(self, dispatcher: Dispatcher) -> None:
        dispatcher.register(table.TOKEN_CREATE, self.create)
        dispatcher.register(table.TOKEN_LIST, self.list_page)
        dispatcher.register(table.TOKEN_SHOW, self.show)
        dispatcher.register(table.TOKEN_REVOKE, self.revoke)

    async def show(self, caller: CallerWithToken, request: table.Nothing) -> table.TokenShown:
        return table.TokenShown(
            id=caller.token_id,
            subject=caller.subject,
            scopes=caller.scopes.as_texts(),
            expires_at=caller.expires_at,
        )

    async def create(self, caller: AuditedCaller, request: table.TokenCreate) -> table.TokenMade:
        subject, scopes, life = request.subject, request.scopes, request.life
        most = self._broker.limits.max_token_life
        if not 0 < life <= most:
            raise BadRequest(f"a life of {life} s, allowed are up to {most} s")
        if f"sub:{subject}" in self._terminal.authority.revoked:
            # The token would be dead from the start: to revoke a service means its future tokens as well.
            raise BadRequest(
                f"the service {subject[:100]!r} was revoked, with every token that it ever gets",
                hint="give the token to a service of another name",
            )
        self._terminal.authority.check_own(subject)
        check_scopes(scopes)
        # The service has an entry of its own where the token registers it.
        await self._terminal.services.include(subject, scopes, caller=caller)
        now = self._broker.clock()
        token, token_id = self._terminal.authority.issue(now, subject, scopes, life)
        expires_at = now + int(life * SECOND)
        made = IssuedToken(token_id, subject, scopes, now, expires_at)
        await self._issued.remember(made, partial(caller.enter, name=token_id, after=made))
        return table.TokenMade(token=token, id=token_id, subject=subject, expires_at=expires_at)

    async def list_page(self, caller: TokenBearer, request: table.TokenList) -> table.TokenRows:
        moment, _, last = request.after.partition("/")
        if request.after and not (moment.isascii() and moment.isdecimal()):
            raise BadRequest(
                f"token.list after {request.after[:60]!r}", hint="give the 'next' of the page before"
            )
        authority = self._terminal.authority
        rows: list[table.TokenRow] = []
        for token in await self._issued.after(int(moment or 0), last):
            if request.subject is None or token.subject == request.subject:
                ended = not authority.accepts(token.subject, token.id, token.scopes, token.issued_at)
                rows.append(table.TokenRow(**msgspec.structs.asdict(token), revoked=ended))
            if len(rows) >= PAGE:
                return table.TokenRows(tokens=rows, next=f"{token.expires_at}/{token.id}")
        return table.TokenRows(tokens=rows, next="")

    async def revoke(self, caller: AuditedCaller, request: table.TokenRevoke) -> table.Revoked:
        if (request.id is None) == (request.subject is None):
            raise BadRequest("name a token by id or by subject")
        entry = request.id if request.id is not None else f"sub:{request.subject}"
        tokens = sum(entry in (token.id, f"sub:{token.subject}") for token in await self._issued.after(0, ""))

        def work(commit: BrokerCommit) -> None:
            commit.writes.append(PutDocument(REVOKED, entry, b""))
            caller.enter(commit, entry, after={"revoked": True, "tokens": tokens})

        await self._broker.units.writers[0].put(work)
        self._terminal.revoke(entry)
        return table.Revoked(revoked=entry, tokens=tokens)
