"""Directories: what the terminals of a customer are to know, signed, and handed out as soon as there is a new
one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core.trust import directory
from landbridge.core.trust.directory import Directory, GroupEntry, SignedDirectory, TerminalEntry, TopicEntry
from landbridge.errors import BadRequest, LimitReached, ShuttingDown
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller, refused

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry


class Directories:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        #: Customer → (version, directory), the newest that was asked for.
        self._signed: dict[str, tuple[int, SignedDirectory]] = {}
        #: Terminal → its requests that wait, oldest first; set to send one away.
        self._waiting: dict[str, list[asyncio.Event]] = {}
        self._closing = asyncio.Event()

    @property
    def waiting(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._waiting.values()))

    def signed(self, account: Account) -> SignedDirectory:
        version = account.customer.version
        known = self._signed.get(account.id)
        if known is None or known[0] != version:
            signed = directory.sign(build(account), self._registry.keyring.signing_key)
            known = self._signed[account.id] = (version, signed)
        return known[1]

    async def newer(self, caller: Caller, asked: api.ReadDirectory) -> api.DirectoryUpdate | None:
        """The directory, where it is newer than what is known; else wait for it, and None if there is none by
        then."""
        account = caller.account
        assert account is not None
        limits = self._registry.limits
        if not 0 <= asked.wait <= limits.max_wait:
            raise BadRequest(f"wait {asked.wait} s", hint=f"0 to {limits.max_wait:.0f} seconds")
        if account.customer.version <= asked.version and asked.wait:
            await self._wait(account, caller.terminal, asked.version, asked.wait)
            # Revoked or removed while it waited: it learns nothing more.
            terminal = account.terminals.get(caller.terminal)
            if self._registry.index.accounts.get(account.id) is not account:
                raise refused()
            if terminal is None or terminal.revoked_at:
                raise refused()
        if account.customer.version <= asked.version:
            return None
        topics = topics_of(account, caller.terminal, asked.topics)
        return api.DirectoryUpdate(
            directory=self.signed(account),
            topics=directory.sign(topics, self._registry.keyring.signing_key),
        )

    def forget(self, customer: str) -> None:
        self._signed.pop(customer, None)

    def close(self) -> None:
        """Whoever waits is told to come again."""
        self._closing.set()

    async def _wait(self, account: Account, terminal: str, version: int, wait: float) -> None:
        limits = self._registry.limits
        own = self._waiting.setdefault(terminal, [])
        if len(own) >= limits.max_waiting_each:
            # Whoever asks again has most likely hung up on its earlier question, which nobody has told us.
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
    """The topics that a terminal has to do with. What else there is is not for its disk: it may be a mere
    transit of it."""
    names = set(used)
    groups = {group.name for group in account.groups.values() if terminal in group.terminals}
    return Directory(
        customer=account.id,
        version=account.customer.version,
        topics=[
            TopicEntry(
                name=topic.name,
                groups=topic.groups,
                late_open=topic.late_open,
                ticket_scope=topic.ticket_scope,
                max_age=topic.max_age,
            )
            for _, topic in sorted(account.topics.items())
            if topic.name in names or groups & topic.groups.keys()
        ],
    )


def planned(account: Account, ids: list[str]) -> list[tuple[int, int, float]]:
    """The links of the long-term plan, by the places of these terminals."""
    places = {id: place for place, id in enumerate(ids)}
    return [
        (places[link.here], places[link.there], link.cost)
        for kept in account.plans.values()
        for link in kept.plan.links
        if link.here in places and link.there in places
    ]


def build(account: Account) -> Directory:
    """What every terminal of the customer may know."""
    terminals = sorted(account.terminals.values(), key=lambda terminal: terminal.id)
    # One that has not enrolled yet has no keys to talk to it with.
    members = [terminal for terminal in terminals if terminal.keys and not terminal.revoked_at]
    return Directory(
        customer=account.id,
        version=account.customer.version,
        terminals=[
            TerminalEntry(
                id=terminal.id,
                name=terminal.name,
                mode=terminal.mode,
                address=terminal.address,
                region=terminal.region,
                keys=terminal.keys,
                draining=terminal.draining,
                transit=terminal.transit,
                admin_cost=terminal.admin_cost,
            )
            for terminal in members
        ],
        groups=[
            GroupEntry(
                name=group.name,
                terminals=[id for id in group.terminals if not account.terminals[id].revoked_at],
            )
            for _, group in sorted(account.groups.items())
        ],
        revoked=[terminal.id for terminal in terminals if terminal.revoked_at],
        ca=account.customer.authority.certificate,
        planned=planned(account, [terminal.id for terminal in members]),
    )
