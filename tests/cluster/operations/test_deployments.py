"""Requests that change deployments (scheduling.md 7.2, 7.3, 7.5)."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, AState, an_allocation
from wharf.cluster.operations import deployments
from wharf.cluster.operations.deployments import DeploymentWriteResult
from wharf.cluster.operations.jobs import versions
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    DEPLOYMENTS,
    EVALUATIONS,
    JOB_SUBMISSIONS,
    JOB_VERSIONS,
    JOBS,
    SCALING_POLICIES,
)
from wharf.contract.model.allocations.allocation import Allocation, AllocDeploymentStatus, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.job import Job, JobStatus, Submission, VersionTag
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.refusal import Refusal, RefusalCode
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.state_machines.machine import InvalidTransition
from wharf.contract.model.times import to_datetime

MANY = 100
DEADLINE_NS = 600 * SECOND_NS


def a_deployment(job: Job, **fields: Any) -> Deployment:
    given = {
        "namespace": job.namespace,
        "job_id": job.id,
        "job_version": job.version,
        "job_create_index": job.create_index,
        "job_modify_index": job.modify_index,
        "task_groups": {"web": a_deployed_group()},
        "status": DeploymentStatus.RUNNING,
        "status_description": "Deployment is running",
        "create_index": WRITE_INDEX,
        **fields,
    }
    return Deployment(id="d1", **given)


def a_deployed_group(**fields: Any) -> DeploymentGroup:
    return DeploymentGroup(**{"progress_deadline": DEADLINE_NS, "desired_total": 3, **fields})


def a_canary(job: Job, id: str, *, healthy: bool | None = True, **fields: Any) -> Allocation:
    status = AllocDeploymentStatus(healthy=healthy, canary=True)
    return an_allocation(job, id, deployment_id="d1", deployment_status=status, **fields)


def with_deployment(**fields: Any) -> AState:
    """A job that was evaluated, and its deployment."""
    state = AState()
    state.register(a_job(), eval_priority=70)
    state.end_evaluations()
    state.put(DEPLOYMENTS.build_put(a_deployment(state.job(), **fields)))
    return state


def with_canaries(*healthy: bool | None, desired: int = 2, **fields: Any) -> AState:
    """Canaries c1, c2, ... of this health."""
    ids = tuple(f"c{number}" for number in range(1, len(healthy) + 1))
    group = a_deployed_group(**{"desired_canaries": desired, "placed_canaries": ids, **fields})
    state = with_deployment(
        task_groups={"web": group}, status_description="Deployment is running but requires manual promotion"
    )
    for id, health in zip(ids, healthy, strict=True):
        state.put(ALLOCATIONS.build_put(a_canary(state.job(), id, healthy=health)))
    return state


def with_stable_version(**changed: Any) -> AState:
    """Version 0 is stable; version 1 is deployed, and its group reverts by itself."""
    state = AState()
    state.register(a_job())
    state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))
    state.register(a_job(**({"priority": 60} | changed)))
    state.end_evaluations()
    state.put(DEPLOYMENTS.build_put(a_deployment(state.job(), task_groups={"web": a_deployed_group(auto_revert=True)})))
    return state


def the_deployment(state: AState) -> Deployment:
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    return deployment


def the_group(state: AState) -> DeploymentGroup:
    return (the_deployment(state).task_groups or {})["web"]


def the_evaluation(state: AState, written: DeploymentWriteResult) -> Evaluation:
    evaluation = state.replica.get(EVALUATIONS, written.eval_id)
    assert evaluation is not None
    return evaluation


def fail(state: AState) -> DeploymentWriteResult:
    return state.lead(deployments.fail_deployment(state.replica, "d1", state.moment))


def pause(state: AState) -> DeploymentWriteResult:
    return state.lead(deployments.pause_deployment(state.replica, "d1", state.moment))


def resume(state: AState) -> DeploymentWriteResult:
    return state.lead(deployments.resume_deployment(state.replica, "d1", state.moment))


def unblock(state: AState) -> DeploymentWriteResult:
    return state.lead(deployments.unblock_deployment(state.replica, "d1", state.moment))


def promote(state: AState, *groups: str, changes_max: int = MANY) -> DeploymentWriteResult:
    return state.lead(
        deployments.promote_deployment(
            state.replica, "d1", state.moment, should_promote_all=not groups, groups=groups, max_changes=changes_max
        )
    )


def set_health(
    state: AState, *, healthy: tuple[str, ...] = (), unhealthy: tuple[str, ...] = (), changes_max: int = MANY
) -> DeploymentWriteResult:
    return state.lead(
        deployments.set_allocation_health(
            state.replica, "d1", state.moment, healthy=healthy, unhealthy=unhealthy, max_changes=changes_max
        )
    )


def refused(state: AState, act: Callable[[], object]) -> Refusal:
    """How it was refused; it changed nothing."""
    before = state.replica.index
    with pytest.raises(Refusal) as refusal:
        act()
    assert state.replica.index == before
    return refusal.value


def later(state: AState, duration_ns: int) -> datetime.datetime:
    return to_datetime(state.now_ns + duration_ns)


# -- of all of them


@pytest.mark.parametrize("act", [fail, pause, resume, promote, unblock, lambda s: set_health(s, healthy=("a1",))])
def test_what_nobody_knows_is_not_found(act: Callable[[AState], object]) -> None:
    state = AState()

    refusal = refused(state, lambda: act(state))

    assert (refusal.code, refusal.text) == (RefusalCode.NOT_FOUND, "deployment not found")


@pytest.mark.parametrize(
    ("act", "text"),
    [
        (fail, "can't fail terminal deployment"),
        (pause, "can't pause terminal deployment"),
        (resume, "can't resume terminal deployment"),
        (promote, "can't promote terminal deployment"),
        (unblock, "can't unblock terminal deployment"),
        (lambda s: set_health(s, healthy=("a1",)), "can't set health of allocations for a terminal deployment"),
    ],
)
@pytest.mark.parametrize("status", ["successful", "failed", "cancelled"])
def test_a_deployment_that_is_over_never_changes(act: Callable[[AState], object], text: str, status: str) -> None:
    state = with_deployment(status=DeploymentStatus(status))

    refusal = refused(state, lambda: act(state))

    assert (refusal.code, refusal.text) == (RefusalCode.INVALID, text)


@pytest.mark.parametrize("act", [fail, resume])
def test_what_is_written_is_told_with_its_index_and_evaluation(act: Callable[[AState], DeploymentWriteResult]) -> None:
    state = with_deployment(eval_priority=70)

    written = act(state)

    evaluation = the_evaluation(state, written)
    assert written == DeploymentWriteResult(
        state.replica.index, state.replica.index, evaluation.id, state.replica.index
    )
    assert (evaluation.triggered_by, evaluation.deployment_id, evaluation.priority, evaluation.status) == (
        "deployment-watcher",
        "d1",
        70,
        "pending",
    )


def test_without_a_priority_of_its_own_the_jobs_priority_counts() -> None:
    state = with_deployment(eval_priority=0)

    assert the_evaluation(state, fail(state)).priority == state.job().priority


def test_a_deployment_whose_job_is_gone_ends_without_an_evaluation() -> None:
    state = with_deployment()
    state.put(JOBS.build_delete("default", "shop"))

    written = state.do(deployments.fail_deployment(state.replica, "d1", state.moment))

    assert (written.eval_id, written.eval_create_index) == ("", 0)
    assert the_deployment(state).status == "failed"


# -- fail


def test_a_deployment_that_is_failed_says_that_it_was_marked() -> None:
    state = with_deployment()

    written = fail(state)

    assert (the_deployment(state).status, the_deployment(state).status_description) == (
        "failed",
        "Deployment marked as failed",
    )
    assert written.reverted_job_version is None


def test_a_paused_deployment_can_be_failed() -> None:
    state = with_deployment(status=DeploymentStatus.PAUSED)

    fail(state)

    assert the_deployment(state).status == "failed"


def test_with_auto_revert_the_job_goes_back_to_its_stable_version() -> None:
    state = with_stable_version()

    written = fail(state)

    job = state.job()
    assert written.reverted_job_version == 0
    assert (job.version, job.priority, job.stable) == (2, 50, False)
    assert state.replica.get(JOB_VERSIONS, "default", "shop", 2) == job
    assert the_deployment(state).status_description == "Deployment marked as failed - rolling back to job version 0"


def test_the_evaluation_of_a_rollback_is_of_the_job_it_went_back_to() -> None:
    state = with_stable_version()

    written = fail(state)

    assert the_evaluation(state, written).job_modify_index == state.job().job_modify_index == written.index


def test_a_rollback_keeps_the_source_of_the_version_and_leaves_its_tag() -> None:
    state = with_stable_version()
    stable = state.replica.get(JOB_VERSIONS, "default", "shop", 0)
    assert stable is not None
    state.put(
        JOB_SUBMISSIONS.build_put(
            Submission(namespace="default", job_id="shop", version=0, source="job {}", create_index=WRITE_INDEX)
        ),
        JOB_VERSIONS.build_put(replace(stable, version_tag=VersionTag(name="good"))),
    )

    fail(state)

    submission = state.replica.get(JOB_SUBMISSIONS, "default", "shop", 2)
    assert submission is not None
    assert (submission.source, submission.job_modify_index) == ("job {}", state.job().job_modify_index)
    assert state.job().version_tag is None


def test_a_rollback_takes_the_scaling_policies_back_too() -> None:
    state = AState()
    scaled = a_group("web", scaling=ScalingPolicy(min=1, max=5))
    state.register(a_job("shop", scaled))
    state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))
    (policy,) = state.replica.iter_all(SCALING_POLICIES)
    state.register(a_job("shop", replace(scaled, scaling=ScalingPolicy(min=1, max=9))))
    groups = {"web": a_deployed_group(auto_revert=True)}
    state.put(DEPLOYMENTS.build_put(a_deployment(state.job(), task_groups=groups)))

    fail(state)

    assert [(each.id, each.max) for each in state.replica.iter_all(SCALING_POLICIES)] == [(policy.id, 5)]


def test_without_a_stable_version_it_says_that_there_is_none() -> None:
    state = with_deployment(task_groups={"web": a_deployed_group(auto_revert=True)})

    written = fail(state)

    assert (written.reverted_job_version, state.job().version) == (None, 0)
    assert the_deployment(state).status_description == (
        "Deployment marked as failed - no stable job version to auto revert to"
    )


def test_a_stable_version_of_the_same_specification_is_not_gone_back_to() -> None:
    state = with_deployment(task_groups={"web": a_deployed_group(auto_revert=True)})
    state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))

    written = fail(state)

    assert (written.reverted_job_version, state.job().version) == (None, 0)
    assert the_deployment(state).status_description == (
        "Deployment marked as failed - not rolling back to stable job version 0 as current job has same specification"
    )


def test_what_was_registered_after_the_deployed_version_stays() -> None:
    state = with_stable_version()
    state.register(a_job(priority=80))

    written = fail(state)

    assert (written.reverted_job_version, state.job().priority) == (None, 80)
    assert the_deployment(state).status_description == "Deployment marked as failed"


def test_a_job_whose_deployment_failed_and_that_runs_nothing_is_pending_by_the_same_write() -> None:
    state = with_deployment()
    state.put(JOBS.build_put(replace(state.job(), status=JobStatus.RUNNING)))

    fail(state)

    assert state.job().status is JobStatus.PENDING


# -- pause and resume


def test_pausing_makes_no_evaluation() -> None:
    state = with_deployment()

    written = pause(state)

    assert (the_deployment(state).status, the_deployment(state).status_description) == (
        "paused",
        "Deployment is paused",
    )
    assert (written.eval_id, written.eval_create_index, written.deployment_modify_index) == ("", 0, written.index)


def test_resuming_makes_it_run_and_evaluates_the_job() -> None:
    state = with_deployment(status=DeploymentStatus.PAUSED)

    written = resume(state)

    assert (the_deployment(state).status, the_deployment(state).status_description) == (
        "running",
        "Deployment is running",
    )
    assert written.eval_id


@pytest.mark.parametrize("act", [pause, resume])
def test_pausing_and_resuming_give_every_group_its_whole_time_again(act: Callable[[AState], object]) -> None:
    long_ago = to_datetime(0)
    groups = {"web": a_deployed_group(require_progress_by=long_ago), "db": DeploymentGroup()}
    state = with_deployment(task_groups=groups)

    act(state)

    groups_after = the_deployment(state).task_groups or {}
    assert {name: group.require_progress_by for name, group in groups_after.items()} == {
        "web": later(state, DEADLINE_NS),
        "db": None,
    }


@pytest.mark.parametrize(
    ("auto_promote", "description"),
    [
        (False, "Deployment is running but requires manual promotion"),
        (True, "Deployment is running pending automatic promotion"),
    ],
)
def test_a_resumed_deployment_says_that_it_waits_for_its_promotion(auto_promote: bool, description: str) -> None:
    groups = {"web": a_deployed_group(desired_canaries=1, auto_promote=auto_promote)}
    state = with_deployment(status=DeploymentStatus.PAUSED, task_groups=groups)

    resume(state)

    assert the_deployment(state).status_description == description


def test_what_waits_for_other_regions_cannot_be_paused() -> None:
    state = with_deployment(status=DeploymentStatus.BLOCKED)

    with pytest.raises(InvalidTransition, match="cannot go from blocked to paused"):
        pause(state)

    assert the_deployment(state).status == "blocked"


# -- promote


def test_promotion_marks_the_group_and_unmarks_its_canaries() -> None:
    state = with_canaries(True, True)

    written = promote(state)

    canaries = [state.allocation(id) for id in ("c1", "c2")]
    assert the_group(state).promoted
    assert [each.deployment_status.canary for each in canaries if each.deployment_status] == [False, False]
    assert [each.alloc_modify_index for each in canaries] == [written.index, written.index]
    assert the_deployment(state).status_description == "Deployment is running"
    assert written.eval_id


def test_promotion_renews_the_time_of_the_group() -> None:
    state = with_canaries(True, True, require_progress_by=to_datetime(0))

    promote(state)

    assert the_group(state).require_progress_by == later(state, DEADLINE_NS)


@pytest.mark.parametrize(
    ("healthy", "text"),
    [
        ((True, None), 'Task group "web" has 1/2 healthy allocations'),
        ((True, False), 'Task group "web" has 1/2 healthy allocations'),
        ((), 'Task group "web" has 0/2 healthy allocations'),
    ],
)
def test_too_few_healthy_canaries_are_not_promoted(healthy: tuple[bool | None, ...], text: str) -> None:
    state = with_canaries(*healthy)

    refusal = refused(state, lambda: promote(state))

    assert (refusal.code, refusal.text) == (RefusalCode.INVALID, text)


@pytest.mark.parametrize(
    "fields",
    [{"desired_status": DesiredStatus.STOP}, {"client_status": ClientStatus.FAILED}],
    ids=["stopped", "failed"],
)
def test_a_healthy_canary_that_has_ended_does_not_count(fields: dict[str, Any]) -> None:
    state = with_canaries(True, True)
    state.put(ALLOCATIONS.build_put(a_canary(state.job(), "c1", **fields)))

    refusal = refused(state, lambda: promote(state))

    assert refusal.text == 'Task group "web" has 1/2 healthy allocations'


def two_groups(**second: Any) -> AState:
    group = a_deployed_group(desired_canaries=1, placed_canaries=("c1",))
    state = with_deployment(task_groups={"web": group, "db": replace(group, **{"placed_canaries": ("c2",), **second})})
    state.put(*(ALLOCATIONS.build_put(a_canary(state.job(), id)) for id in ("c1", "c2")))
    return state


def test_only_the_groups_that_are_named_are_promoted() -> None:
    state = two_groups()

    promote(state, "db")

    groups = the_deployment(state).task_groups or {}
    assert {name: group.promoted for name, group in groups.items()} == {"web": False, "db": True}
    assert the_deployment(state).status_description == "Deployment is running but requires manual promotion"


def test_all_groups_means_those_with_canaries() -> None:
    state = two_groups(desired_canaries=0, placed_canaries=None)

    promote(state)

    groups = the_deployment(state).task_groups or {}
    assert {name: group.promoted for name, group in groups.items()} == {"web": True, "db": False}


def test_every_group_that_lacks_healthy_canaries_is_told() -> None:
    state = two_groups(desired_canaries=2)
    state.put(ALLOCATIONS.build_put(a_canary(state.job(), "c1", healthy=None)))

    refusal = refused(state, lambda: promote(state))

    assert refusal.text == ('Task group "web" has 0/1 healthy allocations\nTask group "db" has 1/2 healthy allocations')


def test_a_group_that_the_deployment_does_not_have_is_refused_with_those_it_has() -> None:
    state = two_groups()

    refusal = refused(state, lambda: promote(state, "wbe"))

    assert refusal.text == 'deployment has no task group "wbe"; its groups are "web", "db"'


def test_with_nothing_left_to_promote_it_says_so() -> None:
    state = with_canaries(True, True, promoted=True)

    refusal = refused(state, lambda: promote(state))

    assert refusal.text == "nothing to promote: no canaries of these groups await promotion"


def test_a_promotion_must_say_of_what() -> None:
    state = with_canaries(True, True)

    refusal = refused(
        state,
        lambda: deployments.promote_deployment(
            state.replica, "d1", state.moment, should_promote_all=False, groups=(), max_changes=MANY
        ),
    )

    assert refusal.text == "nothing to promote: set All, or list the Groups"


def test_more_canaries_than_a_write_takes_are_promoted_in_several_and_the_group_last() -> None:
    state = with_canaries(*[True] * 30, desired=30)

    steps = [promote(state, changes_max=20)]
    assert not the_group(state).promoted
    while not steps[-1].is_done:
        steps.append(promote(state, changes_max=20))

    marked = [
        each for each in state.replica.iter_all(ALLOCATIONS) if each.deployment_status and each.deployment_status.canary
    ]
    assert (len(steps), the_group(state).promoted, marked) == (2, True, [])


# -- unblock


def test_a_deployment_that_waits_for_other_regions_is_unblocked() -> None:
    state = with_deployment(status=DeploymentStatus.BLOCKED)

    written = unblock(state)

    assert (the_deployment(state).status, bool(written.eval_id)) == ("unblocking", True)


def test_where_nothing_waits_unblocking_changes_nothing() -> None:
    state = with_deployment()
    before = state.replica.index

    written = unblock(state)

    assert written == DeploymentWriteResult(before, the_deployment(state).modify_index)
    assert state.replica.index == before


# -- health by a person


def with_allocations(*ids: str, **fields: Any) -> AState:
    state = with_deployment(**fields)
    for id in ids:
        state.put_led(
            ALLOCATIONS.build_put(an_allocation(state.job(), id, deployment_id="d1", create_time=state.now_ns))
        )
    return state


def counts(state: AState) -> tuple[int, int, int]:
    group = the_group(state)
    return group.placed_allocs, group.healthy_allocs, group.unhealthy_allocs


def test_an_allocation_that_is_said_to_be_healthy_is_counted_and_the_job_evaluated() -> None:
    state = with_allocations("a1", "a2")

    written = set_health(state, healthy=("a1",))

    status = state.allocation("a1").deployment_status
    assert status == AllocDeploymentStatus(healthy=True, timestamp=later(state, 0), modify_index=written.index)
    assert counts(state) == (2, 1, 0)
    assert (the_deployment(state).status, bool(written.eval_id)) == ("running", True)


def test_an_allocation_that_is_said_to_be_sick_fails_the_deployment() -> None:
    state = with_allocations("a1", "a2")

    set_health(state, healthy=("a2",), unhealthy=("a1",))

    assert (the_deployment(state).status, the_deployment(state).status_description) == (
        "failed",
        "Failed due to unhealthy allocations",
    )
    assert counts(state) == (2, 1, 1)


def test_a_sick_allocation_of_a_group_that_reverts_takes_the_job_back() -> None:
    state = with_stable_version()
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d1")))

    written = set_health(state, unhealthy=("a1",))

    assert (written.reverted_job_version, state.job().priority) == (0, 50)
    assert the_deployment(state).status_description == (
        "Failed due to unhealthy allocations - rolling back to job version 0"
    )


def test_a_sick_allocation_of_a_group_that_does_not_revert_leaves_the_job() -> None:
    state = AState()
    state.register(a_job("shop", a_group("web"), a_group("db")))
    groups = {"web": a_deployed_group(), "db": a_deployed_group(auto_revert=True)}
    state.put(DEPLOYMENTS.build_put(a_deployment(state.job(), task_groups=groups)))
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d1", task_group="web")))

    set_health(state, unhealthy=("a1",))

    assert the_deployment(state).status_description == "Failed due to unhealthy allocations"


def test_saying_it_again_counts_nothing_twice() -> None:
    state = with_allocations("a1")
    set_health(state, healthy=("a1",))

    set_health(state, healthy=("a1",))

    assert counts(state) == (1, 1, 0)


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({}, "must specify at least one healthy/unhealthy allocation ID"),
        ({"healthy": ("a1",), "unhealthy": ("a1",)}, 'allocation "a1" cannot be healthy and unhealthy at once'),
        ({"healthy": ("zz",)}, 'unknown alloc "zz"'),
        ({"unhealthy": ("other",)}, 'alloc "other" not part of deployment "d1"'),
    ],
)
def test_health_is_said_of_the_deployments_own_allocations(said: dict[str, Any], text: str) -> None:
    state = with_allocations("a1")
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), "other", deployment_id="d2")))

    refusal = refused(state, lambda: set_health(state, **said))

    assert (refusal.code, refusal.text) == (RefusalCode.INVALID, text)


def test_the_health_of_more_than_a_write_takes_is_marked_in_several_and_fails_it_last() -> None:
    ids = tuple(f"a{number:02}" for number in range(30))
    state = with_allocations(*ids)

    first = set_health(state, unhealthy=ids, changes_max=20)
    assert (first.is_done, the_deployment(state).status, counts(state)) == (False, "running", (30, 0, 20))
    last = set_health(state, unhealthy=ids, changes_max=20)

    assert (last.is_done, the_deployment(state).status, counts(state)) == (True, "failed", (30, 0, 30))
