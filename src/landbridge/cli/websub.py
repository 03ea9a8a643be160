"""``landbridge websub``: topics as feeds, and who has subscribed to them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from landbridge.cli import completion, output
from landbridge.cli.loop import ask
from landbridge.cli.mistyped import making
from landbridge.cli.options import Commands, ContextName, Topic, argument, option
from landbridge.cli.output import columns
from landbridge.cli.sending import ATTEMPTS, SendingFlags

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.protocol.operations import FeedRow, SubscriptionDetails

app = Commands(
    no_args_is_help=True, help="Feeds: topics that anybody may subscribe to by a callback (WebSub)."
)

FEEDS = columns(
    "Topic@cyan | Feed=path | Subscriptions:count | Pending:count@yellow | Owner | Source | Trouble@red"
)
FEED = columns(
    "Feed=path | Owner | Opened=opened_at:moment | Subscriptions:count | Pending:count@yellow | Ordered | "
    "Content type | Source | Pinged=pinged_at:moment | Fetched=fetched_at:moment | Trouble@red"
)
LIST = columns(
    "Topic@cyan | Id@cyan | Callback | State | Waits for | Until=expires_at:moment | Signed | Circuit | "
    "Lag:count@yellow | Delivered:count | Failed:count@red | Given up:count@red"
)
SHOW = columns(
    "Callback | State | Waits for | Feed=url | Hub | Group | Asked=created_at:moment | "
    "Verified=verified_at:moment | Lease:span | Until=expires_at:moment | Signed | Circuit | "
    "Lag:count@yellow | Delivered:count | Failed:count@red | Given up:count@red | "
    "Refused=refused_at:moment | Refused why@red | Trouble@red"
)

Id = Annotated[str, argument("ID", "The subscription's id.", autocompletion=completion.subscription_ids)]


class FeedFlags(SendingFlags):
    """The options of a feed."""

    base: str | None = option(
        "How the HTTP port is reached from outside, such as https://hub.example.", metavar="URL"
    )
    source: str | None = option(
        "A page that is fetched at each ping, and published when it has changed; '' for none.", metavar="URL"
    )

    def as_asked(self) -> dict[str, Any]:
        """Those that were given, as the terminal wants them."""
        return super().as_asked() | self.given("base", "source")


@app.command("open")
def open_feed(topic: Topic, *, options: FeedFlags, context: ContextName = None) -> None:
    """Open a topic as a feed, to which anybody may subscribe; or change a feed's options. Whoever reaches the
    HTTP port may read its newest message, too, without a token.

    Examples:
      landbridge websub open news --base https://hub.example
      landbridge websub open blog --source https://blog.example/feed.xml --content-type application/atom+xml
    """

    async def work(bus: Bus) -> FeedRow:
        async with making(bus, topic):
            return await bus.websub.open(topic, **options.as_asked())

    opened = ask(context, work)
    output.tell(opened, f"the topic {topic} is a feed at {opened.path}")


@app.command()
def close(topic: Topic, context: ContextName = None) -> None:
    """Close a feed. Its subscriptions end, and their callbacks are told. The topic stays.

    Examples:
      landbridge websub close news
    """
    output.tell(ask(context, lambda bus: bus.websub.close(topic)), f"the topic {topic} is no feed any more")


@app.command("feeds")
def list_feeds(context: ContextName = None) -> None:
    """List feeds.

    Examples:
      landbridge websub feeds
    """
    output.emit(ask(context, lambda bus: bus.websub.feeds()), _show_feeds)


def _show_feeds(found: list[FeedRow]) -> None:
    shown = [output.fields(row, source=row.options.source) for row in found]
    output.table(FEEDS, shown, empty="no feeds yet: 'landbridge websub open TOPIC'")


@app.command("list")
def list_subscriptions(
    topic: str | None = argument("TOPIC", "Only this feed's.", show_default=True),
    context: ContextName = None,
) -> None:
    """List the subscriptions of one feed, or of all.

    Examples:
      landbridge websub list
      landbridge websub list news
    """
    rows = ask(context, lambda bus: bus.websub.list(topic=topic))
    output.rows(LIST, rows, empty="no subscriptions yet")


@app.command()
def show(
    topic: Topic,
    id: str | None = argument(
        "ID", "A subscription's id; without one the feed.", autocompletion=completion.subscription_ids
    ),
    context: ContextName = None,
) -> None:
    """Show a feed, or one of its subscriptions with its last attempts.

    Examples:
      landbridge websub show news
      landbridge websub show news 3f0a1c
    """
    if id is None:
        output.emit(ask(context, lambda bus: bus.websub.show(topic)), _show_feed)
    else:
        output.emit(ask(context, lambda bus: bus.websub.inspect(topic, id)), _show)


def _show_feed(found: FeedRow) -> None:
    output.record(found.topic, FEED, output.fields(found, **output.fields(found.options)))


def _show(found: SubscriptionDetails) -> None:
    output.record(f"{found.topic} › {found.id}", SHOW, output.fields(found))
    print()
    output.table(ATTEMPTS, [output.fields(each) for each in found.attempts], empty="  no attempts yet")


@app.command()
def delete(topic: Topic, id: Id, context: ContextName = None) -> None:
    """End a subscription. Its callback is told, and may ask again.

    Examples:
      landbridge websub delete news 3f0a1c
    """
    deleted = ask(context, lambda bus: bus.websub.delete(topic, id))
    output.tell(deleted, f"the subscription {id} of {topic} ends")
