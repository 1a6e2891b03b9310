"""The node's journal: everything that was written is read again, whatever happened to the end of the file."""

import asyncio
import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest

from wharf.contract.model.allocations.allocation import ClientStatus
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

BOOT, OTHER_BOOT = "boot-1", "boot-2"


def kept(id: str, index: int = 5) -> StoredAssignment:
    return StoredAssignment(id, Assignment(allocation=AssignedAllocation(id=id, alloc_modify_index=index)))


def came(id: str, step: TaskStep) -> StoredProgress:
    return StoredProgress(AllocationRecord(id, (TaskRecord("web", step),)))


def opened(folder: Path, boot: str = BOOT) -> NodeJournal:
    journal = NodeJournal(DiskJournalFile(folder / "journal"), boot)
    journal.load()
    return journal


def test_the_last_entry_about_an_allocation_counts(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for entry in (kept("a1"), came("a1", TaskStep.RUNNING), kept("a1", 9), came("a1", TaskStep.DEAD), kept("a2")):
        journal.append_entry(entry)
    journal.close()

    found = NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT).load()
    assert sorted(found) == ["a1", "a2"]
    first, second = found["a1"], found["a2"]
    assert isinstance(first, RestoredAllocation)
    assert first.record is not None
    assert (first.stored_assignment.assignment.allocation.alloc_modify_index, first.record.status) == (
        9,
        ClientStatus.COMPLETE,
    )
    assert second == RestoredAllocation(kept("a2"))


def test_a_settled_entry_replaces_the_assignment_and_is_restored(tmp_path: Path) -> None:
    ended = SettledAllocation(came("a1", TaskStep.DEAD).record, 9)
    journal = opened(tmp_path)
    for entry in (kept("a1"), came("a1", TaskStep.RUNNING), kept("a2"), ended):
        journal.append_entry(entry)

    assert journal.read_settled("a1") == ended
    journal.close()
    again = opened(tmp_path)
    assert again.read_settled("a1") == ended
    again.close()
    assert decode_entries((tmp_path / "journal").read_bytes())[0][1:] == [ended, kept("a2")]


def test_a_deleted_allocation_is_not_restored(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for entry in (kept("a1"), came("a1", TaskStep.DEAD), DeletedAllocation("a1")):
        journal.append_entry(entry)
    journal.close()

    assert NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT).load() == {}


LAST_BYTES = len(frame_entry(msgspec.msgpack.encode(kept("a2"))))


@pytest.mark.parametrize(
    "cut_bytes", [1, 5, HEADER_BYTES, 20, LAST_BYTES - HEADER_BYTES, LAST_BYTES - 5, LAST_BYTES - 1]
)
def test_a_truncated_last_entry_is_ignored(tmp_path: Path, cut_bytes: int) -> None:
    journal = opened(tmp_path)
    journal.append_entry(kept("a1"))
    journal.append_entry(kept("a2"))
    journal.close()
    path = tmp_path / "journal"
    os.truncate(path, path.stat().st_size - cut_bytes)

    again = NodeJournal(DiskJournalFile(path), BOOT)
    assert (list(again.load()), again.damage_text) == (["a1"], "")
    assert not path.with_suffix(".damaged").exists()
    again.append_entry(kept("a3"))
    again.close()
    assert list(NodeJournal(DiskJournalFile(path), BOOT).load()) == ["a1", "a3"]


def test_the_journal_detects_a_reboot(tmp_path: Path) -> None:
    opened(tmp_path).close()

    assert opened(tmp_path).has_rebooted is False
    assert opened(tmp_path, OTHER_BOOT).has_rebooted is True
    assert opened(tmp_path, OTHER_BOOT).has_rebooted is False


def test_the_journal_is_compacted_when_most_of_it_is_outdated(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.append_entry(kept("a1"))
    long = AllocationRecord("a1", tuple(TaskRecord("x" * 1_000) for _ in range(100)))
    for _ in range(200):
        journal.append_entry(StoredProgress(long))
    journal.close()

    assert (tmp_path / "journal").stat().st_size < 5_000_000
    assert list(NodeJournal(DiskJournalFile(tmp_path / "journal"), BOOT).load()) == ["a1"]


def test_all_other_entries_are_read_whichever_byte_is_damaged() -> None:
    whole = b"".join(frame_entry(msgspec.msgpack.encode(kept(f"a{number}"))) for number in range(6))
    assert decode_entries(whole) == ([kept(f"a{number}") for number in range(6)], 0)
    for at in range(len(whole)):
        entries, lost = decode_entries(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        assert (len(entries), lost) == (5, len(whole) // 6)


def test_damage_is_reported_and_the_damaged_file_is_saved(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for number in range(3):
        journal.append_entry(kept(f"a{number}"))
    journal.close()
    path = tmp_path / "journal"
    whole = path.read_bytes()
    damaged = whole.replace(b"a1", b"b1")
    path.write_bytes(damaged)

    again = NodeJournal(DiskJournalFile(path), BOOT)
    assert list(again.load()) == ["a0", "a2"]
    again.close()
    assert "damaged and were skipped" in again.damage_text
    assert path.with_suffix(".damaged").read_bytes() == damaged
    healed = NodeJournal(DiskJournalFile(path), BOOT)
    assert (list(healed.load()), healed.damage_text) == (["a0", "a2"], "")


def test_a_file_that_is_not_a_journal_is_reported_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    path.write_bytes(bytes(range(256)) * 100)
    journal = NodeJournal(DiskJournalFile(path), BOOT)
    assert journal.load() == {}
    assert journal.damage_text == "25600 of 25600 bytes of the node's journal are damaged and were skipped"
    journal.append_entry(kept("a1"))
    journal.close()
    assert list(NodeJournal(DiskJournalFile(path), BOOT).load()) == ["a1"]


class OnASmallDisk:
    """A journal on a file system that can be filled and freed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.told: list[str] = []
        self.journal = NodeJournal(DiskJournalFile(folder / "journal"), BOOT, on_write_state_changed=self.told.append)

    def fill(self) -> None:
        with suppress(OSError), open(self.folder / "filler", "wb", buffering=0) as file:
            while True:
                file.write(b"x" * 1024)

    def free(self) -> None:
        (self.folder / "filler").unlink()

    def put_until_full(self) -> list[str]:
        ids: list[str] = []
        while self.journal.is_writable:
            ids.append(f"a{len(ids)}")
            self.journal.append_entry(kept(ids[-1]))
        return ids


@pytest.fixture
def small(tmp_path: Path) -> Iterator[OnASmallDisk]:
    folder = tmp_path / "small"
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "wharf-test", str(folder)], check=True)
    try:
        it = OnASmallDisk(folder)
        yield it
        it.journal.close()
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.needs("namespaces")
def test_on_a_full_disk_nothing_is_lost_and_syncs_wait(small: OnASmallDisk) -> None:
    asyncio.run(_fill_and_mend(small))


async def _fill_and_mend(small: OnASmallDisk) -> None:
    small.journal.load()
    small.fill()
    ids = small.put_until_full()
    assert small.told == ["No space left on device"]
    waiting = asyncio.ensure_future(small.journal.wait_until_synced())
    small.journal.append_entry(kept("later"))
    assert small.journal.retry_write() is False

    small.free()
    assert small.journal.retry_write() is True
    await asyncio.wait_for(waiting, 10)
    assert small.told == ["No space left on device", ""]
    small.journal.append_entry(kept("last"))
    small.journal.close()
    assert sorted(NodeJournal(DiskJournalFile(small.folder / "journal"), BOOT).load()) == sorted(
        [*ids, "later", "last"]
    )


@pytest.mark.needs("namespaces")
def test_a_read_only_disk_is_reported_and_stored_entries_are_restored(small: OnASmallDisk) -> None:
    small.journal.load()
    small.journal.append_entry(kept("a1"))
    small.journal.close()
    mount = ["mount", "-o", "remount"]
    subprocess.run([*mount, "-o", "ro", str(small.folder)], check=True)

    again = NodeJournal(DiskJournalFile(small.folder / "journal"), BOOT, on_write_state_changed=small.told.append)
    assert list(again.load()) == ["a1"]
    again.append_entry(kept("a2"))
    assert (small.told, again.is_writable) == (["Read-only file system"], False)

    subprocess.run([*mount, "-o", "rw", str(small.folder)], check=True)
    assert again.retry_write() is True
    again.close()
    assert list(NodeJournal(DiskJournalFile(small.folder / "journal"), BOOT).load()) == ["a1", "a2"]
