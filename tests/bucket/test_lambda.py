"""The example of a function that is woken by the bucket, on real servers: SeaweedFS, and DynamoDB Local for leases."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import quote_plus, urlsplit

import pytest

import headwater
from headwater.event import Event
from headwater.store import Store
from tests.opened import bucket_of

EXAMPLE = Path(__file__).parents[2] / "examples" / "lambda_handler.py"
LEASE_MS = 1500


class Context:
    """What Lambda tells a function."""

    def __init__(self, seconds: float = 60.0) -> None:
        self._ms = int(seconds * 1000)

    def get_remaining_time_in_millis(self) -> int:
        return self._ms


def notification(log: str, *keys: str, name: str = "ObjectCreated:Put") -> dict[str, Any]:
    """What S3 sends."""
    parts = urlsplit(log)
    prefix = parts.path.strip("/")
    return {
        "Records": [
            {
                "eventVersion": "2.1",
                "eventSource": "aws:s3",
                "awsRegion": "us-east-1",
                "eventTime": "2026-11-16T12:00:00.000Z",
                "eventName": name,
                "userIdentity": {"principalId": "EXAMPLE"},
                "requestParameters": {"sourceIPAddress": "127.0.0.1"},
                "responseElements": {"x-amz-request-id": "EXAMPLE", "x-amz-id-2": "EXAMPLE"},
                "s3": {
                    "s3SchemaVersion": "1.0",
                    "configurationId": "orders",
                    "bucket": {
                        "name": parts.netloc,
                        "ownerIdentity": {"principalId": "EXAMPLE"},
                        "arn": f"arn:aws:s3:::{parts.netloc}",
                    },
                    "object": {
                        "key": quote_plus(f"{prefix}/{key}", safe="/"),
                        "size": 1024,
                        "eTag": "d41d8cd98f00b204e9800998ecf8427e",
                        "sequencer": "0A1B2C3D4E5F678901",
                    },
                },
            }
            for key in keys
        ]
    }


@pytest.fixture(params=["bucket", "dynamodb"])
def environment(
    request: pytest.FixtureRequest, s3_url: str, dynamodb_table: str, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    named = {
        "HEADWATER_LOG": s3_url,
        "HEADWATER_TOPIC": "Aufträge 1",
        "HEADWATER_CONSUMER": "billing",
        "HEADWATER_LEASE_MS": str(LEASE_MS),
    }
    if request.param == "dynamodb":
        endpoint = request.getfixturevalue("dynamodb")
        table = f"dynamodb://{dynamodb_table}?region=us-east-1&endpoint={endpoint}&create=true"
        named["HEADWATER_COORDINATOR"] = table
    for name, value in named.items():
        monkeypatch.setenv(name, value)
    return named


@pytest.fixture
def bucket(environment: dict[str, str]) -> Iterator[Store]:
    with headwater.open(environment["HEADWATER_LOG"], coordinator=environment.get("HEADWATER_COORDINATOR")) as opened:
        assert isinstance(opened, Store)
        opened.create("Aufträge 1", partitions=2)
        yield opened


@pytest.fixture
def instance(environment: dict[str, str]) -> Iterator[Callable[[], Any]]:
    """Instances of the function, each with a log of its own, which tell what they handled in `seen`."""
    assert environment
    made: list[Any] = []

    def make() -> Any:
        module: Any = loaded()
        module.seen = []
        module.handle = module.seen.append
        made.append(module)
        return module

    yield make
    for module in made:
        if module.log.cache_info().currsize:
            module.log().close()


def loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location("lambda_handler", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def fill(hw: Store, count: int) -> dict[str, Any]:
    """Append, and what the bucket then tells."""
    before = set(keys(hw))
    for number in range(count):
        hw.append("Aufträge 1", {"number": number}, key=f"o-{number}")
    return notification(os.environ["HEADWATER_LOG"], *sorted(set(keys(hw)) - before))


def keys(hw: Store) -> list[str]:
    return [each.key for each in bucket_of(hw)._store.list("topics/") if "/events/" in each.key]


def places(seen: list[Event]) -> Counter[tuple[int, int]]:
    return Counter((event.partition, event.offset) for event in seen)


def lags(hw: Store) -> list[int]:
    return [info.lag for info in hw.consumers("Aufträge 1")]


def test_it_handles_what_came_and_ignores_what_is_no_event(bucket: Store, instance: Callable[[], Any]) -> None:
    function = instance()
    woken = fill(bucket, 6)
    others = [each.key for each in bucket_of(bucket)._store.list("topics/") if "/events/" not in each.key]
    assert others
    log = os.environ["HEADWATER_LOG"]
    elsewhere = urlsplit(log)._replace(netloc="other").geturl()
    foreign = woken["Records"][0]["s3"]["object"]["key"]
    for ignored in (
        {"Event": "s3:TestEvent", "Service": "Amazon S3", "Bucket": "test"},
        {"Records": [None, {}, {"eventSource": "aws:s3", "eventName": "ObjectCreated:Put", "s3": {}}]},
        {"Records": [{"eventSource": "aws:sqs", "messageId": "1", "body": "no json"}]},
        notification(log, *others),
        notification(elsewhere, *keys(bucket)),
        notification(log, *keys(bucket), name="ObjectRemoved:Delete"),
        notification(log, *(key.replace("topics/", "topics/x") for key in keys(bucket))),
        notification(log, "elsewhere/" + foreign),
    ):
        assert function.handler(ignored, Context()) == {"handled": 0, "more": False, "batchItemFailures": []}
    assert function.handler(woken, Context()) == {"handled": 6, "more": False, "batchItemFailures": []}
    assert len(places(function.seen)) == 6
    assert function.handler(fill(bucket, 2), Context())["handled"] == 2
    assert lags(bucket) == [0, 0]


def test_when_the_time_is_over_it_asks_to_be_called_again(bucket: Store, instance: Callable[[], Any]) -> None:
    function = instance()
    woken = fill(bucket, 6)
    with pytest.raises(function.MoreWaits):
        function.handler(woken, Context(0.0))
    queue = {"Records": [{"eventSource": "aws:sqs", "messageId": "m-1", "body": json.dumps(woken)}]}
    assert function.handler(queue, Context(0.0))["batchItemFailures"] == [{"itemIdentifier": "m-1"}]
    assert function.handler(queue, Context()) == {"handled": 6, "more": False, "batchItemFailures": []}


def test_two_at_once_handle_all_between_them(bucket: Store, instance: Callable[[], Any]) -> None:
    functions = [instance(), instance()]
    woken = fill(bucket, 12)
    failed: list[BaseException] = []

    def invoke(function: Any) -> None:
        try:
            while True:
                try:
                    function.handler(woken, Context())
                except function.MoreWaits:
                    continue
                return
        except BaseException as error:  # noqa: BLE001  # the test tells of it
            failed.append(error)

    threads = [threading.Thread(target=invoke, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
    seen = places([event for function in functions for event in function.seen])
    assert len(seen) == 12
    assert lags(bucket) == [0, 0]


KILLED = """
import importlib.util, json, sys, time
spec = importlib.util.spec_from_file_location("lambda_handler", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
class Context:
    get_remaining_time_in_millis = staticmethod(lambda: 60_000)
seen = []
def handle(event):
    seen.append(event)
    if len(seen) == 3:
        print("in the middle", flush=True)
        time.sleep(60)
module.handle = handle
module.handler(json.loads(sys.argv[2]), Context())
"""


def test_what_a_killed_invocation_had_in_its_hands_is_handled_by_the_next(
    bucket: Store, instance: Callable[[], Any]
) -> None:
    woken = fill(bucket, 8)
    command = [sys.executable, "-c", KILLED, str(EXAMPLE), json.dumps(woken)]
    killed = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert killed.stdout is not None
    try:
        assert killed.stdout.readline() == "in the middle\n"
    finally:
        os.kill(killed.pid, signal.SIGKILL)
        killed.wait()
        killed.stdout.close()
    function = instance()
    told = function.handler(woken, Context())
    assert told["more"] is False
    assert told["handled"] >= 6
    held = [info for info in bucket.consumers("Aufträge 1") if info.cursor]
    assert {info.fence for info in held} == {2}  # taken over
    assert lags(bucket) == [0, 0]
