"""Which allocations leave a draining node, and when (scheduling.md 9.3)."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_system_job
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.controllers import drains as drainer
from wharf.cluster.controllers.drain_tracker import DrainTracker
from wharf.cluster.operations.nodes import drains
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.state.tables import ALLOCATIONS, JOBS
from wharf.contract.model.allocations.allocation import AllocDeploymentStatus, ClientStatus
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import DrainStatus, SchedulingEligibility

MANY = 100
MINUTE_NS = 60 * SECOND_NS
HEALTHY = AllocDeploymentStatus(healthy=True)
UNDECIDED = AllocDeploymentStatus(healthy=None)


def a_state(*jobs: Job, nodes: int = 2) -> AState:
    state = AState()
    for number in range(1, nodes + 1):
        state.with_node(f"node-{number}")
    for job in jobs:
        state.register(job)
    return state


def of_count(count: int, *, max_parallel: int = 1) -> Job:
    return a_job("shop", a_group("web", count=count, migrate=MigratePolicy(max_parallel=max_parallel)))


def running(state: AState, job_id: str, *ids: str, **fields: Any) -> None:
    arguments = {"client_status": ClientStatus.RUNNING, "deployment_status": HEALTHY, **fields}
    for number, allocation_id in enumerate(ids):
        name = f"{job_id}.{state.job(job_id).groups[0].name}[{number}]"
        state.with_allocation(state.job(job_id), allocation_id, name=name, **arguments)


def drain(state: AState, node_id: str = "node-1", **order: Any) -> None:
    wish = DrainRequest(node_id=node_id, order=DrainOptions(**order))
    state.lead(drains.update_drain(state.replica, wish, state.moment, max_evaluations=MANY))


def drains_of(state: AState, *, after_s: int = 0) -> drainer.NodeDrains:
    return drainer.find_drains(
        state.replica, DrainTracker.from_snapshot(state.replica).draining_nodes, state.now_ns + after_s * SECOND_NS
    )


def step(state: AState, *, changes_max: int = MANY) -> list[str]:
    """Mark all allocations that may leave now, and return their ids."""
    before = {each.id for each in state.replica.iter_all(ALLOCATIONS) if each.should_migrate}
    left = tuple(DrainTracker.from_snapshot(state.replica).take_changed_jobs(state.replica))
    while left:
        decision = drainer.move_allocations(
            state.replica,
            drains_of(state),
            left,
            state.moment,
            tracker=DrainTracker.from_snapshot(state.replica),
            max_changes=changes_max,
        )
        left = () if decision is None else state.lead(decision).remaining_jobs
    return sorted(
        each.id for each in state.replica.iter_all(ALLOCATIONS) if each.should_migrate and each.id not in before
    )


def finish(state: AState, node_id: str = "node-1") -> bool:
    decision = drainer.finish_drain(
        state.replica, drains_of(state), node_id, state.moment, tracker=DrainTracker.from_snapshot(state.replica)
    )
    if decision is not None:
        state.lead(decision)
    return decision is not None


# -- services


def test_a_service_keeps_count_less_max_parallel_healthy_allocations() -> None:
    state = a_state(of_count(4, max_parallel=2))
    running(state, "shop", "a1", "a2", "a3", "a4")

    drain(state)

    assert step(state) == ["a1", "a2"]


def test_the_next_allocation_leaves_only_when_the_health_of_the_first_replacement_is_decided() -> None:
    state = a_state(of_count(2))
    running(state, "shop", "a1", "a2")
    drain(state)
    assert step(state) == ["a1"]
    state.with_client_status("a1", ClientStatus.COMPLETE)

    running(state, "shop", "b1", node_id="node-2", deployment_status=UNDECIDED)
    assert step(state) == []
    running(state, "shop", "b2", node_id="node-2")
    assert step(state) == ["a2"]


def test_two_draining_nodes_share_one_limit() -> None:
    state = a_state(of_count(4))
    running(state, "shop", "a1", "a2")
    running(state, "shop", "b1", "b2", node_id="node-2")

    drain(state, "node-1")
    drain(state, "node-2")

    assert step(state) == ["a1"]


def test_nothing_leaves_a_group_with_fewer_healthy_allocations_than_required() -> None:
    state = a_state(of_count(3))
    running(state, "shop", "a1", "a2")

    drain(state)

    assert step(state) == []


def test_each_job_with_moved_allocations_is_evaluated_once() -> None:
    state = a_state(of_count(4, max_parallel=3))
    running(state, "shop", "a1", "a2", "a3", "a4")
    state.end_evaluations()
    drain(state)

    step(state)

    assert [each.triggered_by for each in state.open_evaluations()] == [EvaluationTrigger.NODE_DRAIN]
    assert [each.node_id for each in state.open_evaluations()] == [""]


def test_allocations_that_do_not_fit_in_one_write_leave_in_several() -> None:
    state = a_state(of_count(20, max_parallel=20))
    running(state, "shop", *(f"a{number:02}" for number in range(20)))
    drain(state)

    assert len(step(state, changes_max=10)) == 20


# -- work that ends, and system jobs


def test_batch_allocations_run_until_the_deadline_and_are_then_stopped() -> None:
    state = a_state(a_batch_job("nightly"))
    running(state, "nightly", "a1", deployment_status=None)
    drain(state, deadline_ns=MINUTE_NS)
    assert step(state) == []

    state.now_ns += MINUTE_NS

    assert step(state) == ["a1"]
    transition = state.allocation("a1").desired_transition
    assert transition is not None
    assert (transition.migrate, transition.migrate_disable_placement) == (True, True)


def test_a_system_job_leaves_last() -> None:
    state = a_state(of_count(1), a_system_job("agent"))
    running(state, "shop", "a1")
    running(state, "agent", "s1")
    drain(state)

    assert step(state) == ["a1"]
    assert not finish(state)
    state.with_client_status("a1", ClientStatus.COMPLETE)
    assert step(state) == ["s1"]
    assert finish(state)


def test_a_drain_that_ignores_system_jobs_completes_without_moving_them() -> None:
    state = a_state(a_system_job("agent"))
    running(state, "agent", "s1")
    drain(state, ignore_system_jobs=True)

    assert step(state) == []
    assert finish(state)


def test_a_forced_drain_moves_everything_at_once_and_reports_the_deadline() -> None:
    state = a_state(of_count(3), a_batch_job("nightly"), a_system_job("agent"))
    running(state, "shop", "a1", "a2")
    running(state, "nightly", "b1", deployment_status=None)
    running(state, "agent", "s1")

    drain(state, deadline_ns=-1)

    assert step(state) == ["a1", "a2", "b1", "s1"]
    assert finish(state)
    assert last_event(state) == ("Node drain complete", {"deadline_reached": "true"})


def last_event(state: AState) -> tuple[str, dict[str, str] | None]:
    event = (state.node().events or ())[-1]
    return event.message, event.details


# -- the end


def test_a_drain_is_complete_when_nothing_runs_on_the_node() -> None:
    state = a_state(of_count(1))
    running(state, "shop", "a1")
    drain(state)
    step(state)
    assert not finish(state)

    state.with_client_status("a1", ClientStatus.COMPLETE)

    assert finish(state)
    node = state.node()
    assert node.drain_strategy is None
    assert node.scheduling_eligibility is SchedulingEligibility.INELIGIBLE
    assert node.last_drain is not None
    assert node.last_drain.status is DrainStatus.COMPLETE
    assert last_event(state) == ("Node drain complete", None)


def test_a_drain_without_a_deadline_waits_for_batch_allocations_to_end() -> None:
    state = a_state(a_batch_job("nightly"))
    running(state, "nightly", "a1", deployment_status=None)
    drain(state)

    state.now_ns += 1_000 * MINUTE_NS

    assert step(state) == []
    assert not finish(state)
    assert drainer.next_deadline_ns(state.replica, ["node-1"], state.now_ns) is None


def test_a_drain_is_not_complete_before_all_allocations_are_marked() -> None:
    state = a_state(a_batch_job("nightly"))
    running(state, "nightly", "a1", deployment_status=None)
    drain(state, deadline_ns=-1)

    assert not finish(state)
    step(state)
    assert finish(state)


def test_allocations_of_a_stopped_job_are_awaited_and_not_moved() -> None:
    state = a_state(of_count(1))
    running(state, "shop", "a1")
    state.put(JOBS.build_put(replace(state.job(), stop=True)))
    drain(state)

    assert step(state) == []
    assert not finish(state)


# -- deadlines


def test_deadlines_within_five_seconds_are_handled_at_the_last_of_them() -> None:
    state = a_state(nodes=3)
    drain(state, "node-1", deadline_ns=60 * SECOND_NS)
    drain(state, "node-2", deadline_ns=64 * SECOND_NS)
    drain(state, "node-3", deadline_ns=66 * SECOND_NS)

    def forced_after(seconds: int) -> list[str]:
        return [node_id for node_id, each in drains_of(state, after_s=seconds).items() if each.is_forced]

    assert forced_after(63) == []
    assert forced_after(64) == ["node-1", "node-2"]
    assert forced_after(66) == ["node-1", "node-2", "node-3"]
    nodes = ["node-1", "node-2", "node-3"]
    assert drainer.next_deadline_ns(state.replica, nodes, state.now_ns) == state.now_ns + 64 * SECOND_NS


def test_a_drain_whose_deadline_is_years_away_because_the_clock_was_set_back_is_forced() -> None:
    state = a_state(of_count(1))
    running(state, "shop", "a1")
    drain(state, deadline_ns=10 * MINUTE_NS)

    forced = {
        minutes: drains_of(state, after_s=60 * minutes)["node-1"].is_forced for minutes in (-999_999, -11, -9, 9, 10)
    }

    assert forced == {-999_999: True, -11: True, -9: False, 9: False, 10: True}
