"""The log in memory with an eye on it: every batch is seen the moment it is in, with the process that wrote it.

What the log does is the engine's own; here it is only watched, and, in a run with a planted bug, tampered with at the
door.
"""

from collections.abc import Callable
from typing import Protocol

from simulation.process import Process, current_process
from wharf.cluster.engines.memory.log import MemoryLog, MemoryLogCopy
from wharf.cluster.engines.port import Batch, EncodedWrite, LogPosition, StoredRecord, WriteLimits, WriteOutcome
from wharf.world import World


class LogObserver(Protocol):
    """Told of every write that is asked for, of every batch that came of it (`write` is None when a lease ended), and of
    every restore: from the index `since` on the log says what these rows say.
    """

    def on_write_requested(self, write: EncodedWrite, process: Process | None) -> None: ...

    def on_batch(self, batch: Batch, write: EncodedWrite | None, process: Process | None) -> None: ...

    def on_restored(self, rows: list[StoredRecord], standing: LogPosition, since: int) -> None: ...


class ObservedLog(MemoryLog):
    """`eye` and `after_commit` are set by those who watch; `tamper` by a planted bug."""

    observer: LogObserver
    after_commit: Callable[[Process], None]

    def __init__(self, world: World, limits: WriteLimits) -> None:
        super().__init__(world, limits=limits)
        self.alter_write: Callable[[EncodedWrite], list[EncodedWrite]] = lambda write: [write]
        self._writing: tuple[EncodedWrite, Process | None] | None = None

    def commit(self, write: EncodedWrite) -> WriteOutcome:
        process = current_process()
        self.observer.on_write_requested(write, process)
        outcome: WriteOutcome | None = None
        for part in self.alter_write(write):
            self._writing = (part, process)
            try:
                done = super().commit(part)
            finally:
                self._writing = None
            outcome = outcome if outcome is not None else done
        assert outcome is not None, "a planted bug left nothing of a write"
        if process is not None:
            self.after_commit(process)
        return outcome

    def restore_copy(self, copy: MemoryLogCopy) -> None:
        since = self.index + 1
        super().restore_copy(copy)
        self.observer.on_restored(self.list_records(), self.get_position(), since)

    def _append(self, batch: Batch) -> None:
        """Where the log itself takes in a batch, one that a lease's end makes too."""
        write, process = self._writing if self._writing is not None and batch.id else (None, None)
        self.observer.on_batch(batch, write, process)
        super()._append(batch)
