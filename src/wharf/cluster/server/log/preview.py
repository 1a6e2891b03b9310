"""Runs a request handler without committing its write.

Used to store a reply in the same batch as the write that it describes: the handler runs once, with a placeholder for
the log index. Handlers that call the leader or write twice cannot be previewed and raise `CannotPreview`.
"""

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Final

from wharf.cluster.operations.decision import Decision
from wharf.contract.model.log import Write

PREVIEW_INDEX: Final = 4_611_686_018_427_380_087
"""Placeholder for the batch index in a previewed reply. No real log reaches this index."""


class CannotPreview(Exception):
    """The handler makes more than one local write, or does something that cannot be undone."""


class WritePreview:
    """The decision that a previewed handler made."""

    def __init__(self) -> None:
        self.has_decided = False
        self.write: Write | None = None
        """The write that would be committed; `None` if the decision needs no write."""

    def record_decision(self, decision: Decision[Any]) -> None:
        """Record the decision of the handler. Raises `CannotPreview` if it already made one."""
        if self.has_decided:
            raise CannotPreview
        self.has_decided = True
        self.write = decision.write


_CURRENT: Final[ContextVar[WritePreview | None]] = ContextVar("preview", default=None)


def get_current_preview() -> WritePreview | None:
    """Return the preview that the current task runs in, or `None`."""
    return _CURRENT.get()


def forbid_in_preview() -> None:
    """Raise `CannotPreview` if the current task runs in a preview.

    Call this before every action that cannot be undone.
    """
    if _CURRENT.get() is not None:
        raise CannotPreview


@contextlib.contextmanager
def preview_write() -> Iterator[WritePreview]:
    """Context in which decisions are recorded in the returned `WritePreview` instead of committed."""
    preview = WritePreview()
    token = _CURRENT.set(preview)
    try:
        yield preview
    finally:
        _CURRENT.reset(token)
