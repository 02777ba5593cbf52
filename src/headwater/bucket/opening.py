"""Opens the store at an address: `objects:///a/directory` or `s3://bucket/prefix?endpoint=…&region=…`.

An address never contains credentials, because it is shown in messages and kept in the history of shells. They come from
the environment (AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN), or from the role of the machine.
"""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

from headwater.address import scheme_of
from headwater.bucket.directory_store import DirectoryStore
from headwater.bucket.object_store import ObjectStore, checked_key
from headwater.disk.disk import Clock, Disk
from headwater.errors import Invalid, Unsupported
from headwater.limits import DEFAULTS, Limits

OPTIONS = ("allow_http", "endpoint", "region")
ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def open_store(url: str, *, clock: Clock, disk: Disk, limits: Limits = DEFAULTS) -> ObjectStore:
    """Return the store at an address. Nothing is requested or created yet.

    Raises Invalid for an address that is not valid, Unsupported for another kind of store or a missing extra.
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
        checked_key(prefix)
    options = _options(parts)
    try:
        from headwater.bucket.s3_store import S3Store
    except ImportError as error:
        raise Unsupported(
            "a bucket needs the extra 'bucket'", hint="pip install headwater[bucket]", code="extra_missing"
        ) from error
    return S3Store(parts.netloc, prefix, options, clock, limits)


def _split(url: str) -> SplitResult:
    """Return the parts of an address. Until it is known to hold no secrets, messages do not show it."""
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
    # Hashing the bytes of each request would take half of the time of a large one, and TLS protects them already.
    options["unsigned_payload"] = not endpoint or is_sealed(endpoint)
    return options


def is_plain(endpoint: str, what: str, *, allow_http: bool) -> bool:
    """Return whether an endpoint has no TLS, which is allowed for this machine, or with `allow_http`.

    Raises Invalid, also if it is not an address or contains credentials. `what` names its kind, for messages.
    """
    wrong = Invalid(f"the endpoint of a {what} must be https://host:port", hint="leave out credentials and options")
    try:
        parts = urlsplit(endpoint)
        host = parts.hostname
    except ValueError as error:
        raise wrong from error
    if not host or parts.scheme not in ("http", "https") or "@" in parts.netloc or parts.query:
        raise wrong
    if parts.scheme == "http" and not allow_http and not _is_loopback(host):
        raise Invalid(
            f"{endpoint} would send everything unencrypted over the network",
            hint="use https://, or add &allow_http=true where the network is trusted",
            code="plain_http",
        )
    return parts.scheme == "http"


def is_sealed(endpoint: str) -> bool:
    """Return whether the network cannot change what is sent: there is TLS, or no network."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
