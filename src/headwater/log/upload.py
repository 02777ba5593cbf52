"""One event that arrives in pieces, in its own time: bounded memory, and no lock held meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from headwater.errors import Closed
from headwater.event import Content
from headwater.format.producers import Producer
from headwater.limits import Limits
from headwater.log.log import too_large
from headwater.log.rows import Rows


class BlobTarget(Protocol):
    """Where a huge event goes as it arrives. `path` names it in its log; `reference` is what its batch will hold."""

    path: Path
    reference: bytes

    def write(self, piece: bytes) -> None:
        """Take the next piece."""

    def finish(self) -> None:
        """Make all of it durable: `reference` can be committed then."""

    def close(self) -> None:
        """Release it, and what is in it if that was not committed."""


class BlobUpload:
    """Takes pieces with `write`, then `commit`s the event. `discard` it in any case.

    For one thread at a time, but that `discard` may come from any: it waits for what is under way. A file that was
    closed under a write would let it go to whatever file gets the number next.
    """

    def __init__(
        self,
        limits: Limits,
        spool: Callable[[], BlobTarget],
        append: Callable[[Rows], None],
        content: Content,
        type: bytes,
        key: bytes | None,
        meta: bytes | None,
        *,
        sync: bool,
        guard: tuple[int | None, Producer | None] | None,
    ) -> None:
        """`append` commits rows to the log, whose `limits` these are; `spool` makes a place for a huge event."""
        self.size = 0
        self._limits = limits
        self._new_spool = spool
        self._append = append
        self._values = type, key, meta
        self._content = content
        self._sync = sync
        self._guard = guard or (None, None)
        self._begun: list[bytes] = []  # until it is known to be huge
        self._spool: BlobTarget | None = None
        self._using = threading.Lock()  # protects the spool's file from being closed while it is written
        self._discarded = False

    def write(self, piece: bytes) -> None:
        """Take the next piece; raises TooLarge when it is above the topic's limit, Closed if it was discarded."""
        with self._using:
            self._check()
            self._write(piece)

    def commit(self) -> Rows:
        """Append the event; returns when its durability is reached, with its offset and ticks set."""
        with self._using:
            self._check()
            return self._commit()

    def discard(self) -> None:
        """Release what was not committed. May be called twice, and after `commit`."""
        with self._using:
            self._discarded = True
            spool, self._spool = self._spool, None
            if spool is not None:
                spool.close()

    def _check(self) -> None:
        if self._discarded:
            raise Closed("the upload was discarded")

    def _write(self, piece: bytes) -> None:
        self.size += len(piece)
        limits = self._limits
        if self._spool is not None:
            self._spool.write(piece)
        elif self.size > limits.data_bytes_max:
            raise too_large(limits.data_bytes_max)
        else:
            self._begun.append(piece)
            if self.size > limits.blob_bytes_min:
                self._spool = self._new_spool()
                for begun in self._begun:
                    self._spool.write(begun)
                self._begun.clear()

    def _commit(self) -> Rows:
        data = b"".join(self._begun)
        if self._spool is not None:
            self._spool.finish()
            data = self._spool.reference
        rows = Rows.one(self._content, self._sync, data, *self._values)
        rows.spooled = None if self._spool is None else self._spool.path
        rows.guard(*self._guard)
        self._append(rows)
        return rows
