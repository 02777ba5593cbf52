"""From an address to a store: `objects:///a/directory` and `s3://bucket/prefix?endpoint=…&region=…`.

Credentials are never in an address, which is shown in messages and kept in shells' histories: they come from the
environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or from the role of the machine.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from headwater.address import scheme_of
from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.endpoints import is_plain, is_sealed
from headwater.bucket.object_keys import checked
from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid, Unsupported
from headwater.limits import DEFAULTS, Limits

OPTIONS = ("allow_http", "endpoint", "region")
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def open_store(url: str, *, clock: Clock, disk: Disk, limits: Limits = DEFAULTS) -> ObjectStore:
    """Return the store at an address. Nothing is asked of it yet, and nothing made.

    Raises Invalid for an address that cannot be one, Unsupported for another kind of place or a missing extra.
    """
    if url.startswith("objects://"):
        return _directory(url, clock, disk, limits)
    if url.startswith("s3://"):
        return _s3(url, clock, limits)
    scheme = scheme_of(url)
    raise Unsupported(
        f"{scheme + '://' if scheme else 'an address without a scheme'} does not name an object store",
        hint="use s3://bucket/prefix or objects:///a/directory",
        code="unknown_store",
    )


def _directory(url: str, clock: Clock, disk: Disk, limits: Limits) -> ObjectStore:
    path = url.removeprefix("objects://")
    if not path.startswith("/") or "\0" in path:
        raise Invalid(
            f"{url!r} does not name a directory", hint="write objects:// and an absolute path: objects:///a/directory"
        )
    return DirectoryStore(Path(path), disk, clock, limits.lock_wait_s)


def _s3(url: str, clock: Clock, limits: Limits) -> ObjectStore:
    parts = _split(url)
    prefix = parts.path.strip("/")
    if prefix:
        checked(prefix)
    options = _options(parts)
    try:
        from headwater.bucket.s3_store import S3Store
    except ImportError as error:
        raise Unsupported(
            "a bucket needs the extra 'bucket'", hint="pip install headwater[bucket]", code="extra_missing"
        ) from error
    return S3Store(parts.netloc, prefix, options, clock, limits)


def _split(url: str) -> SplitResult:
    """Return the parts of an address, which is not shown in messages before it is known to hold no secrets."""
    if "@" in url.partition("?")[0]:
        raise Invalid(
            "an address must not contain credentials", hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY instead"
        )
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise Invalid(f"the address of the bucket is not valid: {error}", hint="write s3://bucket/prefix") from error
    if not parts.netloc or port is not None or parts.fragment:
        raise Invalid(
            "the address of a bucket must be s3://bucket/prefix",
            hint="for a server other than AWS, add ?endpoint=https://host:port",
        )
    return parts


def _options(parts: SplitResult) -> dict[str, Any]:
    given = parse_qsl(parts.query, keep_blank_values=True)
    names = [name for name, _ in given]
    unknown = sorted(set(names) - set(OPTIONS))
    if unknown or len(set(names)) < len(names):
        raise Invalid(
            f"the address of a bucket accepts each of {', '.join(OPTIONS)} once, not {', '.join(unknown) or names}",
            hint="credentials come from the environment: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY",
        )
    values = dict(given)
    options: dict[str, Any] = {}
    if "region" in values:
        options["region"] = values["region"]
    if "endpoint" in values:
        options["endpoint"] = values["endpoint"]
    endpoint = values.get("endpoint") or next(filter(None, map(os.environ.get, ENDPOINT_VARIABLES)), "")
    if endpoint and is_plain(endpoint, "bucket", allow_http=values.get("allow_http") == "true"):
        options["client_options"] = {"allow_http": True}
    # A hash of all bytes in each request would take half of the time of a large one, for what TLS sees to.
    options["unsigned_payload"] = not endpoint or is_sealed(endpoint)
    return options
