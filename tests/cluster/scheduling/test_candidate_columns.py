"""Candidates, scores, spread boosts and placement metrics as columns of numbers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_spread, a_task, an_affinity, some_resources
from tests.kit.state import AState, a_node, an_allocation
from wharf.cluster.scheduling.feasibility.checker import FeasibilityChecker, ScreeningResult
from wharf.cluster.scheduling.feasibility.distinct import DistinctConstraints, PlacedSibling, list_placed_siblings
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.ranking import metrics
from wharf.cluster.scheduling.ranking.candidates import UNLIMITED_COUNT, Candidates
from wharf.cluster.scheduling.ranking.scoring import (
    UNAVAILABLE_SCORE,
    find_best_positions,
    score_affinities,
    score_node_packing,
    score_packing,
)
from wharf.cluster.scheduling.ranking.spread import SpreadClasses, SpreadCount, build_spread_counts
from wharf.cluster.scheduling.resources.assignment import ResourceAssigner
from wharf.contract.model.allocations.allocation import ClientStatus, DesiredStatus
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.allocations.resources import (
    AllocatedCpu,
    AllocatedPort,
    AllocatedResources,
    AllocatedSharedResources,
    AllocatedTaskResources,
)
from wharf.contract.model.jobs.constraints import Affinity, Spread
from wharf.contract.model.jobs.group_policies import EphemeralDisk
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.nodes.resources import NodeCpu, NodeNetwork, NodeNetworkAddress
from wharf.contract.model.resource_usage import Usage, get_group_demand

RACK = "${meta.rack}"
NONE = AllocatedResources()


def make_group(cpu: int = 100, memory_mb: int = 200, disk_mb: int = 300, *, cores: int = 0, **fields: Any) -> TaskGroup:
    resources = some_resources(cpu=cpu, memory_mb=memory_mb, cores=cores)
    return a_group("web", a_task(resources=resources), ephemeral_disk=EphemeralDisk(size_mb=disk_mb), **fields)


def make_node(name: str, cpu: int = 1_000, memory_mb: int = 1_000, disk_mb: int = 1_000, **fields: Any) -> Node:
    node = a_node(name, cpu=cpu, memory_mb=memory_mb, status=NodeStatus.READY, **fields)
    assert node.node_resources is not None
    return replace(
        node, node_resources=replace(node.node_resources, disk=replace(node.node_resources.disk, disk_mb=disk_mb))
    )


def make_fleet(*nodes: Node) -> Fleet:
    fleet = Fleet()
    for node in nodes:
        fleet.set_node(node)
    return fleet


def make_candidates(draft: FleetDraft, group: TaskGroup, rows: Sequence[int] | None = None) -> Candidates:
    chosen = np.asarray(range(len(draft.fleet)) if rows is None else rows, dtype=np.int64)
    assigner = ResourceAssigner(group, can_oversubscribe=False)
    return Candidates(draft, chosen, assigner, get_group_demand(group))


def list_shortages(candidates: Candidates) -> dict[str, list[int]]:
    """Return by dimension the positions that lack it."""
    found = {dimension: np.flatnonzero(mask).tolist() for dimension, mask in candidates.list_shortages()}
    return {dimension: positions for dimension, positions in found.items() if positions}


# -- candidates --------------------------------------------------------------------------------------------------------


def test_a_candidate_has_capacity_up_to_the_last_unit_of_each_amount() -> None:
    fleet = make_fleet(
        make_node("fits", 100, 200, 300),
        make_node("cpu", 99, 200, 300),
        make_node("memory", 100, 199, 300),
        make_node("disk", 100, 200, 299),
        make_node("full", node_max_allocs=1),
        make_node("limited", node_max_allocs=2),
    )
    draft = FleetDraft(fleet)
    for row in (4, 5):
        draft.add_allocation(row, NONE, Usage())

    candidates = make_candidates(draft, make_group())

    assert candidates.has_capacity.tolist() == [True, False, False, False, False, True]
    assert list_shortages(candidates) == {"cpu": [1], "memory": [2], "disk": [3], "max allocation exceeded": [4]}
    assert candidates.allocations_left.tolist() == [UNLIMITED_COUNT] * 4 + [0, 1]
    assert [candidates.find_shortage(position) for position in range(6)] == [
        "",
        "cpu",
        "memory",
        "disk",
        "max allocation exceeded",
        "",
    ]
    assert (len(candidates), candidates.cpu_after.tolist()[:2]) == (6, [100, 100])


def test_without_limits_every_node_accepts_any_number_of_allocations() -> None:
    candidates = make_candidates(FleetDraft(make_fleet(make_node("a"), make_node("b"))), make_group())

    assert candidates.allocations_left.tolist() == [UNLIMITED_COUNT] * 2


def test_positions_are_found_by_row() -> None:
    fleet = make_fleet(*(make_node(name) for name in "abcd"))

    candidates = make_candidates(FleetDraft(fleet), make_group(), [2, 0])

    assert [candidates.find_position(row) for row in (0, 1, 2, 3, 4, None)] == [1, None, 0, None, None, None]


@pytest.mark.parametrize("is_batch", [True, False])
def test_the_columns_of_changed_nodes_are_refreshed(*, is_batch: bool) -> None:
    fleet = make_fleet(
        make_node("cpu", 200),
        make_node("memory", memory_mb=400),
        make_node("disk", disk_mb=600),
        make_node("count", node_max_allocs=2),
    )
    draft = FleetDraft(fleet)
    candidates = make_candidates(draft, make_group())
    history = []
    for _ in range(3):
        history.append((candidates.has_capacity.tolist(), candidates.allocations_left.tolist()[3]))
        for row in range(4):
            draft.add_allocation(row, NONE, Usage(100, 200, 300))
        if is_batch:
            candidates.refresh_nodes(np.arange(4))
        else:
            for row in range(4):
                candidates.refresh_node(row)

    assert history == [([True] * 4, 2), ([True] * 4, 1), ([False] * 4, 0)]
    assert [column.tolist() for column in (candidates.cpu_after, candidates.memory_after, candidates.disk_after)] == [
        [400] * 4,
        [800] * 4,
        [1_200] * 4,
    ]
    assert candidates.allocations_left.tolist()[:3] == [UNLIMITED_COUNT] * 3


def with_cores(node: Node, *cores: int) -> Node:
    assert node.node_resources is not None
    cpu = NodeCpu(cpu_shares=4_000, total_cpu_cores=4, reservable_cpu_cores=cores)
    return replace(node, node_resources=replace(node.node_resources, cpu=cpu))


def make_core_use(*cores: int) -> AllocatedResources:
    task = AllocatedTaskResources(cpu=AllocatedCpu(cpu_shares=1_000 * len(cores), reserved_cores=cores))
    return AllocatedResources(tasks={"server": task})


def test_reserved_cores_add_their_speed_and_may_be_missing() -> None:
    fleet = make_fleet(*(with_cores(make_node(name), *cores) for name, cores in (("a", (0, 1, 2, 3)), ("b", (0,)))))
    draft = FleetDraft(fleet)
    candidates = make_candidates(draft, make_group(cpu=0, cores=2))
    before = (candidates.cpu_after.tolist(), dict(candidates.missing_dimensions))
    draft.add_allocation(0, make_core_use(0, 1, 2), Usage(3_000))
    candidates.refresh_node(0)
    in_use = (candidates.cpu_after.tolist(), dict(candidates.missing_dimensions))
    draft.remove_allocation(0, make_core_use(0, 1, 2))
    candidates.clear_missing_dimension(0)
    candidates.clear_missing_dimension(0)
    candidates.refresh_node(0)

    assert before == ([2_000, 1_000], {1: "cores"})
    assert in_use == ([4_000, 1_000], {1: "cores", 0: "cores"})
    assert (candidates.cpu_after.tolist(), candidates.missing_dimensions) == ([2_000, 1_000], {1: "cores"})


def test_nodes_with_one_address_on_which_a_static_port_is_in_use_are_known_to_lack_it() -> None:
    def with_addresses(name: str, *addresses: str) -> Node:
        node = make_node(name)
        assert node.node_resources is not None
        networks = tuple(NodeNetwork(addresses=(NodeNetworkAddress(address=address),)) for address in addresses)
        return replace(node, node_resources=replace(node.node_resources, node_networks=networks))

    fleet = make_fleet(
        with_addresses("one", "1"), with_addresses("two", "1", "2"), with_addresses("free", "1"), make_node("none")
    )
    port = AllocatedPort(label="x", value=80, host_ip="1")
    held = AllocatedResources(shared=AllocatedSharedResources(ports=(port,)))
    for row, name in ((0, "one"), (1, "two"), (3, "none")):
        fleet.apply_change(None, an_allocation(a_job(), f"a{row}", node_id=name, allocated_resources=held))
    networks = (
        NetworkResource(reserved_ports=(Port(label="tls", value=443), Port(label="web", value=80))),
        NetworkResource(reserved_ports=(Port(label="ignored", value=80),)),
    )

    candidates = make_candidates(FleetDraft(fleet), make_group(networks=networks), [3, 1, 0, 2])
    candidates.missing_dimensions[1] = "cores"
    candidates.missing_dimensions[3] = "devices: no devices match request gpu"

    text = "network: reserved port collision web=80"
    assert list(list_shortages(candidates).items()) == [
        (text, [0, 2]),
        ("devices: no devices match request gpu", [3]),
        ("cores", [1]),
    ]
    assert candidates.has_capacity.tolist() == [True] * 4


# -- scores ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("algorithm", ["binpack", "spread"])
@pytest.mark.parametrize(
    ("cpu", "cpu_used", "memory", "memory_used"),
    [(1_000, 0, 1_000, 0), (1_000, 1_000, 1_000, 1_000), (1_000, 500, 800, 100), (0, 0, 0, 0), (1, 1, 1_000, 1_500)],
)
def test_the_packing_score_grows_with_the_used_share(
    cpu: int, cpu_used: int, memory: int, memory_used: int, algorithm: str
) -> None:
    free = 10 ** (1 - cpu_used / max(cpu, 1)) + 10 ** (1 - memory_used / max(memory, 1))
    expected = min(max((free - 2) if algorithm == "spread" else (20 - free), 0), 18) / 18

    columns = score_packing(
        np.asarray([cpu]), np.asarray([cpu_used]), np.asarray([memory]), np.asarray([memory_used]), algorithm
    )
    assert columns.tolist() == pytest.approx([expected])
    assert score_node_packing(cpu, cpu_used, memory, memory_used, algorithm) == pytest.approx(expected)


@pytest.mark.parametrize("size", [0, 1, 7, 31, 32, 33, 64, 500])
@pytest.mark.parametrize("count", [0, 1, 2, 5, 8, 40])
@pytest.mark.parametrize("distinct", [1, 3, 1_000])
def test_the_best_positions_are_those_of_a_stable_sort(size: int, count: int, distinct: int) -> None:
    scores = np.asarray([(number * 7_919) % distinct for number in range(size)], dtype=np.float64)
    scores[1::5] = UNAVAILABLE_SCORE

    expected = [at for at in np.argsort(-scores, kind="stable").tolist() if scores[at] != UNAVAILABLE_SCORE][:count]

    assert find_best_positions(scores, count).tolist() == expected


@pytest.mark.parametrize(
    ("affinities", "scores"),
    [
        ((), [0, 0, 0]),
        ((an_affinity(RACK, "r1"),), [1, 0, 0]),
        ((an_affinity(RACK, "r1", weight=-50),), [-1, 0, 0]),
        ((an_affinity(RACK, "r1", weight=75), an_affinity(RACK, "r2", weight=-25)), [0.75, -0.25, 0]),
        ((an_affinity("${node.unique.name}", "b"),), [0, 1, 0]),
        ((an_affinity("${attr.unique.missing}", "x", "!="),), [1, 1, 1]),
        ((an_affinity("${meta.master}", "${node.unique.name}"),), [0, 0, 1]),
    ],
)
def test_the_affinity_score_is_the_matching_share_of_the_weights(
    affinities: tuple[Affinity, ...], scores: list[float]
) -> None:
    fleet = make_fleet(
        make_node("gone"),
        make_node("a", meta={"rack": "r1", "master": "c"}),
        make_node("b", meta={"rack": "r2", "master": "c"}),
        make_node("c", meta={"master": "c"}),
    )

    assert score_affinities(fleet, np.asarray([1, 2, 3]), affinities).tolist() == scores


# -- spread ------------------------------------------------------------------------------------------------------------

RACKS = make_fleet(
    *(
        make_node(f"n{number}", meta={"rack": name} if name else {})
        for number, name in enumerate(["a", "a", "b", "c", ""])
    )
)


def make_spread(spread: Spread, count: int = 10, share: float = 1.0) -> SpreadCount:
    return SpreadCount(spread, RACKS.get_property_column(RACK), count=count, weight_share=share)


def get_boosts(spread: SpreadCount, *rows: int) -> list[float]:
    for row in rows:
        spread.count_allocation(row)
    return [round(boost, 9) for boost in spread.compute_boosts().tolist()]


@pytest.mark.parametrize(
    ("rows", "boosts"),
    [
        ((), [0, 0, 0, -1]),
        ((0,), [-1, 1, 1, -1]),
        ((0, 1), [-1, 1, 1, -1]),
        ((0, 2), [-1, -1, 1, -1]),
        ((0, 0, 2), [-1, 1, 1, -1]),
        ((0, 0, 0, 2), [-2, 2, 1, -1]),
        ((0, 0, 0, 2, 2, 3, 3), [-0.5, 0.5, 0.5, -1]),
        ((0, 0, 0, 0, 2, 2, 2, 3, 3), [-1, -0.5, 1, -1]),
        ((4, 4), [0, 0, 0, -1]),
    ],
)
def test_an_even_spread_prefers_the_values_with_the_fewest_allocations(
    rows: tuple[int, ...], boosts: list[float]
) -> None:
    at_the_end, step_by_step = make_spread(a_spread(RACK)), make_spread(a_spread(RACK))
    for row in rows:
        get_boosts(step_by_step, row)

    assert get_boosts(at_the_end, *rows) == get_boosts(step_by_step) == boosts


def test_an_allocation_that_leaves_is_no_longer_counted() -> None:
    spread = make_spread(a_spread(RACK))
    assert get_boosts(spread, 0, 0, 2) == [-1, 1, 1, -1]
    spread.count_allocation(0, -1)
    assert get_boosts(spread) == [-1, -1, 1, -1]
    for _ in range(3):
        spread.count_allocation(0, -1)
    assert get_boosts(spread) == [1, -1, 1, -1]
    spread.count_allocation(2, -1)
    assert get_boosts(spread) == [0, 0, 0, -1]


@pytest.mark.parametrize(
    ("targets", "count", "rows", "boosts"),
    [
        # 5 and 3 are desired, and 2 for the other values together.
        ({"a": 50, "b": 30}, 10, (), [0.4, 1 / 3, 0.25, -1]),
        ({"a": 50, "b": 30}, 10, (0, 0, 2, 3), [0.2, 1 / 6, 0, -1]),
        ({"a": 50, "b": 30}, 10, (0,) * 6, [-0.2, 1 / 3, 0.25, -1]),
        ({"a": 50, "*": 50}, 10, (2, 3), [0.4, 0.2, 0.2, -1]),
        # The target of the other values counts even if the targets add up to less than 100 %.
        ({"a": 50, "*": 10}, 10, (), [0.4, 0, 0, -1]),
        ({"a": 100}, 4, (), [0.375, -1, -1, -1]),
        ({"a": 100}, 4, (2,), [0.375, -1, -1, -1]),
    ],
)
def test_a_spread_with_targets_prefers_the_values_that_miss_the_largest_share(
    targets: dict[str, int], count: int, rows: tuple[int, ...], boosts: list[float]
) -> None:
    at_the_end = make_spread(a_spread(RACK, **targets), count, 0.5)
    step_by_step = make_spread(a_spread(RACK, **targets), count, 0.5)
    for row in rows:
        get_boosts(step_by_step, row)

    assert get_boosts(at_the_end, *rows) == get_boosts(step_by_step) == pytest.approx(boosts)


def test_a_value_with_a_target_of_zero_gets_the_lowest_boost_so_far() -> None:
    spread = make_spread(a_spread(RACK, a=0, b=100), 4)

    assert get_boosts(spread) == [-1, 0.75, -1, -1]
    for _ in range(9):
        spread.count_allocation(2)
    # b misses (4 - 10) / 4; the next call gives a, which comes before b, that boost.
    assert get_boosts(spread) == [-1, -1.5, -1, -1]
    assert get_boosts(spread) == [-1.5, -1.5, -1, -1]

    spread = make_spread(a_spread(RACK, a=0, c=100), 4)
    for _ in range(9):
        spread.count_allocation(3)
    assert get_boosts(spread) == [-1, -1, -1.5, -1]
    assert get_boosts(spread) == [-1.5, -1, -1.5, -1]


def test_spreads_of_job_and_group_share_the_weights() -> None:
    job = a_job(
        "shop", a_group("web", count=4, spreads=(a_spread(RACK, 30, a=100),)), spreads=(a_spread(RACK, 10, b=100),)
    )
    spreads = build_spread_counts(job, job.groups[0], RACKS)

    assert [get_boosts(spread)[:2] for spread in spreads] == [[-1, 0.75 * 0.25], [0.75 * 0.75, -1]]
    unweighted = replace(job.groups[0], spreads=(a_spread(RACK, 0, a=100),))
    assert get_boosts(build_spread_counts(a_job("shop", unweighted), unweighted, RACKS)[0])[0] == 0


@pytest.mark.parametrize("attributes", [(RACK,), (RACK, "${node.datacenter}"), ("${node.datacenter}", RACK)])
def test_candidates_of_one_spread_class_have_equal_values(attributes: tuple[str, ...]) -> None:
    places = [("a", "dc1"), ("b", "dc1"), ("a", "dc2"), ("", "dc1"), ("a", "dc1"), ("", "dc2"), ("b", "dc1")]
    fleet = make_fleet(
        *(
            make_node(f"n{at}", meta={"rack": rack} if rack else {}, datacenter=dc)
            for at, (rack, dc) in enumerate(places)
        )
    )
    group = a_group("web", count=9, spreads=tuple(a_spread(attribute) for attribute in attributes))
    spreads = build_spread_counts(a_job("shop", group), group, fleet)
    for row in (0, 1, 1, 5):
        for spread in spreads:
            spread.count_allocation(row)
    rows = [6, 0, 3, 2, 1, 4, 5]
    codes = [spread.column.codes[rows] for spread in spreads]
    classes = SpreadClasses(spreads, codes)

    keys = [places[row] if len(attributes) > 1 else places[row][:1] for row in rows]
    for position, key in enumerate(keys):
        code = int(classes.class_codes[position])
        assert classes.list_members(code).tolist() == [at for at, other in enumerate(keys) if other == key]
        boost = sum(float(spread.compute_boosts()[codes[number][position]]) for number, spread in enumerate(spreads))
        assert classes.compute_boosts()[code] == pytest.approx(boost)


# -- distinct constraints ----------------------------------------------------------------------------------------------


def test_siblings_that_have_ended_or_whose_node_is_unknown_are_left_out() -> None:
    job = a_job("shop", a_group("web"))
    allocations = [
        an_allocation(job, "a1", node_id="n1"),
        an_allocation(job, "a2", node_id="n2", task_group="db"),
        an_allocation(job, "a3", node_id="n1", client_status=ClientStatus.COMPLETE),
        an_allocation(job, "a4", node_id="n1", desired_status=DesiredStatus.STOP),
        an_allocation(job, "a5", node_id="n9"),
    ]

    siblings = list_placed_siblings(allocations, {"n1": 1, "n2": 2})

    assert [(sibling.row, sibling.group) for sibling in siblings] == [(1, "web"), (2, "db")]


@pytest.mark.parametrize("is_of_job", [True, False])
@pytest.mark.parametrize("enabled", ["", "true", "false"])
def test_distinct_hosts_counts_the_allocations_of_the_job_or_of_the_group(enabled: str, *, is_of_job: bool) -> None:
    constraints = {"constraints": (a_constraint("", enabled, "distinct_hosts"),)}
    job = make_distinct_job(is_of_job, constraints)
    distinct = DistinctConstraints(RACKS, job, job.groups[0], should_check_hosts=True)
    distinct.count_siblings([PlacedSibling(0, "web"), PlacedSibling(1, "db"), PlacedSibling(2, "web")])
    distinct.count_siblings([PlacedSibling(2, "web")], -1)

    excluded = [] if enabled == "false" else [0, 1] if is_of_job else [0]
    assert bool(distinct) == (enabled != "false")
    assert np.flatnonzero(~distinct.mask_allowed(np.arange(5))).tolist() == excluded
    assert [row for row in range(5) if distinct.explain_row(row) == "distinct_hosts"] == excluded
    assert not DistinctConstraints(RACKS, job, job.groups[0], should_check_hosts=False)


def make_distinct_job(is_of_job: bool, fields: dict[str, Any]) -> Job:
    return a_job("shop", a_group("web"), **fields) if is_of_job else a_job("shop", a_group("web", **fields))


@pytest.mark.parametrize("is_of_job", [True, False])
@pytest.mark.parametrize(("limit", "number"), [("", 1), ("2", 2), ("x", 1)])
def test_distinct_property_limits_the_allocations_of_each_value(limit: str, number: int, *, is_of_job: bool) -> None:
    constraint = a_constraint(RACK, limit, "distinct_property")
    job = make_distinct_job(is_of_job, {"constraints": (constraint,)})
    distinct = DistinctConstraints(RACKS, job, job.groups[0], should_check_hosts=True)
    for sibling in (*[PlacedSibling(0, "web")] * number, *[PlacedSibling(3, "db")] * number, PlacedSibling(4, "web")):
        distinct.count_siblings([sibling])

    used = "distinct_property: ${meta.rack}=%s used by %d allocs"
    of_other_group = used % ("c", number) if is_of_job else ""
    assert [distinct.explain_row(row) for row in range(5)] == [
        *[used % ("a", number)] * 2,
        "",
        of_other_group,
        'missing property "${meta.rack}"',
    ]
    assert distinct.mask_allowed(np.arange(5)).tolist() == [False, False, True, not of_other_group, False]
    distinct.count_siblings([PlacedSibling(1, "web"), PlacedSibling(4, "web")], -1)
    assert distinct.mask_allowed(np.arange(5)).tolist() == [True, True, True, not of_other_group, False]


# -- metrics -----------------------------------------------------------------------------------------------------------

METRIC_FLEET = make_fleet(
    make_node("a", node_class="big", datacenter="dc1"),
    make_node("b", node_class="big", datacenter="dc2", cpu=10),
    make_node("c", node_class="small", datacenter="dc2", memory_mb=10),
    make_node("d", datacenter="dc2", meta={"bad": "1"}, cpu=10),
    make_node("e", node_class="small", datacenter="dc2", meta={"bad": "1"}),
    make_node("f", node_class="far", datacenter="dc9"),
    make_node("g", node_class="small", datacenter="dc1", cpu=10, memory_mb=10),
)
METRIC_JOB = a_job(
    "shop",
    make_group(constraints=(a_constraint("${meta.bad}", "1", "!="),)),
    datacenters=("dc1", "dc2"),
    node_pool="all",
)


def screen() -> ScreeningResult:
    return FeasibilityChecker(METRIC_FLEET).screen_group(
        METRIC_JOB, METRIC_JOB.groups[0], NamespaceVolumes(AState().replica, "default")
    )


def test_a_screening_is_reported_by_reason_class_and_datacenter() -> None:
    metric = metrics.build_screening_metric(METRIC_FLEET, screen(), METRIC_JOB)

    assert metric == AllocMetric(
        nodes_evaluated=6,
        nodes_filtered=2,
        nodes_in_pool=6,
        node_pool="all",
        nodes_available={"dc1": 2, "dc2": 4},
        class_filtered={"small": 1},
        constraint_filtered={"${meta.bad} != 1": 2},
    )


def test_a_screening_of_no_nodes_and_without_filtered_nodes_has_no_counts() -> None:
    fleet = make_fleet(make_node("a"))
    checker, volumes = FeasibilityChecker(fleet), NamespaceVolumes(AState().replica, "default")
    none, all_feasible = (
        metrics.build_screening_metric(fleet, checker.screen_group(job, job.groups[0], volumes), job)
        for job in (a_job(datacenters=("x",)), a_job(node_pool="default"))
    )

    assert none == AllocMetric(node_pool=none.node_pool)
    assert all_feasible == AllocMetric(
        nodes_evaluated=1, nodes_in_pool=1, node_pool="default", nodes_available={"dc1": 1}
    )


@pytest.mark.parametrize("excluded", [None, "", "distinct_hosts", "${meta.bad} != 1"])
def test_a_failure_counts_each_node_once_by_exclusion_or_first_shortage(excluded: str | None) -> None:
    screened, group = screen(), METRIC_JOB.groups[0]
    candidates = make_candidates(FleetDraft(METRIC_FLEET), group, np.flatnonzero(screened.feasible).tolist())
    screening = metrics.build_screening_metric(METRIC_FLEET, screened, METRIC_JOB)

    # The candidates are a, b, c and g; with an exclusion, a and g are excluded.
    metric = metrics.add_failure_reasons(
        screening,
        METRIC_FLEET,
        candidates,
        group,
        None if excluded is None else lambda position: (excluded or "") if position in (0, 3) else "",
    )

    if not excluded:
        assert (metric.constraint_filtered, metric.class_filtered) == ({"${meta.bad} != 1": 2}, {"small": 1})
        assert (metric.nodes_filtered, metric.nodes_exhausted) == (2, 3)
        assert (metric.dimension_exhausted, metric.class_exhausted) == ({"cpu": 2, "memory": 1}, {"big": 1, "small": 2})
    else:
        by_reason = {"${meta.bad} != 1": 2}
        by_reason[excluded] = by_reason.get(excluded, 0) + 2
        assert (metric.constraint_filtered, metric.class_filtered) == (by_reason, {"small": 2, "big": 1})
        assert (metric.nodes_filtered, metric.nodes_exhausted) == (4, 2)
        assert (metric.dimension_exhausted, metric.class_exhausted) == ({"cpu": 1, "memory": 1}, {"big": 1, "small": 1})
    assert metric.resources_exhausted == {"server": Resources(cpu=100, memory_mb=200)}
    assert (metric.nodes_evaluated, metric.node_pool) == (6, "all")


@pytest.mark.parametrize(
    ("node", "resources"),
    [
        (make_node("a", cpu=10), {"one": Resources(cpu=100, memory_mb=0), "two": Resources(cpu=50, memory_mb=0)}),
        (make_node("a", memory_mb=10), {"one": Resources(cpu=0, memory_mb=20), "two": Resources(cpu=0, memory_mb=10)}),
        (make_node("a", disk_mb=10), None),
    ],
)
def test_a_failure_names_the_requested_amounts_of_the_exhausted_dimensions(
    node: Node, resources: dict[str, Resources] | None
) -> None:
    fleet = make_fleet(node)
    tasks = [
        a_task(name, resources=some_resources(cpu, memory)) for name, cpu, memory in (("one", 100, 20), ("two", 50, 10))
    ]
    group = a_group("web", *tasks, a_task("three", resources=None), ephemeral_disk=EphemeralDisk(size_mb=300))
    candidates = make_candidates(FleetDraft(fleet), group)

    metric = metrics.add_failure_reasons(AllocMetric(), fleet, candidates, group, None)

    assert (metric.resources_exhausted, metric.constraint_filtered, metric.class_filtered) == (resources, None, None)
    fits = metrics.add_failure_reasons(
        AllocMetric(), fleet, make_candidates(FleetDraft(fleet), make_group(1, 1, 1)), group, None
    )
    assert fits == AllocMetric()


def test_failures_for_one_reason_are_coalesced() -> None:
    metric = AllocMetric(nodes_evaluated=4, resources_exhausted={"server": Resources(cpu=3, memory_mb=5)})

    assert [metrics.coalesce_failures(metric, count) is metric for count in (0, 1)] == [True, True]
    assert metrics.coalesce_failures(metric, 3) == AllocMetric(
        nodes_evaluated=4, coalesced_failures=2, resources_exhausted={"server": Resources(cpu=9, memory_mb=15)}
    )
    assert metrics.coalesce_failures(AllocMetric(), 2) == AllocMetric(coalesced_failures=1)


def test_an_all_at_once_job_exhausts_the_nodes_that_were_not_filtered() -> None:
    scores = (NodeScore(node_id="a"),)
    metric = AllocMetric(nodes_evaluated=5, nodes_filtered=2, score_meta_data=scores)

    assert metrics.build_all_at_once_metric(metric) == AllocMetric(
        nodes_evaluated=5, nodes_filtered=2, nodes_exhausted=3, dimension_exhausted={"not room for all at once": 3}
    )
    filtered = AllocMetric(nodes_evaluated=2, nodes_filtered=2, score_meta_data=scores)
    assert metrics.build_all_at_once_metric(filtered) == AllocMetric(nodes_evaluated=2, nodes_filtered=2)


def test_the_metric_of_one_node_names_why_it_was_filtered_or_exhausted() -> None:
    node = make_node("a", node_class="big", datacenter="dc3")
    common: dict[str, Any] = {
        "nodes_evaluated": 1,
        "nodes_in_pool": 1,
        "node_pool": "all",
        "nodes_available": {"dc3": 1},
    }

    assert [
        metrics.build_node_metric(each, METRIC_JOB, reason, is_filtered=is_filtered)
        for each, reason, is_filtered in (
            (node, "distinct_hosts", True),
            (node, "", True),
            (node, "cpu", False),
            (replace(node, node_class=""), "cpu", False),
        )
    ] == [
        AllocMetric(nodes_filtered=1, constraint_filtered={"distinct_hosts": 1}, class_filtered={"big": 1}, **common),
        AllocMetric(nodes_filtered=1, class_filtered={"big": 1}, **common),
        AllocMetric(nodes_exhausted=1, dimension_exhausted={"cpu": 1}, class_exhausted={"big": 1}, **common),
        AllocMetric(nodes_exhausted=1, dimension_exhausted={"cpu": 1}, **common),
    ]


def test_metrics_of_several_nodes_are_added_up() -> None:
    first, second = (
        AllocMetric(
            nodes_evaluated=1,
            nodes_filtered=filtered,
            nodes_exhausted=1 - filtered,
            nodes_in_pool=1,
            node_pool="all",
            nodes_available={dc: 1},
            class_filtered={"big": filtered},
            constraint_filtered={"x": 1} if filtered else None,
            class_exhausted={"small": 1},
            dimension_exhausted={"cpu": 2},
        )
        for filtered, dc in ((0, "dc1"), (1, "dc2"))
    )
    total = AllocMetric(
        nodes_evaluated=3,
        nodes_filtered=2,
        nodes_exhausted=1,
        nodes_in_pool=3,
        node_pool="all",
        nodes_available={"dc1": 1, "dc2": 2},
        class_filtered={"big": 2},
        constraint_filtered={"x": 2},
        class_exhausted={"small": 3},
        dimension_exhausted={"cpu": 6},
    )

    assert metrics.merge_metrics([first, second, second]) == total
    assert metrics.merge_metrics([first]) is first
    before = replace(metrics.merge_metrics([first, second]), coalesced_failures=4)
    assert metrics.add_node_failure(before, second) == replace(total, coalesced_failures=5)


def test_the_five_best_scores_are_stored_best_first() -> None:
    scores = np.asarray([0.1, 0.6, UNAVAILABLE_SCORE, 0.3, 0.2, 0.5, 0.4])

    metric = metrics.add_scores(AllocMetric(), scores, lambda at, score: NodeScore(node_id=str(at), norm_score=score))

    assert [(each.node_id, each.norm_score) for each in metric.score_meta_data or ()] == [
        ("1", 0.6),
        ("5", 0.5),
        ("6", 0.4),
        ("3", 0.3),
        ("4", 0.2),
    ]
