"""Finds the tables and columns that an SQL query names, with Spark's own parser and before anything is resolved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import ParseException

from headwater.errors import Invalid
from headwater.spark.querying import failures

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_WORD = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)+`")
_PLANS = "org.apache.spark.sql.catalyst.plans.logical"
_NO_QUERIES = tuple(f"{_PLANS}.{name}" for name in ("Command", "ParsedStatement", "CompoundBody"))
_REFUSED = "only queries are supported: SELECT, WITH, VALUES, TABLE"
_CHOOSING = {"Project", "Aggregate"}  # only columns that they name go on from what is below
_COMPARING = {"Union", "Except", "Intersect", "Distinct", "Deduplicate"}  # all columns of what is below count
_POSITIONAL = {"Pivot", "Unpivot", "UnresolvedSubqueryColumnAliases", "PipeOperator"}  # they mean some without a name


class QueryNames(NamedTuple):
    """The names in a query."""

    tables: list[str]  # without those that the query itself makes
    qualified: list[str]  # names of several parts, with dots: no topic is called so without backticks
    words: frozenset[str]  # all words, in lower case: no other column can be meant by its name
    whole: bool  # whether columns are meant without a name: by a star, or by their place


def parse(spark: SparkSession, query: str) -> QueryNames:
    """Return the names in a query. Raises Invalid for what is none: a syntax error, or a command."""
    java: Any = spark._jsparkSession  # noqa: SLF001  # the only way to Spark's parser
    try:
        plan = java.sessionState().sqlParser().parsePlan(query)
    except ParseException as error:
        raise failures.translated(error) from None
    walk = _Walk(spark)
    walk.through(plan)
    words = frozenset(word.strip("`").lower() for word in _WORD.findall(query))
    tables = [name for name in walk.tables if name.lower() not in walk.made]
    return QueryNames(tables, list(walk.qualified), words, walk.whole or "natural" in words)


class _Walk:
    """A way through all nodes of a plan, also those of subqueries, gathering names."""

    def __init__(self, spark: SparkSession) -> None:
        self.tables: dict[str, None] = {}
        self.qualified: dict[str, None] = {}
        self.made: set[str] = set()
        self.whole = False
        self._gateway = spark.sparkContext._gateway  # noqa: SLF001  # to ask what a node is

    def through(self, plan: Any) -> None:
        """Nodes wait with whether something above them chooses columns by name."""
        waiting = [(plan, False)]
        while waiting:
            node, chosen = waiting.pop()
            kind = node.getClass().getSimpleName()
            self._note(node, kind, chosen)
            chosen = kind in _CHOOSING or (chosen and kind not in _COMPARING)
            waiting += [(child, chosen) for child in _items(node.children())]
            waiting += [(child, False) for child in _items(node.innerChildren())]

    def _note(self, node: Any, kind: str, chosen: bool) -> None:
        if any(is_instance_of(self._gateway, node, each) for each in _NO_QUERIES):
            raise Invalid(_REFUSED, hint="use other commands to append, create and delete", code="bad_query")
        if kind == "UnresolvedRelation":
            parts = _items(node.multipartIdentifier())
            (self.tables if len(parts) == 1 else self.qualified)[".".join(parts)] = None
            self.whole |= not chosen
        elif kind == "UnresolvedWith":
            self.made |= {each.productElement(0).lower() for each in _items(node.cteRelations())}
        self.whole |= kind in _POSITIONAL or any(map(_has_star, _items(node.expressions())))


def _has_star(expression: Any) -> bool:
    """Return whether a star is in it; that of `count(*)` is none any more."""
    waiting = [expression]
    while waiting:
        each = waiting.pop()
        if "Star" in each.getClass().getSimpleName():
            return True
        waiting += _items(each.children())
    return False


def _items(sequence: Any) -> list[Any]:
    """Return the items of a sequence of Scala's."""
    return [sequence.apply(number) for number in range(sequence.size())]
