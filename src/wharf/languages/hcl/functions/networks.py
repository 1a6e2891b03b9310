"""Functions of network addresses, IPv4 and IPv6."""

import re
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Final

from wharf.languages.hcl.calls import CallContext, FunctionError, FunctionSpec, define_function
from wharf.languages.hcl.values import STRING, HclList, Value

_PREFIX: Final = re.compile(r"[0-9a-fA-F:.]{2,45}/[0-9]{1,3}")


def _read_prefix(text: str) -> IPv4Network | IPv6Network:
    """Return the network of a prefix such as 10.0.0.0/8. Raises `FunctionError`."""
    if _PREFIX.fullmatch(text):
        try:
            return ip_network(text, strict=False)
        except ValueError:
            pass
    raise FunctionError("the prefix is an address and a length, such as 10.0.0.0/16", argument=0)


def _get_host(context: CallContext, prefix: str, number: int) -> Value:
    context.budget.use_steps(20)
    network = _read_prefix(prefix)
    count = network.num_addresses
    if not -count <= number < count:
        raise FunctionError(f"the prefix has {count} addresses", argument=1)
    return str(network.network_address + number % count)


def _get_netmask(context: CallContext, prefix: str) -> Value:
    context.budget.use_steps(20)
    return str(_read_prefix(prefix).netmask)


def _get_subnet(context: CallContext, prefix: str, new_bits: int, number: int) -> Value:
    context.budget.use_steps(20)
    network = _read_prefix(prefix)
    length = _extend(network, new_bits, 1)
    if not 0 <= number < 1 << new_bits:
        raise FunctionError(f"{new_bits} more bits give the numbers 0 to {(1 << new_bits) - 1}", argument=2)
    first = int(network.network_address) + (number << (network.max_prefixlen - length))
    return str(type(network)((first, length)))


def _get_subnets(context: CallContext, prefix: str, *new_bits: int) -> Value:
    context.budget.use_steps(20 * len(new_bits))
    network = _read_prefix(prefix)
    position = int(network.network_address)
    end = position + network.num_addresses
    subnets: list[Value] = []
    for argument, bits in enumerate(new_bits, 1):
        length = _extend(network, bits, argument)
        size = 1 << (network.max_prefixlen - length)
        position = -(-position // size) * size  # A subnet starts at a multiple of its size.
        if position + size > end:
            raise FunctionError("the prefix has no space for this subnet", argument=argument)
        subnets.append(str(type(network)((position, length))))
        position += size
    return HclList(tuple(subnets), STRING)


def _extend(network: IPv4Network | IPv6Network, new_bits: int, argument: int) -> int:
    """Return the length of a subnet's prefix. Raises `FunctionError`."""
    length = network.prefixlen + new_bits
    if new_bits < 0 or length > network.max_prefixlen:
        raise FunctionError(
            f"more bits are between 0 and {network.max_prefixlen - network.prefixlen}", argument=argument
        )
    return length


FUNCTIONS: Final[Mapping[str, FunctionSpec]] = dict(
    (
        define_function("cidrhost", "prefix:text number:whole", _get_host),
        define_function("cidrnetmask", "prefix:text", _get_netmask),
        define_function("cidrsubnet", "prefix:text newbits:whole number:whole", _get_subnet),
        define_function("cidrsubnets", "prefix:text newbits...:whole", _get_subnets),
    )
)
