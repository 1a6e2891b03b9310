"""Unmounting of what a killed node or a container engine left mounted in a test's folder."""

import os
import subprocess
from pathlib import Path


def unmount_below(folder: Path) -> None:
    mounted = [line.split(" ")[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for path in reversed(mounted):  # Inner mounts were mounted later.
        if path.startswith(f"{folder}/"):
            subprocess.run(["umount", "--lazy", path], check=False, capture_output=True)


def unmount_left_by_test_runs(root: Path) -> None:
    """Unmount what this test run and ended ones left below pytest's folder of all runs.

    A task supervisor may mount a folder while its node is killed. pytest can't delete such a folder, and a later run
    would end with an error at its clean-up, without a summary.
    """
    for run_folder in root.glob("*"):
        if not run_folder.is_symlink() and not _is_used_by_other_run(run_folder):
            unmount_below(run_folder)


def _is_used_by_other_run(run_folder: Path) -> bool:
    """Return whether the lock file names a living process other than this one."""
    try:
        pid = int((run_folder / ".lock").read_text())
    except (OSError, ValueError):
        return False
    return pid != os.getpid() and Path(f"/proc/{pid}").exists()
