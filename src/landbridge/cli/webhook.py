"""``landbridge webhook``: messages of a topic that are sent to a URL."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from landbridge.cli import completion, output, units
from landbridge.cli.loop import ask
from landbridge.cli.mistyped import making
from landbridge.cli.options import (
    START,
    Commands,
    ContextName,
    From,
    Note,
    Topic,
    Until,
    argument,
    flag,
    given,
    option,
    pairs,
    span,
    start_of,
)
from landbridge.cli.output import columns
from landbridge.cli.rule import read_match
from landbridge.cli.sending import ATTEMPTS, SendingFlags
from landbridge.core.wording import counted

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import OutletTested, WebhookDetails, WebhookSigned

#: The status of a test that was not taken.
FAILED = 70

app = Commands(no_args_is_help=True, help="Webhooks: messages of a topic that are sent to a URL, signed.")

LIST = columns(
    "Topic@cyan | Webhook=name@cyan | URL=url | State | Circuit | Lag:count@yellow | Delivered:count | "
    "Failed:count@red | Buried:count@red | Last success=last_success_at:moment | Trouble@red"
)
SHOW = columns(
    "URL=url | State | Circuit | Owner | Group | Lag:count@yellow | Delivered:count | Failed:count@red | "
    "Buried:count@red | Last success=last_success_at:moment | Failing since=failing_since:moment | "
    "Blocked until=blocked_until:moment | Disabled=disabled_why@red | Trouble@red | Ordered | Rate | "
    "Content type | Match | Query | Rule | Secrets | Public keys:list | Paused=paused_at:moment | "
    "Paused by | Note"
)

Name = Annotated[str, argument("NAME", "The webhook's name.", autocompletion=completion.webhook_names)]
Url = Annotated[str, argument("URL", "Where messages are sent to.")]
Secret = Annotated[str, option("A secret of yours; without it, one is made.", metavar="whsec_…", value="")]


class WebhookFlags(SendingFlags):
    """The options of a webhook."""

    rate: float | None = option("Requests per second at most, or 0 for no limit.", default="0", min=0)
    match_key: str | None = option("Only messages whose key matches, e.g. 'eu-*'.", metavar="PATTERN")
    match_header: list[str] | None = option(
        "Only messages whose header matches. Repeatable.", metavar="NAME=PATTERN"
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        from landbridge.core.delivery.filters import Match

        options = super().as_asked()
        if self.rate is not None:
            options["rate"] = self.rate or None
        match = given(key=self.match_key, headers=pairs(self.match_header, "match") or None)
        return options | ({"match": Match(**match)} if match else {})


@app.command()
def create(
    topic: Topic,
    name: Name,
    url: Url,
    *,
    options: WebhookFlags,
    match: str | None = option(
        "Only messages that this query chooses from the topic. It stays as it is.", metavar="JSON|@FILE"
    ),
    secret: Secret = "",
    asymmetric: bool = flag("Sign with a key (Ed25519); the receiver gets its public one.", "--asymmetric"),
    start: str | None = start_of(START, "latest"),
    context: ContextName = None,
) -> None:
    """Create a webhook. It reads the topic in your name, so you need the scope subscribe:TOPIC. Its secret is
    shown once.

    Examples:
      landbridge webhook create orders shop https://shop.example/hooks/orders
      landbridge webhook create orders audit https://audit.example/ --ordered --from earliest
      landbridge webhook create orders bank https://bank.example/ --asymmetric
      landbridge webhook create orders eu https://eu.example/ --match-key 'eu-*' --rate 50
      landbridge webhook create orders paid https://paid.example/ --match '{"state": ["paid"]}'
    """
    query = None if match is None else read_match(match)
    wanted = options.as_asked() | given(start=start, asymmetric=asymmetric, query=query)

    async def work(bus: Bus) -> WebhookSigned:
        async with making(bus, topic):
            return await bus.webhooks.create(topic, name, url, secret=secret, **wanted)

    made = ask(context, work)
    output.emit(made, _show_secret)


def _show_secret(made: WebhookSigned) -> None:
    if not made.secret and not made.public_key:
        output.done(f"the webhook {made.name} of {made.topic} was there already")
        return
    chosen = f" what {made.rule} chooses" if made.rule else ""
    output.done(f"the webhook {made.name} of {made.topic} sends{chosen} to {made.url}")
    _show_key(made)


def _show_key(made: WebhookSigned) -> None:
    print(made.secret or made.public_key)
    is_shown = "this is its secret; it is not shown again"
    output.note(is_shown if made.secret else "this is its public key; its receiver verifies with it")


@app.command()
def update(
    topic: Topic,
    name: Name,
    url: str | None = option("Another URL.", metavar="URL"),
    *,
    options: WebhookFlags,
    context: ContextName = None,
) -> None:
    """Change a webhook's options. From then on it reads the topic in your name.

    Examples:
      landbridge webhook update orders shop --url https://shop.example/hooks/v2
      landbridge webhook update orders shop --ordered
    """
    wanted = options.as_asked() | given(url=url)
    if not wanted:
        raise typer.BadParameter("nothing to change: give an option")
    changed = ask(context, lambda bus: bus.webhooks.update(topic, name, **wanted))
    output.tell(changed, f"the webhook {name} of {topic} is changed")


@app.command("list")
def list_webhooks(
    topic: str | None = argument("TOPIC", "Only this topic's.", show_default=True),
    context: ContextName = None,
) -> None:
    """List webhooks.

    Examples:
      landbridge webhook list
      landbridge webhook list orders
    """
    rows = ask(context, lambda bus: bus.webhooks.list(topic=topic))
    output.rows(LIST, rows, empty="no webhooks yet: 'landbridge webhook create TOPIC NAME URL'")


@app.command()
def show(topic: Topic, name: Name, context: ContextName = None) -> None:
    """Show a webhook: its options and its last attempts, with what the receiver answered.

    Examples:
      landbridge webhook show orders shop
    """
    output.emit(ask(context, lambda bus: bus.webhooks.show(topic, name)), _show)


def _show(found: WebhookDetails) -> None:
    options, match = found.options, found.options.match
    patterns = {} if match is None else {"key": match.key, **match.headers}
    query = None if options.query is None else msgspec.json.encode(options.query).decode()
    row = output.fields(options) | output.fields(
        found,
        secrets=counted(len(found.secrets), "valid secret"),
        public_keys=found.public_keys or None,
        match=" ".join(f"{name}={pattern}" for name, pattern in patterns.items() if pattern) or "everything",
        query=query,
    )
    output.record(f"{found.topic} › {found.name}", SHOW, row)
    print()
    output.table(ATTEMPTS, [output.fields(each) for each in found.attempts], empty="  no attempts yet")


@app.command("test")
def probe(
    topic: Topic,
    name: Name,
    within: float = span("How long to wait for the answer.", value=20.0),
    context: ContextName = None,
) -> None:
    """Send a test to the receiver, and show what it answered. It is sent while the webhook is paused, too.
    Status 70 if it was not taken.

    Examples:
      landbridge webhook test orders shop
    """
    tested = ask(context, lambda bus: bus.webhooks.test(topic, name, within=within))
    output.emit(tested, _show_test)
    if tested.attempt is None or tested.attempt.verdict != "delivered":
        raise typer.Exit(FAILED)


def _show_test(tested: OutletTested) -> None:
    if tested.attempt is None:
        output.notice(f"the test {tested.id} has no answer yet: see 'landbridge webhook show'")
    else:
        output.table(ATTEMPTS, [output.fields(tested.attempt)], empty="")


@app.command()
def pause(
    topic: Topic,
    name: Name,
    note: Note = "",
    context: ContextName = None,
) -> None:
    """Pause a webhook. Its messages wait.

    Examples:
      landbridge webhook pause orders shop --note 'the shop is moving'
    """
    paused = ask(context, lambda bus: bus.webhooks.pause(topic, name, note=note))
    output.tell(paused, f"the webhook {name} of {topic} is paused")


@app.command()
def resume(topic: Topic, name: Name, context: ContextName = None) -> None:
    """Let a paused or disabled webhook go on, at once and as if nothing had failed.

    Examples:
      landbridge webhook resume orders shop
    """
    resumed = ask(context, lambda bus: bus.webhooks.resume(topic, name))
    output.tell(resumed, f"the webhook {name} of {topic} goes on")


@app.command()
def replay(
    topic: Topic,
    name: Name,
    first: int | None = option("The first offset.", metavar="OFFSET", min=0),
    end: int | None = option("The offset behind the last one.", metavar="OFFSET", min=0),
    begin: Annotated[float | None, From] = None,
    until: Until = None,
    context: ContextName = None,
) -> None:
    """Send a range of messages again, by offset or by time. They have the ids that they had. What was not
    sent yet is not counted.

    Examples:
      landbridge webhook replay orders shop --first 1000 --end 1200
      landbridge webhook replay orders shop --from '2h ago'
    """
    if (first is None) == (begin is None):
        raise typer.BadParameter("give --first or --from, one of them")
    wanted = given(
        first=first,
        end=end,
        begin=None if begin is None else int(begin * units.SECOND),
        until=None if until is None else int(until * units.SECOND),
    )
    done = ask(context, lambda bus: bus.webhooks.replay(topic, name, **wanted))
    output.tell(done, f"the webhook {name} of {topic} sends {counted(done.messages, 'message')} again")


@app.command()
def rotate(
    topic: Topic,
    name: Name,
    overlap: float | None = span("How long requests are signed with the old secret, too.", default="1d"),
    secret: Secret = "",
    asymmetric: bool | None = option(
        "Sign with a key (Ed25519), or with a secret; as before by default.", "--asymmetric/--symmetric"
    ),
    context: ContextName = None,
) -> None:
    """Give a webhook a new secret or key. A secret is shown once. For a while, requests are signed with both.

    Examples:
      landbridge webhook rotate orders shop
      landbridge webhook rotate orders shop --overlap 0s
    """
    wanted = given(overlap=overlap, asymmetric=asymmetric)
    made = ask(context, lambda bus: bus.webhooks.rotate(topic, name, secret=secret, **wanted))
    output.emit(made, _show_rotated)


def _show_rotated(made: WebhookSigned) -> None:
    output.done(f"the webhook {made.name} of {made.topic} has a new {'secret' if made.secret else 'key'}")
    _show_key(made)


@app.command()
def delete(topic: Topic, name: Name, context: ContextName = None) -> None:
    """Delete a webhook with its group. What it has not sent is not sent any more.

    Examples:
      landbridge webhook delete orders shop
    """
    deleted = ask(context, lambda bus: bus.webhooks.delete(topic, name))
    output.tell(deleted, f"the webhook {name} of {topic} is deleted")
