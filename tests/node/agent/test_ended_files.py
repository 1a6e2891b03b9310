"""A node removes folders of ended allocations in the order of their ends, which it knows after a restart too."""

import asyncio
from pathlib import Path
from typing import Final

from tests.builders import a_group, a_job, a_task
from wharf.contract.model.jobs.job import JobType
from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.agent.allocations.allocation import EMPTY_SPEC, ManagedAllocation
from wharf.node.agent.allocations.ended_files import EndedAllocationFiles
from wharf.node.agent.allocations.journal import DiskJournalFile, NodeJournal, SettledAllocation, StoredAssignment
from wharf.node.agent.allocations.table import AllocationTable
from wharf.node.core.garbage_collection import CollectionLimits
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.node.tasks.folders import AllocationFolders

MINUTE_NS: Final = 60_000_000_000
NOW_NS: Final = 1_800_000_000_000_000_000


def build_limits(max_allocations: int) -> CollectionLimits:
    return CollectionLimits(
        max_allocations=max_allocations, max_disk_percent=101.0, max_inodes_percent=101.0, max_parallel_removals=1
    )


def build_ended(
    id: str, ended_ns: int, job_type: JobType = JobType.SERVICE, kept_paths: tuple[str, ...] = ()
) -> ManagedAllocation:
    assigned = AssignedAllocation(id=id, task_group="web", alloc_modify_index=5)
    job = a_job("shop", a_group("web", a_task("server")), type=job_type)
    task = TaskRecord("server", TaskStep.DEAD, 1, finished_ns=ended_ns)
    record = AllocationRecord(id, (task,), finished_s=0.0, kept_paths=kept_paths)
    return ManagedAllocation(StoredAssignment(id, Assignment(allocation=assigned, job=job)), EMPTY_SPEC, record)


def open_journal(folder: Path) -> tuple[NodeJournal, AllocationTable]:
    """Return the journal of the folder, and the table of the settled allocations in it."""
    journal = NodeJournal(DiskJournalFile(folder / "journal"), "boot-1")
    stored_allocations = journal.load()
    table = AllocationTable(journal)
    for id, stored in stored_allocations.items():
        assert isinstance(stored, SettledAllocation)
        table.restore_settled(stored, id)
    return journal, table


def settle_and_restart(folder: Path, allocations: list[ManagedAllocation]) -> AllocationTable:
    """Store the ends of the allocations, of which servers know, and return the table of a restarted agent."""
    journal, table = open_journal(folder)
    for allocation in allocations:
        table.put(allocation)
        table.settle(allocation)
    journal.close()
    return open_journal(folder)[1]


def collect_garbage(table: AllocationTable, folders: AllocationFolders, limits: CollectionLimits) -> list[str]:
    return asyncio.run(EndedAllocationFiles(table, folders).collect_garbage(limits, NOW_NS))


def create_folders(folder: Path, ids: list[str]) -> AllocationFolders:
    folders = AllocationFolders(folder / "alloc")
    for id in ids:
        folders.create_task_folders(id, "server")
    return folders


def test_after_a_restart_the_allocations_that_ended_first_lose_their_folders_first(tmp_path: Path) -> None:
    ends = {"a": NOW_NS - MINUTE_NS, "b": NOW_NS - 3 * MINUTE_NS, "c": NOW_NS - 2 * MINUTE_NS}
    table = settle_and_restart(tmp_path, [build_ended(id, end) for id, end in ends.items()])
    folders = create_folders(tmp_path, list(ends))

    removed = collect_garbage(table, folders, build_limits(1))

    assert (["b", "c"], ["a"]) == (removed, folders.list_allocations())


def test_after_a_restart_recent_results_of_batch_jobs_are_removed_last(tmp_path: Path) -> None:
    table = settle_and_restart(
        tmp_path, [build_ended("results", NOW_NS - MINUTE_NS, JobType.BATCH), build_ended("service", NOW_NS)]
    )
    folders = create_folders(tmp_path, ["results", "service"])

    removed = collect_garbage(table, folders, build_limits(1))

    assert (["service"], ["results"]) == (removed, folders.list_allocations())


def test_the_journal_is_not_read_while_no_folder_must_be_removed(tmp_path: Path) -> None:
    _, table = open_journal(tmp_path)
    table.restore_settled(SettledAllocation(AllocationRecord("not-in-the-journal"), 5), "not-in-the-journal")
    folders = create_folders(tmp_path, ["not-in-the-journal"])

    assert [] == collect_garbage(table, folders, build_limits(1))


def test_only_as_many_folders_are_removed_as_the_limit_requires(tmp_path: Path) -> None:
    ids = [f"a{number}" for number in range(10)]
    table = settle_and_restart(tmp_path, [build_ended(id, NOW_NS) for id in ids])
    folders = create_folders(tmp_path, [*ids, "running"])

    removed = collect_garbage(table, folders, build_limits(4))

    assert ids[:7] == removed


def list_files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def write_files(folder: Path, *paths: str) -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(path)


def test_kept_files_remain_when_the_other_files_of_their_allocation_are_removed(tmp_path: Path) -> None:
    kept = build_ended(
        "kept", NOW_NS - 2 * MINUTE_NS, JobType.BATCH, ("data/model", "report.txt", "../escape", "missing")
    )
    table = settle_and_restart(tmp_path, [kept, build_ended("other", NOW_NS - MINUTE_NS, JobType.BATCH)])
    folders = create_folders(tmp_path, ["kept", "other"])
    folder = folders.get_allocation_folder("kept")
    write_files(folder, "alloc/data/model/a/w", "alloc/data/rest", "alloc/report.txt", "server/local/x", "escape")

    removed = collect_garbage(table, folders, build_limits(1))

    assert removed == ["other"]
    assert list_files(folder) == [".reduced", "alloc/data/model/a/w", "alloc/report.txt"]
    assert collect_garbage(table, folders, build_limits(0)) == ["kept"]
    assert folders.list_allocations() == []


def test_links_in_the_place_of_kept_folders_are_not_followed(tmp_path: Path) -> None:
    kept = build_ended("kept", NOW_NS - 2 * MINUTE_NS, JobType.BATCH, ("data/model/w",))
    table = settle_and_restart(tmp_path, [kept, build_ended("other", NOW_NS - MINUTE_NS, JobType.BATCH)])
    folders = create_folders(tmp_path, ["kept", "other"])
    write_files(tmp_path / "outside", "model/w", "model/precious")
    shared = folders.get_allocation_folder("kept") / "alloc"
    (shared / "data").rmdir()
    (shared / "data").symlink_to(tmp_path / "outside")

    collect_garbage(table, folders, build_limits(1))

    assert list_files(tmp_path / "outside") == ["model/precious", "model/w"]
