"""Folding one shard of a binder's history, in a worker: the documents that belong to it, from beginning to end.

The result is that of `views.document_fold`, which folds event after event, for any fold that depends on nothing but its
arguments. Events are taken by document here, many of one after the other, so that most documents need not become bytes
and objects again between two events: see `_fold_run`. Needs no Spark.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from headwater.errors import HeadwaterError, NotFound
from headwater.event import Event
from headwater.format.codec import codec
from headwater.format.events import EventBatch
from headwater.info import ViewError
from headwater.limits import DOCUMENT_BYTES_MAX, MIB
from headwater.spark.folding.sharding import FoldRange, KeyedChunk, Task, own, shards_of
from headwater.views import database
from headwater.views.app import Projection
from headwater.views.document_fold import key_function
from headwater.views.draft import Draft
from headwater.views.encoding import document_id, too_large, view_error
from headwater.views.shards import Shard, ShardTally, failures_wanted

if TYPE_CHECKING:
    from headwater.store import Store


CHUNK_EVENTS = 1_000_000  # that are put in order together: the more of a document, the fewer times it is stored
CHUNK_BYTES = 128 * MIB
KEPT_EVENTS = 100_000  # that are objects at a time, where they must be to tell their documents
CACHE_BYTES = 256 * MIB  # of documents that are kept in memory; more are kept in the shard's file
_TEXT_MAX = 65_536  # characters of a text, and below it fields of a document, that need no look at its size
_FIELDS_MAX = 64
_INT_MIN, _INT_MAX = -(2**31), 2**31 - 1

Fold = Callable[[Any, Event], Any]
Told = Callable[[int], object]
"""Called with how many events were passed, those of other shards too."""


def fold_shard(
    hw: Store, projections: Sequence[Projection], task: Task, fields: Sequence[str], file: Path, told: Told
) -> Shard:
    """Fold a shard into a new file, which is complete when this returns. What folds raise is in the result."""
    tallies: dict[str, ShardTally] = {}
    connection = database.create_scratch(file, fields)
    collecting = gc.isenabled()
    gc.disable()  # it would look through all documents again and again, and find nothing
    try:
        with database.translated(file), database.writing(connection):
            draft = Draft(connection, cache_bytes=CACHE_BYTES, followed=False)
            draft.begin()
            passed = 0
            for part in task.parts:
                projection = projections[part.projection]
                tally = tallies.setdefault(projection.name, ShardTally(missed={}, failed=[]))
                folding = SparkFold(projection, draft, tally, task)
                for next in folding.fold(_batches(hw, projection, part, tally)):
                    told(passed + next - part.start)
                passed += part.end - part.start
                told(passed)
                if len(tally.failed) >= failures_wanted(projection):
                    break  # one process would have come no further
            draft.write()
    finally:
        connection.close()
        if collecting:
            gc.enable()
    return Shard(str(file), tallies)


def _batches(hw: Store, projection: Projection, part: FoldRange, tally: ShardTally) -> Iterator[EventBatch]:
    """Yield the events of a part; those that retention takes before they are read are counted as missed."""
    next = part.start
    filters: dict[str, Any] = {"type": projection.type, "match": projection.match}
    while next < part.end:
        bounds = {"partition": part.partition, "start": next, "end": part.end}
        try:
            for batch in hw.read_batches(projection.topic, **bounds, **filters):  # type: ignore[arg-type]  # as they say
                next = batch.end_offset
                yield batch
            next = part.end
        except NotFound as error:
            if error.code != "offset_gone":
                raise
            oldest = min(error.oldest, part.end)
            tally.missed[part.partition] = tally.missed.get(part.partition, 0) + oldest - next
            next = oldest


class SparkFold:
    """One part of a shard at work: a projection over the events of one partition."""

    def __init__(self, projection: Projection, draft: Draft, tally: ShardTally, task: Task) -> None:
        self._projection = projection
        self._draft = draft
        self._tally = tally
        self._task = task
        self._key_of = key_function(projection)
        self._wanted = failures_wanted(projection)
        self._limit: float = math.inf  # events from this offset on change nothing any more: the projection stops before
        self._before = len(tally.failed)

    def fold(self, batches: Iterable[EventBatch]) -> Iterator[int]:
        """Fold everything, chunk by chunk; gives the offset behind each."""
        by_key = self._projection.key is None
        shard, shards = self._task.shard, self._task.shards
        gathered: list[EventBatch] = []
        events = size = 0
        for batch in batches:
            mine = own(batch, shard, shards) if by_key else batch
            if mine is None:
                continue
            gathered.append(mine)
            events += len(mine)
            stored = mine.piece.batch
            size += stored.bytes_claimed() * len(mine) // stored.count
            if events >= CHUNK_EVENTS or size >= CHUNK_BYTES:
                self._fold_chunk(gathered)
                yield batch.end_offset
                if self._limit < math.inf:
                    return
                gathered, events, size = [], 0, 0
        if gathered:
            self._fold_chunk(gathered)

    def _fold_chunk(self, batches: list[EventBatch]) -> None:
        if self._projection.key is None:
            chunk = KeyedChunk(batches)
            batches.clear()  # the chunk has their events
            self._fold_by_key(chunk)
        else:
            self._fold_by_function(batches)
        gc.collect(0)

    def _fold_by_key(self, chunk: KeyedChunk) -> None:
        self._tally.skipped += chunk.skipped
        ids = [_id_of(key) for key in chunk.keys]
        for first, runs in chunk.runs():
            some = dict(zip(ids[first : first + len(runs)], runs, strict=True))
            wrong = [id for id in some if isinstance(id, HeadwaterError)]
            for error in wrong:
                self._fail_all(some.pop(error), error)
            self._fold_runs(cast("dict[str, list[Event]]", some))

    def _fold_by_function(self, batches: Iterable[EventBatch]) -> None:
        """Fold the events whose documents are in this shard, if only the projection itself can tell which."""
        runs: dict[str, list[Event]] = {}
        kept = 0
        for batch in batches:
            for event, id in self._mine(batch.events()):
                runs.setdefault(id, []).append(event)
                kept += 1
            if kept >= KEPT_EVENTS:
                self._fold_runs(runs)
                runs, kept = {}, 0
        self._fold_runs(runs)

    def _mine(self, events: Sequence[Event]) -> Iterator[tuple[Event, str]]:
        """Yield the events of this shard with their documents. Those that have none, or fail, are the first shard's."""
        ids: list[str | None] = []
        errors: dict[int, BaseException] = {}
        for event in events:
            try:
                ids.append(document_id(self._key_of(event)))
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever the user's code raises
                errors[len(ids)] = error
                ids.append(None)
        for at in np.flatnonzero(shards_of(ids, self._task.shards) == self._task.shard).tolist():
            event, id = events[at], ids[at]
            if id is not None:
                yield event, id
            elif at not in errors:
                self._tally.skipped += 1
            elif event.offset < self._limit:
                self._fail(event, errors[at])

    def _fold_runs(self, runs: dict[str, list[Event]]) -> None:
        """Fold the events of each document."""
        draft, fold = self._draft, self._projection.fold
        if draft.full():
            draft.write()
            draft.begin()
        ids = list(runs)
        draft.load(ids)
        documents: dict[str, bytes | None] = {}
        versions: dict[str, int] = {}
        folded = 0
        for (id, events), before in zip(runs.items(), draft.stored(ids), strict=True):
            try:
                documents[id] = _fold_run(fold, before, events)
            except KeyboardInterrupt:
                raise
            except BaseException:  # noqa: BLE001  # it is raised again, and told, when the event has its turn
                last = self._fold_each(id, before, events, documents)
                if last is not None:
                    versions[id] = last
            else:
                versions[id] = events[-1].offset
                folded += len(events)
        self._tally.folded += folded
        draft.change(documents, versions)

    def _fold_each(
        self, id: str, before: bytes | None, events: Sequence[Event], documents: dict[str, bytes | None]
    ) -> int | None:
        """Fold the events of a document of which one fails, as `DocumentFold` does; return the last that did not."""
        encode, decode, _, options, encoding, _ = codec()
        last = None
        for event in events:
            if event.offset >= self._limit:
                break
            try:
                document = self._projection.fold(None if before is None else decode(before, options), event)
                after = None if document is None else encode(document, False, encoding)
                if after is not None and len(after) > DOCUMENT_BYTES_MAX:
                    raise too_large(after)
            except KeyboardInterrupt:
                raise
            except BaseException as error:  # noqa: BLE001  # whatever the user's code raises
                self._fail(event, error)
            else:
                documents[id] = before = after
                last = event.offset
                self._tally.folded += 1
        return last

    def _fail_all(self, events: Sequence[Event], error: BaseException) -> None:
        for event in events:
            if event.offset < self._limit:
                self._fail(event, error)

    def _fail(self, event: Event, error: BaseException) -> None:
        """Note that an event cannot be folded. Of too many, the first ones are kept, in order."""
        failed = self._tally.failed
        failed.append(view_error(event, error))
        if len(failed) >= self._wanted:
            failed[self._before :] = sorted(failed[self._before :], key=_offset)[: self._wanted - self._before]
            self._limit = failed[-1].offset


def _id_of(key: bytes) -> str | HeadwaterError:
    """Return the document of a key, or why it has none."""
    try:
        return document_id(key) or ""
    except HeadwaterError as error:
        return error


def _offset(error: ViewError) -> int:
    return error.offset


def _fold_run(fold: Fold, before: bytes | None, events: Sequence[Event]) -> bytes | None:
    """Return the document after some events, as it is stored; None if there is none. Raises what a fold raises.

    A fold must get a fresh copy of the stored document. For a document that holds only
    small numbers and plain text, a copy is just that, and so is the object that the fold was given and has changed:
    those are stored when the run ends. Any other is stored, and decoded again, after each event.
    """
    encode, decode, _, options, encoding, _ = codec()
    data = before
    document: Any = None
    plain: tuple[Any, ...] | None = None  # names of fields that come back as they are
    for event in events:
        given = document if data is None else decode(data, options)
        data = None
        document = fold(given, event)
        if document is None:
            continue
        names = tuple(document) if document.__class__ is dict else None
        if names is not None and (names == plain or names in _PLAIN_FIELDS or _are_plain(names)):
            plain = names
            for value in document.values():
                kind = value.__class__
                if kind is int:
                    if not _INT_MIN <= value <= _INT_MAX:
                        break
                elif kind is str:
                    if len(value) > _TEXT_MAX or not value.isascii():
                        break
                elif kind is not float and kind is not bool and value is not None:
                    break
            else:
                document = document if document is given else document.copy()
                continue
        data = encode(document, False, encoding)
        if len(data) > DOCUMENT_BYTES_MAX:
            raise too_large(data)
    return data if data is not None or document is None else encode(document, False, encoding)


_PLAIN_FIELDS: set[tuple[Any, ...]] = set()
_PLAIN_FIELDS_MAX = 10_000


def _are_plain(names: tuple[Any, ...]) -> bool:
    """Return whether all names of fields come back as they are; those that do are remembered."""
    if len(names) > _FIELDS_MAX or not all(map(_is_plain, names)):
        return False
    if len(_PLAIN_FIELDS) >= _PLAIN_FIELDS_MAX:
        _PLAIN_FIELDS.clear()
    _PLAIN_FIELDS.add(names)
    return True


def _is_plain(name: Any) -> bool:
    # An _id is put before the other fields when it is stored.
    return name.__class__ is str and name != "_id" and len(name) <= _TEXT_MAX and name.isascii() and "\0" not in name
