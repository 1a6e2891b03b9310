"""Suggestions for missing drivers, devices, volumes, networks and ports, and for distinct constraints.

These are texts of the smallest change in an explanation. They use only what nodes report, and the records of host volumes.
"""

from collections.abc import Sequence
from typing import Final

from wharf.cluster.scheduling.feasibility.checker import (
    MISSING_NETWORK,
    has_healthy_driver,
    iter_healthy_drivers,
    list_network_names,
)
from wharf.cluster.scheduling.feasibility.volumes import (
    VolumeLookup,
    get_requested_access,
    list_host_volume_requests,
    list_offered_access,
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
from wharf.contract.model.volumes import HostVolumeState
from wharf.languages.suggestions import find_nearest_name

PORT_COLLISION_PREFIX: Final = "network: reserved port collision "
"""The start of the name of a missing resource if a port is in use; the port follows."""
NO_DEVICES_PREFIX: Final = "devices: no devices match request "
"""The start of the name of a missing resource if devices are in use; the request follows."""
MAX_ALLOCATIONS_DIMENSION: Final = "max allocation exceeded"
"""The name of the missing resource on a node that has its maximum number of allocations."""


def suggest_drivers(nodes: Sequence[Node], group: TaskGroup) -> str:
    """Return a text with the drivers that the group requests and no node has, and the nearest or all available ones.

    Return an empty text if each driver is healthy on some node.
    """
    requested = sorted({task.driver for task in group.tasks or ()})
    missing = [driver for driver in requested if not any(has_healthy_driver(node, driver) for node in nodes)]
    if not missing:
        return ""
    available = sorted({name for node in nodes for name in iter_healthy_drivers(node)})
    text = f"no node has the driver {' or '.join(missing)}"
    nearest = find_nearest_name(missing[0], available)
    if nearest:
        return f"{text}: did you mean {nearest}?"
    return f"{text}; available: {', '.join(available)}" if available else f"{text}; no drivers are available"


def suggest_volume_access(nodes: Sequence[Node], group: TaskGroup, find_volume: VolumeLookup) -> str:
    """Return how to change the first volume request whose name a ready volume has that does not offer its access.

    Return an empty text if there is no such request, or another node has a volume with the access.
    """
    for request in list_host_volume_requests(group):
        access = get_requested_access(request)
        on_nodes = [(node, (node.host_volumes or {}).get(request.source)) for node in nodes]
        volumes = [(node, find_volume(each.id)) for node, each in on_nodes if each is not None and each.id]
        ready = [(node, each) for node, each in volumes if each is not None and each.state is HostVolumeState.READY]
        if not ready or any(access in list_offered_access(volume) for _, volume in ready):
            continue
        node, volume = ready[0]
        offered = list_offered_access(volume)
        if request.read_only and not request.access_mode:
            change = "remove ReadOnly of the request and set it in VolumeMounts"
        else:
            change = "change AccessMode of the request"
        return (
            f"{change}: the volume {request.source} of {node.name} offers {', '.join(offered) or 'no access mode'}, "
            f"not {access}"
        )
    return ""


def suggest_devices(nodes: Sequence[Node], group: TaskGroup) -> str:
    """Return how to change the first device request that no node could satisfy even with all its devices free.

    Return an empty text if there is no such request.
    """
    for task, request in list_device_requests(group):
        max_count = max(
            (
                sum(
                    len(list_healthy_instances(device))
                    for device in list_devices(node)
                    if matches_device_request(device, request)
                )
                for node in nodes
            ),
            default=0,
        )
        if max_count >= request.count:
            continue
        if max_count:
            return (
                f"lower the Count of {request.name} of {group.name}/{task} from {request.count} to {max_count}: "
                "no node has more"
            )
        available = sorted(
            {f"{device.vendor}/{device.type}/{device.name}" for node in nodes for device in list_devices(node)}
        )
        text = f"no node has a healthy device {request.name} that satisfies the request"
        return f"{text}; available: {', '.join(available)}" if available else f"{text}; no devices are available"
    return ""


def suggest_networks(nodes: Sequence[Node], group: TaskGroup, rule: str) -> str:
    """Return which network modes or host networks nodes have, or an empty text if the rule does not concern networks.

    `rule` is the reason that excludes the nodes.
    """
    modes, names = list_network_names(nodes)
    network = (group.networks or (None,))[0]
    if rule == MISSING_NETWORK and network is not None:
        return f"no node has a network with mode {network.mode}; available: {', '.join(modes)}"
    return f"use a host network that nodes have: {', '.join(names)}" if "host network" in rule else ""


def suggest_freeing_resource(dimension: str, location: str) -> str:
    """Return how to free a resource that nodes lack.

    `dimension` is its name in placement metrics, and `location` names the nodes, such as "on node-1".
    """
    if dimension.startswith(PORT_COLLISION_PREFIX):
        port = dimension.rpartition("=")[2]
        return f"free the port {port} {location}, request another or a dynamic port, or add a node"
    if dimension.startswith(NO_DEVICES_PREFIX):
        return f"free devices {dimension.removeprefix(NO_DEVICES_PREFIX)} {location}, or add a node"
    if dimension == MAX_ALLOCATIONS_DIMENSION:
        return f"stop another allocation {location}, where the limit of allocations is reached, or add a node"
    return f'free "{dimension}" {location}, or add a node'


def suggest_distinct_node(job: Job, group: TaskGroup, reason: str) -> str:
    """Return which node to add so that a constraint `distinct_hosts` or `distinct_property` allows a placement.

    `reason` is the text with which placement metrics name the constraint.
    """
    lower = f"or lower the count of {group.name}"
    for constraint in (*(job.constraints or ()), *(group.constraints or ())):
        prefix = f"{constraint.operand}: {constraint.l_target}="
        if constraint.operand == "distinct_property" and reason.startswith(prefix):
            value = reason.removeprefix(prefix).rpartition(" used by ")[0]
            return (
                f"add a node whose {constraint.l_target} is not {value}, "
                f"raise the limit of {constraint.operand}, {lower}"
            )
    return f"add a node that {reason} allows, {lower}"
