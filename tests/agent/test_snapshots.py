"""Scheduled snapshots: when the agent saves them, and how many it retains."""

import os
from pathlib import Path

import pytest

from tests.agent.processes import running
from tests.agent.test_processes import write_agent_config
from tests.waiting import wait_until
from wharf.agent.snapshots.commands import inspect_snapshot_file
from wharf.agent.snapshots.schedule import (
    build_server_tag,
    build_snapshot_name,
    compute_wait_s,
    get_newest_time_ns,
    list_scheduled_snapshots,
    select_surplus,
)
from wharf.cluster.engines.snapshot_file import SNAPSHOT_MAGIC
from wharf.contract.model.times import SECOND

NOON_NS = 1_767_268_800 * SECOND
OWN = "1a2b3c4d"


def add_snapshot(folder: Path, seconds: int, *, server_tag: str = OWN) -> Path:
    """Add a file that looks like a snapshot saved so many seconds after noon."""
    file = folder / build_snapshot_name(NOON_NS + seconds * SECOND, server_tag=server_tag)
    file.write_bytes(SNAPSHOT_MAGIC)
    return file


def list_names(folder: Path) -> list[str]:
    return [each.path.name for each in list_scheduled_snapshots(folder, server_tag=OWN)]


def list_surplus(folder: Path, *, keep: int, saved: Path | None = None) -> list[Path]:
    """Return which snapshots are surplus at noon."""
    snapshots = list_scheduled_snapshots(folder, server_tag=OWN)
    return select_surplus(snapshots, keep_count=keep, now_ns=NOON_NS, saved=saved)


def test_a_snapshot_is_named_after_its_time_and_server_and_listed(tmp_path: Path) -> None:
    for seconds in (60, 0, 30):
        add_snapshot(tmp_path, seconds)
    (tmp_path / "mine.snap").write_bytes(SNAPSHOT_MAGIC)
    (tmp_path / ".wharf-20260101T120000Z-1a2b3c4d.snap.x.partial").write_bytes(SNAPSHOT_MAGIC)

    assert list_names(tmp_path) == [
        "wharf-20260101T120000Z-1a2b3c4d.snap",
        "wharf-20260101T120030Z-1a2b3c4d.snap",
        "wharf-20260101T120100Z-1a2b3c4d.snap",
    ]


def test_snapshots_of_older_versions_without_the_server_in_their_names_are_listed(tmp_path: Path) -> None:
    add_snapshot(tmp_path, 0, server_tag="")

    assert list_names(tmp_path) == ["wharf-20260101T120000Z.snap"]


def test_snapshots_of_another_server_in_the_same_folder_are_not_counted(tmp_path: Path) -> None:
    others = [add_snapshot(tmp_path, -seconds, server_tag="99999999") for seconds in range(9)]
    oldest = add_snapshot(tmp_path, -20)
    add_snapshot(tmp_path, -10)

    assert list_surplus(tmp_path, keep=1) == [oldest]
    assert all(file.exists() for file in others)


def test_files_that_are_no_snapshots_displace_none(tmp_path: Path) -> None:
    real = add_snapshot(tmp_path, -100)
    (tmp_path / build_snapshot_name(NOON_NS - 9 * SECOND, server_tag=OWN)).touch()
    (tmp_path / build_snapshot_name(NOON_NS - 8 * SECOND, server_tag=OWN)).mkdir()
    (tmp_path / build_snapshot_name(NOON_NS - 7 * SECOND, server_tag=OWN)).symlink_to(real)
    (tmp_path / "wharf-20269999T999999Z.snap").write_bytes(SNAPSHOT_MAGIC)
    os.mkfifo(tmp_path / build_snapshot_name(NOON_NS - 6 * SECOND, server_tag=OWN))

    assert list_surplus(tmp_path, keep=1) == []
    assert list_names(tmp_path) == [real.name]


def test_a_snapshot_with_a_time_ahead_of_the_clock_is_deleted_before_all_others(tmp_path: Path) -> None:
    future = [add_snapshot(tmp_path, seconds) for seconds in (1_000, 2_000)]
    oldest, newest = add_snapshot(tmp_path, -200), add_snapshot(tmp_path, -100)

    assert list_surplus(tmp_path, keep=2) == future
    assert list_surplus(tmp_path, keep=1, saved=newest) == [*future, oldest]


def test_the_snapshot_that_was_just_saved_is_retained_though_the_clock_was_set_back(tmp_path: Path) -> None:
    before = add_snapshot(tmp_path, -50)
    saved = add_snapshot(tmp_path, 1)

    assert list_surplus(tmp_path, keep=1, saved=saved) == [before]


def test_the_oldest_snapshots_are_deleted_beyond_the_retained_number(tmp_path: Path) -> None:
    files = [add_snapshot(tmp_path, number - 10) for number in range(5)]

    assert list_surplus(tmp_path, keep=2) == files[:3]
    assert list_surplus(tmp_path, keep=9) == []


def test_a_missing_folder_has_no_snapshots(tmp_path: Path) -> None:
    assert list_names(tmp_path / "gone") == []


@pytest.mark.parametrize(
    ("times", "wait"),
    [
        ([], 60.0),  # A server that restarts often must not wait a whole interval each time.
        ([-30], 70.0),
        ([-500], 0.0),
        ([500], 60.0),
        ([-30, 500], 70.0),
    ],
)
def test_a_restart_neither_hurries_nor_delays_the_next_snapshot(tmp_path: Path, times: list[int], wait: float) -> None:
    for seconds in times:
        add_snapshot(tmp_path, seconds)
    newest_ns = get_newest_time_ns(list_scheduled_snapshots(tmp_path, server_tag=OWN), now_ns=NOON_NS)

    assert compute_wait_s(100.0, now_ns=NOON_NS, newest_ns=newest_ns) == wait


def test_a_running_agent_saves_snapshots_and_retains_a_limited_number(tmp_path: Path) -> None:
    file = write_agent_config(tmp_path / "a", '[snapshots]\ninterval = "1s"\nkeep = 2')
    folder = tmp_path / "a" / "data" / "snapshots"
    folder.mkdir(parents=True, mode=0o700)
    (tmp_path / "a" / "data").chmod(0o700)
    for name in ("wharf-29991231T235959Z.snap", "wharf-29981231T235959Z.snap"):
        (folder / name).write_bytes(SNAPSHOT_MAGIC)
    foreign = folder / "wharf-20269999T999999Z.snap"
    foreign.touch()
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()
        tag = build_server_tag(tmp_path / "a" / "data")
        (folder / f".wharf-20260101T120000Z-{tag}.snap.killed.partial").touch()

        def list_own() -> list[Path]:
            return sorted(folder.glob(f"wharf-*-{tag}.snap"))

        wait_until(lambda: agent.get("/v1/namespaces"), what="the default namespace exists")
        first = wait_until(lambda: list_own()[:1], what="the first snapshot is saved")[0]
        wait_until(lambda: not first.exists(), what="the first snapshot is deleted")

        wait_until(lambda: len(list_own()) == 2, what="two snapshots are retained")
        assert inspect_snapshot_file(list_own()[-1]).trailer.rows["namespaces"] == 1
        listed = agent.get("/v1/operator/snapshots")
        assert isinstance(listed, dict)
        newest = listed["Snapshots"][0]
        assert newest["Name"].endswith(f"-{tag}.snap")
        assert newest["Index"] > 0
        assert newest["SizeBytes"] > 500
        assert [file.name for file in folder.glob("wharf-29*")] == []
        assert foreign.exists()
        wait_until(lambda: not list(folder.glob("*.killed.partial")), what="the incomplete file is deleted")


def test_a_failed_snapshot_is_logged_and_the_agent_continues(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file, and no folder")
    file = write_agent_config(tmp_path / "a", f'[snapshots]\ninterval = "1s"\nfolder = "{tmp_path}/taken"')
    with running(tmp_path / "a", "agent", "--config", str(file)) as agent:
        agent.wait_ready()

        wait_until(lambda: "no snapshot was saved" in agent.err, what="the error is logged")
        assert isinstance(agent.get("/v1/nodes"), list)
