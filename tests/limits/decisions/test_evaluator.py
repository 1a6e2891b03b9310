"""The evaluator with a store in memory: decisions, reloads and refunds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
import pytest

from tests.limits.builders import CODE_HOST, HOUR_MS, MINUTE_MS, NOON_MS, a_user, anonymous
from tests.limits.stores.contract import Clock
from wharf.limits.core.decision import Verdict
from wharf.limits.core.limiter import Grant
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.responses import build_headers, build_refusal
from wharf.limits.decisions.evaluator import LimitEvaluator
from wharf.limits.rules import InvalidFile
from wharf.limits.stores import MemoryStore, RefundReason
from wharf.world import SimulatedWorld

T = TypeVar("T")
BATCH = "/acme/site.git/info/lfs/objects/batch"


def serve(scenario: Callable[[LimitEvaluator, Clock], Awaitable[T]], *grants: Grant) -> T:
    async def run() -> T:
        clock = Clock()
        store = MemoryStore(SimulatedWorld(1), CODE_HOST, clock=clock)
        return await scenario(LimitEvaluator(CODE_HOST, store, clock, grants), clock)

    return asyncio.run(run())


def a_request(request_id: str = "r1", path: str = "/meta", *, objects: int | None = None) -> RequestFacts:
    return RequestFacts(request_id, "GET", path, a_user(), object_count=objects)


def test_a_request_is_decided_and_ended() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> list[int]:
        held = []
        for number in range(3):
            decision = await service.evaluate(a_request(f"r{number}"))
            held.append(decision.result.counts_before[1])
            await service.release(f"r{number}")
        return held

    assert serve(scenario) == [0, 0, 0]


def test_2_7_a_reply_after_a_refund_reports_the_current_count() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> list[str]:
        decision = await service.evaluate(a_request())
        refunded = await service.refund(decision, RefundReason.UNCHANGED)
        repeated = await service.refund(refunded, RefundReason.UNCHANGED)
        return [
            dict(build_headers(reply, service.rules))["x-ratelimit-used"] for reply in (decision, refunded, repeated)
        ]

    assert serve(scenario) == ["1", "0", "0"]


def test_2_9_a_batch_of_too_many_objects_is_refused_with_413_and_charged_nowhere() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> tuple[Verdict, int, str, int]:
        decision = await service.evaluate(a_request("r1", BATCH, objects=101))
        refusal = build_refusal(decision, a_user(), service.rules)
        admitted = await service.evaluate(a_request("r2", BATCH, objects=100))
        return decision.verdict, refusal.status, dict(refusal.headers)["x-ratelimit-remaining"], admitted.used

    assert serve(scenario) == (Verdict.TOO_MANY_OBJECTS, 413, "3000", 1)


def test_2_9_a_query_beyond_the_limits_is_refused_with_400_and_all_headers() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> tuple[int, str, bool]:
        decision = await service.refuse_unreadable_body(a_request("r1", "/graphql"), "The query is too deep.")
        refusal = build_refusal(decision, a_user(), service.rules)
        return refusal.status, dict(refusal.headers)["x-ratelimit-resource"], b"The query is too deep." in refusal.body

    assert serve(scenario) == (400, "graphql", True)


def test_a_reload_changes_rules_and_keeps_counters() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> tuple[int, int]:
        await service.evaluate(a_request("r1"))
        await service.reload_rules('[[rule]]\nname = "core"\nceiling = 9\n', "rules.toml")
        decision = await service.evaluate(a_request("r2"))
        return decision.limit, decision.used

    assert serve(scenario) == (9, 2)


def test_a_reload_with_a_mistake_changes_nothing() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> bool:
        before = service.limiter
        with pytest.raises(InvalidFile, match="did you mean 'ceiling'"):
            await service.reload_rules('[[rule]]\nname = "core"\nceilng = 9\n', "rules.toml")
        return service.limiter is before

    assert serve(scenario) is True


def test_grants_survive_a_reload_and_expire() -> None:
    grant = Grant(owner="user:ada", resource="core", amount=10, until_ms=NOON_MS + HOUR_MS, by="ops", reason="x")

    async def scenario(service: LimitEvaluator, clock: Clock) -> list[int]:
        limits = [(await service.evaluate(a_request("r1"))).limit]
        await service.reload_rules("", "rules.toml")
        limits.append((await service.evaluate(a_request("r2"))).limit)
        clock.now_ms += HOUR_MS
        limits.append((await service.evaluate(a_request("r3"))).limit)
        return limits

    assert serve(scenario, grant) == [5_010, 5_010, 5_000]


def test_the_status_includes_grants() -> None:
    grant = Grant(owner="user:ada", resource="search", amount=10, until_ms=NOON_MS + 1, by="ops", reason="x")

    async def scenario(service: LimitEvaluator, _: Clock) -> int:
        status = await service.render_status(a_user())
        assert status is not None
        body = msgspec.json.decode(status)
        limit: int = body["resources"]["search"]["limit"]
        return limit

    assert serve(scenario, grant) == 40


def test_cpu_time_and_content_are_charged_when_they_are_known() -> None:
    async def scenario(service: LimitEvaluator, clock: Clock) -> list[str]:
        decision = await service.evaluate(a_request("r1"))
        for _ in range(80):
            await service.charge_content(decision, a_user())
        await service.charge_cpu(decision, 90_000)
        clock.now_ms += MINUTE_MS // 2  # The short limit on compute is over by then.
        post = RequestFacts("r2", "POST", "/gists", a_user())
        return (await service.evaluate(post)).list_hit_rules(is_enforced=True)

    assert serve(scenario) == ["cpu", "content"]


def test_2_4_content_of_an_endpoint_rule_is_not_counted_again_for_a_mark_header() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> int:
        decision = await service.evaluate(RequestFacts("r1", "POST", "/gists", a_user()))
        await service.charge_content(decision, a_user())
        charges = service.limiter.rulebook.list_content_charges(a_user())
        return (await service.store.peek(charges))[0].used

    assert serve(scenario) == 1


def test_4_2_headers_before_a_caller_is_known_show_the_bucket_of_the_address() -> None:
    async def scenario(service: LimitEvaluator, _: Clock) -> tuple[str, str, bool]:
        login = await service.charge_failed_login("r1", anonymous())
        headers = dict(await service.render_address_headers(anonymous()))
        return headers["x-ratelimit-limit"], headers["x-ratelimit-used"], login.is_admitted

    assert serve(scenario) == ("60", "0", True)
