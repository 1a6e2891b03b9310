"""Eight processes that count on one Redis, or at one counter server, with a shared clock."""

import asyncio
import multiprocessing
import queue
from collections import Counter
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from tests.limits.builders import MINUTE_MS, NOON_MS, a_user, build_rules_text
from tests.waiting import wait_on_loop_until
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.rules import read_rules
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.limits.stores.redis.quota_leases import QuotaLeaseStore, QuotaSettings
from wharf.world import RealWorld

PROCESSES = 8
TICK_MS = 15_000
TICKS_AN_HOUR = 240
MAX_CONCURRENT = 10
"""Concurrent requests of each caller. If all were sent at once, no lease would be used up."""
Admitted = Counter[tuple[int, int]]
"""The number of admitted requests by caller and time."""
Settings = tuple[str, str, int, int, Sequence[int], int | None]


def build_rules(minute: int, hour: int) -> str:
    """Return a rules file with a limit per minute and one per hour for every user."""
    return build_rules_text(
        f'[[rule]]\nname = "minutely"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1m"\nceiling = {minute}\n',
        f'[[rule]]\nname = "hourly"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1h"\nceiling = {hour}\n',
        top="[ban]\nrefusals_least = 1000000\n",  # Otherwise callers that send ten times the limit would be banned.
    )


def count_in_eight(
    address: str, rules: str, *, callers: int, minutes: int, sent: Sequence[int], lease: int | None = None
) -> Admitted:
    """Return what eight processes admit together.

    At each tick, each process sends the next number of `sent` requests for each caller; the list repeats. The address
    is that of a Redis, or the socket path of a counter server, which is then started as a ninth process.
    """
    context = multiprocessing.get_context("spawn")
    barrier, clock = context.Barrier(PROCESSES), context.Value("q", NOON_MS)
    results: multiprocessing.Queue[Admitted] = context.Queue()
    settings = (address, rules, callers, minutes * MINUTE_MS // TICK_MS, sent, lease)
    processes = [
        context.Process(target=_work, args=(number, settings, barrier, clock, results)) for number in range(PROCESSES)
    ]
    has_ended = context.Event()
    if "/" in address:
        processes.append(context.Process(target=_serve_counters, args=(address, rules, clock, has_ended)))
    for process in reversed(processes):  # The counter server starts first.
        process.start()
    admitted: Admitted = Counter()
    try:
        ready_count = 0
        while ready_count < PROCESSES:
            try:
                admitted.update(results.get(timeout=1))
                ready_count += 1
            except queue.Empty:
                assert not any(process.exitcode for process in processes), "a process failed; its output has the reason"
    finally:
        has_ended.set()
        for process in processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()
                process.join()
        results.close()
        results.join_thread()
    return admitted


def _serve_counters(address: str, rules: str, clock: "Synchronized[int]", has_ended: "Event") -> None:
    """Serve counters at a socket until the other processes have ended. Runs in its own process."""

    async def count() -> None:
        path = Path(address)
        store = MemoryStore(
            RealWorld(),
            read_rules(rules),
            path=path.parent / "counters",
            clock=lambda: clock.value,
            has_change_log=True,
        )
        await store.open()
        server = CounterServer(store, path)
        await server.open()
        await asyncio.to_thread(has_ended.wait)
        await server.close()
        await store.close()

    asyncio.run(count())


def _work(
    number: int,
    settings: Settings,
    barrier: Barrier,
    clock: "Synchronized[int]",
    results: "multiprocessing.Queue[Admitted]",
) -> None:
    """Count in one of the eight processes, and pass the result on."""
    try:
        results.put(asyncio.run(_count(number, settings, barrier, clock)))
    except BaseException:
        barrier.abort()  # Otherwise the other processes would wait for this one.
        raise


async def _count(
    number: int,
    settings: Settings,
    barrier: Barrier,
    clock: "Synchronized[int]",
) -> Admitted:
    """Send the requests of each tick, at the same time as the other processes. Return the admitted ones."""
    address, text, callers, ticks, sent, lease = settings
    rules, world = read_rules(text), RealWorld()
    limiter = Limiter(rules)
    remote: RedisStore | NeighbourStore
    if "/" in address:
        remote = NeighbourStore(world, Path(address))
    else:
        redis = RedisSettings(addresses=(address,), socket_timeout_ms=60_000)
        remote = RedisStore(world, rules, redis, clock=lambda: clock.value)
    store: RedisStore | NeighbourStore | QuotaLeaseStore = remote
    if lease is not None and isinstance(remote, RedisStore):
        store = QuotaLeaseStore(
            remote, world, QuotaSettings(size=lease, processes=PROCESSES), clock=lambda: clock.value
        )
    await remote.open()
    if isinstance(remote, NeighbourStore):
        await wait_on_loop_until(lambda: remote.is_connected, what="the counter server is connected")
    users = [a_user(f"u{caller}", token=f"t{caller}") for caller in range(callers)]
    admitted: Admitted = Counter()

    async def send(count: int) -> None:
        """Send requests of every caller: leases admit some at once, the others wait for the store together."""
        now_ms = clock.value
        waiting: list[tuple[int, StoreCall, asyncio.Future[TakeResult]]] = []
        for caller, user in enumerate(users):
            for _ in range(count):
                call = limiter.build_call(RequestFacts(world.new_id(), "GET", "/meta", user), now_ms)
                if store.take_now(call) is None:
                    waiting.append((caller, call, store.start_take(call)))
                else:
                    admitted[caller, now_ms] += 1
                    store.start_release(call.id)
        for caller, call, result in waiting:
            if (await result).is_admitted:
                admitted[caller, now_ms] += 1
                await store.release(call.id)

    for tick in range(ticks):
        remaining = sent[tick % len(sent)]
        while remaining:
            await send(min(remaining, MAX_CONCURRENT))
            remaining -= min(remaining, MAX_CONCURRENT)
        await asyncio.to_thread(barrier.wait)
        if number == 0:
            clock.value = NOON_MS + (tick + 1) * TICK_MS
        await asyncio.to_thread(barrier.wait)
    if isinstance(store, QuotaLeaseStore):
        await store.close()
    await remote.close()
    return admitted


def sum_windows(admitted: Admitted, caller: int, length_ms: int) -> Sequence[int]:
    """Return how many requests were admitted in each window of a caller. The first admitted one opens a window."""
    totals: list[int] = []
    end_ms = 0
    for at_ms in sorted(time_ms for owner, time_ms in admitted if owner == caller and admitted[owner, time_ms]):
        if at_ms >= end_ms:
            totals.append(0)
            end_ms = at_ms + length_ms
        totals[-1] += admitted[caller, at_ms]
    return totals
