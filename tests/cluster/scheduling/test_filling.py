"""A batch of placements gives the same result as single placements."""

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from tests.builders import a_spread
from tests.cluster.scheduling.test_placing import RACK, Board, jobs, nodes, of
from tests.kit.state import a_node
from wharf.cluster.scheduling.ranking.selector import NodeChoice
from wharf.contract.model.jobs.constraints import Spread, SpreadTarget
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.nodes.node import Node

UNWISHED = Spread(
    attribute=RACK, weight=30, spread_target=(SpreadTarget(value="r2", percent=0), SpreadTarget(value="r1", percent=60))
)
"""Of which none shall be on the second rack."""


def collect_results(board: Board, chosen: list[NodeChoice]) -> object:
    """Return all observable results of the choices, and the state of the draft."""
    draft = board.draft
    columns = (draft.cpu_used, draft.memory_used, draft.disk_used, draft.count)
    return (
        [(candidate.node.id, candidate.score, candidate.metric, candidate.resources) for candidate in chosen],
        [column.tolist() for column in columns],
        sorted(set(draft.changed_rows)),
    )


def place_one_by_one(board: Board, number: int) -> list[NodeChoice]:
    return [chosen for index in range(number) if (chosen := board.choose(index)) is not None]


def place_in_batches(board: Board, number: int, run: int) -> list[NodeChoice]:
    """Place in batches, and one by one where a batch stops."""
    chosen: list[NodeChoice] = []
    for index in range(number):
        if index < len(chosen):
            continue
        one = board.choose(index)
        if one is None:
            break
        chosen = [*chosen, one]
        chosen += board.placing.choose_nodes(min(run, number - len(chosen)))
    return chosen


@given(nodes(), jobs(), st.sampled_from(["binpack", "spread"]), st.data())
@settings(max_examples=80, deadline=None)
def test_a_batch_chooses_the_same_nodes_as_single_placements(
    fleet: list[Node], job: Job, algorithm: str, data: st.DataObject
) -> None:
    ids = [node.id for node in fleet]
    placed = tuple(data.draw(st.lists(st.tuples(st.sampled_from(ids), st.sampled_from(["web", "db"])), max_size=4)))
    if data.draw(st.booleans()):
        spreads = (*(job.groups[0].spreads or ()), UNWISHED)
        job = replace(job, task_groups=(replace(job.groups[0], spreads=spreads),))
    if data.draw(st.booleans()):
        fleet = [replace(node, node_max_allocs=2 + number % 3) for number, node in enumerate(fleet)]
    slow = Board(*fleet, job=job, placed=placed, algorithm=algorithm)
    fast = Board(*fleet, job=job, placed=placed, algorithm=algorithm)
    number, run = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    expected = collect_results(slow, place_one_by_one(slow, number))
    assert expected == collect_results(fast, place_in_batches(fast, number, run))
    assert slow.choose(number) == fast.choose(number)
    assert slow.placing.failure_metric is None or fast.placing.failure_metric is not None


def test_ties_are_broken_by_the_random_order_of_candidates() -> None:
    alike = [a_node(f"n{number}") for number in range(50)]
    slow, fast = Board(*alike, job=of(count=120)), Board(*alike, job=of(count=120))
    assert [each.node.id for each in place_one_by_one(slow, 120)] == [
        each.node.id for each in place_in_batches(fast, 120, 119)
    ]


def test_a_batch_with_spread_chooses_the_same_nodes_as_single_placements() -> None:
    racked = [a_node(f"n{number}", meta={"rack": f"r{number % 7}"}) for number in range(50)]
    job = of(count=90, spreads=(a_spread(RACK),))
    slow, fast = Board(*racked, job=job), Board(*racked, job=job)
    assert [each.node.id for each in place_one_by_one(slow, 90)] == [
        each.node.id for each in place_in_batches(fast, 90, 89)
    ]
    assert len(place_in_batches(Board(*racked, job=job), 90, 89)) == 90
