"""Memory that requests in progress share: their large bodies and large replies are counted against a limit."""

from collections.abc import Hashable
from typing import Final

from wharf.contract.model.refusal import Overloaded

MAX_SHARE_OF_OWNER: Final = 0.25
"""The largest part of a limit that one owner of bodies may use. Without it, one token could keep the memory of all users by
bodies that arrive slowly."""
RETRY_AFTER_S: Final = 5
"""When a caller may return whose body or reply does not fit."""


class MemoryLimit:
    """The memory for one kind of bodies or replies of an api process."""

    __slots__ = (
        "_alternative",
        "_is_one_always_held",
        "_max_bytes_of_owner",
        "_used_by_owner",
        "_what_is_full",
        "max_bytes",
        "used_bytes",
    )

    def __init__(
        self, max_bytes: int, what_is_full: str, *, alternative: str = "", is_one_always_held: bool = False
    ) -> None:
        """`what_is_full` and `alternative` are parts of the text for refused callers.

        With `is_one_always_held`, a single body or reply may exceed the limit while there is no other.
        """
        self.max_bytes = max_bytes
        self.used_bytes = 0
        self._max_bytes_of_owner = round(max_bytes * MAX_SHARE_OF_OWNER)
        self._used_by_owner: dict[Hashable, int] = {}
        self._what_is_full = what_is_full
        self._alternative = alternative
        self._is_one_always_held = is_one_always_held

    def make_refusal(self) -> Overloaded:
        return Overloaded(f"{self._what_is_full} take {self.max_bytes} bytes", RETRY_AFTER_S, self._alternative)

    def make_refusal_of_owner(self) -> Overloaded:
        return Overloaded(f"{self._what_is_full} of this caller take {self._max_bytes_of_owner} bytes", RETRY_AFTER_S)

    def does_fit(self, size: int, *, held_size: int) -> bool:
        """Return whether `size` more bytes fit for a body or reply that already takes `held_size`."""
        is_only_one = self._is_one_always_held and self.used_bytes <= held_size
        return is_only_one or self.used_bytes + size <= self.max_bytes

    def does_fit_owner(self, size: int, owner: Hashable, *, held_size: int) -> bool:
        """Return whether `size` more bytes fit in the share of the owner; `None` has no share. A single body may exceed it."""
        if owner is None:
            return True
        used_bytes = self._used_by_owner.get(owner, 0)
        return used_bytes <= held_size or used_bytes + size <= self._max_bytes_of_owner

    def count(self, size: int, owner: Hashable) -> None:
        """Count more bytes, or fewer if `size` is negative."""
        self.used_bytes += size
        if owner is not None:
            self._used_by_owner[owner] = self._used_by_owner.get(owner, 0) + size
            if not self._used_by_owner[owner]:
                del self._used_by_owner[owner]


class HeldMemory:
    """Counts the memory of one body or reply until `release`, or until nothing refers to it any more."""

    __slots__ = ("_limit", "_owner", "_size")

    def __init__(self, limit: MemoryLimit) -> None:
        self._limit = limit
        self._owner: Hashable = None
        self._size = 0

    def set_owner(self, owner: Hashable) -> None:
        """Set whose share of the limit this uses, before anything is counted. `None`: nobody's, only the limit applies."""
        assert not self._size or owner == self._owner, "bytes are counted for one owner"
        self._owner = owner

    def grow(self, size: int) -> None:
        """Count more bytes. Raises `Overloaded` if they exceed the limit; they do not count then."""
        if not self._limit.does_fit(size, held_size=self._size):
            raise self._limit.make_refusal()
        if not self._limit.does_fit_owner(size, self._owner, held_size=self._size):
            raise self._limit.make_refusal_of_owner()
        self._limit.count(size, self._owner)
        self._size += size

    def release(self) -> None:
        """Stop counting. Further calls do nothing."""
        self._limit.count(-self._size, self._owner)
        self._size = 0

    def __del__(self) -> None:
        self.release()
