"""The table of a node's allocations: lookups of live, ended and settled allocations, of runs and of volume users."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.agent.allocations.allocation import ManagedAllocation
from wharf.node.agent.allocations.journal import DiskJournalFile, NodeJournal, StoredAssignment
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.core.allocation_spec import AllocationSpec, TaskSpec
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep

SPEC = AllocationSpec(tasks=(TaskSpec("helper"), TaskSpec("server")))


def open_table(folder: Path) -> AllocationTable:
    journal = NodeJournal(DiskJournalFile(folder / "journal"), "boot-1")
    journal.load()
    return AllocationTable(journal)


def make_allocation(
    id: str, step: TaskStep = TaskStep.RUNNING, *, run: int = 1, is_gone: bool = False, volume: str = ""
) -> ManagedAllocation:
    group = a_group("web", a_task("helper"), a_task("server"))
    if volume:
        group = replace(group, volumes={"data": VolumeRequest(name="data", type="host", source=volume)})
    assigned = AssignedAllocation(
        id=id, name="shop.web[0]", task_group="web", alloc_modify_index=7, client_status=ClientStatus.RUNNING
    )
    assignment = Assignment(allocation=assigned, job=a_job("shop", group))
    record = AllocationRecord(id, tuple(TaskRecord(task.name, step, run) for task in SPEC.tasks))
    return ManagedAllocation(StoredAssignment(id, assignment, is_gone=is_gone), SPEC, record)


def test_an_allocation_is_live_until_all_its_tasks_are_dead(tmp_path: Path) -> None:
    table, allocation = open_table(tmp_path), make_allocation("a1")
    table.put(allocation)
    assert ([allocation], 2, []) == (table.list_live(), len(table.list_live_tasks()), table.list_ended())

    allocation.record = make_allocation("a1", TaskStep.DEAD).record
    table.put(allocation)

    assert ([], False, ["a1"]) == (table.list_live(), table.has_live(), table.list_ended())
    assert table.find("a1") is allocation


def test_a_settled_allocation_is_found_without_its_job(tmp_path: Path) -> None:
    table, allocation = open_table(tmp_path), make_allocation("a1", TaskStep.DEAD)
    table.put(allocation)

    table.settle(allocation)

    settled = table.find("a1")
    assert settled is not None
    assert (allocation.record, None, ClientStatus.RUNNING) == (
        settled.record,
        settled.assignment.job,
        settled.assignment.allocation.client_status,
    )
    assert (True, None, 7) == (table.is_settled("a1"), table.find_unsettled("a1"), table.find_assignment_index("a1"))
    assert (["a1"], ["a1"], True) == (table.list_allocations(), table.list_ended(), table.has_allocation("a1"))
    assert (True, False, None) == (table.remove_settled("a1"), table.remove_settled("a1"), table.find("a1"))


def test_an_allocation_that_servers_no_longer_know_is_not_listed(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.put(make_allocation("a1", is_gone=True))

    assert ([], False, True) == (table.list_allocations(), table.has_allocation("a1"), table.find("a1") is not None)


def test_a_run_is_found_by_the_position_of_its_task(tmp_path: Path) -> None:
    table, allocation = open_table(tmp_path), make_allocation("a1", run=3)
    table.put(allocation)

    assert (allocation, "server", 3) == table.find_run(allocation.make_run_name("server", 3))
    assert (None, None) == (table.find_run("a1.2.3"), table.find_run("a2.0.1"))


def test_only_the_newest_run_of_a_task_with_a_process_is_current(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.put(make_allocation("a1", run=3))
    table.put(make_allocation("a2", TaskStep.BACKOFF, run=3))
    table.put(make_allocation("a3", TaskStep.STARTING, run=3))

    runs = ("a1.0.3", "a1.0.2", "a2.0.3", "a3.0.3", "unknown.0.1")
    assert ["a1.0.3", "a3.0.3"] == [run for run in runs if table.is_current_run(run)]


def test_a_volume_is_used_by_allocations_that_request_it_and_are_not_over(tmp_path: Path) -> None:
    table = open_table(tmp_path)
    table.put(make_allocation("a1", volume="disk"))
    table.put(make_allocation("a2", TaskStep.DEAD, volume="disk"))
    table.put(make_allocation("a3", volume="other"))
    table.put(make_allocation("a4"))

    assert ["a1"] == table.list_volume_users("disk")


@pytest.mark.parametrize(
    "name", ["", "stays", "a1.0", "a1..1", "a1.-1.1", "a1.t.1", "a1.0.x", "a1.².1", f"a1.0.{'9' * 5000}"]
)
def test_a_name_that_no_run_can_have_is_an_unknown_task(tmp_path: Path, name: str) -> None:
    """Every process and container of the machine can claim to be a run."""
    table = open_table(tmp_path)
    table.put(make_allocation("a1"))

    assert (table.find_run(name), table.is_current_run(name)) == (None, False)
