"""Network namespaces that stay while nothing runs in them: each is held by a mount of itself on a file.

A thread of its own makes one: what a thread enters, it alone is in, and it ends with it.
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
OWN_NAMESPACE_PATH: Final = "/proc/thread-self/ns/net"


def create_namespace(file: Path) -> None:
    """Create a network namespace held by `file`, with its loopback interface up. Raises OSError.

    Does nothing if the file already holds a namespace.
    """
    if is_namespace_mounted(file):
        return
    file.touch(mode=0o600)

    def enter_and_hold() -> None:
        _enter_new()
        mount(OWN_NAMESPACE_PATH, file, flags=MS_BIND)
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            _raise_up(asking, b"lo")
        # Nobody but the allocation's tasks is in it: they may all listen at port 80.
        Path(UNPRIVILEGED_PORT_FILE).write_text("0")

    _in_thread(enter_and_hold)


def is_namespace_mounted(file: Path) -> bool:
    return file.exists() and os.path.ismount(file)


def release_namespace(file: Path) -> None:
    """Release the namespace; it ends when no process uses it. Repeated calls have no effect."""
    if os.path.ismount(file):
        unmount(file)
    file.unlink(missing_ok=True)


def find_bridge_error() -> str:
    """Return why bridges cannot be created; empty if they can. Tried in a temporary namespace."""

    def enter_and_try() -> None:
        _enter_new()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            fcntl.ioctl(asking.fileno(), SIOCBRADDBR, b"trial\0")

    try:
        _in_thread(enter_and_try)
    except OSError as error:
        return f"no bridge can be made in a namespace of its own: {error.strerror}"
    return ""


def _enter_new() -> None:
    check_result(load_libc().unshare(CLONE_NEWNET), "a network namespace")


def _raise_up(asking: socket.socket, name: bytes) -> None:
    request = struct.pack("16sH14s", name, 0, b"")
    flags = struct.unpack("16sH14s", fcntl.ioctl(asking.fileno(), SIOCGIFFLAGS, request))[1]
    fcntl.ioctl(asking.fileno(), SIOCSIFFLAGS, struct.pack("16sH14s", name, flags | IFF_UP, b""))


def _in_thread(doing: Callable[[], None]) -> None:
    failed: list[OSError] = []

    def do() -> None:
        try:
            doing()
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=do, name="network namespace")
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
