"""Which keys a store takes: the same in every one, so that what works in a directory works in a bucket."""

from __future__ import annotations

from headwater.errors import Invalid, TooLarge

KEY_BYTES_MAX = 1024  # of S3
PART_BYTES_MAX = 255  # of a file's name
RESERVED = ".headwater"
"""The first part of keys that are the store's own business: its locks and what it is just writing."""


def checked(key: str) -> str:
    """Return the key itself. Raises Invalid for one that would leave its place, or that not every store can hold."""
    _check(key, key.split("/"))
    return key


def checked_prefix(prefix: str) -> str:
    """The same for the beginning of a key, which may be empty and may end within a part or behind a "/"."""
    *parents, last = prefix.split("/")
    _check(prefix, [*parents, last] if last else parents)
    return prefix


def _check(key: str, parts: list[str]) -> None:
    if any(part in ("", ".", "..") for part in parts) or "\0" in key or parts[:1] == [RESERVED]:
        raise Invalid(
            f"{key!r} is not a valid object key", hint="parts between '/' must not be empty, '.' or '..'", key=key
        )
    try:
        size = len(key.encode())
        longest = max((len(part.encode()) for part in parts), default=0)
    except UnicodeEncodeError as error:
        raise Invalid(
            f"{key!r} is not a valid object key", hint="it contains an unpaired surrogate", key=key
        ) from error
    if size > KEY_BYTES_MAX or longest > PART_BYTES_MAX:
        raise TooLarge(
            f"a key of {size} bytes is too long: {key[:64]!r}…",
            hint=f"the limit is {KEY_BYTES_MAX} bytes, and {PART_BYTES_MAX} for each part",
            limit=KEY_BYTES_MAX,
        )
