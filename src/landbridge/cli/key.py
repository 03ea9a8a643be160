"""``landbridge key``: the keys of topics and terminals."""

from __future__ import annotations

import typer

from landbridge.cli import output
from landbridge.cli.options import Commands, ContextName, Topic, argument, flag, option
from landbridge.cli.output import columns
from landbridge.cli.registry_access import as_admin, change
from landbridge.cli.terminal import rotate_key

app = Commands(no_args_is_help=True, help="Keys: of topics, which the registry keeps, and of terminals.")

LIST = columns("Version=kv:count | Use | Made=made_at:moment")


@app.command("list")
def list_keys(topic: Topic, context: ContextName = None) -> None:
    """List the versions of a topic's key. The newest encrypts; the others only decrypt.

    Examples:
      landbridge key list orders
    """
    keys = as_admin(context, lambda client: client.show_message_bus_topic(topic)).keys
    rows = [output.fields(key, use="decrypts" if number else "encrypts") for number, key in enumerate(keys)]
    output.rows(LIST, rows, empty="no keys")


@app.command()
def rotate(
    topic: str | None = argument("TOPIC", "A new key for this topic."),
    terminal: str | None = option("Or a new secure key for this terminal.", metavar="TERMINAL"),
    end_old: bool = flag("Of a terminal: the old key ends now, not with the next.", "--end-old"),
    context: ContextName = None,
) -> None:
    """Make a new key. A topic's goes into use by itself; a terminal's has to be put into its file.

    Examples:
      landbridge key rotate orders
      landbridge key rotate --terminal tokyo
    """
    if (topic is None) == (terminal is None):
        raise typer.BadParameter("name either a topic or --terminal")
    if terminal is not None:
        rotate_key(terminal, context, end_old=end_old)
    elif topic is not None:
        change(
            context,
            lambda client: client.rotate_message_bus_topic_key(topic),
            lambda found: f"{topic} encrypts with version {found.keys[0].kv} of its key",
        )
