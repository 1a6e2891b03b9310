"""Scaling groups of jobs (jobs.md 1.5)."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_periodic_job, a_system_job, some_job_settings
from tests.kit.state import SETTINGS, AState
from wharf.cluster.operations.jobs import registration, scaling, versions
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SCHEDULER_CONFIGURATION,
)
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment, DeploymentStatus
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.job import Job, VersionTag
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason
from wharf.contract.model.scaling import GroupScaleStatus, JobScaleStatus, ScalingEvent, ScalingPolicy


def make_state(job: Job | None = None) -> AState:
    state = AState()
    state.register(job or a_job("shop", a_group(count=2), a_group("db", count=1)))
    return state


def scale(
    state: AState, count: int | None = None, *, settings: JobSettings = SETTINGS, **fields: Any
) -> registration.JobWriteResult:
    arguments: dict[str, Any] = {"namespace": "default", "job_id": "shop", "group": "web", "count": count, **fields}
    return state.do(scaling.scale_group(state.replica, scaling.GroupScaling(**arguments), state.moment, settings))


def expect_refusal(state: AState, *args: Any, **fields: Any) -> tuple[RefusalCode, str]:
    """Return code and text of the refusal, and check that nothing changed."""
    index = state.replica.index
    with pytest.raises(Refusal) as refusal:
        scale(state, *args, **fields)
    assert state.replica.index == index
    return refusal.value.code, refusal.value.text


def list_events(state: AState, group: str = "web") -> tuple[ScalingEvent, ...]:
    found = state.replica.get(SCALING_EVENTS, "default", "shop")
    return found.scaling_events.get(group, ()) if found is not None else ()


# -- a new count


def test_a_new_count_is_a_new_version_with_an_evaluation_and_an_event() -> None:
    state = make_state()
    state.now_ns += 7

    result = scale(state, 5, message="busy", meta={"why": ["load", 3]})

    job = state.job()
    assert ([group.count for group in job.groups], job.version, job.submit_time) == ([5, 1], 1, state.now_ns)
    evaluation = state.evaluations()[-1]
    assert (evaluation.triggered_by, evaluation.id, result.job_modify_index) == (
        "job-scaling",
        result.eval_id,
        result.index,
    )
    assert list_events(state) == (
        ScalingEvent(
            time=state.now_ns,
            count=5,
            previous_count=2,
            message="busy",
            meta={"why": ["load", 3]},
            eval_id=evaluation.id,
            create_index=result.index,
        ),
    )


def test_a_tag_is_not_inherited_by_the_next_version() -> None:
    state = make_state()
    tag = VersionTag(name="golden")
    state.do(versions.set_version_tag(state.replica, "default", "shop", tag, state.moment, is_latest=True))

    scale(state, 5)

    assert [each.version_tag is not None for each in versions.list_versions(state.replica, "default", "shop")] == [
        False,
        True,
    ]


def test_a_periodic_job_is_scaled_without_an_evaluation() -> None:
    state = make_state(a_periodic_job("shop"))

    result = scale(state, 3)

    assert (result.eval_id, state.job().groups[0].count, list_events(state)[0].eval_id) == ("", 3, None)


def test_the_newest_twenty_events_of_each_group_are_stored() -> None:
    state = make_state()

    for count in range(25):
        scale(state, count)
    scale(state, 1, group="db")

    assert [event.count for event in list_events(state)] == list(range(24, 4, -1))
    assert len(list_events(state, "db")) == 1


# -- only a message


def test_a_message_without_a_count_is_recorded_and_does_not_change_the_job() -> None:
    state = make_state()
    job = state.job()

    result = scale(state, None, message="cannot", is_error=True)

    assert state.job() == job
    assert (result.job_modify_index, result.eval_id, len(state.evaluations())) == (job.modify_index, "", 1)
    (event,) = list_events(state)
    assert (event.count, event.previous_count, event.error, event.message) == (None, 2, True, "cannot")


# -- refusals


@pytest.mark.parametrize(
    ("fields", "code", "text"),
    [
        ({"count": -1}, RefusalCode.INVALID, "scaling action count can't be negative"),
        (
            {"count": 1, "is_error": True},
            RefusalCode.INVALID,
            "scaling action should not contain count if error is true",
        ),
        ({"group": ""}, RefusalCode.INVALID, "missing task group name for scaling action"),
        ({"group": "x"}, RefusalCode.INVALID, 'task group "x" specified for scaling does not exist in job'),
        ({"job_id": "x"}, RefusalCode.NOT_FOUND, 'job "x" not found'),
        (
            {"count": 1, "job_modify_index": 77},
            RefusalCode.INVALID,
            "Enforcing job modify index 77: job exists with conflicting job modify index: 2",
        ),
        (
            {"count": SETTINGS.max_count},
            RefusalCode.INVALID,
            "total count was greater than configured job_max_count: 40001 > 40000",
        ),
        (
            {"meta": {"a": "x" * 10_001}},
            RefusalCode.INVALID,
            "the meta of a scaling action must be at most 10000 bytes of JSON",
        ),
    ],
)
def test_an_invalid_scaling_is_refused(fields: dict[str, Any], code: RefusalCode, text: str) -> None:
    assert expect_refusal(make_state(), **fields) == (code, text)


def test_the_current_modify_index_is_accepted() -> None:
    state = make_state()

    scale(state, 4, job_modify_index=state.job().job_modify_index)

    assert state.job().groups[0].count == 4


def test_without_a_limit_any_count_is_accepted() -> None:
    state = make_state()

    scale(state, 60_000, settings=some_job_settings(max_count=0))

    assert state.job().groups[0].count == 60_000


def test_a_system_job_is_scaled_between_0_and_1() -> None:
    state = make_state(a_system_job("shop"))

    assert expect_refusal(state, 2) == (RefusalCode.INVALID, 'jobs of type "system" can only be scaled between 0 and 1')
    scale(state, 0)
    assert state.job().groups[0].count == 0


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "group count was less than scaling policy minimum: 0 < 1"),
        (5, "group count was greater than scaling policy maximum: 5 > 3"),
    ],
)
def test_a_policy_limits_the_count(count: int, text: str) -> None:
    state = make_state(a_job("shop", a_group(scaling=ScalingPolicy(min=1, max=3))))

    assert expect_refusal(state, count) == (RefusalCode.INVALID, text)


def add_deployment(state: AState, job: Job, **fields: Any) -> None:
    arguments: dict[str, Any] = {"status": DeploymentStatus.RUNNING, "job_create_index": job.create_index, **fields}
    state.put(
        DEPLOYMENTS.build_put(
            Deployment(id="d1", namespace="default", job_id="shop", create_index=WRITE_INDEX, **arguments)
        )
    )


def test_an_active_deployment_blocks_scaling_and_is_reported_before_a_wrong_index() -> None:
    state = make_state()
    add_deployment(state, state.job())

    result = expect_refusal(state, 4, job_modify_index=77)

    assert result == (RefusalCode.INVALID, "job scaling blocked due to active deployment")


def test_the_refusal_for_an_active_deployment_has_a_reason() -> None:
    state = make_state()
    add_deployment(state, state.job())

    with pytest.raises(Refusal) as refusal:
        scale(state, 4)

    assert refusal.value.reason is RefusalReason.ACTIVE_DEPLOYMENT


def test_the_limit_of_counts_is_reported_before_the_deployment() -> None:
    state = make_state()
    add_deployment(state, state.job())

    assert expect_refusal(state, 50_000)[1].startswith("total count was greater than configured job_max_count")


@pytest.mark.parametrize("fields", [{"status": DeploymentStatus.SUCCESSFUL}, {"job_create_index": 1}])
def test_a_terminal_deployment_or_one_of_an_earlier_job_does_not_block_scaling(fields: dict[str, Any]) -> None:
    state = make_state()
    add_deployment(state, state.job(), **fields)

    scale(state, 4)

    assert state.job().groups[0].count == 4


def test_while_registration_is_disabled_only_management_tokens_scale() -> None:
    state = make_state()
    state.put(
        SCHEDULER_CONFIGURATION.build_put(
            SchedulerConfiguration(reject_job_registration=True, create_index=WRITE_INDEX)
        )
    )

    assert expect_refusal(state, 4, is_management=False)[0] is RefusalCode.FORBIDDEN


# -- status of groups


def build_status(state: AState) -> JobScaleStatus:
    counts = scaling.ScaleCounts(state.job())
    for allocation in state.replica.iter_all(ALLOCATIONS):
        counts.add(allocation)
    return counts.build_status(state.replica.get(SCALING_EVENTS, "default", "shop"))


def test_the_status_counts_live_allocations_except_canaries() -> None:
    state = make_state()
    job = state.job()
    healthy, canary = AllocDeploymentStatus(healthy=True), AllocDeploymentStatus(healthy=True, canary=True)
    state.with_allocation(job, "a1", client_status=ClientStatus.RUNNING, deployment_status=healthy)
    state.with_allocation(job, "a2", deployment_status=AllocDeploymentStatus(healthy=False))
    state.with_allocation(job, "a3", client_status=ClientStatus.RUNNING, deployment_status=canary)
    state.with_allocation(job, "a4", client_status=ClientStatus.FAILED)
    state.with_allocation(job, "a5", desired_status=DesiredStatus.STOP)
    state.with_allocation(job, "a6", job_create_index=1)

    result = build_status(state)

    assert result.task_groups == {
        "web": GroupScaleStatus(desired=2, placed=2, running=1, healthy=1, unhealthy=1),
        "db": GroupScaleStatus(desired=1),
    }


def test_the_status_contains_the_job_and_its_events() -> None:
    state = make_state(a_batch_job("shop", a_group(count=2)))
    scale(state, 4)
    job = state.job()

    result = build_status(state)

    assert (result.job_id, result.job_create_index, result.job_modify_index, result.job_stopped) == (
        "shop",
        job.create_index,
        job.modify_index,
        False,
    )
    assert result.task_groups["web"].events == list_events(state)


# -- limits, at their boundaries


@pytest.mark.parametrize(("count", "is_accepted"), [(1, False), (2, True), (5, True), (6, False)])
def test_a_count_must_be_within_the_scaling_policy_of_the_group(count: int, is_accepted: bool) -> None:
    state = make_state(a_job("shop", a_group(count=3, scaling=ScalingPolicy(min=2, max=5))))

    if is_accepted:
        scale(state, count)
        assert state.job().groups[0].count == count
    else:
        assert "scaling policy" in expect_refusal(state, count)[1]


@pytest.mark.parametrize(("max_count", "is_accepted"), [(0, True), (5, False), (6, True)])
def test_the_total_count_of_a_job_may_reach_its_configured_maximum(max_count: int, is_accepted: bool) -> None:
    state = make_state()
    settings = some_job_settings(max_count=max_count)

    if is_accepted:
        scale(state, 5, settings=settings)
        assert state.job().groups[0].count == 5
    else:
        assert "job_max_count: 6 > 5" in expect_refusal(state, 5, settings=settings)[1]


@pytest.mark.parametrize(("count", "is_accepted"), [(0, True), (1, True), (2, False)])
def test_a_system_job_can_be_scaled_to_zero_or_one(count: int, is_accepted: bool) -> None:
    state = make_state(a_system_job("shop"))

    if is_accepted:
        scale(state, count)
        assert state.job().groups[0].count == count
    else:
        assert "between 0 and 1" in expect_refusal(state, count)[1]


def test_a_message_and_a_meta_of_the_largest_size_are_stored() -> None:
    state = make_state()
    message = "x" * scaling.MAX_MESSAGE_BYTES
    meta = {"k": "x" * (scaling.MAX_META_BYTES - len('{"k":""}'))}

    scale(state, 5, message=message, meta=meta)

    assert [(event.message, event.meta) for event in list_events(state)] == [(message, meta)]
    assert "message" in expect_refusal(state, 6, message=message + "x")[1]
    assert "meta" in expect_refusal(state, 6, meta={"k": meta["k"] + "x"})[1]


def test_an_unchanged_scaling_policy_is_not_written_by_another_version_of_its_job() -> None:
    policy = ScalingPolicy(min=1, max=3)
    state = make_state(a_job("shop", a_group(scaling=policy)))
    (before,) = state.replica.iter_all(SCALING_POLICIES)

    state.register(a_job("shop", a_group(scaling=policy), priority=70))
    (same,) = state.replica.iter_all(SCALING_POLICIES)
    state.register(a_job("shop", a_group(scaling=replace(policy, max=4)), priority=70))
    (changed,) = state.replica.iter_all(SCALING_POLICIES)

    assert same == before
    assert (changed.max, changed.create_index, changed.modify_index) == (4, before.create_index, state.replica.index)


@pytest.mark.parametrize(
    ("is_enabled", "stop", "expected"),
    [(True, False, True), (True, True, False), (False, False, False), (False, True, False)],
)
def test_a_scaling_policy_is_enabled_if_the_job_runs_and_it_was_not_disabled(
    is_enabled: bool, stop: bool, expected: bool
) -> None:
    state = make_state(a_job("shop", a_group(scaling=ScalingPolicy(min=1, max=3, enabled=is_enabled)), stop=stop))

    assert [policy.enabled for policy in state.replica.iter_all(SCALING_POLICIES)] == [expected]


def test_the_events_of_a_group_that_no_longer_exists_are_dropped_by_the_next_event() -> None:
    state = make_state()
    scale(state, 3, group="db")
    scale(state, 3)
    both = (len(list_events(state, "db")), len(list_events(state)))
    state.register(a_job("shop", a_group(count=3)))

    scale(state, 4)

    assert (both, len(list_events(state, "db")), len(list_events(state))) == ((1, 1), 0, 2)
