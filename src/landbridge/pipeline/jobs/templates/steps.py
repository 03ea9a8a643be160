"""Steps of this pipeline: functions from rows to rows, between topics."""

from pyspark.sql import DataFrame

from landbridge.pipeline import step


@step(source="orders", sink="invoices", schema="id bigint, customer string, amount double")
def invoices(orders: DataFrame) -> DataFrame:
    """Invoices of the orders above 100, with tax. What isn't JSON of the schema goes to invoices.rejects."""
    return orders.where("amount > 100").selectExpr(
        "customer as key",  # of the message; the other columns are its payload
        "id",
        "customer",
        "round(amount * 1.19, 2) as total",
    )
