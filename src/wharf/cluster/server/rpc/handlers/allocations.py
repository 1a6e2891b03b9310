"""What the leader answers about allocations: it alone marks them."""

from typing import Final

import msgspec

from wharf.cluster.operations import allocations
from wharf.cluster.operations.allocations import AllocationStopResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute


class StopAllocationRequest(msgspec.Struct, frozen=True):
    allocation_id: str
    no_shutdown_delay: bool = False
    reschedule: bool = False
    cause: str = ""


STOP_ALLOCATION: Final = RpcMethod("stop-allocation", StopAllocationRequest, AllocationStopResult)


class AllocationHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def stop_allocation(self, wanted: StopAllocationRequest) -> AllocationStopResult:
        return await self._brain.execute(
            lambda snapshot, moment: allocations.stop_allocation(
                snapshot,
                wanted.allocation_id,
                moment,
                should_skip_shutdown_delay=wanted.no_shutdown_delay,
                should_reschedule=wanted.reschedule,
                cause=wanted.cause,
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    return ((STOP_ALLOCATION, AllocationHandlers(brain).stop_allocation),)
