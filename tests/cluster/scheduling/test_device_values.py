"""Values of device attributes, names of devices, affinities of devices, and the instances that are assigned."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_task, an_affinity, some_resources
from tests.kit.state import a_node
from wharf.cluster.scheduling.resources.devices import (
    DeviceShortage,
    assign_devices,
    can_be_same_device,
    has_enough_devices,
    list_device_requests,
    list_devices,
    matches_device_request,
    parse_amount,
    score_best_devices,
    score_device_affinity,
)
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.contract.model.jobs.constraints import Affinity, Constraint
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import DeviceAttribute, DeviceInstance, NodeDevice

FAST = an_affinity("${device.attr.speed}", "5", ">", 75)
NOT_LARGE = an_affinity("${device.model}", "large", "=", -25)


def make_device(name: str = "large", *ids: str, vendor: str = "acme", type: str = "gpu", **values: Any) -> NodeDevice:
    instances = tuple(DeviceInstance(id=each, healthy=True) for each in ids)
    return NodeDevice(vendor=vendor, type=type, name=name, instances=instances, attributes=values)


def make_node(*devices: NodeDevice) -> Node:
    node = a_node()
    assert node.node_resources is not None
    return replace(node, node_resources=replace(node.node_resources, devices=devices))


def make_request(name: str = "gpu", count: int = 1, **fields: Any) -> RequestedDevice:
    return RequestedDevice(name=name, count=count, **fields)


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("11", (11.0, "")),
        (" 11 ", (11.0, "")),
        ("-2.5", (-2.5, "")),
        ("+3", (3.0, "")),
        ("11 GiB", (11 * 2.0**30, "B")),
        ("2KiB", (2_048.0, "B")),
        ("1.5e3 kB", (1_500_000.0, "B")),
        ("2 GB/s", (2e9, "B/s")),
        ("3 MHz", (3e6, "Hz")),
        ("500 mW", (0.5, "W")),
        ("3 apples", None),
        ("3 GiB 4", None),
        ("fast", None),
        ("", None),
    ],
)
def test_an_amount_is_a_number_in_the_base_unit(text: str, amount: tuple[float, str] | None) -> None:
    assert parse_amount(text) == amount


VALUES: dict[str, Any] = {
    "text": DeviceAttribute(string="fast"),
    "empty": DeviceAttribute(string=""),
    "yes": DeviceAttribute(bool_=True),
    "no": DeviceAttribute(bool_=False),
    "int": DeviceAttribute(int_=11),
    "zero": DeviceAttribute(int_=0),
    "float": DeviceAttribute(float_=0.5),
    "both": DeviceAttribute(float_=2.5, int_=9),
    "memory": DeviceAttribute(int_=8, unit="GiB"),
    "rate": DeviceAttribute(float_=1.5, unit="GB/s"),
    "nothing": DeviceAttribute(),
}


@pytest.mark.parametrize(
    ("target", "operand", "right", "is_satisfied"),
    [
        ("text", "=", "fast", True),
        ("text", "==", "fast", True),
        ("text", "is", "slow", False),
        ("text", "!=", "slow", True),
        ("text", "not", "fast", False),
        ("text", "regexp", "^fa", True),
        ("text", "is_set", "", True),
        ("text", "is_not_set", "", False),
        ("text", "<", "gas", True),
        ("empty", "is_set", "", True),
        ("empty", "=", "", True),
        ("yes", "=", "true", True),
        ("no", "=", "false", True),
        ("no", "is_set", "", True),
        ("zero", "is_set", "", True),
        ("zero", "=", "0", True),
        ("int", "=", "11", True),
        ("int", "=", "11.0", True),
        ("int", "<", "9", False),
        ("int", "<=", "11", True),
        ("int", ">", "9", True),
        ("int", ">=", "12", False),
        ("int", "set_contains_any", "10,11", True),
        ("float", "=", "5e-1", True),
        ("both", "=", "2.5", True),
        ("memory", "=", "8192 MiB", True),
        ("memory", "!=", "8192 MiB", False),
        ("memory", "<", "8 GB", False),
        ("memory", ">", "8 GB", True),
        ("memory", "=", "8", False),
        ("memory", "!=", "8", False),
        ("memory", "=", "large", False),
        ("memory", "!=", "large", False),
        ("text", "!=", "8 GiB", False),
        ("rate", ">=", "1500 MB/s", True),
        ("nothing", "is_set", "", False),
        ("nothing", "is_not_set", "", True),
        ("missing", "is_not_set", "", True),
        ("missing", "!=", "", True),
        ("missing", "=", "", False),
        ("missing", "<", "1", False),
        ("missing", "regexp", "", False),
        ("missing", "set_contains", "", False),
        ("int", "=", "${device.attr.missing}", False),
        ("int", "<", "${device.attr.missing}", False),
        ("int", "!=", "${device.attr.missing}", True),
        ("int", "regexp", "${device.attr.missing}", False),
        ("int", "=", "${device.attr.zero}", False),
        ("int", ">", "${device.attr.zero}", True),
        ("missing", "!=", "${device.attr.nothing}", False),
    ],
)
def test_attributes_of_every_type_are_compared(target: str, operand: str, right: str, is_satisfied: bool) -> None:
    constraint = a_constraint(f"${{device.attr.{target}}}", right, operand)

    request = make_request(constraints=(constraint,))

    assert matches_device_request(make_device(**VALUES), request) == is_satisfied


@pytest.mark.parametrize(
    ("constraint", "is_satisfied"),
    [
        (a_constraint("gpu", "${device.type}"), True),
        (a_constraint("${device.model}", "acme"), False),
        (a_constraint("${device.vendor}", "gpu"), False),
        (a_constraint("${device.type}", "large"), False),
        (a_constraint("${device.ids}", "a,b"), True),
        (a_constraint("${device.ids}", "a"), False),
        (a_constraint("${device.serial}", "", "is_not_set"), True),
    ],
)
def test_references_name_the_properties_of_the_device(constraint: Constraint, is_satisfied: bool) -> None:
    device = make_device("large", "a", "b")

    assert matches_device_request(device, make_request(constraints=(constraint,))) == is_satisfied


def test_a_device_without_attributes_and_instances_has_none() -> None:
    device = NodeDevice(vendor="acme", type="gpu", name="large")

    assert [
        matches_device_request(device, make_request(constraints=(constraint,)))
        for constraint in (a_constraint("${device.attr.speed}", "", "is_not_set"), a_constraint("${device.ids}", ""))
    ] == [True, True]
    assert has_enough_devices(make_node(device), [make_request()]) is False


def test_every_constraint_of_a_request_must_be_satisfied() -> None:
    large, slow = a_constraint("${device.model}", "large"), a_constraint("${device.model}", "slow")

    assert [
        matches_device_request(make_device(), make_request(constraints=constraints))
        for constraints in ((large,), (slow,), (large, slow), (slow, large), None)
    ] == [True, False, False, False, True]


@pytest.mark.parametrize(
    ("name", "is_matching"),
    [
        ("gpu", True),
        ("acme", False),
        ("large", False),
        ("acme/gpu", True),
        ("acme/fpga", False),
        ("other/gpu", False),
        ("gpu/large", False),
        ("acme/gpu/large/v2", True),
        ("acme/gpu/large", False),
        ("acme/fpga/large/v2", False),
        ("other/gpu/large/v2", False),
    ],
)
def test_the_name_of_a_device_may_contain_slashes(name: str, is_matching: bool) -> None:
    assert matches_device_request(make_device("large/v2"), make_request(name)) == is_matching


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("gpu", "gpu", True),
        ("gpu", "fpga", False),
        ("gpu", "acme/gpu", True),
        ("fpga", "acme/gpu", False),
        ("gpu", "acme/gpu/large", True),
        ("acme/gpu", "acme/gpu/large", True),
        ("acme/gpu", "other/gpu", False),
        ("acme/gpu", "acme/fpga", False),
        ("acme/gpu/large", "acme/gpu/large", True),
        ("acme/gpu/large", "acme/gpu/small", False),
        ("acme/gpu/large", "other/gpu/large", False),
        ("acme/gpu/a/b", "acme/gpu/a/b", True),
        ("acme/gpu/a/b", "acme/gpu/a/c", False),
    ],
)
def test_two_names_can_mean_one_device_if_no_part_differs(first: str, second: str, expected: bool) -> None:
    assert (can_be_same_device(first, second), can_be_same_device(second, first)) == (expected, expected)


@pytest.mark.parametrize(
    ("affinities", "score"),
    [((), 0.0), ((FAST,), 1.0), ((NOT_LARGE,), -1.0), ((FAST, NOT_LARGE), 0.5), ((FAST, NOT_LARGE, FAST), 125 / 175)],
)
def test_the_affinity_of_a_device_is_the_matching_share_of_the_weights(
    affinities: tuple[Affinity, ...], score: float
) -> None:
    device = make_device(speed=DeviceAttribute(int_=9))

    assert score_device_affinity(device, affinities) == pytest.approx(score)


def test_an_affinity_that_does_not_match_adds_only_to_the_divisor() -> None:
    device = make_device("small", speed=DeviceAttribute(int_=9))

    assert score_device_affinity(device, (FAST, NOT_LARGE)) == 0.75
    assert score_device_affinity(device, (NOT_LARGE,)) == 0.0


def test_the_devices_of_a_node_are_scored_by_the_best_group_of_each_request() -> None:
    node = make_node(
        make_device("large", speed=DeviceAttribute(int_=9)),
        make_device("small", speed=DeviceAttribute(int_=1)),
        make_device("large", type="fpga"),
    )
    fast_gpu, slow_gpu = make_request(affinities=(FAST,)), make_request("acme/gpu/small", affinities=(FAST,))
    large_fpga, unknown = make_request("fpga", affinities=(NOT_LARGE,)), make_request("tpu", affinities=(FAST,))

    assert [
        score_best_devices(node, requests)
        for requests in (
            [],
            [make_request()],
            [fast_gpu],
            [slow_gpu],
            [large_fpga],
            [unknown],
            [fast_gpu, make_request()],
            [fast_gpu, slow_gpu],
            [fast_gpu, large_fpga],
            [large_fpga, fast_gpu],
        )
    ] == [0.0, 0.0, 1.0, 0.0, -1.0, 0.0, 1.0, 0.5, (75 - 25) / 100, (75 - 25) / 100]


def test_each_instance_is_assigned_once_and_nothing_is_marked_as_used() -> None:
    node = make_node(make_device("large", "a", "b", "c"), make_device("large", "d", type="fpga"))
    in_use = ExclusiveResources()
    in_use.devices[("acme", "gpu", "large"), "a"] += 1

    assigned = assign_devices(node, [make_request(), make_request("fpga"), make_request()], in_use)

    assert [(each.vendor, each.type, each.name, each.device_ids) for each in assigned] == [
        ("acme", "gpu", "large", ("b",)),
        ("acme", "fpga", "large", ("d",)),
        ("acme", "gpu", "large", ("c",)),
    ]
    assert dict(in_use.devices) == {(("acme", "gpu", "large"), "a"): 1}


def test_an_earlier_choice_is_undone_with_all_its_instances() -> None:
    # The first request takes both large devices, until the second one lacks a group, and then all three small ones.
    node = make_node(make_device("large", "a", "b"), make_device("small", "c", "d", "e"))
    requests = [make_request(count=2), make_request("acme/gpu/large", 2), make_request("acme/gpu/small", 1)]

    assigned = assign_devices(node, requests, ExclusiveResources())

    assert [each.device_ids for each in assigned] == [("c", "d"), ("a", "b"), ("e",)]


def test_the_first_request_that_no_choice_can_satisfy_is_named() -> None:
    node = make_node(make_device("large", "a"), make_device("small", "b"))

    for requests, missing in (
        ([make_request("tpu"), make_request()], "tpu"),
        ([make_request(), make_request("acme/gpu/tiny"), make_request("tpu")], "acme/gpu/tiny"),
        ([make_request(), make_request("acme/gpu"), make_request("acme/gpu/large")], "acme/gpu/large"),
    ):
        with pytest.raises(DeviceShortage) as error:
            assign_devices(node, requests, ExclusiveResources())
        assert error.value.name == missing


def test_devices_are_requested_by_the_tasks_that_have_resources() -> None:
    gpu, fpga, tpu = make_request("gpu"), make_request("fpga"), make_request("tpu")
    group = a_group(
        "web",
        a_task("one", resources=some_resources(devices=(gpu, fpga))),
        a_task("two", resources=None),
        a_task("three"),
        a_task("four", resources=some_resources(devices=(tpu,))),
    )

    assert list_device_requests(group) == [("one", gpu), ("one", fpga), ("four", tpu)]
    assert list_device_requests(replace(group, tasks=None)) == []


def test_a_node_that_reports_no_resources_has_no_devices() -> None:
    assert [list_devices(replace(a_node(), node_resources=None)), list_devices(a_node())] == [(), ()]
