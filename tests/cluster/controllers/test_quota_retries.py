"""Which blocked evaluations are retried when a quota has room again."""

from typing import Any

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState, an_evaluation
from wharf.cluster.controllers.quotas import select_retries
from wharf.cluster.state.tables import EVALUATIONS, JOBS, NAMESPACES, QUOTAS
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace
from wharf.contract.model.quotas import Quota, QuotaLimit, RegionLimit


def a_job_of(cpu: int, job_id: str = "shop") -> Job:
    return a_job(job_id, *(a_group(name, a_task(resources=some_resources(cpu=cpu))) for name in ("web", "cache")))


def a_state(*, cpu: int, quota: str = "tight", region: str = "global") -> AState:
    """Return a state whose default namespace has a quota with this limit."""
    state = AState()
    limit = QuotaLimit(region=region, region_limit=RegionLimit(cpu=cpu))
    state.put(
        QUOTAS.build_put(Quota(name=quota, limits=(limit,), create_index=WRITE_INDEX)),
        NAMESPACES.build_put(Namespace(name="default", quota=quota)),
    )
    return state


def block(state: AState, job: Job, evaluation_id: str, *groups: str, **fields: Any) -> None:
    """Store the job, and an evaluation of it that waits for the quota with these groups."""
    waiting = an_evaluation(
        job,
        evaluation_id,
        **{
            "status": EvaluationStatus.BLOCKED,
            "quota_limit_reached": "tight",
            "failed_tg_allocs": {group: AllocMetric() for group in groups},
            **fields,
        },
    )
    if state.replica.get(JOBS, job.namespace, job.id) is None:
        state.put(JOBS.build_put(job))
    state.put(EVALUATIONS.build_put(waiting))


def list_retried(state: AState, max_evaluations: int = 10) -> list[str]:
    return [evaluation.id for evaluation in select_retries(state.replica, max_evaluations)]


def test_an_evaluation_is_retried_when_one_more_of_its_allocations_fits() -> None:
    state = a_state(cpu=100)
    block(state, a_job_of(100), "fits", "web")
    block(state, a_job_of(101, "large"), "too large", "web")
    assert list_retried(state) == ["fits"]


def test_an_evaluation_is_retried_once_although_several_of_its_groups_fit() -> None:
    state = a_state(cpu=200)
    block(state, a_job_of(100), "e1", "web", "cache")
    assert list_retried(state) == ["e1"]


def test_an_evaluation_of_a_deleted_job_is_retried_and_does_not_hide_the_others() -> None:
    state = a_state(cpu=200)
    for evaluation_id in ("e1", "e2", "e3"):
        block(state, a_job_of(100, f"job-{evaluation_id}"), evaluation_id, "web")
    state.put(JOBS.build_delete("default", "job-e2"))
    assert list_retried(state) == ["e1", "e2", "e3"]


def test_an_evaluation_is_retried_if_only_a_later_group_fits() -> None:
    state = a_state(cpu=100)
    groups = (a_group("web", a_task(resources=some_resources(cpu=500))), a_group("cache", a_task()))
    block(state, a_job("shop", *groups), "e1", "web", "cache")
    assert list_retried(state) == ["e1"]


def test_what_an_evaluation_may_use_is_not_given_to_the_next_one() -> None:
    state = a_state(cpu=250)
    for number in (1, 2, 3):
        block(state, a_job_of(100, f"job-{number}"), f"e{number}", "web")
    assert list_retried(state) == ["e1", "e2"]


def test_higher_priorities_are_retried_first_and_then_older_evaluations() -> None:
    state = a_state(cpu=1_000)
    for evaluation_id, priority in (("e1", 50), ("e0", 50), ("e2", 90)):
        block(state, a_job_of(100), evaluation_id, "web", priority=priority)
    assert list_retried(state) == ["e2", "e1", "e0"]


def test_no_more_are_retried_than_one_write_can_hold() -> None:
    state = a_state(cpu=1_000)
    for number in (1, 2, 3):
        block(state, a_job_of(100), f"e{number}", "web")
    assert list_retried(state, max_evaluations=2) == ["e1", "e2"]


def test_evaluations_that_wait_for_something_else_are_left() -> None:
    state = a_state(cpu=1_000)
    block(state, a_job_of(100), "for a node", "web", quota_limit_reached="")
    block(state, a_job_of(100), "ended", "web", status=EvaluationStatus.COMPLETE)
    assert list_retried(state) == []


def test_an_evaluation_of_a_deleted_job_is_retried_so_that_it_ends() -> None:
    state = a_state(cpu=1)
    state.put(
        EVALUATIONS.build_put(
            an_evaluation(a_job_of(100), status=EvaluationStatus.BLOCKED, quota_limit_reached="tight")
        )
    )
    block(state, a_job_of(100, "other"), "too large", "web")
    assert list_retried(state) == ["e1"]


def test_an_evaluation_is_retried_when_its_namespace_has_another_quota_now() -> None:
    state = a_state(cpu=1, quota="new")
    block(state, a_job_of(100), "e1", "web")
    block(state, a_job_of(100), "same", "web", quota_limit_reached="new")
    assert list_retried(state) == ["e1"]


def test_an_evaluation_is_retried_when_its_region_has_no_limit() -> None:
    state = a_state(cpu=1, region="elsewhere")
    block(state, a_job_of(100), "e1", "web")
    assert list_retried(state) == ["e1"]


def test_an_evaluation_is_retried_when_its_job_has_none_of_its_groups_any_more() -> None:
    state = a_state(cpu=1)
    block(state, a_job_of(100), "gone", "former group")
    block(state, a_job_of(100), "none", failed_tg_allocs=None)
    block(state, a_job_of(100), "too large", "web")
    assert list_retried(state) == ["gone", "none"]
