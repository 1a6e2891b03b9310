"""A node reads the journal and the supervisor messages of an earlier version.

Both files were written by the encoders of an earlier version, in which many classes and fields had other names.
"""

from pathlib import Path
from typing import Final

import msgspec

from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.task_states import TaskEvent, TaskEventType
from wharf.node.agent.allocations.journal import (
    BootMarker,
    DeletedAllocation,
    DiskJournalFile,
    NodeJournal,
    RestoredAllocation,
    SettledAllocation,
    StoredAssignment,
    StoredProgress,
    decode_entries,
)
from wharf.node.core.record import AllocationRecord, TaskRecord
from wharf.node.core.restart_policy import RestartWindow
from wharf.node.core.steps import TaskStep
from wharf.node.supervisor.messages import (
    MAX_FRAME_BYTES,
    AllRunsSent,
    FromSupervisor,
    Hello,
    RunBegun,
    RunEnded,
    RunRefused,
    RunStarting,
)
from wharf.world.framing import FrameDecoder

JOURNAL: Final = Path(__file__).with_name("old_journal.bin")
"""The entries Booted, Kept, Came, Settled and Forgotten; no field of `a1` has its default value."""
MESSAGES: Final = Path(__file__).with_name("old_supervisor_messages.bin")
"""The messages Hello, RunStarting, RunBegun, RunRefused, RunEnded and AllTold."""

FULL_RECORD = AllocationRecord(
    id="a1",
    tasks=(
        TaskRecord(
            name="server",
            step=TaskStep.SHUTDOWN_DELAY,
            run=3,
            due_s=12.5,
            has_failed=True,
            is_to_end=True,
            is_restarting=True,
            is_restart_after_failure=True,
            is_of_former_boot=True,
            is_start_doubtful=True,
            restarts=2,
            window=RestartWindow(4.0, 1),
            kill_tries=1,
            started_s=5.0,
            started_ns=6,
            finished_ns=7,
            last_restart_ns=8,
            events=(TaskEvent(type=TaskEventType.STARTED, time=1_700_000_000_000_000_000),),
        ),
        TaskRecord(name="helper", step=TaskStep.BACKOFF, run=1, due_s=9.0),
    ),
    is_waiting_for_predecessor=True,
    is_to_stop=True,
    skips_delays=True,
    stop_due_s=20.5,
    is_overdue=True,
    began_s=1.5,
    lost_contact_s=2.5,
    health_watch_since_s=3.5,
    is_healthy=False,
    checks_pass_since_s=4.5,
    finished_s=30.5,
)
ENDED_RECORD = AllocationRecord("a2", (TaskRecord("server", TaskStep.DEAD, 1),), finished_s=40.0)


def test_every_entry_of_an_old_journal_is_read() -> None:
    entries, damaged_bytes = decode_entries(JOURNAL.read_bytes())

    assert damaged_bytes == 0
    assert [
        BootMarker,
        *(StoredAssignment, StoredProgress),
        *(StoredAssignment, StoredProgress, SettledAllocation),
        *(StoredAssignment, StoredProgress, DeletedAllocation),
        StoredAssignment,
    ] == [type(entry) for entry in entries]


def test_a_node_continues_with_the_allocations_of_an_old_journal(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(JOURNAL.read_bytes())
    journal = NodeJournal(DiskJournalFile(tmp_path / "journal"), "boot-1")

    allocations = journal.load()
    journal.close()

    assert (["a1", "a2", "a4"], "", False) == (sorted(allocations), journal.damage_text, journal.has_rebooted)
    first, unknown_to_servers = allocations["a1"], allocations["a4"]
    assert isinstance(first, RestoredAllocation)
    assert FULL_RECORD == first.record
    assignment = first.stored_assignment.assignment
    assert assignment.job is not None
    assert ("shop", "d1", 5) == (
        assignment.job.id,
        assignment.allocation.deployment_id,
        assignment.allocation.alloc_modify_index,
    )
    assert SettledAllocation(ENDED_RECORD, 6, ClientStatus.RUNNING) == allocations["a2"]
    assert isinstance(unknown_to_servers, RestoredAllocation)
    assert (True, None) == (unknown_to_servers.stored_assignment.is_gone, unknown_to_servers.record)


def test_a_compacted_journal_has_the_tags_and_entries_of_the_old_one(tmp_path: Path) -> None:
    (tmp_path / "journal").write_bytes(JOURNAL.read_bytes())
    journal = NodeJournal(DiskJournalFile(tmp_path / "journal"), "boot-1")
    journal.load()
    journal.close()

    for tag in (b"Booted", b"Kept", b"Came", b"Settled"):
        assert tag in (tmp_path / "journal").read_bytes()
    old_entries, _ = decode_entries(JOURNAL.read_bytes())
    new_entries, _ = decode_entries((tmp_path / "journal").read_bytes())
    assert all(entry in old_entries for entry in new_entries if not isinstance(entry, BootMarker))


def test_messages_of_an_old_supervisor_are_read() -> None:
    messages = [
        msgspec.msgpack.decode(frame, type=FromSupervisor)
        for frame in FrameDecoder(MAX_FRAME_BYTES).feed(MESSAGES.read_bytes())
    ]

    assert [
        Hello(4711, "cgroup", ("cpu", "memory")),
        RunStarting("a1.0.1"),
        RunBegun("a1.0.2", 815),
        RunRefused("a1.0.3", "no such program"),
        RunEnded("a1.0.4", exit_code=137, signal=9, is_known=True, is_out_of_memory=True),
        AllRunsSent(),
    ] == messages
