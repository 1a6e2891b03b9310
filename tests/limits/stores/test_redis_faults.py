"""The guarantees of the limiter while Redis is killed, frozen, full, evicting, flushed, failed over or clustered."""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.limits.builders import HOUR_MS, a_user, anonymous
from tests.limits.stores.redis_server import RedisServer, running_redis
from tests.ports import free_ports
from tests.waiting import wait_on_loop_until, wait_until
from wharf.limits.core.callers.caller import Caller
from wharf.limits.core.decision import LimitDecision, Verdict
from wharf.limits.core.limiter import Limiter
from wharf.limits.core.request import RequestFacts
from wharf.limits.core.rule import RuleSet
from wharf.limits.rules import read_rules
from wharf.limits.stores import StoreFull, StoreUnavailable, UnsuitableStore
from wharf.limits.stores.guard import GuardedStore, GuardSettings
from wharf.limits.stores.loop_pauses import LoopPauses
from wharf.limits.stores.redis import RedisKind, RedisSettings, RedisStore
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("redis-server")

T = TypeVar("T")
WAIT_MS = 100
"""The timeout in tests about a store without replies."""
PATIENT_MS = 60_000
"""The timeout in all other tests: a slow store on a busy machine must not count as unavailable."""
MAX_ATTEMPTS = 4
"""If other programs delay the event loop at a timeout, the guard waits for replies that were not read. The best attempt counts."""
LOOP_PASSES = 10
"""Passes of the event loop after which every task that does not wait has ended."""
POLICIES = {
    policy: f'[[rule]]\nname = "core"\nceiling = 40\non_store_loss = "{policy}"\n'
    for policy in ("open", "closed", "local")
}


class GuardedLimiter:
    """A limiter with a guarded store on a real Redis."""

    def __init__(self, rules: RuleSet, redis: RedisSettings, *, wait_ms: int) -> None:
        world = RealWorld()
        self.store = RedisStore(world, rules, redis)
        guard = GuardSettings(wait_ms=wait_ms, probe_every_ms=50, fallback_processes=4)
        self.guard = GuardedStore(self.store, rules, guard, world)
        self.core_limiter = Limiter(rules)
        self._world = world

    async def send(self, caller: Caller, path: str = "/meta", *, holds: bool = False) -> LimitDecision:
        call = self.core_limiter.build_call(
            RequestFacts(self._world.new_id(), "GET", path, caller), self.guard.now_ms()
        )
        outcome = await self.guard.take(call)
        if not holds:
            await self.guard.release(call.id)
        return self.core_limiter.decide(call, outcome)

    async def wait_until_available(self) -> None:
        await wait_on_loop_until(lambda: not self.guard.counts.is_away, what="the store is back")

    async def wait_until_unavailable(self, caller: Caller) -> None:
        while not self.guard.counts.is_away:
            await self.send(caller)


def run_scenario(
    scenario: Callable[[GuardedLimiter], Awaitable[T]],
    rules: str,
    *addresses: str,
    kind: RedisKind = RedisKind.SINGLE,
    wait_ms: int = PATIENT_MS,
) -> T:
    async def run() -> T:
        settings = RedisSettings(addresses=addresses, kind=kind, socket_timeout_ms=500)
        limiter = GuardedLimiter(read_rules(rules), settings, wait_ms=wait_ms)
        await limiter.store.open()
        await limiter.guard.open()
        try:
            return await scenario(limiter)
        finally:
            await limiter.guard.close()
            await limiter.store.close()

    return asyncio.run(run())


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as path:
        yield Path(path)


@pytest.fixture
def server(folder: Path) -> Iterator[RedisServer]:
    with running_redis(folder) as started:
        yield started


def test_3_2_with_a_killed_redis_each_rule_decides_without_waiting(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> list[bool]:
        for _ in range(3):
            await limiter.send(a_user())
        server.kill()
        return [(await limiter.send(a_user())).is_admitted for _ in range(60)]

    admitted = {}
    for policy, rules in POLICIES.items():
        admitted[policy] = sum(run_scenario(scenario, rules, server.address))
        server.start()
    assert admitted == {"open": 60, "closed": 0, "local": 10}


def test_3_3_local_fallback_admits_no_more_than_was_last_known_to_remain(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> int:
        for _ in range(37):
            await limiter.send(a_user())
        server.kill()
        return sum([(await limiter.send(a_user())).is_admitted for _ in range(20)])

    assert run_scenario(scenario, POLICIES["local"], server.address) == 3


async def wait_without_pauses(sent: Sequence[asyncio.Future[LimitDecision]], *, limit_s: float) -> None:
    """Wait for requests, at most for this time, in which pauses of the event loop do not count: a busy machine causes them."""
    loop, pauses = asyncio.get_running_loop(), LoopPauses()
    began_s = loop.time()
    pauses.begin_wait()
    while not all(future.done() for future in sent):
        passed_s = loop.time() - began_s
        if passed_s - pauses.get_paused_s(passed_s) >= limit_s:
            break
        await asyncio.wait(sent, timeout=limit_s / 20)
    pauses.end_wait()


def test_with_a_frozen_redis_no_request_waits_longer_than_the_timeout(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> tuple[bool, bool, int]:
        await limiter.send(a_user())
        server.pause()
        try:
            sent = [asyncio.ensure_future(limiter.send(a_user())) for _ in range(30)]
            await wait_without_pauses(sent, limit_s=WAIT_MS * 1.2 / 1_000)
            have_ended_in_time = await have_all_ended(sent)
            is_immediate = await have_all_ended(
                [asyncio.ensure_future(limiter.send(a_user()))]
            )  # The breaker is open: no request calls Redis.
        finally:
            server.resume()
        await limiter.wait_until_available()
        return have_ended_in_time, is_immediate, limiter.guard.counts.outages

    attempts = (run_scenario(scenario, POLICIES["open"], server.address, wait_ms=WAIT_MS) for _ in range(MAX_ATTEMPTS))
    assert (True, True, 1) in attempts


def test_no_more_batches_than_allowed_are_on_the_way_to_a_frozen_redis(server: RedisServer) -> None:
    async def run() -> int:
        rules = read_rules(POLICIES["open"])
        settings = RedisSettings(
            addresses=(server.address,), socket_timeout_ms=PATIENT_MS, max_parallel_batches=3, max_batch_size=1
        )
        store = RedisStore(RealWorld(), rules, settings)
        await store.open()
        sent_before = store.batches.sent_batches
        server.pause()
        requests = [RequestFacts(f"r{number}", "GET", "/meta", a_user()) for number in range(20)]
        calls = [asyncio.ensure_future(store.take(Limiter(rules).build_call(each, 1_000))) for each in requests]
        try:
            for _ in range(LOOP_PASSES):
                await asyncio.sleep(0)
            return store.batches.sent_batches - sent_before
        finally:
            server.resume()
            await asyncio.gather(*calls)
            await store.close()

    assert asyncio.run(run()) == 3


def test_a_release_shares_the_batch_of_the_next_request(server: RedisServer) -> None:
    async def run() -> int:
        rules = read_rules(POLICIES["open"])
        store = RedisStore(RealWorld(), rules, RedisSettings(addresses=(server.address,)))
        await store.open()
        first, second = (
            Limiter(rules).build_call(RequestFacts(name, "GET", "/meta", a_user()), 1_000)
            for name in ("shared1", "shared2")
        )
        await store.take(first)
        sent_before = store.batches.sent_batches
        releases = store.start_release(first.id)
        await store.take(second)
        await asyncio.gather(*releases)
        sent = store.batches.sent_batches - sent_before
        await store.close()
        return sent if releases else 0

    assert asyncio.run(run()) == 1


class DelayingProxy:
    """A proxy in front of Redis, whose replies arrive `delay_s` later."""

    def __init__(self, port: int, delay_s: float) -> None:
        self._port = port
        self._delay_s = delay_s
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        redis_reader, redis_writer = await asyncio.open_connection("127.0.0.1", self._port)
        loop = asyncio.get_running_loop()

        async def pass_replies() -> None:
            while data := await redis_reader.read(1 << 16):
                loop.call_later(self._delay_s, writer.write, data)

        passing = asyncio.ensure_future(pass_replies())
        try:
            while data := await reader.read(1 << 16):
                redis_writer.write(data)
        finally:
            passing.cancel()
            redis_writer.close()
            writer.close()

    def close(self) -> None:
        assert self._server is not None
        self._server.close()


def test_a_burst_that_waits_for_its_batches_is_no_outage(server: RedisServer) -> None:
    async def run() -> list[Any]:
        proxy = DelayingProxy(int(server.address.rpartition(":")[2]), delay_s=0.25)
        address = await proxy.open()
        limiter = GuardedLimiter(read_rules('[[rule]]\nname = "core"\nceiling = 500\n'),
                                 RedisSettings(addresses=(address,), socket_timeout_ms=60_000), wait_ms=400)  # fmt: skip
        await limiter.store.open()
        try:
            # Open both connections, without a timeout.
            facts = [RequestFacts(f"r{number}", "GET", "/x", a_user("bob")) for number in range(97)]
            await asyncio.gather(*(limiter.store.take(limiter.core_limiter.build_call(each, 1_000)) for each in facts))
            # More than two batches: the last requests wait 250 ms in the queue, and 250 ms for their reply.
            decisions = await asyncio.gather(*(limiter.send(a_user(), holds=True) for _ in range(120)))
            counts = limiter.guard.counts
            admitted = sum(decision.is_admitted for decision in decisions)
            return [admitted, counts.lost_calls, counts.local_decisions, counts.is_away]
        finally:
            await limiter.guard.close()
            await limiter.store.close()
            proxy.close()

    assert asyncio.run(run()) == [100, 0, 0, False]


async def have_all_ended(sent: Sequence[asyncio.Future[LimitDecision]]) -> bool:
    for _ in range(LOOP_PASSES):
        await asyncio.sleep(0)
    return all(future.done() for future in sent)


def test_3_2_requests_refused_while_redis_was_frozen_are_not_charged_afterwards(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> int:
        await limiter.send(a_user())
        server.pause()
        try:
            refusal = await asyncio.gather(*[limiter.send(a_user()) for _ in range(10)])
        finally:
            server.resume()
        assert not any(decision.is_admitted for decision in refusal)
        await limiter.wait_until_available()
        await limiter.guard.close()
        last = await limiter.send(a_user())
        return last.used

    assert run_scenario(scenario, POLICIES["closed"], server.address, wait_ms=WAIT_MS) == 2


def test_an_outage_logs_one_line_at_its_start_and_one_at_its_end(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(limiter: GuardedLimiter) -> None:
        server.kill()
        for _ in range(50):
            await limiter.send(a_user())
        server.start()
        await limiter.wait_until_available()

    with caplog.at_level(logging.INFO, logger="wharf.limits"):
        run_scenario(scenario, POLICIES["open"], server.address, wait_ms=WAIT_MS)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("wharf.limits")]
    phrases = [message.partition(" local_decisions=")[0].partition(" wait_ms=") for message in messages]
    assert [(phrase, value) for phrase, _, value in phrases] == [
        ("limiter store unavailable: requests are decided by the on_store_loss of each rule", "100"),
        ("limiter store available again", ""),
    ]


def test_3_3_a_restarted_redis_is_reported_as_a_loss_of_counters(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> tuple[int, bool]:
        await limiter.send(a_user())
        server.kill()
        await limiter.wait_until_unavailable(a_user())
        server.start()
        await limiter.wait_until_available()
        return limiter.store.link.restarts, (await limiter.send(a_user())).is_admitted

    assert run_scenario(scenario, POLICIES["open"], server.address) == (1, True)


def test_flushed_scripts_are_loaded_again(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> list[int]:
        used = [(await limiter.send(a_user())).used]
        server.ask("SCRIPT", "FLUSH")
        return [*used, (await limiter.send(a_user())).used]

    assert run_scenario(scenario, "", server.address) == [1, 2]


def test_3_3_a_redis_that_evicts_keys_is_rejected_at_the_start(folder: Path) -> None:
    async def scenario(_: GuardedLimiter) -> None:
        return None

    with (
        running_redis(folder, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as evicting,
        pytest.raises(UnsuitableStore, match="maxmemory-policy allkeys-lru, which deletes counters"),
    ):
        run_scenario(scenario, "", evicting.address)


def test_3_3_with_full_memory_slots_are_released_and_nothing_is_charged(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> tuple[int, int]:
        store, core = limiter.store, limiter.core_limiter
        held = core.build_call(RequestFacts("held", "GET", "/meta", a_user()), limiter.guard.now_ms())
        await store.take(held)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        more = core.build_call(RequestFacts("more", "GET", "/meta", a_user()), limiter.guard.now_ms())
        with pytest.raises(StoreFull):
            await store.take(more)
        await store.release("held")
        server.ask("CONFIG", "SET", "maxmemory", "0")
        names = [charge.name for charge in held.charges]
        readings = await store.peek(held.charges)
        return readings[names.index("concurrent")].used, readings[names.index("core")].used

    assert run_scenario(scenario, "", server.address) == (0, 1)


def test_a_cancelled_request_is_not_charged_and_affects_no_other_request(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> list[int]:
        async def send_and_cancel() -> None:
            task = asyncio.ensure_future(limiter.send(a_user("bob")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        used = []
        for _ in range(50):
            cancelled = asyncio.ensure_future(send_and_cancel())
            used.append((await limiter.send(a_user("eve"))).used)
            await cancelled
        await limiter.guard.close()
        return [*used, (await limiter.send(a_user("bob"))).used]

    assert run_scenario(scenario, "", server.address) == [*range(1, 51), 1]


def test_closing_waits_until_the_charge_of_a_cancelled_request_is_undone(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> int:
        task = asyncio.ensure_future(limiter.send(a_user("bob")))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await limiter.guard.close()
        return (await limiter.send(a_user("bob"))).used

    assert run_scenario(scenario, "", server.address) == 1


def test_counters_expire_in_redis_after_their_window(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> None:
        await limiter.send(a_user())
        await limiter.send(anonymous())

    run_scenario(scenario, "", server.address)
    keys = [line for line in server.ask("KEYS", "wharf:*").split("\r\n") if line.startswith("wharf:limits:{user:ada}")]
    ttls_ms = {key: int(server.ask("PTTL", key).strip()[1:]) for key in keys}
    assert keys
    assert all(ttl_ms > 0 for ttl_ms in ttls_ms.values()), ttls_ms
    assert HOUR_MS - 10_000 < ttls_ms["wharf:limits:{user:ada}"] <= HOUR_MS + 60_000


def test_two_processes_with_different_rules_on_one_redis_are_detected(server: RedisServer) -> None:
    async def scenario(limiter: GuardedLimiter) -> int:
        other_store = RedisStore(RealWorld(), read_rules(POLICIES["open"]), RedisSettings(addresses=(server.address,)))
        await other_store.open()
        await other_store.close()
        await limiter.store.check()
        return limiter.store.rule_hashes

    assert run_scenario(scenario, "", server.address) == 2


def test_an_address_without_a_listener_is_reported() -> None:
    async def scenario(_: GuardedLimiter) -> None:
        return None

    with pytest.raises(StoreUnavailable, match="Redis does not reply"):
        run_scenario(scenario, "", f"127.0.0.1:{free_ports(1)[0]}")


def test_3_1_decisions_continue_on_the_new_master_of_sentinel(folder: Path) -> None:
    first, second, third = free_ports(3)
    master = RedisServer(folder, first)
    replica = RedisServer(folder, second, "--replicaof", "127.0.0.1", str(first))
    rules = "\n".join(
        [
            f"sentinel monitor wharf 127.0.0.1 {first} 1",
            "sentinel down-after-milliseconds wharf 500",
            "sentinel failover-timeout wharf 2000",
        ]
    )
    sentinel = RedisServer(folder, third, is_sentinel=True, text=rules + "\n")

    async def scenario(limiter: GuardedLimiter) -> tuple[bool, int, bool]:
        await limiter.send(a_user())
        master.kill()
        await limiter.wait_until_unavailable(a_user())
        await limiter.wait_until_available()
        after = await limiter.send(a_user())
        return after.is_admitted, limiter.store.link.restarts, replica.ask("ROLE").startswith("*3\r\n$6\r\nmaster")

    try:
        for server in (master, replica, sentinel):
            server.start()
        wait_until(lambda: "slaves=1" in sentinel.ask("INFO", "sentinel"), what="the sentinel has found the replica")
        outcome = run_scenario(scenario, POLICIES["open"], sentinel.address, kind=RedisKind.SENTINEL)
        assert outcome == (True, 1, True)
    finally:
        for server in (sentinel, replica, master):
            server.kill()


def test_3_1_on_a_cluster_a_refusal_by_a_later_node_undoes_earlier_charges(folder: Path) -> None:
    servers = [RedisServer(folder, port, "--cluster-enabled", "yes") for port in free_ports(3)]
    rules = '[[rule]]\nname = "by_address"\nscope = ["address"]\ncounts = "points"\nceiling = 5\nwindow = "1m"\n'

    async def scenario(limiter: GuardedLimiter) -> tuple[list[Verdict], int, int]:
        # All requests come from one address; each user has its own bucket.
        verdicts = [(await limiter.send(a_user(f"u{number}"))).verdict for number in range(7)]
        refusal = await limiter.send(a_user("u6"))
        names = [charge.name for charge in refusal.charges]
        readings = await limiter.store.peek(refusal.charges)
        return verdicts, readings[names.index("core")].used, readings[names.index("by_address")].used

    try:
        for server in servers:
            server.start()
        form_cluster(servers)
        outcome = run_scenario(scenario, rules, *[server.address for server in servers], kind=RedisKind.CLUSTER)
        assert outcome == ([Verdict.ADMITTED] * 5 + [Verdict.SECONDARY] * 2, 0, 5)
    finally:
        for server in servers:
            server.kill()


def form_cluster(servers: list[RedisServer]) -> None:
    share = 16_384 // len(servers) + 1
    for index, server in enumerate(servers):
        last = min((index + 1) * share, 16_384) - 1
        server.ask("CLUSTER", "ADDSLOTSRANGE", str(index * share), str(last))
        server.ask("CLUSTER", "MEET", "127.0.0.1", str(servers[0].port))
    for server in servers:
        wait_until(partial(is_complete, server), what="the cluster is complete")


def is_complete(server: RedisServer) -> bool:
    return "cluster_state:ok" in server.ask("CLUSTER", "INFO")
