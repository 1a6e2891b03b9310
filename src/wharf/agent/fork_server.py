"""The fork server: a process that loads the modules of all roles once, and copies itself for each process of the agent.

Loading the same modules in each process took three times the processor time and 0.9 s for each restart. The supervisor
starts this module as `python -m wharf.agent.fork_server`, with a socket to it as standard input. The copies are not
children of this process but of the supervisor, which adopts them, so it needs this process only to start others (0302).
"""

import contextlib
import ctypes
import fcntl
import gc
import os
import signal
import socket
import struct
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from wharf.agent import child
from wharf.agent.supervision.fork_protocol import (
    MAX_DESCRIPTORS,
    MAX_REQUEST_BYTES,
    ForkReply,
    ForkRequest,
    decode_request,
    encode_message,
)
from wharf.world.process_exit import exit_process

ROLES_LOADED_LATER: Final = frozenset({"snapshot"})
"""Roles of short-lived processes. Each copy loads their modules itself, so that the copies of other roles do not hold them."""
MAX_NAME_BYTES: Final = 15
"""The kernel cuts longer names of processes."""
# Positions in /proc/self/stat after the process name.
_ARGUMENTS_START: Final = 45
_ARGUMENTS_END: Final = 46
_PID: Final = struct.Struct("i")


class Order(NamedTuple):
    """What a copy becomes."""

    request: ForkRequest
    descriptors: list[int]
    """The channel to the supervisor, and the open files that the request names."""


def main() -> int:
    """Make copies until the supervisor is gone. In a copy, run its role and return its exit code."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Signals of the terminal are for the supervisor.
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    gc.disable()  # Imported modules stay: collecting garbage took a sixth of the start time.
    with socket.socket(fileno=os.dup(0)) as connection:
        order = _serve(connection)
    if order is None:
        return 0
    _become(order)
    return child.main()


def _serve(connection: socket.socket) -> Order | None:
    """Answer the supervisor's requests. Return `None` when it is gone, and in a copy the order of that copy."""
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, MAX_DESCRIPTORS)
        if not data:
            return None
        order = Order(decode_request(data), descriptors)
        role = order.request.role
        if role not in ROLES_LOADED_LATER:
            child.load_role(role)
            gc.freeze()  # The collector of a copy need not scan what was loaded, which would also copy its memory.
        pid = _fork_for_supervisor()
        if pid is None:
            return order
        for descriptor in descriptors:
            os.close(descriptor)
        connection.send(encode_message(ForkReply(order.request.number, pid)))


def _fork_for_supervisor() -> int | None:
    """Make a copy that the supervisor adopts. Return its process id, 0 if there is no memory for it, `None` in the copy.

    The copy is made by another copy that ends at once: the kernel gives processes without a parent to the supervisor.
    """
    reading, writing = os.pipe()
    try:
        between = os.fork()
    except OSError:
        os.close(reading)
        os.close(writing)
        return 0
    if between == 0:
        os.close(reading)
        pid = 0
        with contextlib.suppress(OSError):
            pid = os.fork()
            if pid == 0:
                os.close(writing)
                return None
        os.write(writing, _PID.pack(pid))
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as report:
        data = report.read()
    os.waitpid(between, 0)  # From now on the copy belongs to the supervisor.
    return int(_PID.unpack(data)[0]) if len(data) == _PID.size else 0


def _become(order: Order) -> None:
    """Give a copy what a started program would have: its open files under their numbers, its group, name and arguments."""
    request = order.request
    wanted_numbers = [0, *request.descriptors]
    # First above all wanted numbers, so that none replaces one that is still needed.
    first_free = max(wanted_numbers) + 1
    moved = [fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, first_free) for descriptor in order.descriptors]
    for descriptor, number in zip(moved, wanted_numbers, strict=True):
        os.dup2(descriptor, number)
    os.dup2(2, 1)
    _close_all_but({0, 1, 2, *request.descriptors})
    # A separate process group gets no signals of the terminal: the supervisor stops its processes in order.
    os.setpgid(0, 0)
    sys.argv[1:] = [request.part]
    _show_as(f"wharf {request.part}", [sys.executable, "-P", "-m", child.MODULE, request.part])
    gc.enable()


def _show_as(name: str, words: Sequence[str]) -> None:
    """Show this process with this name, and with these words as its command line, cut at the length of the real one.

    Does nothing where the system does not show where the command line is stored.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        Path("/proc/self/comm").write_text(name[:MAX_NAME_BYTES], encoding="ascii")
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        start, end = int(fields[_ARGUMENTS_START]), int(fields[_ARGUMENTS_END])
        if 0 < start < end:
            # The kernel reads the command line of a process from the memory of the process.
            shown = "\0".join(words).encode()[: end - start - 1]
            ctypes.memmove(start, shown.ljust(end - start, b"\0"), end - start)


def _close_all_but(needed: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in needed:
            with contextlib.suppress(OSError):  # The descriptor of the listing itself is closed already.
                os.close(int(name))


if __name__ == "__main__":
    exit_process(main())
