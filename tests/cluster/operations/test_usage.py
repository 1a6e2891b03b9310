"""The report about the use of a cluster: the fullest nodes, the largest jobs, and what waits."""

from collections.abc import Iterable

from msgspec.structs import replace

from tests.builders import a_batch_job
from tests.cluster.operations.test_job_explanations import make_fleet, make_sized_job, process_evaluations
from tests.kit.state import AState
from wharf.cluster.operations.explanations.jobs import explain_job
from wharf.cluster.operations.usage import MAX_ENTRIES, report_usage
from wharf.cluster.operations.waiting_queue import PlacedEntry, build_queue_entry
from wharf.cluster.scheduling.blocked.retry_order import build_blocked_entry
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.state.formats import NEWEST_FORMAT
from wharf.cluster.state.tables import CLUSTER_FORMAT, EVALUATIONS, NODES
from wharf.contract.model.cluster import RecordFormat
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.resource_usage import Usage
from wharf.contract.model.usage import ClusterUsage, UsageOrder
from wharf.contract.model.waiting_queue import QueueEntry


def report(
    state: AState, order: UsageOrder = UsageOrder.CPU, limit: int = 50, namespaces: Iterable[str] | None = None
) -> ClusterUsage:
    fleet = Fleet.from_snapshot(state.replica)
    return report_usage(state.replica, fleet, order=order, limit=limit, namespaces=namespaces)


def run_job(state: AState, *, memory_mb: int, count: int = 1) -> None:
    state.register(make_sized_job(memory_mb=memory_mb, count=count))
    process_evaluations(state)


def test_the_fullest_nodes_come_first() -> None:
    state = make_fleet(1_000, 4_000, 1_000)
    run_job(state, memory_mb=3_000)

    found = report(state, UsageOrder.MEMORY)

    assert [(node.name, node.memory_mb, node.memory_capacity_mb, node.allocations) for node in found.nodes] == [
        ("node-2", 3_000, 4_000, 1), ("node-1", 0, 1_000, 0), ("node-3", 0, 1_000, 0)
    ]  # fmt: skip
    assert (found.memory_mb, found.memory_capacity_mb, found.node_count, found.ready_count) == (3_000, 6_000, 3, 3)
    assert [node.name for node in report(state, UsageOrder.NAME).nodes] == ["node-1", "node-2", "node-3"]


def test_a_job_is_reported_with_what_its_allocations_request() -> None:
    state = make_fleet(4_000)
    run_job(state, memory_mb=1_000, count=3)

    (job,) = report(state).jobs

    assert (job.id, job.type, job.allocations, job.running, job.memory_mb) == ("shop", "service", 3, 0, 3_000)


def test_what_waits_is_reported_with_the_reason_and_the_number_of_allocations() -> None:
    state = make_fleet(1_000)
    run_job(state, memory_mb=2_000, count=2)

    found = report(state)

    (waiting,) = found.waiting
    assert (waiting.job_id, waiting.unplaced, waiting.reason) == ("shop", 2, "too little memory on 1 node")
    assert (found.waiting_count, found.jobs) == (1, ())


def test_a_report_has_no_jobs_of_namespaces_that_are_not_visible() -> None:
    state = make_fleet(1_000)
    run_job(state, memory_mb=600, count=2)

    found = report(state, namespaces=("other",))

    assert (found.jobs, found.job_count, found.waiting, found.waiting_count) == ((), 0, (), 0)
    assert found.nodes[0].memory_mb == 600


def test_lists_are_limited_but_counts_are_not() -> None:
    state = make_fleet(*[1_000] * 5)

    found = report(state, limit=2)

    assert (len(found.nodes), found.node_count) == (2, 5)
    assert len(report(make_fleet(*[10] * (MAX_ENTRIES + 1)), limit=10_000).nodes) == MAX_ENTRIES


def test_a_node_that_is_down_has_no_capacity() -> None:
    state = make_fleet(1_000)
    (node,) = state.replica.iter_all(NODES)
    state.put(NODES.build_put(replace(node, status=NodeStatus.DOWN)))

    found = report(state)

    assert (found.nodes[0].status, found.ready_count, found.memory_capacity_mb) == ("down", 0, 0)


def test_an_empty_cluster_is_reported() -> None:
    assert report(AState()) == ClusterUsage()


def test_all_elements_of_an_array_that_wait_are_counted_also_those_that_were_not_tried() -> None:
    state = make_fleet(1_000)
    group = replace(make_sized_job(memory_mb=600).groups[0], array=GroupArray(size=3_000))
    state.put(CLUSTER_FORMAT.build_put(RecordFormat(version=NEWEST_FORMAT)))
    state.register(a_batch_job("sweep", group))
    process_evaluations(state, "sweep")

    (waiting,) = report(state).waiting
    entry = list_queue(state)[0]
    text = explain_job(state.replica, "default", "sweep").text

    assert (waiting.unplaced, waiting.elements) == (2_999, 2_999)
    assert (entry.unplaced, entry.elements) == (2_999, 2_999)
    assert "web has 2999 waiting elements: the only node cannot run one" in text


def test_a_group_without_an_array_waits_with_its_allocations() -> None:
    state = make_fleet(1_000)
    run_job(state, memory_mb=2_000, count=2)

    entry = list_queue(state)[0]

    assert (entry.unplaced, entry.elements) == (2, 0)


def list_queue(state: AState) -> list[QueueEntry]:
    """Return the queue of waiting jobs."""
    blocked = [each for each in state.replica.iter_all(EVALUATIONS) if each.status is EvaluationStatus.BLOCKED]
    placed = [PlacedEntry(1, build_blocked_entry(state.replica, each, Usage())) for each in blocked]
    return [entry for each in placed if (entry := build_queue_entry(state.replica, each, shows_nodes=True))]
