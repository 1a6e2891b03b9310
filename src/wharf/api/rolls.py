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

from wharf.api.compression import LEVEL
from wharf.api.encoding import AT_ONCE, CHUNK_BYTES, Body, FormsOf, pause
from wharf.api.listing import Kept
from wharf.state import Replica
from wharf.state.watches import Changed

CHANGES_MAX: Final = 2_000
"""More changes than these between two requests, and all is made anew."""
ROLLS_MAX: Final = 16
ROLLS_MAX_BYTES: Final = 64 * 1024 * 1024
FORM_BYTES: Final = 60
"""What a form takes beside its text."""

GZIP: Final = b"gzip"
GZIP_HEADER: Final = b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\xff"
RAW_WINDOW: Final = -zlib.MAX_WBITS

Place = Any
"""Where a record stands: its key, or its CreateIndex and key. Places of one roll can be compared."""


class Piece:
    """Records that follow each other: their places and forms, and these in one text, made when it is asked for."""

    __slots__ = ("_deflated", "_deflated_of", "_is_first", "_text", "forms", "places")

    def __init__(self, places: list[Place], forms: list[bytes]) -> None:
        self.places = places
        self.forms = forms
        self._is_first = False
        self._text = b""
        self._deflated = b""
        self._deflated_of = b""

    def text(self, *, is_first: bool) -> bytes:
        """What stands in the list, from the bracket or the comma on."""
        if not self._text or is_first != self._is_first:
            self._text = (b"[" if is_first else b",") + b",".join(self.forms)
            self._is_first = is_first
        return self._text

    def deflated(self, text: bytes) -> bytes:
        """A text of this piece compressed, as a part that others may stand before and behind."""
        if self._deflated_of is not text:
            compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW_WINDOW)
            self._deflated = compressor.compress(text) + compressor.flush(zlib.Z_SYNC_FLUSH)
            self._deflated_of = text
        return self._deflated


class PiecedBody(Body):
    """The list as it stood at one moment. Its texts are those of the pieces, so that a new one costs no copy."""

    __slots__ = ("_pieces",)

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces = pieces
        texts = [piece.text(is_first=not number) for number, piece in enumerate(pieces)]
        super().__init__([*texts, b"]"] if texts else [b"[]"])

    async def as_encoded(self, encoding: bytes) -> Sequence[bytes]:
        if encoding != GZIP:
            return await super().as_encoded(encoding)
        if encoding not in self._compressed:
            checksum, parts = 0, [GZIP_HEADER]
            # A piece that changes meanwhile is another object: these go on being of this moment.
            for text, piece in zip(self.chunks, self._pieces, strict=False):
                parts.append(piece.deflated(text))
                checksum = zlib.crc32(text, checksum)
                await pause()
            compressor = zlib.compressobj(LEVEL, zlib.DEFLATED, RAW_WINDOW)
            end = compressor.compress(self.chunks[-1]) + compressor.flush(zlib.Z_FINISH)
            checksum = zlib.crc32(self.chunks[-1], checksum)
            parts.append(end + checksum.to_bytes(4, "little") + (self.size & 0xFFFFFFFF).to_bytes(4, "little"))
            self._compressed[encoding] = parts
        return self._compressed[encoding]


Changes = Sequence[tuple[Place, Any]]
"""What stands at each place that something changed at; None: nothing."""


class Roll:
    """Made in the moment whose records it is filled with; open until `end`."""

    def __init__(self, replica: Replica, kept: Kept) -> None:
        self.size = 0
        self._kept = kept
        self._replica = replica
        self._rows = replica.rows(kept.table)
        self._has_ended = False
        self._changed: dict[Place, str] = {}
        """Places that something came to, left, or changed at, with the key."""
        self._pieces: list[Piece] = []
        self._firsts: list[Place] = []
        self._body: PiecedBody | None = None
        self._renewing = asyncio.Lock()
        self._users = 0
        """Those who fill or renew it, or are about to."""
        for table in kept.tables:
            replica.watches.keep_journal(table, self)

    @property
    def is_of_now(self) -> bool:
        """Whether it was told of all that became of its table."""
        return not self._has_ended and self._replica.rows(self._kept.table) is self._rows

    def end(self) -> None:
        """It is told nothing any more. Whoever renews it has what they began with; ending twice is fine."""
        if not self._has_ended:
            self._has_ended = True
            for table in self._kept.tables:
                self._replica.watches.end_journal(table, self)
        self._let_go()

    def _let_go(self) -> None:
        if self._has_ended and not self._users:
            self._pieces, self._firsts, self._changed, self._body = [], [], {}, None

    def note(self, changes: Sequence[Changed]) -> None:
        """Of its own table or of that in which its records rest, where the same keys are."""
        kept = self._kept
        for key, old, new in changes:
            if not key.startswith(kept.prefix):
                continue
            if not kept.by_creation:
                self._changed[key] = key
                continue
            for record in (old, new):
                if record is not None:
                    self._changed[kept.place_of(key, record)] = key
        if len(self._changed) > CHANGES_MAX:
            self.end()

    # -- making ------------------------------------------------------------------------------------------------------

    async def fill(self, records: Sequence[Any], forms_of: FormsOf) -> PiecedBody:
        """With all that is listed, in its order, as it stood when this was made."""
        self._users += 1
        try:
            places: list[Place] = []
            forms: list[bytes] = []
            size = 0
            for start in range(0, len(records), AT_ONCE):
                if start:
                    await pause()
                several = records[start : start + AT_ONCE]
                made = forms_of(several)
                forms += made
                places += [self._kept.place_of(self._kept.table.key_of(record), record) for record in several]
                size += sum(map(len, made))
                if size > CHUNK_BYTES:
                    self._add(Piece(places, forms))
                    places, forms, size = [], [], 0
            if forms:
                self._add(Piece(places, forms))
            return self._made()
        except BaseException:
            self.end()  # It is no list that could be renewed.
            raise
        finally:
            self._users -= 1
            self._let_go()

    def _add(self, piece: Piece) -> None:
        self._pieces.append(piece)
        self._firsts.append(piece.places[0])

    def _made(self) -> PiecedBody:
        body = self._body = PiecedBody(tuple(self._pieces))
        self.size = 2 * body.size + FORM_BYTES * sum(len(piece.forms) for piece in self._pieces)
        return body

    # -- renewing ----------------------------------------------------------------------------------------------------

    def changes(self) -> Changes:
        """What changed up to this moment. It must be handed to `renewed`, in the order in which it was taken."""
        self._users += 1
        changed, self._changed = self._changed, {}
        return [(place, self._at(place, key)) for place, key in changed.items()]

    def _at(self, place: Place, key: str) -> Any:
        kept, record = self._kept, self._rows.records.get(key)
        if record is None or kept.place_of(key, record) != place:
            return None  # Nothing is there, or it stands elsewhere now.
        return record if kept.chooses is None or kept.chooses(record) else None

    async def renewed(self, changes: Changes, forms_of: FormsOf) -> PiecedBody:
        try:
            async with self._renewing:
                for start in range(0, len(changes), AT_ONCE):
                    if start:
                        await pause()
                    several = changes[start : start + AT_ONCE]
                    forms = iter(forms_of([record for _, record in several if record is not None]))
                    for place, record in several:
                        self._put(place, None if record is None else next(forms))
                return self._body if self._body is not None and not changes else self._made()
        except BaseException:
            self.end()
            raise
        finally:
            self._users -= 1
            self._let_go()

    def _put(self, place: Place, form: bytes | None) -> None:
        """What stands at this place from now on; None: nothing does."""
        if not self._pieces:
            if form is not None:
                self._add(Piece([place], [form]))
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

    def _replace(self, at: int, places: list[Place], forms: list[bytes]) -> None:
        """The piece is another object now: bodies that hold the old one have its text."""
        pieces = [Piece(places, forms)] if places else []
        if sum(map(len, forms)) > 2 * CHUNK_BYTES and len(forms) > 1:
            half = len(forms) // 2
            pieces = [Piece(places[:half], forms[:half]), Piece(places[half:], forms[half:])]
        self._pieces[at : at + 1] = pieces
        self._firsts[at : at + 1] = [piece.places[0] for piece in pieces]


class Rolls:
    """Those that were asked for last."""

    def __init__(self, *, rolls_max: int = ROLLS_MAX, max_bytes: int = ROLLS_MAX_BYTES) -> None:
        self._rolls_max = rolls_max
        self._max_bytes = max_bytes
        self._kept: OrderedDict[Hashable, Roll] = OrderedDict()

    def get(self, name: Hashable) -> Roll | None:
        roll = self._kept.get(name)
        if roll is None:
            return None
        if not roll.is_of_now:
            roll.end()
            del self._kept[name]
            return None
        self._kept.move_to_end(name)
        return roll

    def keep(self, name: Hashable, roll: Roll) -> None:
        """One that is filled. Of two that were made at the same time one is kept."""
        before = self._kept.pop(name, None)
        if before is not None:
            before.end()
        if not roll.is_of_now or roll.size > self._max_bytes // 2:
            roll.end()
            return
        self._kept[name] = roll
        while len(self._kept) > self._rolls_max or sum(each.size for each in self._kept.values()) > self._max_bytes:
            self._kept.popitem(last=False)[1].end()
