"""``landbridge subscribe``: read a topic, a line for each message."""

from __future__ import annotations

import asyncio
import base64
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import completion, output, units
from landbridge.cli.loop import connected, run
from landbridge.cli.mistyped import Watch
from landbridge.cli.options import ContextName, argument, flag, option, span, start_of
from landbridge.cli.rule import read_match
from landbridge.core.names import CONTENT_TOPIC, is_pattern
from landbridge.core.text import printable, printable_block
from landbridge.errors import BusError, LeaseLost, UnknownTopic

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.client.message import DeliveredBatch, Message
    from landbridge.client.reading import Reading
    from landbridge.core.pauses import PauseNote

#: Messages that may be here and unsettled. A group's other consumers want some too; nobody shares the group
#: that lives with its subscriber.
PREFETCH, PREFETCH_ALONE = 10_000, 100_000
#: With --no-ack nothing is ever settled, so this is where reading would stop.
PREFETCH_UNSETTLED = 1_000_000

Count = Annotated[int | None, option("End after this number of messages.", min=1)]
Start = Annotated[
    str | None,
    start_of(
        "Where a new group begins: an ISO 8601 time, '10m ago', -10m. ",
        "earliest with a group, latest without",
    ),
]
Wait = Annotated[float | None, span("End when no message has come for this time (5, 1m).")]

#: Prints the first so many messages of a batch.
Printer = Callable[["DeliveredBatch", int], None]


def subscribe(
    topic: Annotated[
        str | None,
        argument(
            "TOPIC",
            "The topic's name, or a pattern of several: '*' is one word, '#' any number. With --match it "
            "may be missing.",
            autocompletion=completion.topic_names,
        ),
    ] = None,
    match: str | None = option(
        "Only messages that this query chooses: of the topic; without one, of what has none.",
        metavar="JSON|@FILE",
    ),
    group: str | None = option(
        "Read as this group, which is made if it is missing. Without: for yourself, from now on.",
        autocompletion=completion.group_names,
    ),
    count: Count = None,
    start: Start = None,
    no_ack: bool = flag("Look only: the group gets the messages again afterwards.", "--no-ack"),
    wait: Wait = None,
    batch: bool = flag("Show which messages came together; with --json, an array for each batch.", "--batch"),
    context: ContextName = None,
) -> None:
    """Read messages, until Ctrl-C. Each is acked when it is printed.

    On a pipe, payloads are printed as they are, a line each. A pattern reads all topics that it covers, also
    those that are made later; --json tells the topic of each message.

    Examples:
      landbridge subscribe orders
      landbridge subscribe orders --group billing --json | jq .payload
      landbridge subscribe orders --from '1h ago' --wait 2s | wc -l
      landbridge subscribe 'orders.*' --group billing
      landbridge subscribe --match '{"state": ["paid"]}' --group billing
    """
    query = None if match is None else read_match(match)
    if query is not None:
        topic = topic or CONTENT_TOPIC
    if topic is None:
        raise typer.BadParameter("give a topic, or a query with --match")
    reader = Reader(topic, group, start, query, count=count, wait=wait, ack=not no_ack)
    reader.run(context, printer(batches=batch, topics=is_pattern(topic)))


def _tell_of_pause(pause: PauseNote | None) -> None:
    output.notice("goes on" if pause is None else f"paused {pause.told}")


@dataclass
class Reader:
    """One reading of a topic."""

    topic: str
    group: str | None
    start: str | float | None
    #: A query that chooses from the topic; None: all of it is read.
    match: dict[str, Any] | None = None
    #: Messages still wanted; None: all.
    count: int | None = None
    #: Seconds without a message after which the reading ends; None: never.
    wait: float | None = None
    ack: bool = True
    #: Batches that were only looked at.
    held: list[DeliveredBatch] = field(default_factory=list)

    def run(self, context: str | None, show: Printer) -> None:
        """Until there is enough, or SIGINT or SIGTERM."""
        try:
            run(self._main(context, show))
        except (KeyboardInterrupt, asyncio.CancelledError):
            pass  # the usual way to end it

    async def _main(self, context: str | None, show: Printer) -> None:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        async with connected(context) as bus:
            await self._warn(bus)
            prefetch = PREFETCH_ALONE if self.group is None else PREFETCH if self.ack else PREFETCH_UNSETTLED
            prefetch = min(prefetch, self.count or prefetch)
            subscription = bus.subscribe(
                self.topic, match=self.match, group=self.group, prefetch=prefetch, start=self.start
            )
            subscription.on_paused = _tell_of_pause
            async with await self._opened(bus, subscription):
                if output.on_terminal() and self.count is None and self.wait is None:
                    begin = " from now on" if self.group is None and self.start is None else ""
                    output.note(f"reading {subscription.topic}{begin}; Ctrl-C ends")
                holding = asyncio.ensure_future(self._hold(subscription))
                try:
                    await self._read(subscription, show)
                finally:
                    holding.cancel()

    async def _opened(self, bus: Bus, subscription: Reading) -> Reading:
        if is_pattern(self.topic):
            return await subscription.open()
        watch = await Watch.begin(bus, self.topic)
        try:
            await subscription.open()
        except UnknownTopic as error:
            await watch.suggest(error)
            raise
        await watch.tell()
        if self.match is None:
            await watch.tell_of_group(self.group)
        return subscription

    async def _warn(self, bus: Bus) -> None:
        """Say what might surprise."""
        if self.group is None or self.start is None or is_pattern(self.topic) or self.match is not None:
            return
        try:
            await bus.groups.show(self.topic, self.group)
        except BusError:
            return  # there is no such group yet, or subscribing will tell
        output.note(
            f"the group {self.group} exists and goes on where it is, whatever --from says; "
            "'landbridge group seek' moves it"
        )

    async def _read(self, subscription: Reading, show: Printer) -> None:
        while True:
            try:
                async with asyncio.timeout(self.wait):
                    batch = await subscription.next_batch()
            except TimeoutError:
                return
            if batch is None:
                return
            count = len(batch) if self.count is None else min(self.count, len(batch))
            show(batch, count)
            if not self.ack:
                self.held.append(batch)
            elif count == len(batch):
                await _settled(batch.ack())
            else:
                for message in islice(batch, count):
                    await _settled(message.ack())
            if self.count is not None:
                self.count -= count
                if not self.count:
                    return

    async def _hold(self, subscription: Reading) -> None:
        """With --no-ack: extend the leases of what was only looked at. If they expired, every message would
        come again and again, and be buried after the group's last attempt."""
        if self.ack or subscription.group is None:
            return
        while True:
            await asyncio.sleep(subscription.ack_within / 3)
            for batch in self.held:
                if not batch.subscription.at_most_once:
                    await _settled(batch.extend())


async def _settled(settlement: asyncio.Future[None]) -> None:
    try:
        await settlement
    except LeaseLost:
        pass  # printing took too long, or the connection was lost: it comes again


# -- printing ------------------------------------------------------------------------------------------


def printer(*, batches: bool = False, topics: bool = False) -> Printer:
    """``topics``: the messages are of several topics, which are shown."""
    if output.choice.json:
        return partial(_print_json_batch if batches else _print_json, topics=topics)
    if output.on_terminal():
        return _pretty(batches=batches, topics=topics)
    return print_payloads


def print_payloads(batch: DeliveredBatch, count: int) -> None:
    payloads = batch.payloads if count == len(batch) else batch.payloads[:count]
    _write(b"\n".join(payloads) + b"\n")


def _write(data: bytes) -> None:
    """All of it, now: it is acked next."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def describe(message: Message) -> dict[str, Any]:
    """A message as JSON has it."""
    fields: dict[str, Any] = {
        "offset": message.offset,
        "id": message.id,
        "time": message.time,
        "key": message.key,
        "headers": message.headers,
        "priority": message.priority,
        "attempt": message.attempt,
    }
    try:
        fields["payload"] = message.payload.decode()
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.payload).decode()
    return fields


def _described(batch: DeliveredBatch, count: int, *, topics: bool) -> list[dict[str, Any]]:
    topic = {"topic": batch.topic} if topics else {}
    return [topic | describe(message) for message in islice(batch, count)]


def _print_json(batch: DeliveredBatch, count: int, *, topics: bool) -> None:
    import msgspec

    _write(msgspec.json.Encoder().encode_lines(_described(batch, count, topics=topics)))


def _print_json_batch(batch: DeliveredBatch, count: int, *, topics: bool) -> None:
    output.write_json(_described(batch, count, topics=topics))


def _pretty(*, batches: bool, topics: bool) -> Printer:
    from rich.highlighter import JSONHighlighter
    from rich.text import Text

    screen = output.console()
    highlight = JSONHighlighter()

    def show(batch: DeliveredBatch, count: int) -> None:
        if batches:
            screen.print(Text(f"── {count} together ──", style="dim"))
        for message in islice(batch, count):
            head = Text(f"{message.offset:>8}  {units.clock(message.time)}  ", style="dim")
            if topics:
                head.append(f"{batch.topic}  ", style="green")
            if message.key is not None:
                head.append(f"{printable(message.key)}  ", style="cyan")
            if message.priority:
                head.append(f"p{message.priority}  ", style="magenta")
            if message.attempt > 1:
                head.append(f"attempt {message.attempt}  ", style="yellow")
            screen.print(head.append(_payload(message.payload, screen.width, highlight)), soft_wrap=True)
            for name, value in message.headers.items():
                screen.print(
                    Text(f"          {printable(name)}: {printable(str(value))}", style="dim"), soft_wrap=True
                )

    return show


def _payload(payload: bytes, width: int, highlight: Any) -> Any:
    """JSON in colours, on several lines if it is long; text as it is; bytes as their beginning in hex."""
    import msgspec
    from rich.text import Text

    try:
        text = payload.decode()
    except UnicodeDecodeError:
        more = "…" if len(payload) > 32 else ""
        return Text(f"{len(payload)} bytes: {payload[:32].hex(' ')}{more}", style="default italic")
    if text.lstrip()[:1] in ("{", "["):
        try:
            if len(text) > width:
                text = "\n" + msgspec.json.format(text, indent=2)
            else:
                msgspec.json.decode(text)
        except msgspec.MsgspecError:
            pass
        else:
            coloured = Text(printable_block(text), style="not dim")
            highlight.highlight(coloured)
            return coloured
    return Text(printable_block(text), style="not dim")
