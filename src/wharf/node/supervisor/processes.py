"""Processes of the machine, known by what cannot be mistaken: the boot, the number and the moment of their start."""

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
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


class Process(msgspec.Struct, frozen=True):
    """Numbers are given again; together with the start, in ticks since boot, they are not."""

    pid: int
    start_ticks: int


def find_process(pid: int) -> Process | None:
    """The process that has this number now; None where none has, or it is dead and only not reaped yet."""
    fields = _stat(pid)
    if fields is None or fields[0] in ("Z", "X"):
        return None
    return Process(pid, int(fields[19]))


def is_session_leader(pid: int) -> bool:
    """Whether the process leads a session."""
    fields = _stat(pid)
    return fields is not None and int(fields[3]) == pid


def _stat(pid: int) -> list[str] | None:
    """The fields behind the name, which may itself hold spaces and brackets."""
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            text = file.read(STAT_BYTES).decode(errors="replace")
    except OSError:
        return None
    return text[text.rindex(")") + 2 :].split()


def open_pidfd(process: Process) -> int | None:
    """A descriptor that means this process and no later one; None where it is gone.

    What it is, is looked at after the handle is open: before that the number could have been given again.
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
    """False where it is gone. To its group means: the group that it leads."""
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
    return [int(name) for name in os.listdir(PROC) if name.isdecimal()]


def find_marked_processes(marks: frozenset[bytes]) -> Iterator[tuple[int, bytes]]:
    """Processes whose environment holds one of these assignments, with the one it holds. Environments of other users
    may be closed to us; what cannot be read is not ours."""
    for pid in list_pids():
        try:
            environment = (PROC / str(pid) / "environ").read_bytes()
        except OSError:
            continue
        for assignment in environment.split(b"\0"):
            if assignment in marks:
                yield pid, assignment


def is_marked(pid: int, mark: bytes) -> bool:
    try:
        return mark in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def has_arguments(pid: int, *arguments: str) -> bool:
    """Whether the process's command line begins with these."""
    wanted = b"\0".join(os.fsencode(argument) for argument in arguments) + b"\0"
    try:
        return (PROC / str(pid) / "cmdline").read_bytes().startswith(wanted)
    except OSError:
        return False


def find_processes_by_arguments(*arguments: str) -> list[int]:
    """Processes whose command line begins with these."""
    return [pid for pid in list_pids() if has_arguments(pid, *arguments)]
