"""Whether ports of the machine are free. What servers have given away may be held by a program that they know nothing of."""

import errno
import socket
from collections.abc import Iterable
from typing import Final

from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.jobs.job import Job

LOOPBACK_ADDRESS: Final = "127.0.0.1"


def find_taken_port(ports: Iterable[AllocatedPort], address: str) -> AllocatedPort | None:
    """The first that something holds; `address` is the node's own."""
    for port in ports:
        if is_port_taken(port.value, port.host_ip, address):
            return port
    return None


def is_requested_port(job: Job, group_name: str, port: AllocatedPort) -> bool:
    """Whether the job names this number itself."""
    group = job.find_group(group_name)
    networks = (group.networks or ()) if group is not None else ()
    return any(port.label == asked.label for network in networks for asked in network.reserved_ports or ())


def is_port_taken(port: int, host_ip: str, address: str) -> bool:
    """Who listens on all addresses needs the loopback's, too."""
    if host_ip not in ("", address):
        return is_port_bound(host_ip, port)
    return is_port_bound(address, port) or is_port_bound(LOOPBACK_ADDRESS, port)


def is_port_bound(address: str, port: int) -> bool:
    """By a program that listens, or by one that receives datagrams."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        try:
            with socket.socket(family, kind) as trial:
                if kind is socket.SOCK_STREAM:  # What is only fading away holds nothing.
                    trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                trial.bind((address, port))
        except OSError as error:
            # Whatever else is wrong with it (another's address, a port below those we may have), the task will meet.
            if error.errno == errno.EADDRINUSE:
                return True
    return False
