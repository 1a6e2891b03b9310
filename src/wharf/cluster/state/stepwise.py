"""Decoding of large records in steps, so that no step takes long. The caller decides what to do in between.

`msgspec` decodes a whole record in one call, which holds the interpreter for up to 15 ms. Here a large record is divided into
its fields, and a large list or map into its members. The result is exactly what one call would return (0159).
"""

import hashlib
import types
import typing
from collections.abc import Callable, Generator, Mapping, Sequence
from functools import cache
from typing import Any, Final

import msgspec
from msgspec.structs import force_setattr

HEAVY_RECORD_BYTES: Final = 250_000
"""Larger records are decoded in steps. Smaller ones take about a millisecond."""
STEP_BYTES: Final = 250_000
"""Bytes that are decoded or hashed in one step; limits how long a step holds the event loop."""
PART_BYTES: Final = 64 * 1024
"""A value of at most this size is decoded in one call. Smaller parts would take more CPU time in all."""
SPLIT_COST_DIVISOR: Final = 10
"""To find the members of a value takes this part of the time to decode them."""
DIGEST_BYTES: Final = 16
"""The size of the digest of a field. Two different values with one digest cannot be found on purpose."""

_EMPTY_LIST: Final = msgspec.Raw(b"\x90")
_EMPTY_MAP: Final = msgspec.Raw(b"\x80")
_NIL: Final = msgspec.Raw(b"\xc0")
_Steps = Generator[None, None, Any]
"""Yields between the steps, and returns the decoded value."""

_encode: Final = msgspec.msgpack.Encoder().encode
_decode_raw_map: Final = msgspec.msgpack.Decoder(dict[str, msgspec.Raw]).decode
_decode_raw_list: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


@cache
def _get_decode(kind: Any) -> Callable[[bytes | msgspec.Raw], Any]:
    """Return the function that decodes a value of this type in one call. Few types exist, so each is built once."""
    return msgspec.msgpack.Decoder(kind).decode


@cache
def _get_field_types(record_type: type[msgspec.Struct]) -> Mapping[str, tuple[str, Any]]:
    """Return the attribute and the type of each field of a record type, by its name in encoded records.

    Empty if records of this type are not encoded as maps.
    """
    config = record_type.__struct_config__
    if config.array_like or config.tag is not None:
        return {}
    hints = typing.get_type_hints(record_type)
    return {
        encoded_name: (name, hints[name])
        for name, encoded_name in zip(record_type.__struct_fields__, record_type.__struct_encode_fields__, strict=True)
    }


def decode_in_steps(data: bytes, record_type: type[msgspec.Struct]) -> Generator[None, None, Any]:
    """Decode a record that is encoded as a map. Yields between the steps, and returns the record.

    Raises the errors of `msgspec.msgpack.decode`.
    """
    return (yield from _decode(msgspec.Raw(data), record_type, _StepCounter()))


def digest_fields_in_steps(data: bytes, names: Sequence[str]) -> Generator[None, None, tuple[bytes, ...]]:
    """Return a digest of each of these fields of an encoded record. Equal digests mean equal values of one type."""
    fields = _decode_raw_map(data)
    digests = []
    progress = _StepCounter()
    for name in names:
        digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
        encoded = memoryview(fields.get(name, _NIL))
        for start in range(0, len(encoded), STEP_BYTES):
            part = encoded[start : start + STEP_BYTES]
            digest.update(part)
            if progress.count(len(part)):
                yield
        digests.append(digest.digest())
    return tuple(digests)


class _StepCounter:
    """Counts the bytes of a step."""

    __slots__ = ("_bytes",)

    def __init__(self) -> None:
        self._bytes = 0

    def count(self, size: int) -> bool:
        """Count decoded bytes. Return whether the step is over."""
        self._bytes += size
        if self._bytes < STEP_BYTES:
            return False
        self._bytes = 0
        return True


def _decode(data: msgspec.Raw, kind: Any, progress: _StepCounter) -> _Steps:
    size = len(memoryview(data))
    if size > PART_BYTES:
        inner = _without_none(kind)
        origin = typing.get_origin(inner)
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct) and (fields := _get_field_types(inner)):
            return (yield from _decode_record(data, inner, fields, progress))
        if origin is tuple and typing.get_args(inner)[1:] == (...,):
            return (yield from _decode_list(data, typing.get_args(inner)[0], progress))
        if origin is dict and typing.get_args(inner)[0] is str and _has_parts(typing.get_args(inner)[1]):
            return (yield from _decode_map(data, typing.get_args(inner)[1], progress))
    value = _get_decode(kind)(data)
    if progress.count(size):
        yield
    return value


def _decode_record(
    data: msgspec.Raw, record_type: type[msgspec.Struct], fields: Mapping[str, tuple[str, Any]], progress: _StepCounter
) -> _Steps:
    """Decode the large fields of a record one by one, and all others together."""
    encoded = yield from _split(_decode_raw_map, data, progress)
    large: list[tuple[str, Any, msgspec.Raw]] = []
    for encoded_name, part in encoded.items():
        if len(memoryview(part)) > PART_BYTES and encoded_name in fields:
            name, kind = fields[encoded_name]
            stand_in = _find_stand_in(kind)
            if stand_in is not None:
                large.append((name, kind, part))
                encoded[encoded_name] = stand_in
    record = _get_decode(record_type)(_encode(encoded) if large else data)
    for name, kind, part in large:
        force_setattr(record, name, (yield from _decode(part, kind, progress)))
    if progress.count(PART_BYTES):
        yield
    return record


def _decode_list(data: msgspec.Raw, kind: Any, progress: _StepCounter) -> _Steps:
    members = yield from _split(_decode_raw_list, data, progress)
    for position, part in enumerate(members):
        members[position] = yield from _decode(part, kind, progress)
    return tuple(members)


def _decode_map(data: msgspec.Raw, kind: Any, progress: _StepCounter) -> _Steps:
    members = yield from _split(_decode_raw_map, data, progress)
    for key, part in members.items():
        members[key] = yield from _decode(part, kind, progress)
    return members


def _split(decode_raw: Callable[[msgspec.Raw], Any], data: msgspec.Raw, progress: _StepCounter) -> _Steps:
    """Divide a list or map into its members, and yield if that took long. A record of 5 MB is divided five times."""
    members = decode_raw(data)
    if progress.count(len(memoryview(data)) // SPLIT_COST_DIVISOR):
        yield
    return members


def _has_parts(kind: Any) -> bool:
    """Return whether values of this type can be large. A map of others has a limited number of entries."""
    inner = _without_none(kind)
    return typing.get_origin(inner) in (tuple, dict) or (isinstance(inner, type) and issubclass(inner, msgspec.Struct))


def _without_none(kind: Any) -> Any:
    """Return `X` for the type `X | None`, and any other type unchanged."""
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    members = [member for member in typing.get_args(kind) if member is not types.NoneType]
    return members[0] if len(members) == 1 else kind


@cache
def _find_stand_in(kind: Any) -> msgspec.Raw | None:
    """Return a small valid value of a type whose values can be decoded in steps, or `None` for other types."""
    inner = _without_none(kind)
    origin = typing.get_origin(inner)
    if origin is tuple and typing.get_args(inner)[1:] == (...,):
        return _EMPTY_LIST
    if origin is dict and typing.get_args(inner)[0] is str:
        return _EMPTY_MAP
    if not (isinstance(inner, type) and issubclass(inner, msgspec.Struct)):
        return None
    if inner is not kind:
        return _NIL
    return None if any(field.required for field in msgspec.structs.fields(inner)) else _EMPTY_MAP
