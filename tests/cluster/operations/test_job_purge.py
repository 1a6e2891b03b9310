"""Purging a job: deleted at once, its remaining records step by step (jobs.md 1.3)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_periodic_job
from tests.kit.state import SETTINGS, AState, an_evaluation
from wharf.cluster.operations.jobs import periodic, registration, scaling
from wharf.cluster.operations.jobs import purge as purging
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_PURGES,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    PERIODIC_LAUNCHES,
    SCALING_EVENTS,
    SCALING_POLICIES,
)
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import ChildrenSummary, JobPurge, Submission
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.scaling import ScalingPolicy

CHANGES = 100
KEY = ("default", "shop")


def purge(
    state: AState, job_id: str = "shop", *, changes_max: int = CHANGES, **options: Any
) -> registration.JobWriteResult:
    return state.lead(
        purging.purge_job(state.replica, "default", job_id, state.moment, max_changes=changes_max, **options)
    )


def continue_purge(state: AState, *, changes_max: int = CHANGES) -> int:
    """Run one step of the purge; return the number of its changes."""
    (intent,) = state.replica.iter_all(JOB_PURGES)
    return state.lead(
        purging.continue_purge(state.replica, intent, state.moment, max_changes=changes_max)
    ).changed_count


def list_purges(state: AState) -> list[JobPurge]:
    return list(state.replica.iter_all(JOB_PURGES))


def make_scaled_state() -> AState:
    """Return a state with a job that has every kind of record except allocations."""
    state = AState()
    for priority in (1, 2, 3):
        job = a_job("shop", a_group(scaling=ScalingPolicy(min=1, max=9)), priority=priority)
        state.register(job, submission=Submission(namespace="", job_id="", source="x"))
    result = scaling.GroupScaling(namespace="default", job_id="shop", group="web", message="hello")
    state.do(scaling.scale_group(state.replica, result, state.moment, SETTINGS))
    deployment = Deployment(
        id="d1",
        namespace="default",
        job_id="shop",
        job_create_index=state.job().create_index,
        status=DeploymentStatus.RUNNING,
        create_index=WRITE_INDEX,
    )
    state.put_led(DEPLOYMENTS.build_put(deployment))
    return state


def count_job_records(state: AState) -> dict[str, int]:
    """Return the number of remaining records of the job, by table."""
    tables = (
        JOBS,
        JOB_VERSIONS,
        JOB_SUBMISSIONS,
        JOB_SUMMARIES,
        SCALING_POLICIES,
        SCALING_EVENTS,
        DEPLOYMENTS,
        PERIODIC_LAUNCHES,
    )
    return {table.name: state.replica.count_records(table) for table in tables if state.replica.count_records(table)}


def test_a_purge_deletes_all_records_of_the_job_except_its_evaluations() -> None:
    state = make_scaled_state()

    purge(state)

    assert (count_job_records(state), list_purges(state)) == ({}, [])


def test_a_purge_cancels_open_evaluations_and_creates_one_that_stops_the_allocations() -> None:
    state = AState()
    state.register(a_job())
    state.put_led(EVALUATIONS.build_put(an_evaluation(state.job(), "waits", status=EvaluationStatus.BLOCKED)))

    purged = purge(state)

    result = {each.id: (each.status, each.status_description) for each in state.evaluations()}
    (first,) = [each for each in state.evaluations() if each.triggered_by == "job-register" and each.id != "waits"]
    assert result == {
        first.id: ("complete", "job deleted"),
        "waits": ("canceled", "job deleted"),
        purged.eval_id: ("pending", ""),
    }
    stopping = state.replica.get(EVALUATIONS, purged.eval_id)
    assert stopping is not None
    assert (stopping.triggered_by, stopping.type, stopping.priority) == (
        "job-deregister",
        "service",
        SETTINGS.default_priority,
    )


def test_a_purge_deletes_ended_allocations_at_once_and_running_ones_after_their_end() -> None:
    state = AState()
    state.register(a_job("shop", a_group(count=2)))
    state.with_allocation(state.job(), "ended", client_status=ClientStatus.COMPLETE)
    state.with_allocation(state.job(), "runs", client_status=ClientStatus.RUNNING)

    purge(state)

    (running,) = state.replica.list_by_index(ALLOCATIONS_OF_JOB, *KEY)
    assert (running.id, running.desired_status, running.alloc_modify_index) == (
        "runs",
        DesiredStatus.STOP,
        state.replica.index,
    )
    assert (continue_purge(state), len(list_purges(state))) == (0, 1)

    state.with_client_status("runs", ClientStatus.COMPLETE)
    continue_purge(state)

    assert (state.replica.list_by_index(ALLOCATIONS_OF_JOB, *KEY), list_purges(state)) == ([], [])


def test_a_purge_larger_than_a_write_is_done_in_several_writes() -> None:
    state = make_scaled_state()
    for number in range(20):
        state.with_allocation(state.job(), f"a{number}", client_status=ClientStatus.COMPLETE)

    purge(state, changes_max=10)
    jobs_left, steps = state.replica.count_records(JOBS), 0
    while list_purges(state):
        assert 0 < continue_purge(state, changes_max=10) <= 10
        steps += 1

    assert (jobs_left, count_job_records(state), state.replica.count_records(ALLOCATIONS)) == (0, {}, 0)
    assert steps >= 3


def test_a_later_job_of_the_same_name_is_not_purged() -> None:
    state = make_scaled_state()
    state.with_allocation(state.job(), "old", client_status=ClientStatus.RUNNING)
    purge(state, changes_max=8)
    scaled = a_job("shop", a_group(scaling=ScalingPolicy(min=1, max=4)))
    repeated = state.register(scaled, submission=Submission(namespace="", job_id="", source="new"))
    state.with_allocation(state.job(), "new")
    state.with_client_status("old", ClientStatus.COMPLETE)

    while list_purges(state):
        continue_purge(state, changes_max=8)

    assert [each.id for each in state.replica.list_by_index(ALLOCATIONS_OF_JOB, *KEY)] == ["new"]
    assert count_job_records(state) == {
        "jobs": 1,
        "job_versions": 1,
        "job_submissions": 1,
        "job_summaries": 1,
        "scaling_policies": 1,
    }
    assert [each.id for each in state.open_evaluations()][-1] == repeated.eval_id


def test_purging_a_periodic_job_deletes_its_launches_and_creates_no_evaluation() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))

    result = purge(state, "nightly")

    assert (result.eval_id, count_job_records(state)) == ("", {})


def test_a_purged_child_that_had_not_ended_counts_as_dead() -> None:
    state = AState()
    state.register(a_periodic_job("nightly"))
    created = state.lead(periodic.force_periodic_launch(state.replica, "default", "nightly", state.moment, SETTINGS))

    purge(state, created.job_id)

    assert state.summary("nightly").children == ChildrenSummary(dead=1)


def test_purging_an_unknown_job_writes_nothing() -> None:
    state = AState()
    index = state.replica.index

    result = purge(state)

    assert (result, state.replica.index) == (registration.JobWriteResult(0, 0), index)


def test_a_priority_out_of_range_is_refused() -> None:
    state = AState()
    state.register(a_job())
    index = state.replica.index

    with pytest.raises(Refusal) as caught:
        purge(state, eval_priority=101)

    assert (caught.value.code, state.replica.index) == (RefusalCode.INVALID, index)


def test_a_purge_step_conflicts_with_a_concurrent_change() -> None:
    state = AState()
    state.register(a_job())
    state.with_allocation(state.job(), "a1", client_status=ClientStatus.RUNNING)
    decision = purging.purge_job(state.replica, "default", "shop", state.moment, max_changes=CHANGES)
    assert decision.write is not None
    state.put(ALLOCATIONS.build_put(replace(state.allocation("a1"), client_status=ClientStatus.COMPLETE)))

    assert type(state.try_commit(decision.write)).__name__ == "WriteConflict"


def test_a_continued_purge_keeps_evaluations_of_a_later_job() -> None:
    state = AState()
    state.with_node()
    state.register(a_job("shop"))
    state.with_allocation(state.job("shop"), "a1", client_status=ClientStatus.RUNNING)
    purge(state)
    state.register(a_job("shop"))
    (waits,) = [
        each
        for each in state.replica.iter_all(EVALUATIONS)
        if each.triggered_by == "job-register" and not each.status.is_terminal
    ]

    continue_purge(state)

    assert state.replica.get(EVALUATIONS, waits.id) == waits


def test_an_evaluation_that_has_ended_does_not_hide_the_open_ones() -> None:
    state = AState()
    state.register(a_job())
    for evaluation_id, status in (
        ("x1", EvaluationStatus.BLOCKED),
        ("x2", EvaluationStatus.COMPLETE),
        ("x3", EvaluationStatus.BLOCKED),
    ):
        state.put_led(EVALUATIONS.build_put(an_evaluation(state.job(), evaluation_id, status=status)))

    purge(state)

    result = {each.id: each.status_description for each in state.evaluations()}
    assert [result[each] for each in ("x1", "x2", "x3")] == ["job deleted", "", "job deleted"]
