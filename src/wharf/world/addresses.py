"""Network addresses as people write them."""

from ipaddress import IPv6Address, ip_address
from typing import Final, NamedTuple

MAX_PORT: Final = 65_535


class HostAndPort(NamedTuple):
    """A host name or an IP address, without brackets, and a port."""

    host: str
    port: int


def split_host_and_port(text: str) -> HostAndPort | None:
    """Return the parts of `host:port` or `[address]:port`, or `None` if the text is something else."""
    host, _, port = text.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or len(port) > 5 or int(port) > MAX_PORT:
        return None
    return HostAndPort(host.strip("[]"), int(port))


def format_host_and_port(host: str, port: int) -> str:
    """Return `host:port`, with brackets around an IPv6 address."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def is_unspecified(host: str) -> bool:
    """Return whether the host means all addresses of the machine, such as `0.0.0.0` and `::`.

    A program can listen on such an address, but nobody can be given it to connect to.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return False
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_unspecified
    return address.is_unspecified


def is_loopback(host: str) -> bool:
    """Return whether only processes of this machine can connect to the host.

    This is so for `localhost` and loopback addresses, also for an IPv4 address mapped to IPv6.
    """
    try:
        address = ip_address(host)
    except ValueError:
        return host == "localhost"
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped.is_loopback
    return address.is_loopback
