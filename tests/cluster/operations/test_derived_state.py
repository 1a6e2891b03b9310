"""Derived job statuses, row by row of the table in jobs.md 4, and job summaries."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job, a_system_job, a_task
from tests.kit.state import CAUSE, SETTINGS, AState, an_allocation, an_evaluation
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations.derived_state import (
    add_derived_changes,
    build_derived_write,
    is_settled_registration,
)
from wharf.cluster.operations.jobs.registration import JobRegistration, register_job
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.replica import AppliedChange
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    CLUSTER_FORMAT,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
)
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus, EvaluationTrigger
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, Job, JobEnding
from wharf.contract.model.log import WRITE_INDEX, Write


def make_state(job: Job) -> AState:
    state = AState()
    state.register(job)
    return state


def correct_derived_state(state: AState, *job_ids: str) -> None:
    write = build_derived_write(state.replica, [("default", job_id) for job_id in job_ids or ("shop",)], CAUSE)
    if write is not None:
        state.commit(write)


def make_deployment(job: Job, **fields: Any) -> Deployment:
    arguments = {
        "status": DeploymentStatus.RUNNING,
        "job_create_index": job.create_index,
        "create_index": WRITE_INDEX,
        **fields,
    }
    return Deployment(id="d1", namespace="default", job_id=job.id, **arguments)


# -- status: the first row that matches


def test_row_1_a_system_job_and_a_parent_run_until_they_are_stopped() -> None:
    for job in (a_system_job("x"), a_periodic_job("x"), a_parameterized_job("x")):
        state = make_state(job)
        correct_derived_state(state, "x")
        assert state.job("x").status == "running"

        state.put_led(JOBS.build_put(replace(state.job("x"), stop=True)))
        assert state.job("x").status == "dead"


def test_row_2_a_job_with_an_active_deployment_runs() -> None:
    state = make_state(a_job())

    state.put_led(DEPLOYMENTS.build_put(make_deployment(state.job())))
    assert state.job().status == "running"

    state.put_led(DEPLOYMENTS.build_put(make_deployment(state.job(), status=DeploymentStatus.SUCCESSFUL)))
    assert state.job().status == "pending"


def test_row_3_a_job_with_a_live_allocation_of_any_incarnation_runs() -> None:
    state = make_state(a_job())

    state.with_allocation(state.job(), job_create_index=1)

    assert state.job().status == "running"


def test_row_3_a_job_whose_evaluations_ended_runs_while_an_allocation_lives() -> None:
    state = make_state(a_job())
    state.with_allocation(state.job())

    state.end_evaluations()

    assert state.job().status == "running"


def test_row_4_a_job_with_an_open_evaluation_is_pending_blocked_or_not() -> None:
    state = make_state(a_job())
    assert state.job().status == "pending"

    state.end_evaluations(status=EvaluationStatus.BLOCKED)

    assert state.job().status == "pending"


def test_row_5_a_job_whose_evaluations_and_allocations_ended_is_dead_without_being_stopped() -> None:
    state = make_state(a_batch_job("shop"))
    state.with_allocation(state.job())
    state.end_evaluations()

    state.with_client_status("a1", ClientStatus.COMPLETE)

    assert (state.job().status, state.job().stop) == ("dead", False)


def test_row_5_a_stopped_job_without_evaluations_is_dead() -> None:
    state = make_state(a_job())
    evaluation = state.evaluations()[0]

    state.put_led(JOBS.build_put(replace(state.job(), stop=True)), EVALUATIONS.build_delete(evaluation.id))

    assert state.job().status == "dead"


def test_row_5_a_job_whose_evaluations_are_deleted_is_dead() -> None:
    state = make_state(a_job())
    evaluation = state.evaluations()[0]

    state.put_led(EVALUATIONS.build_delete(evaluation.id))

    assert state.job().status == "dead"


def test_row_5_a_dead_job_whose_evaluations_are_collected_stays_dead() -> None:
    state = make_state(a_batch_job("shop"))
    state.end_evaluations()
    assert state.job().status == "dead"

    state.put_led(EVALUATIONS.build_delete(state.evaluations()[0].id))

    assert state.job().status == "dead"


def test_row_6_a_new_job_without_evaluations_and_allocations_is_pending() -> None:
    state = AState()
    job = a_job()

    state.put_led(JOBS.build_put(replace(job, create_index=WRITE_INDEX)))

    assert state.job().status == "pending"


def test_a_new_status_changes_neither_version_nor_specification_of_the_job() -> None:
    state = make_state(a_job())
    before = state.job()

    state.with_allocation(before)

    after = state.job()
    assert after.modify_index == state.replica.index
    assert (after.version, after.job_modify_index) == (before.version, before.job_modify_index)


def test_derived_changes_depend_on_the_job_version_that_was_read() -> None:
    state = make_state(a_job())
    write = add_derived_changes(
        state.replica, Write("test", CAUSE, [ALLOCATIONS.build_put(an_allocation(state.job()))])
    )
    state.register(a_job(priority=77))

    assert isinstance(state.try_commit(write), WriteConflict)
    assert state.job().priority == 77


def test_missing_derived_changes_are_added_by_a_separate_write() -> None:
    state = make_state(a_batch_job("shop"))
    state.put(EVALUATIONS.build_put(replace(state.evaluations()[0], status=EvaluationStatus.COMPLETE)))
    assert state.job().status == "pending"

    correct_derived_state(state)

    assert state.job().status == "dead"


def test_correct_derived_state_is_not_written() -> None:
    state = make_state(a_job())

    assert build_derived_write(state.replica, [("default", "shop"), ("default", "nobody")], CAUSE) is None


# -- registrations that need no computation


def register_and_check(state: AState, job: Job) -> bool:
    """Register a job, and return whether its registration counts as settled."""
    decision = register_job(state.replica, JobRegistration(job=job), state.moment, SETTINGS)
    assert decision.write is not None
    before = {
        (each.table, each.key): state.replica.get(state.replica.tables[each.table], each.key)
        for each in decision.write.changes
    }
    state.commit(decision.write)
    changes = [
        (table, key, old, state.replica.get(state.replica.tables[table], key)) for (table, key), old in before.items()
    ]
    return is_settled_registration(state.replica, changes)


NEW_JOBS: list[tuple[Job, bool]] = [
    (a_job(), True),
    (a_job("shop", a_group("web", a_task(), count=0), a_group("db", a_task(), count=3)), True),
    (a_batch_job("shop"), True),
    (a_job("shop", type="sysbatch"), True),
    (replace(a_job(), stop=True), True),
    (a_system_job("shop"), False),
    (a_periodic_job("shop"), False),
    (a_parameterized_job("shop"), False),
    (a_batch_job("shop", a_group("web", a_task(), array=GroupArray(size=3))), False),
]


@pytest.mark.parametrize(("job", "is_settled"), NEW_JOBS)
def test_a_settled_registration_has_what_would_be_computed(job: Job, is_settled: bool) -> None:
    state = AState()
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))

    assert register_and_check(state, job) is is_settled
    if is_settled:
        assert build_derived_write(state.replica, [("default", "shop")], CAUSE) is None


def test_a_registration_of_a_job_that_exists_is_not_settled() -> None:
    state = make_state(a_job())
    state.end_evaluations()
    assert state.job().status == "dead"

    assert not register_and_check(state, replace(a_job(), priority=60))
    correct_derived_state(state)
    assert state.job().status == "pending"


def test_a_registration_is_not_settled_while_a_deployment_of_an_earlier_job_with_its_name_remains() -> None:
    state = make_state(a_job())
    deployment = make_deployment(state.job())
    state.put(
        DEPLOYMENTS.build_put(deployment),
        JOBS.build_delete("default", "shop"),
        JOB_SUMMARIES.build_delete("default", "shop"),
    )

    assert not register_and_check(state, a_job())


def test_a_registration_is_not_settled_while_an_allocation_of_an_earlier_job_with_its_name_remains() -> None:
    state = make_state(a_job())
    allocation = an_allocation(state.job(), "a1")
    state.put(
        ALLOCATIONS.build_put(allocation),
        JOBS.build_delete("default", "shop"),
        JOB_SUMMARIES.build_delete("default", "shop"),
    )

    assert not register_and_check(state, a_job())


def test_a_write_with_another_change_is_not_a_settled_registration() -> None:
    state = AState()
    decision = register_job(state.replica, JobRegistration(job=a_job()), state.moment, SETTINGS)
    assert decision.write is not None
    state.commit(decision.write)
    changes: list[AppliedChange] = [
        (each.table, each.key, None, state.replica.get(state.replica.tables[each.table], each.key))
        for each in decision.write.changes
    ]
    evaluation = replace(state.evaluations()[0], id="e2", job_id="other")

    assert is_settled_registration(state.replica, changes)
    assert not is_settled_registration(state.replica, [*changes, (EVALUATIONS.name, "e2", None, evaluation)])
    assert not is_settled_registration(state.replica, [*changes, (ALLOCATIONS.name, "a1", None, None)])
    assert not is_settled_registration(state.replica, [each for each in changes if each[0] != EVALUATIONS.name])
    assert not is_settled_registration(state.replica, [each for each in changes if each[0] != JOB_SUMMARIES.name])


# -- summaries


def make_web_summary(**counters: int) -> dict[str, GroupSummary]:
    return {"web": GroupSummary(**counters)}


def test_an_allocation_is_counted_by_its_client_status() -> None:
    state = make_state(a_job())
    steps = []
    state.with_allocation(state.job())
    steps.append(state.summary().summary)
    for status in (ClientStatus.RUNNING, ClientStatus.UNKNOWN, ClientStatus.LOST):
        state.with_client_status("a1", status)
        steps.append(state.summary().summary)

    assert steps == [
        make_web_summary(starting=1),
        make_web_summary(running=1),
        make_web_summary(unknown=1),
        make_web_summary(lost=1),
    ]


def test_complete_and_failed_counts_never_decrease() -> None:
    state = make_state(a_job())
    for number, status in enumerate((ClientStatus.COMPLETE, ClientStatus.FAILED)):
        state.with_allocation(state.job(), f"a{number}")
        state.with_client_status(f"a{number}", status)
        state.with_client_status(f"a{number}", ClientStatus.RUNNING)

    assert state.summary().summary == make_web_summary(complete=1, failed=1, running=2)


def test_a_report_that_changes_no_status_counts_nothing() -> None:
    state = make_state(a_job())
    state.with_allocation(state.job())
    index = state.summary().modify_index

    state.put_led(ALLOCATIONS.build_put(replace(state.allocation("a1"), client_description="told")))

    assert state.summary().modify_index == index


def test_the_first_placement_decreases_the_queued_count() -> None:
    state = make_state(a_job())
    state.end_evaluations(status=EvaluationStatus.BLOCKED, queued_allocations={"web": 2})
    assert state.summary().summary == make_web_summary(queued=2)

    state.with_allocation(state.job())

    assert state.summary().summary == make_web_summary(queued=1, starting=1)


def test_the_queued_count_comes_from_the_newest_processed_evaluation() -> None:
    state = make_state(a_job())
    state.end_evaluations(queued_allocations={"web": 4})
    state.put_led(EVALUATIONS.build_put(an_evaluation(state.job(), "e2")))

    state.end_evaluations(queued_allocations={"web": 0})

    assert state.summary().summary == make_web_summary(queued=0)


def test_a_canceled_evaluation_does_not_restore_its_queued_count() -> None:
    state = make_state(a_job())
    state.end_evaluations(
        status=EvaluationStatus.BLOCKED, queued_allocations={"web": 3}, triggered_by=EvaluationTrigger.QUEUED_ALLOCS
    )
    blocked = state.evaluations()[0]
    state.put_led(EVALUATIONS.build_put(an_evaluation(state.job(), "e2")))
    newest = replace(an_evaluation(state.job(), "e2"), status=EvaluationStatus.COMPLETE, queued_allocations={"web": 0})

    state.put_led(
        EVALUATIONS.build_put(newest), EVALUATIONS.build_put(replace(blocked, status=EvaluationStatus.CANCELED))
    )

    assert state.summary().summary == make_web_summary(queued=0)


def test_an_unblocked_evaluation_does_not_restore_its_queued_count() -> None:
    state = make_state(a_job())
    state.end_evaluations(status=EvaluationStatus.BLOCKED, queued_allocations={"web": 3})
    state.with_allocation(state.job())

    state.put_led(EVALUATIONS.build_put(replace(state.evaluations()[0], status=EvaluationStatus.PENDING)))

    assert state.summary().summary == make_web_summary(queued=2, starting=1)


def test_an_evaluation_that_is_blocked_again_sets_the_queued_count() -> None:
    state = make_state(a_job())
    state.end_evaluations(status=EvaluationStatus.BLOCKED, queued_allocations={"web": 3})
    state.put_led(EVALUATIONS.build_put(replace(state.evaluations()[0], status=EvaluationStatus.PENDING)))
    state.with_allocation(state.job())

    state.end_evaluations(status=EvaluationStatus.BLOCKED, queued_allocations={"web": 3})

    assert state.summary().summary == make_web_summary(queued=3, starting=1)


def test_allocations_of_an_earlier_job_of_the_same_name_are_not_counted() -> None:
    state = make_state(a_job())

    state.with_allocation(state.job(), job_create_index=state.job().create_index - 1)

    assert state.summary().summary == make_web_summary()


def test_groups_are_added_when_they_are_first_seen_and_never_removed() -> None:
    state = make_state(a_job())
    state.register(a_job("shop", a_group("db", a_task())))

    correct_derived_state(state)

    assert state.summary().summary == {"web": GroupSummary(), "db": GroupSummary()}


def test_a_job_without_a_summary_gets_one() -> None:
    state = make_state(a_job())
    state.put(JOB_SUMMARIES.build_delete("default", "shop"))

    correct_derived_state(state)

    assert state.summary().summary == make_web_summary()


def test_the_desired_status_changes_no_count() -> None:
    state = make_state(a_job())
    allocation = state.with_allocation(state.job())

    state.put_led(ALLOCATIONS.build_put(replace(allocation, desired_status=DesiredStatus.STOP)))

    assert state.summary().summary == make_web_summary(starting=1)


# -- children


def make_child(state: AState, **fields: Any) -> Job:
    """Return a dispatched child of the job convert."""
    parent = state.job("convert")
    arguments = {
        "id": "convert/dispatch-1",
        "parent_id": "convert",
        "dispatched": True,
        "create_index": WRITE_INDEX,
        **fields,
    }
    return replace(parent, **arguments)


def get_children_summary(state: AState) -> ChildrenSummary:
    result: ChildrenSummary = state.summary("convert").children
    return result


def test_a_child_is_counted_by_its_status() -> None:
    state = make_state(a_parameterized_job())
    child = make_child(state)
    state.put_led(JOBS.build_put(child), JOB_VERSIONS.build_put(child), EVALUATIONS.build_put(an_evaluation(child)))
    steps = [get_children_summary(state)]
    state.with_allocation(state.job(child.id))
    steps.append(get_children_summary(state))
    state.end_evaluations(child.id)
    state.with_client_status("a1", ClientStatus.COMPLETE)
    steps.append(get_children_summary(state))

    assert steps == [ChildrenSummary(pending=1), ChildrenSummary(running=1), ChildrenSummary(dead=1)]


def test_a_child_that_is_purged_before_its_end_counts_as_dead() -> None:
    state = make_state(a_parameterized_job())
    child = make_child(state)
    state.put_led(JOBS.build_put(child), EVALUATIONS.build_put(an_evaluation(child)))

    state.put_led(JOBS.build_delete("default", child.id), EVALUATIONS.build_delete("e1"))

    assert get_children_summary(state) == ChildrenSummary(dead=1)


def test_a_parent_corrected_with_its_child_has_both_changes() -> None:
    state = make_state(a_parameterized_job())
    child = make_child(state)
    state.put_led(JOBS.build_put(child), EVALUATIONS.build_put(an_evaluation(child)))
    state.register(a_parameterized_job("convert", a_group("other", a_task())))
    state.put(EVALUATIONS.build_put(replace(state.evaluations(child.id)[0], status=EvaluationStatus.COMPLETE)))

    correct_derived_state(state, "convert", child.id)

    assert state.summary("convert").summary == {"web": GroupSummary(), "other": GroupSummary()}
    assert get_children_summary(state) == ChildrenSummary(dead=1)


@pytest.mark.parametrize("table", [EVALUATIONS, ALLOCATIONS, DEPLOYMENTS, JOBS], ids=lambda table: table.name)
def test_the_deletion_of_a_record_that_is_already_gone_changes_no_job(table: Any) -> None:
    state = make_state(a_job())
    key = ("default", "gone") if table is JOBS else ("gone",)
    write = Write("test", CAUSE, (table.build_delete(*key),))

    assert [change for change in add_derived_changes(state.replica, write).changes if change.table != table.name] == []


# -- the outcome of allocations without elements


def end_version(state: AState, allocation_id: str, status: ClientStatus, *, version: int, **fields: Any) -> None:
    """Let an allocation of a version of the job end, and the job with it."""
    if state.job().version < version:
        state.register(replace(state.job(), meta={"version": str(version)}))
    state.with_allocation(state.job(), allocation_id, **fields)
    state.end_evaluations()
    state.with_client_status(allocation_id, status)


def test_a_batch_job_whose_new_version_failed_has_failed_although_its_earlier_version_succeeded() -> None:
    state = make_state(a_batch_job("shop"))

    end_version(state, "a1", ClientStatus.COMPLETE, version=0)
    before = state.summary().outcome
    end_version(state, "a2", ClientStatus.FAILED, version=1)

    assert (before, state.summary().outcome) == (JobEnding.SUCCEEDED, JobEnding.FAILED)


def test_a_batch_job_whose_failed_allocation_was_replaced_has_succeeded() -> None:
    state = make_state(a_batch_job("shop"))
    failed = state.with_allocation(state.job(), "a1", client_status=ClientStatus.FAILED)

    end_version(state, "a2", ClientStatus.COMPLETE, version=0, previous_allocation=failed.id)

    assert state.summary().outcome == JobEnding.SUCCEEDED


def test_failures_of_allocations_that_the_job_no_longer_requests_do_not_count() -> None:
    state = make_state(a_batch_job("shop"))
    state.with_allocation(state.job(), "a1", name="shop.web[7]", client_status=ClientStatus.FAILED)

    end_version(state, "a2", ClientStatus.COMPLETE, version=0)

    assert state.summary().outcome == JobEnding.SUCCEEDED


def test_a_sysbatch_job_fails_if_its_newest_allocation_of_one_node_failed() -> None:
    state = make_state(replace(a_batch_job("shop"), type="sysbatch"))
    state.with_allocation(state.job(), "a1", node_id="n1", client_status=ClientStatus.FAILED)
    state.with_allocation(state.job(), "a2", node_id="n2", client_status=ClientStatus.COMPLETE)

    end_version(state, "a3", ClientStatus.COMPLETE, version=0, node_id="n3")

    assert state.summary().outcome == JobEnding.FAILED


def test_the_outcome_stays_while_allocations_are_collected_and_ends_with_the_next_version() -> None:
    state = make_state(a_batch_job("shop"))
    end_version(state, "a1", ClientStatus.FAILED, version=0)
    state.put_led(ALLOCATIONS.build_delete("a1"))
    after_collection = state.summary().outcome

    state.register(replace(state.job(), meta={"version": "1"}))
    correct_derived_state(state)

    assert (after_collection, state.summary().outcome) == (JobEnding.FAILED, JobEnding.NONE)
