"""Devices: which ones match a request, how many there are, and which instances are assigned."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_constraint, an_affinity
from tests.kit.state import a_node
from wharf.cluster.scheduling.resources.devices import (
    DeviceShortage,
    assign_devices,
    has_enough_devices,
    matches_device_request,
    score_best_devices,
)
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import DeviceAttribute, DeviceInstance, NodeDevice


def a_device(
    name: str = "big", instances: int = 2, *, vendor: str = "acme", **attributes: DeviceAttribute
) -> NodeDevice:
    return NodeDevice(
        vendor=vendor,
        type="gpu",
        name=name,
        attributes=attributes,
        instances=tuple(DeviceInstance(id=f"{name}-{number}", healthy=True) for number in range(instances)),
    )


def make_node_with_devices(*devices: NodeDevice) -> Node:
    node = a_node()
    assert node.node_resources is not None
    return replace(node, node_resources=replace(node.node_resources, devices=devices))


@pytest.mark.parametrize(
    ("name", "expected"),
    [("gpu", True), ("acme/gpu", True), ("acme/gpu/big", True), ("acme/gpu/small", False), ("other/gpu", False)],
)
def test_a_device_is_named_by_type_by_vendor_and_type_or_in_full(name: str, expected: bool) -> None:
    assert expected == matches_device_request(a_device(), RequestedDevice(name=name, count=1))


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (a_constraint("${device.attr.memory}", "10 GiB", ">="), True),
        (a_constraint("${device.attr.memory}", "11264 MiB", "="), True),
        (a_constraint("${device.attr.memory}", "12 GiB", ">="), False),
        (a_constraint("${device.attr.memory}", "3 MHz", ">="), False),
        (a_constraint("${device.attr.memory}", "3 MHz", "!="), False),
        (a_constraint("${device.attr.memory}", "3 GiB", "!="), True),
        (a_constraint("${device.attr.none}", "1", "!="), True),
        (a_constraint("${device.attr.none}", "${device.attr.other}", "!="), False),
        (a_constraint("${device.attr.none}", "1", "="), False),
        (a_constraint("${device.attr.none}", "", "is_not_set"), True),
        (a_constraint("${device.model}", "big", "="), True),
        (a_constraint("${device.vendor}", "acme", "="), True),
        (a_constraint("${device.type}", "gpu", "="), True),
        (a_constraint("${device.ids}", "big-1", "set_contains"), True),
    ],
)
def test_device_constraints_compare_amounts_with_units(constraint: Constraint, expected: bool) -> None:
    device = a_device(memory=DeviceAttribute(int_=11, unit="GiB"))

    assert expected == matches_device_request(device, RequestedDevice(name="gpu", count=1, constraints=(constraint,)))


def a_request(name: str = "gpu", count: int = 1, **fields: Any) -> RequestedDevice:
    return RequestedDevice(name=name, count=count, **fields)


def list_groups(node: Node, *requests: RequestedDevice) -> list[str]:
    """Return the device group of each request, or an empty list if they cannot all be satisfied."""
    try:
        return [device.name for device in assign_devices(node, requests, ExclusiveResources())]
    except DeviceShortage:
        return []


def test_all_instances_of_a_request_come_from_one_group() -> None:
    node = make_node_with_devices(a_device("big", 2), a_device("small", 1))

    assert list_groups(node, a_request(count=2), a_request(count=1)) == ["big", "small"]
    assert list_groups(node, a_request(count=3)) == []


def test_a_request_leaves_a_group_to_a_later_request_that_needs_it() -> None:
    node = make_node_with_devices(a_device("big", 2), a_device("small", 2))

    assert list_groups(node, a_request(count=1), a_request("acme/gpu/big", 2)) == ["small", "big"]


def test_the_request_that_lacks_devices_is_named() -> None:
    node = make_node_with_devices(a_device("big", 2))

    with pytest.raises(DeviceShortage, match="acme/gpu/big"):
        assign_devices(node, [a_request(count=1), a_request("acme/gpu/big", 2)], ExclusiveResources())


def test_the_search_for_device_groups_is_limited() -> None:
    node = make_node_with_devices(*(a_device(f"d{number}", 2) for number in range(8)))

    assert list_groups(node, *(a_request() for _ in range(16)), a_request(count=2)) == []


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=3),
    st.lists(st.tuples(st.sampled_from(["gpu", "acme/gpu/d0", "acme/gpu/d1"]), st.integers(1, 3)), max_size=3),
)
def test_a_node_has_enough_devices_if_and_only_if_they_can_be_assigned(
    instances: list[int], requested: list[tuple[str, int]]
) -> None:
    node = make_node_with_devices(*(a_device(f"d{number}", count) for number, count in enumerate(instances)))
    requests = [a_request(name, count) for name, count in requested]
    possible = any(
        all(
            matches_device_request(a_device(f"d{group}"), request)
            for group, request in zip(groups, requests, strict=True)
        )
        and all(
            sum(request.count for chosen, request in zip(groups, requests, strict=True) if chosen == group) <= count
            for group, count in enumerate(instances)
        )
        for groups in itertools.product(range(len(instances)), repeat=len(requests))
    )

    assert (has_enough_devices(node, requests), bool(list_groups(node, *requests))) == (
        possible,
        possible and bool(requests),
    )


def test_an_instance_that_is_in_use_or_unhealthy_is_not_assigned() -> None:
    device = replace(a_device("big", 3), instances=(
        DeviceInstance(id="sick", healthy=False), DeviceInstance(id="held", healthy=True), DeviceInstance(id="free", healthy=True),
    ))  # fmt: skip
    in_use = ExclusiveResources()
    in_use.devices[("acme", "gpu", "big"), "held"] += 1

    (assigned,) = assign_devices(make_node_with_devices(device), [a_request()], in_use)

    assert assigned.device_ids == ("free",)


def test_the_group_with_the_best_affinity_is_assigned() -> None:
    node = make_node_with_devices(
        a_device("small", speed=DeviceAttribute(int_=1)), a_device("big", speed=DeviceAttribute(int_=9))
    )
    request = RequestedDevice(
        name="gpu",
        count=1,
        affinities=(
            an_affinity("${device.attr.speed}", "5", ">", 75),
            an_affinity("${device.attr.speed}", "8", ">", -25),
        ),
    )

    (assigned,) = assign_devices(node, [request], ExclusiveResources())

    assert (assigned.name, score_best_devices(node, [request])) == ("big", 0.5)
