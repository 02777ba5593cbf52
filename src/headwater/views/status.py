"""How projections and functions are."""

from __future__ import annotations

from headwater.info import ViewInfo
from headwater.views.local import Local


def views(hw: Local) -> list[ViewInfo]:
    """All that are known."""
    return []
