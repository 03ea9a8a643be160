"""``landbridge pipeline run activity``: figures of every minute, from the status log."""

from __future__ import annotations

from typing import Annotated

import typer

from landbridge.cli import units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Checkpoint, Conf, Master, Once, run_stream


def activity(
    to: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Into a table: a folder, or a URL that Spark can write to."),
    ] = None,
    to_topic: Annotated[
        str | None, typer.Option(metavar="TOPIC", help="Or into a topic, as JSON; rows of a key add up.")
    ] = None,
    checkpoint: Checkpoint = None,
    once: Once = False,
    every: Annotated[
        float | None,
        typer.Option(
            metavar="SPAN",
            parser=units.parse_span,
            help="Begin a micro-batch so often: 10s, 5m.",
            show_default="1m",
        ),
    ] = None,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """From the status log to figures per minute, topic, group, producer and consumer.

    Counts, bytes, failures and their causes, lag, and latency to the delivery and to the ack.

    \b
    Examples:
      landbridge pipeline run activity --to activity
      landbridge pipeline run activity --to activity --once
      landbridge pipeline run activity --to-topic activity --every 10s
    """
    from landbridge.pipeline.activity.activity import Activity

    if every is None:
        every = 0.0 if once else 60.0
    run_stream(
        Activity(to=to, to_topic=to_topic),
        context=context, master=master, checkpoint=checkpoint, once=once, every=every, conf=conf,
    )  # fmt: skip
