"""The retry order and its guarantees, as docs/scheduling.md states them."""

from collections.abc import Mapping

from hypothesis import given
from hypothesis import strategies as st

from tests.builders import a_job
from tests.cluster.scheduling.simulated_cluster import SimulatedCluster
from tests.kit.state import an_evaluation
from wharf.cluster.scheduling.blocked.retry_order import BlockedEntry, NamespaceShare, RetryOrder, iter_retry_order
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.state.tables import EVALUATIONS, NAMESPACES
from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.log import WRITE_INDEX
from wharf.contract.model.namespaces import Namespace

NAMES = ("a", "b", "c", "d")
SHARES = st.sampled_from([0.0, 0.001, 0.01, 0.02, 0.1])

ENTRIES = st.lists(
    st.tuples(st.sampled_from(NAMES), st.sampled_from([10, 50, 90]), st.integers(1, 1_000), SHARES), max_size=40
).map(lambda items: [BlockedEntry(f"e{position}", *each) for position, each in enumerate(items)])
NAMESPACE_SHARES = st.dictionaries(
    st.sampled_from(NAMES), st.builds(NamespaceShare, st.floats(0, 1, allow_nan=False), st.integers(1, 10))
)


@given(ENTRIES, NAMESPACE_SHARES)
def test_every_blocked_evaluation_is_in_the_retry_order_once(
    entries: list[BlockedEntry], shares: Mapping[str, NamespaceShare]
) -> None:
    assert sorted(entry.id for entry in iter_retry_order(entries, shares)) == sorted(entry.id for entry in entries)


@given(ENTRIES, NAMESPACE_SHARES)
def test_higher_priorities_are_always_retried_first(
    entries: list[BlockedEntry], shares: Mapping[str, NamespaceShare]
) -> None:
    priorities = [entry.priority for entry in iter_retry_order(entries, shares)]

    assert priorities == sorted(priorities, reverse=True)


@given(ENTRIES, NAMESPACE_SHARES)
def test_within_a_priority_and_a_namespace_the_longest_wait_comes_first(
    entries: list[BlockedEntry], shares: Mapping[str, NamespaceShare]
) -> None:
    queues: dict[tuple[str, int], list[int]] = {}
    for entry in iter_retry_order(entries, shares):
        queues.setdefault((entry.namespace, entry.priority), []).append(entry.blocked_since_ns)

    assert [since for since in queues.values() if since != sorted(since)] == []


@given(
    st.dictionaries(st.sampled_from(NAMES), st.tuples(st.integers(1, 8), st.lists(SHARES, min_size=30, max_size=30)),
                    min_size=2)
)  # fmt: skip
def test_the_weighted_shares_of_waiting_namespaces_differ_by_at_most_one_request(
    waiting: dict[str, tuple[int, list[float]]],
) -> None:
    shares = {name: NamespaceShare(0.0, weight) for name, (weight, _) in waiting.items()}
    entries = [
        BlockedEntry(f"{name}{position}", name, 50, position, request)
        for name, (_, requests) in waiting.items()
        for position, request in enumerate(requests)
    ]
    remaining = dict.fromkeys(waiting, 30)
    granted_by_weight = dict.fromkeys(waiting, 0.0)
    largest = max(request / weight for weight, requests in waiting.values() for request in requests)

    for entry in iter_retry_order(entries, shares):
        granted_by_weight[entry.namespace] += entry.requested_share / shares[entry.namespace].weight
        remaining[entry.namespace] -= 1
        if not all(remaining.values()):
            return  # A namespace without waiting entries has no claim to what the others get.
        assert max(granted_by_weight.values()) - min(granted_by_weight.values()) <= largest + 1e-9


def test_a_namespace_with_a_large_share_waits_behind_one_with_a_small_share() -> None:
    entries = [BlockedEntry("rich", "rich", 50, 1, 0.1), BlockedEntry("poor", "poor", 50, 2, 0.1)]
    shares = {"rich": NamespaceShare(0.5, 1), "poor": NamespaceShare(0.2, 1)}

    assert [entry.id for entry in iter_retry_order(entries, shares)] == ["poor", "rich"]


def test_a_weight_multiplies_the_share_that_a_namespace_may_use() -> None:
    entries = [BlockedEntry("heavy", "heavy", 50, 2, 0.1), BlockedEntry("light", "light", 50, 1, 0.1)]
    shares = {"heavy": NamespaceShare(0.5, 3), "light": NamespaceShare(0.2, 1)}

    assert [entry.id for entry in iter_retry_order(entries, shares)] == ["heavy", "light"]


def test_the_retry_order_reads_weights_and_usage_from_the_state() -> None:
    cluster = SimulatedCluster()
    cluster.put(*(NAMESPACES.build_put(Namespace(name=name, create_index=WRITE_INDEX)) for name in ("rich", "poor")))
    cluster.with_node(cpu=10_000, memory_mb=10_000)
    cluster.register(a_job("holds", namespace="rich"))
    cluster.process_pending()
    for name, index in (("rich", 1), ("poor", 2)):
        job = a_job(f"waits-{name}", namespace=name)
        blocked = an_evaluation(
            job,
            f"of-{name}",
            status=EvaluationStatus.BLOCKED,
            create_time=index,
            failed_tg_allocs={"web": AllocMetric()},
        )
        cluster.put(EVALUATIONS.build_put(blocked))
    waiting = [each for each in cluster.replica.iter_all(EVALUATIONS) if each.status is EvaluationStatus.BLOCKED]

    retry_order = RetryOrder(cluster.replica, SchedulerCache.from_snapshot(cluster.replica))

    assert [evaluation.id for evaluation in retry_order.sort_evaluations(waiting)] == ["of-poor", "of-rich"]


def test_a_job_that_is_evaluated_again_keeps_its_position_in_the_queue() -> None:
    cluster = SimulatedCluster()
    cluster.register(a_job())
    cluster.process_pending()
    cluster.pass_time(30)
    cluster.register(a_job(priority=60))
    cluster.process_pending()
    (blocked,) = [evaluation for evaluation in cluster.evaluations() if evaluation.status is EvaluationStatus.BLOCKED]

    assert blocked.waiting_since + 30_000_000_000 == blocked.create_time
