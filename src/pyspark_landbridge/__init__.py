"""``format("landbridge")``. Spark looks for data sources in packages whose names begin with ``pyspark_``, so
nothing has to be registered. Heavy imports are inside of the methods, because these objects are pickled and
Spark imports this module at every lookup of a format."""

from __future__ import annotations

from typing import Any

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from landbridge.errors import BadOption

__all__ = ["DefaultSource"]


class DefaultSource(DataSource):
    """Topics as tables: batch and streaming reads and writes.

    Where: ``url`` and ``token``, or ``context``; or what the environment and the current context say.
    Read: one of ``subscribe``, ``subscribePattern``, ``assign``; ``startingOffsets``, ``startingTimestamp``,
    ``startingOffsetsByTimestamp``, the same with ``ending`` (batch), ``maxOffsetsPerTrigger``,
    ``minOffsetsPerTrigger``, ``maxTriggerDelay`` and ``group`` (stream), ``minPartitions``,
    ``maxRecordsPerPartition``, ``failOnDataLoss``, ``includeHeaders``, ``includeMetadata``.
    Write: ``topic``, or a column of that name; ``producerId`` and ``producerBatch`` (batch)."""

    @classmethod
    def name(cls) -> str:
        return "landbridge"

    def schema(self) -> str:
        from landbridge.pipeline.connector.columns import schema
        from landbridge.pipeline.connector.options import extra_columns

        headers, metadata = extra_columns(self.options)
        return schema(headers=headers, metadata=metadata)

    def reader(self, schema: StructType) -> DataSourceReader:
        from landbridge.pipeline.connector.source import BatchReader

        return BatchReader(schema, *self._to_read(schema, stream=False))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from landbridge.pipeline.connector.source import StreamReader

        return StreamReader(schema, *self._to_read(schema, stream=True))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from landbridge.pipeline.connector.sink import BatchWriter

        return BatchWriter(*self._to_write(schema, overwrite, stream=False))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802
        from landbridge.pipeline.connector.sink import StreamWriter

        return StreamWriter(*self._to_write(schema, overwrite, stream=True))

    def _to_read(self, schema: StructType, *, stream: bool) -> Any:
        from landbridge.pipeline.connector.access import TerminalAccess
        from landbridge.pipeline.connector.columns import check_read_schema
        from landbridge.pipeline.connector.options import read_options

        check_read_schema(schema)
        options = read_options(self.options, stream=stream)
        return TerminalAccess.of(self.options), options

    def _to_write(self, schema: StructType, overwrite: bool, *, stream: bool) -> Any:
        from landbridge.pipeline.connector.access import TerminalAccess
        from landbridge.pipeline.connector.columns import check_write_schema
        from landbridge.pipeline.connector.options import write_options

        if overwrite:
            raise BadOption("a topic can't be overwritten, only appended to", hint='mode("append")')
        options = write_options(self.options, stream=stream)
        check_write_schema(schema, options.topic)
        return TerminalAccess.of(self.options), options
