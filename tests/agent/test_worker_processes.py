"""The forked worker process: the state it reads, its isolation from its parent, and its time limit."""

import asyncio
import os
import signal
import socket
from collections.abc import Callable, Coroutine
from functools import wraps
from pathlib import Path
from typing import Any

import pytest

from tests.waiting import wait_on_loop_until
from wharf.agent.forked_worker import MAX_WAITING, ForkedWorker
from wharf.cluster.server.worker_process import WorkerFailed
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode
from wharf.world import RealWorld
from wharf.world.tasks import cancel_tasks

WORLD = RealWorld()
WITHIN_S = 60.0
OWNER = "a token"


FORK_WITHIN_S = 5.0
"""The time limit of workers that must also complete other calls, on a machine that takes long to start processes."""
earlier_children: set[int] = set()
"""Children of this process that other tests left, such as the resource tracker of `multiprocessing`."""


def on_a_real_loop(test: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    @wraps(test)
    def run() -> None:
        async def run_with_timeout() -> None:
            async with asyncio.timeout(WITHIN_S):
                await test()
                await wait_on_loop_until(lambda: list_workers() == set(), what="all worker processes have ended")

        earlier_children.update(list_children())
        asyncio.run(run_with_timeout())

    return run


def list_children() -> set[int]:
    """Return the process ids of all children, including zombies."""
    tasks = Path("/proc/self/task")
    return {int(pid) for task in tasks.iterdir() for pid in (task / "children").read_text().split()}


def list_workers() -> set[int]:
    """Return the process ids of the children that the current test has started."""
    return list_children() - earlier_children


def hang() -> bytes:
    signal.pause()
    return b""


def exit_at_once() -> bytes:
    os.kill(os.getpid(), signal.SIGKILL)
    return b""


def fail() -> bytes:
    raise ValueError("this cannot be thought")


@on_a_real_loop
async def test_a_worker_reads_the_current_state_and_its_changes_are_discarded() -> None:
    state = {"jobs": 1}

    def work() -> bytes:
        state["jobs"] += 1
        return b"%d in process %d" % (state["jobs"], os.getpid())

    first = await ForkedWorker(WORLD).run(work, OWNER)
    state["jobs"] = 5
    second = await ForkedWorker(WORLD).run(work, OWNER)

    assert (first.split()[0], second.split()[0], state) == (b"2", b"6", {"jobs": 5})
    assert str(os.getpid()).encode() not in (first.split()[-1], second.split()[-1])


@on_a_real_loop
async def test_each_call_has_a_worker_process_of_its_own() -> None:
    worker = ForkedWorker(WORLD)

    pids = await asyncio.gather(*(worker.run(lambda: str(os.getpid()).encode(), OWNER) for _ in range(5)))

    assert len(set(pids)) == 5


@on_a_real_loop
async def test_long_results_arrive_complete_and_in_order() -> None:
    worker = ForkedWorker(WORLD)

    long_result, short_result = await asyncio.gather(
        worker.run(lambda: bytes(3_000_000), OWNER), worker.run(lambda: b"short", OWNER)
    )

    assert (len(long_result), short_result) == (3_000_000, b"short")


@on_a_real_loop
async def test_a_failed_call_reports_its_traceback_and_the_others_succeed() -> None:
    worker = ForkedWorker(WORLD)

    failed, done = await asyncio.gather(
        worker.run(fail, OWNER), worker.run(lambda: b"done", OWNER), return_exceptions=True
    )

    assert isinstance(failed, WorkerFailed)
    assert "ValueError: this cannot be thought" in str(failed)
    assert done == b"done"


@on_a_real_loop
async def test_a_worker_that_hangs_is_killed_and_the_next_call_succeeds() -> None:
    worker = ForkedWorker(WORLD, timeout_s=FORK_WITHIN_S)

    with pytest.raises(Refusal, match=r"the worker process did not reply within 5 s") as caught:
        await worker.run(hang, OWNER)

    assert caught.value.code is RefusalCode.UNAVAILABLE
    assert await worker.run(lambda: b"next", OWNER) == b"next"


@on_a_real_loop
async def test_a_call_that_is_killed_takes_no_other_call_with_it() -> None:
    worker = ForkedWorker(WORLD, timeout_s=FORK_WITHIN_S, queue_timeout_s=WITHIN_S)

    replies = await asyncio.gather(
        worker.run(lambda: b"before", OWNER),
        worker.run(hang, OWNER),
        worker.run(exit_at_once, OWNER),
        worker.run(lambda: b"after", OWNER),
        return_exceptions=True,
    )

    assert [each if isinstance(each, bytes) else type(each) for each in replies] == [
        b"before",
        Refusal,
        Refusal,
        b"after",
    ]


@on_a_real_loop
async def test_a_call_of_another_owner_does_not_wait_for_all_calls_of_the_first() -> None:
    worker = ForkedWorker(WORLD, queue_timeout_s=WITHIN_S)
    order: list[str] = []

    async def run(owner: str) -> None:
        await worker.run(lambda: b"", owner)
        order.append(owner)

    await asyncio.gather(*(run("flood") for _ in range(8)), run("other"))

    assert order.index("other") == 1


@on_a_real_loop
async def test_calls_beyond_the_limit_are_refused_with_the_time_of_a_retry() -> None:
    worker = ForkedWorker(WORLD, timeout_s=0.3)
    waiting = [WORLD.start_task(worker.run(hang, "flood"), name="call") for _ in range(MAX_WAITING + 1)]
    await asyncio.sleep(0)

    with pytest.raises(Overloaded, match=f"{MAX_WAITING} dry runs, rebalancings and reports of use wait") as caught:
        await worker.run(hang, "flood")

    assert caught.value.retry_after_s == 17
    await cancel_tasks(*waiting)


@on_a_real_loop
async def test_a_call_that_waits_too_long_is_refused_with_the_time_of_a_retry() -> None:
    worker = ForkedWorker(WORLD, timeout_s=0.3, queue_timeout_s=0.05)

    first, second = await asyncio.gather(worker.run(hang, OWNER), worker.run(hang, OWNER), return_exceptions=True)

    assert (type(first), type(second)) == (Refusal, Overloaded)


@on_a_real_loop
async def test_a_killed_worker_is_reported_and_leaves_no_process() -> None:
    worker = ForkedWorker(WORLD)

    with pytest.raises(Refusal, match="ended before its reply"):
        await worker.run(exit_at_once, OWNER)

    assert await worker.run(lambda: b"next", OWNER) == b"next"


@on_a_real_loop
async def test_a_canceled_call_is_not_executed() -> None:
    worker = ForkedWorker(WORLD)
    first = WORLD.start_task(worker.run(lambda: b"first", OWNER), name="first")
    await asyncio.sleep(0)
    second = WORLD.start_task(worker.run(fail, OWNER), name="second")
    await asyncio.sleep(0)

    second.cancel()

    assert await first == b"first"
    assert second.cancelled()


@on_a_real_loop
async def test_a_worker_keeps_no_connection_of_its_parent_open() -> None:
    own_end, remote_end = socket.socketpair()
    worker = ForkedWorker(WORLD, timeout_s=2 * WITHIN_S)
    hanging = WORLD.start_task(worker.run(hang, OWNER), name="hanging")
    await wait_on_loop_until(lambda: list_workers() != set(), what="the worker process has started")

    own_end.close()
    remote_end.settimeout(WITHIN_S / 2)
    received = await asyncio.to_thread(remote_end.recv, 1)

    (copy,) = list_workers()
    assert received == b""
    remote_end.close()
    os.kill(copy, signal.SIGKILL)
    await asyncio.gather(hanging, return_exceptions=True)
