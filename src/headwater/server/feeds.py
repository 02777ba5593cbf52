"""Live delivery."""

from __future__ import annotations

from typing import Any


class Feeds:
    """A stand-in."""

    def __init__(self, *args: Any) -> None: ...

    def close(self) -> None: ...
