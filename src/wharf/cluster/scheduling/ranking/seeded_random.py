"""Chance from a seed: the same evaluation on the same state decides the same way, wherever it is run again."""

from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


class SeededRandom:
    """Numbers that follow from a text and a number."""

    __slots__ = ("_state",)

    def __init__(self, text: str, number: int) -> None:
        self._state = (int.from_bytes(text.encode()[-16:], "big") ^ number) & _MASK

    def _next(self) -> int:
        self._state = (self._state + _STEP) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def draw_below(self, bound: int) -> int:
        """From 0 up to, not including, the bound."""
        return self._next() % bound

    def shuffle_values(self, values: Ints) -> Ints:
        """The same values in another order."""
        keys = np.arange(len(values), dtype=np.uint64) * np.uint64(self._next() | 1)
        keys ^= keys >> np.uint64(29)
        keys *= np.uint64(self._next() | 1)
        # Each key carries its place in its lowest bits, so what is sorted are plain numbers: half as dear as their order.
        of_place = np.uint64((1 << len(values).bit_length()) - 1)
        keys &= ~of_place
        keys |= np.arange(len(values), dtype=np.uint64)
        keys.sort()
        return values[(keys & of_place).astype(np.int64)]
