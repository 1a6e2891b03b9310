"""Records to bytes and back, each with the version of its format.

Format 1 is the bare msgpack map; a later format is preceded by its number as one byte below 0x80, which no msgpack map
begins with. So a million records of format 1 cost nothing for carrying a version.
"""

import sys
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec
from msgspec.structs import force_setattr

from wharf.model.changes import THIS
from wharf.state.table import Table

R = TypeVar("R", bound=msgspec.Struct)

FIRST_MAP_BYTE: Final = 0x80
SHARED_VALUES_MAX: Final = 4_096

_encoder = msgspec.msgpack.Encoder()
_plain_decoder = msgspec.msgpack.Decoder(dict[str, Any])


class NewerFormat(Exception):
    """A record was written by a newer program than this one."""


class Damaged(Exception):
    """The bytes under a key are no record of this table."""


def encode(table: Table[R], record: R) -> bytes:
    data = _encoder.encode(record)
    return data if table.version == 1 else bytes([table.version]) + data


class Decoder(Generic[R]):
    """Turns a table's bytes into records that are ready to be kept.

    The record is fresh from the decoder and nobody else has seen it yet: that is the one moment at which its fields may
    still be set in place.
    """

    __slots__ = ("_decode", "_interned", "_nested_stamps", "_shared", "_stamps", "table")

    def __init__(self, table: Table[R]) -> None:
        self.table = table
        self._decode: Callable[[bytes], R] = msgspec.msgpack.Decoder(table.record).decode
        self._interned = table.interned
        self._stamps = tuple(path for path in table.stamped if "." not in path)
        self._nested_stamps = tuple(
            (field, name) for field, dot, name in (path.partition(".") for path in table.stamped) if dot
        )
        self._shared = tuple((name, _SharedValues(kind)) for name, kind in table.shared.items())

    def record(self, key: str, data: bytes, index: int) -> R:
        """The record written at `index`, complete: markers replaced, recurring values shared."""
        try:
            record = self._decode(data) if data[0] >= FIRST_MAP_BYTE else self._upgraded(data)
        except (msgspec.MsgspecError, IndexError) as error:
            raise Damaged(f"{self.table.name}/{key!r}: {error}") from error
        force_setattr(record, "modify_index", index)
        for name in self._stamps:
            if getattr(record, name) == THIS:
                force_setattr(record, name, index)
        for name in self._interned:
            force_setattr(record, name, sys.intern(getattr(record, name)))
        for name, values in self._shared:
            raw = getattr(record, name)
            if raw is not None:
                force_setattr(record, name, values.of(raw))
        for field, name in self._nested_stamps:
            _stamp_nested(getattr(record, field), name, index)
        return record

    def _upgraded(self, data: bytes) -> R:
        version = data[0]
        if version > self.table.version:
            raise NewerFormat(
                f"a record of {self.table.name} has format {version}; this program reads up to {self.table.version}. "
                "Start a newer wharf on this data."
            )
        return self._from_older(_plain_decoder.decode(memoryview(data)[1:]), version)

    def _from_older(self, plain: dict[str, Any], version: int) -> R:
        for step in range(version, self.table.version):
            plain = self.table.upgrades[step](plain)
        return self._decode(_encoder.encode(plain))


class _SharedValues:
    """Values that recur in many records, each decoded once. Forgets everything when it holds too many."""

    __slots__ = ("_decode", "_values")

    def __init__(self, kind: Any) -> None:
        self._decode = msgspec.msgpack.Decoder(kind).decode
        self._values: dict[bytes, Any] = {}

    def of(self, raw: msgspec.Raw) -> Any:
        data = bytes(raw)
        value = self._values.get(data)
        if value is None:
            if len(self._values) >= SHARED_VALUES_MAX:
                self._values.clear()
            value = self._values[data] = self._decode(data)
        return value


def _stamp_nested(value: Any, name: str, index: int) -> None:
    if value is None:
        return
    for item in value if isinstance(value, tuple) else (value,):
        if getattr(item, name) == THIS:
            force_setattr(item, name, index)
