"""Fresh tokens for a program whose service is registered at a registry.

    async with ServiceTokens("https://registry.example", "shop", credential) as tokens:
        async with landbridge.connect("lbs://paris.example:7420", token=tokens.current) as bus:
            tokens.keep(bus)
            ...

A token lives ten minutes at most. When half of that is over, the registry is asked for another one, and
connections that are kept go on with it. While the registry doesn't answer, the token in use serves on.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterable
from typing import Protocol

from landbridge.client.registry import RegistryClient
from landbridge.errors import BusError, Unavailable

log = logging.getLogger("landbridge")

#: Seconds after which a registry that didn't answer is asked again: at first, and at most.
AGAIN, AGAIN_MOST = 1.0, 30.0


class Renewable(Protocol):
    """A bus, as far as its token goes."""

    async def renew(self, token: str) -> None:
        """Replace the token."""


class ServiceTokens:
    """The tokens of one service. ``registry``: its address, or a client, which the caller closes. ``scopes``:
    those that the tokens are to have; None: all of the service's. ``life``: seconds that each lives."""

    def __init__(
        self,
        registry: str | RegistryClient,
        service: str,
        credential: str,
        *,
        scopes: Iterable[str] | None = None,
        life: float = 600.0,
        ca: str | None = None,
    ) -> None:
        self._client = RegistryClient(registry, ca=ca) if isinstance(registry, str) else registry
        self._is_own_client = isinstance(registry, str)
        self._service = service
        self._credential = credential
        self._scopes = None if scopes is None else list(scopes)
        self._life = life
        self._token = ""
        self._kept: list[Renewable] = []
        self._task: asyncio.Task[None] | None = None

    def __repr__(self) -> str:
        return f"<ServiceTokens of {self._service}>"

    async def __aenter__(self) -> ServiceTokens:
        try:
            await self._fetch()
        except BaseException:
            await self.close()
            raise
        self._task = asyncio.ensure_future(self._stay_fresh())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Ask for no more tokens."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        if self._is_own_client:
            await self._client.close()

    def current(self) -> str:
        """Return the newest token: what ``connect`` takes as its function for tokens."""
        return self._token

    def keep(self, bus: Renewable) -> None:
        """Give this connection each new token, so that it doesn't end with the one it has."""
        self._kept.append(bus)

    async def _fetch(self) -> None:
        made = await self._client.create_service_token(
            self._service, self._credential, self._scopes, life=self._life
        )
        self._token = made.token

    async def _stay_fresh(self) -> None:
        pause, backoff = self._life / 2, AGAIN
        while True:
            await asyncio.sleep(pause)
            try:
                await self._fetch()
            except BusError as error:
                # Suspended services may be resumed, and a registry comes back: only close() ends this.
                log.warning("no new token for the service %s: %s", self._service, error)
                pause = backoff
                backoff = min(AGAIN_MOST, backoff * 2)
                continue
            pause, backoff = self._life / 2, AGAIN
            for bus in list(self._kept):
                await self._renew(bus)

    async def _renew(self, bus: Renewable) -> None:
        try:
            await bus.renew(self._token)
        except Unavailable:
            pass  # it is reconnecting, and takes the newest token by itself
        except BusError as error:
            log.warning("a connection doesn't go on with a new token: %s", error)
            self._kept.remove(bus)
