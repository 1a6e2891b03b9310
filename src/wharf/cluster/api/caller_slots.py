"""Slots for what lasts long in one api process, such as streams and commands: each caller has only a part of them."""

from collections import Counter

from wharf.cluster.access import Caller, CallerKind
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason


class CallerSlots:
    """A limited number of slots. One token, or the tasks of one allocation, can take a part of them.

    While access control is off, all callers count as one and can take all slots.
    """

    def __init__(self, max_total: int, max_per_caller: int, *, process_verb: str, caller_verb: str, noun: str) -> None:
        """The words form the text of a refusal, such as "this server process *runs* 512 *commands*: end some"."""
        self._limits = (max_total, max_per_caller)
        self._verbs = (process_verb, caller_verb)
        self._noun = noun
        self._counts = Counter[str]()
        """The taken slots of each caller: by accessor id of its token, by allocation, or empty without a token."""

    def take(self, caller: Caller) -> "CallerSlot":
        """Take a slot for the caller. Raises `Refusal` if it or all callers have too many."""
        key = caller.accessor_id or (caller.claims.alloc_id if caller.claims is not None else "")
        (max_total, max_per_caller), (process_verb, caller_verb) = self._limits, self._verbs
        if self._counts.total() >= max_total:
            raise self._make_refusal(f"this server process {process_verb} {max_total}")
        if caller.kind is not CallerKind.UNCHECKED and self._counts[key] >= max_per_caller:
            raise self._make_refusal(f"this token {caller_verb} {max_per_caller}")
        self._counts[key] += 1
        return CallerSlot(self._counts, key)

    def _make_refusal(self, cause: str) -> Refusal:
        return Refusal(
            RefusalCode.UNAVAILABLE, f"{cause} {self._noun}: end some, or retry later", RefusalReason.OVERLOADED
        )


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
