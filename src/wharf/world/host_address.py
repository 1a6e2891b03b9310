"""The IPv4 address at which other machines reach this one, from the kernel's table of routes."""

import contextlib
import fcntl
import socket
import struct
from pathlib import Path
from typing import Final

ROUTES: Final = Path("/proc/net/route")
LOOPBACK_ADDRESS: Final = "127.0.0.1"


def find_default_address(interface: str) -> tuple[str, str]:
    """Return a network interface and its IPv4 address.

    The interface is `interface` if given, else that of the default route, else `lo`. The address of an interface without
    one is 127.0.0.1.
    """
    device = interface or _find_default_device() or "lo"
    return device, _read_address(device) or LOOPBACK_ADDRESS


def _find_default_device() -> str:
    """Return the name of the interface of the IPv4 default route; empty if there is none."""
    try:
        routes = ROUTES.read_text().splitlines()[1:]
    except OSError:
        return ""
    for line in routes:
        fields = line.split()
        if len(fields) > 2 and fields[1] == "00000000":
            return fields[0]
    return ""


def _read_address(device: str) -> str:
    """Return the IPv4 address of a network interface, as the ioctl SIOCGIFADDR returns it; empty if it has none."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as query_socket:
        reply = fcntl.ioctl(query_socket.fileno(), 0x8915, struct.pack("256s", device.encode()[:15]))
        return socket.inet_ntoa(reply[20:24])
    return ""
