"""``landbridge pipeline run archive``: topics into a lake."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Conf, Every, Master, Once, run_stream

LakePath = Annotated[
    str,
    typer.Option("--lake", metavar="FOLDER", help="The lake: a folder, or a URL such as hdfs://host/lake."),
]


def archive(
    lake: LakePath,
    topic: Annotated[
        list[str] | None, typer.Argument(metavar="[TOPIC]…", help="The topics.", show_default=False)
    ] = None,
    pattern: Annotated[
        str, typer.Option(metavar="PATTERN", help="Instead of topics: '*' is one word, '#' any number.")
    ] = "",
    payload: Annotated[
        Literal["auto", "json", "binary"],
        typer.Option(
            help="auto: what is JSON also as VARIANT. json: what isn't is rejected. binary: bytes only."
        ),
    ] = "auto",
    group: Annotated[
        str,
        typer.Option(metavar="GROUP", help="The group whose cursor the job moves; retention waits for it."),
    ] = "archive",
    start: Annotated[
        Literal["earliest", "latest"],
        typer.Option("--from", help="Where topics begin that the lake doesn't have yet."),
    ] = "earliest",
    rows: Annotated[int, typer.Option(min=1, help="Rows of a micro-batch, at most.")] = 2_000_000,
    skip_lost: Annotated[
        bool,
        typer.Option("--skip-lost", help="Go on where retention has removed messages, instead of failing."),
    ] = False,
    delta: Annotated[
        bool, typer.Option("--delta", help="Delta tables by the package deltalake; JSON as text.")
    ] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="Where the job keeps how far it is.",
            show_default="LAKE/_checkpoints/GROUP",
        ),
    ] = None,
    once: Once = False,
    every: Every = 0.0,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Archive topics: Parquet files by topic and day, each message once.

    \b
    Examples:
      landbridge pipeline run archive orders bills --lake lake --every 5m
      landbridge pipeline run archive --pattern 'shop.#' --lake hdfs://host/lake --payload json
      landbridge pipeline run archive orders --lake lake --once --json
    """
    from landbridge.pipeline.lake.archive import Archive

    job = Archive(
        lake, tuple(topic or ()), pattern,
        payload=payload, group=group, start_at=start, rows=rows, fail_on_data_loss=not skip_lost, delta=delta,
    )  # fmt: skip
    run_stream(
        job,
        context=context, master=master, checkpoint=checkpoint or job.checkpoint,
        once=once, every=every, conf=conf,
    )  # fmt: skip
