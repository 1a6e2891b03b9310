"""Identifies processes of this machine without confusion by reused process ids, and sends signals to them."""

import contextlib
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
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
    fields = _read_stat_fields(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[19]))


def is_session_leader(pid: int) -> bool:
    """Return whether the process leads a session."""
    fields = _read_stat_fields(pid)
    return fields is not None and int(fields[3]) == pid


def _read_stat_fields(pid: int) -> list[str] | None:
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


def list_pids() -> list[int]:
    """Return the ids of all processes of the machine."""
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def find_marked_processes(marks: frozenset[bytes]) -> Iterator[tuple[int, bytes]]:
    """Return each process whose environment contains one of these `NAME=value` entries, with that entry.

    Skips processes whose environment cannot be read: they belong to other users.
    """
    for pid in list_pids():
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        for assignment in environment.split(b"\0"):
            if assignment in marks:
                yield pid, assignment


def is_marked(pid: int, mark: bytes) -> bool:
    """Return whether the environment of a process contains this `NAME=value` entry."""
    try:
        return mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


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
