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

    def opened(self) -> dict[str, V]:
        """Raises `Damaged` of `codec` where the bytes are no such map."""
        return self._decode(self._data)

    def raw(self) -> msgspec.Raw:
        return msgspec.Raw(self._data)

    def __getitem__(self, name: str) -> V:
        return self.opened()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.opened())

    def __len__(self) -> int:
        return len(self.opened())

    def items(self) -> ItemsView[str, V]:
        return self.opened().items()

    def values(self) -> ValuesView[V]:
        return self.opened().values()

    def __eq__(self, other: object) -> bool:
        if isinstance(other, PackedMap):
            return self._data == other._data or self.opened() == other.opened()
        return self.opened() == other if isinstance(other, dict) else NotImplemented

    __hash__ = None  # type: ignore[assignment]  # as of every map

    def __repr__(self) -> str:
        return repr(self.opened())


def passed_on(value: Any) -> msgspec.Raw:
    """What a msgpack encoder asks when it meets a packed map (its `enc_hook`)."""
    if isinstance(value, PackedMap):
        return value.raw()
    raise NotImplementedError(f"a {type(value).__name__} has no form on the wire")


def unpacked(value: Any) -> dict[str, Any]:
    """What an encoder of any other form asks (its `enc_hook`)."""
    if isinstance(value, PackedMap):
        return value.opened()
    raise NotImplementedError(f"a {type(value).__name__} has no form on the wire")
