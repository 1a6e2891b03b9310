"""Rules of a group's networks and ports (jobs.md 2.6)."""

import re
from typing import Final

from wharf.contract.model.jobs.networks import DEFAULT_HOST_NETWORK, NetworkResource, Port
from wharf.contract.model.jobs.validation.findings import ValidationReport

MAX_PORT: Final = 65_535
SAME_PORT_AS_HOST: Final = -1
NETWORK_MODES: Final = ("host", "bridge", "none")
_HOST_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_HOSTNAME = re.compile(rf"(?=.{{1,253}}\Z){_HOST_LABEL}(\.{_HOST_LABEL})*\.?\Z")


def check_networks(networks: tuple[NetworkResource, ...] | None, path: str, report: ValidationReport) -> None:
    """The networks of a group: labels, static ports and plugin arguments are unique over all of them."""
    labels: dict[str, str] = {}
    statics: dict[tuple[str, int], str] = {}
    arguments: set[str] = set()
    for position, network in enumerate(networks or ()):
        where = f"{path}[{position}]"
        _check_network(network, where, report)
        for kind, ports in (("ReservedPorts", network.reserved_ports), ("DynamicPorts", network.dynamic_ports)):
            for number, port in enumerate(ports or ()):
                place = f"{where}.{kind}[{number}]"
                _check_port(port, place, report, mode=network.mode)
                _check_unique(port, place, report, labels, statics)
        for key, value in (network.cni.args or {} if network.cni is not None else {}).items():
            if key in arguments:
                report.add_error(f"{where}.CNI.Args[{key}]", f'duplicate CNI arg "{key}"')
            if ";" in key or ";" in value:
                report.add_error(f"{where}.CNI.Args[{key}]", 'CNI args may not contain ";"')
            arguments.add(key)


def _check_network(network: NetworkResource, path: str, report: ValidationReport) -> None:
    mode = network.mode
    if mode and mode not in NETWORK_MODES and not (mode.startswith("cni/") and len(mode) > len("cni/")):
        report.add_error(
            f"{path}.Mode", f'Unknown network mode "{mode}"', 'use "host", "bridge", "none" or "cni/<name>"'
        )
    if network.hostname and "${" not in network.hostname and not _HOSTNAME.match(network.hostname):
        report.add_error(f"{path}.Hostname", "Hostname is not a valid DNS name")
    if network.mbits:
        report.add_warning(f"{path}.MBits", "mbits has been deprecated and has no effect")


def _check_port(port: Port, path: str, report: ValidationReport, *, mode: str) -> None:
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
    port: Port, path: str, report: ValidationReport, labels: dict[str, str], statics: dict[tuple[str, int], str]
) -> None:
    if port.label in labels:
        report.add_error(f"{path}.Label", f'Port label "{port.label}" already in use', f"see {labels[port.label]}")
    elif port.label:
        labels[port.label] = path
    if port.value <= 0 or port.ignore_collision:
        return
    key = (port.host_network or DEFAULT_HOST_NETWORK, port.value)
    if key in statics:
        report.add_error(f"{path}.Value", f'Static port {port.value} already reserved by "{statics[key]}"')
    else:
        statics[key] = port.label


def list_port_labels(networks: tuple[NetworkResource, ...] | None) -> frozenset[str]:
    """The labels of the first network, the only one that counts (scheduling.md 2.8)."""
    if not networks:
        return frozenset()
    first = networks[0]
    return frozenset(port.label for port in (*(first.reserved_ports or ()), *(first.dynamic_ports or ())))
