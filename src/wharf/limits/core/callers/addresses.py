"""Whose address a request comes from: the socket's, or what trusted proxies say it is.

Of proxies one thing is configured, never both: the networks that are trusted, or how many hops there are. Everything
here works on texts and moves nothing.
"""

import re
from collections.abc import Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Final

import msgspec

ANONYMOUS_V6_BITS: Final = 64
NETWORK_V6_BITS: Final = 48
NETWORK_V4_BITS: Final = 24

_FOR: Final = re.compile(r'(?:^|;)\s*for\s*=\s*("[^"]*"|[^;,"\s]*)', re.IGNORECASE)

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network


class InvalidProxies(ValueError):
    """A statement about proxies that contradicts itself."""


class ProxySettings(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the proxies in front of this service."""

    trusted: tuple[Network, ...] = ()
    hops: int = 0
    should_read_forwarded: bool = False
    """Whether `Forwarded` is read in place of `X-Forwarded-For`."""


def read_proxies(*, trusted: Sequence[str] = (), hops: int = 0, should_read_forwarded: bool = False) -> ProxySettings:
    if trusted and hops:
        raise InvalidProxies(
            "`trusted` and `hops` cannot both be given: say which networks the proxies are in, or how many there are"
        )
    if hops < 0:
        raise InvalidProxies(f"`hops` is {hops}: give the number of proxies in front of the service, 0 or more")
    try:
        networks = tuple(ip_network(text) for text in trusted)
    except ValueError as problem:
        raise InvalidProxies(f"`trusted`: {problem}; write networks such as 10.0.0.0/8") from None
    return ProxySettings(trusted=networks, hops=hops, should_read_forwarded=should_read_forwarded)


def find_address(
    socket_address: str, proxies: ProxySettings, *, forwarded_for: Sequence[str] = (), forwarded: Sequence[str] = ()
) -> Address:
    """The caller's address. Headers come as their lines, in order; without proxies they say nothing."""
    here = parse_address(socket_address)
    if here is None:
        raise ValueError(f"{socket_address!r} is no address of a socket")
    if not proxies.trusted and not proxies.hops:
        return here
    said = _forwarded_entries(forwarded) if proxies.should_read_forwarded else _list_entries(forwarded_for)
    return _by_hops(here, said, proxies.hops) if proxies.hops else _by_trust(here, said, proxies.trusted)


def _by_hops(here: Address, said: Sequence[str], hops: int) -> Address:
    """One hop back for each proxy; a malformed entry stops at the last good one."""
    found = here
    for text in list(reversed(said))[:hops]:
        address = parse_address(text)
        if address is None:
            break
        found = address
    return found


def _by_trust(here: Address, said: Sequence[str], trusted: Sequence[Network]) -> Address:
    """From the right, the first address that is not a proxy of ours."""
    found = here
    for text in reversed(said):
        if not any(found in network for network in trusted):
            break
        address = parse_address(text)
        if address is None:
            break
        found = address
    return found


def _list_entries(lines: Sequence[str]) -> list[str]:
    return [entry.strip() for entry in ",".join(lines).split(",")] if lines else []


def _forwarded_entries(lines: Sequence[str]) -> list[str]:
    entries = []
    for element in ",".join(lines).split(",") if lines else ():
        found = _FOR.search(element)
        entries.append(found[1].strip('"') if found else "")
    return entries


def parse_address(text: str) -> Address | None:
    """An address with its port and zone cut; an IPv4 address in the clothes of IPv6 is IPv4. None if it is none."""
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


def build_address_scope(address: Address) -> str:
    """The scope value: the address of IPv4, the network of 64 bits of IPv6, as nobody can count the addresses in it."""
    if isinstance(address, IPv4Address):
        return f"address:{address}"
    return f"address:{ip_network((address, ANONYMOUS_V6_BITS), strict=False)}"


def build_network_scope(address: Address) -> str:
    """The scope value that addresses share when there are too many to count one by one."""
    bits = NETWORK_V4_BITS if isinstance(address, IPv4Address) else NETWORK_V6_BITS
    return f"address:{ip_network((address, bits), strict=False)}"
