"""Translates failures on Spark, without the stack traces of two languages.

`cause` is one line for a person: what failed, and where. `translated` is the error of ours for a query: the one that a
task raised, or Invalid for a query that Spark refuses.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from headwater import errors
from headwater.errors import HeadwaterError, Invalid, Unavailable

if TYPE_CHECKING:
    from pyspark.errors import PySparkException


DEPTH_MAX = 20  # of causes that are looked at
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?:[\w.]*\.)?(\w+)(?:: (.*))?$")
_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+)')
_STATE = re.compile(r"\s*SQLSTATE: \w{5}")
_OURS = ("/pyspark/", "/py4j/", "/headwater/")
_LOGGER = "SQLQueryContextLogger"  # of PySpark, which prints every error with all of its stacks
_OUR_ERROR = re.compile(r"^(?:pyspark\S*: )?headwater\.errors\.(\w+): (.+)$", re.MULTILINE)
_CLASS = re.compile(r"^\s*\[[A-Z0-9_.]+\] ")


def cause(error: BaseException) -> str:
    """Return why it failed: what Python code raised, on the driver or in a task, and where; else the text of Spark."""
    if isinstance(error, HeadwaterError):
        return str(error)
    text = str(error)
    if type(error).__module__.partition(".")[0] in ("pyspark", "py4j"):
        told = [each for each in (text, *_causes(error)) if each]
        of_python = [each for each in told if _TRACEBACK in each]
        return _from_task(of_python[-1]) if of_python else _from_spark(told[-1])
    raised = f"{type(error).__name__}: {error}" if text else type(error).__name__
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not _is_ours(frame.filename)]
    return f"{raised} ({_place(frames[-1].filename, frames[-1].lineno)})" if frames else raised


def _causes(error: BaseException) -> list[str]:
    """Return the messages of the Java exceptions behind an error, the deepest last; empty if there are none."""
    found: list[str] = []
    behind: Any = getattr(error, "_origin", None)
    while behind is not None and len(found) < DEPTH_MAX:
        found.append(str(behind.getMessage() or ""))
        behind = behind.getCause()
    return found


def _from_task(text: str) -> str:
    """Return the last line of the last traceback in a message of Spark, with the last frame of the user's code."""
    lines = text.rpartition(_TRACEBACK)[2].splitlines()
    where = ""
    for line in lines:
        found = _PLACE.match(line)
        if found and not _is_ours(found[1]):
            where = f" ({_place(found[1], found[2])})"
        raised = _RAISED.match(line)
        if raised and line.startswith("headwater.errors."):
            return raised[2] or raised[1]
        if raised:
            return f"{raised[1]}: {raised[2]}{where}" if raised[2] else f"{raised[1]}{where}"
    return _from_spark(text)


def _from_spark(text: str) -> str:
    """Return the first line of a message of Spark, without its SQLSTATE and the text that streams add."""
    told = text.rpartition("terminated with exception: ")[2]
    first = told.strip().partition("\n")[0]
    return _STATE.sub("", first).strip().rstrip(";")


def _is_ours(file: str) -> bool:
    return any(part in file for part in _OURS) or file.startswith("<")


def _place(file: str, line: object) -> str:
    return f"{Path(file).name}, line {line}"


def translated(error: PySparkException) -> HeadwaterError:
    """Return the error of ours that says the same: that of a task, or Invalid for what is wrong with a query."""
    ours = _OUR_ERROR.findall(str(error))
    if ours:
        kind, message = ours[-1]
        raised: type[HeadwaterError] = getattr(errors, kind, Invalid)
        return raised(message)
    kind_of = Invalid if _is_of_query(error) else Unavailable
    return kind_of(message_of(error), code="bad_query" if kind_of is Invalid else "job_failed")


def _is_of_query(error: PySparkException) -> bool:
    return bool(error.getCondition()) and not error.__class__.__name__.startswith("SparkException")


def message_of(error: PySparkException) -> str:
    """Return the message of an error, with the place in the query where Spark shows it, but no plan and no stack."""
    text = _STATE.sub("", _CLASS.sub("", str(error)))
    text = re.split(r";?\n(?=['+!:]|\w+ \[|JVM stacktrace|\s+at )", text, maxsplit=1)[0]
    return "\n".join(line.rstrip() for line in text.strip().splitlines() if line.strip())


@contextmanager
def quiet() -> Iterator[None]:
    """Keep Spark from printing errors that it raises."""
    from pyspark.logger import PySparkLogger

    logger = PySparkLogger.getLogger(_LOGGER)  # not logging's: that would make it of the wrong class
    before = logger.disabled
    logger.disabled = True
    try:
        yield
    finally:
        logger.disabled = before
