"""What a plan on its way will place counts for the next plan, and for nothing else."""

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.plans.plan import Plan, check_plan
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.contract.model.jobs.job import Job


def a_shop(name: str) -> Job:
    resources = some_resources(cpu=600, memory_mb=10)
    return a_job(name, a_group("web", a_task(driver="mock", resources=resources), count=1))


def two_jobs_and_two_nodes() -> AState:
    """Each node has room for one of the two."""
    state = AState()
    for node_id in ("node-1", "node-2"):
        state.with_node(node_id, cpu=1_000)
    for name in ("first", "second"):
        state.register(a_shop(name))
    return state


def planned(state: AState, ground: SchedulerCache, job_id: str) -> Plan:
    return plan_evaluation(ground, state.replica, state.open_evaluations(job_id)[-1], state.moment)


def test_the_next_plan_leaves_the_room_to_what_is_on_its_way() -> None:
    state = two_jobs_and_two_nodes()
    ground = SchedulerCache.from_snapshot(state.replica)
    first = planned(state, ground, "first")

    with ground.fleet.expect_placements(first.placements):
        second = planned(state, ground, "second")

    assert {"node-1", "node-2"} == {*first.placements, *second.placements}


def test_what_is_expected_everywhere_leaves_room_nowhere() -> None:
    state = two_jobs_and_two_nodes()
    ground = SchedulerCache.from_snapshot(state.replica)
    (there,) = planned(state, ground, "first").placements.values()

    with ground.fleet.expect_placements({"node-1": there, "node-2": there}):
        second = planned(state, ground, "second")

    assert second.placements == {}


def test_a_plan_is_checked_against_what_stands_and_not_against_what_is_expected() -> None:
    state = two_jobs_and_two_nodes()
    ground = SchedulerCache.from_snapshot(state.replica)
    first = planned(state, ground, "first")

    with ground.fleet.expect_placements(first.placements):
        checked = check_plan(first, state.replica, max_changes=100, cache=ground)

    assert checked.dropped_nodes == []
    assert checked.write is not None
