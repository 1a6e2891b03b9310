"""Expected placements of a plan that is being committed count for the next plan, and nowhere else."""

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.check import check_plan
from wharf.cluster.scheduling.plans.plan import Plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.contract.model.jobs.job import Job


def make_job(name: str) -> Job:
    resources = some_resources(cpu=600, memory_mb=10)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=1))


def make_state_with_two_jobs() -> AState:
    """Return a state where each node has capacity for one of the two jobs."""
    state = AState()
    for node_id in ("node-1", "node-2"):
        state.with_node(node_id, cpu=1_000)
    for name in ("first", "second"):
        state.register(make_job(name))
    return state


def make_plan(state: AState, cache: SchedulerCache, job_id: str) -> Plan:
    return plan_evaluation(cache, state.replica, state.open_evaluations(job_id)[-1], state.moment)


def test_the_next_plan_leaves_capacity_to_the_plan_that_is_being_committed() -> None:
    state = make_state_with_two_jobs()
    cache = SchedulerCache.from_snapshot(state.replica)
    first = make_plan(state, cache, "first")

    with cache.fleet.expect_placements(first.placements):
        second = make_plan(state, cache, "second")

    assert {"node-1", "node-2"} == {*first.placements, *second.placements}


def test_expected_placements_on_all_nodes_leave_no_capacity() -> None:
    state = make_state_with_two_jobs()
    cache = SchedulerCache.from_snapshot(state.replica)
    (placed,) = make_plan(state, cache, "first").placements.values()

    with cache.fleet.expect_placements({"node-1": placed, "node-2": placed}):
        second = make_plan(state, cache, "second")

    assert second.placements == {}


def test_a_plan_is_checked_against_committed_and_not_expected_placements() -> None:
    state = make_state_with_two_jobs()
    cache = SchedulerCache.from_snapshot(state.replica)
    first = make_plan(state, cache, "first")

    with cache.fleet.expect_placements(first.placements):
        checked = check_plan(first, state.replica, max_changes=100, cache=cache)

    assert checked.dropped_nodes == []
    assert checked.write is not None
