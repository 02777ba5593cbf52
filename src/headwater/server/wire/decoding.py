"""Decodes JSON from clients: every error is raised as the client's mistake. Safe from any thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import msgspec

from headwater.errors import Invalid

T = TypeVar("T")
# Errors that decoders raise for invalid input: not JSON or not of the type, not UTF-8, a number of too many digits,
# nested too deep, or more than there is memory for.
WRONG = (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError, MemoryError)


def decoded(decode: Callable[[bytes], T], said: bytes, what: str = "invalid JSON", code: str = "bad_body") -> T:
    """Return what JSON says; raises Invalid for what it may not say."""
    try:
        return decode(said)
    except WRONG as error:
        raise Invalid(f"{what}: {str(error) or type(error).__name__}", code=code) from error
