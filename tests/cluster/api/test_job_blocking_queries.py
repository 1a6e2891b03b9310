"""Blocking reads of jobs: they wake for changes of their result and for nothing else."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_job
from tests.kit.api_client import ApiClient
from tests.kit.cluster import ACluster
from tests.kit.state import an_allocation, an_evaluation
from tests.kit.virtual_time import in_virtual_time, pass_time
from tests.kit.work import a_stored_job, store
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOBS,
    SCALING_EVENTS,
    SERVICES,
)
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.jobs.job import Job, JobSummary, Submission, VersionTag
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.scaling import JobScalingEvents
from wharf.contract.model.services import ServiceRegistration

Change = Callable[[Job], Any]


def a_deployment(job: Job) -> Any:
    submitted: dict[str, Any] = {"job_id": job.id, "job_create_index": job.create_index, "create_index": WRITE_INDEX}
    return DEPLOYMENTS.build_put(
        Deployment(id=f"d-{job.id}", namespace="default", status=DeploymentStatus.RUNNING, **submitted)
    )


def a_registration(job: Job) -> Any:
    return SERVICES.build_put(
        ServiceRegistration(
            id=f"s-{job.id}", service_name="web", namespace="default", job_id=job.id, create_index=WRITE_INDEX
        )
    )


CHANGES: dict[str, tuple[str, Change]] = {
    "the job": ("", lambda job: JOBS.build_put(replace(job, priority=60))),
    "its summary": ("/summary", lambda job: JOB_SUMMARIES.build_put(JobSummary(job_id=job.id, namespace="default"))),
    "a version's tag": ("/versions", lambda job: JOBS.build_put(replace(job, version_tag=VersionTag(name="t")))),
    "an allocation": ("/allocations", lambda job: ALLOCATIONS.build_put(an_allocation(job, f"a-{job.id}"))),
    "an evaluation": ("/evaluations", lambda job: EVALUATIONS.build_put(an_evaluation(job, f"e-{job.id}"))),
    "a deployment": ("/deployments", a_deployment),
    "its deployment": ("/deployment", a_deployment),
    "a service": ("/services", a_registration),
    "a count": ("/scale", lambda job: ALLOCATIONS.build_put(an_allocation(job, f"a-{job.id}"))),
    "a scaling event": (
        "/scale",
        lambda job: SCALING_EVENTS.build_put(
            JobScalingEvents(namespace="default", job_id=job.id, create_index=WRITE_INDEX)
        ),
    ),
    "a source": (
        "/submission",
        lambda job: JOB_SUBMISSIONS.build_put(
            Submission(namespace="default", job_id=job.id, source="ID: shop", create_index=WRITE_INDEX)
        ),
    ),
}


@pytest.mark.parametrize("case", CHANGES)
def test_a_blocking_query_wakes_for_changes_of_its_result_and_not_for_other_jobs(case: str) -> None:
    @in_virtual_time
    async def run() -> None:
        async with ACluster() as cluster:
            server = await cluster.a_server()
            assert server.election.term is not None
            server.election.term.lose()  # No leader, so that only the test changes records.
            shop, second = [await a_stored_job(server, a_job(name)) for name in ("shop", "other")]
            client = ApiClient(server)
            target, change = CHANGES[case]
            path = f"/v1/job/shop{target}"
            before = (await client.raw("GET", path, version=0)).headers["x-cluster-index"]

            pending_read = asyncio.ensure_future(client.raw("GET", path, version=0, index=before, wait="60s"))
            await pass_time(0.2)
            await store(server, change(second))
            await pass_time(0.2)
            was_waiting = not pending_read.done()
            index = await store(server, change(shop))
            reply = await pending_read

            assert (was_waiting, reply.status, reply.headers["x-cluster-index"]) == (True, 200, str(index))

    run()
