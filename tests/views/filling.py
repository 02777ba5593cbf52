"""Binders that a test fills itself, as a projection does: documents and cursors in one transaction."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import msgspec

from headwater.document import Document
from headwater.event import Ref
from headwater.info import ViewError
from headwater.store import Store
from headwater.views import database
from headwater.views.draft import Draft
from headwater.views.encoding import encode
from headwater.views.files import Files

Some = Mapping[str, dict[str, Any] | None]


class Filling:
    """What writes to a binder. `puts` are counted, and are the versions of documents."""

    def __init__(self, hw: Store, name: str = "baskets", file: Path | None = None) -> None:
        self.hw = hw
        self.name = name
        self.files = Files.of(hw)
        self.file = file or self.files.ensure(name)
        self.connection = database.connect(self.file)
        self.draft = Draft(self.connection)
        self.puts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.connection.close()

    def put(self, documents: Some, *, passed: Ref | None = None) -> None:
        """Put or delete documents and, if given, have all projections pass an event, in one transaction."""
        with self.putting(documents):
            if passed is not None:
                values = passed.offset + 1, passed.partition
                self.connection.execute("UPDATE cursors SET next = ? WHERE partition = ?", values)

    @contextlib.contextmanager
    def putting(self, documents: Some) -> Iterator[None]:
        """The same, with something else in the same transaction."""
        with database.writing(self.connection):
            self.draft.begin()
            for id, document in documents.items():
                self.draft.put_all({id: None if document is None else encode(document)}, self.puts)
                self.puts += 1
            self.draft.write()
            yield

    def fold_from(self, topic: str, projection: str = "basket") -> None:
        """Make a projection known that has folded nothing yet."""
        made = self.hw.directory.topic(topic)
        with database.writing(self.connection):
            self.connection.execute(
                "INSERT INTO projections (name, topic, topic_uuid, version) VALUES (?, ?, ?, 1)",
                (projection, topic, made.uuid),
            )
            for partition in range(made.partitions):
                self.connection.execute(
                    "INSERT INTO cursors (projection, partition, next) VALUES (?, ?, 0)", (projection, partition)
                )

    def pass_(self, ref: Ref, projection: str = "basket") -> None:
        """Have a projection pass an event."""
        with database.writing(self.connection):
            values = ref.offset + 1, projection, ref.partition
            self.connection.execute("UPDATE cursors SET next = ? WHERE projection = ? AND partition = ?", values)

    def stop(self, ref: Ref, error: str, projection: str = "basket") -> None:
        """Have a projection stop at an event."""
        told = ViewError(ref.topic, ref.partition, ref.offset, str(ref.id), "", error, "", "")
        with database.writing(self.connection):
            values = msgspec.json.encode(told).decode(), projection
            self.connection.execute("UPDATE projections SET state = 'stopped', error = ? WHERE name = ?", values)

    def rebuild(self, documents: Some) -> None:
        """Have another file with these documents, and the projections of the first, take its place."""
        with self.files.building(self.name) as file:
            with Filling(self.hw, self.name, file) as new:
                for path in database.indexes(self.connection):
                    with database.writing(new.connection):
                        database.declare_index(new.connection, path)
                new.put(documents)
                for table in ("projections", "cursors"):
                    for row in self.connection.execute(f"SELECT * FROM {table}").fetchall():
                        marks = ", ".join("?" * len(row))
                        new.connection.execute(f"INSERT INTO {table} VALUES ({marks})", row)
            self.files.take_place(self.name, file)
        self.connection.close()
        self.file = file
        self.connection = database.connect(file)
        self.draft = Draft(self.connection)


def plain(documents: Any) -> dict[str, dict[str, Any]]:
    """Documents by their ids."""
    return {document.id: document.data for document in documents}


def ids(documents: Any) -> list[str]:
    found: list[Document] = list(documents)
    return [document.id for document in found]
