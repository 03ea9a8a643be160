"""The job ``routes``: from measurements of links to their long-term costs, the best paths, and the terminals
whose loss would cut others off. The plan goes to the registry, the tables go to a folder.

Measurements are the messages of ``$links``. In each a terminal reports its links. A report holds until the
terminal's next one, and for three minutes at most. So every figure here is weighed by time: a link that costs
10 ms all day and 500 ms for a minute is a link of 10 ms, however often it was reported in that minute.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from landbridge.core.routing.linkstate import EXPIRY
from landbridge.core.routing.meter import LEAST
from landbridge.core.routing.plan import CUT_OFF_MOST, Plan, PlannedLink, long_term_cost
from landbridge.core.time import SECOND
from landbridge.errors import BadOption
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import Place, Trigger

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.streaming.query import StreamingQuery

    from landbridge.core.routing.graph import Mesh

TOPIC = "$links"
DAY = 86400.0
#: Seconds between two plans of a job that goes on. A plan over days doesn't change within minutes.
EVERY = 3600.0
#: The payload of a measurement.
_MEASUREMENT = (
    "customer string, terminal string, name string, epoch bigint, sequence bigint, time bigint, "
    "carries boolean, links array<struct<to: string, cost: double, rtt: double, loss: double>>"
)
_LINK = ["customer", "here", "there"]


# -- from messages to tables ---------------------------------------------------------------------------


def measurements(messages: DataFrame) -> DataFrame:
    """Messages of ``$links`` (the column ``value``) → the terminals' reports, each once."""
    said = messages.select(F.from_json(F.col("value").cast("string"), _MEASUREMENT).alias("said"))
    sound = said.select("said.*").where("customer is not null and terminal is not null and time is not null")
    # A terminal that restarts writes the reports that it receives again.
    return sound.dropDuplicates(["customer", "terminal", "epoch", "sequence"])


def terminals(said: DataFrame) -> DataFrame:
    """The terminals that were heard: customer, terminal, name, carries, last_seen."""
    newest = F.struct("epoch", "sequence")
    return said.groupBy("customer", "terminal").agg(
        F.max_by("name", newest).alias("name"),
        F.max_by("carries", newest).alias("carries"),
        F.timestamp_micros(F.max("time")).alias("last_seen"),
    )


def stretches(said: DataFrame, since: int, until: int) -> DataFrame:
    """How long each report held: customer, terminal, links, begun, ended (microseconds), and ``watched``: the
    part of the window from there on in which any terminal of the customer was heard. Without it, an hour in
    which no measurement was stored would look like an hour in which the bus was down."""
    from pyspark.sql import Window

    own = Window.partitionBy("customer", "terminal").orderBy("epoch", "sequence")
    all_said = Window.partitionBy("customer").orderBy("begun", "expires")
    # From the end, because Spark adds up the rows before a row in one go, and those after it anew for each.
    # By range, because rows that begin at the same moment have watched for the same time.
    from_there = (
        Window.partitionBy("customer")
        .orderBy(F.desc("begun"))
        .rangeBetween(Window.unboundedPreceding, Window.currentRow)
    )
    expires = F.least(F.col("time") + EXPIRY, F.lit(until))
    next_begun = F.lead("begun").over(all_said)
    return (
        said.withColumn("begun", F.greatest("time", F.lit(since)))
        .withColumn("expires", expires)
        .withColumn("ended", F.least("expires", F.lead("time").over(own)))
        .where("expires > begun")
        .withColumn("heard", F.least("expires", next_begun) - F.col("begun"))
        .withColumn("watched", F.sum("heard").over(from_there))
    )


def link_figures(stretches: DataFrame) -> DataFrame:
    """The figures of each link over the whole window: customer, here, there, availability, rtt, rtt_95, loss,
    and ``cost`` in ms, before it is divided by the availability."""
    ends = _told(stretches).groupBy(*_LINK).agg(*_figures(), F.max("watched").alias("watched"))
    return _paired(ends, [])


def quality(stretches: DataFrame, span: float = 3600.0) -> DataFrame:
    """The same figures for each ``span`` seconds of the window. The column ``begin`` says when they begin."""
    micros = round(span * SECOND)

    def cut(rows: DataFrame, end: str) -> DataFrame:
        first, last = F.floor(F.col("begun") / micros), F.floor((F.col(end) - 1) / micros)
        cut = rows.withColumn("bucket", F.explode(F.sequence(first, last)))
        begun = F.greatest("begun", F.col("bucket") * micros)
        return cut.withColumn(end, F.least(end, (F.col("bucket") + 1) * micros)).withColumn("begun", begun)

    heard = stretches.where("heard > 0").withColumn("ended", F.col("begun") + F.col("heard"))
    watched = (
        cut(heard.select("customer", "begun", "ended"), "ended")
        .groupBy("customer", "bucket")
        .agg(F.sum(F.col("ended") - F.col("begun")).alias("watched"))
    )
    ends = cut(_told(stretches), "ended").groupBy(*_LINK, "bucket").agg(*_figures())
    begin = F.timestamp_micros(F.col("bucket") * micros)
    return (
        _paired(ends.join(watched, ["customer", "bucket"]), ["bucket"])
        .withColumn("begin", begin)
        .drop("bucket")
    )


def _told(stretches: DataFrame) -> DataFrame:
    """A row for each link in a report, for as long as the report held."""
    told = stretches.where("ended > begun").selectExpr(
        "customer", "terminal as here", "begun", "ended", "watched", "inline(links)"
    )
    return told.withColumnRenamed("to", "there")


def _figures() -> list[Column]:
    """The figures of one end of a link, weighed by time. The cost is computed from the measured figures and
    not taken from the report: a link that has just come up is reported with the cost of the previous plan,
    and if that happens often, each plan would make the cost worse. Only an end that reports nothing but a
    cost is taken at its word."""
    lasted = F.col("ended") - F.col("begun")
    weight = F.ceil(lasted / SECOND)
    known = F.when(F.col("loss").isNotNull(), lasted)
    rtt_95 = F.percentile("rtt", F.lit(0.95), weight)
    loss = F.sum(F.col("loss") * lasted) / F.sum(known)
    told = F.percentile("cost", F.lit(0.75), weight)
    measured = rtt_95 / F.pow(1 - loss, F.lit(2))
    return [
        F.sum(lasted).alias("up"),
        F.greatest(F.coalesce(measured, told), F.lit(LEAST)).alias("cost"),
        F.percentile("rtt", F.lit(0.5), weight).alias("rtt"),
        rtt_95.alias("rtt_95"),
        loss.alias("loss"),
    ]


def _paired(ends: DataFrame, by: list[str]) -> DataFrame:
    """Both ends as one link. It counts if both ends reported it, with the worse of their two figures, as in
    routing."""
    first, second = F.least("here", "there"), F.greatest("here", "there")
    up = F.least(F.min("up") / F.max("watched"), F.lit(1.0))
    return (
        ends.groupBy("customer", first.alias("here_"), second.alias("there_"), *by)
        .agg(
            F.count("*").alias("told"),
            F.max("cost").alias("cost"),
            up.alias("availability"),
            *(F.coalesce(F.max(name), F.lit(0.0)).alias(name) for name in ("rtt", "rtt_95", "loss")),
        )
        .where("told = 2")
        .drop("told")
        .withColumnsRenamed({"here_": "here", "there_": "there"})
    )


# -- from tables to plans ------------------------------------------------------------------------------


def plans(links: DataFrame, terminals: DataFrame, since: int, until: int) -> DataFrame:
    """The long-term plan of each customer, as JSON: customer, plan."""

    def make(plan: Plan, mesh: Mesh) -> pa.Table:
        import pyarrow as pa

        points, room = [], CUT_OFF_MOST
        for point in mesh.single_points():  # The worst come first.
            room -= len(point.cut_off)
            if room >= 0:
                points.append(point)
        plan = msgspec.structs.replace(plan, single_points=points)
        return pa.table({"plan": [msgspec.json.encode(plan).decode()]})

    return _by_customer(links, terminals, make, "plan string", since, until)


def paths(links: DataFrame, terminals: DataFrame) -> DataFrame:
    """The best path between any two terminals: customer, source, destination, next_hop, cost, path."""

    def make(_: Plan, mesh: Mesh) -> pa.Table:
        import pyarrow as pa

        names = pa.array(mesh.names, pa.string())
        kinds = {name: pa.string() for name in ("source", "destination", "next_hop")}
        nothing = pa.schema({**kinds, "cost": pa.float64(), "path": pa.list_(pa.string())}).empty_table()
        blocks = [
            pa.table(
                {
                    "source": names.take(pa.array(block.sources)),
                    "destination": names.take(pa.array(block.destinations)),
                    "next_hop": names.take(pa.array(block.next_hops)),
                    "cost": pa.array(block.costs),
                    "path": pa.ListArray.from_arrays(
                        pa.array(block.firsts, pa.int32()), names.take(pa.array(block.hops))
                    ),
                }
            )
            for block in mesh.paths()
        ]
        return pa.concat_tables([nothing, *blocks])

    schema = "source string, destination string, next_hop string, cost double, path array<string>"
    return _by_customer(links, terminals, make, schema)


def single_points(plans: DataFrame) -> DataFrame:
    """The single points of failure in plans: customer, terminal, cut_off, pairs."""
    schema = "single_points array<struct<terminal: string, cut_off: array<string>, pairs: bigint>>"
    points = F.from_json("plan", schema)["single_points"]
    return plans.select("customer", F.inline(points))


def _by_customer(
    links: DataFrame,
    terminals: DataFrame,
    make: Callable[[Plan, Mesh], pa.Table],
    schema: str,
    since: int = 0,
    until: int = 1,
) -> DataFrame:
    """Call ``make`` with the plan and the mesh of each customer; its tables get a column ``customer``."""

    def each(terminals: pa.Table, links: pa.Table) -> pa.Table:
        import pyarrow as pa

        from landbridge.core.routing.graph import Mesh

        plan = _plan(links.to_pylist(), terminals.to_pylist(), since, until)
        mesh = Mesh(plan.terminals, [(link.here, link.there, link.cost) for link in plan.links])
        made = make(plan, mesh)
        customer = terminals.column("customer")[0].as_py()
        return made.add_column(0, "customer", pa.array([customer] * len(made), pa.string()))

    both = terminals.groupBy("customer").cogroup(links.groupBy("customer"))
    return both.applyInArrow(each, f"customer string, {schema}")


def _plan(links: list[dict[str, Any]], terminals: list[dict[str, Any]], since: int, until: int) -> Plan:
    """A plan without its single points of failure."""
    carries = {row["terminal"]: bool(row["carries"]) for row in terminals}
    return Plan(
        since=since,
        until=until,
        terminals=carries,
        links=[
            msgspec.convert(row | {"cost": long_term_cost(row["cost"], row["availability"])}, PlannedLink)
            for row in sorted(links, key=lambda row: (row["here"], row["there"]))
            # One end of a link may never have been heard.
            if row["here"] in carries and row["there"] in carries
        ],
        single_points=[],
    )


# -- the job -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RegistryAccess:
    """The registry that plans go to, and the token that is used there."""

    url: str
    token: str = field(repr=False)
    ca: str | None = None
    #: True: the token is that of the registry's operator, and the plans of all customers go there.
    operator: bool = False


@dataclass(frozen=True)
class RoutesJob:
    #: Folder or URL of the tables; None: no tables are written.
    folder: str | None = None
    #: None: the plan goes to no registry.
    registry: RegistryAccess | None = None
    #: Seconds that a plan looks back.
    window: float = 7 * DAY
    #: Seconds of a row of the table ``quality``.
    span: float = 3600.0
    topic: str = TOPIC

    def __post_init__(self) -> None:
        if self.folder is None and self.registry is None:
            raise BadOption("a plan that goes nowhere", hint="name a folder, a registry, or both")
        if not 60 <= self.span <= self.window:
            raise BadOption(
                f"a window of {self.window:g} s in spans of {self.span:g} s",
                hint="a span has at least a minute, and a window at least a span",
            )

    @property
    def name(self) -> str:
        return "routes"

    def start(self, place: Place) -> StreamingQuery:
        """Make a plan of the whole window whenever there are new measurements."""
        if not place.trigger.once and not place.trigger.every:
            place = replace(place, trigger=Trigger(every=EVERY))
        news = place.stream(subscribe=self.topic, startingOffsets="earliest", failOnDataLoss="false")

        def each(rows: DataFrame, _: int) -> None:
            newest = rows.agg({"timestamp": "max"}).first()
            if newest is not None and newest[0] is not None:
                self.make(place, _micros(newest[0]))

        return place.writer(news.select("timestamp"), self.name).foreachBatch(each).start()

    def make(self, place: Place, until: int) -> None:
        """Make the plan of the window that ends at ``until``. Made again, it replaces the first one."""
        since = until - round(self.window * SECOND)
        messages = place.table(
            subscribe=self.topic,
            startingTimestamp=str((since - EXPIRY) // 1000),
            failOnDataLoss="false",
        ).where(F.col("timestamp") <= F.timestamp_micros(F.lit(until)))
        said = measurements(messages).persist()
        known, held = terminals(said).persist(), stretches(said, since, until).persist()
        links = link_figures(held).persist()
        planned = plans(links, known, since, until).persist()
        try:
            if self.folder is not None:
                tables = {
                    "terminals": known,
                    "links": links.withColumn("long_term_cost", _long_term_cost()),
                    "quality": quality(held, self.span),
                    "paths": paths(links, known),
                    "single_points": single_points(planned),
                }
                stamp = datetime.fromtimestamp(until / SECOND, UTC).strftime("%Y%m%dT%H%M%SZ")
                for name, table in tables.items():
                    table.write.mode("overwrite").parquet(f"{self.folder.rstrip('/')}/{name}/made={stamp}")
            if self.registry is not None:
                found = {row["customer"]: row["plan"] for row in planned.toLocalIterator()}
                asyncio.run(_put(self.registry, found))
        finally:
            for table in (said, known, held, links, planned):
                table.unpersist()


def _long_term_cost() -> Column:
    """``core.routing.plan.long_term_cost`` as a column."""
    from landbridge.core.routing.linkstate import COST_MOST

    return F.least(F.col("cost") / F.pow("availability", F.lit(2)), F.lit(COST_MOST))


def _micros(moment: datetime) -> int:
    """Microseconds of a timestamp as Spark hands it to Python: in this machine's time zone, not named."""
    return round(moment.timestamp() * SECOND)


async def _put(access: RegistryAccess, plans: dict[str, str]) -> None:
    from landbridge.client.registry import RegistryClient

    async with RegistryClient(access.url, token=access.token, ca=access.ca) as registry:
        own = None if access.operator else (await registry.show_message_bus_customer()).customer_id
        for customer, text in plans.items():
            plan = msgspec.json.decode(text, type=Plan)
            if own is None:
                await registry.put_customer_plan(customer, plan)
            elif own == customer:
                await registry.put_plan(plan)
            else:
                raise BadOption(
                    f"the measurements are of {customer}, the credential is of {own}",
                    hint="use the credential of that customer, or the operator's",
                )
