"""Texts that say what would help a placement, and which nodes of a system job are served."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task, some_resources
from tests.kit.state import a_node, an_allocation
from wharf.cluster.scheduling.explanation.examination import format_nodes, get_node_state, is_served_by
from wharf.cluster.scheduling.explanation.suggestions import (
    suggest_devices,
    suggest_distinct_node,
    suggest_drivers,
    suggest_freeing_resource,
    suggest_networks,
)
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.nodes.node import DrainStrategy, HostNetwork, Node, NodeStatus, SchedulingEligibility
from wharf.contract.model.nodes.resources import DeviceInstance, NodeDevice, NodeNetwork


@pytest.mark.parametrize("type", [JobType.SYSTEM, JobType.SYSBATCH])
@pytest.mark.parametrize(
    ("fields", "of_system", "of_sysbatch"),
    [
        ({"client_status": ClientStatus.RUNNING}, True, True),
        ({"client_status": ClientStatus.RUNNING, "job_version": 0}, True, True),
        ({"client_status": ClientStatus.RUNNING, "job_create_index": 9}, False, False),
        ({"client_status": ClientStatus.COMPLETE}, False, True),
        ({"client_status": ClientStatus.FAILED}, False, True),
        ({"client_status": ClientStatus.LOST}, False, False),
        ({"client_status": ClientStatus.COMPLETE, "job_version": 0}, False, False),
        ({"desired_status": DesiredStatus.STOP}, False, False),
    ],
)
def test_a_node_is_served_by_an_active_allocation_or_a_result_of_the_current_version(
    fields: dict[str, Any], type: JobType, *, of_system: bool, of_sysbatch: bool
) -> None:
    job = a_job("agent", type=type, version=3, create_index=5)
    allocation = an_allocation(job, **fields)

    assert is_served_by(job, allocation) == (of_system if type is JobType.SYSTEM else of_sysbatch)


@pytest.mark.parametrize(
    ("fields", "state"),
    [
        ({"status": NodeStatus.DOWN, "drain_strategy": DrainStrategy()}, "down"),
        ({"status": NodeStatus.DISCONNECTED}, "disconnected"),
        ({"status": NodeStatus.READY, "drain_strategy": DrainStrategy()}, "draining"),
        ({"status": NodeStatus.READY, "scheduling_eligibility": SchedulingEligibility.INELIGIBLE}, "ineligible"),
    ],
)
def test_the_state_of_a_node_that_accepts_no_placements_is_named(fields: dict[str, Any], state: str) -> None:
    assert get_node_state(a_node(**fields)) == state


def test_nodes_are_counted_with_their_word() -> None:
    assert [format_nodes(count) for count in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


# -- suggestions -------------------------------------------------------------------------------------------------------


def make_driver_node(*drivers: str) -> Node:
    return a_node(attributes={f"driver.{driver}": "1" for driver in drivers})


@pytest.mark.parametrize(
    ("requested", "nodes", "text"),
    [
        (("exec",), [("exec",)], ""),
        (("exec", "docker"), [("exec",), ("docker",)], ""),
        (("dockr",), [("docker",), ("exec",)], "no node has the driver dockr: did you mean docker?"),
        (("zebra",), [("exec",), ("docker", "exec")], "no node has the driver zebra; available: docker, exec"),
        (("zebra", "apple", "exec"), [("exec",)], "no node has the driver apple or zebra; available: exec"),
        (("zebra",), [()], "no node has the driver zebra; no drivers are available"),
        (("zebra",), [], "no node has the driver zebra; no drivers are available"),
    ],
)
def test_missing_drivers_are_named_with_the_nearest_or_all_available_ones(
    requested: tuple[str, ...], nodes: list[tuple[str, ...]], text: str
) -> None:
    group = a_group("web", *(a_task(driver, driver=driver) for driver in requested))

    assert suggest_drivers([make_driver_node(*drivers) for drivers in nodes], group) == text
    assert suggest_drivers([], replace(group, tasks=None)) == ""


def make_device_node(*devices: tuple[str, int]) -> Node:
    node = a_node()
    assert node.node_resources is not None
    groups = tuple(
        NodeDevice(
            vendor="acme",
            type="gpu",
            name=name,
            instances=tuple(DeviceInstance(id=str(number), healthy=number < healthy) for number in range(9)),
        )
        for name, healthy in devices
    )
    return replace(node, node_resources=replace(node.node_resources, devices=groups))


@pytest.mark.parametrize(
    ("request_fields", "nodes", "text"),
    [
        ({"name": "gpu", "count": 3}, [(("big", 1), ("small", 2))], ""),
        (
            {"name": "gpu", "count": 4},
            [(("big", 1), ("small", 2)), (("big", 2),)],
            "lower the Count of gpu of web/train from 4 to 3: no node has more",
        ),
        (
            {"name": "acme/gpu/huge", "count": 1},
            [(("small", 1), ("big", 1)), (("big", 1),)],
            "no node has a healthy device acme/gpu/huge that satisfies the request; available: acme/gpu/big, acme/gpu/small",
        ),
        (
            {"name": "gpu", "count": 1},
            [(("big", 0),)],
            "no node has a healthy device gpu that satisfies the request; available: acme/gpu/big",
        ),
        (
            {"name": "gpu", "count": 1},
            [()],
            "no node has a healthy device gpu that satisfies the request; no devices are available",
        ),
        (
            {"name": "gpu", "count": 1},
            [],
            "no node has a healthy device gpu that satisfies the request; no devices are available",
        ),
    ],
)
def test_the_first_device_request_that_no_node_satisfies_is_explained(
    request_fields: dict[str, Any], nodes: list[tuple[tuple[str, int], ...]], text: str
) -> None:
    request = RequestedDevice(**request_fields)
    group = a_group("web", a_task("train", resources=some_resources(devices=(request,))))
    fits = RequestedDevice(name="gpu", count=0)
    after_another = a_group("web", a_task("train", resources=some_resources(devices=(fits, request))))
    built = [make_device_node(*devices) for devices in nodes]

    assert suggest_devices(built, group) == suggest_devices(built, after_another) == text


def test_networks_of_nodes_are_suggested_for_a_missing_mode_or_host_network() -> None:
    node = a_node(host_networks={"vpn": HostNetwork(name="vpn")})
    assert node.node_resources is not None
    nodes = [replace(node, node_resources=replace(node.node_resources, node_networks=(NodeNetwork(mode="bridge"),)))]
    group = a_group("web", networks=(NetworkResource(mode="cni/x"),))

    assert [
        suggest_networks(nodes, each, rule)
        for each, rule in (
            (group, "missing network"),
            (group, 'missing host network "x" for port "web"'),
            (group, "missing drivers"),
            (a_group("web"), "missing network"),
        )
    ] == [
        "no node has a network with mode cni/x; available: bridge, host, none",
        "use a host network that nodes have: default, vpn",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("dimension", "text"),
    [
        (
            "network: reserved port collision web=80",
            "free the port 80 on n, request another or a dynamic port, or add a node",
        ),
        ("devices: no devices match request acme/gpu", "free devices acme/gpu on n, or add a node"),
        (
            "max allocation exceeded",
            "stop another allocation on n, where the limit of allocations is reached, or add a node",
        ),
        ("cores", 'free "cores" on n, or add a node'),
    ],
)
def test_each_exclusive_resource_is_freed_in_its_own_way(dimension: str, text: str) -> None:
    assert suggest_freeing_resource(dimension, "on n") == text


@pytest.mark.parametrize("is_of_job", [True, False])
def test_a_node_with_another_value_is_suggested_for_a_distinct_property(*, is_of_job: bool) -> None:
    constraints = (
        a_constraint("${meta.zone}", "1", "distinct_property"),
        a_constraint("${meta.rack}", "x"),
        a_constraint("${meta.rack}", "1", "distinct_property"),
    )
    job = a_job(constraints=constraints) if is_of_job else a_job()
    group = a_group("web") if is_of_job else a_group("web", constraints=constraints)

    assert [
        suggest_distinct_node(job, group, reason)
        for reason in ("distinct_property: ${meta.rack}=r used by 1 used by 2 allocs", "distinct_hosts")
    ] == [
        "add a node whose ${meta.rack} is not r used by 1, raise the limit of distinct_property, or lower the count of web",
        "add a node that distinct_hosts allows, or lower the count of web",
    ]
    assert suggest_distinct_node(a_job(), a_group("web"), "distinct_property: ${meta.rack}=r used by 1 allocs") == (
        "add a node that distinct_property: ${meta.rack}=r used by 1 allocs allows, or lower the count of web"
    )
