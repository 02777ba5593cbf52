"""The grammar of a match: from the mapping that a user gives to terms, or a refusal (docs/MATCH.md).

A term is a test of what is found under one name of a document; `All`, `Some` and `Not` combine terms. Everything in a
match is counted while it is read, so that neither a wide, a deep, a circular nor a huge one is ever compiled. A match
as text, from a command line or a wire, is JSON in which Extended JSON names BSON's types (`parse`).
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

import msgspec

from headwater.errors import Invalid, Unsupported
from headwater.limits import (
    MATCH_BYTES_MAX,
    MATCH_DEPTH_MAX,
    MATCH_PATTERNS_MAX,
    MATCH_TERMS_MAX,
    MATCH_VALUES_MAX,
)
from headwater.match import values
from headwater.match.pattern import compile_pattern
from headwater.match.values import ARRAYS, MISSING, UNORDERED, Each, Test, kind_of

COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "$gt": operator.gt,
    "$gte": operator.ge,
    "$lt": operator.lt,
    "$lte": operator.le,
}
FIELD_OPERATORS = ("$eq", "$ne", *COMPARISONS, "$in", "$nin", "$exists", "$regex", "$not")
MATCH_OPERATORS = ("$and", "$or", "$nor", "$not")
INDEX_DIGITS_MAX = 9  # no array has more elements
SHOWN_MAX = 60  # characters of a name that an error shows


class Term(NamedTuple):
    """A test of what stands under one name of a document; `each` is the same over many values at once.

    An index can answer a part of a match by the operand of `operator` for all of `path`.
    """

    name: str
    test: Test
    each: Each
    path: str
    operator: str
    operand: Any


class All(NamedTuple):
    """Every one of them holds; so it does when there are none."""

    nodes: tuple[Node, ...]


class Some(NamedTuple):
    """At least one of them holds."""

    nodes: tuple[Node, ...]


class Not(NamedTuple):
    """It does not hold."""

    node: Node


Node = Term | All | Some | Not


def read(match: Mapping[str, Any]) -> Node:
    """Return the terms of a match; raises Invalid with the code `bad_match` or `bad_pattern`."""
    return _MatchParser().match(match, 0)


class _MatchParser:
    """One match being read, and what was counted in it so far."""

    def __init__(self) -> None:
        self._terms = 0
        self._values = 0
        self._bytes = 0
        self._patterns = 0

    def match(self, match: Any, depth: int) -> Node:
        """Return a whole match: names with what they must hold, and operators over matches."""
        _check_depth(depth)
        if not isinstance(match, Mapping):
            raise bad_match(f"a match is an object, not {_named(match)}", """write it like {"total": {"$gt": 10}}""")
        nodes = []
        for name, asked in match.items():
            self._count_bytes(_name(name))
            nodes.append(
                self._combined(name, asked, depth) if name.startswith("$") else self._field(name, asked, depth)
            )
        return _all(nodes)

    def _combined(self, name: str, asked: Any, depth: int) -> Node:
        if name not in MATCH_OPERATORS:
            raise _unknown(name, MATCH_OPERATORS, FIELD_OPERATORS, "belongs below a field")
        if name == "$not":
            return Not(self.match(asked, depth + 1))
        if not isinstance(asked, ARRAYS) or not asked:
            raise bad_match(f"{name} takes a list of matches, not {_named(asked)}", f'as in {{"{name}": [{{"a": 1}}]}}')
        nodes = tuple(self.match(one, depth + 1) for one in asked)
        if name == "$and":
            return _all(nodes)
        return Some(nodes) if name == "$or" else Not(Some(nodes))

    def _field(self, name: str, asked: Any, depth: int) -> Node:
        path = tuple(name.split("."))
        _check_depth(depth + len(path))
        if not all(path):
            raise bad_match(f"the path {_short(name)} has an empty part", "separate parts by one dot, as in a.b")
        return self._asked(path, asked, depth + len(path))

    def _asked(self, path: tuple[str, ...], asked: Any, depth: int) -> Node:
        """Return what a field must hold: an object of operators, or a value that it equals."""
        if not isinstance(asked, Mapping) or is_extended(asked) or not _has_operator(asked):
            return self._operator(path, "$eq", asked, depth)
        _check_depth(depth)
        nodes = []
        for name, operand in asked.items():
            self._count_bytes(_name(name))
            if not name.startswith("$"):
                raise bad_match(
                    f"{_short(name)} is a field among operators", "write a.b to match the part b of the field a"
                )
            nodes.append(self._operator(path, name, operand, depth))
        return _all(nodes)

    def _operator(self, path: tuple[str, ...], name: str, operand: Any, depth: int) -> Node:
        self._count_term()
        if name in ("$eq", "$ne"):
            found = self._equal(path, operand, depth)
            return Not(found) if name == "$ne" else found
        if name in COMPARISONS:
            return self._compared(path, name, operand, depth)
        if name in ("$in", "$nin"):
            operands = self._operands(name, operand, depth)
            found = _term(path, "$in", operands, _member(operands))
            return Not(found) if name == "$nin" else found
        if name == "$exists":
            if not isinstance(operand, bool):
                raise bad_match(f"$exists takes true or false, not {_named(operand)}", """as in {"$exists": true}""")
            found = _term(path, "$exists", True, _exists)
            return found if operand else Not(found)
        if name == "$regex":
            return _term(path, "$regex", operand, self._regex(operand))
        if name == "$not":
            if not isinstance(operand, Mapping) or not _has_operator(operand) or is_extended(operand):
                raise bad_match(
                    f"$not takes operators, not {_named(operand)}", """as in {"$not": {"$gt": 10}}, or use $ne"""
                )
            return Not(self._asked(path, operand, depth + 1))
        raise _unknown(name, FIELD_OPERATORS, MATCH_OPERATORS, "belongs above fields")

    def _equal(self, path: tuple[str, ...], operand: Any, depth: int) -> Term:
        operand = self._literal(operand, depth)
        if operand is None:
            return _term(path, "$eq", None, _is_null)
        return _term(path, "$eq", operand, values.equal(operand), operator.eq)

    def _compared(self, path: tuple[str, ...], name: str, operand: Any, depth: int) -> Term:
        operand = self._literal(operand, depth)
        if kind_of(operand)[0] in UNORDERED:
            raise bad_match(
                f"{name} takes a value that has an order, not {_named(operand)}", "such as a number, a text or a date"
            )
        compare = COMPARISONS[name]
        return _term(path, name, operand, values.ordered(compare, operand), compare)

    def _operands(self, name: str, operand: Any, depth: int) -> list[Any]:
        if not isinstance(operand, ARRAYS):
            raise bad_match(f"{name} takes a list, not {_named(operand)}", f'as in {{"{name}": [1, 2]}}')
        return [self._literal(value, depth + 1) for value in operand]

    def _regex(self, operand: Any) -> Test:
        if not isinstance(operand, str):
            raise bad_match(f"$regex takes a pattern, not {_named(operand)}", """as in {"$regex": "^o-[0-9]+$"}""")
        self._patterns += 1
        if self._patterns > MATCH_PATTERNS_MAX:
            raise bad_match(f"a match may have at most {MATCH_PATTERNS_MAX} patterns", "join them, as in 'this|that'")
        search = compile_pattern(operand).search

        def test(value: Any) -> bool:
            # As bytes, because RE2's wrapper is twice as fast with them, and takes what is not quite text.
            kind, text = kind_of(value)
            return kind == "string" and search(text.encode(errors="surrogatepass")) is not None

        return test

    def _literal(self, value: Any, depth: int) -> Any:
        """Return a value to compare with, of plain Python or BSON types, copied so that its owner may change it."""
        _check_depth(depth)
        self._values += 1
        if self._values > MATCH_VALUES_MAX:
            raise bad_match(
                f"a match may have at most {MATCH_VALUES_MAX} values", "match on fewer, and filter the rest yourself"
            )
        if isinstance(value, Mapping) and is_extended(value):
            value = extended(value)
        if isinstance(value, Mapping):
            return {self._member_name(name): self._literal(member, depth + 1) for name, member in value.items()}
        if isinstance(value, ARRAYS):
            return [self._literal(element, depth + 1) for element in value]
        kind, key = kind_of(value)
        if kind == "other":
            raise bad_match(f"a {type(value).__name__} cannot be matched", "values are those of JSON and BSON")
        if isinstance(value, datetime) and value.tzinfo is None:
            raise bad_match(f"the time {value.isoformat()} has no time zone", "use .replace(tzinfo=UTC) if it is UTC")
        if isinstance(key, str | bytes):
            self._count_bytes(key)
        elif isinstance(key, int | Decimal):
            self._bytes += key.bit_length() // 8 if isinstance(key, int) else len(key.as_tuple().digits)
            self._count_bytes(b"")
        return value

    def _member_name(self, name: Any) -> str:
        self._count_bytes(_name(name))
        if name.startswith("$"):
            raise bad_match(f"{_short(name)} is inside a value", "put operators directly below a field")
        return str(name)

    def _count_term(self) -> None:
        self._terms += 1
        if self._terms > MATCH_TERMS_MAX:
            raise bad_match(
                f"a match may have at most {MATCH_TERMS_MAX} comparisons", "use $in for many values of one field"
            )

    def _count_bytes(self, text: str | bytes) -> None:
        self._bytes += len(text)
        if self._bytes > MATCH_BYTES_MAX:
            raise bad_match(f"a match may have at most {MATCH_BYTES_MAX} bytes", "match on fewer values")


def _term(
    path: tuple[str, ...], asked: str, operand: Any, test: Test, compare: Callable[[Any, Any], Any] | None = None
) -> Term:
    """Return the term that finds what a path leads to, and tests it and, if it is an array, its elements."""
    found = _with_elements(test)
    if compare is not None:
        found, each = values.quickly(compare, operand, found)
        if len(path) == 1:
            return Term(path[0], found, each, path[0], asked, operand)
    for part in reversed(path[1:]):
        found = _step(part, found)
    return Term(path[0], found, lambda many: list(map(found, many)), ".".join(path), asked, operand)


def _with_elements(test: Test) -> Test:
    return lambda value: test(value) or (isinstance(value, ARRAYS) and any(map(test, value)))


def _step(part: str, then: Test) -> Test:
    """Follow a path to a part of what was found: of an object, of any object in an array, or to an element."""
    index = int(part) if part.isascii() and part.isdigit() and len(part) <= INDEX_DIGITS_MAX else None

    def test(value: Any) -> bool:
        if isinstance(value, dict):
            return then(value.get(part, MISSING))
        if not isinstance(value, ARRAYS):
            return then(MISSING)
        if index is not None:
            return then(value[index] if index < len(value) else MISSING)
        objects = [element for element in value if isinstance(element, dict)]
        return any(then(element.get(part, MISSING)) for element in objects) if objects else then(MISSING)

    return test


def _member(operands: list[Any]) -> Test:
    test = values.member(operands)
    return test if None not in operands else lambda value: value is MISSING or test(value)


def _is_null(value: Any) -> bool:
    return value is None or value is MISSING


def _exists(value: Any) -> bool:
    return value is not MISSING


def _all(nodes: Any) -> Node:
    return nodes[0] if len(nodes) == 1 else All(tuple(nodes))


def _short(name: str) -> str:
    return repr(name) if len(name) <= SHOWN_MAX else f"{name[:SHOWN_MAX]!r}…"


def _has_operator(asked: Mapping[Any, Any]) -> bool:
    return any(isinstance(name, str) and name.startswith("$") for name in asked)


def _name(name: Any) -> str:
    if not isinstance(name, str):
        raise bad_match(f"a {type(name).__name__} is not a name", "names of fields and operators are text")
    return name


def _check_depth(depth: int) -> None:
    if depth > MATCH_DEPTH_MAX:
        raise bad_match(f"a match may nest at most {MATCH_DEPTH_MAX} levels, parts of a path included", "flatten it")


def _unknown(name: str, here: tuple[str, ...], elsewhere: tuple[str, ...], where: str) -> Exception:
    if name in elsewhere:
        return bad_match(f"{name} {where}", f"allowed here: {', '.join(here)}")
    hint = (
        "for the options of a pattern, write (?i) at its beginning"
        if name == "$options"
        else f"the operators are {', '.join(here)}"
    )
    return bad_match(f"the operator {_short(name)} is unknown", hint)


def _named(value: Any) -> str:
    """Return what a wrong operand is, in the words of JSON, for a message of bounded length."""
    kind = "a " + kind_of(value)[0] if not isinstance(value, Mapping) else "an object"
    return {"a null": "null", "a array": "a list", "a ObjectId": "an ObjectId", "a other": type(value).__name__}.get(
        kind, kind
    )


EXTENDED = frozenset(
    (
        "$binary",
        "$date",
        "$numberDecimal",
        "$numberDouble",
        "$numberInt",
        "$numberLong",
        "$oid",
        "$timestamp",
        "$uuid",
    )
)
_EXTENDED_HINT = """as in {"$oid": "65f1c0ffee65f1c0ffee65f1"} or {"$date": "2025-03-01T12:00:00Z"}"""
_decode = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode


def parse(text: str | bytes) -> dict[str, Any]:
    """Return the match that a JSON text holds, for `compile`; raises Invalid with the code `bad_match`."""
    encoded = text.encode(errors="surrogatepass") if isinstance(text, str) else text
    if len(encoded) > MATCH_BYTES_MAX:
        raise bad_match(
            f"a match may have at most {MATCH_BYTES_MAX} bytes, not {len(encoded)}", "match on fewer values"
        )
    try:
        found = _decode(encoded)
    except (ValueError, RecursionError) as error:
        raise bad_match(f"the match is not JSON: {error}", """write it like {"total": {"$gt": 10}}""") from error
    if not isinstance(found, dict):
        raise bad_match("a match is a JSON object", """write it like {"total": {"$gt": 10}}""")
    return found


def is_extended(value: Mapping[str, Any]) -> bool:
    """Return whether an object is a value of BSON in Extended JSON, as in `{"$date": "2025-03-01T12:00:00Z"}`."""
    return next(iter(value), None) in EXTENDED


def extended(value: Mapping[str, Any]) -> Any:
    """Return the value that Extended JSON names; raises Invalid, or Unsupported without BSON's codec."""
    try:
        from bson import json_util
    except ImportError as error:
        raise Unsupported("BSON values need pymongo", hint="pip install 'headwater[bson]'") from error
    name = next(iter(value))
    options = json_util.JSONOptions(tz_aware=True)
    try:
        found = json_util.loads(_encode(value).decode(), json_options=options)
    except Exception as error:  # the codec raises whatever its parts raise, and all of it means the same
        raise bad_match(f"{name} has no valid value of Extended JSON", _EXTENDED_HINT) from error
    if isinstance(found, dict):
        raise bad_match(f"{name} has no valid value of Extended JSON", _EXTENDED_HINT)
    return found


def bad_match(message: str, hint: str) -> Invalid:
    return Invalid(message, hint=hint, code="bad_match")
