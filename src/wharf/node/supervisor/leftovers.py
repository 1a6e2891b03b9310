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

from wharf.node.supervisor.bounding import Bounding, bounding_v1, bounding_v2
from wharf.node.supervisor.messages import Limits
from wharf.node.supervisor.processes import look_up, open_handle, with_mark

MARK: Final = "WHARF_RUN"
LOOKS: Final = 100
ROOT: Final = Path("/sys/fs/cgroup")
TRACKING_V1: Final = "pids"
"""Of the hierarchies of version 1, that which only counts: being in it changes nothing for the program."""


class Leftovers(Protocol):
    name: str
    bounds: tuple[str, ...]
    """What it can limit."""

    def entries(self, run: str, limits: Limits) -> list[str]:
        """The files that the program enters itself by; made ready for it, with its bounds."""
        ...

    def has_run_out_of_memory(self, run: str) -> bool:
        """Whether anything of it was killed because it would have gone beyond its memory."""
        ...

    def members(self, run: str) -> list[int]: ...

    def kill(self, run: str, *, spare: Collection[int]) -> None:
        """All that is left of it, but for these."""
        ...

    def forget(self, run: str) -> None: ...

    def sweep(self, known: Collection[str]) -> None:
        """Clear away what is kept of runs that nobody knows any more."""
        ...


def mark_of(run: str) -> bytes:
    return os.fsencode(f"{MARK}={run}")


class ByMark:
    name = "mark"
    bounds: tuple[str, ...] = ()

    def entries(self, _run: str, _limits: Limits) -> list[str]:
        return []

    def has_run_out_of_memory(self, _run: str) -> bool:
        return False

    def members(self, run: str) -> list[int]:
        return [pid for pid, _ in with_mark(frozenset({mark_of(run)}))]

    def kill(self, run: str, *, spare: Collection[int]) -> None:
        marks = frozenset({mark_of(run)})
        for pid, _ in with_mark(marks):
            if pid not in spare:
                _kill_marked(pid, marks)

    def forget(self, run: str) -> None:
        pass

    def sweep(self, known: Collection[str]) -> None:
        pass


def _kill_marked(pid: int, marks: frozenset[bytes]) -> None:
    process = look_up(pid)
    handle = open_handle(process) if process is not None else None
    if handle is None:
        return
    with contextlib.suppress(OSError):
        # Read again behind the handle: now it is surely the environment of the process that will be killed.
        if marks.intersection(Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    os.close(handle)


class ByCgroup:
    name = "cgroup"

    def __init__(self, folder: Path, bounding: Bounding) -> None:
        self._folder = folder
        self._bounding = bounding
        self._empty: list[str] = []
        self.bounds = bounding.bounds

    def entries(self, run: str, limits: Limits) -> list[str]:
        group = self._folder / run
        group.mkdir(parents=True, exist_ok=True)
        groups = dict.fromkeys([group, *self._bounding.make(run, limits)])
        return [str(each / "cgroup.procs") for each in groups]

    def has_run_out_of_memory(self, run: str) -> bool:
        return self._bounding.has_run_out_of_memory(run)

    def members(self, run: str) -> list[int]:
        try:
            return [int(line) for line in (self._folder / run / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def kill(self, run: str, *, spare: Collection[int]) -> None:
        # What forks while it is killed is there at the next look.
        for _ in range(LOOKS):
            members = [pid for pid in self.members(run) if pid not in spare]
            for pid in members:
                self._kill_member(run, pid)
            if not members:
                break

    def _kill_member(self, run: str, pid: int) -> None:
        process = look_up(pid)
        handle = open_handle(process) if process is not None else None
        if handle is None:
            return
        with contextlib.suppress(OSError):
            if pid in self.members(run):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        os.close(handle)

    def forget(self, run: str) -> None:
        self._empty.append(run)
        # Where something is still dying in it, it is tried again with the next one.
        self._empty = [name for name in self._empty if not self._remove(name)]

    def _remove(self, run: str) -> bool:
        left = [folder for folder in self._all() if not _is_removed(folder / run)]
        return not left

    def _all(self) -> list[Path]:
        return list(dict.fromkeys([self._folder, *self._bounding.folders]))

    def sweep(self, known: Collection[str]) -> None:
        for folder in self._all():
            with contextlib.suppress(OSError):
                for entry in folder.iterdir():
                    if entry.is_dir() and entry.name not in known:
                        self.kill(entry.name, spare=())  # Nobody remembers that it should run.
                        self.forget(entry.name)
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


def find_way(node: str) -> Leftovers:
    """By control groups where this process may make them. `node` keeps those of several nodes on a machine apart."""
    is_v1 = (ROOT / TRACKING_V1 / "cgroup.procs").exists()
    base = ROOT / TRACKING_V1 if is_v1 else ROOT
    folder = base / "wharf" / node
    trial = folder / "trial"
    try:
        if not (base / "cgroup.procs").exists():
            return ByMark()
        trial.mkdir(parents=True, exist_ok=True)
        is_group = (trial / "cgroup.procs").exists()
        trial.rmdir()
    except OSError:
        return ByMark()
    return ByCgroup(folder, bounding_v1(ROOT, node) if is_v1 else bounding_v2(ROOT, node)) if is_group else ByMark()
