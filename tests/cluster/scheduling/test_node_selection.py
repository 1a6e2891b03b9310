"""The best node for each allocation, compared with slow reference formulas and with cases by hand."""

from collections.abc import Callable, Iterable, Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_constraint, a_group, a_job, a_spread, a_task, an_affinity, some_resources
from tests.cluster.scheduling.slow_scorer import ReferenceState, can_take, score
from tests.kit.state import AState, a_node, an_allocation
from wharf.cluster.scheduling.feasibility.checker import FeasibilityChecker
from wharf.cluster.scheduling.feasibility.distinct import PlacedSibling
from wharf.cluster.scheduling.feasibility.volumes import NamespaceVolumes, make_volume_check
from wharf.cluster.scheduling.fleet.draft import FleetDraft
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.ranking.rules import PlacementRules
from wharf.cluster.scheduling.ranking.seeded_random import SeededRandom
from wharf.cluster.scheduling.ranking.selector import NodeChoice, NodeSelector
from wharf.cluster.state.tables import ALLOCATIONS, NODES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.jobs.constraints import Spread
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.nodes.node import Node, NodeHostVolume, NodeStatus
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm
from wharf.contract.model.resource_usage import Usage, get_resources_usage

RACK = "${meta.rack}"
ZONE = "${node.datacenter}"


class SelectorHarness:
    """A node selector for one group, with its fleet and draft."""

    def __init__(
        self, *draw_nodes: Node, job: Job, placed: tuple[tuple[str, str], ...] = (), algorithm: str = ""
    ) -> None:
        self.fleet = Fleet()
        for node in draw_nodes:
            self.fleet.set_node(replace(node, status=NodeStatus.READY))
        self.job, self.group = job, job.groups[0]
        state = AState()
        self.volumes = NamespaceVolumes(state.replica, "default")
        self.algorithm = algorithm or SchedulerAlgorithm.BINPACK
        self.draft = FleetDraft(self.fleet)
        self.selector = self.make_selector(
            PlacedSibling(self.fleet.row_by_node_id[node_id], name) for node_id, name in placed
        )

    def make_selector(self, siblings: Iterable[PlacedSibling]) -> NodeSelector:
        """Return a new selector for the draft as it is now."""
        feasibility = FeasibilityChecker(self.fleet)
        return NodeSelector(
            self.draft,
            feasibility.screen_nodes(feasibility.select_ready_nodes(self.job), self.job, self.group, self.volumes),
            self.job,
            self.group,
            rules=PlacementRules(self.algorithm),
            random=SeededRandom("an evaluation", 1),
            siblings=siblings,
            volume_check=make_volume_check(self.group, self.volumes),
        )

    def choose(self, index: int = 0, *, avoided: tuple[str, ...] = (), preferred: str = "") -> NodeChoice | None:
        return self.selector.choose_node(f"shop.web[{index}]", avoided=avoided, preferred=preferred)

    def place(self, number: int) -> list[str]:
        chosen = [self.choose(index) for index in range(number)]
        return [candidate.node.id if candidate is not None else "" for candidate in chosen]


def make_job(**fields: object) -> Job:
    """Return a job with one group that has these fields."""
    return a_job("shop", replace(a_group("web"), **fields))


@st.composite
def draw_nodes(draw: st.DrawFn) -> list[Node]:
    result = []
    for number in range(draw(st.integers(1, 7))):
        meta = draw(st.sampled_from([{"rack": "r1"}, {"rack": "r2"}, {"rack": "r3"}, {}]))
        size = draw(st.sampled_from([300, 1_000, 2_500]))
        zone = draw(st.sampled_from(["dc1", "dc2"]))
        result.append(a_node(f"n{number}", cpu=size, memory_mb=size, meta=meta, datacenter=zone))
    return result


@st.composite
def draw_jobs(draw: st.DrawFn) -> Job:
    def draw_some(*choices: object) -> tuple[object, ...] | None:
        return tuple(draw(st.lists(st.sampled_from(choices), max_size=2, unique_by=repr))) or None

    group = TaskGroup(
        name="web",
        count=draw(st.integers(1, 8)),
        tasks=(a_task(resources=some_resources(cpu=draw(st.sampled_from([50, 250, 600])))),),
        affinities=draw_some(an_affinity(RACK, "r1"), an_affinity(ZONE, "dc2", weight=-30)),  # type: ignore[arg-type]
        spreads=draw_some(a_spread(RACK), a_spread(ZONE, 100, dc1=70), a_spread(RACK, 20, r1=50, r2=50)),  # type: ignore[arg-type]
        constraints=draw_some(  # type: ignore[arg-type]
            a_constraint("", operand="distinct_hosts"),
            a_constraint(RACK, "2", operand="distinct_property"),
            a_constraint(RACK, "r3", operand="!="),
            a_constraint("${node.unique.name}", "n0", operand="!="),
        ),
        networks=draw(
            st.sampled_from([None, (NetworkResource(mode="host", reserved_ports=(Port(label="web", value=80),)),)])
        ),
    )
    distinct = draw(st.sampled_from([None, (a_constraint("", operand="distinct_hosts"),)]))
    return a_job("shop", group, constraints=distinct)


@given(draw_nodes(), draw_jobs(), st.sampled_from(["binpack", "spread"]), st.data())
@settings(max_examples=200, deadline=None)
def test_each_allocation_is_placed_on_a_node_with_the_highest_score(
    fleet: list[Node], job: Job, algorithm: str, data: st.DataObject
) -> None:
    ids = [node.id for node in fleet]
    placed = data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(["web", "db"])), max_size=4))
    avoided = tuple(data.draw(st.lists(st.sampled_from(ids), max_size=1)))
    harness = SelectorHarness(*fleet, job=job, placed=tuple(placed), algorithm=algorithm)
    by_id = {node.id: node for node in fleet}
    reference = ReferenceState(
        fleet,
        {node_id: Usage() for node_id in ids},
        {node_id: set() for node_id in ids},
        [(by_id[node_id], name) for node_id, name in placed],
    )
    group = job.groups[0]
    for index in range(group.count):
        scores = {
            node.id: score(reference, job, group, node, algorithm=algorithm, avoid=avoided)
            for node in fleet
            if can_take(reference, job, group, node)
        }
        chosen = harness.choose(index, avoided=avoided)
        if chosen is None:
            assert scores == {}
            return
        assert scores[chosen.node.id] == pytest.approx(max(scores.values()), abs=1e-9)
        reference.used[chosen.node.id] += get_resources_usage(chosen.resources)
        reference.ports[chosen.node.id] |= {port.value for port in chosen.resources.shared.ports or ()}
        reference.placed.append((by_id[chosen.node.id], group.name))


@given(draw_nodes(), draw_jobs(), st.lists(st.sampled_from(["place", "leave", "free"]), max_size=24), st.data())
def test_a_selector_finds_a_node_if_and_only_if_a_new_selector_does(
    fleet: list[Node], job: Job, steps: list[str], data: st.DataObject
) -> None:
    harness = SelectorHarness(*fleet, job=job)
    rows = harness.fleet.row_by_node_id
    siblings: list[PlacedSibling] = []
    placed: list[NodeChoice] = []
    for step in steps:
        if step == "place":
            can_place = any(not harness.make_selector(siblings).find_obstacle(node) for node in fleet)
            chosen = harness.choose()
            assert (chosen is not None) == can_place
            if chosen is not None:
                siblings.append(PlacedSibling(rows[chosen.node.id], "web"))
                placed.append(chosen)
        elif step == "leave" and siblings:
            sibling = siblings.pop(data.draw(st.integers(0, len(siblings) - 1)))
            harness.selector.count_sibling(sibling, -1)
        elif step == "free" and placed:
            freed = placed.pop(data.draw(st.integers(0, len(placed) - 1)))
            harness.draft.remove_allocation(rows[freed.node.id], freed.resources)


def test_the_scores_of_a_placement_are_reported_best_first() -> None:
    job = make_job(count=2, affinities=(an_affinity(RACK, "r1", weight=40), an_affinity(RACK, "r2", weight=-60)))
    harness = SelectorHarness(
        a_node("full", cpu=400, memory_mb=128),
        a_node("liked", meta={"rack": "r1"}),
        a_node("disliked", meta={"rack": "r2"}),
        job=job,
        placed=(("full", "web"),),
    )

    chosen = harness.choose(avoided=("liked",))

    assert chosen is not None
    score_by_node = {each.node_id: each for each in chosen.metric.score_meta_data or ()}
    packing_scores = {  # With 100 MHz of 400 and 64 MB of 128; with 100 of 1,000 and 64 of 1,000.
        "full": (20 - 10**0.75 - 10**0.5) / 18,
        "liked": (20 - 10**0.9 - 10**0.936) / 18,
    }
    assert [each.node_id for each in chosen.metric.score_meta_data or ()] == ["full", "liked", "disliked"]
    assert score_by_node["full"].scores == pytest.approx(
        {
            "binpack": packing_scores["full"],
            "job-anti-affinity": -1.0,
            "node-reschedule-penalty": 0.0,
            "node-affinity": 0.0,
        }
    )
    assert score_by_node["full"].norm_score == pytest.approx((packing_scores["full"] - 1.0 + 0.0) / 3)
    assert score_by_node["liked"].scores == pytest.approx(
        {
            "binpack": packing_scores["liked"],
            "job-anti-affinity": 0.0,
            "node-reschedule-penalty": -1.0,
            "node-affinity": 0.4,
        }
    )
    assert score_by_node["liked"].norm_score == pytest.approx((packing_scores["liked"] - 1.0 + 0.4) / 3)


def make_racks(*names: str) -> list[Node]:
    return [
        a_node(f"{name}-{number}", cpu=10_000, memory_mb=10_000, meta={"rack": name})
        for name in names
        for number in (1, 2)
    ]


def count_by_rack(ids: list[str]) -> dict[str, int]:
    result: dict[str, int] = {}
    for node_id in ids:
        result[node_id.split("-")[0]] = result.get(node_id.split("-")[0], 0) + 1
    return result


def test_a_spread_without_targets_is_even() -> None:
    harness = SelectorHarness(*make_racks("a", "b", "c"), job=make_job(count=7, spreads=(a_spread(RACK),)))

    assert sorted(count_by_rack(harness.place(7)).values()) == [2, 2, 3]


def test_a_spread_with_targets_reaches_them() -> None:
    harness = SelectorHarness(
        *make_racks("a", "b", "c"), job=make_job(count=10, spreads=(a_spread(RACK, 100, a=70, b=20),))
    )

    assert count_by_rack(harness.place(10)) == {"a": 7, "b": 2, "c": 1}


def get_boosts(spread: Spread, placed: tuple[tuple[str, str], ...]) -> dict[str, float]:
    """Return the boost of each rack when allocations are already placed on these racks."""
    harness = SelectorHarness(*make_racks("a", "b", "c"), job=make_job(count=10, spreads=(spread,)), placed=placed)
    chosen = harness.choose()
    assert chosen is not None
    scores = chosen.metric.score_meta_data or ()
    return {each.node_id.split("-")[0]: (each.scores or {})["allocation-spread"] for each in scores}


def test_the_boosts_of_a_spread_with_targets_are_the_missing_shares() -> None:
    # Desired: 7 on a (3 placed), 2 on b (0 placed), and 1 on other values (1 placed).
    spread = a_spread(RACK, 100, a=70, b=20)
    placed = (("a-1", "web"), ("a-1", "web"), ("a-2", "web"), ("c-1", "web"), ("c-1", "db"))

    assert get_boosts(spread, placed) == pytest.approx({"a": (7 - 4) / 7, "b": (2 - 1) / 2, "c": (1 - 2) / 1})


def test_the_boosts_of_an_even_spread_compare_with_the_lowest_and_highest_counts() -> None:
    placed = (("a-1", "web"), ("b-1", "web"), ("b-1", "web"), ("b-2", "web"))

    assert get_boosts(a_spread(RACK), ()) == {"a": 0.0, "b": 0.0, "c": 0.0}
    assert get_boosts(a_spread(RACK), placed) == pytest.approx({"a": (3 - 1) / 1, "b": (1 - 3) / 1, "c": (1 - 0) / 1})
    assert get_boosts(a_spread(RACK), (("a-1", "web"), ("b-1", "web"))) == {"a": -1.0, "b": -1.0, "c": 1.0}


def test_a_node_without_the_attribute_has_the_lowest_spread_boost() -> None:
    harness = SelectorHarness(a_node("no-1"), *make_racks("a", "b"), job=make_job(count=3, spreads=(a_spread(RACK),)))

    assert "no-1" not in harness.place(2)


def test_a_migrated_allocation_prefers_the_named_node() -> None:
    harness = SelectorHarness(a_node("small", cpu=200), a_node("large", cpu=9_000), job=make_job(count=2))

    assert [harness.choose(preferred="large").node.id, harness.choose().node.id] == ["large", "small"]  # type: ignore[union-attr]


def test_a_full_preferred_node_is_not_required() -> None:
    harness = SelectorHarness(a_node("small", cpu=50), a_node("large"), job=make_job())

    chosen = harness.choose(preferred="small")

    assert chosen is not None
    assert chosen.node.id == "large"


def test_a_failed_placement_reports_the_exhausted_dimensions() -> None:
    job = make_job(count=3, tasks=(a_task(resources=some_resources(cpu=90_000)),))
    harness = SelectorHarness(
        a_node("n1", node_class="large"), a_node("n2", attributes={}, node_class="bare"), a_node("n3"), job=job
    )

    assert harness.place(3) == ["", "", ""]
    failure = harness.selector.failure_metric
    assert failure is not None
    assert (failure.nodes_evaluated, failure.nodes_filtered, failure.nodes_exhausted) == (3, 1, 2)
    assert (failure.nodes_in_pool, failure.nodes_available, failure.coalesced_failures) == (3, {"dc1": 3}, 2)
    assert (failure.constraint_filtered, failure.class_filtered) == ({"missing drivers": 1}, {"bare": 1})
    assert (failure.dimension_exhausted, failure.class_exhausted) == ({"cpu": 2}, {"large": 1})
    requested = (failure.resources_exhausted or {})["server"]
    assert (requested.cpu, requested.memory_mb) == (270_000, 0)


def test_a_node_is_reported_under_the_first_dimension_that_it_lacks() -> None:
    network = NetworkResource(reserved_ports=(Port(label="web", value=80),))
    job = make_job(count=2, networks=(network,), tasks=(a_task(resources=some_resources(cpu=600, memory_mb=5_000)),))
    harness = SelectorHarness(a_node("cpu-and-memory", cpu=500), a_node("memory", cpu=700), job=job)

    harness.place(1)

    failure = harness.selector.failure_metric
    assert failure is not None
    assert failure.dimension_exhausted == {"cpu": 1, "memory": 1}


def test_a_static_port_is_assigned_once_per_node_and_the_collision_is_reported() -> None:
    network = NetworkResource(reserved_ports=(Port(label="web", value=80),))
    harness = SelectorHarness(a_node("n1"), job=make_job(count=2, networks=(network,)))

    assert harness.place(2) == ["n1", ""]
    failure = harness.selector.failure_metric
    assert failure is not None
    assert failure.dimension_exhausted == {"network: reserved port collision web=80": 1}


def test_nodes_excluded_by_distinct_hosts_are_reported_as_filtered() -> None:
    harness = SelectorHarness(
        a_node("n1"), job=make_job(count=2, constraints=(a_constraint("", operand="distinct_hosts"),))
    )

    harness.place(2)

    failure = harness.selector.failure_metric
    assert failure is not None
    assert (failure.constraint_filtered, failure.nodes_exhausted) == ({"distinct_hosts": 1}, 0)


def test_a_distinct_property_reports_the_value_that_is_used_up() -> None:
    constraint = a_constraint(RACK, "1", operand="distinct_property")
    harness = SelectorHarness(
        a_node("n1", meta={"rack": "r1"}), a_node("n2"), job=make_job(count=2, constraints=(constraint,))
    )

    assert harness.place(2) == ["n1", ""]
    failure = harness.selector.failure_metric
    assert failure is not None
    assert failure.constraint_filtered == {
        "distinct_property: ${meta.rack}=r1 used by 1 allocs": 1,
        'missing property "${meta.rack}"': 1,
    }


def test_a_group_with_volumes_by_index_is_placed_where_its_own_volume_is() -> None:
    def make_node_with_volumes(name: str, *indexes: int) -> Node:
        volumes = {f"data[{i}]": NodeHostVolume(name=f"data[{i}]", path="/data") for i in indexes}
        return a_node(name, host_volumes=volumes)

    volumes = {"v": VolumeRequest(type="host", source="data", per_alloc=True)}
    harness = SelectorHarness(
        make_node_with_volumes("n0", 0), make_node_with_volumes("n12", 1, 2), job=make_job(count=4, volumes=volumes)
    )

    assert harness.place(4) == ["n0", "n12", "n12", ""]
    failure = harness.selector.failure_metric
    assert failure is not None
    assert failure.constraint_filtered == {"missing compatible host volumes": 2}


def test_an_allocation_whose_volume_is_missing_does_not_exclude_those_with_other_volumes() -> None:
    volumes = {"v": VolumeRequest(type="host", source="data", per_alloc=True)}
    node = a_node("n1", host_volumes={"data[1]": NodeHostVolume(name="data[1]", path="/data")})
    harness = SelectorHarness(node, job=make_job(count=3, volumes=volumes))

    assert harness.place(3) == ["", "n1", ""]
    failure = harness.selector.failure_metric
    assert failure is not None
    assert failure.coalesced_failures == 1


def test_after_a_failure_a_group_without_volumes_by_index_fails_until_resources_are_freed() -> None:
    harness = SelectorHarness(a_node("n1", cpu=150), job=make_job(count=3))

    resources = harness.choose().resources  # type: ignore[union-attr]
    assert harness.place(2) == ["", ""]
    failure = harness.selector.failure_metric
    assert failure is not None
    assert failure.coalesced_failures == 1
    harness.draft.remove_allocation(harness.fleet.row_by_node_id["n1"], resources)
    assert harness.place(2) == ["n1", ""]


def try_and_explain(selector: NodeSelector, node: Node) -> dict[str, int] | None:
    """Return which dimensions the node lacks after it could not take an allocation."""
    if selector.try_node(node, "shop.web[1]") is not None:
        return None
    metric = selector.explain_node_failure(node)
    assert (metric.nodes_exhausted, metric.nodes_filtered) == (1, 0)
    return metric.dimension_exhausted


NODE_QUERIES: Mapping[str, tuple[Callable[[NodeSelector, Node], object], object]] = {
    "choose_node": (lambda selector, _: selector.choose_node("shop.web[1]"), None),
    "choose_nodes": (lambda selector, _: selector.choose_nodes(3), []),
    "try_node": (lambda selector, node: selector.try_node(node, "shop.web[1]"), None),
    "score_node": (lambda selector, node: selector.score_node(node, "shop.web[1]"), None),
    "find_obstacle": (lambda selector, node: selector.find_obstacle(node), "cpu"),
    "list_full_rows": (lambda selector, _: selector.list_full_rows().tolist(), [0]),
    "explain_node_failure": (try_and_explain, {"cpu": 1}),
}
"""What can be asked about nodes, and the reply about a node that has no CPU left."""


def test_the_obstacle_of_a_node_is_its_first_reason() -> None:
    constraint = a_constraint("", operand="distinct_hosts")
    nodes = [a_node("fits"), a_node("bare", attributes={}), a_node("full", cpu=10), a_node("draining")]
    harness = SelectorHarness(*nodes, job=make_job(count=9, constraints=(constraint,)), placed=(("fits", "web"),))
    fits, bare, full, draining = nodes
    harness.fleet.set_node(replace(draining, status=NodeStatus.DOWN))
    selector = harness.make_selector([])

    assert selector.find_obstacle(fits) == ""
    assert harness.selector.find_obstacle(fits) == "distinct_hosts"
    assert selector.find_obstacle(bare) == "missing drivers"
    assert selector.find_obstacle(full) == "cpu"
    assert selector.find_obstacle(draining) == "not ready"
    assert selector.find_obstacle(a_node("unknown")) == "node is gone"


@pytest.mark.parametrize("query", NODE_QUERIES)
def test_every_query_counts_what_other_groups_placed_and_freed_since(query: str) -> None:
    ask, when_full = NODE_QUERIES[query]
    node = a_node("n1", cpu=1_000, memory_mb=9_000)
    harness = SelectorHarness(node, job=make_job(count=9))
    harness.choose()
    assert ask(harness.selector, node) != when_full
    cpu_left = 1_000 - int(harness.draft.cpu_used[0])
    other = a_task("other", resources=some_resources(cpu=cpu_left))
    resources = SelectorHarness(node, job=make_job(tasks=(other,))).choose().resources  # type: ignore[union-attr]

    harness.draft.add_allocation(0, resources, get_resources_usage(resources))
    assert ask(harness.selector, node) == when_full

    harness.draft.remove_allocation(0, resources)
    assert ask(harness.selector, node) != when_full


def test_placements_of_other_groups_in_the_evaluation_count() -> None:
    harness = SelectorHarness(a_node("n1", cpu=250), a_node("n2", cpu=250), job=make_job(count=4))
    row = harness.fleet.row_by_node_id["n1"]
    resources = harness.choose().resources  # type: ignore[union-attr]

    harness.draft.add_allocation(row, resources, Usage(250, 64, 0))

    assert harness.place(2) == ["n2", "n2"] or harness.place(2) == ["n2", ""]


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_a_fleet_that_follows_changes_equals_the_fleet_of_the_state(data: st.DataObject) -> None:
    state, followed = AState(), Fleet()
    job = a_job()
    state.register(job)
    job = state.job()
    port = NetworkResource(reserved_ports=(Port(label="web", value=80),))
    for step in range(data.draw(st.integers(1, 15))):
        node_id = f"n{data.draw(st.integers(0, 3))}"
        stored = state.replica.get(NODES, node_id)
        match data.draw(st.sampled_from(["node", "deleted node", "allocation", "batch", "end", "loss"])):
            case "node":
                size = data.draw(st.sampled_from([500, 1_000]))
                rack = data.draw(st.sampled_from(["r1", "r2"]))
                status = data.draw(st.sampled_from([NodeStatus.READY, NodeStatus.DOWN]))
                state.put(NODES.build_put(a_node(node_id, cpu=size, meta={"rack": rack}, status=status)))
                node_allocations = [each for each in state.replica.iter_all(ALLOCATIONS) if each.node_id == node_id]
                followed.set_node(state.node(node_id), node_allocations)
            case "deleted node" if stored is not None:
                state.put(NODES.build_delete(node_id))
                followed.remove_node(node_id)
            case "allocation":
                harness = SelectorHarness(a_node("any"), job=make_job(networks=(port,) if step % 2 else None))
                resources = harness.choose().resources  # type: ignore[union-attr]
                state.put(
                    ALLOCATIONS.build_put(
                        an_allocation(job, f"a{step}", node_id=node_id, allocated_resources=resources)
                    )
                )
                followed.apply_change(None, state.allocation(f"a{step}"))
            case "batch":
                harness = SelectorHarness(a_node("any"), job=make_job(networks=(port,) if step % 2 else None))
                resources = harness.choose().resources  # type: ignore[union-attr]
                node_numbers = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=4))
                batch = {
                    f"a{step}.{number}": an_allocation(
                        job, f"a{step}.{number}", node_id=f"n{node_number}", allocated_resources=resources
                    )
                    for number, node_number in enumerate(node_numbers)
                }
                state.put(*map(ALLOCATIONS.build_put, batch.values()))
                followed.add_allocations(map(state.allocation, batch))
            case "end" | "loss" if list(state.replica.iter_all(ALLOCATIONS)):
                before = data.draw(st.sampled_from(list(state.replica.iter_all(ALLOCATIONS))))
                client_status = data.draw(
                    st.sampled_from([ClientStatus.COMPLETE, ClientStatus.LOST, ClientStatus.RUNNING])
                )
                state.put(ALLOCATIONS.build_put(replace(before, client_status=client_status)))
                followed.apply_change(before, state.allocation(before.id))
    assert list_columns(Fleet.from_snapshot(state.replica)) == list_columns(followed)


def list_columns(fleet: Fleet) -> dict[str, object]:
    """Return all column values of each node, by node id."""
    result: dict[str, object] = {}
    for row, node in fleet.iter_nodes():
        in_use = fleet.exclusive_resources.get(row)
        result[node.id] = (
            fleet.get_usage(row),
            int(fleet.count[row]),
            (int(fleet.cpu[row]), int(fleet.memory[row]), int(fleet.disk[row])),
            bool(fleet.is_ready[row]),
            fleet.kinds.values[fleet.kind[row]],
            fleet.datacenters.values[fleet.datacenter[row]],
            fleet.get_property_column(RACK).values.values[fleet.get_property_column(RACK).codes[row]],
            dict(in_use.ports) if in_use is not None else {},
            fleet.port_holders.get(80, {}).get(row, 0),
        )
    return result
