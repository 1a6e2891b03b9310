"""Quota leases on a real Redis: which charges are taken in advance, which are returned, and which limits are never leased."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest
from msgspec.structs import replace

from tests.limits.builders import HOUR_MS, a_user, build_rules_text
from tests.limits.stores.contract import Clock, Counter
from tests.limits.stores.redis_server import running_redis
from tests.waiting import wait_on_loop_until
from wharf.limits.rules import read_rules
from wharf.limits.stores import RefundReason
from wharf.limits.stores.redis import RedisSettings, RedisStore
from wharf.limits.stores.redis import quota_leases as quota_leases_module
from wharf.limits.stores.redis.quota_leases import QuotaLeaseStore, QuotaSettings
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("redis-server")

T = TypeVar("T")
HIGH_LIMIT = build_rules_text(
    '[[rule]]\nname = "hourly"\nscope = ["user"]\nalgorithm = "window"\nwindow = "1h"\nceiling = 2000\n'
)
LEASE_SIZE = 20
SETTINGS = QuotaSettings(size=LEASE_SIZE, processes=2)


def run_with_leases(
    folder: Path,
    scenario: Callable[[Counter, QuotaLeaseStore], Awaitable[T]],
    text: str = HIGH_LIMIT,
    settings: QuotaSettings | None = SETTINGS,
) -> T:
    async def run() -> T:
        rules, world, clock = read_rules(text), RealWorld(), Clock()
        with running_redis(folder) as server:
            redis_store = RedisStore(world, rules, RedisSettings(addresses=(server.address,)), clock=clock)
            lease_store = QuotaLeaseStore(redis_store, world, settings, clock=clock)
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


def test_3_5_without_settings_a_lease_has_the_default_size(tmp_path: Path) -> None:
    async def scenario(counter: Counter, _: QuotaLeaseStore) -> int:
        await counter.send(a_user())
        return await counter.used(a_user(), "hourly")

    assert run_with_leases(tmp_path, scenario, settings=None) == QuotaSettings().size


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


LEASE_MS = 1_000
"""How long a lease may be used."""


async def send_by_lease(counter: Counter, lease_store: QuotaLeaseStore, request_id: str) -> bool:
    """Return whether an existing lease admits a request, without a call of Redis."""
    return (
        lease_store.take_now(counter.call(a_user(), "/meta", method="GET", query=None, request_id=request_id))
        is not None
    )


@pytest.mark.parametrize(("passed_ms", "is_usable"), [(LEASE_MS - 1, True), (LEASE_MS, False)])
def test_3_5_a_lease_can_be_used_for_a_second(tmp_path: Path, passed_ms: int, is_usable: bool) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> bool:
        await counter.send(a_user())
        counter.clock.now_ms += passed_ms
        return await send_by_lease(counter, lease_store, "next")

    assert run_with_leases(tmp_path, scenario) is is_usable


@pytest.mark.parametrize(("left_ms", "is_usable"), [(251, True), (250, False)])
def test_3_5_a_lease_is_not_used_in_the_last_quarter_of_a_second_of_its_window(
    tmp_path: Path, left_ms: int, is_usable: bool
) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> bool:
        await lease_store.add_usage([counter.charge(a_user(), "hourly"), counter.charge(a_user(), "core")], 1)
        counter.clock.now_ms += HOUR_MS - 800
        await counter.send(a_user())
        counter.clock.now_ms += 800 - left_ms
        return await send_by_lease(counter, lease_store, "next")

    assert run_with_leases(tmp_path, scenario) is is_usable


def test_3_5_all_of_a_lease_is_used_before_the_next_one_is_taken(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        taken = []
        for _ in range(2 * LEASE_SIZE + 1):
            await counter.send(a_user())
            taken.append(lease_store.taken_leases)
        return taken

    assert run_with_leases(tmp_path, scenario) == [1] * LEASE_SIZE + [2] * LEASE_SIZE + [3]


def test_3_5_requests_at_the_same_time_take_one_lease(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> tuple[list[int], int]:
        decisions = await asyncio.gather(*[counter.send(a_user()) for _ in range(LEASE_SIZE)])
        return sorted(decision.used for decision in decisions), lease_store.taken_leases

    assert run_with_leases(tmp_path, scenario) == ([*range(1, LEASE_SIZE + 1)], 1)


def test_3_5_a_leased_result_shows_the_count_and_the_window_of_the_bucket(tmp_path: Path) -> None:
    async def scenario(counter: Counter, _: QuotaLeaseStore) -> list[tuple[int, int, int, tuple[str, ...]]]:
        await counter.send(a_user(), request_id="before")
        start_ms = counter.clock.now_ms
        decisions = [await counter.send(a_user()) for _ in range(2)]
        return [
            (d.result.bucket_count_before, d.result.bucket_end_ms - start_ms, d.result.now_ms - start_ms, d.result.keys)
            for d in decisions
        ]

    assert run_with_leases(tmp_path, scenario) == [(1, HOUR_MS, 0, ()), (2, HOUR_MS, 0, ())]


@pytest.mark.parametrize(
    ("ceiling", "more", "taken"),
    [
        (1_000, "", 1),
        (999, "", 0),
        (2_000, 'algorithm = "slices"\n', 0),
        (2_000, "per_endpoint = true\n", 0),
    ],
)
def test_3_5_only_large_fixed_windows_with_one_counter_are_leased(
    tmp_path: Path, ceiling: int, more: str, taken: int
) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> tuple[int, int]:
        await counter.send(a_user())
        return lease_store.taken_leases, lease_store.returned_leases

    text = HIGH_LIMIT.replace("2000", str(ceiling)).replace('algorithm = "window"\n', more or 'algorithm = "window"\n')
    assert run_with_leases(tmp_path, scenario, text) == (taken, 0)


def test_3_5_a_request_with_a_grant_and_a_free_one_use_no_lease(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        await counter.send(a_user())
        taken = [lease_store.taken_leases]
        call = counter.call(a_user(), "/meta", method="GET", query=None, request_id="granted")
        granted = replace(call, charges=tuple(replace(charge, ceiling=5_000) for charge in call.charges))
        assert (await lease_store.take(granted)).is_admitted
        taken.append(lease_store.taken_leases)
        await counter.send(a_user(), "/free")
        await lease_store.return_all()
        return [*taken, lease_store.taken_leases, await counter.used(a_user(), "hourly")]

    text = HIGH_LIMIT + '[[endpoint]]\nmatch = ["GET /free"]\nfree = true\n'
    assert run_with_leases(tmp_path, scenario, text)[:3] == [1, 1, 1]


def test_3_5_after_too_little_was_left_the_store_decides_for_a_second(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        charge = counter.charge(a_user(), "hourly")
        await lease_store.add_usage([charge], 1_900)
        await counter.send(a_user())
        await lease_store.reset([charge])
        taken = []
        for passed_ms in (LEASE_MS - 1, 1):
            counter.clock.now_ms += passed_ms
            await counter.send(a_user())
            taken.append(lease_store.taken_leases)
        return taken

    assert run_with_leases(tmp_path, scenario) == [0, 1]


def test_3_5_a_lease_that_expired_is_returned_while_no_request_arrives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quota_leases_module, "LEASE_TTL_MS", 20)

    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        await lease_store.open()
        await counter.send(a_user())
        counter.clock.now_ms += 20
        await wait_on_loop_until(lambda: lease_store.returned_leases, what="the lease is returned")
        await lease_store.return_all()
        return [
            lease_store.returned_leases,
            await counter.used(a_user(), "hourly"),
            await counter.used(a_user(), "core"),
        ]

    # The lease was charged to two counters.
    assert run_with_leases(tmp_path, scenario) == [2, 1, 1]


def test_3_5_a_lease_that_is_used_up_returns_nothing(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        for _ in range(LEASE_SIZE):
            await counter.send(a_user())
        await lease_store.return_all()
        return [lease_store.returned_leases, await counter.used(a_user(), "hourly")]

    assert run_with_leases(tmp_path, scenario) == [0, LEASE_SIZE]


def test_3_5_new_rules_return_all_leases(tmp_path: Path) -> None:
    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        await counter.send(a_user())
        await lease_store.set_rules(read_rules(HIGH_LIMIT.replace("2000", "3000")))
        return [lease_store.returned_leases, await counter.used(a_user(), "hourly")]

    assert run_with_leases(tmp_path, scenario) == [2, 1]


def test_3_5_a_full_cache_of_lease_keys_changes_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quota_leases_module, "MAX_CACHED_PLANS", 1)

    async def scenario(counter: Counter, lease_store: QuotaLeaseStore) -> list[int]:
        used = [(await counter.send(a_user(login))).used for login in ("ada", "bob", "ada", "bob")]
        return [*used, lease_store.taken_leases]

    assert run_with_leases(tmp_path, scenario) == [1, 1, 2, 2, 2]
