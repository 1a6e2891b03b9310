"""The limiter in memory: decisions with six limits, new callers, a million callers, saving and loading.

The comparison is one fixed window of the library `limits` (requirements/bench.txt), used as its documentation shows; it is
left out if the library is not installed. Memory is measured in separate processes.
"""

import asyncio
import gc
import importlib
import importlib.util
import multiprocessing
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any, Final

from benchmarks.figures import Figure, Figures
from wharf.limits.core.callers.addresses import parse_address
from wharf.limits.core.callers.caller import Caller, CallerClass, CredentialKind
from wharf.limits.core.callers.credentials import hash_secret, read_credential
from wharf.limits.core.callers.directory import DirectoryToken, MemoryDirectory, User
from wharf.limits.core.callers.recognition import recognize_caller
from wharf.limits.core.counting.counters import Counters
from wharf.limits.core.graphql import QueryCostCalculator
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import QueryFacts, RequestFacts
from wharf.limits.core.resources import NO_RESOURCES
from wharf.limits.core.rule import GraphqlRules
from wharf.limits.rules.rules_file import read_profile
from wharf.limits.stores import MemoryStore
from wharf.world import SimulatedWorld

SEED: Final = 20_261_121
DECISION_COUNT: Final = 4_000
ROUND_COUNT: Final = 25
CALLER_COUNT: Final = 100
MANY_CALLERS: Final = 1_000_000
NOW_MS: Final = 1_800_000_000_000
QUERY: Final = QueryFacts(cost=1, points=1)

NESTED_QUERY: Final = (
    "query($n: Int!) { viewer { repositories(first: $n) { edges { node { name issues(first: 50) { nodes { title "
    "labels(first: 60) { nodes { name } } } } } } } } }"
)


def measure(callers: int = MANY_CALLERS) -> Figures:
    figures = measure_decisions()
    figures |= measure_bare()
    for part in (measure_windows, measure_rest_callers):
        figures |= run_in_process(part, callers)
    return figures


def run_in_process(part: Callable[[int], Figures], callers: int) -> Figures:
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(part, (callers,))


# -- decisions -------------------------------------------------------------------------------------------------------


def measure_decisions() -> Figures:
    """Measure all kinds of requests in turn, so that other load affects all of them. Report the median round."""
    limiter = Limiter(read_profile())
    callers = [make_caller(number) for number in range(CALLER_COUNT)]
    kinds: dict[str, Callable[[int], RequestFacts]] = {
        "decision, GraphQL query": lambda n: RequestFacts(
            next_id(), "POST", "/graphql", callers[n % CALLER_COUNT], QUERY
        ),
        "decision, REST read": lambda n: RequestFacts(
            next_id(), "GET", f"/repos/o/r/issues/{n % 200}", callers[n % CALLER_COUNT]
        ),
        "decision, REST write": lambda n: RequestFacts(
            next_id(), "POST", "/repos/o/r/issues", callers[n % CALLER_COUNT]
        ),
        "decision, path never seen": lambda n: RequestFacts(
            next_id(), "GET", f"/repos/o/{next_id()}", callers[n % CALLER_COUNT]
        ),
        "decision, caller never seen": lambda n: RequestFacts(next_id(), "POST", "/graphql", make_caller(n), QUERY),
    }
    rounds: dict[str, list[float]] = {name: [] for name in kinds}
    released: list[float] = []
    library: list[float] = []
    hit = make_library_hit()
    limits = 0
    for _ in range(ROUND_COUNT):
        for name, make in kinds.items():
            counters = Counters(limiter.rulebook.rules.rules)
            requests = [make(number) for number in range(DECISION_COUNT)]
            took_s, limits_of = decide_all(limiter, counters, requests)
            rounds[name].append(took_s / DECISION_COUNT * 1e6)
            limits = max(limits, limits_of) if name == "decision, GraphQL query" else limits
            if name == "decision, REST read":
                released.append(release_all(counters, requests) / DECISION_COUNT * 1e6)
        if hit is not None:
            library.append(hit(DECISION_COUNT) / DECISION_COUNT * 1e6)
    usual = f"; one fixed window of the library takes {statistics.median(library):.1f} us here" if library else ""
    figures: Figures = {}
    for name, took in rounds.items():
        is_target = name == "decision, GraphQL query"
        figures[name + (f", {limits} limits" if is_target else "")] = Figure(
            value=statistics.median(took),
            unit="us",
            at_most=5.0 if is_target else None,
            note=f"best round {min(took):.2f} us" + (usual if is_target else ""),
        )
    figures["release"] = Figure(value=statistics.median(released), unit="us", note=f"best round {min(released):.2f} us")
    return figures


def decide_all(limiter: Limiter, counters: Counters, requests: Sequence[RequestFacts]) -> tuple[float, int]:
    gc.collect()
    limit_count = 0
    began = time.perf_counter()
    for request in requests:
        call = limiter.build_call(request, NOW_MS)
        decision = limiter.decide(call, counters.take(call, NOW_MS))
        limit_count = len(decision.charges)
    return time.perf_counter() - began, limit_count


def release_all(counters: Counters, requests: Sequence[RequestFacts]) -> float:
    began = time.perf_counter()
    for request in requests:
        counters.release(request.id, NOW_MS)
    return time.perf_counter() - began


def make_library_hit() -> Callable[[int], float] | None:
    """Return a function that times a number of hits of one fixed window; `None` if the library is not installed."""
    if importlib.util.find_spec("limits") is None:
        return None
    library: Any = importlib.import_module("limits")  # It is not installed where types are checked.
    window = library.strategies.FixedWindowRateLimiter(library.storage.MemoryStorage())
    item = library.parse("5000/hour")
    names = [f"user:u{number}" for number in range(CALLER_COUNT)]

    def hit(count: int) -> float:
        began = time.perf_counter()
        for number in range(count):
            window.hit(item, names[number % CALLER_COUNT])
        return time.perf_counter() - began

    return hit


# -- work besides decisions -----------------------------------------------------------------------------------


def measure_bare() -> Figures:
    secrets = [f"ghp_{number:036d}" for number in range(CALLER_COUNT)]
    tokens = {
        hash_secret(secret): DirectoryToken(
            sha256=hash_secret(secret), kind=CredentialKind.PERSONAL_TOKEN, user=f"u{number}", scopes=()
        )
        for number, secret in enumerate(secrets)
    }
    register = MemoryDirectory(users={f"u{n}": User(login=f"u{n}") for n in range(CALLER_COUNT)}, tokens=tokens)
    address = parse_address("192.0.2.7")
    assert address is not None
    rules = GraphqlRules()

    def recognize() -> None:
        for secret in secrets:
            recognize_caller(read_credential(f"Bearer {secret}"), address, NO_RESOURCES, register, NOW_MS)

    def read_query() -> None:
        for _ in range(CALLER_COUNT):
            QueryCostCalculator(rules).compute_query_cost(NESTED_QUERY, {"n": 100})

    costs = QueryCostCalculator(rules)

    def read_query_again() -> None:
        for number in range(CALLER_COUNT):
            costs.compute_query_cost(NESTED_QUERY, {"n": number % 20 + 1})

    return {
        "recognising a token": Figure(value=measure_best_us(recognize), unit="us"),
        "cost of a GraphQL query of three connections": Figure(value=measure_best_us(read_query), unit="us"),
        "the same query again": Figure(value=measure_best_us(read_query_again), unit="us"),
    }


def measure_best_us(work: Callable[[], None]) -> float:
    def once() -> float:
        began = time.perf_counter()
        work()
        return time.perf_counter() - began

    return min(once() for _ in range(ROUND_COUNT)) / CALLER_COUNT * 1e6


# -- a million callers -----------------------------------------------------------------------------------------------


def measure_windows(callers: int) -> Figures:
    """Measure callers with two open windows each, of an hour and of a minute, and nothing else."""
    rules = read_profile()
    counters = Counters(rules.rules)
    before_mb = measure_resident_mb()
    hour, minute = counters.tables["core"], counters.tables["search"]
    for number in range(callers):
        key = f"user:u{number:08d}"
        hour.add(key, 1_000 + number % 1_000, NOW_MS + number % 3_600_000, "")
        minute.add(key, 1 + number % 30, NOW_MS + number % 60_000, "")
    held_mb = measure_resident_mb() - before_mb
    figures = {
        f"{callers:,} callers, two live windows each": Figure(
            value=held_mb + before_mb, unit="MB", at_most=400, note=f"{before_mb:.0f} MB of it before the first caller"
        )
    }
    return figures | asyncio.run(measure_saving(counters, callers))


async def measure_saving(counters: Counters, callers: int) -> Figures:
    rules = read_profile()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "counters"
        store = MemoryStore(SimulatedWorld(SEED), rules, path=path, clock=lambda: NOW_MS)
        for name in ("core", "search"):
            store.counters.tables[name] = counters.tables[name]
        began = time.perf_counter()
        pauses_ms = [pause_ms async for pause_ms in measure_steps_ms(store.save())]
        saved_s = time.perf_counter() - began
        size_mb = path.stat().st_size / 1e6
        other = MemoryStore(SimulatedWorld(SEED), rules, path=path, clock=lambda: NOW_MS)
        began = time.perf_counter()
        await other.load()
        loaded_s = time.perf_counter() - began
        assert len(other.counters.tables["core"]) == callers
    return {
        f"saving {callers:,} callers": Figure(
            value=saved_s,
            unit="s",
            note=f"{size_mb:.0f} MB; the longest step held others up for {max(pauses_ms):.0f} ms",
        ),
        f"loading {callers:,} callers": Figure(value=loaded_s, unit="s"),
    }


async def measure_steps_ms(work: Any) -> Any:
    """Run a coroutine. Return how long it held the event loop between its pauses."""
    task = asyncio.ensure_future(work)
    last = time.perf_counter()
    while not task.done():
        await asyncio.sleep(0)
        now = time.perf_counter()
        yield (now - last) * 1_000
        last = now
    await task


def measure_rest_callers(callers: int) -> Figures:
    """Measure the memory after one request of each caller to one endpoint, with the whole profile."""
    limiter = Limiter(read_profile())
    counters = Counters(limiter.rulebook.rules.rules)
    before_mb = measure_resident_mb()
    longest_ms = 0.0
    gc.freeze()  # These settings are those of the gateway.
    gc.set_threshold(1_000, 50, 50)
    for number in range(callers):
        request = RequestFacts(f"r{number}", "GET", "/repos/o/r/issues", make_caller(number))
        began = time.thread_time()
        call = limiter.build_call(request, NOW_MS + number // 1_000)
        counters.take(call, NOW_MS + number // 1_000)
        counters.release(request.id, NOW_MS + number // 1_000)
        longest_ms = max(longest_ms, (time.thread_time() - began) * 1_000)
    return {
        f"longest decision while {callers:,} callers arrive": Figure(
            value=longest_ms, unit="ms", at_most=5.0, note="processor time, with garbage collection"
        ),
        f"{callers:,} callers with one REST request each": Figure(
            value=measure_resident_mb() - before_mb,
            unit="MB",
            note="a window and a count of points each, and answers remembered",
        ),
    }


def measure_resident_mb() -> float:
    gc.collect()
    status = Path("/proc/self/status").read_text("utf-8")
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1_000


# -- helpers ----------------------------------------------------------------------------------------------------------


def _ids() -> Iterator[str]:
    random = Random(SEED)
    while True:
        yield str(uuid.UUID(int=random.getrandbits(128), version=4))


_some_ids = _ids()


def next_id() -> str:
    return next(_some_ids)


def make_caller(number: int) -> Caller:
    return Caller(
        kind=CredentialKind.PERSONAL_TOKEN,
        caller_class=CallerClass.USER,
        owner=f"user:u{number:08d}",
        address=f"address:192.0.2.{number % 250}",
        user=f"user:u{number:08d}",
        token=f"token:{number:016x}",
    )
