"""One budget for all who share a credential: tasks, processes and machines."""

import asyncio
import fcntl
import multiprocessing
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import httpx2
import msgspec
import pytest
from redis import Redis
from redis.asyncio import Redis as AsyncRedis

from tests.kit.virtual_time import in_virtual_time, now_s, pass_time
from tests.limits.client.host import SECOND_NS, Clock, Host
from tests.limits.stores.redis_server import running_redis
from wharf.limits.client import (
    AsyncRedisStateStore,
    ClientPolicy,
    FileStateStore,
    LimitStateStore,
    MemoryStateStore,
    RedisStateStore,
    WaitTooLong,
)
from wharf.limits.client.httpx2_transport import AsyncLimitedTransport, LimitedTransport
from wharf.limits.client.limit_state import GrantedPermit, LimitState, RequestCost, release_permit, request_permit
from wharf.limits.client.request_costs import build_account_key
from wharf.limits.client.step_runners import AsyncStepRunner
from wharf.world import RealWorld, SimulatedWorld

URL = "https://code.example/search/code"
WRITE = RequestCost("POST /x", 5, is_graphql=False, is_content=True)


class SlowHost(httpx2.AsyncBaseTransport):
    """Takes its time for each answer, and counts how many it gives at once."""

    def __init__(self, wait_s: float = 1.0) -> None:
        self.now = self.most = self.begun = self.answered = 0
        self._wait_s = wait_s

    async def handle_async_request(self, _: httpx2.Request) -> httpx2.Response:
        self.now += 1
        self.begun += 1
        self.most = max(self.most, self.now)
        await pass_time(self._wait_s)
        self.now -= 1
        self.answered += 1
        return httpx2.Response(200, stream=httpx2.ByteStream(b"x"))


def transport_over(host: httpx2.AsyncBaseTransport, manner: ClientPolicy) -> AsyncLimitedTransport:
    return AsyncLimitedTransport(host, policy=manner, world=SimulatedWorld(1, now_s))


async def ask_all(client: httpx2.AsyncClient, count: int) -> None:
    world = SimulatedWorld(2, now_s)
    tasks = [world.start_task(client.get(f"https://code.example/{n}x"), name=f"ask {n}") for n in range(count)]
    for task in tasks:
        await task


@in_virtual_time
async def test_no_more_run_at_once_than_allowed() -> None:
    host = SlowHost()

    await ask_all(httpx2.AsyncClient(transport=transport_over(host, ClientPolicy(concurrent_max=7))), 50)

    assert (7, 50) == (host.most, host.answered)


@in_virtual_time
async def test_a_body_that_is_still_read_counts_as_running() -> None:
    host = SlowHost(wait_s=0.01)
    manner = ClientPolicy(concurrent_max=1, longest_wait_s=5)
    client = httpx2.AsyncClient(transport=transport_over(host, manner))

    async with client.stream("GET", URL):
        world = SimulatedWorld(2, now_s)
        second = world.start_task(client.get("https://code.example/other"), name="second")
        await pass_time(2)
        assert not second.done()
    assert 200 == (await second).status_code


@in_virtual_time
async def test_a_request_that_is_cancelled_gives_its_place_back() -> None:
    host = SlowHost(wait_s=1_000)
    client = httpx2.AsyncClient(transport=transport_over(host, ClientPolicy(concurrent_max=1)))
    world = SimulatedWorld(2, now_s)
    first, waiting = (world.start_task(client.get(f"{URL}{n}", timeout=None), name=str(n)) for n in range(2))
    await pass_time(1)

    first.cancel()
    await pass_time(1)

    assert 2 == host.begun
    waiting.cancel()
    await pass_time(1)


@in_virtual_time
async def test_while_one_waits_for_a_limit_the_others_are_held_too() -> None:
    clock = Clock()
    refusing = Host(clock)
    refusing.limit_for(30)

    class Both(httpx2.AsyncBaseTransport):
        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            clock.elapsed_s = now_s()
            return refusing.answer(request)

    client = httpx2.AsyncClient(transport=transport_over(Both(), ClientPolicy()))
    await_first = SimulatedWorld(2, now_s).start_task(client.get(URL), name="first")
    await pass_time(1)

    await ask_all(client, 20)
    await await_first

    assert 1 == refusing.refusals
    assert 0 == refusing.asked_while_limited


def spend(ledger: LimitStateStore, count: int) -> int:
    """How many of so many writes of one moment go."""
    now_ns = 1_000 * SECOND_NS
    manner = ClientPolicy(content_minute_max=40, rest_points_max=10_000)
    ids = RealWorld()
    turns = (
        ledger.update(
            "host me", partial(request_permit, call=WRITE, now_ns=now_ns, manner=manner, new_permit=ids.new_id())
        )
        for _ in range(count)
    )
    return sum(isinstance(turn, GrantedPermit) for turn in turns)


def spend_by_file(path: Path) -> int:
    return spend(FileStateStore(path), 25)


def spend_by_redis(port: int) -> int:
    with Redis(port=port) as redis:
        return spend(RedisStateStore(redis), 25)


def test_processes_that_share_a_file_share_one_budget(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        gone = pool.map(spend_by_file, [tmp_path / "limits"] * 4)

    assert 40 == sum(gone)


def test_a_file_that_was_cut_is_begun_anew(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(b"\x81\xa1")

    assert 25 == spend(FileStateStore(path), 25)


def test_a_file_of_limits_is_its_owners_only(tmp_path: Path) -> None:
    spend(FileStateStore(tmp_path / "limits"), 1)

    assert 0o600 == (tmp_path / "limits").stat().st_mode & 0o777


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.port


@pytest.mark.needs_program("redis-server")
def test_machines_that_share_a_redis_share_one_budget(redis_port: int) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        gone = pool.map(spend_by_redis, [redis_port] * 4)

    assert 40 == sum(gone)


def test_two_credentials_have_standings_of_their_own() -> None:
    ledger, host = MemoryStateStore(), Host(Clock(), limit=1)
    transport = LimitedTransport(
        host,
        state_store=ledger,
        policy=ClientPolicy(longest_wait_s=1),
        world=host.clock,  # type: ignore[arg-type]  # as much of a world as the client asks for
        sleep=host.clock.sleep,
    )
    client = httpx2.Client(transport=transport)
    client.get(URL, headers={"authorization": "Bearer one"})
    with pytest.raises(WaitTooLong):
        client.get(URL, headers={"authorization": "Bearer one"})
    host.limit = 2

    assert 200 == client.get(URL, headers={"authorization": "Bearer two"}).status_code


def test_a_process_that_died_gives_its_place_back_after_a_while() -> None:
    standing, manner = LimitState(), ClientPolicy(concurrent_max=1)
    read = RequestCost("GET /x", 1, is_graphql=False, is_content=False)

    turns = [
        request_permit(standing, read, minute * 60 * SECOND_NS, manner, new_permit=str(minute)) for minute in (0, 1, 11)
    ]

    assert [True, False, True] == [isinstance(turn, GrantedPermit) for turn in turns]


async def spend_by_redis_awaiting(port: int, count: int) -> int:
    manner = ClientPolicy(content_minute_max=40, rest_points_max=10_000)
    world = RealWorld()
    async with AsyncRedis(port=port) as redis:
        ledger = AsyncRedisStateStore(redis)

        async def one() -> bool:
            turn = partial(
                request_permit, call=WRITE, now_ns=1_000 * SECOND_NS, manner=manner, new_permit=world.new_id()
            )
            return isinstance(await ledger.update_async("host both", turn), GrantedPermit)

        tasks = [world.start_task(one(), name="spend") for _ in range(count)]
        return sum([await task for task in tasks])


@pytest.mark.needs_program("redis-server")
def test_who_awaits_redis_shares_one_budget_with_who_blocks_on_it(redis_port: int) -> None:
    with Redis(port=redis_port) as redis:
        gone = sum(
            isinstance(
                RedisStateStore(redis).update(
                    "host both",
                    partial(
                        request_permit,
                        call=WRITE,
                        now_ns=1_000 * SECOND_NS,
                        manner=ClientPolicy(content_minute_max=40, rest_points_max=10_000),
                        new_permit=str(number),
                    ),
                ),
                GrantedPermit,
            )
            for number in range(15)
        )

    assert 15 == gone
    assert 25 == asyncio.run(spend_by_redis_awaiting(redis_port, 60))


@pytest.mark.needs_program("redis-server")
def test_a_client_that_awaits_keeps_its_standing_in_redis(redis_port: int) -> None:
    async def ask() -> tuple[int, int]:
        async with AsyncRedis(port=redis_port) as redis:
            transport = AsyncLimitedTransport(
                httpx2.MockTransport(lambda _: httpx2.Response(200, stream=httpx2.ByteStream(b"x"))),
                state_store=AsyncRedisStateStore(redis, prefix="mine:"),
            )
            async with httpx2.AsyncClient(transport=transport) as client:
                status = (await client.get("https://code.example/one")).status_code
            (key,) = [key async for key in redis.scan_iter("mine:*")]
            kept = await redis.get(key)
            assert isinstance(kept, bytes)
            return status, len(msgspec.msgpack.decode(kept, type=LimitState).permits)

    # Its place is free again, and what it spent is remembered.
    assert (200, 0) == asyncio.run(ask())


def ask_much_by_file(path: Path) -> tuple[int, int]:
    """A process whose tasks all ask at once: how many of them went, and the most that stood in the file at once."""

    async def ask_all() -> tuple[int, int]:
        ledger, world, ids = FileStateStore(path), RealWorld(), RealWorld()
        manner = ClientPolicy(concurrent_max=10, rest_points_max=100_000)
        read = RequestCost("GET /x", 1, is_graphql=False, is_content=False)
        driver = AsyncStepRunner(ledger, world)
        went = most = 0

        async def one() -> None:
            nonlocal went, most
            for _ in range(5):
                permit = ids.new_id()
                turn = await driver.update_state(
                    "host me",
                    partial(request_permit, call=read, now_ns=world.now_ns(), manner=manner, new_permit=permit),
                )
                if isinstance(turn, GrantedPermit):
                    went += 1
                    most = max(most, await driver.update_state("host me", lambda standing: len(standing.permits)))
                    await driver.update_state("host me", partial(release_permit, permit=permit))

        for task in [world.start_task(one(), name="ask") for _ in range(6)]:
            await task
        return went, most

    return asyncio.run(ask_all())


def test_many_tasks_of_many_processes_on_one_file_never_hold_more_places_than_there_are(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        told = pool.map(ask_much_by_file, [tmp_path / "limits"] * 4)

    assert all(went > 0 and most <= 10 for went, most in told)
    left = FileStateStore(tmp_path / "limits").update("host me", lambda standing: len(standing.permits))
    assert 0 == left


def test_who_is_cancelled_while_another_holds_the_file_gives_back_what_is_taken_for_it(tmp_path: Path) -> None:
    path = tmp_path / "limits"

    async def scenario() -> int:
        world = RealWorld()
        transport = AsyncLimitedTransport(SlowHost(), state_store=FileStateStore(path), world=world)
        client = httpx2.AsyncClient(transport=transport)
        with path.open("ab") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            asking = world.start_task(client.get(URL), name="ask")
            # The loop goes on, though the file is held.
            for _ in range(3):
                await asyncio.to_thread(int)
            asking.cancel()
        await asyncio.wait([asking])
        return FileStateStore(path).update(build_account_key(URL, ""), lambda standing: len(standing.permits))

    assert 0 == asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_credentials_that_nobody_uses_any_more_are_forgotten(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "limits"
    ledger = FileStateStore(path) if kind == "file" else MemoryStateStore()
    read = RequestCost("GET /x", 1, is_graphql=False, is_content=False)

    for number in range(500):  # A new token every minute, as those of apps are.
        now_ns = (1_000 + number * 60) * SECOND_NS
        ledger.update(
            f"host {number}", partial(request_permit, call=read, now_ns=now_ns, manner=ClientPolicy(), new_permit="p")
        )

    first = ledger.update("host 0", lambda standing: standing.touched_ns)
    recent = ledger.update("host 450", lambda standing: standing.touched_ns)
    assert (first, recent) == (0, (1_000 + 450 * 60) * SECOND_NS)
