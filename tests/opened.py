"""What is behind a store, with its own type: for tests that look inside, or use what only one backend has."""

from __future__ import annotations

from typing import Unpack

from headwater.bucket.bucket import Bucket
from headwater.consumers.log_consumer import ExternalCursors, LogConsumer
from headwater.consumers.log_consumers import log_consumers
from headwater.format import given
from headwater.history.archive import DirectoryArchive
from headwater.requests import Consume, ConsumeOptions, ProducerLike
from headwater.store import Store
from headwater.transaction import Transaction
from headwater.views.binder import LocalBinder


def archive_of(store: Store) -> DirectoryArchive:
    archive = store.directory.archive
    assert isinstance(archive, DirectoryArchive)
    return archive


def bucket_of(store: Store) -> Bucket:
    assert isinstance(store.backend, Bucket)
    return store.backend


def binder_of(store: Store, name: str) -> LocalBinder:
    binder = store.binder(name)
    assert isinstance(binder, LocalBinder)
    return binder


def join(
    store: Store, name: str, topic: str, kept: ExternalCursors | None = None, **options: Unpack[ConsumeOptions]
) -> LogConsumer:
    return log_consumers(store.consumption).join(Consume.of(name, topic, store.limits, **options), kept)


def begin(store: Store, producer: ProducerLike | None = None) -> Transaction:
    return store.directory.transaction(None, given.check_producer(producer, store.limits))
