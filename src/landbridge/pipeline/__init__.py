"""Topics as Spark tables: ``format("landbridge")``, and a session for it.

    spark = landbridge.pipeline.session()
    spark.read.format("landbridge").option("subscribe", "orders").load()

Nothing here is imported by the rest of Landbridge, and Spark only when it is used.
"""

from __future__ import annotations

from landbridge.pipeline.progress import lag
from landbridge.pipeline.running import Job, Outcome, Place, Trigger, run
from landbridge.pipeline.spark import session
from landbridge.pipeline.step import Step, step

__all__ = ["Job", "Outcome", "Place", "Step", "Trigger", "lag", "run", "session", "step"]
