"""Tasks, processes and machines that use one credential share its limits through a state store."""

import asyncio
import fcntl
import multiprocessing
from collections.abc import Callable, Iterator
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
from wharf.limits.client import state_stores as state_stores_module
from wharf.limits.client.httpx2_transport import AsyncLimitedTransport, LimitedTransport
from wharf.limits.client.limit_state import GrantedPermit, LimitState, RequestCost, release_permit, request_permit
from wharf.limits.client.request_costs import build_account_key
from wharf.limits.client.state_stores import STATE_TTL_S, StateStoreBusy
from wharf.limits.client.step_runners import AsyncStepRunner
from wharf.world import RealWorld, SimulatedWorld

URL = "https://code.example/search/code"
WRITE = RequestCost("POST /x", 5, is_graphql=False, is_content=True)


class SlowHost(httpx2.AsyncBaseTransport):
    """A host that takes `wait_s` for each reply, and counts concurrent requests."""

    def __init__(self, wait_s: float = 1.0) -> None:
        self.running = self.max_running = self.received = self.replied = 0
        self._wait_s = wait_s

    async def handle_async_request(self, _: httpx2.Request) -> httpx2.Response:
        self.running += 1
        self.received += 1
        self.max_running = max(self.max_running, self.running)
        await pass_time(self._wait_s)
        self.running -= 1
        self.replied += 1
        return httpx2.Response(200, stream=httpx2.ByteStream(b"x"))


def make_transport(host: httpx2.AsyncBaseTransport, policy: ClientPolicy) -> AsyncLimitedTransport:
    return AsyncLimitedTransport(host, policy=policy, world=SimulatedWorld(1, now_s))


async def send_all(client: httpx2.AsyncClient, count: int) -> None:
    world = SimulatedWorld(2, now_s)
    tasks = [world.start_task(client.get(f"https://code.example/{n}x"), name=f"send {n}") for n in range(count)]
    for task in tasks:
        await task


@in_virtual_time
async def test_concurrent_requests_are_limited() -> None:
    host = SlowHost()

    await send_all(httpx2.AsyncClient(transport=make_transport(host, ClientPolicy(concurrent_max=7))), 50)

    assert (7, 50) == (host.max_running, host.replied)


@in_virtual_time
async def test_a_request_is_concurrent_until_its_body_was_read() -> None:
    host = SlowHost(wait_s=0.01)
    policy = ClientPolicy(concurrent_max=1, longest_wait_s=5)
    client = httpx2.AsyncClient(transport=make_transport(host, policy))

    async with client.stream("GET", URL):
        world = SimulatedWorld(2, now_s)
        second = world.start_task(client.get("https://code.example/other"), name="second")
        await pass_time(2)
        assert not second.done()
    assert 200 == (await second).status_code


@in_virtual_time
async def test_a_cancelled_request_releases_its_permit() -> None:
    host = SlowHost(wait_s=1_000)
    client = httpx2.AsyncClient(transport=make_transport(host, ClientPolicy(concurrent_max=1)))
    world = SimulatedWorld(2, now_s)
    first, waiting = (world.start_task(client.get(f"{URL}{n}", timeout=None), name=str(n)) for n in range(2))
    await pass_time(1)

    first.cancel()
    await pass_time(1)

    assert 2 == host.received
    waiting.cancel()
    await pass_time(1)


@in_virtual_time
async def test_while_one_request_waits_for_a_limit_the_others_wait_too() -> None:
    clock = Clock()
    host = Host(clock)
    host.limit_for(30)

    class ClockedHost(httpx2.AsyncBaseTransport):
        """A transport that sets the clock of `host` to the virtual time and returns its reply."""

        async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
            clock.elapsed_s = now_s()
            return host.reply(request)

    client = httpx2.AsyncClient(transport=make_transport(ClockedHost(), ClientPolicy()))
    first = SimulatedWorld(2, now_s).start_task(client.get(URL), name="first")
    await pass_time(1)

    await send_all(client, 20)
    await first

    assert 1 == host.refusals
    assert 0 == host.requests_while_limited


def spend(state_store: LimitStateStore, count: int) -> int:
    """Request permits for `count` writes at one time. Return how many are granted."""
    now_ns = 1_000 * SECOND_NS
    policy = ClientPolicy(content_minute_max=40, rest_points_max=10_000)
    ids = RealWorld()
    results = (
        state_store.update(
            "host me", partial(request_permit, cost=WRITE, now_ns=now_ns, policy=policy, new_permit=ids.new_id())
        )
        for _ in range(count)
    )
    return sum(isinstance(result, GrantedPermit) for result in results)


def spend_by_file(path: Path) -> int:
    return spend(FileStateStore(path), 25)


def spend_by_redis(port: int) -> int:
    with Redis(port=port) as redis:
        return spend(RedisStateStore(redis), 25)


def test_processes_that_share_a_file_share_their_limits(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        granted = pool.map(spend_by_file, [tmp_path / "limits"] * 4)

    assert 40 == sum(granted)


def test_a_truncated_file_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    path.write_bytes(b"\x81\xa1")

    assert 25 == spend(FileStateStore(path), 25)


def test_only_its_owner_can_read_the_state_file(tmp_path: Path) -> None:
    spend(FileStateStore(tmp_path / "limits"), 1)

    assert 0o600 == (tmp_path / "limits").stat().st_mode & 0o777


@pytest.fixture(scope="module")
def redis_port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with running_redis(tmp_path_factory.mktemp("redis")) as server:
        yield server.port


@pytest.mark.needs_program("redis-server")
def test_machines_that_share_a_redis_share_their_limits(redis_port: int) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        granted = pool.map(spend_by_redis, [redis_port] * 4)

    assert 40 == sum(granted)


def test_each_credential_has_its_own_limit_state() -> None:
    state_store, host = MemoryStateStore(), Host(Clock(), limit=1)
    transport = LimitedTransport(
        host,
        state_store=state_store,
        policy=ClientPolicy(longest_wait_s=1),
        world=host.clock,  # type: ignore[arg-type]  # the parts of a world that the client uses
        sleep=host.clock.sleep,
    )
    client = httpx2.Client(transport=transport)
    client.get(URL, headers={"authorization": "Bearer one"})
    with pytest.raises(WaitTooLong):
        client.get(URL, headers={"authorization": "Bearer one"})
    host.limit = 2

    assert 200 == client.get(URL, headers={"authorization": "Bearer two"}).status_code


def test_the_permit_of_a_crashed_process_expires() -> None:
    state, policy = LimitState(), ClientPolicy(concurrent_max=1)
    read = RequestCost("GET /x", 1, is_graphql=False, is_content=False)

    results = [
        request_permit(state, read, minute * 60 * SECOND_NS, policy, new_permit=str(minute)) for minute in (0, 1, 11)
    ]

    assert [True, False, True] == [isinstance(result, GrantedPermit) for result in results]


async def spend_by_async_redis(port: int, count: int) -> int:
    policy = ClientPolicy(content_minute_max=40, rest_points_max=10_000)
    world = RealWorld()
    async with AsyncRedis(port=port) as redis:
        state_store = AsyncRedisStateStore(redis)

        async def spend_one() -> bool:
            update = partial(
                request_permit, cost=WRITE, now_ns=1_000 * SECOND_NS, policy=policy, new_permit=world.new_id()
            )
            return isinstance(await state_store.update_async("host both", update), GrantedPermit)

        tasks = [world.start_task(spend_one(), name="spend") for _ in range(count)]
        return sum([await task for task in tasks])


@pytest.mark.needs_program("redis-server")
def test_async_and_blocking_redis_stores_share_their_limits(redis_port: int) -> None:
    with Redis(port=redis_port) as redis:
        granted = sum(
            isinstance(
                RedisStateStore(redis).update(
                    "host both",
                    partial(
                        request_permit,
                        cost=WRITE,
                        now_ns=1_000 * SECOND_NS,
                        policy=ClientPolicy(content_minute_max=40, rest_points_max=10_000),
                        new_permit=str(number),
                    ),
                ),
                GrantedPermit,
            )
            for number in range(15)
        )

    assert 15 == granted
    assert 25 == asyncio.run(spend_by_async_redis(redis_port, 60))


@pytest.mark.needs_program("redis-server")
def test_an_async_client_stores_its_limit_state_in_redis(redis_port: int) -> None:
    async def scenario() -> tuple[int, int]:
        async with AsyncRedis(port=redis_port) as redis:
            transport = AsyncLimitedTransport(
                httpx2.MockTransport(lambda _: httpx2.Response(200, stream=httpx2.ByteStream(b"x"))),
                state_store=AsyncRedisStateStore(redis, prefix="mine:"),
            )
            async with httpx2.AsyncClient(transport=transport) as client:
                status = (await client.get("https://code.example/one")).status_code
            (key,) = [key async for key in redis.scan_iter("mine:*")]
            stored = await redis.get(key)
            assert isinstance(stored, bytes)
            return status, len(msgspec.msgpack.decode(stored, type=LimitState).permits)

    # The permit is released.
    assert (200, 0) == asyncio.run(scenario())


def request_permits_by_file(path: Path) -> tuple[int, int]:
    """Request permits in several tasks. Return how many were granted, and the highest number of permits in the file."""

    async def run_tasks() -> tuple[int, int]:
        state_store, world, ids = FileStateStore(path), RealWorld(), RealWorld()
        policy = ClientPolicy(concurrent_max=10, rest_points_max=100_000)
        read = RequestCost("GET /x", 1, is_graphql=False, is_content=False)
        runner = AsyncStepRunner(state_store, world)
        granted = max_permits = 0

        async def request_five() -> None:
            nonlocal granted, max_permits
            for _ in range(5):
                permit = ids.new_id()
                result = await runner.update_state(
                    "host me",
                    partial(request_permit, cost=read, now_ns=world.now_ns(), policy=policy, new_permit=permit),
                )
                if isinstance(result, GrantedPermit):
                    granted += 1
                    permits = await runner.update_state("host me", lambda state: len(state.permits))
                    max_permits = max(max_permits, permits)
                    await runner.update_state("host me", partial(release_permit, permit=permit))

        for task in [world.start_task(request_five(), name="request permits") for _ in range(6)]:
            await task
        return granted, max_permits

    return asyncio.run(run_tasks())


def test_tasks_of_many_processes_never_hold_more_permits_in_a_file_than_allowed(tmp_path: Path) -> None:
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        results = pool.map(request_permits_by_file, [tmp_path / "limits"] * 4)

    assert all(granted > 0 and max_permits <= 10 for granted, max_permits in results)
    permits_left = FileStateStore(tmp_path / "limits").update("host me", lambda state: len(state.permits))
    assert 0 == permits_left


def test_a_request_cancelled_while_the_file_is_locked_releases_its_permit(tmp_path: Path) -> None:
    path = tmp_path / "limits"

    async def scenario() -> int:
        world = RealWorld()
        transport = AsyncLimitedTransport(SlowHost(), state_store=FileStateStore(path), world=world)
        client = httpx2.AsyncClient(transport=transport)
        with path.open("ab") as locked:
            fcntl.flock(locked, fcntl.LOCK_EX)
            request = world.start_task(client.get(URL), name="request")
            # The event loop continues although the file is locked.
            for _ in range(3):
                await asyncio.to_thread(int)
            request.cancel()
        await asyncio.wait([request])
        return FileStateStore(path).update(build_account_key(URL, ""), lambda state: len(state.permits))

    assert 0 == asyncio.run(scenario())


@pytest.mark.parametrize("kind", ["memory", "file"])
def test_the_states_of_unused_credentials_are_deleted(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "limits"
    state_store = FileStateStore(path) if kind == "file" else MemoryStateStore()
    read = RequestCost("GET /x", 1, is_graphql=False, is_content=False)

    for number in range(500):  # A new token every minute, like the tokens of apps.
        now_ns = (1_000 + number * 60) * SECOND_NS
        state_store.update(
            f"host {number}", partial(request_permit, cost=read, now_ns=now_ns, policy=ClientPolicy(), new_permit="p")
        )

    first = state_store.update("host 0", lambda state: state.touched_ns)
    recent = state_store.update("host 450", lambda state: state.touched_ns)
    assert (first, recent) == (0, (1_000 + 450 * 60) * SECOND_NS)


@pytest.mark.parametrize("kind", ["file", "memory"])
@pytest.mark.parametrize(("unused_s", "is_deleted"), [(STATE_TTL_S, False), (STATE_TTL_S + 1, True)])
def test_states_that_were_not_used_for_two_hours_are_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, unused_s: int, is_deleted: bool
) -> None:
    monkeypatch.setattr(state_stores_module, "EVICTION_THRESHOLD", 2)
    state_store = FileStateStore(tmp_path / "limits") if kind == "file" else MemoryStateStore()

    def touch(state: LimitState, at_s: int) -> int:
        """Use a state, and return when it was used before."""
        before, state.touched_ns = state.touched_ns, at_s * SECOND_NS
        return before

    state_store.update("old", partial(touch, at_s=100))
    for account in ("new", "other"):
        state_store.update(account, partial(touch, at_s=100 + unused_s))

    used_before = [state_store.update(account, partial(touch, at_s=9)) for account in ("new", "other", "old")]
    used_ns = (100 + unused_s) * SECOND_NS
    assert used_before == [used_ns, used_ns, 0 if is_deleted else 100 * SECOND_NS]


def test_a_file_that_becomes_shorter_keeps_its_states(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_stores_module, "EVICTION_THRESHOLD", 2)
    path = tmp_path / "limits"
    state_store = FileStateStore(path)
    sizes = []
    for account, at_s in (("old", 100), ("older", 100), ("new", 101 + STATE_TTL_S)):
        state_store.update(account, partial(touch_state, at_s=at_s))
        sizes.append(path.stat().st_size)

    assert sizes[2] < sizes[1]  # The two others have expired.
    assert state_store.update("new", lambda state: state.touched_ns) == (101 + STATE_TTL_S) * SECOND_NS


def touch_state(state: LimitState, at_s: int) -> None:
    state.touched_ns = at_s * SECOND_NS


def test_a_file_of_states_is_private_and_holds_nothing_but_its_states(tmp_path: Path) -> None:
    path = tmp_path / "limits"
    state_store = FileStateStore(path)
    for _ in range(2):
        state_store.update("one", lambda _state: None)

    assert msgspec.msgpack.decode(path.read_bytes(), type=dict[str, LimitState]).keys() == {"one"}
    assert path.stat().st_mode & 0o777 == 0o600


def interfere(redis_port: int, key: str, times: int) -> Callable[[LimitState], int]:
    """Return an update during which another client changes the state, `times` times. It returns the number of its call."""
    calls: list[LimitState] = []

    def update(state: LimitState) -> int:
        calls.append(state)
        if len(calls) <= times:
            with Redis(port=redis_port) as redis:
                redis.set(key, msgspec.msgpack.encode(LimitState()))
        return len(calls)

    return update


@pytest.mark.needs_program("redis-server")
@pytest.mark.parametrize("times", [0, 1, 3])
def test_an_update_is_repeated_if_another_client_changed_the_state_meanwhile(
    redis_port: int, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    monkeypatch.setattr(state_stores_module, "MAX_UPDATE_TRIES", 4)

    async def update_async() -> int:
        async with AsyncRedis(port=redis_port) as redis:
            return await AsyncRedisStateStore(redis, prefix="p:").update_async("b", interfere(redis_port, "p:b", times))

    with Redis(port=redis_port) as redis:
        calls = RedisStateStore(redis, prefix="p:").update("a", interfere(redis_port, "p:a", times))

    assert (calls, asyncio.run(update_async())) == (times + 1, times + 1)


@pytest.mark.needs_program("redis-server")
def test_an_update_that_other_clients_always_interrupt_fails(redis_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_stores_module, "MAX_UPDATE_TRIES", 4)

    async def update_async() -> int:
        async with AsyncRedis(port=redis_port) as redis:
            return await AsyncRedisStateStore(redis).update_async("b", interfere(redis_port, "wharf:client:b", 4))

    with Redis(port=redis_port) as redis, pytest.raises(StateStoreBusy, match="of a failed"):
        RedisStateStore(redis).update("a", interfere(redis_port, "wharf:client:a", 4))
    with pytest.raises(StateStoreBusy, match="of b failed"):
        asyncio.run(update_async())
