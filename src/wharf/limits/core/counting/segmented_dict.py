"""A dict in segments, so that adding a key never takes long, however many keys there are.

A dict that is full is copied to a larger one, which takes 100 ms for a million counters. Here each of many small dicts
grows at its own time.
"""

from collections.abc import Callable, Iterator, MutableMapping
from typing import Final, Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")

MAX_UNSPLIT_KEYS: Final = 2_700
"""With more keys, the dict is split, which takes about 2 ms. The number is below 2,730, at which a dict grows."""
SEGMENT_COUNT: Final = 64
"""A segment of a million counters has 16,000, and grows in 2 ms at most. More segments would need more of the processor's
caches: a decision takes 1 µs longer with 1,024."""
_SHIFT: Final = 48
"""The first bit of a hash that selects a segment. Dicts use the lowest bits, so segments use higher ones."""


class SegmentedDict(MutableMapping[K, V], Generic[K, V]):
    """Values by key, in segments. Each segment is in the order in which its keys were added; the whole dict has no order.

    It has a single segment until it has more than `MAX_UNSPLIT_KEYS` keys. `get` is then as fast as that of a dict.
    """

    __slots__ = ("_mask", "count", "get", "segments")

    get: Callable[[K], V | None]  # type: ignore[assignment] # Without a default, so that it can be a dict's own method.

    def __init__(self) -> None:
        self.segments: list[dict[K, V]] = [{}]
        self._mask = 0
        self.count = 0
        self.get = self.segments[0].get

    def __getitem__(self, key: K) -> V:
        return self.segments[hash(key) >> _SHIFT & self._mask][key]

    def __contains__(self, key: object) -> bool:
        return key in self.segments[hash(key) >> _SHIFT & self._mask]

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[K]:
        """Yield all keys, one copied segment after the other, so that keys can be added and removed meanwhile.

        Keys that are added meanwhile can be left out. Keys that are removed meanwhile can be yielded.
        """
        for segment in self.segments:
            yield from list(segment)

    def __setitem__(self, key: K, value: V) -> None:
        segment = self.segments[hash(key) >> _SHIFT & self._mask]
        if key in segment:
            segment[key] = value
        else:
            self.add_new(key, value)

    def add_new(self, key: K, value: V) -> None:
        """Add a key that the dict does not have. This is faster than an assignment."""
        self.segments[hash(key) >> _SHIFT & self._mask][key] = value
        self.count = count = self.count + 1
        if count > MAX_UNSPLIT_KEYS and not self._mask:
            self._split()

    def __delitem__(self, key: K) -> None:
        segment = self.segments[hash(key) >> _SHIFT & self._mask]
        del segment[key]
        self.count -= 1
        if not segment:
            segment.clear()  # Frees the memory of the removed keys.

    def remove_any(self) -> None:
        """Remove one of the keys. Unlike the removal of the first key, this takes the same time after many removals."""
        segment = next(segment for segment in self.segments if segment)
        segment.popitem()
        self.count -= 1

    def iterate_values(self) -> Iterator[V]:
        """Yield all values. No key may be added or removed meanwhile."""
        for segment in self.segments:
            yield from segment.values()

    def _split(self) -> None:
        """Distribute the keys of the only segment to new segments. Iterators keep the old one."""
        (old,) = self.segments
        segments: list[dict[K, V]] = [{} for _ in range(SEGMENT_COUNT)]
        self._mask = mask = SEGMENT_COUNT - 1
        for key, value in old.items():
            segments[hash(key) >> _SHIFT & mask][key] = value

        def get(key: K) -> V | None:
            return segments[hash(key) >> _SHIFT & mask].get(key)

        self.segments, self.get = segments, get
