"""Bodies made smaller, in steps small enough for a loop that must go on.

Bodies of lists: each record's form encoded once for each version of it, and whole bodies kept while nothing changed.

Work is done in slices, with a pause for the loop between them; what is listed was taken in one step before.
"""

import asyncio
import zlib
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from typing import Any, Final

import msgspec

COMPRESSION_LEVEL: Final = 1
"""The fastest: a list shrinks to a tenth, and stronger levels win little for several times the work."""

COMPRESSION_STEP_BYTES: Final = 256 * 1024
"""Bytes taken in one step: about two milliseconds."""

# How zlib is told to write the header that each encoding has.
WINDOW_BITS_BY_ENCODING: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


def negotiate_encoding(accept_encoding: bytes) -> bytes:
    """The first encoding in the list that is spoken here; weights are not understood (conventions 1.9)."""
    for name in accept_encoding.split(b","):
        if (stripped := name.strip()) in WINDOW_BITS_BY_ENCODING:
            return stripped
    return b""


def compress_parts(parts: Iterable[bytes], encoding: bytes) -> Iterator[bytes]:
    """The parts of the compressed body. Each step takes in a bounded number of bytes; what it yields may be empty."""
    compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, WINDOW_BITS_BY_ENCODING[encoding])
    for part in parts:
        for start in range(0, len(part), COMPRESSION_STEP_BYTES):
            yield compressor.compress(part[start : start + COMPRESSION_STEP_BYTES])
    yield compressor.flush()


RECORDS_PER_STEP: Final = 250
"""Records that are filtered and encoded before others have their turn: two milliseconds."""
BODY_CHUNK_BYTES: Final = 256 * 1024
MAX_CACHED_RECORD_BYTES: Final = 64 * 1024 * 1024
MAX_CACHED_BODY_BYTES: Final = 64 * 1024 * 1024
CACHE_ENTRY_BYTES: Final = 200
"""What an entry weighs beside its bytes."""

encode_json: Final = msgspec.json.Encoder().encode


async def yield_to_loop() -> None:
    """Others have their turn."""
    await asyncio.sleep(0)


class ReplyBody:
    """A body in chunks, and its compressed forms, each made once however many ask for it."""

    __slots__ = ("_compressed", "_lock", "chunks", "size")

    def __init__(self, chunks: Sequence[bytes]) -> None:
        self.chunks = chunks
        self.size = sum(map(len, chunks))
        self._compressed: dict[bytes, Sequence[bytes]] = {}
        self._lock: asyncio.Lock | None = None

    async def get_encoded_chunks(self, encoding: bytes) -> Sequence[bytes]:
        """`encoding` as negotiated; b"": as it is."""
        if not encoding:
            return self.chunks
        if encoding in self._compressed:
            return self._compressed[encoding]
        if self.size <= BODY_CHUNK_BYTES:
            made = self._compressed[encoding] = (b"".join(compress_parts(self.chunks, encoding)),)
            return made
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if encoding not in self._compressed:
                parts = []
                for part in compress_parts(self.chunks, encoding):
                    if part:
                        parts.append(part)
                    await yield_to_loop()
                self._compressed[encoding] = parts
        return self._compressed[encoding]


EMPTY_REPLY_BODY: Final = ReplyBody((b"",))


def encode_body(value: object, *, is_pretty: bool = False) -> ReplyBody:
    data = encode_json(value)
    return ReplyBody((msgspec.json.format(data, indent=4) + b"\n" if is_pretty else data,))


class EncodedRecordCache:
    """The encoded list forms of records, by record and what else the form rests on. A record that was written again is
    another object, so nothing here can be out of date; the oldest go when it is too much."""

    def __init__(self, *, max_bytes: int = MAX_CACHED_RECORD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[str, int], tuple[object, object, bytes]] = OrderedDict()

    def get(self, list_name: str, record: object, dependency: object) -> bytes | None:
        kept = self._kept.get((list_name, id(record)))
        return kept[2] if kept is not None and kept[0] is record and kept[1] is dependency else None

    def get_all(self, list_name: str, records: Sequence[object], dependencies: Sequence[object]) -> list[bytes | None]:
        """The same for many, at a third of the cost."""
        kept_under = self._kept.get
        return [
            kept[2]
            if (kept := kept_under((list_name, id(record)))) is not None and kept[0] is record and kept[1] is rest
            else None
            for record, rest in zip(records, dependencies, strict=True)
        ]

    def put(self, list_name: str, record: object, dependency: object, data: bytes) -> None:
        """Holds on to the record, so that its id is that of no other while the entry is here."""
        key = (list_name, id(record))
        before = self._kept.pop(key, None)
        self._bytes += len(data) + CACHE_ENTRY_BYTES - (len(before[2]) + CACHE_ENTRY_BYTES if before else 0)
        self._kept[key] = (record, dependency, data)
        while self._bytes > self._max_bytes:
            _, oldest = self._kept.popitem(last=False)
            self._bytes -= len(oldest[2]) + CACHE_ENTRY_BYTES


class ListBodyCache:
    """Whole bodies of lists, each with what it stood for, for the next who asks the same before anything changed."""

    def __init__(self, *, max_bytes: int = MAX_CACHED_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._kept: OrderedDict[Hashable, tuple[Hashable, ReplyBody, str]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable) -> tuple[ReplyBody, str] | None:
        kept = self._kept.get(key)
        if kept is None or kept[0] != version:
            return None
        self._kept.move_to_end(key)
        return kept[1], kept[2]

    def put(self, key: Hashable, version: Hashable, body: ReplyBody, next_token: str) -> None:
        self._drop(key)
        if body.size > self._max_bytes // 2:
            return
        self._kept[key] = (version, body, next_token)
        self._bytes += body.size + CACHE_ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Hashable) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept[1].size + CACHE_ENTRY_BYTES


EncodeRecords = Callable[[Sequence[Any]], list[bytes]]
"""The forms of records, some hundred at a time."""


async def encode_list(records: Sequence[Any], encode_records: EncodeRecords, *, is_pretty: bool) -> ReplyBody:
    """A JSON list of the records' forms."""
    chunks: list[bytes] = []
    forms: list[bytes] = []
    size = 0
    for start in range(0, len(records), RECORDS_PER_STEP):
        if start:
            await yield_to_loop()
        made = encode_records(records[start : start + RECORDS_PER_STEP])
        forms += map(_indented, made) if is_pretty else made
        size += sum(map(len, made))
        if size > BODY_CHUNK_BYTES:
            chunks.append(_joined(forms, is_first=not chunks, pretty=is_pretty))
            forms, size = [], 0
    if forms:
        chunks.append(_joined(forms, is_first=not chunks, pretty=is_pretty))
    if not chunks:
        return ReplyBody((b"[]\n" if is_pretty else b"[]",))
    chunks.append(b"\n]\n" if is_pretty else b"]")
    return ReplyBody(chunks if len(chunks) > 2 else (b"".join(chunks),))


def _joined(forms: list[bytes], *, is_first: bool, pretty: bool) -> bytes:
    between = b",\n    " if pretty else b","
    beginning = (b"[\n    " if pretty else b"[") if is_first else between
    return beginning + between.join(forms)


def _indented(form: bytes) -> bytes:
    """Texts hold no line ends in JSON, so every one is the layout's."""
    return msgspec.json.format(form, indent=4).replace(b"\n", b"\n    ")
