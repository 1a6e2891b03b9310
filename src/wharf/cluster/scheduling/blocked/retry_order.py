"""The order in which blocked evaluations are retried: priority, then fair share of the namespace, then waiting time.

Guarantees, which tests check (docs/scheduling.md):

- no evaluation is retried before one of a higher priority that could use the same resources;
- within a priority, the weighted shares granted to two waiting namespaces differ by at most the largest single request
  of one of them;
- within a priority and a namespace, the evaluation that has waited longest is first.

This module only sorts. The waiting evaluations are in `controllers.blocked_queue`.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.fair_share import compute_dominant_share
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, NAMESPACES
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.resource_usage import Usage, get_group_demand


class BlockedEntry(msgspec.Struct, frozen=True):
    """A blocked evaluation, as far as its place in the retry order depends on it."""

    id: str  # The id of the evaluation.
    namespace: str
    priority: int
    blocked_since_ns: int  # Since when the job waits.
    requested_share: float = 0.0
    """The share of the cluster's resources that its missing allocations request, 0.0 to 1.0."""
    create_index: int = 0


class NamespaceShare(msgspec.Struct, frozen=True):
    """The part of the cluster that a namespace uses."""

    held_share: float = 0.0  # The share of the cluster's resources that its allocations use, 0.0 to 1.0.
    weight: int = 1  # A namespace of weight 2 is entitled to twice the share of one of weight 1.


EMPTY_SHARE = NamespaceShare()
"""The share of a namespace that uses nothing."""


def iter_retry_order(
    entries: Iterable[BlockedEntry], namespace_shares: Mapping[str, NamespaceShare]
) -> Iterator[BlockedEntry]:
    """Yield the entries in the order in which they are retried.

    Within a priority, the namespace with the smallest share, divided by its weight, comes first; each entry that is
    yielded adds what it requests to the share of its namespace. Within a namespace, the oldest entry comes first.
    """
    by_priority: dict[int, dict[str, list[BlockedEntry]]] = {}
    for entry in entries:
        by_priority.setdefault(entry.priority, {}).setdefault(entry.namespace, []).append(entry)
    shares = {name: share.held_share for name, share in namespace_shares.items()}
    for _, by_namespace in sorted(by_priority.items(), reverse=True):
        queues = {name: sorted(entries, key=_get_age, reverse=True) for name, entries in by_namespace.items()}

        def build_heap_key(
            name: str, queues: dict[str, list[BlockedEntry]] = queues
        ) -> tuple[float, int, int, str, str]:
            """Return the sort key of a namespace: its weighted share, then the age of its oldest entry, then its name."""
            weight = max(1, namespace_shares.get(name, EMPTY_SHARE).weight)
            return (shares.get(name, 0.0) / weight, *_get_age(queues[name][-1]), name)

        heap = [build_heap_key(name) for name in queues]
        heapq.heapify(heap)
        while heap:
            *_, name = heapq.heappop(heap)
            first = queues[name].pop()
            shares[name] = shares.get(name, 0.0) + first.requested_share
            yield first
            if queues[name]:
                heapq.heappush(heap, build_heap_key(name))


def _get_age(entry: BlockedEntry) -> tuple[int, int, str]:
    """Return the sort key of an entry by age, oldest first."""
    return entry.blocked_since_ns, entry.create_index, entry.id


class RetryOrder:
    """Sorts blocked evaluations by priority, fair share of their namespaces, and waiting time."""

    def __init__(self, snapshot: Replica, cache: SchedulerCache) -> None:
        self._snapshot = snapshot
        self._cache = cache

    def sort_evaluations(self, waiting: Iterable[Evaluation], limit: int | None = None) -> list[Evaluation]:
        """Return up to `limit` of these blocked evaluations, in the order in which they are retried."""
        by_id = {evaluation.id: evaluation for evaluation in waiting}
        fleet_total = self._sum_fleet()
        entries = [build_blocked_entry(self._snapshot, evaluation, fleet_total) for evaluation in by_id.values()]
        namespace_shares = {
            name: self._get_namespace_share(name, fleet_total)
            for name in {evaluation.namespace: None for evaluation in by_id.values()}
        }
        return [by_id[entry.id] for entry in islice(iter_retry_order(entries, namespace_shares), limit)]

    def _sum_fleet(self) -> Usage:
        """Return the total CPU and memory of all nodes."""
        fleet = self._cache.fleet
        return Usage(int(fleet.cpu.sum()), int(fleet.memory.sum()))

    def _get_namespace_share(self, namespace: str, fleet_total: Usage) -> NamespaceShare:
        """Return the share of `fleet_total` that the namespace uses, and its weight."""
        record = self._snapshot.get(NAMESPACES, namespace)
        used_share = compute_dominant_share(self._cache.namespace_usage.get_usage(namespace), fleet_total)
        return NamespaceShare(used_share, 1 if record is None else record.weight)


def build_blocked_entry(snapshot: Replica, evaluation: Evaluation, fleet_total: Usage) -> BlockedEntry:
    """Return a blocked evaluation with the share of `fleet_total` that its missing allocations request."""
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    requested = Usage()
    for name, metric in (evaluation.failed_tg_allocs or {}).items():
        group = job.find_group(name) if job is not None else None
        if group is not None:
            demand, count = get_group_demand(group), metric.coalesced_failures + 1
            requested = requested + Usage(demand.cpu * count, demand.memory_mb * count)
    return BlockedEntry(
        evaluation.id,
        evaluation.namespace,
        evaluation.priority,
        evaluation.waiting_since_ns,
        compute_dominant_share(requested, fleet_total),
        evaluation.create_index,
    )
