"""Lines of JSON out and in: the same lines as `headwater read --json`, and the very bytes that were sent."""

from __future__ import annotations

import json
from typing import Any

import bson
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from headwater.errors import Invalid, TooLarge
from headwater.event import Content
from headwater.format import jsonl
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.format.events import EventBatch
from headwater.limits import Limits
from headwater.server.wire import decoding, lines, pieces
from headwater.server.wire.decoding import ParsedEvents
from headwater.server.wire.pieces import Cut
from tests import strategies
from tests.server.wire.logs import event_batches, made, of, opened
from tests.strategies import NOW_TICKS, Batch, Row

LIMITS = Limits()


def printed(batches: list[EventBatch]) -> list[bytes]:
    return [jsonl.encode(event) for batch in batches for event in batch.events()]


def is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def rows_of(parsed: ParsedEvents) -> list[tuple[Any, ...]]:
    """Type, key, data and meta of each event."""
    columns = [parsed.columns.get(kind) for kind in (TYPE, KEY, DATA, META)]
    values = [[None] * parsed.count if column is None else column.values(0, parsed.count) for column in columns]
    for column in columns:
        if column is not None:
            column.validate()
    return list(zip(*values, strict=True))


def data_of(parsed: ParsedEvents) -> list[bytes]:
    assert parsed.content == "json"
    return [row[2] for row in rows_of(parsed)]


# Out


@given(st.lists(event_batches(), max_size=2))
def test_the_lines_are_those_that_the_command_line_prints(batches: list[EventBatch]) -> None:
    assert b"".join(lines.encode_all(batches)) == b"".join(line + b"\n" for line in printed(batches))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | strategies.unicode_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(strategies.unicode_text, inner, max_size=3),
    max_leaves=6,
)
spelled = st.builds(
    lambda value, indent, plain: json.dumps(value, indent=indent, ensure_ascii=plain).encode(),
    json_values,
    st.sampled_from([None, 1]),
    st.booleans(),
)
nearly_json = st.sampled_from(
    [
        b"",
        b"{",
        b"1 2",
        b'"\xff"',
        b'"\xed\xa0\x80"',
        b"1e999",
        b"[1,]",
        b" 1",
        b"1 ",
        b'" a , b "',
        b'{"a" :1}',
        b"[1\n]",
    ]
)


@given(st.lists(spelled | nearly_json, min_size=1, max_size=12), st.sampled_from(["json", "text"]))
@example([b'" , "'] * 6, "json")
@example([b'{"a": 1}'] * 6, "json")
@example([b"[1 ]"] * 6, "json")
@example([b"a\x01b"] * 6, "text")
@example([b"1", b"2 ", b" 3", b"4", b"5"], "json")
def test_json_and_what_is_called_so_is_printed_alike(values: list[bytes], content: Content) -> None:
    batch = of([Row(value, key=value[:5]) for value in values], content)
    assert lines.encode(batch).splitlines() == printed([batch])


@given(st.integers(0, 2**60 - 20), st.lists(st.integers(1, 2**30), min_size=5, max_size=9))
def test_times_and_ids_are_right_at_any_time(base: int, steps: list[int]) -> None:
    ticks = [base]
    for step in steps:
        ticks.append(ticks[-1] + step)
    assume(ticks[-1] < 2**60)
    batch = made(Batch(2**62, base, "bytes", [Row(b"")] * len(ticks), ticks))
    assert lines.encode(batch).splitlines() == printed([batch])


@given(st.lists(event_batches(), max_size=2))
def test_an_array_has_the_same_events(batches: list[EventBatch]) -> None:
    expected = [json.loads(line) for line in printed(batches)]
    assert json.loads(b"".join(lines.encode_array(batches))) == expected


def test_a_topic_with_signs_in_its_name_is_named_rightly() -> None:
    batch = made(Batch(0, NOW_TICKS, "bytes", [Row(b"")] * 6), topic='50%b"\\%s\n')
    assert lines.encode(batch).splitlines() == printed([batch])


def test_huge_events_have_their_data_or_their_size() -> None:
    with opened() as hw:
        hw.append("t", b"x" * 1000, content="text")
        hw.append("t", b"x" * 5000, content="text")
        found = [json.loads(line) for line in b"".join(lines.encode_all(hw.read_batches("t"))).splitlines()]
        assert [line.get("data_bytes") for line in found] == [None, 5000]


def test_a_large_batch_is_written_in_pieces_up_to_the_end_that_was_asked_for() -> None:
    with opened() as hw:
        hw.append_many("t", [b"x" * 250] * 20_000)
        found = list(lines.encode_all(hw.read_batches("t"), Cut(end_before=15_000)))
        assert len(found) > 10
        assert max(map(len, found)) < 4 * pieces.PIECE_BYTES
        assert b"".join(found).count(b"\n") == 15_000


# In


def ndjson(values: list[bytes], end: bytes) -> bytes:
    return b"".join(value + end for value in values)


one_line = json_values.map(lambda value: json.dumps(value, ensure_ascii=False).encode())
spaces = st.sampled_from([b"", b"", b"", b" ", b"\t", b"\r", b" \r"])


@given(st.lists(one_line, max_size=12), st.sampled_from([b"\n", b"\r\n", b"\n\n", b" \n"]), st.booleans())
def test_a_line_is_kept_byte_for_byte(values: list[bytes], end: bytes, ended: bool) -> None:
    body = ndjson(values, end)
    parsed = lines.parse(body if ended else body[: -len(end)], LIMITS)
    assert parsed.count == len(values)
    assert (data_of(parsed) if values else []) == values


@given(st.lists(st.tuples(spaces, one_line | st.just(b""), spaces), max_size=12))
def test_white_space_around_a_value_and_blank_lines_are_left_out(parts: list[tuple[bytes, bytes, bytes]]) -> None:
    parsed = lines.parse(b"\n".join(b"".join(part) for part in parts), LIMITS)
    expected = [value for _, value, _ in parts if value]
    assert (data_of(parsed) if parsed.count else []) == expected


def reference(body: bytes) -> list[bytes] | int:
    """The values of the lines, or the number of the first that is not JSON, by the standard library."""
    found = []
    for number, line in enumerate(body.split(b"\n"), 1):
        value = line.strip(b" \t\r")
        if value:
            try:
                json.loads(value.decode(), parse_constant=int)  # which raises for NaN
            except ValueError:
                return number
            found.append(value)
    return found


tokens = st.sampled_from(
    [*(bytes([byte]) for byte in b'[]{},:"1 \n\r\t'), b"null", b'"a"', b'"\xc3\xa9"', b"\xff", b"-", b"[["]
)


@given(st.lists(tokens, max_size=24).map(b"".join))
@example(b"1 2\n[1\n,2]\n")
@example(b"[1\n,2]\n1 2\n")
@example(b"1\n2 3\n\n")
@example(b'"\xc3"\n"\xa9"\n')
def test_lines_that_only_look_like_values_when_read_together_are_refused(body: bytes) -> None:
    expected = reference(body)
    if isinstance(expected, int):
        with pytest.raises(Invalid) as refusal:
            lines.parse(body, LIMITS)
        assert refusal.value.line == expected
    else:
        parsed = lines.parse(body, LIMITS)
        assert (data_of(parsed) if parsed.count else []) == expected


def test_the_wrong_line_is_named_also_far_into_a_large_body() -> None:
    good = b'{"a":"%b"}\n' % (b"x" * 90)
    body = good * 30_000 + b"{nonsense}\n" + good
    with pytest.raises(Invalid, match="line 30001 is not JSON") as refusal:
        lines.parse(body, LIMITS)
    assert (refusal.value.line, refusal.value.code) == (30_001, "bad_json")


def test_a_large_body_is_taken_in_blocks() -> None:
    values = [b'{"a":%d,"b":"%b"}' % (i, b"x" * (i % 200)) for i in range(30_000)]
    values[7] = b'"' + b"y" * 3_000_000 + b'"'
    assert data_of(lines.parse(b"\n".join(values), LIMITS)) == values


def test_no_more_lines_and_bytes_are_taken_than_the_limits_say() -> None:
    limits = Limits(batch_events_max=10, batch_bytes_max=100, data_bytes_max=50)
    assert lines.parse(b"1\n" * 10, limits).count == 10
    for body, limit in (
        (b"1\n" * 11, "batch_events_max"),
        (b"1\n" * 10 + b"1", "batch_events_max"),
        (b'"%b"\n' % (b"x" * 46) * 3, "batch_bytes_max"),
        (b'"%b"\n' % (b"x" * 60), "data_bytes_max"),
    ):
        with pytest.raises(TooLarge) as refusal:
            lines.parse(body, limits)
        assert refusal.value.limit == limit
    with pytest.raises(TooLarge):
        lines.parse_array(b"[" + b"1," * 10 + b"1]", limits)


def test_many_values_in_one_line_or_array_do_not_take_much_memory() -> None:
    import tracemalloc

    for parse, body in (
        (lines.parse, b"1 " * 10_000_000),
        (lines.parse_array, b"[" + b"1," * 10_000_000 + b"1]"),
    ):
        tracemalloc.start()
        try:
            with pytest.raises(Invalid):
                parse(body, LIMITS)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 150_000_000, parse


def test_what_is_nested_too_deeply_is_refused() -> None:
    deep = b"[" * 100_000 + b"]" * 100_000
    for parse in (lines.parse, lines.parse_array):
        with pytest.raises(Invalid, match="nested too deeply"):
            parse(b"1\n" + deep if parse is lines.parse else b"[" + deep + b"]", LIMITS)


@given(st.lists(spelled, max_size=8), st.booleans())
def test_the_elements_of_an_array_are_kept_byte_for_byte(values: list[bytes], one: bool) -> None:
    body = b" [ " + b" , ".join(values) + b"\n]\n"
    parsed = lines.parse_array(body, LIMITS, one=one)
    if one:
        assert data_of(parsed) == [body.strip()]
    else:
        assert parsed.count == len(values)
        assert (data_of(parsed) if values else []) == values


def test_what_is_no_array_is_one_event() -> None:
    assert data_of(lines.parse_array(b' {"a": [1, 2]}\n', LIMITS)) == [b'{"a": [1, 2]}']


@pytest.mark.parametrize("body", [b"", b"[", b"[1,]", b'["\xff"]', b"[1] 2", b"{", b"\xef\xbb\xbf[1]", b"nonsense"])
def test_what_is_not_json_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid) as refusal:
        lines.parse_array(body, LIMITS)
    assert refusal.value.code == "bad_json"


def test_a_long_array_of_arrays_is_counted_by_its_own_commas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "COMMAS_MAX", 100)
    limits = Limits(batch_events_max=5)
    inner = b"[" + b'1,"],[",{"a,":[2,3]},' * 20 + b'"\\"],"]'
    assert lines.parse_array(b"[" + b",".join([inner] * 5) + b"]", limits).count == 5
    with pytest.raises(TooLarge):
        lines.parse_array(b"[" + b",".join([inner] * 6) + b"]", limits)


@given(event_batches().filter(lambda batch: batch.piece.batch.content in ("bytes", "text")), st.booleans())
def test_events_that_were_read_can_be_sent_back(batch: EventBatch, array: bool) -> None:
    sent = b"".join(lines.encode_array([batch])) if array else lines.encode(batch)
    parse = lines.parse_array if array else lines.parse
    if batch.piece.batch.content == "text" and not all(is_text(event.data or b"") for event in batch.events()):
        with pytest.raises(Invalid) as refusal:
            parse(sent, LIMITS, events=True)
        assert refusal.value.code == "not_utf8"
        return
    parsed = parse(sent, LIMITS, events=True)
    assert parsed.content == batch.piece.batch.content
    expected = [((event.type or "").encode(), event.key, event.data, event.meta) for event in batch.events()]
    found = [(type or b"", key, data, json.loads(meta or b"{}")) for type, key, data, meta in rows_of(parsed)]
    assert found == expected


def test_bson_comes_back_from_its_extended_form() -> None:
    document = bson.encode({"n": bson.Int64(5), "at": "x"})
    parsed = lines.parse(b'{"content":"bson","data":{"n":{"$numberLong":"5"},"at":"x"}}', LIMITS, events=True)
    assert (parsed.content, rows_of(parsed)[0][2]) == ("bson", document)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"data":1}\n\n{"data":}', "line 3 is not an event"),
        (b'{"data":1,"colour":"red"}', "line 1 is not an event"),
        (b'{"type":"a"}', "line 1 is not an event: there is no data"),
        (b'{"data":1}\n{"data":"text"}', "different contents: json, text"),
        (b"[1]", "line 1 is not an event"),
        (b'{"data_base64":"x"}', "line 1 is not an event"),
    ],
)
def test_what_is_no_event_is_refused_with_its_line(body: bytes, message: str) -> None:
    with pytest.raises(Invalid, match=message):
        lines.parse(body, LIMITS, events=True)
