"""``landbridge console-shell``: a prompt with a connected bus and a running event gateway to play with.

The bus and the gateway live in an event loop in a thread of its own, so that they go on while one thinks;
a cell with ``await`` in it runs there too.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.options import ContextName, Json
from landbridge.errors import BadContext, BadRequest

if TYPE_CHECKING:
    from landbridge.client.bus import Bus

BANNER = """\
bus         a connected landbridge.Bus:            await bus.publish("orders", {{"id": 1}})
gateway     an event gateway on {event_port} (source) and {client_port} (clients)
start(…)    another one:                           await start(event_port=0, client_port=0)
Exchange    whom events are for, without sockets:  e = Exchange(); e.join(b"1"); e.dispatch([b"1|B"])
Sequencer   numbered payloads into order:          s = Sequencer(); s.offer(0, [2, 1], [b"b", b"a"])
"""


def console_shell(
    event_port: Annotated[
        int, typer.Argument(min=0, max=65535, help="The gateway's port for the source; 0 takes a free one.")
    ] = 9090,
    client_port: Annotated[
        int, typer.Argument(min=0, max=65535, help="The gateway's port for clients; 0 takes a free one.")
    ] = 9099,
    memory: Annotated[
        bool, typer.Option("--memory", help="Bring a terminal along, in memory, for this session alone.")
    ] = False,
    command: Annotated[
        str | None,
        typer.Option("--command", "-c", metavar="CODE", help="Run this and leave.", show_default=False),
    ] = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Open a prompt (IPython) with a connected bus, an Exchange and a running event gateway.

    \b
    Examples:
      landbridge console-shell
      landbridge console-shell 0 0 --memory
      landbridge console-shell --memory -c 'print(await bus.call("terminal.info"))'
    """
    try:
        from IPython.terminal.interactiveshell import TerminalInteractiveShell
        from traitlets.config import Config
    except ImportError:
        raise BadRequest(
            "console-shell needs IPython, which is not installed", hint="pip install 'landbridge[shell]'"
        ) from None
    if memory and context is not None:
        raise BadContext(
            "--memory brings a terminal of its own: it has no context", hint="give one of the two"
        )
    with _loop() as run:
        names, leave = run(_enter(event_port, client_port, None if memory else (context,)))
        try:
            config = Config()
            # What is run by a program is nobody's history.
            config.HistoryManager.enabled = command is None and sys.stdin.isatty()
            config.TerminalInteractiveShell.banner1 = BANNER.format(
                event_port=names["gateway"].event_port, client_port=names["gateway"].client_port
            )
            config.TerminalInteractiveShell.confirm_exit = False
            shell: Any = TerminalInteractiveShell.instance(user_ns=names, config=config)
            shell.loop_runner = run
            shell.autoawait = True
            if command is None:
                shell.mainloop()
            else:
                done = run_as_json(shell, command) if json else shell.run_cell(command)
                if not done.success:
                    raise typer.Exit(1)
        finally:
            TerminalInteractiveShell.clear_instance()
            run(leave())


def run_as_json(shell: Any, command: str) -> Any:
    """With --json: what the code has printed, and its last value."""
    from IPython.utils.capture import capture_output

    with capture_output(display=False) as captured:
        done = shell.run_cell(command)
    output.write_json(
        {"output": captured.stdout, "result": None if done.result is None else repr(done.result)}
    )
    return done


@contextmanager
def _loop() -> Iterator[Callable[[Coroutine[Any, Any, Any]], Any]]:
    """A running event loop; what is yielded runs a coroutine there and waits for it. Ctrl-C cancels it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="landbridge-shell", daemon=True)
    thread.start()

    def run(coroutine: Coroutine[Any, Any, Any]) -> Any:
        task = asyncio.run_coroutine_threadsafe(coroutine, loop)
        try:
            return task.result()
        except KeyboardInterrupt:
            task.cancel()
            raise

    try:
        yield run
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()


async def _enter(
    event_port: int, client_port: int, context: tuple[str | None] | None
) -> tuple[dict[str, Any], Callable[[], Coroutine[Any, Any, Any]]]:
    """The names of the prompt, and what ends all that is behind them. ``context`` None: in memory."""
    import landbridge
    from landbridge.core.events.exchange import Exchange
    from landbridge.core.events.sequencer import Sequencer
    from landbridge.gateways.events import CLIENT_PORT, EVENT_PORT, EventGateway, EventOptions

    stack = AsyncExitStack()

    async def start(
        event_port: int = EVENT_PORT,
        client_port: int = CLIENT_PORT,
        *,
        topic: str | None = None,
        **options: Any,
    ) -> EventGateway:
        """Start an event gateway on the bus; it ends with the shell, or by ``await gateway.close()``."""
        gateway = EventGateway(bus, topic=topic, options=EventOptions(**options))
        await stack.enter_async_context(gateway)
        await gateway.listen("127.0.0.1", event_port, client_port)
        return gateway

    try:
        bus = await stack.enter_async_context(_bus(context))
        gateway = await start(event_port, client_port)
    except BaseException:
        await stack.aclose()
        raise
    names = {
        "landbridge": landbridge,
        "bus": bus,
        "gateway": gateway,
        "start": start,
        "Exchange": Exchange,
        "Sequencer": Sequencer,
        "EventGateway": EventGateway,
    }
    return names, stack.aclose


@asynccontextmanager
async def _bus(context: tuple[str | None] | None) -> AsyncIterator[Bus]:
    if context is None:
        from landbridge import testing

        async with testing.bus() as bus:
            yield bus
    else:
        from landbridge.cli.loop import connected

        async with connected(context[0], "landbridge console-shell") as bus:
            yield bus
