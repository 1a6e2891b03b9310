"""The log in memory with an eye on it: every batch is seen the moment it is in, with the process that wrote it.

What the log does is the engine's own; here it is only watched, and, in a run with a planted bug, tampered with at the
door.
"""

from collections.abc import Callable
from typing import Protocol

from simulation.process import Process, current_process
from wharf.engines.memory_log import MemoryCopy, MemoryLog
from wharf.engines.port import Batch, Bounds, LogWrite, Outcome, Row, Standing
from wharf.world import World


class Eye(Protocol):
    """Told of every write that is asked for, of every batch that came of it (`write` is None when a lease ended), and of
    every restore: from the index `since` on the log says what these rows say.
    """

    def on_asked(self, write: LogWrite, process: Process | None) -> None: ...

    def on_batch(self, batch: Batch, write: LogWrite | None, process: Process | None) -> None: ...

    def on_restored(self, rows: list[Row], standing: Standing, since: int) -> None: ...


class ObservedLog(MemoryLog):
    """`eye` and `after_commit` are set by those who watch; `tamper` by a planted bug."""

    eye: Eye
    after_commit: Callable[[Process], None]

    def __init__(self, world: World, bounds: Bounds) -> None:
        super().__init__(world, bounds=bounds)
        self.tamper: Callable[[LogWrite], list[LogWrite]] = lambda write: [write]
        self._writing: tuple[LogWrite, Process | None] | None = None

    def commit(self, write: LogWrite) -> Outcome:
        process = current_process()
        self.eye.on_asked(write, process)
        outcome: Outcome | None = None
        for part in self.tamper(write):
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

    def put_back(self, copy: MemoryCopy) -> None:
        since = self.index + 1
        super().put_back(copy)
        self.eye.on_restored(self.rows(), self.standing(), since)

    def _append(self, batch: Batch) -> None:
        """Where the log itself takes in a batch, one that a lease's end makes too."""
        write, process = self._writing if self._writing is not None and batch.id else (None, None)
        self.eye.on_batch(batch, write, process)
        super()._append(batch)
