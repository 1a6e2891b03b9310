"""The node's journal: every written entry is read again, even if the end of the file is damaged."""

import asyncio
import os
import subprocess
import threading
import tracemalloc
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.wire.nodes.messages import AssignedAllocation, Assignment
from wharf.node.agent.allocations.journal import (
    HEADER_BYTES,
    DeletedAllocation,
    DiskJournalFile,
    NodeJournal,
    RestoredAllocation,
    SettledAllocation,
    StoredAssignment,
    StoredProgress,
    decode_entries,
    frame_entry,
)
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep

BOOT_ID, OTHER_BOOT_ID = "boot-1", "boot-2"


def make_assignment(id: str, index: int = 5) -> StoredAssignment:
    return StoredAssignment(id, Assignment(allocation=AssignedAllocation(id=id, alloc_modify_index=index)))


def make_progress(id: str, step: TaskStep) -> StoredProgress:
    return StoredProgress(AllocationRecord(id, (TaskRecord("web", step),)))


def open_journal(folder: Path, boot: str = BOOT_ID) -> NodeJournal:
    journal = NodeJournal(DiskJournalFile(folder / "journal"), boot)
    journal.load()
    return journal


def test_the_last_entry_about_an_allocation_counts(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for entry in (
        make_assignment("a1"),
        make_progress("a1", TaskStep.RUNNING),
        make_assignment("a1", 9),
        make_progress("a1", TaskStep.DEAD),
        make_assignment("a2"),
    ):
        journal.append_entry(entry)
    journal.close()

    allocations = NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT_ID).load()
    assert sorted(allocations) == ["a1", "a2"]
    first, second = allocations["a1"], allocations["a2"]
    assert isinstance(first, RestoredAllocation)
    assert first.record is not None
    assert (first.stored_assignment.assignment.allocation.alloc_modify_index, first.record.status) == (
        9,
        ClientStatus.COMPLETE,
    )
    assert second == RestoredAllocation(make_assignment("a2"))


def make_dispatch(id: str, command: object) -> StoredAssignment:
    config = {"command": command, "text": "x" * 5_000}
    group = TaskGroup(name="g", tasks=(Task(name="t", driver="mock", config=config),))
    job = Job(id=f"job/{id}", task_groups=(group,), meta={"k": "v" * 2_000})
    return StoredAssignment(id, Assignment(allocation=AssignedAllocation(id=id), job=job))


def list_groups(allocations: Mapping[str, RestoredAllocation | SettledAllocation]) -> list[object]:
    groups: list[object] = []
    for allocation in allocations.values():
        assert isinstance(allocation, RestoredAllocation)
        job = allocation.stored_assignment.assignment.job
        assert job is not None
        groups.append(job.task_groups)
    return groups


def test_restored_allocations_share_equal_parts_of_their_jobs(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for id, command in (("a1", 1), ("a2", 1), ("a3", True)):
        journal.append_entry(make_dispatch(id, command))
    journal.close()

    reopened = NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT_ID)
    allocations = reopened.load()
    first, second, third = list_groups(allocations)
    reopened.close()

    assert [make_dispatch(id, command) for id, command in (("a1", 1), ("a2", 1), ("a3", True))] == [
        allocation.stored_assignment
        for allocation in allocations.values()
        if isinstance(allocation, RestoredAllocation)
    ]
    assert (True, False) == (first is second, first is third)  # 1 and True are different values for a driver.


def test_a_journal_uses_no_memory_for_each_copy_of_a_job(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    tracemalloc.start()
    for number in range(50):
        stored = make_dispatch(f"a{number}", "x" * 100_000)
        assert stored.assignment.job is not None
        journal.shared_jobs.share(stored.assignment.job)
        journal.append_entry(stored)
    used_bytes, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    journal.close()

    assert used_bytes < 1_000_000


def test_a_settled_entry_replaces_the_assignment_and_is_restored(tmp_path: Path) -> None:
    ended = SettledAllocation(make_progress("a1", TaskStep.DEAD).record, 9)
    journal = open_journal(tmp_path)
    for entry in (make_assignment("a1"), make_progress("a1", TaskStep.RUNNING), make_assignment("a2"), ended):
        journal.append_entry(entry)

    assert journal.read_settled("a1") == ended
    journal.close()
    reopened = open_journal(tmp_path)
    assert reopened.read_settled("a1") == ended
    reopened.close()
    assert decode_entries((tmp_path / "journal").read_bytes())[0][1:] == [ended, make_assignment("a2")]


def test_a_deleted_allocation_is_not_restored(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for entry in (make_assignment("a1"), make_progress("a1", TaskStep.DEAD), DeletedAllocation("a1")):
        journal.append_entry(entry)
    journal.close()

    assert NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT_ID).load() == {}


LAST_BYTES = len(frame_entry(msgspec.msgpack.encode(make_assignment("a2"))))


@pytest.mark.parametrize(
    "cut_bytes", [1, 5, HEADER_BYTES, 20, LAST_BYTES - HEADER_BYTES, LAST_BYTES - 5, LAST_BYTES - 1]
)
def test_a_truncated_last_entry_is_ignored(tmp_path: Path, cut_bytes: int) -> None:
    journal = open_journal(tmp_path)
    journal.append_entry(make_assignment("a1"))
    journal.append_entry(make_assignment("a2"))
    journal.close()
    path = tmp_path / "journal"
    os.truncate(path, path.stat().st_size - cut_bytes)

    reopened = NodeJournal(DiskJournalFile(path), OTHER_BOOT_ID)
    assert (list(reopened.load()), reopened.damage_text) == (["a1"], "")
    assert not path.with_suffix(".damaged").exists()
    reopened.append_entry(make_assignment("a3"))
    reopened.close()
    assert list(NodeJournal(DiskJournalFile(path), BOOT_ID).load()) == ["a1", "a3"]


def test_the_journal_detects_a_reboot(tmp_path: Path) -> None:
    open_journal(tmp_path).close()

    assert open_journal(tmp_path).has_rebooted is False
    assert open_journal(tmp_path, OTHER_BOOT_ID).has_rebooted is True
    assert open_journal(tmp_path, OTHER_BOOT_ID).has_rebooted is False


def test_the_journal_is_compacted_when_most_of_it_is_outdated(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    journal.append_entry(make_assignment("a1"))
    long_record = AllocationRecord("a1", tuple(TaskRecord("x" * 1_000) for _ in range(100)))
    for _ in range(200):
        journal.append_entry(StoredProgress(long_record))
    journal.close()

    assert (tmp_path / "journal").stat().st_size < 5_000_000
    assert list(NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT_ID).load()) == ["a1"]


def test_all_other_entries_are_read_whichever_byte_is_damaged() -> None:
    data = b"".join(frame_entry(msgspec.msgpack.encode(make_assignment(f"a{number}"))) for number in range(6))
    assert decode_entries(data) == ([make_assignment(f"a{number}") for number in range(6)], 0)
    for at in range(len(data)):
        entries, damaged_bytes = decode_entries(data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :])
        assert (len(entries), damaged_bytes) == (5, len(data) // 6)


def test_damage_is_reported_and_the_damaged_file_is_saved(tmp_path: Path) -> None:
    journal = open_journal(tmp_path)
    for number in range(3):
        journal.append_entry(make_assignment(f"a{number}"))
    journal.close()
    path = tmp_path / "journal"
    data = path.read_bytes()
    damaged = data.replace(b"a1", b"b1")
    path.write_bytes(damaged)

    reopened_journal = NodeJournal(DiskJournalFile(path), BOOT_ID)
    assert list(reopened_journal.load()) == ["a0", "a2"]
    reopened_journal.close()
    assert "damaged and were skipped" in reopened_journal.damage_text
    assert path.with_suffix(".damaged").read_bytes() == damaged
    reopened = NodeJournal(DiskJournalFile(path), BOOT_ID)
    assert (list(reopened.load()), reopened.damage_text) == (["a0", "a2"], "")


def test_a_file_that_is_not_a_journal_is_reported_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(bytes(range(256)) * 100)
    journal = NodeJournal(DiskJournalFile(path), BOOT_ID)
    assert journal.load() == {}
    assert journal.damage_text == "25600 of 25600 bytes of the node's journal are damaged and were skipped"
    journal.append_entry(make_assignment("a1"))
    journal.close()
    assert list(NodeJournal(DiskJournalFile(path), BOOT_ID).load()) == ["a1"]


class SmallDiskJournal:
    """A journal on a file system that can be filled and freed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reasons: list[str] = []
        """The reasons that the journal reported; empty when it is writable again."""
        self.journal = NodeJournal(
            DiskJournalFile(folder / "journal"), BOOT_ID, on_write_state_changed=self.reasons.append
        )

    def fill(self) -> None:
        with suppress(OSError), open(self.folder / "filler", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 1024)

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def write_until_full(self) -> list[str]:
        ids: list[str] = []
        while self.journal.is_writable:
            ids.append(f"a{len(ids)}")
            self.journal.append_entry(make_assignment(ids[-1]))
        return ids


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallDiskJournal]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "wharf-test", str(folder)], check=True)
    try:
        small_journal = SmallDiskJournal(folder)
        yield small_journal
        small_journal.journal.close()
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.needs("namespaces")
def test_on_a_full_disk_nothing_is_lost_and_syncs_wait(small: SmallDiskJournal) -> None:
    asyncio.run(_fill_and_free(small))


async def _fill_and_free(small: SmallDiskJournal) -> None:
    small.journal.load()
    small.fill()
    ids = small.write_until_full()
    assert small.reasons == ["No space left on device"]
    waiting = asyncio.ensure_future(small.journal.wait_until_synced())
    small.journal.append_entry(make_assignment("later"))
    assert small.journal.retry_write() is False

    small.free()
    assert small.journal.retry_write() is True
    await asyncio.wait_for(waiting, 10)
    assert small.reasons == ["No space left on device", ""]
    small.journal.append_entry(make_assignment("last"))
    small.journal.close()
    assert sorted(NodeJournal(DiskJournalFile(small.folder / "journal"), BOOT_ID).load()) == sorted(
        [*ids, "later", "last"]
    )


@pytest.mark.needs("namespaces")
def test_a_read_only_disk_is_reported_and_stored_entries_are_restored(small: SmallDiskJournal) -> None:
    small.journal.load()
    small.journal.append_entry(make_assignment("a1"))
    small.journal.close()
    mount = ["mount", "-o", "remount"]
    subprocess.run([*mount, "-o", "ro", str(small.folder)], check=True)

    reopened = NodeJournal(
        DiskJournalFile(small.folder / "journal"), BOOT_ID, on_write_state_changed=small.reasons.append
    )
    assert list(reopened.load()) == ["a1"]
    reopened.append_entry(make_assignment("a2"))
    assert (small.reasons, reopened.is_writable) == (["Read-only file system"], False)

    subprocess.run([*mount, "-o", "rw", str(small.folder)], check=True)
    assert reopened.retry_write() is True
    reopened.close()
    assert list(NodeJournal(DiskJournalFile(small.folder / "journal"), BOOT_ID).load()) == ["a1", "a2"]


def read_damage_text(folder: Path, boot: str = BOOT_ID) -> str:
    journal = open_journal(folder, boot)
    journal.close()
    return journal.damage_text


def write_several_entries(folder: Path) -> Path:
    journal = open_journal(folder)
    for step in (TaskStep.PREPARING, TaskStep.STARTING, TaskStep.RUNNING, TaskStep.DEAD):
        journal.append_entry(make_assignment("a1"))
        journal.append_entry(make_progress("a1", step))
    journal.close()
    return folder / "journal"


def test_a_journal_that_lost_complete_entries_at_its_end_is_noticed(tmp_path: Path) -> None:
    file = write_several_entries(tmp_path)
    data = file.read_bytes()
    entry_start = data.rindex(b"WJ1\n")
    file.write_bytes(data[:entry_start])

    assert f"{len(data) - entry_start} bytes at the end of the node's journal are missing" == read_damage_text(tmp_path)
    assert "" == read_damage_text(tmp_path)


def test_a_missing_journal_is_noticed(tmp_path: Path) -> None:
    write_several_entries(tmp_path).unlink()

    assert "the node's journal is missing, or its beginning is" == read_damage_text(tmp_path)


def test_an_older_copy_of_the_journal_is_noticed(tmp_path: Path) -> None:
    older = write_several_entries(tmp_path).read_bytes()
    open_journal(tmp_path).close()
    (tmp_path / "journal").write_bytes(older)

    assert "the node's journal is an older copy" == read_damage_text(tmp_path)


def test_the_first_start_and_each_later_start_of_an_undamaged_journal_report_nothing(tmp_path: Path) -> None:
    assert ["", "", ""] == [read_damage_text(tmp_path), read_damage_text(tmp_path), read_damage_text(tmp_path)]


def test_entries_that_a_power_cut_lost_before_they_were_synced_are_no_damage(tmp_path: Path) -> None:
    file = write_several_entries(tmp_path)
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"WJ1\n")])

    assert "" == read_damage_text(tmp_path, OTHER_BOOT_ID)


def test_synced_entries_that_are_missing_after_a_restart_of_the_machine_are_noticed(tmp_path: Path) -> None:
    async def write() -> None:
        journal = open_journal(tmp_path)
        journal.append_entry(make_assignment("a1"))
        await journal.wait_until_synced()
        journal.close()

    asyncio.run(write())
    file = tmp_path / "journal"
    data = file.read_bytes()
    file.write_bytes(data[: data.rindex(b"WJ1\n")])

    assert "are missing" in read_damage_text(tmp_path, OTHER_BOOT_ID)


@pytest.mark.parametrize("content", [b"", b"WJ1", b"\0" * 100])
def test_a_damaged_description_of_the_end_is_written_again(tmp_path: Path, content: bytes) -> None:
    write_several_entries(tmp_path)
    (tmp_path / "journal.end").write_bytes(content)

    assert "" == read_damage_text(tmp_path)
    assert (tmp_path / "journal.end").read_bytes() != content


def test_an_entry_that_a_killed_agent_wrote_partly_is_no_damage(tmp_path: Path) -> None:
    file = write_several_entries(tmp_path)
    with file.open("ab") as journal:
        journal.write(b"WJ1\n\0\0\0\x80")

    assert "" == read_damage_text(tmp_path)


def test_a_closed_journal_leaves_no_thread(tmp_path: Path) -> None:
    def list_threads() -> set[threading.Thread]:
        return {thread for thread in threading.enumerate() if thread.name.startswith("journal")}

    before = list_threads()
    journal = NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT_ID)
    journal.load()

    async def sync() -> None:
        journal.append_entry(DeletedAllocation("a1"))
        await journal.wait_until_synced()

    asyncio.run(sync())
    [thread] = list_threads() - before
    journal.close()
    thread.join(10)

    assert not thread.is_alive()
