"""Whole lists that are asked for again and again, kept in pieces: what changed is encoded anew, and only its piece joined.

A roll hears of every change to its table. Asked for, it takes over what changed since it was asked last: the forms of
those records are made, and the pieces that hold them. So a list of ten thousand costs what changed in it. One that too
much changed in, or whose table was loaded anew, is given up; whoever asks next makes it from the beginning.
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
"""More changes than these between two requests, and all is made anew."""
MAX_CACHED_LISTS: Final = 16
MAX_CACHED_LIST_BYTES: Final = 64 * 1024 * 1024
RECORD_OVERHEAD_BYTES: Final = 60
"""What a form takes beside its text."""

GZIP_ENCODING: Final = b"gzip"
GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
RAW_WINDOW_BITS: Final = -zlib.MAX_WBITS

ListPosition = Any
"""Where a record stands: its key, or its CreateIndex and key. Places of one roll can be compared."""


class ListSegment:
    """Records that follow each other: their places and forms, and these in one text, made when it is asked for."""

    __slots__ = ("_deflated", "_deflated_of", "_is_first", "_text", "forms", "places")

    def __init__(self, places: list[ListPosition], forms: list[bytes]) -> None:
        self.places = places
        self.forms = forms
        self._is_first = False
        self._text = b""
        self._deflated = b""
        self._deflated_of = b""

    def get_text(self, *, is_first: bool) -> bytes:
        """What stands in the list, from the bracket or the comma on."""
        if not self._text or is_first != self._is_first:
            self._text = (b"[" if is_first else b",") + b",".join(self.forms)
            self._is_first = is_first
        return self._text

    def get_deflated(self, text: bytes) -> bytes:
        """A text of this piece compressed, as a part that others may stand before and behind."""
        if self._deflated_of is not text:
            compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, RAW_WINDOW_BITS)
            self._deflated = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
            self._deflated_of = text
        return self._deflated


class SegmentedBody(ReplyBody):
    """The list as it stood at one moment. Its texts are those of the pieces, so that a new one costs no copy."""

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
            # A piece that changes meanwhile is another object: these go on being of this moment.
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
"""What stands at each place that something changed at; None: nothing."""


class CachedList:
    """Made in the moment whose records it is filled with; open until `end`."""

    def __init__(self, replica: Replica, spec: ListCacheSpec) -> None:
        self.size = 0
        self._kept = spec
        self._replica = replica
        self._rows = replica.get_table_records(spec.table)
        self._has_ended = False
        self._changed: dict[ListPosition, str] = {}
        """Places that something came to, left, or changed at, with the key."""
        self._pieces: list[ListSegment] = []
        self._firsts: list[ListPosition] = []
        self._body: SegmentedBody | None = None
        self._renewing = asyncio.Lock()
        self._users = 0
        """Those who fill or renew it, or are about to."""
        for table in spec.tables:
            replica.watches.add_observer(table, self)

    @property
    def is_current(self) -> bool:
        """Whether it was told of all that became of its table."""
        return not self._has_ended and self._replica.get_table_records(self._kept.table) is self._rows

    def close(self) -> None:
        """It is told nothing any more. Whoever renews it has what they began with; ending twice is fine."""
        if not self._has_ended:
            self._has_ended = True
            for table in self._kept.tables:
                self._replica.watches.remove_observer(table, self)
        self._let_go()

    def _let_go(self) -> None:
        if self._has_ended and not self._users:
            self._pieces, self._firsts, self._changed, self._body = [], [], {}, None

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        """Of its own table or of that in which its records rest, where the same keys are."""
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
        """With all that is listed, in its order, as it stood when this was made."""
        self._users += 1
        try:
            places: list[ListPosition] = []
            forms: list[bytes] = []
            size = 0
            for start in range(0, len(records), RECORDS_PER_STEP):
                if start:
                    await yield_to_loop()
                several = records[start : start + RECORDS_PER_STEP]
                made = encode_records(several)
                forms += made
                places += [self._kept.get_position(self._kept.table.get_key(record), record) for record in several]
                size += sum(map(len, made))
                if size > BODY_CHUNK_BYTES:
                    self._add(ListSegment(places, forms))
                    places, forms, size = [], [], 0
            if forms:
                self._add(ListSegment(places, forms))
            return self._made()
        except BaseException:
            self.close()  # It is no list that could be renewed.
            raise
        finally:
            self._users -= 1
            self._let_go()

    def _add(self, piece: ListSegment) -> None:
        self._pieces.append(piece)
        self._firsts.append(piece.places[0])

    def _made(self) -> SegmentedBody:
        body = self._body = SegmentedBody(tuple(self._pieces))
        self.size = 2 * body.size + RECORD_OVERHEAD_BYTES * sum(len(piece.forms) for piece in self._pieces)
        return body

    # -- renewing ----------------------------------------------------------------------------------------------------

    def take_changes(self) -> ListChanges:
        """What changed up to this moment. It must be handed to `renewed`, in the order in which it was taken."""
        self._users += 1
        changed, self._changed = self._changed, {}
        return [(place, self._at(place, key)) for place, key in changed.items()]

    def _at(self, place: ListPosition, key: str) -> Any:
        kept, record = self._kept, self._rows.records.get(key)
        if record is None or kept.get_position(key, record) != place:
            return None  # Nothing is there, or it stands elsewhere now.
        return record if kept.is_selected is None or kept.is_selected(record) else None

    async def refresh(self, changes: ListChanges, encode_records: EncodeRecords) -> SegmentedBody:
        try:
            async with self._renewing:
                for start in range(0, len(changes), RECORDS_PER_STEP):
                    if start:
                        await yield_to_loop()
                    several = changes[start : start + RECORDS_PER_STEP]
                    forms = iter(encode_records([record for _, record in several if record is not None]))
                    for place, record in several:
                        self._put(place, None if record is None else next(forms))
                return self._body if self._body is not None and not changes else self._made()
        except BaseException:
            self.close()
            raise
        finally:
            self._users -= 1
            self._let_go()

    def _put(self, place: ListPosition, form: bytes | None) -> None:
        """What stands at this place from now on; None: nothing does."""
        if not self._pieces:
            if form is not None:
                self._add(ListSegment([place], [form]))
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
        self._replace(at, places, forms)

    def _replace(self, at: int, places: list[ListPosition], forms: list[bytes]) -> None:
        """The piece is another object now: bodies that hold the old one have its text."""
        pieces = [ListSegment(places, forms)] if places else []
        if sum(map(len, forms)) > 2 * BODY_CHUNK_BYTES and len(forms) > 1:
            half = len(forms) // 2
            pieces = [ListSegment(places[:half], forms[:half]), ListSegment(places[half:], forms[half:])]
        self._pieces[at : at + 1] = pieces
        self._firsts[at : at + 1] = [piece.places[0] for piece in pieces]


class ListCache:
    """Those that were asked for last."""

    def __init__(self, *, max_lists: int = MAX_CACHED_LISTS, max_bytes: int = MAX_CACHED_LIST_BYTES) -> None:
        self._rolls_max = max_lists
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, CachedList] = OrderedDict()

    def get(self, name: Hashable) -> CachedList | None:
        roll = self._kept.get(name)
        if roll is None:
            return None
        if not roll.is_current:
            roll.close()
            del self._kept[name]
            return None
        self._kept.move_to_end(name)
        return roll

    def put(self, name: Hashable, cached_list: CachedList) -> None:
        """One that is filled. Of two that were made at the same time one is kept."""
        before = self._kept.pop(name, None)
        if before is not None:
            before.close()
        if not cached_list.is_current or cached_list.size > self._max_bytes // 2:
            cached_list.close()
            return
        self._kept[name] = cached_list
        while len(self._kept) > self._rolls_max or sum(each.size for each in self._kept.values()) > self._max_bytes:
            self._kept.popitem(last=False)[1].close()
