"""``landbridge route plan``: the long-term plan of a registry, as people and programs see it."""

from __future__ import annotations

import asyncio

from landbridge.client.registry import RegistryClient
from landbridge.core.routing.plan import Plan, PlannedLink, SinglePoint
from tests.cli.conftest import Place
from tests.cli.test_registry import registry, saved
from tests.ports import free_port


def test_the_plan_by_names(place: Place) -> None:
    with registry(place, "--port", str(free_port())) as running:
        place.call("customer", "create", "acme", "--json")
        none = place.call("route", "plan", "--json")
        assert none.error["code"] == "unknown_plan"
        assert "pipeline run routes" in none.error["hint"]
        ids = {
            name: place.call("terminal", "create", name, "--json").json["terminal_id"]
            for name in ("paris", "rome", "oslo")
        }

        def link(one: str, other: str, **said: float) -> PlannedLink:
            here, there = sorted((ids[one], ids[other]))
            figures = {"cost": 20.0, "availability": 1.0, "rtt": 12.0, "rtt_95": 30.0, "loss": 0.01}
            return PlannedLink(here=here, there=there, **(figures | said))

        plan = Plan(
            since=1,
            until=1 + 7 * 86_400_000_000,
            terminals=dict.fromkeys(ids.values(), True),
            links=[link("paris", "rome"), link("rome", "oslo", cost=400.0, availability=0.25)],
            single_points=[SinglePoint(terminal=ids["rome"], cut_off=[ids["oslo"]], pairs=1)],
        )

        async def put() -> None:
            token = saved(place, "acme")["registry_token"]
            async with RegistryClient(running.ready["url"], token=token) as admin:
                await admin.put_plan(plan)

        asyncio.run(put())
        found = place.call("route", "plan", "--from", "paris", "--worst", "1", "--json").json
        assert found["single_points"] == [{"terminal": "rome", "cut_off": ["oslo"], "pairs": 1}]
        [worst] = found["worst_links"]
        assert {worst["from"], worst["to"]} == {"rome", "oslo"}
        assert worst["availability"] == 0.25
        hops = {row["to"]: (row["next_hop"], row["path"], row["cost"]) for row in found["next_hops"]}
        assert hops == {
            "rome": ("rome", ["rome"], 20.0),
            "oslo": ("rome", ["rome", "oslo"], 420.0),
        }
        assert (found["links"], found["terminals"]) == (2, 3)
        shown = place.call("route", "plan", "--from", "oslo").out
        assert "rome,paris" in shown
        assert "from 7 d of measurements" in shown
        assert place.call("route", "plan", "--from", "nowhere", "--json").error["code"] == "unknown_terminal"
        running.stop()
