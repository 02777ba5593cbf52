"""`headwater.open`: from an address to the object with all the verbs."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from headwater.address import is_server, kind_of
from headwater.engine.replica import progress
from headwater.engine.replica.marker import Marker
from headwater.engine.replica.replicator import Replicator
from headwater.engine.transfer.transfer import Transfer
from headwater.errors import Invalid
from headwater.event import Durability
from headwater.info import ReplicaInfo
from headwater.limits import DEFAULTS, Limits
from headwater.storage.disk import Clock, Disk
from headwater.views.local import Local

if TYPE_CHECKING:
    from headwater.client.remote import Remote
    from headwater.engine.bucket import Bucket

    Log: TypeAlias = Bucket | Local | Remote

BUCKET_OPTIONS = frozenset(("linger_ms", "coordinator"))


@overload
def open(
    address: os.PathLike[str],
    *,
    mode: Literal["create", "existing"] = ...,
    durability: Durability = ...,
    limits: Limits = ...,
) -> Local: ...
@overload
def open(
    address: str | os.PathLike[str],
    *,
    mode: Literal["create", "existing"] = ...,
    durability: Durability = ...,
    limits: Limits = ...,
    token: str | None = ...,
    user: tuple[str, str] | None = ...,
    tls_ca: str | os.PathLike[str] | None = ...,
    tls_cert: str | os.PathLike[str] | None = ...,
    tls_key: str | os.PathLike[str] | None = ...,
    timeout: float = ...,
    retry: float = ...,
    linger_ms: int | None = ...,
    coordinator: str | None = ...,
) -> Bucket | Local | Remote: ...
def open(  # the verb users expect, as in gzip.open
    address: str | os.PathLike[str],
    *,
    mode: Literal["create", "existing"] = "create",
    durability: Durability = "fsync",
    limits: Limits = DEFAULTS,
    **options: Any,
) -> Bucket | Local | Remote:
    """Open a log: a directory, a bucket, or a server at http:// or https://, with the same verbs.

    A directory is made if it is not there (unless `mode="existing"`, which raises NotFound); a server is connected to
    when it is first asked. `durability` is what appends wait for unless they say otherwise: `fsync` (on disk) or `os`
    (handed to the system). Raises Invalid for a directory that holds something else, Unsupported for an address or
    version it does not know.

    For a server: `token`, or `user` with a password; `tls_ca`, the authorities to trust instead of the system's;
    `tls_cert` and `tls_key`, who one is; `timeout`, seconds that an answer may take to begin; `retry`, seconds for
    which what failed is tried again, where that is safe (docs/CLIENT.md).

    For a bucket, `s3://bucket/prefix` or `objects:///a/directory`: `linger_ms`, how long appends wait for others to
    share an object with them; `coordinator`, where consumers keep their leases instead of the bucket:
    `dynamodb://table?region=…` (docs/BUCKET.md).
    """
    text = os.fspath(address)
    kind = kind_of(text) if isinstance(address, str) else "directory"
    given = {name: value for name, value in options.items() if value is not None}
    if kind == "bucket":
        return _bucket(text, mode, durability, limits, given)
    if kind == "server":
        _refuse(text, "a server", given.keys() & BUCKET_OPTIONS, "buckets", "s3://bucket/prefix")
        return _remote(text, durability, limits, **given)
    _refuse(text, "a directory", given.keys() & BUCKET_OPTIONS, "buckets", "s3://bucket/prefix")
    _refuse(text, "a directory", given.keys(), "servers", "http://host:7450")
    return Local(Path(text), create=mode == "create", durability=durability, limits=limits)


def _refuse(address: str, place: str, given: Iterable[str], others: str, hint: str) -> None:
    """Raise Invalid if options are given that are for other places."""
    for name in sorted(given):
        raise Invalid(f"{name} is for {others}, and {address!r} is {place}", hint=f"write {hint}")


def _bucket(
    address: str, mode: Literal["create", "existing"], durability: Durability, limits: Limits, options: dict[str, Any]
) -> Bucket:
    from headwater.engine.bucket import open_bucket

    _refuse(address, "a bucket", options.keys() - BUCKET_OPTIONS, "servers", "http://host:7450")
    return open_bucket(address, create=mode == "create", durability=durability, limits=limits, **options)


def _remote(
    address: str,
    durability: Durability,
    limits: Limits,
    *,
    token: str | None = None,
    user: tuple[str, str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    timeout: float = 60.0,
    retry: float = 15.0,
) -> Remote:
    from headwater.client.address import Credentials, ServerAddress, tls_context
    from headwater.client.remote import Remote
    from headwater.client.transport import Transport

    where = ServerAddress.parse(address)
    tls = tls_context(where, tls_ca, tls_cert, tls_key)
    transport = Transport(where, credentials=Credentials.of(token, user), tls=tls, timeout_s=timeout, retry_s=retry)
    return Remote(transport, lambda remote: Transfer(remote, remote.limits), durability=durability, limits=limits)


def replicate(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    once: bool = False,
    topics: Iterable[str] | None = None,
    delete: bool = False,
    restart: Iterable[str] = (),
    told: Callable[[ReplicaInfo], None] | None = None,
    limits: Limits = DEFAULTS,
    **server: Any,
) -> ReplicaInfo:
    """Copy a log, a server's or a directory's, to a directory that can only be read until it is promoted.

    Goes on for ever, or `once`, until all is there that the source had at the call; returns how the replica is. See
    docs/REPLICATION.md; `server` is what `open` takes for a server. Raises as `Replicator.run`.
    """
    with replicator(source, path, topics, delete, restart, told, limits, server) as copying:
        return copying.run(once=once)


@contextlib.contextmanager
def replicator(
    source: str | os.PathLike[str],
    path: str | os.PathLike[str],
    topics: Iterable[str] | None,
    delete: bool,
    restart: Iterable[str],
    told: Callable[[ReplicaInfo], None] | None,
    limits: Limits,
    server: dict[str, Any],
) -> Iterator[Replicator]:
    """What copies from an address, for whoever wants to stop it; the address is closed afterwards."""
    if is_server(str(source)):
        server = {"retry": 1.0, **server}  # it tries again by itself, and tells meanwhile how it is
    with open(source, mode="existing", limits=limits, **server) as hw:
        copied = hw.replication()
        address = str(hw.path.resolve()) if isinstance(hw, Local) else getattr(hw, "address", source)
        options: dict[str, Any] = {"topics": topics, "delete": delete, "restart": restart, "told": told}
        yield Replicator(copied, Path(path), address=str(address), limits=limits, **options)


def promote(path: str | os.PathLike[str]) -> None:
    """End being a replica: the directory takes appends from now on, durably, and is never copied to again.

    Raises NotFound if it is no replica, Conflict if it was promoted before, Unavailable while somebody copies to it.
    """
    Marker(Path(path), Disk(), Clock()).promote()


def replica(path: str | os.PathLike[str]) -> ReplicaInfo:
    """How a replica is, as the one who copies to it told last; raises NotFound if it is none."""
    return progress.read(Path(path), Disk(), Clock())
