"""Which failures of a repeated request are logged: each reason once until the request succeeds."""

from collections.abc import Hashable
from typing import Final

from wharf.contract.client import Unreachable
from wharf.contract.model.refusal import Refusal, RefusalReason

MAX_REASONS: Final = 16
"""Limits memory. After more reasons than that, all are forgotten, and each is logged again once."""
REASONS_WITH_CHANGING_TEXTS: Final = frozenset((RefusalReason.STORE_UNREACHABLE, RefusalReason.OUTDATED_REPORT))
"""Refusals whose texts contain numbers or times that differ each time."""


class RepeatedFailures:
    """The reasons for which a request has failed since it last succeeded."""

    def __init__(self) -> None:
        self._reasons: set[Hashable] = set()

    @property
    def is_empty(self) -> bool:
        """Whether the request has not failed since it last succeeded."""
        return not self._reasons

    def is_new(self, error: Refusal | Unreachable) -> bool:
        """Return whether the request fails for this reason for the first time since it last succeeded.

        Each server that cannot reach the store names the time of its own last contact, and an outdated report is named by
        its number. Such refusals give the same reason.
        """
        reason: Hashable = (type(error), str(error))
        if isinstance(error, Refusal) and error.reason in REASONS_WITH_CHANGING_TEXTS:
            reason = error.reason
        if reason in self._reasons:
            return False
        if len(self._reasons) >= MAX_REASONS:
            self._reasons.clear()
        self._reasons.add(reason)
        return True

    def clear(self) -> None:
        """Forget all reasons, because the request has succeeded."""
        self._reasons.clear()
