"""From a command, which is a plain function, into the event loop and to the terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any, TypeVar

from landbridge.cli import output
from landbridge.client.bus import Bus, connect
from landbridge.errors import TerminalUnreachable, TimedOut

T = TypeVar("T")

#: Seconds. The system would try for two minutes to reach a host that doesn't answer.
CONNECT_WITHIN = 15.0
#: Seconds for an answer that takes a terminal milliseconds.
ANSWER_WITHIN = 30.0


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run it to its end. The first SIGINT cancels it, the second ends it at once."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        pass  # not on this platform
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class _Notices(logging.Handler):
    """What the client logs, such as a lost connection, is shown to whoever waits for it."""

    def emit(self, record: logging.LogRecord) -> None:
        output.notice(record.getMessage())


@contextmanager
def noticed() -> Iterator[None]:
    log = logging.getLogger("landbridge.client")
    if logging.getLogger().handlers:  # a command with a log of its own, where these lines go too
        yield
        return
    notices = _Notices(logging.WARNING)
    log.addHandler(notices)
    try:
        yield
    finally:
        log.removeHandler(notices)


@asynccontextmanager
async def connected(context: str | None, name: str) -> AsyncIterator[Bus]:
    """A bus on the context's terminal. ``name`` is what the status log calls us."""
    connecting = connect(context=context, name=name)
    try:
        async with asyncio.timeout(CONNECT_WITHIN):
            bus = await connecting
    except TimeoutError:
        raise TerminalUnreachable(f"no connection within {CONNECT_WITHIN:.0f} s") from None
    with noticed():
        try:
            yield bus
        finally:
            await bus.close()


def ask(context: str | None, op: str, *, within: float | None = ANSWER_WITHIN, **args: Any) -> Any:
    """Connect, ask one thing, leave."""

    async def main() -> Any:
        async with connected(context, f"landbridge {op}") as bus:
            return await _within(within, bus.call(op, **args))

    return run(main())


def ask_all(context: str | None, op: str, rows: str, **args: Any) -> list[dict[str, Any]]:
    """All pages of a list, joined."""

    async def main() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        after = ""
        async with connected(context, f"landbridge {op}") as bus:
            while True:
                page = await _within(ANSWER_WITHIN, bus.call(op, after=after, **args))
                found += page[rows]
                after = page["next"]
                if not after:
                    return found

    return run(main())


async def _within(seconds: float | None, question: Coroutine[Any, Any, T]) -> T:
    try:
        async with asyncio.timeout(seconds):
            return await question
    except TimeoutError:
        raise TimedOut(f"the terminal gave no answer within {seconds:.0f} s") from None
