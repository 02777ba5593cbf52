"""The golden frames: what this server answers to those of a client, and what ends a connection."""

from __future__ import annotations

import json
from typing import Any

import bson
import pytest
from bson import json_util

from headwater.format import protocol
from tests.server.serving import Server
from tests.server.tcp.wire import Wire, wire
from tests.vectors import make
from tests.vectors.tcp import CANONICAL

PATHS = sorted(make.HERE.glob("tcp-*.json"))
MEANINGS: dict[str, dict[str, Any]] = {path.stem: json.loads(path.read_text(encoding="ascii")) for path in PATHS}
SERVER = [name for name, meaning in MEANINGS.items() if meaning["direction"] == "server"]
ENDING = [name for name, meaning in MEANINGS.items() if meaning.get("ends")]
ASKED = sorted(
    (name for name, meaning in MEANINGS.items() if "order" in meaning), key=lambda name: int(MEANINGS[name]["order"])
)


def stored(name: str) -> bytes:
    return bytes.fromhex((make.HERE / f"{name}.hex").read_text(encoding="ascii"))


def canonical(body: dict[str, Any]) -> Any:
    return json.loads(json_util.dumps(body, json_options=json_util.CANONICAL_JSON_OPTIONS))


def same(told: Any, wanted: Any) -> bool:
    """Whether an answer is what is wanted of it."""
    if wanted == {"$any": True}:
        return True
    if isinstance(wanted, dict) and isinstance(told, dict):
        return set(told) <= set(wanted) and all(same(told.get(name), value) for name, value in wanted.items())
    if isinstance(wanted, list) and isinstance(told, list):
        return len(told) == len(wanted) and all(map(same, told, wanted))
    return bool(told == wanted)


def test_there_is_one_of_every_frame() -> None:
    types = {meaning.get("type") for meaning in MEANINGS.values()}
    assert types >= {
        *("CONNECT", "PING", "EMIT", "STARTTX", "COMMITTX", "ABORTTX", "SUBSCRIBE", "UNSUBSCRIBE", "ACKEV"),
        *("QUERY", "QUERYACK", "RESPONSE", "SUBRESPONSE", "RECEV", "SUBEND"),
        *("QUERYRESPONSE", "QUERYRESULT", "QUERYEND"),
    }


@pytest.mark.parametrize("name", [*SERVER, *ASKED])
def test_the_decoder_reads_them_and_any_codec_writes_the_same(name: str) -> None:
    raw, meaning = stored(name), MEANINGS[name]
    assert int.from_bytes(raw[:4], "big") == len(raw) - 4
    type, body = protocol.decode(raw[4:])
    assert type == meaning["type"]
    found = json_util.loads(json.dumps({"type": type, "frame": meaning["frame"]}), json_options=CANONICAL)
    assert bson.encode(found) == raw[4:]
    assert sorted(body) == sorted(meaning["frame"])


def test_a_client_is_answered_as_they_say(server: Server) -> None:
    client = Wire(server.tcp_url)
    for name in ASKED:
        client.send(stored(name))
        for wanted in MEANINGS[name]["answers"]:
            type, body = client.receive()
            assert (type, name) == (wanted["type"], name), body
            assert same(canonical(body), wanted["frame"]), (name, body)
    client.close()


@pytest.mark.parametrize("name", ENDING)
def test_those_that_end_a_connection_do(server: Server, name: str) -> None:
    meaning = MEANINGS[name]
    with wire(server.tcp_url) as other:
        client = Wire(server.tcp_url)
        if meaning["connect"]:
            assert client.connect()["ok"]
        client.send(stored(name))
        told = [client.receive()[1] for _ in range(meaning.get("before", 0) + 1)]
        assert [body.get("errCode", "ok") for body in told] == ["ok"] * (len(told) - 1) + [meaning["errCode"]]
        assert client.closed()
        client.close()
        assert other.ask("PING") == {"ok": True}
