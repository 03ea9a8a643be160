"""Topics as the registry knows them: which groups they have, wherever those are. ``landbridge topic …
--registry``, ``add-group`` and ``remove-group``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.cli import output, registry_access, units
from landbridge.cli.output import Column
from landbridge.cli.registry_access import admin, ask, find_terminals, plain

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient

LIST = [
    Column("Topic", "name", style="cyan"),
    Column("Groups", "group_names"),
    Column("Late", "late_open"),
    Column("Ticket", "ticket_scope"),
    Column("Key", "kv", units.count),
    Column("Created", "created_at", units.ago, plain=units.iso),
]
SHOW = [
    Column("Groups", "group_names"),
    Column("Producers", "who"),
    Column("Late messages", "late_open"),
    Column("A ticket for each", "ticket_scope"),
    Column("Max age", "max_age", units.span),
    Column("Key version", "kv", units.count),
    Column("Created", "created_at", units.ago, plain=units.iso),
]


def create(
    context: str | None, name: str, groups: list[str], producers: list[str] | None, options: dict[str, Any]
) -> None:
    async def work(client: RegistryClient) -> Any:
        ids = None if producers is None else await find_terminals(client, producers)
        return await client.create_message_bus_topic(name, groups, producers=ids, **options)

    found = plain(ask(admin(context), work))
    output.emit(found, lambda topic: output.done(f"the topic {name} is there, for {_groups(topic)}"))


def update(context: str | None, name: str, producers: list[str] | None, options: dict[str, Any]) -> None:
    async def work(client: RegistryClient) -> Any:
        changes = dict(options)
        if producers is not None:
            # Nobody in particular is everybody.
            changes["producers"] = None if producers == ["all"] else await find_terminals(client, producers)
        return await client.update_message_bus_topic(name, **changes)

    output.emit(plain(ask(admin(context), work)), lambda _: output.done(f"the topic {name} is changed"))


def list_all(context: str | None) -> None:
    async def work(client: RegistryClient) -> Any:
        return await registry_access.everything(client.list_message_bus_topics)

    rows = plain(ask(admin(context), work))
    empty = "the registry has no topics yet: 'landbridge topic create NAME --registry'"
    output.emit(rows, lambda rows: output.table(LIST, [_row(row, {}) for row in rows], empty=empty))


def show(context: str | None, name: str) -> None:
    async def work(client: RegistryClient) -> Any:
        return await client.show_message_bus_topic(name), await registry_access.terminal_names(client)

    found, names = ask(admin(context), work)
    output.emit(plain(found), lambda topic: output.record(name, SHOW, _row(topic, names)))


def delete(context: str | None, name: str, *, force: bool) -> None:
    ask(admin(context), lambda client: client.remove_message_bus_topic(name, force=force))
    output.emit({"deleted": name}, lambda _: output.done(f"the registry has no topic {name} any more"))


def add_groups(context: str | None, name: str, groups: list[str]) -> None:
    found = plain(ask(admin(context), lambda client: client.add_group_to_topic(name, *groups)))
    output.emit(found, lambda topic: output.done(f"{name} is for {_groups(topic)}"))


def remove_groups(context: str | None, name: str, groups: list[str], *, force: bool) -> None:
    async def work(client: RegistryClient) -> Any:
        for group in groups:
            found = await client.remove_group_from_topic(name, group, force=force)
        return found

    output.emit(
        plain(ask(admin(context), work)), lambda topic: output.done(f"{name} is for {_groups(topic)}")
    )


def _groups(topic: dict[str, Any]) -> str:
    return ", ".join(topic["groups"]) or "no group yet"


def _row(topic: dict[str, Any], names: dict[str, str]) -> dict[str, Any]:
    producers = topic["producers"]
    return {
        **topic,
        "group_names": ", ".join(topic["groups"]),
        "who": "all terminals" if producers is None else ", ".join(names.get(id, id) for id in producers),
        "kv": topic["keys"][0]["kv"] if topic["keys"] else None,
    }
