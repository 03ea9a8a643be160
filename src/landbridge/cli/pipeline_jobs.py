"""``landbridge pipeline run``: the jobs, and steps of one's own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from landbridge.cli.imports import find
from landbridge.cli.options import OptionGroup, argument, flag, option, span
from landbridge.cli.pipeline_options import Checkpoint, StreamOptions, checkpoint_of, run_stream
from landbridge.cli.registry_access import admin
from landbridge.cli.registry_access import operator as operator_of
from landbridge.core.events import sequencer
from landbridge.core.rules.budget import STEPS
from landbridge.core.rules.query import HINT as QUERY_HINT
from landbridge.core.rules.query import Query, read_query
from landbridge.errors import BadRequest, SparkMissing
from landbridge.pipeline.jobs.sequence import policy
from landbridge.pipeline.jobs.sequence.notifications import Events
from landbridge.pipeline.jobs.sequence.sequence import AT_MOST, SHARDS, Numbering, Sequence

if TYPE_CHECKING:
    from landbridge.pipeline.jobs.step import Step


# -- figures of every minute, from the status log --------------------------------------------------------


class ActivityStream(StreamOptions):
    every: float | None = span("Begin a micro-batch so often: 10s, 5m.", default="1m")


def activity(
    *,
    to: str | None = option("Into a table: a folder, or a URL that Spark can write to.", metavar="FOLDER"),
    to_topic: str | None = option("Or into a topic, as JSON; rows of a key add up.", metavar="TOPIC"),
    checkpoint: Checkpoint = None,
    stream: ActivityStream,
) -> None:
    """From the status log to figures per minute, topic, group, producer and consumer.

    Counts, bytes, failures and their causes, lag, and latency to the delivery and to the ack.

    Examples:
      landbridge pipeline run activity --to activity
      landbridge pipeline run activity --to activity --once
      landbridge pipeline run activity --to-topic activity --every 10s
    """
    from landbridge.pipeline.jobs.activity.activity import Activity

    if stream.every is None and not stream.once:
        stream.every = 60.0
    run_stream(Activity(to=to, to_topic=to_topic), stream, checkpoint)


# -- topics into a lake ----------------------------------------------------------------------------------


def archive(
    *,
    lake: Annotated[
        str, option("The lake: a folder, or a URL such as hdfs://host/lake.", "--lake", metavar="FOLDER")
    ],
    topic: list[str] | None = argument("[TOPIC]…", "The topics."),
    pattern: str = option("Instead of topics: '*' is one word, '#' any number.", metavar="PATTERN", value=""),
    payload: Literal["auto", "json", "binary"] = option(
        "auto: what is JSON also as VARIANT. json: what isn't is rejected. binary: bytes only.", value="auto"
    ),
    group: str = option(
        "The group whose cursor the job moves; retention waits for it.", metavar="GROUP", value="archive"
    ),
    start: Literal["earliest", "latest"] = option(
        "Where topics begin that the lake doesn't have yet.", "--from", value="earliest"
    ),
    rows: int = option("Rows of a micro-batch, at most.", min=1, value=2_000_000),
    skip_lost: bool = flag("Go on where retention has removed messages, instead of failing.", "--skip-lost"),
    delta: bool = flag("Delta tables by the package deltalake; JSON as text.", "--delta"),
    checkpoint: str | None = option(
        "Where the job keeps how far it is.", metavar="FOLDER", default="LAKE/_checkpoints/GROUP"
    ),
    stream: StreamOptions,
) -> None:
    """Archive topics: Parquet files by topic and day, each message once.

    Examples:
      landbridge pipeline run archive orders bills --lake lake --every 5m
      landbridge pipeline run archive --pattern 'shop.#' --lake hdfs://host/lake --payload json
      landbridge pipeline run archive orders --lake lake --once --json
    """
    from landbridge.pipeline.jobs.archive import Archive

    job = Archive(
        lake,
        tuple(topic or ()),
        pattern,
        payload=payload,
        group=group,
        start_at=start,
        rows=rows,
        fail_on_data_loss=not skip_lost,
        delta=delta,
    )
    run_stream(job, stream, checkpoint or job.checkpoint)


# -- numbered messages in order --------------------------------------------------------------------------

From = Annotated[str, argument("FROM", "The topic to read, or several joined by commas.")]
To = Annotated[str, argument("TO", "The topic to write.")]


class OrderFlags(OptionGroup):
    """How numbered messages are put in order."""

    first: int = option("The number that each sequence begins with.", min=0, value=1)
    hold: int = option("How many may wait for a missing number, per source.", min=1, value=policy.HOLD)
    on_gap: Literal["skip", "refuse"] = option(
        "When more would wait: give the missing numbers up, or stop the job.", value="skip"
    )
    gap_within: float | None = span("Give a missing number up after this time in any case.", default="never")
    late: Literal["drop", "pass"] = option(
        "What comes after its number was given up: drop it, or pass it on to TO.late.", value="drop"
    )
    at_most: int = option("Rows of a micro-batch, at most.", min=1, metavar="ROWS", value=AT_MOST)
    group: str | None = option("Read as this group, for which retention waits.", metavar="GROUP")

    def policy(self) -> policy.GapPolicy:
        """What is done about gaps."""
        return policy.GapPolicy(self.first, self.hold, self.on_gap, self.gap_within)


class EventOrderFlags(OrderFlags):
    """The same for events, of which there is one source."""

    hold: int = option("How many may wait for a missing number, per source.", min=1, value=sequencer.HOLD)


def sequence(
    topic: From,
    to: To,
    *,
    source_from: str = option(
        "Where the source is: key, header:NAME, json:$.path.", metavar="PLACE", value="key"
    ),
    sequence_from: str | None = option(
        "Where the sequence number is: header:NAME, json:$.path, key.", metavar="PLACE"
    ),
    format: Literal["events"] | None = option(
        "Payloads are lines 'sequence|type|from|to'; instead of --sequence-from."
    ),
    shards: int = option(
        "Into how many parts the sources are divided. Stays as it was first.", min=1, value=SHARDS
    ),
    order: OrderFlags,
    checkpoint: Checkpoint = None,
    stream: StreamOptions,
) -> None:
    """Put the messages of many sources in order, each source's by its sequence numbers.

    What leaves a gap waits until the gap closes; what came before is dropped. Messages without a source or a
    number go to TO.rejects, with the reason in the header 'reason'.

    Examples:
      landbridge pipeline run sequence readings readings.ordered --sequence-from header:seq
      landbridge pipeline run sequence orders ordered --source-from 'json:$.shop' --sequence-from 'json:$.n'
      landbridge pipeline run sequence events events.ordered --format events --gap-within 1m --late pass
    """
    job = Sequence(
        topic,
        to,
        Numbering(source_from, sequence_from, format),
        order.policy(),
        shards=shards,
        **order.given("late", "group", "at_most"),
    )
    run_stream(job, stream, checkpoint)


def events(
    topic: From,
    to: To,
    *,
    user: list[str] | None = option(
        "A client that is there from the beginning. May be repeated.", metavar="ID"
    ),
    order: EventOrderFlags,
    checkpoint: Checkpoint = None,
    stream: StreamOptions,
) -> None:
    """Tell each client what is for it, of numbered events that come in any order.

    What 'landbridge events' does, from a topic of lines 'sequence|type|from|to' to one with a message for
    each client and line, its key the client. A client is there from the first event on that names it.

    Examples:
      landbridge pipeline run events events events.told
      landbridge pipeline run events events events.told --once --user anna --user bert
    """
    given = order.given("late", "group", "at_most")
    run_stream(Events(topic, to, order.policy(), users=tuple(user or ()), **given), stream, checkpoint)


# -- the long-term plan of the links between terminals ---------------------------------------------------


def routes(
    *,
    to: str | None = option("Write the tables there as well: a folder or a URL.", metavar="FOLDER"),
    put: bool = option("Give the plan to the registry?", "--put/--no-put", value=True),
    customer: str | None = option(
        "The context with the credential for the registry, if another.", metavar="NAME"
    ),
    operator: bool = flag("As the registry's operator: the plans of all customers.", "--operator"),
    window: float = span("How far to look back.", default="7d", value=7 * 86400.0),
    span: float = span("Of a row of the quality over time.", default="1h", value=3600.0),
    checkpoint: Checkpoint = None,
    stream: StreamOptions,
) -> None:
    """Make the long-term plan of the links: what they are worth, the best paths, single points of failure.

    Reads the topic $links of a terminal that was started with log_links. Without --once: again every hour.

    Examples:
      landbridge pipeline run routes --once
      landbridge pipeline run routes --once --no-put --to plans --window 1d
      landbridge pipeline run routes --every 6h --context paris --customer acme
    """
    from landbridge.pipeline.jobs.routes import RegistryAccess, RoutesJob

    access = None
    if put:
        find = operator_of if operator else admin
        found = find(customer or stream.context)
        access = RegistryAccess(found.url, found.token, found.ca, operator=operator)
    run_stream(RoutesJob(folder=to, registry=access, window=window, span=span), stream, checkpoint)


# -- the messages that rules choose ----------------------------------------------------------------------


def route(
    topic: Annotated[str, argument("TOPIC", "The topic to read.")],
    *,
    match: list[str] | None = option(
        "A query as JSON: a pattern, or with its kind. May be repeated.", "--match", metavar="JSON"
    ),
    rule: list[Path] | None = option(
        "A file with a query, or with an array of them. May be repeated.", "--rule", metavar="FILE"
    ),
    to: str | None = option("Into a topic.", metavar="TOPIC"),
    out: str | None = option("Or into a lake: a folder, or a URL.", metavar="FOLDER"),
    group: str | None = option("Read as this group, for which retention waits.", metavar="GROUP"),
    steps: int = option("What a rule may use for a message.", min=1, value=STEPS),
    at_most: int = option("Rows of a micro-batch, at most.", min=1, metavar="ROWS", value=500_000),
    checkpoint: Checkpoint = None,
    stream: StreamOptions,
) -> None:
    """Copy the messages of a topic that at least one rule matches, each once.

    Begins at the first message of the log. Messages about which a rule can't decide within its budget go to
    TO.rejects, with the cause in the header 'reject-reason'.

    Examples:
      landbridge pipeline run route orders --match '{"amount": [{"numeric": [">", 100]}]}' --to orders.large
      landbridge pipeline run route orders --rule rules.json --to chosen --once
      landbridge pipeline run route orders --match '{"kind": "regexp", "pattern": "urgent"}' --out lake --once
    """
    from landbridge.pipeline.jobs.route import QueryRoute

    queries = tuple(read_queries(match or (), rule or ()))
    job = QueryRoute(topic, queries, to or "", out or "", group or "", at_most, steps)
    run_stream(job, stream, checkpoint or job.checkpoint)


def read_queries(texts: Iterable[str], files: Iterable[Path]) -> Iterator[Query]:
    """The queries in texts and in files. BadRequest says in which of them something is wrong."""
    sources = [("--match", text.encode()) for text in texts]
    for file in files:
        try:
            sources.append((str(file), file.read_bytes()))
        except OSError as error:
            raise BadRequest(f"{file}: {error.strerror}") from None
    for where, text in sources:
        try:
            found = msgspec.json.decode(text)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadRequest(f"{where}: {error}", hint=QUERY_HINT) from None
        for each in found if isinstance(found, list) else [found]:
            try:
                yield read_query(each)
            except BadRequest as error:
                raise BadRequest(f"{where}: {error}", hint=error.hint) from None


# -- steps of one's own ----------------------------------------------------------------------------------

STEP_HINT = "as in 'landbridge pipeline run shop.steps:invoices', where shop/steps.py says @pipeline.step(…)"


def step(
    spec: Annotated[str, argument("MODULE:STEP", "The current folder is searched too.", show_default=True)],
    *,
    checkpoint: Checkpoint = None,
    stream: StreamOptions,
) -> None:
    """Run a step of your own.

    Examples:
      landbridge pipeline run shop.steps:invoices
      landbridge pipeline run shop.steps:invoices --once --checkpoint checkpoints/invoices
    """
    found, make = None, None
    try:
        found = find_step(spec)
    except Exception as error:
        # A UDF of a module that names its type by a text needs a session already when it is defined.
        if "SESSION_OR_CONTEXT_NOT_EXISTS" not in str(error):
            raise
        make = partial(find_step, spec)
    # By the whole spec: two modules may have steps of the same name.
    run_stream(found, stream, checkpoint or checkpoint_of(spec), make=make)


def find_step(spec: str) -> Step:
    """The step that ``module:name`` stands for."""
    from landbridge.pipeline.jobs.step import Step

    if ":" not in spec:
        raise BadRequest(f"{spec!r} names no step", hint=STEP_HINT)
    try:
        module, step = find(spec, Step, "step", STEP_HINT)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "pyspark":
            raise
        raise SparkMissing(f"the module {error.name} is not installed") from None
    _carry(module)
    return step


def _carry(module: ModuleType) -> None:
    """Send what a module of the current folder defines along with the plan: the machines of a cluster can't
    import it. What is installed is installed there as well."""
    where = getattr(module, "__file__", None)
    if where is None or not Path(where).resolve().is_relative_to(Path.cwd().resolve()):
        return
    try:
        pickle: Any = import_module("pyspark.cloudpickle")
    except ImportError as error:
        raise SparkMissing(f"the module {error.name} is not installed") from None
    pickle.register_pickle_by_value(module)
