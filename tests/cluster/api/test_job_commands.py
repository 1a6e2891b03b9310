"""What stored jobs are told to do: stop, purge, evaluate, launch, dispatch, scale (jobs.md 1.2 to 1.5)."""

import asyncio
import base64
import json
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job
from tests.kit.callers import a_token, enable_acl
from tests.kit.cluster import ACluster, OneServer
from tests.kit.talking import Talk
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


async def with_job(cluster: ACluster, job: Job | None = None) -> tuple[OneServer, Talk]:
    server = await cluster.a_server()
    talk = Talk(server)
    await talk.put("/v1/jobs", {"Job": job or a_job()})
    await pass_time(0.1)
    return server, talk


def allocations(server: OneServer) -> list[Allocation]:
    return server.replica.list_by_index_sorted(ALLOCATIONS_OF_JOB, *KEY)


async def runs(server: OneServer, count: int) -> None:
    await until(
        lambda: sum(a.client_status is ClientStatus.RUNNING for a in allocations(server)) == count,
        what=f"{count} allocations run",
        within_s=120,
    )


# -- stop


@in_virtual_time
async def test_stopping_what_nobody_knows_succeeds_with_nothing() -> None:
    async with ACluster() as cluster:
        talk = Talk(await cluster.a_server())

        told = await talk.delete("/v1/job/shop")

        assert not any(told.values())


@in_virtual_time
async def test_a_stopped_job_stays_readable_as_a_new_version_and_its_work_ends() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        talk = Talk(server)
        await talk.put("/v1/jobs", {"Job": a_job()})
        await runs(server, 1)

        told = await talk.delete("/v1/job/shop", eval_priority=80)

        job = await talk.get("/v1/job/shop")
        evaluation = server.replica.get(EVALUATIONS, told["EvalID"])
        assert evaluation is not None
        assert (job["Stop"], job["Version"], told["JobModifyIndex"]) == (True, 1, job["JobModifyIndex"])
        assert (evaluation.type, evaluation.triggered_by, evaluation.priority) == ("service", "job-deregister", 80)
        await until(lambda: all(a.is_client_terminal for a in allocations(server)), what="all has ended", within_s=120)


@in_virtual_time
async def test_stopping_a_stopped_job_again_is_a_new_version_with_an_evaluation() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster)
        first = await talk.delete("/v1/job/shop")

        second = await talk.delete("/v1/job/shop")

        assert ((await talk.get("/v1/job/shop"))["Version"], second["EvalID"] in ("", first["EvalID"])) == (2, False)


@in_virtual_time
async def test_a_parents_stop_makes_no_evaluation_and_still_tells_an_index() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster, a_periodic_job("shop"))

        told = await talk.delete("/v1/job/shop")

        assert (told["EvalID"], told["EvalCreateIndex"]) == ("", told["Index"])


@in_virtual_time
async def test_without_shutdown_delays_every_allocation_hears_that_it_is_to_hurry() -> None:
    async with ACluster(bounds=WriteLimits(changes=14, conditions=14, bytes=1_500_000)) as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1, cpu_mhz=50_000, memory_mb=50_000)
        talk = Talk(server)
        await talk.put("/v1/jobs", {"Job": a_job("shop", a_group(count=20))})
        await runs(server, 20)

        await talk.delete("/v1/job/shop", no_shutdown_delay="true")

        hurry = [
            a.desired_transition is not None and a.desired_transition.no_shutdown_delay for a in allocations(server)
        ]
        assert hurry == [True] * 20


@pytest.mark.parametrize("query", [{"purge": "maybe"}, {"global": "2"}, {"eval_priority": "x"}, {"eval_priority": 101}])
def test_a_stop_that_makes_no_sense_is_a_400(query: dict[str, Any]) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            _, talk = await with_job(cluster)

            assert (await talk.refusal("DELETE", "/v1/job/shop", **query))[0] == 400

    story()


@in_virtual_time
async def test_a_priority_of_0_or_less_is_the_jobs_own() -> None:
    async with ACluster() as cluster:
        server, talk = await with_job(cluster)

        told = await talk.delete("/v1/job/shop", eval_priority=-5)

        evaluation = server.replica.get(EVALUATIONS, told["EvalID"])
        assert evaluation is not None
        assert evaluation.priority == 50


# -- purge


@in_virtual_time
async def test_a_purged_job_is_gone_at_once_and_its_allocations_when_their_nodes_have_stopped_them() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        await cluster.ready_nodes(server, 1)
        talk = Talk(server)
        await talk.put("/v1/jobs", {"Job": a_job("shop", a_group(count=2))})
        await runs(server, 2)

        told = await talk.delete("/v1/job/shop", purge="true")

        assert await talk.refusal("GET", "/v1/job/shop") == (404, "job not found")
        assert await talk.refusal("GET", "/v1/job/shop/versions") == (404, "job versions not found")
        assert told["EvalID"] != ""
        await until(lambda: not allocations(server), what="no allocation is left", within_s=120)
        await until(lambda: not server.replica.count_records(JOB_PURGES), what="the purge has ended")


@in_virtual_time
async def test_a_purge_goes_on_under_the_next_leader() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        (node,) = await cluster.ready_nodes(server, 1)
        talk = Talk(server)
        await talk.put("/v1/jobs", {"Job": a_job("shop", a_group(count=1))})
        await runs(server, 1)
        await node.die()
        await talk.delete("/v1/job/shop", purge="true")
        waiting = (len(allocations(server)), server.replica.count_records(JOB_PURGES))

        assert server.election.held is not None
        server.election.held.lose()
        (allocation,) = allocations(server)
        await store(server, ALLOCATIONS.build_put(replace(allocation, client_status=ClientStatus.COMPLETE)))
        server.election.again()

        await until(lambda: not server.replica.count_records(JOB_PURGES), what="the purge has ended", within_s=120)
        assert (waiting, allocations(server)) == ((1, 1), [])


@in_virtual_time
async def test_a_purge_that_is_written_is_acknowledged_though_its_next_step_is_not_taken() -> None:
    async with ACluster(bounds=WriteLimits(changes=20, conditions=20, bytes=1_500_000)) as cluster:
        server, talk = await with_job(cluster)
        for priority in range(1, 30):
            await talk.put("/v1/jobs", {"Job": a_job(priority=priority)})
        commits = 0

        def all_but_the_first(asked: EngineOperation) -> Fault | None:
            nonlocal commits
            commits += asked is EngineOperation.COMMIT
            return RefuseFault("full") if asked is EngineOperation.COMMIT and commits > 1 else None

        server.faults.choose_fault = all_but_the_first
        told = await talk.delete("/v1/job/shop", purge="true")

        assert told["JobModifyIndex"] > 0
        assert server.replica.get(JOBS, *KEY) is None


@in_virtual_time
async def test_a_purge_that_fits_no_write_is_answered_when_all_is_gone_that_can() -> None:
    async with ACluster(bounds=WriteLimits(changes=20, conditions=20, bytes=1_500_000)) as cluster:
        server, talk = await with_job(cluster)
        for priority in range(1, 30):
            await talk.put("/v1/jobs", {"Job": a_job(priority=priority)})

        await talk.delete("/v1/job/shop", purge="true")

        assert server.replica.get(JOBS, *KEY) is None
        assert server.replica.count_records(JOB_PURGES) == 0


@in_virtual_time
async def test_to_stop_a_job_is_not_to_purge_it() -> None:
    async with ACluster() as cluster:
        server, _ = await with_job(cluster)
        enable_acl(server)
        stopper = Talk(server, await a_token(server, 'namespace "default" { capabilities = ["deregister-job"] }'))

        assert await stopper.refusal("DELETE", "/v1/job/shop", purge="true") == (403, "Permission denied")
        assert (await stopper.delete("/v1/job/shop"))["EvalID"] != ""


# -- evaluate


@in_virtual_time
async def test_an_evaluation_is_asked_for_with_and_without_a_body() -> None:
    async with ACluster() as cluster:
        server, talk = await with_job(cluster)
        job = server.replica.get(JOBS, *KEY)
        assert job is not None

        bare = await talk.put("/v1/job/shop/evaluate")
        forced = await talk.put("/v1/job/shop/evaluate", {"JobID": "shop", "EvalOptions": {"ForceReschedule": True}})

        made = {each.id: each.triggered_by for each in server.replica.list_by_index(EVALUATIONS_OF_JOB, *KEY)}
        assert [made[told["EvalID"]] for told in (bare, forced)] == ["job-register", "job-register"]
        assert bare["JobModifyIndex"] == job.modify_index


@in_virtual_time
async def test_what_cannot_be_evaluated_says_why() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster, a_periodic_job("shop"))
        path = "/v1/job/shop/evaluate"

        assert await talk.refusal("PUT", path) == (400, "can't evaluate periodic job")
        assert await talk.refusal("PUT", path, {}) == (400, "Job ID must be specified")
        assert await talk.refusal("PUT", path, {"JobID": "x"}) == (400, "JobID not same as job name")
        assert await talk.refusal("PUT", "/v1/job/x/evaluate") == (404, "job not found")


# -- periodic force


@in_virtual_time
async def test_a_forced_launch_answers_with_the_childs_evaluation() -> None:
    async with ACluster() as cluster:
        server, talk = await with_job(cluster, a_periodic_job("nightly"))

        told = await talk.put("/v1/job/nightly/periodic/force")

        evaluation = server.replica.get(EVALUATIONS, told["EvalID"])
        assert evaluation is not None
        assert (set(told), evaluation.triggered_by) == ({"EvalID", "EvalCreateIndex", "Index"}, "periodic-job")
        assert evaluation.job_id.startswith("nightly/periodic-")
        assert (await talk.get(f"/v1/job/{evaluation.job_id}"))["ParentID"] == "nightly"


@in_virtual_time
async def test_forcing_what_is_not_periodic_or_not_there_is_refused() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster)

        told = await talk.refusal("PUT", "/v1/job/shop/periodic/force")

        assert told == (400, "can't force launch non-periodic job")
        assert await talk.refusal("PUT", "/v1/job/x/periodic/force") == (404, "job not found")


# -- dispatch


@in_virtual_time
async def test_a_dispatch_answers_with_child_evaluation_and_indexes() -> None:
    async with ACluster() as cluster:
        server, talk = await with_job(cluster, a_parameterized_job("convert"))
        payload = base64.b64encode(b"film").decode()

        told = await talk.put("/v1/job/convert/dispatch", {"JobID": "convert", "Payload": payload, "Priority": 70})

        child = server.replica.get(JOBS, "default", told["DispatchedJobID"])
        assert child is not None
        assert (child.payload, child.priority, told["JobCreateIndex"]) == (b"film", 70, child.create_index)
        assert told["EvalCreateIndex"] == told["Index"] == child.create_index


@in_virtual_time
async def test_an_empty_object_dispatches_and_no_body_is_a_400() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster, a_parameterized_job("convert"))
        path = "/v1/job/convert/dispatch"

        assert await talk.refusal("PUT", path) == (400, "Request body is empty")
        assert await talk.refusal("PUT", path, {"JobID": "x"}) == (400, "Job ID does not match")
        assert (await talk.refusal("PUT", path, {"Payload": "!"}))[0] == 400
        assert (await talk.put(path, {}))["DispatchedJobID"].startswith("convert/dispatch-")


@in_virtual_time
async def test_the_body_itself_may_be_the_payload() -> None:
    async with ACluster() as cluster:
        server, talk = await with_job(cluster, a_parameterized_job("convert"))

        told = await talk.put("/v1/job/convert/dispatch/payload", b"\x00\xff raw")

        child = server.replica.get(JOBS, "default", told["DispatchedJobID"])
        assert child is not None
        assert (child.payload, child.meta) == (b"\x00\xff raw", None)


@pytest.mark.parametrize("given", ["query", "body"])
def test_the_same_token_again_answers_with_the_child_that_is_there(given: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            _, talk = await with_job(cluster, a_parameterized_job("convert"))
            body = {"IdempotencyToken": "t"} if given == "body" else {}
            query = {"idempotency_token": "t"} if given == "query" else {}

            first = await talk.put("/v1/job/convert/dispatch", body, **query)
            second = await talk.put("/v1/job/convert/dispatch", body, **query)

            assert (second["DispatchedJobID"], second["JobCreateIndex"]) == (
                first["DispatchedJobID"],
                first["JobCreateIndex"],
            )
            assert (second["EvalID"], second["EvalCreateIndex"]) == ("", 0)

    story()


@in_virtual_time
async def test_many_at_once_with_one_token_make_one_child() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster, a_parameterized_job("convert"))

        told = await asyncio.gather(
            *(talk.put("/v1/job/convert/dispatch", {}, idempotency_token="t") for _ in range(10))
        )

        assert len({each["DispatchedJobID"] for each in told}) == 1


@in_virtual_time
async def test_a_parent_counts_its_children() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster, a_parameterized_job("convert"))
        for _ in range(3):
            await talk.put("/v1/job/convert/dispatch", {})

        summary = await talk.get("/v1/job/convert/summary")

        assert sum(summary["Children"].values()) == 3


# -- scale


@in_virtual_time
async def test_a_scaling_answers_like_a_registration_and_is_told_by_the_status() -> None:
    async with ACluster() as cluster:
        _, talk = await with_job(cluster, a_batch_job("shop"))
        body = {"Count": 4, "Target": {"Group": "web"}, "Message": "busy", "Meta": {"load": 0.9}}

        reply = await talk.raw("PUT", "/v1/job/shop/scale", body)

        told = json.loads(reply.body)
        group = (await talk.get("/v1/job/shop/scale"))["TaskGroups"]["web"]
        assert (reply.status, told["KnownLeader"], group["Desired"]) == (200, True, 4)
        (event,) = group["Events"]
        assert (event["Count"], event["PreviousCount"], event["EvalID"]) == (4, 1, told["EvalID"])
        assert (event["Message"], event["Meta"], event["CreateIndex"]) == ("busy", {"load": 0.9}, told["Index"])


@pytest.mark.parametrize(
    ("body", "status", "text"),
    [
        ({"Target": {"Group": "web", "Job": "x"}}, 400, "job ID in payload did not match URL"),
        ({"Target": {"Group": "web", "Namespace": "x"}}, 400, "namespace in payload did not match header"),
        ({"Count": 1}, 400, "missing task group name for scaling action"),
        ({"Count": 1, "Target": {"Group": "x"}}, 400, 'task group "x" specified for scaling does not exist in job'),
        ({"Count": 2**63, "Target": {"Group": "web"}}, 400, "Count: the number is too large"),
        (b"", 400, "Request body is empty"),
    ],
)
def test_a_scaling_that_makes_no_sense_is_refused(body: Any, status: int, text: str) -> None:
    @in_virtual_time
    async def story() -> None:
        async with ACluster() as cluster:
            _, talk = await with_job(cluster)

            assert await talk.refusal("PUT", "/v1/job/shop/scale", body) == (status, text)

    story()


@in_virtual_time
async def test_scaling_what_nobody_knows_is_a_404() -> None:
    async with ACluster() as cluster:
        talk = Talk(await cluster.a_server())
        body = {"Count": 1, "Target": {"Group": "web"}}

        assert await talk.refusal("PUT", "/v1/job/x/scale", body) == (404, 'job "x" not found')


# -- rights


@in_virtual_time
async def test_each_command_needs_its_right() -> None:
    async with ACluster() as cluster:
        server, manager = await with_job(cluster, a_parameterized_job("convert"))
        await manager.put("/v1/jobs", {"Job": a_batch_job("shop")})
        enable_acl(server)
        reader = Talk(server, await a_token(server, 'namespace "default" { policy = "read" }'))
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
async def test_the_namespace_of_a_body_is_the_one_that_rights_are_asked_for() -> None:
    async with ACluster() as cluster:
        server, _ = await with_job(cluster)
        enable_acl(server)
        writer = Talk(server, await a_token(server, 'namespace "default" { policy = "write" }'))
        body = {"JobID": "shop", "Namespace": "secret"}

        assert await writer.refusal("PUT", "/v1/job/shop/evaluate", body) == (403, "Permission denied")


@in_virtual_time
async def test_while_registration_is_disabled_only_a_management_token_brings_new_work() -> None:
    async with ACluster() as cluster:
        server, nobody = await with_job(cluster, a_parameterized_job("convert"))
        stored = server.replica.get(SCHEDULER_CONFIGURATION)
        assert stored is not None
        await store(server, SCHEDULER_CONFIGURATION.build_put(replace(stored, reject_job_registration=True)))
        denied = (403, "Job registration, dispatch, and scale are disabled by the scheduler configuration")
        scaling = {"Count": 2, "Target": {"Group": "web"}}

        async def tries(talk: Talk) -> list[tuple[int, str]]:
            return [
                await talk.refusal("PUT", "/v1/jobs", {"Job": a_job()}),
                await talk.refusal("PUT", "/v1/job/convert/dispatch", {}),
                await talk.refusal("PUT", "/v1/job/convert/scale", scaling),
            ]

        without_access_control = await tries(nobody)
        enable_acl(server)
        writer = Talk(server, await a_token(server, 'namespace "default" { policy = "write" }'))
        manager = Talk(server, await a_token(server, management=True))

        assert (without_access_control, await tries(writer)) == ([denied] * 3, [denied] * 3)
        assert (await manager.put("/v1/jobs", {"Job": a_job()}))["EvalID"] != ""
