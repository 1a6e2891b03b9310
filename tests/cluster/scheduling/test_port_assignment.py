"""Ports on the addresses of a node: which ones are free, and which ones an allocation is assigned."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest
from msgspec.structs import replace

from tests.attempts import limited_cpu
from tests.kit.state import a_node
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.resources.ports import (
    PortAssigner,
    PortUnavailable,
    list_addresses,
    list_static_ports,
    parse_port_ranges,
)
from wharf.contract.model.allocations.resources import AllocatedPort
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import (
    NodeNetwork,
    NodeNetworkAddress,
    ReservedNetworks,
    ReservedResources,
)

WEB = Port(label="web", value=80)
Address = tuple[str, str, str]
"""The alias, the address and its reserved ports."""


def make_node(*addresses: Address, low: int = 20_000, high: int = 20_009, reserved: str = "", **fields: Any) -> Node:
    node = a_node(**fields)
    assert node.node_resources is not None
    node_addresses = tuple(
        NodeNetworkAddress(alias=alias, address=address, reserved_ports=ports) for alias, address, ports in addresses
    )
    # Each address is on a network of its own, and one network has no addresses.
    networks = (NodeNetwork(mode="bridge"), *(NodeNetwork(mode="host", addresses=(each,)) for each in node_addresses))
    resources = replace(node.node_resources, min_dynamic_port=low, max_dynamic_port=high, node_networks=networks)
    reserved_resources = ReservedResources(networks=ReservedNetworks(reserved_host_ports=reserved))
    return replace(node, node_resources=resources, reserved_resources=reserved_resources)


def make_network(*static: Port, dynamic: tuple[Port, ...] = ()) -> NetworkResource:
    return NetworkResource(reserved_ports=static or None, dynamic_ports=dynamic or None)


def draw_first(_limit: int) -> int:
    return 0


def draw_last(limit: int) -> int:
    return limit - 1


def make_assigner(
    node: Node, *in_use: tuple[str, int], draw: Callable[[int], int] = draw_first, **options: Any
) -> PortAssigner:
    used = ExclusiveResources()
    used.ports.update(in_use)
    return PortAssigner(node, used, draw, **options)


def list_with_reserved_ports(node: Node, alias: str) -> list[tuple[str, set[int]]]:
    return [(address, set(reserved)) for address, reserved in list_addresses(node, alias)]


def list_assigned(ports: tuple[AllocatedPort, ...]) -> list[tuple[str, int]]:
    return [(port.host_ip, port.value) for port in ports]


@pytest.mark.parametrize(
    ("text", "ports"),
    [
        ("", set()),
        ("22", {22}),
        ("22,80", {22, 80}),
        (" 22 , 80-82", {22, 80, 81, 82}),
        ("5-5", {5}),
        ("5-4", set()),
        ("x,1-y,3", {3}),
        ("-5,7-,9", {9}),
        ("65533-65535", {65_533, 65_534, 65_535}),
        ("65534-70000", {65_534, 65_535}),
        ("65535,65536", {65_535}),
    ],
)
def test_port_ranges_are_numbers_and_ranges_and_other_parts_are_ignored(text: str, ports: set[int]) -> None:
    assert parse_port_ranges(text) == ports


def test_the_addresses_of_a_host_network_have_the_reserved_ports_of_the_node_and_their_own() -> None:
    node = make_node(("", "10.0.0.1", "90"), ("public", "1.2.3.4", ""), ("default", "10.0.0.2", ""), reserved="22")

    assert [list_with_reserved_ports(node, alias) for alias in ("default", "public", "private")] == [
        [("10.0.0.1", {22, 90}), ("10.0.0.2", {22})],
        [("1.2.3.4", {22})],
        [],
    ]


def test_a_node_without_named_addresses_offers_its_plain_networks_or_itself() -> None:
    without = a_node()
    assert without.node_resources is not None
    plain = (NetworkResource(ip="10.0.0.1"), NetworkResource(), NetworkResource(ip="10.0.0.2"))
    with_plain = replace(without, node_resources=replace(without.node_resources, networks=plain))
    with_reserved = replace(make_node(reserved="22"), node_resources=with_plain.node_resources)

    assert [
        list_with_reserved_ports(without, "default"),
        list_with_reserved_ports(replace(without, node_resources=None), "default"),
        list_with_reserved_ports(with_plain, "default"),
        list_with_reserved_ports(with_reserved, "default"),
        list_with_reserved_ports(with_plain, "public"),
    ] == [
        [("", set())],
        [("", set())],
        [("10.0.0.1", set()), ("10.0.0.2", set())],
        [("10.0.0.1", {22}), ("10.0.0.2", {22})],
        [],
    ]


@pytest.mark.parametrize(
    ("draw", "low", "high", "value"),
    [
        (draw_first, 20_000, 20_009, 20_000),
        (draw_last, 20_000, 20_009, 20_009),
        (draw_first, 20_000, 20_000, 20_000),
        (draw_last, 20_000, 20_000, 20_000),
    ],
)
def test_a_dynamic_port_is_drawn_from_the_whole_range(
    draw: Callable[[int], int], low: int, high: int, value: int
) -> None:
    assigner = make_assigner(make_node(("", "10.0.0.1", ""), low=low, high=high), draw=draw)

    (port,) = assigner.assign_ports(make_network(dynamic=(Port(label="any", to=8_080),)))

    assert (port.label, port.value, port.to, port.host_ip) == ("any", value, 8_080, "10.0.0.1")


@pytest.mark.parametrize("draw", [draw_first, draw_last])
def test_a_dynamic_port_is_neither_reserved_nor_in_use_nor_assigned_before(draw: Callable[[int], int]) -> None:
    node = make_node(("", "10.0.0.1", "20000,20009"), reserved="20001,20008")
    assigner = make_assigner(node, ("10.0.0.1", 20_002), ("0.0.0.0", 20_007), draw=draw)
    network = make_network(Port(label="fixed", value=20_003), dynamic=tuple(Port(label=str(n)) for n in range(3)))

    fixed, *dynamic = assigner.assign_ports(network)

    assert fixed.value == 20_003
    assert {port.value for port in dynamic} == {20_004, 20_005, 20_006}
    with pytest.raises(PortUnavailable, match=r"^dynamic port selection failed$"):
        assigner.assign_ports(make_network(dynamic=(Port(label="one more"),)))


def test_a_static_port_that_ignores_collisions_is_left_out_of_dynamic_ports_of_its_network_only() -> None:
    shared = Port(label="shared", value=20_000, ignore_collision=True)
    assigner = make_assigner(make_node(("", "10.0.0.1", ""), low=20_000, high=20_001))

    with_it = assigner.assign_ports(make_network(shared, dynamic=(Port(label="a"),)))
    without = assigner.assign_ports(make_network(dynamic=(Port(label="b"),)))

    assert [port.value for port in (*with_it, *without)] == [20_000, 20_001, 20_000]
    assert [port.ignore_collision for port in (*with_it, *without)] == [True, False, False]


def test_a_dynamic_port_uses_the_next_address_if_the_range_of_the_first_is_in_use() -> None:
    node = make_node(("", "10.0.0.1", ""), ("", "10.0.0.2", "20000"), low=20_000, high=20_001)
    assigner = make_assigner(node, ("10.0.0.1", 20_000), ("10.0.0.1", 20_001))

    assert list_assigned(assigner.assign_ports(make_network(dynamic=(Port(label="any"),)))) == [("10.0.0.2", 20_001)]


@pytest.mark.parametrize(
    ("to", "inside"), [(0, 0), (-1, 80), (1, 1), (8_080, 8_080)], ids=["same", "equal", "one", "other"]
)
def test_the_port_inside_the_container_is_the_requested_one_or_equal(to: int, inside: int) -> None:
    assigner = make_assigner(make_node(("", "10.0.0.1", "")))

    (port,) = assigner.assign_ports(make_network(replace(WEB, to=to)))

    assert (port.label, port.value, port.to, port.ignore_collision) == ("web", 80, inside, False)


@pytest.mark.parametrize(
    ("address", "used", "is_free"),
    [
        ("10.0.0.1", ("10.0.0.1", 80), False),
        ("10.0.0.1", ("10.0.0.2", 80), True),
        ("10.0.0.1", ("10.0.0.1", 81), True),
        ("10.0.0.1", ("0.0.0.0", 80), False),
        ("10.0.0.1", ("::", 80), False),
        ("10.0.0.1", ("", 80), False),
        ("0.0.0.0", ("10.0.0.1", 80), False),
        ("::", ("10.0.0.1", 80), False),
        ("0.0.0.0", ("10.0.0.1", 81), True),
        ("0.0.0.0", ("", 80), False),
    ],
)
@pytest.mark.parametrize("is_own", [True, False], ids=["own", "other"])
def test_a_port_collides_on_its_address_and_with_the_wildcard_addresses(
    address: str, used: tuple[str, int], is_free: bool, is_own: bool
) -> None:
    if is_own:
        assigner = make_assigner(make_node(("first", used[0], ""), ("", address, "")))
        assigner.assign_ports(make_network(Port(label="first", value=used[1], host_network="first")))
    else:
        assigner = make_assigner(make_node(("", address, "")), used)

    if is_free:
        assert list_assigned(assigner.assign_ports(make_network(WEB))) == [(address, 80)]
    else:
        with pytest.raises(PortUnavailable, match=r"^reserved port collision web=80$"):
            assigner.assign_ports(make_network(WEB))


def test_a_port_that_ignores_collisions_does_not_collide_with_later_ports() -> None:
    assigner = make_assigner(make_node(("", "10.0.0.1", "80")))
    shared = replace(WEB, ignore_collision=True)

    assert list_assigned(assigner.assign_ports(make_network(shared, shared))) == [("10.0.0.1", 80)] * 2


def test_the_host_network_of_a_port_may_be_a_reference_to_the_node() -> None:
    node = make_node(("", "10.0.0.1", ""), ("public", "1.2.3.4", ""), meta={"net": "public"})

    def assign(host_network: str) -> list[tuple[str, int]]:
        return list_assigned(make_assigner(node).assign_ports(make_network(replace(WEB, host_network=host_network))))

    assert [assign(name) for name in ("", "default", "public", "${meta.net}")] == [
        [("10.0.0.1", 80)],
        [("10.0.0.1", 80)],
        [("1.2.3.4", 80)],
        [("1.2.3.4", 80)],
    ]
    with pytest.raises(PortUnavailable, match=r"^no addresses available for private network$"):
        assign("private")
    with pytest.raises(PortUnavailable, match=r"^no addresses available for  network$"):
        assign("${meta.missing}")


def test_the_ports_of_a_task_share_the_first_address_with_all_of_them_free() -> None:
    node = make_node(("", "10.0.0.1", ""), ("", "10.0.0.2", ""), ("", "10.0.0.3", ""), low=20_000, high=20_000)
    assigner = make_assigner(node, ("10.0.0.1", 443))
    tls = Port(label="tls", value=443)

    first = assigner.assign_ports_on_one_address(make_network(WEB, tls, dynamic=(Port(label="any"),)))
    second = assigner.assign_ports_on_one_address(make_network(WEB))
    third = assigner.assign_ports_on_one_address(make_network(WEB, tls))

    assert [(address, list_assigned(ports)) for address, ports in (first, second, third)] == [
        ("10.0.0.2", [("10.0.0.2", 80), ("10.0.0.2", 443), ("10.0.0.2", 20_000)]),
        ("10.0.0.1", [("10.0.0.1", 80)]),
        ("10.0.0.3", [("10.0.0.3", 80), ("10.0.0.3", 443)]),
    ]
    with pytest.raises(PortUnavailable, match=r"^reserved port collision web=80$"):
        assigner.assign_ports_on_one_address(make_network(WEB))
    with pytest.raises(PortUnavailable, match=r"^no addresses available for other network$"):
        assigner.assign_ports_on_one_address(make_network(Port(label="web", value=1, host_network="other")))


def test_ports_can_be_limited_to_one_address() -> None:
    node = make_node(("", "10.0.0.1", ""), ("", "10.0.0.2", ""))

    assigner = make_assigner(node, only_address="10.0.0.2")

    assert list_assigned(assigner.assign_ports(make_network(WEB))) == [("10.0.0.2", 80)]
    with pytest.raises(PortUnavailable, match=r"^reserved port collision web=80$"):
        assigner.assign_ports(make_network(WEB))


def test_static_ports_that_ignore_collisions_are_not_listed() -> None:
    shared = Port(label="shared", value=90, ignore_collision=True)
    networks = [make_network(WEB, shared), make_network(dynamic=(WEB,)), make_network(Port(label="tls", value=443))]

    assert list_static_ports(networks) == [80, 443]


def test_many_ports_of_a_node_without_addresses_take_a_short_time() -> None:
    node = make_node(low=20_000, high=32_000)
    labels = tuple(Port(label=f"p{number}") for number in range(2_000))
    in_use = [(f"10.0.0.{number % 9}", 10_000 + number) for number in range(8_000)]
    assigner = make_assigner(node, *in_use, draw=Random(1).randrange)

    with limited_cpu(0.5, "the choice"):  # Searching all ports for each number takes over a second.
        ports = assigner.assign_ports(make_network(dynamic=labels))

    assert len({port.value for port in ports}) == 2_000


def test_the_last_free_ports_of_a_node_are_listed_once() -> None:
    node = make_node(low=20_000, high=31_999)
    labels = tuple(Port(label=f"p{number}") for number in range(1_000))
    assigner = make_assigner(node, *(("", number) for number in range(20_000, 31_000)), draw=draw_first)

    with limited_cpu(0.5, "the choice"):  # Listing them for each port takes over two seconds.
        ports = assigner.assign_ports(make_network(dynamic=labels))

    assert [port.value for port in ports] == list(range(31_000, 32_000))
    with pytest.raises(PortUnavailable):
        assigner.assign_ports(make_network(dynamic=labels[:1]))
