"""Encoding of the items of lists: small items in batches, and each heavy item in pieces.

A heavy item takes longer to encode than one step may hold the event loop, such as an allocation of 1,000 tasks (0151).
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec

from wharf.cluster.api.held_memory import HeldMemory
from wharf.cluster.api.replies.encoding import BODY_CHUNK_BYTES, RECORDS_PER_STEP, ReplyBody
from wharf.cluster.api.replies.pieces import ChunkCollector, iterate_pieces
from wharf.cluster.server.cpu_budget import SlicedWork

RECORDS_PER_CHECK: Final = 25
"""Records encoded before the CPU time is checked, because single records may be large."""
BATCH_BYTES: Final = 64 * 1024
"""Encoded bytes after which the CPU time is checked, also within `RECORDS_PER_CHECK`."""

MAX_CACHED_ITEM_BYTES: Final = 4 * 1024 * 1024
"""Larger items are not stored in the cache of encoded records: joining their chunks takes up to 0.75 ms for each MB."""


MAX_JOINED_ITEM_BYTES: Final = 8 * 1024 * 1024
"""Larger items are not joined to one text, which holds the event loop for 0.75 ms for each MB. Lists with such an item are
not cached.
"""


class ItemTooLarge(Exception):
    """The encoding of an item is too large to be joined to one text. Holds its chunks."""

    def __init__(self, chunks: Sequence[bytes]) -> None:
        super().__init__()
        self.chunks = chunks


class HeavyItem:
    """A list item that is encoded in pieces."""

    __slots__ = ("_is_pretty", "_store", "_view")

    def __init__(self, view: object, *, is_pretty: bool, store: Callable[[bytes], None] | None = None) -> None:
        """`store` is called with the encoding, unless that is larger than `MAX_CACHED_ITEM_BYTES`."""
        self._view = view
        self._is_pretty = is_pretty
        self._store = store

    async def encode(self, work: SlicedWork, held: HeldMemory | None = None) -> Sequence[bytes]:
        """Return the encoding in chunks, built in slices. `held` counts their memory.

        Raises `Refusal` if the budget of the work is used up, or `Overloaded`.
        """
        chunks = ChunkCollector(held)
        for piece in iterate_pieces(self._view, is_pretty=self._is_pretty, depth=1):
            chunks.add(piece)
            if work.is_slice_over():
                await work.pause()
        body = chunks.build_body()
        if self._store is not None and body.size <= MAX_CACHED_ITEM_BYTES:
            self._store(b"".join(body.chunks))
        return body.chunks

    async def encode_as_one(self, work: SlicedWork) -> bytes:
        """Return the encoding as one text, built in slices.

        Raises `ItemTooLarge`, or `Refusal` if the budget of the work is used up.
        """
        chunks = await self.encode(work)
        if sum(map(len, chunks)) > MAX_JOINED_ITEM_BYTES:
            raise ItemTooLarge(chunks)
        if work.is_slice_over():
            await work.pause()
        return b"".join(chunks)


EncodedBatch = tuple[list[bytes], HeavyItem | None]
"""The items of consecutive records, and the heavy item that follows them, if there is one."""
EncodeRecords = Callable[[Sequence[Any]], EncodedBatch]
"""Encodes the first ones of up to a few hundred records, at least one: it stops above `BATCH_BYTES`, and at a heavy item."""


async def encode_completely(encoded: EncodedBatch, work: SlicedWork) -> list[bytes]:
    """Return the items of a batch with the heavy item, which is encoded in slices. Raises `ItemTooLarge`."""
    items, heavy = encoded
    if heavy is not None:
        items.append(await heavy.encode_as_one(work))
    return items


async def pause_if_due(work: SlicedWork, position: int) -> None:
    """Let other tasks run if the slice is over, or before each `RECORDS_PER_STEP` records. `position`: of the next record."""
    if position and (not position % RECORDS_PER_STEP or work.is_slice_over()):
        await work.pause()


async def encode_list(
    records: Sequence[Any],
    encode_records: EncodeRecords,
    work: SlicedWork,
    held: HeldMemory | None = None,
    *,
    is_pretty: bool,
) -> ReplyBody:
    """Return the records as a JSON list. Other tasks run between two steps of encoding.

    `held` counts the memory of a large list. Raises `Overloaded` if other lists use all of it.
    """
    chunks: list[bytes] = []
    encoded_records: list[bytes] = []
    size = 0

    def close_chunk() -> None:
        nonlocal encoded_records, size
        chunks.append(_join_records(encoded_records, is_first=not chunks, pretty=is_pretty))
        encoded_records, size = [], 0

    work.restart()
    position = 0
    while position < len(records):
        await pause_if_due(work, position)
        encoded, heavy = encode_records(records[position : position + RECORDS_PER_CHECK])
        position += len(encoded) + (heavy is not None)
        encoded_records += map(_indent_record, encoded) if is_pretty else encoded
        size += sum(map(len, encoded))
        if size > BODY_CHUNK_BYTES or (heavy is not None and encoded_records):
            if held is not None:
                held.grow(size)
            close_chunk()
        if heavy is not None:
            heavy_chunks = await heavy.encode(work, held)
            chunks.append(_begin_records(is_first=not chunks, pretty=is_pretty))
            chunks += heavy_chunks
    if encoded_records:
        close_chunk()
    if not chunks:
        return ReplyBody((b"[]\n" if is_pretty else b"[]",))
    chunks.append(b"\n]\n" if is_pretty else b"]")
    return ReplyBody(chunks if len(chunks) > 2 else (b"".join(chunks),), held)


def _begin_records(*, is_first: bool, pretty: bool) -> bytes:
    """Return what is before a record: "[" before the first of the list, else a comma, and the layout."""
    return (b"[" if is_first else b",") + (b"\n    " if pretty else b"")


def _join_records(encoded_records: list[bytes], *, is_first: bool, pretty: bool) -> bytes:
    """Return the encoded records joined by commas, after "[" if they are the first of the list, else after a comma."""
    separator = _begin_records(is_first=False, pretty=pretty)
    return _begin_records(is_first=is_first, pretty=pretty) + separator.join(encoded_records)


def _indent_record(encoded_record: bytes) -> bytes:
    """Return the encoded record indented by four more spaces, as an item of an indented list.

    JSON strings contain no line breaks, so every line break is layout.
    """
    return msgspec.json.format(encoded_record, indent=4).replace(b"\n", b"\n    ")
