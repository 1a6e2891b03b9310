"""Finds and ends what a program started and left behind: by a control group, or else by the mark in its environment.

A group holds whatever its members fork. The mark is inherited too, but a program may clear its environment: then only
the group of its process is left to go by.
"""

import contextlib
import os
import signal
from collections.abc import Collection
from pathlib import Path
from typing import Final, Protocol

from wharf.node.supervisor.cgroup_limits import CgroupLimits, build_limits_v1, build_limits_v2
from wharf.node.supervisor.messages import RunLimits
from wharf.node.supervisor.processes import find_marked_processes, find_process, open_pidfd

RUN_MARK_VARIABLE: Final = "WHARF_RUN"
MAX_KILL_PASSES: Final = 100
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
TRACKING_CONTROLLER_V1: Final = "pids"
"""Of the hierarchies of version 1, that which only counts: being in it changes nothing for the program."""


class ProcessTracker(Protocol):
    name: str
    enforced_limits: tuple[str, ...]
    """What it can limit."""

    def prepare_cgroups(self, run: str, limits: RunLimits) -> list[str]:
        """The files that the program enters itself by; made ready for it, with its bounds."""
        ...

    def has_oom_kill(self, run: str) -> bool:
        """Whether anything of it was killed because it would have gone beyond its memory."""
        ...

    def list_processes(self, run: str) -> list[int]: ...

    def kill_processes(self, run: str, *, except_pids: Collection[int]) -> None:
        """All that is left of it, but for these."""
        ...

    def forget_run(self, run: str) -> None: ...

    def sweep_unknown_runs(self, known: Collection[str]) -> None:
        """Clear away what is kept of runs that nobody knows any more."""
        ...


def build_mark(run: str) -> bytes:
    return os.fsencode(f"{RUN_MARK_VARIABLE}={run}")


class MarkTracker:
    name = "mark"
    enforced_limits: tuple[str, ...] = ()

    def prepare_cgroups(self, _run: str, _limits: RunLimits) -> list[str]:
        return []

    def has_oom_kill(self, _run: str) -> bool:
        return False

    def list_processes(self, run: str) -> list[int]:
        return [pid for pid, _ in find_marked_processes(frozenset({build_mark(run)}))]

    def kill_processes(self, run: str, *, except_pids: Collection[int]) -> None:
        marks = frozenset({build_mark(run)})
        for pid, _ in find_marked_processes(marks):
            if pid not in except_pids:
                _kill_marked(pid, marks)

    def forget_run(self, run: str) -> None:
        pass

    def sweep_unknown_runs(self, known: Collection[str]) -> None:
        pass


def _kill_marked(pid: int, marks: frozenset[bytes]) -> None:
    process = find_process(pid)
    handle = open_pidfd(process) if process is not None else None
    if handle is None:
        return
    with contextlib.suppress(OSError):
        # Read again behind the handle: now it is surely the environment of the process that will be killed.
        if marks.intersection(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)


class CgroupTracker:
    name = "cgroup"

    def __init__(self, folder: Path, bounding: CgroupLimits) -> None:
        self._folder = folder
        self._bounding = bounding
        self._empty: list[str] = []
        self.enforced_limits = bounding.enforced_limits

    def prepare_cgroups(self, run: str, limits: RunLimits) -> list[str]:
        group = self._folder / run
        group.mkdir(parents=True, exist_ok=True)
        groups = dict.fromkeys([group, *self._bounding.create_cgroups(run, limits)])
        return [str(each / "cgroup.procs") for each in groups]

    def has_oom_kill(self, run: str) -> bool:
        return self._bounding.has_oom_kill(run)

    def list_processes(self, run: str) -> list[int]:
        try:
            return [int(line) for line in (self._folder / run / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def kill_processes(self, run: str, *, except_pids: Collection[int]) -> None:
        # What forks while it is killed is there at the next look.
        for _ in range(MAX_KILL_PASSES):
            members = [pid for pid in self.list_processes(run) if pid not in except_pids]
            for pid in members:
                self._kill_member(run, pid)
            if not members:
                break

    def _kill_member(self, run: str, pid: int) -> None:
        process = find_process(pid)
        handle = open_pidfd(process) if process is not None else None
        if handle is None:
            return
        with contextlib.suppress(OSError):
            if pid in self.list_processes(run):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)

    def forget_run(self, run: str) -> None:
        self._empty.append(run)
        # Where something is still dying in it, it is tried again with the next one.
        self._empty = [name for name in self._empty if not self._remove(name)]

    def _remove(self, run: str) -> bool:
        left = [folder for folder in self._all() if not _is_removed(folder / run)]
        return not left

    def _all(self) -> list[Path]:
        return list(dict.fromkeys([self._folder, *self._bounding.folders]))

    def sweep_unknown_runs(self, known: Collection[str]) -> None:
        for folder in self._all():
            with contextlib.suppress(OSError):
                for entry in folder.iterdir():
                    if entry.is_dir() and entry.name not in known:
                        self.kill_processes(entry.name, except_pids=())  # Nobody remembers that it should run.
                        self.forget_run(entry.name)
                if not known:
                    folder.rmdir()


def _is_removed(group: Path) -> bool:
    try:
        group.rmdir()
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return True


def choose_tracker(node: str) -> ProcessTracker:
    """By control groups where this process may make them. `node` keeps those of several nodes on a machine apart."""
    is_v1 = (CGROUP_ROOT / TRACKING_CONTROLLER_V1 / "cgroup.procs").exists()
    base = CGROUP_ROOT / TRACKING_CONTROLLER_V1 if is_v1 else CGROUP_ROOT
    folder = base / "wharf" / node
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
        CgroupTracker(folder, build_limits_v1(CGROUP_ROOT, node) if is_v1 else build_limits_v2(CGROUP_ROOT, node))
        if is_group
        else MarkTracker()
    )
