"""Checks whether ports of the machine are free. Servers do not know which ports other programs hold."""

import errno
import socket
from collections.abc import Iterable
from typing import Final

from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.jobs.job import Job

LOOPBACK_ADDRESS: Final = "127.0.0.1"
"""Checked too, because a program that listens on all addresses needs the port here as well."""


def find_taken_port(ports: Iterable[AllocatedPort], node_address: str) -> AllocatedPort | None:
    """Return the first of the ports that a program holds; `None` if all are free.

    A port that is bound to no particular address is checked on `node_address` and on the loopback interface.
    """
    for port in ports:
        if is_port_taken(port.value, port.host_ip, node_address):
            return port
    return None


def is_requested_port(job: Job, group_name: str, port: AllocatedPort) -> bool:
    """Return whether the job's group requests this port number itself, as a reserved port with the same label."""
    group = job.find_group(group_name)
    networks = (group.networks or ()) if group is not None else ()
    return any(port.label == requested.label for network in networks for requested in network.reserved_ports or ())


def is_port_taken(port: int, host_ip: str, node_address: str) -> bool:
    """Return whether a program holds the port on `host_ip`.

    If `host_ip` is empty or is `node_address`, then `node_address` and the loopback interface are checked.
    """
    if host_ip not in ("", node_address):
        return is_port_bound(host_ip, port)
    return is_port_bound(node_address, port) or is_port_bound(LOOPBACK_ADDRESS, port)


def is_port_bound(address: str, port: int) -> bool:
    """Return whether binding the port fails because a program holds it, for TCP or UDP."""
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
