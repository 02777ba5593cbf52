"""The vocabulary of views: a document of a binder, and a change of one. Immutable values without I/O."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

ChangeKind = Literal["put", "delete", "reset"]


class Document(msgspec.Struct, frozen=True):
    """A member of a binder. `version` is the offset of the last event that was folded into it."""

    id: str
    version: int
    data: dict[str, Any]


class Change(msgspec.Struct, frozen=True):
    """A document was put or deleted; or, with `reset`, all begin anew: what follows is every document that there is.

    `place` is where to go on after it. `version` and `data` are None unless the document was put.
    """

    kind: ChangeKind
    place: str
    id: str = ""
    version: int | None = None
    data: dict[str, Any] | None = None
