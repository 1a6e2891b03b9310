"""Places that several owners share: who gets the next one, and who is refused when the queue is full."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.server.fair_places import FairPlaces
from wharf.contract.model.refusal import Overloaded

STEP_S = 0.001


class Requests:
    """Requests that hold their place until they are ended. The first letter of a name is the owner."""

    def __init__(self, places: FairPlaces) -> None:
        self.places = places
        self.begun: list[str] = []
        """The requests that have or had a place, in order."""
        self.refused: list[str] = []
        self.retry_after_s: list[int] = []
        """The numbers of waiting requests with which the refusals were built."""
        self._ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def add(self, *names: str) -> None:
        for name in names:
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.get_running_loop().create_task(self._hold(name))
            await pass_time(STEP_S)

    async def _hold(self, name: str) -> None:
        try:
            async with self.places.enter(name[0]):
                self.begun.append(name)
                await self._ends[name].wait()
        except Overloaded as refusal:
            self.refused.append(name)
            self.retry_after_s.append(refusal.retry_after_s)

    async def end(self, *names: str) -> None:
        for name in names:
            self._ends[name].set()
            await pass_time(STEP_S)

    async def cancel(self, *names: str) -> None:
        for name in names:
            self.tasks[name].cancel()
        await asyncio.gather(*(self.tasks[name] for name in names), return_exceptions=True)
        await pass_time(STEP_S)


@asynccontextmanager
async def requests_for(
    max_running: int, max_waiting: int, *, queue_timeout_s: float | None = None
) -> AsyncIterator[Requests]:
    places = FairPlaces(
        max_running, max_waiting, lambda count: Overloaded("the queue is full", count), queue_timeout_s=queue_timeout_s
    )
    requests = Requests(places)
    yield requests
    await requests.cancel(*requests.tasks)


@in_virtual_time
async def test_a_free_place_is_for_the_owner_with_the_fewest_running_requests() -> None:
    async with requests_for(2, 10) as requests:
        await requests.add("a1", "a2", "a3", "a4", "b1", "b2")

        await requests.end("a1", "a2", "b1")

        assert requests.begun == ["a1", "a2", "b1", "a3", "b2"]


@in_virtual_time
async def test_owners_with_equally_many_running_requests_take_turns() -> None:
    async with requests_for(1, 10) as requests:
        await requests.add("a1", "a2", "a3", "b1", "b2", "c1")

        await requests.end("a1", "b1", "c1", "a2", "b2")

        assert requests.begun == ["a1", "b1", "c1", "a2", "b2", "a3"]


@in_virtual_time
async def test_a_full_queue_refuses_the_newest_request_of_the_owner_with_the_most() -> None:
    async with requests_for(1, 3) as requests:
        await requests.add("a1", "a2", "a3", "a4", "b1")

        await requests.end("a1")

        assert (requests.refused, requests.begun) == (["a4"], ["a1", "b1"])


@in_virtual_time
async def test_a_full_queue_refuses_a_request_whose_owner_has_its_share() -> None:
    async with requests_for(1, 3) as requests:
        await requests.add("a1", "a2", "a3", "b1", "a4", "b2")

        assert (requests.refused, requests.retry_after_s) == (["a4", "b2"], [3, 3])


@in_virtual_time
async def test_a_request_that_waits_for_too_long_is_refused_and_leaves_the_queue() -> None:
    async with requests_for(1, 3, queue_timeout_s=5.0) as requests:
        await requests.add("a1", "b1")

        await pass_time(4.9)
        assert requests.refused == []
        await pass_time(0.1)

        assert (requests.refused, requests.places.waiting_count) == (["b1"], 0)


@in_virtual_time
async def test_requests_that_are_cancelled_give_their_places_back() -> None:
    async with requests_for(1, 3) as requests:
        await requests.add("a1", "b1", "c1")

        await requests.cancel("b1")
        await requests.cancel("a1")
        await requests.end("c1")
        await requests.add("d1")

        assert (requests.begun, requests.places.waiting_count) == (["a1", "c1", "d1"], 0)


@in_virtual_time
async def test_a_request_that_is_cancelled_as_it_gets_its_place_hands_it_on() -> None:
    async with requests_for(1, 3) as requests:
        await requests.add("a1", "b1", "c1")

        # The end of `a1` gives its place to `b1`, whose task has not continued yet.
        requests.tasks["a1"].add_done_callback(lambda _: requests.tasks["b1"].cancel())
        await requests.end("a1")

        assert requests.begun[-1] == "c1"


@in_virtual_time
async def test_owners_without_requests_take_no_memory() -> None:
    async with requests_for(1, 1) as requests:
        await requests.add("a1", "b1", "c1")

        await requests.end("a1", "b1")

        assert (requests.refused, requests.places._owners) == (["c1"], {})
