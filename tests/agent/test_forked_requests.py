"""Requests with large bodies in copies of the api process: their replies, writes, limits and failures."""

import asyncio
import json
import os
import resource
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine, Hashable
from typing import Any, ClassVar

import pytest

from tests.agent.test_worker_processes import on_a_real_loop
from tests.fuzz.server_records import BOOTSTRAP, NODE_SECRET
from tests.fuzz.target import Target, open_target
from tests.kit.exchange import send_raw
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import an_id
from tests.waiting import wait_on_loop_until
from wharf.agent.access_control import create_rsa_key
from wharf.agent.forked_requests import (
    DEFAULT_CPU_LIMIT_S,
    MAX_RUNNING,
    MAX_WAITING,
    ForkedRequestWorker,
    run_coroutine,
)
from wharf.agent.forks import ForkPacer
from wharf.cluster.api.app import Api
from wharf.cluster.server.request_worker import RequestComputation, WorkerLane
from wharf.cluster.server.snapshot_services import StaleSnapshot
from wharf.cluster.server.worker_process import WorkerFailed
from wharf.cluster.state.tables import EVALUATIONS_BY_STATUS, JOBS, KEYRING, VARIABLES
from wharf.contract.client import ClientReply
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import Cause, CauseKind, Write
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode
from wharf.world import SimulatedWorld

LARGE_META = {f"key{number}": "x" * 20 for number in range(4_000)}


def a_large_job(**fields: Any) -> dict[str, Any]:
    """Return a job of 120 kB."""
    task = {"Name": "server", "Driver": "mock", "Config": {"run_for": "1h"}}
    return {"ID": "large", "TaskGroups": [{"Name": "web", "Tasks": [task]}], "Meta": LARGE_META, **fields}


def with_target(
    scenario: Callable[[Target], Awaitable[None]], *, make_worker: Callable[[Any], Any] = ForkedRequestWorker
) -> None:
    """Run the scenario on a server without access control whose large requests run in copies."""

    @on_a_real_loop
    async def run() -> None:
        async with open_target(access=False, make_worker=make_worker) as target:
            await scenario(target)

    run()


async def send(target: Target, method: str, path: str, body: object, **headers: str) -> ClientReply:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {
        "content-length": str(len(data)),
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    path, _, query = path.partition("?")
    return await send_raw(target.server.api, method, path, query=query, headers=all_headers, body=data)


def test_a_large_job_is_registered_and_visible_before_the_reply() -> None:
    async def scenario(target: Target) -> None:
        reply = await send(target, "PUT", "/v1/jobs", {"Job": a_large_job()})

        stored = target.server.replica.get(JOBS, "default", "large")
        assert stored is not None
        assert (reply.status, stored.meta) == (200, LARGE_META)
        assert json.loads(reply.body)["JobModifyIndex"] == stored.job_modify_index

    with_target(scenario)


def test_a_large_invalid_body_gets_the_error_of_its_field() -> None:
    async def scenario(target: Target) -> None:
        reply = await send(target, "PUT", "/v1/jobs", {"Job": a_large_job(Priority="high")})

        assert (reply.status, reply.body) == (400, b"Job.Priority: expected a whole number, got text")

    with_target(scenario)


def test_pretty_and_plain_replies_of_large_bodies_are_equal_values() -> None:
    async def scenario(target: Target) -> None:
        plain = await send(target, "PUT", "/v1/validate/job", {"Job": a_large_job()})
        pretty = await send(target, "PUT", "/v1/validate/job?pretty=true", {"Job": a_large_job()})

        assert json.loads(plain.body) == json.loads(pretty.body)
        assert pretty.body.startswith(b"{\n    ")

    with_target(scenario)


def test_a_large_write_with_an_idempotency_key_is_executed_once() -> None:
    async def scenario(target: Target) -> None:
        replies = [await send(target, "PUT", "/v1/jobs", {"Job": a_large_job()}, idempotency_key="k") for _ in range(2)]

        stored = target.server.replica.get(JOBS, "default", "large")
        assert replies[0].body == replies[1].body
        assert (replies[0].status, stored is not None and stored.version) == (200, 0)

    with_target(scenario)


def test_a_large_request_of_the_leader_with_an_idempotency_key_is_executed_once() -> None:
    async def scenario(target: Target) -> None:
        evaluation = target.material.ids["eval_id"][0]
        body = {"EvalIDs": [evaluation], "Padding": "x" * 70_000}

        replies = [await send(target, "DELETE", "/v1/evaluations", body, idempotency_key="k") for _ in range(2)]

        assert replies[0] == replies[1]

    with_target(scenario)


def test_a_large_read_gets_the_reply_of_a_small_one() -> None:
    async def scenario(target: Target) -> None:
        small = await send(target, "POST", "/v1/jobs/statuses", {"jobs": [{"id": "shop"}]})
        large = await send(target, "POST", "/v1/jobs/statuses", {"jobs": [{"id": "shop"}], "padding": "x" * 70_000})

        assert (large.status, large.body) == (small.status, small.body) == (200, small.body)

    with_target(scenario)


def test_a_blocking_query_with_a_large_body_is_refused() -> None:
    async def scenario(target: Target) -> None:
        body = {"jobs": [{"id": "shop"}], "padding": "x" * 70_000}
        reply = await send(target, "POST", "/v1/jobs/statuses?index=1", body)

        assert (reply.status, reply.body.startswith(b"a blocking query must not have a large body")) == (400, True)

    with_target(scenario)


def test_a_large_request_creates_the_first_key_of_a_new_cluster() -> None:
    async def scenario(target: Target) -> None:
        server = target.server.server
        server.access.keyring.make_rsa_key = create_rsa_key  # As in an agent: it waits for a thread.
        keys = [KEYRING.build_delete(key.key_id) for key in server.replica.iter_all(KEYRING)]
        await server.writer.commit(Write("test", Cause(CauseKind.REQUEST, "test"), keys))
        await server.writer.catch_up()
        assert server.access.keyring.find_active_key(server.replica) is None

        reply = await send(target, "PUT", "/v1/var/large", {"Items": {"a": "x" * 60_000}, "Padding": "x" * 10_000})
        read = await send(target, "GET", "/v1/var/large", b"")

        assert (reply.status, json.loads(read.body)["Items"]) == (200, {"a": "x" * 60_000})
        assert len(list(server.replica.iter_all(KEYRING))) == 1

    with_target(scenario)


def test_a_large_variable_is_encrypted_and_stored() -> None:
    async def scenario(target: Target) -> None:
        reply = await send(target, "PUT", "/v1/var/large", {"Items": {"a": "x" * 60_000}, "Padding": "x" * 10_000})
        read = await send(target, "GET", "/v1/var/large", b"")

        assert (reply.status, json.loads(read.body)["Items"]) == (200, {"a": "x" * 60_000})
        assert target.server.replica.get(VARIABLES, "default", "large") is not None

    with_target(scenario)


def test_a_request_that_needs_more_cpu_time_than_its_limit_is_refused_and_changes_nothing() -> None:
    class LaterLimitedWorker(ForkedRequestWorker):
        """Has the limit only after the target has registered its own jobs."""

        is_limited = False

        async def _run_in_copy(
            self, compute: RequestComputation, catch_up_failure: Refusal | None, *, cpu_limit_s: float
        ) -> tuple[bytes | None, float]:
            if self.is_limited:
                return await super()._run_in_copy(compute, catch_up_failure, cpu_limit_s=cpu_limit_s)
            result, _ = await super()._run_in_copy(compute, catch_up_failure, cpu_limit_s=DEFAULT_CPU_LIMIT_S)
            return result, 0.0

    workers: list[LaterLimitedWorker] = []

    def make_worker(server: Any) -> LaterLimitedWorker:
        workers.append(LaterLimitedWorker(server, cpu_limit_s=0.01))
        return workers[-1]

    async def scenario(target: Target) -> None:
        workers[-1].is_limited = True
        index = target.server.replica.index
        body = {"Job": a_large_job(TaskGroups=[{"Name": f"g{n}", "Tasks": [{"Name": "t"}] * 4} for n in range(900)])}
        reply = await send(target, "PUT", "/v1/jobs", body)

        assert reply.status == 400
        assert reply.body == (
            b"the request needs more than 0.01 s of CPU time, the limit of one request (api.max_request_cpu); "
            b"send a smaller body, or divide it into several requests"
        )
        assert target.server.replica.index == index

    with_target(scenario, make_worker=make_worker)


def test_a_write_that_conflicts_is_decided_again_on_the_new_state() -> None:
    """The copy decides before the other write, and commits after it."""

    class SlowWorker(ForkedRequestWorker):
        """Registers another version of the job after the first copy was made."""

        has_interfered = False

        async def _run_in_copy(
            self, compute: RequestComputation, catch_up_failure: Refusal | None, *, cpu_limit_s: float
        ) -> tuple[bytes | None, float]:
            if not self.has_interfered:
                self.has_interfered = True
                running = asyncio.ensure_future(
                    super()._run_in_copy(compute, catch_up_failure, cpu_limit_s=cpu_limit_s)
                )
                await asyncio.sleep(0)  # The copy is made in the first step.
                small = Api(self._server)
                data = json.dumps({"Job": a_large_job(Meta={})}).encode()
                await send_raw(small, "PUT", "/v1/jobs", headers={"content-length": str(len(data))}, body=data)
                return await running
            return await super()._run_in_copy(compute, catch_up_failure, cpu_limit_s=cpu_limit_s)

    async def scenario(target: Target) -> None:
        reply = await send(target, "PUT", "/v1/jobs", {"Job": a_large_job()})

        stored = target.server.replica.get(JOBS, "default", "large")
        assert (reply.status, stored is not None and (stored.version, stored.meta)) == (200, (1, LARGE_META))

    with_target(scenario, make_worker=SlowWorker)


def run_in_worker(
    compute: Callable[[], Coroutine[Any, Any, bytes]], *, cpu_limit_s: float = 1.0
) -> Callable[[Target], Awaitable[bytes]]:
    async def run(target: Target) -> bytes:
        worker = ForkedRequestWorker(target.server.server, cpu_limit_s=cpu_limit_s)
        return await worker.run(compute, lane=WorkerLane.USER, owner="a")

    return run


def test_a_copy_that_dies_or_fails_is_reported() -> None:
    async def die() -> bytes:
        os.kill(os.getpid(), signal.SIGKILL)
        return b""

    async def fail() -> bytes:
        raise ValueError("unexpected")

    async def scenario(target: Target) -> None:
        with pytest.raises(Refusal, match="the worker process ended before its reply; retry") as death:
            await run_in_worker(die)(target)
        with pytest.raises(WorkerFailed, match="ValueError: unexpected"):
            await run_in_worker(fail)(target)
        assert death.value.code is RefusalCode.UNAVAILABLE

    with_target(scenario)


def test_a_copy_that_cannot_be_made_is_reported() -> None:
    async def reply() -> bytes:
        return b"done"

    async def scenario(target: Target) -> None:
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
        try:
            with pytest.raises(Refusal, match="cannot start a worker process: Too many open files") as refusal:
                await run_in_worker(reply)(target)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        assert refusal.value.code is RefusalCode.UNAVAILABLE
        assert await run_in_worker(reply)(target) == b"done"

    with_target(scenario)


def test_all_attempts_of_a_request_share_one_cpu_limit() -> None:
    """The first attempt uses more than half of the limit, and another write comes first."""

    async def compute_until_stale() -> bytes:
        began_s = time.process_time()
        while time.process_time() < began_s + 0.3:
            pass
        raise StaleSnapshot

    copies: list[int] = []

    class CountingWorker(ForkedRequestWorker):
        async def _run_in_copy(
            self, compute: RequestComputation, catch_up_failure: Refusal | None, *, cpu_limit_s: float
        ) -> tuple[bytes | None, float]:
            copies.append(0)
            return await super()._run_in_copy(compute, catch_up_failure, cpu_limit_s=cpu_limit_s)

    async def scenario(target: Target) -> None:
        worker = CountingWorker(target.server.server, cpu_limit_s=0.5)
        with pytest.raises(Refusal, match="2 attempts conflicted with other writes") as refused:
            await worker.run(compute_until_stale, lane=WorkerLane.USER, owner="a")

        assert (len(copies), refused.value.code) == (2, RefusalCode.CONFLICT)

    with_target(scenario)


def test_copies_make_different_ids() -> None:
    async def scenario(target: Target) -> None:
        async def make_id() -> bytes:
            return target.server.world.new_id().encode()

        assert await run_in_worker(make_id)(target) != await run_in_worker(make_id)(target)

    with_target(scenario)


def test_requests_beyond_the_queue_are_refused_with_a_time_to_retry() -> None:
    async def wait_for_the_end() -> bytes:
        signal.pause()
        return b""

    async def scenario(target: Target) -> None:
        worker = ForkedRequestWorker(target.server.server)
        running = [
            asyncio.ensure_future(worker.run(wait_for_the_end, lane=WorkerLane.USER, owner="a"))
            for _ in range(MAX_RUNNING + MAX_WAITING)
        ]
        places = worker._lanes[WorkerLane.USER]
        await wait_on_loop_until(lambda: places.waiting_count == MAX_WAITING, what="the queue is full")

        with pytest.raises(Overloaded, match=f"{MAX_WAITING} requests with large bodies wait") as refusal:
            await worker.run(wait_for_the_end, lane=WorkerLane.USER, owner="a")

        async def reply() -> bytes:
            return b"done"

        other_lane = await worker.run(reply, lane=WorkerLane.NODE, owner="a")
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
        after = await worker.run(reply, lane=WorkerLane.USER, owner="a")
        assert (refusal.value.retry_after_s, other_lane, after) == (9, b"done", b"done")

    with_target(scenario)


def a_large_registration(node_id: str) -> dict[str, Any]:
    """Return a registration of a node that has 120 kB of attributes, and so a large body."""
    return {"Node": {"ID": node_id, "Name": "fuzzed", "Attributes": LARGE_META}, "SecretID": NODE_SECRET}


class RecordingWorker(ForkedRequestWorker):
    """Records the lane and the owner of each request that it executes."""

    used: ClassVar[list[tuple[WorkerLane, Hashable]]] = []

    async def run(self, compute: RequestComputation, *, lane: WorkerLane, owner: Hashable) -> bytes:
        self.used.append((lane, owner))
        return await super().run(compute, lane=lane, owner=owner)


def find_lanes(*requests: tuple[str, str, object, dict[str, str]]) -> tuple[list[int], list[WorkerLane]]:
    """Send requests to a server with access control. Return their statuses, and the lanes that they used."""
    statuses = []

    @on_a_real_loop
    async def run() -> None:
        async with open_target(make_worker=RecordingWorker) as target:
            RecordingWorker.used.clear()  # The target has registered its own jobs.
            for method, path, body, headers in requests:
                statuses.append((await send(target, method, path, body, **headers)).status)

    run()
    return statuses, [lane for lane, _ in RecordingWorker.used]


UNKNOWN_ID = "00000000-0000-4000-8000-00000000abcd"
KNOWN_ID = an_id(77)
SECRET_OF_A_NODE = {"X_Cluster_Node_Secret": NODE_SECRET}
WRONG_SECRET = {"X_Cluster_Node_Secret": "wrong"}
REPORT = {"Allocations": [{"ID": an_id(number), "ClientStatus": "running"} for number in range(900)]}


@pytest.mark.parametrize(
    ("method", "path", "body", "headers"),
    [
        ("PUT", f"/v1/node/{UNKNOWN_ID}/register", a_large_registration(UNKNOWN_ID), {}),
        ("PUT", f"/v1/node/{UNKNOWN_ID}/register", a_large_registration(UNKNOWN_ID), WRONG_SECRET),
        ("PUT", f"/v1/node/{UNKNOWN_ID}/register", a_large_registration(UNKNOWN_ID), {"X_Cluster_Token": "a.b.c"}),
        ("PUT", f"/v1/node/{KNOWN_ID}/register", a_large_registration(KNOWN_ID), WRONG_SECRET),
        ("PUT", f"/v1/node/{KNOWN_ID}/report", REPORT, WRONG_SECRET),
        ("PUT", f"/v1/node/{KNOWN_ID}/report", REPORT, {}),
        ("POST", "/v1/jobs/statuses", {"jobs": [{"id": "a", "namespace": "default"}] * 300}, {}),
        ("PUT", "/v1/jobs", {"Job": a_large_job()}, {}),
    ],
    ids=["no introduction", "unknown node", "bad introduction", "wrong secret", "report", "no secret", "read", "write"],
)
def test_a_large_body_of_a_caller_without_rights_starts_no_copy(
    method: str, path: str, body: object, headers: dict[str, str]
) -> None:
    statuses, lanes = find_lanes((method, path, body, headers))

    assert (statuses, lanes) == ([403], [])


def test_the_lane_of_a_large_request_follows_from_what_its_sender_has_proved() -> None:
    register = f"/v1/node/{KNOWN_ID}/register"
    statuses, lanes = find_lanes(
        ("PUT", register, a_large_registration(KNOWN_ID), SECRET_OF_A_NODE),
        ("PUT", register, a_large_registration(KNOWN_ID), {}),
        ("PUT", f"/v1/node/{KNOWN_ID}/report", REPORT, SECRET_OF_A_NODE),
        ("PUT", "/v1/jobs", {"Job": a_large_job()}, {"X_Cluster_Token": BOOTSTRAP, **SECRET_OF_A_NODE}),
    )

    assert statuses == [200] * 4
    assert lanes == [WorkerLane.NODE, WorkerLane.NEW_NODE, WorkerLane.NODE, WorkerLane.USER]


def test_a_job_that_waits_for_capacity_is_explained_in_a_copy_with_what_would_help() -> None:
    group = {"Name": "web", "Count": 3, "Tasks": [{"Name": "server", "Driver": "no-such-driver"}]}

    async def scenario(target: Target) -> None:
        RecordingWorker.used.clear()  # The target has registered its own jobs.
        await send(target, "PUT", "/v1/jobs", {"Job": {"ID": "waits", "TaskGroups": [group]}})
        await send(target, "PUT", "/v1/jobs", {"Job": {"ID": "empty", "TaskGroups": [{**group, "Count": 0}]}})
        blocked = (EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
        await wait_on_loop_until(lambda: target.server.replica.count_by_index(*blocked) > 0, what="the job waits")

        of_idle = await send(target, "GET", "/v1/job/empty/explain", b"")
        before = list(RecordingWorker.used)
        explained = json.loads((await send(target, "GET", "/v1/job/waits/explain", b"")).body)

        assert (json.loads(of_idle.body)["Text"], before) == ("empty requests no allocation that could run now", [])
        assert [lane for lane, _ in RecordingWorker.used] == [WorkerLane.EXPLANATION]
        assert "no-such-driver" in explained["Groups"][0]["SmallestChange"]

    with_target(scenario, make_worker=RecordingWorker)


def test_a_caller_with_many_large_requests_takes_turns_with_other_callers() -> None:
    async def scenario(target: Target) -> None:
        order: list[str] = []

        class OrderedWorker(ForkedRequestWorker):
            """Records the result of each request as soon as it may have a copy."""

            async def _run_in_copy(
                self, compute: RequestComputation, catch_up_failure: Refusal | None, *, cpu_limit_s: float
            ) -> tuple[bytes | None, float]:
                order.append(run_coroutine(compute()).decode())
                return await super()._run_in_copy(compute, catch_up_failure, cpu_limit_s=cpu_limit_s)

        worker = OrderedWorker(target.server.server)

        async def send_as(owner: str) -> None:
            async def reply() -> bytes:
                return owner.encode()

            await worker.run(reply, lane=WorkerLane.USER, owner=owner)

        flood = [asyncio.ensure_future(send_as("flood")) for _ in range(MAX_RUNNING + MAX_WAITING)]
        places = worker._lanes[WorkerLane.USER]
        await wait_on_loop_until(lambda: places.waiting_count == MAX_WAITING, what="the queue is full")
        await send_as("user")
        refused = [each for each in await asyncio.gather(*flood, return_exceptions=True) if each is not None]

        assert order.index("user") <= 2 * MAX_RUNNING
        assert {type(each) for each in refused} == {Overloaded}  # On a busy machine, others wait for too long.

    with_target(scenario)


def test_a_coroutine_that_waits_for_the_event_loop_is_reported() -> None:
    async def wait() -> None:
        await asyncio.sleep(0)
        await Pending()

    class Pending:
        def __await__(self) -> Any:
            yield "a reply"

    with pytest.raises(AssertionError, match="must not wait for 'a reply'"):
        run_coroutine(wait())


# -- forks of a large process


@pytest.mark.parametrize(
    ("held_s", "expected_pause_s"), [(0.010, 0.0), (0.030, 0.120), (0.100, 0.400)], ids=["short", "long", "very long"]
)
def test_a_fork_of_a_large_process_is_followed_by_a_pause(held_s: float, expected_pause_s: float) -> None:
    @in_virtual_time
    async def scenario() -> None:
        world = SimulatedWorld(1, asyncio.get_running_loop().time)
        pacer = ForkPacer(world)
        pacer.count(held_s)
        began_s = world.monotonic_s()

        await pacer.wait()

        assert world.monotonic_s() - began_s == pytest.approx(expected_pause_s)

    scenario()


@in_virtual_time
async def test_requests_that_wait_together_fork_one_after_the_other() -> None:
    world = SimulatedWorld(1, asyncio.get_running_loop().time)
    pacer, forked_s = ForkPacer(world), []

    async def fork() -> None:
        await pacer.wait()
        forked_s.append(world.monotonic_s())
        pacer.count(0.025)

    began_s = world.monotonic_s()
    await asyncio.gather(*(fork() for _ in range(4)))

    assert [each - began_s for each in forked_s] == pytest.approx([0.0, 0.1, 0.2, 0.3])
