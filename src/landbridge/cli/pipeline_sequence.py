"""``landbridge pipeline run sequence`` and ``… run events``."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from landbridge.cli import units
from landbridge.cli.options import ContextName, Json
from landbridge.cli.pipeline_options import Checkpoint, Conf, Every, Master, Once, run_stream
from landbridge.core.events import sequencer
from landbridge.pipeline.sequence import policy
from landbridge.pipeline.sequence.notifications import Events
from landbridge.pipeline.sequence.sequence import AT_MOST, SHARDS, Numbering, Sequence

From = Annotated[
    str,
    typer.Argument(
        metavar="FROM", help="The topic to read, or several joined by commas.", show_default=False
    ),
]
To = Annotated[str, typer.Argument(metavar="TO", help="The topic to write.", show_default=False)]
First = Annotated[int, typer.Option(min=0, help="The number that each sequence begins with.")]
Hold = Annotated[int, typer.Option(min=1, help="How many may wait for a missing number, per source.")]
OnGap = Annotated[
    Literal["skip", "refuse"],
    typer.Option(help="When more would wait: give the missing numbers up, or stop the job."),
]
GapWithin = Annotated[
    float | None,
    typer.Option(
        metavar="SPAN",
        parser=units.parse_span,
        help="Give a missing number up after this time in any case.",
        show_default="never",
    ),
]
Late = Annotated[
    Literal["drop", "pass"],
    typer.Option(help="What comes after its number was given up: drop it, or pass it on to TO.late."),
]
Reader = Annotated[
    str | None,
    typer.Option("--group", metavar="GROUP", help="Read as this group, for which retention waits."),
]
AtMost = Annotated[int, typer.Option(min=1, metavar="ROWS", help="Rows of a micro-batch, at most.")]


def sequence(
    topic: From,
    to: To,
    source_from: Annotated[
        str, typer.Option(metavar="PLACE", help="Where the source is: key, header:NAME, json:$.path.")
    ] = "key",
    sequence_from: Annotated[
        str | None,
        typer.Option(metavar="PLACE", help="Where the sequence number is: header:NAME, json:$.path, key."),
    ] = None,
    format: Annotated[
        Literal["events"] | None,
        typer.Option(help="Payloads are lines 'sequence|type|from|to'; instead of --sequence-from."),
    ] = None,
    first: First = 1,
    hold: Hold = policy.HOLD,
    on_gap: OnGap = "skip",
    gap_within: GapWithin = None,
    late: Late = "drop",
    shards: Annotated[
        int, typer.Option(min=1, help="Into how many parts the sources are divided. Stays as it was first.")
    ] = SHARDS,
    at_most: AtMost = AT_MOST,
    group: Reader = None,
    checkpoint: Checkpoint = None,
    once: Once = False,
    every: Every = 0.0,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Put the messages of many sources in order, each source's by its sequence numbers.

    What leaves a gap waits until the gap closes; what came before is dropped. Messages without a source or a
    number go to TO.rejects, with the reason in the header 'reason'.

    \b
    Examples:
      landbridge pipeline run sequence readings readings.ordered --sequence-from header:seq
      landbridge pipeline run sequence orders ordered --source-from 'json:$.shop' --sequence-from 'json:$.n'
      landbridge pipeline run sequence events events.ordered --format events --gap-within 1m --late pass
    """
    job = Sequence(
        topic,
        to,
        Numbering(source_from, sequence_from, format),
        policy.Policy(first, hold, on_gap, gap_within),
        late=late,
        group=group,
        shards=shards,
        at_most=at_most,
    )
    run_stream(job, context=context, master=master, checkpoint=checkpoint, once=once, every=every, conf=conf)


def events(
    topic: From,
    to: To,
    user: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="A client that is there from the beginning. May be repeated."),
    ] = None,
    first: First = 1,
    hold: Hold = sequencer.HOLD,
    on_gap: OnGap = "skip",
    gap_within: GapWithin = None,
    late: Late = "drop",
    at_most: AtMost = AT_MOST,
    group: Reader = None,
    checkpoint: Checkpoint = None,
    once: Once = False,
    every: Every = 0.0,
    master: Master = None,
    conf: Conf = None,
    context: ContextName = None,
    json: Json = False,
) -> None:
    """Tell each client what is for it, of numbered events that come in any order.

    What 'landbridge events' does, from a topic of lines 'sequence|type|from|to' to one with a message for
    each client and line, its key the client. A client is there from the first event on that names it.

    \b
    Examples:
      landbridge pipeline run events events events.told
      landbridge pipeline run events events events.told --once --user anna --user bert
    """
    job = Events(
        topic,
        to,
        policy.Policy(first, hold, on_gap, gap_within),
        late=late,
        users=tuple(user or ()),
        group=group,
        at_most=at_most,
    )
    run_stream(job, context=context, master=master, checkpoint=checkpoint, once=once, every=every, conf=conf)
