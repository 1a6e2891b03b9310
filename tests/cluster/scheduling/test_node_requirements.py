"""What groups require of nodes: locations, drivers, networks, devices and constraints, and the classes of nodes."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_task, some_resources
from tests.kit.state import AState, a_node
from wharf.cluster.scheduling.feasibility.checker import (
    MAX_CACHED_REQUIREMENTS,
    MAX_CACHED_SCREENINGS,
    MAX_REPORTED_CLASSES,
    FeasibilityChecker,
    GroupRequirements,
    HostPort,
    ScreeningResult,
    collect_requirements,
    find_unmet_constraint,
    find_unmet_resource,
    has_healthy_driver,
    has_unique_constraints,
    iter_healthy_drivers,
    list_network_names,
)
from wharf.cluster.scheduling.feasibility.location import is_in_pool_and_datacenter, matches_datacenter
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.fleet.node_class import compute_node_class, make_class_key
from wharf.cluster.scheduling.ranking.metrics import build_screening_metric
from wharf.contract.model.jobs.constraints import Constraint
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import RequestedDevice
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.nodes.node import (
    DriverInfo,
    HostNetwork,
    Node,
    NodeHostVolume,
    NodeStatus,
    SchedulingEligibility,
)
from wharf.contract.model.nodes.resources import (
    DeviceAttribute,
    DeviceInstance,
    NodeDevice,
    NodeNetwork,
    NodeNetworkAddress,
)

RED = a_constraint("${meta.color}", "red")
NAMED_A = a_constraint("${node.unique.name}", "a")
NAME_IS_META = a_constraint("${meta.master}", "${node.unique.name}")
DISTINCT = a_constraint("", operand="distinct_hosts")
GPU = NodeDevice(vendor="acme", type="gpu", name="x", instances=(DeviceInstance(id="0", healthy=True),))


def with_resources(node: Node, **fields: Any) -> Node:
    assert node.node_resources is not None
    return replace(node, node_resources=replace(node.node_resources, **fields))


def with_networks(node: Node, *networks: tuple[str, tuple[str, ...]]) -> Node:
    """Return the node with networks: the mode of each, and the aliases of its addresses."""
    return with_resources(
        node,
        node_networks=tuple(
            NodeNetwork(mode=mode, addresses=tuple(NodeNetworkAddress(alias=alias) for alias in aliases) or None)
            for mode, aliases in networks
        ),
    )


def make_fleet(*nodes: Node) -> Fleet:
    fleet = Fleet()
    for node in nodes:
        fleet.set_node(replace(node, status=NodeStatus.READY))
    return fleet


def screen(fleet: Fleet, job: Job, checker: FeasibilityChecker | None = None) -> ScreeningResult:
    return (checker or FeasibilityChecker(fleet)).screen_group(
        job, job.groups[0], NamespaceVolumes(AState().replica, "default")
    )


def list_reasons(fleet: Fleet, job: Job) -> dict[str, str | None]:
    """Return the reason of each node: empty if it is feasible, `None` if it was not checked."""
    screened = screen(fleet, job)
    return {
        node.id: screened.reasons.values[screened.reason_codes[row]] if screened.considered[row] else None
        for row, node in fleet.iter_nodes()
    }


# -- location ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("pattern", "name", "is_matching"),
    [
        ("eu", "eu", True),
        ("eu", "eu-1", False),
        ("eu", "", False),
        ("*", "", True),
        ("*", "any", True),
        ("eu*", "eu", True),
        ("eu*", "e", False),
        ("*1", "eu-1", True),
        ("*1", "eu-2", False),
        ("eu*1", "eu-1", True),
        ("eu*1", "eu1", True),
        ("eu*1", "us-1", False),
        ("eu*1", "eu-2", False),
        ("aba*aba", "aba", False),
        ("aba*aba", "abaaba", True),
        ("ab*ba", "aba", False),
        ("a*b*c", "axbxc", True),
        ("a*b*c", "abc", True),
        ("a*b*c", "ac", False),
        ("a*b*c", "acb", False),
        ("*b*b*", "b", False),
        ("*b*b*", "bb", True),
        ("*ab*bc*", "abc", False),
        ("*ab*bc*", "abbc", True),
        ("a*bc", "abbc", True),
        ("x*a*y", "axy", False),
        ("xa*a*y", "xay", False),
        ("x*a*ay", "xay", False),
        ("x*a*ay", "xaay", True),
        ("**", "", True),
        ("a**b", "ab", True),
    ],
)
def test_a_star_matches_any_text_between_the_other_parts(pattern: str, name: str, is_matching: bool) -> None:
    assert matches_datacenter(name, ("other", pattern)) == is_matching
    assert list_reasons(make_fleet(a_node("n", datacenter=name)), a_job(datacenters=("other", pattern))) == {
        "n": "" if is_matching else None
    }


@pytest.mark.parametrize(
    ("fields", "is_inside"),
    [
        ({}, True),
        ({"node_pool": ""}, True),
        ({"node_pool": "all"}, True),
        ({"node_pool": "gpu"}, True),
        ({"node_pool": "default"}, False),
        ({"node_pool": "unknown"}, False),
        ({"datacenters": ()}, True),
        ({"node_pool": "gpu", "datacenters": ("dc1",)}, False),
        ({"node_pool": "gpu", "datacenters": ("dc1", "dc2")}, True),
        ({"node_pool": "default", "datacenters": ("dc2",)}, False),
    ],
)
def test_a_node_is_considered_if_its_pool_and_its_datacenter_are_those_of_the_job(
    fields: dict[str, Any], is_inside: bool
) -> None:
    job = a_job(**{"node_pool": "all", **fields})
    node = a_node("n", node_pool="gpu", datacenter="dc2")
    fleet = make_fleet(a_node("other", node_pool="default", datacenter="dc1"), node)

    considered = FeasibilityChecker(fleet).select_ready_nodes(job)

    assert (is_in_pool_and_datacenter(job, node), bool(considered[1])) == (is_inside, is_inside)


def test_only_ready_and_eligible_nodes_are_considered_and_no_rows_beyond_the_nodes() -> None:
    fleet = make_fleet(a_node("ready"))
    fleet.set_node(a_node("down", status=NodeStatus.DOWN))
    fleet.set_node(a_node("out", status=NodeStatus.READY, scheduling_eligibility=SchedulingEligibility.INELIGIBLE))
    fleet.remove_node("gone")

    for job in (a_job(), a_job(datacenters=("dc*",)), a_job(node_pool="default")):
        assert FeasibilityChecker(fleet).select_ready_nodes(job).tolist() == [True, False, False]
        assert FeasibilityChecker(Fleet()).select_ready_nodes(job).tolist() == []


def test_the_row_of_a_removed_node_is_not_considered() -> None:
    fleet = make_fleet(a_node("a"), a_node("b"))
    fleet.remove_node("a")

    for job in (a_job(), a_job(datacenters=("dc*",)), a_job(node_pool="default")):
        assert FeasibilityChecker(fleet).select_ready_nodes(job).tolist() == [False, True]


# -- requirements ------------------------------------------------------------------------------------------------------


def test_the_requirements_of_a_group_are_collected_from_job_group_and_tasks() -> None:
    network = NetworkResource(
        mode="bridge",
        reserved_ports=(Port(label="web", value=80, host_network="public"), Port(label="rpc", value=81)),
        dynamic_ports=(Port(label="any", host_network="private"), Port(label="own", host_network="default")),
    )
    gpu = RequestedDevice(name="gpu")
    group = a_group(
        "web",
        a_task("one", driver="exec", constraints=(NAMED_A, DISTINCT), resources=some_resources(devices=(gpu,))),
        a_task("two", driver="docker"),
        a_task("three", driver="exec"),
        constraints=(DISTINCT, RED),
        networks=(network, NetworkResource(mode="host")),
    )
    job = a_job("shop", group, constraints=(DISTINCT, NAME_IS_META))

    assert collect_requirements(job, group) == GroupRequirements(
        job_constraints=(NAME_IS_META,),
        drivers=("docker", "exec"),
        constraints=(RED, NAMED_A),
        devices=(gpu,),
        network_mode="bridge",
        host_ports=(HostPort("web", "public"), HostPort("any", "private")),
    )
    bare = TaskGroup(name="bare")
    assert collect_requirements(a_job("shop", bare), bare) == GroupRequirements((), (), (), (), "", ())


@pytest.mark.parametrize(
    ("constraint", "is_unique"),
    [(RED, False), (NAMED_A, True), (NAME_IS_META, True), (a_constraint("${attr.unique.x}", "1"), True)],
)
def test_constraints_on_either_side_of_which_nodes_differ_are_unique(constraint: Constraint, is_unique: bool) -> None:
    task = a_task(constraints=(constraint,))
    of_job = a_job("shop", a_group("web"), constraints=(RED, constraint))
    of_group = a_job("shop", a_group("db"), a_group("web", constraints=(constraint,)))
    of_task = a_job("shop", a_group("web", a_task("one", constraints=(RED,)), task))

    assert [has_unique_constraints(job) for job in (of_job, of_group, of_task)] == [is_unique] * 3
    for job in (of_job, of_group, of_task):
        requirements = collect_requirements(job, job.groups[-1])
        assert requirements.has_unique_constraints == is_unique
        assert (constraint in requirements.unique_job_constraints) == (is_unique and job is of_job)
        assert (constraint in requirements.unique_group_constraints) == (is_unique and job is not of_job)
        in_class = (*requirements.class_requirements.job_constraints, *requirements.class_requirements.constraints)
        assert (constraint in in_class) == (not is_unique)


def test_constraints_on_unique_attributes_exclude_only_the_nodes_that_do_not_match() -> None:
    fleet = make_fleet(*(a_node(name, meta={"color": "red", "master": "b"}) for name in ("a", "b", "c")))

    def list_all(*constraints: Constraint, of_job: bool = False) -> list[str | None]:
        fields: dict[str, Any] = {"constraints": constraints}
        job = a_job("shop", a_group("web"), **fields) if of_job else a_job("shop", a_group("web", **fields))
        return list(list_reasons(fleet, job).values())

    named, is_master = str(NAMED_A), str(NAME_IS_META)
    for of_job in (True, False):
        assert list_all(NAMED_A, of_job=of_job) == ["", named, named]
        assert list_all(NAME_IS_META, of_job=of_job) == [is_master, "", is_master]
        assert list_all(NAMED_A, NAME_IS_META, of_job=of_job) == [is_master, named, named]
        assert list_all(NAME_IS_META, NAMED_A, of_job=of_job) == [is_master, named, is_master]
        assert list_all(a_constraint("${attr.unique.x}", "1", "!="), of_job=of_job) == ["", "", ""]


def test_reasons_of_unique_constraints_and_volumes_do_not_stay_in_the_results_of_other_groups() -> None:
    fleet = make_fleet(a_node("a"), a_node("b", meta={"color": "red"}))
    checker = FeasibilityChecker(fleet)
    volumes = {"v": VolumeRequest(type="host", source="data")}
    plain = a_job("shop", a_group("web", constraints=(RED,)))
    named = a_job("shop", a_group("web", constraints=(RED, NAMED_A)))
    with_volume = a_job("shop", a_group("web", constraints=(RED,), volumes=volumes))

    results = [screen(fleet, job, checker) for job in (plain, named, with_volume, plain)]

    assert [[each.reasons.values[code] for code in each.reason_codes] for each in results] == [
        [str(RED), ""],
        [str(RED), str(NAMED_A)],
        [str(RED), "missing compatible host volumes"],
        [str(RED), ""],
    ]
    assert [each.feasible.tolist() for each in results] == [
        [False, True],
        [False, False],
        [False, False],
        [False, True],
    ]
    assert results[0].reasons.values == ["", str(RED)]


def test_every_host_volume_of_the_group_must_exist_on_the_node() -> None:
    volumes = {name: VolumeRequest(type="host", source=name) for name in ("data", "logs")}
    ignored = {"csi": VolumeRequest(type="csi", source="far")}
    existing = {name: NodeHostVolume(name=name, path="/d") for name in ("data", "logs")}
    fleet = make_fleet(
        a_node("both", host_volumes=existing),
        a_node("one", host_volumes={"data": existing["data"]}),
        a_node("none"),
    )

    reasons = list_reasons(fleet, a_job("shop", a_group("web", volumes={**volumes, **ignored})))

    assert reasons == {
        "both": "",
        "one": "missing compatible host volumes",
        "none": "missing compatible host volumes",
    }


def test_screening_results_are_shared_until_a_node_changes_and_cannot_be_written() -> None:
    fleet = make_fleet(a_node("a"))
    checker = FeasibilityChecker(fleet)
    first = screen(fleet, a_job("shop"), checker)
    again = screen(fleet, a_job("other"), checker)
    elsewhere = [screen(fleet, job, checker) for job in (a_job(node_pool="all"), a_job(datacenters=("dc1",)))]
    fleet.set_node(replace(a_node("b"), status=NodeStatus.READY))
    later = screen(fleet, a_job("shop"), checker)

    assert first is again
    assert all(each is not first for each in elsewhere)
    assert (first.feasible.tolist(), later.feasible.tolist()) == ([True], [True, True])
    for column in (first.feasible, first.considered, first.reason_codes):
        with pytest.raises(ValueError, match="read-only"):
            column[0] = 0


def test_the_metric_of_a_screening_result_is_built_once_until_a_node_changes() -> None:
    fleet = make_fleet(a_node("a"))
    checker = FeasibilityChecker(fleet)
    first, again = (
        build_screening_metric(fleet, screen(fleet, a_job(job_id), checker), a_job(job_id))
        for job_id in ("shop", "other")
    )
    fleet.set_node(replace(a_node("b"), status=NodeStatus.READY))
    later = build_screening_metric(fleet, screen(fleet, a_job("shop"), checker), a_job("shop"))

    assert first is again
    assert (first.nodes_evaluated, later.nodes_evaluated) == (1, 2)


def test_only_the_screening_results_used_last_are_cached() -> None:
    fleet = make_fleet(a_node("a"))
    checker = FeasibilityChecker(fleet)

    def screen_datacenter(number: int) -> ScreeningResult:
        return screen(fleet, a_job(datacenters=(f"dc{number}",)), checker)

    results = [screen_datacenter(number) for number in range(MAX_CACHED_SCREENINGS)]
    assert screen_datacenter(0) is results[0]
    screen_datacenter(MAX_CACHED_SCREENINGS)

    assert screen_datacenter(0) is results[0]
    assert screen_datacenter(2) is results[2]
    assert screen_datacenter(1) is not results[1]


def test_more_requirements_than_are_cached_are_checked() -> None:
    fleet = make_fleet(a_node("a", meta={"x": "7"}))
    checker = FeasibilityChecker(fleet)
    volumes = NamespaceVolumes(AState().replica, "default")

    def is_feasible(number: int) -> bool:
        job = a_job("shop", a_group("web", constraints=(a_constraint("${meta.x}", str(number)),)))
        considered = checker.select_ready_nodes(job)
        return bool(checker.screen_nodes(considered, job, job.groups[0], volumes).feasible[0])

    numbers = [*range(MAX_CACHED_REQUIREMENTS + 2), 7, 0]
    assert [number for number in numbers if is_feasible(number)] == [7, 7]


# -- drivers, networks and devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "is_healthy"),
    [
        ({"drivers": {"exec": DriverInfo(detected=True, healthy=True)}}, True),
        ({"drivers": {"exec": DriverInfo(detected=True, healthy=False)}}, False),
        ({"drivers": {"exec": DriverInfo(detected=False, healthy=True)}}, False),
        ({"drivers": {"other": DriverInfo(detected=True, healthy=True)}}, False),
        ({"attributes": {"driver.exec": "1"}, "drivers": {"other": DriverInfo()}}, True),
        ({"attributes": {"driver.exec": "1"}, "drivers": {"exec": DriverInfo()}}, False),
        ({"attributes": {"driver.exec": "0"}}, False),
        ({"attributes": {"exec": "1"}}, False),
        ({"attributes": None}, False),
    ],
)
def test_a_driver_is_healthy_if_its_report_or_without_a_report_its_attribute_says_so(
    fields: dict[str, Any], is_healthy: bool
) -> None:
    node = a_node("n", **{"attributes": {}, **fields})

    assert has_healthy_driver(node, "exec") == is_healthy
    assert ("exec" in iter_healthy_drivers(node)) == is_healthy


def test_the_healthy_drivers_are_those_of_reports_and_attributes() -> None:
    node = a_node(
        "n",
        attributes={"driver.exec": "1", "driver.exec.version": "1", "driver.java": "no", "os.exec": "1", "mock": "1"},
        drivers={"docker": DriverInfo(detected=True, healthy=True), "qemu": DriverInfo(detected=True)},
    )

    assert sorted(iter_healthy_drivers(node)) == ["docker", "exec"]
    assert list(iter_healthy_drivers(replace(node, attributes=None, drivers=None))) == []


def test_all_drivers_of_a_group_must_be_healthy() -> None:
    job = a_job("shop", a_group("web", a_task("one", driver="exec"), a_task("two", driver="raw_exec")))
    requirements = collect_requirements(job, job.groups[0])

    assert [
        find_unmet_constraint(a_node("n", attributes={f"driver.{name}": "1" for name in names}), requirements)
        for names in ((), ("exec",), ("raw_exec",), ("exec", "raw_exec"))
    ] == ["missing drivers", "missing drivers", "missing drivers", ""]


def test_the_first_constraint_that_fails_is_the_reason() -> None:
    linux = a_constraint("${attr.os}", "linux")
    job = a_job("shop", a_group("web", constraints=(linux, RED)), constraints=(RED, linux))
    requirements = collect_requirements(job, job.groups[0])

    def find(requirements: GroupRequirements, **fields: Any) -> str:
        attributes = {"driver.raw_exec": "1", **fields.pop("attributes", {})}
        return find_unmet_constraint(a_node("n", attributes=attributes, **fields), requirements)

    only_group = replace(requirements, job_constraints=())
    red, is_linux = {"meta": {"color": "red"}}, {"attributes": {"os": "linux"}}
    assert [find(requirements), find(requirements, **red), find(requirements, **red, **is_linux)] == [
        str(RED),
        str(linux),
        "",
    ]
    assert [find(only_group), find(only_group, **is_linux), find(only_group, **red, **is_linux)] == [
        str(linux),
        str(RED),
        "",
    ]


@pytest.mark.parametrize(
    ("mode", "networks", "reason"),
    [
        ("", (), ""),
        ("host", (), ""),
        ("none", (), ""),
        ("bridge", (), "missing network"),
        ("bridge", (("host", ()),), "missing network"),
        ("bridge", (("host", ()), ("bridge", ())), ""),
        ("cni/x", (("bridge", ()), ("cni/y", ())), "missing network"),
    ],
)
def test_a_network_mode_must_be_built_in_or_exist_on_the_node(
    mode: str, networks: tuple[tuple[str, tuple[str, ...]], ...], reason: str
) -> None:
    job = a_job("shop", a_group("web", networks=(NetworkResource(mode=mode),)))

    node = with_networks(a_node("n"), *networks)

    assert find_unmet_resource(node, collect_requirements(job, job.groups[0])) == reason


@pytest.mark.parametrize("is_static", [True, False])
@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", ""),
        ("default", ""),
        ("public", ""),
        ("named", ""),
        ("${meta.net}", ""),
        ("${meta.default}", ""),
        ("private", 'missing host network "private" for port "web"'),
        ("${meta.bad}", 'missing host network "private" for port "web"'),
        ("${meta.none}", 'invalid host network "${meta.none}" template for port "web"'),
    ],
)
def test_the_host_network_of_each_port_must_be_an_alias_or_a_named_network(
    name: str, reason: str, *, is_static: bool
) -> None:
    ports = (Port(label="first", value=1, host_network="public"), Port(label="web", value=2, host_network=name))
    network = NetworkResource(reserved_ports=ports) if is_static else NetworkResource(dynamic_ports=ports)
    job = a_job("shop", a_group("web", networks=(network,)))
    node = a_node(
        "n",
        meta={"net": "public", "default": "default", "bad": "private"},
        host_networks={"named": HostNetwork(name="named")},
    )

    node = with_networks(node, ("host", ()), ("bridge", ("other", "public")))

    assert find_unmet_resource(node, collect_requirements(job, job.groups[0])) == reason


def test_missing_devices_are_reported_before_missing_networks() -> None:
    resources = some_resources(devices=(RequestedDevice(name="gpu"),))
    job = a_job("shop", a_group("web", a_task(resources=resources), networks=(NetworkResource(mode="bridge"),)))
    requirements = collect_requirements(job, job.groups[0])
    node = a_node("n")

    assert [
        find_unmet_resource(each, requirements)
        for each in (
            node,
            with_resources(node, devices=(GPU,)),
            with_networks(node, ("bridge", ())),
            with_networks(with_resources(node, devices=(GPU,)), ("bridge", ())),
            replace(node, node_resources=None),
        )
    ] == ["missing devices", "missing network", "missing devices", "", "missing devices"]
    assert find_unmet_resource(replace(node, node_resources=None), replace(requirements, devices=())) == (
        "missing network"
    )


def test_the_names_of_networks_are_those_of_all_nodes_and_the_built_in_ones() -> None:
    nodes = [
        replace(a_node("a"), node_resources=None),
        with_networks(a_node("b"), ("bridge", ("public", "")), ("", ())),
        a_node("c", host_networks={"vpn": HostNetwork(name="vpn")}),
    ]

    assert list_network_names(nodes) == (["bridge", "host", "none"], ["default", "public", "vpn"])
    assert list_network_names([]) == (["host", "none"], ["default"])


# -- classes -----------------------------------------------------------------------------------------------------------


def make_class_node(name: str, computed_class: str, **fields: Any) -> Node:
    return a_node(name, computed_class=computed_class, **fields)


def test_a_class_is_eligible_if_one_of_its_nodes_can_run_one_of_the_groups() -> None:
    red, blue = {"meta": {"color": "red"}}, {"meta": {"color": "blue"}}
    fleet = make_fleet(
        make_class_node("a", "v1:red", **red),
        make_class_node("b", "v1:blue", **blue),
        make_class_node("c", "v1:both", **red, node_class="x"),
        make_class_node("d", "v1:both", **blue, node_class="x"),
        make_class_node("e", "v1:far", **red, datacenter="dc2"),
        make_class_node("f", "v1:pool", **red, node_pool="gpu"),
        make_class_node("g", "", **red, node_class="y"),
    )
    is_blue = a_constraint("${meta.color}", "blue")
    web, db = a_group("web", constraints=(RED,)), a_group("db", constraints=(is_blue,))
    job = a_job("shop", web, db, datacenters=("dc1",), node_pool="default")
    checker = FeasibilityChecker(fleet)

    of_web = {"v1:red": True, "v1:blue": False, "v1:both": True, "v1:far": False, "v1:pool": False}
    assert checker.compute_class_eligibility(job, [web]) == of_web
    assert checker.compute_class_eligibility(job, [db, web]) == {**of_web, "v1:blue": True}
    assert checker.compute_class_eligibility(job, []) == {}


@pytest.mark.parametrize("count", [MAX_REPORTED_CLASSES, MAX_REPORTED_CLASSES + 1, 2 * MAX_REPORTED_CLASSES + 3])
def test_of_too_many_classes_only_ineligible_ones_are_listed(count: int) -> None:
    nodes = [
        make_class_node(f"n{number}", f"v1:{number:04}", meta={"x": str(number), "color": "red" if number == 5 else ""})
        for number in range(count)
    ]
    job = a_job("shop", a_group("web", constraints=(RED,)))

    eligible = FeasibilityChecker(make_fleet(*nodes)).compute_class_eligibility(job, job.groups)

    expected = {f"v1:{number:04}": number == 5 for number in range(count)}
    if count > MAX_REPORTED_CLASSES:
        del expected["v1:0005"]
    assert list(eligible.items()) == list(expected.items())[:MAX_REPORTED_CLASSES]


CLASS_NODE = with_networks(
    with_resources(a_node("n", meta={"color": "red"}, drivers={"exec": DriverInfo(detected=True)}), devices=(GPU,)),
    ("host", ("public",)),
)


@pytest.mark.parametrize(
    "fields",
    [
        {"datacenter": "dc2"},
        {"node_class": "x"},
        {"node_pool": "gpu"},
        {"attributes": {}},
        {"meta": {}},
        {"meta": {"color": "red", "not.unique.x": "1"}},
        {"node_resources": None},
        {"node_resources": with_networks(CLASS_NODE, ("bridge", ("public",))).node_resources},
        {"node_resources": with_networks(CLASS_NODE, ("host", ("private",))).node_resources},
        {"node_resources": with_resources(CLASS_NODE, devices=()).node_resources},
        *(
            {"node_resources": with_resources(CLASS_NODE, devices=(replace(GPU, **changed),)).node_resources}
            for changed in (
                {"vendor": "other"},
                {"type": "fpga"},
                {"name": "y"},
                {"instances": (DeviceInstance(id="0", healthy=False),)},
                {"attributes": {"speed": DeviceAttribute(int_=1)}},
            )
        ),
    ],
)
def test_nodes_that_checks_can_tell_apart_are_of_different_kinds_and_classes(fields: dict[str, Any]) -> None:
    changed = replace(CLASS_NODE, **fields)

    assert make_class_key(changed) != make_class_key(CLASS_NODE)
    assert compute_node_class(changed) != compute_node_class(CLASS_NODE)


@pytest.mark.parametrize(
    "fields",
    [
        {"drivers": {"exec": DriverInfo(detected=True, healthy=True)}},
        {"drivers": {"exec": DriverInfo(detected=False)}},
        {"drivers": None},
        {"host_networks": {"vpn": HostNetwork(name="vpn")}},
    ],
)
def test_drivers_and_host_networks_make_kinds_but_no_classes(fields: dict[str, Any]) -> None:
    changed = replace(CLASS_NODE, **fields)

    assert make_class_key(changed) != make_class_key(CLASS_NODE)
    assert compute_node_class(changed) == compute_node_class(CLASS_NODE)


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "other", "name": "other"},
        {"meta": {"color": "red", "unique.x": "1"}},
        {"status": NodeStatus.DOWN},
        {
            "node_resources": with_resources(
                CLASS_NODE,
                devices=(
                    replace(
                        GPU,
                        attributes={"unique.serial": DeviceAttribute(string="7")},
                        instances=(DeviceInstance(id="5", healthy=True), DeviceInstance(id="6")),
                    ),
                ),
            ).node_resources
        },
    ],
)
def test_what_no_check_of_a_kind_reads_makes_no_difference(fields: dict[str, Any]) -> None:
    changed = replace(CLASS_NODE, **fields)

    assert make_class_key(changed) == make_class_key(CLASS_NODE)
    assert compute_node_class(changed) == compute_node_class(CLASS_NODE)
    assert compute_node_class(changed).startswith("v1:")
