"""Headwater on Spark: topics as tables, batch and streaming, and the pipelines that run on them. Needs `[spark]`."""

from headwater.spark.rebuild import rebuild
from headwater.spark.session import session

__all__ = ["rebuild", "session"]
