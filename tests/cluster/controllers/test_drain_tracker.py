"""Tracking of draining nodes from change to change (scheduling.md 9.3)."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from tests.builders import a_group, a_job
from tests.kit.state import SECOND_NS, AState
from wharf.cluster.controllers.drain_tracker import DrainTracker
from wharf.cluster.operations.nodes import drains
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.state import Table
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES
from wharf.cluster.state.watches import RecordChange
from wharf.contract.model.allocations.allocation import ClientStatus

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
