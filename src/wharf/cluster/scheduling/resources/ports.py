"""Ports: which are free on a node, and which a group gets there (scheduling.md 2.8)."""

from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final

from wharf.cluster.scheduling.constraints import resolve_target
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.jobs.networks import DEFAULT_HOST_NETWORK, NetworkResource, Port
from wharf.contract.model.nodes.node import Node

MAX_RANDOM_ATTEMPTS: Final = 20
MAX_PORT: Final = 65_535
WILDCARD_ADDRESSES: Final = ("", "0.0.0.0", "::")
"""A port on one of these collides with the same port on any other."""

RandomBelow = Callable[[int], int]
"""A number from 0 up to, not including, the bound."""


class PortUnavailable(Exception):
    """The node cannot give what was asked; the text says what, as metrics tell it."""


@lru_cache(maxsize=1024)
def parse_port_ranges(ranges: str) -> frozenset[int]:
    """`22,80,8000-8100` as numbers; what is no range is passed over: nodes say it, not people."""
    ports: set[int] = set()
    for part in ranges.split(","):
        first, dash, last = part.strip().partition("-")
        if first.isdigit() and (not dash or last.isdigit()):
            ports.update(range(int(first), min(int(last or first), MAX_PORT) + 1))
    return frozenset(ports)


def list_addresses(node: Node, alias: str) -> list[tuple[str, frozenset[int]]]:
    """The addresses of a host network, each with the ports that the node keeps back there."""
    resources = node.node_resources
    kept = (
        parse_port_ranges(node.reserved_resources.networks.reserved_host_ports)
        if node.reserved_resources
        else frozenset()
    )
    found = [
        (address.address, kept | parse_port_ranges(address.reserved_ports))
        for network in (resources.node_networks if resources is not None else None) or ()
        for address in network.addresses or ()
        if (address.alias or DEFAULT_HOST_NETWORK) == alias
    ]
    if not found and alias == DEFAULT_HOST_NETWORK:
        # A node that tells no addresses by name has those of its plain networks, or just itself.
        plain = [network.ip for network in (resources.networks if resources is not None else None) or () if network.ip]
        found = [(address, kept) for address in plain or [""]]
    return found


class PortAssigner:
    """Ports picked on one node for one allocation."""

    def __init__(
        self, node: Node, held: ExclusiveResources, chance: RandomBelow, *, only_address: str | None = None
    ) -> None:
        self._node = node
        self._held = held
        self._chance = chance
        self._only = only_address
        self._offered: set[tuple[str, int]] = set()

    def assign_ports(self, network: NetworkResource) -> tuple[AllocatedPort, ...]:
        """Static ports first, then dynamic ones in the job's order. Raises `NoPort`."""
        static = network.reserved_ports or ()
        picked = [self._static(port) for port in static]
        own = frozenset(port.value for port in static)
        picked += [self._dynamic(port, own) for port in network.dynamic_ports or ()]
        return tuple(picked)

    def assign_ports_on_one_address(self, network: NetworkResource) -> tuple[str, tuple[AllocatedPort, ...]]:
        """The same, all on one address of the node, which is told: the ports of a task have no other. Raises `NoPort`."""
        found = list_addresses(self._node, DEFAULT_HOST_NETWORK)
        why = PortUnavailable(f"no addresses available for {DEFAULT_HOST_NETWORK} network")
        for address, _ in found:
            trial = PortAssigner(self._node, self._held, self._chance, only_address=address)
            trial._offered = set(self._offered)
            try:
                ports = trial.assign_ports(network)
            except PortUnavailable as none:
                why = none
                continue
            self._offered = trial._offered
            return address, ports
        raise why

    def _addresses(self, port: Port) -> list[tuple[str, frozenset[int]]]:
        alias = resolve_target(port.host_network or DEFAULT_HOST_NETWORK, self._node) or ""
        found = [each for each in list_addresses(self._node, alias) if self._only in (None, each[0])]
        if not found:
            raise PortUnavailable(f"no addresses available for {alias} network")
        return found

    def _static(self, port: Port) -> AllocatedPort:
        for address, kept in self._addresses(port):
            if port.ignore_collision or (port.value not in kept and self._is_free(address, port.value)):
                return self._take(port, address, port.value)
        raise PortUnavailable(f"reserved port collision {port.label}={port.value}")

    def _dynamic(self, port: Port, own: frozenset[int]) -> AllocatedPort:
        resources = self._node.node_resources
        assert resources is not None, "a node without resources is never chosen"
        low, high = resources.min_dynamic_port, resources.max_dynamic_port
        for address, kept in self._addresses(port):
            taken = kept | own
            for _ in range(MAX_RANDOM_ATTEMPTS):
                value = low + self._chance(max(1, high - low + 1))
                if value not in taken and self._is_free(address, value):
                    return self._take(port, address, value)
            free = [value for value in range(low, high + 1) if value not in taken and self._is_free(address, value)]
            if free:
                return self._take(port, address, free[self._chance(len(free))])
        raise PortUnavailable("dynamic port selection failed")

    def _is_free(self, address: str, value: int) -> bool:
        ports = self._held.ports
        if address in WILDCARD_ADDRESSES:
            return all(held != value for _, held in self._offered) and all(held != value for _, held in ports)
        return all(
            (each, value) not in ports and (each, value) not in self._offered for each in (address, *WILDCARD_ADDRESSES)
        )

    def _take(self, port: Port, address: str, value: int) -> AllocatedPort:
        if not port.ignore_collision:
            self._offered.add((address, value))
        to = value if port.to == -1 else port.to
        return AllocatedPort(
            label=port.label, value=value, to=to, host_ip=address, ignore_collision=port.ignore_collision
        )


def list_static_ports(networks: Iterable[NetworkResource]) -> list[int]:
    """Those that somebody else may not hold already."""
    return [port.value for network in networks for port in network.reserved_ports or () if not port.ignore_collision]
