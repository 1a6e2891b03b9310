"""The processes of this machine: their identity, their environment, their control groups, and signals to them.

The kernel may give the id of an ended process to a new one. `Process` and pidfds avoid that confusion.
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
    """One process, identified by its id and its start time, because the kernel reuses process ids."""

    pid: int
    start_ticks: int
    """Start time in clock ticks since boot."""


def find_process(pid: int) -> Process | None:
    """Return the process that has this id now; None if there is none or it has ended (a zombie)."""
    fields = read_stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[19]))


def is_session_leader(pid: int) -> bool:
    """Return whether the process exists and leads a session."""
    fields = read_stat_fields(pid)
    return fields is not None and int(fields[3]) == pid


def read_stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat after the process name; None if the process does not exist.

    The name is left out, because it may contain spaces and brackets. Field 0 is the state.
    """
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(STAT_BYTES).decode(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def read_cpu_s(fields: list[str]) -> float:
    """Return the CPU time in seconds that a process has used, from the fields of `read_stat_fields`."""
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def open_pidfd(process: Process) -> int | None:
    """Return a pidfd of exactly this process; None if it does not exist any more.

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


def send_signal(process: Process, signal_number: int, *, is_to_group: bool) -> bool:
    """Send a signal to the process. Return whether the process existed.

    `is_to_group`: the signal goes to the process group that it leads, if it leads one.
    """
    handle = open_pidfd(process)
    if handle is None:
        return False
    try:
        if is_to_group:
            with contextlib.suppress(OSError):
                os.killpg(process.pid, signal_number)
                return True
        signal.pidfd_send_signal(handle, signal_number)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def kill_process(pid: int, is_target: Callable[[], bool]) -> bool:
    """Kill the process if `is_target` returns True. Return whether it was killed.

    `is_target` is called while a pidfd of the process is open, so that no other process with a reused id is killed.
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


def find_marked_processes(environment_entries: frozenset[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield (process id, entry) for each process whose environment has one of these `NAME=value` entries.

    Processes whose environment cannot be read are skipped: they belong to other users.
    """
    for pid in list_pids():
        for entry in read_environment(pid):
            if entry in environment_entries:
                yield pid, entry


def is_marked(pid: int, environment_entry: bytes) -> bool:
    """Return whether the environment of the process has this `NAME=value` entry."""
    return environment_entry in read_environment(pid)


def read_environment(pid: int) -> list[bytes]:
    """Return the `NAME=value` entries with which a process was started; empty if they cannot be read."""
    try:
        return (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def read_arguments(pid: int) -> list[str]:
    """Return the command line of a process; empty if it cannot be read."""
    try:
        data = (PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return []
    return [os.fsdecode(word) for word in data.split(b"\0")]


def has_arguments(pid: int, *arguments: str) -> bool:
    """Return whether the command line of the process begins with these arguments."""
    prefix = b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().startswith(prefix)
    except OSError:
        return False


def list_cgroups(pid: int, run: str) -> list[Path]:
    """Return the control groups that were created for a run and have this process; empty if there are none.

    A run is one start of a task; its control groups have its name. With cgroup version 1 there is one for each
    hierarchy, with version 2 at most one.
    """
    return [group for group in _list_cgroups_of_process(pid) if group.name == run]


def _list_cgroups_of_process(pid: int) -> list[Path]:
    """Return the folders of all control groups of a process; empty if it does not exist."""
    try:
        lines = (PROC / str(pid) / "cgroup").read_text().splitlines()
    except OSError:
        return []
    parts = (line.split(":", 2) for line in lines)
    return [CGROUP_ROOT / controllers.removeprefix("name=") / path.lstrip("/") for _, controllers, path in parts]


def list_members(cgroup: Path) -> list[int]:
    """Return the ids of the processes in a control group; empty if the group does not exist."""
    try:
        return [int(line) for line in (cgroup / "cgroup.procs").read_text().split()]
    except OSError:
        return []


def list_container_processes(pid: int, container: str) -> list[int]:
    """Return the ids of all processes of a container.

    `pid` is its first process, `container` its id. They are found by the control group, which engines name after the
    container. Empty if the process id belongs to another process now, or the control group is not visible from here.
    """
    groups = (group for group in _list_cgroups_of_process(pid) if container in str(group))
    return next((members for group in groups if (members := list_members(group))), [])


def list_run_processes(pid: int, run: str) -> list[int]:
    """Return the ids of all processes of a run (one start of a task), of which `pid` is the first.

    These are the members of its control group, or else its process tree.
    """
    members = [member for group in list_cgroups(pid, run)[:1] for member in list_members(group)]
    if members:
        return members
    return list_process_tree(pid) if (PROC / str(pid)).exists() else []


def list_process_tree(pid: int) -> list[int]:
    """Return the ids of the process, all its descendants, the processes of its session and their descendants."""
    children: dict[int, list[int]] = {}
    session_members = []
    for other_pid in list_pids():
        fields = read_stat_fields(other_pid)
        if fields is None:
            continue
        children.setdefault(int(fields[1]), []).append(other_pid)
        if int(fields[3]) == pid:
            session_members.append(other_pid)
    pids = dict.fromkeys([pid, *session_members])
    remaining = list(pids)
    while remaining:
        for child in children.get(remaining.pop(), ()):
            if child not in pids:
                pids[child] = None
                remaining.append(child)
    return list(pids)
