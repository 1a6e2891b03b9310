"""The port for long computations that must not block the brain's loop, and an implementation without processes.

A computation reads the state as of its start, changes nothing and returns bytes.
"""

from collections.abc import Callable, Hashable
from typing import Protocol

WorkerFunction = Callable[[], bytes]
"""Reads the replica and the fleet. Changes that it makes in memory may be lost."""


class WorkerFailed(Exception):
    """The computation raised an error. The message is text, because the traceback belongs to another process."""


class WorkerProcess(Protocol):
    """Runs long computations in another process."""

    async def run(self, work: WorkerFunction, owner: Hashable) -> bytes:
        """Return the result of `work`. Owners, such as tokens, take turns.

        Raises `Overloaded` if too many calls wait, `Refusal` if no worker finished in time, `WorkerFailed` if it failed.
        """
        ...


class InlineWorker:
    """A `WorkerProcess` for tests and the simulation: it runs computations in the caller's process."""

    async def run(self, work: WorkerFunction, owner: Hashable) -> bytes:  # noqa: ARG002 (the port's)
        return work()
