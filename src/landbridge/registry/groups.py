"""Terminal groups: the terminals where the consumers of an audience may be."""

from __future__ import annotations

from landbridge.client import registry_documents as api
from landbridge.core.names import check_name, is_reserved
from landbridge.errors import BadName, BadRequest, GroupExists, LimitReached, StillHolds, UnknownTerminal
from landbridge.registry import codec
from landbridge.registry.account import Account
from landbridge.registry.caller import Caller
from landbridge.registry.change import Change
from landbridge.registry.entities import GroupRecord
from landbridge.registry.page import page
from landbridge.registry.state import RegistryState


class TerminalGroups:
    """Operations on terminal groups."""

    def __init__(self, state: RegistryState) -> None:
        self._state = state

    def create(self, change: Change, request: api.CreateGroup) -> api.TerminalGroup:
        """Create a group."""
        account = change.account
        check_own_name(request.name, "group")
        if request.name in account.groups:
            raise GroupExists(f"there is a group {request.name!r}")
        if len(account.groups) >= self._state.limits.max_groups:
            raise LimitReached(f"{len(account.groups)} groups are as many as a customer may have")
        members = self._members(account, [], request.terminals)
        group = GroupRecord(name=request.name, terminals=members, created_at=change.now)
        return _show(account, change.put(group))

    def list_page(self, caller: Caller, request: api.ListPage) -> api.GroupPage:
        """List groups by their names."""
        account = caller.own_account
        items, following = page(account.groups, request, self._state.limits)
        return api.GroupPage(items=[_show(account, group) for group in items], next=following)

    def show(self, caller: Caller, request: api.OfTerminalGroup) -> api.TerminalGroup:
        """Show one group."""
        return _show(caller.own_account, caller.own_account.group(request.group))

    def update(self, change: Change, request: api.UpdateGroup) -> api.TerminalGroup:
        """Replace the terminals of a group."""
        account = change.account
        group = account.group(request.group)
        members = self._members(account, [], request.terminals)
        for terminal in set(group.terminals) - set(members):
            _check_leaving(account, group, terminal, force=request.force)
        return _show(account, change.put(codec.replace(group, terminals=members)))

    def add_terminals(self, change: Change, request: api.AddTerminals) -> api.TerminalGroup:
        """Add terminals to a group."""
        account = change.account
        group = account.group(request.group)
        members = self._members(account, group.terminals, request.terminals)
        change.detail = " ".join(account.terminal(each).id for each in request.terminals)
        return _show(account, change.put(codec.replace(group, terminals=members)))

    def remove_terminal(self, change: Change, request: api.RemoveTerminalFromGroup) -> api.TerminalGroup:
        """Remove one terminal from a group."""
        account = change.account
        group, terminal = account.group(request.group), account.terminal(request.terminal).id
        if terminal not in group.terminals:
            raise UnknownTerminal(f"there is no terminal {request.terminal[:40]!r} in {group.name}")
        _check_leaving(account, group, terminal, force=request.force)
        members = [member for member in group.terminals if member != terminal]
        change.detail = terminal
        return _show(account, change.put(codec.replace(group, terminals=members)))

    def remove(self, change: Change, request: api.RemoveGroup) -> None:
        """Remove a group, from its topics too."""
        account, name = change.account, request.group
        group = account.group(name)
        topics = [topic for topic in account.topics.values() if name in topic.groups]
        held = {topic.name: account.held_of(topic.name) for topic in topics}
        if any(held.values()) and not request.force:
            listed = ", ".join(f"{count} of {topic}" for topic, count in held.items() if count)
            raise StillHolds(f"terminals hold messages that may be for {name}: {listed}")
        for topic in topics:
            left = {other: since for other, since in topic.groups.items() if other != name}
            change.put(codec.replace(topic, groups=left))
        change.drop(group)

    def _members(self, account: Account, present: list[str], added: list[str]) -> list[str]:
        terminals = [account.terminal(named) for named in added]
        for terminal in terminals:
            if terminal.revoked_at:
                raise BadRequest(f"{terminal.name} ({terminal.id}) has been revoked")
        members = list(dict.fromkeys([*present, *(terminal.id for terminal in terminals)]))
        most = self._state.limits.max_members
        if len(members) > most:
            raise LimitReached(f"a group of {len(members)} terminals; at most {most}")
        return members


def check_own_name(name: str, what: str) -> str:
    """Return a name that a customer may give; BadName for those with a ``$``, which belong to the bus."""
    if is_reserved(name):
        raise BadName(f"{name[:60]!r} can't be the name of a {what}: names with '$' belong to the bus itself")
    return check_name(name, what)


def _show(account: Account, group: GroupRecord) -> api.TerminalGroup:
    topics = sorted(topic.name for topic in account.topics.values() if group.name in topic.groups)
    return codec.show(api.TerminalGroup, group, topics=topics)


def _check_leaving(account: Account, group: GroupRecord, terminal: str, *, force: bool) -> None:
    held = account.held.get(terminal)
    if held is None or force:
        return
    for topic, count in held.topics.items():
        if count and topic in account.topics and group.name in account.topics[topic].groups:
            raise StillHolds(f"{terminal} holds {count} messages of {topic}, some may be for {group.name}")
