"""The lines of a batch on disk, and their checksums.

`database` describes lines. Each has a checksum over its place, table, key and bytes, so that a flipped bit within a
page, which SQLite does not notice, is found when the line is read. This module does not access files.
"""

from collections.abc import Iterator
from typing import Final
from zlib import crc32

import msgspec

from wharf.cluster.engines.port import Batch
from wharf.cluster.engines.sqlite.database import MAX_BATCH_LINES
from wharf.contract.model.log import Cause

INSERT_LINE: Final = "INSERT INTO log VALUES (?, ?, ?, ?, ?, ?)"

Line = tuple[int, str | None, bytes, int, int | None, bytes | None]
"""place, table (None in a head line), key (in a head line the write's id), checksum, lease, bytes (None for a
deletion)."""

_table_checksums: dict[str, int] = {}


class HeadLine(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """The content of a head line: what its batch is."""

    kind: str
    cause: Cause
    changes: int


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(HeadLine).decode


def build_lines(batch: Batch, lease: int) -> Iterator[Line]:
    """Yield the lines of a batch in the order of their places. Deletions get no lease."""
    place = batch.index * MAX_BATCH_LINES
    head = _encode(HeadLine(batch.kind, batch.cause, len(batch.changes)))
    write_id = batch.id.encode()
    yield place, None, write_id, compute_checksum(place, None, write_id, head), None, head
    for change in batch.changes:
        place += 1
        key, data = change.key.encode(), change.data
        line_lease = lease if lease and data is not None else None
        yield place, change.table, key, compute_checksum(place, change.table, key, data), line_lease, data


def decode_head_line(data: bytes) -> HeadLine:
    return _decode(data)


def get_batch_index(place: int) -> int:
    """Return the index of the batch that a line belongs to."""
    return place // MAX_BATCH_LINES


def compute_checksum(place: int, table: str | None, key: bytes, data: bytes | None) -> int:
    """Return the CRC-32 over table, place, key and data."""
    name = table or ""
    seed = _table_checksums.get(name)
    if seed is None:
        seed = _table_checksums[name] = crc32(name.encode())
    return crc32(data or b"", crc32(key, (seed ^ place) & 0xFFFFFFFF))
