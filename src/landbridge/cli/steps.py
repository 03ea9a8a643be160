"""The seven steps from nothing to a message, by the names that their HTTP operations have. They aren't in the
help: each is another command's short form."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from landbridge.cli import crossing_group, crossing_topic
from landbridge.cli import customer as customers
from landbridge.cli import publish as messages
from landbridge.cli import terminal as terminals
from landbridge.cli.options import ContextName, Group, Json, Topic

Name = Annotated[str, typer.Argument(metavar="NAME", show_default=False)]


def create_message_bus_customer(
    name: Name,
    context: Annotated[str | None, typer.Option(metavar="NAME", help="Save its credential there.")] = None,
    show_token: customers.ShowToken = False,
    operator: customers.Operator = None,
    json: Json = False,
) -> None:
    """Step 1: create a customer."""
    customers.create(name, context, show_token, operator)


def create_terminal(
    name: Name,
    mode: Annotated[terminals.Mode, typer.Option(help="Server or client.")] = "server",
    address: terminals.Address = None,
    region: terminals.Region = None,
    write: Annotated[Path | None, typer.Option(metavar="FILE", help="Write its landbridge.yml.")] = None,
    listen: Annotated[str | None, typer.Option(metavar="HOST:PORT", help="For that file.")] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Step 2: create a terminal."""
    terminals.create(name, mode, address, region, write=write, listen=listen, context=context)


def create_terminal_group(
    name: Name,
    terminal: Annotated[list[str] | None, typer.Option(metavar="TERMINAL", help="Repeatable.")] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Step 3: create a terminal group."""
    crossing_group.create(context, name, terminal or [])


def add_terminal_to_group(
    group: Group,
    terminal: Annotated[list[str], typer.Argument(metavar="TERMINAL…", show_default=False)],
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Step 4: add terminals to a terminal group."""
    crossing_group.add_terminals(context, group, terminal)


def create_message_bus_topic(
    name: Topic,
    group: Annotated[list[str] | None, typer.Option(metavar="GROUP", help="Repeatable.")] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Step 5: create a topic."""
    crossing_topic.create(context, name, group or [], None, {})


def add_group_to_topic(
    topic: Topic,
    group: Annotated[list[str], typer.Argument(metavar="GROUP…", show_default=False)],
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Step 6: add groups to a topic."""
    crossing_topic.add_groups(context, topic, group)


def send_message(
    topic: Topic,
    payload: Annotated[str, typer.Argument(metavar="PAYLOAD", show_default=False)],
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Step 7: send a message."""
    messages.publish(topic, payload, context=context)
