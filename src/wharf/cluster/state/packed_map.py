"""Maps that are stored as their encoded bytes and decoded on each read.

Meant for large values that differ between records and are rarely read, such as task states. Readers use them as ordinary
read-only maps. They need no more memory than their bytes, and are written again without encoding.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar, cast

import msgspec

V = TypeVar("V")


_last_read: tuple[object, Mapping[str, object]] = (None, {})
"""The map whose item was read last, and its decoded values."""


class PackedMap(Mapping[str, V]):
    """A read-only map that is stored as bytes. Every read decodes all of it, except that `map[key]` uses the map that the last
    such read of any map decoded: `dict(map)` reads each key by itself.
    """

    __slots__ = ("_data", "_decode")

    def __init__(self, data: bytes, decode: Callable[[bytes], dict[str, V]]) -> None:
        self._data = data
        self._decode = decode

    @property
    def size(self) -> int:
        """The size of the stored bytes."""
        return len(self._data)

    def unpack(self) -> dict[str, V]:
        """Return the decoded map. Raises `DamagedRecord` if the bytes cannot be decoded."""
        return self._decode(self._data)

    def to_raw(self) -> msgspec.Raw:
        """Return the bytes for an encoder that writes msgpack."""
        return msgspec.Raw(self._data)

    def __getitem__(self, name: str) -> V:
        global _last_read
        last_map, values = _last_read
        if last_map is not self:
            values = self.unpack()
            _last_read = (self, values)
        return cast(V, values[name])

    def __iter__(self) -> Iterator[str]:
        return iter(self.unpack())

    def __len__(self) -> int:
        return len(self.unpack())

    def items(self) -> ItemsView[str, V]:
        return self.unpack().items()

    def values(self) -> ValuesView[V]:
        return self.unpack().values()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedMap):
            return self._data == other._data or self.unpack() == other.unpack()
        return self.unpack() == other if isinstance(other, dict) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # maps are not hashable

    def __repr__(self) -> str:
        return repr(self.unpack())


def encode_packed_as_raw(value: Any) -> msgspec.Raw:
    """Encode a packed map as its bytes. The `enc_hook` of msgpack encoders."""
    if isinstance(value, PackedMap):
        return value.to_raw()
    raise NotImplementedError(f"a {type(value).__name__} cannot be encoded")


def encode_packed_as_dict(value: Any) -> dict[str, Any]:
    """Encode a packed map as a dict. The `enc_hook` of encoders for other formats, such as JSON."""
    if isinstance(value, PackedMap):
        return value.unpack()
    raise NotImplementedError(f"a {type(value).__name__} cannot be encoded")
