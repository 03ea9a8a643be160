"""The job ``routes``: from measurements to figures, plans and the registry."""

from __future__ import annotations

import asyncio
import json
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import uvicorn

from landbridge.client.registry import RegistryClient
from landbridge.core.routing.plan import Plan
from landbridge.errors import BadOption
from landbridge.pipeline.jobs import routes
from landbridge.pipeline.jobs.routes import RegistryAccess, RoutesJob
from landbridge.pipeline.jobs.running import Place, Trigger, run
from landbridge.registry.http import app
from landbridge.registry.registry import Registry
from landbridge.stores.memory import MemoryStore
from landbridge.testing import FakeClock
from tests.pipeline.site import Site

SECOND = 1_000_000
MINUTE = 60 * SECOND
#: The window of these tests.
SINCE, UNTIL = 1_000 * MINUTE, 1_060 * MINUTE


def said(
    terminal: str, at: int, links: dict[str, tuple[float, float, float]], customer: str = "cus_a", **more: Any
) -> dict[str, Any]:
    """``links``: to whom → cost, round trip, loss."""
    told = [{"to": to, "cost": cost, "rtt": rtt, "loss": loss} for to, (cost, rtt, loss) in links.items()]
    return {
        "customer": customer,
        "terminal": terminal,
        "name": terminal.upper(),
        "epoch": 1,
        "sequence": at,
        "time": at,
        "carries": True,
        "links": told,
        **more,
    }


def every_minute(
    terminal: str, links: dict[str, tuple[float, float, float]], first: int = 0, last: int = 60, **more: Any
) -> list[dict[str, Any]]:
    return [said(terminal, SINCE + n * MINUTE, links, **more) for n in range(first, last)]


def messages(spark: Any, documents: list[dict[str, Any]]) -> Any:
    rows = [(json.dumps(document).encode(),) for document in documents]
    return spark.createDataFrame(rows, "value binary")


def figures(spark: Any, documents: list[dict[str, Any]]) -> dict[tuple[str, str], Any]:
    held = routes.stretches(routes.measurements(messages(spark, documents)), SINCE, UNTIL)
    return {(row["here"], row["there"]): row for row in routes.link_figures(held).collect()}


GOOD = (10.0, 8.0, 0.0)


def test_figures_are_weighed_by_time(spark: Any) -> None:
    documents = [
        *every_minute("a", {"b": GOOD}),
        *every_minute("b", {"a": (12.0, 9.0, 0.1)}),
        # A bad quarter of a minute, told as often as the whole good hour.
        *(said("a", SINCE + 30 * MINUTE + n * SECOND // 4, {"b": (900.0, 800.0, 0.5)}) for n in range(1, 60)),
        said("a", SINCE + 30 * MINUTE + 15 * SECOND, {"b": GOOD}),
        # Written down twice, and nonsense.
        *every_minute("a", {"b": GOOD}, last=5),
        {"customer": "cus_a"},
    ]
    [found] = figures(spark, documents).values()
    assert (found["here"], found["there"]) == ("a", "b")
    # The worse of both ends; made from what they measured, whatever they told.
    assert found["cost"] == pytest.approx(9.0 / 0.9**2)
    assert found["rtt"] == 9.0
    assert found["rtt_95"] == 9.0
    assert found["loss"] == pytest.approx(0.1)
    assert found["availability"] == pytest.approx(1.0)


def test_availability_is_the_share_of_the_watched_time_that_both_ends_tell_of_it(spark: Any) -> None:
    documents = [
        # Down for a quarter of the hour, as one end found.
        *every_minute("a", {"b": GOOD, "c": GOOD}, last=30),
        *every_minute("a", {"c": GOOD}, first=30, last=45),
        *every_minute("a", {"b": GOOD, "c": GOOD}, first=45),
        *every_minute("b", {"a": GOOD}),
        # Away for half of it: what it said last holds for three minutes.
        *every_minute("c", {"a": GOOD}, last=27),
        # Told of by one end only.
        *every_minute("d", {"a": GOOD}),
        # New in the last ten minutes, and up ever since.
        *every_minute("e", {"f": GOOD}, first=50),
        *every_minute("f", {"e": GOOD}, first=50),
    ]
    found = figures(spark, documents)
    assert {ends: row["availability"] for ends, row in found.items()} == {
        ("a", "b"): pytest.approx(0.75),
        ("a", "c"): pytest.approx(29 / 60),
        ("e", "f"): pytest.approx(1.0),
    }


def test_time_in_which_nothing_was_written_down_counts_for_nothing(spark: Any) -> None:
    documents = [
        message
        for n, end, other in ((n, *ends) for n in (*range(10), *range(50, 60)) for ends in ("ab", "ba"))
        for message in [said(end, SINCE + n * MINUTE, {other: GOOD})]
    ]
    [found] = figures(spark, documents).values()
    assert found["availability"] == pytest.approx(1.0)


def test_an_end_that_tells_no_more_than_a_cost_is_taken_at_its_word(spark: Any) -> None:
    plain: Any = (30.0, None, None)
    [found] = figures(spark, [*every_minute("a", {"b": plain}), *every_minute("b", {"a": plain})]).values()
    assert (found["cost"], found["rtt"], found["loss"]) == (30.0, 0.0, 0.0)


def test_quality_over_time(spark: Any) -> None:
    begin = SINCE // (15 * MINUTE) * 15 * MINUTE
    assert begin + 10 * MINUTE == SINCE
    documents = [
        *every_minute("a", {"b": GOOD}, last=20),
        *every_minute("a", {}, first=20, last=35),
        *every_minute("a", {"b": (50.0, 40.0, 0.2)}, first=35),
        *every_minute("b", {"a": GOOD}),
    ]
    held = routes.stretches(routes.measurements(messages(spark, documents)), SINCE, UNTIL)
    rows = routes.quality(held, 900.0).selectExpr("*", "unix_micros(begin) as at").collect()
    found = {(row["at"] - begin) // (15 * MINUTE): row for row in rows}
    # The window begins in the middle of the first.
    assert {n: row["availability"] for n, row in found.items()} == {
        0: pytest.approx(1.0),
        1: pytest.approx(1.0),
        3: pytest.approx(1.0),
        4: pytest.approx(1.0),
    }
    assert found[1]["rtt"] == 8.0
    assert found[3]["rtt"] == 40.0
    assert found[3]["loss"] == pytest.approx(0.2)


CITIES = 30


def mesh(customer: str) -> list[dict[str, Any]]:
    """Thirty terminals: a ring of twenty servers with two spokes, and ten clients at one server each."""
    links: dict[str, dict[str, tuple[float, float, float]]] = {f"t{n:02}": {} for n in range(CITIES)}

    def link(a: int, b: int, cost: float) -> None:
        for here, there in ((a, b), (b, a)):
            links[f"t{here:02}"][f"t{there:02}"] = (cost, cost / 2, 0.0)

    for n in range(20):
        link(n, (n + 1) % 20, 10.0 + n)
    link(0, 10, 15.0)
    for n in range(20, CITIES):
        link(n, n - 20, 5.0)
    return [
        message
        for terminal, told in links.items()
        for n in range(3)
        for message in [
            said(
                terminal,
                SINCE + n * MINUTE,
                told,
                customer=customer,
                carries=int(terminal[1:]) < 20,
            )
        ]
    ]


def test_plans_and_paths_of_twenty_customers_of_thirty_terminals(spark: Any) -> None:
    customers = [f"cus_{n:02}" for n in range(20)]
    rows = messages(spark, [document for customer in customers for document in mesh(customer)])
    seen = routes.measurements(rows).persist()
    known = routes.terminals(seen)
    links = routes.link_figures(routes.stretches(seen, SINCE, SINCE + 3 * MINUTE))
    made = routes.plans(links, known, SINCE, SINCE + 3 * MINUTE).persist()
    found = {row["customer"]: msgspec.json.decode(row["plan"], type=Plan) for row in made.collect()}
    assert sorted(found) == customers
    assert all(plan == found["cus_00"] for plan in found.values())
    plan = found["cus_00"]
    assert len(plan.terminals) == CITIES
    assert len(plan.links) == 31
    # Each server with a client is the only way to it; nothing else is a single point.
    assert {point.terminal: point.cut_off for point in plan.single_points} == {
        f"t{n:02}": [f"t{n + 20:02}"] for n in range(10)
    }
    assert all(point.pairs == CITIES - 2 for point in plan.single_points)
    points = routes.single_points(made).where("customer = 'cus_07'").collect()
    assert len(points) == 10

    ways = routes.paths(links, known)
    counts = {row["customer"]: row["count"] for row in ways.groupBy("customer").count().collect()}
    assert set(counts.values()) == {counts["cus_00"]}
    one = {
        (row["source"], row["destination"]): row
        for row in ways.where("customer = 'cus_13' and source in ('t20', 't05')").collect()
    }
    across = one["t20", "t10"]
    assert (across["next_hop"], across["path"], across["cost"]) == ("t00", ["t00", "t10"], 10.0)
    assert one["t05", "t06"]["path"] == ["t06"]
    assert one["t05", "t29"]["path"] == ["t06", "t07", "t08", "t09", "t29"]
    seen.unpersist()
    made.unpersist()


def test_a_job_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(BadOption):
        RoutesJob()
    with pytest.raises(BadOption):
        RoutesJob(folder="f", span=30.0)
    with pytest.raises(BadOption):
        RoutesJob(folder="f", window=60.0, span=3600.0)
    assert "secret" not in repr(RoutesJob(registry=RegistryAccess("https://r", "secret")))


# -- with a registry -----------------------------------------------------------------------------------


class Served:
    """A registry on a port, its loop in a thread."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.wait(self._open())

    def wait(self, coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(60)

    async def _open(self) -> None:
        self._registry = Registry(MemoryStore(), bytes(32), FakeClock())
        await self._registry.open()
        config = uvicorn.Config(app(self._registry), port=0, log_config=None, lifespan="off")
        self._server = uvicorn.Server(config)
        self._serving = asyncio.create_task(self._server.serve())
        while not self._server.started:
            await asyncio.sleep(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        self.operator_token = self._registry.operator_token or ""

    def client(self, token: str) -> RegistryClient:
        return RegistryClient(self.url, token=token)

    def close(self) -> None:
        async def close() -> None:
            self._server.should_exit = True
            await self._serving
            await self._registry.close()

        self.wait(close())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()


@pytest.fixture
def served() -> Iterator[Served]:
    found = Served()
    yield found
    found.close()


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_plan_goes_to_the_registry_and_the_tables_to_a_folder(
    spark: Any, site: Site, served: Served
) -> None:
    async def customer() -> tuple[str, str, list[str]]:
        async with served.client(served.operator_token) as operator:
            made = await operator.create_message_bus_customer("acme")
        async with served.client(made.token) as admin:
            ids = [(await admin.create_terminal(name)).terminal_id for name in ("paris", "rome", "oslo")]
        return made.customer_id, made.token, sorted(ids)

    id, token, (one, middle, last) = served.wait(customer())
    now = time.time_ns() // 1000
    told = {one: {middle: GOOD}, middle: {one: GOOD, last: GOOD}, last: {middle: GOOD}}
    with site.bus.publisher(site.topic("links")) as out:
        for n in (3, 2, 1):
            for terminal, links in told.items():
                out.send(msgspec.json.encode(said(terminal, now - n * MINUTE, links, customer=id)))

    def go(**options: Any) -> Any:
        job = RoutesJob(topic=site.topic("links"), window=3600.0, span=60.0, **options)
        return run(job, Place(spark, site.checkpoint, Trigger(once=True), site.access))

    folder = str(site.folder / "plans")
    go(folder=folder, registry=RegistryAccess(served.url, token))

    async def read() -> Any:
        async with served.client(token) as admin:
            return (await admin.read_plan()).plan, (await admin.planned_paths(one)).items

    plan, ways = served.wait(read())
    assert [(link.here, link.there, link.cost) for link in plan.links] == [
        (one, middle, 8.0),
        (middle, last, 8.0),
    ]
    [point] = plan.single_points
    assert (point.terminal, point.pairs) == (middle, 1)
    served_paths = {(one, way.terminal_id): (way.hops, way.cost) for way in ways}
    table = spark.read.parquet(f"{folder}/paths").where(f"source = '{one}'").collect()
    assert {(row["source"], row["destination"]): (row["path"], row["cost"]) for row in table} == served_paths
    assert served_paths[one, last] == ([middle, last], 16.0)
    for name, count in {"terminals": 3, "links": 2, "single_points": 1}.items():
        assert spark.read.parquet(f"{folder}/{name}").count() == count
    assert spark.read.parquet(f"{folder}/quality").count() >= 2 * 3

    # No news, no new plan; and a credential of another customer doesn't do.
    assert go(registry=RegistryAccess(served.url, "lbac1_wrong")).rows == 0
    site.bus.publish(site.topic("links"), said(one, now, {middle: GOOD}, customer="cus_other"))
    with pytest.raises(BadOption, match="cus_other"):
        go(registry=RegistryAccess(served.url, token))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_examples_run(spark: Any, site: Site) -> None:
    text = (Path(__file__).parents[2] / "docs" / "pipeline-routes.md").read_text()
    blocks = re.findall(r"^```py\n(.*?)^```", text, re.S | re.M)
    assert len(blocks) == 1
    with site.bus.publisher(site.topic("links")) as out:
        for document in (*every_minute("a", {"b": GOOD}), *every_minute("b", {"a": GOOD, "c": GOOD})):
            out.send(msgspec.json.encode(document))
        for document in every_minute("c", {"b": (20.0, 15.0, 0.1)}):
            out.send(msgspec.json.encode(document))
    scope: dict[str, Any] = {}
    exec(blocks[0].replace("$links", site.topic("links")), scope)  # nobody but a terminal writes to $links
    assert scope["points"].count() == 1
    assert scope["paths"].count() == 6
    assert scope["worst_hours"].count() == 4
