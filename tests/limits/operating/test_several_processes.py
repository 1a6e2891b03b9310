"""What an operator says to one process holds in all that share a store, and what they see is told together."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from click.testing import CliRunner

from tests.limits.decision_services import ADA, run_async
from tests.limits.gateway.running_gateway import RunningGateway, run_gateway
from tests.limits.stores.redis_server import RedisServer, running_redis
from tests.waiting import wait_on_loop_until
from wharf.cli.root import root
from wharf.limits.admin.actions import ActionError
from wharf.limits.admin.server import AdminServer
from wharf.limits.decisions.shared_records import MAX_PENDING_DECISIONS
from wharf.limits.stores.port import StoreUnavailable
from wharf.limits.stores.redis import RedisRecords

T = TypeVar("T")
ADA_SENDS = f"Authorization: token {ADA}"
TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'
pytestmark = pytest.mark.needs_program("redis-server")


class Process:
    def __init__(self, place: RunningGateway, admin: AdminServer) -> None:
        self.place = place
        self.acts = admin.actions

    async def ask(self) -> int:
        return (await self.place.request("/things", ADA_SENDS)).status


def in_two(folder: Path, scenario: Callable[[Process, Process], Awaitable[T]], redis: RedisServer) -> T:
    """Two gateways that count on one Redis, each with its own folder; operators find both in `folder`."""
    store = f'[store]\nkind = "redis"\naddresses = ["{redis.address}"]\nwait_ms = 2000\n'

    async def whole() -> T:
        for name in ("a", "b"):
            (folder / name).mkdir()
        async with (
            run_gateway(folder / "a", rules=TWO_AN_HOUR, more=f'admin_socket = "../limits-a.sock"\n{store}') as one,
            run_gateway(folder / "b", rules=TWO_AN_HOUR, more=f'admin_socket = "../limits-b.sock"\n{store}') as other,
        ):
            admins = [
                AdminServer(place.gateway.limits, place.decision_service.world, place.gateway) for place in (one, other)
            ]
            for admin in admins:
                await admin.open()
            try:
                return await scenario(Process(one, admins[0]), Process(other, admins[1]))
            finally:
                for admin in admins:
                    await admin.close()

    return run_async(whole)


async def typed_at(path: Path, *words: str) -> str:
    done = await asyncio.to_thread(CliRunner().invoke, root, ["limits", *words, "--admin-address", str(path)])
    assert done.exit_code == 0, done.output
    return done.output


def test_a_grant_and_its_end_reach_the_other_process(tmp_path: Path) -> None:
    async def scenario(one: Process, other: Process) -> list[int]:
        spent = [await one.ask(), await one.ask(), await other.ask()]
        await one.acts.add_grant("user:ada", resource="core", amount=5, for_ms=60_000, by="eve", reason="a test")
        await wait_on_loop_until(
            lambda: len(other.place.decision_service.overrides.grant_file.grants) == 1, what="the other knows"
        )
        granted = await other.ask()
        await other.acts.revoke_grants("user:ada", resource=None, by="eve", reason="over")
        await wait_on_loop_until(
            lambda: one.place.decision_service.overrides.grant_file.grants == [], what="it is over everywhere"
        )
        return [*spent, granted, await one.ask()]

    with running_redis(tmp_path) as redis:
        assert in_two(tmp_path, scenario, redis) == [200, 200, 403, 200, 403]


def test_limits_are_off_and_on_again_in_all_processes(tmp_path: Path) -> None:
    async def scenario(one: Process, other: Process) -> list[int]:
        statuses = [await one.ask(), await one.ask(), await one.ask()]
        await one.acts.set_off(for_ms=60_000, by="eve", reason="")
        await wait_on_loop_until(lambda: other.place.decision_service.overrides.is_off, what="off there too")
        statuses.append(await other.ask())
        await other.acts.set_off(for_ms=0, by="eve", reason="")
        await wait_on_loop_until(lambda: not one.place.decision_service.overrides.is_off, what="on here too")
        return [*statuses, await one.ask()]

    with running_redis(tmp_path) as redis:
        assert in_two(tmp_path, scenario, redis) == [200, 200, 403, 200, 403]


def test_a_ban_on_redis_is_shown_by_every_process(tmp_path: Path) -> None:
    async def scenario(one: Process, other: Process) -> tuple[object, object, object]:
        await one.ask()
        await other.ask()
        subject = (await one.acts.describe_caller("user:ada"))["ban_subject"]
        before = (await other.acts.describe_caller("user:ada"))["banned_for_s"]
        await one.acts.set_ban(subject, for_ms=600_000, by="eve", reason="")
        during = (await other.acts.describe_caller("user:ada"))["banned_for_s"]
        await other.acts.set_ban(subject, for_ms=0, by="eve", reason="")
        return (
            before,
            during is not None and 590 <= during <= 600,
            (await one.acts.describe_caller("user:ada"))["banned_for_s"],
        )

    with running_redis(tmp_path) as redis:
        assert in_two(tmp_path, scenario, redis) == (None, True, None)


def test_top_adds_up_what_all_processes_of_the_machine_saw(tmp_path: Path) -> None:
    async def scenario(one: Process, other: Process) -> tuple[list[dict[str, object]], str]:
        for process in (one, other, other):
            await process.ask()
        told = msgspec.json.decode(await typed_at(tmp_path, "top", "--json"), type=list[dict[str, object]])
        request_id = next(iter(other.place.decision_service.decision_log.list_recent())).id
        return told, await typed_at(tmp_path, "why", request_id)

    with running_redis(tmp_path) as redis:
        told, why = in_two(tmp_path, scenario, redis)

    assert told == [{"caller": "user:ada", "requests": 3, "refused": 1, "busiest": "GET /things"}]
    assert "refused (primary) by core" in why


def test_what_another_process_decided_and_saw_is_told_by_any(tmp_path: Path) -> None:
    """Their files and sockets may be on different machines: only Redis is common."""

    async def scenario(one: Process, other: Process) -> tuple[str, object, object]:
        for _ in range(3):
            await other.ask()
        await one.ask()
        desk = other.place.decision_service
        desk.activity.fold_counts(desk.now_ms())
        await desk.decision_log.write(desk.now_ms())
        await desk.shared_records.write(desk.now_ms(), is_last=True)
        refused = next(iter(desk.decision_log.list_recent())).id
        since = "2020-01-01T00:00:00Z"
        activity = await typed_at(tmp_path / "limits-a.sock", "activity", "acme", "--since", since)
        top = await typed_at(tmp_path / "limits-a.sock", "top", "--json")
        why = await typed_at(tmp_path / "limits-a.sock", "why", refused)
        return why, msgspec.json.decode(top), msgspec.json.decode(activity)["total_request_count"]

    with running_redis(tmp_path) as redis:
        why, top, activity = in_two(tmp_path, scenario, redis)

    assert "GET /things of user:ada (personal_token, 127.0.0.1)\nrefused (primary) by core" in why
    assert top == [{"caller": "user:ada", "requests": 4, "refused": 2, "busiest": "GET /things"}]
    assert activity == 4


def test_what_is_left_for_others_is_bounded_and_a_store_that_is_away_holds_up_nobody(tmp_path: Path) -> None:
    """The caller was at its limit when the store was seen last, and stays there."""

    async def scenario(one: Process, _other: Process) -> tuple[bool, int, int, int]:
        for _ in range(3):
            await one.ask()
        sharing, now_ms = one.place.decision_service.shared_records, one.place.decision_service.now_ms()
        assert isinstance(sharing.record_store, RedisRecords)
        few = RedisRecords(one.place.gateway.limits.redis_store.link, "few:", max_decisions=100, retention_ms=60_000)  # type: ignore[union-attr] # It is on Redis.
        sharing.record_store = few
        for number in range(1_000):
            sharing.record_decision(f"A:{number:04X}:{now_ms // 1_000:X}", b"{}")
        await sharing.write(now_ms)
        kept = int((await asyncio.to_thread(redis.ask, "XLEN", "few:{decisions}")).strip(":\r\n"))
        age_ms = int((await asyncio.to_thread(redis.ask, "PTTL", "few:{decisions}")).strip(":\r\n"))
        await asyncio.to_thread(redis.kill)
        for number in range(MAX_PENDING_DECISIONS + 5):
            sharing.record_decision(f"B:{number:04X}:{now_ms // 1_000:X}", b"{}")
        with pytest.raises(StoreUnavailable):
            await sharing.write(now_ms)
        return 100 <= kept < 300, age_ms, sharing.dropped_decisions, await one.ask()

    with running_redis(tmp_path) as redis:
        is_bounded, age_ms, lost, status = in_two(tmp_path, scenario, redis)

    assert (is_bounded, 0 < age_ms <= 60_000, lost, status) == (True, True, 5, 403)


def test_rules_are_read_again_by_all_processes_and_metrics_are_those_of_all(tmp_path: Path) -> None:
    async def scenario(one: Process, other: Process) -> tuple[str, list[int], list[str]]:
        for name in ("a", "b"):
            (tmp_path / name / "rules.toml").write_text(TWO_AN_HOUR.replace("2", "3"))
        said = await typed_at(tmp_path, "reload")
        statuses = [await other.ask(), await one.ask(), await other.ask(), await other.ask()]
        metrics = await typed_at(tmp_path, "metrics")
        return said, statuses, [line for line in metrics.splitlines() if 'verdict="admitted"' in line]

    with running_redis(tmp_path) as redis:
        said, statuses, admitted = in_two(tmp_path, scenario, redis)

    assert said.count("rules in force") == 1  # Both agree.
    assert statuses == [200, 200, 200, 403]
    assert admitted == [
        'wharf_limits_decisions_total{verdict="admitted",process="limits-a"} 1',
        'wharf_limits_decisions_total{verdict="admitted",process="limits-b"} 2',
    ]


def test_3_3_rules_state_what_all_processes_admit_together_while_the_store_is_away(tmp_path: Path) -> None:
    async def scenario(_one: Process, _other: Process) -> str:
        return await typed_at(tmp_path, "rules")

    with running_redis(tmp_path) as redis:
        said = in_two(tmp_path, scenario, redis)

    assert "During a store outage, 8 processes together admit at most: " in said
    assert " core 8, " in said  # Of 2 each of them admits 1.


def test_grants_outlive_a_redis_that_forgets(tmp_path: Path) -> None:
    async def scenario(one: Process, other: Process) -> int:
        await one.ask()
        await one.acts.add_grant("user:ada", resource="core", amount=5, for_ms=60_000, by="eve", reason="")
        await wait_on_loop_until(
            lambda: len(other.place.decision_service.overrides.grant_file.grants) == 1, what="the other knows"
        )
        await asyncio.to_thread(redis.ask, "FLUSHALL")
        for process in (one, other):
            await process.place.decision_service.overrides.sync_shared()
        await one.place.decision_service.overrides.sync_shared()
        return len(one.place.decision_service.overrides.grant_file.grants)

    with running_redis(tmp_path) as redis:
        assert in_two(tmp_path, scenario, redis) == 1


def test_an_operator_is_told_when_the_others_cannot_be_reached(tmp_path: Path) -> None:
    async def scenario(one: Process, _other: Process) -> str:
        await one.ask()
        await asyncio.to_thread(redis.kill)
        with pytest.raises(ActionError) as refused:
            await one.acts.add_grant("user:ada", resource="core", amount=5, for_ms=60_000, by="eve", reason="")
        return str(refused.value)

    with running_redis(tmp_path) as redis:
        assert in_two(tmp_path, scenario, redis).startswith("the store is away")
