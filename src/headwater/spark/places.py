"""Opening the log that a job works on, in the driver and in every worker: who asks is in their environment.

Options of a job are seen in plans, logs and the interface of Spark, so no secret is ever among them: a token comes from
HEADWATER_TOKEN, or a user and a password from HEADWATER_USER as name:password.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from headwater import api

if TYPE_CHECKING:
    from headwater.api import Log


def open_place(address: str, **options: Any) -> Log:
    """As `headwater.open` of a log that must be there, with what the environment says of who asks."""
    options.setdefault("mode", "existing")
    scheme, separator, _ = address.partition("://")
    if separator and scheme in api.SCHEMES:
        name, colon, password = os.environ.get("HEADWATER_USER", "").partition(":")
        options |= {
            "token": os.environ.get("HEADWATER_TOKEN"),
            "user": (name, password) if colon else None,
            "tls_ca": os.environ.get("HEADWATER_TLS_CA"),
            "tls_cert": os.environ.get("HEADWATER_TLS_CERT"),
            "tls_key": os.environ.get("HEADWATER_TLS_KEY"),
        }
    elif separator and scheme in api.STORES:
        options["coordinator"] = os.environ.get("HEADWATER_COORDINATOR")
    return api.open(address, **options)


def absolute(address: str) -> str:
    """An address that means the same in another process: the path of a directory is made absolute."""
    return os.path.abspath(address) if is_directory(address) else address


def is_directory(address: str) -> bool:
    """Whether it is the path of a directory, and not the address of a server or a bucket."""
    return "://" not in address
