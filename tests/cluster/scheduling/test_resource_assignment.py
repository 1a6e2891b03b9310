"""The resources that an allocation uses and is assigned: lifecycle phases, ports and cores."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_task, some_resources
from tests.kit.state import a_node
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.resources.assignment import InsufficientResources, ResourceAssigner
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.contract.model.allocations.resources import AllocatedResources
from wharf.contract.model.jobs.group_policies import EphemeralDisk
from wharf.contract.model.jobs.groups import Lifecycle, TaskGroup
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.nodes.resources import (
    NodeCpu,
    NodeNetwork,
    NodeNetworkAddress,
    ReservedNetworks,
    ReservedResources,
)
from wharf.contract.model.resource_usage import Usage, get_group_demand, get_resources_usage


def assign(
    group: TaskGroup, node: Node | None = None, *, in_use: ExclusiveResources | None = None, **options: Any
) -> AllocatedResources:
    assigner = ResourceAssigner(group, **{"can_oversubscribe": False, **options})
    return assigner.assign_resources(
        node or a_node(), in_use or ExclusiveResources(), SeededRandom("an evaluation", 1).draw_below
    )


def find_missing_dimension(group: TaskGroup, node: Node, in_use: ExclusiveResources | None = None) -> str:
    with pytest.raises(InsufficientResources) as error:
        assign(group, node, in_use=in_use)
    return error.value.dimension


def make_task(name: str, hook: str, cpu: int, memory_mb: int, *, sidecar: bool = False, cores: int = 0) -> Any:
    lifecycle = Lifecycle(hook=hook, sidecar=sidecar) if hook else None
    resources = some_resources(cpu=0 if cores else cpu, memory_mb=memory_mb, cores=cores)
    return a_task(name, lifecycle=lifecycle, resources=resources)


def test_a_group_uses_the_maximum_of_its_lifecycle_phases() -> None:
    group = a_group(
        "web",
        make_task("first", "prestart", 900, 10),
        make_task("beside", "prestart", 100, 100, sidecar=True),
        make_task("main", "", 500, 300),
        make_task("after-start", "poststart", 50, 20),
        make_task("last", "poststop", 10, 700),
        ephemeral_disk=EphemeralDisk(size_mb=40),
    )

    # Before: 900 + 100 and 110; while: 100 + 500 + 50 and 420; after: 10 and 700.
    assert Usage(1_000, 700, 40) == get_group_demand(group) == get_resources_usage(assign(group))


def make_node_with_cores(*cores: int, reserved_cores: tuple[int, ...] = ()) -> Node:
    node = a_node()
    assert node.node_resources is not None
    cpu = NodeCpu(cpu_shares=4_000, total_cpu_cores=4, reservable_cpu_cores=cores)
    reserved = ReservedResources()
    reserved = replace(reserved, cpu=replace(reserved.cpu, reserved_cpu_cores=reserved_cores))
    return replace(node, node_resources=replace(node.node_resources, cpu=cpu), reserved_resources=reserved)


def test_whole_cores_are_the_lowest_free_ones_and_are_reserved_in_all_phases() -> None:
    group = a_group("web", make_task("first", "prestart", 0, 10, cores=1), make_task("main", "", 0, 10, cores=1))
    in_use = ExclusiveResources()
    in_use.cores[1] += 1

    assigned = assign(group, make_node_with_cores(0, 1, 2, 3, reserved_cores=(0,)), in_use=in_use)

    assert [task.cpu.reserved_cores for task in (assigned.tasks or {}).values()] == [(2,), (3,)]
    assert get_resources_usage(assigned).cpu == 2_000
    assert find_missing_dimension(group, make_node_with_cores(0, 1, reserved_cores=(0,))) == "cores"


def test_the_memory_maximum_is_recorded_only_where_oversubscription_is_enabled() -> None:
    def assign_memory_max(max_memory_mb: int, **options: Any) -> int:
        resources = some_resources(memory_mb=64, memory_max_mb=max_memory_mb, secrets_mb=1)
        assigned = assign(a_group("web", a_task(resources=resources)), **options)
        return (assigned.tasks or {})["server"].memory.memory_max_mb

    assert [
        assign_memory_max(128),
        assign_memory_max(128, can_oversubscribe=True),
        assign_memory_max(-1, can_oversubscribe=True),
    ] == [0, 129, -1]


def make_group_with_ports(*dynamic: Port, static: tuple[Port, ...] = ()) -> TaskGroup:
    return a_group("web", networks=(NetworkResource(reserved_ports=static or None, dynamic_ports=dynamic or None),))


def make_node_with_ports(
    low: int, high: int, *addresses: str, reserved_ports: str = "", alias: str = "default"
) -> Node:
    node = a_node()
    assert node.node_resources is not None
    networks = (
        NodeNetwork(
            mode="host",
            addresses=tuple(NodeNetworkAddress(address=address, alias=alias) for address in addresses),
        ),
    )
    resources = replace(node.node_resources, min_dynamic_port=low, max_dynamic_port=high, node_networks=networks)
    reserved = ReservedResources(networks=ReservedNetworks(reserved_host_ports=reserved_ports))
    return replace(node, node_resources=resources, reserved_resources=reserved)


def list_ports(assigned: AllocatedResources) -> list[tuple[str, int, int, str]]:
    return [(port.label, port.value, port.to, port.host_ip) for port in assigned.shared.ports or ()]


def test_static_ports_are_assigned_as_requested_with_dynamic_ones() -> None:
    node = make_node_with_ports(20_000, 20_001, "10.0.0.1")
    group = make_group_with_ports(Port(label="any", to=-1), static=(Port(label="web", value=20_000, to=80),))

    assert list_ports(assign(group, node)) == [
        ("web", 20_000, 80, "10.0.0.1"),
        ("any", 20_001, 20_001, "10.0.0.1"),
    ]


def test_a_port_is_assigned_on_the_first_address_where_it_is_free() -> None:
    node = make_node_with_ports(20_000, 20_000, "10.0.0.1", "10.0.0.2")
    in_use = ExclusiveResources()
    in_use.ports["10.0.0.1", 80] += 1
    in_use.ports["10.0.0.1", 20_000] += 1

    assigned = assign(
        make_group_with_ports(Port(label="any"), static=(Port(label="web", value=80),)), node, in_use=in_use
    )

    assert list_ports(assigned) == [("web", 80, 0, "10.0.0.2"), ("any", 20_000, 0, "10.0.0.2")]


@pytest.mark.parametrize("wildcard", ["0.0.0.0", "::", ""])
def test_a_port_in_use_on_the_wildcard_address_is_in_use_on_every_address(wildcard: str) -> None:
    in_use = ExclusiveResources()
    in_use.ports[wildcard, 80] += 1
    group = make_group_with_ports(static=(Port(label="web", value=80),))

    assert (
        find_missing_dimension(group, make_node_with_ports(1, 2, "10.0.0.1"), in_use)
        == "network: reserved port collision web=80"
    )


def test_an_unavailable_network_resource_is_reported() -> None:
    web = Port(label="web", value=80)
    named = Port(label="any", host_network="public")

    assert [
        find_missing_dimension(
            make_group_with_ports(static=(web,)), make_node_with_ports(1, 2, "10.0.0.1", reserved_ports="79-81")
        ),
        find_missing_dimension(
            make_group_with_ports(Port(label="any")), make_node_with_ports(7, 8, "10.0.0.1", reserved_ports="7,8")
        ),
        find_missing_dimension(make_group_with_ports(named), make_node_with_ports(7, 8, "10.0.0.1")),
    ] == [
        "network: reserved port collision web=80",
        "network: dynamic port selection failed",
        "network: no addresses available for public network",
    ]


def test_a_port_that_ignores_collisions_is_assigned_although_it_is_in_use() -> None:
    in_use = ExclusiveResources()
    in_use.ports["10.0.0.1", 80] += 1
    group = make_group_with_ports(static=(Port(label="web", value=80, ignore_collision=True),))

    assert list_ports(assign(group, make_node_with_ports(1, 2, "10.0.0.1"), in_use=in_use)) == [
        ("web", 80, 0, "10.0.0.1")
    ]


def test_the_last_free_port_of_a_range_is_found() -> None:
    node = make_node_with_ports(20_000, 20_999, "10.0.0.1")
    in_use = ExclusiveResources()
    in_use.ports.update({("10.0.0.1", port): 1 for port in range(20_000, 21_000) if port != 20_777})

    assert list_ports(assign(make_group_with_ports(Port(label="any")), node, in_use=in_use)) == [
        ("any", 20_777, 0, "10.0.0.1")
    ]


def test_only_the_first_network_of_a_task_counts() -> None:
    first, second = (NetworkResource(reserved_ports=(Port(label=label, value=80),)) for label in ("a", "b"))
    group = a_group("web", a_task("one", resources=some_resources(networks=(first, second))))

    assigned = assign(group)

    ((network,),) = [task.networks or () for task in (assigned.tasks or {}).values()]
    assert [port.label for port in network.reserved_ports or ()] == ["a"]
    assert len(ResourceAssigner(group, can_oversubscribe=False).networks) == 1


def test_ports_of_a_task_network_share_one_address_and_do_not_collide() -> None:
    network = NetworkResource(reserved_ports=(Port(label="web", value=80),), dynamic_ports=(Port(label="rpc"),))
    group = a_group("web", a_task("one", resources=some_resources(networks=(network,))))
    in_use = ExclusiveResources()
    first = assign(group)
    in_use.add_resources(first)
    ((assigned,),) = [task.networks or () for task in (first.tasks or {}).values()]

    assert find_missing_dimension(group, a_node(), in_use) == "network: reserved port collision web=80"
    assert [port.value for port in assigned.reserved_ports or ()] == [80]
    assert 20_000 <= (assigned.dynamic_ports or ())[0].value <= 32_000


def test_ports_of_a_group_and_its_tasks_are_all_different() -> None:
    dynamic_ports = tuple(Port(label=f"p{number}") for number in range(50))
    task_network = NetworkResource(dynamic_ports=dynamic_ports)
    group = a_group(
        "web",
        a_task("one", resources=some_resources(networks=(task_network,))),
        a_task("two", resources=some_resources(networks=(task_network,))),
        networks=(NetworkResource(dynamic_ports=dynamic_ports),),
    )
    in_use = ExclusiveResources()
    in_use.add_resources(assign(group))

    assert (len(in_use.ports), max(in_use.ports.values())) == (150, 1)
