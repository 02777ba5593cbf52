"""Translates errors of Spark for a query: without the Java stack, or as our own error where a task raised one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headwater import errors
from headwater.errors import HeadwaterError, Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark.errors import PySparkException

_LOGGER = "SQLQueryContextLogger"  # of PySpark, which prints every error with all of its stacks
_OURS = re.compile(r"^(?:pyspark\S*: )?headwater\.errors\.(\w+): (.+)$", re.MULTILINE)
_CLASS = re.compile(r"^\s*\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r" SQLSTATE: \w+")


def translated(error: PySparkException) -> HeadwaterError:
    """Return the error of ours that says the same: that of a task, or Invalid for what is wrong with a query."""
    ours = _OURS.findall(str(error))
    if ours:
        kind, message = ours[-1]
        raised: type[HeadwaterError] = getattr(errors, kind, Invalid)
        return raised(message)
    kind_of = Invalid if _is_of_query(error) else Unavailable
    return kind_of(told(error), code="bad_query" if kind_of is Invalid else "job_failed")


def _is_of_query(error: PySparkException) -> bool:
    return bool(error.getCondition()) and not error.__class__.__name__.startswith("SparkException")


def told(error: PySparkException) -> str:
    """What is wrong and where, with the place in the query where Spark shows it, but no plan and no stack."""
    text = _STATE.sub("", _CLASS.sub("", str(error)))
    text = re.split(r";?\n(?=['+!:]|\w+ \[|JVM stacktrace|\s+at )", text, maxsplit=1)[0]
    return "\n".join(line.rstrip() for line in text.strip().splitlines() if line.strip())


@contextmanager
def quiet() -> Iterator[None]:
    """Spark's errors are raised, and not printed before."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(_LOGGER)  # not logging's: that would make it of the wrong class
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
