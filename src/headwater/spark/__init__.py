"""Headwater on Spark: topics as tables, batch and streaming, and the pipelines that run on them. Needs `[spark]`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.spark.session import keep_silent, session

if TYPE_CHECKING:
    from headwater.spark.aggregating import aggregate
    from headwater.spark.archiving import archive
    from headwater.spark.folding.rebuilding import rebuild
    from headwater.spark.pipelines.running import run
    from headwater.spark.sql_queries import sql
    from headwater.spark.topic_table import table

__all__ = ["aggregate", "archive", "rebuild", "run", "session", "sql", "table"]

keep_silent()  # whatever Spark plans, reads, writes and commits with is in here

# No module has the name of its function: importing the one would hide the other.
_MODULES = {
    "aggregate": "aggregating",
    "archive": "archiving",
    "rebuild": "folding.rebuilding",
    "run": "pipelines.running",
    "sql": "sql_queries",
    "table": "topic_table",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: each task and each plan imports this package, and needs little of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
