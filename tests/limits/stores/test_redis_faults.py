"""Redis killed, frozen, full, evicting, flushed, failed over or clustered: what the limiter still guarantees."""

import asyncio
import logging
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TypeVar

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
from wharf.limits.stores.redis import RedisKind, RedisSettings, RedisStore
from wharf.world import RealWorld

pytestmark = pytest.mark.needs_program("redis-server")

T = TypeVar("T")
WAIT_MS = 100
"""The timeout in tests about a store without replies."""
PATIENT_MS = 60_000
"""The timeout in all other tests: a slow store on a busy machine must not count as unavailable."""
TURNS = 10
"""Passes of the event loop after which everything that does not wait has ended."""
POLICIES = {
    policy: f'[[rule]]\nname = "core"\nceiling = 40\non_store_loss = "{policy}"\n'
    for policy in ("open", "closed", "local")
}


class Gate:
    """A limiter with a guarded store on a real Redis."""

    def __init__(self, rules: RuleSet, redis: RedisSettings, *, wait_ms: int) -> None:
        world = RealWorld()
        self.store = RedisStore(world, rules, redis)
        guard = GuardSettings(wait_ms=wait_ms, probe_every_ms=50, fallback_processes=4)
        self.guard = GuardedStore(self.store, rules, guard, world)
        self.limiter = Limiter(rules)
        self._world = world

    async def send(self, caller: Caller, path: str = "/meta", *, holds: bool = False) -> LimitDecision:
        call = self.limiter.build_call(RequestFacts(self._world.new_id(), "GET", path, caller), self.guard.now_ms())
        taken = await self.guard.take(call)
        if not holds:
            await self.guard.release(call.id)
        return self.limiter.decide(call, taken)

    async def wait_until_back(self) -> None:
        await wait_on_loop_until(lambda: not self.guard.counts.is_away, what="the store is back")

    async def wait_until_away(self, caller: Caller) -> None:
        while not self.guard.counts.is_away:
            await self.send(caller)


def run_scenario(
    scenario: Callable[[Gate], Awaitable[T]],
    rules: str,
    *addresses: str,
    kind: RedisKind = RedisKind.SINGLE,
    wait_ms: int = PATIENT_MS,
) -> T:
    async def run() -> T:
        settings = RedisSettings(addresses=addresses, kind=kind, socket_timeout_ms=500)
        gate = Gate(read_rules(rules), settings, wait_ms=wait_ms)
        await gate.store.open()
        await gate.guard.open()
        try:
            return await scenario(gate)
        finally:
            await gate.guard.close()
            await gate.store.close()

    return asyncio.run(run())


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as made:
        yield Path(made)


@pytest.fixture
def server(folder: Path) -> Iterator[RedisServer]:
    with running_redis(folder) as started:
        yield started


def test_3_2_a_killed_redis_makes_nobody_wait_and_each_rule_decides(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> list[bool]:
        for _ in range(3):
            await gate.send(a_user())
        server.kill()
        return [(await gate.send(a_user())).is_admitted for _ in range(60)]

    admitted = {}
    for policy, rules in POLICIES.items():
        admitted[policy] = sum(run_scenario(scenario, rules, server.address))
        server.start()
    assert admitted == {"open": 60, "closed": 0, "local": 10}


def test_3_3_local_fallback_admits_no_more_than_was_last_known_to_remain(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> int:
        for _ in range(37):
            await gate.send(a_user())
        server.kill()
        return sum([(await gate.send(a_user())).is_admitted for _ in range(20)])

    assert run_scenario(scenario, POLICIES["local"], server.address) == 3


def test_a_frozen_redis_makes_nobody_wait_longer_than_was_said(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> tuple[bool, bool, int]:
        await gate.send(a_user())
        server.pause()
        try:
            sent = [asyncio.ensure_future(gate.send(a_user())) for _ in range(30)]
            await asyncio.sleep(0)  # Each has asked and waits, by timers that end before ours, however busy it is here.
            await asyncio.wait(sent, timeout=WAIT_MS / 1_000)
            in_time = await have_ended(sent)
            at_once = await have_ended([asyncio.ensure_future(gate.send(a_user()))])  # Nobody asks any more.
        finally:
            server.resume()
        await gate.wait_until_back()
        return in_time, at_once, gate.guard.counts.outages

    assert run_scenario(scenario, POLICIES["open"], server.address, wait_ms=WAIT_MS) == (True, True, 1)


async def have_ended(sent: Sequence[asyncio.Future[LimitDecision]]) -> bool:
    for _ in range(TURNS):
        await asyncio.sleep(0)
    return all(each.done() for each in sent)


def test_3_2_what_was_refused_while_redis_slept_is_charged_nowhere_when_it_wakes(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> int:
        await gate.send(a_user())
        server.pause()
        try:
            refused = await asyncio.gather(*[gate.send(a_user()) for _ in range(10)])
        finally:
            server.resume()
        assert not any(decision.is_admitted for decision in refused)
        await gate.wait_until_back()
        await gate.guard.close()
        last = await gate.send(a_user())
        return last.used

    assert run_scenario(scenario, POLICIES["closed"], server.address, wait_ms=WAIT_MS) == 2


def test_one_line_in_the_log_says_that_the_store_is_away_and_one_that_it_is_back(
    server: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario(gate: Gate) -> None:
        server.kill()
        for _ in range(50):
            await gate.send(a_user())
        server.start()
        await gate.wait_until_back()

    with caplog.at_level(logging.INFO, logger="wharf.limits"):
        run_scenario(scenario, POLICIES["open"], server.address, wait_ms=WAIT_MS)
    messages = [record.getMessage() for record in caplog.records if record.name.startswith("wharf.limits")]
    phrases = [message.partition(" local_decisions=")[0].partition(" wait_ms=") for message in messages]
    assert [(phrase, value) for phrase, _, value in phrases] == [
        ("limiter store unavailable: requests are decided by the on_store_loss of each rule", "100"),
        ("limiter store available again", ""),
    ]


def test_3_3_a_restarted_redis_is_reported_as_a_loss_of_counters(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> tuple[int, bool]:
        await gate.send(a_user())
        server.kill()
        await gate.wait_until_away(a_user())
        server.start()
        await gate.wait_until_back()
        return gate.store.link.restarts, (await gate.send(a_user())).is_admitted

    assert run_scenario(scenario, POLICIES["open"], server.address) == (1, True)


def test_flushed_scripts_are_told_again(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> list[int]:
        used = [(await gate.send(a_user())).used]
        server.ask("SCRIPT", "FLUSH")
        return [*used, (await gate.send(a_user())).used]

    assert run_scenario(scenario, "", server.address) == [1, 2]


def test_3_3_a_redis_that_evicts_is_refused_at_the_start(folder: Path) -> None:
    async def scenario(_: Gate) -> None:
        return None

    with (
        running_redis(folder, "--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru") as evicting,
        pytest.raises(UnsuitableStore, match="maxmemory-policy allkeys-lru, which deletes counters"),
    ):
        run_scenario(scenario, "", evicting.address)


def test_3_3_in_full_memory_slots_are_released_and_nothing_is_charged(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> tuple[int, int]:
        store, limiter = gate.store, gate.limiter
        held = limiter.build_call(RequestFacts("held", "GET", "/meta", a_user()), gate.guard.now_ms())
        await store.take(held)
        server.ask("CONFIG", "SET", "maxmemory", "1")
        more = limiter.build_call(RequestFacts("more", "GET", "/meta", a_user()), gate.guard.now_ms())
        with pytest.raises(StoreFull):
            await store.take(more)
        await store.release("held")
        server.ask("CONFIG", "SET", "maxmemory", "0")
        names = [charge.name for charge in held.charges]
        readings = await store.peek(held.charges)
        return readings[names.index("concurrent")].used, readings[names.index("core")].used

    assert run_scenario(scenario, "", server.address) == (0, 1)


def test_a_caller_that_leaves_takes_no_answer_of_another_with_it_and_is_charged_nothing(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> list[int]:
        async def leave() -> None:
            task = asyncio.ensure_future(gate.send(a_user("leaver")))
            await asyncio.sleep(0)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

        used = []
        for _ in range(50):
            leaving = asyncio.ensure_future(leave())
            used.append((await gate.send(a_user("stayer"))).used)
            await leaving
        await gate.guard.close()
        return [*used, (await gate.send(a_user("leaver"))).used]

    assert run_scenario(scenario, "", server.address) == [*range(1, 51), 1]


def test_counters_leave_redis_by_themselves_and_no_sooner_than_their_window(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> None:
        await gate.send(a_user())
        await gate.send(anonymous())

    run_scenario(scenario, "", server.address)
    keys = [line for line in server.ask("KEYS", "wharf:*").split("\r\n") if line.startswith("wharf:limits:{user:ada}")]
    lives = {key: int(server.ask("PTTL", key).strip()[1:]) for key in keys}
    assert keys
    assert all(life > 0 for life in lives.values()), lives
    assert HOUR_MS - 10_000 < lives["wharf:limits:{user:ada}"] <= HOUR_MS + 60_000


def test_two_processes_with_different_rules_on_one_redis_are_detected(server: RedisServer) -> None:
    async def scenario(gate: Gate) -> int:
        other = RedisStore(RealWorld(), read_rules(POLICIES["open"]), RedisSettings(addresses=(server.address,)))
        await other.open()
        await other.close()
        await gate.store.check()
        return gate.store.rule_hashes

    assert run_scenario(scenario, "", server.address) == 2


def test_an_address_without_a_listener_is_reported() -> None:
    async def scenario(_: Gate) -> None:
        return None

    with pytest.raises(StoreUnavailable, match="Redis does not reply"):
        run_scenario(scenario, "", f"127.0.0.1:{free_ports(1)[0]}")


def test_3_1_sentinel_names_another_master_and_decisions_go_on(folder: Path) -> None:
    first, second, watching = free_ports(3)
    master = RedisServer(folder, first)
    copy = RedisServer(folder, second, "--replicaof", "127.0.0.1", str(first))
    rules = "\n".join(
        [
            f"sentinel monitor wharf 127.0.0.1 {first} 1",
            "sentinel down-after-milliseconds wharf 500",
            "sentinel failover-timeout wharf 2000",
        ]
    )
    sentinel = RedisServer(folder, watching, is_sentinel=True, text=rules + "\n")

    async def scenario(gate: Gate) -> tuple[bool, int, bool]:
        await gate.send(a_user())
        master.kill()
        await gate.wait_until_away(a_user())
        await gate.wait_until_back()
        after = await gate.send(a_user())
        return after.is_admitted, gate.store.link.restarts, copy.ask("ROLE").startswith("*3\r\n$6\r\nmaster")

    try:
        for server in (master, copy, sentinel):
            server.start()
        wait_until(lambda: "slaves=1" in sentinel.ask("INFO", "sentinel"), what="the sentinel knows the copy")
        at_work_on = (scenario, POLICIES["open"], sentinel.address)
        assert run_scenario(*at_work_on, kind=RedisKind.SENTINEL) == (True, 1, True)
    finally:
        for server in (sentinel, copy, master):
            server.kill()


def test_3_1_on_a_cluster_a_refusal_by_a_later_node_undoes_earlier_charges(folder: Path) -> None:
    servers = [RedisServer(folder, port, "--cluster-enabled", "yes") for port in free_ports(3)]
    rules = '[[rule]]\nname = "by_address"\nscope = ["address"]\ncounts = "points"\nceiling = 5\nwindow = "1m"\n'

    async def scenario(gate: Gate) -> tuple[list[Verdict], int, int]:
        # All come from one address, and each user has a bucket of their own.
        verdicts = [(await gate.send(a_user(f"u{number}"))).verdict for number in range(7)]
        refused = await gate.send(a_user("u6"))
        names = [charge.name for charge in refused.charges]
        readings = await gate.store.peek(refused.charges)
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
        wait_until(partial(is_whole, server), what="the cluster is whole")


def is_whole(server: RedisServer) -> bool:
    return "cluster_state:ok" in server.ask("CLUSTER", "INFO")
