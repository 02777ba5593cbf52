"""`check` finds what is wrong with an archive: alone, and beside the directory that it belongs to."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c

from headwater.errors import NotFound
from headwater.history.archive_check import check_archive_at
from tests.archive.logs import fill, open_engine


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    with open_engine(tmp_path / "data") as hw:
        fill(hw)
        hw.archive(f"objects://{tmp_path / 'archive'}")
    return tmp_path / "archive"


def problems(archive: Path, topic: str | None = None) -> list[tuple[str, str, bool]]:
    report = check_archive_at(f"objects://{archive}", topic)
    return [(Path(finding.path).name, finding.problem, finding.damage) for finding in report.findings]


def test_a_sound_archive_is_told_to_be_so_with_all_that_is_in_it(archive: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    report = check_archive_at(f"objects://{archive}", progress=lambda done, total: told.append((done, total)))
    with open_engine(tmp_path / "data") as hw:
        archived = hw.describe("t").partitions[0].archived
        assert hw.check_archive().findings == []
    assert report.findings == []
    assert (report.topics, report.partitions, report.events) == (1, 1, archived)
    assert told[-1][0] == told[-1][1] > 0
    with pytest.raises(NotFound):
        check_archive_at(f"objects://{archive}", "nowhere")
    with pytest.raises(NotFound):
        check_archive_at(f"objects://{archive.parent / 'nowhere'}")


def flip(path: Path) -> None:
    stored = path.read_bytes()
    path.write_bytes(
        stored[: len(stored) // 2] + bytes([stored[len(stored) // 2] ^ 1]) + stored[len(stored) // 2 + 1 :]
    )


@pytest.mark.parametrize("kind", ["*.log", "*.index", "*.blob"])
@pytest.mark.parametrize(
    ("damage", "problem"),
    [
        (flip, "its bytes are not those that were archived"),
        (lambda path: path.write_bytes(path.read_bytes()[:-3]), "it is cut short"),
        (lambda path: path.unlink(), "it is missing"),
    ],
    ids=["flipped", "cut", "missing"],
)
def test_damage_to_any_object_is_found(
    archive: Path, kind: str, damage: Callable[[Path], object], problem: str
) -> None:
    harmed = max(archive.rglob(kind))
    damage(harmed)
    assert problems(archive) == [(harmed.name, problem, True)]


def edit(path: Path, change: Callable[[dict[str, object]], None]) -> None:
    """Change a record, with a checksum that is right."""
    record = json.loads(path.read_bytes())
    del record["crc"]
    change(record)
    plain = json.dumps(record, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()
    record["crc"] = f"{crc32c(plain):08x}"
    path.write_text(json.dumps(record))


def test_damage_to_records_is_found(archive: Path) -> None:
    [manifest] = archive.rglob("manifest")
    sound = manifest.read_bytes()
    flip(manifest)
    assert [(name, damage) for name, _, damage in problems(archive)] == [("manifest", True)]
    manifest.write_bytes(sound)
    edit(manifest, lambda record: record["segments"].pop(1))  # type: ignore[attr-defined]
    [(name, problem, damage)] = problems(archive)
    assert (name, "does not follow" in problem, damage) == ("manifest", True, True)
    manifest.write_bytes(sound)
    [topic] = archive.rglob("topic")
    flip(topic)
    assert [(name, damage) for name, _, damage in problems(archive)] == [("topic", True)]


def test_a_manifest_that_tells_of_another_segment_is_found(archive: Path) -> None:
    [manifest] = archive.rglob("manifest")

    def swap(record: dict[str, object]) -> None:
        record["segments"][0]["file_id"] += 1  # type: ignore[index]

    edit(manifest, swap)
    assert [problem for _, problem, _ in problems(archive)] == ["the segment is not the one that the manifest tells of"]


def test_what_no_manifest_names_is_worth_knowing_and_no_damage(archive: Path) -> None:
    [first] = archive.rglob("00000000000000000000-*.log")
    (first.parent / "00000000000000009999-0123456789abcdef.log").write_bytes(b"half an upload")
    [(name, problem, damage)] = problems(archive)
    assert (name, damage) == ("00000000000000009999-0123456789abcdef.log", False)
    assert "no manifest names" in problem


def test_what_the_directory_dropped_and_the_archive_lost_is_found(archive: Path, tmp_path: Path) -> None:
    [manifest] = archive.rglob("manifest")
    edit(manifest, lambda record: record["segments"].pop())  # type: ignore[attr-defined]
    with open_engine(tmp_path / "data") as hw:
        damaged = [finding for finding in hw.check_archive().findings if finding.damage]
        assert [Path(finding.path).name for finding in damaged] == ["archived.json"]
        assert "does not have it any more" in damaged[0].problem
        assert hw.check().findings == []
