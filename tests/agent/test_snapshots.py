"""Scheduled snapshots: when the agent saves them, and how many it retains."""

from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.agent.test_processes import write_agent_config
from tests.waiting import wait_until
from wharf.agent.snapshots.commands import inspect_snapshot_file
from wharf.agent.snapshots.schedule import (
    build_snapshot_name,
    compute_wait_s,
    get_newest_time_ns,
    list_scheduled_snapshots,
    select_surplus,
)
from wharf.contract.model.times import SECOND

NOON_NS = 1_767_268_800 * SECOND


def test_a_snapshot_is_named_after_its_time_and_listed(tmp_path: Path) -> None:
    for seconds in (60, 0, 30):
        (tmp_path / build_snapshot_name(NOON_NS + seconds * SECOND)).touch()
    (tmp_path / "mine.snap").touch()
    (tmp_path / ".wharf-20260101T120000Z.snap.x.partial").touch()

    assert [file.name for file in list_scheduled_snapshots(tmp_path)] == [
        "wharf-20260101T120000Z.snap",
        "wharf-20260101T120030Z.snap",
        "wharf-20260101T120100Z.snap",
    ]
    assert get_newest_time_ns(tmp_path) == NOON_NS + 60 * SECOND


def test_a_missing_folder_has_no_snapshots(tmp_path: Path) -> None:
    assert get_newest_time_ns(tmp_path / "gone") is None


@pytest.mark.parametrize(
    ("newest_ns", "wait"),
    [
        (None, 100.0),
        (NOON_NS - 30 * SECOND, 70.0),
        (NOON_NS - 500 * SECOND, 0.0),
        (NOON_NS + 500 * SECOND, 100.0),  # The clock was set back.
    ],
)
def test_a_restart_neither_hurries_nor_delays_the_next_snapshot(newest_ns: int | None, wait: float) -> None:
    assert compute_wait_s(100.0, now_ns=NOON_NS, newest_ns=newest_ns) == wait


def test_the_oldest_snapshots_are_deleted_beyond_the_retained_number() -> None:
    files = [Path(str(number)) for number in range(5)]

    assert select_surplus(files, keep_count=2) == files[:3]
    assert select_surplus(files, keep_count=9) == []


def test_a_running_agent_saves_snapshots_and_retains_a_limited_number(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a", '[snapshots]\ninterval = "1s"\nkeep = 2')
    folder = tmp_path / "a" / "data" / "snapshots"
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        wait_until(lambda: agent.get("/v1/namespaces"), what="the default namespace exists")
        first = wait_until(lambda: list_scheduled_snapshots(folder)[:1], what="the first snapshot is saved")[0]
        wait_until(lambda: not first.exists(), what="the first snapshot is deleted")

        wait_until(lambda: len(list_scheduled_snapshots(folder)) == 2, what="two snapshots are retained")
        assert inspect_snapshot_file(list_scheduled_snapshots(folder)[-1]).trailer.rows["namespaces"] == 1


def test_a_failed_snapshot_is_logged_and_the_agent_continues(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    file = write_agent_config(tmp_path / "a", f'[snapshots]\ninterval = "1s"\nfolder = "{tmp_path}/taken"')
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()

        wait_until(lambda: "no snapshot was saved" in agent.err, what="the error is logged")
        assert isinstance(agent.get("/v1/nodes"), list)
