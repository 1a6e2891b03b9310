"""Free ports for the servers that tests start: each is given once, in all test runs of this user together.

Between finding a port and a server's listening on it lies a moment in which others may take it. So a port is claimed
by a lock on one byte of a shared file, which ends with the process; and none is of those that the system gives to
whoever asks for any port (from 32,768 on), so that it is still there when a server is killed and comes back to it.
"""

import fcntl
import functools
import os
import socket
import tempfile
from pathlib import Path

PORTS = range(12_000, 22_000)
"""What lies 10,000 above is kept free of them: a member of a Redis cluster listens there too."""

_assigned_ports: set[int] = set()


def free_ports(count: int, *, first: int | None = None) -> list[int]:
    """Return unused ports, reserved until this process ends."""
    start = (
        PORTS.index(first) if first is not None else os.getpid() * 37 % len(PORTS)
    )  # Concurrent test runs start at different ports.
    found: list[int] = []
    for port in (*PORTS[start:], *PORTS[:start]):
        if len(found) == count:
            break
        if port not in _assigned_ports and _claim(port):
            _assigned_ports.add(port)
            if _is_free(port):
                found.append(port)
    assert len(found) == count, f"there are no {count} free ports from {PORTS.start} to {PORTS.stop}"
    return found


def _claim(port: int) -> bool:
    try:
        fcntl.lockf(_claims(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:
        return False  # Another process has claimed it.
    return True


@functools.cache
def _claims() -> int:
    """Return the file of claims. It stays open until the process ends, because closing it releases the locks."""
    return os.open(Path(tempfile.gettempdir()) / f"wharf-test-ports-{os.getuid()}", os.O_RDWR | os.O_CREAT, 0o600)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("", port))
        except OSError:
            return False
    return True
