"""Addresses of servers that are named beside those of AWS."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit

from headwater.errors import Invalid


def is_plain(endpoint: str, what: str, *, allow_http: bool) -> bool:
    """Return whether the endpoint of `what` has no TLS. Only one on this machine may, unless that was asked for.

    Raises Invalid, also for what is no address, or holds credentials.
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
    """Return whether nobody on the way can change what is sent: there is TLS, or no way at all."""
    parts = urlsplit(endpoint)
    return parts.scheme == "https" or _is_loopback(parts.hostname or "")


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
