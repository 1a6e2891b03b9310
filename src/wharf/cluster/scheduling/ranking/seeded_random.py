"""Repeatable random numbers: the same evaluation on the same state always makes the same decisions."""

from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints

_MASK: Final = (1 << 64) - 1
_STEP: Final = 0x9E3779B97F4A7C15


class SeededRandom:
    """Random numbers that depend only on a text and a number."""

    __slots__ = ("_state",)

    def __init__(self, text: str, number: int) -> None:
        self._state = (int.from_bytes(text.encode()[-16:], "big") ^ number) & _MASK

    def _next(self) -> int:
        """Return the next 64-bit number (the SplitMix64 generator)."""
        self._state = (self._state + _STEP) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def draw_below(self, bound: int) -> int:
        """Return a number from 0 up to, not including, `bound`."""
        return self._next() % bound

    def shuffle_values(self, values: Ints) -> Ints:
        """Return the same values in random order."""
        keys = np.arange(len(values), dtype=np.uint64) * np.uint64(self._next() | 1)
        keys ^= keys >> np.uint64(29)
        keys *= np.uint64(self._next() | 1)
        # Each random key carries its position in its lowest bits. Sorting plain integers costs half as much as argsort.
        position_bits = np.uint64((1 << len(values).bit_length()) - 1)
        keys &= ~position_bits
        keys |= np.arange(len(values), dtype=np.uint64)
        keys.sort()
        return values[(keys & position_bits).astype(np.int64)]
