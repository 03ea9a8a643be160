"""The step ``invoices`` as a flow: from its topic into the topics that its rows name."""

import sys
from pathlib import Path

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # where steps.py is
from steps import invoices

spark = SparkSession.active()
# Out here: a step looks at the columns of its rows, which functions of flows may not do.
orders = spark.readStream.format("landbridge").options(**invoices.reading).load()
messages = invoices.transform(orders)

# Any number of topics: messages has a column of that name. Another terminal: options={"context": …}.
dp.create_sink("topics", "landbridge")


@dp.append_flow(target="topics", name="invoices")
def flow() -> DataFrame:
    return messages
