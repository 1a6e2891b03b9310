"""Repeatable random numbers: the same evaluation on the same state always makes the same decisions."""

from typing import Final

import numpy as np

from wharf.cluster.scheduling.fleet.columns import Ints

_MASK: Final = (1 << 64) - 1
"""The largest 64-bit number. `x & _MASK` drops higher bits."""
_STEP: Final = 0x9E3779B97F4A7C15
"""The increment of the state in the SplitMix64 generator."""


class SeededRandom:
    """A generator of random numbers whose sequence depends only on a seed: a text and a number.

    Of the text, only the last 16 bytes count.
    """

    __slots__ = ("_state",)

    def __init__(self, seed_text: str, seed_number: int) -> None:
        self._state = (int.from_bytes(seed_text.encode()[-16:], "big") ^ seed_number) & _MASK

    def _next(self) -> int:
        """Advance the generator and return the next number of 64 bits, computed by the SplitMix64 algorithm."""
        self._state = (self._state + _STEP) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return mixed ^ (mixed >> 31)

    def draw_below(self, bound: int) -> int:
        """Return a random number that is at least 0 and less than `bound`."""
        return self._next() % bound

    def shuffle_values(self, values: Ints) -> Ints:
        """Return a copy of `values` in random order.

        Each value gets a random sort key. The key's lowest bits are replaced by the position of the value, so that the
        sorted keys show which value comes next. Sorting plain integers costs half as much as argsort.
        """
        keys = np.arange(len(values), dtype=np.uint64) * np.uint64(self._next() | 1)
        keys ^= keys >> np.uint64(29)
        keys *= np.uint64(self._next() | 1)
        position_bits = np.uint64((1 << len(values).bit_length()) - 1)
        keys &= ~position_bits
        keys |= np.arange(len(values), dtype=np.uint64)
        keys.sort()
        return values[(keys & position_bits).astype(np.int64)]
