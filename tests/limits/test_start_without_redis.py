"""The start of a limiter without its Redis: it decides by the policy of each rule, or refuses to start."""

import asyncio
from pathlib import Path

import pytest

from tests.limits.decision_services import ADA, DIRECTORY, run_async
from tests.limits.stores.redis_server import RedisServer
from tests.ports import free_ports
from tests.waiting import wait_on_loop_until
from wharf.limits.decisions.requests import IncomingRequest, LocalReply
from wharf.limits.rate_limiter import LimiterStartError, RateLimiter, load_settings
from wharf.world import RealWorld

TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


def make_limiter(folder: Path, port: int, rules: str) -> RateLimiter:
    (folder / "rules.toml").write_text(rules)
    (folder / "people.toml").write_text(DIRECTORY)
    file = folder / "limits.toml"
    file.write_text(
        'rules = "rules.toml"\ndirectory = "people.toml"\ndata_folder = "data"\n'
        f'[store]\nkind = "redis"\naddresses = "127.0.0.1:{port}"\nwait_ms = 1000\nfallback_processes = 1\n'
    )
    return RateLimiter(load_settings(file), RealWorld())


async def is_admitted(limits: RateLimiter) -> bool:
    """Send a request of ada. Return whether it is admitted."""
    admitted = await limits.decision_service.admit(IncomingRequest("GET", "/x", "", "192.0.2.1", f"token {ADA}"))
    if isinstance(admitted, LocalReply):
        return False
    await limits.decision_service.end_request(admitted)
    return True


def test_a_limiter_starts_with_its_fallback_and_counts_on_redis_once_it_is_reachable(tmp_path: Path) -> None:
    (port,) = free_ports(1)

    async def scenario(redis: RedisServer) -> tuple[list[bool], bool, list[bool]]:
        limits = make_limiter(tmp_path, port, TWO_AN_HOUR)
        await limits.open()
        assert limits.stores.remote is not None
        guard = limits.stores.remote.guard
        try:
            in_fallback = [await is_admitted(limits) for _ in range(3)]
            was_unavailable = guard.counts.is_away
            await asyncio.to_thread(redis.start)
            await wait_on_loop_until(lambda: not guard.counts.is_away, what="Redis is reachable")
            return in_fallback, was_unavailable, [await is_admitted(limits) for _ in range(3)]
        finally:
            await limits.close()

    redis = RedisServer(tmp_path, port)
    try:
        # Redis does not know the requests that the fallback admitted.
        assert run_async(lambda: scenario(redis)) == ([True, True, False], True, [True, True, False])
    finally:
        redis.kill()


def test_a_redis_with_an_unsafe_eviction_policy_is_not_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (port,) = free_ports(1)

    async def scenario(redis: RedisServer) -> bool:
        limits = make_limiter(tmp_path, port, TWO_AN_HOUR)
        await limits.open()
        assert limits.stores.remote is not None
        try:
            await asyncio.to_thread(redis.start)
            await wait_on_loop_until(
                lambda: "maxmemory-policy" in caplog.text, what="the settings of Redis are checked"
            )
            return limits.stores.remote.guard.counts.is_away
        finally:
            await limits.close()

    redis = RedisServer(tmp_path, port, "--maxmemory-policy", "allkeys-lru")
    try:
        assert run_async(lambda: scenario(redis))
    finally:
        redis.kill()


def test_a_rule_that_refuses_without_its_store_prevents_the_start(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    limits = make_limiter(tmp_path, port, f'{TWO_AN_HOUR}on_store_loss = "closed"\n')

    async def scenario() -> str:
        with pytest.raises(LimiterStartError) as caught:
            await limits.open()
        return str(caught.value)

    assert 'core has on_store_loss = "closed"' in run_async(scenario)
