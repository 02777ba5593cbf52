"""Shows the progress of a long command on stderr, only on a terminal."""

from __future__ import annotations

import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Self

from headwater.cli import show

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

PATIENCE_S = 1.0  # before this nothing is shown: what is quick needs no explanation


class ProgressLine:
    """A line with a count, and a bar when the total is known. Gone when the work is done."""

    def __init__(self, what: str, *, as_bytes: bool = False, patience_s: float = PATIENCE_S) -> None:
        self._what = what
        self._as_bytes = as_bytes
        self._show_at = time.monotonic() + patience_s
        self._visible = show.is_terminal(sys.stderr)
        self._progress: Progress | None = None
        self._task: TaskID | None = None

    def update(self, done: int, total: int | None = None) -> None:
        """So much is done, of so much if that is known."""
        if not self._visible or (self._progress is None and time.monotonic() < self._show_at):
            return
        if self._progress is None:
            self._begin()
        assert self._progress is not None
        assert self._task is not None
        told = show.size(done) if self._as_bytes else show.number(done)
        if total is not None:
            told += f" of {show.size(total) if self._as_bytes else show.number(total)}"
        self._progress.update(self._task, completed=done, total=total, told=told)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._progress is not None:
            self._progress.stop()

    def _begin(self) -> None:
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.fields[told]}"),
            TimeElapsedColumn(),
            console=show.console(err=True),
            transient=True,
        )
        self._task = self._progress.add_task(self._what, total=None, told="")
        self._progress.start()
