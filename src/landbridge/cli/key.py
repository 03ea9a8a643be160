"""``landbridge key``: the keys of topics and terminals."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output, registry_access, units
from landbridge.cli.options import ContextName, Json, Topic
from landbridge.cli.output import Column

if TYPE_CHECKING:
    from landbridge.client.registry import RegistryClient

app = typer.Typer(no_args_is_help=True, help="Keys: of topics, which the registry keeps, and of terminals.")

LIST = [
    Column("Version", "kv", units.count),
    Column("Use", "use"),
    Column("Made", "made_at", units.ago, plain=units.iso),
]


@app.command("list")
def list_keys(topic: Topic, context: ContextName = None, json: Json = False) -> None:
    """List the versions of a topic's key. The newest encrypts; the others only decrypt.

    \b
    Examples:
      landbridge key list orders
    """
    access = registry_access.admin(context)
    found = registry_access.ask(access, lambda client: client.show_message_bus_topic(topic))
    rows = [
        {**key, "use": "decrypts" if number else "encrypts"}
        for number, key in enumerate(registry_access.plain(found)["keys"])
    ]
    output.emit(rows, lambda rows: output.table(LIST, rows, empty="no keys"))


@app.command()
def rotate(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="A new key for this topic.", show_default=False)
    ] = None,
    terminal: Annotated[
        str | None, typer.Option(metavar="TERMINAL", help="Or a new secure key for this terminal.")
    ] = None,
    end_old: Annotated[
        bool, typer.Option("--end-old", help="Of a terminal: the old key ends now, not with the next.")
    ] = False,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Make a new key. A topic's goes into use by itself; a terminal's has to be put into its file.

    \b
    Examples:
      landbridge key rotate orders
      landbridge key rotate --terminal tokyo
    """
    if (topic is None) == (terminal is None):
        raise typer.BadParameter("name either a topic or --terminal")
    access = registry_access.admin(context)
    if topic is not None:
        name = topic
        found = registry_access.ask(access, lambda client: client.rotate_message_bus_topic_key(name))
        output.emit(
            registry_access.plain(found),
            lambda row: output.done(f"{name} encrypts with version {row['keys'][0]['kv']} of its key"),
        )
        return
    assert terminal is not None
    rotate_terminal(terminal, context, end_old=end_old)


def rotate_terminal(terminal: str, context: str | None, *, end_old: bool) -> None:
    async def work(client: RegistryClient) -> Any:
        found = await registry_access.find_terminal(client, terminal)
        return await client.rotate_terminal_key(found, keep_old=not end_old)

    made = registry_access.ask(registry_access.admin(context), work)
    result = {"terminal_id": made.terminal_id, "secure_key": made.secure_key}

    def show(_: Any) -> None:
        output.done(f"{terminal} has a new secure key, shown this once: put it into its file and restart it")
        print(f"secure_key: {made.secure_key}")

    output.emit(result, show)
