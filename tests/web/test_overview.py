"""The first page: what failed and what changed last, in clusters with more jobs than one read returns."""

import re

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import a_browser
from wharf.cluster.state.tables import DEPLOYMENTS, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.jobs.job import GroupSummary, Job, JobStatus, JobSummary
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.limits import LimiterStatus
from wharf.web.pages.overview import MAX_RECORDS
from wharf.web.views.overview import build_overview
from wharf.web.views.queue import describe_quota_wait


async def add_jobs(server: OneServer, count: int, **fields: object) -> None:
    jobs = [
        a_job(f"job-{number:03}", create_index=WRITE_INDEX, modify_index=WRITE_INDEX, **fields)
        for number in range(count)
    ]
    await commit(server, *(JOBS.build_put(job) for job in jobs))


def build_failed_job(name: str) -> tuple[Job, JobSummary]:
    job = a_job(
        name, a_group("web", a_task("server")), type="batch", status=JobStatus.DEAD,
        create_index=WRITE_INDEX, modify_index=WRITE_INDEX,
    )  # fmt: skip
    return job, JobSummary(job_id=name, namespace="default", summary={"web": GroupSummary(failed=1)})


@in_virtual_time
async def test_the_job_that_changed_last_and_the_one_that_failed_are_shown_among_many_jobs() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        job, summary = build_failed_job("zz-failed")
        await commit(server, JOBS.build_put(job), JOB_SUMMARIES.build_put(summary))
        await add_jobs(server, MAX_RECORDS + 20)
        await commit(server, JOBS.build_put(a_job("zz-last", create_index=WRITE_INDEX, modify_index=WRITE_INDEX)))

        text = (await a_browser(server).get("/ui")).text

        assert re.findall(r'id="job-default/([^"]+)"', text)[0] == "zz-last"
        assert "zz-failed failed" in text


@in_virtual_time
async def test_a_failed_rollout_whose_job_still_runs_is_shown_until_the_job_has_another_version() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        job = a_job("shop", version=3, status=JobStatus.RUNNING, create_index=WRITE_INDEX, job_modify_index=WRITE_INDEX)
        index = await commit(server, JOBS.build_put(job))
        deployment = Deployment(
            id="d1", namespace="default", job_id="shop", job_version=3, status=DeploymentStatus.FAILED,
            job_spec_modify_index=index, status_description="Failed due to progress deadline",
            create_index=WRITE_INDEX,
        )  # fmt: skip
        await commit(server, DEPLOYMENTS.build_put(deployment))

        during = (await a_browser(server).get("/ui")).text
        await commit(server, JOBS.build_put(job))  # Another version has another index.
        after = (await a_browser(server).get("/ui")).text

        text = "The rollout of version 3 of shop failed"
        assert (text in during, "progress deadline" in during, text in after) == (True, True, False)


def test_a_wait_for_a_quota_names_what_of_it_does_not_suffice() -> None:
    metric = AllocMetric(quota_exhausted=("cpu exhausted (600 needed > 500 limit)",))

    assert describe_quota_wait("shops", {"web": metric}) == (
        "the quota shops allows no more: cpu exhausted (600 needed > 500 limit)"
    )


def test_the_failed_allocations_of_a_job_that_ran_again_are_those_of_all_attempts() -> None:
    def describe(failed: int) -> str:
        summary = JobSummary(
            job_id="sweep", namespace="default", summary={"a": GroupSummary(failed=failed, complete=21)}
        )
        job = JobStub(id="sweep", type="batch", status="dead", group_count_sum=24, job_summary=summary)
        view = build_overview(
            [], [], [], [job], [], "leader", LimiterStatus(is_enabled=False), (), 0, has_ready_nodes=True
        )
        return view.troubles[0].detail

    assert describe(3) == "3 allocations failed or lost"
    assert describe(6) == "6 allocations failed or lost, in all attempts together"
