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
    """An executor that runs its work when the test calls `go`."""

    def __init__(self) -> None:
        self.submitted: list[tuple[Future[Any], Callable[[], Any]]] = []
        self.was_given = asyncio.Event()

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self.submitted.append((future, partial(fn, *args, **kwargs)))
        self.was_given.set()
        return future

    def go(self) -> None:
        for future, work in self.submitted:
            future.set_result(work())
        self.submitted.clear()


async def test_a_barrier_does_not_wait_for_a_large_group_of_writes(tmp_path: Path) -> None:
    thread = ManualExecutor()
    hub = AsyncSqliteStore(
        SqliteStore(tmp_path, clock=lambda: 0.0),
        encode=lambda batch: batch.id.encode(),
        writer=thread,
        is_writer_for_large_only=True,
    )
    await hub.open()
    outcome: asyncio.Future[WriteOutcome] = asyncio.get_running_loop().create_future()
    hub.submit_write(a_write(*(put(f"k{number}") for number in range(MAX_INLINE_CHANGES + 1))), outcome.set_result)
    async with asyncio.timeout(30):
        await thread.was_given.wait()
    meanwhile = hub.barrier()
    thread.go()

    assert (meanwhile, await outcome) == (0, Committed(1))
    after = hub.barrier()
    assert (after if isinstance(after, int) else await after) == 1
    await hub.close()


async def test_small_writes_run_on_the_event_loop(tmp_path: Path) -> None:
    thread, outcomes = ManualExecutor(), list[WriteOutcome]()
    hub = AsyncSqliteStore(
        SqliteStore(tmp_path, clock=lambda: 0.0),
        encode=lambda batch: batch.id.encode(),
        writer=thread,
        is_writer_for_large_only=True,
    )
    await hub.open()
    hub.submit_write(a_write(put("a")), outcomes.append)
    covered = hub.barrier()
    assert not isinstance(covered, int), "the write arrived before it"

    assert (await covered, outcomes, thread.submitted) == (1, [Committed(1)], [])
    await hub.close()
