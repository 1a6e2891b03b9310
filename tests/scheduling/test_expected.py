"""What a plan on its way will place counts for the next plan, and for nothing else."""

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState
from wharf.model.job import Job
from wharf.scheduling.ground import Ground
from wharf.scheduling.plan import Plan, check
from wharf.scheduling.schedule import schedule


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


def planned(state: AState, ground: Ground, job_id: str) -> Plan:
    return schedule(ground, state.replica, state.open_evaluations(job_id)[-1], state.moment)


def test_the_next_plan_leaves_the_room_to_what_is_on_its_way() -> None:
    state = two_jobs_and_two_nodes()
    ground = Ground.of(state.replica)
    first = planned(state, ground, "first")

    with ground.fleet.expecting(first.placements):
        second = planned(state, ground, "second")

    assert {"node-1", "node-2"} == {*first.placements, *second.placements}


def test_what_is_expected_everywhere_leaves_room_nowhere() -> None:
    state = two_jobs_and_two_nodes()
    ground = Ground.of(state.replica)
    (there,) = planned(state, ground, "first").placements.values()

    with ground.fleet.expecting({"node-1": there, "node-2": there}):
        second = planned(state, ground, "second")

    assert second.placements == {}


def test_a_plan_is_checked_against_what_stands_and_not_against_what_is_expected() -> None:
    state = two_jobs_and_two_nodes()
    ground = Ground.of(state.replica)
    first = planned(state, ground, "first")

    with ground.fleet.expecting(first.placements):
        checked = check(first, state.replica, changes_max=100, ground=ground)

    assert checked.dropped_nodes == []
    assert checked.write is not None
