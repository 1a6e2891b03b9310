"""A cache of whole encoded lists, stored in segments.

A cached list observes changes of its table. A request encodes only the records that changed since the last request,
and joins only their segments again, so the cost depends on the changes and not on the length of the list. A list with
too many changes, or whose table was reloaded, is dropped; the next request encodes it completely.
"""

import asyncio
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

from wharf.cluster.api.lists.listing import ListCacheSpec
from wharf.cluster.api.replies.encoding import (
    BODY_CHUNK_BYTES,
    COMPRESSION_LEVEL,
    COMPRESSION_STEP_BYTES,
    ReplyBody,
)
from wharf.cluster.api.replies.items import (
    RECORDS_PER_CHECK,
    EncodeRecords,
    ItemTooLarge,
    encode_completely,
    encode_list,
    pause_if_due,
)
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.cluster.state import Replica
from wharf.cluster.state.watches import RecordChange

MAX_LIST_CHANGES: Final = 2_000
"""Changes between two requests above which the list is dropped and encoded completely."""
MAX_CACHED_LISTS: Final = 16
"""Limits the observers of tables, which every write must notify."""
MAX_CACHED_LIST_BYTES: Final = 64 * 1024 * 1024
"""Limits the memory of all cached lists."""
RECORD_OVERHEAD_BYTES: Final = 60
"""Estimated memory of an encoded record in addition to its text."""

CHECKSUM_STEP_BYTES: Final = 2 * 1024 * 1024
"""Bytes whose checksum is computed in one step: about half a millisecond."""

GZIP_ENCODING: Final = b"gzip"
GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
RAW_WINDOW_BITS: Final = -zlib.MAX_WBITS

ListPosition = Any
"""The sort key of a record in a list: its table key, or its create index and table key."""


class ListSegment:
    """Consecutive records of a list: their sort keys, their encodings, and the joined text, which is built on first
    use.
    """

    __slots__ = ("_deflated", "_deflated_text", "_is_first", "_text", "encoded_records", "positions")

    def __init__(self, positions: list[ListPosition], encoded_records: list[bytes]) -> None:
        self.positions = positions
        self.encoded_records = encoded_records
        self._is_first = False
        self._text = b""
        self._deflated = b""
        self._deflated_text = b""

    def get_text(self, *, is_first: bool) -> bytes:
        """Return the encoded records joined by commas, after "[" for the first segment of the list, else after ","."""
        if not self._text or is_first != self._is_first:
            first, *others = self.encoded_records
            # One copy of the records: single ones may be large.
            self._text = b",".join(((b"[" if is_first else b",") + first, *others))
            self._is_first = is_first
        return self._text

    def iterate_deflated(self, text: bytes) -> Iterator[bytes]:
        """Yield the compressed text of this segment, passed as `text`, in parts of one step each. The result is cached for
        this text.

        It ends with a sync flush, so the compressed segments of a list form one valid deflate stream when concatenated.
        """
        if self._deflated_text is text:
            yield self._deflated
            return
        compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, RAW_WINDOW_BITS)
        parts = []
        for start in range(0, len(text), COMPRESSION_STEP_BYTES):
            part = compressor.compress(text[start : start + COMPRESSION_STEP_BYTES])
            parts.append(part)
            yield part
        part = compressor.flush(zlib.Z_SYNC_FLUSH)
        yield part
        self._deflated, self._deflated_text = b"".join((*parts, part)), text


class SegmentedBody(ReplyBody):
    """The body of a list, as of one log index, built from the texts of its segments without copying them."""

    __slots__ = ("_segments",)

    def __init__(self, segments: Sequence[ListSegment]) -> None:
        self._segments = segments
        texts = [segment.get_text(is_first=not number) for number, segment in enumerate(segments)]
        super().__init__([*texts, b"]"] if texts else [b"[]"])

    async def get_encoded_chunks(self, encoding: bytes, loop_slots: LoopSlots) -> Sequence[bytes]:
        """Return the chunks of the body in the encoding; b"" means uncompressed.

        For gzip, only segments that are not compressed yet are compressed. Their deflate blocks are put between a gzip
        header and a trailer with the checksum and size of the whole text.
        """
        if encoding != GZIP_ENCODING:
            return await super().get_encoded_chunks(encoding, loop_slots)
        if encoding not in self._compressed:
            checksum, parts = 0, [GZIP_HEADER]
            # A changed segment is replaced by a new object, so these segments stay as they were.
            for text, segment in zip(self.chunks, self._segments, strict=False):
                for part in segment.iterate_deflated(text):
                    parts.append(part)
                    await loop_slots.wait()
                for start in range(0, len(text), CHECKSUM_STEP_BYTES):
                    checksum = zlib.crc32(text[start : start + CHECKSUM_STEP_BYTES], checksum)
                    if len(text) > CHECKSUM_STEP_BYTES:
                        await loop_slots.wait()
            compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, RAW_WINDOW_BITS)
            end = compressor.compress(self.chunks[-1]) + compressor.flush(zlib.Z_FINISH)
            checksum = zlib.crc32(self.chunks[-1], checksum)
            parts.append(end + checksum.to_bytes(4, "little") + (self.size & 0xFFFFFFFF).to_bytes(4, "little"))
            self._compressed[encoding] = parts
        return self._compressed[encoding]


ListChanges = Sequence[tuple[ListPosition, Any]]
"""Changed positions, each with its record, or `None` if no record is at that position any more."""


class CachedList:
    """An encoded list that observes changes of its tables from creation until `close`, so that it can be refreshed.

    Create it before its records are read; otherwise changes in between would be missed.
    """

    def __init__(self, replica: Replica, spec: ListCacheSpec) -> None:
        self.size = 0
        self._spec = spec
        self._replica = replica
        self._table_records = replica.get_table_records(spec.table)
        self._is_closed = False
        self._changed: dict[ListPosition, str] = {}
        """Changed positions, with the key of the record."""
        self._segments: list[ListSegment] = []
        self._first_positions: list[ListPosition] = []
        """The first position of each segment, to find the segment of a position."""
        self._body: SegmentedBody | None = None
        self._refresh_lock = asyncio.Lock()
        self._users = 0
        """Number of fills and refreshes that are in progress or about to start."""
        for table in spec.tables:
            replica.watches.add_observer(table, self)

    @property
    def is_current(self) -> bool:
        """Whether the list has observed every change: it is not closed and its table was not loaded again."""
        return not self._is_closed and self._replica.get_table_records(self._spec.table) is self._table_records

    def close(self) -> None:
        """Stop observing. Refreshes in progress complete with the data they started with. Closing twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            for table in self._spec.tables:
                self._replica.watches.remove_observer(table, self)
        self._release()

    def _release(self) -> None:
        """Free the memory of a closed list once nothing uses it."""
        if self._is_closed and not self._users:
            self._segments, self._first_positions, self._changed, self._body = [], [], {}, None

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """Record which positions of the list changed. Too many changes close the list.

        A changed create index moves a record, so the positions before and after the change are recorded.
        """
        spec = self._spec
        for key, old, new in changes:
            if not key.startswith(spec.prefix):
                continue
            if not spec.is_by_creation:
                self._changed[key] = key
                continue
            for record in (old, new):
                if record is not None:
                    self._changed[spec.get_position(key, record)] = key
        if len(self._changed) > MAX_LIST_CHANGES:
            self.close()

    # -- filling -----------------------------------------------------------------------------------------------------

    async def fill(self, records: Sequence[Any], encode_records: EncodeRecords, work: SlicedWork) -> ReplyBody:
        """Encode all records of the list, in order, and return its body.

        Other tasks run between two steps. An error closes the list, and so does an item that is too large to be cached.
        """
        self._users += 1
        try:
            positions: list[ListPosition] = []
            encoded_records: list[bytes] = []
            size = 0
            work.restart()
            position = 0
            while position < len(records):
                await pause_if_due(work, position)
                encoded_batch = encode_records(records[position : position + RECORDS_PER_CHECK])
                try:
                    encoded = await encode_completely(encoded_batch, work)
                except ItemTooLarge as item:
                    self.close()
                    encoded_records += encoded_batch[0]
                    rest = records[position + len(encoded_batch[0]) + 1 :]
                    return await self._encode_uncached(encoded_records, item, rest, encode_records, work)
                batch = records[position : position + len(encoded)]
                position += len(encoded)
                encoded_records += encoded
                positions += [self._spec.get_position(self._spec.table.get_key(record), record) for record in batch]
                size += sum(map(len, encoded))
                if size > BODY_CHUNK_BYTES:
                    self._append_segment(ListSegment(positions, encoded_records))
                    positions, encoded_records, size = [], [], 0
            if encoded_records:
                self._append_segment(ListSegment(positions, encoded_records))
            await self._join_segments(work)
            return self._build_body()
        except BaseException:
            self.close()  # An incomplete list cannot be refreshed.
            raise
        finally:
            self._users -= 1
            self._release()

    async def _encode_uncached(
        self,
        encoded_records: list[bytes],
        item: ItemTooLarge,
        rest: Sequence[Any],
        encode_records: EncodeRecords,
        work: SlicedWork,
    ) -> ReplyBody:
        """Return the body of a list with an item that is too large, whose chunks are not joined.

        `encoded_records` precede the item and follow the last segment; `rest` are the records after it.
        """
        if encoded_records:
            self._segments.append(ListSegment([], encoded_records))
        await self._join_segments(work)
        chunks = [segment.get_text(is_first=not number) for number, segment in enumerate(self._segments)]
        chunks += (b"," if chunks else b"[", *item.chunks)
        if rest:
            first, *others = (await encode_list(rest, encode_records, work, is_pretty=False)).chunks
            chunks += (b"," + first[1:], *others)
        else:
            chunks.append(b"]")
        return ReplyBody(chunks)

    def _append_segment(self, segment: ListSegment) -> None:
        """Add a segment at the end of the list."""
        self._segments.append(segment)
        self._first_positions.append(segment.positions[0])

    async def _join_segments(self, work: SlicedWork) -> None:
        """Join the texts of new and changed segments in slices, so that `_build_body` finds them joined."""
        for number, segment in enumerate(self._segments):
            segment.get_text(is_first=not number)
            if work.is_slice_over():
                await work.pause()

    def _build_body(self) -> SegmentedBody:
        """Build the body from the current segments, and estimate the memory of the list."""
        body = self._body = SegmentedBody(tuple(self._segments))
        self.size = 2 * body.size + RECORD_OVERHEAD_BYTES * sum(
            len(segment.encoded_records) for segment in self._segments
        )
        return body

    # -- refreshing --------------------------------------------------------------------------------------------------

    def take_changes(self) -> ListChanges:
        """Return the changes since the last call, and clear them. Each call must be followed by one call of `refresh`.

        The changes must reach `refresh` in the order in which they were taken.
        """
        self._users += 1
        changed, self._changed = self._changed, {}
        return [(position, self._get_record(position, key)) for position, key in changed.items()]

    def _get_record(self, position: ListPosition, key: str) -> Any:
        """Return the record with this table key, or `None` if the list has no such record at this position now."""
        spec, record = self._spec, self._table_records.records.get(key)
        if record is None or spec.get_position(key, record) != position:
            return None  # The record was deleted or has another position now.
        return record if spec.is_selected is None or spec.is_selected(record) else None

    async def refresh(self, changes: ListChanges, encode_records: EncodeRecords, work: SlicedWork) -> SegmentedBody:
        """Encode the changed records, update their segments, and return the body of the current list.

        An error closes the list.
        """
        try:
            async with self._refresh_lock:
                work.restart()
                for start in range(0, len(changes), RECORDS_PER_CHECK):
                    await pause_if_due(work, start)
                    batch = changes[start : start + RECORDS_PER_CHECK]
                    records = [record for _, record in batch if record is not None]
                    encoded: list[bytes] = []
                    while len(encoded) < len(records):
                        if encoded and work.is_slice_over():
                            await work.pause()
                        encoded += await encode_completely(encode_records(records[len(encoded) :]), work)
                    encoded_records = iter(encoded)
                    for position, record in batch:
                        self._update_position(position, None if record is None else next(encoded_records))
                if self._body is not None and not changes:
                    return self._body
                await self._join_segments(work)
                return self._build_body()
        except BaseException:
            self.close()
            raise
        finally:
            self._users -= 1
            self._release()

    def _update_position(self, position: ListPosition, encoded_record: bytes | None) -> None:
        """Insert or replace the encoded record at this position of the list; `None` removes it."""
        if not self._segments:
            if encoded_record is not None:
                self._append_segment(ListSegment([position], [encoded_record]))
            return
        segment_number = max(0, bisect_right(self._first_positions, position) - 1)
        positions, encoded_records = (
            self._segments[segment_number].positions,
            self._segments[segment_number].encoded_records,
        )
        offset_in_segment = bisect_left(positions, position)
        exists = offset_in_segment < len(positions) and positions[offset_in_segment] == position
        if encoded_record is None and not exists:
            return
        if encoded_record is None:
            del positions[offset_in_segment], encoded_records[offset_in_segment]
        elif exists:
            encoded_records[offset_in_segment] = encoded_record
        else:
            positions.insert(offset_in_segment, position)
            encoded_records.insert(offset_in_segment, encoded_record)
        self._replace_segment(segment_number, positions, encoded_records)

    def _replace_segment(
        self, segment_number: int, positions: list[ListPosition], encoded_records: list[bytes]
    ) -> None:
        """Replace a segment by a new object with these records, because existing bodies share the old one.

        An empty segment is removed; a large one is split into two.
        """
        segments = [ListSegment(positions, encoded_records)] if positions else []
        if sum(map(len, encoded_records)) > 2 * BODY_CHUNK_BYTES and len(encoded_records) > 1:
            half = len(encoded_records) // 2
            segments = [
                ListSegment(positions[:half], encoded_records[:half]),
                ListSegment(positions[half:], encoded_records[half:]),
            ]
        self._segments[segment_number : segment_number + 1] = segments
        self._first_positions[segment_number : segment_number + 1] = [segment.positions[0] for segment in segments]


class ListCache:
    """The most recently used cached lists, limited in number and memory."""

    def __init__(self, *, max_lists: int = MAX_CACHED_LISTS, max_bytes: int = MAX_CACHED_LIST_BYTES) -> None:
        self._max_lists = max_lists
        self._max_bytes = max_bytes
        self._lists: OrderedDict[Hashable, CachedList] = OrderedDict()

    def get(self, name: Hashable) -> CachedList | None:
        """Return the cached list, or `None`. A list that missed a change is dropped."""
        cached_list = self._lists.get(name)
        if cached_list is None:
            return None
        if not cached_list.is_current:
            cached_list.close()
            del self._lists[name]
            return None
        self._lists.move_to_end(name)
        return cached_list

    def put(self, name: Hashable, cached_list: CachedList) -> None:
        """Store a filled list, unless it missed a change or is larger than half of the cache.

        Replaces a list of the same name, and drops the least recently used lists above the limits.
        """
        previous = self._lists.pop(name, None)
        if previous is not None:
            previous.close()
        if not cached_list.is_current or cached_list.size > self._max_bytes // 2:
            cached_list.close()
            return
        self._lists[name] = cached_list
        while len(self._lists) > self._max_lists or sum(each.size for each in self._lists.values()) > self._max_bytes:
            self._lists.popitem(last=False)[1].close()
