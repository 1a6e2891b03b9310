"""Encoding of large values as JSON piece by piece, so that no step takes long. The caller decides what to do in between.

`json.encode` encodes a whole value in one call, which holds the interpreter for 3 ms for each MB. Here a large record is
divided into its fields, a large list into batches of its members, and a long text into parts. The pieces together are
exactly what one call would return (0136).
"""

import copy
import enum
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

import msgspec
from msgspec.structs import astuple

from wharf.cluster.api.held_memory import HeldMemory
from wharf.cluster.api.replies.encoding import (
    BODY_CHUNK_BYTES,
    INDENTATION,
    ReplyBody,
    encode_body,
    encode_json,
    iterate_indented,
)
from wharf.cluster.server.cpu_budget import SlicedWork
from wharf.cluster.state.packed_map import PackedMap
from wharf.contract.model.message_texts import format_reply_messages

PIECE_WEIGHT: Final = 128 * 1024
"""The weight up to which a value is encoded in one step: about half a millisecond, and as much to indent it. Limits how
long one step holds the event loop.
"""
ITEM_WEIGHT: Final = 16
"""The weight of a field, list item or map entry. Each character weighs 1: to encode 16 of them takes as long."""
CONTAINER_WEIGHT: Final = 48
"""The further weight of a record, list or map that is not empty. To measure it takes a third of a microsecond."""
PACKED_WEIGHT: Final = 16
"""The weight of a byte of a packed map: it is decoded, and its views are built, before it is encoded."""
TEXT_PIECE_CHARS: Final = 64 * 1024
"""Characters of a long text that are encoded in one step."""
BINARY_PIECE_BYTES: Final = 48 * 1024
"""Bytes of binary data that are encoded as base64 in one step. A multiple of 3, because base64 encodes 3 bytes together."""

FIELD_WEIGHT: Final = PIECE_WEIGHT // 16
"""The weight above which a field of a heavy record is encoded by itself. All smaller fields are encoded together."""

_PLACEHOLDER: Final = b'"\\u0041"'
"""Stands for a large field while the rest of its record is encoded. The encoder never writes a letter as an escape."""
MAX_LIGHT_RECORDS: Final = 1_024
"""Limits the memory of records that are remembered as light, of up to `MAX_LIGHT_WEIGHT` each."""
MAX_LIGHT_WEIGHT: Final = 16 * 1024
"""Heavier records are not remembered, but measured at each read: that takes less time than to encode them."""

_SCALAR, _TEXT, _LIST, _MAP, _RECORD, _LAZY = range(1, 7)
"""How a value is encoded: in constant time, as a text, or with members."""
_GROUPS_BY_TYPE: Final[dict[type, int]] = {}
"""The groups of the types that were encoded so far."""
_TEXT_TYPES: Final = (str, bytes, bytearray, msgspec.Raw)
_LIST_TYPES: Final = (list, tuple, set, frozenset)


def _find_group(kind: type) -> int:
    """Return the group of a type, and remember it."""
    if issubclass(kind, _TEXT_TYPES) and not issubclass(kind, enum.Enum):
        group = _TEXT
    elif issubclass(kind, _LIST_TYPES):
        group = _LIST
    elif issubclass(kind, dict):
        group = _MAP
    elif issubclass(kind, LazyList | LazyMap):
        group = _LAZY
    else:
        group = _RECORD if issubclass(kind, msgspec.Struct) else _SCALAR
    _GROUPS_BY_TYPE[kind] = group
    return group


class LazyList(msgspec.Struct, frozen=True):
    """A list whose members are computed while it is encoded, so that they need not be in memory together."""

    iterate: Callable[[], Iterator[object]]


class LazyMap(msgspec.Struct, frozen=True):
    """A map whose values are computed while it is encoded."""

    iterate: Callable[[], Iterator[tuple[str, object]]]


class LightRecords:
    """Remembers records that are encoded in one step, because measuring takes longer than encoding them.

    Records are compared by identity. Each write of a record creates a new object.
    """

    def __init__(self) -> None:
        self._records: dict[int, object] = {}

    def is_light(self, value: object) -> bool:
        """Return whether the value is encoded in one step."""
        if self._records.get(id(value)) is value:
            return True
        weight = measure_weight(value)
        if weight <= MAX_LIGHT_WEIGHT:
            if len(self._records) >= MAX_LIGHT_RECORDS:
                self._records = {}
            self._records[id(value)] = value
        return weight <= PIECE_WEIGHT


def is_heavy(value: object) -> bool:
    """Return whether it takes several steps to encode the value."""
    return measure_weight(value) > PIECE_WEIGHT


def measure_weight(value: object, limit: int = PIECE_WEIGHT) -> int:
    """Return about how expensive it is to encode a value. Counting stops above the limit, so it takes little time.

    A small job takes 5 µs.
    """
    weight = 0
    members: Iterable[Any] = (value,)
    unvisited: list[Any] = []
    groups_by_type = _GROUPS_BY_TYPE
    while True:
        for member in members:
            # All that is empty, false or 0 takes no time. The length of a packed map is not known before it is decoded.
            if type(member) is PackedMap:
                weight += PACKED_WEIGHT * member.size
            elif member:
                group = groups_by_type.get(type(member)) or _find_group(type(member))
                if group == _TEXT:
                    weight += len(member)
                elif group != _SCALAR:
                    unvisited.append(member)
        if weight > limit or not unvisited:
            return weight
        node = unvisited.pop()
        group = groups_by_type[type(node)]
        if group == _LAZY:
            return limit + 1
        if group == _RECORD:
            members = astuple(node)
        elif group == _MAP:
            members = (*node, *node.values()) if ITEM_WEIGHT * len(node) <= limit else ()
        else:
            members = node if ITEM_WEIGHT * len(node) <= limit else ()
        weight += CONTAINER_WEIGHT + ITEM_WEIGHT * len(node if group != _RECORD else members)


async def encode_in_slices(
    value: object, work: SlicedWork, held: HeldMemory | None = None, *, is_pretty: bool
) -> ReplyBody:
    """Return the value as a JSON body. A heavy value is encoded in slices, and `held` counts its memory.

    Long input in its messages is cut. Raises `Refusal` if the budget of the work is used up, or `Overloaded`.
    """
    if not is_heavy(value):
        return encode_body(value, is_pretty=is_pretty)
    work.restart()
    chunks = ChunkCollector(held)
    for piece in iterate_pieces(format_reply_messages(value), is_pretty=is_pretty):
        chunks.add(piece)
        if work.is_slice_over():
            await work.pause()
    work.count_slice()
    return chunks.build_body()


async def encode_deferred(
    build: Callable[[Callable[[], bool]], object], work: SlicedWork, *, is_pretty: bool
) -> ReplyBody:
    """Return as a JSON body what `build` returns, built and encoded off the event loop.

    `build` is passed a function that returns whether the budget is used up. Raises `Refusal` if it is.
    """

    def encode_built(is_over: Callable[[], bool]) -> ReplyBody:
        chunks = ChunkCollector()
        for piece in iterate_pieces(build(is_over), is_pretty=is_pretty):
            chunks.add(piece)
            if is_over():
                break
        return chunks.build_body()

    work.restart()
    return await work.run_off_loop(encode_built)


class ChunkCollector:
    """Joins pieces of a body to chunks, whose memory `held` counts."""

    def __init__(self, held: HeldMemory | None = None) -> None:
        self._held = held
        self._chunks: list[bytes] = []
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._size += len(piece)
        if self._size >= BODY_CHUNK_BYTES:
            self._close_chunk()

    def build_body(self) -> ReplyBody:
        """Return the body of all pieces."""
        if self._pieces or not self._chunks:
            self._close_chunk()
        return ReplyBody(self._chunks, self._held)

    def _close_chunk(self) -> None:
        if self._held is not None:
            self._held.grow(self._size)
        self._chunks.append(b"".join(self._pieces))
        self._pieces, self._size = [], 0


def iterate_pieces(value: object, *, is_pretty: bool, depth: int = 0) -> Iterator[bytes]:
    """Yield the value as JSON, in pieces, each of which takes little time to build.

    `depth`: the number of lists and maps that hold the value. A value of depth 0 is a whole body, which ends with a line
    break if it is indented.
    """
    line = b"\n" + b" " * (INDENTATION * depth) if is_pretty else b""
    yield from _iterate_value(value, line, heavy=is_heavy(value))
    if is_pretty and not depth:
        yield b"\n"


def _iterate_value(value: object, line: bytes, *, heavy: bool) -> Iterator[bytes]:
    """Yield the pieces of a value. `line`: the line break and the indentation of the value's level, or b"" without layout."""
    if not heavy:
        yield _format(encode_json(value), line)
    elif isinstance(value, str):
        yield from _iterate_text(value)
    elif isinstance(value, bytes | bytearray):
        yield from _iterate_binary(value)
    elif isinstance(value, msgspec.Raw):
        yield from _iterate_raw(bytes(value), line)
    elif isinstance(value, LazyList):
        yield from _iterate_list(value.iterate(), line)
    elif isinstance(value, LazyMap):
        yield from _iterate_map(value.iterate(), line)
    elif isinstance(value, msgspec.Struct):
        yield from _iterate_record(value, line)
    elif isinstance(value, dict | PackedMap):
        yield from _iterate_map(value.items(), line)
    elif isinstance(value, _LIST_TYPES):
        yield from _iterate_list(value, line)
    else:
        yield _format(encode_json(value), line)


def _format(data: bytes, line: bytes) -> bytes:
    """Return encoded JSON with the layout of its level. JSON strings contain no line breaks: each of them is layout."""
    return msgspec.json.format(data, indent=INDENTATION).replace(b"\n", line) if line else data


def _indent(line: bytes) -> bytes:
    """Return the line break and indentation of the members of a value."""
    return line + b" " * INDENTATION if line else b""


def _iterate_text(text: str) -> Iterator[bytes]:
    yield b'"'
    for start in range(0, len(text), TEXT_PIECE_CHARS):
        yield encode_json(text[start : start + TEXT_PIECE_CHARS])[1:-1]
    yield b'"'


def _iterate_binary(data: bytes | bytearray) -> Iterator[bytes]:
    yield b'"'
    for start in range(0, len(data), BINARY_PIECE_BYTES):
        yield encode_json(data[start : start + BINARY_PIECE_BYTES])[1:-1]
    yield b'"'


def _iterate_raw(data: bytes, line: bytes) -> Iterator[bytes]:
    if line:
        yield from iterate_indented(data, depth=(len(line) - 1) // INDENTATION)
    else:
        for start in range(0, len(data), BODY_CHUNK_BYTES):
            yield data[start : start + BODY_CHUNK_BYTES]


def _iterate_record(record: msgspec.Struct, line: bytes) -> Iterator[bytes]:
    """Yield the pieces of a record: its small fields together, each larger field by itself."""
    larger = []
    rest = copy.copy(record)
    for name in record.__struct_fields__:
        value = getattr(record, name)
        weight = measure_weight(value)
        if weight > FIELD_WEIGHT:
            larger.append((value, weight))
            msgspec.structs.force_setattr(rest, name, msgspec.Raw(_PLACEHOLDER))
    parts = _format(encode_json(rest), line).split(_PLACEHOLDER)
    if len(parts) != len(larger) + 1:
        # Already encoded data in a small field contains the placeholder.
        yield _format(encode_json(record), line)
        return
    yield parts[0]
    for (value, weight), part in zip(larger, parts[1:], strict=True):
        yield from _iterate_value(value, _indent(line), heavy=weight > PIECE_WEIGHT)
        yield part


def _iterate_list(members: Iterable[Any], line: bytes) -> Iterator[bytes]:
    """Yield the pieces of a list: small members in batches, each heavy member by itself."""
    separator, member_line = b"[", _indent(line)
    for batch, heavy in _divide((member, member) for member in members):
        if heavy:
            yield separator + member_line
            yield from _iterate_value(batch[0], member_line, heavy=True)
        else:
            yield separator + _strip(_format(encode_json(batch), line), line)
        separator = b","
    yield line + b"]" if separator == b"," else b"[]"


def _iterate_map(entries: Iterable[tuple[Any, Any]], line: bytes) -> Iterator[bytes]:
    """Yield the pieces of a map: small entries in batches, each heavy entry by itself."""
    separator, member_line = b"{", _indent(line)
    for batch, heavy in _divide((entry, entry[1]) for entry in entries):
        if heavy:
            key, value = batch[0]
            # The key with its colon, as the encoder and the layout write it.
            yield separator + _strip(_format(encode_json({key: None}), line), line).removesuffix(b"null")
            yield from _iterate_value(value, member_line, heavy=True)
        else:
            yield separator + _strip(_format(encode_json(dict(batch)), line), line)
        separator = b","
    yield line + b"}" if separator == b"," else b"{}"


def _divide(members: Iterable[tuple[Any, object]]) -> Iterator[tuple[list[Any], bool]]:
    """Yield the members in batches of about `PIECE_WEIGHT`. Each heavy member is a batch of its own, marked as heavy.

    `members`: each member with its value.
    """
    batch: list[Any] = []
    batch_weight = 0
    for member, value in members:
        weight = ITEM_WEIGHT + measure_weight(value)
        if batch and batch_weight + weight > PIECE_WEIGHT:
            yield batch, False
            batch, batch_weight = [], 0
        if weight > ITEM_WEIGHT + PIECE_WEIGHT:
            yield [member], True
        else:
            batch.append(member)
            batch_weight += weight
    if batch:
        yield batch, False


def _strip(data: bytes, line: bytes) -> bytes:
    """Return the members of an encoded list or map, without its brackets."""
    return data[1 : -1 - len(line)]
