"""What would help where it is no amount that is missing: drivers, devices, networks, ports, and hosts that must differ.

Words of the smallest change, for `explain`. Nothing is looked up but what nodes tell of themselves.
"""

import difflib
from collections.abc import Sequence
from typing import Final

from wharf.model.group import TaskGroup
from wharf.model.job import Job
from wharf.model.node import Node
from wharf.scheduling.devices import asked_devices, devices_of, fits, healthy_of
from wharf.scheduling.feasibility import MISSING_NETWORK, drivers_of, has_driver, networks_of

ALIKE: Final = 0.7
"""How alike two names are where one may be meant by the other: mock by mokc, and not by docker."""

COLLISION: Final = "network: reserved port collision "
NO_DEVICES: Final = "devices: no devices match request "
NO_MORE: Final = "max allocation exceeded"


def of_drivers(nodes: Sequence[Node], group: TaskGroup) -> str:
    """Which of the group's drivers none of the nodes has, and which these have; empty: each is somewhere."""
    wanted = sorted({task.driver for task in group.tasks or ()})
    missing = [driver for driver in wanted if not any(has_driver(node, driver) for node in nodes)]
    if not missing:
        return ""
    there = sorted({name for node in nodes for name in drivers_of(node)})
    said = f"no node has the driver {' or '.join(missing)}"
    near = difflib.get_close_matches(missing[0], there, n=1, cutoff=ALIKE)
    if near:
        return f"{said}: did you mean {near[0]}?"
    return f"{said}; there are {', '.join(there)}" if there else f"{said}, nor any other"


def of_devices(nodes: Sequence[Node], group: TaskGroup) -> str:
    """Of which device no node has so many, were they all free; empty: of each some node has."""
    for task, asked in asked_devices(group):
        most = max(
            (sum(len(healthy_of(each)) for each in devices_of(node) if fits(each, asked)) for node in nodes), default=0
        )
        if most >= asked.count:
            continue
        if most:
            return (
                f"lower the Count of {asked.name} of {group.name}/{task} from {asked.count} to {most}: no node has more"
            )
        there = sorted({f"{each.vendor}/{each.type}/{each.name}" for node in nodes for each in devices_of(node)})
        said = f"no node has a device {asked.name} that is well and as it is asked for"
        return f"{said}; there are {', '.join(there)}" if there else f"{said}, nor any other"
    return ""


def of_networks(nodes: Sequence[Node], group: TaskGroup, rule: str) -> str:
    modes, names = networks_of(nodes)
    network = (group.networks or (None,))[0]
    if rule == MISSING_NETWORK and network is not None:
        return f"no node has networks of the mode {network.mode}; there are {', '.join(modes)}"
    return f"name a network of the host that nodes have: {', '.join(names)}" if "host network" in rule else ""


def of_held(dimension: str, where: str) -> str:
    """`where`: on one of how many nodes it is all that is missing."""
    if dimension.startswith(COLLISION):
        port = dimension.rpartition("=")[2]
        return f"free the port {port} {where}, ask for another or a dynamic one, or add a node"
    if dimension.startswith(NO_DEVICES):
        return f"free devices {dimension.removeprefix(NO_DEVICES)} {where}, or add a node"
    if dimension == NO_MORE:
        return f"end another allocation {where}, which may take no more of them, or add a node"
    return f'make "{dimension}" free {where}, or add a node'


def of_distinct(job: Job, group: TaskGroup, reason: str) -> str:
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
