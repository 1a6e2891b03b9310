"""The store on a real Redis, on one server and on a cluster: charges, refunds, slots, and what operators change."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest
from msgspec.structs import replace

from tests.limits.builders import HOUR_MS, MINUTE_MS, NOON_MS, a_user
from tests.limits.stores.contract import Clock
from tests.limits.stores.redis_server import RedisServer, running_redis
from tests.ports import free_ports
from tests.waiting import wait_until
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.store_calls import StoreCall
from wharf.limits.rules import read_rules
from wharf.limits.stores.port import RefundReason, StoreUnavailable, UnsuitableStore
from wharf.limits.stores.redis import RedisKind, RedisSettings, RedisStore
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("redis-server")

T = TypeVar("T")
TEXT = """
profile = "none"
[ban]
refusals_least = 2
minutes = 1
[[rule]]
name = "core"
resource = "core"
ceiling = 20
[[rule]]
name = "by_address"
scope = ["address"]
counts = "points"
window = "1m"
ceiling = 4
[[rule]]
name = "slots"
counts = "connections"
ceiling = 9
[[rule]]
name = "slots_by_address"
scope = ["address"]
counts = "connections"
ceiling = 9
[[endpoint]]
match = ["GET /free"]
free = true
"""
RULES = read_rules(TEXT)
ADDRESS = "address:192.0.2.7"


class Place(NamedTuple):
    """A running Redis: one server, or a cluster of one node."""

    server: RedisServer
    kind: RedisKind


@pytest.fixture(scope="module", params=[RedisKind.SINGLE, RedisKind.CLUSTER], ids=["single", "cluster"])
def started(request: pytest.FixtureRequest) -> Iterator[Place]:
    is_cluster = request.param is RedisKind.CLUSTER
    options = ["--cluster-enabled", "yes"] if is_cluster else []
    with tempfile.TemporaryDirectory() as folder, running_redis(Path(folder), *options) as server:
        if is_cluster:
            server.ask("CLUSTER", "ADDSLOTSRANGE", "0", "16383")
            wait_until(lambda: "cluster_state:ok" in server.ask("CLUSTER", "INFO"), what="the cluster is complete")
        yield Place(server, request.param)


@pytest.fixture
def place(started: Place) -> Place:
    """Return the Redis without any keys."""
    started.server.ask("FLUSHALL")
    return started


class Process:
    """A process with a store on Redis, and a clock that the test moves."""

    def __init__(self, place: Place, text: str = TEXT) -> None:
        rules = read_rules(text)
        settings = RedisSettings(addresses=(place.server.address,), kind=place.kind, prefix="p:")
        self.clock = Clock()
        self.store = RedisStore(RealWorld(), rules, settings, clock=self.clock)
        self.limiter = Limiter(rules)
        self._number = 0

    def call(self, request_id: str = "", path: str = "/x", caller: Caller | None = None) -> StoreCall:
        self._number += 1
        facts = RequestFacts(request_id or f"r{self._number}", "GET", path, caller or a_user())
        return self.limiter.build_call(facts, self.clock.now_ms)

    async def used(self, *rules: str) -> list[int]:
        """Return how much of these rules' limits Ada and her address have used."""
        charges = [charge for name in rules for charge in self.call().charges if charge.name == name]
        return [reading.used for reading in await self.store.peek(charges)]


def run(place: Place, scenario: Callable[[Process], Awaitable[T]], text: str = TEXT) -> T:
    async def wait() -> T:
        process = Process(place, text)
        assert await process.store.open()
        try:
            return await scenario(process)
        finally:
            await process.store.close()

    return asyncio.run(wait())


# -- charges -------------------------------------------------------------------------------------------------------


def test_a_repeated_id_gets_the_stored_result_and_charges_nothing(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        results = [await process.store.take(process.call("same")) for _ in range(2)]
        other = Process(place)  # Another process asks Redis.
        await other.store.open()
        results.append(await other.store.take(other.call("same")))
        await other.store.close()
        seen: list[Any] = [(result.is_admitted, result.is_repeated, result.bucket_count_before) for result in results]
        return [*seen, await process.used("core", "by_address", "slots")]

    assert run(place, scenario) == [(True, False, 0), (True, True, 0), (True, True, 0), [1, 1, 1]]


def test_a_refusal_by_one_limit_charges_no_other(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        admitted = []
        for number in range(5):
            result = await process.store.take(process.call(caller=a_user(f"u{number}", token=f"t{number}")))
            admitted.append((result.is_admitted, result.hit_indexes))
        charges = process.call(caller=a_user("u4")).charges
        return [*admitted, [reading.used for reading in await process.store.peek(charges)]]

    assert run(place, scenario) == [(True, ())] * 4 + [(False, (1,))] + [[0, 4, 0, 4]]


def test_a_call_that_was_undone_is_never_charged_again(place: Place) -> None:
    async def scenario(process: Process) -> list[list[int]]:
        call = process.call()
        await process.store.take(call)
        counts = [await process.used("core", "by_address", "slots")]
        for _ in range(2):
            await process.store.undo(call)
            counts.append(await process.used("core", "by_address", "slots"))
        with pytest.raises(StoreUnavailable, match=f"request {call.id} was already undone"):
            await process.store.take(call)
        return [*counts, await process.used("core", "by_address", "slots")]

    assert run(place, scenario) == [[1, 1, 1], [0, 0, 0], [0, 0, 0], [0, 0, 0]]


def test_an_undo_before_its_charge_prevents_the_charge(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        call = process.call()
        await process.store.undo(call)
        with pytest.raises(StoreUnavailable, match="already undone"):
            await process.store.take(call)
        return await process.used("core", "by_address", "slots")

    assert run(place, scenario) == [0, 0, 0]


@pytest.mark.parametrize("is_charged_to", ["core", "by_address"])
def test_a_caller_that_is_refused_again_and_again_is_banned(place: Place, is_charged_to: str) -> None:
    async def scenario(process: Process) -> list[Any]:
        seen: list[Any] = []
        charge = next(charge for charge in process.call().charges if charge.name == is_charged_to)
        await process.store.add_usage([charge], 99)
        for _ in range(200):
            process.clock.now_ms += 1_000
            result = await process.store.take(process.call())
            if result.banned_until_ms:
                break
        end_ms = await process.store.get_ban_end_ms("token:t1")
        seen.append(result.is_admitted)
        return [*seen, end_ms > process.clock.now_ms, result.banned_until_ms == end_ms]

    text = TEXT.replace('window = "1m"', 'window = "1h"')
    assert run(place, scenario, text) == [False, True, True]


def test_a_banned_caller_is_refused_and_charged_nothing_until_the_ban_ends(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        await process.store.ban("token:t1", NOON_MS + MINUTE_MS)
        result = await process.store.take(process.call())
        seen: list[Any] = [(result.is_admitted, result.banned_until_ms - NOON_MS), await process.used("core", "slots")]
        seen.append(await process.store.get_ban_end_ms("token:t1") - NOON_MS)
        seen.append(await process.store.get_ban_end_ms("token:t2"))
        process.clock.now_ms += MINUTE_MS
        result = await process.store.take(process.call())
        return [*seen, (result.is_admitted, result.banned_until_ms)]

    assert run(place, scenario) == [(False, MINUTE_MS), [0, 0], MINUTE_MS, 0, (True, 0)]


# -- the end of requests -------------------------------------------------------------------------------------------


def test_the_slots_of_all_owners_are_released_once(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        call = process.call()
        await process.store.take(call)
        counts = [await process.used("slots", "slots_by_address")]
        futures = [process.store.start_release(call.id), process.store.start_release(call.id)]
        await asyncio.gather(*futures[0])
        await process.store.release("unknown")
        counts.append(await process.used("slots", "slots_by_address", "core"))
        return [*counts, [len(found) for found in futures]]

    assert run(place, scenario) == [[1, 1], [0, 0, 1], [2 if place.kind is RedisKind.CLUSTER else 1, 0]]


def test_a_request_without_slots_needs_no_release(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        call = process.call()
        await process.store.take(call)
        return [process.store.start_release(call.id), await process.store.refund(call.id, RefundReason.GONE)]

    text = 'profile = "none"\n[[rule]]\nname = "core"\nresource = "core"\nceiling = 9\n'
    assert run(place, scenario, text) == [[], True]


def test_expired_slots_are_renewed_and_unknown_ones_are_not(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        call = process.call()
        await process.store.take(call)
        seen: list[Any] = [await process.store.renew([call.id, "unknown"])]
        process.clock.now_ms += HOUR_MS
        seen.append(await process.used("slots", "slots_by_address"))
        seen.append(await process.store.renew([call.id]))
        seen.append(await process.used("slots", "slots_by_address"))
        return seen

    assert run(place, scenario) == [0, [0, 0], 2, [1, 1]]


@pytest.mark.parametrize("reason", [*RefundReason])
def test_a_primary_charge_is_refunded_once(place: Place, reason: RefundReason) -> None:
    async def scenario(process: Process) -> list[Any]:
        call = process.call()
        await process.store.take(call)
        await process.store.release(call.id)
        refunded = [await process.store.refund(call.id, reason) for _ in range(2)]
        return [refunded, await process.used("core", "by_address")]

    assert run(place, scenario) == [[True, False], [0, 1]]


@pytest.mark.parametrize(("reason", "count"), [(RefundReason.FAULT, 2), (RefundReason.GONE, 4)])
def test_refunds_of_faults_are_a_tenth_of_the_ceiling(place: Place, reason: RefundReason, count: int) -> None:
    async def scenario(process: Process) -> int:
        calls = [process.call() for _ in range(4)]
        for call in calls:
            await process.store.take(call)
        return sum([await process.store.refund(call.id, reason) for call in calls])

    assert run(place, scenario) == count


def test_a_refusal_a_free_request_and_an_unknown_one_are_not_refunded(place: Place) -> None:
    async def scenario(process: Process) -> list[bool]:
        free = process.call(path="/free")
        await process.store.take(free)
        for _ in range(4):
            refused = process.call()
            await process.store.take(refused)
        return [await process.store.refund(name, RefundReason.GONE) for name in (free.id, refused.id, "unknown")]

    assert run(place, scenario) == [False, False, False]


def test_a_free_request_reports_its_bucket_and_charges_it_nothing(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        await process.store.take(process.call())
        result = await process.store.take(process.call(path="/free"))
        return [result.bucket_count_before, result.bucket_end_ms - NOON_MS, *await process.used("core")]

    assert run(place, scenario) == [1, HOUR_MS, 1]


@pytest.mark.parametrize(("end_ms", "is_returned"), [(HOUR_MS, True), (HOUR_MS + 1, False)])
def test_quota_is_returned_once_and_only_to_its_own_window(place: Place, end_ms: int, is_returned: bool) -> None:
    async def scenario(process: Process) -> list[Any]:
        charge = process.call().charges[0]
        for _ in range(4):
            await process.store.take(process.call())
        returned = [await process.store.return_quota(charge, 3, NOON_MS + end_ms, "lease") for _ in range(2)]
        return [returned, await process.used("core")]

    assert run(place, scenario) == [[is_returned, False], [1 if is_returned else 4]]


# -- beside requests -----------------------------------------------------------------------------------------------


def test_readings_are_in_the_order_of_the_charges(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        charges = process.call().charges
        await process.store.add_usage(charges[:1], 7)
        await process.store.add_usage(charges[1:2], 2)
        return await process.used("by_address", "core", "by_address", "slots")

    assert run(place, scenario) == [2, 7, 2, 0]


@pytest.mark.parametrize(("amount", "used"), [(0, 0), (1, 1)])
def test_usage_is_added_to_all_charges(place: Place, amount: int, used: int) -> None:
    async def scenario(process: Process) -> list[int]:
        await process.store.add_usage(process.call().charges[:2], amount)
        return await process.used("core", "by_address")

    assert run(place, scenario) == [used, used]


def test_only_the_given_counters_are_reset(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        await process.store.take(process.call())
        await process.store.reset(process.call().charges[:1])
        return await process.used("core", "by_address", "slots")

    assert run(place, scenario) == [0, 1, 1]


def test_overrides_are_read_if_their_version_is_new(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        store = process.store
        seen: list[Any] = [await store.read_overrides(0)]
        for name, value in (("a", b"1"), ("b", b"2")):
            await store.write_override(name, value)
        seen += [await store.read_overrides(0), await store.read_overrides(2)]
        await store.write_override("a", None)
        return [*seen, await store.read_overrides(2)]

    assert run(place, scenario) == [None, (2, {"a": b"1", "b": b"2"}), None, (3, {"b": b"2"})]


def test_changed_rules_apply_to_cached_plans_and_are_counted_as_another_set(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        await process.store.take(process.call())
        counts = [process.store.rule_hashes]
        await process.store.set_rules(read_rules(TEXT.replace("ceiling = 20", "ceiling = 21")))
        await process.store.check()
        return [*counts, process.store.rule_hashes]

    assert run(place, scenario) == [1, 2]


def test_a_closed_store_accepts_no_calls(place: Place) -> None:
    async def scenario(process: Process) -> str:
        await process.store.close()
        with pytest.raises(StoreUnavailable) as caught:
            await process.store.get_ban_end_ms("token:t1")
        return str(caught.value)

    assert run(place, scenario) == "the store is closed"


def test_a_store_without_redis_can_be_opened_for_an_outage_only_if_allowed() -> None:
    async def scenario() -> bool:
        settings = RedisSettings(addresses=(f"127.0.0.1:{free_ports(1)[0]}",), socket_timeout_ms=500)
        store = RedisStore(RealWorld(), RULES, settings)
        with pytest.raises(StoreUnavailable, match="Redis does not reply"):
            await store.open()
        was_reached = await store.open(can_be_unavailable=True)
        await store.close()
        return was_reached

    assert asyncio.run(scenario()) is False


def test_a_grant_raises_the_ceiling_of_its_call_only(place: Place) -> None:
    async def scenario(process: Process) -> list[bool]:
        admitted = []
        for ceiling in (1, 1, 2, 20):
            call = process.call()
            call = replace(call, charges=(replace(call.charges[0], ceiling=ceiling), *call.charges[1:]))
            admitted.append((await process.store.take(call)).is_admitted)
        return admitted

    assert run(place, scenario) == [True, False, True, True]


def test_a_call_that_the_first_limit_refused_stays_refused(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        await process.store.add_usage(process.call().charges[:1], 20)
        call = process.call()
        results = [await process.store.take(call) for _ in range(2)]
        return [*[result.is_admitted for result in results], await process.used("by_address")]

    assert run(place, scenario) == [False, False, [0]]


def test_checks_of_the_same_server_count_no_restart(place: Place) -> None:
    async def scenario(process: Process) -> int:
        for _ in range(2):
            await process.store.check()
        return process.store.link.restarts

    assert run(place, scenario) == 0


def test_closing_waits_for_the_replies_of_running_calls(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        pending = [asyncio.ensure_future(process.store.get_ban_end_ms(f"token:t{number}")) for number in range(3)]
        await asyncio.sleep(0)  # The calls have started.
        await process.store.batches.close()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return [future.result() for future in pending]

    assert run(place, scenario) == [0] * 3


def test_only_the_first_check_examines_the_settings_of_redis(place: Place) -> None:
    async def scenario(process: Process) -> str:
        place.server.ask("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
        try:
            await process.store.check()
            late = RedisStore(RealWorld(), RULES, RedisSettings(addresses=(place.server.address,), kind=place.kind))
            with pytest.raises(UnsuitableStore) as caught:
                await late.open()
        finally:
            place.server.ask("CONFIG", "SET", "maxmemory-policy", "noeviction")
        return str(caught.value)

    assert run(place, scenario).startswith("Redis has maxmemory-policy allkeys-lru, which deletes counters")


def test_rule_sets_that_no_process_uses_any_more_are_not_counted(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        link = process.store.link
        return [
            await link.record_rules("p:hashes", name, at_ms, 1_000)
            for name, at_ms in (("a", 5_000), ("b", 5_001), ("b", 5_999), ("b", 6_000), ("b", 6_001))
        ]

    assert run(place, scenario) == [1, 2, 2, 1, 1]


def test_replicas_are_awaited_if_they_must_confirm_and_only_without_a_cluster(place: Place) -> None:
    async def scenario() -> list[int]:
        shortages = []
        for wait_replicas in (0, 1):
            settings = RedisSettings(addresses=(place.server.address,), kind=place.kind, wait_replicas=wait_replicas)
            store = RedisStore(RealWorld(), RULES, settings)
            await store.open()
            await store.get_ban_end_ms("token:t1")
            shortages.append(store.link.replica_shortages)
            await store.close()
        return shortages

    # No replica exists.
    assert asyncio.run(scenario()) == [0, 0 if place.kind is RedisKind.CLUSTER else 1]


def test_a_primary_charge_under_the_shared_key_is_refunded_to_it(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        calls = [process.call(path=path) for path in ("/one/path", "/other/path/of/it")]
        results = [await process.store.take(call) for call in calls]
        shared = replace(calls[1].charges[0], key=results[1].keys[0])
        charges = [calls[0].charges[0], shared]
        counts = [[reading.used for reading in await process.store.peek(charges)]]
        refunded = await process.store.refund(calls[1].id, RefundReason.GONE)
        counts.append([reading.used for reading in await process.store.peek(charges)])
        return [calls[1].charges[0].key != shared.key, refunded, *counts]

    text = """
profile = "none"
[[rule]]
name = "by_path"
resource = "core"
per_endpoint = true
keys_most = 1
ceiling = 9
[[rule]]
name = "slots"
counts = "connections"
ceiling = 9
"""
    assert run(place, scenario, text) == [True, True, [1, 1], [1, 0]]


def test_with_full_memory_charges_are_still_undone_refunded_returned_and_released(place: Place) -> None:
    async def scenario(process: Process) -> list[Any]:
        undone, refunded = process.call(), process.call()
        for call in (undone, refunded):
            await process.store.take(call)
        await process.store.add_usage(undone.charges[:1], 3)
        place.server.ask("CONFIG", "SET", "maxmemory", "1")
        try:
            await process.store.undo(undone)
            results = [
                await process.store.refund(refunded.id, RefundReason.GONE),
                await process.store.return_quota(refunded.charges[0], 2, NOON_MS + HOUR_MS, "lease"),
            ]
            await process.store.release(refunded.id)
        finally:
            place.server.ask("CONFIG", "SET", "maxmemory", "0")
        return [*results, await process.used("core", "slots", "slots_by_address")]

    assert run(place, scenario) == [True, True, [1, 0, 0]]


# -- operations that can wait --------------------------------------------------------------------------------------


def test_a_release_without_further_requests_is_sent_by_itself(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        call = process.call()
        await process.store.take(call)
        await process.store.release(call.id)
        return await process.used("slots")

    assert run(place, scenario) == [0]


def test_a_release_that_waits_is_sent_when_the_store_is_closed(place: Place) -> None:
    async def scenario(process: Process) -> list[int]:
        call, other = process.call(), Process(place)
        await process.store.take(call)
        releases = process.store.start_release(call.id)
        await process.store.close()
        await asyncio.gather(*releases)
        await other.store.open()
        used = await other.used("slots")
        await other.store.close()
        return used

    assert run(place, scenario) == [0]
