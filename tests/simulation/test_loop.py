"""The event loop of the simulation: it behaves as asyncio documents, with virtual time and an order from the seed."""

import asyncio
import contextlib
import subprocess
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import pytest

from simulation.loop import RealResourceRequested, RunFailed, SimulatedLoop, SimulationStuck
from simulation.process import Process
from wharf.world import SimulatedWorld

T = TypeVar("T")
ROOT = Path(__file__).parents[2]


def run(work: Coroutine[Any, Any, T], *, seed: int = 1) -> T:
    loop = SimulatedLoop(seed)
    try:
        return loop.run_until_complete(work)
    finally:
        loop.close()


def a_process(loop: SimulatedLoop, name: str) -> Process:
    return Process(name, name, SimulatedWorld(1, loop.time, member=name))


async def run_three_counters(order: list[str]) -> float:
    """Run three tasks that record their steps in `order`, then sleep. Return the time of the loop."""

    async def count(name: str) -> None:
        for step in range(4):
            await asyncio.sleep(0)
            order.append(f"{name}{step}")

    await asyncio.gather(count("a"), count("b"), count("c"))
    await asyncio.sleep(7.5)
    return asyncio.get_running_loop().time()


def test_a_wait_of_a_week_takes_no_time() -> None:
    async def wait() -> float:
        await asyncio.sleep(7 * 24 * 3600)
        return asyncio.get_running_loop().time()

    assert run(wait()) == 7 * 24 * 3600


def test_a_timeout_ends_at_its_virtual_time() -> None:
    async def wait() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.Event().wait()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.sleep(100), 3)
        return asyncio.get_running_loop().time()

    assert run(wait()) == 8


def test_queues_events_and_groups_work_as_on_a_real_loop() -> None:
    async def pass_numbers() -> list[int]:
        queue: asyncio.Queue[int] = asyncio.Queue(maxsize=2)
        done = asyncio.Event()
        received: list[int] = []

        async def produce() -> None:
            for number in range(6):
                await queue.put(number)
            done.set()

        async def consume() -> None:
            while not (done.is_set() and queue.empty()):
                received.append(await queue.get())
                await asyncio.sleep(0.5)

        async with asyncio.TaskGroup() as group:
            group.create_task(produce())
            group.create_task(consume())
        return received

    assert run(pass_numbers()) == [0, 1, 2, 3, 4, 5]


def test_an_asynchronous_generator_that_is_dropped_is_closed() -> None:
    async def drop() -> list[str]:
        recorded: list[str] = []

        async def numbers() -> Any:
            try:
                for number in range(5):
                    yield number
            finally:
                recorded.append("closed")

        async for _ in numbers():
            break
        await asyncio.sleep(1)
        return recorded

    assert run(drop()) == ["closed"]


def test_the_same_seed_takes_the_same_steps() -> None:
    def run_once() -> tuple[list[str], str]:
        loop, order = SimulatedLoop(11), list[str]()
        loop.run_until_complete(run_three_counters(order))
        loop.close()
        return order, loop.fingerprint

    assert run_once() == run_once()


def test_another_seed_takes_another_order() -> None:
    orders = set()
    for seed in range(20):
        order: list[str] = []
        run(run_three_counters(order), seed=seed)
        orders.add(tuple(order))

    assert len(orders) > 10


def test_the_same_seed_takes_the_same_steps_in_another_process() -> None:
    program = (
        "from tests.simulation.test_loop import *\n"
        "loop = SimulatedLoop(11); loop.run_until_complete(run_three_counters([])); print(loop.fingerprint)"
    )
    local_loop = SimulatedLoop(11)
    local_loop.run_until_complete(run_three_counters([]))

    child = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)

    assert child.stdout.strip() == local_loop.fingerprint


def test_without_shuffling_the_order_is_that_of_a_real_loop() -> None:
    simulated: list[str] = []
    real: list[str] = []
    SimulatedLoop(1, is_shuffled=False).run_until_complete(run_three_counters(simulated))

    async def on_a_real_loop() -> None:
        async def count(name: str) -> None:
            for step in range(4):
                await asyncio.sleep(0)
                real.append(f"{name}{step}")

        await asyncio.gather(count("a"), count("b"), count("c"))

    asyncio.run(on_a_real_loop())

    assert simulated == real


def test_callbacks_of_one_task_keep_their_order() -> None:
    async def call() -> list[int]:
        order: list[int] = []
        loop = asyncio.get_running_loop()
        for number in range(50):
            loop.call_soon(order.append, number)
        await asyncio.sleep(1)
        return order

    assert run(call()) == list(range(50))


def test_the_order_of_a_set_of_tasks_does_not_depend_on_memory_addresses() -> None:
    async def names() -> list[str]:
        async def nothing() -> None:
            pass

        tasks = [asyncio.get_running_loop().create_task(nothing(), name=f"t{number}") for number in range(30)]
        await asyncio.wait(tasks)
        return [task.get_name() for task in set(tasks)]

    padding = [object() for _ in range(1000)]
    first = run(names())
    del padding

    assert run(names()) == first


@pytest.mark.parametrize(
    "use_resource",
    [
        lambda loop: loop.run_in_executor(None, print),
        lambda loop: loop.create_connection(None, "localhost", 80),
        lambda loop: loop.add_signal_handler(2, print),
        lambda loop: loop.subprocess_exec(None, "ls"),
        lambda loop: loop.add_reader(0, print),
    ],
)
def test_real_clocks_and_sockets_are_not_available(use_resource: Any) -> None:
    with pytest.raises(RealResourceRequested, match="a simulation has no real resources"):
        use_resource(SimulatedLoop(1))


def test_an_unhandled_exception_fails_the_run() -> None:
    async def fail() -> None:
        raise ValueError("uncaught error")

    async def start_and_drop() -> None:
        task = asyncio.get_running_loop().create_task(fail(), name="unawaited task")
        await asyncio.sleep(1)
        del task
        await asyncio.sleep(1)

    with pytest.raises(RunFailed, match=r"(?s)unawaited task.*uncaught error"):
        run(start_and_drop())


def test_an_exception_in_a_callback_fails_the_run_at_once() -> None:
    async def call() -> None:
        asyncio.get_running_loop().call_later(3, lambda: [][1])
        await asyncio.sleep(100)

    with pytest.raises(RunFailed, match=r"(?s)at 3\.0 s.*IndexError"):
        SimulatedLoop(1).run_until_complete(call())


def test_a_task_that_was_not_awaited_fails_the_run_with_its_location() -> None:
    async def wait_for_nothing() -> None:
        await asyncio.Event().wait()

    async def leave() -> None:
        asyncio.get_running_loop().create_task(wait_for_nothing(), name="waiting task")
        await asyncio.sleep(1)

    with pytest.raises(RunFailed, match=r"waiting task, in .*wait_for_nothing:\d+ > Event.wait"):
        run(leave())


def test_a_deadlocked_run_lists_the_waiting_tasks() -> None:
    loop = SimulatedLoop(1)

    async def wait_for_ever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(SimulationStuck, match="wait_for_ever"):
        loop.run_until_complete(wait_for_ever())


def test_a_run_whose_time_does_not_advance_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("simulation.loop.MAX_STEPS_PER_INSTANT", 1_000)

    async def spin() -> None:
        for _ in range(1_000_000):
            await asyncio.sleep(0)

    with pytest.raises(SimulationStuck, match="time does not advance"):
        SimulatedLoop(1).run_until_complete(spin())


def test_a_timeout_shorter_than_the_clock_can_express_takes_time() -> None:
    async def wait_briefly() -> float:
        await asyncio.sleep(133.0)
        began_s = asyncio.get_running_loop().time()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(1e-18):
                await asyncio.Event().wait()
        return asyncio.get_running_loop().time() - began_s

    assert SimulatedLoop(1).run_until_complete(wait_briefly()) > 0.0


def test_a_killed_process_runs_nothing_more_not_even_its_finally_blocks() -> None:
    loop = SimulatedLoop(1)
    doomed, recorded = a_process(loop, "doomed"), list[str]()

    async def live() -> None:
        try:
            recorded.append("started")
            await asyncio.sleep(1)
            recorded.append("continued")
        finally:
            recorded.append("cleaned up")

    async def have_children() -> None:
        doomed.world.start_task(live(), name="child")
        asyncio.get_running_loop().call_later(2, recorded.append, "timer")
        await asyncio.sleep(3)

    async def scenario() -> None:
        doomed.start(have_children(), name="parent")
        await asyncio.sleep(0.5)
        loop.kill(doomed)
        await asyncio.sleep(10)

    loop.run_until_complete(scenario())

    assert recorded == ["started"]
    loop.close()


def test_a_paused_process_runs_its_due_timers_when_it_resumes() -> None:
    loop = SimulatedLoop(1)
    paused, recorded = a_process(loop, "paused"), list[tuple[float, int]]()

    async def tick() -> None:
        for number in range(4):
            await asyncio.sleep(1)
            recorded.append((loop.time(), number))

    async def scenario() -> None:
        ticking = paused.start(tick(), name="ticking")
        await asyncio.sleep(1.5)
        loop.pause(paused)
        await asyncio.sleep(5)
        loop.resume(paused)
        await ticking

    loop.run_until_complete(scenario())
    loop.close()

    assert recorded == [(1.0, 0), (6.5, 1), (7.5, 2), (8.5, 3)]
