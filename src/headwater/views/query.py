"""A query of a binder: checked and compiled without reading the binder, and planned over its indexes.

A plan goes through an index, in the order of ids, or by a full scan. An index only narrows down: every document that
could match is among those that a plan visits, and each is then compared by the match itself. Of documents in which an
array is on the way an index knows no more than that, so they are always visited.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from headwater import match as matching
from headwater.errors import Invalid, TooLarge
from headwater.limits import FIND_FIELDS_MAX, FIND_SORTED_MAX, FIND_SORTS_MAX
from headwater.match import Matcher
from headwater.match.language import All, Node, Not, Term
from headwater.match.values import ARRAYS
from headwater.views import database
from headwater.views.keys import ARRAY, Key, bounds_of, checked_path, key_of, order_of

COUNT_MAX = 2**62  # of documents to skip or to give: no binder has more
PRODUCT_MAX = 10_000  # ranges that are compared with each other to find what two questions about a field leave
COUNTED_MAX = 10_000  # entries of an index that are counted to decide whether to go through it
LARGE_SHARE = 4  # above this part of all documents, to go through all is no worse, and needs no memory
COUNTED_RANGES_MAX = 100  # ranges in which they are counted


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
    """Return a checked query; raises Invalid or TooLarge."""
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


class Range(NamedTuple):
    """Keys of an index, both ends included. From None to None: documents without the field."""

    low: Key
    high: Key


NOTHING = Range(None, None)
ARRAYS_TOO = Range(ARRAY, ARRAY)


class QueryPlan(NamedTuple):
    """The documents to visit: by the index on `path` or, if that is None, by their ids.

    `ranges` are the parts of the index, in its order; None means all of it. If `ordered`, documents come in the order
    that was asked for; else they must be sorted.
    """

    path: str | None
    ranges: tuple[Range, ...] | None
    ordered: bool
    descending: bool = False

    def statements(self, selected: str) -> Iterator[tuple[str, tuple[Key, ...]]]:
        """Return the SQL statements to run in order."""
        direction = " DESC" if self.descending else ""
        if self.path is None:
            order = f" ORDER BY id{direction}" if self.ordered else ""
            yield f"SELECT {selected} FROM documents{order}", ()  # noqa: S608  # nothing in it is a user's
            return
        column = database.column(self.path)
        source = f"SELECT {selected} FROM documents INDEXED BY {database.index(self.path)}"  # noqa: S608  # it is quoted
        order = f" ORDER BY {column}{direction}, id{direction}" if self.ordered else ""
        if self.ranges is None:
            yield f"{source}{order}", ()
            return
        for low, high in reversed(self.ranges) if self.descending else self.ranges:
            if low is None:
                yield f"{source} WHERE {column} IS NULL{order}", ()
            elif low == high:
                yield f"{source} WHERE {column} = ?{order}", (low,)
            else:
                yield f"{source} WHERE {column} >= ? AND {column} <= ?{order}", (low, high)

    def describe(self) -> str:
        """Return the plan in words."""
        if self.path is None:
            way = "all documents, by id" if self.ordered else "all documents"
        elif self.ranges is None:
            way = f"all of the index on {self.path!r}"
        else:
            way = f"the index on {self.path!r}, in {len(self.ranges)} range{'s'[: len(self.ranges) != 1]}"
        return way if self.ordered else f"{way}, then sorted"


class Count(NamedTuple):
    """What is known of the documents when a plan is made: how many one visits, up to a number; how many there are."""

    visited: Callable[[QueryPlan, int], int]
    all: Callable[[], int]


def choose(
    node: Node | None, sort: Sequence[tuple[str, bool]], wanted: int | None, indexes: Iterable[str], count: Count
) -> QueryPlan:
    """Return the plan for a match, a sort of paths that are descending or not, and how many documents are wanted."""
    known = set(indexes)
    found = [] if node is None else _candidates(node, known)
    ordered = _in_order(sort, found, known)
    if not found:
        return ordered or QueryPlan(None, None, ordered=False)
    best = found[0]
    if ordered is not None and ordered.path == best.path:
        return ordered
    narrow = QueryPlan(best.path, best.ranges, ordered=False)
    if ordered is None or len(best.ranges) > COUNTED_RANGES_MAX:
        return narrow
    # In order, one stops when enough are found; it takes longer the fewer match. Through the index, all that match are
    # visited and sorted. What takes fewer visits is better, if those that match are spread evenly.
    all = count.all()
    if wanted is None:
        most = min(all // LARGE_SHARE, FIND_SORTED_MAX)
        return ordered if count.visited(narrow, most + 1) > most else narrow
    visited = count.visited(narrow, COUNTED_MAX)
    return ordered if visited * visited > wanted * all else narrow


class _Candidates(NamedTuple):
    """The ranges of an index in which all documents are that may match, and how many questions have left those."""

    path: str
    ranges: tuple[Range, ...]
    questions: int

    def rank(self) -> tuple[bool, int, int, str]:
        """Lower for what leaves less, as far as one can tell without looking: single keys, few of them, more asked."""
        wide = any(low != high for low, high in self.ranges)
        return wide, len(self.ranges), -self.questions, self.path


def _in_order(sort: Sequence[tuple[str, bool]], found: Sequence[_Candidates], known: set[str]) -> QueryPlan | None:
    """Return the plan by which documents come in the wanted order; None if there is none."""
    if not sort:
        return QueryPlan(None, None, ordered=True)
    (path, descending), *more = sort
    if more or path not in known:
        return None
    ranges = next((each.ranges for each in found if each.path == path), None)
    return QueryPlan(path, ranges, ordered=True, descending=descending)


def _candidates(node: Node, known: set[str]) -> list[_Candidates]:
    """For each index that helps, what it leaves; the best first."""
    found: dict[str, list[list[Range]]] = {}
    for path, ranges in _narrowings(node, known):
        found.setdefault(path, []).append(ranges)
    all = [_Candidates(path, (*sorted(_shared(each), key=_low), ARRAYS_TOO), len(each)) for path, each in found.items()]
    return sorted(all, key=_Candidates.rank)


def _narrowings(node: Node, known: set[str]) -> Iterator[tuple[str, list[Range]]]:
    """Return the conditions that every matching document fulfils, for paths that have an index."""
    if isinstance(node, All):
        for part in node.nodes:
            yield from _narrowings(part, known)
        return
    denied = isinstance(node, Not)
    term = node.node if isinstance(node, Not) else node
    if isinstance(term, Term) and term.path in known:
        ranges = _ranges_of_denied(term.operator) if denied else _ranges(term.operator, term.operand)
        if ranges is not None:
            yield term.path, ranges


def _ranges(operator: str, operand: Any) -> list[Range] | None:
    """Return where the keys of values are for which an operator holds, arrays aside; None if anywhere."""
    if operator in ("$eq", "$in"):
        keys = {key_of(value) for value in ((operand,) if operator == "$eq" else operand)}
        return [Range(key, key) for key in keys if key != ARRAY and _is_stored(key)]
    if operator in ("$gt", "$gte", "$lt", "$lte"):
        key = key_of(operand)
        if not _is_stored(key):
            return None
        low, high = bounds_of(operand)
        return [Range(key, high) if operator in ("$gt", "$gte") else Range(low, key)]
    return None


def _ranges_of_denied(operator: str) -> list[Range] | None:
    """Return the ranges of keys for which an operator does not hold."""
    return [NOTHING] if operator == "$exists" else None


def _is_stored(key: Key) -> bool:
    """Return whether a document can hold the value: text with lone surrogates can be neither stored nor found."""
    try:
        key.encode() if isinstance(key, str) else None
    except UnicodeEncodeError:
        return False
    return True


def _shared(questions: list[list[Range]]) -> list[Range]:
    """Return the ranges that all have in common."""
    found = questions[0]
    for ranges in questions[1:]:
        found = _both(found, ranges)
    return found


def _both(some: list[Range], others: list[Range]) -> list[Range]:
    if len(some) * len(others) > PRODUCT_MAX:
        return min(some, others, key=len)
    shared = (
        Range(max(a.low, b.low, key=order_of), min(a.high, b.high, key=order_of)) for a, b in product(some, others)
    )
    return [each for each in shared if order_of(each.low) <= order_of(each.high)]


def _low(each: Range) -> tuple[int, Any]:
    return order_of(each.low)
