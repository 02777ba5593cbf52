"""Event sourcing: objects made of the events of one key, loaded and saved with care, on a directory or a server.

An `Aggregate` decides by recording events and is changed by applying them, and in no other way. A `Repository` loads
one from the events of its key and saves its new events, unless another writer was first. Snapshots are documents
that a projection keeps (`App.aggregate`); the log is authoritative, and a snapshot that does not fit it is ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, Generic, TypeVar
from uuid import UUID

from headwater.errors import Invalid, NotFound, Unsupported
from headwater.event import Content, Event, id_text
from headwater.format import given
from headwater.format.names import partition_of
from headwater.limits import DEFAULTS
from headwater.store import Store

SNAPSHOT_EVENT = "_event"  # the field of a snapshot with the id of the event that it ends with


class RecordedEvent(Event, frozen=True, gc=False):
    """An event that was recorded but not saved. It has no offset and no time yet."""

    @property
    def id(self) -> UUID:
        raise _not_saved("id")

    @property
    def time(self) -> datetime:
        raise _not_saved("time")


class Aggregate:
    """Built from the events of one key. Subclass it with a method `apply_<type>(self, event)` for each type of event.

    A subclass that needs an `__init__(self, id)` calls that of this class. What is in its attributes must follow from
    the events alone; names that begin with an underscore are not kept in snapshots. For one thread at a time.
    """

    def __init__(self, id: str) -> None:
        self._id = id
        self._version: int | None = None
        self._changes: list[RecordedEvent] = []

    @property
    def id(self) -> str:
        """Return the key of its events."""
        return self._id

    @property
    def version(self) -> int | None:
        """Return the offset of the last event that was loaded or saved; None if there is none."""
        return self._version

    @property
    def changes(self) -> Sequence[Event]:
        """Return the events that were recorded and are not saved."""
        return tuple(self._changes)

    def record(
        self, type: str, data: given.Data, meta: Mapping[str, str] | None = None, *, content: Content | None = None
    ) -> None:
        """Apply an event and keep it for `Repository.save`. If applying it raises, it is not kept.

        The event is as it will be read: its data went to bytes and back. Only its place, id and time are unknown yet:
        `offset` and `partition` are -1, and `id` and `time` raise. Raises Invalid for data that cannot be stored.
        """
        given.check_content(content)
        encoded, content = given.encode_data(data, content)
        given.encode_type(type)
        raw_meta = given.encode_meta(meta, DEFAULTS)
        event = RecordedEvent("", -1, -1, -1, type, self._id.encode(), encoded, content, 0, raw_meta)
        self._apply(event)
        self._changes.append(event)

    def apply(self, event: Event) -> None:
        """Apply an event of a type that has no method of its own. Unless a subclass does better, it raises Invalid."""
        kind, method = type(self).__name__, _method_of(event.type)
        raise Invalid(
            f"{kind} cannot apply events of type {event.type!r}",
            hint=f"define {kind}.{method}(self, event), or apply(self, event) for all other types",
            code="cannot_apply",
        )

    def state(self) -> dict[str, Any]:
        """Return what a snapshot keeps: by default, all attributes without a leading underscore."""
        return {name: value for name, value in vars(self).items() if not name.startswith("_")}

    def restore(self, state: dict[str, Any]) -> None:
        """Become what `state` told; it is given to a new object, decoded from BSON."""
        vars(self).update(state)

    def _apply(self, event: Event) -> None:
        method: Callable[[Event], object] = getattr(self, _method_of(event.type), self.apply)
        method(event)


A = TypeVar("A", bound=Aggregate)


class Repository(Generic[A]):
    """The aggregates of one kind: each is the events of one key of a topic. Safe from any thread."""

    def __init__(self, hw: Store, topic: str, cls: type[A], snapshots: str | None = None) -> None:
        """`snapshots` is the binder that `App.aggregate` fills; it need not be there.

        Raises Unsupported for a bucket, which has neither a key's history nor its version at hand.
        """
        if not hw.can("version"):
            hint = "use a directory or a server"
            raise Unsupported("aggregates need an index of keys, which a bucket does not have", hint=hint)
        self._hw = hw
        self._topic = topic
        self._cls = cls
        self._snapshots = snapshots
        self._partitions: int | None = None

    def load(self, id: str) -> A:
        """Return the aggregate as its events make it; a new one, without a version, if the key has none.

        It has all events that were there when this was called. Raises what applying an event raises.
        """
        if self._snapshots is not None:
            found = self._from_snapshot(id, self._snapshots)
            if found is not None:
                return found
        return self._from_events(id)

    def save(self, aggregate: A) -> None:
        """Append what was recorded, all or nothing, durably unless the log was opened otherwise.

        Raises Conflict if the key has got other events since it was loaded, or since the last save: then nothing was
        appended, and the aggregate is unchanged. Load it again, and decide again.
        """
        changes = aggregate._changes
        if not changes:
            return
        version: given.Version = "none" if aggregate._version is None else aggregate._version
        if len({event.content for event in changes}) == 1:
            refs: Sequence[Any] = self._hw.append_many(
                self._topic,
                [event.data or b"" for event in changes],
                types=[event.type for event in changes],
                keys=[aggregate.id] * len(changes),
                metas=[event.meta for event in changes],
                content=changes[0].content,
                expected_version=version,
            )
        else:
            refs = self._append_mixed(aggregate, version)
        aggregate._version = refs[-1].offset
        aggregate._changes = []

    def _append_mixed(self, aggregate: A, version: given.Version) -> Sequence[Any]:
        """Append events of several contents in one transaction, because each content needs a batch of its own."""
        with self._hw.transaction() as tx:
            for event in aggregate._changes:
                tx.append(
                    self._topic,
                    event.data or b"",
                    type=event.type,
                    key=aggregate.id,
                    meta=event.meta,
                    content=event.content,
                    expected_version=version,
                )
        return tx.refs

    def _from_events(self, id: str) -> A:
        while True:
            known = self._partitions is not None
            aggregate = self._cls(id)
            try:
                for event in self._read(id, "earliest"):
                    aggregate._apply(event)
                    aggregate._version = event.offset
                if aggregate.version is not None or not known or self._hw.version(self._topic, id) is None:
                    return aggregate
            except NotFound as error:
                if error.code == "topic_not_found":
                    return self._cls(id)
                if not known:
                    raise
            self._partitions = None  # the topic was deleted, and made again with others

    def _from_snapshot(self, id: str, snapshots: str) -> A | None:
        """Load from the snapshot on; None if there is none, or if it does not fit the events of this key.

        Its last event is read again: a topic that was deleted and made again has another one there, or none.
        """
        try:
            found = self._hw.binder(snapshots).get(id)
            if found is None:
                return None
            state = dict(found.data)
            last = state.pop(SNAPSHOT_EVENT, None)
            events = self._read(id, found.version)
            if not _is(next(events, None), found.version, last):
                return None
        except (NotFound, Invalid):
            return None
        aggregate = self._cls(id)
        aggregate.restore(state)
        aggregate._version = found.version
        for event in events:
            aggregate._apply(event)
            aggregate._version = event.offset
        return aggregate

    def _read(self, id: str, start: Any) -> Iterator[Event]:
        """Return the events of a key in the one partition that its versions are of."""
        if self._partitions is None:
            self._partitions = len(self._hw.describe(self._topic).partitions)
        partition = partition_of(id.encode(), self._partitions)
        return self._hw.read(self._topic, key=id, start=start, partition=partition)


def snapshot_fold(cls: type[Aggregate]) -> Callable[[dict[str, Any] | None, Event], dict[str, Any]]:
    """Return the fold of a projection that keeps the state of each aggregate."""

    def fold(doc: dict[str, Any] | None, event: Event) -> dict[str, Any]:
        aggregate = cls((event.key or b"").decode())
        if doc is not None:
            del doc[SNAPSHOT_EVENT]
            aggregate.restore(doc)
        aggregate._apply(event)
        state: Any = aggregate.state()
        if not isinstance(state, dict) or SNAPSHOT_EVENT in state:
            raise Invalid(
                f"the state of a {cls.__name__} must be a dict without {SNAPSHOT_EVENT!r}", hint="fix state()"
            )
        return {**state, SNAPSHOT_EVENT: id_text(event.ticks, event.node)}

    return fold


def _is(event: Event | None, offset: int, id: Any) -> bool:
    return event is not None and event.offset == offset and id_text(event.ticks, event.node) == id


@lru_cache(maxsize=4096)
def _method_of(type: str) -> str:
    """Return the name of the method for a type: what cannot stand in a name becomes an underscore."""
    return "apply_" + "".join(letter if letter.isalnum() else "_" for letter in type)


def _not_saved(what: str) -> Invalid:
    return Invalid(
        f"an event has no {what} before it is saved",
        hint=f"apply must not depend on it: store your own {what} in the data",
    )
