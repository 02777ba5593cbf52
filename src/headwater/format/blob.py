"""The footer of a blob file, which holds the data of one huge event (docs/FORMAT.md, "Blob")."""

from __future__ import annotations

from struct import Struct

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from headwater.errors import Corrupt

MAGIC = b"HWBLOB01"
_FOOTER = Struct("<8sQIII")
FOOTER_BYTES = 32


def table_crc(crcs: npt.NDArray[np.uint32]) -> int:
    return crc32c(crcs.tobytes())


def encode_trailer(size: int, chunk_bytes: int, crcs: npt.NDArray[np.uint32]) -> bytes:
    """Return what follows the data: the table of CRCs and the footer."""
    footer = _FOOTER.pack(MAGIC, size, chunk_bytes, table_crc(crcs), 0)
    return crcs.tobytes() + footer + crc32c(footer).to_bytes(4, "little")


def decode_trailer(stored: bytes, reference: tuple[int, int, int]) -> npt.NDArray[np.uint32]:
    """Return the CRC of each chunk, after checking all against the reference in the batch."""
    size, chunk_bytes, crc = reference
    expected = -(-size // chunk_bytes) * 4 + FOOTER_BYTES
    footer = stored[-FOOTER_BYTES:-4]
    if len(stored) != expected or crc32c(footer).to_bytes(4, "little") != stored[-4:]:
        raise Corrupt("the footer of a blob is damaged", position=size, size=expected)
    if _FOOTER.unpack(footer) != (MAGIC, size, chunk_bytes, crc, 0) or crc32c(stored[:-FOOTER_BYTES]) != crc:
        raise Corrupt("a blob does not match the reference in its event", position=size, size=expected)
    return np.frombuffer(stored, np.uint32, (expected - FOOTER_BYTES) // 4)
