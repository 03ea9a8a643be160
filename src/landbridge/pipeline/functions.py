"""Spark's SQL functions as ``F``. PySpark is imported at the first use, and not with this module."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import functions as F
else:

    class _Functions:
        def __getattr__(self, name: str) -> Any:
            from pyspark.sql import functions

            return getattr(functions, name)

    F = _Functions()

__all__ = ["F"]
