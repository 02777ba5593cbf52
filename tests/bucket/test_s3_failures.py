"""What fails for a while is tried again, until the time is over; what cannot help is told at once."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import socket
import threading
from collections.abc import Iterator
from itertools import chain, repeat
from pathlib import Path

import pytest
from obstore.exceptions import GenericError

from headwater.backoff import Backoff
from headwater.bucket.object_store import ObjectStore
from headwater.bucket.opening import open_store
from headwater.bucket.s3_store import S3Store
from headwater.consumers.dynamodb import DynamoCoordinator
from headwater.disk.disk import Clock, Disk
from headwater.errors import Denied, HeadwaterError, Invalid, Unavailable, Unsupported
from headwater.limits import Limits
from headwater.opening import open_bucket, open_directory

OK = b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "x"\r\n\r\n'
FOUND = (
    b'HTTP/1.1 200 OK\r\nContent-Length: 5\r\nETag: "x"\r\nLast-Modified: Mon, 16 Nov 2026 13:28:55 GMT\r\n\r\nfound'
)


def refused(status: str, code: str = "") -> bytes:
    body = f"<Error><Code>{code}</Code></Error>".encode()
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status.encode(), len(body), body)


class Answering:
    """A server that gives the answers it was told, one after the other and the last again and again; b"" is none."""

    def __init__(self, *answers: bytes) -> None:
        self._answers = chain(answers, repeat(answers[-1]))
        self.asked = 0
        self.lines: list[str] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"s3://bucket/x?endpoint=http://127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()

    def _serve(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                with client:
                    self.lines.append(client.recv(65_536).partition(b"\r\n")[0].decode())
                    self.asked += 1
                    client.sendall(next(self._answers))


class HastyClock(Clock):
    """A clock whose pauses are short."""

    def sleep(self, seconds: float) -> None:  # type: ignore[override]  # not of the class
        super().sleep(seconds / 50)


@contextlib.contextmanager
def answering(*answers: bytes, retry_s: float = 30.0) -> Iterator[tuple[Answering, ObjectStore]]:
    server = Answering(*answers)
    try:
        yield server, open_store(server.url, clock=HastyClock(), disk=Disk(), limits=Limits(store_retry_s=retry_s))
    finally:
        server.close()


PASSING = [
    refused("503 Slow Down", "SlowDown"),
    refused("429 Too Many Requests"),
    refused("500 Internal Server Error", "InternalError"),
    refused("400 Bad Request", "RequestTimeout"),
    b"",
    b"no HTTP\r\n\r\n",
]


def test_what_passes_is_tried_again() -> None:
    with answering(*PASSING, OK) as (server, store):
        assert store.create("key", b"1") == '"x"'
        assert server.asked == len(PASSING) + 1
    with answering(*PASSING, FOUND) as (server, store):
        found = store.get("key")
        assert found is not None
        assert bytes(found.data) == b"found"


def test_an_answer_that_was_cut_short_is_asked_for_again() -> None:
    with answering(FOUND[:-2], FOUND) as (server, store):
        found = store.get("key")
        assert found is not None
        assert bytes(found.data) == b"found"
        assert server.asked == 2


def page(keys: list[str], more: bool) -> bytes:
    listed = "".join(
        f"<Contents><Key>x/{key}</Key><Size>1</Size><LastModified>2026-11-16T13:00:00.000Z</LastModified></Contents>"
        for key in keys
    )
    token = "<NextContinuationToken>next</NextContinuationToken>" if more else ""
    body = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{listed}</ListBucketResult>"
    return f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()


def test_a_list_goes_on_behind_the_last_key_when_a_page_fails() -> None:
    first = [f"{number:04d}" for number in range(1000)]
    answers = page(first, more=True), refused("503 Slow Down", "SlowDown"), page(["1000", "1001"], more=False)
    with answering(*answers) as (server, store):
        assert [each.key for each in store.list("")] == [*first, "1000", "1001"]
        assert "start-after=x%2F0999" in server.lines[2]


def test_a_store_that_lists_out_of_order_is_refused() -> None:
    with answering(page(["1", "3", "2"], more=False)) as (_, store):
        with pytest.raises(Unsupported) as failed:
            list(store.list(""))
        assert failed.value.code == "unordered_list"


@pytest.mark.parametrize("answer", PASSING)
def test_what_does_not_pass_is_unavailable_after_a_while(answer: bytes) -> None:
    with answering(answer, retry_s=0.1) as (server, store):
        with pytest.raises(Unavailable, match="has failed for") as failed:
            store.create("key", b"1")
        assert failed.value.code == "store_unavailable"
        assert failed.value.hint
        assert server.asked > 1


@pytest.mark.parametrize(
    ("answer", "error", "code"),
    [
        (refused("403 Forbidden", "AccessDenied"), Denied, "forbidden"),
        (refused("401 Unauthorized"), Denied, "forbidden"),
        (refused("400 Bad Request", "InvalidRequest"), Invalid, "store_refused"),
        (refused("400 Bad Request", "AuthorizationHeaderMalformed"), Invalid, "wrong_region"),
        (refused("301 Moved Permanently", "PermanentRedirect"), Invalid, "wrong_region"),
        (refused("501 Not Implemented", "NotImplemented"), Unsupported, "no_conditional_writes"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", Unsupported, "no_conditional_writes"),
    ],
)
def test_what_cannot_pass_is_told_at_once(answer: bytes, error: type[HeadwaterError], code: str) -> None:
    with answering(answer) as (server, store):
        with pytest.raises(error) as failed:
            store.create("key", b"1")
        assert failed.value.code == code
        assert failed.value.hint or code == "store_refused"
        assert server.asked == 1


@pytest.mark.parametrize("status", ["409 Conflict", "412 Precondition Failed"])
def test_a_condition_that_failed_is_no_error(status: str) -> None:
    with answering(refused(status)) as (server, store):
        assert store.create("key", b"1") is None
        assert store.swap("key", b"1", '"x"') is None
        assert server.asked == 2


def test_a_swap_of_what_is_gone_may_be_a_404() -> None:
    with answering(refused("404 Not Found", "NoSuchKey")) as (_, store):
        assert store.swap("key", b"1", '"x"') is None


def test_without_credentials_the_hint_tells_where_they_are_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    server = Answering(refused("404 Not Found"))
    monkeypatch.setenv("AWS_METADATA_ENDPOINT", server.url.partition("endpoint=")[2])
    store = open_store("s3://bucket", clock=Clock(), disk=Disk())
    with pytest.raises(Denied, match="AWS_ACCESS_KEY_ID") as failed:
        store.get("key")
    assert failed.value.code == "no_credentials"
    server.close()


def _use(store: ObjectStore, told: str) -> None:
    try:
        store.get("key")
    except Unsupported as error:
        os.write(int(told), error.code.encode())


def test_a_forked_child_is_refused_instead_of_waiting_forever() -> None:
    with answering(FOUND) as (_, store):
        store.get("key")
        read, write = os.pipe()
        process = multiprocessing.get_context("fork").Process(target=_use, args=(store, str(write)))
        process.start()
        process.join(20)
        process.kill()
        process.join()
        process.close()
        os.close(write)
        assert os.read(read, 100) == b"forked"
        os.close(read)


class CountedClock(Clock):
    """A clock that sleeps in no time, and remembers for how long."""

    def __init__(self, random: bytes) -> None:
        self.slept: list[float] = []
        self._random = random

    def monotonic(self) -> float:
        return sum(self.slept)

    def sleep(self, seconds: float) -> None:  # type: ignore[override]  # not of the class
        self.slept.append(seconds)

    def random_bytes(self, nbytes: int | None = None) -> bytes:
        return self._random[:nbytes]


def test_pauses_grow_up_to_a_limit_and_end_with_the_time() -> None:
    clock = CountedClock(b"\xff\xff\xff\xff")
    backoff = Backoff(clock, 1.0, 5.0, 20.0)
    while backoff.pause():
        pass
    assert clock.slept == pytest.approx([1, 2, 4, 5, 5, 3], abs=0.01)
    assert not backoff.pause()


def test_a_pause_is_anything_between_nothing_and_its_ceiling() -> None:
    for random, expected in ((b"\0\0\0\0", 0.0), (b"\x80\0\0\0", 0.5)):
        clock = CountedClock(random)
        assert Backoff(clock, 1.0, 5.0, 20.0).pause()
        assert clock.slept == [expected]


def unreachable() -> str:
    """An address at which nobody listens, nor will as long as the process lives."""
    taken = socket.socket()
    taken.bind(("127.0.0.1", 0))
    _taken.append(taken)
    return f"http://127.0.0.1:{taken.getsockname()[1]}"


_taken: list[socket.socket] = []


def test_a_bucket_that_cannot_be_reached_is_asked_no_more_once_the_time_is_over() -> None:
    """Not even to delete what was to try it out, for as long again."""
    with answering(b"", retry_s=0.1) as (server, _):
        with pytest.raises(Unavailable, match=r"has failed for 0\.1 s") as failed:
            open_bucket(server.url, limits=Limits(store_retry_s=0.1), clock=HastyClock())
        assert {line.partition(" ")[0] for line in server.lines} == {"PUT"}
        assert failed.value.code == "store_unavailable"


@pytest.mark.parametrize("named", ["address", "environment"])
def test_the_error_names_the_bucket_and_its_endpoint_and_no_probe(named: str, monkeypatch: pytest.MonkeyPatch) -> None:
    endpoint = unreachable()
    url = "s3://bucket/x?region=us-east-1"
    if named == "environment":
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    else:
        url += f"&endpoint={endpoint}"
    with pytest.raises(Unavailable) as failed:
        open_bucket(url, limits=Limits(store_retry_s=0.1), clock=HastyClock())
    assert endpoint in failed.value.message
    assert "s3://bucket/x" in failed.value.message
    assert "probe" not in str(failed.value)
    assert "endpoint" in failed.value.hint


def test_the_error_of_an_archive_names_its_endpoint_too(tmp_path: Path) -> None:
    endpoint = unreachable()
    with (
        open_directory(tmp_path / "data", limits=Limits(archive_retry_s=0.1)) as hw,
        pytest.raises(Unavailable) as failed,
    ):
        hw.archive(f"s3://bucket/x?region=us-east-1&endpoint={endpoint}")
    assert failed.value.code == "archive_unavailable"
    assert endpoint in failed.value.message
    assert "probe" not in str(failed.value)


def test_the_error_of_a_table_names_its_endpoint_too() -> None:
    endpoint = unreachable()
    with pytest.raises(Unavailable) as failed:
        DynamoCoordinator(f"dynamodb://t?region=us-east-1&endpoint={endpoint}", Clock())
    assert endpoint in failed.value.message


class CountingClock(Clock):
    """Time goes on by the pauses and by what requests are said to take."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:  # type: ignore[override]
        self.now_s += seconds


@pytest.mark.parametrize(("takes_s", "least"), [(0.0, 10), (5.0, 6), (29.0, 2)])
def test_requests_that_take_long_end_in_time(takes_s: float, least: int) -> None:
    """One that hangs is not begun when it would end long after the time is over."""
    clock = CountingClock()
    store = open_store(f"s3://bucket/x?endpoint={unreachable()}", clock=clock, disk=Disk())
    assert isinstance(store, S3Store)
    asked = 0

    def ask() -> None:
        nonlocal asked
        asked += 1
        clock.now_s += takes_s
        raise GenericError("HTTP error")

    with pytest.raises(Unavailable):
        store._call("key", ask)
    assert asked >= least
    assert clock.now_s <= 65.0
