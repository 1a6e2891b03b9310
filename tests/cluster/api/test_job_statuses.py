"""The statuses of many jobs (jobs.md 1.1)."""

import asyncio
import json
from typing import Any

import pytest

from tests.builders import a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.state import an_allocation
from tests.kit.talking import Talk
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import a_namespace, a_stored_job, store
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, JOB_VERSIONS, JOBS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX

PATH = "/v1/jobs/statuses"


async def with_stored(cluster: ACluster, *jobs: Job) -> tuple[OneServer, Talk]:
    """Nobody leads, so nothing moves but what the test moves."""
    server = await cluster.a_server()
    assert server.election.held is not None
    server.election.held.lose()
    for job in jobs:
        await a_stored_job(server, job)
    return server, Talk(server)


def ids(told: list[dict[str, Any]]) -> list[str]:
    return [each["ID"] for each in told]


@in_virtual_time
async def test_a_job_is_shown_with_allocations_and_its_latest_deployment() -> None:
    async with ACluster() as cluster:
        server, talk = await with_stored(
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

        (told,) = await talk.get(PATH)

        assert told["Allocs"] == [
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
        assert told["LatestDeployment"] == {
            "ID": "d1",
            "IsActive": True,
            "JobVersion": 0,
            "Status": "running",
            "StatusDescription": "",
            "AllAutoPromote": True,
            "RequiresPromotion": True,
        }
        assert (told["GroupCountSum"], told["ChildStatuses"], told["IsPack"], told["ParentID"]) == (3, None, True, "")


@in_virtual_time
async def test_the_newest_change_comes_first_and_in_reverse_the_oldest() -> None:
    async with ACluster() as cluster:
        _, talk = await with_stored(cluster, a_job("b"), a_job("c"), a_job("a"))

        assert ids(await talk.get(PATH)) == ["a", "c", "b"]
        assert ids(await talk.get(PATH, reverse="true")) == ["b", "c", "a"]


@in_virtual_time
async def test_a_page_names_the_index_of_the_first_job_of_the_next() -> None:
    async with ACluster() as cluster:
        server, talk = await with_stored(cluster, *(a_job(name) for name in "abcd"))
        second = server.replica.get(JOBS, "default", "b")
        assert second is not None

        first = await talk.raw("GET", PATH, per_page=2)
        token = first.headers["x-cluster-nexttoken"]

        assert token == str(second.modify_index)
        assert ids(await talk.get(PATH, per_page=2, next_token=token)) == ["b", "a"]


@in_virtual_time
async def test_jobs_that_one_write_changed_are_paged_one_by_one_in_both_directions() -> None:
    async with ACluster() as cluster:
        server, talk = await with_stored(cluster)
        jobs = [a_job(name, create_index=WRITE_INDEX) for name in ("a", "b.c", "d/e", "f")]
        await store(server, *(change for job in jobs for change in (JOBS.build_put(job), JOB_VERSIONS.build_put(job))))

        for reverse in ("false", "true"):
            seen, token = [], ""
            while True:
                reply = await talk.raw("GET", PATH, per_page=1, next_token=token, reverse=reverse)
                seen += ids(await talk.get(PATH, per_page=1, next_token=token, reverse=reverse))
                token = reply.headers.get("x-cluster-nexttoken", "")
                if not token:
                    break
            assert sorted(seen) == ["a", "b.c", "d/e", "f"]
            assert len(seen) == 4


@in_virtual_time
async def test_children_are_hidden_unless_asked_for_and_their_parent_tells_their_statuses() -> None:
    async with ACluster() as cluster:
        child = a_job("convert/dispatch-1", parent_id="convert")
        _, talk = await with_stored(cluster, a_parameterized_job("convert"), child, a_periodic_job("nightly"))

        told = await talk.get(PATH)

        assert ids(told) == ["nightly", "convert"]
        assert [(each["ChildStatuses"], each["Allocs"]) for each in told] == [([], None), (["running"], None)]
        assert ids(await talk.get(PATH, include_children="true")) == ["nightly", "convert/dispatch-1", "convert"]
        assert (await talk.refusal("GET", PATH, include_children="maybe"))[0] == 400


@in_virtual_time
async def test_statuses_are_filtered_by_the_whole_job() -> None:
    async with ACluster() as cluster:
        _, talk = await with_stored(cluster, a_job("a", priority=70), a_job("b"))

        assert ids(await talk.get(PATH, filter="Priority == 70")) == ["a"]
        assert (await talk.refusal("GET", PATH, filter="Colour == red"))[0] == 400


# -- of jobs that are named


async def post(talk: Talk, body: Any, **query: Any) -> list[str]:
    reply = await talk.raw("POST", PATH, body, **query)
    assert reply.status == 200, reply.body
    return ids(json.loads(reply.body))


@in_virtual_time
async def test_a_body_names_jobs_wherever_they_are_and_names_of_nothing_are_left_out() -> None:
    async with ACluster() as cluster:
        server, talk = await with_stored(cluster, a_job("a"), a_job("b"))
        await a_namespace(server, "other")
        await a_stored_job(server, a_job("c", namespace="other"))
        named = [{"ID": "a", "Namespace": "default"}, {"ID": "c", "Namespace": "other"}, {"ID": "x"}]

        assert await post(talk, {"Jobs": named}) == ["c", "a"]


@in_virtual_time
async def test_no_body_asks_for_all() -> None:
    async with ACluster() as cluster:
        _, talk = await with_stored(cluster, a_job("a"), a_job("b"))

        assert await post(talk, b"") == ["b", "a"]


@in_virtual_time
async def test_named_children_are_shown_where_the_body_asks_for_them() -> None:
    async with ACluster() as cluster:
        _, talk = await with_stored(cluster, a_job("p/c", parent_id="p"))
        named = [{"ID": "p/c", "Namespace": "default"}]

        assert await post(talk, {"Jobs": named}) == []
        assert await post(talk, {"Jobs": named, "IncludeChildren": True}) == ["p/c"]


@pytest.mark.parametrize(
    ("body", "begins"),
    [
        ({"Jobs": []}, "no jobs in request"),
        ({}, "no jobs in request"),
        (b"{", "error decoding request: "),
        ({"Jobs": "a"}, "error decoding request: "),
    ],
)
def test_a_body_that_names_nothing_is_a_400(body: Any, begins: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            talk = Talk(await cluster.a_server())

            status, text = await talk.refusal("POST", PATH, body)

            assert (status, text[: len(begins)]) == (400, begins)

    story()


@in_virtual_time
async def test_a_body_shows_only_jobs_of_namespaces_that_the_caller_may_read() -> None:
    async with ACluster() as cluster:
        server, _ = await with_stored(cluster, a_job("a"))
        await a_namespace(server, "other")
        await a_stored_job(server, a_job("b", namespace="other"))
        enable_acl(server)
        reader = Talk(server, await a_token(server, 'namespace "other" { policy = "read" }'))
        named = [{"ID": "a", "Namespace": "default"}, {"ID": "b", "Namespace": "other"}]

        assert await post(reader, {"Jobs": named}) == ["b"]
        assert await Talk(server).refusal("POST", PATH, {"Jobs": named}) == (403, "Permission denied")


@in_virtual_time
async def test_who_waits_on_statuses_is_woken_by_an_allocation() -> None:
    async with ACluster() as cluster:
        server, talk = await with_stored(cluster, a_job("shop"))
        index = (await talk.raw("GET", PATH)).headers["x-cluster-index"]
        job = server.replica.get(JOBS, "default", "shop")
        assert job is not None

        waiting = asyncio.ensure_future(talk.get(PATH, index=index, wait="60s"))
        await pass_time(0.2)
        was_waiting = not waiting.done()
        await store(server, ALLOCATIONS.build_put(an_allocation(job, "a1")))

        assert (was_waiting, len((await waiting)[0]["Allocs"])) == (True, 1)


@in_virtual_time
async def test_as_many_are_shown_as_a_body_names_whatever_the_size_of_a_page() -> None:
    async with ACluster() as cluster:
        _, talk = await with_stored(cluster, a_job("a"), a_job("b"))
        named = [{"ID": name, "Namespace": "default"} for name in "ab"]

        assert await post(talk, {"Jobs": named}, per_page=1) == ["b", "a"]
