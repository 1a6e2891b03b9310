"""Commands of operators with several processes on one store: actions apply to all, queries add up their results."""

import asyncio
from collections.abc import Awaitable, Callable
from ipaddress import IPv4Address
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
from wharf.limits.admin.errors import ActionError
from wharf.limits.admin.server import AdminServer
from wharf.limits.core.callers.recognition import make_opaque_caller
from wharf.limits.core.request import RequestFacts
from wharf.limits.decisions.shared_records import MAX_PENDING_DECISIONS
from wharf.limits.stores.port import StoreUnavailable
from wharf.limits.stores.redis import RedisRecords, RedisStore

T = TypeVar("T")
ADA_HEADER = f"Authorization: token {ADA}"
TWO_AN_HOUR = '[[rule]]\nname = "core"\nceiling = 2\n'
pytestmark = pytest.mark.needs_program("redis-server")


class Process:
    """A gateway with its admin endpoint."""

    def __init__(self, running: RunningGateway, admin: AdminServer) -> None:
        self.running = running
        self.actions = admin.actions
        self.queries = admin.queries

    async def send(self) -> int:
        """Send a request as ada. Return the status of the reply."""
        return (await self.running.request("/orgs/acme", ADA_HEADER)).status


def run_with_two(folder: Path, scenario: Callable[[Process, Process], Awaitable[T]], redis: RedisServer) -> T:
    """Run a scenario with two gateways on one Redis. The sockets of both are in `folder`."""
    store = f'[store]\nkind = "redis"\naddresses = ["{redis.address}"]\nwait_ms = 2000\n'

    async def run_both() -> T:
        for name in ("a", "b"):
            (folder / name).mkdir()
        async with (
            run_gateway(folder / "a", rules=TWO_AN_HOUR, more=f'admin_socket = "../limits-a.sock"\n{store}') as first,
            run_gateway(folder / "b", rules=TWO_AN_HOUR, more=f'admin_socket = "../limits-b.sock"\n{store}') as second,
        ):
            admins = [
                AdminServer(running.gateway.limits, running.decision_service.world, running.gateway)
                for running in (first, second)
            ]
            for admin in admins:
                await admin.open()
            try:
                return await scenario(Process(first, admins[0]), Process(second, admins[1]))
            finally:
                for admin in admins:
                    await admin.close()

    return run_async(run_both)


async def run_command(path: Path, *words: str) -> str:
    result = await asyncio.to_thread(CliRunner().invoke, root, ["limits", *words, "--admin-address", str(path)])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_grant_and_its_revocation_reach_the_other_process(tmp_path: Path) -> None:
    async def scenario(first: Process, second: Process) -> list[int]:
        before = [await first.send(), await first.send(), await second.send()]
        await first.actions.add_grant("user:ada", resource="core", amount=5, for_ms=60_000, by="eve", reason="a test")
        await wait_on_loop_until(
            lambda: len(second.running.decision_service.overrides.grant_file.entries) == 1,
            what="the second process has the grant",
        )
        granted = await second.send()
        await second.actions.revoke_grants("user:ada", resource=None, by="eve", reason="over")
        await wait_on_loop_until(
            lambda: first.running.decision_service.overrides.grant_file.entries == [],
            what="the grant has ended in the first process",
        )
        return [*before, granted, await first.send()]

    with running_redis(tmp_path) as redis:
        assert run_with_two(tmp_path, scenario, redis) == [200, 200, 403, 200, 403]


def test_limits_are_switched_off_and_on_in_all_processes(tmp_path: Path) -> None:
    async def scenario(first: Process, second: Process) -> list[int]:
        statuses = [await first.send(), await first.send(), await first.send()]
        await first.actions.set_off(for_ms=60_000, by="eve", reason="")
        await wait_on_loop_until(
            lambda: second.running.decision_service.overrides.is_off, what="limits are off in the second process"
        )
        statuses.append(await second.send())
        await second.actions.set_off(for_ms=0, by="eve", reason="")
        await wait_on_loop_until(
            lambda: not first.running.decision_service.overrides.is_off, what="limits are on in the first process"
        )
        return [*statuses, await first.send()]

    with running_redis(tmp_path) as redis:
        assert run_with_two(tmp_path, scenario, redis) == [200, 200, 403, 200, 403]


def test_every_process_shows_a_ban_on_redis(tmp_path: Path) -> None:
    async def scenario(first: Process, second: Process) -> tuple[object, object, object]:
        await first.send()
        await second.send()
        subject = (await first.queries.describe_caller("user:ada"))["ban_subject"]
        before = (await second.queries.describe_caller("user:ada"))["banned_for_s"]
        await first.actions.set_ban(subject, for_ms=600_000, by="eve", reason="")
        during = (await second.queries.describe_caller("user:ada"))["banned_for_s"]
        await second.actions.set_ban(subject, for_ms=0, by="eve", reason="")
        return (
            before,
            during is not None and 590 <= during <= 600,
            (await first.queries.describe_caller("user:ada"))["banned_for_s"],
        )

    with running_redis(tmp_path) as redis:
        assert run_with_two(tmp_path, scenario, redis) == (None, True, None)


def test_top_adds_up_the_requests_of_all_processes_of_the_machine(tmp_path: Path) -> None:
    async def scenario(first: Process, second: Process) -> tuple[list[dict[str, object]], str]:
        for process in (first, second, second):
            await process.send()
        top = msgspec.json.decode(await run_command(tmp_path, "top", "--json"), type=list[dict[str, object]])
        request_id = next(iter(second.running.decision_service.decision_log.list_recent())).id
        return top, await run_command(tmp_path, "why", request_id)

    with running_redis(tmp_path) as redis:
        top, explanation = run_with_two(tmp_path, scenario, redis)

    assert top == [{"caller": "user:ada", "requests": 3, "refused": 1, "would_refuse": 0, "busiest": "GET /orgs/acme"}]
    assert "refused (primary) by core" in explanation


def test_any_process_shows_the_decisions_and_activity_of_the_others(tmp_path: Path) -> None:
    """The processes may be on different machines: they share only Redis."""

    async def scenario(first: Process, second: Process) -> tuple[str, object, object]:
        for _ in range(3):
            await second.send()
        await first.send()
        service = second.running.decision_service
        service.activity.add_admissions_to_rows(service.now_ms())
        await service.decision_log.write(service.now_ms())
        await service.shared_records.write(service.now_ms(), is_last=True)
        refused_id = next(iter(service.decision_log.list_recent())).id
        since = "2020-01-01T00:00:00Z"
        activity = await run_command(tmp_path / "limits-a.sock", "activity", "acme", "--since", since)
        top = await run_command(tmp_path / "limits-a.sock", "top", "--json")
        explanation = await run_command(tmp_path / "limits-a.sock", "why", refused_id)
        return explanation, msgspec.json.decode(top), msgspec.json.decode(activity)["total_request_count"]

    with running_redis(tmp_path) as redis:
        explanation, top, activity = run_with_two(tmp_path, scenario, redis)

    assert "GET /orgs/acme of user:ada (personal_token, 127.0.0.1)\nrefused (primary) by core" in explanation
    assert top == [{"caller": "user:ada", "requests": 4, "refused": 2, "would_refuse": 0, "busiest": "GET /orgs/acme"}]
    assert activity == 4


def test_shared_records_are_bounded_and_a_lost_store_delays_no_request(tmp_path: Path) -> None:
    """The caller had used up its limit when the store last replied, and stays refused."""

    async def scenario(first: Process, _second: Process) -> tuple[bool, int, int, int]:
        for _ in range(3):
            await first.send()
        shared_records, now_ms = first.running.decision_service.shared_records, first.running.decision_service.now_ms()
        assert isinstance(shared_records.record_store, RedisRecords)
        remote = first.running.gateway.limits.stores.remote
        assert remote is not None
        assert isinstance(remote.store, RedisStore)
        record_store = RedisRecords(remote.store.link, "few:", max_decisions=100, retention_ms=60_000)
        shared_records.record_store = record_store
        for number in range(1_000):
            shared_records.record_decision(f"A:{number:04X}:{now_ms // 1_000:X}", b"{}")
        await shared_records.write(now_ms)
        stored = int((await asyncio.to_thread(redis.ask, "XLEN", "few:{decisions}")).strip(":\r\n"))
        age_ms = int((await asyncio.to_thread(redis.ask, "PTTL", "few:{decisions}")).strip(":\r\n"))
        await asyncio.to_thread(redis.kill)
        for number in range(MAX_PENDING_DECISIONS + 5):
            shared_records.record_decision(f"B:{number:04X}:{now_ms // 1_000:X}", b"{}")
        with pytest.raises(StoreUnavailable):
            await shared_records.write(now_ms)
        return 100 <= stored < 300, age_ms, shared_records.dropped_decisions, await first.send()

    with running_redis(tmp_path) as redis:
        is_bounded, age_ms, dropped, status = run_with_two(tmp_path, scenario, redis)

    assert (is_bounded, 0 < age_ms <= 60_000, dropped, status) == (True, True, 5, 403)


def test_reload_and_metrics_apply_to_all_processes(tmp_path: Path) -> None:
    async def scenario(first: Process, second: Process) -> tuple[str, list[int], list[str]]:
        for name in ("a", "b"):
            (tmp_path / name / "rules.toml").write_text(TWO_AN_HOUR.replace("2", "3"))
        output = await run_command(tmp_path, "reload")
        statuses = [await second.send(), await first.send(), await second.send(), await second.send()]
        metrics = await run_command(tmp_path, "metrics")
        return output, statuses, [line for line in metrics.splitlines() if 'verdict="admitted"' in line]

    with running_redis(tmp_path) as redis:
        output, statuses, admitted = run_with_two(tmp_path, scenario, redis)

    assert output.count("rules in force") == 1  # Both have the same rules.
    assert statuses == [200, 200, 200, 403]
    assert admitted == [
        'wharf_limits_decisions_total{verdict="admitted",process="limits-a"} 1',
        'wharf_limits_decisions_total{verdict="admitted",process="limits-b"} 2',
    ]


def test_3_3_rules_prints_what_all_processes_admit_together_during_an_outage(tmp_path: Path) -> None:
    async def scenario(_first: Process, _second: Process) -> str:
        return await run_command(tmp_path, "rules")

    with running_redis(tmp_path) as redis:
        output = run_with_two(tmp_path, scenario, redis)

    assert "During a store outage, 8 processes together admit at most: " in output
    assert " core 8, " in output  # Each admits 1 of 2.


def test_explain_and_show_say_that_the_store_is_away_and_which_share_applies(tmp_path: Path) -> None:
    async def scenario(first: Process, _second: Process) -> tuple[str, str, str]:
        socket = tmp_path / "limits-a.sock"
        before = await run_command(socket, "show", "ada")
        await asyncio.to_thread(redis.kill)
        remote = first.running.gateway.limits.stores.remote
        assert remote is not None
        for _ in range(4):  # Three requests without a reply are an outage.
            await first.send()
        assert remote.guard.counts.is_away
        request_id = next(iter(first.running.decision_service.decision_log.list_recent())).id
        return before, await run_command(socket, "show", "ada"), await run_command(socket, "explain", request_id)

    with running_redis(tmp_path) as redis:
        before, shown, explained = run_with_two(tmp_path, scenario, redis)

    share = "without the store of counters, which does not reply: this process admits up to 1/8 of each limit "
    assert (share in before, f"counted {share}" in shown, f"decided {share}" in explained) == (False, True, True)


def test_grants_survive_a_redis_that_loses_its_data(tmp_path: Path) -> None:
    async def scenario(first: Process, second: Process) -> int:
        await first.send()
        await first.actions.add_grant("user:ada", resource="core", amount=5, for_ms=60_000, by="eve", reason="")
        await wait_on_loop_until(
            lambda: len(second.running.decision_service.overrides.grant_file.entries) == 1,
            what="the second process has the grant",
        )
        await asyncio.to_thread(redis.ask, "FLUSHALL")
        for process in (first, second):
            await process.running.decision_service.overrides.sync_shared()
        await first.running.decision_service.overrides.sync_shared()
        return len(first.running.decision_service.overrides.grant_file.entries)

    with running_redis(tmp_path) as redis:
        assert run_with_two(tmp_path, scenario, redis) == 1


def test_an_action_that_cannot_reach_the_other_processes_fails(tmp_path: Path) -> None:
    async def scenario(first: Process, _second: Process) -> str:
        await first.send()
        await asyncio.to_thread(redis.kill)
        with pytest.raises(ActionError) as caught:
            await first.actions.add_grant("user:ada", resource="core", amount=5, for_ms=60_000, by="eve", reason="")
        return str(caught.value)

    with running_redis(tmp_path) as redis:
        assert run_with_two(tmp_path, scenario, redis).startswith("the store is unavailable")


def test_a_credential_that_only_another_process_has_seen_is_found_by_its_short_name(tmp_path: Path) -> None:
    async def scenario(_first: Process, second: Process) -> tuple[str, str, str, str]:
        service = second.running.decision_service
        owner = f"credential:0a1b2c3d{'0' * 24}"
        caller = make_opaque_caller(owner.removeprefix("credential:"), IPv4Address("192.0.2.7"))
        admitted = await second.running.decision_service.evaluator.evaluate(RequestFacts("a:b:c", "GET", "/x", caller))
        service.activity.record_admission(admitted, caller)
        service.activity.add_admissions_to_rows(service.now_ms())
        await service.shared_records.write(service.now_ms(), is_last=True)
        short = "credential 0a1b2c3d"
        shown = await run_command(tmp_path / "limits-a.sock", "show", short)
        granted = await run_command(tmp_path / "limits-a.sock", "grant", short, "--amount", "5", "--duration", "1h")
        banned = await run_command(tmp_path / "limits-a.sock", "ban", short)
        return shown, granted, banned, owner

    with running_redis(tmp_path) as redis:
        shown, granted, banned, owner = run_with_two(tmp_path, scenario, redis)

    assert (owner in shown, owner in granted) == (True, True)
    assert banned.startswith("banned token:")


def test_an_unknown_caller_is_searched_in_all_processes_of_a_folder(tmp_path: Path) -> None:
    async def scenario(_first: Process, _second: Process) -> str:
        words = ["limits", "reset", "user:nobody", "--admin-address", str(tmp_path)]
        return str((await asyncio.to_thread(CliRunner().invoke, root, words)).output)

    with running_redis(tmp_path) as redis:
        shown = run_with_two(tmp_path, scenario, redis)

    assert f"All 2 processes of {tmp_path} were asked." in shown
