"""The fields of data, beside a plain reference in Python: whatever is in a chunk, each event has what it alone has."""

from __future__ import annotations

import base64
import itertools
import json
import re
import uuid
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import ROUND_HALF_UP, Decimal, localcontext
from pathlib import Path
from typing import Any

import bson
import numpy as np
import pyarrow as pa
import pytest
from bson.decimal128 import Decimal128
from bson.int64 import Int64
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import types as t
from pyspark.sql.pandas.types import to_arrow_schema

import headwater
from headwater import Invalid
from headwater.spark.reading import fields, values
from tests.planting import plant

SCHEMA = t.StructType(
    [
        t.StructField("i", t.IntegerType()),
        t.StructField("l", t.LongType()),
        t.StructField("d", t.DoubleType()),
        t.StructField("f", t.FloatType()),
        t.StructField("s", t.StringType()),
        t.StructField("b", t.BooleanType()),
        t.StructField("m", t.DecimalType(10, 2)),
        t.StructField("at", t.TimestampType()),
        t.StructField("local", t.TimestampNTZType()),
        t.StructField("day", t.DateType()),
        t.StructField("x", t.BinaryType()),
        t.StructField("data.type", t.StringType()),
        t.StructField("by.name", t.StringType()),
        t.StructField("by.born.on", t.DateType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("o", t.StructType([t.StructField("i", t.ByteType()), t.StructField("at", t.TimestampType())])),
        t.StructField("list", t.ArrayType(t.StructType([t.StructField("at", t.TimestampType())]))),
    ]
)
NAMES = ["i", "l", "d", "f", "s", "b", "m", "at", "local", "day", "x", "type", "by", "tags", "o", "list", "other"]
NUMBERS = [
    *["0", "-0", "1", "-1", "1.0", "1e2", "1E+2", "1.5", "0.005", "2.675", "127", "128", "-128", "-129", "16777217"],
    *["2147483647", "2147483648", "-2147483648", "99999999.99", "99999999.995", "100000000", "9223372036854775807"],
    *["9223372036854775808", "123456789012345678901234567890", "1e38", "3.5e38", "1e300", "1e999", "-1e999", "1e-400"],
    *["0.1", "0.30000000000000004", "1e9999999", "1e-9999999"],
]
TEXTS = [
    *[
        "",
        "a",
        "größer",
        "true",
        "1",
        "1.5",
        "-.5",
        "1.",
        "1e3",
        "NaN",
        "Inf",
        "aGk=",
        "aGk",
        "a b",
        "\u2028",
        "\u0000",
    ],
    *["2024-02-29", "2023-02-29", "2024-02-29T10:00:00Z", "2024-02-29 10:00:00+02:00", "2024-02-29T23:59:59.9-0530"],
    *["2024-02-29T10:00:00", "2024-02-29T10:00:00.123456789Z", "2024-02-29T10:00:00.1234567", "2024-02-29T10", "x\ny"],
    *["2024-02-29T10:00+02", "2024-02-29Z", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59.999999Z", "2024-02-29T25:00"],
]
LITERALS = [*NUMBERS, *map(json.dumps, TEXTS), "null", "true", "false", "[]", "{}", r'"\ud83d\ude00"', r'"\ud800"']
raw = st.recursive(
    st.sampled_from(LITERALS),
    lambda inner: (
        st.lists(inner, max_size=2).map(lambda each: "[" + " , ".join(each) + "]")
        | st.lists(st.tuples(st.sampled_from([*NAMES, "name", "born", "on"]), inner), max_size=3).map(
            lambda each: "{" + ",\n".join(f'"{name}" : {value}' for name, value in each) + "}"
        )
    ),
    max_leaves=4,
)
FITTING = {
    "i": ["1", "-7"],
    "l": ["9007199254740993"],
    "d": ["1", "0.1"],
    "f": ["0.1"],
    "s": ['"text"', '"NaN"'],
    "b": ["true"],
    "m": ["1", "0.5", '"7.25"'],
    "at": ['"2024-02-29T10:00:00Z"', '"2024-02-29 10:00:00.5+02:00"'],
    "local": ['"2024-02-29T10:00:00"'],
    "day": ['"2024-02-29"'],
    "x": ['"aGk="'],
    "type": ['"t"'],
    "by": ['{"name": "x", "born": {"on": "2024-02-29"}}', '{"name": null}', "null", "{}"],
    "tags": ['["a", null]', "[]"],
    "o": ['{"i": 1, "at": "2024-02-29T10:00:00Z"}', "{}", '{"at": null, "more": 1}'],
    "list": ['[{"at": "2024-02-29T10:00:00Z"}, null, {}]'],
    "other": ["1", "{}"],
}
fitting = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), st.sampled_from(FITTING[name])))
documents = st.lists(fitting, max_size=6, unique_by=lambda each: each[0]) | st.lists(
    fitting | st.tuples(st.sampled_from(NAMES), raw), max_size=6
)
POISON = [
    b"",
    b"{",
    b"}",
    b"{}{}",
    b'{"i":1},{"i":2}',
    b'{"i":1',
    b'"b":2}',
    b"[1]",
    b"1",
    b'{"s":"\xff"}',
    b'{"i":NaN}',
]
POISON += [b'{"other":Infinity,"i":1}', b"\xef\xbb\xbf{}", b' {"i":1}\r\n', b"\x0b{}", b'{"i":1}\0', b'{"s":"\n"}']
POISON += [
    b'{"i":1,"i":2}',
    b'{"i":1,}',
    b"{'i':1}",
    b'{"i":01}',
    b'{"\\u0069":4}',
    b'{"other":"\xff","i":1}',
    b"null",
    b'{"i":1}null{}',
]
json_data = documents.map(
    lambda each: ("{" + ", ".join(f'"{name}": {value}' for name, value in each) + "}").encode()
) | st.sampled_from(POISON)


def read(content: str, data: list[bytes | None], schema: t.StructType = SCHEMA, mode: Any = "permissive") -> list[Any]:
    found = fields.reader(schema, mode).columns(content, pa.array(data, pa.binary()))
    wanted = to_arrow_schema(schema, timezone="UTC")
    assert [column.type for column in found] == wanted.types
    for column in found:
        column.validate(full=True)
    return [
        dict(zip(wanted.names, row, strict=True)) for row in zip(*(each.to_pylist() for each in found), strict=True)
    ]


@given(st.lists(json_data, min_size=1, max_size=12), st.sampled_from([1, 4, 1024]))
def test_each_event_has_the_fields_that_it_has_alone(data: list[bytes], exact_rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fields, "EXACT_ROWS", exact_rows)
        found = read("json", list(data))
    assert found == [reference(each) for each in data]


@pytest.mark.parametrize("field", list(SCHEMA)[:12], ids=lambda field: field.name)
def test_a_value_of_any_kind_fits_or_is_null(field: t.StructField) -> None:
    name = field.name.removeprefix("data.")
    data = [f'{{"{name}": {each}}}'.encode() for each in LITERALS]
    expected = [reference(each)[field.name] for each in data]
    alone = [read("json", [each], t.StructType([field]))[0][field.name] for each in data]
    assert alone == expected
    assert [row[field.name] for row in read("json", [*data], t.StructType([field]))] == expected


def test_a_poison_event_harms_no_other() -> None:
    clean = b'{"i":7}'
    for one, other in itertools.product(POISON, POISON):
        data = [clean, one, other, clean, one]
        found = [row["i"] for row in read("json", [*data], schema_of(i=t.IntegerType()))]
        assert found == [reference(each)["i"] for each in data], data


OUTSIDE = [b'{"i":1}null{}', b'{"i":1} null {}', b"{}1{}", b'{}"a"{}', b"{}[]{}", b"{}{}", b"{},{}", b"{}\n{}"]
OUTSIDE += [b'{"i":' * 100_000 + b"1" + b"}" * 100_000, b'{"i":NaN}', b'{"i":-Infinity}', b'{"i":1}}{{"i":1}']


@pytest.mark.parametrize("poison", OUTSIDE, ids=lambda each: each[:16].decode())
@pytest.mark.parametrize("place", [0, 1])
def test_what_is_no_object_is_never_decoded_with_others(poison: bytes, place: int) -> None:
    data = [b'{"i":7}', b'{"i":7}']
    data.insert(place, poison)
    assert fields.reader(schema_of(i=t.IntegerType()))._rows(pa.array(data, pa.binary())) is None


@given(st.lists(documents, min_size=1, max_size=6))
def test_events_decoded_together_have_what_the_exact_rules_read(many: list[list[tuple[str, str]]]) -> None:
    data = pa.array(
        [("{" + ", ".join(f'"{name}": {value}' for name, value in each) + "}").encode() for each in many], pa.binary()
    )
    reader = fields.reader(SCHEMA)
    found = reader.columns("json", data)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "plain_array", lambda _values, _type: None)
        assert found == reader.of_documents(fields._json(data))


# The reference: json of the standard library, one document at a time.


def reference(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(
            data.decode(), parse_float=Decimal, parse_constant=_refused, object_pairs_hook=_without_surrogates
        )
    except ValueError:
        document = None
    found = {}
    for field in SCHEMA:
        value = document
        for part in field.name.removeprefix("data.").split("."):
            value = value.get(part) if isinstance(value, dict) else None
        found[field.name] = fit(value, field.dataType)
    return found


def _refused(text: str) -> Any:
    raise ValueError(text)


def _without_surrogates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object, or raise ValueError: a surrogate alone is no text, also in a member that is repeated later."""
    json.dumps(pairs, ensure_ascii=False, default=str).encode()
    return dict(pairs)


def fit(value: Any, type: t.DataType) -> Any:
    if value is None:
        return None
    if isinstance(type, t.StructType):
        return (
            {each.name: fit(value.get(each.name), each.dataType) for each in type} if isinstance(value, dict) else None
        )
    if isinstance(type, t.ArrayType):
        return [fit(each, type.elementType) for each in value] if isinstance(value, list) else None
    return FIT[type.__class__](value, type)


def is_number(value: Any) -> bool:
    return isinstance(value, int | Decimal) and not isinstance(value, bool)


def fit_whole(bits: int) -> Any:
    def fit(value: Any, _type: Any) -> int | None:
        if not is_number(value) or (isinstance(value, Decimal) and value.adjusted() > 30) or value != int(value):
            return None
        return int(value) if -(2 ** (bits - 1)) <= value < 2 ** (bits - 1) else None

    return fit


def fit_double(value: Any, _type: Any) -> float | None:
    return float(value) if is_number(value) and abs(float(value)) != float("inf") else None


def fit_float(value: Any, type: Any) -> float | None:
    found = fit_double(value, type)
    with np.errstate(over="ignore"):
        return None if found is None or abs(np.float32(found)) == np.inf else float(np.float32(found))


def fit_text(value: Any, _type: Any) -> str:
    return value if isinstance(value, str) else text_of(value)


def text_of(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ",".join(f"{text_of(name)}:{text_of(each)}" for name, each in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(text_of, value)) + "]"
    return str(value) if isinstance(value, Decimal) else json.dumps(value, ensure_ascii=False)


def fit_decimal(value: Any, type: t.DecimalType) -> Decimal | None:
    if isinstance(value, str) and re.fullmatch(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", value, re.ASCII):
        value = Decimal(value)
    if not is_number(value) or Decimal(value).adjusted() > 9:
        return None
    with localcontext(prec=50):
        found = Decimal(value).quantize(Decimal("0.01"), ROUND_HALF_UP)
    return found if abs(found) < 10 ** (type.precision - type.scale) else None


def instant(value: Any) -> datetime | None:
    pattern = r"(\d{4}-\d\d-\d\d)(?:[T ](\d\d)(?::(\d\d)(?::(\d\d)(?:\.(\d+))?)?)?(Z|[+-]\d\d(?::?\d\d)?)?)?"
    parts = re.fullmatch(pattern, value, re.ASCII) if isinstance(value, str) else None
    if parts is None:
        return None
    day, hour, minute, second, fraction, zone = parts.groups()
    try:
        found = datetime.fromisoformat(f"{day}T{hour or '00'}:{minute or '00'}:{second or '00'}").replace(tzinfo=UTC)
    except ValueError:
        return None
    if zone not in (None, "Z"):
        found -= int(zone[0] + "1") * timedelta(hours=int(zone[1:3]), minutes=int(zone[-2:]) if len(zone) > 3 else 0)
    return found + timedelta(microseconds=int((fraction or "0").ljust(6, "0")[:6]))


def fit_date(value: Any, _type: Any) -> date | None:
    try:
        return date.fromisoformat(value) if isinstance(value, str) and len(value) == 10 else None
    except ValueError:
        return None


def fit_bytes(value: Any, _type: Any) -> bytes | None:
    try:
        return base64.b64decode(value, validate=True) if isinstance(value, str) else None
    except ValueError:
        return None


FIT: dict[Any, Any] = {
    t.ByteType: fit_whole(8),
    t.IntegerType: fit_whole(32),
    t.LongType: fit_whole(64),
    t.DoubleType: fit_double,
    t.FloatType: fit_float,
    t.StringType: fit_text,
    t.BooleanType: lambda value, _: value if isinstance(value, bool) else None,
    t.DecimalType: fit_decimal,
    t.TimestampType: lambda value, _: instant(value),
    t.TimestampNTZType: lambda value, _: None if (found := instant(value)) is None else found.replace(tzinfo=None),
    t.DateType: fit_date,
    t.BinaryType: fit_bytes,
}


# What only one example shows.


def schema_of(**columns: t.DataType) -> t.StructType:
    return t.StructType([t.StructField(name, type) for name, type in columns.items()])


def test_one_odd_event_does_not_slow_its_whole_chunk_down(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    real = fields._json

    def counting(data: Any) -> list[Any]:
        decoded.append(len(data))
        return real(data)

    monkeypatch.setattr(fields, "_json", counting)
    data: list[bytes | None] = [b'{"i":%d}' % number for number in range(20_000)]
    data[7_000] = b'{"i":1'
    found = [row["i"] for row in read("json", data, schema_of(i=t.IntegerType()))]
    assert found == [None if number == 7_000 else number for number in range(20_000)]
    assert 0 < sum(decoded) <= fields.EXACT_ROWS


def test_clean_data_of_every_type_is_decoded_together() -> None:
    data = ("{" + ",".join(f'"{name}":{FITTING[name][0]}' for name in NAMES) + "}").encode()
    assert fields.reader(SCHEMA)._rows(pa.array([data], pa.binary())) is not None


@pytest.mark.parametrize("type", [t.IntegerType(), t.DoubleType(), t.FloatType(), t.StringType(), t.TimestampType()])
def test_clean_values_of_plain_types_need_no_conversion(type: t.DataType) -> None:
    arrow = to_arrow_schema(schema_of(it=type), timezone="UTC").field("it").type
    literal = {"int32": "1", "double": "1", "float": "0.5", "string": '"a"'}.get(str(arrow), '"2024-02-29T10:00:00Z"')
    reader = fields.reader(schema_of(it=type))
    (row,) = reader._rows(pa.array([f'{{"it":{literal}}}'.encode()], pa.binary())) or [None]
    assert values.plain_array([reader._slot("it")(row)], arrow) is not None


@pytest.mark.parametrize("escape", [r"\ud800", r"\uDFFF", r"\ud800\ud800"])
def test_a_surrogate_alone_in_a_field_that_is_skipped_makes_data_invalid(escape: str) -> None:
    data = [b'{"i":1}', f'{{"other":"{escape}","i":1}}'.encode(), rb'{"other":"\ud83d\ude00","i":2}']
    assert [row["i"] for row in read("json", [*data], schema_of(i=t.IntegerType()))] == [1, None, 2]


def test_a_field_and_what_lies_within_it_are_both_columns() -> None:
    schema = t.StructType(
        [
            t.StructField("by", t.StringType()),
            t.StructField("by.name", t.StringType()),
            t.StructField("data.by", schema_of(age=t.IntegerType())),
        ]
    )
    found = read("json", [b'{"by":{"name":"x","age":3}}', b'{"by":"y"}'], schema)
    assert found[0] == {"by": '{"name":"x","age":3}', "by.name": "x", "data.by": {"age": 3}}
    assert found[1] == {"by": "y", "by.name": None, "data.by": None}


def test_the_data_of_an_event_may_have_a_field_that_is_called_data() -> None:
    schema = t.StructType([t.StructField("data.data", t.IntegerType()), t.StructField("data.data.x", t.IntegerType())])
    assert read("json", [b'{"data":1}', b'{"data":{"x":2}}'], schema) == [
        {"data.data": 1, "data.data.x": None},
        {"data.data": None, "data.data.x": 2},
    ]


def test_maps_have_all_members_of_an_object() -> None:
    schema = schema_of(m=t.MapType(t.StringType(), t.IntegerType()))
    found = read("json", [b'{"m":{"a":1,"b":"x","c":null}}', b'{"m":[]}', b"{}"], schema)
    assert found == [{"m": [("a", 1), ("b", None), ("c", None)]}, {"m": None}, {"m": None}]


def test_data_that_is_too_large_has_no_fields() -> None:
    schema = schema_of(i=t.IntegerType())
    assert read("json", [b'{"i":1}', None, b'{"i":3}', None], schema) == [{"i": 1}, {"i": None}, {"i": 3}, {"i": None}]
    assert read("json", [None], schema) == [{"i": None}]


@pytest.mark.parametrize("content", ["bytes", "text"])
def test_bytes_and_text_that_are_a_json_object_have_fields(content: str) -> None:
    schema = schema_of(i=t.IntegerType())
    data = [b'{"i":1}', b"", None, b' {"i": 2}\n', b"[1]", b"no", b'{"i":3', b"\xff"]
    assert [row["i"] for row in read(content, data, schema)] == [1, None, None, 2, None, None, None, None]
    assert read(content, [], schema) == []
    assert read(content, [b'{"i":1}'] * 3, schema, "failfast") == [{"i": 1}] * 3
    with pytest.raises(Invalid, match=f"1: its data is {content}, but not a JSON object"):
        read(content, [b'{"i":1}', b"no"], schema, "failfast")
    assert fields.documents(content, pa.array(data, pa.binary())) == [{"i": 1}, {"i": 2}]


def test_bson_has_types_of_its_own() -> None:
    at = datetime(2024, 2, 29, 10, tzinfo=timezone(timedelta(hours=2)))
    some = uuid.UUID(int=7)
    document = {
        "i": Int64(5),
        "l": 2**40,
        "d": Decimal128("1.5"),
        "f": float("inf"),
        "s": bson.ObjectId(b"\1" * 12),
        "b": True,
        "m": Decimal128("2.675"),
        "at": at,
        "local": at,
        "day": at,
        "x": b"\0\1",
        "type": {"n": [1, at]},
        "by": {"name": "x", "born": {"on": "2024-02-29"}},
        "tags": ["a", 1],
        "o": {"i": 1.0, "at": "2024-02-29T08:00:00Z"},
    }
    uuids = bson.CodecOptions(uuid_representation=bson.binary.UuidRepresentation.STANDARD)  # type: ignore[var-annotated]
    data = [bson.encode(document), bson.encode({"i": 1, "x": some}, codec_options=uuids), bson.encode({"i": "x"})]
    first, second, third = read("bson", [*data])
    assert first == {
        "i": 5,
        "l": 2**40,
        "d": 1.5,
        "f": float("inf"),
        "s": "01" * 12,
        "b": True,
        "m": Decimal("2.68"),
        "at": at,
        "local": datetime(2024, 2, 29, 8),  # noqa: DTZ001  # it has no zone
        "day": date(2024, 2, 29),
        "x": b"\0\1",
        "data.type": '{"n":[1,"2024-02-29T08:00:00Z"]}',
        "by.name": "x",
        "by.born.on": date(2024, 2, 29),
        "tags": ["a", "1"],
        "o": {"i": 1, "at": at},
        "list": None,
    }
    assert (second["i"], second["x"], third["i"]) == (1, some.bytes, None)


@given(
    st.lists(st.sampled_from([b"", b"\5\0\0\0\0", b"\xff" * 9, bson.encode({"i": 1}), bson.encode({"i": 2}) + b"x"]))
)
def test_broken_bson_has_no_fields(data: list[bytes]) -> None:
    expected = [{"i": 1 if each == bson.encode({"i": 1}) else None} for each in data]
    assert read("bson", [*data], schema_of(i=t.IntegerType())) == expected


def test_events_that_only_together_are_bson_have_no_fields() -> None:
    whole = bson.encode({"i": 1})
    found = read("bson", [whole[:6], whole[6:], whole + whole, whole], schema_of(i=t.IntegerType()))
    assert [row["i"] for row in found] == [None, None, None, 1]


@pytest.mark.parametrize("data", [b'{"i":"x"}', b"[1]", b"{", b'{"i":3000000000}'])
def test_failfast_names_the_event(tmp_path: Path, data: bytes) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders", partitions=2)
        hw.append_many("orders", [b'{"i":1}'] * 3, content="json", partition=1)
        plant(hw, "orders", b'{"i":1}', data, partition=1)
        batches = list(hw.read_batches("orders"))
        reader = fields.reader(schema_of(i=t.IntegerType()), "failfast")
        with pytest.raises(Invalid, match="topic 'orders', partition 1, offset 4: ") as caught:
            reader.of(batches)
        assert caught.value.code == "bad_data"
        permissive = fields.reader(schema_of(i=t.IntegerType()))
        (found,) = permissive.of(batches)
        assert found.to_pylist() == [1, 1, 1, 1, None]


def test_failfast_refuses_data_without_fields() -> None:
    with pytest.raises(Invalid, match="its data is text"):
        read("text", [b"x"], schema_of(i=t.IntegerType()), "failfast")
    with pytest.raises(Invalid, match=r"^1: its data is too large"):
        read("json", [b"{}", None], schema_of(i=t.IntegerType()), "failfast")


def test_batches_of_several_contents_are_read_in_their_order(tmp_path: Path) -> None:
    with headwater.open(tmp_path) as hw:
        hw.create("orders")
        hw.append_many("orders", [b'{"i":1}', b'{"i":2}'], content="json")
        hw.append("orders", bson.encode({"i": 3}), content="bson")
        hw.append("orders", "text")
        hw.append("orders", {"i": 5})
        (found,) = fields.reader(schema_of(i=t.IntegerType())).of(list(hw.read_batches("orders")))
    assert found.to_pylist() == [1, 2, 3, None, 5]


@pytest.mark.parametrize(
    ("schema", "why"),
    [
        (t.StructType([t.StructField("i", t.IntegerType(), nullable=False)]), "NOT NULL"),
        (
            schema_of(o=t.StructType([t.StructField("i", t.IntegerType(), nullable=False)])),
            "'o.i' is declared NOT NULL",
        ),
        (schema_of(i=t.DayTimeIntervalType()), "cannot be duration"),
        (schema_of(i=t.MapType(t.IntegerType(), t.IntegerType())), "map keys in data"),
        (t.StructType([t.StructField("a..b", t.IntegerType())]), "empty part"),
    ],
)
def test_a_schema_that_data_cannot_have_is_refused(schema: t.StructType, why: str) -> None:
    with pytest.raises(Invalid, match=why):
        fields.reader(schema)
