"""Slots for what lasts long in one api process, such as streams and commands: each caller has only a part of them."""

from collections import Counter

from wharf.cluster.access import Caller, CallerKind
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason


class CallerSlots:
    """A limited number of slots. One token, or the tasks of one allocation, can take a part of them.

    While access control is off, all callers count as one and can take all slots.
    """

    def __init__(self, max_total: int, max_per_caller: int, *, process_full_text: str, caller_full_text: str) -> None:
        """The texts begin the refusal of a full process or caller, such as "this server process runs 512 commands"."""
        self._max_total = max_total
        self._max_per_caller = max_per_caller
        self._process_full_text = process_full_text
        self._caller_full_text = caller_full_text
        self._counts = Counter[str]()
        """The taken slots of each caller: by accessor id of its token, by allocation, or empty without a token."""

    def take(self, caller: Caller) -> "CallerSlot":
        """Take a slot for the caller. Raises `Refusal` if it or all callers have too many."""
        key = caller.accessor_id or (caller.claims.alloc_id if caller.claims is not None else "")
        if self._counts.total() >= self._max_total:
            raise _build_refusal(self._process_full_text)
        if caller.kind is not CallerKind.UNCHECKED and self._counts[key] >= self._max_per_caller:
            raise _build_refusal(self._caller_full_text)
        self._counts[key] += 1
        return CallerSlot(self._counts, key)


class CallerSlot:
    """A taken slot, until `release` or until nothing refers to it any more."""

    __slots__ = ("_counts", "_key")

    def __init__(self, counts: Counter[str], key: str) -> None:
        self._counts: Counter[str] | None = counts
        self._key = key

    def release(self) -> None:
        """Release the slot. Further calls do nothing."""
        counts, self._counts = self._counts, None
        if counts is None:
            return
        counts[self._key] -= 1
        if not counts[self._key]:
            del counts[self._key]

    def __enter__(self) -> "CallerSlot":
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def __del__(self) -> None:
        self.release()


def _build_refusal(full_text: str) -> Refusal:
    return Refusal(RefusalCode.UNAVAILABLE, f"{full_text}: end some, or retry later", RefusalReason.OVERLOADED)
