"""The port for requests with large bodies, which would hold the event loop of an api process for too long.

A worker runs the whole handler of a request elsewhere, on a copy of this process's state, and returns its encoded reply.
`snapshot_services` replaces the services that such a handler uses to write and to call the leader.
"""

import enum
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason

RequestComputation = Callable[[], Coroutine[Any, Any, bytes]]
"""Executes a request and returns its encoded reply. Repeatable until it writes: a worker calls it again after a conflict."""


class WorkerLane(enum.Enum):
    """A group of requests with workers and a queue of its own. The values appear in messages."""

    USER = "requests with large bodies"
    NODE = "large requests of nodes"


class WorkersBusy(Refusal):
    """The refusal of a request because too many requests wait for a worker. Nothing of it was executed."""

    def __init__(self, lane: WorkerLane, waiting_count: int, retry_after_s: int) -> None:
        text = (
            f"the server is overloaded: {waiting_count} {lane.value} wait for a worker process; "
            f"send the request again after {retry_after_s} s"
        )
        super().__init__(RefusalCode.UNAVAILABLE, text, RefusalReason.OVERLOADED)
        self.retry_after_s = retry_after_s


class RequestWorker(Protocol):
    """Executes requests outside the event loop."""

    async def run(self, compute: RequestComputation, *, lane: WorkerLane) -> bytes:
        """Return the result of `compute`.

        Raises `WorkersBusy`, a `Refusal` if the request needs more CPU time than the limit, or `WorkerFailed`.
        """
        ...


class InlineRequestWorker:
    """A `RequestWorker` for tests and the simulation: it executes requests in the caller's process."""

    async def run(self, compute: RequestComputation, *, lane: WorkerLane) -> bytes:  # noqa: ARG002 (the port's)
        return await compute()
