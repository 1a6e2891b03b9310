"""Where long questions are thought about, so that the brain's loop goes on: a port, and the way without any processes.

What is run there sees the state of one moment, changes nothing, and gives back bytes.
"""

from collections.abc import Callable
from typing import Protocol

Work = Callable[[], bytes]
"""Reads the replica and the fleet as they stand. What it changes in memory may be lost."""


class WorkFailed(Exception):
    """Work ended by an error of its own, told as text: its traceback is of another process."""


class Sideline(Protocol):
    async def run(self, work: Work) -> bytes:
        """Raises `Refusal` where nobody came to an end with it in time, WorkFailed where it failed."""
        ...


class InPlace:
    """For one loop that has no processes around it: tests and the simulation."""

    async def run(self, work: Work) -> bytes:
        return work()
