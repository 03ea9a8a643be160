"""Directories: what the terminals of a customer have to know, signed and handed out as soon as it changes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from landbridge.client import registry_documents as api
from landbridge.core.trust import directory
from landbridge.core.trust.directory import (
    Directory,
    GroupEntry,
    SignedDirectory,
    TerminalEntry,
    TokenKey,
    TopicEntry,
)
from landbridge.errors import BadRequest, LimitReached, ShuttingDown
from landbridge.registry import codec
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller, refused
from landbridge.registry.change import Change
from landbridge.registry.services import ended_tokens
from landbridge.registry.state import RegistryState

#: Versions that a restored registry may have lost. Its terminals tell how many; none is believed beyond this.
LEAP_MOST = 1_000_000_000


class Directories:
    """The directories of all customers, and the requests that wait for newer ones."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state
        #: Customer → (version, directory), the newest that was asked for.
        self._signed: dict[str, tuple[int, SignedDirectory]] = {}
        #: Terminal → its requests that wait, oldest first; each is set to send that request away.
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._closing = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Number of requests that wait."""
        return sum(map(len, self._waiting.values()))

    async def read(self, caller: Caller, request: api.ReadDirectory) -> api.NewDirectory | None:
        """Return the directory if it is newer than the version given, else wait for it; None if there is none
        by then."""
        account, limits = caller.own_account, self._state.limits
        account.seen[caller.terminal] = self._state.clock()
        if not 0 <= request.wait <= limits.max_wait:
            raise BadRequest(f"wait {request.wait} s", hint=f"0 to {limits.max_wait:.0f} seconds")
        if account.customer.version < request.version:
            await self._overtake(caller, account, request.version)
        if account.customer.version <= request.version and request.wait:
            await self._wait(account, caller.terminal, request.wait)
            # A terminal that was revoked or removed while it waited learns nothing more.
            terminal = account.terminals.get(caller.terminal)
            if self._state.index.accounts.get(account.id) is not account:
                raise refused()
            if terminal is None or terminal.revoked_at:
                raise refused()
        if account.customer.version <= request.version:
            return None
        topics = topics_of(account, caller.terminal, request.topics)
        return api.NewDirectory(
            directory=self._sign(account),
            topics=directory.sign(topics, self._state.keyring.signing_key),
        )

    async def _overtake(self, caller: Caller, account: Account, known: int) -> None:
        """A terminal knows a newer version than the registry, which was restored from a backup. Terminals
        would ignore its changes until there are as many as it has lost, so it leaps to a later version."""

        def work(change: Change) -> None:
            if change.customer.version < known:
                change.put_customer(codec.replace(change.customer, version=known))
                change.announce()

        if known > account.customer.version + LEAP_MOST:
            raise BadRequest(
                f"directory version {known}, and the newest is {account.customer.version}",
                hint="the terminal's copy of the directory is not of this registry: join it anew",
            )
        await self._state.change(caller, "directory.overtake", account.id, work)

    def close(self) -> None:
        """Refuse the requests that wait: their terminals come again."""
        self._closing.set()

    def _sign(self, account: Account) -> SignedDirectory:
        version = account.customer.version
        known = self._signed.get(account.id)
        if known is None or known[0] != version:
            current = directory_of(account, self._state.clock())
            signed = directory.sign(current, self._state.keyring.signing_key)
            known = self._signed[account.id] = (version, signed)
            for customer in self._signed.keys() - self._state.index.accounts.keys():
                del self._signed[customer]
        return known[1]

    async def _wait(self, account: Account, terminal: str, wait: float) -> None:
        limits = self._state.limits
        own = self._waiting.setdefault(terminal, [])
        if len(own) >= limits.max_waiting_each:
            # A terminal that asks again has most likely given up its earlier request, unnoticed by us.
            own.pop(0).set()
        if self.waiting >= limits.max_waiting:
            raise LimitReached("too many requests wait for a newer directory already", hint="ask with wait=0")
        replaced = asyncio.Event()
        own.append(replaced)
        waiters = [asyncio.ensure_future(event.wait()) for event in (account.news, self._closing, replaced)]
        try:
            await asyncio.wait(waiters, timeout=wait, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()
            if replaced in own:
                own.remove(replaced)
            if not own and self._waiting.get(terminal) is own:
                del self._waiting[terminal]
        if self._closing.is_set():
            raise ShuttingDown("the registry is shutting down")


def topics_of(account: Account, terminal: str, used: Iterable[str]) -> Directory:
    """Return the topics that a terminal sends or receives. Others must not reach its disk: it may be a mere
    transit for them."""
    names = set(used)
    groups = {group.name for group in account.groups.values() if terminal in group.terminals}
    return Directory(
        customer=account.id,
        version=account.customer.version,
        topics=[
            codec.show(TopicEntry, topic)
            for _, topic in sorted(account.topics.items())
            if topic.name in names or groups & topic.groups.keys()
        ],
    )


def directory_of(account: Account, now: int) -> Directory:
    """Return what every terminal of the customer may know."""
    terminals = sorted(account.terminals.values(), key=lambda terminal: terminal.id)
    # A terminal that has not enrolled yet has no keys to talk to it with.
    members = [terminal for terminal in terminals if terminal.keys and not terminal.revoked_at]
    return Directory(
        customer=account.id,
        version=account.customer.version,
        terminals=[codec.show(TerminalEntry, terminal) for terminal in members],
        groups=[
            GroupEntry(
                name=group.name,
                terminals=[id for id in group.terminals if not account.terminals[id].revoked_at],
            )
            for _, group in sorted(account.groups.items())
        ],
        revoked=[terminal.id for terminal in terminals if terminal.revoked_at],
        ca=account.customer.authority.certificate,
        planned=_planned(account, [terminal.id for terminal in members]),
        token_keys=[TokenKey(key.public, key.until) for key in account.customer.token_keys],
        services=sorted(account.services),
        ended=ended_tokens(account, now),
    )


def _planned(account: Account, ids: list[str]) -> list[tuple[int, int, float]]:
    """Return the links of the long-term plan, by the places of these terminals."""
    places = {id: place for place, id in enumerate(ids)}
    return [
        (places[link.here], places[link.there], link.cost)
        for kept in account.plans.values()
        for link in kept.plan.links
        if link.here in places and link.there in places
    ]
