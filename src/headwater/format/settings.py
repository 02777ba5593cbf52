"""The checksummed JSON files of a log directory and its topics (docs/FORMAT.md, "Settings files")."""

from __future__ import annotations

from typing import Any, Literal, TypedDict, TypeVar

import msgspec
from crc32c import crc32c

from headwater.errors import Corrupt, Unsupported
from headwater.format.history import ArchiveAddress, LocalManifest

FORMAT = 1


class LogSettings(msgspec.Struct, frozen=True, kw_only=True):
    """`headwater.json`"""

    format: int = FORMAT
    uuid: str


class Retention(TypedDict, total=False):
    """The settings that say what each partition of a topic keeps. 0 and False: no bound."""

    retention_bytes: int
    retention_segments: int
    retention_age_ms: int
    retention_consumers: bool
    retention_bytes_hard: int
    overflow: Literal["delete", "refuse"]


class TopicSettings(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, forbid_unknown_fields=True):
    """What a topic was made with, and its retention, which may change.

    0 means: as the limits of the process that opened the log say; for retention, no bound.
    """

    segment_bytes: int = 0
    segment_age_ms: int = 0
    data_bytes_max: int = 0
    compression: Literal["none", "zstd"] = "none"
    retention_bytes: int = 0
    retention_segments: int = 0
    retention_age_ms: int = 0
    retention_consumers: bool = False
    retention_bytes_hard: int = 0
    overflow: Literal["delete", "refuse"] = "delete"


class TopicRecord(msgspec.Struct, frozen=True, kw_only=True):
    """`topic.json`"""

    format: int = FORMAT
    name: str
    uuid: str
    partitions: int
    settings: TopicSettings = TopicSettings()


class Replica(msgspec.Struct, frozen=True, kw_only=True):
    """`replica.json`: that a directory is, or was, a replica of another log, and takes no appends until `promoted`."""

    format: int = FORMAT
    source: str  # its address, without anything secret
    source_uuid: str
    since: str
    promoted: str | None = None  # when


T = TypeVar("T", LogSettings, TopicRecord, ArchiveAddress, LocalManifest, Replica)

# Made while the module is imported, which one thread does: msgspec learns a type at its first use, and two threads that
# come first at the same time crash the interpreter.
_DECODERS: dict[type, msgspec.json.Decoder[Any]] = {
    kind: msgspec.json.Decoder(kind) for kind in (LogSettings, TopicRecord, ArchiveAddress, LocalManifest, Replica)
}


_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(TopicSettings)}


def encode(settings: LogSettings | TopicRecord | ArchiveAddress | LocalManifest | Replica) -> bytes:
    plain = msgspec.to_builtins(settings)
    if isinstance(
        settings, TopicRecord
    ):  # a default that was said is left out too, which msgspec does only for the same object
        plain["settings"] = {name: value for name, value in plain["settings"].items() if value != _DEFAULTS[name]}
    return msgspec.json.encode(plain | {"crc": _crc(plain)}, order="sorted") + b"\n"


def decode(stored: bytes, kind: type[T]) -> T:
    """Raises Corrupt when the checksum is wrong, Unsupported when a newer version wrote it."""
    try:
        plain: dict[str, Any] = msgspec.json.decode(stored, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Corrupt(f"settings do not parse: {error}", position=0, size=len(stored)) from error
    if plain.pop("crc", None) != _crc(plain):
        raise Corrupt("the checksum of settings is wrong", position=0, size=len(stored))
    if plain.get("format") != FORMAT:
        raise Unsupported(f"format {plain.get('format')} is unknown", hint="upgrade headwater to read this log")
    try:
        settings: T = _DECODERS[kind].decode(msgspec.json.encode(plain))
    except msgspec.ValidationError as error:
        raise Unsupported(f"settings are not understood: {error}", hint="upgrade headwater to read this log") from error
    if encode(settings) != stored:
        raise Corrupt("settings are not in their canonical form", position=0, size=len(stored))
    return settings


def _crc(plain: dict[str, Any]) -> str:
    return f"{crc32c(msgspec.json.encode(plain, order='sorted')):08x}"
