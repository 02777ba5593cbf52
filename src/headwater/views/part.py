"""The interface of projections and functions to a runner, which runs each in its own thread."""

from __future__ import annotations

from typing import Protocol


class ViewWorker(Protocol):
    """A running projection or function."""

    name: str

    def run(self) -> None:
        """Work until `stop` is called. What goes wrong is kept for `views status`; it ends only when it is stopped."""

    def stop(self) -> None:
        """End `run`, soon; from any thread."""

    def settled(self) -> bool:
        """Return whether it has handled everything that is there now, durably; from any thread.

        Raises Unavailable if it cannot go on.
        """
