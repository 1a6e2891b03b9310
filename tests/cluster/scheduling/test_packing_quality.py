"""The quality of placements: against an exact solver on small cases, and against the lower bound on many nodes."""

import math
from collections import Counter
from collections.abc import Iterable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_batch_job, a_group, a_task, some_resources
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.scheduler import plan_evaluation
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job, JobType

NODE_CAPACITY = 1_000
"""MHz and MB of every node."""

MAX_NODE_RATIO = 11 / 9
"""First fit decreasing needs at most this many times the optimal number of nodes. The documented bound adds one node."""


def make_job(job_id: str, *groups: tuple[int, int, int]) -> Job:
    """Return a job with a group for each triple of count, MHz and MB."""

    def group(number: int, count: int, cpu: int, memory_mb: int) -> TaskGroup:
        task = a_task(resources=some_resources(cpu=cpu, memory_mb=memory_mb))
        return a_group(f"g{number}", task, count=count)

    return a_batch_job(job_id, *(group(number, *each) for number, each in enumerate(groups)))


def count_used_nodes(nodes: int, job: Job) -> tuple[int, int]:
    """Return how many nodes the scheduler uses, and how many allocations it places."""
    cluster = SimulatedCluster()
    for number in range(nodes):
        cluster.with_node(f"n{number}", cpu=NODE_CAPACITY, memory_mb=NODE_CAPACITY)
    cluster.register(job)
    (evaluation,) = cluster.list_due()
    plan = plan_evaluation(SchedulerCache.from_snapshot(cluster.replica), cluster.replica, evaluation, cluster.moment)
    used = Counter({node_id: len(placed) for node_id, placed in plan.placements.items()})
    return len(used), used.total()


def find_min_nodes(nodes: int, groups: list[tuple[int, int, int]]) -> int:
    """Return the lowest possible number of nodes, by an integer program."""
    # Imported here: each process of `make test` loads this module, and one of them runs it.
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]  # It ships no types.

    kinds = len(groups)
    width = nodes * (kinds + 1)
    cost = np.zeros(width)
    cost[nodes * kinds :] = 1
    rows, low, high = [], [], []
    for node in range(nodes):
        for dimension in (1, 2):
            row = np.zeros(width)
            for kind, group in enumerate(groups):
                row[node * kinds + kind] = group[dimension]
            row[nodes * kinds + node] = -NODE_CAPACITY
            rows.append(row)
            low.append(-np.inf)
            high.append(0)
    for kind, group in enumerate(groups):
        row = np.zeros(width)
        row[[node * kinds + kind for node in range(nodes)]] = 1
        rows.append(row)
        low.append(group[0])
        high.append(group[0])
    upper = np.ones(width)
    upper[: nodes * kinds] = max(group[0] for group in groups)
    solution = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), low, high),
        integrality=np.ones(width),
        bounds=Bounds(0, upper),
        options={"time_limit": 5.0},
    )
    assert solution.success, solution.message
    return round(float(solution.fun))


SIZES = st.sampled_from([100, 150, 200, 250, 300, 400, 500, 600, 700])
GROUPS = st.lists(st.tuples(st.integers(1, 5), SIZES, SIZES), min_size=1, max_size=3)


@settings(max_examples=25)
@given(GROUPS)
def test_packing_uses_a_bounded_share_more_nodes_than_an_exact_solver(
    groups: list[tuple[int, int, int]],
) -> None:
    groups = sorted(groups, key=lambda group: -max(group[1], group[2]))  # Users tend to write the large groups first.
    nodes = sum(group[0] for group in groups)
    used, placed = count_used_nodes(nodes, make_job("shop", *groups))
    optimal = find_min_nodes(nodes, groups)

    assert placed == nodes
    assert optimal <= used <= math.ceil(optimal * MAX_NODE_RATIO) + 1


@settings(max_examples=25)
@given(GROUPS, st.integers(1, 6))
def test_everything_that_fits_on_some_node_is_placed(groups: list[tuple[int, int, int]], nodes: int) -> None:
    cluster = SimulatedCluster()
    for number in range(nodes):
        cluster.with_node(f"n{number}", cpu=NODE_CAPACITY, memory_mb=NODE_CAPACITY)
    cluster.register(make_job("shop", *groups))
    cluster.process_pending()
    fleet = SchedulerCache.from_snapshot(cluster.replica).fleet
    free = [
        (int(fleet.cpu[row] - fleet.cpu_used[row]), int(fleet.memory[row] - fleet.memory_used[row]))
        for row in fleet.row_by_node_id.values()
    ]
    placed = Counter(each.task_group for each in cluster.list_active())
    missing = [group for number, group in enumerate(groups) if placed[f"g{number}"] < group[0]]

    assert [
        allocation
        for allocation in missing
        if any(cpu >= allocation[1] and memory >= allocation[2] for cpu, memory in free)
    ] == []


EQUAL_SHARES = ((100, 500, 500), (100, 250, 250), (200, 200, 200), (250, 100, 90), (300, 50, 50))
UNEQUAL_SHARES = ((100, 500, 300), (100, 250, 250), (200, 200, 300), (250, 100, 150), (300, 50, 50))
SMALL_DEMANDS = ((1_000, 50, 50),)


@pytest.mark.parametrize(
    "kinds",
    [
        pytest.param(EQUAL_SHARES, id="equal shares of CPU and memory"),
        pytest.param(UNEQUAL_SHARES, id="unequal shares of CPU and memory"),
        pytest.param(UNEQUAL_SHARES[::-1], id="unequal shares, small groups first"),
        pytest.param(SMALL_DEMANDS, id="many small allocations"),
        pytest.param(
            tuple((1, cpu, memory) for count, cpu, memory in UNEQUAL_SHARES for _ in range(count)),
            id="groups with one allocation",
        ),
    ],
)
def test_on_many_nodes_packing_uses_at_most_two_percent_more_than_the_lower_bound(
    kinds: tuple[tuple[int, int, int], ...],
) -> None:
    used, placed = count_used_nodes(300, make_job("shop", *kinds))

    assert placed == sum(count for count, _, _ in kinds)
    assert used <= 1.02 * compute_lower_bound(kinds)


def compute_lower_bound(kinds: Iterable[tuple[int, int, int]]) -> int:
    """Return how many nodes the sum of the demands would fill."""
    cpu, memory = sum(count * cpu for count, cpu, _ in kinds), sum(count * memory for count, _, memory in kinds)
    return math.ceil(max(cpu, memory) / NODE_CAPACITY)


def test_siblings_of_a_service_are_kept_apart_as_in_nomad() -> None:
    batch = make_job("shop", (10, 50, 50))

    assert (1, 10) == count_used_nodes(300, batch)
    assert (10, 10) == count_used_nodes(300, replace(batch, type=JobType.SERVICE))
