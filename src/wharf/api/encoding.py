"""Bodies of lists: each record's form encoded once for each version of it, and whole bodies kept while nothing changed.

Work is done in slices, with a pause for the loop between them; what is listed was taken in one step before.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import Any, Final

import msgspec

from wharf.api.compression import compressed

AT_ONCE: Final = 250
"""Records that are filtered and encoded before others have their turn: two milliseconds."""
CHUNK_BYTES: Final = 256 * 1024
FORMS_MAX_BYTES: Final = 64 * 1024 * 1024
BODIES_MAX_BYTES: Final = 64 * 1024 * 1024
ENTRY_BYTES: Final = 200
"""What an entry weighs beside its bytes."""

encode: Final = msgspec.json.Encoder().encode


async def pause() -> None:
    """Others have their turn."""
    await asyncio.sleep(0)


class Body:
    """A body in chunks, and its compressed forms, each made once however many ask for it."""

    __slots__ = ("_compressed", "_lock", "chunks", "size")

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self.chunks = chunks
        self.size = sum(map(len, chunks))
        self._compressed: dict[bytes, Sequence[bytes]] = {}
        self._lock: asyncio.Lock | None = None

    async def as_encoded(self, encoding: bytes) -> Sequence[bytes]:
        """`encoding` as negotiated; b"": as it is."""
        if not encoding:
            return self.chunks
        if encoding in self._compressed:
            return self._compressed[encoding]
        if self.size <= CHUNK_BYTES:
            made = self._compressed[encoding] = (b"".join(compressed(self.chunks, encoding)),)
            return made
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if encoding not in self._compressed:
                parts = []
                for part in compressed(self.chunks, encoding):
                    if part:
                        parts.append(part)
                    await pause()
                self._compressed[encoding] = parts
        return self._compressed[encoding]


EMPTY: Final = Body((b"",))


def body_of(value: object, *, pretty: bool = False) -> Body:
    data = encode(value)
    return Body((msgspec.json.format(data, indent=4) + b"\n" if pretty else data,))


class Forms:
    """The encoded list forms of records, by record and what else the form rests on. A record that was written again is
    another object, so nothing here can be out of date; the oldest go when it is too much."""

    def __init__(self, *, max_bytes: int = FORMS_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int], tuple[object, object, bytes]] = OrderedDict()

    def get(self, form: str, record: object, rests_on: object) -> bytes | None:
        kept = self._kept.get((form, id(record)))
        return kept[2] if kept is not None and kept[0] is record and kept[1] is rests_on else None

    def get_all(self, form: str, records: Sequence[object], rest_on: Sequence[object]) -> list[bytes | None]:
        """The same for many, at a third of the cost."""
        kept_under = self._kept.get
        return [
            kept[2]
            if (kept := kept_under((form, id(record)))) is not None and kept[0] is record and kept[1] is rest
            else None
            for record, rest in zip(records, rest_on, strict=True)
        ]

    def keep(self, form: str, record: object, rests_on: object, data: bytes) -> None:
        """Holds on to the record, so that its id is that of no other while the entry is here."""
        key = (form, id(record))
        before = self._kept.pop(key, None)
        self._bytes += len(data) + ENTRY_BYTES - (len(before[2]) + ENTRY_BYTES if before else 0)
        self._kept[key] = (record, rests_on, data)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest[2]) + ENTRY_BYTES


class Bodies:
    """Whole bodies of lists, each with what it stood for, for the next who asks the same before anything changed."""

    def __init__(self, *, max_bytes: int = BODIES_MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Hashable, Body, str]] = OrderedDict()

    def get(self, key: Hashable, stands_for: Hashable) -> tuple[Body, str] | None:
        kept = self._kept.get(key)
        if kept is None or kept[0] != stands_for:
            return None
        self._kept.move_to_end(key)
        return kept[1], kept[2]

    def keep(self, key: Hashable, stands_for: Hashable, body: Body, next_token: str) -> None:
        self._drop(key)
        if body.size > self._max_bytes // 2:
            return
        self._kept[key] = (stands_for, body, next_token)
        self._bytes += body.size + ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept[1].size + ENTRY_BYTES


FormsOf = Callable[[Sequence[Any]], list[bytes]]
"""The forms of records, some hundred at a time."""


async def encode_list(records: Sequence[Any], forms_of: FormsOf, *, pretty: bool) -> Body:
    """A JSON list of the records' forms."""
    chunks: list[bytes] = []
    forms: list[bytes] = []
    size = 0
    for start in range(0, len(records), AT_ONCE):
        if start:
            await pause()
        made = forms_of(records[start : start + AT_ONCE])
        forms += map(_indented, made) if pretty else made
        size += sum(map(len, made))
        if size > CHUNK_BYTES:
            chunks.append(_joined(forms, is_first=not chunks, pretty=pretty))
            forms, size = [], 0
    if forms:
        chunks.append(_joined(forms, is_first=not chunks, pretty=pretty))
    if not chunks:
        return Body((b"[]\n" if pretty else b"[]",))
    chunks.append(b"\n]\n" if pretty else b"]")
    return Body(chunks if len(chunks) > 2 else (b"".join(chunks),))


def _joined(forms: list[bytes], *, is_first: bool, pretty: bool) -> bytes:
    between = b",\n    " if pretty else b","
    beginning = (b"[\n    " if pretty else b"[") if is_first else between
    return beginning + between.join(forms)


def _indented(form: bytes) -> bytes:
    """Texts hold no line ends in JSON, so every one is the layout's."""
    return msgspec.json.format(form, indent=4).replace(b"\n", b"\n    ")
