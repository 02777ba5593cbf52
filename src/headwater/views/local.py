"""An open log directory with all the verbs: those of `Engine`, and those of views."""

from __future__ import annotations

from headwater.engine.engine import Engine
from headwater.info import ViewInfo
from headwater.views import status
from headwater.views.binder import Binder
from headwater.views.files import Files


class Local(Engine):
    """What `headwater.open("data")` returns. Close it, or use it in a `with` statement; safe from any thread."""

    def binder(self, name: str) -> Binder:
        """The documents of a binder, to be read; it need not be there yet, and reading it then raises NotFound."""
        return Binder(self, Files.of(self), name)

    def binders(self) -> list[str]:
        """The names of all binders, sorted; empty if there are none."""
        self.check_open()
        return Files.of(self).names()

    def views(self) -> list[ViewInfo]:
        """How all projections and functions are, by name within their binders; empty if there are none."""
        self.check_open()
        return status.views(self)
