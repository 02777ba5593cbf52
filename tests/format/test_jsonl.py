"""Events as lines of JSON give back every byte, whatever their content is said to be."""

import base64
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Invalid
from headwater.event import Content, Event
from headwater.format import jsonl
from tests import strategies

bson = pytest.importorskip("bson")
from bson import json_util  # noqa: E402  # after it is known to be there

json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.floats(allow_nan=False) | strategies.unicode_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strategies.unicode_text, inner, max_size=3),
    max_leaves=6,
)
bson_values = st.dictionaries(
    st.text("abc", min_size=1, max_size=3),
    st.integers(-(2**63), 2**63 - 1) | st.floats() | st.builds(bson.Int64, st.integers(-5, 5)) | st.binary(max_size=4),
    max_size=4,
)
data_of_contents = st.one_of(
    st.tuples(strategies.data, strategies.contents),  # seldom what it is said to be
    st.tuples(st.text().map(lambda text: text.encode(errors="replace")), st.just("text")),
    st.tuples(json_values.map(msgspec.json.encode), st.sampled_from(["bytes", "text", "json"])),
    st.tuples(
        json_values.map(lambda value: b" " + msgspec.json.format(msgspec.json.encode(value))),
        st.sampled_from(["bytes", "text", "json"]),
    ),
    st.tuples(bson_values.map(bson.encode), st.just("bson")),
)


@st.composite
def events(draw: st.DrawFn) -> Event:
    data, content = draw(data_of_contents)
    meta = draw(strategies.metas)
    return Event(
        draw(strategies.topic_names),
        draw(st.integers(0, 4095)),
        draw(strategies.i64),
        draw(strategies.ticks),
        draw(strategies.types),
        draw(strategies.keys),
        data,
        content,
        draw(strategies.nodes),
        None if meta is None else msgspec.json.encode(meta),
    )


@given(st.lists(events(), min_size=1, max_size=4))
def test_a_line_gives_back_every_byte(given: list[Event]) -> None:
    written = jsonl.encode_exactly(given)
    assert written.count(b"\n") == len(given)
    for event, line in zip(given, jsonl.decode_lines(written), strict=True):
        assert jsonl.data_of(line, None) == (event.data, event.content)
        assert jsonl.key_of(line) == event.key
        assert (line.topic, line.partition, line.offset) == (event.topic, event.partition, event.offset)
        assert (line.id, line.type, line.meta) == (str(event.id), event.type, event.meta)


@given(events())
def test_both_ways_to_write_a_line_agree_on_all_but_the_data(event: Event) -> None:
    one, exact = msgspec.json.decode(jsonl.encode(event)), msgspec.json.decode(jsonl.encode_exactly([event]))
    for told in (one, exact):
        for name in ("data", "data_base64"):
            told.pop(name, None)
    assert one == exact
    assert one["time"].endswith("Z")


def event_of(data: bytes, content: Content) -> Event:
    return Event("t", 0, 0, strategies.NOW_TICKS, "", None, data, content, 7)


def fields(data: bytes, content: Content) -> dict[str, Any]:
    told = msgspec.json.decode(jsonl.encode_exactly([event_of(data, content)]))
    return {name: told[name] for name in ("data", "data_base64") if name in told}


def test_data_is_readable_where_it_can_be_and_exact_beside_where_it_is_not() -> None:
    assert fields(b'{"a": 1.50}', "json") == {"data": {"a": 1.5}}
    assert b'"data":{"a": 1.50}' in jsonl.encode_exactly([event_of(b'{"a": 1.50}', "json")])
    over_lines = b'{\n  "a": 1\n}'
    assert fields(over_lines, "json") == {"data": {"a": 1}, "data_base64": base64.b64encode(over_lines).decode()}
    assert fields(b"{broken", "json") == {"data_base64": "e2Jyb2tlbg=="}
    assert fields(b'{"a": "\xff"}', "json") == {"data_base64": "eyJhIjogIv8ifQ=="}
    assert fields(b"\xff", "text") == {"data_base64": "/w=="}
    for content in ("bytes", "text"):
        assert fields(b"ab", content) == {"data": "ab"}
        assert fields(b'"ab"', content) == {"data": '"ab"'}
        assert fields(b'{"a": 1.50}', content) == {"data": {"a": 1.5}}
        assert fields(over_lines, content) == {"data": over_lines.decode()}
        assert fields(b'[1, "\xff"]', content) == {"data_base64": base64.b64encode(b'[1, "\xff"]').decode()}
    assert fields(b"\xff", "bytes") == {"data_base64": "/w=="}
    assert fields(bson.encode({"a": 1}), "bson") == {"data": {"a": 1}}
    wide = bson.encode({"a": bson.Int64(1)})
    assert fields(wide, "bson") == {"data": {"a": 1}, "data_base64": base64.b64encode(wide).decode()}
    assert fields(b"no bson", "bson") == {"data_base64": base64.b64encode(b"no bson").decode()}


@pytest.mark.parametrize("data", [b'{"a": "\xff"}', b"{broken", b"1 2", b""])
def test_what_is_not_json_is_not_written_as_such(data: bytes) -> None:
    told = msgspec.json.decode(jsonl.encode(event_of(data, "json")))
    assert told["data_base64"] == base64.b64encode(data).decode()
    assert "data" not in told


@pytest.mark.parametrize(
    ("line", "content", "expected"),
    [
        ('{"data": "text"}', None, (b"text", "text")),
        ('{"data": {"a":  1}}', None, (b'{"a":  1}', "json")),
        ('{"data": "text"}', "json", (b'"text"', "json")),
        ('{"data": "text"}', "bytes", (b"text", "bytes")),
        ('{"data": "text", "content": "bytes"}', "json", (b"text", "bytes")),
        ('{"data_base64": "YWI="}', None, (b"ab", "bytes")),
        ('{"data_base64": "YWI=", "data": 1, "content": "json"}', None, (b"ab", "json")),
        ('{"data": {"a": {"$oid": "0123456789abcdef01234567"}}, "content": "bson"}', None, None),
    ],
)
def test_what_a_line_does_not_say_is_taken_from_what_it_has(
    line: str, content: Content | None, expected: tuple[bytes, str] | None
) -> None:
    if expected is None:
        document = json_util.loads('{"a": {"$oid": "0123456789abcdef01234567"}}')
        expected = bson.encode(document), "bson"
    assert jsonl.data_of(jsonl.decode_line(line), content) == expected


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{}", "there is no data"),
        ('{"data_bytes": 9}', "without its data"),
        ('{"data": 1, "content": "text"}', "not text"),
        ('{"data": [1], "content": "bson"}', "not bson"),
        ('{"data": {"a": {"$oid": "x"}}, "content": "bson"}', "not bson"),
        ('{"data_base64": "Y"}', "not base64"),
    ],
)
def test_a_line_that_is_no_event_is_refused(line: str, said: str) -> None:
    with pytest.raises(Invalid, match=said):
        jsonl.data_of(jsonl.decode_line(line), None)
