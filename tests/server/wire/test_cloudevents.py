"""CloudEvents as the real SDK sends them, and what is refused."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from cloudevents.core.bindings.http import to_binary_event, to_structured_event
from cloudevents.core.v1.event import CloudEvent
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import Invalid, TooLarge
from headwater.format.batch import DATA, KEY, META, TYPE
from headwater.limits import DEFAULTS, Limits
from headwater.server.wire import cloudevents

ATTRIBUTES = {"id": "1", "source": "/shop", "specversion": "1.0", "type": "placed"}


def sent(attributes: dict[str, Any], data: Any) -> list[cloudevents.Item]:
    """What arrives of an event that the SDK sends, structured and binary."""
    event = CloudEvent(ATTRIBUTES | attributes, data)
    structured, binary = to_structured_event(event), to_binary_event(event)
    headers = {name.lower(): value for name, value in binary.headers.items()}
    assert cloudevents.is_binary(headers)
    return [cloudevents.structured(structured.body), cloudevents.binary(headers, binary.body)]


def test_an_event_of_the_sdk_arrives_whole() -> None:
    time = datetime(2026, 1, 31, 12, tzinfo=UTC)
    said = {"subject": "o-17 grün", "time": time, "region": "eu 100%", "datacontenttype": "application/json"}
    for item in sent(said, {"total": 12}):
        assert (item.type, item.key, item.content) == ("placed", "o-17 grün".encode(), "json")
        assert json.loads(item.data) == {"total": 12}
        assert item.meta["ce-id"] == "1"
        assert item.meta["ce-source"] == "/shop"
        assert item.meta["ce-region"] == "eu 100%"
        assert datetime.fromisoformat(item.meta["ce-time"]) == time


@given(st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40), st.integers() | st.text())
def test_any_subject_and_data_arrive_the_same_in_both_forms(subject: str, value: Any) -> None:
    structured, binary = sent({"subject": subject}, {"value": value})
    assert structured.key == binary.key == subject.encode()
    assert json.loads(structured.data) == json.loads(binary.data) == {"value": value}


def test_bytes_and_text_are_what_they_say() -> None:
    for item in sent({"datacontenttype": "application/octet-stream"}, b"\xff\x00"):
        assert (item.data, item.content) == (b"\xff\x00", "bytes")
        assert item.meta["ce-datacontenttype"] == "application/octet-stream"
    for item in sent({"datacontenttype": "text/plain; charset=utf-8"}, "grüße"):
        assert (item.data, item.content) == ("grüße".encode(), "text")


def test_the_json_of_the_data_is_kept_as_it_was() -> None:
    item = cloudevents.structured(b'{"specversion":"1.0","id":"1","source":"s","type":"t","data": {"n": 1.50}}')
    assert item.data == b'{"n": 1.50}'
    assert cloudevents.structured(b'{"specversion":"1.0","id":"1","source":"s","type":"t"}').data == b""


def test_an_array_is_many_events() -> None:
    one = ATTRIBUTES | {"data": 1, "subject": "a"}
    parsed = cloudevents.batch(json.dumps([one, ATTRIBUTES | {"id": "2", "data": 2}]).encode(), DEFAULTS)
    assert (parsed.count, parsed.content) == (2, "json")
    values = {kind: column.values(0, 2) for kind, column in parsed.columns.items() if column is not None}
    assert values[DATA] == [b"1", b"2"]
    assert values[KEY] == [b"a", None]
    assert values[TYPE] == [b"placed", b"placed"]
    assert json.loads(values[META][1] or b"")["ce-id"] == "2"
    assert cloudevents.batch(b"[]", DEFAULTS).count == 0


def test_too_many_events_are_refused() -> None:
    body = json.dumps([ATTRIBUTES] * 3).encode()
    with pytest.raises(TooLarge):
        cloudevents.batch(body, Limits(batch_events_max=2))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"id":"1"}',
        b'{"specversion":"1.0","id":"","source":"s","type":"t"}',
        b'{"specversion":"0.3","id":"1","source":"s","type":"t"}',
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","Bad Name":"x"}',
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","nested":{}}',
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":1,"data_base64":"AA=="}',
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data_base64":"!"}',
        b'{"specversion":"1.0","id":"1","source":"s","type":"t","data":{"a":1}',
    ],
)
def test_what_is_no_cloud_event_is_refused(body: bytes) -> None:
    with pytest.raises(Invalid):
        cloudevents.structured(body)


def test_bad_headers_are_refused() -> None:
    headers = {f"ce-{name}": value for name, value in ATTRIBUTES.items()}
    assert cloudevents.binary(headers, b"x").data == b"x"
    for bad in ({"ce-subject": "%FF"}, {"ce-bad_name": "x"}, {"ce-id": ""}):
        with pytest.raises(Invalid):
            cloudevents.binary(headers | bad, b"x")
