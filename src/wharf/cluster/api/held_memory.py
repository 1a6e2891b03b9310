"""Memory that requests in progress share: their large bodies and large replies are counted against a limit."""

from typing import Final

from wharf.contract.model.refusal import Overloaded

RETRY_AFTER_S: Final = 5
"""When a caller may return whose body or reply does not fit."""


class MemoryLimit:
    """The memory for one kind of bodies or replies of an api process."""

    __slots__ = ("_alternative", "_is_one_always_held", "_what_is_full", "max_bytes", "used_bytes")

    def __init__(
        self, max_bytes: int, what_is_full: str, *, alternative: str = "", is_one_always_held: bool = False
    ) -> None:
        """`what_is_full` and `alternative` are parts of the text for refused callers.

        With `is_one_always_held`, a single body or reply may exceed the limit while there is no other.
        """
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._what_is_full = what_is_full
        self._alternative = alternative
        self._is_one_always_held = is_one_always_held

    def make_refusal(self) -> Overloaded:
        return Overloaded(f"{self._what_is_full} take {self.max_bytes} bytes", RETRY_AFTER_S, self._alternative)

    def does_fit(self, size: int, *, held_size: int) -> bool:
        """Return whether `size` more bytes fit for a body or reply that already takes `held_size`."""
        is_only_one = self._is_one_always_held and self.used_bytes <= held_size
        return is_only_one or self.used_bytes + size <= self.max_bytes


class HeldMemory:
    """Counts the memory of one body or reply until `release`, or until nothing refers to it any more."""

    __slots__ = ("_limit", "_size")

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._size = 0

    def grow(self, size: int) -> None:
        """Count more bytes. Raises `Overloaded` if they exceed the limit; they do not count then."""
        if not self._limit.does_fit(size, held_size=self._size):
            raise self._limit.make_refusal()
        self._limit.used_bytes += size
        self._size += size

    def release(self) -> None:
        """Stop counting. Further calls do nothing."""
        self._limit.used_bytes -= self._size
        self._size = 0

    def __del__(self) -> None:
        self.release()
