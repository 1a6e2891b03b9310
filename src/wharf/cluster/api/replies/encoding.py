"""Encoding and compression of reply bodies, with caches of encoded records and whole lists.

Large bodies are processed in slices that yield to the event loop, so that other requests are not delayed.
"""

import asyncio
import re
import zlib
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from functools import lru_cache
from typing import Final

import msgspec

from wharf.cluster.api.held_memory import HeldMemory, MemoryLimit
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.cluster.state.packed_map import encode_packed_as_dict
from wharf.contract.model.message_texts import format_reply_messages

COMPRESSION_LEVEL: Final = 1
"""The fastest level: a list shrinks to a tenth; higher levels save little more for several times the CPU time."""

COMPRESSION_STEP_BYTES: Final = 256 * 1024
"""Bytes compressed in one step: about two milliseconds."""

# The `wbits` value selects which header zlib writes.
WINDOW_BITS_BY_ENCODING: Final = {b"gzip": 16 + zlib.MAX_WBITS, b"deflate": zlib.MAX_WBITS}


STREAM_WINDOW_BITS: Final = 13
STREAM_MEMORY_LEVEL: Final = 6
"""Limit the memory of a compressed stream to 64 KB. With 256 KB, streams of log lines are 5 % smaller."""

MAX_ACCEPT_ENCODING_BYTES: Final = 1_024
"""Longer `Accept-Encoding` headers are not parsed, and the reply is not compressed; limits the work of a request."""
MAX_CACHED_NEGOTIATIONS: Final = 256
"""Limits the memory of parsed `Accept-Encoding` headers. Clients send few different ones."""
_ACCEPTED_CODING: Final = re.compile(
    rb"(?P<coding>[!#$%&'*+.^_`|~0-9a-z-]+)(?:[ \t]*;[ \t]*q=(?P<weight>0(?:\.[0-9]{0,3})?|1(?:\.0{0,3})?))?"
)


@lru_cache(maxsize=MAX_CACHED_NEGOTIATIONS)
def negotiate_encoding(accept_encoding: bytes) -> bytes:
    """Return the encoding of the reply by the `Accept-Encoding` header: gzip if it is acceptable, else deflate, else b"".

    Follows the grammar of RFC 9110, 12.5.3: names in any case, weights from 0 (not acceptable) to 1, and `*` for all
    encodings that are not named. Malformed members of the list are ignored.
    """
    if len(accept_encoding) > MAX_ACCEPT_ENCODING_BYTES:
        return b""
    is_accepted: dict[bytes, bool] = {}
    for member in accept_encoding.lower().split(b","):
        match = _ACCEPTED_CODING.fullmatch(member.strip(b" \t"))
        if match is not None:
            coding = b"gzip" if match["coding"] == b"x-gzip" else match["coding"]
            is_accepted.setdefault(coding, match["weight"] is None or bool(match["weight"].strip(b"0.")))
    for encoding in WINDOW_BITS_BY_ENCODING:  # In order of preference.
        if is_accepted.get(encoding, is_accepted.get(b"*", False)):
            return encoding
    return b""


def compress_parts(parts: Iterable[bytes], encoding: bytes) -> Iterator[bytes]:
    """Yield the compressed body in parts, some of which may be empty.

    Each step compresses at most `COMPRESSION_STEP_BYTES`, so that the caller can run other tasks in between.
    """
    compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, WINDOW_BITS_BY_ENCODING[encoding])
    for part in parts:
        for start in range(0, len(part), COMPRESSION_STEP_BYTES):
            yield compressor.compress(part[start : start + COMPRESSION_STEP_BYTES])
    yield compressor.flush()


class StreamCompressor:
    """Compresses the parts of a stream so that a reader can decompress each part as soon as it has arrived."""

    def __init__(self, encoding: bytes) -> None:
        window_bits = WINDOW_BITS_BY_ENCODING[encoding] - zlib.MAX_WBITS + STREAM_WINDOW_BITS
        self._compressor = zlib.compressobj(COMPRESSION_LEVEL, zlib.DEFLATED, window_bits, STREAM_MEMORY_LEVEL)

    def begin(self) -> bytes:
        """Return the header of the stream. Some readers wait for it before they return the reply."""
        return self._compressor.flush(zlib.Z_SYNC_FLUSH)

    def compress(self, part: bytes) -> bytes:
        """Return the part compressed. An empty part stays empty."""
        return self._compressor.compress(part) + self._compressor.flush(zlib.Z_SYNC_FLUSH) if part else b""

    def end(self) -> bytes:
        """Return the end of the stream, without which a reader reports that the stream was cut off."""
        return self._compressor.flush()


RECORDS_PER_STEP: Final = 250
"""Records filtered and encoded before yielding to the event loop: about two milliseconds."""
INDENTATION: Final = 4
"""Spaces for each level of indented JSON."""
INDENTED_BYTES_PER_STEP: Final = 256 * 1024
"""Bytes that are indented in one step: about a millisecond."""
_decode_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_decode_elements: Final = msgspec.json.Decoder(list[msgspec.Raw]).decode

BODY_CHUNK_BYTES: Final = 256 * 1024
MAX_CACHED_RECORD_BYTES: Final = 64 * 1024 * 1024
MAX_CACHED_BODY_BYTES: Final = 64 * 1024 * 1024
CACHE_ENTRY_BYTES: Final = 200
"""Estimated memory of a cache entry in addition to its data."""

encode_json: Final = msgspec.json.Encoder(enc_hook=encode_packed_as_dict).encode


MAX_REPLY_MEMORY: Final = 512_000_000
"""Bytes of lists in one api process that are being built, sent or cached. Protects its memory against many callers of large
lists that differ, or that callers read slowly."""


def make_reply_memory(max_bytes: int = MAX_REPLY_MEMORY) -> MemoryLimit:
    """Return the memory for the lists of one api process. A single list may take more."""
    return MemoryLimit(
        max_bytes, "lists that are built or sent", alternative=", or read pages with per_page", is_one_always_held=True
    )


class ReplyBody:
    """The body of a reply in chunks. Each compressed version is created once and shared by all callers."""

    __slots__ = ("_compressed", "_held", "_lock", "chunks", "size")

    def __init__(self, chunks: Sequence[bytes], held: HeldMemory | None = None) -> None:
        """`held` counts the memory of the chunks."""
        self.chunks = chunks
        self.size = sum(map(len, chunks))
        self._held = held
        self._compressed: dict[bytes, Sequence[bytes]] = {}
        self._lock: asyncio.Lock | None = None

    async def get_encoded_chunks(self, encoding: bytes, loop_slots: LoopSlots) -> Sequence[bytes]:
        """Return the chunks in the encoding (gzip, deflate or b"" for uncompressed), compressed at the first call.

        Each part of a large body is compressed in a slot of its own.
        """
        if not encoding:
            return self.chunks
        if encoding in self._compressed:
            return self._compressed[encoding]
        if self.size <= BODY_CHUNK_BYTES:
            encoded = self._compressed[encoding] = (b"".join(compress_parts(self.chunks, encoding)),)
            return encoded
        if self._lock is None:
            self._lock = asyncio.Lock()
        async with self._lock:
            if encoding not in self._compressed:
                parts = []
                for part in compress_parts(self.chunks, encoding):
                    if part:
                        parts.append(part)
                    await loop_slots.wait()
                self._compressed[encoding] = parts
        return self._compressed[encoding]


EMPTY_REPLY_BODY: Final = ReplyBody((b"",))


def encode_body(value: object, *, is_pretty: bool = False) -> ReplyBody:
    """Return the value as a JSON body, indented if `is_pretty` is set. Long input in its messages is cut."""
    data = encode_json(format_reply_messages(value))
    return ReplyBody((msgspec.json.format(data, indent=4) + b"\n" if is_pretty else data,))


def iterate_indented(data: bytes, *, depth: int) -> Iterator[bytes]:
    """Yield JSON indented, in parts: the members of an object or list that is larger than a step, one by one.

    JSON strings contain no line breaks, so every line break is layout.
    """
    line = b"\n" + b" " * (INDENTATION * depth)
    opening = data[:1]
    if len(data) <= INDENTED_BYTES_PER_STEP or opening not in (b"{", b"["):
        yield msgspec.json.format(data, indent=INDENTATION).replace(b"\n", line)
        return
    inner_line = line + b" " * INDENTATION
    separator = opening + inner_line
    if opening == b"{":
        for key, member in _decode_members(data).items():
            yield separator + encode_json(key) + b": "
            yield from iterate_indented(bytes(member), depth=depth + 1)
            separator = b"," + inner_line
        yield line + b"}"
        return
    for member in _decode_elements(data):
        yield separator
        yield from iterate_indented(bytes(member), depth=depth + 1)
        separator = b"," + inner_line
    yield line + b"]"


class EncodedRecordCache:
    """A cache of encoded list items, by list name, record and the record that the item also depends on.

    An entry compares objects by identity. Each write of a record creates a new object, so an entry is never stale. The
    oldest entries are evicted above `max_bytes`.
    """

    def __init__(self, *, max_bytes: int = MAX_CACHED_RECORD_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[tuple[str, int], tuple[object, object, bytes]] = OrderedDict()

    def get(self, list_name: str, record: object, dependency: object) -> bytes | None:
        """Return the cached item, or `None` if there is none for these objects."""
        entry = self._entries.get((list_name, id(record)))
        return entry[2] if entry is not None and entry[0] is record and entry[1] is dependency else None

    def get_all(self, list_name: str, records: Sequence[object], dependencies: Sequence[object]) -> list[bytes | None]:
        """Return the cached item of each record, or `None` where there is none.

        One call for many records costs a third of single lookups.
        """
        get_entry = self._entries.get
        return [
            entry[2]
            if (entry := get_entry((list_name, id(record)))) is not None
            and entry[0] is record
            and entry[1] is dependency
            else None
            for record, dependency in zip(records, dependencies, strict=True)
        ]

    def put(self, list_name: str, record: object, dependency: object, data: bytes) -> None:
        """Store an item, and evict the oldest items above the memory limit.

        The entry references the record, so that its `id()` cannot be reused meanwhile.
        """
        key = (list_name, id(record))
        previous = self._entries.pop(key, None)
        self._bytes += len(data) + CACHE_ENTRY_BYTES - (len(previous[2]) + CACHE_ENTRY_BYTES if previous else 0)
        self._entries[key] = (record, dependency, data)
        while self._bytes > self._max_bytes:
            _, oldest = self._entries.popitem(last=False)
            self._bytes -= len(oldest[2]) + CACHE_ENTRY_BYTES


class ListBodyCache:
    """A cache of whole encoded lists, each with the version of the data. An entry is used only for the same version."""

    def __init__(self, *, max_bytes: int = MAX_CACHED_BODY_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._entries: OrderedDict[Hashable, tuple[Hashable, ReplyBody, str]] = OrderedDict()

    def get(self, key: Hashable, version: Hashable) -> tuple[ReplyBody, str] | None:
        """Return the body and the next page token that are cached for this key and version, or `None`."""
        entry = self._entries.get(key)
        if entry is None or entry[0] != version:
            return None
        self._entries.move_to_end(key)
        return entry[1], entry[2]

    def put(self, key: Hashable, version: Hashable, body: ReplyBody, next_token: str) -> None:
        """Store a body and its next page token, unless it is larger than half of the cache.

        Evicts the oldest above the limit.
        """
        self._drop(key)
        if body.size > self._max_bytes // 2:
            return
        self._entries[key] = (version, body, next_token)
        self._bytes += body.size + CACHE_ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._entries)))

    def _drop(self, key: Hashable) -> None:
        """Remove an entry, if it exists."""
        entry = self._entries.pop(key, None)
        if entry is not None:
            self._bytes -= entry[1].size + CACHE_ENTRY_BYTES
