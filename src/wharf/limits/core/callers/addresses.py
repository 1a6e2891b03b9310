"""The address that a request comes from: the address of the socket, or the one that trusted proxies report.

Operators configure either the networks of trusted proxies or the number of proxies, never both. This module parses
text and does no I/O.
"""

import functools
import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

ANONYMOUS_V6_BITS: Final = 64
"""An IPv6 caller is counted by its /64 network: a single host can use every address in it."""
NETWORK_V6_BITS: Final = 48
"""The IPv6 network that shares one counter when too many addresses are counted."""
NETWORK_V4_BITS: Final = 24
"""The IPv4 network that shares one counter when too many addresses are counted."""

MAX_ENTRIES: Final = 100
"""Entries of a header that are read, from the right: the next proxies. Limits the time, because callers send entries too."""
MAX_CACHED_SCOPES: Final = 4_096
"""How many addresses have their texts in the cache. To format a text takes 1 to 10 µs. Limits the memory to about 1 MB."""

_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^;,"\s]*)', re.IGNORECASE)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class InvalidProxies(ValueError):
    """The proxy settings contradict each other or cannot be parsed."""


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """The proxies in front of this service, as the operator configured them."""

    trusted: tuple[Network, ...] = ()
    """Networks of the proxies. The entries that they add to headers are believed."""
    hops: int = 0
    """The number of proxies in front of the service; 0 if there are none or if `trusted` is used."""
    should_read_forwarded: bool = False
    """Whether the `Forwarded` header is read instead of `X-Forwarded-For`."""


def read_proxies(*, trusted: Sequence[str] = (), hops: int = 0, should_read_forwarded: bool = False) -> ProxySettings:
    """Return the proxy settings for these configured values.

    Raises `InvalidProxies` if they contradict each other or cannot be parsed.
    """
    if trusted and hops:
        raise InvalidProxies(
            "`trusted` and `hops` are both set: set the networks of the proxies or their number, not both"
        )
    if hops < 0:
        raise InvalidProxies(f"`hops` is {hops}: set the number of proxies in front of the service, 0 or more")
    try:
        networks = tuple(ip_network(text) for text in trusted)
    except ValueError as problem:
        raise InvalidProxies(f"`trusted`: {problem}; write networks such as 10.0.0.0/8") from None
    return ProxySettings(trusted=networks, hops=hops, should_read_forwarded=should_read_forwarded)


def is_proxy(socket_address: str, proxies: ProxySettings) -> bool:
    """Return whether the other end of a socket is one of the configured proxies. With `hops`, every one is."""
    if not proxies.trusted:
        return proxies.hops > 0
    peer = parse_address(socket_address)
    return peer is not None and any(peer in network for network in proxies.trusted)


def find_address(
    socket_address: str, proxies: ProxySettings, *, forwarded_for: Sequence[str] = (), forwarded: Sequence[str] = ()
) -> Address:
    """Return the address of the caller: that of the socket, or the one that trusted proxies report in a header.

    Each header argument holds the lines of that header in order. Without configured proxies the headers are ignored.
    Raises `ValueError` if `socket_address` is not an IP address.
    """
    peer = parse_address(socket_address)
    if peer is None:
        raise ValueError(f"{socket_address!r} is not an IP address")
    if not proxies.trusted and not proxies.hops:
        return peer
    entries = _parse_forwarded_entries(forwarded) if proxies.should_read_forwarded else _split_entries(forwarded_for)
    return (
        _find_by_hops(peer, entries, proxies.hops)
        if proxies.hops
        else _find_by_trusted_networks(peer, entries, proxies.trusted)
    )


def _find_by_hops(peer: Address, entries: Sequence[str], hops: int) -> Address:
    """Return the address in the header entry that is `hops` entries from the right.

    Each proxy adds one entry on the right. A malformed entry ends the search: the result is the last valid address
    before it, at first `peer`, the address of the socket.
    """
    found = peer
    for text in list(reversed(entries))[:hops]:
        address = parse_address(text)
        if address is None:
            break
        found = address
    return found


def _find_by_trusted_networks(peer: Address, entries: Sequence[str], trusted: Sequence[Network]) -> Address:
    """Return the first address that is not in a trusted network: `peer`, then the header entries from the right.

    A malformed entry ends the search at the last valid address.
    """
    found = peer
    for text in reversed(entries):
        if not any(found in network for network in trusted):
            break
        address = parse_address(text)
        if address is None:
            break
        found = address
    return found


def _split_entries(lines: Sequence[str]) -> list[str]:
    """Return the last entries of `X-Forwarded-For` lines, in order."""
    return [entry.strip() for entry in ",".join(lines).rsplit(",", MAX_ENTRIES)[-MAX_ENTRIES:]] if lines else []


def _parse_forwarded_entries(lines: Sequence[str]) -> list[str]:
    """Return the `for=` value of each of the last elements of `Forwarded` lines, or an empty text if the element has none."""
    values = []
    for element in ",".join(lines).rsplit(",", MAX_ENTRIES)[-MAX_ENTRIES:] if lines else ():
        found = _FOR.search(element)
        values.append(found[1].strip('"') if found else "")
    return values


def parse_address(text: str) -> Address | None:
    """Parse an address and drop its port and zone. Return `None` if the text is not an IP address.

    An IPv4 address in IPv6 notation (`::ffff:192.0.2.7`) is returned as IPv4.
    """
    text = text.strip()
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    try:
        address = ip_address(text.partition("%")[0])
    except ValueError:
        return None
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return mapped or address


@functools.lru_cache(MAX_CACHED_SCOPES)
def build_address_scope(address: Address) -> str:
    """Return an address as counter keys contain it: `address:192.0.2.7`, or `address:` with the /64 network for IPv6."""
    if isinstance(address, IPv4Address):
        return f"address:{address}"
    return f"address:{ip_network((address, ANONYMOUS_V6_BITS), strict=False)}"


def build_network_scope(address: Address) -> str:
    """Return the wider network of an address as counter keys contain it, such as `address:192.0.2.0/24`.

    Addresses share its counter when there are too many to count separately.
    """
    bits = NETWORK_V4_BITS if isinstance(address, IPv4Address) else NETWORK_V6_BITS
    return f"address:{ip_network((address, bits), strict=False)}"
