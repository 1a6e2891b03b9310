"""Texts as numbers, so that thousands of them are compared in one step."""

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)

Ints: TypeAlias = NDArray[np.int64]
Codes: TypeAlias = NDArray[np.int32]
Floats: TypeAlias = NDArray[np.float64]
Mask: TypeAlias = NDArray[np.bool_]

INITIAL_ROWS: Final = 64


class ValueCodes(Generic[T]):
    """Values and the numbers they were given, counted from 0. A number is never given again."""

    __slots__ = ("code_of", "values")

    def __init__(self) -> None:
        self.values: list[T] = []
        self.code_of: dict[T, int] = {}

    def encode_value(self, value: T) -> int:
        found = self.code_of.get(value)
        if found is None:
            found = self.code_of[value] = len(self.values)
            self.values.append(value)
        return found

    def __len__(self) -> int:
        return len(self.values)

    def mask_values(self, predicate: Callable[[T], bool]) -> Mask:
        """Which of the values are chosen, by number."""
        return np.fromiter(map(predicate, self.values), dtype=np.bool_, count=len(self.values))


def grow_column(column: NDArray[Any], room: int, *, fill: int = 0) -> NDArray[Any]:
    """The column with room for more; what is new holds `fill`."""
    longer = np.full(room, fill, dtype=column.dtype)
    longer[: len(column)] = column
    return longer
