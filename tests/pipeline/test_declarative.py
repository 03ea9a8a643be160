"""The project's Declarative Pipeline, through Spark's own ``spark-pipelines``."""

from __future__ import annotations

import importlib.util
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from landbridge.cli.pipeline_declarative import spark_home
from tests.cli.conftest import Place

#: Seconds for one run, which starts two Javas and a server between them.
RUN = 600

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(4 * RUN),
    pytest.mark.skipif(importlib.util.find_spec("grpc") is None, reason="needs landbridge[pipeline]"),
]


def declarative(place: Place, folder: Path, *arguments: str) -> Any:
    spec = str(folder / "declarative" / "spark-pipeline.yml")
    process = place.start(
        "pipeline", "declarative", "--spec", spec, "--remote", "local[2]", "--json", *arguments
    )
    try:
        out, err = process.communicate(timeout=RUN)
    except subprocess.TimeoutExpired:
        process.terminate()
        raise
    assert process.returncode == 0, err.decode()
    return json.loads(out)


def messages(place: Place, topic: str) -> list[Any]:
    count = place.call("topic", "show", topic, "--json").json["messages"]
    lines = place.call("subscribe", topic, "--from", "earliest", "--count", str(count)).out.splitlines()
    return [json.loads(line) for line in lines]


def order(place: Place, number: int, amount: float) -> None:
    document = {"id": number, "customer": "anna", "amount": amount}
    assert place.call("publish", "orders", json.dumps(document)).status == 0


def test_each_order_gets_one_invoice_over_several_runs(tmp_path: Path) -> None:
    place, shop = Place(tmp_path), tmp_path / "shop"
    with place.up("--http-port", "0"):
        place.call("pipeline", "init", str(shop))
        order(place, 1, 200.0)
        order(place, 2, 20.0)
        assert place.call("publish", "orders", "no JSON").status == 0
        assert declarative(place, shop, "--dry-run")["dry_run"]
        assert "invoices" not in place.call("topic", "list").out
        declarative(place, shop)
        assert messages(place, "invoices") == [{"id": 1, "customer": "anna", "total": 238.0}]
        order(place, 3, 400.0)
        declarative(place, shop)
        assert [invoice["id"] for invoice in messages(place, "invoices")] == [1, 3]
        rejected = place.call("subscribe", "invoices.rejects", "--from", "earliest", "--count", "1")
        assert rejected.out == "no JSON\n"


def test_the_command_of_spark_is_where_it_is_looked_for() -> None:
    assert (spark_home() / "bin" / "spark-pipelines").is_file()
