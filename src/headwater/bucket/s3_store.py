"""An object store that speaks S3, through `obstore`'s synchronous calls, which leave the interpreter to other threads.

A version is the object's ETag. It is derived from the bytes, so bytes that come again bring it back: what is swapped
has a random nonce in it (`records.py`).

`obstore` repeats no request here: what fails for a while is repeated by `_call`, in one way for all. An answer that was
lost then shows as a condition that failed, which is what callers expect of `create` and `swap`. Only the parts of a
large upload are repeated by `obstore`, as its pieces can be taken just once.
"""

from __future__ import annotations

import builtins
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import timedelta
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar

import obstore
from obstore.exceptions import AlreadyExistsError, BaseError, GenericError, PreconditionError
from obstore.store import S3Store as Client

from headwater.backoff import Backoff
from headwater.bucket.object_store import ObjectEntry, StoredObject, checked_key, checked_prefix
from headwater.bucket.s3_failures import answer_of, gave_up, missing_bucket, never_answered, refusal, without_conditions
from headwater.disk.disk import Clock
from headwater.errors import Unsupported
from headwater.limits import DEFAULTS, MIB, Limits

PAUSE_S = 0.05  # before the first repetition, at most
PAUSE_MAX_S = 5.0
PART_BYTES = 8 * MIB  # of a large upload: 10,000 of them are the most that S3 takes, 78 GiB
PARTS_AT_ONCE = 3
DELETE_MAX = 1000  # keys of one request, as S3 allows
LIST_MAX = 1000
RANGE_BEHIND_THE_END = 416

T = TypeVar("T")


class _ForkGuard:
    """`obstore`'s threads do not survive a fork, and a child that used it would wait for them forever."""

    used = False
    forked = False


def _after_fork() -> None:
    _ForkGuard.forked = _ForkGuard.used


os.register_at_fork(after_in_child=_after_fork)


class S3Store:
    """A store (`store.py`) in a bucket, below a prefix. Safe from any thread; not in a child that was forked."""

    def __init__(self, bucket: str, prefix: str, options: dict[str, Any], clock: Clock, limits: Limits = DEFAULTS):
        """`options` are those of `obstore`; what they leave out is taken from the environment, as everywhere on AWS."""
        self._bucket = bucket
        self._prefix = prefix
        self._endpoint = options.get("endpoint", "")
        self._clock = clock
        self._retry_s = limits.store_retry_s
        self._connect_s = limits.store_connect_s
        self._answered = False  # whether it ever did, so that what is wrong from the start is told at once
        client_options = {
            "timeout": timedelta(seconds=limits.store_request_s),
            "connect_timeout": timedelta(seconds=limits.store_connect_s),
        } | options.get("client_options", {})
        given = options | {"bucket": bucket, "prefix": prefix or None, "client_options": client_options}
        self._client = Client(**given, retry_config={"max_retries": 0})
        retry_timeout = timedelta(seconds=limits.store_retry_s)
        self._uploads = Client(**given, retry_config={"max_retries": 10, "retry_timeout": retry_timeout})

    @property
    def url(self) -> str:
        """Return where it is."""
        place = f"s3://{self._bucket}/{self._prefix}".rstrip("/")
        return f"{place}?endpoint={self._endpoint}" if self._endpoint else place

    def get(self, key: str) -> StoredObject | None:
        """Return the object; None if it is not there. Its bytes are not copied."""

        def ask() -> StoredObject:
            found = obstore.get(self._client, key)
            return StoredObject(memoryview(found.bytes()), self._version(found.meta["e_tag"]))

        return self._look(checked_key(key), ask)

    def get_range(self, key: str, start: int, length: int) -> memoryview | None:
        """Return some bytes of an object, fewer where it ends; None if it is not there."""
        checked_key(key)

        def ask() -> memoryview:
            if length <= 0:
                obstore.head(self._client, key)
                return memoryview(b"")
            try:
                return memoryview(obstore.get_range(self._client, key, start=start, length=length))
            except GenericError as error:
                if answer_of(error).status != RANGE_BEHIND_THE_END:
                    raise
                return memoryview(b"")

        return self._look(key, ask)

    def create(self, key: str, data: bytes) -> str | None:
        """Put an object where none is; None if one is there, or if the store refused two who came at once."""
        return self._put_if(checked_key(key), data, "create")

    def swap(self, key: str, data: bytes, version: str) -> str | None:
        """Replace an object if it still has this version; None if it has another one, or is gone."""
        return self._put_if(checked_key(key), data, {"e_tag": version})

    def put(self, key: str, data: bytes) -> None:
        """Put an object, whatever was there."""
        self._call(checked_key(key), lambda: obstore.put(self._client, key, data, use_multipart=False))

    def put_pieces(self, key: str, pieces: Iterable[bytes]) -> int:
        """Put an object of any size, whatever was there; returns the number of its bytes.

        A large object is sent in parts, several at a time.
        """
        taken = _KeyTakenError(pieces)
        first: builtins.list[bytes] = []
        for piece in taken:
            first.append(piece)
            if taken.size > PART_BYTES:
                break
        else:
            self.put(key, b"".join(first))
            return taken.size
        try:
            obstore.put(
                self._uploads,
                checked_key(key),
                chain(first, taken),
                use_multipart=True,
                chunk_size=PART_BYTES,
                max_concurrency=PARTS_AT_ONCE,
            )
        except (BaseError, OSError) as error:
            if taken.failed is not None:
                raise taken.failed from None
            self._check_uploaded(key, taken.size, error)
        return taken.size

    def delete(self, keys: Iterable[str]) -> None:
        """Delete objects; those that are not there are passed over."""
        rest = iter(keys)
        while batch := [checked_key(key) for key in islice(rest, DELETE_MAX)]:
            self._call(batch[0], partial(obstore.delete, self._client, batch))

    def list(self, prefix: str, after: str = "") -> Iterator[ObjectEntry]:
        """All objects whose keys begin so, behind the key `after`; those of one folder in the order of their keys.

        Some servers walk through folders: `a/b` may come before `a-b`, though not in the order of bytes.
        """
        folder = checked_prefix(prefix).rpartition("/")[0]
        pages = _Pages(self._client, folder)
        while found := self._call(prefix, partial(pages.next, after)):
            for each in found:
                key = each["path"]
                if key <= after and key.rpartition("/")[0] == after.rpartition("/")[0]:
                    raise Unsupported(
                        f"{self.url} does not list keys in order",
                        hint="use a general purpose bucket, not a directory bucket",
                        code="unordered_list",
                    )
                after = key
                if key.startswith(prefix):
                    yield ObjectEntry(key, each["size"], each["last_modified"])
                elif key > prefix:
                    return

    def folders(self, prefix: str) -> builtins.list[str]:
        """Return the next parts of the keys that begin with `prefix`, if they go on behind them; sorted, each once.

        Some servers go on naming one for a while after its last object was deleted.
        """
        checked_prefix(prefix)
        found = self._call(prefix, lambda: obstore.list_with_delimiter(self._client, prefix or None))
        return sorted(each.removeprefix(prefix).rstrip("/") for each in found["common_prefixes"])

    def close(self) -> None:
        """Connections end with the process."""

    def _put_if(self, key: str, data: bytes, mode: Any) -> str | None:
        def ask() -> str | None:
            try:
                answer = obstore.put(self._client, key, data, mode=mode, use_multipart=False)
            except (AlreadyExistsError, PreconditionError):
                return None
            return self._version(answer["e_tag"])

        return self._look(key, ask)

    def _look(self, key: str, ask: Callable[[], T | None]) -> T | None:
        """Return what `ask` returns; None if the object is not there. Only the bucket itself must be."""

        def look() -> T | None:
            try:
                return ask()
            except FileNotFoundError as error:
                missing = missing_bucket(self.url, error)
                if missing is not None:
                    raise missing from error
                return None

        return self._call(key, look)

    def _call(self, key: str, ask: Callable[[], T]) -> T:
        """Ask, and ask again while that may help."""
        if _ForkGuard.forked:
            raise Unsupported(
                f"{self.url} cannot be used in a forked process",
                hint="start processes with multiprocessing's 'spawn', and open it there",
                code="forked",
            )
        _ForkGuard.used = True
        backoff = Backoff(self._clock, PAUSE_S, PAUSE_MAX_S, self._retry_s)
        while True:
            began_s = self._clock.monotonic()
            try:
                answer = ask()
            except (BaseError, OSError) as error:
                where = f"{self.url}, key {key!r}"
                refused = missing_bucket(self.url, error) or refusal(where, error, self._answered)
                if refused is not None:
                    raise refused from error
                took_s = self._clock.monotonic() - began_s  # the next one may take as long, which must end in time
                if not backoff.pause(took_s - self._connect_s):
                    if not self._answered:
                        raise never_answered(self.url, error, self._retry_s) from error
                    raise gave_up(where, error, self._retry_s) from error
            else:
                self._answered = True
                return answer

    def _version(self, e_tag: str | None) -> str:
        if e_tag is None:
            raise without_conditions(self.url)
        return e_tag

    def _check_uploaded(self, key: str, size: int, error: Exception) -> None:
        """If the last answer of an upload was lost, its repetition says that there is no such upload."""
        found = self._look(key, lambda: obstore.head(self._client, key))
        if found is None or found["size"] != size:
            where = f"{self.url}, key {key!r}"
            raise refusal(where, error, answered=True) or gave_up(where, error, self._retry_s) from error


class _Pages:
    """Pages of a list. One that failed is asked for again, behind the last key that was seen."""

    def __init__(self, client: Client, folder: str) -> None:
        self._client = client
        self._folder = folder
        self._pages: Iterator[Any] | None = None

    def next(self, after: str) -> Sequence[Any]:
        """Return the next page; nothing at the end."""
        if self._pages is None:
            self._pages = obstore.list(self._client, self._folder or None, offset=after or None, chunk_size=LIST_MAX)
        try:
            return next(self._pages, ())
        except BaseError:
            self._pages = None
            raise


class _KeyTakenError:
    """Pieces on their way: how many bytes were taken, and what failed if taking one did."""

    def __init__(self, pieces: Iterable[bytes]) -> None:
        self._pieces = iter(pieces)
        self.size = 0
        self.failed: Exception | None = None

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        try:
            piece = next(self._pieces)
        except StopIteration:
            raise
        except Exception as error:
            self.failed = error
            raise
        self.size += len(piece)
        return piece
