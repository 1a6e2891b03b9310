"""RPC handlers for allocations. Only the leader changes their desired state."""

from typing import Final

import msgspec

from wharf.cluster.operations import allocations
from wharf.cluster.operations.allocations import AllocationStopResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute


class StopAllocationRequest(msgspec.Struct, frozen=True):
    """A request to stop an allocation, which the scheduler then replaces."""

    allocation_id: str
    no_shutdown_delay: bool = False
    """Stop the tasks without waiting for their `shutdown_delay`."""
    reschedule: bool = False
    """Place the replacement as after a failure of the allocation."""
    cause: str = ""
    """The id of the HTTP request."""


STOP_ALLOCATION: Final = RpcMethod("stop-allocation", StopAllocationRequest, AllocationStopResult)


class AllocationHandlers:
    """Handles the calls of other servers and processes that concern allocations."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def stop_allocation(self, request: StopAllocationRequest) -> AllocationStopResult:
        """Stop an allocation and let the scheduler replace it."""
        return await self._brain.execute(
            lambda snapshot, context: allocations.stop_allocation(
                snapshot,
                request.allocation_id,
                context,
                should_skip_shutdown_delay=request.no_shutdown_delay,
                should_reschedule=request.reschedule,
                cause=request.cause,
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of allocations with their handlers."""
    return ((STOP_ALLOCATION, AllocationHandlers(brain).stop_allocation),)
