"""Eight processes that count on one Redis, or at one counter server, with a shared clock."""

import asyncio
import multiprocessing
import queue
from collections import Counter
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from multiprocessing.synchronize import Barrier, Event
from pathlib import Path

from tests.limits.builders import MINUTE_MS, NOON_MS, a_user, only
from tests.waiting import wait_on_loop_until
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall, TakeResult
from wharf.limits.rules import read_rules
from wharf.limits.stores.memory import MemoryStore
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.limits.stores.quota_leases import QuotaLeaseStore, QuotaSettings
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.world import RealWorld

PROCESSES = 8
TICK_MS = 15_000
TICKS_AN_HOUR = 240
AT_ONCE = 10
"""Concurrent requests of each caller. If all were sent at once, no lease would be used up."""
Admitted = Counter[tuple[int, int]]
"""The number of admitted requests by caller and time."""
Shape = tuple[str, str, int, int, Sequence[int], int | None]


def rules_of(minute: int, hour: int) -> str:
    """Return a rules file with a limit per minute and one per hour for every user."""
    return only(
        f'[[rule]]\nname = "minutely"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1m"\nceiling = {minute}\n',
        f'[[rule]]\nname = "hourly"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1h"\nceiling = {hour}\n',
        top="[ban]\nrefusals_least = 1000000\n",  # Who asks ten times as much as is allowed would be banned.
    )


def count_in_eight(
    address: str, rules: str, *, callers: int, minutes: int, sent: Sequence[int], lease: int | None = None
) -> Admitted:
    """Each process sends so many requests of each caller at each tick of an hour, and again when the list is over.
    Returns what all of them admitted. The address is of a Redis, or the path of the socket at which one counts who is
    started here too."""
    context = multiprocessing.get_context("spawn")
    barrier, clock = context.Barrier(PROCESSES), context.Value("q", NOON_MS)
    results: multiprocessing.Queue[Admitted] = context.Queue()
    shape = (address, rules, callers, minutes * MINUTE_MS // TICK_MS, sent, lease)
    processes = [
        context.Process(target=_work, args=(number, shape, barrier, clock, results)) for number in range(PROCESSES)
    ]
    is_over = context.Event()
    if "/" in address:
        processes.append(context.Process(target=_count_for_them, args=(address, rules, clock, is_over)))
    for process in reversed(processes):  # Who counts for the others is first.
        process.start()
    admitted: Admitted = Counter()
    try:
        ready_count = 0
        while ready_count < PROCESSES:
            try:
                admitted.update(results.get(timeout=1))
                ready_count += 1
            except queue.Empty:
                assert not any(process.exitcode for process in processes), "a process failed; its output says why"
    finally:
        is_over.set()
        for process in processes:
            process.join(timeout=20)
            if process.is_alive():
                process.kill()
                process.join()
        results.close()
        results.join_thread()
    return admitted


def _count_for_them(address: str, rules: str, clock: "Synchronized[int]", is_over: "Event") -> None:
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
        place = CounterServer(store, path)
        await place.open()
        await asyncio.to_thread(is_over.wait)
        await place.close()
        await store.close()

    asyncio.run(count())


def _work(
    number: int,
    shape: Shape,
    barrier: Barrier,
    clock: "Synchronized[int]",
    results: "multiprocessing.Queue[Admitted]",
) -> None:
    try:
        results.put(asyncio.run(_count(number, shape, barrier, clock)))
    except BaseException:
        barrier.abort()  # So that the others do not wait for this one.
        raise


async def _count(
    number: int,
    shape: Shape,
    barrier: Barrier,
    clock: "Synchronized[int]",
) -> Admitted:
    address, text, callers, ticks, sent, lease = shape
    rules, world = read_rules(text), RealWorld()
    limiter = Limiter(rules)
    far: RedisStore | NeighbourStore
    if "/" in address:
        far = NeighbourStore(world, Path(address))
    else:
        redis = RedisSettings(addresses=(address,), socket_timeout_ms=60_000)
        far = RedisStore(world, rules, redis, clock=lambda: clock.value)
    store: RedisStore | NeighbourStore | QuotaLeaseStore = far
    if lease is not None:
        store = QuotaLeaseStore(far, world, QuotaSettings(size=lease, processes=PROCESSES), clock=lambda: clock.value)
    await far.open()
    if isinstance(far, NeighbourStore):
        await wait_on_loop_until(lambda: far.is_connected, what="somebody counts")
    users = [a_user(f"u{caller}", token=f"t{caller}") for caller in range(callers)]
    admitted: Admitted = Counter()

    async def send(each: int) -> None:
        """Send requests of every caller: leases admit some at once, the others wait for the store together."""
        now_ms = clock.value
        asked: list[tuple[int, StoreCall, asyncio.Future[TakeResult]]] = []
        for caller, user in enumerate(users):
            for _ in range(each):
                call = limiter.build_call(RequestFacts(world.new_id(), "GET", "/meta", user), now_ms)
                if store.take_now(call) is None:
                    asked.append((caller, call, store.start_take(call)))
                else:
                    admitted[caller, now_ms] += 1
                    store.start_release(call.id)
        for caller, call, answer in asked:
            if (await answer).is_admitted:
                admitted[caller, now_ms] += 1
                await store.release(call.id)

    for tick in range(ticks):
        left = sent[tick % len(sent)]
        while left:
            await send(min(left, AT_ONCE))
            left -= min(left, AT_ONCE)
        await asyncio.to_thread(barrier.wait)
        if number == 0:
            clock.value = NOON_MS + (tick + 1) * TICK_MS
        await asyncio.to_thread(barrier.wait)
    if isinstance(store, QuotaLeaseStore):
        await store.close()
    await far.close()
    return admitted


def windows_of(admitted: Admitted, caller: int, length_ms: int) -> Sequence[int]:
    """Return how many requests were admitted in each window of a caller. The first admitted one opens a window."""
    totals: list[int] = []
    end_ms = 0
    for moment_ms in sorted(moment for who, moment in admitted if who == caller and admitted[who, moment]):
        if moment_ms >= end_ms:
            totals.append(0)
            end_ms = moment_ms + length_ms
        totals[-1] += admitted[caller, moment_ms]
    return totals
