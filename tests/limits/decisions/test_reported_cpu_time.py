"""The CPU time that a service reports replaces what was measured and charged while the request ran."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from tests.limits.builders import build_rules_text
from tests.limits.decision_services import ADA, DIRECTORY, AdvancingWorld
from tests.limits.stores.redis_server import running_redis
from wharf.limits.decisions import AdmittedRequest, DecisionService, IncomingRequest
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import read_directory, read_rules
from wharf.limits.stores import MemoryStore
from wharf.limits.stores.redis import RedisSettings, RedisStore

T = TypeVar("T")
RULES = build_rules_text(
    '[[rule]]\nname = "cpu"\ncounts = "cpu_ms"\nceiling = 90000\nwindow = "1m"',
    '[[rule]]\nname = "cpu_hourly"\ncounts = "cpu_ms"\nceiling = 9000000\nwindow = "1h"',
)
KINDS = ["memory", pytest.param("redis", marks=pytest.mark.needs_program("redis-server"))]


class Service:
    """A decision service on a clock that the test moves."""

    def __init__(self, service: DecisionService, world: AdvancingWorld) -> None:
        self.service = service
        self.world = world

    async def admit(self) -> AdmittedRequest:
        admitted = await self.service.admit(IncomingRequest("GET", "/x", "", "192.0.2.7", f"token {ADA}"))
        assert isinstance(admitted, AdmittedRequest)
        return admitted

    async def work(self, seconds: int) -> None:
        """Let this time pass in steps, each followed by the periodic work of the service."""
        for _ in range(0, seconds, 5):
            self.world.advance(5)
            await self.service.run_maintenance(should_renew=False)

    async def end(self, admitted: AdmittedRequest, measured_ms: int | None) -> None:
        admitted.finish_work(self.world.monotonic_s())
        admitted.measured_ms = measured_ms
        await self.service.end_request(admitted)

    async def count(self, rule: str = "cpu") -> int:
        book = self.service.evaluator.limiter.rulebook
        caller = self.service.activity.last_callers.get("user:ada")
        if caller is None:
            self.service.activity.add_admissions_to_rows(self.service.now_ms())
            caller = self.service.activity.last_callers["user:ada"]
        charge = next(charge for charge in book.list_secondary_charges(caller) if charge.name == rule)
        (reading,) = await self.service.evaluator.store.peek([charge])
        return reading.used


@contextlib.asynccontextmanager
async def open_service(kind: str, folder: Path) -> AsyncIterator[Service]:
    world, rules = AdvancingWorld(), read_rules(RULES)
    world.advance(60)

    def now_ms() -> int:
        return world.now_ns() // 1_000_000

    with contextlib.ExitStack() as exits:
        store: MemoryStore | RedisStore = MemoryStore(world, rules)
        if kind == "redis":
            server = exits.enter_context(running_redis(folder))
            store = RedisStore(world, rules, RedisSettings(addresses=(server.address,)), clock=now_ms)
        await store.open()
        evaluator = LimitEvaluator(rules, store, now_ms)
        yield Service(DecisionService(evaluator, world, directory=read_directory(DIRECTORY)), world)
        await store.close()


def run(kind: str, folder: Path, scenario: Callable[[Service], Awaitable[T]]) -> T:
    async def run_scenario() -> T:
        async with open_service(kind, folder) as service:
            return await scenario(service)

    return asyncio.run(run_scenario())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("measured_ms", "expected"), [(40, 40), (0, 0), (31_000, 31_000), (None, 30_000)])
def test_a_report_replaces_what_was_charged_while_the_request_ran(
    tmp_path: Path, kind: str, measured_ms: int | None, expected: int
) -> None:
    async def scenario(service: Service) -> tuple[int, int]:
        admitted = await service.admit()
        await service.work(30)
        before = await service.count()
        await service.end(admitted, measured_ms)
        return before, await service.count()

    assert run(kind, tmp_path, scenario) == (30_000, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_at_the_begin_of_a_stream_applies_while_the_stream_is_open(tmp_path: Path, kind: str) -> None:
    async def scenario(service: Service) -> tuple[int, int]:
        admitted = await service.admit()
        await service.work(30)
        admitted.finish_work(service.world.monotonic_s())
        admitted.measured_ms = 40
        await service.work(5)
        while_open = await service.count()
        await service.end(admitted, 40)
        return while_open, await service.count()

    assert run(kind, tmp_path, scenario) == (40, 40)


@pytest.mark.parametrize("kind", KINDS)
def test_a_report_takes_nothing_back_that_other_requests_were_charged(tmp_path: Path, kind: str) -> None:
    async def scenario(service: Service) -> tuple[int, int]:
        long_request = await service.admit()
        await service.work(300)
        other = await service.admit()
        await service.end(other, 20_000)
        await service.end(long_request, 10)
        return await service.count(), await service.count("cpu_hourly")

    assert run(kind, tmp_path, scenario) == (20_000, 20_010)


@pytest.mark.parametrize("kind", KINDS)
def test_small_amounts_that_an_owner_owes_reduce_what_is_taken_back(tmp_path: Path, kind: str) -> None:
    async def scenario(service: Service) -> int:
        await service.end(await service.admit(), 7)
        admitted = await service.admit()
        await service.work(10)
        await service.end(admitted, 1_000)
        return await service.count()

    assert run(kind, tmp_path, scenario) == 1_007
