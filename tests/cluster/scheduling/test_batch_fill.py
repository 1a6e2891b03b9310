"""A batch of placements gives the same result as single placements."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_spread, a_task, some_resources
from tests.cluster.scheduling.test_node_selection import RACK, SelectorHarness, draw_jobs, draw_nodes, make_job
from tests.kit.state import a_node
from wharf.cluster.scheduling.ranking.selector import NodeChoice
from wharf.contract.model.jobs.constraints import Spread, SpreadTarget
from wharf.contract.model.jobs.group_policies import EphemeralDisk
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node

UNEVEN_SPREAD = Spread(
    attribute=RACK, weight=30, spread_target=(SpreadTarget(value="r2", percent=0), SpreadTarget(value="r1", percent=60))
)
"""A spread that places nothing on the second rack."""


def collect_results(harness: SelectorHarness, chosen: list[NodeChoice]) -> object:
    """Return all observable results of the choices, and the state of the draft."""
    draft = harness.draft
    columns = (draft.cpu_used, draft.memory_used, draft.disk_used, draft.count)
    return (
        [(candidate.node.id, candidate.score, candidate.metric, candidate.resources) for candidate in chosen],
        [column.tolist() for column in columns],
        sorted(set(draft.changed_rows)),
    )


def place_one_by_one(harness: SelectorHarness, number: int) -> list[NodeChoice]:
    return [chosen for index in range(number) if (chosen := harness.choose(index)) is not None]


def place_in_batches(harness: SelectorHarness, number: int, batch_size: int) -> list[NodeChoice]:
    """Place in batches, and one by one where a batch stops."""
    chosen: list[NodeChoice] = []
    for index in range(number):
        if index < len(chosen):
            continue
        choice = harness.choose(index)
        if choice is None:
            break
        chosen = [*chosen, choice]
        chosen += harness.selector.choose_nodes(min(batch_size, number - len(chosen)))
    return chosen


@given(draw_nodes(), draw_jobs(), st.sampled_from(["binpack", "spread"]), st.data())
@settings(max_examples=80, deadline=None)
def test_a_batch_chooses_the_same_nodes_as_single_placements(
    fleet: list[Node], job: Job, algorithm: str, data: st.DataObject
) -> None:
    ids = [node.id for node in fleet]
    placed = tuple(data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(["web", "db"])), max_size=4)))
    if data.draw(st.booleans()):
        spreads = (*(job.groups[0].spreads or ()), UNEVEN_SPREAD)
        job = replace(job, task_groups=(replace(job.groups[0], spreads=spreads),))
    if data.draw(st.booleans()):
        fleet = [replace(node, node_max_allocs=2 + number % 3) for number, node in enumerate(fleet)]
    single = SelectorHarness(*fleet, job=job, placed=placed, algorithm=algorithm)
    batched = SelectorHarness(*fleet, job=job, placed=placed, algorithm=algorithm)
    number, batch_size = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    expected = collect_results(single, place_one_by_one(single, number))
    assert expected == collect_results(batched, place_in_batches(batched, number, batch_size))
    assert single.choose(number) == batched.choose(number)
    assert single.selector.failure_metric is None or batched.selector.failure_metric is not None


def test_ties_are_broken_by_the_random_order_of_candidates() -> None:
    equal_nodes = [a_node(f"n{number}") for number in range(50)]
    single, batched = (
        SelectorHarness(*equal_nodes, job=make_job(count=120)),
        SelectorHarness(*equal_nodes, job=make_job(count=120)),
    )
    assert [each.node.id for each in place_one_by_one(single, 120)] == [
        each.node.id for each in place_in_batches(batched, 120, 119)
    ]


def test_a_batch_with_spread_chooses_the_same_nodes_as_single_placements() -> None:
    rack_nodes = [a_node(f"n{number}", meta={"rack": f"r{number % 7}"}) for number in range(50)]
    job = make_job(count=90, spreads=(a_spread(RACK),))
    single, batched = SelectorHarness(*rack_nodes, job=job), SelectorHarness(*rack_nodes, job=job)
    assert [each.node.id for each in place_one_by_one(single, 90)] == [
        each.node.id for each in place_in_batches(batched, 90, 89)
    ]
    assert len(place_in_batches(SelectorHarness(*rack_nodes, job=job), 90, 89)) == 90


@pytest.mark.parametrize("spreads", [(), (a_spread(RACK),)])
@pytest.mark.parametrize(
    ("limits", "count"),
    [
        ({"cpu": 500}, 5),
        ({"cpu": 499}, 4),
        ({"memory_mb": 1_000}, 5),
        ({"memory_mb": 999}, 4),
        ({"disk_mb": 1_500}, 5),
        ({"disk_mb": 1_499}, 4),
        ({"node_max_allocs": 5}, 5),
        ({"node_max_allocs": 4}, 4),
    ],
)
def test_a_batch_fills_a_node_up_to_the_last_unit(
    spreads: tuple[Spread, ...], limits: dict[str, int], count: int
) -> None:
    limits = {"cpu": 9_000, "memory_mb": 9_000, "disk_mb": 9_000, "node_max_allocs": 0, **limits}
    node = a_node("n1", cpu=limits["cpu"], memory_mb=limits["memory_mb"], meta={"rack": "r1"})
    assert node.node_resources is not None
    disk = replace(node.node_resources.disk, disk_mb=limits["disk_mb"])
    node = replace(
        node, node_resources=replace(node.node_resources, disk=disk), node_max_allocs=limits["node_max_allocs"]
    )
    task = a_task(resources=some_resources(cpu=100, memory_mb=200))
    job = make_job(count=9, tasks=(task,), ephemeral_disk=EphemeralDisk(size_mb=300), spreads=spreads)
    harness = SelectorHarness(node, job=job)

    assert harness.choose() is not None
    assert len(harness.selector.choose_nodes(9)) == count - 1
    assert harness.selector.choose_nodes(9) == []


@pytest.mark.parametrize("max_count", [0, 1, 3])
def test_a_batch_places_no_more_than_requested(max_count: int) -> None:
    harness = SelectorHarness(a_node("n1"), a_node("n2"), job=make_job(count=9))
    harness.choose()

    assert len(harness.selector.choose_nodes(max_count)) == max_count
