"""Status overviews of many jobs (jobs.md 1.1)."""

import asyncio
import json
from typing import Any

import pytest

from tests.builders import a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import an_allocation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import a_namespace, a_stored_job, store
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX

PATH = "/v1/jobs/statuses"


async def with_stored_jobs(cluster: ACluster, *jobs: Job) -> tuple[OneServer, ApiClient]:
    """Start a server with these jobs. It has no leader, so that only the test changes records."""
    server = await cluster.a_server()
    assert server.election.term is not None
    server.election.term.lose()
    for job in jobs:
        await a_stored_job(server, job)
    return server, ApiClient(server)


def ids(statuses: list[dict[str, Any]]) -> list[str]:
    return [each["ID"] for each in statuses]


@in_virtual_time
async def test_a_status_has_the_allocations_and_the_latest_deployment() -> None:
    async with ACluster() as cluster:
        server, client = await with_stored_jobs(
            cluster, a_job("shop", a_group(count=2), a_group("db"), meta={"pack.name": "x"})
        )
        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None
        status = AllocDeploymentStatus(healthy=True, canary=True)
        allocation = an_allocation(job, "a1", client_status=ClientStatus.RUNNING, deployment_status=status)
        deployment = Deployment(
            id="d1",
            namespace="default",
            job_id="shop",
            job_version=0,
            job_create_index=job.create_index,
            status=DeploymentStatus.RUNNING,
            task_groups={"web": DeploymentGroup(auto_promote=True, desired_canaries=1)},
            create_index=WRITE_INDEX,
        )
        await store(server, ALLOCATIONS.build_put(allocation), DEPLOYMENTS.build_put(deployment))

        (result,) = await client.get(PATH)

        assert result["Allocs"] == [
            {
                "ID": "a1",
                "Group": "web",
                "ClientStatus": "running",
                "NodeID": "node-1",
                "DeploymentStatus": {"Canary": True, "Healthy": True},
                "JobVersion": 0,
                "FollowupEvalID": "",
                "HasPausedTask": False,
            }
        ]
        assert result["LatestDeployment"] == {
            "ID": "d1",
            "IsActive": True,
            "JobVersion": 0,
            "Status": "running",
            "StatusDescription": "",
            "AllAutoPromote": True,
            "RequiresPromotion": True,
        }
        assert (result["GroupCountSum"], result["ChildStatuses"], result["IsPack"], result["ParentID"]) == (
            3,
            None,
            True,
            "",
        )


@in_virtual_time
async def test_statuses_are_listed_last_changed_first_and_reversed_on_request() -> None:
    async with ACluster() as cluster:
        _, client = await with_stored_jobs(cluster, a_job("b"), a_job("c"), a_job("a"))

        assert ids(await client.get(PATH)) == ["a", "c", "b"]
        assert ids(await client.get(PATH, reverse="true")) == ["b", "c", "a"]


@in_virtual_time
async def test_a_page_token_is_the_index_of_the_next_job() -> None:
    async with ACluster() as cluster:
        server, client = await with_stored_jobs(cluster, *(a_job(name) for name in "abcd"))
        second = server.replica.get(JOBS, "default", "b")
        assert second is not None

        first = await client.raw("GET", PATH, per_page=2)
        token = first.headers["x-cluster-nexttoken"]

        assert token == str(second.modify_index)
        assert ids(await client.get(PATH, per_page=2, next_token=token)) == ["b", "a"]


@in_virtual_time
async def test_jobs_changed_by_one_write_are_paged_one_by_one_in_both_directions() -> None:
    async with ACluster() as cluster:
        server, client = await with_stored_jobs(cluster)
        jobs = [a_job(name, create_index=WRITE_INDEX) for name in ("a", "b.c", "d/e", "f")]
        await store(server, *(change for job in jobs for change in (JOBS.build_put(job), JOB_VERSIONS.build_put(job))))

        for reverse in ("false", "true"):
            observed, token = [], ""
            while True:
                reply = await client.raw("GET", PATH, per_page=1, next_token=token, reverse=reverse)
                observed += ids(await client.get(PATH, per_page=1, next_token=token, reverse=reverse))
                token = reply.headers.get("x-cluster-nexttoken", "")
                if not token:
                    break
            assert sorted(observed) == ["a", "b.c", "d/e", "f"]
            assert len(observed) == 4


@in_virtual_time
async def test_child_jobs_are_listed_on_request_and_their_parent_has_their_statuses() -> None:
    async with ACluster() as cluster:
        child = a_job("convert/dispatch-1", parent_id="convert")
        _, client = await with_stored_jobs(cluster, a_parameterized_job("convert"), child, a_periodic_job("nightly"))

        result = await client.get(PATH)

        assert ids(result) == ["nightly", "convert"]
        assert [(each["ChildStatuses"], each["Allocs"]) for each in result] == [([], None), (["running"], None)]
        assert ids(await client.get(PATH, include_children="true")) == ["nightly", "convert/dispatch-1", "convert"]
        assert (await client.refusal("GET", PATH, include_children="maybe"))[0] == 400


@in_virtual_time
async def test_statuses_are_filtered_by_all_job_fields() -> None:
    async with ACluster() as cluster:
        _, client = await with_stored_jobs(cluster, a_job("a", priority=70), a_job("b"))

        assert ids(await client.get(PATH, filter="Priority == 70")) == ["a"]
        assert (await client.refusal("GET", PATH, filter="Colour == red"))[0] == 400


# -- named jobs


async def post(client: ApiClient, body: Any, **query: Any) -> list[str]:
    reply = await client.raw("POST", PATH, body, **query)
    assert reply.status == 200, reply.body
    return ids(json.loads(reply.body))


@in_virtual_time
async def test_a_body_names_jobs_in_any_namespace_and_unknown_ones_are_omitted() -> None:
    async with ACluster() as cluster:
        server, client = await with_stored_jobs(cluster, a_job("a"), a_job("b"))
        await a_namespace(server, "other")
        await a_stored_job(server, a_job("c", namespace="other"))
        named = [{"ID": "a", "Namespace": "default"}, {"ID": "c", "Namespace": "other"}, {"ID": "x"}]

        assert await post(client, {"Jobs": named}) == ["c", "a"]


@in_virtual_time
async def test_a_request_without_a_body_lists_all_jobs() -> None:
    async with ACluster() as cluster:
        _, client = await with_stored_jobs(cluster, a_job("a"), a_job("b"))

        assert await post(client, b"") == ["b", "a"]


@in_virtual_time
async def test_named_child_jobs_are_listed_if_the_body_includes_children() -> None:
    async with ACluster() as cluster:
        _, client = await with_stored_jobs(cluster, a_job("p/c", parent_id="p"))
        named = [{"ID": "p/c", "Namespace": "default"}]

        assert await post(client, {"Jobs": named}) == []
        assert await post(client, {"Jobs": named, "IncludeChildren": True}) == ["p/c"]


@pytest.mark.parametrize(
    ("body", "begins"),
    [
        ({"Jobs": []}, "no jobs in request"),
        ({}, "no jobs in request"),
        (b"{", "error decoding request: "),
        ({"Jobs": "a"}, "error decoding request: "),
    ],
)
def test_a_body_without_jobs_is_a_400(body: Any, begins: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            client = ApiClient(await cluster.a_server())

            status, text = await client.refusal("POST", PATH, body)

            assert (status, text[: len(begins)]) == (400, begins)

    run()


@in_virtual_time
async def test_a_body_lists_only_jobs_of_namespaces_that_the_caller_may_read() -> None:
    async with ACluster() as cluster:
        server, _ = await with_stored_jobs(cluster, a_job("a"))
        await a_namespace(server, "other")
        await a_stored_job(server, a_job("b", namespace="other"))
        enable_acl(server)
        reader = ApiClient(server, await a_token(server, 'namespace "other" { policy = "read" }'))
        named = [{"ID": "a", "Namespace": "default"}, {"ID": "b", "Namespace": "other"}]

        assert await post(reader, {"Jobs": named}) == ["b"]
        assert await ApiClient(server).refusal("POST", PATH, {"Jobs": named}) == (403, "Permission denied")


@in_virtual_time
async def test_a_blocking_read_of_statuses_wakes_for_an_allocation() -> None:
    async with ACluster() as cluster:
        server, client = await with_stored_jobs(cluster, a_job("shop"))
        index = (await client.raw("GET", PATH)).headers["x-cluster-index"]
        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None

        pending_read = asyncio.ensure_future(client.get(PATH, index=index, wait="60s"))
        await pass_time(0.2)
        was_waiting = not pending_read.done()
        await store(server, ALLOCATIONS.build_put(an_allocation(job, "a1")))

        assert (was_waiting, len((await pending_read)[0]["Allocs"])) == (True, 1)


@in_virtual_time
async def test_all_named_jobs_are_listed_whatever_the_page_size() -> None:
    async with ACluster() as cluster:
        _, client = await with_stored_jobs(cluster, a_job("a"), a_job("b"))
        named = [{"ID": name, "Namespace": "default"} for name in "ab"]

        assert await post(client, {"Jobs": named}, per_page=1) == ["b", "a"]
