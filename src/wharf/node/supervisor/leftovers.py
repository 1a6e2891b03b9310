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

from wharf.node.supervisor.processes import look_up, open_handle, with_mark

MARK: Final = "WHARF_RUN"
LOOKS: Final = 100
ROOT: Final = Path("/sys/fs/cgroup")
TRACKING_V1: Final = "pids"
"""Of the hierarchies of version 1, that which only counts: being in it changes nothing for the program."""


class Leftovers(Protocol):
    name: str

    def entries(self, run: str) -> list[str]:
        """The files that the program enters itself by; made ready for it."""
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

    def entries(self, _run: str) -> list[str]:
        return []

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

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._empty: list[str] = []

    def entries(self, run: str) -> list[str]:
        group = self._folder / run
        group.mkdir(parents=True, exist_ok=True)
        return [str(group / "cgroup.procs")]

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
        left = []
        for name in self._empty:
            try:
                (self._folder / name).rmdir()
            except FileNotFoundError:
                pass
            except OSError:  # Something is still dying in it.
                left.append(name)
        self._empty = left

    def sweep(self, known: Collection[str]) -> None:
        with contextlib.suppress(OSError):
            for entry in self._folder.iterdir():
                if entry.is_dir() and entry.name not in known:
                    self.kill(entry.name, spare=())  # Nobody remembers that it should run.
                    self.forget(entry.name)
            if not known:
                self._folder.rmdir()


def find_way(node: str) -> Leftovers:
    """By control groups where this process may make them. `node` keeps those of several nodes on a machine apart."""
    base = ROOT / TRACKING_V1 if (ROOT / TRACKING_V1 / "cgroup.procs").exists() else ROOT
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
    return ByCgroup(folder) if is_group else ByMark()
