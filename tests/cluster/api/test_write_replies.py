"""Replies to writes show content of stored records only to callers that may read these records."""

import json
from typing import Any

import msgspec
import pytest

from tests.builders import a_group, a_job, a_task
from tests.cluster.access.policies import rights
from tests.cluster.api.access import ApiCaller, an_operator
from tests.kit.cluster import ACluster
from tests.kit.virtual_time import in_virtual_time
from wharf.contract.model.acl.permissions import MANAGEMENT_TOKEN, PUBLIC_ACCESS, READ_HOST_VOLUME
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.wire.endpoint import EndpointKind
from wharf.contract.wire.endpoint_table import ENDPOINTS

SECRET = "planted-text-of-another-caller"
JOB_CAPABILITIES = (
    "submit-job", "register-job", "plan-job", "revert-job", "tag-job-version", "stable-job", "scale-job", "dispatch-job",
    "evaluate-job", "deregister-job", "purge-job", "force-periodic-job", "list-jobs",
)  # fmt: skip


async def a_writer(operator: ApiCaller, rules: str) -> ApiCaller:
    """Return a caller whose token has only these rules."""
    await operator.policy("writer", rules)
    return await operator.a_token("writer")


def build_stored_job(count: int = 1) -> dict[str, Any]:
    """Return a job with the planted text in its environment, its meta data and its config."""
    task = a_task("server", env={"PW": SECRET}, meta={"m": SECRET}, config={"command": f"/{SECRET}"})
    return build_job(a_group("web", task, count=count), meta={"k": SECRET})


def build_job(*groups: TaskGroup, **fields: Any) -> dict[str, Any]:
    """Return the job `shop` as a request contains it."""
    job: dict[str, Any] = json.loads(msgspec.json.encode(a_job("shop", *groups, **fields)))
    return job


@pytest.mark.parametrize("lock_body", [{}, {"Lock": {"TTL": "30s"}}, {"Items": {}}])
def test_a_write_only_caller_that_acquires_a_lock_gets_no_items(lock_body: dict[str, Any]) -> None:
    @in_virtual_time
    async def acquire() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            rules = 'namespace "default" { variables { path "*" { capabilities = ["write"] } } }'
            writer = await a_writer(operator, rules)
            await operator.put("/v1/var/db", {"Items": {"password": SECRET}})

            status, reply = await writer.put("/v1/var/db", lock_body, query="lock-acquire")

            assert (status, "Items" in reply, "ID" in reply["Lock"]) == (200, False, True)
            assert (await writer.get("/v1/var/db"))[0] == 403

    acquire()


@in_virtual_time
async def test_a_write_only_caller_gets_the_items_that_it_sent_and_no_others() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        rules = 'namespace "default" { variables { path "*" { capabilities = ["write", "destroy"] } } }'
        writer = await a_writer(operator, rules)
        await operator.put("/v1/var/db", {"Items": {"password": SECRET}})

        conflict = await writer.put("/v1/var/db", {"Items": {"a": "1"}}, query="cas=0")
        failed_deletion = await writer.delete("/v1/var/db", query="cas=1")
        status, written = await writer.put("/v1/var/db", {"Items": {"a": "1"}})

        assert (conflict[0], "Items" in conflict[1]) == (409, False)
        assert (failed_deletion[0], "Items" in failed_deletion[1]) == (409, False)
        assert (status, written["Items"]) == (200, {"a": "1"})


@pytest.mark.parametrize("capability", ["submit-job", "plan-job"])
def test_a_plan_has_a_diff_only_for_readers_of_the_job(capability: str) -> None:
    @in_virtual_time
    async def plan() -> None:
        async with ACluster() as cluster:
            operator = await an_operator(cluster)
            planner = await a_writer(operator, f'namespace "default" {{ capabilities = ["{capability}"] }}')
            await operator.put("/v1/jobs", {"Job": build_stored_job()})
            request = {"Job": build_job(a_group(count=3)), "Diff": True}

            status, hidden = await planner.put("/v1/job/shop/plan", request)
            _, shown = await operator.put("/v1/job/shop/plan", request)

            assert (status, hidden["Diff"], SECRET in json.dumps(hidden)) == (200, None, False)
            assert "lacks the capability read-job" in hidden["Warnings"]
            assert (shown["Diff"]["Type"], SECRET in json.dumps(shown), shown["Warnings"]) == ("Edited", True, "")
            assert hidden["Annotations"] == shown["Annotations"]

    plan()


@in_virtual_time
async def test_writes_of_jobs_show_nothing_of_the_stored_job_to_callers_that_may_not_read_it() -> None:
    async with ACluster() as cluster:
        operator = await an_operator(cluster)
        capabilities = ", ".join(f'"{name}"' for name in JOB_CAPABILITIES)
        writer = await a_writer(operator, f'namespace "default" {{ capabilities = [{capabilities}] }}')
        for count in (1, 2):
            await operator.put("/v1/jobs", {"Job": build_stored_job(count)})
        await operator.put("/v1/job/shop/versions/old/tag", {"Version": 0, "Description": SECRET})

        replies = [
            await writer.put("/v1/job/shop/plan", {"Job": build_job(), "Diff": True}),
            await writer.put("/v1/validate/job", {"Job": build_job()}),
            await writer.put("/v1/job/shop/evaluate", {"JobID": "shop"}),
            await writer.put("/v1/job/shop/scale", {"Message": "note", "Target": {"Group": "web"}}),
            await writer.put("/v1/job/shop/revert", {"JobID": "shop", "JobVersion": 0}),
            await writer.put("/v1/job/shop/stable", {"JobID": "shop", "JobVersion": 0, "Stable": True}),
            await writer.delete("/v1/job/shop/versions/old/tag"),
            await writer.put("/v1/jobs", {"Job": build_job(a_group(count=1))}),
            await writer.delete("/v1/job/shop"),
        ]

        assert [status for status, _ in replies] == [200, 403, 200, 200, 200, 200, 200, 200, 200], replies
        assert SECRET not in json.dumps(replies)


IDENTIFIERS = {
    "AllocationStopResponse", "AgentSchedulersConfig", "DeploymentUpdateResponse", "FlowBackfillResponse", "IndexResponse",
    "IntroductionReply", "JobDeregisterResponse", "JobDispatchResponse", "JobIndexReply", "JobRerunResponse",
    "JobStopElementsResponse", "JoinResult", "KeyDeletionReply", "KeyRotationReply", "NodeChangeResponse", "NodeUpdateResponse",
    "OneTimeTokenReply", "PeriodicForceResponse", "RunChangeResponse",
    "SessionCreateReply", "bool",
}  # fmt: skip
"""Reply types with ids, indexes, counts and new secrets of the caller only."""
READABLE = {
    "JobValidateResponse": "the endpoint needs read-job",
    "RunRetryResponse": "the endpoint needs read-job too",
    "HostVolumeResponse": "the capabilities to create and register volumes include host-volume-read",
    "NodeMetaResponse": "the level write of nodes includes read",
    "dict": "the level write of nodes includes read",
    "SchedulerConfigurationWriteReply": "the level write of operators includes read",
    "Rebalancing": "the level write of operators includes read",
    "Job": "the job is that of the request",
}
"""Reply types with content that each caller of the endpoint may read, and why."""
TESTED = {"JobPlanResponse", "JobRegisterResponse", "VariableView", "VersionTagResponse"}
"""Reply types with content that the tests above check."""


def test_the_reply_of_each_write_is_known_to_show_nothing_that_its_caller_may_not_read() -> None:
    shown = {
        getattr(endpoint.reply_type, "__name__", str(endpoint.reply_type))
        for endpoint in ENDPOINTS
        if (endpoint.kind in (EndpointKind.WRITE, EndpointKind.LEADER_WRITE) or endpoint.name.startswith("job."))
        and endpoint.method != "GET"
        and endpoint.need not in (MANAGEMENT_TOKEN, PUBLIC_ACCESS)
        and endpoint.reply_type is not None
        and endpoint.name != "job.statuses-of"  # A read whose query is a body.
    }

    assert sorted(shown - IDENTIFIERS - READABLE.keys() - TESTED) == []


def test_the_capability_to_create_volumes_includes_the_one_to_read_them() -> None:
    creator = rights('namespace "default" { capabilities = ["host-volume-create"] }')

    assert creator.satisfies(READ_HOST_VOLUME, namespace="default")
