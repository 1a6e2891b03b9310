"""The next step of a running deployment, decided from its record, its allocations and its evaluations."""

import datetime
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, AState, an_allocation, an_evaluation
from wharf.cluster.controllers.deployments import decide_next_step, next_deadline_ns
from wharf.cluster.operations.deployments import (
    PROGRESS_DEADLINE_DESCRIPTION,
    UNHEALTHY_DESCRIPTION,
    DeploymentDecision,
)
from wharf.cluster.operations.jobs import versions
from wharf.cluster.state.tables import ALLOCATIONS, DEPLOYMENTS, EVALUATIONS, JOB_VERSIONS
from wharf.contract.model.allocations.allocation import (
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.group_policies import ReschedulePolicy
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, to_datetime

NEVER = ReschedulePolicy(attempts=0, unlimited=False)
ALWAYS = ReschedulePolicy(unlimited=True, delay=5 * SECOND_NS, delay_function="constant")
MINUTE_NS = 60 * SECOND_NS
LONG_AGO = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)


def a_deployed_group(**fields: Any) -> DeploymentGroup:
    return DeploymentGroup(**{"progress_deadline": MINUTE_NS, "desired_total": 1, **fields})


def a_state(
    *, policy: ReschedulePolicy = NEVER, groups: dict[str, DeploymentGroup] | None = None, **fields: Any
) -> AState:
    """Return a state with a job of the groups web and api, whose second version is deployed."""
    state = AState()
    for priority in (50, 60):
        state.register(
            a_job("shop", *(a_group(name, reschedule_policy=policy) for name in ("web", "api")), priority=priority)
        )
        if priority == 50:
            state.do(versions.set_version_stability(state.replica, "default", "shop", 0, is_stable=True))
    state.end_evaluations()
    job = state.job()
    deployment = Deployment(
        id="d1",
        **{
            "namespace": job.namespace,
            "job_id": job.id,
            "job_version": job.version,
            "job_create_index": job.create_index,
            "task_groups": groups or {"web": a_deployed_group(), "api": a_deployed_group()},
            "status": DeploymentStatus.RUNNING,
            "create_index": WRITE_INDEX,
            **fields,
        },
    )
    state.put(DEPLOYMENTS.build_put(deployment))
    return state


def report(
    state: AState, allocation_id: str = "a1", *, healthy: bool | None, group: str = "web", index: int = 0, **fields: Any
) -> None:
    """Store an allocation of the deployment with this health, which was reported at this log index."""
    health = AllocDeploymentStatus(healthy=healthy, modify_index=index)
    arguments = {"deployment_id": "d1", "task_group": group, "deployment_status": health, **fields}
    state.put(ALLOCATIONS.build_put(an_allocation(state.job(), allocation_id, **arguments)))


def decide(state: AState, *, max_changes: int = 40, max_versions: int = 6) -> DeploymentDecision | None:
    return decide_next_step(state.replica, "d1", state.moment, max_changes=max_changes, max_versions=max_versions)


def name_step(state: AState) -> str | None:
    decision = decide(state)
    return None if decision is None or decision.write is None else decision.write.kind


def take_step(state: AState, **limits: int) -> Deployment:
    """Commit the next step and return the deployment afterwards."""
    decision = decide(state, **limits)
    assert decision is not None
    state.lead(decision)
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    return deployment


# -- deployments without a step


def test_an_unknown_deployment_has_no_next_step() -> None:
    assert decide(AState()) is None


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"status": DeploymentStatus.PAUSED}, id="paused"),
        pytest.param({"status": DeploymentStatus.FAILED}, id="failed"),
        pytest.param({"job_version": 7}, id="its version was deleted"),
        pytest.param({"job_create_index": 1}, id="of a job that was purged"),
        pytest.param({"job_id": "other"}, id="of an unknown job"),
    ],
)
def test_a_deployment_that_does_not_run_has_no_next_step(fields: dict[str, Any]) -> None:
    state = a_state(**fields)
    report(state, healthy=False)

    assert name_step(state) is None


def test_a_deployment_whose_allocations_are_all_undecided_has_no_next_step() -> None:
    state = a_state()
    report(state, healthy=None)

    assert name_step(state) is None


# -- unhealthy allocations


def test_an_unhealthy_allocation_that_may_not_be_retried_fails_the_deployment() -> None:
    state = a_state()
    report(state, healthy=False)

    deployment = take_step(state)

    assert (deployment.status, deployment.status_description) == (DeploymentStatus.FAILED, UNHEALTHY_DESCRIPTION)


@pytest.mark.parametrize(
    "fields",
    [
        pytest.param({"desired_status": DesiredStatus.STOP}, id="stopped"),
        pytest.param({"next_allocation": "a2"}, id="replaced"),
        pytest.param({"deployment_id": "d0"}, id="of another deployment"),
        pytest.param({"deployment_status": None}, id="without health"),
        pytest.param({"task_group": "former"}, id="of a group that the deployment does not have"),
    ],
)
def test_other_allocations_do_not_fail_the_deployment(fields: dict[str, Any]) -> None:
    state = a_state()
    report(state, healthy=False, **fields)

    assert name_step(state) != "deployment-failed"


def test_an_unhealthy_allocation_of_a_group_that_its_job_does_not_have_is_retried() -> None:
    state = a_state(groups={"former": a_deployed_group()})
    report(state, healthy=False, group="former")

    assert name_step(state) == "deployment-watched"


def test_an_unhealthy_allocation_fails_a_group_without_a_progress_deadline_although_it_may_be_retried() -> None:
    state = a_state(policy=ALWAYS, groups={"web": a_deployed_group(progress_deadline=0), "api": a_deployed_group()})
    report(state, "of api", healthy=False, group="api")
    retried = name_step(state)
    report(state, "of web", healthy=False, group="web")

    assert (retried, name_step(state)) == ("deployment-watched", "deployment-failed")


@pytest.mark.parametrize(("reverting", "version"), [("web", 2), ("api", 1)])
def test_only_the_group_that_failed_decides_whether_the_job_is_rolled_back(reverting: str, version: int) -> None:
    groups = {name: a_deployed_group(auto_revert=name == reverting) for name in ("web", "api")}
    state = a_state(groups=groups)
    report(state, healthy=False)

    take_step(state)

    assert state.job().version == version


def test_a_rollback_retains_the_given_number_of_versions() -> None:
    stored = []
    for max_versions in (6, 2):
        state = a_state(groups={"web": a_deployed_group(auto_revert=True)})
        report(state, healthy=False)
        take_step(state, max_versions=max_versions)
        stored.append(sum(1 for _ in state.replica.iter_all(JOB_VERSIONS)))

    assert stored == [3, 2]


def test_unhealthy_allocations_are_marked_for_a_retry_in_the_order_of_their_ids_as_many_as_fit() -> None:
    state = a_state(policy=ALWAYS)
    for allocation_id in ("a3", "a1", "a2"):
        report(state, allocation_id, healthy=False)

    take_step(state, max_changes=4)

    marked = [each.id for each in state.replica.iter_all(ALLOCATIONS) if each.desired_transition is not None]
    assert marked == ["a1", "a2"]
    assert [each.deployment_id for each in state.open_evaluations()] == ["d1"]


@pytest.mark.parametrize(
    ("transition", "step"),
    [
        (None, "deployment-watched"),
        (DesiredTransition(), "deployment-watched"),
        (DesiredTransition(reschedule=False), "deployment-watched"),
        (DesiredTransition(reschedule=True), None),
    ],
)
def test_an_allocation_is_marked_for_a_retry_once(transition: DesiredTransition | None, step: str | None) -> None:
    state = a_state(policy=ALWAYS)
    report(state, healthy=False, desired_transition=transition)

    assert name_step(state) == step


# -- progress deadlines


@pytest.mark.parametrize(("after_us", "step"), [(-1, "deployment-failed"), (0, "deployment-failed"), (1, None)])
def test_a_group_is_late_from_its_deadline_on(after_us: int, step: str | None) -> None:
    state = a_state()
    due = to_datetime(state.now_ns + after_us * 1_000)
    state = a_state(groups={"web": a_deployed_group(require_progress_by=due), "api": a_deployed_group()})

    assert name_step(state) == step


@pytest.mark.parametrize(
    ("fields", "is_late"),
    [
        pytest.param({}, False, id="healthy"),
        pytest.param({"healthy": None}, True, id="undecided"),
        pytest.param({"group": "api"}, True, id="of another group"),
        pytest.param({"client_status": ClientStatus.FAILED}, True, id="ended"),
        pytest.param({"desired_status": DesiredStatus.STOP}, True, id="stopped"),
        pytest.param({"deployment_id": "d0"}, True, id="of another deployment"),
    ],
)
def test_a_group_is_late_if_fewer_active_allocations_than_desired_are_healthy(
    fields: dict[str, Any], is_late: bool
) -> None:
    state = a_state(
        groups={"api": a_deployed_group(), "web": a_deployed_group(require_progress_by=LONG_AGO, desired_total=2)}
    )
    report(state, "a1", healthy=True)
    report(state, "a2", **{"healthy": True, **fields})

    assert (name_step(state) == "deployment-failed") is is_late


@pytest.mark.parametrize(("placed", "is_late"), [(("a1", "a2"), False), (("a1",), True), (None, True)])
def test_only_canaries_count_while_a_group_waits_for_promotion(placed: tuple[str, ...] | None, is_late: bool) -> None:
    group = a_deployed_group(require_progress_by=LONG_AGO, desired_total=1, desired_canaries=2, placed_canaries=placed)
    state = a_state(groups={"web": group})
    report(state, "a1", healthy=True)
    report(state, "a2", healthy=True)

    assert (name_step(state) == "deployment-failed") is is_late


def test_a_deployment_that_misses_a_deadline_fails_with_this_reason_and_rolls_back_a_late_group() -> None:
    groups = {
        "web": a_deployed_group(require_progress_by=LONG_AGO),
        "api": a_deployed_group(auto_revert=True, require_progress_by=LONG_AGO),
    }
    state = a_state(groups=groups)
    report(state, healthy=True, group="web")

    deployment = take_step(state, max_versions=2)

    assert deployment.status is DeploymentStatus.FAILED
    assert deployment.status_description.startswith(PROGRESS_DEADLINE_DESCRIPTION)
    assert state.job().version == 2
    assert sum(1 for _ in state.replica.iter_all(JOB_VERSIONS)) == 2


@pytest.mark.parametrize(("beyond_us", "is_reset"), [(0, False), (1, True)])
def test_a_deadline_too_far_away_is_reset_but_a_small_clock_difference_is_tolerated(
    beyond_us: int, is_reset: bool
) -> None:
    now_ns = AState().now_ns
    far = to_datetime(now_ns + MINUTE_NS + MAX_CLOCK_SKEW_NS + beyond_us * 1_000)
    state = a_state(groups={"api": a_deployed_group(), "web": a_deployed_group(require_progress_by=far)})
    state.now_ns = now_ns

    if not is_reset:
        assert name_step(state) is None
        return
    deployment = take_step(state)
    assert (deployment.task_groups or {})["web"].require_progress_by == to_datetime(now_ns + MINUTE_NS)
    assert deployment.status is DeploymentStatus.RUNNING
    assert state.open_evaluations() == []


@pytest.mark.parametrize(
    ("groups", "status", "expected_s"),
    [
        pytest.param({"web": {"due_s": 9}, "api": {"due_s": 7}}, DeploymentStatus.RUNNING, 7, id="the earliest"),
        pytest.param({"web": {"due_s": 9}, "api": {}}, DeploymentStatus.RUNNING, 9, id="one has none"),
        pytest.param({"web": {"due_s": 9, "healthy_allocs": 1}}, DeploymentStatus.RUNNING, None, id="rolled out"),
        pytest.param(
            {"web": {"due_s": 9, "healthy_allocs": 1, "desired_canaries": 1}},
            DeploymentStatus.RUNNING,
            9,
            id="waits for promotion",
        ),
        pytest.param({"web": {"due_s": 9}}, DeploymentStatus.PAUSED, None, id="paused"),
        pytest.param(None, DeploymentStatus.RUNNING, None, id="no groups"),
    ],
)
def test_the_next_deadline_is_the_earliest_of_the_unfinished_groups(
    groups: dict[str, dict[str, int]] | None, status: DeploymentStatus, expected_s: int | None
) -> None:
    task_groups = {
        name: a_deployed_group(
            require_progress_by=to_datetime(fields["due_s"] * SECOND_NS) if "due_s" in fields else None,
            **{key: value for key, value in fields.items() if key != "due_s"},
        )
        for name, fields in (groups or {}).items()
    }
    deployment = Deployment(id="d1", status=status, task_groups=task_groups or None)

    assert next_deadline_ns(deployment) == (None if expected_s is None else expected_s * SECOND_NS)


# -- promotion


def an_unpromoted_group(**fields: Any) -> DeploymentGroup:
    return a_deployed_group(**{"auto_promote": True, "desired_canaries": 1, "placed_canaries": ("a1",), **fields})


@pytest.mark.parametrize(
    ("web", "fields", "is_promoted"),
    [
        pytest.param({}, {}, True, id="healthy"),
        pytest.param({"auto_promote": False}, {}, False, id="not allowed"),
        pytest.param({"promoted": True}, {}, False, id="promoted already"),
        pytest.param({"desired_canaries": 0}, {}, False, id="without canaries"),
        pytest.param({"desired_canaries": 2}, {}, False, id="too few canaries"),
        pytest.param({"placed_canaries": None}, {}, False, id="none placed"),
        pytest.param({"placed_canaries": ("a1", "deleted")}, {}, True, id="a placed one was deleted"),
        pytest.param({}, {"healthy": None}, False, id="undecided"),
        pytest.param({}, {"client_status": ClientStatus.COMPLETE}, False, id="ended"),
        pytest.param({}, {"desired_status": DesiredStatus.STOP}, False, id="stopped"),
    ],
)
def test_a_group_is_promoted_automatically_once_its_canaries_are_healthy(
    web: dict[str, Any], fields: dict[str, Any], is_promoted: bool
) -> None:
    state = a_state(groups={"api": a_deployed_group(), "web": an_unpromoted_group(**web)})
    report(state, **{"healthy": True, **fields})

    assert (name_step(state) == "deployment-promoted") is is_promoted


@pytest.mark.parametrize(
    ("api", "healthy", "is_promoted"),
    [
        ({}, True, True),
        ({}, None, False),
        ({"auto_promote": False}, True, False),
        ({"auto_promote": False, "promoted": True}, True, True),
    ],
)
def test_all_groups_are_promoted_together(api: dict[str, Any], healthy: bool | None, is_promoted: bool) -> None:
    groups = {"web": an_unpromoted_group(), "api": an_unpromoted_group(placed_canaries=("b1",), **api)}
    state = a_state(groups=groups)
    report(state, "a1", healthy=True)
    report(state, "b1", healthy=healthy, group="api")

    assert (name_step(state) == "deployment-promoted") is is_promoted


def test_a_promotion_that_exceeds_one_write_begins_with_the_canaries_that_fit() -> None:
    state = a_state(groups={"web": an_unpromoted_group(desired_canaries=3, placed_canaries=("a1", "a2", "a3"))})
    for allocation_id in ("a1", "a2", "a3"):
        health = AllocDeploymentStatus(healthy=True, canary=True)
        report(state, allocation_id, healthy=True, deployment_status=health)

    deployment = take_step(state, max_changes=2)

    canaries = [each.id for each in state.replica.iter_all(ALLOCATIONS) if each.deployment_status == health]
    assert (canaries, (deployment.task_groups or {})["web"].promoted) == (["a3"], False)


# -- evaluations for allocations that became healthy


def put_evaluation(state: AState, evaluation_id: str, **fields: Any) -> None:
    state.put(
        EVALUATIONS.build_put(an_evaluation(state.job(), evaluation_id, status=EvaluationStatus.COMPLETE, **fields))
    )


def test_the_job_is_evaluated_when_an_allocation_became_healthy_after_its_newest_evaluation() -> None:
    state = a_state()
    put_evaluation(state, "newest", create_index=20, snapshot_index=30)
    put_evaluation(state, "older", create_index=10, snapshot_index=11)
    steps = []
    for index in (30, 31):
        report(state, "a1", healthy=True, index=index)
        report(state, "a2", healthy=True, index=5)
        report(state, "a3", healthy=None, index=99)
        report(state, "a4", healthy=True, index=99, deployment_status=None)
        steps.append(name_step(state))

    assert steps == [None, "deployment-watched"]


def test_an_evaluation_that_read_no_state_yet_counts_from_its_creation() -> None:
    state = a_state()
    put_evaluation(state, "e", create_index=30)
    steps = []
    for index in (30, 31):
        report(state, healthy=True, index=index)
        steps.append(name_step(state))

    assert steps == [None, "deployment-watched"]


@pytest.mark.parametrize(
    ("fields", "step"),
    [
        ({"status": EvaluationStatus.PENDING, "wait_until": LONG_AGO}, "deployment-watched"),
        ({"status": EvaluationStatus.COMPLETE, "wait_until": LONG_AGO}, None),
        ({"status": EvaluationStatus.PENDING}, None),
    ],
)
def test_an_evaluation_that_is_scheduled_for_later_does_not_count(fields: dict[str, Any], step: str | None) -> None:
    state = a_state()
    report(state, healthy=True, index=30)
    state.put(EVALUATIONS.build_put(an_evaluation(state.job(), "e", create_index=99, **fields)))

    assert name_step(state) == step


def test_a_step_of_a_deployment_leaves_the_allocations_of_other_deployments_unmarked() -> None:
    state = a_state(policy=ALWAYS)
    report(state, "a1", healthy=False)
    report(state, "a2", healthy=False, deployment_id="d0")

    take_step(state)

    assert [each.id for each in state.replica.iter_all(ALLOCATIONS) if each.desired_transition is not None] == ["a1"]


def test_a_deployment_of_which_the_groups_are_unknown_goes_on() -> None:
    state = a_state()
    deployment = state.replica.get(DEPLOYMENTS, "d1")
    assert deployment is not None
    state.put(DEPLOYMENTS.build_put(replace(deployment, task_groups=None)))
    report(state, healthy=False)

    assert name_step(state) == "deployment-watched"
