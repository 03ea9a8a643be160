"""From a command, which is a plain function, into the event loop and to the terminal."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from landbridge.cli import output
from landbridge.errors import TerminalUnreachable, TimedOut

if TYPE_CHECKING:
    from landbridge.client.bus import Bus

T = TypeVar("T")

#: Seconds. The system would try for two minutes to reach a host that doesn't answer.
CONNECT_WITHIN = 15.0
#: Seconds for an answer that takes a terminal milliseconds.
ANSWER_WITHIN = 30.0


def run(main: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end. The first SIGINT cancels it, the second ends the process."""
    factory: Callable[[], asyncio.AbstractEventLoop] = asyncio.new_event_loop
    try:
        from uvloop import new_event_loop as factory
    except ImportError:
        pass  # not on this platform
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(main)


class _Notices(logging.Handler):
    """Shows the user what the client logs, such as a lost connection."""

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
async def connected(
    context: str | None, name: str | None = None, *, telemetry: bool = False
) -> AsyncIterator[Bus]:
    """A bus on the context's terminal. ``name``: who is connected, in the status log; the command unless it
    is given. ``telemetry``: with OpenTelemetry."""
    from landbridge.client.bus import connect

    connecting = connect(context=context, name=name or output.choice.command, telemetry=telemetry)
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


def ask(
    context: str | None,
    question: Callable[[Bus], Coroutine[Any, Any, T]],
    *,
    within: float | None = ANSWER_WITHIN,
) -> T:
    """Connect, ask the terminal, leave. Returns its answer."""

    async def main() -> T:
        async with connected(context) as bus:
            try:
                async with asyncio.timeout(within):
                    return await question(bus)
            except TimeoutError:
                raise TimedOut(f"the terminal gave no answer within {within:.0f} s") from None

    return run(main())


def check_reachable(context: str | None) -> None:
    """Raise TerminalUnreachable now, and not after Spark has started."""
    ask(context, lambda bus: bus.terminal.info())
