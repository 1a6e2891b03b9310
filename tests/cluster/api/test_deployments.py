"""Endpoints of deployments (scheduling.md 7.5)."""

import json
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import ask
from tests.kit.state import an_allocation
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import DENIED, READ, a_namespace, a_stored_job, an_id, found, get, ids_of, put, refused, store, told
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX

D1, D2, D3 = (an_id(0xD000 + number) for number in range(1, 4))
A1, A2 = an_id(0xA001), an_id(0xA002)
NOBODY = an_id(0xFFFF)
VERBS: dict[str, dict[str, Any]] = {
    "fail": {},
    "pause": {"DeploymentID": D1, "Pause": True},
    "promote": {"DeploymentID": D1, "All": True},
    "unblock": {"DeploymentID": D1},
    "allocation-health": {"DeploymentID": D1, "HealthyAllocationIDs": [A1]},
}


def a_deployment(job: Job, id: str = D1, **fields: Any) -> Deployment:
    group = DeploymentGroup(desired_total=2, desired_canaries=1, placed_canaries=(A1,), progress_deadline=60 * 10**9)
    given = {
        "namespace": job.namespace,
        "job_id": job.id,
        "job_create_index": job.create_index,
        "task_groups": {"web": group},
        "status": DeploymentStatus.RUNNING,
        "create_index": WRITE_INDEX,
        **fields,
    }
    return Deployment(id=id, **given)


async def with_deployment(cluster: ACluster, **fields: Any) -> OneServer:
    """D1 of the job shop, with a healthy canary A1 and another allocation A2."""
    server = await cluster.a_server()
    job = await a_stored_job(server, a_job())
    await store(server, DEPLOYMENTS.build_put(a_deployment(job, **fields)))
    status = AllocDeploymentStatus(healthy=True, canary=True)
    await store(server, ALLOCATIONS.build_put(an_allocation(job, A1, deployment_id=D1, deployment_status=status)))
    await store(server, ALLOCATIONS.build_put(an_allocation(job, A2, deployment_id=D1)))
    return server


async def with_others(cluster: ACluster) -> OneServer:
    """And D2 of the same job, which is over, and D3 of another namespace."""
    server = await with_deployment(cluster)
    job = await a_stored_job(server, a_job())
    await store(server, DEPLOYMENTS.build_put(a_deployment(job, D2, status=DeploymentStatus.SUCCESSFUL)))
    await a_namespace(server, "other")
    other = await a_stored_job(server, a_job("depot", namespace="other"))
    await store(server, DEPLOYMENTS.build_put(a_deployment(other, D3)))
    return server


def the_deployment(server: OneServer, id: str = D1) -> Deployment:
    deployment = server.replica.get(DEPLOYMENTS, id)
    assert deployment is not None
    return deployment


async def written(server: OneServer, verb: str, body: object = None) -> dict[str, Any]:
    """The reply of a write that succeeds."""
    reply = await put(server, f"/v1/deployment/{verb}/{D1}", VERBS[verb] if body is None else body)
    assert reply.status == 200, reply.body
    answer: dict[str, Any] = json.loads(reply.body)
    assert reply.headers["x-cluster-index"] == str(answer["Index"])
    return answer


# -- reads


@in_virtual_time
async def test_deployments_are_listed_in_order_of_creation_and_back() -> None:
    async with ACluster() as cluster:
        server = await with_others(cluster)

        assert await ids_of(server, "/v1/deployments") == [D1, D2]
        assert await ids_of(server, "/v1/deployments", "reverse=true") == [D2, D1]
        assert await ids_of(server, "/v1/deployments", "namespace=*") == [D1, D2, D3]
        assert await ids_of(server, "/v1/deployments", "prefix=0000d002") == [D2]
        assert await ids_of(server, "/v1/deployments", "filter=Status==successful") == [D2]
        assert await ids_of(server, "/v1/deployments", "filter=TaskGroups.web.DesiredTotal==2") == [D1, D2]


@in_virtual_time
async def test_pages_of_deployments_name_index_and_id_of_the_next() -> None:
    async with ACluster() as cluster:
        server = await with_others(cluster)

        token = (await get(server, "/v1/deployments", "per_page=1")).headers["x-cluster-nexttoken"]

        assert token == f"{the_deployment(server, D2).create_index}.{D2}"
        assert await ids_of(server, "/v1/deployments", f"next_token={token}") == [D2]


@in_virtual_time
async def test_a_prefix_that_is_no_hex_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        assert told(await get(server, "/v1/deployments", "prefix=abc")) == (
            400,
            b"index error: Input (without hyphens) must be even length",
        )


@in_virtual_time
async def test_a_deployment_shows_every_field_and_those_of_its_groups() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        shown = await found(server, f"/v1/deployment/{D1}")

        assert set(shown) == {
            "ID", "Namespace", "JobID", "JobVersion", "JobModifyIndex", "JobSpecModifyIndex", "JobCreateIndex",
            "IsMultiregion", "TaskGroups", "Status", "StatusDescription", "EvalPriority", "CreateIndex", "ModifyIndex",
            "CreateTime", "ModifyTime",
        }  # fmt: skip
        assert shown["TaskGroups"]["web"] == {
            "AutoRevert": False, "AutoPromote": False, "ProgressDeadline": 60_000_000_000, "RequireProgressBy": None,
            "Promoted": False, "PlacedCanaries": [A1], "DesiredCanaries": 1, "DesiredTotal": 2, "PlacedAllocs": 0,
            "HealthyAllocs": 0, "UnhealthyAllocs": 0,
        }  # fmt: skip


@in_virtual_time
async def test_the_allocations_of_a_deployment_are_listed_in_short() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, an_id(9), deployment_id=D2)))

        assert await ids_of(server, f"/v1/deployment/allocations/{D1}") == [A1, A2]
        assert await ids_of(server, f"/v1/deployment/allocations/{NOBODY}") == []


@in_virtual_time
async def test_an_id_that_is_no_uuid_is_told_so_and_one_that_nobody_has_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        no_uuid = (400, b"deployment lookup failed: index error: UUID must be 36 characters")

        assert told(await get(server, "/v1/deployment/d1")) == no_uuid
        assert told(await get(server, f"/v1/deployment/{NOBODY}")) == (404, b"deployment not found")
        for verb, body in VERBS.items():
            unknown = {**body, "DeploymentID": NOBODY}
            assert told(await put(server, f"/v1/deployment/{verb}/d1", {**body, "DeploymentID": "d1"})) == no_uuid
            assert told(await put(server, f"/v1/deployment/{verb}/{NOBODY}", unknown)) == (404, b"deployment not found")


@in_virtual_time
async def test_whoever_waits_for_a_deployment_wakes_when_it_moves() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        seen = (await get(server, f"/v1/deployment/{D1}")).headers["x-cluster-index"]
        waiting = cluster.start(get(server, f"/v1/deployment/{D1}", f"index={seen}"), name="waits")

        index = (await written(server, "pause"))["Index"]

        reply = await waiting
        assert (json.loads(reply.body)["Status"], reply.headers["x-cluster-index"]) == ("paused", str(index))


# -- writes


@in_virtual_time
async def test_a_deployment_is_failed_with_and_without_a_body() -> None:
    for body in (b"", b"{}", b"null"):
        async with ACluster() as cluster:
            server = await with_deployment(cluster)

            reply = await ask(server.api, "POST", f"/v1/deployment/fail/{D1}", body=body)

            answer = json.loads(reply.body)
            assert (the_deployment(server).status, the_deployment(server).status_description) == (
                "failed",
                "Deployment marked as failed",
            )
            assert answer == {
                "EvalID": answer["EvalID"], "EvalCreateIndex": answer["Index"],
                "DeploymentModifyIndex": answer["Index"], "RevertedJobVersion": None, "Index": answer["Index"],
            }  # fmt: skip


@in_virtual_time
async def test_the_evaluation_that_a_reply_names_is_of_the_deployment() -> None:
    for verb in ("fail", "promote", "allocation-health"):
        async with ACluster() as cluster:
            server = await with_deployment(cluster)

            evaluation = server.replica.get(EVALUATIONS, (await written(server, verb))["EvalID"])

            assert evaluation is not None
            assert (evaluation.triggered_by, evaluation.deployment_id) == ("deployment-watcher", D1)


@in_virtual_time
async def test_a_pause_makes_no_evaluation_and_a_resumption_does() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        paused = await written(server, "pause")
        assert (the_deployment(server).status, paused["EvalID"], paused["EvalCreateIndex"]) == ("paused", "", 0)
        resumed = await written(server, "pause", {"DeploymentID": D1, "Pause": False})

        assert (the_deployment(server).status, resumed["EvalCreateIndex"]) == ("running", resumed["Index"])


@in_virtual_time
async def test_canaries_are_promoted_of_all_groups_or_of_those_that_are_named() -> None:
    for body in ({"All": True, "Groups": ["nonsense"]}, {"Groups": ["web"]}):
        async with ACluster() as cluster:
            server = await with_deployment(cluster)

            await written(server, "promote", {"DeploymentID": D1, **body})

            assert (the_deployment(server).task_groups or {})["web"].promoted


@in_virtual_time
async def test_too_few_healthy_canaries_are_told() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, A1, deployment_id=D1)))

        assert await refused(server, put(server, f"/v1/deployment/promote/{D1}", VERBS["promote"])) == (
            400,
            'Task group "web" has 0/1 healthy allocations',
        )


@in_virtual_time
async def test_unblocking_where_nothing_waits_is_answered_and_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        before = the_deployment(server)

        answer = await written(server, "unblock")

        assert the_deployment(server) == before
        assert (answer["EvalID"], answer["DeploymentModifyIndex"]) == ("", before.modify_index)


@in_virtual_time
async def test_a_sick_allocation_fails_the_deployment() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        await written(server, "allocation-health", {"DeploymentID": D1, "UnhealthyAllocationIDs": [A2]})

        group = (the_deployment(server).task_groups or {})["web"]
        assert (the_deployment(server).status, group.unhealthy_allocs) == ("failed", 1)


@in_virtual_time
async def test_what_does_not_fit_in_one_write_is_done_in_several_and_answered_once() -> None:
    async with ACluster(bounds=WriteLimits(changes=24, conditions=24)) as cluster:
        server = await with_deployment(cluster)
        job = await a_stored_job(server, a_job())
        ids = [an_id(0xB000 + number) for number in range(40)]
        for id in ids:
            await store(server, ALLOCATIONS.build_put(an_allocation(job, id, deployment_id=D1)))

        await written(server, "allocation-health", {"DeploymentID": D1, "UnhealthyAllocationIDs": ids})

        group = (the_deployment(server).task_groups or {})["web"]
        assert (the_deployment(server).status, group.unhealthy_allocs) == ("failed", 40)


# -- refusals


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "fail"])
@in_virtual_time
async def test_the_body_names_the_deployment_of_the_path(verb: str) -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        path = f"/v1/deployment/{verb}/{D1}"

        assert await refused(server, put(server, path, {**VERBS[verb], "DeploymentID": ""})) == (
            400,
            "DeploymentID must be specified",
        )
        assert await refused(server, put(server, path, {**VERBS[verb], "DeploymentID": D2})) == (
            400,
            "Deployment ID does not match",
        )
        assert await refused(server, put(server, path)) == (400, "Request body is empty")
        assert (await refused(server, put(server, path, {"DeploymentID": 5})))[0] == 400


@pytest.mark.parametrize("verb", VERBS)
@in_virtual_time
async def test_a_deployment_that_is_over_is_not_steered(verb: str) -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster, status=DeploymentStatus.FAILED)
        said = {"allocation-health": "set health of allocations for a"}.get(verb, verb)

        assert await refused(server, put(server, f"/v1/deployment/{verb}/{D1}", VERBS[verb])) == (
            400,
            f"can't {said} terminal deployment",
        )


@pytest.mark.parametrize("verb", VERBS)
@in_virtual_time
async def test_a_deployment_is_steered_by_put_or_post_only(verb: str) -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        for method in ("GET", "DELETE"):
            assert (await ask(server.api, method, f"/v1/deployment/{verb}/{D1}")).status == 405


@in_virtual_time
async def test_the_health_of_too_many_at_once_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        body = {"DeploymentID": D1, "HealthyAllocationIDs": [A1] * 10_001}

        assert await refused(server, put(server, f"/v1/deployment/allocation-health/{D1}", body)) == (
            400,
            "10001 ids are too many; say it of 10000 at a time",
        )


@pytest.mark.parametrize(
    ("verb", "capability"),
    [
        ("fail", "fail-deployment"),
        ("pause", "pause-deployment"),
        ("promote", "promote-deployment"),
        ("unblock", "unblock-deployment"),
        ("allocation-health", "set-alloc-health-deployment"),
    ],
)
@in_virtual_time
async def test_each_way_of_steering_has_a_right_of_its_own_or_that_to_submit(verb: str, capability: str) -> None:
    async with ACluster() as cluster:
        server = await with_others(cluster)
        enable_acl(server)
        allowed = [
            await a_token(server, f'namespace "default" {{ capabilities = ["{given}"] }}')
            for given in (capability, "submit-job")
        ]
        reader = await a_token(server, READ)

        async def steer(id: str, headers: dict[str, str]) -> int:
            body = {**VERBS[verb], "DeploymentID": id}
            return (await put(server, f"/v1/deployment/{verb}/{id}", body, headers=headers)).status

        assert [await steer(D1, reader), *[await steer(D3, headers) for headers in allowed]] == [403, 403, 403]
        # The second comes after the first has done it, and is let in all the same.
        assert await steer(D1, allowed[0]) == 200
        assert await steer(D1, allowed[1]) in (200, 400)


@in_virtual_time
async def test_a_token_sees_the_deployments_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_others(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)

        assert await ids_of(server, "/v1/deployments", "namespace=*", reader) == [D1, D2]
        assert (await get(server, f"/v1/deployment/{D1}", headers=reader)).status == 200
        assert told(await get(server, f"/v1/deployment/{D3}", headers=reader)) == DENIED
        assert told(await get(server, f"/v1/deployment/allocations/{D3}", headers=reader)) == DENIED
        assert told(await get(server, "/v1/deployments")) == DENIED
