"""How a match is refused."""

from __future__ import annotations

from headwater.errors import Invalid


def bad_match(message: str, hint: str) -> Invalid:
    return Invalid(message, hint=hint, code="bad_match")
