"""Gateways whose counters are on Redis."""

import asyncio
from pathlib import Path

import pytest

from tests.limits.admin.test_commands import Operator, run_as_operator
from tests.limits.decision_services import run_async
from tests.limits.gateway.running_gateway import Reply, run_gateway
from tests.limits.gateway.test_gateway import ADA_SENDS, find_missing_headers
from tests.limits.stores.redis_server import running_redis
from tests.waiting import wait_on_loop_until

TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'


@pytest.mark.needs_program("redis-server")
def test_gateways_on_one_redis_share_their_counters(tmp_path: Path) -> None:
    async def scenario(address: str) -> tuple[list[int], list[list[str]]]:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        (tmp_path / "a").mkdir()
        (tmp_path / "b").mkdir()
        replies: list[Reply] = []
        async with (
            run_gateway(tmp_path / "a", rules=TWO_AN_HOUR, more=store) as first,
            run_gateway(tmp_path / "b", rules=TWO_AN_HOUR, more=store) as second,
        ):
            for running in (first, second, first, second):
                caller = await running.connect()
                replies.append(await caller.request("/things", ADA_SENDS))
            replies.append(await first.request("/rate_limit", ADA_SENDS))
            replies.append(await second.request("/things", "Authorization: Bearer nobody"))
            await wait_on_loop_until(
                lambda: not first.decision_service.running_requests and not second.decision_service.running_requests,
                what="all requests have ended",
            )
        return [reply.status for reply in replies], [find_missing_headers(reply) for reply in replies]

    with running_redis(tmp_path) as redis:
        statuses, missing = run_async(lambda: scenario(redis.address))

    assert statuses == [200, 200, 403, 403, 200, 401]
    assert missing == [[]] * 6


@pytest.mark.needs_program("redis-server")
def test_on_redis_an_unchanged_reply_costs_nothing_and_its_slot_is_freed(tmp_path: Path) -> None:
    async def scenario(address: str) -> tuple[list[str], int]:
        store = f'[store]\nkind = "redis"\naddresses = ["{address}"]\nwait_ms = 2000\n'
        async with run_gateway(tmp_path, more=store) as running:

            async def reply_unchanged(_request: object, _reader: object, writer: asyncio.StreamWriter) -> None:
                writer.write(b"HTTP/1.1 304 Not Modified\r\nETag: 1\r\n\r\n")

            running.service.handler = reply_unchanged
            decision_service, caller = running.decision_service, await running.connect()
            used = [
                (await caller.request("/x", ADA_SENDS, 'If-None-Match: "1"')).headers["x-ratelimit-used"] for _ in "123"
            ]
            await wait_on_loop_until(lambda: not decision_service.running_requests, what="all requests have ended")
            decision_service.activity.add_admissions_to_rows(decision_service.now_ms())
            ada = decision_service.activity.last_callers["user:ada"]
            rulebook = decision_service.evaluator.limiter.rulebook
            rule = rulebook.rules_by_name["concurrent"]
            charge = next(c for c in rulebook.list_secondary_charges(ada) if c.rule is rule)

            async def count_slots() -> int:
                return (await decision_service.evaluator.store.peek([charge]))[0].used

            async with asyncio.timeout(60):
                while await count_slots():  # The gateway does not wait until the slot is freed.
                    pass
            return used, await count_slots()

    with running_redis(tmp_path) as redis:
        assert run_async(lambda: scenario(redis.address)) == (["0", "0", "0"], 0)


@pytest.mark.needs_program("redis-server")
def test_a_simulated_outage_applies_the_policies_of_the_rules_for_a_lost_store(tmp_path: Path) -> None:
    rules = '[[rule]]\nname = "core"\nceiling = 100\non_store_loss = "closed"\n'
    with running_redis(tmp_path) as redis:
        store = f'[store]\nkind = "redis"\naddresses = ["{redis.address}"]\nwait_ms = 2000\n'

        async def scenario(operator: Operator) -> tuple[int, int]:
            before = await operator.send(ADA_SENDS)
            await operator.run("simulate-outage", "store", "--duration", "1m")
            return before, await operator.send(ADA_SENDS)

        assert run_as_operator(tmp_path, scenario, rules=rules, more=store) == (200, 403)
