"""What the shell offers when Tab is pressed: the names of contexts, topics, groups and what else has names.

Names that begin with ``$`` are offered to those who have typed that: they need quotes in a shell, and are
seldom meant.

Where the terminal doesn't answer soon, or refuses, nothing is offered: nobody wants an error in the middle of
a line that is being typed.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import typer

from landbridge.client import context as contexts
from landbridge.errors import BusError

if TYPE_CHECKING:
    from landbridge.client.bus import Bus

#: Seconds for the terminal's answer.
WITHIN = 1.0


def context_names(incomplete: str) -> list[str]:
    return [name for name in contexts.names() if name.startswith(incomplete)]


def topic_names(running: typer.Context, incomplete: str) -> list[str]:
    async def names(bus: Bus) -> list[str]:
        return [topic.name for topic in await bus.topics.list()]

    return _asked(running, incomplete, names)


def group_names(running: typer.Context, incomplete: str) -> list[str]:
    """The groups of the topic that is already on the line; of all topics where there is none."""
    topic = running.params.get("topic") or running.params.get("first")

    async def names(bus: Bus) -> list[str]:
        return [group.name for group in await bus.groups.list(topic=topic)]

    return _asked(running, incomplete, names)


def schedule_names(running: typer.Context, incomplete: str) -> list[str]:
    """The schedules of the topic that is already on the line."""
    topic = running.params.get("topic")

    async def names(bus: Bus) -> list[str]:
        return [schedule.name for schedule in await bus.schedules.list(topic=topic)]

    return _asked(running, incomplete, names)


def webhook_names(running: typer.Context, incomplete: str) -> list[str]:
    """The webhooks of the topic that is already on the line."""
    topic = running.params.get("topic")

    async def names(bus: Bus) -> list[str]:
        return [webhook.name for webhook in await bus.webhooks.list(topic=topic)]

    return _asked(running, incomplete, names)


def outlet_names(running: typer.Context, incomplete: str) -> list[str]:
    """The mail and SMS outlets of the topic that is already on the line."""
    topic = running.params.get("topic")

    async def names(bus: Bus) -> list[str]:
        mails = [mail.name for mail in await bus.mails.list(topic=topic)]
        return mails + [sms.name for sms in await bus.sms.list(topic=topic)]

    return _asked(running, incomplete, names)


def subscription_ids(running: typer.Context, incomplete: str) -> list[str]:
    """The subscriptions of the feed that is already on the line."""
    topic = running.params.get("topic")

    async def names(bus: Bus) -> list[str]:
        return [subscription.id for subscription in await bus.websub.list(topic=topic)]

    return _asked(running, incomplete, names)


def rule_names(running: typer.Context, incomplete: str) -> list[str]:
    async def names(bus: Bus) -> list[str]:
        return [rule.rule for rule in await bus.rules.list()]

    return _asked(running, incomplete, names)


def service_names(running: typer.Context, incomplete: str) -> list[str]:
    async def names(bus: Bus) -> list[str]:
        return [service.name for service in await bus.services.list()]

    return _asked(running, incomplete, names)


def node_names(running: typer.Context, incomplete: str) -> list[str]:
    async def names(bus: Bus) -> list[str]:
        return [node.name for node in (await bus.nodes.list()).nodes]

    return _asked(running, incomplete, names)


def limit_names(running: typer.Context, incomplete: str) -> list[str]:
    async def names(bus: Bus) -> list[str]:
        return [limit.name for limit in (await bus.limits.show()).limits]

    return _asked(running, incomplete, names)


def limit_settings(running: typer.Context, incomplete: str) -> list[str]:
    """The names of limits with the sign before the value, which whoever types knows."""
    return [] if "=" in incomplete else [f"{name}=" for name in limit_names(running, incomplete)]


def type_names(running: typer.Context, incomplete: str) -> list[str]:
    """The event types of the topic that is already on the line."""
    topic = running.params.get("topic")

    async def names(bus: Bus) -> list[str]:
        return [] if topic is None else [each.name for each in (await bus.types.list(topic)).types]

    return _asked(running, incomplete, names)


def _asked(
    running: typer.Context, incomplete: str, question: Callable[[Bus], Coroutine[Any, Any, list[str]]]
) -> list[str]:
    import asyncio

    from landbridge.client.bus import connect

    async def ask() -> list[str]:
        async with asyncio.timeout(WITHIN), connect(context=running.params.get("context")) as bus:
            return await question(bus)

    try:
        found = asyncio.run(ask())
    except (BusError, OSError):  # a timeout too is an OSError
        return []
    own = incomplete.startswith("$")
    return sorted({name for name in found if name.startswith(incomplete) and (own or name[:1] != "$")})
