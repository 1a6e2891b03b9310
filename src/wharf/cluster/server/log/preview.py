"""Rehearsing a write: a handler runs to its end, answer and all, and nothing is written.

So an answer can be kept in the same batch as the effect that it tells of: the handler is run on what would be written,
with a number in the place of the index that only the log knows. A handler that asks the leader, or writes twice, cannot
be rehearsed and says so.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from wharf.cluster.operations.decision import Decision
from wharf.contract.model.log import Write

PREVIEW_INDEX: Final = 4_611_686_018_427_380_087
"""Stands for the index of the batch in a rehearsed answer. No log comes near it."""


class CannotPreview(Exception):
    """The handler does more than one write of this server's own."""


class WritePreview:
    def __init__(self) -> None:
        self.has_decided = False
        self.write: Write | None = None
        """What would be written; None: the decision is that nothing has to be."""

    def record_decision(self, decision: Decision[Any]) -> None:
        if self.has_decided:
            raise CannotPreview
        self.has_decided = True
        self.write = decision.write


_CURRENT: Final[ContextVar[WritePreview | None]] = ContextVar("rehearsal", default=None)


def get_current_preview() -> WritePreview | None:
    return _CURRENT.get()


def forbid_in_preview() -> None:
    """Called where something is done that cannot be taken back."""
    if _CURRENT.get() is not None:
        raise CannotPreview


@contextlib.contextmanager
def preview_write() -> Iterator[WritePreview]:
    """What the writer is given inside is kept instead of written."""
    rehearsal = WritePreview()
    token = _CURRENT.set(rehearsal)
    try:
        yield rehearsal
    finally:
        _CURRENT.reset(token)
