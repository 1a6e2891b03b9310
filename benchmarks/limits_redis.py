"""Limits on Redis: decisions of real shapes with their releases, and with quota leases, beside the usual library's one window.

The baseline is one fixed window of the library `limits` on the same server, asked by as many callers at once, by turns
in the same run (requirements/bench.txt); where it is not installed there is none. Needs redis-server.
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
from benchmarks.limits_core import a_caller, an_id
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import QueryFacts, Request
from wharf.limits.rules import read_rules
from wharf.limits.rules.reader import read_profile
from wharf.limits.stores.guard import GuardedStore, GuardSettings
from wharf.limits.stores.quota import QuotaLeases, QuotaSettings
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.world import RealWorld

AT_ONCE: Final = 64
DECISIONS: Final = 6_000
ROUNDS: Final = 5
CALLERS: Final = 2_000
QUERY: Final = QueryFacts(cost=1, points=1)
Deed = Callable[[int], Awaitable[object]]


def measure() -> Figures:
    with tempfile.TemporaryDirectory() as folder, a_server(Path(folder)) as address:
        return uvloop.run(measure_at(address))


@contextlib.contextmanager
def a_server(folder: Path) -> Iterator[str]:
    """A Redis of our own on a free port."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
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
    # Nothing is decided here in this run, however slow the machine: that would flatter the figure.
    guard = GuardedStore(store, rules, GuardSettings(wait_ms=5_000), world)
    limiter = Limiter(rules)
    callers = [a_caller(number) for number in range(CALLERS)]
    looked_at = 0

    async def decide(number: int) -> None:
        nonlocal looked_at
        caller = callers[number % CALLERS]
        request = Request(an_id(), "GET", f"/repos/o/r/issues/{number % 200}", caller)
        if number % 4 == 0:
            request = Request(request.id, "POST", "/graphql", caller, QUERY)
        call = limiter.call_for(request, guard.now_ms())
        decision = limiter.decide(call, await guard.take(call))
        looked_at = max(looked_at, len(decision.charges))
        await guard.release(call.id)

    library = library_on(address)
    ours: list[float] = []
    theirs: list[float] = []
    latencies: list[float] = []
    for _ in range(ROUNDS):
        rate, took = await rate_of(decide)
        ours.append(rate)
        latencies += took
        if library is not None:
            theirs.append((await rate_of(library))[0])
    assert guard.counts.decided_here == 0
    await guard.close()
    await store.close()
    latencies.sort()
    rate = statistics.median(ours)
    name = f"decisions a second, {AT_ONCE} callers at once, up to {looked_at} limits, with releases"
    figures: Figures = {
        name: Figure(value=rate, unit="/s", at_least=9_000, note=f"rounds {min(ours):,.0f} to {max(ours):,.0f}"),
        "of these the 99th of a hundred": Figure(
            value=latencies[len(latencies) * 99 // 100] * 1_000, unit="ms", at_most=20
        ),
    }
    figures["decisions a second by quota leases, two windows"] = Figure(
        value=await rate_by_leases(address), unit="/s", at_least=50_000, note="100 callers, one process"
    )
    if theirs:
        figures["the same, beside one fixed window of the usual library"] = Figure(
            value=rate, unit="/s", baseline=statistics.median(theirs), at_least=1.5
        )
    return figures


LEASED: Final = (
    'profile = "none"\n'
    '[[rule]]\nname = "minutely"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1m"\nceiling = 900000\n'
    '[[rule]]\nname = "core"\nresource = "core"\nwindow = "1h"\nceiling = 5000000\n'
)


async def rate_by_leases(address: str) -> float:
    """Limits that may be leased, no concurrency among them."""
    rules, world = read_rules(LEASED), RealWorld()
    far = RedisStore(world, rules, RedisSettings(addresses=(address,), prefix="leased:"))
    near = QuotaLeases(far, world, QuotaSettings(size=500))
    guard = GuardedStore(near, rules, GuardSettings(wait_ms=5_000), world)
    limiter = Limiter(rules)
    callers = [a_caller(number) for number in range(100)]
    await far.open()

    async def decide(number: int) -> None:
        request = Request(an_id(), "GET", "/repos/o/r/issues", callers[number % 100])
        call = limiter.call_for(request, guard.now_ms())
        limiter.decide(call, await guard.take(call))
        await guard.release(call.id)

    rates = [(await rate_of(decide, 10 * DECISIONS))[0] for _ in range(ROUNDS)]
    await guard.close()
    await near.close()
    await far.close()
    return statistics.median(rates)


async def rate_of(deed: Deed, decisions: int = DECISIONS) -> tuple[float, Sequence[float]]:
    """So many decisions by callers of whom each begins the next when it has the last."""
    numbers = iter(range(decisions))
    took: list[float] = []

    async def caller() -> None:
        for number in numbers:
            began = time.perf_counter()
            await deed(number)
            took.append(time.perf_counter() - began)

    began = time.perf_counter()
    await asyncio.gather(*[caller() for _ in range(AT_ONCE)])
    return decisions / (time.perf_counter() - began), took


def library_on(address: str) -> Deed | None:
    if importlib.util.find_spec("limits") is None:
        return None
    limits: Any = importlib.import_module("limits")  # It is not installed where types are checked.
    storage: Any = importlib.import_module("limits.aio.storage").RedisStorage(
        f"async+redis://{address}", implementation="redispy"
    )
    window = importlib.import_module("limits.aio.strategies").FixedWindowRateLimiter(storage)
    item = limits.parse("5000/hour")
    names = [f"user:u{number}" for number in range(CALLERS)]

    async def hit(number: int) -> object:
        return await window.hit(item, names[number % CALLERS])

    return hit
