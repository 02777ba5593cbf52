"""SQL over topics and binders: `headwater.spark.sql`.

Spark's own parser tells which tables a query names. Those that are topics or binders become temporary views for as long
as Spark analyses the query, and no others are looked at. A view has the columns that the query can mean: those of the
log, or the id of a document, and the fields of the data, which are inferred from a sample unless a schema is given.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

from py4j.java_gateway import is_instance_of  # type: ignore[import-untyped]  # it has no types
from pyspark.errors import AnalysisException, ParseException
from pyspark.sql import types as t

from headwater.address import absolute
from headwater.errors import Invalid, NotFound
from headwater.spark import failures, sql_tables
from headwater.spark.aggregating import LOG_COLUMNS
from headwater.spark.session import open_place

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from headwater.spark.reading.fields import Mode
    from headwater.store import Store


Schemas = Mapping[str, str | t.StructType]

_viewing = threading.Lock()  # protects the names of temporary views, which a session has once for all threads
UNUSUAL = ("content", "ticks", "data_bytes")  # columns that only a query that names them has
_WORD = re.compile(r"[^\W\d]\w*|`(?:[^`]|``)+`")
_PLANS = "org.apache.spark.sql.catalyst.plans.logical"
_NO_QUERIES = tuple(f"{_PLANS}.{name}" for name in ("Command", "ParsedStatement", "CompoundBody"))
_REFUSED = "only queries are supported: SELECT, WITH, VALUES, TABLE"
_CHOOSING = {"Project", "Aggregate"}  # only columns that they name go on from what is below
_COMPARING = {"Union", "Except", "Intersect", "Distinct", "Deduplicate"}  # all columns of what is below count
_POSITIONAL = {"Pivot", "Unpivot", "UnresolvedSubqueryColumnAliases", "PipeOperator"}  # they mean some without a name


def sql(
    spark: SparkSession,
    address: str,
    query: str,
    *,
    schemas: Schemas | None = None,
    mode: Mode = "permissive",
) -> DataFrame:
    """Return the result of a query, in which the topics and binders of a log are tables.

    A topic has the columns of the log and the fields of its JSON or BSON data; a field that is called like a column is
    `data.` and its name. A binder has `_id` and the fields of its documents. A name with dots or dashes is written
    within backticks; `` `binder:x` `` is the binder where a topic has the same name. Temporary views of the session
    that a query names are used as they are. `schemas` gives the types of fields by table, where a sample of a thousand
    events would not tell.

    What is read is what is there when the result is asked for. Raises Invalid for what is no query, and for one that
    Spark cannot analyse; NotFound for a table that is not there.
    """
    with failures.quiet():
        parsed = parse_query(spark, query)
        with open_place(absolute(address)) as hw:
            named = _Tables(spark, absolute(address), hw, mode, schemas or {})
            try:
                return named.analysed(query, parsed)
            except AnalysisException:
                whole = parsed._replace(whole=True)
            try:  # with all columns, in case one was meant that is not named; else the error can say what there is
                return named.analysed(query, whole)
            except AnalysisException as error:
                if error.getCondition() == "TABLE_OR_VIEW_NOT_FOUND":
                    raise _missing(parsed.qualified[0] if parsed.qualified else "?", hw.topics()) from None
                raise failures.translated(error) from None


class _Tables:
    """Finds the tables that a query names."""

    def __init__(self, spark: SparkSession, address: str, hw: Store, mode: Mode, schemas: Schemas) -> None:
        self._schemas = schemas
        self._spark = spark
        self._address = address
        self._hw = hw
        self._mode = mode

    def analysed(self, query: str, parsed: QueryNames) -> DataFrame:
        """Return the query, over tables with the columns that it can mean."""
        with _views(self._spark, self._found(parsed)):
            return self._spark.sql(query)

    def _found(self, parsed: QueryNames) -> dict[str, DataFrame]:
        """Return the tables by the names that the query has for them. Raises NotFound."""
        topics, binders = self._hw.topics(), sql_tables.binders(self._hw)
        for name in parsed.qualified:
            if _same(name, [*topics, *binders]) is not None:
                raise _missing(name, [name])
        found = {}
        for name in parsed.tables:
            if self._spark.catalog.tableExists(_quoted(name)):
                continue
            kind, _, rest = name.partition(":")
            topic = _same(rest if kind == "topic" else name, topics)
            binder = _same(rest if kind == "binder" else name, binders)
            if topic is None and binder is None:
                raise _missing(name, [*topics, *binders])
            schema = _given(self._schemas, name)
            if topic is not None:
                found[name] = self._topic(topic, schema, parsed)
            elif binder is not None:
                found[name] = self._binder(binder, schema, parsed)
        unknown = [name for name in self._schemas if _same(name, parsed.tables) is None]
        if unknown:
            raise Invalid(f"a schema is given for {unknown[0]!r}, which the query does not use")
        return found

    def _topic(self, topic: str, schema: t.StructType | None, parsed: QueryNames) -> DataFrame:
        fields = sql_tables.topic_fields(self._hw, topic) if schema is None else schema
        own = [field for field in LOG_COLUMNS if parsed.whole or field.name in parsed.words]
        own = [field for field in own if field.name not in UNUSUAL or field.name in parsed.words]
        taken = {field.name.lower() for field in LOG_COLUMNS}
        others = [field for field in _chosen(fields, parsed) if field.name.lower() not in taken]
        wanted = t.StructType([*own, *others] or [LOG_COLUMNS["offset"]])
        reader = self._spark.read.format("headwater").schema(wanted).option("topic", topic)
        return reader.option("mode", self._mode).load(self._address)

    def _binder(self, binder: str, schema: t.StructType | None, parsed: QueryNames) -> DataFrame:
        fields = sql_tables.binder_fields(self._hw, binder) if schema is None else schema
        chosen = [field for field in _chosen(fields, parsed) if field.name != sql_tables.ID]
        return sql_tables.documents(self._spark, self._address, binder, t.StructType(chosen), self._mode)


def _chosen(fields: t.StructType, parsed: QueryNames) -> list[t.StructField]:
    """Return the fields whose name, or a part of it, occurs in the query."""
    if parsed.whole:
        return fields.fields
    return [field for field in fields if {field.name.lower(), *field.name.lower().split(".")} & parsed.words]


def _given(schemas: Schemas, name: str) -> t.StructType | None:
    same = _same(name, list(schemas))
    if same is None:
        return None
    schema: Any = schemas[same]
    if not isinstance(schema, str):
        return schema  # type: ignore[no-any-return]  # it is one or the other
    try:
        return t.StructType.fromDDL(schema)  # type: ignore[return-value]  # a list of fields is a struct
    except ParseException as error:
        raise Invalid(f"invalid schema of {name!r}: {failures.message_of(error)}") from None


def _same(name: str, names: list[str]) -> str | None:
    """Return the one that is meant: Spark does not distinguish cases, topics do."""
    if name in names:
        return name
    near = [each for each in names if each.lower() == name.lower()]
    return near[0] if len(near) == 1 else None


def _missing(name: str, there: list[str]) -> NotFound:
    near = get_close_matches(name, there, 3, 0.5)
    hint = f"did you mean {' or '.join(map(_quoted_if_needed, near))}?" if near else "list them with 'headwater topics'"
    return NotFound(f"no topic or binder {name!r}", hint=hint, code="no_such_table")


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _quoted_if_needed(name: str) -> str:
    return name if re.fullmatch(r"\w+", name) else _quoted(name)


@contextmanager
def _views(spark: SparkSession, frames: Mapping[str, DataFrame]) -> Iterator[None]:
    """Create temporary views for the block; a query that was analysed in it does not need them any more."""
    with _viewing:
        try:
            for name, frame in frames.items():
                frame.createOrReplaceTempView(_quoted(name))
            yield
        finally:
            for name in frames:
                spark.catalog.dropTempView(name)


class QueryNames(NamedTuple):
    """The names in a query."""

    tables: list[str]  # without those that the query itself makes
    qualified: list[str]  # names of several parts, with dots: no topic is called so without backticks
    words: frozenset[str]  # all words, in lower case: no other column can be meant by its name
    whole: bool  # whether columns are meant without a name: by a star, or by their place


def parse_query(spark: SparkSession, query: str) -> QueryNames:
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
        """Visit all nodes, each with whether one above it chooses columns by name."""
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
