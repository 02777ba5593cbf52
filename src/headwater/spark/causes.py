"""Extracts the cause of a failure on Spark as one line, without the stack traces of two languages."""

from __future__ import annotations

import re
import traceback
from pathlib import Path
from typing import Any

from headwater.errors import HeadwaterError

DEPTH_MAX = 20  # of causes that are looked at
_TRACEBACK = "Traceback (most recent call last):"
_RAISED = re.compile(r"^(?:[\w.]*\.)?(\w+)(?:: (.*))?$")
_PLACE = re.compile(r'^\s*File "([^"]+)", line (\d+)')
_STATE = re.compile(r"\s*SQLSTATE: \w{5}")
_OURS = ("/pyspark/", "/py4j/", "/headwater/")


def cause(error: BaseException) -> str:
    """Why it failed: what Python code raised, on the driver or in a task, and where; else what Spark says of it."""
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
    """What the exceptions of Java behind it say, the deepest last; nothing if there are none."""
    found: list[str] = []
    behind: Any = getattr(error, "_origin", None)
    while behind is not None and len(found) < DEPTH_MAX:
        found.append(str(behind.getMessage() or ""))
        behind = behind.getCause()
    return found


def _from_task(text: str) -> str:
    """Return the last traceback in what Spark tells of a task: its last frame of a user's, and its last line."""
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
    """Return the first paragraph, without the name of Spark's own state and what streams say around it."""
    told = text.rpartition("terminated with exception: ")[2]
    first = told.strip().partition("\n")[0]
    return _STATE.sub("", first).strip().rstrip(";")


def _is_ours(file: str) -> bool:
    return any(part in file for part in _OURS) or file.startswith("<")


def _place(file: str, line: object) -> str:
    return f"{Path(file).name}, line {line}"
