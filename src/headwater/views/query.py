"""A query of a binder, checked and compiled without reading the binder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from headwater import match as matching
from headwater.errors import Invalid, TooLarge
from headwater.limits import FIND_FIELDS_MAX, FIND_SORTS_MAX
from headwater.match import Matcher
from headwater.match.values import ARRAYS
from headwater.views.keys import checked_path

COUNT_MAX = 2**62  # of documents to skip or to give: no binder has more


class DocumentMatch(NamedTuple):
    """A match (None: all documents), paths to sort by, each descending or not, and what is wanted of what is found.

    `fields` is the tree of the names that are wanted, in which an empty branch is wanted as a whole.
    """

    matcher: Matcher | None
    sort: tuple[tuple[str, bool], ...] = ()
    skip: int = 0
    limit: int | None = None
    fields: dict[str, Any] | None = None

    @property
    def wanted(self) -> int | None:
        """Return how many documents of the sorted ones are needed; None means all."""
        return None if self.limit is None else self.skip + self.limit


def query(
    match: Mapping[str, Any] | None,
    sort: str | Sequence[str] = (),
    skip: int = 0,
    limit: int | None = None,
    fields: Sequence[str] | None = None,
) -> DocumentMatch:
    """What was asked; raises Invalid or TooLarge."""
    return DocumentMatch(
        None if match is None or match == {} else matching.compile(match),
        _sort(sort),
        _number(skip, "skip"),
        None if limit is None else _number(limit, "limit"),
        None if fields is None else _fields(fields),
    )


def project(document: dict[str, Any], fields: dict[str, Any]) -> dict[str, Any]:
    """Only these fields of a document; of objects in an array, each only with these."""
    return {
        name: document[name] if not below else _below(document[name], below)
        for name, below in fields.items()
        if name in document and (not below or isinstance(document[name], (dict, *ARRAYS)))
    }


def _below(value: Any, fields: dict[str, Any]) -> Any:
    if isinstance(value, dict):
        return project(value, fields)
    return [_below(element, fields) for element in value if isinstance(element, (dict, *ARRAYS))]


def _sort(sort: Any) -> tuple[tuple[str, bool], ...]:
    hint = "as in sort='-total', or sort=['by.name', '-total']"
    if isinstance(sort, str):
        sort = (sort,)
    if not isinstance(sort, Sequence) or isinstance(sort, bytes):
        raise Invalid(f"sort takes a field path or a list of field paths, not {type(sort).__name__}", hint=hint)
    if len(sort) > FIND_SORTS_MAX:
        raise TooLarge(f"sort has {len(sort)} fields", limit="find_sorts_max", maximum=FIND_SORTS_MAX)
    found = []
    for field in sort:
        if not isinstance(field, str):
            raise Invalid(f"a field to sort by must be text, not {type(field).__name__}", hint=hint)
        descending = field.startswith("-")
        found.append((checked_path(field[1:] if descending else field, "sort"), descending))
    return tuple(found)


def _fields(fields: Any) -> dict[str, Any]:
    if isinstance(fields, str | bytes | Mapping) or not isinstance(fields, Sequence):
        raise Invalid(f"fields takes a list of paths, not {type(fields).__name__}", hint="as in fields=['total']")
    if len(fields) > FIND_FIELDS_MAX:
        raise TooLarge(f"fields has {len(fields)} paths", limit="find_fields_max", maximum=FIND_FIELDS_MAX)
    tree: dict[str, Any] = {}
    for path in sorted(checked_path(path, "fields").split(".") for path in fields):
        branch = tree
        for part in path:
            if part in branch and not branch[part]:
                break  # all of it is wanted already: a shorter path is sorted before those that go on from it
            branch = branch.setdefault(part, {})
    return tree


def _number(value: Any, name: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= COUNT_MAX:
        raise Invalid(f"{name} must be a number from 0, not {value!r}"[:100], hint=f"as in {name}=10")
    return int(value)
