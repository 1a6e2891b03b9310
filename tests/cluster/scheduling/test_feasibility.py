"""Which nodes can run a group, and the reasons why others cannot."""

from typing import Any

from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task, some_resources
from tests.kit.state import AState, a_node
from wharf.cluster.scheduling.feasibility.checker import FeasibilityChecker
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes
from wharf.cluster.scheduling.fleet.columns import Mask
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.nodes.node import DriverInfo, NodeHostVolume, SchedulingEligibility
from wharf.contract.model.nodes.resources import DeviceInstance, NodeDevice

COLOR_CONSTRAINT = a_constraint("${meta.color}", "red", "=")


def find_unmet_requirements(state: AState, job: Job, group: TaskGroup | None = None) -> dict[str, str]:
    """Return the first unmet requirement of each considered node; empty for feasible ones."""
    fleet = Fleet.from_snapshot(state.replica)
    feasibility = FeasibilityChecker(fleet)
    considered: Mask = feasibility.select_ready_nodes(job)
    screened = feasibility.screen_nodes(
        considered, job, group or job.groups[0], NamespaceVolumes(state.replica, "default")
    )
    return {
        node.id: screened.reasons.values[screened.reason_codes[row]]
        for row, node in fleet.iter_nodes()
        if considered[row]
    }


def get_unmet_requirement(job: Job, **node: Any) -> str:
    """Return the first unmet requirement of the only node."""
    state = AState()
    state.with_node("n", **node)
    return find_unmet_requirements(state, job)["n"]


def test_a_star_in_a_datacenter_matches_any_characters_and_nothing_else_is_special() -> None:
    state = AState()
    for name in ("eu-1", "eu-2x", "us-1", "[e]u-1"):
        state.with_node(name, datacenter=name)

    assert list(find_unmet_requirements(state, a_job(datacenters=("eu*1", "*x")))) == ["eu-1", "eu-2x"]
    assert list(find_unmet_requirements(state, a_job(datacenters=("[e]u-1",)))) == ["[e]u-1"]
    assert list(find_unmet_requirements(state, a_job(datacenters=("?u-1",)))) == []


def test_a_job_runs_in_its_pool_and_a_job_of_pool_all_runs_anywhere() -> None:
    state = AState()
    state.with_node("a", node_pool="gpu")
    state.with_node("b")

    assert list(find_unmet_requirements(state, a_job(node_pool="gpu"))) == ["a"]
    assert list(find_unmet_requirements(state, a_job(node_pool="all"))) == ["a", "b"]


def a_demanding_job() -> Job:
    """Return a job with every kind of requirement, in the order of the checks."""
    network = NetworkResource(mode="bridge", reserved_ports=(Port(label="web", value=80, host_network="public"),))
    resources = some_resources(devices=(RequestedDevice(name="gpu", count=1),))
    task = a_task(driver="exec", constraints=(a_constraint("${meta.size}", "big", "="),), resources=resources)
    group = a_group("web", task, constraints=(COLOR_CONSTRAINT,), networks=(network,))
    volumes = {"data": VolumeRequest(name="data", type="host", source="data")}
    return a_job("shop", replace(group, volumes=volumes), constraints=(a_constraint("${attr.os}", "linux", "="),))


def test_the_first_unmet_requirement_in_nomads_order_is_reported() -> None:
    job = a_demanding_job()
    node = a_node("n", attributes={}, meta={})
    reported = []

    def check_node(**fields: Any) -> None:
        """Change fields of the node, and record the first unmet requirement."""
        nonlocal node
        state = AState()
        state.with_node("n")
        node = replace(node, **fields)
        status_field = {"status": state.node("n").status}
        fleet = Fleet()
        fleet.set_node(replace(node, **status_field))
        screened = FeasibilityChecker(fleet).screen_nodes(
            FeasibilityChecker(fleet).select_ready_nodes(job),
            job,
            job.groups[0],
            NamespaceVolumes(state.replica, "default"),
        )
        reported.append(screened.reasons.values[screened.reason_codes[0]])

    check_node()
    check_node(attributes={"os": "linux"})
    check_node(drivers={"exec": DriverInfo(detected=True, healthy=True)})
    check_node(meta={"color": "red"})
    check_node(meta={"color": "red", "size": "big"})
    resources = node.node_resources
    assert resources is not None
    gpu = NodeDevice(vendor="acme", type="gpu", name="x", instances=(DeviceInstance(id="0", healthy=True),))
    check_node(node_resources=replace(resources, devices=(gpu,)))

    assert reported == [
        "${attr.os} = linux",
        "missing drivers",
        "${meta.color} = red",
        "${meta.size} = big",
        "missing devices",
        "missing network",
    ]


def test_constraints_on_unique_attributes_are_reported_in_order_too() -> None:
    unique = a_constraint("${node.unique.name}", "other", "=")
    of_job = a_job("shop", a_group("web", a_task(driver="none")), constraints=(unique,))
    of_group = a_job("shop", a_group("web", a_task(driver="none"), constraints=(unique,)))
    after_devices = a_job(
        "shop",
        a_group(
            "web",
            a_task(resources=some_resources(devices=(RequestedDevice(name="gpu", count=1),))),
            constraints=(unique,),
        ),
    )

    assert [get_unmet_requirement(job) for job in (of_job, of_group, after_devices)] == [
        "${node.unique.name} = other",
        "missing drivers",
        "${node.unique.name} = other",
    ]


def test_a_driver_must_be_healthy_or_have_a_true_attribute() -> None:
    job = a_job("shop", a_group("web", a_task(driver="exec")))
    attribute = {"driver.exec": "true"}

    assert [
        get_unmet_requirement(job, attributes={}, drivers={"exec": DriverInfo(detected=True, healthy=True)}),
        get_unmet_requirement(job, attributes=attribute, drivers={"exec": DriverInfo(detected=True, healthy=False)}),
        get_unmet_requirement(job, attributes=attribute),
        get_unmet_requirement(job, attributes={"driver.exec": "yes"}),
    ] == ["", "missing drivers", "", "missing drivers"]


def test_the_host_network_of_a_port_must_exist() -> None:
    def make_job(host_network: str) -> Job:
        network = NetworkResource(dynamic_ports=(Port(label="web", host_network=host_network),))
        return a_job("shop", a_group("web", networks=(network,)))

    assert [
        get_unmet_requirement(make_job("public")),
        get_unmet_requirement(make_job("${meta.net}")),
        get_unmet_requirement(make_job("${meta.net}"), meta={"net": "public"}),
    ] == [
        'missing host network "public" for port "web"',
        'invalid host network "${meta.net}" template for port "web"',
        'missing host network "public" for port "web"',
    ]


def test_a_read_only_host_volume_does_not_satisfy_a_writer() -> None:
    def make_job(**fields: Any) -> Job:
        return a_job("shop", a_group("web", volumes={"v": VolumeRequest(type="host", source="data", **fields)}))

    volumes = {"data": NodeHostVolume(name="data", path="/data", read_only=True)}

    assert [
        get_unmet_requirement(make_job()),
        get_unmet_requirement(make_job(), host_volumes=volumes),
        get_unmet_requirement(make_job(read_only=True), host_volumes=volumes),
        get_unmet_requirement(make_job(read_only=True, sticky=True), host_volumes=volumes),
    ] == ["missing compatible host volumes"] * 2 + ["", "missing compatible host volumes"]


def test_results_are_computed_again_when_a_node_has_changed_or_gone() -> None:
    job = a_job("shop", a_group("web"))
    state = AState()
    for name in ("a", "b", "c"):
        state.with_node(name)
    fleet = Fleet.from_snapshot(state.replica)
    feasibility = FeasibilityChecker(fleet)

    def list_feasible() -> list[bool]:
        screened = feasibility.screen_group(job, job.groups[0], NamespaceVolumes(state.replica, "default"))
        return [bool(passes) for passes in screened.feasible]

    before = list_feasible()
    fleet.set_node(replace(state.node("a"), scheduling_eligibility=SchedulingEligibility.INELIGIBLE))
    fleet.remove_node("b")

    assert (before, list_feasible()) == ([True] * 3, [False, False, True])


def test_nodes_that_are_added_later_are_checked_by_their_own_kind() -> None:
    job = a_job("shop", a_group("web", constraints=(COLOR_CONSTRAINT,)))
    state = AState()
    state.with_node("a")
    fleet = Fleet.from_snapshot(state.replica)
    feasibility = FeasibilityChecker(fleet)
    volumes = NamespaceVolumes(state.replica, "default")
    first = feasibility.screen_nodes(feasibility.select_ready_nodes(job), job, job.groups[0], volumes).feasible.tolist()
    fleet.set_node(replace(state.node("a"), id="b", meta={"color": "red"}))

    second = feasibility.screen_nodes(
        feasibility.select_ready_nodes(job), job, job.groups[0], volumes
    ).feasible.tolist()

    assert (first, second) == ([False], [False, True])
