"""The lake as Delta tables, ``LAKE/messages`` and ``LAKE/rejects``, written by delta-rs without a JVM of its
own.

Once by the transactions of Delta's protocol: the query's id is the application, the micro-batch the version,
and both are in the same commit as the rows. delta-rs has no VARIANT: the column ``json`` is text. The rows of
a micro-batch go through the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.core.lake import MESSAGES, REJECTS
from landbridge.errors import BadOption
from landbridge.pipeline.lake.archive import Payload, rejected, transform
from landbridge.pipeline.running import query_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DeltaLake:
    def __init__(self, path: str, payload: Payload) -> None:
        try:
            import deltalake  # noqa: F401 - is it there?
        except ImportError:
            raise BadOption(
                "Delta tables need the package deltalake", hint="pip install 'landbridge[delta]'"
            ) from None
        self._path = path.rstrip("/")
        self._payload = payload

    def take(self, frame: DataFrame, batch: int) -> None:
        from pyspark.sql import functions as F

        query = query_of(frame)
        rows = transform(frame, self._payload)
        messages = rows
        if self._payload == "json":
            # Rejects first: a crash in between leaves a micro-batch that is done again, and not a second time
            # here.
            self._append(REJECTS, rejected(rows), query, batch)
            messages = rows.where("json is not null")
        # The payload as it is: to_json would write it anew.
        text = F.when(F.col("json").isNotNull(), F.col("value").cast("string"))
        self._append(MESSAGES, messages.withColumn("json", text), query, batch)

    def _append(self, table: str, rows: DataFrame, query: str, batch: int) -> None:
        from deltalake import CommitProperties, DeltaTable, Transaction, write_deltalake

        path = f"{self._path}/{table}"
        if DeltaTable.is_deltatable(path):
            version: Any = DeltaTable(path).transaction_version(query)
            if version is not None and version >= batch:
                return
        data = rows.toArrow()
        if not data.num_rows:
            return
        once = CommitProperties(app_transactions=[Transaction(query, batch)])
        write_deltalake(path, data, mode="append", partition_by=["topic", "date"], commit_properties=once)
