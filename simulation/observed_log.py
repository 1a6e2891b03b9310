"""The product's log in memory, with an observer that receives every batch at once, with the process that wrote it.

A planted bug may change the writes before they reach the log.
"""

from collections.abc import Callable
from typing import Protocol

from simulation.process import Process, current_process
from wharf.cluster.engines.memory.log import MemoryLog, MemoryLogCopy
from wharf.cluster.engines.port import (
    Batch,
    Committed,
    EncodedWrite,
    LogPosition,
    StoredRecord,
    WriteLimits,
    WriteOutcome,
)
from wharf.world import World


class LogObserver(Protocol):
    """Receives every requested write, every batch, and every restore.

    The write of a batch is `None` if a lease ended. After a restore, the log has these rows from the index `since` on.
    """

    def on_write_requested(self, write: EncodedWrite, process: Process | None) -> None: ...

    def on_batch(self, batch: Batch, write: EncodedWrite | None, process: Process | None) -> None: ...

    def on_restored(self, rows: list[StoredRecord], position: LogPosition, since: int) -> None: ...


class ObservedLog(MemoryLog):
    """The log. The record history sets `observer`, chaos sets `after_commit`, and a planted bug sets `alter_write`."""

    observer: LogObserver
    after_commit: Callable[[Process], None]

    def __init__(self, world: World, limits: WriteLimits) -> None:
        super().__init__(world, limits=limits)
        self.alter_write: Callable[[EncodedWrite], list[EncodedWrite]] = lambda write: [write]
        self._current_write: tuple[EncodedWrite, Process | None] | None = None

    def commit(self, write: EncodedWrite) -> WriteOutcome:
        """Commit a write, or the writes that a planted bug makes of it, for the current process."""
        process = current_process()
        self.observer.on_write_requested(write, process)
        outcome: WriteOutcome | None = None
        for part in self.alter_write(write):
            self._current_write = (part, process)
            try:
                part_outcome = super().commit(part)
            finally:
                self._current_write = None
            outcome = outcome if outcome is not None else part_outcome
            if not isinstance(part_outcome, Committed):
                break  # What a planted bug writes later follows from this part.
        assert outcome is not None, "a planted bug must not remove a whole write"
        if process is not None:
            self.after_commit(process)
        return outcome

    def restore_copy(self, copy: MemoryLogCopy) -> None:
        since = self.index + 1
        super().restore_copy(copy)
        self.observer.on_restored(self.list_records(), self.get_position(), since)

    def _append(self, batch: Batch) -> None:
        """Pass each new batch to the observer, also the batch that a lease creates when it ends."""
        write, process = self._current_write if self._current_write is not None and batch.id else (None, None)
        self.observer.on_batch(batch, write, process)
        super()._append(batch)
