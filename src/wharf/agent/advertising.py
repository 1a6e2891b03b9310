"""The addresses of the HTTP port: the one that other agents receive, and the one that this machine uses itself."""

import logging
import socket
from typing import Final

from wharf.agent.errors import CommandError
from wharf.cluster.engines.settings import EngineKind
from wharf.config.rules import get_listen_address
from wharf.config.settings import AgentSettings
from wharf.world.addresses import format_host_and_port, is_unspecified
from wharf.world.host_address import LOOPBACK_ADDRESS, find_default_address

HOW_TO_FIX: Final = 'set advertise.http to an address of this machine, such as advertise.http = "10.0.0.1:4646"'

log = logging.getLogger(__name__)


def build_local_url(listening: socket.socket, *, tls: bool) -> str:
    """Return the URL at which processes of this machine reach a listening TCP socket."""
    host, port = listening.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{format_host_and_port(LOOPBACK_ADDRESS if is_unspecified(host) else host, port)}"


def find_advertised_address(settings: AgentSettings, listening: socket.socket) -> str:
    """Return the `host:port` at which other servers and nodes reach this server.

    A socket that listens on all addresses is advertised with the address that the node's fingerprint reports. If the
    machine has no such address, a cluster in etcd raises `CommandError`, because its servers would call themselves
    instead of the leader. Any other server logs a warning and advertises the loopback address.
    """
    if settings.advertise.http:
        return settings.advertise.http
    host, port = listening.getsockname()[:2]
    if not is_unspecified(host):
        return format_host_and_port(host, port)
    interface, address = find_default_address(settings.client.network_interface)
    if address == LOOPBACK_ADDRESS:
        _report_missing_address(settings, interface)
    return format_host_and_port(address, port)


def _report_missing_address(settings: AgentSettings, interface: str) -> None:
    """Log that the machine has no address for others, or raise `CommandError` if several servers may need it."""
    reason = (
        f"the interface {interface} has no IPv4 address that other machines can reach"
        if settings.client.network_interface
        else "this machine has no IPv4 address on the interface of a default route"
    )
    if settings.state.engine is EngineKind.ETCD:
        raise CommandError(
            f"other servers cannot be given an address of this one: it listens on {get_listen_address(settings)}, and "
            f"{reason}: {HOW_TO_FIX}"
        )
    log.warning(
        "no address for other machines found; advertising the loopback address reason=%s advice=%s", reason, HOW_TO_FIX
    )
