"""Terminal groups: which terminals the consumers of an audience may be at."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landbridge.client import registry_documents as api
from landbridge.core.names import check_name
from landbridge.errors import BadName, BadRequest, GroupExists, LimitReached, StillHolds, UnknownTerminal
from landbridge.registry import codec
from landbridge.registry.account import Account, Change
from landbridge.registry.caller import Caller
from landbridge.registry.entities import Group
from landbridge.registry.page import page

if TYPE_CHECKING:
    from landbridge.registry.registry import Registry


class Groups:
    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    async def create(self, caller: Caller, request: api.CreateGroup) -> api.TerminalGroup:
        def work(change: Change) -> api.TerminalGroup:
            account = change.account
            check_own_name(request.name, "group")
            if request.name in account.groups:
                raise GroupExists(f"there is a group {request.name!r}")
            if len(account.groups) >= self._registry.limits.max_groups:
                raise LimitReached(f"{len(account.groups)} groups are as many as a customer may have")
            members = self._members(account, [], request.terminals)
            return show(
                account, change.put(Group(name=request.name, terminals=members, created_at=change.now))
            )

        return await self._registry.change(caller, "createTerminalGroup", request.name, work)

    def listed(self, account: Account, after: str, limit: int) -> api.GroupPage:
        items, following = page(account.groups, after, limit, self._registry.limits.max_page)
        return api.GroupPage(items=[show(account, group) for group in items], next=following)

    async def update(
        self, caller: Caller, name: str, request: api.UpdateGroup, *, force: bool
    ) -> api.TerminalGroup:
        """These are its terminals, and no others."""

        def work(change: Change) -> api.TerminalGroup:
            account = change.account
            group = account.group(name)
            members = self._members(account, [], request.terminals)
            for terminal in set(group.terminals) - set(members):
                _check_leaving(account, group, terminal, force=force)
            return show(account, change.put(codec.replace(group, terminals=members)))

        return await self._registry.change(caller, "updateTerminalGroup", name, work)

    async def add_terminals(self, caller: Caller, name: str, request: api.AddTerminals) -> api.TerminalGroup:
        def work(change: Change) -> api.TerminalGroup:
            account = change.account
            group = account.group(name)
            members = self._members(account, group.terminals, request.terminals)
            change.detail = " ".join(request.terminals)
            return show(account, change.put(codec.replace(group, terminals=members)))

        return await self._registry.change(caller, "addTerminalToGroup", name, work)

    async def remove_terminal(
        self, caller: Caller, name: str, terminal: str, *, force: bool
    ) -> api.TerminalGroup:
        def work(change: Change) -> api.TerminalGroup:
            account = change.account
            group = account.group(name)
            if terminal not in group.terminals:
                raise UnknownTerminal(f"there is no terminal {terminal[:40]!r} in {name}")
            _check_leaving(account, group, terminal, force=force)
            members = [member for member in group.terminals if member != terminal]
            change.detail = terminal
            return show(account, change.put(codec.replace(group, terminals=members)))

        return await self._registry.change(caller, "removeTerminalFromGroup", name, work)

    async def remove(self, caller: Caller, name: str, *, force: bool) -> None:
        """From its topics too."""

        def work(change: Change) -> None:
            account = change.account
            group = account.group(name)
            topics = [topic for topic in account.topics.values() if name in topic.groups]
            held = {topic.name: account.held_of(topic.name) for topic in topics}
            if any(held.values()) and not force:
                listed = ", ".join(f"{count} of {topic}" for topic, count in held.items() if count)
                raise StillHolds(f"terminals hold messages that may be for {name}: {listed}")
            for topic in topics:
                left = {other: since for other, since in topic.groups.items() if other != name}
                change.put(codec.replace(topic, groups=left))
            change.drop(group)

        await self._registry.change(caller, "removeTerminalGroup", name, work)

    def _members(self, account: Account, present: list[str], added: list[str]) -> list[str]:
        for id in added:
            if account.terminal(id).revoked_at:
                raise BadRequest(f"{id} has been revoked")
        members = list(dict.fromkeys([*present, *added]))
        most = self._registry.limits.max_members
        if len(members) > most:
            raise LimitReached(f"a group of {len(members)} terminals; at most {most}")
        return members


def show(account: Account, group: Group) -> api.TerminalGroup:
    topics = sorted(topic.name for topic in account.topics.values() if group.name in topic.groups)
    return api.TerminalGroup(
        name=group.name, terminals=group.terminals, topics=topics, created_at=group.created_at
    )


def check_own_name(name: str, what: str) -> str:
    """Names with a ``$`` are the bus's own."""
    if name.startswith("$"):
        raise BadName(f"{name[:60]!r} can't be the name of a {what}: '$' marks what is the bus's own")
    return check_name(name, what)


def _check_leaving(account: Account, group: Group, terminal: str, *, force: bool) -> None:
    held = account.held.get(terminal)
    if held is None or force:
        return
    for topic, count in held.topics.items():
        if count and topic in account.topics and group.name in account.topics[topic].groups:
            raise StillHolds(f"{terminal} holds {count} messages of {topic}, some may be for {group.name}")
