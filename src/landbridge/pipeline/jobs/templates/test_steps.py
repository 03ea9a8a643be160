"""A step is a function: tests need a table, and no bus."""

from collections.abc import Iterator

import pytest
from pyspark.sql import Row, SparkSession

from landbridge.pipeline import session
from steps import invoices


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = session("local[1]")
    yield started
    started.stop()


def test_an_order_above_100_gets_an_invoice(spark: SparkSession) -> None:
    orders = spark.createDataFrame([(1, "anna", 100.0), (2, "bert", 250.0)], invoices.schema)
    assert invoices(orders).collect() == [Row(key="bert", id=2, customer="bert", total=297.5)]
