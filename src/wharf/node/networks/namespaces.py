"""Creates and releases network namespaces. A bind mount on a file holds each namespace while no process is in it.

A namespace is created in a thread of its own, because a thread that enters a namespace cannot be used for other work.
"""

import fcntl
import os
import socket
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final

from wharf.node.mounts import MS_BIND, check_result, load_libc, mount, unmount

CLONE_NEWNET: Final = 0x40000000
SIOCGIFFLAGS: Final = 0x8913
SIOCSIFFLAGS: Final = 0x8914
SIOCBRADDBR: Final = 0x89A0
IFF_UP: Final = 1
UNPRIVILEGED_PORT_FILE: Final = "/proc/sys/net/ipv4/ip_unprivileged_port_start"
THREAD_NAMESPACE_PATH: Final = "/proc/thread-self/ns/net"


def create_namespace(file: Path) -> None:
    """Create a network namespace, with its loopback interface up, and mount it on `file`. Raises OSError.

    Does nothing if a namespace is already mounted there. The tasks in it may listen on ports below 1024.
    """
    if is_namespace_mounted(file):
        return
    file.touch(mode=0o600)

    def create() -> None:
        """Move the current thread to a new namespace and mount that on the file."""
        _enter_new_namespace()
        mount(THREAD_NAMESPACE_PATH, file, flags=MS_BIND)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control_socket:
            _set_interface_up(control_socket, b"lo")
        # Only tasks of the allocation are in the namespace, so all of them may listen on port 80.
        Path(UNPRIVILEGED_PORT_FILE).write_text("0")

    _run_in_thread(create)


def is_namespace_mounted(file: Path) -> bool:
    return file.exists() and os.path.ismount(file)


def release_namespace(file: Path) -> None:
    """Unmount the namespace from `file` and delete the file. Repeated calls have no effect. Raises OSError.

    The namespace ends when no process uses it.
    """
    if os.path.ismount(file):
        unmount(file)
    file.unlink(missing_ok=True)


def find_bridge_error() -> str:
    """Try to create a bridge in a temporary namespace. Return why that failed; empty if it succeeded."""

    def try_bridge() -> None:
        """Create a bridge in a new namespace, which ends with the thread."""
        _enter_new_namespace()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control_socket:
            fcntl.ioctl(control_socket.fileno(), SIOCBRADDBR, b"trial\0")

    try:
        _run_in_thread(try_bridge)
    except OSError as error:
        return f"cannot create a bridge in a network namespace: {error.strerror}"
    return ""


def _enter_new_namespace() -> None:
    """Move this thread to a new network namespace. Raises OSError."""
    check_result(load_libc().unshare(CLONE_NEWNET), "a network namespace")


def _set_interface_up(control_socket: socket.socket, name: bytes) -> None:
    """Activate a network interface in the namespace of the socket. Raises OSError."""
    request = struct.pack("16sH14s", name, 0, b"")
    flags = struct.unpack("16sH14s", fcntl.ioctl(control_socket.fileno(), SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(control_socket.fileno(), SIOCSIFFLAGS, struct.pack("16sH14s", name, flags | IFF_UP, b""))


def _run_in_thread(step: Callable[[], None]) -> None:
    """Run `step` in a new thread and wait for its end. Raises the OSError that it raises."""
    errors: list[OSError] = []

    def run_step() -> None:
        """Run the step and store its OSError for the caller."""
        try:
            step()
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run_step, name="network namespace")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
