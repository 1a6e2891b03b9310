"""The same random history gives the same results in Redis and in memory."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.limits.builders import MINUTE_MS, a_user, anonymous
from tests.limits.stores.contract import Clock, Counter
from tests.limits.stores.redis_server import RedisServer, running_redis
from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.stores import MemoryStore, RefundReason, Store
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.world import RealWorld, SimulatedWorld

pytestmark = pytest.mark.needs_program("redis-server")

TIGHT = """
[ban]
refusals_least = 2
minutes = 2
[[rule]]
name = "core"
ceiling = 12
window = "2m"
[[rule]]
name = "points"
ceiling = 9
[[rule]]
name = "content"
ceiling = 3
[[rule]]
name = "concurrent"
ceiling = 3
"""
# Each step: an action, a number that selects a caller, a path and an earlier request, and a duration in milliseconds.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(
            ["send", "hold", "post", "wait", "release", "give", "fault", "spend", "back", "renew", "again"]
        ),
        st.integers(0, 5),
        st.integers(0, 90_000),
    ),
    max_size=60,
)


@pytest.fixture(scope="module")
def server() -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory() as folder, running_redis(Path(folder)) as started:
        yield started


async def collect_results(
    store: Store, rules: RuleSet, clock: Clock, steps: list[tuple[str, int, int]]
) -> list[object]:
    """Execute these steps and return all results of the store."""
    counter = Counter(store, rules, clock)
    callers = [a_user(), a_user("bob", token="t2"), anonymous()]
    results: list[object] = []
    for number, (action, choice, milliseconds) in enumerate(steps):
        caller = callers[choice % 3]
        path = f"/repos/acme/site/{'abcdef'[choice]}"
        match action:
            case "send" | "hold" | "post":
                path, method = (
                    ("/repos/acme/site/issues", ("POST", "PUT,POST", "DELETE,POST")[number % 3])
                    if action == "post"
                    else (path, "GET")
                )
                holds = action != "send"
                decision = await counter.send(caller, path, method=method, request_id=f"n{number}", holds=holds)
                results.append(msgspec.structs.astuple(decision.result))
            case "again":
                # A repeated id must come from the same caller and have the same path.
                earlier = max(0, number - 1 - choice)
                earlier_choice = steps[earlier][1]
                decision = await counter.send(
                    callers[earlier_choice % 3],
                    f"/repos/acme/site/{'abcdef'[earlier_choice]}",
                    request_id=f"n{earlier}",
                    holds=True,
                )
                results.append(msgspec.structs.astuple(decision.result))
            case "wait":
                clock.now_ms += milliseconds
            case "release":
                for earlier in range(max(0, number - choice - 1), number):
                    await store.release(f"n{earlier}")
            case "give" | "fault":
                refund_reason = RefundReason.FAULT if action == "fault" else RefundReason.UNCHANGED
                results.append(await store.refund(f"n{max(0, number - 1 - choice)}", refund_reason))
            case "spend":
                plan = counter.call(caller, path, method="GET", query=None, request_id="x").plan
                await store.add_usage(plan.meter_charges, milliseconds)
            case "back":
                plan = counter.call(caller, path, method="GET", query=None, request_id="x").plan
                charges = [charge for charge in plan.charges if not charge.rule.is_partitioned]
                await store.add_usage(charges, -(milliseconds if choice > 2 else choice))
            case "renew":
                results.append(await store.renew([f"n{earlier}" for earlier in range(number)]))
        results.append(await counter.used(caller, "core"))
        results.append(await counter.used(caller, "cpu"))
    clock.now_ms += MINUTE_MS
    results.append([msgspec.structs.astuple((await counter.send(caller)).result) for caller in callers])
    return results


@given(STEPS)
def test_redis_and_memory_give_the_same_results_for_any_history(
    server: RedisServer, steps: list[tuple[str, int, int]]
) -> None:
    async def run() -> tuple[list[object], list[object]]:
        rules = read_rules(TIGHT)
        clock = Clock()
        memory_results = await collect_results(MemoryStore(SimulatedWorld(1), rules, clock=clock), rules, clock, steps)
        server.ask("FLUSHALL")
        clock = Clock()
        store = RedisStore(RealWorld(), rules, RedisSettings(addresses=(server.address,)), clock=clock)
        await store.open()
        try:
            return memory_results, await collect_results(store, rules, clock, steps)
        finally:
            await store.close()

    memory_results, redis_results = asyncio.run(run())
    assert memory_results == redis_results
