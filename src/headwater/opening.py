"""`headwater.open`: from an address to a `Store`. The one place that knows which backends there are.

Replicas are here, too, because they open what they copy from.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from headwater.consumers.file_consumers import FileConsumers
from headwater.directory.journal import restore
from headwater.directory.parts import DirectoryParts
from headwater.history.archive import DirectoryArchive
from headwater.replication.source import LocalSource

if TYPE_CHECKING:
    from headwater.bucket.object_store import ObjectStore


import contextlib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Literal

from headwater.address import absolute, is_server, kind_of
from headwater.consumers.log_consumers import LogConsumers
from headwater.directory.directory import Directory
from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid
from headwater.event import Durability
from headwater.info import ReplicaInfo
from headwater.limits import DEFAULTS, Limits
from headwater.replication import marker
from headwater.replication.marker import Marker
from headwater.replication.replicator import Replicator
from headwater.store import Store
from headwater.views.local_views import LocalViews


def open(  # the verb users expect, as in gzip.open
    address: str | os.PathLike[str],
    *,
    mode: Literal["create", "existing"] = "create",
    durability: Durability = "fsync",
    limits: Limits = DEFAULTS,
    token: str | None = None,
    user: tuple[str, str] | None = None,
    tls_ca: str | os.PathLike[str] | None = None,
    tls_cert: str | os.PathLike[str] | None = None,
    tls_key: str | os.PathLike[str] | None = None,
    timeout: float | None = None,
    retry: float | None = None,
    linger_ms: int | None = None,
    coordinator: str | None = None,
) -> Store:
    """Open a store: a directory, a bucket (`s3://…`, `objects://…`) or a server (`http://…`, `https://…`).

    A directory is created if it is missing, unless `mode="existing"`, which raises NotFound; a server is connected to
    when it is first used. `durability` is what appends wait for unless they say otherwise: `fsync` (on disk) or `os`
    (handed to the system). `linger_ms` is how long `append_later` gathers events (100 in a bucket, 5 elsewhere); in a
    bucket, every append then waits so long to share an object. Raises Invalid for a directory that holds something
    else, Unsupported for an address or version that it does not know.

    For a server: `token`, or `user`, a name and a password; `tls_ca`, the authorities to trust instead of the system's;
    `tls_cert` and `tls_key`, the client's own certificate; `timeout`, how many seconds a response may take to begin
    (60); `retry`, for how many seconds a failed request is retried where that is safe (15). See docs/CLIENT.md.

    For a bucket: `coordinator`, where consumers keep their leases instead of the bucket: `dynamodb://table?region=…`.
    See docs/BUCKET.md.
    """
    text = os.fspath(address)
    kind = kind_of(text) if isinstance(address, str) else "directory"
    server: dict[str, Any] = {"token": token, "user": user, "tls_ca": tls_ca, "tls_cert": tls_cert, "tls_key": tls_key}
    server |= {"timeout": timeout, "retry": retry}
    if kind != "bucket":
        _refuse(text, kind, {"coordinator": coordinator}, "buckets", "s3://bucket/prefix")
    if kind != "server":
        _refuse(text, kind, server, "servers", "http://host:7450")
    create = mode == "create"
    if linger_ms is not None:
        limits = msgspec.structs.replace(limits, linger_ms=linger_ms)
    if kind == "bucket":
        bucket: dict[str, Any] = {"patient": linger_ms is not None, "coordinator": coordinator}
        return open_bucket(text, create=create, durability=durability, limits=limits, **bucket)
    if kind == "server":
        return _open_server(text, durability, limits, server)
    return open_directory(Path(text), create=create, durability=durability, limits=limits)


def open_directory(
    path: Path,
    *,
    create: bool = True,
    durability: Durability = "fsync",
    limits: Limits = DEFAULTS,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open a directory, with the disk and the clock that it is to use: for servers, which count, and for tests."""
    disk, clock = disk or Disk(), clock or Clock()
    parts = directory_parts(path, disk, clock, limits)
    options: dict[str, Any] = {"create": create, "durability": durability, "limits": limits}
    directory = Directory(path, parts, disk=disk, clock=clock, **options)
    store = Store(
        directory, LogConsumers(directory, file_consumers(path, disk, clock, limits)), partial(LocalSource, directory)
    )
    store.attached_views = LocalViews(store)
    return store


def directory_parts(path: Path, disk: Disk, clock: Clock, limits: Limits) -> DirectoryParts:
    """Return what the other rooms hand to a directory."""
    consumers = file_consumers(path, disk, clock, limits)
    return DirectoryParts(consumers, DirectoryArchive(path, disk, clock, limits), Marker(path, disk, clock))


def file_consumers(path: Path, disk: Disk, clock: Clock, limits: Limits) -> FileConsumers:
    """Return the consumers of a directory. They keep no state of their own, so there may be several of them."""
    return FileConsumers(path, disk, clock, limits, partial(restore, path / "journal"))


def open_bucket(
    url: str,
    *,
    create: bool = True,
    durability: Durability = "fsync",
    limits: Limits = DEFAULTS,
    patient: bool = False,
    coordinator: str | None = None,
    disk: Disk | None = None,
    clock: Clock | None = None,
) -> Store:
    """Open a bucket, with the disk and the clock that it is to use; `open` explains the other options.

    `patient`: all appends linger, not only those of `append_later`.
    """
    from headwater.bucket.opening import open_store

    disk, clock = disk or Disk(), clock or Clock()
    store = open_store(url, clock=clock, disk=disk, limits=limits)
    options: dict[str, Any] = {"create": create, "durability": durability, "patient": patient}
    return store_of(store, coordinator, limits=limits, disk=disk, clock=clock, **options)


def store_of(
    objects: ObjectStore, coordinator: str | None, *, limits: Limits, disk: Disk, clock: Clock, **options: Any
) -> Store:
    """Open the log in an object store that is open."""
    from headwater.bucket.bucket import Bucket
    from headwater.bucket.catalog import BucketCatalog
    from headwater.consumers.coordinated_consumers import CoordinatedConsumers, open_coordinator

    catalog = BucketCatalog(objects, disk, clock, limits)
    consumers = CoordinatedConsumers(open_coordinator(coordinator, objects, clock), clock, limits, catalog.find)
    bucket = Bucket(objects, catalog, consumers, limits=limits, disk=disk, clock=clock, **options)
    return Store(bucket, LogConsumers(bucket, consumers))


def _refuse(address: str, kind: str, options: dict[str, Any], others: str, hint: str) -> None:
    """Raise Invalid if options are given that are for another kind of address."""
    for name, value in options.items():
        if value is not None:
            raise Invalid(f"{name} is for {others}, but {address!r} is a {kind}", hint=f"write {hint}")


def _open_server(address: str, durability: Durability, limits: Limits, options: dict[str, Any]) -> Store:
    from headwater.consumers.remote_consumer import RemoteConsumers
    from headwater.remote.remote import Remote
    from headwater.remote.server_address import Credentials, ServerAddress, tls_context
    from headwater.remote.transport import Transport
    from headwater.replication.source import RemoteSource
    from headwater.views.remote_views import RemoteViews

    where = ServerAddress.parse(address)
    tls = tls_context(where, options["tls_ca"], options["tls_cert"], options["tls_key"])
    credentials = Credentials.of(options["token"], options["user"])
    timeout_s = 60.0 if options["timeout"] is None else options["timeout"]
    retry_s = 15.0 if options["retry"] is None else options["retry"]
    transport = Transport(where, credentials=credentials, tls=tls, timeout_s=timeout_s, retry_s=retry_s)
    remote = Remote(transport, durability=durability, limits=limits)
    store = Store(remote, RemoteConsumers(remote), partial(RemoteSource, remote.transport))
    store.attached_views = RemoteViews(remote)
    return store


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
    """Yield a replicator of an address, which the caller may stop; the address is closed afterwards."""
    if is_server(str(source)):
        server = {"retry": 1.0, **server}  # it tries again by itself, and tells meanwhile how it is
    with open(source, mode="existing", limits=limits, **server) as hw:
        copied = hw.replication()
        options: dict[str, Any] = {"topics": topics, "delete": delete, "restart": restart, "told": told}
        yield Replicator(copied, Path(path), directory_parts, address=absolute(hw.address), limits=limits, **options)


def promote(path: str | os.PathLike[str]) -> None:
    """End being a replica: the directory takes appends from now on, durably, and is never copied to again.

    Raises NotFound if it is no replica, Conflict if it was promoted before, Unavailable while somebody copies to it.
    """
    Marker(Path(path), Disk(), Clock()).promote()


def replica(path: str | os.PathLike[str]) -> ReplicaInfo:
    """Return how a replica is, as the replicator told last; raises NotFound if it is none."""
    return marker.read_progress(Path(path), Disk(), Clock())
