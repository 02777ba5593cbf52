"""The OpenAPI document tells what is served: no more, no less, and the server keeps to it whatever it is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import pytest
import requests
import schemathesis
import urllib3
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from headwater.server.http import openapi, parameters
from headwater.server.http.routes import QUERY_NAMES, ROUTES
from tests.log.unsynced import open_unsynced
from tests.server.serving import Server

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
DOCS = Path(__file__).parent.parent.parent / "docs"
MEANINGFUL = {
    "match": ["{}", '{"total": 1}', '{"total": {"$gt": 1}}', '{"$or": [{"a": "x"}, {"b": {"$in": [1, null]}}]}'],
    "from_time": ["2026-01-01T00:00:00Z", "0", "1767225600000", "2026-01-01T00:00:00+14:00"],
    "from": ["0", "1", "earliest", "latest", "9223372036854775807"],
    "columns": ["data", "offset,data", "data,data", "nothing"],
    "typeMatcher": [".*", "a|b", "("],
    "timeout": ["0", "0.1", "x"],
    "after": ["latest", "", "00-0", "00-0-.YQ=="],
    "start": ["earliest", "latest", "0", "2026-01-01T00:00:00Z"],
}
ACCEPTED = ["*/*", "text/event-stream", "application/x-ndjson", "application/json", "text/html", "application/*;q=0.5"]
ACCEPTED += ["application/vnd.apache.arrow.stream", "application/vnd.headwater.batches", "a/b;q=x, */*;q=0"]
NAMED = [(route.method, route.pattern) for route in ROUTES]
ENDLESS_S = 0.05  # how long to listen to an answer that does not end

for media in ("x-ndjson", "vnd.apache.arrow.stream", "bson", "vnd.headwater.batches"):
    schemathesis.openapi.media_type(f"application/{media}", st.binary(max_size=200))


THERE = {"name": "orders", "topic": "orders", "binder": "baskets", "id": "ann", "query": "top"}
SHOP = """
from headwater import App

app = App()
app.projection("baskets", "baskets", name="basket")(lambda doc, event: event.value)
app.query("top")(lambda views, limit=10: views.binder("baskets").find(limit=limit))
"""


@pytest.fixture(scope="module")
def server_settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    app = tmp_path_factory.mktemp("app") / "shop.py"
    app.write_text(SHOP)
    return {"app": str(app)}


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        hw.create("baskets")
        hw.append("baskets", b'{"total": 3}', key="ann", content="json")
        hw.create("orders", partitions=2)
        hw.append("orders", b"x", key="k")
    return server_path


@pytest.fixture(scope="module")
def schema(server: Server) -> Any:
    """Return the document of a server whose binder has caught up, read by schemathesis."""
    server.http.get("/binders/baskets/ann?at_least=0").raise_for_status()
    return schemathesis.openapi.from_url(f"{server.url}/openapi.json")


def test_every_parameter_that_a_route_takes_is_in_the_document() -> None:
    document = json.loads(openapi.encoded(True))
    for route in ROUTES:
        told = document["paths"][route.pattern][route.method.lower()]["parameters"]
        named = {each["name"] for each in told if each["in"] == "query"}
        assert named == set(parameters.names(route.parameters))
        assert named <= QUERY_NAMES
        in_path = {each["name"] for each in told if each["in"] == "path"}
        assert in_path == set(re.findall(r"\{(\w+)\}", route.pattern))


def test_every_route_and_status_of_the_docs_is_in_the_document() -> None:
    page = (DOCS / "HTTP.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`(GET|PUT|POST|DELETE) (/[^\s?`]*)", page))
    assert named == set(NAMED)
    table = page[page.index("## Errors") :]
    statuses = {
        int(number) for row in re.findall(r"^\| ([\d, ]+) \|", table, re.MULTILINE) for number in row.split(", ")
    }
    assert statuses - {405} == set(openapi.ERRORS)


def test_rights_are_told_where_there_are_users() -> None:
    guarded, open_ = (json.loads(openapi.encoded(authenticates)) for authenticates in (True, False))
    append = guarded["paths"]["/topic/{name}/items"]["post"]
    assert {"bearer": []} in append["security"]
    assert {"basic": []} in append["security"]
    assert append["x-headwater-right"] == "append"
    assert "401" in append["responses"]
    assert guarded["paths"]["/health"]["get"]["security"] == []
    assert "security" not in open_["paths"]["/topic/{name}/items"]["post"]
    assert open_["security"] == []
    for path in guarded["paths"].values():
        for operation in path.values():
            assert (operation["security"] == []) == ("x-headwater-right" not in operation)


def schemas_of(told: Any, place: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Every schema in a document, with its place."""
    if isinstance(told, list):
        for i, each in enumerate(told):
            yield from schemas_of(each, f"{place}/{i}")
    if not isinstance(told, dict):
        return
    if {"type", "items", "anyOf", "oneOf", "enum", "const", "default", "$ref"} & told.keys() and "in" not in told:
        yield place, told
    for name, each in told.items():
        if name == "properties":
            for field, schema in each.items():
                yield from schemas_of(schema, f"{place}/properties/{field}")
        elif name not in ("default", "enum", "const", "example"):
            yield from schemas_of(each, f"{place}/{name}")


@pytest.mark.parametrize("authenticates", [True, False])
def test_generators_of_clients_understand_every_schema(authenticates: bool) -> None:
    """Each of these stops a generator, or makes a client that does not compile, or that cuts off large numbers."""
    document = json.loads(openapi.encoded(authenticates))
    found = list(schemas_of(document))
    assert len(found) > 200
    for place, schema in found:
        assert not isinstance(schema.get("items"), bool), place
        assert not isinstance(schema.get("default", 0), list | dict | None), place
        assert "items" in schema or "array" not in schema.get("type", ""), place
        choices = schema.get("anyOf", [])
        assert "date-time" not in [choice.get("format") for choice in choices], place
        if len(choices) == 2 and {"type": "null"} in choices:
            assert {"$ref", "enum"} & (choices[0] | choices[1]).keys(), place
        assert "type" in schema or not {"enum", "const"} & schema.keys(), place
        if "integer" in schema.get("type", ""):
            above = schema.get("exclusiveMaximum", schema.get("maximum", 1 << 31) + 1)
            assert schema.get("format") == ("int64" if above > 1 << 31 else None), place
    names = document["components"]["schemas"]
    assert [name for name in names if not re.fullmatch(r"[A-Z][A-Za-z0-9]*", name)] == []
    assert {schema["$ref"].rpartition("/")[2] for _, schema in found if "$ref" in schema} - set(
        map(str, openapi.ERRORS)
    ) <= set(names)


def test_a_tuple_is_still_told_as_one() -> None:
    """The length and the type of each item, also where the items are of several types."""
    schemas = json.loads(openapi.encoded(True))["components"]["schemas"]
    lost = schemas["Report"]["properties"]["lost_offsets"]
    assert (lost["minItems"], lost["maxItems"], lost["items"]["type"]) == (2, 2, "integer")
    assert len(lost["prefixItems"]) == 2
    producer = schemas["TransactionRequest"]["properties"]["producer"]
    assert producer["type"] == ["array", "null"]
    assert [each["type"] for each in producer["prefixItems"]] == ["string", "integer", "integer"]
    assert (producer["items"], producer["maxItems"]) == ({}, 3)


def test_the_document_tells_where_it_is_served(server: Server) -> None:
    assert server.http.get("/openapi.json").json()["servers"] == [{"url": "/"}]


def test_a_parameter_that_a_route_does_not_take_is_refused(server: Server) -> None:
    for route in ROUTES:
        path = re.sub(r"\{\w+\}", "orders", route.pattern)
        answer = server.http.request(route.method, path, params={"surely_not": "1"})
        assert (answer.status_code, answer.json()["code"]) == (400, "bad_parameter"), route


def likelier(case: Case[Any], random: Random) -> Case[Any]:
    """A request that more often has a meaning: few parameters, and some that mean something. And no huge topics."""
    query: dict[str, Any] = case.query or {}
    for name in sorted(query):
        if random.random() < 0.6 and name not in ("key", "type"):
            del query[name]
        elif name in MEANINGFUL and random.random() < 0.8:
            query[name] = random.choice(MEANINGFUL[name])
    if isinstance(query.get("partitions"), int) and query["partitions"] > 3:
        query["partitions"] = 3
    if "at_least" in query:  # what is not passed is 503, which no other request may be answered with
        query["at_least"] = random.choice(["0", "baskets:0:0", "x", "baskets:0", "-1"])
        if (case.path_parameters or {}).get("binder") != "baskets":
            del query["at_least"]
    if case.method == "GET" and random.random() < 0.5:
        case.headers["Accept"] = random.choice(ACCEPTED)
    return case


def ask(case: Case[Any]) -> requests.Response:
    """Ask, and take the beginning of an answer that does not end."""
    response = requests.request(**case.as_transport_kwargs(), stream=True, timeout=10)
    try:
        if response.headers.get("transfer-encoding") == "chunked":
            response.raw._fp.fp.raw._sock.settimeout(ENDLESS_S)
        response._content = response.raw.read(1 << 20)
    except urllib3.exceptions.ReadTimeoutError:  # nothing more comes
        response._content = b""
    finally:
        response.close()
    return response


def there(pattern: str) -> dict[str, str]:
    """Names of a path that lead to something."""
    found = {name: THERE[name] for name in re.findall(r"\{(\w+)\}", pattern)}
    return found | ({"name": "billing"} if "{topic}" in pattern else {})


def fuzz(served: Any, method: str, pattern: str, examples: int, **path: str) -> None:
    """Ask one operation for whatever its description allows, and for what it does not."""
    for mode in (GenerationMode.POSITIVE, GenerationMode.NEGATIVE):

        @settings(
            max_examples=examples,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=[Phase.generate],
            derandomize=examples < 100,
            database=None,
        )
        @given(case=served[pattern][method].as_strategy(generation_mode=mode), random=st.randoms())
        def run(case: Case[Any], random: Random) -> None:
            if path:
                case.path_parameters = path
            case.validate_response(ask(likelier(case, random)), checks=CHECKS)

        with suppress(Unsatisfiable):  # nothing can be wrong with a request that has no parameters
            run()


@pytest.mark.parametrize(("method", "pattern"), NAMED)
def test_whatever_is_asked_is_answered_as_the_document_tells(schema: Any, method: str, pattern: str) -> None:
    fuzz(schema, method, pattern, 4)
    if "{" in pattern and method != "DELETE":
        fuzz(schema, method, pattern, 8, **there(pattern))


@pytest.mark.torture
@pytest.mark.parametrize(("method", "pattern"), NAMED)
def test_whatever_is_asked_for_long_is_answered_so(schema: Any, method: str, pattern: str) -> None:
    fuzz(schema, method, pattern, 1000)
    if "{" in pattern and method != "DELETE":
        fuzz(schema, method, pattern, 2000, **there(pattern))
