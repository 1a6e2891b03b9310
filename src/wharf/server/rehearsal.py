"""Rehearsing a write: a handler runs to its end, answer and all, and nothing is written.

So an answer can be kept in the same batch as the effect that it tells of: the handler is run on what would be written,
with a number in the place of the index that only the log knows. A handler that asks the leader, or writes twice, cannot
be rehearsed and says so.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from wharf.model.changes import Write
from wharf.operations.decision import Decision

INDEX: Final = 4_611_686_018_427_380_087
"""Stands for the index of the batch in a rehearsed answer. No log comes near it."""


class CannotRehearse(Exception):
    """The handler does more than one write of this server's own."""


class Rehearsal:
    def __init__(self) -> None:
        self.has_decided = False
        self.write: Write | None = None
        """What would be written; None: the decision is that nothing has to be."""

    def take(self, decision: Decision[Any]) -> None:
        if self.has_decided:
            raise CannotRehearse
        self.has_decided = True
        self.write = decision.write


_CURRENT: Final[ContextVar[Rehearsal | None]] = ContextVar("rehearsal", default=None)


def current_rehearsal() -> Rehearsal | None:
    return _CURRENT.get()


def forbid_in_rehearsal() -> None:
    """Called where something is done that cannot be taken back."""
    if _CURRENT.get() is not None:
        raise CannotRehearse


@contextlib.contextmanager
def rehearsing() -> Iterator[Rehearsal]:
    """What the writer is given inside is kept instead of written."""
    rehearsal = Rehearsal()
    token = _CURRENT.set(rehearsal)
    try:
        yield rehearsal
    finally:
        _CURRENT.reset(token)
