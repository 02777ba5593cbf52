"""Filters that Spark pushes down to the log: ranges of offsets and times, topics, partitions, types, one key.

Ranges, topics and partitions narrow what is planned, types and a key what is read: batches that cannot hold them are
skipped by the log's indexes. A filter is taken over only if no event can tell the difference. All others are left to
Spark, which applies them to what it is given; some of those narrow as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import msgspec
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)
from pyspark.sql.types import StructType

from headwater.errors import Invalid
from headwater.match.pattern import compile_pattern, exactly
from headwater.spark.reading.planning import FilterBounds
from headwater.spark.reading.scan import EventFilter

# Only columns that are declared as they are: in another type, values compare otherwise. A key may be null.
_TYPES = {
    "topic": "string",
    "partition": "int",
    "offset": "bigint",
    "time": "timestamp",
    "type": "string",
    "key": "binary",
}
_MICROSECOND = timedelta(microseconds=1)  # Spark's times have no smaller part: all ticks within it are that time


class Filters:
    """The pushed-down filters of a read."""

    def __init__(self, schema: StructType, wanted: EventFilter) -> None:
        """`wanted` is what the options ask for already."""
        self.wanted = wanted
        self.narrowing = FilterBounds()
        self._columns = {
            field.name for field in schema.fields if _TYPES.get(field.name) == field.dataType.simpleString()
        }

    def take(self, filters: Iterable[Filter]) -> list[Filter]:
        """Take over what can be; returns the others, the same objects in their order."""
        left = [each for each in filters if not self._takes(each)]
        return [each for each in left if not self._is_implied(each)]

    def _takes(self, given: Filter) -> bool:
        """Return whether Spark need not look at it any more."""
        (column, *rest) = getattr(given, "attribute", ("",))
        if rest or column not in self._columns:
            return False
        if column in ("offset", "time"):
            return self._takes_range(column, given)
        values = _values(given)
        if column == "type":
            return self.wanted.type is None and self._takes_types(given, values)
        if values is None:
            return False
        if column == "key":
            return self.wanted.key is None and self._takes_key(values)
        return self._takes_names(f"{column}s", values)

    def _is_implied(self, given: Filter) -> bool:
        """Return whether it holds for whatever is read: all columns but the key always have a value."""
        if not isinstance(given, IsNotNull) or given.attribute[0] not in self._columns or len(given.attribute) > 1:
            return False
        return given.attribute[0] != "key" or self.wanted.key is not None

    def _takes_range(self, column: str, given: Filter) -> bool:
        step: Any = _MICROSECOND if column == "time" else 1
        values = _values(given)
        try:
            if values:
                lo, hi = min(values), max(values) + step
            elif isinstance(given, GreaterThan):
                lo, hi = given.value + step, None
            elif isinstance(given, GreaterThanOrEqual):
                lo, hi = given.value, None
            elif isinstance(given, LessThan):
                lo, hi = None, given.value
            elif isinstance(given, LessThanOrEqual):
                lo, hi = None, given.value + step
            else:
                return False
        except OverflowError:  # the end of time
            return False
        self._narrow(column, lo, hi)
        return values is None or len(set(values)) == 1

    def _narrow(self, column: str, lo: Any, hi: Any) -> None:
        name = f"{column}s"
        before: tuple[Any, Any] = getattr(self.narrowing, name)
        los = [each for each in (before[0], lo) if each is not None]
        his = [each for each in (before[1], hi) if each is not None]
        bounds = max(los, default=None), min(his, default=None)
        self.narrowing = msgspec.structs.replace(self.narrowing, **{name: bounds})

    def _takes_names(self, name: str, values: Sequence[Any]) -> bool:
        before: frozenset[Any] | None = getattr(self.narrowing, name)
        both = frozenset(values) if before is None else before.intersection(values)
        self.narrowing = msgspec.structs.replace(self.narrowing, **{name: both})
        return True

    def _takes_key(self, values: Sequence[Any]) -> bool:
        if len(values) == 1:
            self.wanted = msgspec.structs.replace(self.wanted, key=bytes(values[0]))
        return len(values) == 1

    def _takes_types(self, given: Filter, values: Sequence[str] | None) -> bool:
        if isinstance(given, StringStartsWith):
            pattern = f"(?s){exactly(given.value)}.*"
        elif values:
            pattern = "|".join(map(exactly, values))
        else:
            return False
        try:
            compile_pattern(pattern)
        except Invalid:  # it is too large
            return False
        self.wanted = msgspec.structs.replace(self.wanted, type=pattern)
        return True


def _values(given: Filter) -> list[Any] | None:
    """Return the values of which a column must have one; None if that is not what is asked."""
    if isinstance(given, (EqualTo, EqualNullSafe)):
        return None if given.value is None else [given.value]
    if isinstance(given, In):
        return [value for value in given.value if value is not None]  # nothing equals null
    return None
