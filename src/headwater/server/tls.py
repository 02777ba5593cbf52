"""TLS."""

from __future__ import annotations

from typing import Any


def subject(secure: Any) -> str | None:
    return None
