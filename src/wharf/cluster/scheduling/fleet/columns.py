"""Column types and value codes: texts as numbers, so that thousands are compared in one step."""

from collections.abc import Callable, Hashable
from typing import Any, Final, Generic, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

T = TypeVar("T", bound=Hashable)

Ints: TypeAlias = NDArray[np.int64]
"""A column of 64-bit integers, one for each row. A row is a node."""
Codes: TypeAlias = NDArray[np.int32]
"""A column of value codes, one for each row."""
Floats: TypeAlias = NDArray[np.float64]
"""A column of floats, one for each row."""
Mask: TypeAlias = NDArray[np.bool_]
"""A column of booleans, one for each row: which rows are selected."""

INITIAL_ROWS: Final = 64
"""The first size of columns. They double when they are full."""


class ValueCodes(Generic[T]):
    """Assigns a number, the code, to each distinct value, from 0 in order of appearance.

    Columns then store codes instead of texts.

    For example, "dc1" has the code 0 and "dc2" the code 1. A code is never reused.
    """

    __slots__ = ("code_by_value", "values")

    def __init__(self) -> None:
        self.values: list[T] = []
        self.code_by_value: dict[T, int] = {}

    def encode_value(self, value: T) -> int:
        """Return the code of the value, and assign one if it is new."""
        code = self.code_by_value.get(value)
        if code is None:
            code = self.code_by_value[value] = len(self.values)
            self.values.append(value)
        return code

    def __len__(self) -> int:
        return len(self.values)

    def mask_values(self, predicate: Callable[[T], bool]) -> Mask:
        """Return a mask over all codes: whether the predicate accepts the value of the code.

        It is called once for each distinct value; `mask[column]` then selects the rows.
        """
        return np.fromiter(map(predicate, self.values), dtype=np.bool_, count=len(self.values))


def grow_column(column: NDArray[Any], size: int, *, fill: int = 0) -> NDArray[Any]:
    """Return a copy of the column with `size` rows, of which the new ones contain `fill`."""
    longer = np.full(size, fill, dtype=column.dtype)
    longer[: len(column)] = column
    return longer
