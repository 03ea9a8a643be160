"""``landbridge publish``: one message, or a line of stdin each."""

from __future__ import annotations

import asyncio
import os
import select
import stat
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from landbridge.cli import completion, output, units
from landbridge.cli.loop import connected, run
from landbridge.cli.mistyped import Watch
from landbridge.cli.options import ContextName, argument, flag, given, option, pairs, span
from landbridge.core.names import CONTENT_TOPIC
from landbridge.core.wording import counted
from landbridge.errors import BadRequest, BusError, TimedOut, TooLarge, UnknownTopic

if TYPE_CHECKING:
    from landbridge.client.bus import Bus
    from landbridge.client.publisher import Publisher

STDIN = 0
#: Bytes gathered from stdin before they are cut into lines, if they come that quickly.
CHUNK = 1 << 20
#: Bytes of one line. Far above what a terminal takes; below what would hurt us.
LONGEST_LINE = 64 << 20
#: Messages handed over at a time with --repeat.
STEP = 4096

Until = Literal["stored", "arrived", "acked"]


def publish(
    topic: Annotated[
        str | None,
        argument("TOPIC", "The topic's name; none with --content.", autocompletion=completion.topic_names),
    ] = None,
    payload: str | None = argument(
        "PAYLOAD | -", "The message. '-', or nothing on a pipe: every line of stdin is one."
    ),
    key: str | None = option("A key, for the groups' filters and for you."),
    header: list[str] | None = option("Repeatable.", metavar="NAME=VALUE"),
    priority: int = option("For groups of discipline priority.", min=0, max=9, value=0),
    delay: float | None = span("Deliver it after this time (30s, 5m)."),
    expires: float | None = span("Don't deliver it when this time is over (1h)."),
    file: Path | None = option("Publish the whole file as one message.", metavar="PATH"),
    repeat: int = option("How often to publish it.", min=1, value=1),
    until: Until = option(
        "Return when it is stored here; at a terminal of each group; or acked in each.", value="stored"
    ),
    within: float | None = span("With --until: wait no longer.", default="for ever"),
    idempotency_key: str | None = option(
        "Names this publish: the same again, with the same key, stores nothing.", metavar="KEY"
    ),
    content: bool = flag("Without a topic: rules say who gets it, see 'landbridge rule'.", "--content"),
    context: ContextName = None,
) -> None:
    """Publish messages. Returns when they are stored, or when --until says.

    Examples:
      landbridge publish orders '{"id": 1}' --key eu --header source=shop
      landbridge publish orders --file invoice.pdf
      landbridge publish orders '{"id": 2}' --until arrived
      landbridge publish orders '{"id": 3}' --idempotency-key 0192b3c4-5d6e-7f80-9a1b-2c3d4e5f6071
      landbridge publish --content '{"state": "paid", "amount": 12.5}'
      tail -f access.log | landbridge publish logs
    """
    if content:
        if topic is not None and payload is not None:
            raise typer.BadParameter("give a topic or --content, not both")
        topic, payload = CONTENT_TOPIC, topic
    if topic is None:
        raise typer.BadParameter("give a topic, or --content to publish without one")
    if payload is None and file is None and topic[:1] in ("{", "["):
        raise typer.BadParameter(f"{topic[:60]!r} is no topic: give one, or --content to publish without one")
    options = given(key=key, headers=pairs(header or [], "header") or None, priority=priority or None)
    job = _Job(topic, options, delay, expires, until, within, idempotency_key)
    is_one = repeat == 1 and (file is not None or payload not in (None, "-"))
    if idempotency_key is not None and not is_one:
        raise typer.BadParameter("--idempotency-key is for one message, not for many")
    if until != "stored" and repeat != 1:
        raise typer.BadParameter("--until is for one message, not for many")
    if payload is not None and file is not None:
        raise typer.BadParameter("give a payload or --file, not both")
    if file is not None:
        run(job.publish(context, read_file(file), repeat))
    elif payload is not None and payload != "-":
        run(job.publish(context, payload.encode(errors="surrogateescape"), repeat))
    elif payload is None and sys.stdin.isatty():
        raise typer.BadParameter("give a payload, or '-' to type messages line by line")
    elif until != "stored":
        raise typer.BadParameter("--until is for one message, not for lines of stdin")
    elif repeat != 1:
        raise typer.BadParameter("--repeat is for one payload, not for lines of stdin")
    else:
        run(job.publish_lines(context))


def read_file(file: Path) -> bytes:
    """What --file names. BadRequest where it can't be read."""
    try:
        return file.read_bytes()
    except OSError as error:
        raise BadRequest(f"can't read {file}: {error.strerror}") from None


#: Seconds of silence after which the user is told what is waited for.
TELL_AFTER = 5.0


class _Job(NamedTuple):
    """What is to be published, and where to."""

    topic: str
    #: As the publisher's ``send`` takes them, without the moments.
    fixed: dict[str, Any]
    #: Seconds from now; None: at once, and for ever.
    delay: float | None
    expires: float | None
    until: Until
    #: Seconds to wait for ``until``; None: for ever.
    within: float | None
    #: Names the publish; None: it has no name.
    key: str | None = None

    def options(self) -> dict[str, Any]:
        """The options of a message that is published now."""
        now = time.time()
        spans = given(deliver_at=self.delay, expires_at=self.expires)
        return self.fixed | {name: now + span for name, span in spans.items()}

    async def publish(self, context: str | None, payload: bytes, repeat: int) -> None:
        """Publish one payload, once or several times."""
        async with connected(context) as bus:
            if repeat == 1:
                watch = await Watch.begin(bus, self.topic)
                told = asyncio.create_task(self._tell_of_pause(bus))
                try:
                    receipt = await bus.publish(
                        self.topic, payload, idempotency_key=self.key, **self.options()
                    )
                except UnknownTopic as error:
                    await watch.suggest(error)
                    raise
                finally:
                    told.cancel()
                result = {"topic": self.topic, "id": receipt.id, "offset": receipt.offset}
                if self.key is not None:
                    result["repeated"] = receipt.repeated
                before = "was stored before" if receipt.repeated else "stored"
                stored = f"{before} in {self.topic} at offset {receipt.offset}, id {receipt.id}"
                if self.until == "stored":
                    output.tell(result, stored)
                if not receipt.offset:
                    await watch.tell()
                if self.until != "stored":
                    output.notice(stored)  # whoever has enough of waiting needs the id
                    await self._wait(bus, receipt.offset)
                    output.tell({**result, "until": self.until}, self.until)
            else:
                await self._many(bus, _repeated(payload, repeat), messages=repeat)

    async def _wait(self, bus: Bus, offset: int) -> None:
        told = asyncio.get_running_loop().call_later(TELL_AFTER, self._tell_of_waiting)
        try:
            async with asyncio.timeout(self.within):
                await bus.messages.wait(self.topic, offset, self.until)
        except TimeoutError:
            raise TimedOut(
                f"stored, but not {self.until} within {units.span(self.within or 0)}",
                hint="it is on its way: don't publish it again, ask 'landbridge where ID'",
            ) from None
        finally:
            told.cancel()

    async def _tell_of_pause(self, bus: Bus) -> None:
        """After a while without an answer: say so where the topic is paused. Where that can't be asked,
        nothing is told."""
        await asyncio.sleep(TELL_AFTER)
        with suppress(BusError):
            pause = (await bus.topics.show(self.topic)).pause
            if pause is not None:
                output.notice(f"{self.topic} is paused {pause.told}; trying on for a while, Ctrl-C ends it")

    def _tell_of_waiting(self) -> None:
        output.notice(
            f"waiting until it is {self.until}; 'landbridge where ID' tells where it is, Ctrl-C ends the wait"
        )

    async def publish_lines(self, context: str | None) -> None:
        """Publish each line of stdin."""
        async with connected(context) as bus:
            await self._many(bus, _lines(), size=_size_of_stdin())

    async def _many(
        self, bus: Bus, chunks: AsyncIterator[tuple[int, list[bytes]]], *, messages: int = 0, size: int = 0
    ) -> None:
        """Publish chunks of payloads, (bytes so far, payloads) each.

        messages, size: how much will come, 0 where nobody knows."""
        watch = await Watch.begin(bus, self.topic)
        began = time.perf_counter()
        publisher = bus.publisher(self.topic)
        progress = _Progress(bus, publisher, messages, size)
        interrupted: BaseException | None = None
        try:
            async with progress:
                try:
                    async for position, payloads in chunks:
                        progress.position = position
                        await self._send(publisher, payloads)
                except asyncio.CancelledError as error:
                    interrupted = error  # what was taken from stdin is stored all the same
                await publisher.flush()
        except BusError as error:
            with suppress(BusError):
                await publisher.flush()  # what was sent before it may still be on its way
            if isinstance(error, UnknownTopic):
                await watch.suggest(error)
            error.add_note(f"{counted(publisher.stored, 'message')} stored")
            raise
        _tell(self.topic, publisher.stored, time.perf_counter() - began)
        if publisher.stored:
            await watch.tell()
        if interrupted is not None:
            raise interrupted

    async def _send(self, publisher: Publisher, payloads: list[bytes]) -> None:
        options = self.options()
        if not options:
            await publisher.send_many(payloads)
        else:
            for payload in payloads:
                await publisher.send(payload, **options)


def _tell(topic: str, stored: int, seconds: float) -> None:
    rate = stored / seconds if seconds else 0.0
    result = {"topic": topic, "published": stored, "seconds": round(seconds, 6), "rate": round(rate, 1)}
    messages = counted(stored, "message")
    output.tell(result, f"{messages} stored in {topic} in {units.span(seconds)}, {rate:,.0f} a second")


async def _repeated(payload: bytes, repeat: int) -> AsyncIterator[tuple[int, list[bytes]]]:
    for at in range(0, repeat, STEP):
        yield 0, [payload] * min(STEP, repeat - at)


# -- stdin ---------------------------------------------------------------------------------------------


def _size_of_stdin() -> int:
    """Bytes, where it is a file; otherwise 0."""
    status = os.fstat(STDIN)
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


async def _lines() -> AsyncIterator[tuple[int, list[bytes]]]:
    """The lines of stdin in chunks, with the number of bytes read. A chunk is what has come so far, so that
    ``tail -f`` is published line by line and a large file in large batches."""
    loop = asyncio.get_running_loop()
    waiting: asyncio.Queue[tuple[int, list[bytes]] | BaseException | None] = asyncio.Queue()
    # Two chunks wait at most: reading goes on while we send, and stops when the terminal holds us back.
    room = threading.Semaphore(2)

    def hand_over(item: tuple[int, list[bytes]] | BaseException | None) -> None:
        room.acquire()
        loop.call_soon_threadsafe(waiting.put_nowait, item)

    def read() -> None:
        try:
            try:
                for item in _read_lines():
                    hand_over(item)
                hand_over(None)
            except (BusError, OSError) as error:
                hand_over(error)
        except RuntimeError:
            pass  # the loop is closed: publishing has ended, and nobody waits for us

    # A thread of its own, which doesn't keep the process alive: nothing but input ends its read.
    threading.Thread(target=read, name="landbridge-stdin", daemon=True).start()
    while (item := await waiting.get()) is not None:
        room.release()
        if isinstance(item, BaseException):
            raise item
        yield item


def _read_lines() -> Iterator[tuple[int, list[bytes]]]:
    position = 0
    # The beginning of a line whose end hasn't come: in pieces, so that a long line is copied once.
    begun: list[bytes] = []
    held = 0
    ended = False
    while not ended:
        data, ended = _read_chunk()
        position += len(data)
        lines = data.split(b"\n")
        if len(lines) > 1:
            lines[0] = b"".join((*begun, lines[0]))
            rest = lines.pop()
            begun, held = ([rest], len(rest)) if rest else ([], 0)
            yield position, lines
        elif data:
            begun.append(data)
            held += len(data)
            if held > LONGEST_LINE:
                raise TooLarge(
                    f"a line of more than {units.size(LONGEST_LINE)}", hint="publish a whole file with --file"
                )
    if begun:
        yield position, [b"".join(begun)]


def _read_chunk() -> tuple[bytes, bool]:
    """What there is to read, waiting only for the first byte; and whether that was all."""
    parts: list[bytes] = []
    size = 0
    while size < CHUNK and (not parts or select.select([STDIN], [], [], 0)[0]):
        data = os.read(STDIN, CHUNK - size)
        if not data:
            return b"".join(parts), True  # to be kept in mind: a terminal tells its end (Ctrl-D) only once
        parts.append(data)
        size += len(data)
    return b"".join(parts), False


# -- progress ------------------------------------------------------------------------------------------


class _Progress:
    """A bar on stderr while many messages are on their way, where somebody is looking."""

    #: Seconds before it appears, so that short work doesn't flicker.
    AFTER = 0.3
    EVERY = 0.1

    def __init__(self, bus: Bus, publisher: Publisher, messages: int, size: int) -> None:
        self._bus = bus
        self._publisher = publisher
        self._messages, self._size = messages, size
        #: Bytes of stdin taken so far.
        self.position = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        # With stdin on the terminal, a bar would be in the way of whoever is typing.
        if sys.stderr.isatty() and not output.choice.json and not (sys.stdin.isatty() and not self._messages):
            self._task = asyncio.ensure_future(self._show())

    async def __aexit__(self, *error: Any) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])  # the bar is gone before the result is printed

    async def _show(self) -> None:
        await asyncio.sleep(self.AFTER)
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        began = time.perf_counter() - self.AFTER
        total = self._messages or self._size or None
        columns = (
            SpinnerColumn(),
            *((BarColumn(), TextColumn("{task.percentage:>3.0f} %")) if total else ()),
            TextColumn("[bold]{task.fields[stored]}[/bold] stored"),
            TextColumn("[cyan]{task.fields[rate]}/s[/cyan]"),
            TimeElapsedColumn(),
            TextColumn("[yellow]{task.fields[trouble]}[/yellow]"),
        )
        with Progress(
            *columns, console=output.console(stderr=True), auto_refresh=False, transient=True
        ) as bar:
            task = bar.add_task("", total=total, stored="0", rate="0", trouble="")
            while True:
                stored = self._publisher.stored
                bar.update(
                    task,
                    completed=stored if self._messages else self.position,
                    stored=units.count(stored),
                    rate=units.count(stored / (time.perf_counter() - began)),
                    trouble="" if self._bus.is_connected else "waiting for the terminal…",
                    refresh=True,
                )
                await asyncio.sleep(self.EVERY)
