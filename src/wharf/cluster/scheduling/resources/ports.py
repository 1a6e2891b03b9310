"""Finds free ports on a node and assigns them to an allocation (scheduling.md 2.8)."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from wharf.cluster.scheduling.constraints import resolve_target
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.jobs.networks import DEFAULT_HOST_NETWORK, MAX_PORT, NetworkResource, Port
from wharf.contract.model.nodes.node import Node

MAX_RANDOM_ATTEMPTS: Final = 20
"""How many random ports are tried for a dynamic port before all free ports of an address are listed (slower)."""
WILDCARD_ADDRESSES: Final = ("", "0.0.0.0", "::")
"""Addresses that stand for all. A port on one of them collides with the same port on any address."""

RandomBelow = Callable[[int], int]
"""Returns a random number from 0 up to, not including, the argument."""


class PortUnavailable(Exception):
    """The node cannot provide a requested port. Placement metrics show the text of this exception."""


@lru_cache(maxsize=1024)
def parse_port_ranges(ranges: str) -> frozenset[int]:
    """Return the port numbers in a text such as `22,80,8000-8100`.

    Invalid parts are ignored, because the text comes from a node and not from a user who could correct it.
    """
    ports: set[int] = set()
    for part in ranges.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            ports.update(range(int(first), min(int(last or first), MAX_PORT) + 1))
    return frozenset(ports)


def list_addresses(node: Node, alias: str) -> list[tuple[str, frozenset[int]]]:
    """Return the IP addresses of the host network with this alias, each with the ports that jobs must not use there.

    The address is empty if the node reports no addresses at all and `alias` is the default host network. The list is
    empty if the node has no host network with this alias.
    """
    resources = node.node_resources
    reserved = (
        parse_port_ranges(node.reserved_resources.networks.reserved_host_ports)
        if node.reserved_resources
        else frozenset()
    )
    addresses = [
        (address.address, reserved | parse_port_ranges(address.reserved_ports))
        for network in (resources.node_networks if resources is not None else None) or ()
        for address in network.addresses or ()
        if (address.alias or DEFAULT_HOST_NETWORK) == alias
    ]
    if not addresses and alias == DEFAULT_HOST_NETWORK:
        # Use the plain networks of a node that reports no named addresses, or else the node itself.
        plain_addresses = [
            network.ip for network in (resources.networks if resources is not None else None) or () if network.ip
        ]
        addresses = [(address, reserved) for address in plain_addresses or [""]]
    return addresses


class PortAssigner:
    """Assigns ports on one node to one allocation. They collide neither with ports in use nor with each other."""

    def __init__(
        self, node: Node, in_use: ExclusiveResources, random_below: RandomBelow, *, only_address: str | None = None
    ) -> None:
        """`in_use` are the ports in use on the node; it is not changed.

        `only_address` limits the ports to one address.
        """
        self._node = node
        self._in_use = in_use
        self._random_below = random_below
        self._only_address = only_address
        self._assigned: set[tuple[str, int]] = set()
        """Address and number of each port that the allocation has been assigned so far."""
        self._free: dict[tuple[str, frozenset[int]], list[int]] = {}
        """By address and excluded numbers, the numbers of the dynamic range that were free when random ones were not. They are listed
        once: a job may request thousands of ports on a node with few free ones."""
        self._numbers: set[int] | None = None
        """The numbers of all ports in use or assigned, on any address; `None` until they are needed."""

    def assign_ports(self, network: NetworkResource) -> tuple[AllocatedPort, ...]:
        """Assign all ports of the network and return them: first the static ports, then the dynamic ones, in job order.

        Raises `PortUnavailable` if a port cannot be assigned.
        """
        static_ports = network.reserved_ports or ()
        assigned = [self._assign_static(port) for port in static_ports]
        own_ports = frozenset(port.value for port in static_ports)
        assigned += [self._assign_dynamic(port, own_ports) for port in network.dynamic_ports or ()]
        return tuple(assigned)

    def assign_ports_on_one_address(self, network: NetworkResource) -> tuple[str, tuple[AllocatedPort, ...]]:
        """Assign all ports of a task's own network on one address, and return the address and the ports.

        The first address of the node with all ports free is used. Raises `PortUnavailable` if there is none.
        """
        addresses = list_addresses(self._node, DEFAULT_HOST_NETWORK)
        last_error = PortUnavailable(f"no addresses available for {DEFAULT_HOST_NETWORK} network")
        for address, _ in addresses:
            attempt = PortAssigner(self._node, self._in_use, self._random_below, only_address=address)
            attempt._assigned = set(self._assigned)
            try:
                ports = attempt.assign_ports(network)
            except PortUnavailable as error:
                last_error = error
                continue
            self._assigned, self._numbers = attempt._assigned, attempt._numbers
            return address, ports
        raise last_error

    def _list_addresses(self, port: Port) -> list[tuple[str, frozenset[int]]]:
        """Return the addresses on which the port may be assigned, each with the port numbers that the node reserves.

        Raises `PortUnavailable` if the node has no address in the port's host network.
        """
        alias = resolve_target(port.host_network or DEFAULT_HOST_NETWORK, self._node) or ""
        addresses = [
            address for address in list_addresses(self._node, alias) if self._only_address in (None, address[0])
        ]
        if not addresses:
            raise PortUnavailable(f"no addresses available for {alias} network")
        return addresses

    def _assign_static(self, port: Port) -> AllocatedPort:
        """Assign a static port on the first address where it is free, and return it.

        Raises `PortUnavailable` if it is free on no address.
        """
        for address, reserved in self._list_addresses(port):
            if port.ignore_collision or (port.value not in reserved and self._is_free(address, port.value)):
                return self._record(port, address, port.value)
        raise PortUnavailable(f"reserved port collision {port.label}={port.value}")

    def _assign_dynamic(self, port: Port, own_ports: frozenset[int]) -> AllocatedPort:
        """Assign a random free number of the node's dynamic port range to the port, and return the assigned port.

        `own_ports` are the static ports of the same network, which are left out. Raises `PortUnavailable` if the whole
        range is in use on all addresses.
        """
        resources = self._node.node_resources
        assert resources is not None, "a node without resources is never chosen"
        low, high = resources.min_dynamic_port, resources.max_dynamic_port
        for address, reserved in self._list_addresses(port):
            excluded = reserved | own_ports
            for _ in range(MAX_RANDOM_ATTEMPTS):
                value = low + self._random_below(max(1, high - low + 1))
                if value not in excluded and self._is_free(address, value):
                    return self._record(port, address, value)
            free_value = self._draw_free(address, range(low, high + 1), excluded)
            if free_value is not None:
                return self._record(port, address, free_value)
        raise PortUnavailable("dynamic port selection failed")

    def _draw_free(self, address: str, numbers: range, excluded: frozenset[int]) -> int | None:
        """Return one of the free numbers that are not excluded, or `None` if there is none. It is not returned again."""
        free = self._free.get((address, excluded))
        if free is None:
            free = [value for value in numbers if value not in excluded and self._is_free(address, value)]
            self._free[address, excluded] = free
        while free:
            value = free.pop(self._random_below(len(free)))
            if self._is_free(address, value):  # It may have been assigned since the numbers were listed.
                return value
        return None

    def _is_free(self, address: str, value: int) -> bool:
        """Return whether the port number is free on the address.

        A port in use on a wildcard address such as `0.0.0.0` is in use on all addresses, and the other way round.
        """
        ports = self._in_use.ports
        if address in WILDCARD_ADDRESSES:
            if self._numbers is None:  # Searching all ports for each number would take seconds for a job of many ports.
                self._numbers = {used_port for used in (ports, self._assigned) for _, used_port in used}
            return value not in self._numbers
        return all(
            (other_address, value) not in ports and (other_address, value) not in self._assigned
            for other_address in (address, *WILDCARD_ADDRESSES)
        )

    def _record(self, port: Port, address: str, value: int) -> AllocatedPort:
        """Record that the port has this address and number, so that no later port gets them, and return its record."""
        if not port.ignore_collision:
            self._assigned.add((address, value))
            if self._numbers is not None:
                self._numbers.add(value)
        to = value if port.to == -1 else port.to  # -1: the port inside the container equals the assigned port
        return AllocatedPort(
            label=port.label, value=value, to=to, host_ip=address, ignore_collision=port.ignore_collision
        )


def list_static_ports(networks: Iterable[NetworkResource]) -> list[int]:
    """Return the numbers of the static ports that these networks request.

    Ports with `ignore_collision` are left out, because they may be in use already.
    """
    return [port.value for network in networks for port in network.reserved_ports or () if not port.ignore_collision]
