"""Tracking of draining nodes from change to change (scheduling.md 9.3)."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_system_job
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.controllers.drain_tracker import DrainTracker
from wharf.cluster.operations.nodes import drains
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.state import Table
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES
from wharf.cluster.state.watches import RecordChange
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus, DesiredTransition

SHOP = ("default", "shop")
OTHER = ("default", "other")


class TableObserver:
    """Observes a table and passes its changes to the tracker."""

    def __init__(self, state: AState, tracker: DrainTracker, table: Table[Any]) -> None:
        self._state, self._leaving, self._table = state, tracker, table

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        self._leaving.update(self._state.replica, [(self._table.name, *change) for change in changes])


def a_state() -> tuple[AState, DrainTracker]:
    """Return a state with two nodes that run two jobs, and the tracker that follows it."""
    state = AState()
    for number in (1, 2):
        state.with_node(f"node-{number}")
    for job_id in ("shop", "other"):
        state.register(a_job(job_id, a_group("web", count=2)))
        for number in (1, 2):
            where = {"node_id": f"node-{number}", "client_status": ClientStatus.RUNNING}
            state.with_allocation(state.job(job_id), f"{job_id}-{number}", name=f"{job_id}.web[{number - 1}]", **where)
    tracker = DrainTracker.from_snapshot(state.replica)
    for table in (NODES, JOBS, ALLOCATIONS):
        state.replica.watches.add_observer(table, TableObserver(state, tracker, table))
    return state, tracker


def drain(state: AState, node_id: str = "node-1", *, deadline_s: int | None = 0) -> None:
    order = DrainOptions(deadline_ns=deadline_s * SECOND_NS) if deadline_s is not None else None
    state.lead(
        drains.update_drain(state.replica, DrainRequest(node_id=node_id, order=order), state.moment, max_evaluations=10)
    )


def take_changes(state: AState, tracker: DrainTracker) -> tuple[list[tuple[str, str]], list[str]]:
    return tracker.take_changed_jobs(state.replica), tracker.take_changed_nodes()


def test_the_jobs_of_a_drained_node_are_checked_once() -> None:
    state, tracker = a_state()

    drain(state)

    jobs, nodes = take_changes(state, tracker)
    assert (sorted(jobs), nodes) == ([OTHER, SHOP], ["node-1"])
    assert take_changes(state, tracker) == ([], [])


def test_a_change_on_another_node_marks_only_its_own_job() -> None:
    state, tracker = a_state()
    drain(state)
    take_changes(state, tracker)

    state.with_client_status("shop-2", ClientStatus.FAILED)

    assert take_changes(state, tracker) == ([SHOP], [])


def test_a_changed_job_is_checked_again() -> None:
    state, tracker = a_state()
    drain(state)
    take_changes(state, tracker)

    state.put(JOBS.build_put(replace(state.job("other"), stop=True)))

    assert take_changes(state, tracker) == ([OTHER], [])


def test_an_ended_allocation_no_longer_has_to_leave_and_its_node_is_checked() -> None:
    state, tracker = a_state()
    drain(state)
    take_changes(state, tracker)

    state.with_client_status("shop-1", ClientStatus.COMPLETE)

    assert tracker.list_allocations_of_job(SHOP) == []
    assert take_changes(state, tracker) == ([], ["node-1"])


def test_nothing_has_to_leave_a_node_whose_drain_was_canceled() -> None:
    state, tracker = a_state()
    drain(state)

    drain(state, deadline_s=None)
    state.with_client_status("shop-2", ClientStatus.FAILED)

    assert (list(tracker.draining_nodes), tracker.list_allocations_of_job(SHOP)) == ([], [])
    assert tracker.take_changed_nodes() == []


def test_a_passed_deadline_marks_a_node_once() -> None:
    state, tracker = a_state()
    drain(state, deadline_s=60)
    take_changes(state, tracker)

    tracker.mark_forced(["node-1"])
    assert sorted(tracker.take_changed_jobs(state.replica)) == [OTHER, SHOP]
    tracker.mark_forced(["node-1"])
    assert tracker.take_changed_jobs(state.replica) == []


def test_the_tracked_state_equals_that_of_a_new_leader() -> None:
    state, tracker = a_state()
    drain(state, "node-2")
    drain(state)
    state.with_allocation(state.job(), "late", name="shop.web[0]", node_id="node-2")
    state.with_client_status("other-1", ClientStatus.FAILED)
    drain(state, deadline_s=None)

    new_tracker = DrainTracker.from_snapshot(state.replica)

    assert list(tracker.draining_nodes) == list(new_tracker.draining_nodes) == ["node-2"]
    assert [tracker.list_allocations_of_job(key) for key in (SHOP, OTHER)] == [["late", "shop-2"], ["other-2"]]
    assert [new_tracker.list_allocations_of_job(key) for key in (SHOP, OTHER)] == [["late", "shop-2"], ["other-2"]]


def test_only_nodes_that_drain_are_tracked() -> None:
    state, tracker = a_state()
    state.put(NODES.build_put(replace(state.node("node-2"), name="renamed")))

    assert (list(tracker.draining_nodes), take_changes(state, tracker)) == ([], ([], []))


def test_a_changed_drain_is_checked_again_and_its_allocations_are_tracked_once() -> None:
    state, tracker = a_state()
    drain(state, deadline_s=60)
    take_changes(state, tracker)

    drain(state, deadline_s=120)

    assert tracker.list_allocations_of_job(SHOP) == ["shop-1"]
    assert list(tracker.iter_jobs_on_node("node-1")) == [SHOP, OTHER]
    jobs, nodes = take_changes(state, tracker)
    assert (sorted(jobs), nodes) == ([OTHER, SHOP], ["node-1"])


def test_the_deadline_of_a_changed_drain_can_pass_again() -> None:
    state, tracker = a_state()
    drain(state, deadline_s=60)
    tracker.mark_forced(["node-1"])
    drain(state, deadline_s=120)
    take_changes(state, tracker)

    tracker.mark_forced(["node-1", "node-2", "unknown"])

    jobs, nodes = take_changes(state, tracker)
    assert (sorted(jobs), nodes) == ([OTHER, SHOP], ["node-1"])


def test_a_deleted_node_is_no_longer_tracked() -> None:
    state, tracker = a_state()
    drain(state)

    state.put(NODES.build_delete("node-1"), NODES.build_delete("node-2"))

    assert (list(tracker.draining_nodes), tracker.list_allocations_of_job(SHOP)) == ([], [])
    assert tracker.take_changed_nodes() == []


@pytest.mark.parametrize(
    ("fields", "is_tracked"),
    [
        ({}, True),
        ({"client_status": ClientStatus.FAILED}, False),
        ({"desired_status": DesiredStatus.STOP}, False),
        ({"desired_transition": DesiredTransition(migrate=True)}, False),
        ({"desired_transition": DesiredTransition(reschedule=True)}, True),
    ],
)
@pytest.mark.parametrize("is_draining_before", [True, False])
def test_only_active_allocations_without_a_mark_have_to_leave(
    fields: dict[str, Any], is_tracked: bool, is_draining_before: bool
) -> None:
    state, tracker = a_state()
    if is_draining_before:
        drain(state)
    state.with_allocation(state.job(), "new", name="shop.web[0]", node_id="node-1", **fields)
    if not is_draining_before:
        drain(state)

    assert ("new" in tracker.list_allocations_of_job(SHOP)) is is_tracked


def test_a_deleted_allocation_no_longer_has_to_leave_and_its_node_and_job_are_checked() -> None:
    state, tracker = a_state()
    state.with_allocation(state.job(), "more", name="shop.web[0]", node_id="node-1")
    drain(state)
    take_changes(state, tracker)

    state.put(ALLOCATIONS.build_delete("shop-1"))

    assert tracker.list_allocations_of_job(SHOP) == ["more"]
    assert take_changes(state, tracker) == ([SHOP], ["node-1"])


def test_an_allocation_that_is_marked_to_leave_is_no_longer_listed_but_checks_its_node() -> None:
    state, tracker = a_state()
    drain(state)
    take_changes(state, tracker)

    marked = replace(state.allocation("shop-1"), desired_transition=DesiredTransition(migrate=True))
    state.put(ALLOCATIONS.build_put(marked))

    assert list(tracker.iter_jobs_on_node("node-1")) == [OTHER]
    assert take_changes(state, tracker) == ([], ["node-1"])


def test_a_system_job_is_checked_when_anything_on_its_node_changed() -> None:
    state, tracker = a_state()
    state.register(a_system_job("agent"))
    for number in (1, 2):
        state.with_allocation(state.job("agent"), f"agent-{number}", node_id=f"node-{number}")
    drain(state)
    take_changes(state, tracker)

    state.with_client_status("shop-1", ClientStatus.COMPLETE)

    assert take_changes(state, tracker) == ([("default", "agent")], ["node-1"])
    assert take_changes(state, tracker) == ([], [])


def test_a_system_job_is_not_checked_when_another_node_changed() -> None:
    state, tracker = a_state()
    state.register(a_system_job("agent"))
    state.with_allocation(state.job("agent"), "agent-1", node_id="node-1")
    drain(state)
    drain(state, "node-2")
    take_changes(state, tracker)

    state.with_client_status("shop-2", ClientStatus.COMPLETE)

    assert take_changes(state, tracker) == ([SHOP], ["node-2"])


def test_a_job_without_allocations_to_move_is_not_checked() -> None:
    state, tracker = a_state()
    drain(state)
    state.register(a_job("new"))
    take_changes(state, tracker)

    state.put(JOBS.build_put(replace(state.job("new"), priority=70)), JOBS.build_delete("default", "other"))

    assert take_changes(state, tracker) == ([OTHER], [])


def test_nothing_is_tracked_of_a_node_without_allocations_but_the_node_is_checked() -> None:
    state, tracker = a_state()
    state.with_node("node-3")
    drain(state, "node-3")

    assert (list(tracker.draining_nodes), list(tracker.iter_jobs_on_node("node-3"))) == (["node-3"], [])
    assert take_changes(state, tracker) == ([], ["node-3"])
    assert list(tracker.iter_jobs_on_node("unknown")) == []


def test_a_new_leader_checks_all_draining_nodes_and_their_jobs() -> None:
    state, _ = a_state()
    drain(state)
    tracker = DrainTracker.from_snapshot(state.replica)

    jobs, nodes = take_changes(state, tracker)
    assert (sorted(jobs), nodes) == ([OTHER, SHOP], ["node-1"])
