"""Which tokens a terminal has made: ids, subjects, scopes and times, never the tokens themselves. What has
expired is forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from sortedcontainers import SortedDict

from landbridge.broker.commit import BrokerCommit
from landbridge.broker.group import Enter
from landbridge.core.log.store import DeleteDocument, PutDocument, Write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from landbridge.broker.broker import Broker

KIND = "token"
#: Kind of the documents that name revoked tokens: a token's id, or ``sub:SUBJECT``.
REVOKED = "revoked"


class IssuedToken(msgspec.Struct, frozen=True):
    id: str
    subject: str
    scopes: list[str]
    #: Microseconds.
    issued_at: int
    expires_at: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(IssuedToken).decode


class Issued:
    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        #: (expires_at, id) → token, as on disk; None until somebody asks.
        self._tokens: SortedDict[tuple[int, str], IssuedToken] | None = None

    async def _loaded(self) -> SortedDict[tuple[int, str], IssuedToken]:
        if self._tokens is None:
            damage = self._broker.damage
            stored = await self._broker.store.documents(0, KIND)
            found = [
                damage.decode(f"what is stored of the token {key}", _decode, raw, None, "")
                for key, raw in stored
            ]
            self._tokens = SortedDict({(token.expires_at, token.id): token for token in found if token})
        return self._tokens

    def forget(self) -> None:
        """They are another node's from now on."""
        self._tokens = None

    async def remember(self, token: IssuedToken, enter: Enter | None = None) -> None:
        """Write it down, and strike out those that have expired. ``enter``: writes the entry of the
        audit log in the same commit."""
        tokens = await self._loaded()
        expired = list(tokens.irange(maximum=(self._broker.clock(), ""), inclusive=(True, False)))
        writes: list[Write] = [PutDocument(KIND, token.id, _encode(token))]

        def work(commit: BrokerCommit) -> None:
            commit.writes += [*writes, *(DeleteDocument(KIND, id) for _, id in expired)]
            if enter is not None:
                enter(commit)

        await self._broker.units.writers[0].put(work)
        tokens[token.expires_at, token.id] = token
        for key in expired:
            tokens.pop(key, None)  # or another call has, meanwhile

    async def after(self, expires_at: int, id: str) -> Iterator[IssuedToken]:
        """Those that still hold, from the one that ends first, beginning behind (expires_at, id)."""
        tokens = await self._loaded()
        begin = max((expires_at, id), (self._broker.clock(), "\U0010ffff"))
        return (tokens[key] for key in tokens.irange(minimum=begin, inclusive=(False, True)))
