"""JSON made of Arrow columns, all rows at once: what `to_json` of Spark writes, and what it cannot write in UTC.

Fields that are null are left out, elements of lists that are null are `null`. Times are ISO 8601 in UTC, with a `Z`;
those without a zone have none. Numbers that JSON does not know are the texts `NaN`, `Infinity` and `-Infinity`; bytes
are base64.
"""

from __future__ import annotations

import binascii
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headwater.errors import Invalid

HARMFUL = r'[\x00-\x1f"\\]'  # what a text in JSON must escape
_ODD = {"nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}  # numbers that JSON does not have

Text = Callable[[Any], Any]  # from an array to an array of strings, null where that is null


def check(name: str, type: pa.DataType) -> None:
    """Raise Invalid for a field that has no JSON."""
    _writer(name, type)


def objects(names: Sequence[str], columns: Sequence[Any]) -> Any:
    """Return one JSON object for each row, with these fields."""
    texts = [column(name, each) for name, each in zip(names, columns, strict=True)]
    return _objects(names, texts, len(columns[0]))


def column(name: str, array: Any) -> Any:
    """Return the JSON of each value of one column; null where that is null."""
    return _writer(name, array.type)(array)


def _objects(names: Sequence[str], texts: Sequence[Any], count: int) -> Any:
    """Return objects of fields that are JSON already; a null is left out."""
    pieces: list[Any] = ["{"]
    begun: Any = False  # in which objects there is a field already: in none, in all, or an array that tells
    for name, text in zip(names, texts, strict=True):
        pieces.append(_member(_name(name), text, begun))
        begun = True if begun is True or not text.null_count else pc.or_(begun, text.is_valid())
    if len(pieces) == 1:
        return pa.repeat(pa.scalar("{}"), count)
    return pc.binary_join_element_wise(*pieces, "}", "")


def _member(name: str, text: Any, begun: Any) -> Any:
    """Return a field with its name, and a comma where others are before it; nothing where it is null."""
    if isinstance(begun, bool):
        before: Any = f",{name}:" if begun else f"{name}:"
    else:
        before = pc.if_else(begun, f",{name}:", f"{name}:")
    return pc.fill_null(pc.binary_join_element_wise(before, text, ""), "")


def _name(name: str) -> str:
    return msgspec.json.encode(name).decode()


def _writer(name: str, type: pa.DataType) -> Text:  # noqa: PLR0911  # one for each kind of type
    """Return the function that turns an array of this type into JSON."""
    kinds = pa.types
    if kinds.is_string(type) or kinds.is_large_string(type):
        return _quoted
    if kinds.is_boolean(type) or kinds.is_integer(type) or kinds.is_decimal(type):
        return lambda array: array.cast(pa.string())
    if kinds.is_floating(type):
        return _numbers
    if kinds.is_timestamp(type):
        return _times
    if kinds.is_date(type):
        return lambda array: _between('"', array.cast(pa.string()))
    if kinds.is_binary(type) or kinds.is_large_binary(type):
        return _base64
    if kinds.is_null(type):
        return lambda array: array.cast(pa.string())
    if kinds.is_struct(type):
        inner = [(field.name, _writer(f"{name}.{field.name}", field.type)) for field in type.fields]
        return lambda array: _structs(inner, array)
    if kinds.is_map(type):
        key, item = _key_writer(name, type.key_type), _writer(name, type.item_type)
        return lambda array: _maps(key, item, array)
    if kinds.is_list(type) or kinds.is_large_list(type):
        element = _writer(name, type.value_type)
        return lambda array: _lists(element, array)
    raise Invalid(
        f"the column {name!r} has type {type}, which cannot be written as JSON",
        hint="cast it first, or add a column 'data'",
    )


def _between(around: str, texts: Any) -> Any:
    return pc.binary_join_element_wise(around, texts, around, "")


def _quoted(array: Any) -> Any:
    """Return texts with quotes. Most need no escape: one pass over all bytes finds those that do."""
    array = array.cast(pa.string())
    if not _harmful(array):
        return _between('"', array)
    escapes = pc.fill_null(pc.match_substring_regex(array, HARMFUL), False)
    encoded = [msgspec.json.encode(text).decode()[1:-1] for text in array.filter(escapes).to_pylist()]
    return _between('"', pc.replace_with_mask(array, escapes, pa.array(encoded, pa.string())))


def _harmful(array: Any) -> bool:
    """Return whether some text holds what must be escaped."""
    offsets, data = array.buffers()[1:]
    if data is None or not len(array):
        return False
    ends = np.frombuffer(offsets, np.int32, array.offset + len(array) + 1)
    return re.search(HARMFUL.encode(), memoryview(data)[ends[array.offset] : ends[-1]]) is not None


def _numbers(array: Any) -> Any:
    """Shortest texts, by which the same number is read; those of whole ones end in `.0`, as is usual."""
    texts = array.cast(pa.string())
    whole = pc.fill_null(pc.match_substring_regex(texts, r"^-?[0-9]+$"), False)
    if pc.any(whole).as_py():
        texts = pc.if_else(whole, pc.binary_join_element_wise(texts, ".0", ""), texts)
    finite = pc.is_finite(array)
    if pc.all(finite).as_py() is not False:
        return texts
    odd = pc.take(pa.array(_ODD.values()), pc.index_in(texts, pa.array(_ODD)))
    return pc.if_else(finite, texts, odd)


def _times(array: Any) -> Any:
    zone = '"' if array.type.tz is None else 'Z"'
    texts = array.cast(pa.timestamp("us")).cast(pa.string())
    return pc.binary_join_element_wise('"', pc.replace_substring(texts, " ", "T", max_replacements=1), zone, "")


def _base64(array: Any) -> Any:
    encoded = [None if each is None else binascii.b2a_base64(each, newline=False) for each in array.to_pylist()]
    return _between('"', pa.array(encoded, pa.binary()).cast(pa.string()))


def _structs(fields: Sequence[tuple[str, Text]], array: Any) -> Any:
    """Return objects of the fields of a struct array; nulls stay null."""
    texts = [text(column) for (_, text), column in zip(fields, array.flatten(), strict=True)]
    return _where_valid(array, _objects([name for name, _ in fields], texts, len(array)))


def _lists(element: Text, array: Any) -> Any:
    texts = pc.fill_null(element(array.flatten()), "null")
    return _joined("[", array, texts, "]")


def _maps(key: Text, item: Text, array: Any) -> Any:
    array = array.take(pa.array(np.arange(len(array)))) if array.offset else array  # of a slice, keys are of the whole
    members = pc.binary_join_element_wise(key(array.keys), ":", pc.fill_null(item(array.items), "null"), "")
    return _joined("{", array, members, "}")


def _joined(before: str, array: Any, texts: Any, after: str) -> Any:
    """Return the texts of the elements of each list, with commas between them."""
    counts = pc.fill_null(pc.list_value_length(array.cast(_plain_list(array.type))), 0)
    offsets = np.zeros(len(array) + 1, np.int32)
    np.cumsum(np.asarray(counts), out=offsets[1:])
    lists: Any = pa.ListArray
    joined: Any = pc.binary_join(lists.from_arrays(pa.array(offsets), texts), ",")
    return _where_valid(array, pc.binary_join_element_wise(before, joined, after, ""))


def _plain_list(type: pa.DataType) -> pa.DataType:
    """Return the type of a map as that of the list that it is; any other as it is."""
    return pa.list_(pa.struct([type.key_field, type.item_field])) if pa.types.is_map(type) else type


def _where_valid(array: Any, texts: Any) -> Any:
    return pc.if_else(array.is_valid(), texts, None) if array.null_count else texts


def _key_writer(name: str, type: pa.DataType) -> Text:
    """Return the function that turns keys into the names of members, which are always text."""
    if pa.types.is_string(type) or pa.types.is_large_string(type):
        return _quoted
    if pa.types.is_boolean(type) or pa.types.is_integer(type) or pa.types.is_decimal(type):
        return lambda array: _between('"', array.cast(pa.string()))
    raise Invalid(f"the keys of the column {name!r} have type {type}, not string", hint="cast them to string")
