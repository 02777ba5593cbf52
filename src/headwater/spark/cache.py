"""A per-user cache directory that sessions share: see java.py and home.py."""

from __future__ import annotations

import hashlib
import os
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory


def place(kind: str, text: str) -> Path:
    """Return the directory for whatever depends on `text` alone. It may not be there yet."""
    return _directory() / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:16]}"


def _directory() -> Path:
    """Return a directory that this user may write to; one for this process alone, if there is no other."""
    chosen = os.environ.get("XDG_CACHE_HOME")
    found = (Path(chosen) if chosen else Path.home() / ".cache") / "headwater"
    try:
        found.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(_own().name)
    return found if os.access(found, os.W_OK) else Path(_own().name)


@cache
def _own() -> TemporaryDirectory[str]:
    """Return one that goes with this process."""
    return TemporaryDirectory(prefix="headwater-")
