from pathlib import Path
from typing import Any

import pytest

import headwater
from headwater.cli.app import cli
from tests.cli.conftest import Run

FORMATS = ("jsonl", "arrow", "arrows", "parquet", "puro")


def data_of(data: Path, topic: str) -> list[tuple[bytes | None, bytes | None]]:
    with headwater.open(data, mode="existing") as hw:
        return [(event.key, event.data) for event in hw.read(topic)]


@pytest.mark.parametrize("format", FORMATS)
def test_an_export_is_imported_again(run: Run, data: Path, tmp_path: Path, format: str) -> None:
    run("append", data, "orders", "--key", "o-17", '{"total": 12}', "text")
    file = tmp_path / f"orders.{format}"
    ran = run("export", data, "orders", file)
    assert ran.out.startswith(f"✓ 2 events in {file}, ")
    assert ran.out.rstrip().endswith("events/s")
    assert "✓ 2 events in topic copy, " in run("import", data, "copy", file).out
    assert data_of(data, "copy") == data_of(data, "orders")


@pytest.mark.parametrize("format", ["jsonl", "arrows", "puro"])
def test_an_export_goes_through_a_pipe(run: Run, data: Path, tmp_path: Path, format: str) -> None:
    run("append", data, "orders", "--key", "k", "a", "b")
    ran = run("export", data, "orders", "-", "--format", format)
    assert ran.err == ""
    run("import", tmp_path / "other", "copy", "-", "--format", format, stdin=ran.raw)
    assert data_of(tmp_path / "other", "copy") == [(b"k", b"a"), (b"k", b"b")]


def test_read_as_json_is_imported_too(run: Run, data: Path) -> None:
    run("append", data, "orders", "--type", "placed", "--meta", "a=b", '{"total": 12}')
    told = run("read", data, "orders", "--json").raw
    run("import", data, "copy", "-", "--format", "jsonl", "--keep-times", stdin=told)
    (event,) = run("read", data, "copy", "--json").objects
    assert (event["type"], event["content"], event["data"]) == ("placed", "json", {"total": 12})
    assert event["meta"].keys() == {"a", "original_time", "original_partition", "original_offset"}


def test_filters_choose_what_is_exported(run: Run, data: Path) -> None:
    for n in range(4):
        run("append", data, "t", "--type", "odd" if n % 2 else "even", "--key", f"k{n}", str(n))

    def exported(*options: str) -> list[Any]:
        return [told["data"] for told in run("export", data, "t", "-", "--format", "jsonl", *options).objects]

    assert exported() == ["0", "1", "2", "3"]
    assert exported("--type", "odd") == ["1", "3"]
    assert exported("--key", "k2") == ["2"]
    assert exported("--from", "1", "--to", "3") == ["1", "2"]
    assert exported("--from", "latest") == []
    assert exported("--partition", "0") == ["0", "1", "2", "3"]
    run("append", data, "t", '{"n": 7}', "--content", "json")
    assert exported("--match", '{"n": {"$gt": 6}}') == [{"n": 7}]


def test_several_topics_go_into_one_file_and_come_out_apart(run: Run, data: Path, tmp_path: Path) -> None:
    run("append", data, "orders", "a")
    run("append", data, "stock", "b")
    run("export", data, "orders", "stock", tmp_path / "all.puro")
    assert "2 events in the topics that they name" in run("import", tmp_path / "other", tmp_path / "all.puro").out
    assert data_of(tmp_path / "other", "stock") == [(None, b"b")]
    run("import", tmp_path / "other", "mine", tmp_path / "all.puro", "--only", "orders", "--content", "text")
    assert data_of(tmp_path / "other", "mine") == [(None, b"a")]
    assert "one TOPIC" in run("import", data, "a", "b", tmp_path / "all.puro", code=2).err


def test_what_was_done_is_told_as_json(run: Run, data: Path, tmp_path: Path) -> None:
    run("append", data, "t", "a", "b")
    file = tmp_path / "t.jsonl"
    (told,) = run("export", data, "t", file, "--json").objects
    assert (told["events"], told["bytes"]) == (2, file.stat().st_size)
    (told,) = run("import", data, "copy", file, "--json").objects
    assert (told["events"], told["bytes"]) == (2, file.stat().st_size)
    (told,) = run("import", data, "copy", "-", "--format", "jsonl", "--json", stdin=file.read_bytes()).objects
    assert (told["events"], told["bytes"]) == (2, file.stat().st_size)


def test_a_damaged_file_tells_its_position_and_how_to_go_on(run: Run, data: Path, tmp_path: Path) -> None:
    run("append", data, "t", "first", "second")
    file = tmp_path / "t.puro"
    run("export", data, "t", file)
    whole = file.read_bytes()
    file.write_bytes(whole[:-1] + b"X")
    ran = run("import", data, "copy", file, code=1)
    assert ran.err == (
        f"error: the checksum of a message is wrong in {file}, at byte 10 "
        "(after 1 event, which are imported; skip 1 to continue)\n"
    )
    file.write_bytes(whole)
    run("import", data, "copy", file, "--skip", "1")
    assert data_of(data, "copy") == data_of(data, "t")


def test_a_huge_event_is_exported_when_it_may_be_held(run: Run, data: Path, tmp_path: Path) -> None:
    huge = tmp_path / "huge"
    huge.write_bytes(bytes(11_000_000))
    run("create", data, "t", "--data-bytes-max", "20MB")
    run("append", data, "t", "--file", huge)
    assert "--hold" in run("export", data, "t", tmp_path / "t.parquet", code=1).err
    run("export", data, "t", tmp_path / "t.parquet", "--hold", "20MB")
    run("create", data, "copy", "--data-bytes-max", "20MB")
    run("import", data, "copy", tmp_path / "t.parquet")
    with headwater.open(data, mode="existing") as hw:
        assert next(hw.read("copy")).size == 11_000_000


def test_mistakes_make_neither_a_file_nor_a_log(run: Run, data: Path, tmp_path: Path) -> None:
    assert "does not determine a format" in run("import", data, "t", tmp_path / "t.csv", code=1).err
    assert "No such file" in run("import", data, "t", tmp_path / "t.jsonl", code=1).err
    assert not data.exists()
    run("append", data, "t", "x")
    assert "does not determine a format" in run("export", data, "t", tmp_path / "t.csv", code=1).err
    assert "no topic 'u'" in run("export", data, "u", tmp_path / "t.jsonl", code=1).err
    assert "TOPIC" in run("export", data, tmp_path / "t.jsonl", code=2).err
    assert list(tmp_path.iterdir()) == [data]


def test_without_pyarrow_the_hint_says_how_to_get_it(
    run: Run, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headwater.format import arrow

    run("append", data, "t", "x")
    arrow.pyarrow.cache_clear()
    with monkeypatch.context() as patched:
        patched.setitem(__import__("sys").modules, "pyarrow", None)
        ran = run("export", data, "t", tmp_path / "t.parquet", code=1)
    arrow.pyarrow.cache_clear()
    assert ran.err == "error: Arrow needs pyarrow — pip install 'headwater[arrow]'\n"
    assert list(tmp_path.iterdir()) == [data]


def test_the_command_is_named_by_the_word_and_its_file_by_what_python_allows() -> None:
    from click import Context

    command = cli.get_command(Context(cli), "import")
    assert command is not None
    assert command.name == "import"


@pytest.mark.parametrize(
    ("variant", "found"),
    [
        (None, "variant messages, 2 messages, 0 control messages"),
        ("messages", "variant messages, 2 messages, 0 control messages"),
        ("blocks", "variant blocks, 2 messages, 2 control messages"),
        ("sized-blocks", "variant sized-blocks, 2 messages, 2 control messages"),
        ("documented", "variant documented, 2 messages, 0 control messages"),
    ],
)
def test_an_import_tells_which_variant_of_puro_it_found(
    run: Run, data: Path, tmp_path: Path, variant: str | None, found: str
) -> None:
    run("append", data, "orders", "first", "second")
    file = tmp_path / "orders.puro"
    run("export", data, "orders", file, *(["--puro-variant", variant] if variant else []))
    lines = run("import", data, "copy", file).out.splitlines()
    assert lines[0] == f"Puro file, {found}"
    assert lines[1].startswith("✓ 2 events in topic copy, ")
    (told,) = run("import", data, "again", "-", "--format", "puro", "--json", stdin=file.read_bytes()).objects
    assert told["puro"] == {
        "variant": variant or "messages",
        "messages": 2,
        "control_messages": int(found.split()[-3]),
        "unfinished_at": None,
    }
    assert data_of(data, "copy") == data_of(data, "again") == data_of(data, "orders")


def test_a_file_that_puro_wrote_is_imported(run: Run, data: Path, tmp_path: Path) -> None:
    file = tmp_path / "stream0.puro"
    file.write_bytes(bytes.fromhex("db130974657374746f70696304badf000ddeadbeef" + "ae03010000"))
    out = run("import", data, file).out
    assert out.startswith("Puro file, variant messages, 1 message, 1 control message\n✓ 1 event")
    assert data_of(data, "testtopic") == [(bytes.fromhex("badf000d"), bytes.fromhex("deadbeef"))]


def test_a_variant_of_puro_is_for_puro(run: Run, data: Path, tmp_path: Path) -> None:
    run("append", data, "t", "x")
    assert "has no variant" in run("export", data, "t", tmp_path / "t.jsonl", "--puro-variant", "blocks", code=1).err
    assert "'new' is not one of" in run("export", data, "t", tmp_path / "t.puro", "--puro-variant", "new", code=2).err
