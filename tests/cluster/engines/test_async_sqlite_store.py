"""Scheduling of the SQLite engine: large writes run in a thread and do not delay barriers."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor, Future
from functools import partial
from pathlib import Path
from typing import Any

from tests.cluster.engines.contract import a_write, put
from wharf.cluster.engines.port import Committed, WriteOutcome
from wharf.cluster.engines.sqlite.async_store import MAX_INLINE_CHANGES, AsyncSqliteStore
from wharf.cluster.engines.sqlite.store import SqliteStore


class ManualExecutor(Executor):
    """An executor that runs its work when the test calls `run_submitted`."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.has_work = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted.append((future, partial(fn, *args, **kwargs)))
        self.has_work.set()
        return future

    def run_submitted(self) -> None:
        for future, work in self.submitted:
            future.set_result(work())
        self.submitted.clear()


async def test_a_barrier_does_not_wait_for_a_large_group_of_writes(tmp_path: Path) -> None:
    thread = ManualExecutor()
    async_store = AsyncSqliteStore(
        SqliteStore(tmp_path, clock=lambda: 0.0),
        encode=lambda batch: batch.id.encode(),
        writer=thread,
        is_writer_for_large_only=True,
    )
    await async_store.open()
    outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
    async_store.submit_write(
        a_write(*(put(f"k{number}") for number in range(MAX_INLINE_CHANGES + 1))), outcome.set_result
    )
    async with asyncio.timeout(30):
        await thread.has_work.wait()
    meanwhile = async_store.barrier()
    thread.run_submitted()

    assert (meanwhile, await outcome) == (0, Committed(1))
    after = async_store.barrier()
    assert (after if isinstance(after, int) else await after) == 1
    await async_store.close()


async def test_small_writes_run_on_the_event_loop(tmp_path: Path) -> None:
    thread, outcomes = ManualExecutor(), list[WriteOutcome]()
    async_store = AsyncSqliteStore(
        SqliteStore(tmp_path, clock=lambda: 0.0),
        encode=lambda batch: batch.id.encode(),
        writer=thread,
        is_writer_for_large_only=True,
    )
    await async_store.open()
    async_store.submit_write(a_write(put("a")), outcomes.append)
    barrier = async_store.barrier()
    assert not isinstance(barrier, int), "a write is in flight, so the barrier must wait"

    assert (await barrier, outcomes, thread.submitted) == (1, [Committed(1)], [])
    await async_store.close()
