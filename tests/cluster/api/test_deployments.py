"""Endpoints of deployments (scheduling.md 7.5)."""

import json
from typing import Any

import pytest

from tests.builders import a_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.exchange import send_raw
from tests.kit.state import an_allocation
from tests.kit.virtual_time import in_virtual_time
from tests.kit.work import (
    DENIED,
    READ,
    a_namespace,
    a_stored_job,
    an_id,
    get,
    list_ids,
    put,
    read_json,
    read_refusal,
    status_and_body,
    store,
)
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX

D1, D2, D3 = (an_id(0xD000 + number) for number in range(1, 4))
A1, A2 = an_id(0xA001), an_id(0xA002)
UNKNOWN_ID = an_id(0xFFFF)
VERBS: dict[str, dict[str, Any]] = {
    "fail": {},
    "pause": {"DeploymentID": D1, "Pause": True},
    "promote": {"DeploymentID": D1, "All": True},
    "unblock": {"DeploymentID": D1},
    "allocation-health": {"DeploymentID": D1, "HealthyAllocationIDs": [A1]},
}


def a_deployment(job: Job, id: str = D1, **fields: Any) -> Deployment:
    group = DeploymentGroup(desired_total=2, desired_canaries=1, placed_canaries=(A1,), progress_deadline=60 * 10**9)
    submitted = {
        "namespace": job.namespace,
        "job_id": job.id,
        "job_create_index": job.create_index,
        "task_groups": {"web": group},
        "status": DeploymentStatus.RUNNING,
        "create_index": WRITE_INDEX,
        **fields,
    }
    return Deployment(id=id, **submitted)


async def with_deployment(cluster: ACluster, **fields: Any) -> OneServer:
    """Start a server with D1 of the job shop, which has a healthy canary A1 and another allocation A2."""
    server = await cluster.a_server()
    job = await a_stored_job(server, a_job())
    await store(server, DEPLOYMENTS.build_put(a_deployment(job, **fields)))
    status = AllocDeploymentStatus(healthy=True, canary=True)
    await store(server, ALLOCATIONS.build_put(an_allocation(job, A1, deployment_id=D1, deployment_status=status)))
    await store(server, ALLOCATIONS.build_put(an_allocation(job, A2, deployment_id=D1)))
    return server


async def with_three_deployments(cluster: ACluster) -> OneServer:
    """Start a server with D1, with D2 of the same job, which is finished, and with D3 of another namespace."""
    server = await with_deployment(cluster)
    job = await a_stored_job(server, a_job())
    await store(server, DEPLOYMENTS.build_put(a_deployment(job, D2, status=DeploymentStatus.SUCCESSFUL)))
    await a_namespace(server, "other")
    second = await a_stored_job(server, a_job("depot", namespace="other"))
    await store(server, DEPLOYMENTS.build_put(a_deployment(second, D3)))
    return server


def the_deployment(server: OneServer, id: str = D1) -> Deployment:
    deployment = server.replica.get(DEPLOYMENTS, id)
    assert deployment is not None
    return deployment


async def change(server: OneServer, verb: str, body: object = None) -> dict[str, Any]:
    """Return the reply of a change that succeeds."""
    reply = await put(server, f"/v1/deployment/{verb}/{D1}", VERBS[verb] if body is None else body)
    assert reply.status == 200, reply.body
    response: dict[str, Any] = json.loads(reply.body)
    assert reply.headers["x-cluster-index"] == str(response["Index"])
    return response


# -- reads


@in_virtual_time
async def test_deployments_are_listed_by_creation_in_both_directions() -> None:
    async with ACluster() as cluster:
        server = await with_three_deployments(cluster)

        assert await list_ids(server, "/v1/deployments") == [D1, D2]
        assert await list_ids(server, "/v1/deployments", "reverse=true") == [D2, D1]
        assert await list_ids(server, "/v1/deployments", "namespace=*") == [D1, D2, D3]
        assert await list_ids(server, "/v1/deployments", "prefix=0000d002") == [D2]
        assert await list_ids(server, "/v1/deployments", "filter=Status==successful") == [D2]
        assert await list_ids(server, "/v1/deployments", "filter=TaskGroups.web.DesiredTotal==2") == [D1, D2]


@in_virtual_time
async def test_page_tokens_of_deployments_hold_index_and_id() -> None:
    async with ACluster() as cluster:
        server = await with_three_deployments(cluster)

        token = (await get(server, "/v1/deployments", "per_page=1")).headers["x-cluster-nexttoken"]

        assert token == f"{the_deployment(server, D2).create_index}.{D2}"
        assert await list_ids(server, "/v1/deployments", f"next_token={token}") == [D2]


@in_virtual_time
async def test_a_prefix_that_is_not_hex_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        assert status_and_body(await get(server, "/v1/deployments", "prefix=abc")) == (
            400,
            b"index error: Input (without hyphens) must be even length",
        )


@in_virtual_time
async def test_a_deployment_has_every_field_and_the_fields_of_its_groups() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        views = await read_json(server, f"/v1/deployment/{D1}")

        assert set(views) == {
            "ID", "Namespace", "JobID", "JobVersion", "JobModifyIndex", "JobSpecModifyIndex", "JobCreateIndex",
            "IsMultiregion", "TaskGroups", "Status", "StatusDescription", "EvalPriority", "CreateIndex", "ModifyIndex",
            "CreateTime", "ModifyTime",
        }  # fmt: skip
        assert views["TaskGroups"]["web"] == {
            "AutoRevert": False, "AutoPromote": False, "ProgressDeadline": 60_000_000_000, "RequireProgressBy": None,
            "Promoted": False, "PlacedCanaries": [A1], "DesiredCanaries": 1, "DesiredTotal": 2, "PlacedAllocs": 0,
            "HealthyAllocs": 0, "UnhealthyAllocs": 0,
        }  # fmt: skip


@in_virtual_time
async def test_the_allocations_of_a_deployment_are_listed_as_stubs() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, an_id(9), deployment_id=D2)))

        assert await list_ids(server, f"/v1/deployment/allocations/{D1}") == [A1, A2]
        assert await list_ids(server, f"/v1/deployment/allocations/{UNKNOWN_ID}") == []


@in_virtual_time
async def test_an_invalid_deployment_id_is_refused_and_an_unknown_one_is_not_found() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        invalid_id = (400, b"deployment lookup failed: index error: UUID must be 36 characters")

        assert status_and_body(await get(server, "/v1/deployment/d1")) == invalid_id
        assert status_and_body(await get(server, f"/v1/deployment/{UNKNOWN_ID}")) == (404, b"deployment not found")
        for verb, body in VERBS.items():
            unknown = {**body, "DeploymentID": UNKNOWN_ID}
            assert (
                status_and_body(await put(server, f"/v1/deployment/{verb}/d1", {**body, "DeploymentID": "d1"}))
                == invalid_id
            )
            assert status_and_body(await put(server, f"/v1/deployment/{verb}/{UNKNOWN_ID}", unknown)) == (
                404,
                b"deployment not found",
            )


@in_virtual_time
async def test_a_blocking_read_of_a_deployment_wakes_when_it_changes() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        observed = (await get(server, f"/v1/deployment/{D1}")).headers["x-cluster-index"]
        pending_read = cluster.start(get(server, f"/v1/deployment/{D1}", f"index={observed}"), name="query")

        index = (await change(server, "pause"))["Index"]

        reply = await pending_read
        assert (json.loads(reply.body)["Status"], reply.headers["x-cluster-index"]) == ("paused", str(index))


# -- writes


@in_virtual_time
async def test_a_deployment_is_failed_with_and_without_a_body() -> None:
    for body in (b"", b"{}", b"null"):
        async with ACluster() as cluster:
            server = await with_deployment(cluster)

            reply = await send_raw(server.api, "POST", f"/v1/deployment/fail/{D1}", body=body)

            response = json.loads(reply.body)
            assert (the_deployment(server).status, the_deployment(server).status_description) == (
                "failed",
                "Deployment marked as failed",
            )
            assert response == {
                "EvalID": response["EvalID"], "EvalCreateIndex": response["Index"],
                "DeploymentModifyIndex": response["Index"], "RevertedJobVersion": None, "Index": response["Index"],
            }  # fmt: skip


@in_virtual_time
async def test_the_returned_evaluation_belongs_to_the_deployment() -> None:
    for verb in ("fail", "promote", "allocation-health"):
        async with ACluster() as cluster:
            server = await with_deployment(cluster)

            evaluation = server.replica.get(EVALUATIONS, (await change(server, verb))["EvalID"])

            assert evaluation is not None
            assert (evaluation.triggered_by, evaluation.deployment_id) == ("deployment-watcher", D1)


@in_virtual_time
async def test_a_pause_creates_no_evaluation_and_a_resume_does() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        paused = await change(server, "pause")
        assert (the_deployment(server).status, paused["EvalID"], paused["EvalCreateIndex"]) == ("paused", "", 0)
        resumed = await change(server, "pause", {"DeploymentID": D1, "Pause": False})

        assert (the_deployment(server).status, resumed["EvalCreateIndex"]) == ("running", resumed["Index"])


@in_virtual_time
async def test_canaries_of_all_or_of_named_groups_are_promoted() -> None:
    for body in ({"All": True, "Groups": ["nonsense"]}, {"Groups": ["web"]}):
        async with ACluster() as cluster:
            server = await with_deployment(cluster)

            await change(server, "promote", {"DeploymentID": D1, **body})

            assert (the_deployment(server).task_groups or {})["web"].promoted


@in_virtual_time
async def test_a_promotion_with_too_few_healthy_canaries_is_refused() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        job = await a_stored_job(server, a_job())
        await store(server, ALLOCATIONS.build_put(an_allocation(job, A1, deployment_id=D1)))

        assert await read_refusal(server, put(server, f"/v1/deployment/promote/{D1}", VERBS["promote"])) == (
            400,
            'Task group "web" has 0/1 healthy allocations',
        )


@in_virtual_time
async def test_unblocking_a_deployment_that_is_not_blocked_changes_nothing() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        before = the_deployment(server)

        response = await change(server, "unblock")

        assert the_deployment(server) == before
        assert (response["EvalID"], response["DeploymentModifyIndex"]) == ("", before.modify_index)


@in_virtual_time
async def test_an_unhealthy_allocation_fails_the_deployment() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        await change(server, "allocation-health", {"DeploymentID": D1, "UnhealthyAllocationIDs": [A2]})

        group = (the_deployment(server).task_groups or {})["web"]
        assert (the_deployment(server).status, group.unhealthy_allocs) == ("failed", 1)


@in_virtual_time
async def test_a_change_that_needs_several_writes_is_acknowledged_once() -> None:
    async with ACluster(limits=WriteLimits(changes=24, conditions=24)) as cluster:
        server = await with_deployment(cluster)
        job = await a_stored_job(server, a_job())
        ids = [an_id(0xB000 + number) for number in range(40)]
        for id in ids:
            await store(server, ALLOCATIONS.build_put(an_allocation(job, id, deployment_id=D1)))

        await change(server, "allocation-health", {"DeploymentID": D1, "UnhealthyAllocationIDs": ids})

        group = (the_deployment(server).task_groups or {})["web"]
        assert (the_deployment(server).status, group.unhealthy_allocs) == ("failed", 40)


# -- refusals


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb != "fail"])
@in_virtual_time
async def test_the_body_must_name_the_deployment_of_the_path(verb: str) -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        path = f"/v1/deployment/{verb}/{D1}"

        assert await read_refusal(server, put(server, path, {**VERBS[verb], "DeploymentID": ""})) == (
            400,
            "DeploymentID must be specified",
        )
        assert await read_refusal(server, put(server, path, {**VERBS[verb], "DeploymentID": D2})) == (
            400,
            "Deployment ID does not match",
        )
        assert await read_refusal(server, put(server, path)) == (400, "Request body is empty")
        assert (await read_refusal(server, put(server, path, {"DeploymentID": 5})))[0] == 400


@pytest.mark.parametrize("verb", VERBS)
@in_virtual_time
async def test_a_finished_deployment_cannot_be_changed(verb: str) -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster, status=DeploymentStatus.FAILED)
        text = {"allocation-health": "set health of allocations for a"}.get(verb, verb)

        assert await read_refusal(server, put(server, f"/v1/deployment/{verb}/{D1}", VERBS[verb])) == (
            400,
            f"can't {text} terminal deployment",
        )


@pytest.mark.parametrize("verb", VERBS)
@in_virtual_time
async def test_a_deployment_is_changed_by_put_or_post_only(verb: str) -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)

        for method in ("GET", "DELETE"):
            assert (await send_raw(server.api, method, f"/v1/deployment/{verb}/{D1}")).status == 405


@in_virtual_time
async def test_health_reports_with_too_many_ids_are_refused() -> None:
    async with ACluster() as cluster:
        server = await with_deployment(cluster)
        body = {"DeploymentID": D1, "HealthyAllocationIDs": [A1] * 10_001}

        assert await read_refusal(server, put(server, f"/v1/deployment/allocation-health/{D1}", body)) == (
            400,
            "too many ids: 10001; send up to 10000 at a time",
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
async def test_each_deployment_change_needs_its_own_right_or_the_right_to_submit(verb: str, capability: str) -> None:
    async with ACluster() as cluster:
        server = await with_three_deployments(cluster)
        enable_acl(server)
        allowed = [
            await a_token(server, f'namespace "default" {{ capabilities = ["{submitted}"] }}')
            for submitted in (capability, "submit-job")
        ]
        reader = await a_token(server, READ)

        async def change_deployment(id: str, headers: dict[str, str]) -> int:
            body = {**VERBS[verb], "DeploymentID": id}
            return (await put(server, f"/v1/deployment/{verb}/{id}", body, headers=headers)).status

        assert [
            await change_deployment(D1, reader),
            *[await change_deployment(D3, headers) for headers in allowed],
        ] == [403, 403, 403]
        # The second caller has the right too. Its change may be refused, because the first caller made it already.
        assert await change_deployment(D1, allowed[0]) == 200
        assert await change_deployment(D1, allowed[1]) in (200, 400)


@in_virtual_time
async def test_a_token_sees_the_deployments_of_its_namespaces() -> None:
    async with ACluster() as cluster:
        server = await with_three_deployments(cluster)
        enable_acl(server)
        reader = await a_token(server, READ)

        assert await list_ids(server, "/v1/deployments", "namespace=*", reader) == [D1, D2]
        assert (await get(server, f"/v1/deployment/{D1}", headers=reader)).status == 200
        assert status_and_body(await get(server, f"/v1/deployment/{D3}", headers=reader)) == DENIED
        assert status_and_body(await get(server, f"/v1/deployment/allocations/{D3}", headers=reader)) == DENIED
        assert status_and_body(await get(server, "/v1/deployments")) == DENIED
