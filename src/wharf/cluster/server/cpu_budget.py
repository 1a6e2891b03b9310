"""Bounds the CPU time of requests: work in slices that give the event loop back, work off the loop, and budgets.

A request that takes long never holds the loop for longer than a slice and one step. It ends with an error when its budget
is used up. What a step is, and what to do in it, is decided by the callers.
"""

from collections.abc import Callable, Hashable
from typing import Final, TypeVar

import msgspec

from wharf.cluster.server.fair_places import FairPlaces
from wharf.cluster.server.loop_slots import LoopSlots
from wharf.contract.model.refusal import Overloaded, invalid_request
from wharf.world import World

T = TypeVar("T")

SLICE_S: Final = 0.004
"""The CPU time after which work in slices lets other tasks run. One more step follows at most, so steps must be short."""
MAX_OFF_LOOP_REQUESTS: Final = 16
"""The requests that may wait for the thread for long computations. Each may use it for its whole budget."""
OFF_LOOP_RETRY_AFTER_S: Final = 5
"""When a caller may return that found too many requests waiting for the thread."""


class ReadLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The CPU time that one request may use."""

    filter_cpu_s: float = 1.0
    """To evaluate its filter. The setting is `api.max_filter_cpu`."""
    list_cpu_s: float = 30.0
    """To build and encode a list or a large record, or to search. The setting is `api.max_list_cpu`."""
    view_cpu_s: float = 5.0
    """To compute a reply from records, such as the differences of versions. The setting is `api.max_view_cpu`."""

    def make_filter_budget(self) -> "CpuBudget":
        """Return the budget of a filter."""
        return CpuBudget(
            self.filter_cpu_s,
            f"the filter used more than {self.filter_cpu_s:g} s of CPU time (api.max_filter_cpu): "
            "use simpler terms and regular expressions, or select fewer records with a prefix or a namespace",
        )

    def make_list_budget(self) -> "CpuBudget":
        """Return the budget of a list or a search."""
        return CpuBudget(
            self.list_cpu_s,
            f"the request used more than {self.list_cpu_s:g} s of CPU time (api.max_list_cpu): "
            "read pages with per_page, or select fewer records",
        )

    def make_view_budget(self, advice: str) -> "CpuBudget":
        """Return the budget of a reply that is computed from records. `advice`: what the caller can do instead."""
        return CpuBudget(
            self.view_cpu_s,
            f"the request used more than {self.view_cpu_s:g} s of CPU time (api.max_view_cpu): {advice}",
        )


class CpuBudget:
    """The CPU time that one request may use for one kind of work."""

    def __init__(self, limit_s: float, exceeded_text: str) -> None:
        self._limit_s = limit_s
        self._exceeded_text = exceeded_text
        self._used_s = 0.0

    @property
    def remaining_s(self) -> float:
        return self._limit_s - self._used_s

    def spend(self, cpu_s: float) -> None:
        """Count CPU time. Raises `Refusal` if the budget is used up."""
        self._used_s += cpu_s
        if self._used_s > self._limit_s:
            raise invalid_request(self._exceeded_text)


class OffLoopWorker:
    """Runs long computations of requests on a thread, one at a time, and refuses more than a few at once.

    The owners of the requests take turns (`FairPlaces`), so that the filters of one caller delay no other one.

    `loop_slots` are those of computations that run in slices on the loop.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.loop_slots = LoopSlots()
        self._places = FairPlaces(1, MAX_OFF_LOOP_REQUESTS - 1, _build_off_loop_refusal)

    async def run(self, work: Callable[[], T], owner: Hashable = None) -> T:
        """Run a function on the thread and return its result. Raises `Overloaded` if too many requests wait."""
        async with self._places.enter(owner):
            return await self._world.run_off_loop(work)


def _build_off_loop_refusal(_waiting_count: int) -> Overloaded:
    return Overloaded(
        f"{MAX_OFF_LOOP_REQUESTS} requests with long computations are in progress", OFF_LOOP_RETRY_AFTER_S
    )


class SlicedWork:
    """Work of one request that runs in slices on the event loop, and partly off the loop. Its CPU time is counted.

    The first slice begins when the work is created. Call `restart` if something was awaited since then, and `pause` when
    `is_slice_over` returns true. Await nothing else between two calls of `pause`: other tasks would be counted. Reading
    the clock of the thread takes almost a microsecond, so short work leaves it out.
    """

    __slots__ = ("_began_s", "_budget", "_off_loop", "_owner", "_world")

    def __init__(self, world: World, off_loop: OffLoopWorker, budget: CpuBudget, owner: Hashable) -> None:
        """`owner`: the caller that requested the work. Owners share the thread fairly."""
        self._owner = owner
        self._world = world
        self._off_loop = off_loop
        self._budget = budget
        self._began_s = world.cpu_s()

    def is_slice_over(self) -> bool:
        """Return whether the work has used the loop for a slice."""
        return self._world.cpu_s() - self._began_s >= SLICE_S

    def restart(self) -> None:
        """Begin a slice. CPU time since the last one is not counted, because other tasks may have run."""
        self._began_s = self._world.cpu_s()

    def count_slice(self) -> None:
        """Count the CPU time of the current slice, and begin another. Raises `Refusal` if the budget is used up."""
        now_s = self._world.cpu_s()
        used_s, self._began_s = now_s - self._began_s, now_s
        self._budget.spend(used_s)

    async def pause(self) -> None:
        """Count the CPU time of the slice, let other tasks run, and wait for the next slot.

        Raises `Refusal` if the budget is used up.
        """
        self.count_slice()
        await self._off_loop.loop_slots.wait()
        self._began_s = self._world.cpu_s()

    async def run_off_loop(self, work: Callable[[Callable[[], bool]], T]) -> T:
        """Run a function off the loop and return its result. Raises `Refusal` if the budget is used up.

        The function is passed a function that returns whether the budget is used up, and returns early if it is.
        """
        self.count_slice()
        world, remaining_s = self._world, self._budget.remaining_s

        def run_timed() -> tuple[T, float]:
            began_s = world.cpu_s()
            result = work(lambda: world.cpu_s() - began_s > remaining_s)
            return result, world.cpu_s() - began_s

        try:
            result, used_s = await self._off_loop.run(run_timed, self._owner)
        finally:
            self._began_s = world.cpu_s()
        self._budget.spend(used_s)
        return result
