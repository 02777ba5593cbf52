"""Headwater on Spark: topics as tables, batch and streaming, and the pipelines that run on them. Needs `[spark]`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.spark.hangups import keep_silent
from headwater.spark.session import session

if TYPE_CHECKING:
    from headwater.spark.folding.rebuilding import rebuild
    from headwater.spark.parquet.archiving import archive
    from headwater.spark.parquet.one_table import table
    from headwater.spark.pipelines.running import run
    from headwater.spark.querying.aggregating import aggregate
    from headwater.spark.querying.sql import sql

__all__ = ["aggregate", "archive", "rebuild", "run", "session", "sql", "table"]

keep_silent()  # whatever Spark plans, reads, writes and commits with is in here

# No module has the name of its function: importing the one would hide the other.
_MODULES = {
    "aggregate": "querying.aggregating",
    "archive": "parquet.archiving",
    "rebuild": "folding.rebuilding",
    "run": "pipelines.running",
    "sql": "querying.sql",
    "table": "parquet.one_table",
}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: each task and each plan imports this package, and needs little of it."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
