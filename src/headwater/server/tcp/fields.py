"""Typed access to the fields of a frame. An invalid field raises Invalid with the code `bad_field`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any
from uuid import UUID

from headwater.errors import Invalid, Unavailable

INT32 = (1 << 31) - 1
INT64 = (1 << 63) - 1


class FrameFields:
    """The fields of one frame. Each getter returns None for one that is absent, unless it is `needed`."""

    __slots__ = ("_values", "type")

    def __init__(self, type: str, values: Mapping[str, Any], names: tuple[str, ...]) -> None:
        """`names` are those that the frame may have; each may begin with a small letter or a capital."""
        self.type = type
        self._values = values if _set_of(names).issuperset(values) else self._renamed(values, names)

    def _renamed(self, values: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        """Return the values under the names as we write them; raises Invalid for an unknown field, or one twice."""
        found: dict[str, Any] = {}
        for said, value in values.items():
            name = small(said)
            if name not in names:
                there = f"known fields: {', '.join(names)}" if names else "it takes no fields"
                raise self.wrong(f"has an unknown field {said[:40]!r}", hint=there)
            if name in found:
                raise self.wrong(f"has {name!r} twice")
            found[name] = value
        return found

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def isdisjoint(self, names: frozenset[str]) -> bool:
        """Return whether the frame has none of these fields."""
        return names.isdisjoint(self._values)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def wrong(self, what: str, *, hint: str = "") -> Invalid:
        """Return the error that tells what is wrong with this frame."""
        return Invalid(f"{self.type} {what}", hint=hint, code="bad_field")

    def text(self, name: str, *, needed: bool = False) -> str | None:
        value = self._get(name, needed)
        if value is not None and value.__class__ is not str:  # code of BSON is a string of another class
            raise self.wrong(f"needs a string for {name!r}")
        return value

    def integer(self, name: str, *, least: int = 0, most: int = INT64, needed: bool = False) -> int | None:
        """A whole number: of 32 or 64 bits, or a double without a fraction, which is all that some languages have."""
        value = self._get(name, needed)
        if value is None:
            return None
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise self.wrong(f"needs a whole number from {least} to {most} for {name!r}")
        return int(value)

    def flag(self, name: str) -> bool:
        value = self._get(name, False)
        if value is not None and not isinstance(value, bool):
            raise self.wrong(f"needs true or false for {name!r}")
        return bool(value)

    def document(self, name: str, *, needed: bool = False) -> dict[str, Any] | None:
        value = self._get(name, needed)
        if value is not None and not isinstance(value, dict):
            raise self.wrong(f"needs a document for {name!r}")
        return value

    def data(self, name: str) -> bytes | str | None:
        """Bytes, or text. Binary data of any subtype is bytes, also that of a UUID."""
        value = self._get(name, False)
        if isinstance(value, UUID):
            return value.bytes
        if isinstance(value, bytes):
            return bytes(value)
        if value is not None and value.__class__ is not str:
            raise self.wrong(f"needs binary data or a string for {name!r}")
        return value

    def value(self, name: str) -> Any:
        """Whatever it is."""
        return self._get(name, False)

    def _get(self, name: str, needed: bool) -> Any:
        value = self._values.get(name)
        if value is None and needed:
            raise self.wrong(f"needs {name!r}")
        return value


@cache
def _set_of(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


def too_many(what: str, limit: str, maximum: int, *, hint: str) -> Unavailable:
    """Return the error that tells that a connection has so many of something open already."""
    message = f"a connection may have at most {maximum} {what} at once"
    return Unavailable(message, hint=hint, code="too_many", limit=limit, maximum=maximum)


def small(name: str) -> str:
    """Return a field's name as we write it."""
    return name[:1].lower() + name[1:]
