"""An EMIT whose shape is known means the same as one that is parsed anew, and nothing that is wrong has a shape."""

from __future__ import annotations

from typing import Any

import bson
from hypothesis import given
from hypothesis import strategies as st

from headwater.errors import HeadwaterError
from headwater.limits import DEFAULTS
from headwater.server.tcp import emit
from headwater.server.tcp.emit import EmitShape

keys = st.one_of(st.text(max_size=8), st.binary(max_size=8), st.text(min_size=1020, max_size=1030))
bodies = st.fixed_dictionaries(
    {
        "eventType": st.sampled_from(["placed", "paid", ""]),
        "event": st.dictionaries(st.text("ab", max_size=2), st.integers(0, 9), max_size=2),
    },
    optional={
        "streamName": st.sampled_from(["orders", "bills"]),
        "key": keys,
        "sessID": st.integers(0, 1),
        "partition": st.integers(0, 1),
        "meta": st.just({"by": "ada"}),
    },
)


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    body: dict[str, Any] = draw(bodies)
    names = draw(st.permutations(list(body)))
    return bson.encode({"type": "EMIT", "frame": {name: body[name] for name in names}})


def meaning(raw: bytes, shapes: list[EmitShape]) -> object:
    try:
        found = emit.parse(raw, shapes, "events", DEFAULTS)
        emit.check([found.data])
    except HeadwaterError as error:
        return type(error), error.code
    shape = found.shape
    return shape.topic, shape.type, shape.content, shape.session, shape.options, found.key, found.data


@given(st.lists(frames(), min_size=1, max_size=12))
def test_known_shapes_mean_the_same(sent: list[bytes]) -> None:
    shapes: list[EmitShape] = []
    for raw in [*sent, *sent]:
        assert meaning(raw, shapes) == meaning(raw, [])
        assert len(shapes) <= emit.SHAPES_MAX


@given(frames(), st.data())
def test_damage_is_found_with_a_known_shape_as_without(raw: bytes, data: st.DataObject) -> None:
    shapes: list[EmitShape] = []
    meaning(raw, shapes)
    at = data.draw(st.integers(0, len(raw) - 1))
    damaged = bytearray(raw)
    kind = data.draw(st.sampled_from(["change", "cut", "add"]))
    if kind == "change":
        damaged[at] = data.draw(st.integers(0, 255))
    elif kind == "cut":
        del damaged[at]
    else:
        damaged.insert(at, data.draw(st.integers(0, 255)))
    assert meaning(bytes(damaged), shapes) == meaning(bytes(damaged), [])
