"""Addresses: the one table of URL schemes, and what kind of place an address names. No I/O."""

from __future__ import annotations

import os
from typing import Literal

from headwater.errors import Unsupported

Kind = Literal["directory", "bucket", "server"]

KINDS: dict[str, Kind] = {"s3": "bucket", "objects": "bucket", "http": "server", "https": "server"}
TCP = {"headwater": "http", "headwaters": "https"}  # the other port of a server, and what to use instead
HINT = "give the path of a directory, s3://bucket/prefix, or http://host:7450"


def scheme_of(address: str) -> str:
    """Return what stands before `://`; empty if there is no such thing, as in the path of a directory."""
    scheme, separator, _ = address.partition("://")
    return scheme if separator else ""


def kind_of(address: str) -> Kind:
    """Return what kind of place an address names; raises Unsupported for a scheme that is unknown.

    An address without a scheme is the path of a directory.
    """
    scheme = scheme_of(address)
    if not scheme:
        return "directory"
    if scheme in TCP:
        raise Unsupported(
            f"{scheme}:// is the protocol over TCP, for clients in other languages; Python reaches a server over HTTP",
            hint=f"open it as {TCP[scheme]}://host:7450",
            code="tcp_address",
        )
    if scheme not in KINDS:
        raise Unsupported(f"{scheme}:// addresses are not supported", hint=HINT)
    return KINDS[scheme]


def is_server(address: str) -> bool:
    """Tell whether an address is that of a server."""
    return KINDS.get(scheme_of(address)) == "server"


def is_bucket(address: str) -> bool:
    """Tell whether an address is that of an object store."""
    return KINDS.get(scheme_of(address)) == "bucket"


def is_directory(address: str) -> bool:
    """Tell whether an address is the path of a directory."""
    return not scheme_of(address)


def absolute(address: str) -> str:
    """Return an address that means the same in every process: the path of a directory becomes absolute."""
    return os.path.abspath(address) if is_directory(address) else address
