"""In which order waiting work is tried: priority first, then the namespace that holds least by its weight, then age.

The bounds that follow from it, and that tests hold (docs/scheduling.md):

- nothing is tried before something of a higher priority that could profit from the same room;
- of one priority, two namespaces that both wait never come to differ, in what they were given by weight, by more than the
  largest thing that one of them asked for at once;
- within a priority and a namespace whoever waits longest is first.

It orders, and tries nothing. What is waiting is known to `controllers.blocked`.
"""

import heapq
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice

import msgspec

from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.scheduling.capacity.fair_share import compute_dominant_share
from wharf.cluster.scheduling.resources.usage import Usage, get_group_demand
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import JOBS, NAMESPACES
from wharf.contract.model.evaluations import Evaluation


class BlockedEntry(msgspec.Struct, frozen=True):
    """One that waits. `part`: of the fleet, that it would hold if it were given all that it lacks."""

    id: str
    namespace: str
    priority: int
    blocked_since_ns: int
    requested_share: float = 0.0
    create_index: int = 0


class NamespaceShare(msgspec.Struct, frozen=True):
    """How a namespace stands: the part of the fleet that it holds, and what weight it has."""

    held_share: float = 0.0
    weight: int = 1


EMPTY_SHARE = NamespaceShare()


def iter_retry_order(claims: Iterable[BlockedEntry], standings: Mapping[str, NamespaceShare]) -> Iterator[BlockedEntry]:
    """Each as if those before it had been given what they claim."""
    by_priority: dict[int, dict[str, list[BlockedEntry]]] = {}
    for claim in claims:
        by_priority.setdefault(claim.priority, {}).setdefault(claim.namespace, []).append(claim)
    parts = {name: standing.held_share for name, standing in standings.items()}
    for _, by_namespace in sorted(by_priority.items(), reverse=True):
        queues = {name: sorted(those, key=_age, reverse=True) for name, those in by_namespace.items()}

        def turn(name: str, queues: dict[str, list[BlockedEntry]] = queues) -> tuple[float, int, int, str, str]:
            weight = max(1, standings.get(name, EMPTY_SHARE).weight)
            return (parts.get(name, 0.0) / weight, *_age(queues[name][-1]), name)

        heap = [turn(name) for name in queues]
        heapq.heapify(heap)
        while heap:
            *_, name = heapq.heappop(heap)
            first = queues[name].pop()
            parts[name] = parts.get(name, 0.0) + first.requested_share
            yield first
            if queues[name]:
                heapq.heappush(heap, turn(name))


def _age(claim: BlockedEntry) -> tuple[int, int, str]:
    return claim.blocked_since_ns, claim.create_index, claim.id


class RetryOrder:
    """The order as the state and the fleet have it now."""

    def __init__(self, snapshot: Replica, cache: SchedulerCache) -> None:
        self._snapshot = snapshot
        self._ground = cache

    def sort_evaluations(self, waiting: Iterable[Evaluation], limit: int | None = None) -> list[Evaluation]:
        by_id = {each.id: each for each in waiting}
        whole = self._fleet()
        claims = [self._claim(each, whole) for each in by_id.values()]
        standings = {name: self._standing(name, whole) for name in {each.namespace: None for each in by_id.values()}}
        return [by_id[claim.id] for claim in islice(iter_retry_order(claims, standings), limit)]

    def _fleet(self) -> Usage:
        fleet = self._ground.fleet
        return Usage(int(fleet.cpu.sum()), int(fleet.memory.sum()))

    def _standing(self, namespace: str, whole: Usage) -> NamespaceShare:
        known = self._snapshot.get(NAMESPACES, namespace)
        held = compute_dominant_share(self._ground.namespace_usage.get_usage(namespace), whole)
        return NamespaceShare(held, 1 if known is None else known.weight)

    def _claim(self, evaluation: Evaluation, whole: Usage) -> BlockedEntry:
        job = self._snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        asked = Usage()
        for name, metric in (evaluation.failed_tg_allocs or {}).items():
            group = job.find_group(name) if job is not None else None
            if group is not None:
                one, number = get_group_demand(group), metric.coalesced_failures + 1
                asked = asked + Usage(one.cpu * number, one.memory_mb * number)
        return BlockedEntry(
            evaluation.id,
            evaluation.namespace,
            evaluation.priority,
            evaluation.waiting_since_ns,
            compute_dominant_share(asked, whole),
            evaluation.create_index,
        )
