"""``landbridge run``: a service of decorated handlers, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated, Any

import typer

from landbridge.cli import output
from landbridge.cli.imports import imported
from landbridge.cli.options import ContextName, Json
from landbridge.core.wording import counted
from landbridge.errors import BadRequest

if TYPE_CHECKING:
    from landbridge.client.service import Service

HINT = (
    "as in 'landbridge run shop.billing:service', where shop/billing.py says service = landbridge.Service(…)"
)


def run_service(
    service: Annotated[
        str,
        typer.Argument(
            metavar="MODULE:SERVICE", help="Where the Service is. The current folder is searched too."
        ),
    ],
    log_level: Annotated[str, typer.Option(metavar="LEVEL", help="debug, info, warning or error.")] = "info",
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Run a service. SIGTERM and Ctrl-C let its handlers finish what they have in hand.

    \b
    Examples:
      landbridge run shop.billing:service
    """
    from landbridge.cli.loop import run
    from landbridge.node import logs

    logs.configure(log_level)
    run(_run(find(service), context))


def find(spec: str) -> Service:
    """The service that ``module:name`` stands for."""
    from landbridge.client.service import Service

    name, colon, attribute = spec.partition(":")
    if not name or (colon and not attribute):
        raise BadRequest(f"{spec!r} names no service", hint=HINT)
    module = imported(name, HINT)
    if not colon:
        found = [value for value in vars(module).values() if isinstance(value, Service)]
        if len(found) != 1:
            raise BadRequest(f"the module {name} has {counted(len(found), 'service')}: name one", hint=HINT)
        return found[0]
    value: Any = module
    for part in attribute.split("."):
        value = getattr(value, part, None)
    if not isinstance(value, Service):
        what = "nothing" if value is None else f"no Service but a value of type {type(value).__name__}"
        raise BadRequest(f"there is {what} at {spec}", hint=HINT)
    return value


async def _run(service: Service, context: str | None) -> None:
    from landbridge.cli.loop import connected
    from landbridge.node import logs

    loop = asyncio.get_running_loop()
    log = logs.take_over(loop)

    def stop(number: int) -> None:
        log.info("stopping", service=service.name, signal=signal.Signals(number).name)
        service.stop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)  # the next one ends the process

    async with connected(context, service.name) as bus:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        routes = [{"topic": route.topic, "group": route.group} for route in service.routes]
        if output.choice.json:
            output.write_json({"service": service.name, "terminal": bus.terminal, "routes": routes})
        log.info(
            "running", service=service.name, terminal=bus.terminal,
            routes=", ".join(f"{route['topic']} › {route['group']}" for route in routes),
        )  # fmt: skip
        await service.run(bus)
    log.info("stopped", service=service.name)
