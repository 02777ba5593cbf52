"""Headwater on Spark: topics as tables, batch and streaming, and the pipelines that run on them. Needs `[spark]`."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from headwater.spark.session import session

if TYPE_CHECKING:
    from headwater.spark.pipelines import run

__all__ = ["run", "session"]

_MODULES = {"run": "pipelines"}


def __getattr__(name: str) -> Any:
    """Import what is asked for, when it is: most of it needs Spark."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
