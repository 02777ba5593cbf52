"""Appends of one small item: heads that are not parsed again, and responses that another thread writes."""

from __future__ import annotations

import json
import os
import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headwater.limits import DEFAULTS, SERVER_DEFAULTS
from headwater.log.pending import PendingAppend
from headwater.log.rows import Rows
from headwater.server.commits import Way
from headwater.server.http.app import HttpApplication
from headwater.server.http.message import Client, Request
from headwater.server.http.prompt_appends import PromptAnswer, PromptAppends
from headwater.server.http.protocol import Intake, ServerConnection
from headwater.server.metrics import Metrics
from headwater.server.rights import EVERYONE, NOBODY
from headwater.server.service import Service
from headwater.server.settings import ServerSettings
from tests.log.unsynced import open_unsynced
from tests.server.people import add, revoke
from tests.server.process import served
from tests.server.serving import WAIT_S, Answer, Server, answers
from tests.waiting import wait_for

AT = "/topic/orders/items"


@pytest.fixture(scope="module")
def server_path(server_path: Path) -> Path:
    with open_unsynced(server_path) as hw:
        hw.create("orders")
    return server_path


def post(data: bytes, query: str = "", headers: str = "") -> bytes:
    return (
        f"POST {AT}{query} HTTP/1.1\r\nHost: localhost\r\n{headers}Content-Length: {len(data)}\r\n\r\n".encode() + data
    )


def receive(connection: socket.socket, count: int) -> list[Answer]:
    """So many answers, and nothing more."""
    received = b""
    while received.count(b"\r\n\r\n") < count or not received[-1:].isdigit():
        piece = connection.recv(1 << 16)
        assert piece, received
        received += piece
    found = answers(received)
    assert len(found) == count
    return found


def ask(connection: socket.socket, *requests: bytes) -> list[Answer]:
    connection.sendall(b"".join(requests))
    return receive(connection, len(requests))


def stored(server: Server, answer: Answer) -> bytes:
    """What lies where the answer says."""
    assert answer.status == 200, answer
    return server.http.get(f"{AT}?from={int(answer.body)}&max_items=1").content[12:]


def test_a_head_that_was_seen_before_comes_with_another_body(server: Server) -> None:
    with server.connect() as connection, server.connect() as other:
        for data in (b"one", b"two", b"", b"", b"three", b"\r\n\r\n", b"POST", b"\r\n\r\n"):
            assert stored(server, *ask(connection, post(data))) == data
            assert stored(server, *ask(other, post(data))) == data


def test_a_head_that_was_seen_before_comes_in_pieces_and_in_crowds(server: Server) -> None:
    whole = post(b"0123456789")
    with server.connect() as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ask(connection, whole)
        for cut in range(1, len(whole), 7):
            connection.sendall(whole[:cut])
            assert stored(server, *ask(connection, whole[cut:])) == b"0123456789"
        found = [stored(server, answer) for answer in ask(connection, whole, post(b"another"), whole)]
        assert found == [b"0123456789", b"another", b"0123456789"]
        assert stored(server, *ask(connection, whole)) == b"0123456789"


def test_what_the_address_says_holds_for_each(server: Server) -> None:
    with server.connect() as connection:
        for _ in range(3):
            for type, durability in (("a", "os"), ("b", "fsync")):
                (answer,) = ask(connection, post(b"x", f"?type={type}&durability={durability}"))
                assert answer.headers["headwater-durability"] == durability
                event = server.http.get(f"{AT}?from={int(answer.body)}&max_items=1&format=json").json()[0]
                assert (event["type"], event["id"]) == (type, answer.headers["headwater-id"])


def test_a_head_that_ends_the_connection_does_so_each_time(server: Server) -> None:
    for _ in range(3):
        with server.connect() as connection:
            (answer,) = ask(connection, post(b"last", headers="Connection: close\r\n"))
            assert stored(server, answer) == b"last"
            assert answer.headers["connection"] == "close"
            assert connection.recv(1) == b""


def test_a_topic_that_was_deleted_is_not_found_by_its_old_head(server: Server) -> None:
    head = post(b"x").replace(b"orders", b"passing")
    with server.connect() as connection:
        for _ in range(2):
            server.http.put("/topic/passing").raise_for_status()
            for _ in range(2):
                assert [answer.status for answer in ask(connection, head)] == [200]
            server.http.delete("/topic/passing").raise_for_status()
            connection.sendall(head)
            received = connection.recv(1 << 16)
            assert answers(received)[0].status == 404


def test_nobody_gets_the_answer_of_one_who_left(server: Server) -> None:
    """A connection that is closed leaves its number to the next one, while its answer is under way."""

    def leave(number: int) -> None:
        for _ in range(150):
            with server.connect() as connection:
                connection.sendall(post(b"leaving %d" % number))

    def stay(number: int) -> None:
        for turn in range(100):
            with server.connect() as connection:
                for again in range(2):
                    data = b"staying %d %d %d" % (number, turn, again)
                    (answer,) = ask(connection, post(data))
                    expected.append((int(answer.body), data))

    expected: list[tuple[int, bytes]] = []
    with ThreadPoolExecutor(8) as threads:
        work = [threads.submit(each, number) for number in range(4) for each in (leave, stay)]
        for each in work:
            each.result()
    for place, data in expected[::20]:
        assert server.http.get(f"{AT}?from={place}&max_items=1").content[12:] == data
    assert len({place for place, _ in expected}) == len(expected)


def test_a_way_leads_to_its_connection_after_the_loop_has_closed_it() -> None:
    near, far = socket.socketpair()
    way = Way(near.fileno())
    number = near.fileno()
    near.close()
    others = [socket.socketpair() for _ in range(3)]
    assert number in [each.fileno() for pair in others for each in pair]  # as the next connection would have it
    os.write(way.number, b"answer")
    assert far.recv(100) == b"answer"
    del way
    assert far.recv(100) == b""  # nobody else holds it
    for each in (far, *(each for pair in others for each in pair)):
        each.close()


def test_an_answer_that_finds_no_room_is_left_to_the_loop() -> None:
    near, far = socket.socketpair()
    near.setblocking(False)
    appends, connection, waiting = _one_append()
    connection.way = lambda: Way(near.fileno())
    (roomy, crowded), rests = _taken(appends, connection, 2), connection.rests
    appends.write([(waiting, roomy)])
    appends.finish(roomy)
    assert rests == []
    assert far.recv(1000) == roomy.made
    with suppress(BlockingIOError):
        while True:
            near.send(bytes(1000))
    appends.write([(waiting, crowded)])
    assert not crowded.written
    crowded.sent = 7  # as if there had been a little room
    appends.finish(crowded)
    assert rests == [crowded.made[7:]]
    near.close()
    far.close()


def test_while_something_waits_to_be_written_only_the_loop_writes() -> None:
    near, far = socket.socketpair()
    connections: Any = SimpleNamespace(
        app=SimpleNamespace(service=SimpleNamespace(metrics=None)), loop=None, limits=None
    )
    connection, size = ServerConnection(connections), 0
    connection.transport = SimpleNamespace(get_write_buffer_size=lambda: size, get_extra_info=lambda _: near)
    assert connection.way() is not None
    size = 1
    assert connection.way() is None
    size = 0
    connection.client = Client(secure=True)
    assert connection.way() is None
    near.close()
    far.close()


def test_who_asks_is_looked_up_for_each_request() -> None:
    appends, connection, _ = _one_append()
    _taken(appends, connection, 2)
    for user in (NOBODY, None):
        connection.user = user
        assert appends.take(connection, _asked(), b"x") is None


def _asked() -> Request:
    return Request("POST", ("topic", "orders", "items"), b"", {"host": "localhost"}, Client())


def _one_append() -> tuple[PromptAppends, Any, Any]:
    """Prompt appends without a server, a connection to them, and what is appended."""
    waiting = PendingAppend(
        cast("Any", None), cast("Any", SimpleNamespace(node=1, place=SimpleNamespace(partition=0))), Rows("bytes", True)
    )
    connection = SimpleNamespace(user=EVERYONE, rests=[], client=None)
    connection.way, connection.prompt_head = lambda: None, b"HTTP/1.1 200 OK\r\n"
    connection.answer_promptly, connection.answered_promptly = connection.rests.append, lambda: None
    service = SimpleNamespace(
        backend=SimpleNamespace(prepare=lambda *_: waiting, limits=DEFAULTS),
        access=SimpleNamespace(known=lambda *_: connection.user),
        commits=SimpleNamespace(submit=lambda *_: None, write_answers=lambda _: None),
        metrics=Metrics(),
        settings=ServerSettings(),
        limits=SERVER_DEFAULTS,
        budget=None,
        ignored=lambda _: False,
    )
    return HttpApplication(cast("Service", service)).prompt_appends, connection, waiting


def _taken(appends: PromptAppends, connection: Any, count: int) -> list[PromptAnswer]:
    """The responses to so many appends."""
    found = [appends.take(connection, _asked(), b"x") for _ in range(count)]
    assert None not in found
    return cast("list[PromptAnswer]", found)


def test_who_may_no_more_is_not_let_in_by_an_old_head(tmp_path: Path) -> None:
    users = tmp_path / "users.json"
    token = add(users, "shop", "append,admin:*", token=True)
    with served(tmp_path / "data", "--auth", str(users)) as running:
        said = f"Authorization: Bearer {token}\r\n"
        with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as connection:
            connection.sendall(f"PUT /topic/orders HTTP/1.1\r\nHost: localhost\r\n{said}\r\n".encode())
            connection.recv(1 << 16)
            for _ in range(3):
                assert [answer.status for answer in ask(connection, post(b"x", headers=said))] == [200]
            with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as stranger:
                stranger.sendall(post(b"x"))
                assert answers(stranger.recv(1 << 16))[0].status == 401
            revoke(users, "shop")
            status = 200
            while status == 200:  # for a second at most
                connection.sendall(post(b"x", headers=said))
                status = answers(connection.recv(1 << 16))[0].status
            assert status == 401


JSON = "Content-Type: application/json\r\n"


def produced(data: bytes, query: str, seq: int, producer: str = "shop") -> bytes:
    """What the Python client sends: a key, a producer and JSON."""
    said = f"Headwater-Producer: {producer}\r\nHeadwater-Epoch: 1\r\nHeadwater-Seq: {seq}\r\n"
    return post(data, query, JSON + said)


def test_keys_producers_and_json_are_taken_with_a_head_that_is_repeated(server: Server) -> None:
    with server.connect() as connection:
        for seq in range(1, 12):
            data = b'{"total": %d}' % 10**seq
            (answer,) = ask(connection, produced(data, f"?key=k%2F{seq}&type=placed", seq))
            event = server.http.get(f"{AT}?from={int(answer.body)}&max_items=1&format=json").json()[0]
            assert (event["key"], event["type"], event["content"]) == (f"k/{seq}", "placed", "json")
            assert (event["data"], event["id"]) == ({"total": 10**seq}, answer.headers["headwater-id"])


def test_a_retry_gets_the_first_response_also_when_pipelined(server: Server) -> None:
    with server.connect() as connection:
        first = ask(connection, *(produced(b"1", "?key=a", seq, "again") for seq in (1, 2, 2, 1)))
        assert [answer.status for answer in first] == [200] * 4
        assert (first[1], first[0]) == (first[2], first[3])
        (late,) = ask(connection, produced(b"1", "?key=a", 2, "again"))
        assert late == first[1]
        connection.sendall(produced(b"[1, 2]", "?key=a", 2, "again"))
        assert answers(connection.recv(1 << 16))[0].status == 409


def test_what_is_wrong_is_told_for_a_head_that_is_repeated(server: Server) -> None:
    with server.connect() as connection:
        for seq, data, query, code in (
            (1, b"1", "?key=x", ""),
            (2, b"{", "?key=x", "bad_json"),
            (3, b"1", "?key=x&kez=y", "bad_parameter"),
            (4, b"1", "?key=x&expected_version=none", "version_conflict"),
            (5, b"1", "?key=%zz&key=x", "bad_parameter"),
            (6, b"2", "?key=x", ""),
        ):
            connection.sendall(produced(data, query, seq, "wrong"))
            (answer,) = answers(connection.recv(1 << 16))
            assert (answer.status == 200) == (code == ""), answer
            assert code.encode() in answer.body


@pytest.mark.parametrize(
    "headers",
    [
        "Headwater-Seq: 1\r\nHeadwater-Seq: 2\r\n",
        "Headwater-Seq:  7 \r\n",
        "Headwater-Seq: x\r\n",
        "headwater-seq: 00000000000000000000000000007\r\n",
    ],
)
def test_a_seq_that_is_no_plain_number_is_read_by_the_parser_each_time(server: Server, headers: str) -> None:
    said = f"Headwater-Producer: odd {headers.strip()[-5:]}\r\n{headers}"
    with server.connect() as connection:
        found = []
        for _ in range(3):
            connection.sendall(post(b"x", headers=said))
            found.append(answers(connection.recv(1 << 16))[0])
        assert len({(answer.status, answer.body) for answer in found}) == 1


def test_producers_may_change_from_request_to_request(server: Server) -> None:
    with server.connect() as connection:
        asked = [("one", 1), ("two", 1), ("one", 2), ("t w o", 1), ("one", 2), ("two", 1), ("zw\u00f6lf", 3)]
        found = [ask(connection, produced(b"1", "?key=a", seq, name))[0] for name, seq in asked]
        assert {answer.status for answer in found} == {200}
        places = [int(answer.body) for answer in found]
        assert (places[4], places[5]) == (places[2], places[1])
        assert len(set(places)) == 5


def test_a_client_that_has_gone_when_its_response_is_written_is_left_alone() -> None:
    connections: Any = SimpleNamespace(
        app=SimpleNamespace(service=SimpleNamespace(metrics=None)), loop=None, limits=None, stopping=False
    )
    connection = ServerConnection(connections)
    connection.transport = SimpleNamespace(is_closing=lambda: True)  # anything else raises AttributeError
    connection._intake = Intake.SHUT
    connection.answered_promptly()


def test_json_of_more_than_a_mebibyte_is_one_event(server: Server) -> None:
    data = b'{"text": "%b"}' % (b"x" * (1 << 20))
    answer = server.http.post(AT, content=data, headers={"content-type": "application/json"})
    assert (answer.status_code, answer.headers["headwater-partition"]) == (200, "0")
    assert server.http.get(f"{AT}?from={int(answer.text)}&max_items=1").content[12:] == data


def test_requests_with_a_repeated_head_are_counted_and_logged(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    with served(tmp_path / "data", "--access-log", str(log)) as running:
        with socket.create_connection(("127.0.0.1", running.port), WAIT_S) as connection:
            connection.sendall(b"PUT /topic/orders HTTP/1.1\r\nHost: localhost\r\n\r\n")
            connection.recv(1 << 16)
            for seq in (1, 2, 3):
                ask(connection, produced(b"12", f"?key=secret{seq}&type=placed", seq))
            wait_for(lambda: log.read_text().count("\n") == 4)
        lines = [json.loads(line) for line in log.read_text().splitlines()[1:]]
        assert [line["query"] for line in lines] == [f"key=secret{seq}&type=placed" for seq in (1, 2, 3)]
        wanted = ("POST", "/topic/orders/items", "/topic/{name}/items", 200, 2, 1)
        names = ("method", "path", "route", "status", "bytes_in", "bytes_out")
        assert {tuple(line[name] for name in names) for line in lines} == {wanted}
