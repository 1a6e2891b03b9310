"""The first page: what failed and what changed last, in clusters with more jobs than one read returns."""

import re

from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from tests.kit.cluster import ACluster, OneServer
from tests.kit.requests import commit
from tests.kit.state import an_evaluation
from tests.kit.virtual_time import in_virtual_time
from tests.web.browsing import a_browser
from wharf.cluster.state.tables import DEPLOYMENTS, EVALUATIONS, JOB_SUMMARIES, JOBS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import GroupSummary, Job, JobStatus, JobSummary
from wharf.contract.model.jobs.lock_waits import LockWait
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import SECOND
from wharf.contract.model.waiting_queue import QueueEntry, QueueReason, QueueReasonKind, QueueReasons
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.limits import LimiterStatus
from wharf.web.views.overview import MAX_RECORDS, build_overview
from wharf.web.views.queue import describe_quota_wait, list_placement_failures


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


def build_reason(kind: QueueReasonKind, name: str, count: int) -> QueueReason:
    return QueueReason(kind=kind, name=name, count=count, job_id="oldest", namespace="default", waiting_since=1)


def test_many_waiting_jobs_are_shown_by_their_reasons() -> None:
    reasons = QueueReasons(
        reasons=(
            build_reason(QueueReasonKind.RESOURCE, "memory", 1_200),
            build_reason(QueueReasonKind.CONSTRAINT, "${attr.kernel.name} = linux", 40),
            build_reason(QueueReasonKind.NODES, "gpu", 30),
            build_reason(QueueReasonKind.QUOTA, "team", 20),
            build_reason(QueueReasonKind.LOCK, "production", 10),
            build_reason(QueueReasonKind.PARENT, "nightly", 1),
        ),
        count=1_305,
        others=4,
    )

    view = build_overview(
        [],
        [],
        [],
        [],
        [],
        "leader",
        LimiterStatus(is_enabled=False),
        (),
        60_000_000_000,
        has_ready_nodes=True,
        reasons=reasons,
    )

    assert [trouble.text for trouble in view.troubles] == [
        "1,200 jobs wait for capacity: too little memory on the nodes that suit them",
        "40 jobs wait for a suitable node: most nodes are excluded by ${attr.kernel.name} = linux",
        "30 jobs wait for a node: none in the pool gpu is ready in their datacenters",
        "20 jobs wait for capacity: the quota team allows no more",
        "10 jobs wait for the lock production",
        "5 more jobs wait for other reasons",
    ]
    assert view.troubles[0].detail == "oldest waits longest, for 59s"


@in_virtual_time
async def test_all_waiting_jobs_are_counted_if_more_wait_than_one_read_returns() -> None:
    async with ACluster() as cluster:
        server = await cluster.a_server()
        job = a_job("big")
        await commit(
            server,
            *(
                EVALUATIONS.build_put(
                    replace(
                        an_evaluation(job), id=f"00000000-0000-0000-0000-{number:012}", job_id=f"job-{number}",
                        status=EvaluationStatus.BLOCKED, waiting_since=number,
                        failed_tg_allocs={"web": AllocMetric(nodes_evaluated=1, dimension_exhausted={"cpu": 1})},
                    )
                )
                for number in range(1, MAX_RECORDS + 51)
            ),
        )  # fmt: skip

        text = (await a_browser(server).get("/ui")).text

        assert "150 jobs wait for capacity: too little cpu on the nodes that suit them" in text
        assert "job-1 waits longest" in text


def test_a_count_of_records_that_were_not_all_read_says_so() -> None:
    jobs = [
        JobStub(
            id=f"job-{number}", type="batch", status="dead", group_count_sum=1, job_summary=summary, modify_index=number
        )
        for number in range(MAX_RECORDS)
        for _, summary in [build_failed_job(f"job-{number}")]
    ]

    view = build_overview([], [], [], jobs, [], "leader", LimiterStatus(is_enabled=False), (), 0, has_ready_nodes=True)

    assert view.troubles[-1].text == "At least 95 more jobs failed"


def test_a_job_that_waits_for_a_lock_or_a_sibling_does_not_wait_for_capacity() -> None:
    waiting = an_evaluation(a_job("deploy"))
    for_lock = replace(waiting, lock_waits=(LockWait(step="ship", key="production"),), status=EvaluationStatus.BLOCKED)
    for_sibling = replace(waiting, waits_behind="nightly", status=EvaluationStatus.BLOCKED)

    view = build_overview(
        [for_lock, for_sibling], [], [], [], [], "leader", LimiterStatus(is_enabled=False), (), 0, has_ready_nodes=True
    )

    assert [trouble.text for trouble in view.troubles] == [
        "deploy waits for the lock production",
        "deploy waits for a running child of nightly to end",
    ]


def test_a_waiting_job_counts_its_elements_as_the_queue_does() -> None:
    waiting = replace(an_evaluation(a_job("sweep")), status=EvaluationStatus.BLOCKED)
    entry = QueueEntry(place=1, eval_id=waiting.id, job_id="sweep", namespace="default", unplaced=1998, elements=1998)

    view = build_overview(
        [waiting], [], [], [], [], "leader", LimiterStatus(is_enabled=False), (), 0, has_ready_nodes=True, queue=[entry]
    )

    assert view.troubles[0].text == "sweep waits for capacity for 1,998 elements"


def test_ports_and_devices_that_nodes_lack_are_named_as_in_commands() -> None:
    full = AllocMetric(dimension_exhausted={"network: reserved port collision http=8080": 1, "cores": 2})
    unsuitable = AllocMetric(constraint_filtered={"missing devices": 4})

    assert list_placement_failures({"api": full, "gpu": unsuitable}) == (
        "api: too few cores on 2 nodes",
        "api: network: reserved port collision http=8080 on 1 node",
        "gpu: 4 nodes excluded by missing devices",
    )


def test_a_job_that_no_node_suits_waits_for_a_suitable_node() -> None:
    pinned = AllocMetric(constraint_filtered={"missing devices": 4})
    huge = AllocMetric(dimension_exhausted={"memory": 4}, coalesced_failures=1)
    waiting = [
        an_evaluation(a_job("pinned"), id="first", failed_tg_allocs={"g": pinned}, create_index=1),
        an_evaluation(a_job("huge"), id="second", failed_tg_allocs={"g": huge}, create_index=2),
    ]
    queue = [
        QueueEntry(place=place, eval_id=each.id, job_id=each.job_id, namespace="default", unplaced=place)
        for place, each in enumerate(waiting, start=1)
    ]

    view = build_overview(
        waiting,
        [],
        [],
        [],
        [],
        "leader",
        LimiterStatus(is_enabled=False),
        (),
        60 * SECOND,
        has_ready_nodes=True,
        queue=queue,
    )

    assert [trouble.text for trouble in view.troubles] == [
        "pinned waits for a suitable node for 1 allocation",
        "huge waits for capacity for 2 allocations",
    ]
