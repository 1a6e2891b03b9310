"""Where long questions are thought about, so that the brain's loop goes on: a port, and the way without any processes.

What is run there sees the state of one moment, changes nothing, and gives back bytes.
"""

from collections.abc import Callable
from typing import Protocol

WorkerFunction = Callable[[], bytes]
"""Reads the replica and the fleet as they stand. What it changes in memory may be lost."""


class WorkerFailed(Exception):
    """Work ended by an error of its own, told as text: its traceback is of another process."""


class WorkerProcess(Protocol):
    async def run(self, work: WorkerFunction) -> bytes:
        """Raises `Refusal` where nobody came to an end with it in time, WorkFailed where it failed."""
        ...


class InlineWorker:
    """For one loop that has no processes around it: tests and the simulation."""

    async def run(self, work: WorkerFunction) -> bytes:
        return work()
