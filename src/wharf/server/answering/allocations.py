"""What the leader answers about allocations: it alone marks them."""

from typing import Final

import msgspec

from wharf.operations import allocations
from wharf.operations.allocations import Stopped
from wharf.server.brain import Brain
from wharf.server.subject import AnsweredBy, Subject


class AllocationToStop(msgspec.Struct, frozen=True):
    allocation_id: str
    no_shutdown_delay: bool = False
    reschedule: bool = False
    cause: str = ""


STOP_ALLOCATION: Final = Subject("stop-allocation", AllocationToStop, Stopped)


class Allocations:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def stop(self, wanted: AllocationToStop) -> Stopped:
        return await self._brain.decide(
            lambda snapshot, moment: allocations.stop(
                snapshot,
                wanted.allocation_id,
                moment,
                no_shutdown_delay=wanted.no_shutdown_delay,
                reschedule=wanted.reschedule,
                cause=wanted.cause,
            )
        )


def answers_of(brain: Brain) -> tuple[AnsweredBy, ...]:
    return ((STOP_ALLOCATION, Allocations(brain).stop),)
