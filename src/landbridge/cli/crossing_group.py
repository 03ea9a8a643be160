"""Terminal groups, in the registry: at which terminals a group's consumers may be. ``landbridge group create
NAME``, ``add-terminal``, ``remove-terminal``, and ``group … --registry``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.cli import output, registry_access, units
from landbridge.cli.output import Column
from landbridge.cli.registry_access import admin, ask, find_terminals, plain

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient

LIST = [
    Column("Group", "name", style="cyan"),
    Column("Terminals", "terminal_names"),
    Column("Topics", "topic_names"),
    Column("Created", "created_at", units.ago, plain=units.iso),
]


def create(context: str | None, name: str, terminals: list[str]) -> None:
    async def work(client: RegistryClient) -> Any:
        found = await client.create_terminal_group(name, await find_terminals(client, terminals))
        return plain(found), await registry_access.terminal_names(client)

    _tell(*ask(admin(context), work))


def add_terminals(context: str | None, name: str, terminals: list[str]) -> None:
    async def work(client: RegistryClient) -> Any:
        found = await client.add_terminal_to_group(name, *await find_terminals(client, terminals))
        return plain(found), await registry_access.terminal_names(client)

    _tell(*ask(admin(context), work))


def remove_terminals(context: str | None, name: str, terminals: list[str], *, force: bool) -> None:
    async def work(client: RegistryClient) -> Any:
        for terminal in await find_terminals(client, terminals):
            found = await client.remove_terminal_from_group(name, terminal, force=force)
        return plain(found), await registry_access.terminal_names(client)

    _tell(*ask(admin(context), work))


def list_all(context: str | None) -> None:
    async def work(client: RegistryClient) -> Any:
        found = await registry_access.everything(client.list_terminal_groups)
        return plain(found), await registry_access.terminal_names(client)

    rows, names = ask(admin(context), work)
    empty = "the registry has no groups yet: 'landbridge group create NAME --terminal TERMINAL'"
    output.emit(rows, lambda rows: output.table(LIST, [_row(row, names) for row in rows], empty=empty))


def show(context: str | None, name: str) -> None:
    async def work(client: RegistryClient) -> Any:
        found = await client.show_terminal_group(name)
        return plain(found), await registry_access.terminal_names(client)

    row, names = ask(admin(context), work)
    output.emit(row, lambda row: output.record(name, LIST[1:], _row(row, names)))


def delete(context: str | None, name: str, *, force: bool) -> None:
    ask(admin(context), lambda client: client.remove_terminal_group(name, force=force))
    output.emit({"deleted": name}, lambda _: output.done(f"the terminal group {name} is deleted"))


def _tell(group: dict[str, Any], names: dict[str, str]) -> None:
    where = ", ".join(names.get(id, id) for id in group["terminals"]) or "no terminal yet"
    output.emit(group, lambda _: output.done(f"the group {group['name']} has its consumers at {where}"))


def _row(group: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    return {
        **group,
        "terminal_names": ", ".join(names.get(id, id) for id in group["terminals"]),
        "topic_names": ", ".join(group["topics"]),
    }
