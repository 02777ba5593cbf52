"""Headwater on Spark: topics as tables, batch and streaming, and the pipelines that run on them. Needs `[spark]`."""

from headwater.spark.archive import archive
from headwater.spark.session import session
from headwater.spark.table import table

__all__ = ["archive", "session", "table"]
