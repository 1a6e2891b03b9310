"""Encodes records as bytes and decodes them, each with its schema version.

Schema version 1 is a plain msgpack map. A later version starts with its number as one byte below 0x80, which no msgpack
map starts with, so records of version 1 need no extra byte. Records are written in the newest version that the
cluster's format allows; any older version can be read.

`WriteIndexResolver` prepares stored records for another log.
"""

import sys
from collections.abc import Callable, Generator, Hashable, Iterable, Mapping
from functools import cache, partial
from types import CodeType
from typing import Any, ClassVar, Final, Generic, NamedTuple, TypeVar

import msgspec
from msgspec.structs import force_setattr, replace

from wharf.cluster.state.packed_map import PackedMap, encode_packed_as_raw
from wharf.cluster.state.stepwise import decode_in_steps, digest_fields_in_steps
from wharf.cluster.state.table import Table
from wharf.contract.model.log import WRITE_INDEX, StoredRecord

R = TypeVar("R", bound=msgspec.Struct)

FIRST_MAP_BYTE: Final = 0x80
"""The smallest first byte of a msgpack map. A smaller first byte of a record is its schema version."""
UNLIMITED_FORMAT: Final = sys.maxsize
"""A format newer than every other: it allows every table and schema version that this program knows."""
MSGPACK_NIL: Final = b"\xc0"
"""The msgpack encoding of null."""
MAX_SHARED_VALUES: Final = 4_096
"""How many different values of one shared field are cached before the cache is cleared: limits memory."""

# The exceptions of decoding damaged bytes: ValueError (msgspec's errors, bad UTF-8), IndexError (no bytes), RecursionError
# (too deep), and KeyError or TypeError from a schema migration that misses a field.
_DECODE_ERRORS: Final = (ValueError, IndexError, RecursionError, KeyError, TypeError)

_encoder = msgspec.msgpack.Encoder(enc_hook=encode_packed_as_raw)
_plain_decoder = msgspec.msgpack.Decoder(dict[str, Any])


class NewerFormat(Exception):
    """The log contains data that was written by a newer version of this program."""


class DamagedRecord(Exception):
    """The bytes under a key cannot be decoded as a record of the table."""


class FormatNotRaised(Exception):
    """The table cannot be written yet, because not all servers of the cluster know it."""


def encode_record(table: Table[R], record: R, *, cluster_format: int = UNLIMITED_FORMAT) -> bytes:
    """Encode a record in the newest schema version that every server of the cluster can read."""
    return build_encoder(table, cluster_format=cluster_format)(record)


def build_encoder(table: Table[R], *, cluster_format: int = UNLIMITED_FORMAT) -> Callable[[R], bytes]:
    """Return a function that encodes records in the newest schema version that every server of the cluster can read.

    Raises `FormatNotRaised` if the servers may not write this table yet.
    """
    version = table.get_schema_version(cluster_format)
    if version == 0:
        raise FormatNotRaised(
            f"the records of {table.name} exist from format {table.since_format} on, and the cluster is at {cluster_format} "
            "until every server runs the new version"
        )
    return build_schema_encoder(table, version)


def build_schema_encoder(table: Table[R], schema_version: int) -> Callable[[R], bytes]:
    """Return a function that encodes records of the table in this schema version, counted from 1."""
    if schema_version < table.schema_version:
        return partial(_encode_in_older_schema, table, version=schema_version)
    if schema_version == 1:
        return _encoder.encode
    version_byte = bytes([schema_version])
    return lambda record: version_byte + _encoder.encode(record)


def _encode_in_older_schema(table: Table[Any], record: Any, version: int) -> bytes:
    """Encode a record in an older schema version, with the downgrades of all later migrations."""
    plain_record = _plain_decoder.decode(_encoder.encode(record))
    for migration in reversed(table.migrations[version - 1 :]):
        plain_record = migration.downgrade(plain_record)
    data = _encoder.encode(plain_record)
    return data if version == 1 else bytes([version]) + data


def read_schema_version(data: bytes) -> int:
    """Return the schema version of an encoded record, counted from 1."""
    return 1 if data[0] >= FIRST_MAP_BYTE else data[0]


class HeavyRecord(NamedTuple, Generic[R]):
    """A record that was decoded in steps, with a digest of each field whose values recur.

    Equal digests mean equal values, so that the values need not be compared. No digests if they are unknown.
    """

    record: R
    digests: tuple[bytes, ...]


class RecordDecoder(Generic[R]):
    """Decodes the records of one table and completes them for the replica.

    Records are immutable once others can see them. A record that was just decoded has no other user, so its fields can
    still be set in place.
    """

    __slots__ = (
        "_adopt", "_decode", "_finish", "_is_first_format", "_packed_fields_to_open", "_recurring_names", "signature", "table",
    )  # fmt: skip

    should_verify_adopted: ClassVar[bool] = False
    """If set, every adopted record is also decoded, and both must be equal. Tests and the simulation set it."""

    def __init__(self, table: Table[R], *, should_open_packed: bool = False) -> None:
        """Create a decoder. With `should_open_packed`, packed fields are decoded too, so that damage in them is found."""
        self.table = table
        self._packed_fields_to_open = tuple(table.packed_fields) if should_open_packed else ()
        self._decode: Callable[[bytes], R] = msgspec.msgpack.Decoder(table.record_type).decode
        shared_readers = {name: _make_shared_value_readers(kind) for name, kind in table.shared_fields.items()}
        packed_readers = {
            name: _make_packed_map_readers(f"{table.name}.{name}", kind) for name, kind in table.packed_fields.items()
        }
        self._finish = _compile_finish_function(table, shared_readers, packed_readers)
        self._adopt = _compile_adopt_function(table, shared_readers, packed_readers)
        self._is_first_format = table.schema_version == 1
        encoded_names = dict(
            zip(table.record_type.__struct_fields__, table.record_type.__struct_encode_fields__, strict=True)
        )
        self._recurring_names = [encoded_names[name] for name in table.recurring_fields]
        # A key of one attribute is stored in the record, so records of two such tables are never the same.
        key_table = table.name if len(table.key_attributes) == 1 else ""
        self.signature: Hashable = (
            table.record_type, table.schema_version, table.write_index_fields, table.interned_fields, *table.shared_fields, *table.packed_fields, key_table,
        )  # fmt: skip
        """Decoders with equal signatures decode the same bytes to equal records."""

    def decode_record(self, key: str, data: bytes, index: int, write_index: int = 0) -> R:
        """Decode a record and set its version to `index`. Raises `DamagedRecord` or `NewerFormat`.

        Placeholders for the write index are replaced, and shared values are reused. `write_index` is given if the version
        differs from the index of the original write, because a restore has raised it.
        """
        try:
            if self._is_first_format and data[0] >= FIRST_MAP_BYTE:
                record = self._decode(data)
            else:
                record = self._decode_any_schema(data)
            self._finish(record, key, index, write_index or index)
            for name in self._packed_fields_to_open:
                if (packed_map := getattr(record, name)) is not None:
                    packed_map.unpack()
        except _DECODE_ERRORS as error:
            raise self._make_damage_error(key, index, error) from error
        return record

    def decode_in_steps(
        self, key: str, data: bytes, index: int, write_index: int = 0
    ) -> Generator[None, None, HeavyRecord[R]]:
        """Decode a heavy record as `decode_record` does. Yields between the steps, and returns the record."""
        version = read_schema_version(data)
        if version != self.table.schema_version or self._packed_fields_to_open:
            return HeavyRecord(self.decode_record(key, data, index, write_index), ())
        try:
            body = data if data[0] >= FIRST_MAP_BYTE else data[1:]
            record: R = yield from decode_in_steps(body, self.table.record_type)
            digests = yield from digest_fields_in_steps(body, self._recurring_names)
            self._finish(record, key, index, write_index or index)
        except _DECODE_ERRORS as error:
            raise self._make_damage_error(key, index, error) from error
        return HeavyRecord(record, digests)

    def _make_damage_error(self, key: str, index: int, error: Exception) -> DamagedRecord:
        return DamagedRecord(
            f"the record {self.table.name}/{key!r} of index {index} is damaged ({error or type(error).__name__}). "
            "Restore a snapshot, or delete the data of this server if others hold the same."
        )

    def adopt_record(self, own_record: R, key: str, data: bytes, index: int) -> R:
        """Return what `decode_record` would return for these bytes, as a copy of the record that was encoded.

        Used for records that this process has written itself. The original is not changed, because a write that is
        retried may contain it again.
        """
        record: R = self._adopt(own_record, key, index)
        if RecordDecoder.should_verify_adopted:
            decoded = self.decode_record(key, data, index)
            assert repr(record) == repr(decoded), f"adopted {record} where others decode {decoded}"
            assert encode_record(self.table, record) == encode_record(self.table, decoded), (
                f"adopted {record} has other bytes"
            )
        return record

    def _decode_any_schema(self, data: bytes) -> R:
        """Decode a record of any schema version up to the current one, with the upgrades of all later migrations."""
        version = read_schema_version(data)
        body = data if data[0] >= FIRST_MAP_BYTE else data[1:]
        if version == self.table.schema_version:
            return self._decode(body)
        if version > self.table.schema_version:
            raise NewerFormat(
                f"a record of {self.table.name} has schema version {version}; this program reads up to {self.table.schema_version}. "
                "Start a newer wharf on this data."
            )
        if version == 0:
            raise ValueError("schema version 0 does not exist")
        plain_record = _plain_decoder.decode(body)
        for migration in self.table.migrations[version - 1 :]:
            plain_record = migration.upgrade(plain_record)
        return self._decode(_encoder.encode(plain_record))


def get_decoder(table: Table[R]) -> RecordDecoder[R]:
    """Return the decoder of a replica. All replicas of a process use the same one, unless it holds values that records share."""
    return RecordDecoder(table) if table.shared_fields else _get_common_decoder(table)


@cache
def _get_common_decoder(table: Table[R]) -> RecordDecoder[R]:
    return RecordDecoder(table)


def _compile_finish_function(
    table: Table[Any],
    shared_readers: Mapping[str, "_SharedValueReaders"],
    packed_readers: Mapping[str, "_PackedMapReaders"],
) -> Callable[[Any, str, int, int], None]:
    """Compile a function that completes a record that was just decoded.

    It sets the version and the write index fields, and replaces interned, shared and packed values. The source is generated
    for each table, because a loop over field names would take 50 % longer, and the function runs for every change.
    """
    names: dict[str, Any] = {
        "put": force_setattr,
        "intern": sys.intern,
        "stamp": _set_nested_write_index,
        "write_index": WRITE_INDEX,
    }
    lines = ["def finish(record, key, index, written_at):", "    put(record, 'modify_index', index)"]
    if len(table.key_attributes) == 1:
        (name,) = table.key_attributes
        lines.append(f"    if record.{name} != key: raise ValueError('it belongs under another key')")
        lines.append(f"    put(record, {name!r}, key)")  # Record and table share one string.
    for field, dot, name in (path.partition(".") for path in table.write_index_fields):
        if dot:
            lines.append(f"    if record.{field} is not None: stamp(record.{field}, {name!r}, written_at)")
        else:
            lines.append(f"    if record.{field} == write_index: put(record, {field!r}, written_at)")
    lines += [f"    put(record, {name!r}, intern(record.{name}))" for name in table.interned_fields]
    names |= {f"shared_{name}": readers.from_bytes for name, readers in shared_readers.items()}
    lines += [
        f"    if record.{name} is not None: put(record, {name!r}, shared_{name}(record.{name}))"
        for name in table.shared_fields
    ]
    names |= {f"packed_{name}": readers.from_bytes for name, readers in packed_readers.items()}
    lines += [
        f"    if record.{name} is not None: put(record, {name!r}, packed_{name}(record.{name}))"
        for name in table.packed_fields
    ]
    exec(_compile_source("\n".join(lines)), names)  # The source contains only attribute names that `Table` has checked.
    finish: Callable[[Any, str, int, int], None] = names["finish"]
    return finish


def _compile_adopt_function(
    table: Table[Any],
    shared_readers: Mapping[str, "_SharedValueReaders"],
    packed_readers: Mapping[str, "_PackedMapReaders"],
) -> Callable[[Any, str, int], Any]:
    """Compile a function that copies a record and completes the copy, as is done for decoded records.

    It sets the version and the write index fields, and replaces interned, shared and packed values by shared objects.
    """
    names: dict[str, Any] = {
        "put": force_setattr, "intern": sys.intern, "stamped": _copy_with_write_index, "write_index": WRITE_INDEX,
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
    names |= {f"shared_{name}": readers.from_value for name, readers in shared_readers.items()}
    names |= {f"packed_{name}": readers.from_value for name, readers in packed_readers.items()}
    lines += [
        f"    if own.{name} is not None: put(record, {name!r}, {kind_of_field}_{name}(own.{name}))"
        for kind_of_field, field_names in (("shared", table.shared_fields), ("packed", table.packed_fields))
        for name in field_names
    ]
    lines.append("    return record")
    exec(_compile_source("\n".join(lines)), names)  # The source contains only attribute names that `Table` has checked.
    adopt: Callable[[Any, str, int], Any] = names["adopt"]
    return adopt


@cache
def _compile_source(text: str) -> CodeType:
    """Compile source once for each process: its replicas all use the same source for a table."""
    return compile(text, "<records>", "exec")


class _SharedValueReaders(NamedTuple):
    """Functions that return one shared object for equal values of a field, given the bytes or the value."""

    from_bytes: Callable[[msgspec.Raw], Any]
    from_value: Callable[[Any], Any]


class _PackedMapReaders(NamedTuple):
    """Functions that return the packed map of a field, given its bytes or a map."""

    from_bytes: Callable[[msgspec.Raw], PackedMap[Any] | None]
    from_value: Callable[[Any], PackedMap[Any]]


def _make_shared_value_readers(kind: Any) -> _SharedValueReaders:
    """Return functions that decode each different value of a field once. Beyond the limit, the cache is cleared."""
    decode = msgspec.msgpack.Decoder(kind | None).decode
    shared_by_data: dict[bytes, Any] = {}
    shared_by_id: dict[int, Any] = {}
    # Most records have the same value as the one before. Comparing takes a tenth of the time of a dict lookup.
    last_data, last_value = b"", None
    last_own_value, last_shared_value = None, None

    def find_by_bytes(raw: msgspec.Raw) -> Any:
        """Return the shared value of these bytes."""
        nonlocal last_data, last_value
        data = bytes(raw)
        if data == last_data:
            return last_value
        if data not in shared_by_data:
            if len(shared_by_data) >= MAX_SHARED_VALUES:
                shared_by_data.clear()
                shared_by_id.clear()
            value = shared_by_data[data] = decode(data)
            shared_by_id[id(value)] = value
        last_data, last_value = data, shared_by_data[data]
        return last_value

    def find_by_value(own_value: Any) -> Any:
        """Return the shared value that equals a value of this process's own write."""
        nonlocal last_own_value, last_shared_value
        if own_value is last_own_value:
            return last_shared_value
        if shared_by_id.get(id(own_value)) is own_value:  # The value is a shared one already.
            return own_value
        last_own_value, last_shared_value = own_value, find_by_bytes(msgspec.Raw(_encoder.encode(own_value)))
        return last_shared_value

    return _SharedValueReaders(find_by_bytes, find_by_value)


def _make_packed_map_readers(field_name: str, kind: Any) -> _PackedMapReaders:
    """Return functions that store a map as its bytes. They copy the bytes, which are part of those of the record."""
    decode = msgspec.msgpack.Decoder(kind).decode

    def decode_map(data: bytes) -> dict[str, Any]:
        """Decode the bytes of a packed map. Raises `DamagedRecord`."""
        try:
            decoded_map: dict[str, Any] = decode(data)
        except _DECODE_ERRORS as error:
            raise DamagedRecord(
                f"the bytes of {field_name} in a record are damaged ({error or type(error).__name__})"
            ) from error
        return decoded_map

    def pack_bytes(raw: msgspec.Raw) -> PackedMap[Any] | None:
        data = bytes(raw)
        return None if data == MSGPACK_NIL else PackedMap(data, decode_map)

    def pack_map(own_value: Any) -> PackedMap[Any]:
        return own_value if isinstance(own_value, PackedMap) else PackedMap(_encoder.encode(own_value), decode_map)

    return _PackedMapReaders(pack_bytes, pack_map)


def _copy_with_write_index(value: Any, name: str, index: int) -> Any:
    """Return a copy of a nested record with the write index set; the record itself if it has no placeholder.

    The original must not change: it belongs to an adopted record, which others may use.
    """
    return replace(value, **{name: index}) if getattr(value, name) == WRITE_INDEX else value


def _set_nested_write_index(value: Any, name: str, index: int) -> None:
    """Replace the placeholder in a nested record, or in all records of a tuple or of a dict of tuples."""
    if isinstance(value, dict):
        value = tuple(value.values())
    if isinstance(value, tuple):
        for item in value:
            _set_nested_write_index(item, name, index)
    elif getattr(value, name) == WRITE_INDEX:
        force_setattr(value, name, index)


_WRITE_INDEX_BYTE: Final = b"\xff"
"""The msgpack encoding of `WRITE_INDEX`. The byte has other uses too, but bytes without it contain no placeholder."""


class WriteIndexResolver:
    """Replaces placeholders in stored records by the index of their original write.

    A restore writes every record again at a new index. A placeholder would then stand for that new index, while other
    records refer to the old one: a job would appear to be a new job of the same name.
    """

    def __init__(self, tables: Iterable[Table[Any]]) -> None:
        self._decoders = {table.name: RecordDecoder(table) for table in tables}

    def resolve_record(self, row: StoredRecord) -> StoredRecord:
        """Return the stored record in the same schema version, without placeholders.

        A record of an unknown table is returned unchanged; its reader will reject it. Raises `DamagedRecord` or
        `NewerFormat`.
        """
        decoder = self._decoders.get(row.table)
        if decoder is None or _WRITE_INDEX_BYTE not in row.data:
            return row
        record = decoder.decode_record(row.key, row.data, row.version, row.write_index)
        encode = build_schema_encoder(decoder.table, read_schema_version(row.data))
        return StoredRecord(row.table, row.key, row.version, encode(record), row.original_version)
