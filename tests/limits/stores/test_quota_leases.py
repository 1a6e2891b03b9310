"""Quota leases on a real Redis: which charges are taken in advance, which are returned, and which limits are never leased."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.limits.builders import HOUR_MS, a_user, build_rules_text
from tests.limits.stores.contract import Clock, Counter
from tests.limits.stores.redis_server import running_redis
from wharf.limits.rules import read_rules
from wharf.limits.stores import RefundReason
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.limits.stores.redis.quota_leases import QuotaLeaseStore, QuotaSettings
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("redis-server")

T = TypeVar("T")
HIGH_LIMIT = build_rules_text(
    '[[rule]]\nname = "hourly"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1h"\nceiling = 2000\n'
)
LEASE_SIZE = 20


def run_with_leases(
    folder: Path, scenario: Callable[[Counter, QuotaLeaseStore], Awaitable[T]], text: str = HIGH_LIMIT
) -> T:
    async def run() -> T:
        rules, world, clock = read_rules(text), RealWorld(), Clock()
        with running_redis(folder) as server:
            redis_store = RedisStore(world, rules, RedisSettings(addresses=(server.address,)), clock=clock)
            lease_store = QuotaLeaseStore(redis_store, world, QuotaSettings(size=LEASE_SIZE, processes=2), clock=clock)
            await redis_store.open()
            try:
                return await scenario(Counter(lease_store, rules, clock), lease_store)
            finally:
                await lease_store.close()
                await redis_store.close()

    return asyncio.run(run())


def test_3_5_a_lease_admits_until_it_is_used_up_and_the_rest_is_returned(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> tuple[int, int, int]:
        for _ in range(30):
            await counter.send(a_user())
        held = await counter.used(a_user(), "hourly")
        await lease_store.return_all()
        return lease_store.taken_leases, held, await counter.used(a_user(), "hourly")

    assert run_with_leases(tmp_path, scenario) == (2, 2 * LEASE_SIZE, 30)


def test_3_5_limits_under_a_thousand_are_never_leased(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> tuple[int, int]:
        for _ in range(5):
            await counter.send(a_user())
        return lease_store.taken_leases, await counter.used(a_user(), "hourly")

    assert run_with_leases(tmp_path, scenario, HIGH_LIMIT.replace("2000", "999")) == (0, 5)


def test_3_5_near_the_limit_the_store_decides_and_exactly_the_limit_is_admitted(tmp_path: Path) -> None:
    async def scenario(counter: Counter, _: QuotaLeaseStore) -> tuple[int, int]:
        admitted = sum([(await counter.send(a_user())).is_admitted for _ in range(2_100)])
        return admitted, await counter.used(a_user(), "hourly")

    assert run_with_leases(tmp_path, scenario) == (2_000, 2_000)


def test_3_5_a_lease_ends_before_its_window(tmp_path: Path) -> None:
    async def scenario(counter: Counter, _: QuotaLeaseStore) -> int:
        await counter.send(a_user())
        counter.clock.now_ms += HOUR_MS
        await counter.send(a_user())
        return await counter.used(a_user(), "hourly")

    # The lease of the first window is not used in the second window; a new one is taken.
    assert run_with_leases(tmp_path, scenario) == LEASE_SIZE


def test_3_5_remaining_never_rises_within_a_window(tmp_path: Path) -> None:
    async def scenario(counter: Counter, _: QuotaLeaseStore) -> list[int]:
        used = []
        for number in range(70):
            counter.clock.now_ms += 40 if number % 7 else 1_100
            decision = await counter.send(a_user())
            used.append(decision.used)
        return used

    used = run_with_leases(tmp_path, scenario)
    assert sorted(used) == used


def test_2_7_a_request_admitted_by_a_lease_can_be_refunded(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> tuple[bool, bool, int]:
        await counter.send(a_user(), request_id="first")
        first_refund = await lease_store.refund("first", RefundReason.UNCHANGED)
        second_refund = await lease_store.refund("first", RefundReason.UNCHANGED)
        await lease_store.return_all()
        return first_refund, second_refund, await counter.used(a_user(), "core")

    assert run_with_leases(tmp_path, scenario) == (True, False, 0)


@pytest.mark.parametrize(("used", "taken"), [(1_780, 1), (1_781, 0)])
def test_3_5_a_lease_leaves_a_tenth_of_the_limit(tmp_path: Path, used: int, taken: int) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> int:
        await lease_store.add_usage([counter.charge(a_user(), "hourly")], used)
        await counter.send(a_user())
        return lease_store.taken_leases

    # 2,000 are allowed: after a lease of 20, at least 200 must be left.
    assert run_with_leases(tmp_path, scenario) == taken
