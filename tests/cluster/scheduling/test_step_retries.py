"""Retries of steps by their cause: what uses up an attempt, what never does, and when an element has failed for good."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import SETTINGS
from wharf.cluster.operations.explanations.allocations import explain_allocation
from wharf.cluster.operations.jobs.registration import deregister_job
from wharf.cluster.operations.nodes.reports import AllocationReport, apply_reports
from wharf.cluster.scheduling.reconcile.input import MIGRATING_TEXT
from wharf.cluster.scheduling.reconcile.rescheduling import list_avoided_nodes
from wharf.cluster.scheduling.reconcile.step_retry import (
    MAX_DRIVER_FAILURES,
    MAX_UNCOUNTED_EVENTS,
    AllocationEnd,
    build_step_tracker,
    classify_end,
    is_retried_code,
)
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.lookups import read_element_states
from wharf.cluster.state.tables import ALLOCATIONS, CLUSTER_FORMAT
from wharf.contract.model.allocations.allocation import (
    INTERRUPTED_TEXT,
    Allocation,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
    RetryCause,
)
from wharf.contract.model.allocations.failure_reasons import describe_failure
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType, TaskState, TaskStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.canonical_form import canonicalize_job
from wharf.contract.model.jobs.group_policies import RestartPolicy
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.jobs.steps import StepRetry
from wharf.contract.model.times import to_datetime
from wharf.node.core.allocation_spec import build_allocation_spec

RUN, STOP, EVICT = DesiredStatus.RUN, DesiredStatus.STOP, DesiredStatus.EVICT
COMPLETE, FAILED, LOST = ClientStatus.COMPLETE, ClientStatus.FAILED, ClientStatus.LOST


def an_end(exit_code: int, **details: str) -> TaskEvent:
    return TaskEvent(
        type=TaskEventType.TERMINATED, details={"exit_code": str(exit_code), "signal": "0", **details}, time=1
    )


def a_state(*events: TaskEvent, failed: bool = True, at_ns: int = 1) -> dict[str, TaskState]:
    now = to_datetime(at_ns)
    return {"server": TaskState(state=TaskStatus.DEAD, failed=failed, started_at=now, finished_at=now, events=events)}


DRIVER_FAILURE = TaskEvent(type=TaskEventType.DRIVER_FAILURE, details={"driver_error": "no such image"}, time=1)


def an_allocation(
    client: ClientStatus, desired: DesiredStatus, text: str = "", *events: TaskEvent, **fields: Any
) -> Allocation:
    return Allocation(
        id="a1", desired_status=desired, client_status=client, desired_description=text,
        task_states=a_state(*events), **fields,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("allocation", "end"),
    [
        (an_allocation(LOST, STOP), AllocationEnd(RetryCause.NODE, "its node was lost")),
        (an_allocation(FAILED, EVICT, "", an_end(1)), AllocationEnd(RetryCause.PREEMPTION, "a job of higher priority took its resources")),
        (an_allocation(FAILED, STOP, MIGRATING_TEXT, an_end(1)), AllocationEnd(RetryCause.MIGRATION, MIGRATING_TEXT)),
        (an_allocation(COMPLETE, STOP, INTERRUPTED_TEXT), AllocationEnd(RetryCause.NODE, "its node stopped it before its end")),
        (an_allocation(COMPLETE, STOP, "other"), AllocationEnd(RetryCause.STOP, "other")),
        (an_allocation(FAILED, RUN, "", an_end(75)), AllocationEnd(RetryCause.PROGRAM, "server: Exit Code: 75", 75)),
        (an_allocation(FAILED, RUN, "", an_end(137, oom_killed="true")), AllocationEnd(RetryCause.PROGRAM, "server: Exit Code: 137 (out of memory)", 137)),
        (an_allocation(FAILED, RUN, "", an_end(-1, exit_message="lost")), AllocationEnd(RetryCause.DRIVER, 'server: Exit Code: -1, Exit Message: "lost"')),
        (an_allocation(FAILED, RUN, "", DRIVER_FAILURE), AllocationEnd(RetryCause.DRIVER, "server: no such image")),
        (
            an_allocation(FAILED, RUN, "", TaskEvent(type=TaskEventType.FAILED_VALIDATION, time=1, details={"validation_error": "bad"})),
            AllocationEnd(RetryCause.PROGRAM, "server: bad", is_final=True),
        ),
        (
            replace(an_allocation(FAILED, RUN), task_states=a_state(an_end(0), failed=False), client_description="allocation exceeded max_run_duration"),
            AllocationEnd(RetryCause.PROGRAM, "allocation exceeded max_run_duration"),
        ),
    ],
)  # fmt: skip
def test_each_end_has_a_cause(allocation: Allocation, end: AllocationEnd) -> None:
    assert classify_end(allocation) == end


@pytest.mark.parametrize(
    ("retry", "retried"),
    [
        (StepRetry(), [0, 1, 2, 75]),
        (StepRetry(on_exit=(75, 1)), [1, 75]),
        (StepRetry(not_on_exit=(2,)), [0, 1, 75]),
    ],
)
def test_exit_codes_select_what_is_retried(retry: StepRetry, retried: list[int]) -> None:
    assert [code for code in (0, 1, 2, 75) if is_retried_code(retry, code)] == retried


def test_causes_that_use_up_no_attempt_are_forgotten_before_others() -> None:
    allocation = an_allocation(FAILED, RUN, "", an_end(1))
    for number in range(40):
        status = (FAILED, RUN, "") if number % 20 == 0 else (LOST, STOP, "")
        previous = replace(allocation, client_status=status[0], desired_status=status[1])
        allocation = replace(previous, reschedule_tracker=build_step_tracker(previous, number))

    assert allocation.reschedule_tracker is not None
    causes = [event.cause for event in allocation.reschedule_tracker.events or ()]

    assert causes.count(RetryCause.PROGRAM) == 2
    assert causes.count(RetryCause.NODE) == MAX_UNCOUNTED_EVENTS


# -- in a cluster


class RetryRun(SimulatedCluster):
    """A run `shop` with one step that has `Retry`."""

    def __init__(self, retry: StepRetry, *, nodes: int = 3, **fields: Any) -> None:
        super().__init__()
        self.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
        for number in range(nodes):
            self.with_node(f"node-{number}", cpu=1_000, memory_mb=1_000)
        self.register(canonicalize_job(a_batch_job("shop", a_group("train", retry=retry, **fields)), SETTINGS))
        self.process_pending()

    @property
    def states(self) -> str:
        return read_element_states(self.replica, self.job(), "train").states.decode()

    @property
    def newest(self) -> Allocation:
        return max(self.list_allocations(), key=lambda each: each.create_index)

    @property
    def causes(self) -> list[str]:
        tracker = self.newest.reschedule_tracker
        return [event.cause.value for event in (tracker.events if tracker is not None else None) or ()]

    def end(self, *events: TaskEvent, status: ClientStatus = FAILED) -> None:
        """Let the newest allocation end, and its retry be placed."""
        self.report_end(*events, status=status)
        self.pass_time(400)
        self.process_pending()

    def report_end(self, *events: TaskEvent, status: ClientStatus = FAILED, at_ns: int = 1) -> None:
        """Let the newest allocation end at a time. Its retry is placed if it is due."""
        allocation = self.newest
        report = AllocationReport(
            id=allocation.id,
            client_status=status,
            task_states=a_state(*events, failed=status is FAILED, at_ns=at_ns),
        )
        self.lead(
            apply_reports(self.replica, allocation.node_id, [report], self.moment, is_complete=False, max_evaluations=9)
        )
        self.process_pending()


def test_failures_of_the_program_are_retried_as_often_as_allowed() -> None:
    run = RetryRun(StepRetry(attempts=2))

    run.end(an_end(1))
    run.end(an_end(2))
    assert (run.states, run.causes) == (".", ["program", "program"])
    run.end(an_end(1))

    assert (run.states, run.job().status) == ("f", JobStatus.DEAD)
    assert run.newest.desired_description == "not retried: all retries are used up: 2 of 2"


@pytest.mark.parametrize(
    ("retry", "code", "reason"),
    [
        (StepRetry(attempts=2, on_exit=(75, 76)), 1, "exit code 1 is not in OnExit (75, 76)"),
        (StepRetry(attempts=2, not_on_exit=(2,)), 2, "exit code 2 is in NotOnExit"),
        (StepRetry(), 1, "Retry.Attempts is 0"),
    ],
)
def test_other_exit_codes_fail_at_once(retry: StepRetry, code: int, reason: str) -> None:
    run = RetryRun(retry)

    run.end(an_end(code))

    assert (run.states, len(run.list_allocations())) == ("f", 1)
    assert run.newest.desired_description == f"not retried: {reason}"


def test_a_retried_step_that_succeeds_has_succeeded() -> None:
    run = RetryRun(StepRetry(attempts=1, on_exit=(75,)))

    run.end(an_end(75))
    run.end(an_end(0), status=COMPLETE)

    assert (run.states, run.causes) == ("s", ["program"])


def test_a_failed_driver_uses_up_no_attempt_and_other_nodes_are_preferred() -> None:
    run = RetryRun(StepRetry(attempts=0), nodes=3)
    nodes = []
    for _ in range(3):
        nodes.append(run.newest.node_id)
        run.end(DRIVER_FAILURE)

    assert (run.states, sorted(nodes)) == (".", ["node-0", "node-1", "node-2"])
    assert run.causes == ["driver"] * 3
    assert list_avoided_nodes(run.newest) == tuple(nodes)


def test_a_driver_that_fails_on_every_node_ends_with_a_reason() -> None:
    run = RetryRun(StepRetry(attempts=9), nodes=2)

    for _ in range(MAX_DRIVER_FAILURES):
        assert run.states == "."
        run.end(DRIVER_FAILURE)

    assert (run.states, run.job().status) == ("f", JobStatus.DEAD)
    assert run.newest.desired_description == ("not retried: its program could not run 5 times, on 2 nodes")


def test_a_mistake_of_the_job_is_not_retried() -> None:
    run = RetryRun(StepRetry(attempts=9))

    run.end(TaskEvent(type=TaskEventType.FAILED_VALIDATION, details={"validation_error": "no x"}, time=1))

    assert run.states == "f"
    assert "would fail in the same way" in run.newest.desired_description


def test_a_lost_node_uses_up_no_attempt_and_the_used_ones_are_not_forgotten() -> None:
    run = RetryRun(StepRetry(attempts=1))
    run.end(an_end(1))

    run.lose_node(run.newest.node_id)
    run.process_pending()

    assert (run.states, run.causes) == (".", ["program", "node"])
    run.end(an_end(1))
    assert run.states == "f"


def test_the_first_run_of_an_element_may_be_lost() -> None:
    run = RetryRun(StepRetry(attempts=1))

    run.lose_node(run.newest.node_id)
    run.process_pending()

    assert (run.states, run.causes, len(run.list_allocations())) == (".", ["node"], 2)


def test_a_drained_element_runs_again_without_an_attempt() -> None:
    run = RetryRun(StepRetry(attempts=0))
    first = run.newest
    run.put(ALLOCATIONS.build_put(replace(first, desired_transition=DesiredTransition(migrate=True))))
    run.evaluate_job()

    # The program failed because it was stopped.
    run.end(an_end(143))

    assert (run.states, run.causes) == (".", ["migration"])
    assert run.newest.id != first.id


def test_a_preempted_element_runs_again_without_an_attempt() -> None:
    run = RetryRun(StepRetry(attempts=0))
    run.put(ALLOCATIONS.build_put(replace(run.newest, desired_status=EVICT)))

    run.end(an_end(143))

    assert (run.states, run.causes) == (".", ["preemption"])


def test_elements_of_an_array_count_their_attempts_alone() -> None:
    run = RetryRun(StepRetry(attempts=1), array=GroupArray(size=2, max_running=1))

    run.end(an_end(1))
    run.end(an_end(1))
    run.end(an_end(1))
    assert run.states in ("f.", ".f")
    run.end(an_end(0), status=COMPLETE)

    assert sorted(run.states) == ["f", "s"]


def test_a_stopped_job_retries_nothing() -> None:
    run = RetryRun(StepRetry(attempts=5))
    run.do(deregister_job(run.replica, "default", "shop", run.moment, settings=SETTINGS))
    run.process_pending()

    run.end(an_end(143))

    assert (run.states, len(run.list_allocations())) == ("c", 1)


def test_the_reason_of_a_failure_says_why_it_is_not_retried() -> None:
    run = RetryRun(StepRetry(attempts=1, on_exit=(75,)))
    run.end(an_end(2))

    assert describe_failure(run.newest) == "server: Exit Code: 2; not retried: exit code 2 is not in OnExit (75)"


def test_an_explanation_names_the_cause_of_each_run() -> None:
    run = RetryRun(StepRetry(attempts=2))
    run.end(an_end(75))

    story = explain_allocation(run.replica, run.newest.id).story

    assert any("ran again because of its program (server: Exit Code: 75)" in each for each in story)


# -- on the node


def build_spec(group: TaskGroup) -> list[int]:
    spec = build_allocation_spec(a_batch_job("shop", group), group.name, is_deployed=False)
    assert spec is not None
    return [task.restart_policy.attempts for task in spec.tasks]


def test_a_node_restarts_no_task_of_a_step_with_a_retry() -> None:
    restarts = RestartPolicy(attempts=3)

    assert build_spec(a_group("a", a_task(restart_policy=restarts), retry=StepRetry(attempts=2))) == [0]
    assert build_spec(a_group("a", a_task(restart_policy=restarts))) == [3]


def test_the_canonical_form_of_a_step_with_a_retry_has_no_restarts() -> None:
    (group,) = canonicalize_job(a_batch_job("shop", a_group("a", retry=StepRetry(attempts=2))), SETTINGS).groups

    assert group.restart_policy is not None
    assert [group.restart_policy.attempts, *build_spec(group)] == [0, 0]
