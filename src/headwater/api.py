"""`headwater.open`: from an address to the object with all the verbs."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, overload

from headwater.engine.transfer.transfer import Transfer
from headwater.errors import Invalid, Unsupported
from headwater.event import Durability
from headwater.limits import DEFAULTS, Limits
from headwater.views.local import Local

if TYPE_CHECKING:
    from headwater.client.remote import Remote
    from headwater.engine.bucket import Bucket

    Log: TypeAlias = Bucket | Local | Remote

SCHEMES = ("http", "https", "headwater", "headwaters")  # of servers
STORES = ("s3", "objects")
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
    """Open a log: a directory, a bucket, or a server at http:// or headwater://, with the same verbs. TLS: add an s.

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
    scheme, separator, _ = text.partition("://")
    given = {name: value for name, value in options.items() if value is not None}
    if separator and isinstance(address, str):
        if scheme in STORES:
            return _bucket(text, mode, durability, limits, given)
        if scheme not in SCHEMES:
            hint = "give the path of a directory, s3://bucket/prefix, http://host:7450, or headwater://host:7451"
            raise Unsupported(f"{scheme}:// addresses are not supported", hint=hint)
        _refuse(text, "a server", given.keys() & BUCKET_OPTIONS, "buckets", "s3://bucket/prefix")
        return _remote(text, durability, limits, **given)
    _refuse(text, "a directory", given.keys() & BUCKET_OPTIONS, "buckets", "s3://bucket/prefix")
    _refuse(text, "a directory", given.keys(), "servers", "http://host:7450 or headwater://host:7451")
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
    from headwater.client.address import Address, Credentials, tls_context
    from headwater.client.remote import Remote
    from headwater.client.transport import Transport

    where = Address.parse(address)
    tls = tls_context(where, tls_ca, tls_cert, tls_key)
    transport = Transport(where, credentials=Credentials.of(token, user), tls=tls, timeout_s=timeout, retry_s=retry)
    return Remote(transport, lambda remote: Transfer(remote, remote.limits), durability=durability, limits=limits)
