"""The lake as Delta tables, ``LAKE/messages`` and ``LAKE/rejects``, written by delta-rs without a second JVM.

Each row is written once, by the transactions of Delta's protocol: the query's id is the application, the
micro-batch is the version, and both are in the same commit as the rows. delta-rs has no VARIANT, so the
column ``json`` is text. The rows of a micro-batch go through the driver.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from landbridge.core.lake import MESSAGES, REJECTS
from landbridge.errors import BadOption
from landbridge.pipeline.functions import F
from landbridge.pipeline.jobs.running import query_of
from landbridge.pipeline.lake.rows import Payload, rejected, transform

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class DeltaLake:
    def __init__(self, path: str, payload: Payload) -> None:
        try:
            import deltalake  # noqa: F401 - only whether it is installed
        except ImportError:
            hint = "pip install 'landbridge[delta]'"
            raise BadOption("Delta tables need the package deltalake", hint=hint) from None
        self._path, self._payload = path.rstrip("/"), payload

    def take(self, frame: DataFrame, batch: int) -> None:
        query = query_of(frame)
        rows = transform(frame, self._payload)
        messages = rows
        if self._payload == "json":
            # Rejects first. After a crash between the two commits the micro-batch is run again, and the
            # rejects are recognised by their version.
            self._append(REJECTS, rejected(rows), query, batch)
            messages = rows.where("json is not null")
        # The payload stays as it is; to_json would format it anew.
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
        if data.num_rows:
            once = CommitProperties(app_transactions=[Transaction(query, batch)])
            write_deltalake(path, data, mode="append", partition_by=["topic", "date"], commit_properties=once)
