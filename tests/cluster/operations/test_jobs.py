"""Registering and deregistering jobs (jobs.md 1.1 to 1.3, 5, 6)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_parameterized_job, a_periodic_job, a_system_job, a_task
from tests.kit.state import SETTINGS, AState, Refused
from wharf.cluster.engines.port import WriteConflict
from wharf.cluster.operations.jobs import registration
from wharf.cluster.state.tables import JOB_SUMMARIES, JOB_VERSIONS, JOBS, VERSIONS_OF_JOB
from wharf.contract.model.evaluations import EvaluationTrigger, SchedulerType
from wharf.contract.model.jobs.job import ChildrenSummary, GroupSummary, Job, JobStatus, VersionTag
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.scaling import ScalingPolicy


def list_version_numbers(state: AState, job_id: str = "shop") -> list[int]:
    return sorted(v.version for v in state.replica.list_by_index(VERSIONS_OF_JOB, "default", job_id))


def expect_refusal(state: AState, job: Job, **options: object) -> Refusal:
    with pytest.raises(Refusal) as caught:
        state.register(job, **options)
    return caught.value


# -- new versions


def test_a_new_job_is_stored_as_version_0_with_a_summary_and_an_evaluation() -> None:
    state = AState()

    result = state.register(a_job())

    job = state.job()
    assert (job.version, job.status, job.create_index, job.job_modify_index) == (
        0,
        "pending",
        result.index,
        result.index,
    )
    assert list_version_numbers(state) == [0]
    assert state.summary().summary == {"web": GroupSummary()}
    evaluation = state.evaluations()[0]
    assert (result.eval_id, result.eval_create_index) == (evaluation.id, result.index)
    assert (evaluation.triggered_by, evaluation.job_modify_index) == (EvaluationTrigger.JOB_REGISTER, result.index)
    assert (evaluation.type, evaluation.priority) == (SchedulerType.SERVICE, SETTINGS.default_priority)


@pytest.mark.parametrize(("before", "after"), [(1, True), (0, False), (True, 1)])
def test_a_driver_value_of_another_type_is_a_new_version(before: object, after: object) -> None:
    state = AState()
    state.register(
        a_job("shop", a_group("web", a_task(driver="plugin", config={"value": before, "more": {"a": 1, "b": 2}})))
    )
    state.register(
        a_job("shop", a_group("web", a_task(driver="plugin", config={"more": {"b": 2, "a": 1}, "value": before})))
    )
    assert list_version_numbers(state) == [0]

    state.register(
        a_job("shop", a_group("web", a_task(driver="plugin", config={"value": after, "more": {"a": 1, "b": 2}})))
    )

    assert list_version_numbers(state) == [0, 1]
    (task,) = state.job().groups[0].tasks or ()
    assert repr(task.config) == repr({"value": after, "more": {"a": 1, "b": 2}})


def test_registering_an_unchanged_job_creates_an_evaluation_and_no_version() -> None:
    state = AState()
    state.register(a_job())
    stored = state.job()

    result = state.register(a_job())

    assert state.job() == stored
    assert list_version_numbers(state) == [0]
    assert result.job_modify_index == stored.modify_index
    assert len(state.evaluations()) == 2


def test_a_changed_job_is_a_new_version_with_the_same_create_index() -> None:
    state = AState()
    first = state.register(a_job())
    state.now_ns += 5

    second = state.register(a_job(priority=60))

    job = state.job()
    assert (job.version, job.create_index, job.job_modify_index) == (1, first.index, second.index)
    assert job.submit_time == state.now_ns
    assert list_version_numbers(state) == [0, 1]


@pytest.mark.parametrize(
    "ignored",
    [
        {"status": JobStatus.DEAD},
        {"status_description": "told"},
        {"stable": True},
        {"version": 0},
        {"create_index": 77},
        {"modify_index": 77},
        {"job_modify_index": 77},
        {"submit_time": 77},
    ],
)
def test_fields_that_only_servers_set_are_not_a_change(ignored: dict[str, Any]) -> None:
    state = AState()
    state.register(a_job())

    state.register(a_job(**ignored))

    assert list_version_numbers(state) == [0]


@pytest.mark.parametrize("changed", [{"stop": True}, {"meta": {"a": "b"}}, {"version_tag": VersionTag(name="t")}])
def test_every_other_field_is_a_change(changed: dict[str, Any]) -> None:
    state = AState()
    state.register(a_job())

    state.register(a_job(**changed))

    assert list_version_numbers(state) == [0, 1]


def test_a_version_above_the_next_is_kept() -> None:
    state = AState()
    state.register(a_job())

    state.register(a_job(version=9, priority=60))

    assert state.job().version == 9


def test_a_periodic_or_parameterized_job_is_running_without_an_evaluation() -> None:
    state = AState()

    periodic = state.register(a_periodic_job("nightly"))
    parameterized = state.register(a_parameterized_job("convert"))

    assert (periodic.eval_id, parameterized.eval_id) == ("", "")
    assert [state.job("nightly").status, state.job("convert").status] == ["running", "running"]
    assert state.summary("nightly").children == ChildrenSummary()


def test_an_unchanged_periodic_job_writes_nothing() -> None:
    state = AState()
    state.register(a_periodic_job())
    index = state.replica.index

    result = state.register(a_periodic_job())

    assert state.replica.index == index
    assert result.job_modify_index == state.job("nightly").modify_index


def test_a_system_job_runs_from_the_start_and_one_registered_as_stopped_is_dead() -> None:
    state = AState()

    state.register(a_system_job("agent"))
    state.register(a_system_job("gone", stop=True))

    assert [state.job("agent").status, state.job("gone").status] == ["running", "dead"]


# -- stored versions


def test_the_newest_versions_and_the_newest_stable_one_are_stored() -> None:
    state = AState()
    for priority in range(1, 8):
        state.register(a_job(priority=priority))
    assert list_version_numbers(state) == [2, 3, 4, 5, 6]
    first_stored = state.replica.get(JOB_VERSIONS, "default", "shop", 2)
    assert first_stored is not None
    state.put(JOB_VERSIONS.build_put(replace(first_stored, stable=True)))

    for priority in range(8, 11):
        state.register(a_job(priority=priority))

    # The stable version is kept instead of the next oldest (jobs.md 4).
    assert list_version_numbers(state) == [2, 6, 7, 8, 9]


def test_tagged_versions_are_kept_and_not_counted() -> None:
    state = AState()
    state.register(a_job(priority=1))
    first = state.replica.get(JOB_VERSIONS, "default", "shop", 0)
    assert first is not None
    state.put(JOB_VERSIONS.build_put(replace(first, version_tag=VersionTag(name="golden"))))

    for priority in range(2, 10):
        state.register(a_job(priority=priority))

    assert list_version_numbers(state) == [0, 4, 5, 6, 7, 8]


def test_a_version_that_is_tagged_meanwhile_is_not_deleted() -> None:
    state = AState()
    for priority in range(1, 1 + SETTINGS.versions_kept):
        state.register(a_job(priority=priority))
    oldest = state.replica.get(JOB_VERSIONS, "default", "shop", 0)
    assert oldest is not None
    decision = registration.register_job(
        state.replica, registration.JobRegistration(job=a_job(priority=7)), state.moment, SETTINGS
    )
    assert decision.write is not None

    state.put(JOB_VERSIONS.build_put(replace(oldest, version_tag=VersionTag(name="golden"))))

    assert isinstance(state.try_commit(decision.write), WriteConflict)


def test_concurrent_registrations_conflict() -> None:
    state = AState()
    decision = registration.register_job(
        state.replica, registration.JobRegistration(job=a_job()), state.moment, SETTINGS
    )
    state.register(a_job(priority=70))

    with pytest.raises(Refused):
        state.do(decision)


# -- check and set


@pytest.mark.parametrize(
    ("modify_index", "text"),
    [
        (0, "Enforcing job modify index 0: job already exists"),
        (99, "Enforcing job modify index 99: job exists with conflicting job modify index: 2"),
    ],
)
def test_a_wrong_modify_index_is_refused(modify_index: int, text: str) -> None:
    state = AState()
    state.register(a_job())

    assert expect_refusal(state, a_job(), should_enforce_index=True, job_modify_index=modify_index).text == text


def test_a_modify_index_for_an_unknown_job_is_refused() -> None:
    result = expect_refusal(AState(), a_job(), should_enforce_index=True, job_modify_index=7)

    assert result.text == "Enforcing job modify index 7: job does not exist"


def test_the_current_modify_index_is_accepted() -> None:
    state = AState()
    first = state.register(a_job(), should_enforce_index=True, job_modify_index=0)

    second = state.register(a_job(priority=60), should_enforce_index=True, job_modify_index=first.job_modify_index)

    assert state.job().job_modify_index == second.index


# -- refusals


@pytest.mark.parametrize("priority", [-1, 101])
def test_a_priority_of_the_evaluation_out_of_range_is_refused(priority: int) -> None:
    result = expect_refusal(AState(), a_job(), eval_priority=priority)

    assert (result.code, result.text) == (RefusalCode.INVALID, "Eval priority must be between 1 and 100 inclusively")


def test_the_evaluation_has_the_requested_priority() -> None:
    state = AState()

    state.register(a_job(), eval_priority=90)

    assert [(e.priority, state.job().priority) for e in state.evaluations()] == [(90, SETTINGS.default_priority)]


@pytest.mark.parametrize(
    ("first", "second", "text"),
    [
        (a_job(), a_batch_job("shop"), 'cannot update job from type "service" to "batch"'),
        (a_batch_job("x"), a_periodic_job("x"), "cannot update non-periodic job to being periodic"),
        (a_periodic_job("x"), a_batch_job("x"), "cannot update periodic job to being non-periodic"),
        (a_batch_job("x"), a_parameterized_job("x"), "cannot update non-parameterized job to being parameterized"),
        (a_parameterized_job("x"), a_batch_job("x"), "cannot update parameterized job to being non-parameterized"),
    ],
)
def test_the_type_of_a_job_cannot_change(first: Job, second: Job, text: str) -> None:
    state = AState()
    state.register(first)

    result = expect_refusal(state, second)

    assert (result.code, result.text) == (RefusalCode.INVALID, text)


def test_all_problems_are_reported_together() -> None:
    invalid = a_job("shop", a_group("web", a_task(driver="")), node_pool="nowhere", namespace="nobody", priority=200)

    result = expect_refusal(AState(), invalid)

    assert result.code is RefusalCode.INVALID
    assert result.text.startswith("4 errors occurred:\n\t* ")
    for line in (
        'job "shop" is in nonexistent namespace "nobody"',
        'job "shop" is in nonexistent node pool "nowhere"',
        "job priority must be between [1, 90]",
        "Missing task driver",
    ):
        assert line in result.text


def test_a_scaling_block_on_a_system_job_is_refused_before_anything_else() -> None:

    invalid = a_system_job("agent", a_group("web", scaling=ScalingPolicy(min=0, max=3, id="")), priority=200)

    assert expect_refusal(AState(), invalid).text == "Task groups with job type system do not support scaling blocks"


def test_a_job_can_use_the_pool_of_all_nodes() -> None:
    state = AState()

    state.register(a_job(node_pool="all"))

    assert state.job().node_pool == "all"


def test_warnings_are_part_of_the_reply() -> None:
    result = AState().register(
        a_job(update=None), submission_warnings=("Job.Colour is not a known field; it was ignored",)
    )

    assert "* Job.Colour is not a known field; it was ignored" in result.warnings
    assert result.warnings.startswith("1 warning:\n\n")


def test_implied_constraints_are_stored_with_the_job() -> None:
    state = AState()

    state.register(a_job("shop", a_group("web", a_task(kill_signal="SIGHUP"))))

    assert [c.r_target for c in state.job().groups[0].constraints or ()] == ["SIGHUP"]


# -- deregistering


def deregister(state: AState, job_id: str = "shop", *, eval_priority: int = 0) -> registration.JobWriteResult:
    return state.do(
        registration.deregister_job(
            state.replica, "default", job_id, state.moment, eval_priority=eval_priority, settings=SETTINGS
        )
    )


def test_deregistering_an_unknown_job_changes_nothing() -> None:
    state = AState()
    index = state.replica.index

    assert deregister(state) == registration.JobWriteResult(0, 0, "", 0)
    assert state.replica.index == index


def test_a_deregistered_job_stays_readable_as_a_stopped_version() -> None:
    state = AState()
    state.register(a_job(priority=70))

    result = deregister(state)

    job = state.job()
    assert (job.stop, job.version, job.job_modify_index) == (True, 1, result.index)
    evaluation = state.evaluations()[-1]
    assert (evaluation.triggered_by, evaluation.priority) == (EvaluationTrigger.JOB_DEREGISTER, 70)
    assert (result.eval_id, result.eval_create_index) == (evaluation.id, result.index)


def test_the_evaluation_of_a_deregistered_job_has_type_service_and_the_requested_priority() -> None:
    state = AState()
    state.register(a_batch_job("shop"))

    deregister(state, eval_priority=33)

    assert [(e.type, e.priority) for e in state.evaluations()][-1] == (SchedulerType.SERVICE, 33)


def test_a_stopped_job_can_be_deregistered_again() -> None:
    state = AState()
    state.register(a_job())
    deregister(state)

    result = deregister(state)

    assert state.job().version == 2
    assert result.eval_id


def test_a_deregistered_periodic_job_is_dead_without_an_evaluation() -> None:
    state = AState()
    state.register(a_periodic_job())

    result = deregister(state, "nightly")

    assert (result.eval_id, result.eval_create_index) == ("", result.index)
    assert state.job("nightly").status == "dead"


def test_a_tag_is_not_inherited_by_a_stopped_version() -> None:
    state = AState()
    state.register(a_job(version_tag=VersionTag(name="golden")))

    deregister(state)

    tagged = [v.version for v in state.replica.list_by_index(VERSIONS_OF_JOB, "default", "shop") if v.version_tag]
    assert tagged == [0]
    assert state.job().version_tag is None


def test_a_stopped_job_that_is_registered_again_is_pending() -> None:
    state = AState()
    state.register(a_job())
    deregister(state)
    state.end_evaluations()
    assert state.job().status == "dead"

    state.register(a_job())

    assert (state.job().status, state.job().stop, state.job().version) == ("pending", False, 2)


def test_a_registration_conflicts_with_a_concurrent_change_of_the_summary() -> None:
    state = AState()
    decision = registration.register_job(
        state.replica, registration.JobRegistration(job=a_job()), state.moment, SETTINGS
    )
    assert decision.write is not None

    assert {c.table for c in decision.write.conditions} >= {JOBS.name, JOB_SUMMARIES.name}
