"""`headwater.open`: from an address to the object with all the verbs."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from headwater.engine.engine import Engine
from headwater.errors import Unsupported
from headwater.event import Durability
from headwater.limits import DEFAULTS, Limits


def open(  # the verb users expect, as in gzip.open
    address: str | os.PathLike[str],
    *,
    mode: Literal["create", "existing"] = "create",
    durability: Durability = "fsync",
    limits: Limits = DEFAULTS,
) -> Engine:
    """Open a log directory, making it if it is not there (unless `mode="existing"`, which raises NotFound).

    `durability` is what appends wait for unless they say otherwise: `fsync` (on disk) or `os` (handed to the system).
    Raises Invalid for a directory that holds something else, Unsupported for an address or version it does not know.
    """
    text = os.fspath(address)
    scheme, separator, _ = text.partition("://")
    if separator:
        raise Unsupported(f"{scheme}:// addresses are not supported", hint="give the path of a directory")
    return Engine(Path(text), create=mode == "create", durability=durability, limits=limits)
