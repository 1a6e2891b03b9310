"""Which allocations a drain moves in one write, which it counts as healthy, and which it waits for."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_job, a_system_job
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.controllers import drains as drainer
from wharf.cluster.controllers.drain_tracker import DrainTracker
from wharf.cluster.operations.nodes import drains
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.state.tables import ALLOCATIONS, EVALUATIONS, JOBS
from wharf.contract.model.allocations.allocation import (
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    DesiredTransition,
)
from wharf.contract.model.jobs.group_policies import MigratePolicy
from wharf.contract.model.jobs.job import Job, JobKey, JobType

HEALTHY = AllocDeploymentStatus(healthy=True)
NODES = ("node-1", "node-2", "node-3")


def a_service(job_id: str = "shop", *, count: int = 100, max_parallel: int = 100) -> Job:
    return a_job(job_id, a_group("web", count=count, migrate=MigratePolicy(max_parallel=max_parallel)))


def a_state(*jobs: Job) -> AState:
    state = AState()
    for node_id in NODES:
        state.with_node(node_id)
    for job in jobs:
        state.register(job)
        state.end_evaluations(job.id)
    return state


def run(state: AState, job_id: str, *ids: str, node_id: str = "node-1", **fields: Any) -> None:
    arguments = {"client_status": ClientStatus.RUNNING, "deployment_status": HEALTHY, **fields}
    for allocation_id in ids:
        state.with_allocation(state.job(job_id), allocation_id, node_id=node_id, **arguments)


def drain(state: AState, node_id: str = "node-1", **options: Any) -> None:
    request = DrainRequest(node_id=node_id, order=DrainOptions(**options))
    state.lead(drains.update_drain(state.replica, request, state.moment, max_evaluations=100))


def find(state: AState, *node_ids: str) -> drainer.NodeDrains:
    return drainer.find_drains(state.replica, node_ids or NODES, state.now_ns)


def move(state: AState, *job_ids: str, max_changes: int = 100) -> tuple[list[str], list[JobKey]]:
    """Make one write. Return the ids of the marked allocations, and the jobs that did not fit."""
    before = {each.id for each in state.replica.iter_all(ALLOCATIONS) if each.should_migrate}
    decision = drainer.move_allocations(
        state.replica,
        find(state),
        [("default", job_id) for job_id in job_ids],
        state.moment,
        tracker=DrainTracker.from_snapshot(state.replica),
        max_changes=max_changes,
    )
    if decision is None:
        return [], []
    step = state.lead(decision)
    marked = [each.id for each in state.replica.iter_all(ALLOCATIONS) if each.should_migrate and each.id not in before]
    assert step.marked_count == len(marked)
    return sorted(marked), list(step.remaining_jobs)


def select(state: AState, job_id: str, *ids: str) -> list[str]:
    found = drainer.select_movable(state.replica, find(state), state.job(job_id), ids)
    return [allocation.id for allocation in found]


def finish(state: AState, node_id: str = "node-1") -> dict[str, str] | bool | None:
    """Finish the drain. Return the details of its event, or False if it is not finished."""
    decision = drainer.finish_drain(
        state.replica, find(state), node_id, state.moment, tracker=DrainTracker.from_snapshot(state.replica)
    )
    if decision is None:
        return False
    state.lead(decision)
    return (state.node(node_id).events or ())[-1].details


def is_finished(state: AState, node_id: str = "node-1") -> bool:
    return drainer.is_finished(state.replica, find(state)[node_id], DrainTracker.from_snapshot(state.replica))


# -- drains


def test_only_nodes_that_exist_and_drain_have_a_drain() -> None:
    state = a_state()
    drain(state, "node-1", ignore_system_jobs=True)
    drain(state, "node-2", deadline_ns=-1)

    found = find(state, "unknown", "node-3", "node-2", "node-1")

    assert {node_id: (each.node.id, each.is_forced, each.ignores_system_jobs) for node_id, each in found.items()} == {
        "node-1": ("node-1", False, True),
        "node-2": ("node-2", True, False),
    }


@pytest.mark.parametrize(
    ("deadlines_s", "windows"),
    [
        pytest.param([60], [60], id="one"),
        pytest.param([60, 65], [65], id="five seconds apart"),
        pytest.param([60, 66], [60, 66], id="more than five seconds apart"),
        pytest.param([60, 64, 68], [64, 68], id="five seconds from the first, not from the previous one"),
        pytest.param([60, 70, 74], [60, 74], id="a second window"),
        pytest.param([0, 60], [60], id="no deadline"),
        pytest.param([-1, 60], [60], id="at once"),
    ],
)
def test_deadlines_are_handled_in_windows_of_five_seconds(deadlines_s: Sequence[int], windows: Sequence[int]) -> None:
    state = a_state()
    started_ns = state.now_ns
    for node_id, deadline_s in zip(NODES, deadlines_s, strict=False):
        drain(state, node_id, deadline_ns=deadline_s * SECOND_NS)

    found, now_ns = [], started_ns
    while (due_ns := drainer.next_deadline_ns(state.replica, NODES, now_ns)) is not None:
        found.append((due_ns - started_ns) // SECOND_NS)
        now_ns = due_ns

    assert found == windows


def test_a_drain_is_forced_from_its_deadline_on() -> None:
    state = a_state()
    drain(state, deadline_ns=60 * SECOND_NS)
    due_ns = state.now_ns + 60 * SECOND_NS

    assert [
        drainer.find_drains(state.replica, ["node-1"], now_ns)["node-1"].is_forced for now_ns in (due_ns - 1, due_ns)
    ] == [False, True]


# -- the size of a write


@pytest.mark.parametrize(("max_changes", "remaining"), [(11, [("default", "other")]), (12, [])])
def test_jobs_share_a_write_while_another_evaluation_and_allocation_fit(
    max_changes: int, remaining: list[JobKey]
) -> None:
    state = a_state(a_service("shop"), a_service("other"))
    run(state, "shop", "a1")
    run(state, "other", "b1")
    drain(state, deadline_ns=-1)

    marked, left = move(state, "shop", "other", max_changes=max_changes)

    assert (marked, left) == (["a1"] if remaining else ["a1", "b1"], remaining)
    assert len(state.open_evaluations("other")) == (0 if remaining else 1)


@pytest.mark.parametrize(
    ("max_changes", "marked_count"),
    [(1, 1), (5, 1), (6, 1), (7, 2), (10, 5), (13, 8), (14, 8)],
)
def test_the_allocations_of_a_job_that_fit_are_moved_and_the_job_remains(max_changes: int, marked_count: int) -> None:
    state = a_state(a_service("shop"), a_service("other"))
    ids = [f"a{number}" for number in range(8)]
    run(state, "shop", *ids)
    run(state, "other", "b1")
    drain(state, deadline_ns=-1)

    marked, left = move(state, "shop", "other", max_changes=max_changes)

    assert marked == ids[:marked_count]
    assert left == [("default", "shop"), ("default", "other")][marked_count == 8 :]


def test_each_node_of_a_write_counts_once() -> None:
    state = a_state(a_service("shop"), a_service("other"))
    run(state, "shop", "a1", "a3")
    run(state, "shop", "a2", node_id="node-2")
    run(state, "other", "b1", "b2", "b3")
    drain(state, "node-1", deadline_ns=-1)
    drain(state, "node-2", deadline_ns=-1)

    # 4 for the evaluation of each job, 3 allocations and 2 nodes for shop, 2 allocations for other.
    assert move(state, "shop", "other", max_changes=15) == (["a1", "a2", "a3", "b1", "b2"], [("default", "other")])


def test_allocations_on_several_nodes_take_more_of_a_write() -> None:
    state = a_state(a_service())
    for number in range(8):
        run(state, "shop", f"a{number}", node_id=NODES[number % 2])
    drain(state, "node-1", deadline_ns=-1)
    drain(state, "node-2", deadline_ns=-1)

    assert move(state, "shop", max_changes=10) == (["a0", "a1", "a2", "a3"], [("default", "shop")])


def test_jobs_without_allocations_to_move_take_nothing_of_a_write() -> None:
    state = a_state(a_service("shop"), a_service("other"), a_service("idle"))
    run(state, "shop", "a1")
    drain(state, deadline_ns=-1)

    assert move(state, "unknown", "idle", "shop", "other", max_changes=6) == (["a1"], [])


def test_no_write_is_made_if_nothing_may_leave() -> None:
    state = a_state(a_service("shop"))
    drain(state)
    before = state.replica.index

    assert (move(state, "shop", "unknown"), state.replica.index) == (([], []), before)


# -- allocations that may leave


@pytest.mark.parametrize(
    ("fields", "is_movable"),
    [
        pytest.param({}, True, id="running"),
        pytest.param({"client_status": ClientStatus.PENDING}, True, id="pending"),
        pytest.param({"client_status": ClientStatus.COMPLETE}, False, id="ended"),
        pytest.param({"desired_status": DesiredStatus.STOP}, False, id="stopping"),
        pytest.param({"desired_transition": DesiredTransition(migrate=True)}, False, id="marked already"),
        pytest.param({"desired_transition": DesiredTransition(reschedule=True)}, True, id="marked for a retry"),
        pytest.param({"node_id": "node-3"}, False, id="on a node that does not drain"),
    ],
)
@pytest.mark.parametrize("job", [a_service(), a_batch_job("shop"), a_system_job("shop")], ids=lambda job: job.type)
def test_only_active_unmarked_allocations_on_draining_nodes_leave(
    job: Job, fields: dict[str, Any], is_movable: bool
) -> None:
    state = a_state(job)
    run(state, "shop", "a1", **fields)
    drain(state, deadline_ns=-1)

    assert select(state, "shop", "deleted", "a1") == (["a1"] if is_movable else [])


def test_nothing_of_a_stopped_job_leaves() -> None:
    state = a_state(a_service())
    run(state, "shop", "a1")
    drain(state, deadline_ns=-1)
    state.put(JOBS.build_put(replace(state.job(), stop=True)))

    assert select(state, "shop", "a1") == []


@pytest.mark.parametrize("job_type", [JobType.BATCH, JobType.SYSBATCH])
def test_only_forced_drains_move_allocations_of_jobs_that_end(job_type: JobType) -> None:
    state = a_state(replace(a_batch_job("shop"), type=job_type))
    run(state, "shop", "a1")
    run(state, "shop", "a2", node_id="node-2")
    drain(state, "node-1")
    drain(state, "node-2", deadline_ns=-1)

    assert select(state, "shop", "a1", "a2") == ["a2"]


def test_allocations_that_are_forced_to_leave_do_not_count_as_healthy() -> None:
    state = a_state(a_service(count=4, max_parallel=2))
    run(state, "shop", "a1")
    run(state, "shop", "b1", "b2", "b3", node_id="node-2")
    drain(state, "node-1", deadline_ns=-1)
    drain(state, "node-2")

    assert select(state, "shop", "a1", "b1", "b2", "b3") == ["a1", "b1"]


def test_each_group_has_its_own_limit() -> None:
    groups = [
        a_group(name, count=count, migrate=MigratePolicy(max_parallel=max_parallel))
        for name, count, max_parallel in (("web", 3, 2), ("api", 2, 1), ("few", 5, 1))
    ]
    state = a_state(a_job("shop", *groups))
    for name, count in (("web", 3), ("api", 2), ("few", 2)):
        run(state, "shop", *(f"{name}{number}" for number in range(count)), task_group=name)
    drain(state)
    ids = ("web0", "web1", "web2", "api0", "api1", "few0", "few1")

    assert select(state, "shop", *ids) == ["web0", "web1", "api0"]


@pytest.mark.parametrize(
    ("fields", "is_counted"),
    [
        pytest.param({}, True, id="healthy"),
        pytest.param({"deployment_status": AllocDeploymentStatus(healthy=False)}, True, id="unhealthy"),
        pytest.param({"deployment_status": AllocDeploymentStatus()}, False, id="undecided"),
        pytest.param({"deployment_status": None}, False, id="without health"),
        pytest.param({"client_status": ClientStatus.FAILED}, False, id="ended"),
        pytest.param({"desired_status": DesiredStatus.STOP}, False, id="stopping"),
        pytest.param({"desired_transition": DesiredTransition(migrate=True)}, False, id="marked"),
        pytest.param({"task_group": "former"}, False, id="of another group"),
    ],
)
def test_a_service_leaves_only_if_enough_other_allocations_are_healthy(
    fields: dict[str, Any], is_counted: bool
) -> None:
    state = a_state(a_service(count=2, max_parallel=1))
    run(state, "shop", "a1")
    run(state, "shop", "b1", node_id="node-3", **fields)
    drain(state)

    assert select(state, "shop", "a1") == (["a1"] if is_counted else [])


def test_a_group_without_a_migrate_policy_loses_one_allocation_at_a_time() -> None:
    group = replace(a_service(count=3).groups[0], migrate=None)

    assert drainer.min_healthy(group) == 2


# -- system jobs


@pytest.mark.parametrize(
    ("options", "other", "leaves"),
    [
        pytest.param({}, None, True, id="alone"),
        pytest.param({}, {}, False, id="beside a service"),
        pytest.param({}, {"client_status": ClientStatus.COMPLETE}, True, id="beside an ended service"),
        pytest.param({}, {"desired_status": DesiredStatus.STOP}, False, id="beside a stopping service"),
        pytest.param({}, {"node_id": "node-2"}, True, id="with a service elsewhere"),
        pytest.param({"deadline_ns": -1}, {}, True, id="forced"),
        pytest.param({"ignore_system_jobs": True}, None, False, id="ignored"),
        pytest.param({"ignore_system_jobs": True, "deadline_ns": -1}, None, False, id="ignored and forced"),
    ],
)
def test_a_system_job_leaves_when_it_is_alone_on_the_node_or_forced(
    options: dict[str, Any], other: dict[str, Any] | None, leaves: bool
) -> None:
    state = a_state(a_system_job("agent"), a_service())
    run(state, "agent", "s1")
    if other is not None:
        run(state, "shop", "a1", **other)
    drain(state, **options)

    assert select(state, "agent", "s1") == (["s1"] if leaves else [])


def test_an_allocation_of_a_deleted_job_is_not_of_a_system_job() -> None:
    state = a_state(a_system_job("agent"), a_service())
    run(state, "agent", "s1")
    run(state, "shop", "a1")
    state.put(JOBS.build_delete("default", "shop"))
    drain(state)

    assert select(state, "agent", "s1") == []


# -- the end of a drain


@pytest.mark.parametrize(
    ("options", "fields", "expected"),
    [
        pytest.param({}, {}, False, id="not marked"),
        pytest.param({}, {"desired_transition": DesiredTransition(migrate=True)}, False, id="marked and running"),
        pytest.param({}, {"desired_status": DesiredStatus.STOP}, False, id="stopping"),
        pytest.param({}, {"client_status": ClientStatus.COMPLETE}, True, id="ended"),
        pytest.param({}, {"node_id": "node-2"}, True, id="elsewhere"),
        pytest.param({"deadline_ns": -1}, {}, False, id="forced, not marked"),
        pytest.param(
            {"deadline_ns": -1}, {"desired_transition": DesiredTransition(migrate=True)}, True, id="forced and marked"
        ),
    ],
)
def test_a_drain_is_finished_when_nothing_has_to_leave(
    options: dict[str, Any], fields: dict[str, Any], expected: bool
) -> None:
    state = a_state(a_service())
    run(state, "shop", "a1", **fields)
    drain(state, **options)

    assert is_finished(state) is expected


@pytest.mark.parametrize("options", [{}, {"deadline_ns": -1}])
@pytest.mark.parametrize("ignores_system_jobs", [True, False])
def test_a_system_job_is_waited_for_unless_the_drain_ignores_it(
    options: dict[str, Any], ignores_system_jobs: bool
) -> None:
    state = a_state(a_system_job("agent"))
    run(state, "agent", "s1")
    drain(state, ignore_system_jobs=ignores_system_jobs, **options)

    assert is_finished(state) is ignores_system_jobs


def test_a_drain_that_ignores_system_jobs_waits_for_other_jobs() -> None:
    state = a_state(a_service())
    run(state, "shop", "a1")
    drain(state, ignore_system_jobs=True, deadline_ns=-1)

    assert not is_finished(state)


@pytest.mark.parametrize("change", ["stop", "delete"])
def test_a_forced_drain_does_not_wait_for_allocations_of_a_job_that_nothing_moves(change: str) -> None:
    state = a_state(a_service())
    run(state, "shop", "a1")
    state.put(
        JOBS.build_put(replace(state.job(), stop=True)) if change == "stop" else JOBS.build_delete("default", "shop")
    )
    drain(state, deadline_ns=-1)

    assert is_finished(state)


def test_a_node_that_does_not_drain_has_no_drain_to_finish() -> None:
    state = a_state()

    assert (finish(state, "node-1"), finish(state, "unknown")) == (False, False)


DEADLINE_REACHED = {"deadline_reached": "true"}


@pytest.mark.parametrize(
    ("job", "options", "fields", "details"),
    [
        (a_service(), {}, {"client_status": ClientStatus.COMPLETE}, None),
        (a_service(), {"deadline_ns": -1}, {"client_status": ClientStatus.COMPLETE}, None),
        (a_service(), {"deadline_ns": -1}, {"desired_status": DesiredStatus.STOP}, DEADLINE_REACHED),
        (a_service(), {"deadline_ns": -1}, {"node_id": "node-2"}, None),
        (a_system_job("shop"), {"deadline_ns": -1, "ignore_system_jobs": True}, {}, None),
        (a_system_job("shop"), {"deadline_ns": -1}, {"desired_status": DesiredStatus.STOP}, DEADLINE_REACHED),
        (
            a_service(),
            {"deadline_ns": -1, "ignore_system_jobs": True},
            {"desired_status": DesiredStatus.STOP},
            DEADLINE_REACHED,
        ),
        (a_system_job("shop"), {"ignore_system_jobs": True}, {}, None),
    ],
)
def test_the_event_of_a_finished_drain_says_whether_its_deadline_ended_allocations(
    job: Job, options: dict[str, Any], fields: dict[str, Any], details: dict[str, str] | None
) -> None:
    state = a_state(job)
    run(state, "shop", "a1", **fields)
    drain(state, **options)

    assert finish(state) == details


def test_marked_allocations_are_replaced_by_one_evaluation_of_their_job() -> None:
    state = a_state(a_service())
    run(state, "shop", "a1", "a2")
    drain(state, deadline_ns=-1)

    move(state, "shop")

    assert [each.job_id for each in state.replica.iter_all(EVALUATIONS) if not each.status.is_terminal] == ["shop"]
