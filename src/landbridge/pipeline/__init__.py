"""Topics as Spark tables: ``format("landbridge")``, and a session for it.

    spark = landbridge.pipeline.session()
    spark.read.format("landbridge").option("subscribe", "orders").load()

The rest of Landbridge imports nothing from here, and Spark is imported when it is first used.
"""

from __future__ import annotations

from landbridge.pipeline.connector.progress import lag
from landbridge.pipeline.jobs.running import Job, Outcome, Place, Trigger, run
from landbridge.pipeline.jobs.step import Step, step
from landbridge.pipeline.spark import session

__all__ = ["Job", "Outcome", "Place", "Step", "Trigger", "lag", "run", "session", "step"]
