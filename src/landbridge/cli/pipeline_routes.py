"""``landbridge pipeline run routes``: the long-term plan of the links between terminals."""

from __future__ import annotations

from typing import Annotated

import typer

from landbridge.cli import registry_access, units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Checkpoint, Conf, Every, Master, Once, run_stream


def routes(
    to: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="Write the tables there as well: a folder or a URL.")
    ] = None,
    put: Annotated[bool, typer.Option("--put/--no-put", help="Give the plan to the registry?")] = True,
    customer: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The context with the credential for the registry, if another."),
    ] = None,
    operator: Annotated[
        bool, typer.Option("--operator", help="As the registry's operator: the plans of all customers.")
    ] = False,
    window: Annotated[
        float,
        typer.Option(
            metavar="SPAN", parser=units.parse_span, help="How far to look back.", show_default="7d"
        ),
    ] = 7 * 86400.0,
    span: Annotated[
        float,
        typer.Option(
            metavar="SPAN",
            parser=units.parse_span,
            help="Of a row of the quality over time.",
            show_default="1h",
        ),
    ] = 3600.0,
    checkpoint: Checkpoint = None,
    once: Once = False,
    every: Every = 0.0,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Make the long-term plan of the links: what they are worth, the best paths, single points of failure.

    Reads the topic $links of a terminal that was started with log_links. Without --once: again every hour.

    \b
    Examples:
      landbridge pipeline run routes --once
      landbridge pipeline run routes --once --no-put --to plans --window 1d
      landbridge pipeline run routes --every 6h --context paris --customer acme
    """
    from landbridge.pipeline.routes import RegistryAccess, Routes

    access = None
    if put:
        find = registry_access.operator if operator else registry_access.admin
        found = find(customer or context)
        access = RegistryAccess(found.url, found.token, found.ca, operator=operator)
    run_stream(
        Routes(folder=to, registry=access, window=window, span=span),
        context=context, master=master, checkpoint=checkpoint, once=once, every=every, conf=conf,
    )  # fmt: skip
