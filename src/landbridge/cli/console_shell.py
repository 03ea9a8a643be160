"""``landbridge console-shell``: a prompt with a connected bus and a running event gateway to play with.

The bus and the gateway live in an event loop in a thread of its own, so that they go on while one thinks;
a cell with ``await`` in it runs there too.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager
from typing import Annotated, Any

from landbridge.cli.loop import connected
from landbridge.cli.options import ContextName, argument_port, flag
from landbridge.cli.prompt import Command, check_installed, prompt
from landbridge.errors import BadContext

BANNER = """\
bus         a connected landbridge.Bus:            await bus.publish("orders", {{"id": 1}})
gateway     an event gateway on {event_port} (source) and {client_port} (clients)
start(…)    another one:                           await start(event_port=0, client_port=0)
Exchange    whom events are for, without sockets:  e = Exchange(); e.join(b"1"); e.dispatch([b"1|B"])
Sequencer   numbered payloads into order:          s = Sequencer(); s.offer(0, [2, 1], [b"b", b"a"])
"""


def console_shell(
    event_port: Annotated[
        int, argument_port("The gateway's port for the source; 0 takes a free one.")
    ] = 9090,
    client_port: Annotated[int, argument_port("The gateway's port for clients; 0 takes a free one.")] = 9099,
    memory: bool = flag("Bring a terminal along, in memory, for this session alone.", "--memory"),
    command: Command = None,
    context: ContextName = None,
) -> None:
    """Open a prompt (IPython) with a connected bus, an Exchange and a running event gateway.

    Examples:
      landbridge console-shell
      landbridge console-shell 0 0 --memory
      landbridge console-shell --memory -c 'print(await bus.terminal.info())'
    """
    check_installed("console-shell")
    if memory and context is not None:
        raise BadContext(
            "--memory brings a terminal of its own: it has no context", hint="give one of the two"
        )
    with _loop() as run:
        names, leave = run(_enter(event_port, client_port, context, memory=memory))
        try:
            gateway = names["gateway"]
            banner = BANNER.format(event_port=gateway.event_port, client_port=gateway.client_port)
            prompt(names, banner, command, runner=run)
        finally:
            run(leave())


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
    event_port: int, client_port: int, context: str | None, *, memory: bool
) -> tuple[dict[str, Any], Callable[[], Coroutine[Any, Any, Any]]]:
    """The names of the prompt, and what ends all that is behind them."""
    import landbridge
    from landbridge import testing
    from landbridge.core.events.exchange import Exchange
    from landbridge.core.events.sequencer import Sequencer
    from landbridge.gateways.event_topics import event_gateway
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
        gateway = event_gateway(bus, topic, EventOptions(**options))
        await stack.enter_async_context(gateway)
        await gateway.listen("127.0.0.1", event_port, client_port)
        return gateway

    try:
        bus = await stack.enter_async_context(testing.bus() if memory else connected(context))
        gateway = await start(event_port, client_port)
    except BaseException:
        await stack.aclose()
        raise
    classes = {"Exchange": Exchange, "Sequencer": Sequencer, "EventGateway": EventGateway}
    names = {"landbridge": landbridge, "bus": bus, "gateway": gateway, "start": start}
    return names | classes, stack.aclose
