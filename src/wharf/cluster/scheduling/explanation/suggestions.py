"""What would help where it is no amount that is missing: drivers, devices, networks, ports, and hosts that must differ.

Words of the smallest change, for `explain`. Nothing is looked up but what nodes tell of themselves.
"""

import difflib
from collections.abc import Sequence
from typing import Final

from wharf.cluster.scheduling.feasibility.checker import (
    MISSING_NETWORK,
    has_healthy_driver,
    iter_healthy_drivers,
    list_network_names,
)
from wharf.cluster.scheduling.resources.devices import (
    list_device_requests,
    list_devices,
    list_healthy_instances,
    matches_device_request,
)
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node

MIN_NAME_SIMILARITY: Final = 0.7
"""How alike two names are where one may be meant by the other: mock by mokc, and not by docker."""

PORT_COLLISION_PREFIX: Final = "network: reserved port collision "
NO_DEVICES_PREFIX: Final = "devices: no devices match request "
MAX_ALLOCATIONS_DIMENSION: Final = "max allocation exceeded"


def suggest_drivers(nodes: Sequence[Node], group: TaskGroup) -> str:
    """Which of the group's drivers none of the nodes has, and which these have; empty: each is somewhere."""
    wanted = sorted({task.driver for task in group.tasks or ()})
    missing = [driver for driver in wanted if not any(has_healthy_driver(node, driver) for node in nodes)]
    if not missing:
        return ""
    there = sorted({name for node in nodes for name in iter_healthy_drivers(node)})
    said = f"no node has the driver {' or '.join(missing)}"
    near = difflib.get_close_matches(missing[0], there, n=1, cutoff=MIN_NAME_SIMILARITY)
    if near:
        return f"{said}: did you mean {near[0]}?"
    return f"{said}; there are {', '.join(there)}" if there else f"{said}, nor any other"


def suggest_devices(nodes: Sequence[Node], group: TaskGroup) -> str:
    """Of which device no node has so many, were they all free; empty: of each some node has."""
    for task, asked in list_device_requests(group):
        most = max(
            (
                sum(
                    len(list_healthy_instances(each))
                    for each in list_devices(node)
                    if matches_device_request(each, asked)
                )
                for node in nodes
            ),
            default=0,
        )
        if most >= asked.count:
            continue
        if most:
            return (
                f"lower the Count of {asked.name} of {group.name}/{task} from {asked.count} to {most}: no node has more"
            )
        there = sorted({f"{each.vendor}/{each.type}/{each.name}" for node in nodes for each in list_devices(node)})
        said = f"no node has a device {asked.name} that is well and as it is asked for"
        return f"{said}; there are {', '.join(there)}" if there else f"{said}, nor any other"
    return ""


def suggest_networks(nodes: Sequence[Node], group: TaskGroup, rule: str) -> str:
    modes, names = list_network_names(nodes)
    network = (group.networks or (None,))[0]
    if rule == MISSING_NETWORK and network is not None:
        return f"no node has networks of the mode {network.mode}; there are {', '.join(modes)}"
    return f"name a network of the host that nodes have: {', '.join(names)}" if "host network" in rule else ""


def suggest_freeing_resource(dimension: str, where: str) -> str:
    """`where`: on one of how many nodes it is all that is missing."""
    if dimension.startswith(PORT_COLLISION_PREFIX):
        port = dimension.rpartition("=")[2]
        return f"free the port {port} {where}, ask for another or a dynamic one, or add a node"
    if dimension.startswith(NO_DEVICES_PREFIX):
        return f"free devices {dimension.removeprefix(NO_DEVICES_PREFIX)} {where}, or add a node"
    if dimension == MAX_ALLOCATIONS_DIMENSION:
        return f"end another allocation {where}, which may take no more of them, or add a node"
    return f'make "{dimension}" free {where}, or add a node'


def suggest_distinct_node(job: Job, group: TaskGroup, reason: str) -> str:
    """`reason`: why nodes with room take no more of the job."""
    lower = f"or lower the count of {group.name}"
    for constraint in (*(job.constraints or ()), *(group.constraints or ())):
        said = f"{constraint.operand}: {constraint.l_target}="
        if constraint.operand == "distinct_property" and reason.startswith(said):
            value = reason.removeprefix(said).rpartition(" used by ")[0]
            return (
                f"add a node whose {constraint.l_target} is not {value}, have {constraint.operand} allow more, {lower}"
            )
    return f"add a node that {reason} allows, {lower}"
