"""Control of registered jobs: stop, purge, evaluate, launch, dispatch, scale (jobs.md 1.2 to 1.5)."""

import asyncio
import base64
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.api_client import ApiClient
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import JOB_SETTINGS, ACluster, OneServer
from tests.kit.virtual_time import in_virtual_time, pass_time, until
from tests.kit.work import store
from wharf.cluster.engines.memory.faults import EngineOperation, Fault, RefuseFault
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_PURGES,
    JOBS,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus
from wharf.contract.model.jobs.job import Job

KEY = ("default", "shop")


async def with_job(cluster: ACluster, job: Job | None = None) -> tuple[OneServer, ApiClient]:
    server = await cluster.a_server()
    client = ApiClient(server)
    await client.put("/v1/jobs", {"Job": job or a_job()})
    await pass_time(0.1)
    return server, client


def allocations(server: OneServer) -> list[Allocation]:
    return server.replica.list_by_index_sorted(ALLOCATIONS_OF_JOB, *KEY)


async def wait_until_running(server: OneServer, count: int) -> None:
    await until(
        lambda: sum(a.client_status is ClientStatus.RUNNING for a in allocations(server)) == count,
        what=f"{count} allocations run",
        within_s=120,
    )


# -- stop


@in_virtual_time
async def test_stopping_an_unknown_job_succeeds_without_effect() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())

        result = await client.delete("/v1/job/shop")

        assert not any(result.values())


@in_virtual_time
async def test_a_stopped_job_can_be_read_as_a_new_version_and_its_allocations_stop() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        client = ApiClient(server)
        await client.put("/v1/jobs", {"Job": a_job()})
        await wait_until_running(server, 1)

        result = await client.delete("/v1/job/shop", eval_priority=80)

        job = await client.get("/v1/job/shop")
        evaluation = server.replica.get(EVALUATIONS, result["EvalID"])
        assert evaluation is not None
        assert (job["Stop"], job["Version"], result["JobModifyIndex"]) == (True, 1, job["JobModifyIndex"])
        assert (evaluation.type, evaluation.triggered_by, evaluation.priority) == ("service", "job-deregister", 80)
        await until(
            lambda: all(a.is_client_terminal for a in allocations(server)),
            what="all allocations are terminal",
            within_s=120,
        )


@in_virtual_time
async def test_stopping_a_stopped_job_again_adds_a_version_and_an_evaluation() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster)
        first = await client.delete("/v1/job/shop")

        second = await client.delete("/v1/job/shop")

        assert ((await client.get("/v1/job/shop"))["Version"], second["EvalID"] in ("", first["EvalID"])) == (2, False)


@in_virtual_time
async def test_stopping_a_parent_creates_no_evaluation_and_returns_an_index() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster, a_periodic_job("shop"))

        result = await client.delete("/v1/job/shop")

        assert (result["EvalID"], result["EvalCreateIndex"]) == ("", result["Index"])


@in_virtual_time
async def test_no_shutdown_delay_marks_every_allocation_of_the_job() -> None:
    async with ACluster(limits=WriteLimits(changes=14, conditions=14, bytes=1_500_000)) as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1, cpu_mhz=50_000, memory_mb=50_000)
        client = ApiClient(server)
        await client.put("/v1/jobs", {"Job": a_job("shop", a_group(count=20))})
        await wait_until_running(server, 20)

        await client.delete("/v1/job/shop", no_shutdown_delay="true")

        skips_delay = [
            a.desired_transition is not None and a.desired_transition.no_shutdown_delay for a in allocations(server)
        ]
        assert skips_delay == [True] * 20


@pytest.mark.parametrize("query", [{"purge": "maybe"}, {"global": "2"}, {"eval_priority": "x"}, {"eval_priority": 101}])
def test_an_invalid_stop_is_a_400(query: dict[str, Any]) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            _, client = await with_job(cluster)

            assert (await client.refusal("DELETE", "/v1/job/shop", **query))[0] == 400

    run()


@in_virtual_time
async def test_a_priority_of_0_or_less_means_the_priority_of_the_job() -> None:
    async with ACluster() as cluster:
        server, client = await with_job(cluster)

        result = await client.delete("/v1/job/shop", eval_priority=-5)

        evaluation = server.replica.get(EVALUATIONS, result["EvalID"])
        assert evaluation is not None
        assert evaluation.priority == JOB_SETTINGS.default_priority


# -- purge


@in_virtual_time
async def test_a_purged_job_is_deleted_at_once_and_its_allocations_once_their_nodes_stopped_them() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        client = ApiClient(server)
        await client.put("/v1/jobs", {"Job": a_job("shop", a_group(count=2))})
        await wait_until_running(server, 2)

        result = await client.delete("/v1/job/shop", purge="true")

        assert await client.refusal("GET", "/v1/job/shop") == (404, "job not found")
        assert await client.refusal("GET", "/v1/job/shop/versions") == (404, "job versions not found")
        assert result["EvalID"] != ""
        await until(lambda: not allocations(server), what="no allocation is left", within_s=120)
        await until(lambda: not server.replica.count_records(JOB_PURGES), what="the purge has ended")


@in_virtual_time
async def test_a_purge_continues_under_the_next_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        client = ApiClient(server)
        await client.put("/v1/jobs", {"Job": a_job("shop", a_group(count=1))})
        await wait_until_running(server, 1)
        await node.die()
        await client.delete("/v1/job/shop", purge="true")
        pending_read = (len(allocations(server)), server.replica.count_records(JOB_PURGES))

        assert server.election.term is not None
        server.election.term.lose()
        (allocation,) = allocations(server)
        await store(server, ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.COMPLETE)))
        server.election.allow_campaign()

        await until(lambda: not server.replica.count_records(JOB_PURGES), what="the purge has ended", within_s=120)
        assert (pending_read, allocations(server)) == ((1, 1), [])


@in_virtual_time
async def test_a_committed_purge_is_acknowledged_even_if_its_next_step_fails() -> None:
    async with ACluster(limits=WriteLimits(changes=20, conditions=20, bytes=1_500_000)) as cluster:
        server, client = await with_job(cluster)
        for priority in range(1, 30):
            await client.put("/v1/jobs", {"Job": a_job(priority=priority)})
        commits = 0

        def fail_later_commits(operation: EngineOperation) -> Fault | None:
            nonlocal commits
            commits += operation is EngineOperation.COMMIT
            return RefuseFault("full") if operation is EngineOperation.COMMIT and commits > 1 else None

        server.faults.choose_fault = fail_later_commits
        result = await client.delete("/v1/job/shop", purge="true")

        assert result["JobModifyIndex"] > 0
        assert server.replica.get(JOBS, *KEY) is None


@in_virtual_time
async def test_a_purge_of_several_writes_is_acknowledged_when_all_deletable_records_are_deleted() -> None:
    async with ACluster(limits=WriteLimits(changes=20, conditions=20, bytes=1_500_000)) as cluster:
        server, client = await with_job(cluster)
        for priority in range(1, 30):
            await client.put("/v1/jobs", {"Job": a_job(priority=priority)})

        await client.delete("/v1/job/shop", purge="true")

        assert server.replica.get(JOBS, *KEY) is None
        assert server.replica.count_records(JOB_PURGES) == 0


@in_virtual_time
async def test_stopping_a_job_does_not_grant_purging_it() -> None:
    async with ACluster() as cluster:
        server, _ = await with_job(cluster)
        enable_acl(server)
        stopper = ApiClient(server, await a_token(server, 'namespace "default" { capabilities = ["deregister-job"] }'))

        assert await stopper.refusal("DELETE", "/v1/job/shop", purge="true") == (403, "Permission denied")
        assert (await stopper.delete("/v1/job/shop"))["EvalID"] != ""


# -- evaluate


@in_virtual_time
async def test_an_evaluation_is_requested_with_and_without_a_body() -> None:
    async with ACluster() as cluster:
        server, client = await with_job(cluster)
        job = server.replica.get(JOBS, *KEY)
        assert job is not None

        bare = await client.put("/v1/job/shop/evaluate")
        forced = await client.put("/v1/job/shop/evaluate", {"JobID": "shop", "EvalOptions": {"ForceReschedule": True}})

        created = {each.id: each.triggered_by for each in server.replica.list_by_index(EVALUATIONS_OF_JOB, *KEY)}
        assert [created[result["EvalID"]] for result in (bare, forced)] == ["job-register", "job-register"]
        assert bare["JobModifyIndex"] == job.modify_index


@in_virtual_time
async def test_an_impossible_evaluation_is_refused_with_the_reason() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster, a_periodic_job("shop"))
        path = "/v1/job/shop/evaluate"

        assert await client.refusal("PUT", path) == (400, "can't evaluate periodic job")
        assert await client.refusal("PUT", path, {}) == (400, "Job ID must be specified")
        assert await client.refusal("PUT", path, {"JobID": "x"}) == (400, "JobID not same as job name")
        assert await client.refusal("PUT", "/v1/job/x/evaluate") == (404, "job not found")


# -- periodic force


@in_virtual_time
async def test_a_forced_launch_returns_the_evaluation_of_the_child() -> None:
    async with ACluster() as cluster:
        server, client = await with_job(cluster, a_periodic_job("nightly"))

        result = await client.put("/v1/job/nightly/periodic/force")

        evaluation = server.replica.get(EVALUATIONS, result["EvalID"])
        assert evaluation is not None
        assert (set(result), evaluation.triggered_by) == ({"EvalID", "EvalCreateIndex", "Index"}, "periodic-job")
        assert evaluation.job_id.startswith("nightly/periodic-")
        assert (await client.get(f"/v1/job/{evaluation.job_id}"))["ParentID"] == "nightly"


@in_virtual_time
async def test_forcing_a_job_that_is_unknown_or_not_periodic_is_refused() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster)

        result = await client.refusal("PUT", "/v1/job/shop/periodic/force")

        assert result == (400, "can't force launch non-periodic job")
        assert await client.refusal("PUT", "/v1/job/x/periodic/force") == (404, "job not found")


# -- dispatch


@in_virtual_time
async def test_a_dispatch_returns_child_evaluation_and_indexes() -> None:
    async with ACluster() as cluster:
        server, client = await with_job(cluster, a_parameterized_job("convert"))
        payload = base64.b64encode(b"film").decode()

        result = await client.put("/v1/job/convert/dispatch", {"JobID": "convert", "Payload": payload, "Priority": 70})

        child = server.replica.get(JOBS, "default", result["DispatchedJobID"])
        assert child is not None
        assert (child.payload, child.priority, result["JobCreateIndex"]) == (b"film", 70, child.create_index)
        assert result["EvalCreateIndex"] == result["Index"] == child.create_index


@in_virtual_time
async def test_an_empty_object_dispatches_and_a_missing_body_is_a_400() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster, a_parameterized_job("convert"))
        path = "/v1/job/convert/dispatch"

        assert await client.refusal("PUT", path) == (400, "Request body is empty")
        assert await client.refusal("PUT", path, {"JobID": "x"}) == (400, "Job ID does not match")
        assert (await client.refusal("PUT", path, {"Payload": "!"}))[0] == 400
        assert (await client.put(path, {}))["DispatchedJobID"].startswith("convert/dispatch-")


@in_virtual_time
async def test_the_whole_body_can_be_the_payload() -> None:
    async with ACluster() as cluster:
        server, client = await with_job(cluster, a_parameterized_job("convert"))

        result = await client.put("/v1/job/convert/dispatch/payload", b"\x00\xff raw")

        child = server.replica.get(JOBS, "default", result["DispatchedJobID"])
        assert child is not None
        assert (child.payload, child.meta) == (b"\x00\xff raw", None)


@pytest.mark.parametrize("token", ["query", "body"])
def test_a_repeated_idempotency_token_returns_the_existing_child(token: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            _, client = await with_job(cluster, a_parameterized_job("convert"))
            body = {"IdempotencyToken": "t"} if token == "body" else {}
            query = {"idempotency_token": "t"} if token == "query" else {}

            first = await client.put("/v1/job/convert/dispatch", body, **query)
            second = await client.put("/v1/job/convert/dispatch", body, **query)

            assert (second["DispatchedJobID"], second["JobCreateIndex"]) == (
                first["DispatchedJobID"],
                first["JobCreateIndex"],
            )
            assert (second["EvalID"], second["EvalCreateIndex"]) == ("", 0)

    run()


@in_virtual_time
async def test_concurrent_dispatches_with_one_token_create_one_child() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster, a_parameterized_job("convert"))

        result = await asyncio.gather(
            *(client.put("/v1/job/convert/dispatch", {}, idempotency_token="t") for _ in range(10))
        )

        assert len({each["DispatchedJobID"] for each in result}) == 1


@in_virtual_time
async def test_a_parent_counts_its_children() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster, a_parameterized_job("convert"))
        for _ in range(3):
            await client.put("/v1/job/convert/dispatch", {})

        summary = await client.get("/v1/job/convert/summary")

        assert sum(summary["Children"].values()) == 3


# -- scale


@in_virtual_time
async def test_a_scaling_is_answered_like_a_registration_and_shown_in_the_scale_status() -> None:
    async with ACluster() as cluster:
        _, client = await with_job(cluster, a_batch_job("shop"))
        body = {"Count": 4, "Target": {"Group": "web"}, "Message": "busy", "Meta": {"load": 0.9}}

        reply = await client.raw("PUT", "/v1/job/shop/scale", body)

        result = json.loads(reply.body)
        group = (await client.get("/v1/job/shop/scale"))["TaskGroups"]["web"]
        assert (reply.status, result["KnownLeader"], group["Desired"]) == (200, True, 4)
        (event,) = group["Events"]
        assert (event["Count"], event["PreviousCount"], event["EvalID"]) == (4, 1, result["EvalID"])
        assert (event["Message"], event["Meta"], event["CreateIndex"]) == ("busy", {"load": 0.9}, result["Index"])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"Target": {"Group": "web", "Job": "x"}}, 400, "job ID in payload did not match URL"),
        ({"Target": {"Group": "web", "Namespace": "x"}}, 400, "namespace in payload did not match header"),
        ({"Count": 1}, 400, "missing task group name for scaling action"),
        ({"Count": 1, "Target": {"Group": "x"}}, 400, 'task group "x" specified for scaling does not exist in job'),
        (
            {"Count": 2**63, "Target": {"Group": "web"}},
            400,
            "Count: the number is too large: write one from -9223372036854775808 to 9223372036854775807",
        ),
        (b"", 400, "Request body is empty"),
    ],
)
def test_an_invalid_scaling_is_refused(body: Any, status: int, text: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            _, client = await with_job(cluster)

            assert await client.refusal("PUT", "/v1/job/shop/scale", body) == (status, text)

    run()


@in_virtual_time
async def test_scaling_an_unknown_job_is_a_404() -> None:
    async with ACluster() as cluster:
        client = ApiClient(await cluster.a_server())
        body = {"Count": 1, "Target": {"Group": "web"}}

        assert await client.refusal("PUT", "/v1/job/x/scale", body) == (404, 'job "x" not found')


# -- rights


@in_virtual_time
async def test_each_job_action_needs_its_own_right() -> None:
    async with ACluster() as cluster:
        server, manager = await with_job(cluster, a_parameterized_job("convert"))
        await manager.put("/v1/jobs", {"Job": a_batch_job("shop")})
        enable_acl(server)
        reader = ApiClient(server, await a_token(server, 'namespace "default" { policy = "read" }'))
        denied = (403, "Permission denied")
        scaling = {"Count": 1, "Target": {"Group": "web"}}

        assert [
            await reader.refusal("DELETE", "/v1/job/shop"),
            await reader.refusal("PUT", "/v1/job/shop/evaluate"),
            await reader.refusal("PUT", "/v1/job/shop/periodic/force"),
            await reader.refusal("PUT", "/v1/job/convert/dispatch", {}),
            await reader.refusal("PUT", "/v1/job/convert/dispatch/payload", b"x"),
            await reader.refusal("PUT", "/v1/job/shop/scale", scaling),
        ] == [denied] * 6


@in_virtual_time
async def test_rights_are_checked_in_the_namespace_of_the_body() -> None:
    async with ACluster() as cluster:
        server, _ = await with_job(cluster)
        enable_acl(server)
        writer = ApiClient(server, await a_token(server, 'namespace "default" { policy = "write" }'))
        body = {"JobID": "shop", "Namespace": "secret"}

        assert await writer.refusal("PUT", "/v1/job/shop/evaluate", body) == (403, "Permission denied")


@in_virtual_time
async def test_while_registration_is_disabled_only_management_tokens_add_jobs() -> None:
    async with ACluster() as cluster:
        server, powerless = await with_job(cluster, a_parameterized_job("convert"))
        stored = server.replica.get(SCHEDULER_CONFIGURATION)
        assert stored is not None
        await store(server, SCHEDULER_CONFIGURATION.build_put(replace(stored, reject_job_registration=True)))
        denied = (403, "Job registration, dispatch, and scale are disabled by the scheduler configuration")
        scaling = {"Count": 2, "Target": {"Group": "web"}}

        async def tries(client: ApiClient) -> list[tuple[int, str]]:
            return [
                await client.refusal("PUT", "/v1/jobs", {"Job": a_job()}),
                await client.refusal("PUT", "/v1/job/convert/dispatch", {}),
                await client.refusal("PUT", "/v1/job/convert/scale", scaling),
            ]

        without_access_control = await tries(powerless)
        enable_acl(server)
        writer = ApiClient(server, await a_token(server, 'namespace "default" { policy = "write" }'))
        manager = ApiClient(server, await a_token(server, management=True))

        assert (without_access_control, await tries(writer)) == ([denied] * 3, [denied] * 3)
        assert (await manager.put("/v1/jobs", {"Job": a_job()}))["EvalID"] != ""
