"""What one allocation gets and takes: turns of its tasks, ports, cores."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_group, a_task, some_resources
from tests.kit.state import a_node
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.resources.assignment import InsufficientResources, ResourceAssigner
from wharf.cluster.scheduling.resources.exclusive import ExclusiveResources
from wharf.cluster.scheduling.resources.usage import Usage, get_group_demand, get_resources_usage
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


def granted(
    group: TaskGroup, node: Node | None = None, *, held: ExclusiveResources | None = None, **options: Any
) -> AllocatedResources:
    grants = ResourceAssigner(group, **{"can_oversubscribe": False, **options})
    return grants.assign_resources(
        node or a_node(), held or ExclusiveResources(), SeededRandom("an evaluation", 1).draw_below
    )


def refusal(group: TaskGroup, node: Node, held: ExclusiveResources | None = None) -> str:
    with pytest.raises(InsufficientResources) as refused:
        granted(group, node, held=held)
    return refused.value.dimension


def a_phase(name: str, hook: str, cpu: int, memory_mb: int, *, sidecar: bool = False, cores: int = 0) -> Any:
    lifecycle = Lifecycle(hook=hook, sidecar=sidecar) if hook else None
    resources = some_resources(cpu=0 if cores else cpu, memory_mb=memory_mb, cores=cores)
    return a_task(name, lifecycle=lifecycle, resources=resources)


def test_tasks_that_take_turns_take_the_most_of_their_phases() -> None:
    group = a_group(
        "web",
        a_phase("first", "prestart", 900, 10),
        a_phase("beside", "prestart", 100, 100, sidecar=True),
        a_phase("main", "", 500, 300),
        a_phase("after-start", "poststart", 50, 20),
        a_phase("last", "poststop", 10, 700),
        ephemeral_disk=EphemeralDisk(size_mb=40),
    )

    # Before: 900 + 100 and 110; while: 100 + 500 + 50 and 420; after: 10 and 700.
    assert Usage(1_000, 700, 40) == get_group_demand(group) == get_resources_usage(granted(group))


def with_cores(*cores: int, kept: tuple[int, ...] = ()) -> Node:
    node = a_node()
    assert node.node_resources is not None
    cpu = NodeCpu(cpu_shares=4_000, total_cpu_cores=4, reservable_cpu_cores=cores)
    reserved = ReservedResources()
    reserved = replace(reserved, cpu=replace(reserved.cpu, reserved_cpu_cores=kept))
    return replace(node, node_resources=replace(node.node_resources, cpu=cpu), reserved_resources=reserved)


def test_whole_cores_are_the_lowest_free_ones_and_take_no_turns() -> None:
    group = a_group("web", a_phase("first", "prestart", 0, 10, cores=1), a_phase("main", "", 0, 10, cores=1))
    held = ExclusiveResources()
    held.cores[1] += 1

    given = granted(group, with_cores(0, 1, 2, 3, kept=(0,)), held=held)

    assert [task.cpu.reserved_cores for task in (given.tasks or {}).values()] == [(2,), (3,)]
    assert get_resources_usage(given).cpu == 2_000
    assert refusal(group, with_cores(0, 1, kept=(0,))) == "cores"


def test_memory_beyond_the_reserved_is_recorded_only_where_it_may_be_oversubscribed() -> None:
    def limit(most: int, **options: Any) -> int:
        resources = some_resources(memory_mb=64, memory_max_mb=most, secrets_mb=1)
        given = granted(a_group("web", a_task(resources=resources)), **options)
        return (given.tasks or {})["server"].memory.memory_max_mb

    assert [limit(128), limit(128, can_oversubscribe=True), limit(-1, can_oversubscribe=True)] == [0, 129, -1]


def asking(*dynamic: Port, static: tuple[Port, ...] = ()) -> TaskGroup:
    return a_group("web", networks=(NetworkResource(reserved_ports=static or None, dynamic_ports=dynamic or None),))


def with_ports(low: int, high: int, *addresses: str, kept: str = "", alias: str = "default") -> Node:
    node = a_node()
    assert node.node_resources is not None
    networks = (
        NodeNetwork(
            mode="host",
            addresses=tuple(NodeNetworkAddress(address=address, alias=alias) for address in addresses),
        ),
    )
    resources = replace(node.node_resources, min_dynamic_port=low, max_dynamic_port=high, node_networks=networks)
    reserved = ReservedResources(networks=ReservedNetworks(reserved_host_ports=kept))
    return replace(node, node_resources=resources, reserved_resources=reserved)


def ports(given: AllocatedResources) -> list[tuple[str, int, int, str]]:
    return [(port.label, port.value, port.to, port.host_ip) for port in given.shared.ports or ()]


def test_static_ports_are_given_as_asked_and_dynamic_ones_beside_them() -> None:
    node = with_ports(20_000, 20_001, "10.0.0.1")
    group = asking(Port(label="any", to=-1), static=(Port(label="web", value=20_000, to=80),))

    assert ports(granted(group, node)) == [
        ("web", 20_000, 80, "10.0.0.1"),
        ("any", 20_001, 20_001, "10.0.0.1"),
    ]


def test_a_port_is_given_on_the_first_address_of_its_network_where_it_is_free() -> None:
    node = with_ports(20_000, 20_000, "10.0.0.1", "10.0.0.2")
    held = ExclusiveResources()
    held.ports["10.0.0.1", 80] += 1
    held.ports["10.0.0.1", 20_000] += 1

    given = granted(asking(Port(label="any"), static=(Port(label="web", value=80),)), node, held=held)

    assert ports(given) == [("web", 80, 0, "10.0.0.2"), ("any", 20_000, 0, "10.0.0.2")]


@pytest.mark.parametrize("everywhere", ["0.0.0.0", "::", ""])
def test_a_port_held_on_every_address_is_held_on_each(everywhere: str) -> None:
    held = ExclusiveResources()
    held.ports[everywhere, 80] += 1
    group = asking(static=(Port(label="web", value=80),))

    assert refusal(group, with_ports(1, 2, "10.0.0.1"), held) == "network: reserved port collision web=80"


def test_what_cannot_be_given_of_a_network_is_told() -> None:
    web = Port(label="web", value=80)
    named = Port(label="any", host_network="public")

    assert [
        refusal(asking(static=(web,)), with_ports(1, 2, "10.0.0.1", kept="79-81")),
        refusal(asking(Port(label="any")), with_ports(7, 8, "10.0.0.1", kept="7,8")),
        refusal(asking(named), with_ports(7, 8, "10.0.0.1")),
    ] == [
        "network: reserved port collision web=80",
        "network: dynamic port selection failed",
        "network: no addresses available for public network",
    ]


def test_a_port_that_minds_no_collision_is_given_although_it_is_held() -> None:
    held = ExclusiveResources()
    held.ports["10.0.0.1", 80] += 1
    group = asking(static=(Port(label="web", value=80, ignore_collision=True),))

    assert ports(granted(group, with_ports(1, 2, "10.0.0.1"), held=held)) == [("web", 80, 0, "10.0.0.1")]


def test_the_last_free_port_of_a_range_is_found() -> None:
    node = with_ports(20_000, 20_999, "10.0.0.1")
    held = ExclusiveResources()
    held.ports.update({("10.0.0.1", port): 1 for port in range(20_000, 21_000) if port != 20_777})

    assert ports(granted(asking(Port(label="any")), node, held=held)) == [("any", 20_777, 0, "10.0.0.1")]


def test_ports_in_a_network_of_the_task_itself_have_one_address_and_collide_with_nobody() -> None:
    network = NetworkResource(reserved_ports=(Port(label="web", value=80),), dynamic_ports=(Port(label="rpc"),))
    group = a_group("web", a_task("one", resources=some_resources(networks=(network,))))
    held = ExclusiveResources()
    first = granted(group)
    held.add_resources(first)
    ((given,),) = [task.networks or () for task in (first.tasks or {}).values()]

    assert refusal(group, a_node(), held) == "network: reserved port collision web=80"
    assert [port.value for port in given.reserved_ports or ()] == [80]
    assert 20_000 <= (given.dynamic_ports or ())[0].value <= 32_000


def test_ports_of_a_group_and_of_its_tasks_are_all_different() -> None:
    many = tuple(Port(label=f"p{at}") for at in range(50))
    of_task = NetworkResource(dynamic_ports=many)
    group = a_group(
        "web",
        a_task("one", resources=some_resources(networks=(of_task,))),
        a_task("two", resources=some_resources(networks=(of_task,))),
        networks=(NetworkResource(dynamic_ports=many),),
    )
    held = ExclusiveResources()
    held.add_resources(granted(group))

    assert (len(held.ports), max(held.ports.values())) == (150, 1)
