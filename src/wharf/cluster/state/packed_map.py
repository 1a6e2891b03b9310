"""Maps that a record holds as the bytes they came in, and that are decoded when somebody reads them.

For what is large, differs from record to record, and is seldom looked at. To a reader it is a map like another; it takes
no room but that of its bytes, and a record that is written again passes them on as they are. It never changes.
"""

from collections.abc import Callable, ItemsView, Iterator, Mapping, ValuesView
from typing import Any, TypeVar

import msgspec

V = TypeVar("V")


class PackedMap(Mapping[str, V]):
    """Every read decodes the whole map: who reads more than one thing of it takes `dict(...)` of it first."""

    __slots__ = ("_data", "_decode")

    def __init__(self, data: bytes, decode: Callable[[bytes], dict[str, V]]) -> None:
        self._data = data
        self._decode = decode

    def unpack(self) -> dict[str, V]:
        """Raises `Damaged` of `codec` where the bytes are no such map."""
        return self._decode(self._data)

    def to_raw(self) -> msgspec.Raw:
        return msgspec.Raw(self._data)

    def __getitem__(self, name: str) -> V:
        return self.unpack()[name]

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

    __hash__ = None  # type: ignore[assignment]  # as of every map

    def __repr__(self) -> str:
        return repr(self.unpack())


def encode_packed_as_raw(value: Any) -> msgspec.Raw:
    """What a msgpack encoder asks when it meets a packed map (its `enc_hook`)."""
    if isinstance(value, PackedMap):
        return value.to_raw()
    raise NotImplementedError(f"a {type(value).__name__} has no form on the wire")


def encode_packed_as_dict(value: Any) -> dict[str, Any]:
    """What an encoder of any other form asks (its `enc_hook`)."""
    if isinstance(value, PackedMap):
        return value.unpack()
    raise NotImplementedError(f"a {type(value).__name__} has no form on the wire")
