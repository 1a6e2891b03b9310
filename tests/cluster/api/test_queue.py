"""The queue of jobs that wait for capacity: its order, and what callers without access to a namespace see of it."""

import itertools
from typing import Any

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.cluster.api.test_events import commit
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import DENIED, get, read, status_and_text
from tests.kit.state import a_node, an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from wharf.cluster.operations.waiting_queue import MAX_REASONS
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS, NAMESPACES, NODES
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.namespaces import Namespace

READ_DEFAULT = 'namespace "default" { policy = "read" }'


def build_waiting(name: str, *, since: int, namespace: str = "default", **fields: Any) -> list[object]:
    """Return the changes that add a job and its blocked evaluation."""
    task = a_task("server", resources=some_resources(memory_mb=64))
    job = a_job(name, a_group("web", task, count=3), namespace=namespace)
    evaluation = replace(
        an_evaluation(job),
        id=f"00000000-0000-0000-0000-{since:012}",
        status=EvaluationStatus.BLOCKED,
        waiting_since=since,
        **{"failed_tg_allocs": {"web": AllocMetric(coalesced_failures=2)}, **fields},
    )
    return [JOBS.build_put(job), EVALUATIONS.build_put(evaluation)]


async def read_jobs(server: OneServer, query: str = "", **options: Any) -> list[tuple[int, str]]:
    """Return the places and jobs of the queue."""
    queue = read(await get(server, "/v1/queue", f"stale=true&namespace=*{query}", **options))
    return [(entry["Place"], entry["JobID"]) for entry in queue["Entries"]]


async def a_queue(cluster: ACluster) -> OneServer:
    """Return a server on which jobs of two namespaces wait, one of which uses a part of the cluster."""
    server = await cluster.a_server(leads=False)
    changes = [
        NAMESPACES.build_put(Namespace(name="other", weight=2)),
        NODES.build_put(a_node("node-1")),
        ALLOCATIONS.build_put(replace(an_allocation(a_job("runs")), node_id="node-1")),
        *build_waiting("first", since=100),
        *build_waiting("second", since=200),
        *build_waiting("newer", since=300, namespace="other"),
        *build_waiting("urgent", since=400, priority=90, reserved_node_id="node-1"),
    ]
    await commit(server, *changes)
    return server


@in_virtual_time
async def test_jobs_wait_by_priority_then_share_of_their_namespace_then_age() -> None:
    async with ACluster() as cluster:
        server = await a_queue(cluster)

        assert await read_jobs(server) == [(1, "urgent"), (2, "newer"), (3, "first"), (4, "second")]
        assert await read_jobs(server, "&place=2&limit=2") == [(2, "newer"), (3, "first")]


@in_virtual_time
async def test_the_queue_says_since_when_and_for_what_a_job_waits() -> None:
    async with ACluster() as cluster:
        server = await a_queue(cluster)

        queue = read(await get(server, "/v1/queue", "stale=true&namespace=*"))

        entry = queue["Entries"][0]
        assert (entry["WaitingSince"], entry["ReservedNodeID"], entry["ReservedNodeName"] != "") == (
            400,
            "node-1",
            True,
        )
        assert entry["FailedGroups"]["web"]["CoalescedFailures"] == 2
        assert 0.0 < entry["RequestedShare"] < 1.0
        assert (queue["Count"], queue["Pending"]) == (4, 0)
        shares = [(share["Namespace"], share["Weight"], share["Waiting"]) for share in queue["Shares"]]
        assert shares == [("default", 1, 3), ("other", 2, 1)]


@in_virtual_time
async def test_a_caller_sees_only_jobs_of_its_namespaces_at_their_true_places() -> None:
    async with ACluster() as cluster:
        server = await a_queue(cluster)
        enable_acl(server)
        reader, stranger = await a_token(server, READ_DEFAULT), await a_token(server)
        await pass_time(1.0)  # A stale read does not wait for the tokens.

        queue = read(await get(server, "/v1/queue", "stale=true&namespace=*", headers=reader))

        places = [(entry["Place"], entry["JobID"], entry["ReservedNodeName"]) for entry in queue["Entries"]]
        assert places == [(1, "urgent", ""), (3, "first", ""), (4, "second", "")]
        assert ([share["Namespace"] for share in queue["Shares"]], queue["Count"]) == (["default"], 4)
        assert status_and_text(await get(server, "/v1/queue", "stale=true&namespace=*", headers=stranger)) == DENIED


@in_virtual_time
async def test_an_invalid_place_or_limit_is_refused() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)

        replies = [
            status_and_text(await get(server, "/v1/queue", f"stale=true&{query}")) for query in ("place=0", "limit=501")
        ]

        assert replies == [
            (400, "place: the first place is 1, got 0"), (400, "limit: expected a number from 1 to 500, got 501"),
        ]  # fmt: skip


@in_virtual_time
async def test_waiting_jobs_are_counted_by_their_reasons_with_the_one_that_waits_longest() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        lacks: dict[str, Any] = {
            "failed_tg_allocs": {"web": AllocMetric(nodes_evaluated=2, dimension_exhausted={"cpu": 1, "memory": 2})}
        }
        await commit(
            server,
            NAMESPACES.build_put(Namespace(name="other")),
            *build_waiting("newer", since=300, **lacks),
            *build_waiting("older", since=200, namespace="other", **lacks),
            *build_waiting("limited", since=100, quota_limit_reached="team"),
        )

        reasons = read(await get(server, "/v1/queue/reasons", "stale=true&namespace=*"))

        fields = ("Kind", "Name", "Count", "JobID", "Namespace", "WaitingSince")
        assert [tuple(reason[field] for field in fields) for reason in reasons["Reasons"]] == [
            ("resource", "memory", 2, "older", "other", 200),
            ("quota", "team", 1, "limited", "default", 100),
        ]
        assert (reasons["Count"], reasons["Others"]) == (3, 0)


@in_virtual_time
async def test_reasons_are_counted_only_in_namespaces_that_the_caller_may_read() -> None:
    async with ACluster() as cluster:
        server = await a_queue(cluster)
        enable_acl(server)
        reader, stranger = await a_token(server, READ_DEFAULT), await a_token(server)
        await pass_time(1.0)  # A stale read does not wait for the tokens.

        of_all = read(await get(server, "/v1/queue/reasons", "stale=true&namespace=*", headers=reader))
        denied = await get(server, "/v1/queue/reasons", "stale=true&namespace=*", headers=stranger)

        assert of_all["Count"] == 3
        assert status_and_text(denied) == DENIED


@in_virtual_time
async def test_a_reply_lists_the_most_frequent_of_many_reasons_and_counts_the_others() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server(leads=False)
        names = [f"q{number % (MAX_REASONS + 1):02}" for number in range(MAX_REASONS + 11)]
        changes = (
            build_waiting(f"job-{since}", since=since, quota_limit_reached=name) for since, name in enumerate(names, 1)
        )
        await commit(server, *itertools.chain.from_iterable(changes))

        reasons = read(await get(server, "/v1/queue/reasons", "stale=true"))

        assert (len(reasons["Reasons"]), reasons["Count"], reasons["Others"]) == (MAX_REASONS, MAX_REASONS + 11, 1)
        assert reasons["Reasons"][0]["Count"] == 2
