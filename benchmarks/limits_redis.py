"""Limits on Redis: decisions with their releases, and with quota leases, compared to one window of a common library.

The baseline is one fixed window of the library `limits` (requirements/bench.txt) on the same server, with as many
concurrent callers, in turn in the same run; it is left out if the library is not installed. Needs redis-server.
"""

import asyncio
import contextlib
import importlib
import importlib.util
import socket
import statistics
import subprocess
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import uvloop

from benchmarks.figures import Figure, Figures
from benchmarks.limits_core import make_caller, next_id
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.stores.guard import GuardedStore, GuardSettings
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.limits.stores.redis.quota_leases import QuotaLeaseStore, QuotaSettings
from wharf.world import RealWorld

PARALLEL_CALLS: Final = 64
DECISION_COUNT: Final = 6_000
ROUND_COUNT: Final = 5
CALLER_COUNT: Final = 2_000
QUERY: Final = QueryFacts(cost=1, points=1)
Decision = Callable[[int], Awaitable[object]]


def measure() -> Figures:
    with tempfile.TemporaryDirectory() as folder, run_redis(Path(folder)) as address:
        return uvloop.run(measure_at(address))


@contextlib.contextmanager
def run_redis(folder: Path) -> Iterator[str]:
    """Run a Redis on a free port, and yield its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", str(folder), "--save", ""]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
                break
            assert time.monotonic() < deadline, "Redis does not start"
            time.sleep(0.02)
        yield f"127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


async def measure_at(address: str) -> Figures:
    rules = read_profile()
    world = RealWorld()
    store = RedisStore(world, rules, RedisSettings(addresses=(address,)))
    await store.open()
    # No request may be decided locally, however slow the machine is: that would improve the figure.
    guard = GuardedStore(store, rules, GuardSettings(wait_ms=5_000), world)
    limiter = Limiter(rules)
    callers = [make_caller(number) for number in range(CALLER_COUNT)]
    limit_count = 0

    async def decide(number: int) -> None:
        nonlocal limit_count
        caller = callers[number % CALLER_COUNT]
        request = RequestFacts(next_id(), "GET", f"/repos/o/r/issues/{number % 200}", caller)
        if number % 4 == 0:
            request = RequestFacts(request.id, "POST", "/graphql", caller, QUERY)
        call = limiter.build_call(request, guard.now_ms())
        decision = limiter.decide(call, await guard.take(call))
        limit_count = max(limit_count, len(decision.charges))
        await guard.release(call.id)

    library = connect_library(address)
    own_rates: list[float] = []
    library_rates: list[float] = []
    latencies: list[float] = []
    for _ in range(ROUND_COUNT):
        rate, took = await measure_rate(decide)
        own_rates.append(rate)
        latencies += took
        if library is not None:
            library_rates.append((await measure_rate(library))[0])
    assert guard.counts.local_decisions == 0
    await guard.close()
    await store.close()
    latencies.sort()
    rate = statistics.median(own_rates)
    name = f"decisions a second, {PARALLEL_CALLS} callers at once, up to {limit_count} limits, with releases"
    figures: Figures = {
        name: Figure(
            value=rate, unit="/s", at_least=9_000, note=f"rounds {min(own_rates):,.0f} to {max(own_rates):,.0f}"
        ),
        "of these the 99th of a hundred": Figure(
            value=latencies[len(latencies) * 99 // 100] * 1_000, unit="ms", at_most=20
        ),
    }
    figures["decisions a second by quota leases, two windows"] = Figure(
        value=await measure_leased_rate(address), unit="/s", at_least=50_000, note="100 callers, one process"
    )
    if library_rates:
        figures["the same, beside one fixed window of the usual library"] = Figure(
            value=rate, unit="/s", baseline=statistics.median(library_rates), at_least=1.5
        )
    return figures


LEASED_RULES: Final = (
    'profile = "none"\n'
    '[[rule]]\nname = "minutely"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1m"\nceiling = 900000\n'
    '[[rule]]\nname = "core"\nresource = "core"\nwindow = "1h"\nceiling = 5000000\n'
)


async def measure_leased_rate(address: str) -> float:
    """Measure decisions by limits that can be leased: large fixed windows only."""
    rules, world = read_rules(LEASED_RULES), RealWorld()
    redis = RedisStore(world, rules, RedisSettings(addresses=(address,), prefix="leased:"))
    leases = QuotaLeaseStore(redis, world, QuotaSettings(size=500))
    guard = GuardedStore(leases, rules, GuardSettings(wait_ms=5_000), world)
    limiter = Limiter(rules)
    callers = [make_caller(number) for number in range(100)]
    await redis.open()

    async def decide(number: int) -> None:
        request = RequestFacts(next_id(), "GET", "/repos/o/r/issues", callers[number % 100])
        call = limiter.build_call(request, guard.now_ms())
        limiter.decide(call, await guard.take(call))
        await guard.release(call.id)

    rates = [(await measure_rate(decide, 10 * DECISION_COUNT))[0] for _ in range(ROUND_COUNT)]
    await guard.close()
    await leases.close()
    await redis.close()
    return statistics.median(rates)


async def measure_rate(decide: Decision, decisions: int = DECISION_COUNT) -> tuple[float, Sequence[float]]:
    """Return the rate and the durations of decisions by concurrent callers. Each starts its next one after its last."""
    numbers = iter(range(decisions))
    took: list[float] = []

    async def caller() -> None:
        for number in numbers:
            began = time.perf_counter()
            await decide(number)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(PARALLEL_CALLS)])
    return decisions / (time.perf_counter() - began), took


def connect_library(address: str) -> Decision | None:
    if importlib.util.find_spec("limits") is None:
        return None
    limits: Any = importlib.import_module("limits")  # It is not installed where types are checked.
    storage: Any = importlib.import_module("limits.aio.storage").RedisStorage(
        f"async+redis://{address}", implementation="redispy"
    )
    window = importlib.import_module("limits.aio.strategies").FixedWindowRateLimiter(storage)
    item = limits.parse("5000/hour")
    names = [f"user:u{number}" for number in range(CALLER_COUNT)]

    async def hit(number: int) -> object:
        return await window.hit(item, names[number % CALLER_COUNT])

    return hit
