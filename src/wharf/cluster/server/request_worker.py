"""The port for requests that would hold the event loop of an api process for too long: with large bodies, and explanations.

A worker runs the whole handler of a request elsewhere, on a copy of this process's state, and returns its encoded reply.
`snapshot_services` replaces the services that such a handler uses to write and to call the leader.
"""

import enum
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Protocol

RequestComputation = Callable[[], Coroutine[Any, Any, bytes]]
"""Executes a request and returns its encoded reply. Repeatable until it writes: a worker calls it again after a conflict."""


class WorkerLane(enum.Enum):
    """A group of requests with workers and a queue of its own. The values appear in messages."""

    USER = "requests with large bodies"
    NODE = "large requests of registered nodes"
    NEW_NODE = "large registrations"
    """Registrations without the secret of a registered node. They can use up no worker of the other lanes."""
    EXPLANATION = "explanations"
    """Reads that examine all nodes. They write nothing, and need no newer state than the process has."""


class RequestWorker(Protocol):
    """Executes requests outside the event loop."""

    async def run(self, compute: RequestComputation, *, lane: WorkerLane, owner: Hashable) -> bytes:
        """Return the result of `compute`. The owners of requests share the workers of a lane fairly.

        Raises `Overloaded` if too many requests wait for a worker, a `Refusal` if the request needs more CPU time than the limit, or `WorkerFailed`.
        """
        ...


class InlineRequestWorker:
    """A `RequestWorker` for tests and the simulation: it executes requests in the caller's process."""

    async def run(
        self,
        compute: RequestComputation,
        *,
        lane: WorkerLane,  # noqa: ARG002 (the port's)
        owner: Hashable,  # noqa: ARG002 (the port's)
    ) -> bytes:
        return await compute()
