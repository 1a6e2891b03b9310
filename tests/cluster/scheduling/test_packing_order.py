"""The order in which groups of a batch job are placed, so that together they fill nodes."""

from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_group, a_job, a_task, some_resources
from tests.kit.state import AState, a_node
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.placement import packing_order
from wharf.cluster.scheduling.placement.packing_order import GroupDemand, order_groups
from wharf.cluster.state.tables import SCHEDULER_CONFIGURATION
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.operator.scheduler_configuration import SchedulerAlgorithm, SchedulerConfiguration

SHARES = st.sampled_from([0.0, 0.001, 0.0042, 0.05, 0.1, 0.25, 0.3, 0.5, 0.6, 1.0, 1.5])
GROUPS = st.lists(st.builds(GroupDemand, count=st.integers(0, 30), cpu=SHARES, memory=SHARES), max_size=6)


def test_the_largest_demand_comes_first_if_no_other_order_saves_nodes() -> None:
    assert order_groups([GroupDemand(3, 0.1, 0.1), GroupDemand(2, 0.5, 0.5)]) == [(1, 2), (0, 3)]


def test_a_demand_that_would_strand_memory_is_placed_next_to_one_that_needs_it() -> None:
    assert order_groups([GroupDemand(2, 0.5, 0.3), GroupDemand(4, 0.2, 0.3)]) == [(0, 1), (1, 2), (0, 1), (1, 2)]


def test_a_demand_larger_than_a_node_comes_first() -> None:
    assert order_groups([GroupDemand(1, 0.5, 0.3), GroupDemand(1, 0.5, 0.7), GroupDemand(1, 2.0, 0.1)])[0] == (2, 1)


def test_a_node_with_thousands_of_allocations_takes_few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    call_count, rule = 0, packing_order.PACKING_RULES[-1]

    def count_calls(*arguments: Any) -> tuple[float, ...]:
        nonlocal call_count
        call_count += 1
        return rule(*arguments)

    monkeypatch.setattr(packing_order, "PACKING_RULES", (count_calls,))
    order_groups([GroupDemand(20_000, 0.0001, 0.0002), GroupDemand(20_000, 0.0002, 0.0001)])

    assert call_count < 2_000


@given(GROUPS)
def test_each_allocation_is_in_the_order_once(groups: list[GroupDemand]) -> None:
    counts: Counter[int] = Counter()
    for index, number in order_groups(groups):
        counts[index] += number

    assert [counts[index] for index in range(len(groups))] == [group.count for group in groups]


def test_a_job_that_needs_both_resources_strands_little_of_either() -> None:
    assert order_groups([GroupDemand(20, 0.5, 0.293), GroupDemand(40, 0.2, 0.293)]) == [(0, 1), (1, 2)] * 20


@pytest.mark.parametrize("is_considered", [(), (False, False)])
def test_without_nodes_the_groups_are_placed_one_after_the_other(is_considered: tuple[bool, ...]) -> None:
    fleet = Fleet()
    for number, _ in enumerate(is_considered):
        fleet.set_node(a_node(f"n{number}"))
    groups = [a_group("small"), a_group("large", a_task(resources=some_resources(cpu=900)))]

    order = packing_order.order_groups_for_fleet(fleet, np.asarray(is_considered, dtype=np.bool_), groups, [3, 2])

    assert order == [(0, 3), (1, 2)]


def test_demands_are_shares_of_the_median_node() -> None:
    fleet = Fleet()
    for number, (cpu, memory_mb) in enumerate([(1, 1), (1_000, 2_000), (1_000, 2_000), (9_000, 9_000)]):
        fleet.set_node(a_node(f"n{number}", cpu=cpu, memory_mb=memory_mb))
    groups = [
        a_group(name, a_task(resources=some_resources(cpu=cpu, memory_mb=memory_mb)))
        for name, cpu, memory_mb in (("cpu", 500, 600), ("memory", 200, 600))
    ]
    mask = np.ones(4, dtype=np.bool_)

    # In shares of the median node these are the demands of the test above.
    assert packing_order.order_groups_for_fleet(fleet, mask, groups, [2, 4]) == [(0, 1), (1, 2), (0, 1), (1, 2)]
    assert packing_order.order_groups_for_fleet(fleet, mask, groups[:1], [2]) == [(0, 2)]


@pytest.mark.parametrize("count", [16, 17])
def test_more_demands_than_are_searched_are_placed_largest_first(count: int) -> None:
    groups = [GroupDemand(2, 0.5, 0.3), GroupDemand(4, 0.2, 0.3)]
    groups += [GroupDemand(0, 0.001 * number, 0.001) for number in range(1, count - 1)]

    expected = [(0, 1), (1, 2), (0, 1), (1, 2)] if count == 16 else [(0, 2), (1, 4)]
    assert order_groups(groups) == expected


@pytest.mark.parametrize(
    ("job_type", "algorithm", "mixes"),
    [
        (JobType.BATCH, SchedulerAlgorithm.BINPACK, True),
        (JobType.BATCH, SchedulerAlgorithm.SPREAD, False),
        (JobType.SERVICE, SchedulerAlgorithm.BINPACK, False),
        (JobType.SERVICE, SchedulerAlgorithm.SPREAD, False),
    ],
)
def test_only_groups_of_batch_jobs_with_bin_packing_are_mixed(
    job_type: JobType, algorithm: str, *, mixes: bool
) -> None:
    state = AState()
    state.with_node("n1", cpu=1_000, memory_mb=9_000)
    state.put(SCHEDULER_CONFIGURATION.build_put(SchedulerConfiguration(scheduler_algorithm=algorithm)))
    groups = [
        a_group(name, a_task(resources=some_resources(cpu=cpu)), count=count)
        for name, cpu, count in (("small", 200, 3), ("large", 500, 2))
    ]
    state.register(replace(a_job("shop", *groups), type=job_type))
    (evaluation,) = state.evaluations("shop")

    placed = Counter(each.task_group for each in state.plan(evaluation).placements.get("n1", ()))

    assert placed == ({"large": 2} if mixes else {"small": 3})


@pytest.mark.parametrize(
    ("cpu", "memory", "count", "steps"),
    [
        (0.006, 0.0, 166, 166),  # More than half of a step: one by one.
        (0.0051, 0.001, 196, 196),
        (0.005, 0.0, 200, 100),
        (0.004, 0.004, 250, 125),
        (0.0025, 0.0, 400, 100),  # The last step uses all that is left, in spite of rounding errors.
        (0.001, 0.0, 1_000, 100),
        (0.0, 0.001, 1_000, 100),
        (0.001, 0.0, 15, 2),  # The last step places what remains.
        (0.0, 0.0, 5, 1),  # Demands of nothing have no limit.
        (0.0031, 0.0001, 322, 108),  # The last step places one, because no more fit.
        (0.0001, 0.0031, 644, 108),  # Two nodes are filled equally, so the second costs no steps.
    ],
)
def test_tiny_demands_are_added_in_steps_of_a_hundredth_of_a_node(
    monkeypatch: pytest.MonkeyPatch, cpu: float, memory: float, count: int, steps: int
) -> None:
    seen: list[GroupDemand] = []

    def record_step(_node: object, demand: GroupDemand) -> tuple[float, ...]:
        seen.append(demand)
        return (0.0,)

    monkeypatch.setattr(packing_order, "PACKING_RULES", (record_step,))
    order_groups([GroupDemand(count, cpu, memory)])

    assert len(seen) == steps


@pytest.mark.parametrize(
    ("rule", "remaining", "preferred"),
    [
        (1, (4.0, 1.0), (0.9, 0.1)),  # Leaves the least CPU free, of which more is needed.
        (1, (1.0, 4.0), (0.1, 0.9)),
        (2, (3.0, 2.7), (0.5, 0.45)),  # Leaves as much of both as the others need.
        (2, (2.7, 3.0), (0.45, 0.5)),
        (3, (3.0, 2.7), (0.5, 0.45)),
        (3, (2.7, 3.0), (0.45, 0.5)),
    ],
)
def test_a_rule_prefers_what_leaves_little_of_the_resource_that_the_others_need(
    rule: int, remaining: tuple[float, float], preferred: tuple[float, float]
) -> None:
    node = packing_order._ImaginaryNode(1.0, 1.0, [0, 0, 0], *remaining)
    demands = [GroupDemand(1, *shares) for shares in ((0.1, 0.9), (0.9, 0.1), (preferred if rule > 1 else (0.5, 0.45)))]

    chosen = min(demands, key=lambda demand: packing_order.PACKING_RULES[rule](node, demand))

    assert (chosen.cpu, chosen.memory) == preferred


@given(GROUPS)
def test_cpu_and_memory_have_the_same_weight(groups: list[GroupDemand]) -> None:
    exchanged = [GroupDemand(group.count, cpu=group.memory, memory=group.cpu) for group in groups]

    assert order_groups(exchanged) == order_groups(groups)
