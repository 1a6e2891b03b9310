"""A cache of whole encoded lists, stored in segments.

A cached list observes changes of its table. A request encodes only the records that changed since the last request,
and joins only their segments again, so the cost depends on the changes and not on the length of the list. A list with
too many changes, or whose table was reloaded, is dropped; the next request encodes it completely.
"""

import asyncio
import zlib
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Hashable, Sequence
from typing import Any, Final

from wharf.cluster.api.lists.listing import ListCacheSpec
from wharf.cluster.api.replies.encoding import (
    BODY_CHUNK_BYTES,
    COMPRESSION_LEVEL,
    RECORDS_PER_STEP,
    EncodeRecords,
    ReplyBody,
    yield_to_loop,
)
from wharf.cluster.state import Replica
from wharf.cluster.state.watches import RecordChange

MAX_LIST_CHANGES: Final = 2_000
"""Changes between two requests above which the list is dropped and encoded completely."""
MAX_CACHED_LISTS: Final = 16
MAX_CACHED_LIST_BYTES: Final = 64 * 1024 * 1024
RECORD_OVERHEAD_BYTES: Final = 60
"""Estimated memory of an encoded record in addition to its text."""

GZIP_ENCODING: Final = b"gzip"
GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
RAW_WINDOW_BITS: Final = -zlib.MAX_WBITS

ListPosition = Any
"""The sort key of a record in a list: its table key, or its create index and table key."""


class ListSegment:
    """Consecutive records of a list: their positions, their encodings, and the joined text, built on first use."""

    __slots__ = ("_deflated", "_deflated_of", "_is_first", "_text", "forms", "places")

    def __init__(self, places: list[ListPosition], forms: list[bytes]) -> None:
        self.places = places
        self.forms = forms
        self._is_first = False
        self._text = b""
        self._deflated = b""
        self._deflated_of = b""

    def get_text(self, *, is_first: bool) -> bytes:
        """Return the joined records, with the list's bracket or a comma before them."""
        if not self._text or is_first != self._is_first:
            self._text = (b"[" if is_first else b",") + b",".join(self.forms)
            self._is_first = is_first
        return self._text

    def get_deflated(self, text: bytes) -> bytes:
        """Return the compressed text, as a deflate block that can be concatenated with those of other segments."""
        if self._deflated_of is not text:
            compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, RAW_WINDOW_BITS)
            self._deflated = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
            self._deflated_of = text
        return self._deflated


class SegmentedBody(ReplyBody):
    """The list at one log index. It shares the texts of the segments, so a new body copies nothing."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Sequence[ListSegment]) -> None:
        self._pieces = pieces
        texts = [piece.get_text(is_first=not number) for number, piece in enumerate(pieces)]
        super().__init__([*texts, b"]"] if texts else [b"[]"])

    async def get_encoded_chunks(self, encoding: bytes) -> Sequence[bytes]:
        if encoding != GZIP_ENCODING:
            return await super().get_encoded_chunks(encoding)
        if encoding not in self._compressed:
            checksum, parts = 0, [GZIP_HEADER]
            # A changed segment is replaced by a new object, so these segments stay as they were.
            for text, piece in zip(self.chunks, self._pieces, strict=False):
                parts.append(piece.get_deflated(text))
                checksum = zlib.crc32(text, checksum)
                await yield_to_loop()
            compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, RAW_WINDOW_BITS)
            end = compressor.compress(self.chunks[-1]) + compressor.flush(zlib.Z_FINISH)
            checksum = zlib.crc32(self.chunks[-1], checksum)
            parts.append(end + checksum.to_bytes(4, "little") + (self.size & 0xFFFFFFFF).to_bytes(4, "little"))
            self._compressed[encoding] = parts
        return self._compressed[encoding]


ListChanges = Sequence[tuple[ListPosition, Any]]
"""Changed positions, each with its record, or `None` if no record is at that position any more."""


class CachedList:
    """One cached list. It observes its tables from creation until `close`, and must be created before `fill` reads."""

    def __init__(self, replica: Replica, spec: ListCacheSpec) -> None:
        self.size = 0
        self._kept = spec
        self._replica = replica
        self._rows = replica.get_table_records(spec.table)
        self._is_closed = False
        self._changed: dict[ListPosition, str] = {}
        """Changed positions, with the key of the record."""
        self._pieces: list[ListSegment] = []
        self._firsts: list[ListPosition] = []
        self._body: SegmentedBody | None = None
        self._refresh_lock = asyncio.Lock()
        self._users = 0
        """Number of fills and refreshes that are in progress or about to start."""
        for table in spec.tables:
            replica.watches.add_observer(table, self)

    @property
    def is_current(self) -> bool:
        """Whether it has observed every change of its table."""
        return not self._is_closed and self._replica.get_table_records(self._kept.table) is self._rows

    def close(self) -> None:
        """Stop observing. Refreshes in progress complete with the data they started with. Closing twice is allowed."""
        if not self._is_closed:
            self._is_closed = True
            for table in self._kept.tables:
                self._replica.watches.remove_observer(table, self)
        self._release()

    def _release(self) -> None:
        if self._is_closed and not self._users:
            self._pieces, self._firsts, self._changed, self._body = [], [], {}, None

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """Record changes of the list's table or of its dependency table, which has the same keys."""
        kept = self._kept
        for key, old, new in changes:
            if not key.startswith(kept.prefix):
                continue
            if not kept.is_by_creation:
                self._changed[key] = key
                continue
            for record in (old, new):
                if record is not None:
                    self._changed[kept.get_position(key, record)] = key
        if len(self._changed) > MAX_LIST_CHANGES:
            self.close()

    # -- making ------------------------------------------------------------------------------------------------------

    async def fill(self, records: Sequence[Any], encode_records: EncodeRecords) -> SegmentedBody:
        """Encode all records of the list, in order, and return its body."""
        self._users += 1
        try:
            places: list[ListPosition] = []
            forms: list[bytes] = []
            size = 0
            for start in range(0, len(records), RECORDS_PER_STEP):
                if start:
                    await yield_to_loop()
                batch = records[start : start + RECORDS_PER_STEP]
                made = encode_records(batch)
                forms += made
                places += [self._kept.get_position(self._kept.table.get_key(record), record) for record in batch]
                size += sum(map(len, made))
                if size > BODY_CHUNK_BYTES:
                    self._append_segment(ListSegment(places, forms))
                    places, forms, size = [], [], 0
            if forms:
                self._append_segment(ListSegment(places, forms))
            return self._build_body()
        except BaseException:
            self.close()  # An incomplete list cannot be refreshed.
            raise
        finally:
            self._users -= 1
            self._release()

    def _append_segment(self, piece: ListSegment) -> None:
        self._pieces.append(piece)
        self._firsts.append(piece.places[0])

    def _build_body(self) -> SegmentedBody:
        body = self._body = SegmentedBody(tuple(self._pieces))
        self.size = 2 * body.size + RECORD_OVERHEAD_BYTES * sum(len(piece.forms) for piece in self._pieces)
        return body

    # -- renewing ----------------------------------------------------------------------------------------------------

    def take_changes(self) -> ListChanges:
        """Return the changes since the last call. Pass them to `refresh`, in the order in which they were taken."""
        self._users += 1
        changed, self._changed = self._changed, {}
        return [(place, self._get_record(place, key)) for place, key in changed.items()]

    def _get_record(self, place: ListPosition, key: str) -> Any:
        kept, record = self._kept, self._rows.records.get(key)
        if record is None or kept.get_position(key, record) != place:
            return None  # The record was deleted or has another position now.
        return record if kept.is_selected is None or kept.is_selected(record) else None

    async def refresh(self, changes: ListChanges, encode_records: EncodeRecords) -> SegmentedBody:
        try:
            async with self._refresh_lock:
                for start in range(0, len(changes), RECORDS_PER_STEP):
                    if start:
                        await yield_to_loop()
                    batch = changes[start : start + RECORDS_PER_STEP]
                    forms = iter(encode_records([record for _, record in batch if record is not None]))
                    for place, record in batch:
                        self._update_position(place, None if record is None else next(forms))
                return self._body if self._body is not None and not changes else self._build_body()
        except BaseException:
            self.close()
            raise
        finally:
            self._users -= 1
            self._release()

    def _update_position(self, place: ListPosition, form: bytes | None) -> None:
        """Insert or replace the encoded record at the position; `None` removes it."""
        if not self._pieces:
            if form is not None:
                self._append_segment(ListSegment([place], [form]))
            return
        at = max(0, bisect_right(self._firsts, place) - 1)
        places, forms = self._pieces[at].places, self._pieces[at].forms
        position = bisect_left(places, place)
        is_there = position < len(places) and places[position] == place
        if form is None and not is_there:
            return
        if form is None:
            del places[position], forms[position]
        elif is_there:
            forms[position] = form
        else:
            places.insert(position, place)
            forms.insert(position, form)
        self._replace_segment(at, places, forms)

    def _replace_segment(self, at: int, places: list[ListPosition], forms: list[bytes]) -> None:
        """Replace a segment with a new object, because existing bodies share the old one. A large segment is split."""
        pieces = [ListSegment(places, forms)] if places else []
        if sum(map(len, forms)) > 2 * BODY_CHUNK_BYTES and len(forms) > 1:
            half = len(forms) // 2
            pieces = [ListSegment(places[:half], forms[:half]), ListSegment(places[half:], forms[half:])]
        self._pieces[at : at + 1] = pieces
        self._firsts[at : at + 1] = [piece.places[0] for piece in pieces]


class ListCache:
    """The most recently used cached lists."""

    def __init__(self, *, max_lists: int = MAX_CACHED_LISTS, max_bytes: int = MAX_CACHED_LIST_BYTES) -> None:
        self._max_lists = max_lists
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, CachedList] = OrderedDict()

    def get(self, name: Hashable) -> CachedList | None:
        entry = self._kept.get(name)
        if entry is None:
            return None
        if not entry.is_current:
            entry.close()
            del self._kept[name]
            return None
        self._kept.move_to_end(name)
        return entry

    def put(self, name: Hashable, cached_list: CachedList) -> None:
        """Store a filled list. It replaces a list of the same name that was built concurrently."""
        before = self._kept.pop(name, None)
        if before is not None:
            before.close()
        if not cached_list.is_current or cached_list.size > self._max_bytes // 2:
            cached_list.close()
            return
        self._kept[name] = cached_list
        while len(self._kept) > self._max_lists or sum(each.size for each in self._kept.values()) > self._max_bytes:
            self._kept.popitem(last=False)[1].close()
