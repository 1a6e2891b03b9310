"""The node's journal: what was written is read again, whatever happened to the end of the file."""

import os
from pathlib import Path

import pytest

from wharf.model.allocation import ClientStatus
from wharf.node.agent.journal import HEAD_BYTES, Came, Forgotten, Journal, Kept
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.steps import TaskStep
from wharf.wire.shapes import DesiredAllocation, DesiredWork

BOOT, OTHER_BOOT = "boot-1", "boot-2"


def kept(id: str, index: int = 5) -> Kept:
    return Kept(id, DesiredAllocation(allocation=DesiredWork(id=id, alloc_modify_index=index)))


def came(id: str, step: TaskStep) -> Came:
    return Came(AllocationRecord(id, (TaskRecord("web", step),)))


def opened(folder: Path, boot: str = BOOT) -> Journal:
    journal = Journal(folder / "journal", boot)
    journal.load()
    return journal


def test_what_was_written_last_holds(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for entry in (kept("a1"), came("a1", TaskStep.RUNNING), kept("a1", 9), came("a1", TaskStep.DEAD), kept("a2")):
        journal.put(entry)
    journal.close()

    found = Journal(tmp_path / "journal", BOOT).load()
    assert sorted(found) == ["a1", "a2"]
    record = found["a1"].record
    assert record is not None
    assert (found["a1"].order.order.allocation.alloc_modify_index, record.status) == (9, ClientStatus.COMPLETE)
    assert found["a2"].record is None


def test_what_is_forgotten_is_gone(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    for entry in (kept("a1"), came("a1", TaskStep.DEAD), Forgotten("a1")):
        journal.put(entry)
    journal.close()

    assert Journal(tmp_path / "journal", BOOT).load() == {}


@pytest.mark.parametrize("cut_bytes", [1, 5, HEAD_BYTES, 20])
def test_an_entry_that_was_cut_off_counts_as_not_written(tmp_path: Path, cut_bytes: int) -> None:
    journal = opened(tmp_path)
    journal.put(kept("a1"))
    journal.put(kept("a2"))
    journal.close()
    path = tmp_path / "journal"
    os.truncate(path, path.stat().st_size - cut_bytes)

    again = Journal(path, BOOT)
    assert list(again.load()) == ["a1"]
    again.put(kept("a3"))
    again.close()
    assert list(Journal(path, BOOT).load()) == ["a1", "a3"]


def test_it_tells_whether_the_machine_was_booted_since(tmp_path: Path) -> None:
    opened(tmp_path).close()

    assert opened(tmp_path).was_other_boot is False
    assert opened(tmp_path, OTHER_BOOT).was_other_boot is True
    assert opened(tmp_path, OTHER_BOOT).was_other_boot is False


def test_it_is_written_anew_when_most_of_it_is_old(tmp_path: Path) -> None:
    journal = opened(tmp_path)
    journal.put(kept("a1"))
    long = AllocationRecord("a1", tuple(TaskRecord("x" * 1_000) for _ in range(100)))
    for _ in range(200):
        journal.put(Came(long))
    journal.close()

    assert (tmp_path / "journal").stat().st_size < 5_000_000
    assert list(Journal(tmp_path / "journal", BOOT).load()) == ["a1"]
