"""``landbridge run``: a service of decorated handlers, until it is told to stop."""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING, Annotated

from landbridge.cli import output
from landbridge.cli.imports import find
from landbridge.cli.loop import connected, run
from landbridge.cli.options import ContextName, argument, flag, option

if TYPE_CHECKING:
    from landbridge.client.service import Service

HINT = (
    "as in 'landbridge run shop.billing:service', where shop/billing.py says service = landbridge.Service(…)"
)


def run_service(
    service: Annotated[
        str,
        argument(
            "MODULE:SERVICE", "Where the Service is. The current folder is searched too.", show_default=True
        ),
    ],
    log_level: str = option("debug, info, warning or error.", metavar="LEVEL", value="info"),
    telemetry: bool = flag(
        "Send traces and metrics to the process's OpenTelemetry providers (the extra otel).", "--telemetry"
    ),
    context: ContextName = None,
) -> None:
    """Run a service. SIGTERM and Ctrl-C let its handlers finish what they have in hand.

    Examples:
      landbridge run shop.billing:service
      opentelemetry-instrument landbridge run shop.billing:service --telemetry
    """
    from landbridge.node import logs

    logs.configure(log_level)
    run(_run(find_service(service), context, telemetry=telemetry))


def find_service(spec: str) -> Service:
    """The service that ``module:name`` stands for."""
    from landbridge.client.service import Service

    return find(spec, Service, "service", HINT)[1]


async def _run(service: Service, context: str | None, *, telemetry: bool = False) -> None:
    from landbridge.node import logs

    loop = asyncio.get_running_loop()
    log = logs.take_over(loop)

    def stop(number: int) -> None:
        log.info("stopping", service=service.name, signal=signal.Signals(number).name)
        service.stop()
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)  # the next one ends the process

    async with connected(context, service.name, telemetry=telemetry) as bus:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop, number)
        routes = [{"topic": route.topic, "group": route.group} for route in service.routes]
        if output.choice.json:
            output.write_json({"service": service.name, "terminal": bus.terminal_name, "routes": routes})
        log.info(
            "running", service=service.name, terminal=bus.terminal_name,
            routes=", ".join(f"{route['topic']} › {route['group']}" for route in routes),
        )  # fmt: skip
        await service.run(bus)
    log.info("stopped", service=service.name)
