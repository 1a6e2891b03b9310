"""What is kept of drains from change to change (scheduling.md 9.3)."""

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


class Hearing:
    """Told of every change to a table, passes it on."""

    def __init__(self, state: AState, leaving: DrainTracker, table: Table[Any]) -> None:
        self._state, self._leaving, self._table = state, leaving, table

    def on_changes(self, changes: Sequence[RecordChange]) -> None:
        self._leaving.update(self._state.replica, [(self._table.name, *change) for change in changes])


def a_state() -> tuple[AState, DrainTracker]:
    """Two nodes, both with work of two jobs; what leaves is kept from now on."""
    state = AState()
    for number in (1, 2):
        state.with_node(f"node-{number}")
    for job_id in ("shop", "other"):
        state.register(a_job(job_id, a_group("web", count=2)))
        for number in (1, 2):
            where = {"node_id": f"node-{number}", "client_status": ClientStatus.RUNNING}
            state.with_allocation(state.job(job_id), f"{job_id}-{number}", name=f"{job_id}.web[{number - 1}]", **where)
    leaving = DrainTracker.from_snapshot(state.replica)
    for table in (NODES, JOBS, ALLOCATIONS):
        state.replica.watches.add_observer(table, Hearing(state, leaving, table))
    return state, leaving


def drain(state: AState, node_id: str = "node-1", *, deadline_s: int | None = 0) -> None:
    order = DrainOptions(deadline_ns=deadline_s * SECOND_NS) if deadline_s is not None else None
    state.lead(
        drains.update_drain(state.replica, DrainRequest(node_id=node_id, order=order), state.moment, max_evaluations=10)
    )


def look(state: AState, leaving: DrainTracker) -> tuple[list[tuple[str, str]], list[str]]:
    return leaving.take_changed_jobs(state.replica), leaving.take_changed_nodes()


def test_a_node_that_is_drained_has_its_jobs_looked_at_once() -> None:
    state, leaving = a_state()

    drain(state)

    jobs, nodes = look(state, leaving)
    assert (sorted(jobs), nodes) == ([OTHER, SHOP], ["node-1"])
    assert look(state, leaving) == ([], [])


def test_what_changes_of_a_job_on_other_nodes_has_that_job_looked_at_again_and_no_other() -> None:
    state, leaving = a_state()
    drain(state)
    look(state, leaving)

    state.with_client_status("shop-2", ClientStatus.FAILED)

    assert look(state, leaving) == ([SHOP], [])


def test_a_job_that_changes_is_looked_at_again() -> None:
    state, leaving = a_state()
    drain(state)
    look(state, leaving)

    state.put(JOBS.build_put(replace(state.job("other"), stop=True)))

    assert look(state, leaving) == ([OTHER], [])


def test_work_that_ended_is_no_longer_to_leave_and_its_node_is_looked_at() -> None:
    state, leaving = a_state()
    drain(state)
    look(state, leaving)

    state.with_client_status("shop-1", ClientStatus.COMPLETE)

    assert leaving.list_allocations_of_job(SHOP) == []
    assert look(state, leaving) == ([], ["node-1"])


def test_nothing_is_to_leave_a_node_whose_drain_was_called_off() -> None:
    state, leaving = a_state()
    drain(state)

    drain(state, deadline_s=None)
    state.with_client_status("shop-2", ClientStatus.FAILED)

    assert (list(leaving.draining_nodes), leaving.list_allocations_of_job(SHOP)) == ([], [])
    assert leaving.take_changed_nodes() == []


def test_the_end_of_its_time_has_a_node_looked_at_once() -> None:
    state, leaving = a_state()
    drain(state, deadline_s=60)
    look(state, leaving)

    leaving.mark_forced(["node-1"])
    assert sorted(leaving.take_changed_jobs(state.replica)) == [OTHER, SHOP]
    leaving.mark_forced(["node-1"])
    assert leaving.take_changed_jobs(state.replica) == []


def test_what_is_kept_is_what_a_new_leader_reads() -> None:
    state, leaving = a_state()
    drain(state, "node-2")
    drain(state)
    state.with_allocation(state.job(), "late", name="shop.web[0]", node_id="node-2")
    state.with_client_status("other-1", ClientStatus.FAILED)
    drain(state, deadline_s=None)

    anew = DrainTracker.from_snapshot(state.replica)

    assert list(leaving.draining_nodes) == list(anew.draining_nodes) == ["node-2"]
    assert [leaving.list_allocations_of_job(key) for key in (SHOP, OTHER)] == [["late", "shop-2"], ["other-2"]]
    assert [anew.list_allocations_of_job(key) for key in (SHOP, OTHER)] == [["late", "shop-2"], ["other-2"]]
