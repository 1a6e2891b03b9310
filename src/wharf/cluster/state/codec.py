"""Records to bytes and back, each with the version of its form.

Form 1 is the bare msgpack map; a later form is preceded by its number as one byte below 0x80, which no msgpack map
begins with. So a million records of form 1 cost nothing for carrying a version. What is written is the newest form that
the cluster's format allows; what is read may be any older one.

Rows made ready for another log: the markers in them become the numbers that they stand for.

A restore writes every row again, at an index of its own. A marker that went along would stand for that one, while what
other records hold of it says the old number: a job would be another life of itself.
"""

import sys
from collections.abc import Callable, Hashable, Iterable, Mapping
from functools import cache, partial
from types import CodeType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from wharf.cluster.state.packed_map import PackedMap, encode_packed_as_raw
from wharf.cluster.state.table import Table
from wharf.contract.model.log import WRITE_INDEX, StoredRecord

R = TypeVar("R", bound=msgspec.Struct)

FIRST_MAP_BYTE: Final = 0x80
UNLIMITED_FORMAT: Final = sys.maxsize
"""A format newer than every other: all that this program knows may be written."""
MSGPACK_NIL: Final = b"\xc0"
"""Null in msgpack."""
MAX_SHARED_VALUES: Final = 4_096

# What decoding raises: msgspec's own errors and bad UTF-8 are ValueErrors, no bytes an IndexError, bytes that nest without
# end a RecursionError; an upgrade that misses a field, or meets a format that never was, a KeyError.
_WRONG_BYTES: Final = (ValueError, IndexError, RecursionError, KeyError, TypeError)

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_packed_as_raw)
_plain_decoder = msgspec.msgpack.Decoder(dict[str, Any])


class NewerFormat(Exception):
    """Something in the log was written by a newer program than this one."""


class DamagedRecord(Exception):
    """The bytes under a key are no record of this table."""


class FormatNotRaised(Exception):
    """A table that some server of the cluster does not know yet cannot be written."""


def encode_record(table: Table[R], record: R, *, cluster_format: int = UNLIMITED_FORMAT) -> bytes:
    """The record in the newest form that every server of the cluster reads."""
    return build_encoder(table, cluster_format=cluster_format)(record)


def build_encoder(table: Table[R], *, cluster_format: int = UNLIMITED_FORMAT) -> Callable[[R], bytes]:
    """What `encode` does, for many records of one table."""
    version = table.get_schema_version(cluster_format)
    if version == 0:
        raise FormatNotRaised(
            f"the records of {table.name} exist from format {table.since_format} on, and the cluster is at {cluster_format} "
            "until every server runs the new version"
        )
    return build_schema_encoder(table, version)


def build_schema_encoder(table: Table[R], schema_version: int) -> Callable[[R], bytes]:
    """Encodes records of the table in this form, counted from 1."""
    if schema_version < table.schema_version:
        return partial(_in_older_form, table, version=schema_version)
    if schema_version == 1:
        return _encoder.encode
    first = bytes([schema_version])
    return lambda record: first + _encoder.encode(record)


def _in_older_form(table: Table[Any], record: Any, version: int) -> bytes:
    plain = _plain_decoder.decode(_encoder.encode(record))
    for form in reversed(table.migrations[version - 1 :]):
        plain = form.downgrade(plain)
    data = _encoder.encode(plain)
    return data if version == 1 else bytes([version]) + data


def read_schema_version(data: bytes) -> int:
    """The form that a record's bytes have, counted from 1."""
    return 1 if data[0] >= FIRST_MAP_BYTE else data[0]


class RecordDecoder(Generic[R]):
    """Turns a table's bytes into records that are ready to be kept.

    The record is fresh from the decoder and nobody else has seen it yet: that is the one moment at which its fields may
    still be set in place.
    """

    __slots__ = ("_adopt", "_decode", "_finish", "_is_first_format", "_must_open", "signature", "table")

    should_verify_adopted: ClassVar[bool] = False
    """Tests and the simulation turn it on: what is adopted is decoded too, and both must be the same."""

    def __init__(self, table: Table[R], *, should_open_packed: bool = False) -> None:
        """`opens_packed`: also what is packed is looked into, so that damage in it is found now."""
        self.table = table
        self._must_open = tuple(table.packed_fields) if should_open_packed else ()
        self._decode: Callable[[bytes], R] = msgspec.msgpack.Decoder(table.record_type).decode
        sharing = {name: _sharing(kind) for name, kind in table.shared_fields.items()}
        packing = {name: _packing(f"{table.name}.{name}", kind) for name, kind in table.packed_fields.items()}
        self._finish = _compiled_finish(table, sharing, packing)
        self._adopt = _compiled_adopt(table, sharing, packing)
        self._is_first_format = table.schema_version == 1
        own = table.name if len(table.key_attributes) == 1 else ""  # Such a key is set in the record.
        self.signature: Hashable = (
            table.record_type, table.schema_version, table.write_index_fields, table.interned_fields, *table.shared_fields, *table.packed_fields, own,
        )  # fmt: skip
        """Decoders with the same here make the same record of the same bytes."""

    def decode_record(self, key: str, data: bytes, index: int, write_index: int = 0) -> R:
        """The record of version `index`, complete: markers replaced, recurring values shared.

        `written_at`: where a restore has raised the version since it was written.
        """
        try:
            if self._is_first_format and data[0] >= FIRST_MAP_BYTE:
                record = self._decode(data)
            else:
                record = self._in_its_format(data)
            self._finish(record, key, index, write_index or index)
            for name in self._must_open:
                if (packed := getattr(record, name)) is not None:
                    packed.unpack()
        except _WRONG_BYTES as error:
            raise DamagedRecord(
                f"the record {self.table.name}/{key!r} of index {index} is damaged ({error or type(error).__name__}). "
                "Restore a snapshot, or delete the data of this server if others hold the same."
            ) from error
        return record

    def adopt_record(self, own: R, key: str, data: bytes, index: int) -> R:
        """What `record` makes of these bytes, from the record that they were made of: whoever wrote it has it still.

        The record that was decided is left as it is; a write that is decided again may hold it once more.
        """
        record: R = self._adopt(own, key, index)
        if RecordDecoder.should_verify_adopted:
            decoded = self.decode_record(key, data, index)
            assert repr(record) == repr(decoded), f"adopted {record} where others decode {decoded}"
            assert encode_record(self.table, record) == encode_record(self.table, decoded), (
                f"adopted {record} has other bytes"
            )
        return record

    def _in_its_format(self, data: bytes) -> R:
        version = read_schema_version(data)
        body = data if data[0] >= FIRST_MAP_BYTE else data[1:]
        if version == self.table.schema_version:
            return self._decode(body)
        if version > self.table.schema_version:
            raise NewerFormat(
                f"a record of {self.table.name} has form {version}; this program reads up to {self.table.schema_version}. "
                "Start a newer wharf on this data."
            )
        if version == 0:
            raise ValueError("there never was a form 0")
        plain = _plain_decoder.decode(body)
        for form in self.table.migrations[version - 1 :]:
            plain = form.upgrade(plain)
        return self._decode(_encoder.encode(plain))


def _compiled_finish(
    table: Table[Any], sharing: Mapping[str, "_Sharing"], packing: Mapping[str, "_Packing"]
) -> Callable[[Any, str, int, int], None]:
    """A function that sets a fresh record's version, its THIS fields, its interned, shared and packed ones.

    Written out for each table: a loop over names costs half again as much, and this runs for every change of the log.
    """
    names: dict[str, Any] = {
        "put": force_setattr,
        "intern": sys.intern,
        "stamp": _stamp_nested,
        "write_index": WRITE_INDEX,
    }
    lines = ["def finish(record, key, index, written_at):", "    put(record, 'modify_index', index)"]
    if len(table.key_attributes) == 1:
        (name,) = table.key_attributes
        lines.append(f"    if record.{name} != key: raise ValueError('it belongs under another key')")
        lines.append(f"    put(record, {name!r}, key)")  # One text in memory instead of two.
    for field, dot, name in (path.partition(".") for path in table.write_index_fields):
        if dot:
            lines.append(f"    if record.{field} is not None: stamp(record.{field}, {name!r}, written_at)")
        else:
            lines.append(f"    if record.{field} == write_index: put(record, {field!r}, written_at)")
    lines += [f"    put(record, {name!r}, intern(record.{name}))" for name in table.interned_fields]
    names |= {f"shared_{name}": each.of_bytes for name, each in sharing.items()}
    lines += [
        f"    if record.{name} is not None: put(record, {name!r}, shared_{name}(record.{name}))"
        for name in table.shared_fields
    ]
    names |= {f"packed_{name}": each.of_bytes for name, each in packing.items()}
    lines += [
        f"    if record.{name} is not None: put(record, {name!r}, packed_{name}(record.{name}))"
        for name in table.packed_fields
    ]
    exec(_code("\n".join(lines)), names)  # Only names of declared attributes reach this text; tables check them.
    finish: Callable[[Any, str, int, int], None] = names["finish"]
    return finish


def _compiled_adopt(
    table: Table[Any], sharing: Mapping[str, "_Sharing"], packing: Mapping[str, "_Packing"]
) -> Callable[[Any, str, int], Any]:
    """A function that makes of a decided record a copy as `_compiled_finish` leaves a decoded one."""
    names: dict[str, Any] = {
        "put": force_setattr, "intern": sys.intern, "stamped": _stamped_copy, "write_index": WRITE_INDEX,
    }  # fmt: skip
    lines = ["def adopt(own, key, index):", "    record = own.__copy__()", "    put(record, 'modify_index', index)"]
    if len(table.key_attributes) == 1:
        (name,) = table.key_attributes
        lines.append(f"    put(record, {name!r}, key)")
    for field, dot, name in (path.partition(".") for path in table.write_index_fields):
        if dot:
            value = f"stamped(own.{field}, {name!r}, index)"
            lines.append(f"    if own.{field} is not None: put(record, {field!r}, {value})")
        else:
            lines.append(f"    if own.{field} == write_index: put(record, {field!r}, index)")
    lines += [f"    put(record, {name!r}, intern(own.{name}))" for name in table.interned_fields]
    names |= {f"shared_{name}": each.of_own for name, each in sharing.items()}
    names |= {f"packed_{name}": each.of_own for name, each in packing.items()}
    lines += [
        f"    if own.{name} is not None: put(record, {name!r}, {how}_{name}(own.{name}))"
        for how, those in (("shared", table.shared_fields), ("packed", table.packed_fields))
        for name in those
    ]
    lines.append("    return record")
    exec(_code("\n".join(lines)), names)  # Only names of declared attributes reach this text; tables check them.
    adopt: Callable[[Any, str, int], Any] = names["adopt"]
    return adopt


@cache
def _code(text: str) -> CodeType:
    """Compiled once in a process: a program may hold many replicas, and the text of a table is always the same."""
    return compile(text, "<records>", "exec")


class _Sharing(NamedTuple):
    """How values that recur are found to be the same: by their bytes, and by what they are made of."""

    of_bytes: Callable[[msgspec.Raw], Any]
    of_own: Callable[[Any], Any]


class _Packing(NamedTuple):
    of_bytes: Callable[[msgspec.Raw], PackedMap[Any] | None]
    of_own: Callable[[Any], PackedMap[Any]]


def _sharing(kind: Any) -> _Sharing:
    """Decodes a value once for all records that hold it. It forgets all when it holds too many."""
    decode = msgspec.msgpack.Decoder(kind | None).decode
    values: dict[bytes, Any] = {}
    known: dict[int, Any] = {}
    # Most records follow one with the same value, and to compare costs a tenth of a look into the dict.
    data_last, value_last = b"", None
    own_last, kept_last = None, None

    def value_of(raw: msgspec.Raw) -> Any:
        nonlocal data_last, value_last
        data = bytes(raw)
        if data == data_last:
            return value_last
        if data not in values:
            if len(values) >= MAX_SHARED_VALUES:
                values.clear()
                known.clear()
            value = values[data] = decode(data)
            known[id(value)] = value
        data_last, value_last = data, values[data]
        return value_last

    def value_of_own(own: Any) -> Any:
        nonlocal own_last, kept_last
        if own is own_last:
            return kept_last
        if known.get(id(own)) is own:  # It came from here.
            return own
        own_last, kept_last = own, value_of(msgspec.Raw(_encoder.encode(own)))
        return kept_last

    return _Sharing(value_of, value_of_own)


def _packing(where: str, kind: Any) -> _Packing:
    """Keeps a map as its bytes. A field's bytes lie in those of its record until they are copied."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def open_map(data: bytes) -> dict[str, Any]:
        try:
            opened: dict[str, Any] = decode(data)
        except _WRONG_BYTES as error:
            raise DamagedRecord(
                f"the bytes of {where} in a record are damaged ({error or type(error).__name__})"
            ) from error
        return opened

    def packed(raw: msgspec.Raw) -> PackedMap[Any] | None:
        data = bytes(raw)
        return None if data == MSGPACK_NIL else PackedMap(data, open_map)

    def packed_own(own: Any) -> PackedMap[Any]:
        return own if isinstance(own, PackedMap) else PackedMap(_encoder.encode(own), open_map)

    return _Packing(packed, packed_own)


def _stamped_copy(value: Any, name: str, index: int) -> Any:
    """A record with its marker replaced; itself where it has none. What it is part of is adopted, and may be shared."""
    return replace(value, **{name: index}) if getattr(value, name) == WRITE_INDEX else value


def _stamp_nested(value: Any, name: str, index: int) -> None:
    """Replace the marker in a record, or in all records of a tuple or of a dict of tuples."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for item in value:
            _stamp_nested(item, name, index)
    elif getattr(value, name) == WRITE_INDEX:
        force_setattr(value, name, index)


_MARKED: Final = b"\xff"
"""How msgpack writes THIS. It may stand for something else too; where it is nowhere, no marker is."""


class WriteIndexResolver:
    """Keeps what it needs to read each table."""

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self._decoders = {table.name: RecordDecoder(table) for table in tables}

    def resolve_record(self, row: StoredRecord) -> StoredRecord:
        """The same row in the same form, with no marker in it. Raises `Damaged` and `NewerFormat` of `codec`.

        One of an unknown table is left as it is, for whoever reads it to refuse.
        """
        decoder = self._decoders.get(row.table)
        if decoder is None or _MARKED not in row.data:
            return row
        record = decoder.decode_record(row.key, row.data, row.version, row.write_index)
        encode = build_schema_encoder(decoder.table, read_schema_version(row.data))
        return StoredRecord(row.table, row.key, row.version, encode(record), row.original_version)
