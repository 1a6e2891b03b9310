"""Free ports for the servers that tests start. No port is returned twice, also not to other test runs of the same user.

Another process could use a port before the test's server listens on it. So each port is claimed with a lock on one byte of
a shared file, until the process ends. All ports are below 32,768, the first port that the system assigns to programs that
request any port. So a killed server can listen on its port again.
"""

import fcntl
import functools
import os
import socket
import tempfile
from pathlib import Path

PORTS = range(12_000, 22_000)
"""The same range plus 10,000 is not used, because a member of a Redis cluster also listens on its port plus 10,000."""

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
