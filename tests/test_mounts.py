"""Left mounts of test runs: pytest can delete the folders of ended runs, and runs beside this one keep theirs."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mounts import unmount_below, unmount_left_by_test_runs


@pytest.fixture
def run_folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a test run below `tmp_path`, with a file system mounted in it."""
    mounted = tmp_path / "pytest-3" / "secrets"
    mounted.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "none", str(mounted)], check=True)
    yield mounted.parent
    unmount_below(tmp_path)


@pytest.mark.needs("namespaces")
@pytest.mark.parametrize("lock", [None, "", "4194305"], ids=["no lock", "an empty lock", "a lock of a dead process"])
def test_what_an_ended_run_left_mounted_is_unmounted(tmp_path: Path, run_folder: Path, lock: str | None) -> None:
    if lock is not None:
        (run_folder / ".lock").write_text(lock)

    unmount_left_by_test_runs(tmp_path)

    assert not (run_folder / "secrets").is_mount()


@pytest.mark.needs("namespaces")
def test_mounts_of_a_run_beside_this_one_stay(tmp_path: Path, run_folder: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other_run:
        (run_folder / ".lock").write_text(str(other_run.pid))

        unmount_left_by_test_runs(tmp_path)

        assert (run_folder / "secrets").is_mount()
        assert other_run.stdin is not None
        other_run.stdin.write(b"\n")
