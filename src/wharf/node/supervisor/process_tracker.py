"""Finds and kills the processes that a program started and left behind: by control group, or by an environment
variable.

Processes that a member of a control group forks are in the group too. The environment variable (the mark) is inherited
as well, but a program may clear its environment. Such processes can be found by their process group only.
"""

import contextlib
import functools
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from wharf.node.processes import CGROUP_ROOT, find_marked_processes, is_marked, kill_process, list_members
from wharf.node.supervisor.cgroup_limits import CgroupLimits, build_limits_v1, build_limits_v2
from wharf.node.supervisor.messages import RunLimits

RUN_MARK_VARIABLE: Final = "WHARF_RUN"
"""Environment variable that holds the name of a process's run."""
MAX_KILL_PASSES: Final = 100
"""How often to list and kill the members of a group; a process can fork while it is being killed."""
MAX_KILLED_TOGETHER: Final = 200
"""Processes of a group that are killed after the group was read once. Each needs an open file meanwhile."""
TRACKING_CONTROLLER_V1: Final = "pids"
"""The controller whose groups track processes with version 1; `pids` only counts them and so has no side effects."""


class ProcessTracker(Protocol):
    """Finds and kills the processes of runs. A run is one start of a task, identified by its name."""

    name: str  # the method: `cgroup` or `mark`
    enforced_limits: tuple[str, ...]
    """The names of the limits that can be enforced."""

    def prepare_cgroups(self, run: str, limits: RunLimits) -> list[str]:
        """Create the control groups with which the run is tracked and limited.

        Return the `cgroup.procs` files to which the program must write its process id.
        """
        ...

    def has_oom_kill(self, run: str) -> bool:
        """Return whether the kernel killed a process of the run because it reached its memory limit."""
        ...

    def list_processes(self, run: str) -> list[int]:
        """Return the ids of all processes of the run."""
        ...

    def kill_processes(self, run: str, *, except_pids: Collection[int]) -> None:
        """Kill all processes of the run except those in `except_pids`."""
        ...

    def delete_run(self, run: str) -> None:
        """Delete the control groups of a run, if it has any."""
        ...

    def sweep_unknown_runs(self, known_runs: Collection[str]) -> None:
        """Kill the processes of runs that are not in `known_runs`, and delete their control groups."""
        ...


def build_mark(run: str) -> bytes:
    """Return the entry `WHARF_RUN=<name of the run>`, which all processes of this run have in their environment."""
    return os.fsencode(f"{RUN_MARK_VARIABLE}={run}")


class MarkTracker:
    """Finds the processes of a run by an entry in their environment; enforces no limits."""

    name = "mark"  # the method, as reported to the agent
    enforced_limits: tuple[str, ...] = ()

    def prepare_cgroups(self, _run: str, _limits: RunLimits) -> list[str]:
        return []

    def has_oom_kill(self, _run: str) -> bool:
        return False

    def list_processes(self, run: str) -> list[int]:
        return [pid for pid, _ in find_marked_processes(frozenset({build_mark(run)}))]

    def kill_processes(self, run: str, *, except_pids: Collection[int]) -> None:
        """Kill all processes of the run except those in `except_pids`."""
        mark = build_mark(run)
        for pid in self.list_processes(run):
            if pid not in except_pids:
                kill_process(pid, functools.partial(is_marked, pid, mark))

    def delete_run(self, run: str) -> None:
        pass

    def sweep_unknown_runs(self, known_runs: Collection[str]) -> None:
        pass


class CgroupTracker:
    """Finds the processes of a run by its control group."""

    name = "cgroup"  # the method, as reported to the agent

    def __init__(self, folder: Path, limits: CgroupLimits) -> None:
        self._folder = folder
        self._limits = limits
        self._removable_runs: list[str] = []
        self.enforced_limits = limits.enforced_limits

    def prepare_cgroups(self, run: str, limits: RunLimits) -> list[str]:
        """Create the control groups with which the run is tracked and limited. Raises OSError.

        Return the `cgroup.procs` files to which the program must write its process id.
        """
        group = self._folder / run
        group.mkdir(parents=True, exist_ok=True)
        groups = dict.fromkeys([group, *self._limits.create_cgroups(run, limits)])
        return [str(each / "cgroup.procs") for each in groups]

    def has_oom_kill(self, run: str) -> bool:
        return self._limits.has_oom_kill(run)

    def list_processes(self, run: str) -> list[int]:
        return list_members(self._folder / run)

    def kill_processes(self, run: str, *, except_pids: Collection[int]) -> None:
        """Kill all processes of the run except those in `except_pids`, also those that are forked meanwhile."""
        for _ in range(MAX_KILL_PASSES):
            members = [pid for pid in self.list_processes(run) if pid not in except_pids]
            for first in range(0, len(members), MAX_KILLED_TOGETHER):
                self._kill_members(run, members[first : first + MAX_KILLED_TOGETHER])
            if not members:
                break

    def _kill_members(self, run: str, pids: Collection[int]) -> None:
        """Kill those of these processes that are in the run's control group.

        The group is read once, while their pidfds are open, so that no other process with a reused id is killed.
        """
        handles: dict[int, int] = {}
        try:
            for pid in pids:
                with contextlib.suppress(OSError):
                    handles[pid] = os.pidfd_open(pid)
            members = frozenset(self.list_processes(run))
            for pid, handle in handles.items():
                if pid in members:
                    with contextlib.suppress(OSError):
                        signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            for handle in handles.values():
                os.close(handle)

    def delete_run(self, run: str) -> None:
        """Remove the run's control groups, now or at a later call if a process in them is still ending."""
        self._removable_runs.append(run)
        # A group with a dying process cannot be removed yet; it is retried at the next call.
        self._removable_runs = [name for name in self._removable_runs if not self._remove(name)]

    def _remove(self, run: str) -> bool:
        """Try to remove the run's control groups. Return whether all of them are gone."""
        remaining = [folder for folder in self._list_parent_folders() if not _remove_cgroup(folder / run)]
        return not remaining

    def _list_parent_folders(self) -> list[Path]:
        """Return the folders below which the control groups of runs are, each once."""
        return list(dict.fromkeys([self._folder, *self._limits.folders]))

    def sweep_unknown_runs(self, known_runs: Collection[str]) -> None:
        """Kill the processes of runs that are not in `known_runs`, and remove their control groups.

        If no run is known, the parent folders are removed too.
        """
        for folder in self._list_parent_folders():
            with contextlib.suppress(OSError):
                for entry in folder.iterdir():
                    if entry.is_dir() and entry.name not in known_runs:
                        self.kill_processes(entry.name, except_pids=())  # The run's folder is gone.
                        self.delete_run(entry.name)
                if not known_runs:
                    folder.rmdir()


def _remove_cgroup(cgroup_folder: Path) -> bool:
    """Try to remove a control group. Return whether it is gone."""
    try:
        cgroup_folder.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def choose_tracker(node_id: str) -> ProcessTracker:
    """Return a tracker by control group if this process may create groups, else one by environment entry.

    `node_id` separates the groups of several nodes on one machine. A trial group is created and removed.
    """
    is_v1 = (CGROUP_ROOT / TRACKING_CONTROLLER_V1 / "cgroup.procs").exists()
    base = CGROUP_ROOT / TRACKING_CONTROLLER_V1 if is_v1 else CGROUP_ROOT
    folder = base / "wharf" / node_id
    trial = folder / "trial"
    try:
        if not (base / "cgroup.procs").exists():
            return MarkTracker()
        trial.mkdir(parents=True, exist_ok=True)
        is_group = (trial / "cgroup.procs").exists()
        trial.rmdir()
    except OSError:
        return MarkTracker()
    return (
        CgroupTracker(folder, build_limits_v1(CGROUP_ROOT, node_id) if is_v1 else build_limits_v2(CGROUP_ROOT, node_id))
        if is_group
        else MarkTracker()
    )
