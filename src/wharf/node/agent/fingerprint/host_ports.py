"""Checks whether ports of the machine are free. Servers do not know which ports other programs hold."""

import errno
import socket
from collections.abc import Iterable
from typing import Final

from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.jobs.job import Job

LOOPBACK_ADDRESS: Final = "127.0.0.1"
"""Checked too, because a program that listens on all addresses needs the port here as well."""


def find_taken_port(ports: Iterable[AllocatedPort], address: str) -> AllocatedPort | None:
    """Return the first of the ports that a program holds; `address` is the node's own."""
    for port in ports:
        if is_port_taken(port.value, port.host_ip, address):
            return port
    return None


def is_requested_port(job: Job, group_name: str, port: AllocatedPort) -> bool:
    """Return whether the job itself names this port number."""
    group = job.find_group(group_name)
    networks = (group.networks or ()) if group is not None else ()
    return any(port.label == requested.label for network in networks for requested in network.reserved_ports or ())


def is_port_taken(port: int, host_ip: str, address: str) -> bool:
    """Return whether a program holds the port, on `host_ip` or else on the node's address or the loopback address."""
    if host_ip not in ("", address):
        return is_port_bound(host_ip, port)
    return is_port_bound(address, port) or is_port_bound(LOOPBACK_ADDRESS, port)


def is_port_bound(address: str, port: int) -> bool:
    """Return whether a program listens on the port or receives datagrams on it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for socket_type in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, socket_type) as test_socket:
                if socket_type is socket.SOCK_STREAM:  # Connections in TIME_WAIT do not count.
                    test_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                test_socket.bind((address, port))
        except OSError as error:
            # Other errors, such as a privileged port or a foreign address, are left for the task to report.
            if error.errno == errno.EADDRINUSE:
                return True
    return False
