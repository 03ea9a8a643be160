"""Topics as Spark tables: ``format("landbridge")``, and a session for it.

    spark = landbridge.pipeline.session()
    spark.read.format("landbridge").option("subscribe", "orders").load()

Nothing here is imported by the rest of Landbridge, and Spark only when it is used.
"""

from __future__ import annotations

from landbridge.pipeline.progress import lag
from landbridge.pipeline.spark import session

__all__ = ["lag", "session"]
