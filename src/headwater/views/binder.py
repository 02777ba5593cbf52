"""The documents of one binder, to be read. Only projections change them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from headwater.document import Change, Document
from headwater.engine.engine import Engine
from headwater.event import Event, Ref, Refs
from headwater.info import BinderInfo
from headwater.views.files import Files

AtLeast = int | Ref | Event | Refs | Sequence[Ref]
"""What a projection must have passed: where something was appended, an event, or an offset in an only partition."""

TIMEOUT_S = 10.0


class Binder:
    """A collection of documents. Safe from any thread; raises NotFound while no projection has made it."""

    def __init__(self, hw: Engine, files: Files, name: str) -> None:
        self.name = name
        self._hw = hw
        self._files = files
        files.link(name)  # raises for a bad name

    def get(self, id: str, *, at_least: AtLeast | None = None, timeout: float = TIMEOUT_S) -> Document | None:
        """A document; None if there is none."""
        raise NotImplementedError

    def find(
        self,
        match: Mapping[str, Any] | None = None,
        *,
        sort: str | Sequence[str] = (),
        skip: int = 0,
        limit: int | None = None,
        fields: Sequence[str] | None = None,
        at_least: AtLeast | None = None,
        timeout: float = TIMEOUT_S,
    ) -> Iterator[Document]:
        """The documents that match, as they were at one moment."""
        raise NotImplementedError

    def count(
        self, match: Mapping[str, Any] | None = None, *, at_least: AtLeast | None = None, timeout: float = TIMEOUT_S
    ) -> int:
        """How many documents match."""
        raise NotImplementedError

    def explain(self, match: Mapping[str, Any] | None = None, *, sort: str | Sequence[str] = ()) -> str:
        """How `find` goes about it, in a line."""
        raise NotImplementedError

    def follow(self, *, after: str | None = None, timeout: float | None = None) -> Iterator[Change]:
        """Changes of documents, as they come, until `timeout` seconds bring none."""
        raise NotImplementedError

    def index(self, field: str) -> None:
        """Have an index over a field from now on; it is made when this returns, durably."""
        raise NotImplementedError

    def info(self) -> BinderInfo:
        """What the binder holds, and what fills it."""
        raise NotImplementedError
