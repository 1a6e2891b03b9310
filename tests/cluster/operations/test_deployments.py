"""Requests that change deployments (scheduling.md 7.2, 7.3, 7.5)."""

import datetime
from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, SETTINGS, AState, an_allocation
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
MAX_VERSIONS = 8
DEADLINE_NS = 600 * SECOND_NS


def make_deployment(job: Job, **fields: Any) -> Deployment:
    arguments = {
        "namespace": job.namespace,
        "job_id": job.id,
        "job_version": job.version,
        "job_create_index": job.create_index,
        "job_modify_index": job.modify_index,
        "task_groups": {"web": make_deployed_group()},
        "status": DeploymentStatus.RUNNING,
        "status_description": "Deployment is running",
        "create_index": WRITE_INDEX,
        **fields,
    }
    return Deployment(id="d1", **arguments)


def make_deployed_group(**fields: Any) -> DeploymentGroup:
    return DeploymentGroup(**{"progress_deadline": DEADLINE_NS, "desired_total": 3, **fields})


def make_canary(job: Job, id: str, *, healthy: bool | None = True, **fields: Any) -> Allocation:
    status = AllocDeploymentStatus(healthy=healthy, canary=True)
    return an_allocation(job, id, deployment_id="d1", deployment_status=status, **fields)


def make_state(**fields: Any) -> AState:
    """Return a state with an evaluated job and its deployment."""
    state = AState()
    state.register(a_job(), eval_priority=70)
    state.end_evaluations()
    state.put(DEPLOYMENTS.build_put(make_deployment(state.job(), **fields)))
    return state


def make_state_with_canaries(*healthy: bool | None, desired: int = 2, **fields: Any) -> AState:
    """Return a state with the canaries c1, c2, ... of this health."""
    ids = tuple(f"c{number}" for number in range(1, len(healthy) + 1))
    group = make_deployed_group(**{"desired_canaries": desired, "placed_canaries": ids, **fields})
    state = make_state(
        task_groups={"web": group}, status_description="Deployment is running but requires manual promotion"
    )
    for id, health in zip(ids, healthy, strict=True):
        state.put(ALLOCATIONS.build_put(make_canary(state.job(), id, healthy=health)))
    return state


def make_state_with_stable_version(**changed: Any) -> AState:
    """Return a state in which version 0 is stable and version 1 is deployed, with auto-revert."""
    state = AState()
    state.register(a_job())
    state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))
    state.register(a_job(**({"priority": 60} | changed)))
    state.end_evaluations()
    state.put(
        DEPLOYMENTS.build_put(make_deployment(state.job(), task_groups={"web": make_deployed_group(auto_revert=True)}))
    )
    return state


def get_deployment(state: AState) -> Deployment:
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    return deployment


def get_group(state: AState) -> DeploymentGroup:
    return (get_deployment(state).task_groups or {})["web"]


def get_evaluation(state: AState, written: DeploymentWriteResult) -> Evaluation:
    evaluation = state.replica.get(EVALUATIONS, written.eval_id)
    assert evaluation is not None
    return evaluation


def fail(state: AState) -> DeploymentWriteResult:
    return state.lead(deployments.fail_deployment(state.replica, "d1", state.moment, max_versions=MAX_VERSIONS))


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
            state.replica,
            "d1",
            state.moment,
            healthy=healthy,
            unhealthy=unhealthy,
            max_changes=changes_max,
            max_versions=MAX_VERSIONS,
        )
    )


def expect_refusal(state: AState, act: Callable[[], object]) -> Refusal:
    """Return the refusal, and check that nothing changed."""
    before = state.replica.index
    with pytest.raises(Refusal) as refusal:
        act()
    assert state.replica.index == before
    return refusal.value


def compute_time(state: AState, duration_ns: int) -> datetime.datetime:
    return to_datetime(state.now_ns + duration_ns)


# -- all changes


@pytest.mark.parametrize("act", [fail, pause, resume, promote, unblock, lambda s: set_health(s, healthy=("a1",))])
def test_unknown_records_are_not_found(act: Callable[[AState], object]) -> None:
    state = AState()

    refusal = expect_refusal(state, lambda: act(state))

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
def test_a_terminal_deployment_never_changes(act: Callable[[AState], object], text: str, status: str) -> None:
    state = make_state(status=DeploymentStatus(status))

    refusal = expect_refusal(state, lambda: act(state))

    assert (refusal.code, refusal.text) == (RefusalCode.INVALID, text)


@pytest.mark.parametrize("act", [fail, resume])
def test_the_result_has_the_index_and_the_evaluation(act: Callable[[AState], DeploymentWriteResult]) -> None:
    state = make_state(eval_priority=70)

    written = act(state)

    evaluation = get_evaluation(state, written)
    assert written == DeploymentWriteResult(
        state.replica.index, state.replica.index, evaluation.id, state.replica.index
    )
    assert (evaluation.triggered_by, evaluation.deployment_id, evaluation.priority, evaluation.status) == (
        "deployment-watcher",
        "d1",
        70,
        "pending",
    )


def test_the_default_priority_is_that_of_the_job() -> None:
    state = make_state(eval_priority=0)

    assert get_evaluation(state, fail(state)).priority == state.job().priority


def test_a_deployment_of_a_deleted_job_fails_without_an_evaluation() -> None:
    state = make_state()
    state.put(JOBS.build_delete("default", "shop"))

    written = state.do(deployments.fail_deployment(state.replica, "d1", state.moment, max_versions=MAX_VERSIONS))

    assert (written.eval_id, written.eval_create_index) == ("", 0)
    assert get_deployment(state).status == "failed"


# -- fail


def test_a_deployment_failed_by_a_user_has_that_description() -> None:
    state = make_state()

    written = fail(state)

    assert (get_deployment(state).status, get_deployment(state).status_description) == (
        "failed",
        "Deployment marked as failed",
    )
    assert written.reverted_job_version is None


def test_a_paused_deployment_can_be_failed() -> None:
    state = make_state(status=DeploymentStatus.PAUSED)

    fail(state)

    assert get_deployment(state).status == "failed"


def test_with_auto_revert_the_job_returns_to_its_stable_version() -> None:
    state = make_state_with_stable_version()

    written = fail(state)

    job = state.job()
    assert written.reverted_job_version == 0
    assert (job.version, job.priority, job.stable) == (2, SETTINGS.default_priority, False)
    assert state.replica.get(JOB_VERSIONS, "default", "shop", 2) == job
    assert get_deployment(state).status_description == "Deployment marked as failed - rolling back to job version 0"


def test_the_evaluation_of_a_rollback_belongs_to_the_restored_job() -> None:
    state = make_state_with_stable_version()

    written = fail(state)

    assert get_evaluation(state, written).job_modify_index == state.job().job_modify_index == written.index


def test_a_rollback_copies_the_source_of_the_version_but_not_its_tag() -> None:
    state = make_state_with_stable_version()
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


def test_a_rollback_restores_the_scaling_policies() -> None:
    state = AState()
    scaled = a_group("web", scaling=ScalingPolicy(min=1, max=5))
    state.register(a_job("shop", scaled))
    state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))
    (policy,) = state.replica.iter_all(SCALING_POLICIES)
    state.register(a_job("shop", replace(scaled, scaling=ScalingPolicy(min=1, max=9))))
    groups = {"web": make_deployed_group(auto_revert=True)}
    state.put(DEPLOYMENTS.build_put(make_deployment(state.job(), task_groups=groups)))

    fail(state)

    assert [(each.id, each.max) for each in state.replica.iter_all(SCALING_POLICIES)] == [(policy.id, 5)]


def test_the_description_mentions_a_missing_stable_version() -> None:
    state = make_state(task_groups={"web": make_deployed_group(auto_revert=True)})

    written = fail(state)

    assert (written.reverted_job_version, state.job().version) == (None, 0)
    assert get_deployment(state).status_description == (
        "Deployment marked as failed - no stable job version to auto revert to"
    )


def test_a_stable_version_with_the_same_specification_is_not_restored() -> None:
    state = make_state(task_groups={"web": make_deployed_group(auto_revert=True)})
    state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))

    written = fail(state)

    assert (written.reverted_job_version, state.job().version) == (None, 0)
    assert get_deployment(state).status_description == (
        "Deployment marked as failed - not rolling back to stable job version 0 as current job has same specification"
    )


def test_a_job_changed_after_the_deployment_is_not_rolled_back() -> None:
    state = make_state_with_stable_version()
    state.register(a_job(priority=80))

    written = fail(state)

    assert (written.reverted_job_version, state.job().priority) == (None, 80)
    assert get_deployment(state).status_description == "Deployment marked as failed"


def test_a_job_without_allocations_becomes_pending_in_the_write_that_fails_its_deployment() -> None:
    state = make_state()
    state.put(JOBS.build_put(replace(state.job(), status=JobStatus.RUNNING)))

    fail(state)

    assert state.job().status is JobStatus.PENDING


# -- pause and resume


def test_pausing_creates_no_evaluation() -> None:
    state = make_state()

    written = pause(state)

    assert (get_deployment(state).status, get_deployment(state).status_description) == (
        "paused",
        "Deployment is paused",
    )
    assert (written.eval_id, written.eval_create_index, written.deployment_modify_index) == ("", 0, written.index)


def test_resuming_continues_the_deployment_and_evaluates_the_job() -> None:
    state = make_state(status=DeploymentStatus.PAUSED)

    written = resume(state)

    assert (get_deployment(state).status, get_deployment(state).status_description) == (
        "running",
        "Deployment is running",
    )
    assert written.eval_id


@pytest.mark.parametrize("act", [pause, resume])
def test_pausing_and_resuming_restart_the_deadline_of_every_group(act: Callable[[AState], object]) -> None:
    long_ago = to_datetime(0)
    groups = {"web": make_deployed_group(require_progress_by=long_ago), "db": DeploymentGroup()}
    state = make_state(task_groups=groups)

    act(state)

    groups_after = get_deployment(state).task_groups or {}
    assert {name: group.require_progress_by for name, group in groups_after.items()} == {
        "web": compute_time(state, DEADLINE_NS),
        "db": None,
    }


@pytest.mark.parametrize(
    ("auto_promote", "description"),
    [
        (False, "Deployment is running but requires manual promotion"),
        (True, "Deployment is running pending automatic promotion"),
    ],
)
def test_a_resumed_deployment_is_described_as_waiting_for_promotion(auto_promote: bool, description: str) -> None:
    groups = {"web": make_deployed_group(desired_canaries=1, auto_promote=auto_promote)}
    state = make_state(status=DeploymentStatus.PAUSED, task_groups=groups)

    resume(state)

    assert get_deployment(state).status_description == description


def test_a_deployment_that_waits_for_other_regions_cannot_be_paused() -> None:
    state = make_state(status=DeploymentStatus.BLOCKED)

    with pytest.raises(InvalidTransition, match="cannot go from blocked to paused"):
        pause(state)

    assert get_deployment(state).status == "blocked"


# -- promote


def test_promotion_marks_the_group_and_its_canaries_become_regular() -> None:
    state = make_state_with_canaries(True, True)

    written = promote(state)

    canaries = [state.allocation(id) for id in ("c1", "c2")]
    assert get_group(state).promoted
    assert [each.deployment_status.canary for each in canaries if each.deployment_status] == [False, False]
    assert [each.alloc_modify_index for each in canaries] == [written.index, written.index]
    assert get_deployment(state).status_description == "Deployment is running"
    assert written.eval_id


def test_promotion_restarts_the_deadline_of_the_group() -> None:
    state = make_state_with_canaries(True, True, require_progress_by=to_datetime(0))

    promote(state)

    assert get_group(state).require_progress_by == compute_time(state, DEADLINE_NS)


@pytest.mark.parametrize(
    ("healthy", "text"),
    [
        ((True, None), 'Task group "web" has 1/2 healthy allocations'),
        ((True, False), 'Task group "web" has 1/2 healthy allocations'),
        ((), 'Task group "web" has 0/2 healthy allocations'),
    ],
)
def test_too_few_healthy_canaries_are_not_promoted(healthy: tuple[bool | None, ...], text: str) -> None:
    state = make_state_with_canaries(*healthy)

    refusal = expect_refusal(state, lambda: promote(state))

    assert (refusal.code, refusal.text) == (RefusalCode.INVALID, text)


@pytest.mark.parametrize(
    "fields",
    [{"desired_status": DesiredStatus.STOP}, {"client_status": ClientStatus.FAILED}],
    ids=["stopped", "failed"],
)
def test_a_healthy_canary_that_has_ended_does_not_count(fields: dict[str, Any]) -> None:
    state = make_state_with_canaries(True, True)
    state.put(ALLOCATIONS.build_put(make_canary(state.job(), "c1", **fields)))

    refusal = expect_refusal(state, lambda: promote(state))

    assert refusal.text == 'Task group "web" has 1/2 healthy allocations'


def make_state_with_two_groups(**second: Any) -> AState:
    group = make_deployed_group(desired_canaries=1, placed_canaries=("c1",))
    state = make_state(task_groups={"web": group, "db": replace(group, **{"placed_canaries": ("c2",), **second})})
    state.put(*(ALLOCATIONS.build_put(make_canary(state.job(), id)) for id in ("c1", "c2")))
    return state


def test_only_the_named_groups_are_promoted() -> None:
    state = make_state_with_two_groups()

    promote(state, "db")

    groups = get_deployment(state).task_groups or {}
    assert {name: group.promoted for name, group in groups.items()} == {"web": False, "db": True}
    assert get_deployment(state).status_description == "Deployment is running but requires manual promotion"


def test_promoting_all_groups_promotes_those_with_canaries() -> None:
    state = make_state_with_two_groups(desired_canaries=0, placed_canaries=None)

    promote(state)

    groups = get_deployment(state).task_groups or {}
    assert {name: group.promoted for name, group in groups.items()} == {"web": True, "db": False}


def test_every_group_without_enough_healthy_canaries_is_named() -> None:
    state = make_state_with_two_groups(desired_canaries=2)
    state.put(ALLOCATIONS.build_put(make_canary(state.job(), "c1", healthy=None)))

    refusal = expect_refusal(state, lambda: promote(state))

    assert refusal.text == ('Task group "web" has 0/1 healthy allocations\nTask group "db" has 1/2 healthy allocations')


def test_an_unknown_group_is_refused_with_the_existing_ones() -> None:
    state = make_state_with_two_groups()

    refusal = expect_refusal(state, lambda: promote(state, "wbe"))

    assert refusal.text == 'deployment has no task group "wbe"; its groups are "web", "db"'


def test_a_promotion_with_nothing_to_promote_is_refused() -> None:
    state = make_state_with_canaries(True, True, promoted=True)

    refusal = expect_refusal(state, lambda: promote(state))

    assert refusal.text == "nothing to promote: no canaries of these groups await promotion"


def test_a_promotion_requires_groups_or_all() -> None:
    state = make_state_with_canaries(True, True)

    refusal = expect_refusal(
        state,
        lambda: deployments.promote_deployment(
            state.replica, "d1", state.moment, should_promote_all=False, groups=(), max_changes=MANY
        ),
    )

    assert refusal.text == "nothing to promote: set All, or list the Groups"


def test_many_canaries_are_promoted_in_several_writes_and_the_group_last() -> None:
    state = make_state_with_canaries(*[True] * 30, desired=30)

    steps = [promote(state, changes_max=20)]
    assert not get_group(state).promoted
    while not steps[-1].is_done:
        steps.append(promote(state, changes_max=20))

    marked = [
        each for each in state.replica.iter_all(ALLOCATIONS) if each.deployment_status and each.deployment_status.canary
    ]
    assert (len(steps), get_group(state).promoted, marked) == (2, True, [])


# -- unblock


def test_a_deployment_that_waits_for_other_regions_is_unblocked() -> None:
    state = make_state(status=DeploymentStatus.BLOCKED)

    written = unblock(state)

    assert (get_deployment(state).status, bool(written.eval_id)) == ("unblocking", True)


def test_unblocking_a_deployment_that_does_not_wait_changes_nothing() -> None:
    state = make_state()
    before = state.replica.index

    written = unblock(state)

    assert written == DeploymentWriteResult(before, get_deployment(state).modify_index)
    assert state.replica.index == before


# -- health set by a user


def make_state_with_allocations(*ids: str, **fields: Any) -> AState:
    state = make_state(**fields)
    for id in ids:
        state.put_led(
            ALLOCATIONS.build_put(an_allocation(state.job(), id, deployment_id="d1", create_time=state.now_ns))
        )
    return state


def get_counts(state: AState) -> tuple[int, int, int]:
    group = get_group(state)
    return group.placed_allocs, group.healthy_allocs, group.unhealthy_allocs


def test_an_allocation_set_healthy_is_counted_and_its_job_evaluated() -> None:
    state = make_state_with_allocations("a1", "a2")

    written = set_health(state, healthy=("a1",))

    status = state.allocation("a1").deployment_status
    assert status == AllocDeploymentStatus(healthy=True, timestamp=compute_time(state, 0), modify_index=written.index)
    assert get_counts(state) == (2, 1, 0)
    assert (get_deployment(state).status, bool(written.eval_id)) == ("running", True)


def test_an_allocation_set_unhealthy_fails_the_deployment() -> None:
    state = make_state_with_allocations("a1", "a2")

    set_health(state, healthy=("a2",), unhealthy=("a1",))

    assert (get_deployment(state).status, get_deployment(state).status_description) == (
        "failed",
        "Failed due to unhealthy allocations",
    )
    assert get_counts(state) == (2, 1, 1)


def test_an_unhealthy_allocation_of_a_group_with_auto_revert_rolls_the_job_back() -> None:
    state = make_state_with_stable_version()
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d1")))

    written = set_health(state, unhealthy=("a1",))

    assert (written.reverted_job_version, state.job().priority) == (0, SETTINGS.default_priority)
    assert get_deployment(state).status_description == (
        "Failed due to unhealthy allocations - rolling back to job version 0"
    )


def test_an_unhealthy_allocation_of_a_group_without_auto_revert_does_not_roll_back() -> None:
    state = AState()
    state.register(a_job("shop", a_group("web"), a_group("db")))
    groups = {"web": make_deployed_group(), "db": make_deployed_group(auto_revert=True)}
    state.put(DEPLOYMENTS.build_put(make_deployment(state.job(), task_groups=groups)))
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d1", task_group="web")))

    set_health(state, unhealthy=("a1",))

    assert get_deployment(state).status_description == "Failed due to unhealthy allocations"


def test_repeated_health_is_counted_once() -> None:
    state = make_state_with_allocations("a1")
    set_health(state, healthy=("a1",))

    set_health(state, healthy=("a1",))

    assert get_counts(state) == (1, 1, 0)


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "must specify at least one healthy/unhealthy allocation ID"),
        ({"healthy": ("a1",), "unhealthy": ("a1",)}, 'allocation "a1" cannot be healthy and unhealthy at once'),
        ({"healthy": ("zz",)}, 'unknown alloc "zz"'),
        ({"unhealthy": ("other",)}, 'alloc "other" not part of deployment "d1"'),
    ],
)
def test_health_can_be_set_only_for_allocations_of_the_deployment(fields: dict[str, Any], text: str) -> None:
    state = make_state_with_allocations("a1")
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), "other", deployment_id="d2")))

    refusal = expect_refusal(state, lambda: set_health(state, **fields))

    assert (refusal.code, refusal.text) == (RefusalCode.INVALID, text)


def test_health_of_many_allocations_is_set_in_several_writes_and_the_deployment_fails_last() -> None:
    ids = tuple(f"a{number:02}" for number in range(30))
    state = make_state_with_allocations(*ids)

    first = set_health(state, unhealthy=ids, changes_max=20)
    assert (first.is_done, get_deployment(state).status, get_counts(state)) == (False, "running", (30, 0, 20))
    last = set_health(state, unhealthy=ids, changes_max=20)

    assert (last.is_done, get_deployment(state).status, get_counts(state)) == (True, "failed", (30, 0, 30))


@pytest.mark.parametrize(("changes_max", "is_done"), [(4, False), (5, True), (6, True)])
def test_health_is_set_in_one_write_if_the_deployment_and_the_evaluation_fit_too(
    changes_max: int, is_done: bool
) -> None:
    ids = ("a1", "a2", "a3")
    state = make_state_with_allocations(*ids)

    assert set_health(state, healthy=ids, changes_max=changes_max).is_done is is_done


def test_the_changes_of_a_rollback_count_too() -> None:
    def set_unhealthy(changes_max: int) -> DeploymentWriteResult:
        state = make_state_with_stable_version()
        state.put_led(ALLOCATIONS.build_put(an_allocation(state.job(), "a1", deployment_id="d1")))
        return set_health(state, unhealthy=("a1",), changes_max=changes_max)

    assert [set_unhealthy(changes_max).is_done for changes_max in (3, MANY)] == [False, True]


def test_health_that_is_known_already_is_repeated_in_one_write_however_small_it_is() -> None:
    state = make_state_with_allocations("a1")
    set_health(state, healthy=("a1",))

    assert set_health(state, healthy=("a1",), changes_max=1).is_done


@pytest.mark.parametrize(("changes_max", "is_done"), [(4, False), (5, True), (6, True)])
def test_canaries_are_promoted_in_one_write_if_the_deployment_and_the_evaluation_fit_too(
    changes_max: int, is_done: bool
) -> None:
    state = make_state_with_canaries(True, True, True, desired=3)

    assert promote(state, changes_max=changes_max).is_done is is_done
    assert get_group(state).promoted is is_done


def test_a_placed_canary_without_a_health_status_is_not_counted() -> None:
    state = make_state_with_canaries(True, True, desired=1)
    state.put(ALLOCATIONS.build_put(replace(state.allocation("c2"), deployment_status=None)))

    promote(state)

    assert get_group(state).promoted


def test_a_deployment_of_a_deleted_job_evaluates_nothing() -> None:
    state = make_state()
    state.put(JOBS.build_delete("default", "shop"))
    decision = deployments.continue_deployment(state.replica, "d1", state.moment, max_changes=MANY)

    assert decision.write is None
    assert decision.build_reply(99).deployment_modify_index == get_deployment(state).modify_index
