"""The invariants of flows and of needs between jobs: each detects its violation."""

from typing import Any

import pytest
from msgspec.structs import replace

from simulation.flow_invariants import SLOT_KEY, FlowInvariants
from simulation.task_runs import TaskRun, TaskRunLog
from simulation.timeline import Timeline
from tests.builders import a_batch_job, a_group, a_task
from tests.simulation.small_log import SmallLog
from wharf.cluster.state.tables import ALLOCATIONS, ARRAY_ATTEMPTS, JOB_PURGES, JOB_RESULTS, JOBS, PERIODIC_LAUNCHES
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, CancelCause, GroupAttempt
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.job import Job, JobPurge, JobStatus
from wharf.contract.model.jobs.job_results import JobResult
from wharf.contract.model.jobs.periodic import PeriodicLaunch
from wharf.contract.model.jobs.step_states import StepCause, StepCauseKind, StepOutcome, StepPhase, StepState
from wharf.contract.model.jobs.steps import Flow, Need
from wharf.contract.model.log import join_key
from wharf.contract.model.times import to_datetime

GROUP = a_group("build", a_task("work"), array=GroupArray(size=1))
LAUNCHED = "periodic-job-launched"
WAITING, READY = StepState(), StepState(phase=StepPhase.READY)
CANCELED = StepCause(kind=StepCauseKind.REPLACED, step="nightly/periodic-7200")


def a_run(id: str, *, create_index: int, overlap: str = "", **fields: Any) -> Job:
    """Return a stored run; of the flow `nightly` if it has `overlap`."""
    flow = {"parent_id": "nightly" if overlap else "", "flow": Flow(overlap=overlap)}
    return a_batch_job(id, GROUP, create_index=create_index, **{"status": JobStatus.PENDING, **flow, **fields})


def an_attempt(job: Job, state: StepState = WAITING, **fields: Any) -> ArrayAttempt:
    is_skipped = state.phase is StepPhase.SKIPPED
    part = GroupAttempt(
        size=1, element_count=1, step=state, cancel_cause=CancelCause.STEP if is_skipped else CancelCause.NONE
    )
    return ArrayAttempt(
        namespace="default",
        job_id=job.id,
        attempt=1,
        job_create_index=job.create_index,
        groups={"build": part},
        **fields,
    )


class FlowScenario:
    """A log with runs, and the violations that the checks found."""

    def __init__(self) -> None:
        self.log = SmallLog()
        self.violations = self.log.failures
        self.task_runs = TaskRunLog(
            self.log.history, Timeline(self.log.loop), lambda error: self.violations.append(str(error))
        )
        self.invariants = FlowInvariants(self.log.history, self.task_runs)

    def put(self, job: Job, state: StepState = WAITING, **fields: Any) -> None:
        self.log.put((JOBS, job), (ARRAY_ATTEMPTS, an_attempt(job, state, **fields)))

    def launch(self, job: Job, *, is_backfill: bool = False, kind: str = LAUNCHED) -> None:
        launch = PeriodicLaunch(namespace="default", id="nightly", launch=to_datetime(0))
        records: list[tuple[Any, Any]] = [
            (JOBS, job),
            (ARRAY_ATTEMPTS, an_attempt(job)),
            *([] if is_backfill else [(PERIODIC_LAUNCHES, launch)]),
        ]
        self.log.put(*records, kind=kind)


@pytest.fixture
def scenario() -> FlowScenario:
    return FlowScenario()


# -- needs of jobs -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("need", "outcome", "is_allowed"),
    [
        (Need(on="a"), StepOutcome.SUCCEEDED, True),
        (Need(on="a"), StepOutcome.FAILED, False),
        (Need(on="a", when="any"), StepOutcome.CANCELED_BEFORE_BEGIN, True),
        (Need(on="a", optional=True), None, True),
        (Need(on="a"), None, False),
    ],
)
def test_a_step_that_begins_against_the_result_of_a_needed_job_is_a_violation(
    scenario: FlowScenario, need: Need, outcome: StepOutcome | None, is_allowed: bool
) -> None:
    if outcome is not None:
        scenario.log.put((JOB_RESULTS, JobResult(namespace="default", job_id="a", outcome=outcome)))
    job = a_run("b", create_index=7, depends=(need,))
    scenario.put(job)
    assert scenario.violations == []

    scenario.put(job, READY)

    assert [each.partition(" at ")[0] for each in scenario.violations] == (
        [] if is_allowed else ["step build of b begins"]
    )


def test_a_step_that_begins_before_the_end_of_a_needed_job_is_a_violation(scenario: FlowScenario) -> None:
    scenario.put(a_run("a", create_index=1), READY)
    scenario.put(a_run("b", create_index=2, depends=(Need(on="a", when="any"),)), READY)

    assert scenario.violations == ["step build of b begins at 2 before the job a allows it: it has not ended"]


def test_the_later_steps_of_a_run_that_has_begun_need_no_other_jobs(scenario: FlowScenario) -> None:
    scenario.log.put((JOB_RESULTS, JobResult(namespace="default", job_id="a", outcome=StepOutcome.SUCCEEDED)))
    job = a_run("b", create_index=7, depends=(Need(on="a"),))
    job = replace(job, task_groups=(GROUP, replace(GROUP, name="test")))
    part = GroupAttempt(size=1, element_count=1, step=WAITING)
    begun = replace(part, step=READY)
    stored = replace(an_attempt(job), groups={"build": begun, "test": part})
    scenario.log.put((JOBS, job), (ARRAY_ATTEMPTS, stored))
    scenario.put(a_run("a", create_index=8))

    scenario.log.put((ARRAY_ATTEMPTS, replace(stored, groups={"build": begun, "test": begun})))

    assert scenario.violations == []


def test_a_step_that_is_skipped_because_of_a_job_that_may_allow_it_is_a_violation(scenario: FlowScenario) -> None:
    skipped = StepState(phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.JOB, step="a", outcome="failed"))
    scenario.put(a_run("a", create_index=1), READY)
    job = a_run("b", create_index=2, depends=(Need(on="a"),))
    scenario.put(job)

    scenario.put(job, skipped)

    assert scenario.violations == ["step build of b is skipped at 3 because of the job a, which may allow it"]


# -- queues of flows ---------------------------------------------------------------------------------------------------


def test_a_run_that_begins_before_the_one_ahead_has_ended_is_a_violation(scenario: FlowScenario) -> None:
    first, second = (a_run(f"nightly/periodic-{slot}", create_index=slot, overlap="queue") for slot in (1, 2))
    scenario.put(first, READY)
    scenario.put(second)
    assert scenario.violations == []

    scenario.put(second, READY)

    assert scenario.violations == [
        "step build of nightly/periodic-2 begins at 3 although run nightly/periodic-1 of the flow has not ended"
    ]


def test_a_run_that_begins_beside_a_later_one_is_a_violation(scenario: FlowScenario) -> None:
    first, second = (a_run(f"nightly/periodic-{slot}", create_index=slot, overlap="queue") for slot in (1, 2))
    scenario.put(replace(first, status=JobStatus.DEAD))
    scenario.put(second, READY)

    scenario.put(first, READY)

    assert scenario.violations == [
        "step build of nightly/periodic-1 begins at 3 although run nightly/periodic-2 of the flow has begun"
    ]


def test_a_run_that_begins_before_the_end_of_a_purge_is_a_violation(scenario: FlowScenario) -> None:
    purge = JobPurge(namespace="default", job_id="nightly/periodic-1", job_create_index=1, parent_id="nightly")
    scenario.log.put((JOB_PURGES, purge))

    scenario.put(a_run("nightly/periodic-2", create_index=2, overlap="queue"), READY)

    assert len(scenario.violations) == 1
    assert "although run nightly/periodic-1 of the flow has not ended" in scenario.violations[0]


def test_programs_of_two_runs_of_a_flow_at_the_same_time_are_a_violation(scenario: FlowScenario) -> None:
    for number in (1, 2):
        job = a_run(f"nightly/periodic-{number}", create_index=number, overlap="queue")
        allocation = Allocation(
            id=f"a{number}", namespace="default", name="x[0]", job_id=job.id, task_group="build", node_id="n1",
            job_create_index=number, array_attempt=1, desired_status=DesiredStatus.RUN, client_status=ClientStatus.RUNNING,
        )  # fmt: skip
        scenario.log.put((JOBS, job), (ALLOCATIONS, allocation))
        scenario.task_runs.record_start(TaskRun(f"run-{number}", f"a{number}", "work", GROUP, {}, started_s=1.0))

    assert scenario.violations == ["a program of nightly/periodic-2 starts while one of nightly/periodic-1 runs"]


# -- launches ----------------------------------------------------------------------------------------------------------


def test_a_second_launch_of_a_run_is_a_violation(scenario: FlowScenario) -> None:
    run = a_run("nightly/periodic-3600", create_index=1, overlap="queue")
    scenario.launch(run)
    assert scenario.violations == []

    scenario.launch(run, is_backfill=True)

    assert scenario.violations == ["run nightly/periodic-3600 was launched twice"]


@pytest.mark.parametrize(
    ("id", "violation"),
    [
        ("nightly/periodic-3600", ""),
        ("nightly/periodic-3601", "run nightly/periodic-3601 was backfilled, but is in no slot of the schedule"),
        ("nightly/backfill-1", "run nightly/backfill-1 of a schedule has no slot"),
    ],
)
def test_a_backfilled_run_without_a_slot_is_a_violation(scenario: FlowScenario, id: str, violation: str) -> None:
    scenario.launch(a_run(id, create_index=1, overlap="queue", meta={SLOT_KEY: "3600"}), is_backfill=True)

    assert scenario.violations == ([violation] if violation else [])


@pytest.mark.parametrize(("overlap", "is_allowed"), [("skip", False), ("queue", True), ("replace", False)])
def test_a_launch_beside_an_earlier_run_obeys_the_overlap_of_the_flow(
    scenario: FlowScenario, overlap: str, is_allowed: bool
) -> None:
    scenario.put(a_run("nightly/periodic-3600", create_index=1, overlap=overlap), READY)

    scenario.launch(a_run("nightly/periodic-7200", create_index=2, overlap=overlap), is_backfill=True)
    assert scenario.violations == []
    scenario.launch(a_run("nightly/dispatch-1", create_index=3, overlap=overlap), kind="job-dispatched")

    assert (scenario.violations == []) is is_allowed


def test_a_launch_that_replaces_the_earlier_run_is_no_violation(scenario: FlowScenario) -> None:
    scenario.put(a_run("nightly/periodic-3600", create_index=1, overlap="replace"), READY, cancel_cause=CANCELED)

    scenario.launch(a_run("nightly/periodic-7200", create_index=2, overlap="replace"))

    assert scenario.violations == []


# -- results -----------------------------------------------------------------------------------------------------------


def test_a_run_that_is_deleted_without_its_result_is_a_violation(scenario: FlowScenario) -> None:
    scenario.put(a_run("a", create_index=1))

    scenario.log.delete(JOBS, join_key("default", "a"))

    assert scenario.violations == ["run a was deleted at 2 without its result"]


def test_a_result_that_differs_from_the_end_of_the_run_is_a_violation(scenario: FlowScenario) -> None:
    never = StepState(phase=StepPhase.SKIPPED, cause=StepCause(kind=StepCauseKind.NEED, step="x"))
    job = a_run("a", create_index=1, status=JobStatus.DEAD)
    scenario.put(job, never)
    result = JobResult(namespace="default", job_id="a", outcome=StepOutcome.SUCCEEDED, job_create_index=1)
    scenario.log.put((JOB_RESULTS, result))

    scenario.log.delete(JOBS, join_key("default", "a"))

    assert scenario.violations == [
        "run a was deleted at 3 as succeeded; it was skipped-by-condition or skipped-by-need"
    ]
