"""Dry runs and rebalancing: whose share of the scheduler's worker a request uses, and when that is full."""

from collections.abc import Hashable

from tests.cluster.api.access import an_operator
from tests.kit.cluster import ACluster
from tests.kit.requests import put
from tests.kit.virtual_time import in_virtual_time
from wharf.cluster.server.worker_process import WorkerFunction
from wharf.contract.model.refusal import Overloaded, Refusal, RefusalCode

PLAN = {"Job": {"ID": "p", "TaskGroups": [{"Name": "g", "Tasks": [{"Name": "t", "Driver": "mock"}]}]}}


class RecordingWorker:
    """A worker that records the owners of its computations."""

    def __init__(self) -> None:
        self.owners: list[Hashable] = []

    async def run(self, work: WorkerFunction, owner: Hashable) -> bytes:
        self.owners.append(owner)
        return work()


class RefusingWorker:
    """A worker that refuses all computations."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal

    async def run(self, work: WorkerFunction, owner: Hashable) -> bytes:  # noqa: ARG002 (the port's)
        raise self.refusal


@in_virtual_time
async def test_computations_belong_to_the_token_that_requests_them() -> None:
    async with ACluster() as cluster:
        worker = RecordingWorker()
        operator = await an_operator(cluster, worker=worker)
        await operator.policy("all", 'namespace "*" { policy = "write" }')
        other = await operator.a_token("all")

        for caller in (operator, other):
            await caller.put("/v1/job/p/plan", PLAN)
        await operator.put("/v1/operator/rebalance", query="plan")

    first, second = ("", operator.accessor), ("", other.accessor)
    assert worker.owners == [first, second, first]


@in_virtual_time
async def test_computations_without_a_token_belong_to_their_namespace() -> None:
    async with ACluster() as cluster:
        worker = RecordingWorker()
        server = await cluster.a_server(worker=worker)
        await put(server, "/v1/namespace", {"Name": "other"})

        await put(server, "/v1/job/p/plan", PLAN)
        await put(server, "/v1/job/p/plan", PLAN, query="namespace=other")

    assert worker.owners == [("", "", "default"), ("", "", "other")]


@in_virtual_time
async def test_a_full_worker_is_reported_with_the_time_of_a_retry() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(worker=RefusingWorker(Overloaded("all wait", 7)))

        reply = await put(server, "/v1/job/p/plan", PLAN)

    headers = reply.headers
    assert (reply.status, headers["retry-after"], headers["x-cluster-error-reason"]) == (503, "7", "overloaded")


@in_virtual_time
async def test_a_full_worker_is_reported_with_the_time_of_a_retry_also_to_a_request_with_a_large_body() -> None:
    large_plan = {"Job": {**PLAN["Job"], "Meta": {f"key{number}": "x" * 20 for number in range(4_000)}}}
    async with ACluster() as cluster:
        server = await cluster.a_server(worker=RefusingWorker(Overloaded("all wait", 7)))

        reply = await put(server, "/v1/job/p/plan", large_plan)

    assert (reply.status, reply.headers["retry-after"]) == (503, "7")


@in_virtual_time
async def test_every_reply_with_status_503_says_when_to_retry() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(worker=RefusingWorker(Refusal(RefusalCode.UNAVAILABLE, "no process")))

        reply = await put(server, "/v1/job/p/plan", PLAN)

    assert (reply.status, reply.headers["retry-after"], reply.body) == (503, "1", b"no process")
