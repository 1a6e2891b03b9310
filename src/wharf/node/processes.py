"""The processes of this machine: their identity, their environment, their control groups, and signals to them.

A process id is used again after the end of its process. `Process` and pidfds avoid that confusion.
"""

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
CGROUP_ROOT: Final = Path("/sys/fs/cgroup")
STAT_BYTES: Final = 4096


def read_boot_id() -> str:
    """Return the kernel's random id of this boot."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


class Process(msgspec.Struct, frozen=True):
    """One process. Process ids are reused, but not together with the same start time."""

    pid: int
    start_ticks: int
    """Start time in clock ticks since boot."""


def find_process(pid: int) -> Process | None:
    """Return the process that has this id now; None if no process has it or it is a zombie."""
    fields = read_stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[19]))


def is_session_leader(pid: int) -> bool:
    """Return whether the process leads a session."""
    fields = read_stat_fields(pid)
    return fields is not None and int(fields[3]) == pid


def read_stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the name, which may contain spaces and brackets; None if it is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(STAT_BYTES).decode(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def open_pidfd(process: Process) -> int | None:
    """Return a pidfd of exactly this process; None if it is gone.

    The start time is checked after opening, because the process id could have been reused before.
    """
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return None
    if find_process(process.pid) != process:
        os.close(handle)
        return None
    return handle


def send_signal(process: Process, number: int, *, is_to_group: bool) -> bool:
    """Send a signal and return whether the process existed.

    `is_to_group`: to the process group that it leads, if it leads one.
    """
    handle = open_pidfd(process)
    if handle is None:
        return False
    try:
        if is_to_group:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)
                return True
        signal.pidfd_send_signal(handle, number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_process(pid: int, is_target: Callable[[], bool]) -> bool:
    """Kill the process if `is_target` returns True, and return whether it was killed.

    `is_target` is called while a pidfd of the process is open, so that a reused process id cannot be killed by mistake.
    """
    process = find_process(pid)
    handle = open_pidfd(process) if process is not None else None
    if handle is None:
        return False
    try:
        if not is_target():
            return False
        signal.pidfd_send_signal(handle, signal.SIGKILL)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def list_pids() -> list[int]:
    """Return the ids of all processes of the machine."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def find_marked_processes(marks: frozenset[bytes]) -> Iterator[tuple[int, bytes]]:
    """Return each process whose environment contains one of these `NAME=value` entries, with that entry.

    Skips processes whose environment cannot be read: they belong to other users.
    """
    for pid in list_pids():
        for assignment in read_environment(pid):
            if assignment in marks:
                yield pid, assignment


def is_marked(pid: int, mark: bytes) -> bool:
    """Return whether the environment of a process contains this `NAME=value` entry."""
    return mark in read_environment(pid)


def read_environment(pid: int) -> list[bytes]:
    """Return the `NAME=value` entries with which a process was started; empty if they cannot be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def has_arguments(pid: int, *arguments: str) -> bool:
    """Return whether the process's command line begins with these words."""
    prefix = b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().startswith(prefix)
    except OSError:
        return False


def find_processes_by_arguments(*arguments: str) -> list[int]:
    """Return the ids of processes whose command line begins with these words."""
    return [pid for pid in list_pids() if has_arguments(pid, *arguments)]


def list_cgroups(pid: int, run: str) -> list[Path]:
    """Return the control groups of a run, found by one of its processes; empty if it has none.

    With cgroup version 1 there is one for each hierarchy, with version 2 at most one.
    """
    return [group for group in _list_cgroups_of_process(pid) if group.name == run]


def _list_cgroups_of_process(pid: int) -> list[Path]:
    """Return the control groups of a process; empty if it is gone."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    parts = (line.split(":", 2) for line in lines)
    return [CGROUP_ROOT / controllers.removeprefix("name=") / path.lstrip("/") for _, controllers, path in parts]


def list_members(cgroup: Path) -> list[int]:
    """Return the ids of the processes in a control group; empty if it does not exist."""
    try:
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def list_container_processes(pid: int, container: str) -> list[int]:
    """Return the processes of a container, by its first process and its id.

    Empty if the process id belongs to another process now, or its control group is not visible from here. Engines
    name the control group of a container after it.
    """
    groups = (group for group in _list_cgroups_of_process(pid) if container in str(group))
    return next((members for group in groups if (members := list_members(group))), [])


def list_run_processes(pid: int, run: str) -> list[int]:
    """Return the processes of a run by its first process: those in its control group, else the process tree."""
    members = [member for group in list_cgroups(pid, run)[:1] for member in list_members(group)]
    if members:
        return members
    return list_process_tree(pid) if (PROC / str(pid)).exists() else []


def list_process_tree(pid: int) -> list[int]:
    """Return the process, all its descendants and the processes of its session."""
    children: dict[int, list[int]] = {}
    session_members = []
    for each in list_pids():
        fields = read_stat_fields(each)
        if fields is None:
            continue
        children.setdefault(int(fields[1]), []).append(each)
        if int(fields[3]) == pid:
            session_members.append(each)
    pids = dict.fromkeys([pid, *session_members])
    remaining = list(pids)
    while remaining:
        for child in children.get(remaining.pop(), ()):
            if child not in pids:
                pids[child] = None
                remaining.append(child)
    return list(pids)
