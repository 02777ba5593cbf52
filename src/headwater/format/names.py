"""Names and numbers that are computed, not stored (docs/FORMAT.md, "Settings files" and "Segment")."""

from __future__ import annotations

import hashlib
import string
from urllib.parse import unquote
from uuid import UUID

from crc32c import crc32c

from headwater.errors import Invalid
from headwater.format.column import I64, Column
from headwater.format.hashes import crc32c_of_each

_SAFE = frozenset((string.ascii_letters + string.digits + "_-.").encode())
_NODE_MASK = (1 << 62) - 1


def directory_of(topic: str) -> str:
    """Return the directory name of a topic: any Unicode name is safe."""
    name = "".join(chr(byte) if byte in _SAFE else f"%{byte:02X}" for byte in utf8(topic, "a topic's name"))
    if name.startswith("."):
        name = "%2E" + name[1:]
    if len(name) > 200:
        name = f"{name[:160]}%-{hashlib.sha256(topic.encode()).hexdigest()[:32]}"
    return name


def topic_of(directory: str) -> str | None:
    """Return the topic that a directory is named by; None if the name was too long for it, or it is not such a name."""
    topic = unquote(directory, errors="replace")
    return topic if topic and directory_of(topic) == directory else None


def utf8(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise Invalid(f"{what} is not valid Unicode: {text!r}", hint="it contains an unpaired surrogate") from error


def log_uuid(topic_uuid: UUID, partition: int) -> bytes:
    return hashlib.sha256(topic_uuid.bytes + partition.to_bytes(4, "little")).digest()[:16]


def node_of(log_uuid: bytes) -> int:
    """Return the 62 bits that the ids of a log's events share."""
    return int.from_bytes(log_uuid[:8], "big") & _NODE_MASK


def partition_of(key: bytes, partitions: int) -> int:
    return crc32c(key) * partitions >> 32


def turn_of(producer: str, seq: int, partitions: int) -> int:
    """Return the partition of a producer's request without a key: the next for each seq, the same for a retry."""
    return (crc32c(producer.encode()) + seq) % partitions


def partitions_of_column(keys: Column, partitions: int) -> I64:
    """Return the partition of each key of a column; one for a constant column. A null key counts as an empty one."""
    return crc32c_of_each(keys) * partitions >> 32


def file_of(offset: int, suffix: str) -> str:
    return f"{offset:020d}.{suffix}"


def offset_of(file: str, suffix: str) -> int | None:
    """Return the offset that a file is named by; None if it is not such a file."""
    stem, _, rest = file.partition(".")
    return int(stem) if rest == suffix and len(stem) == 20 and stem.isascii() and stem.isdecimal() else None
