"""Small records in an object store that are created once or swapped: each write carries a fresh nonce.

The nonce tells a lost answer from a lost race: when the store says that somebody was first, it may have been this very
write. It also makes every version another one, where a store derives that from the bytes.
"""

from __future__ import annotations

from typing import Any, Generic, NamedTuple, TypeVar

import msgspec
from crc32c import crc32c

from headwater.bucket.object_store import ObjectStore
from headwater.disk.disk import Clock
from headwater.errors import Corrupt, Unsupported

FORMAT = 1
NONCE_BYTES = 16

T = TypeVar("T", bound=msgspec.Struct)


class RecordVersion(NamedTuple, Generic[T]):
    """A record as it was found. `version` is for the next swap."""

    record: T
    version: str


class Records(Generic[T]):
    """Records of one kind, at any keys. Safe from any thread."""

    def __init__(self, store: ObjectStore, clock: Clock, kind: type[T]) -> None:
        self._store = store
        self._clock = clock
        self._decoder = msgspec.json.Decoder(kind)

    def read(self, key: str) -> RecordVersion[T] | None:
        """Return the record; None if there is none. Raises Corrupt, and Unsupported for one of a later version."""
        stored = self._store.get(key)
        if stored is None:
            return None
        return RecordVersion(self._decode(key, bytes(stored.data))[0], stored.version)

    def create(self, key: str, record: T) -> str | None:
        """Put a record where none is, durably: its version, or None if another process's is there."""
        nonce = self._clock.random_bytes(NONCE_BYTES).hex()
        data = encode(record, nonce)
        while True:
            version = self._store.create(key, data)
            if version is not None:
                return version
            stored = self._store.get(key)
            if stored is not None:  # else the store refused two who came at once, and neither is there
                return stored.version if self._decode(key, bytes(stored.data))[1] == nonce else None

    def swap(self, key: str, record: T, version: str) -> str | None:
        """Replace the record that was found with this version, durably: the new version, or None if it has changed.

        None after an answer that was lost may also mean that this record was there, and another one replaced it since.
        """
        nonce = self._clock.random_bytes(NONCE_BYTES).hex()
        swapped = self._store.swap(key, encode(record, nonce), version)
        if swapped is not None:
            return swapped
        stored = self._store.get(key)
        if stored is None or self._decode(key, bytes(stored.data))[1] != nonce:
            return None
        return stored.version

    def _decode(self, key: str, data: bytes) -> tuple[T, str]:
        path = f"{self._store.url}/{key}"
        try:
            plain: dict[str, Any] = msgspec.json.decode(data, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise Corrupt(f"{path} does not parse: {error}", path=path, position=0, size=len(data)) from error
        if plain.pop("crc", None) != _crc(plain):
            raise Corrupt(f"{path}: the checksum is wrong", path=path, position=0, size=len(data))
        if plain.pop("format", None) != FORMAT:
            raise Unsupported(f"{path} has an unknown format", hint="upgrade headwater")
        nonce = plain.pop("nonce", "")
        try:
            return self._decoder.decode(msgspec.json.encode(plain)), nonce
        except msgspec.ValidationError as error:
            raise Unsupported(f"{path} is not understood: {error}", hint="upgrade headwater") from error


def encode(record: msgspec.Struct, nonce: str) -> bytes:
    """Return the bytes of a record: sorted JSON, with its format, the nonce and a checksum."""
    plain = {**msgspec.to_builtins(record), "format": FORMAT, "nonce": nonce}
    return msgspec.json.encode(plain | {"crc": _crc(plain)}, order="sorted") + b"\n"


def _crc(plain: dict[str, Any]) -> str:
    return f"{crc32c(msgspec.json.encode(plain, order='sorted')):08x}"
