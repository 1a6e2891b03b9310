"""Which evaluations are small enough to be planned between other steps of the leader, without a worker process."""

from typing import Any

import pytest
from msgspec.structs import replace

from tests.attempts import limited_cpu
from tests.builders import a_constraint, a_group, a_job, a_system_job
from tests.kit.state import AState, a_node, an_allocation, an_evaluation
from wharf.cluster.engines.port import WriteLimits
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.constraints import evaluate_comparison
from wharf.cluster.scheduling.scheduler import (
    GROUP_STEPS,
    MAX_SMALL_STEPS,
    NODES_PER_STEP,
    STEPS_PER_PLACEMENT,
    is_small_evaluation,
)
from wharf.cluster.state.tables import ALLOCATIONS, JOBS, NODES, SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread
from wharf.contract.model.jobs.groups import Task
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.volumes import VolumeRequest
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.operator.scheduler_configuration import PreemptionConfig, SchedulerConfiguration

NODE_COUNT = 10
MOST_PLACEMENTS = (MAX_SMALL_STEPS - GROUP_STEPS) // STEPS_PER_PLACEMENT
MOST_WITH_NODE_CHECKS = (MAX_SMALL_STEPS - GROUP_STEPS) // (STEPS_PER_PLACEMENT + NODE_COUNT)
VOLUME = VolumeRequest(name="v", type="host", source="v")


def make_state(job: Job, *, nodes: int = NODE_COUNT, allocations: int = 0, preempting: bool = False) -> AState:
    state = AState(limits=WriteLimits(changes=2_000, conditions=2_000))
    config = PreemptionConfig(service_scheduler_enabled=preempting, system_scheduler_enabled=False)
    state.put(
        SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(preemption_config=config, create_index=WRITE_INDEX)),
        JOBS.build_put(replace(job, create_index=WRITE_INDEX)),
    )
    if nodes:
        state.put(
            *(NODES.build_put(replace(a_node(f"n{number}"), create_index=WRITE_INDEX)) for number in range(nodes))
        )
    if allocations:
        state.put(*(ALLOCATIONS.build_put(an_allocation(job, f"a{number}")) for number in range(allocations)))
    return state


def is_small(state: AState, job: Job) -> bool:
    cache = SchedulerCache.from_snapshot(state.replica)
    return is_small_evaluation(cache, state.replica, an_evaluation(job))


@pytest.mark.parametrize(
    ("most", "fields", "options"),
    [
        (MOST_PLACEMENTS, {}, {}),
        (MOST_PLACEMENTS - 2, {}, {"allocations": 10}),
        (MOST_PLACEMENTS - 1, {}, {"nodes": STEPS_PER_PLACEMENT * NODES_PER_STEP}),
        (MOST_WITH_NODE_CHECKS, {"volumes": {"v": VOLUME}}, {}),
        (MOST_WITH_NODE_CHECKS, {"constraints": (a_constraint("${node.unique.name}", "x"),)}, {}),
        (MOST_WITH_NODE_CHECKS, {}, {"preempting": True}),
    ],
    ids=["placements", "allocations", "many nodes", "volumes", "unique constraint", "preemption"],
)
def test_the_most_placements_of_a_small_evaluation_depend_on_the_work_for_each(
    most: int, fields: dict[str, Any], options: dict[str, Any]
) -> None:
    jobs = [a_job("shop", a_group("web", count=count, **fields)) for count in (1, most, most + 1)]

    assert [is_small(make_state(job, **options), job) for job in jobs] == [True, True, False]


def make_network(kind: str, count: int) -> NetworkResource:
    ports = tuple(Port(label=f"p{number}", value=20_000 + number) for number in range(count))
    return NetworkResource(dynamic_ports=ports) if kind == "dynamic_ports" else NetworkResource(reserved_ports=ports)


@pytest.mark.parametrize("kind", ["dynamic_ports", "reserved_ports"])
@pytest.mark.parametrize("is_of_task", [True, False], ids=["task", "group"])
def test_each_port_of_a_placement_takes_a_step(kind: str, *, is_of_task: bool) -> None:
    jobs = []
    for count in (1, 40, 60):
        networks = (make_network(kind, count),)
        task = Task(name="t", driver="mock", resources=Resources(networks=networks if is_of_task else ()))
        jobs.append(
            a_job("shop", replace(a_group("web", count=10), tasks=(task,), networks=() if is_of_task else networks))
        )

    assert [is_small(make_state(job), job) for job in jobs] == [True, True, False]


DISTINCT = Constraint(l_target="${attr.x}", r_target="1", operand="distinct_property")
AFFINITY = Affinity(l_target="${attr.x}", r_target="a", operand="=", weight=50)
UNIQUE_AFFINITY = Affinity(l_target="${node.unique.name}", r_target="a", operand="=", weight=50)
SPREAD = Spread(attribute="${attr.x}", weight=50)


@pytest.mark.parametrize(
    ("field", "item", "most"),
    [
        ("constraints", DISTINCT, 180),
        ("constraints", a_constraint("${attr.x}", "", "is_not_set"), 800),
        ("spreads", SPREAD, 200),
        ("affinities", AFFINITY, 400),
    ],
    ids=["distinct_property", "constraints", "spreads", "affinities"],
)
@pytest.mark.parametrize("is_of_group", [True, False], ids=["group", "job"])
def test_many_constraints_spreads_and_affinities_make_an_evaluation_large(
    field: str, item: Any, most: int, *, is_of_group: bool
) -> None:
    def make_job(count: int) -> Job:
        fields: dict[str, Any] = {field: (item,) * count}
        if is_of_group:
            return a_job("shop", replace(a_group("web"), **fields))
        return replace(a_job("shop", a_group("web")), **fields)

    jobs = [make_job(most), make_job(2 * most)]

    assert [is_small(make_state(job), job) for job in jobs] == [True, False]


@pytest.mark.parametrize(
    ("field", "item", "most"),
    [("spreads", SPREAD, 4), ("constraints", DISTINCT, 4), ("affinities", UNIQUE_AFFINITY, 9)],
    ids=["spread", "distinct_property", "unique affinity"],
)
def test_values_that_are_read_of_every_node_count_by_the_nodes(field: str, item: Any, most: int) -> None:
    jobs = [replace(a_job("shop", a_group("web")), **{field: (item,) * count}) for count in (most, 2 * most)]

    assert [is_small(make_state(job, nodes=1_000), job) for job in jobs] == [True, False]


@pytest.mark.parametrize(("groups", "expected"), [(1, True), (25, True), (26, False), (1_000, False)])
def test_each_group_takes_some_steps_even_without_placements(groups: int, *, expected: bool) -> None:
    job = a_job("shop", *(a_group(f"g{number}", count=0) for number in range(groups)))

    assert is_small(make_state(job), job) is expected


@pytest.mark.parametrize(("nodes", "expected"), [(0, True), (1, True), (80, True), (81, False)])
def test_a_system_job_has_a_placement_and_a_check_on_each_node(nodes: int, *, expected: bool) -> None:
    job = a_system_job("agent", a_group("agent", count=1))

    assert is_small(make_state(job, nodes=nodes), job) is expected


def test_a_group_without_placements_is_checked_once_on_each_node() -> None:
    job = a_job("shop", a_group("web", count=0, volumes={"v": VOLUME}))

    assert [is_small(make_state(job, nodes=nodes), job) for nodes in (479, 480)] == [True, False]


@pytest.mark.parametrize("is_deleted", [True, False])
def test_existing_allocations_are_counted_even_if_the_job_was_deleted(*, is_deleted: bool) -> None:
    job = a_job("shop", a_group("web", count=0))
    most = MAX_SMALL_STEPS - (0 if is_deleted else GROUP_STEPS)
    results = []
    for allocations in (most, most + 1, MAX_SMALL_STEPS + 1):
        state = make_state(job, allocations=allocations)
        if is_deleted:
            state.put(JOBS.build_delete("default", "shop"))
        results.append(is_small(state, job))

    assert results == [True, False, False]


UNIQUE = "${node.unique.name}"
LONG_LIST = ",".join(f"x{number}" for number in range(2_500))


@pytest.mark.parametrize(
    ("constraint", "most"),
    [
        (a_constraint(UNIQUE, "x"), 450),
        (a_constraint(UNIQUE, "n[0-9]+", "regexp"), 15),
        (a_constraint(UNIQUE, LONG_LIST, "set_contains_any"), 6),
        (a_constraint("${attr.kernel.name}", LONG_LIST, "set_contains_any"), 6),
    ],
    ids=["equal", "pattern", "unique list", "list"],
)
def test_a_job_with_expensive_constraints_is_not_small(constraint: Constraint, most: int) -> None:
    jobs = [replace(a_job("shop", a_group("web")), constraints=(constraint,) * count) for count in (most, 3 * most)]

    assert [is_small(make_state(job), job) for job in jobs] == [True, False]


@pytest.mark.parametrize("operand", ["set_contains_any", "set_contains_all"])
def test_a_long_list_is_split_once_for_all_nodes(operand: str) -> None:
    lists = [f"{LONG_LIST},y{number}" for number in range(20)]

    with limited_cpu(1.0, "the comparisons"):  # Splitting each time takes over ten seconds.
        results = {evaluate_comparison(operand, f"n{node}", text) for text in lists for node in range(1_000)}

    assert results == {False}
