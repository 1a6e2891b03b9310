"""The layers of limiter stores: what each costs, and what happens without it (docs/limits-counters.md).

All variants run in turn in one run, so that other load affects all of them. Rates are decisions with their releases by
64 concurrent callers in this process. Counter servers are processes of their own. Needs redis-server.
"""

import asyncio
import contextlib
import multiprocessing
import os
import signal
import socket
import statistics
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Final

import uvloop

from benchmarks.figures import Figure, Figures
from benchmarks.limits_core import make_caller, next_id
from benchmarks.limits_redis import LEASED_RULES, measure_rate, run_redis
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.rules.rules_file import PROFILES, read_profile
from wharf.limits.stores import MemoryStore, Store, StoreUnavailable
from wharf.limits.stores.guard import GuardedStore, GuardSettings
from wharf.limits.stores.neighbours import CounterServer, NeighbourStore
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.limits.stores.redis.quota_leases import QuotaLeaseStore, QuotaSettings
from wharf.world import RealWorld

DECISION_COUNT: Final = 6_000
ROUND_COUNT: Final = 5
CALLER_COUNT: Final = 200
PROCESS_COUNT: Final = 4
LONE_COUNT: Final = 200
"""How many requests of each round run one by one."""
LIMIT: Final = 100
PAUSE_MS: Final = 3_000
LIMITED_RULES: Final = (
    'profile = "none"\n'
    f'[[rule]]\nname = "hourly"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1h"\nceiling = {LIMIT}\n'
    '[[rule]]\nname = "core"\nresource = "core"\nwindow = "1h"\nceiling = 1000000\n'
)
WORLD: Final = RealWorld()
Decide = Callable[[int], Awaitable[bool]]


def measure() -> Figures:
    with tempfile.TemporaryDirectory() as folder, run_redis(Path(folder)) as address:
        figures = uvloop.run(measure_costs(address, Path(folder)))
        figures |= uvloop.run(measure_shared_limit(address, Path(folder)))
        figures |= uvloop.run(measure_kill(Path(folder)))
        figures |= uvloop.run(measure_stranded_quota(address))
        figures |= uvloop.run(measure_leased_profiles(address))
        figures |= uvloop.run(measure_hang(address))
    return figures


def make_decider(store: Store, rules: RuleSet) -> Decide:
    """Return a function that decides and ends the request with this number, and returns whether it was admitted."""
    limiter = Limiter(rules)
    callers = [make_caller(number) for number in range(CALLER_COUNT)]

    async def decide(number: int) -> bool:
        request = RequestFacts(next_id(), "GET", f"/repos/o/r/issues/{number % 200}", callers[number % CALLER_COUNT])
        call = limiter.build_call(request, WORLD.now_ns() // 1_000_000)
        is_admitted = limiter.decide(call, await store.take(call)).is_admitted
        await store.release(call.id)
        return is_admitted

    return decide


# -- counter servers in separate processes -------------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def counter_server(
    folder: Path, rules: str, *, has_change_log: bool
) -> AsyncIterator[tuple[NeighbourStore, BaseProcess]]:
    """Start a counter server; yield a connected store and the process of the server."""
    process = start_server(folder, rules, has_change_log)
    store = NeighbourStore(WORLD, folder / "counters.sock")
    try:
        await store.open()
        await asyncio.sleep(0.5)  # If the server did not listen yet, the store has connected again by now.
        assert store.is_connected
        yield store, process
    finally:
        await store.close()
        process.kill()
        process.join()


def start_server(folder: Path, rules: str, has_change_log: bool) -> BaseProcess:
    """Start a counter server and wait for its socket."""
    folder.mkdir(exist_ok=True)
    (folder / "counters.sock").unlink(missing_ok=True)  # A killed server leaves its socket.
    process = multiprocessing.get_context("spawn").Process(target=serve_counters, args=(folder, rules, has_change_log))
    process.start()
    while not (folder / "counters.sock").exists():
        time.sleep(0.02)
    return process


def serve_counters(folder: Path, rules: str, has_change_log: bool) -> None:
    async def serve() -> None:
        store = MemoryStore(WORLD, parse_rules(rules), path=folder / "counters", has_change_log=has_change_log)
        await store.open()
        await CounterServer(store, folder / "counters.sock").open()
        await asyncio.Event().wait()

    uvloop.run(serve())


def parse_rules(text: str) -> RuleSet:
    return read_rules(text) if text else read_profile()


# -- what each layer costs -----------------------------------------------------------------------------------------------


async def measure_costs(address: str, folder: Path) -> Figures:
    """Measure rates, waits and processor time with each store, and again with one more layer."""
    profile, leased = read_profile(), read_rules(LEASED_RULES)
    redis = RedisStore(WORLD, profile, RedisSettings(addresses=(address,)))
    leased_redis = RedisStore(WORLD, leased, RedisSettings(addresses=(address,), prefix="leased:"))
    await redis.open()
    await leased_redis.open()
    leases = QuotaLeaseStore(leased_redis, WORLD)
    patient = GuardSettings(wait_ms=5_000)  # Nothing may be decided locally here, however slow the machine is.
    guard, leased_guard = (
        GuardedStore(redis, profile, patient, WORLD),
        GuardedStore(leases, leased, patient, WORLD),
    )
    async with (
        counter_server(folder / "unlogged", "", has_change_log=False) as (unlogged, _),
        counter_server(folder / "logged", "", has_change_log=True) as (logged, _),
    ):
        deciders = {
            "memory": make_decider(MemoryStore(WORLD, profile), profile),
            "neighbour without change log": make_decider(unlogged, profile),
            "neighbour": make_decider(logged, profile),
            "redis": make_decider(redis, profile),
            "redis with guard": make_decider(guard, profile),
            "large limits on redis": make_decider(leased_redis, leased),
            "large limits with leases": make_decider(leased_guard, leased),
        }
        rates: dict[str, list[float]] = {name: [] for name in deciders}
        cpu_us: dict[str, list[float]] = {name: [] for name in deciders}
        waits_us: dict[str, list[float]] = {name: [] for name in deciders}
        batches: dict[str, int] = {}
        for _ in range(ROUND_COUNT):
            for name, decide in deciders.items():
                sent_before, cpu_before_s = leased_redis.batches.sent_batches, time.process_time()
                rates[name].append((await measure_rate(decide, DECISION_COUNT))[0])
                cpu_us[name].append((time.process_time() - cpu_before_s) / DECISION_COUNT * 1e6)
                batches[name] = leased_redis.batches.sent_batches - sent_before
                waits_us[name] += [await time_decision(decide) * 1e6 for _ in range(LONE_COUNT)]
    await guard.close()
    await leased_guard.close()
    await leases.close()
    await redis.close()
    await leased_redis.close()

    def compare(measured: dict[str, list[float]], name: str, base: str, unit: str, note: str = "") -> Figure:
        return Figure(
            value=statistics.median(measured[name]), unit=unit, baseline=statistics.median(measured[base]), note=note
        )

    leased_batches, direct_batches = batches["large limits with leases"], batches["large limits on redis"]
    return {
        "decisions, six limits: in memory": Figure(value=statistics.median(rates["memory"]), unit="/s"),
        "decisions, six limits: at a counter server": compare(rates, "neighbour", "memory", "/s"),
        "the same, with its change log against without": compare(
            rates, "neighbour", "neighbour without change log", "/s"
        ),
        "decisions, six limits: on Redis": compare(rates, "redis", "memory", "/s"),
        "decisions, two large limits: with leases against without": compare(
            rates,
            "large limits with leases",
            "large limits on redis",
            "/s",
            f"{leased_batches:,} commands to Redis instead of {direct_batches:,} for {DECISION_COUNT:,} decisions",
        ),
        "processor time here of a decision on Redis: with guard against without": compare(
            cpu_us, "redis with guard", "redis", "us"
        ),
        "wait of a lone request: in memory": Figure(value=statistics.median(waits_us["memory"]), unit="us"),
        "wait of a lone request: at a counter server": compare(waits_us, "neighbour", "memory", "us"),
        "wait of a lone request: on Redis": compare(waits_us, "redis", "memory", "us"),
        "wait of a lone request, two large limits: with leases against without": compare(
            waits_us, "large limits with leases", "large limits on redis", "us"
        ),
    }


# -- what happens without a layer ----------------------------------------------------------------------------------------


async def count_admitted(stores: Sequence[Store]) -> int:
    """Send twice the limit of one caller to each store in turn. Return how many requests are admitted."""
    deciders = [make_decider(store, read_rules(LIMITED_RULES)) for store in stores]
    return sum([await decide(0) for _ in range(2 * LIMIT) for decide in deciders])


async def measure_shared_limit(address: str, folder: Path) -> Figures:
    """Count how many requests several processes admit together under a limit of 100."""
    rules = read_rules(LIMITED_RULES)
    own = await count_admitted([MemoryStore(WORLD, rules) for _ in range(PROCESS_COUNT)])
    async with counter_server(folder / "shared", LIMITED_RULES, has_change_log=True) as (first, _):
        neighbours = [NeighbourStore(WORLD, folder / "shared" / "counters.sock") for _ in range(PROCESS_COUNT)]
        for store in neighbours:
            await store.open()
        shared = await count_admitted(neighbours)
        for store in (*neighbours, first):
            await store.close()
    settings = RedisSettings(addresses=(address,), prefix="shared:")
    on_redis = [RedisStore(WORLD, rules, settings) for _ in range(PROCESS_COUNT)]
    for remote in on_redis:
        await remote.open()
    redis = await count_admitted(on_redis)
    for remote in on_redis:
        await remote.close()
    name = f"admitted of a limit of {LIMIT} by {PROCESS_COUNT} processes"
    return {
        f"{name}, counters of their own": Figure(value=own, unit="requests"),
        f"{name}, a counter server": Figure(value=shared, unit="requests"),
        f"{name}, Redis": Figure(value=redis, unit="requests"),
    }


async def measure_kill(folder: Path) -> Figures:
    """Count 50 requests, kill the counting process, and measure how many of them are still counted afterwards."""
    figures: Figures = {}
    rules = read_rules(LIMITED_RULES)
    for name, has_change_log in (("without change log", False), ("with change log", True)):
        subfolder = folder / f"killed {has_change_log}"
        async with counter_server(subfolder, LIMITED_RULES, has_change_log=has_change_log) as (store, process):
            decide = make_decider(store, rules)
            for _ in range(LIMIT // 2):
                await decide(0)
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
        async with counter_server(subfolder, LIMITED_RULES, has_change_log=has_change_log) as (store, _):
            admitted = await count_admitted([store])
        figures[f"of {LIMIT // 2} counted requests, counted after a kill, {name}"] = Figure(
            value=LIMIT - admitted, unit="requests"
        )
    return figures


async def measure_stranded_quota(address: str) -> Figures:
    """Count how much of a limit is unused because another process holds a lease of it."""
    text = LEASED_RULES.replace("900000", "2000")
    rules = read_rules(text)
    settings = RedisSettings(addresses=(address,), prefix="stranded:")
    stores = [RedisStore(WORLD, rules, settings) for _ in range(2)]
    leases = [QuotaLeaseStore(store, WORLD, QuotaSettings(processes=2)) for store in stores]
    for store in stores:
        await store.open()
    for lease in leases:
        await lease.open()
    idle, busy = (make_decider(lease, rules) for lease in leases)
    await idle(0)
    admitted = 1 + sum([await busy(0) for _ in range(2_100)])
    await asyncio.sleep(2)  # The idle process returns its lease after a second.
    late = sum([await busy(0) for _ in range(2_100)])
    for lease in leases:
        await lease.close()
    for store in stores:
        await store.close()
    return {
        "of a limit of 2,000, withheld by the lease of an idle process": Figure(
            value=2_000 - admitted, unit="requests", note=f"{late} of them admitted two seconds later"
        )
    }


async def measure_leased_profiles(address: str) -> Figures:
    """Count the leases that requests under the built-in rules take."""
    figures: Figures = {}
    for profile in PROFILES:
        rules = read_profile(profile)
        store = RedisStore(WORLD, rules, RedisSettings(addresses=(address,), prefix=f"{profile}:"))
        leases = QuotaLeaseStore(store, WORLD)
        await store.open()
        decide = make_decider(leases, rules)
        for number in range(1_000):
            await decide(number % 5)
        figures[f"leases taken by 1,000 requests under the rules of {profile}"] = Figure(
            value=leases.taken_leases, unit="leases"
        )
        await leases.close()
        await store.close()
    return figures


async def measure_hang(address: str) -> Figures:
    """Measure how long requests wait while Redis accepts connections and does not reply."""
    rules = read_profile()
    bare, guarded = (RedisStore(WORLD, rules, RedisSettings(addresses=(address,))) for _ in range(2))
    await bare.open()
    await guarded.open()
    guard = GuardedStore(guarded, rules, GuardSettings(), WORLD)
    without, with_guard = make_decider(bare, rules), make_decider(guard, rules)
    await without(0)
    await with_guard(0)
    pause_redis(address)
    waited = await asyncio.gather(time_decision(without), *[time_decision(with_guard) for _ in range(3)])
    later = [await time_decision(with_guard) for _ in range(100)]
    await asyncio.sleep(PAUSE_MS / 1_000)
    await guard.close()
    await guarded.close()
    await bare.close()
    return {
        "wait for a Redis that hangs, without guard": Figure(value=waited[0] * 1_000, unit="ms"),
        "the same with guard, the first requests": Figure(
            value=max(waited[1:]) * 1_000, unit="ms", baseline=waited[0] * 1_000
        ),
        "the same with guard, requests after them": Figure(
            value=statistics.median(later) * 1_000, unit="ms", baseline=waited[0] * 1_000
        ),
    }


def pause_redis(address: str) -> None:
    """Pause all replies of Redis for `PAUSE_MS`."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=5) as connection:
        connection.sendall(f"CLIENT PAUSE {PAUSE_MS} ALL\r\n".encode())
        connection.recv(100)


async def time_decision(decide: Decide) -> float:
    """Return how many seconds a decision takes, even if it fails."""
    started_s = time.perf_counter()
    with contextlib.suppress(StoreUnavailable):
        await decide(0)
    return time.perf_counter() - started_s
