"""The time of a decision on Redis at a constant rate of requests, whether or not earlier ones are decided.

Requests arrive on a schedule, in one process or in two, and the time of a decision begins when its request is due. So a process that
falls behind is visible. Needs redis-server.

python -m benchmarks.limits_redis_latency ADDRESS RATE runs one of the processes, and prints its figures as JSON.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.figures import Figure, Figures
from benchmarks.limits_core import make_caller, next_id
from benchmarks.limits_redis import CALLER_COUNT, QUERY, run_redis
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.stores.guard import GuardedStore, GuardSettings
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.world import RealWorld

WARM_UP_S: Final = 1.0
DURATION_S: Final = 5.0
TICK_S: Final = 0.001
MAX_BEHIND_S: Final = 1.0
"""A process that falls behind the schedule by more ends its run."""
TARGET_RATE: Final = 20_000
RATES: Final = ((1, 5_000), (1, 10_000), (1, 15_000), (2, 10_000), (2, 15_000), (2, TARGET_RATE))
"""Numbers of processes, and requests per second of all of them."""


def measure() -> Figures:
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as folder, run_redis(Path(folder)) as address:
        for processes, rate in RATES:
            results = _run_processes(address, processes, rate)
            times_ms = sorted(time_ms for result in results for time_ms in result["times_ms"])
            reached = sum(result["rate"] for result in results)
            cpu_us = sum(result["cpu_s"] for result in results) / sum(len(r["times_ms"]) for r in results) * 1e6
            local = sum(result["local"] for result in results)
            name = f"{rate:,} requests/s in {processes} {'process' if processes == 1 else 'processes'}"
            figures[f"{name}, 99th of a hundred"] = Figure(
                value=times_ms[len(times_ms) * 99 // 100],
                unit="ms",
                at_most=5.0 if rate == TARGET_RATE else None,
                note=f"median {times_ms[len(times_ms) // 2]:.2f} ms, reached {reached:,.0f}/s, "
                f"{cpu_us:.0f} us of processor time a decision without Redis"
                + (f", {local:,} decided without Redis" if local else ""),
            )
    return figures


def _run_processes(address: str, processes: int, rate: int) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "benchmarks.limits_redis_latency", address, str(rate // processes)]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return [json.loads(process.communicate(timeout=120)[0]) for process in started]


async def run(address: str, rate: int) -> None:
    """Decide requests that arrive at this rate, and print how long each decision took."""
    rules, world = read_profile(), RealWorld()
    store = RedisStore(world, rules, RedisSettings(addresses=(address,)))
    await store.open()
    guard = GuardedStore(store, rules, GuardSettings(wait_ms=5_000), world)
    limiter = Limiter(rules)
    callers = [make_caller(number) for number in range(CALLER_COUNT)]
    times_ms: list[float] = []
    tasks: set[asyncio.Task[None]] = set()

    async def decide(number: int, due_s: float, is_counted: bool) -> None:
        caller = callers[number % CALLER_COUNT]
        request = RequestFacts(f"{os.getpid()}-{next_id()}", "GET", f"/repos/o/r/issues/{number % 200}", caller)
        if number % 4 == 0:
            request = RequestFacts(request.id, "POST", "/graphql", caller, QUERY)
        call = limiter.build_call(request, guard.now_ms())
        limiter.decide(call, await guard.take(call))
        if is_counted:
            times_ms.append((time.perf_counter() - due_s) * 1_000)
        await guard.release(call.id)

    gc.freeze()  # As in the gateway.
    gc.set_threshold(1_000, 50, 50)
    began_s = time.perf_counter()
    number, counted_s, cpu_s = 0, 0.0, 0.0
    while (now_s := time.perf_counter()) - began_s < WARM_UP_S + DURATION_S:
        is_counted = now_s - began_s >= WARM_UP_S
        if is_counted and not counted_s:
            counted_s, cpu_s = now_s, time.process_time()
        if len(tasks) > rate * MAX_BEHIND_S:
            break  # The rate cannot be reached: waiting longer would only make the figures larger.
        while number < (now_s - began_s) * rate:
            tasks.add(task := asyncio.create_task(decide(number, began_s + number / rate, is_counted)))
            task.add_done_callback(tasks.discard)
            number += 1
        await asyncio.sleep(TICK_S)
    if tasks:
        await asyncio.wait(tasks)
    ended_s = time.perf_counter()
    local_decisions = guard.counts.local_decisions
    await guard.close()
    await store.close()
    cpu_s = time.process_time() - cpu_s
    reached = len(times_ms) / (ended_s - counted_s)
    print(json.dumps({"times_ms": times_ms, "rate": reached, "cpu_s": cpu_s, "local": local_decisions}))


if __name__ == "__main__":
    uvloop.run(run(sys.argv[1], int(sys.argv[2])))
