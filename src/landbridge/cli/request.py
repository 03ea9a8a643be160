"""``landbridge request``, ``trigger`` and ``outcome``: events that somebody answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.cli import output
from landbridge.cli.loop import ask
from landbridge.cli.options import ContextName, Topic, argument, flag, given, option, pairs, span
from landbridge.cli.output import columns
from landbridge.core.text import printable
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.client.events import EventResult
    from landbridge.client.replies import Reply

OUTCOME = columns("Event=id@cyan | Topic | State@bold | From=source | Reply=payload | Error=error@red")
#: Seconds beyond a request's own timeout until the command gives up.
BEYOND = 10.0


def request(
    topic: Topic,
    payload: str = argument("PAYLOAD", "What is asked.", value=""),
    timeout: float = span("Wait no longer for the reply.", value=5.0),
    all: bool = flag("Ask one consumer of each group, and print all replies.", "--all"),
    durable: bool = flag("Store the request; responders at other terminals answer, too.", "--durable"),
    key: str | None = option("A key."),
    header: list[str] | None = option("Repeatable.", metavar="NAME=VALUE"),
    context: ContextName = None,
) -> None:
    """Send a request to whoever answers requests to a topic, and print the reply.

    Examples:
      landbridge request prices.quote '{"product": "pen"}'
      landbridge request prices.quote '{"product": "pen"}' --all --timeout 2s
      landbridge request prices.quote '{"product": "pen"}' --durable --timeout 1m
    """
    if all and durable:
        raise BadRequest("a durable request has one reply", hint="leave out --all or --durable")
    options: dict[str, Any] = given(headers=pairs(header, "header") or None, key=key)

    async def question(bus: Bus) -> list[Reply]:
        if all:
            return await bus.request(topic, payload, timeout=timeout, gather=True, **options)
        return [await bus.request(topic, payload, timeout=timeout, durable=durable, **options)]

    replies = ask(context, question, within=timeout + BEYOND)
    for reply in replies:
        if output.choice.json:
            output.write_json(_reply(reply))
        elif reply.error is not None:
            output.report(reply.error)
        else:
            print(printable(_text(reply.payload)))


def _reply(reply: Reply) -> dict[str, Any]:
    error = reply.error
    return {
        "source": reply.source,
        "payload": _text(reply.payload),
        "headers": reply.headers,
        **({} if error is None else {"error": {"text": str(error), **error.details}}),
    }


def _text(payload: bytes) -> str:
    return payload.decode(errors="replace")


def trigger(
    topic: Topic,
    payload: str = argument("PAYLOAD", "What the event says.", value=""),
    callback: str = option("Where the outcome goes: topic:NAME, or a URL.", metavar="TARGET", value=""),
    within: float = span("The event has timed out after this time.", value=86_400.0),
    id: str | None = option("An id of your own; the same one again is the same event."),
    key: str | None = option("A key."),
    header: list[str] | None = option("Repeatable.", metavar="NAME=VALUE"),
    context: ContextName = None,
) -> None:
    """Store an event that a service answers when it can, and print its id. The outcome is kept for a day.

    Examples:
      landbridge trigger reports.build '{"month": 5}'
      landbridge trigger reports.build '{"month": 6}' --callback topic:reports.built
    """

    async def question(bus: Bus) -> str:
        headers = pairs(header, "header") or None
        return await bus.trigger(
            topic, payload, callback=callback or None, within=within, id=id, headers=headers, key=key
        )

    found = ask(context, question)
    output.emit({"id": found}, lambda row: print(row["id"]))


def outcome(
    id: str = argument("EVENT_ID", "As 'trigger' has printed it."),
    wait: float = span("Wait so long for the outcome.", value=0.0),
    context: ContextName = None,
) -> None:
    """Show what became of an event that was triggered with the same credential.

    Examples:
      landbridge outcome 01a1e2506bd77c30b2c892b97d32b9b6 --wait 10s
    """
    found = ask(context, lambda bus: bus.outcome(id, wait=wait), within=wait + BEYOND)
    output.emit(_outcome(found), lambda row: output.record("", OUTCOME, row))


def _outcome(found: EventResult) -> dict[str, Any]:
    return {
        "id": found.id,
        "topic": found.topic,
        "state": found.state,
        "source": found.source,
        "payload": _text(found.payload),
        "ended_at": found.ended_at,
        "error": "" if found.error is None else str(found.error),
    }
