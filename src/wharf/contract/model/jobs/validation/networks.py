"""Rules for the networks and ports of a group (jobs.md 2.6)."""

import re
from typing import Final

from wharf.contract.model.jobs.networks import DEFAULT_HOST_NETWORK, MAX_PORT, NetworkResource, Port
from wharf.contract.model.jobs.validation.findings import ValidationReport

SAME_PORT_AS_HOST: Final = -1
"""The `to` of a port that has the same number inside and outside of the network namespace."""
NETWORK_MODES: Final = ("host", "bridge", "none")
_HOST_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){_HOST_LABEL}(\.{_HOST_LABEL})*\.?\Z")


def check_networks(networks: tuple[NetworkResource, ...] | None, path: str, report: ValidationReport) -> None:
    """Add each problem of the networks of a group to the report. `path` is the path of the list.

    Labels, static ports and CNI arguments must be unique across all networks.
    """
    labels: dict[str, str] = {}
    static_ports: dict[tuple[str, int], str] = {}
    arguments: set[str] = set()
    for position, network in enumerate(networks or ()):
        field_path = f"{path}[{position}]"
        _check_network(network, field_path, report)
        for field_name, ports in (("ReservedPorts", network.reserved_ports), ("DynamicPorts", network.dynamic_ports)):
            for number, port in enumerate(ports or ()):
                port_path = f"{field_path}.{field_name}[{number}]"
                _check_port(port, port_path, report, mode=network.mode)
                _check_unique(port, port_path, report, labels, static_ports)
        for key, value in (network.cni.args or {} if network.cni is not None else {}).items():
            if key in arguments:
                report.add_error(f"{field_path}.CNI.Args[{key}]", f'duplicate CNI arg "{key}"')
            if ";" in key or ";" in value:
                report.add_error(f"{field_path}.CNI.Args[{key}]", 'CNI args may not contain ";"')
            arguments.add(key)


def is_valid_hostname(name: str) -> bool:
    """Return whether tasks may have this name as their hostname: a valid DNS name."""
    return _HOSTNAME.match(name) is not None


def _check_network(network: NetworkResource, path: str, report: ValidationReport) -> None:
    """Add each problem of the mode and the hostname of a network to the report."""
    mode = network.mode
    if mode and mode not in NETWORK_MODES and not (mode.startswith("cni/") and len(mode) > len("cni/")):
        report.add_error(
            f"{path}.Mode", f'Unknown network mode "{mode}"', 'use "host", "bridge", "none" or "cni/<name>"'
        )
    if network.hostname and "${" not in network.hostname and not is_valid_hostname(network.hostname):
        report.add_error(f"{path}.Hostname", "Hostname is not a valid DNS name")
    if network.mbits:
        report.add_warning(f"{path}.MBits", "mbits has been deprecated and has no effect")


def _check_port(port: Port, path: str, report: ValidationReport, *, mode: str) -> None:
    """Add each problem of one port of a network to the report. `mode` is the mode of the network."""
    if not port.label:
        report.add_error(f"{path}.Label", "Missing port label")
    if not 0 <= port.value <= MAX_PORT:
        report.add_error(
            f"{path}.Value", f"Port {port.label} cannot be greater than {MAX_PORT} or negative; got {port.value}"
        )
    if not SAME_PORT_AS_HOST <= port.to <= MAX_PORT:
        report.add_error(
            f"{path}.To", f"Port {port.label} cannot be mapped to {port.to}", f"use -1, or 0 to {MAX_PORT}"
        )
    if port.ignore_collision and mode not in ("", "host"):
        report.add_error(
            f"{path}.IgnoreCollision", f'Port {port.label} may ignore collisions only in "host" network mode'
        )


def _check_unique(
    port: Port, path: str, report: ValidationReport, labels: dict[str, str], static_ports: dict[tuple[str, int], str]
) -> None:
    """Add an error to the report if the label or the static number of a port is used already.

    `labels` maps used labels to their paths, and `static_ports` maps used host networks and numbers to labels. The
    port is added to both.
    """
    if port.label in labels:
        report.add_error(f"{path}.Label", f'Port label "{port.label}" already in use', f"see {labels[port.label]}")
    elif port.label:
        labels[port.label] = path
    if port.value <= 0 or port.ignore_collision:
        return
    key = (port.host_network or DEFAULT_HOST_NETWORK, port.value)
    if key in static_ports:
        report.add_error(f"{path}.Value", f'Static port {port.value} already reserved by "{static_ports[key]}"')
    else:
        static_ports[key] = port.label


def list_port_labels(networks: tuple[NetworkResource, ...] | None) -> frozenset[str]:
    """Return the labels of the ports in a group's first network; services can use only these (scheduling.md 2.8)."""
    if not networks:
        return frozenset()
    first = networks[0]
    return frozenset(port.label for port in (*(first.reserved_ports or ()), *(first.dynamic_ports or ())))
