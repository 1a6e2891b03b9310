"""The queue of jobs that wait for capacity, as people see it. The leader's queue decides; this only shows its order."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import Final

import msgspec

from wharf.cluster.operations.explanations.locks import describe_held_lock
from wharf.cluster.operations.waiting_counts import count_waiting
from wharf.cluster.scheduling.blocked.retry_order import BlockedEntry, NamespaceShare, iter_retry_order
from wharf.cluster.scheduling.capacity.fair_share import compute_dominant_share
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, NAMESPACES, NODES
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.resource_usage import Usage, get_node_capacity
from wharf.contract.model.waiting_queue import (
    NamespaceShareView,
    QueueEntry,
    QueueReason,
    QueueReasonKind,
    QueueReasons,
)

MAX_REASONS: Final = 50
"""Reasons in a reply. Limits its size: constraints and locks have any number of names."""


class PlacedEntry(msgspec.Struct, frozen=True):
    """A waiting evaluation with its place in the queue, counted from 1."""

    place: int
    entry: BlockedEntry


def sum_capacity(nodes: Iterable[Node]) -> Usage:
    """Return the CPU and memory of these nodes together."""
    return Usage.sum_usages(get_node_capacity(node) for node in nodes)


def get_namespace_share(snapshot: Replica, namespace: str, usage: Usage, fleet_total: Usage) -> NamespaceShare:
    """Return the share of `fleet_total` of a namespace with this usage, and its weight."""
    record = snapshot.get(NAMESPACES, namespace)
    return NamespaceShare(compute_dominant_share(usage, fleet_total), 1 if record is None else record.weight)


def select_places(
    entries: Sequence[BlockedEntry],
    shares: Mapping[str, NamespaceShare],
    is_visible: Callable[[str], bool],
    *,
    first_place: int,
    limit: int,
) -> list[PlacedEntry]:
    """Return the visible entries from this place on in the order of retries. `is_visible` decides by namespace."""
    ordered = enumerate(iter_retry_order(entries, shares), start=1)
    visible = (
        PlacedEntry(place, entry) for place, entry in ordered if place >= first_place and is_visible(entry.namespace)
    )
    return list(islice(visible, limit))


def build_queue_entry(snapshot: Replica, placed: PlacedEntry, *, shows_nodes: bool) -> QueueEntry | None:
    """Return a waiting job as the queue shows it, or `None` if its evaluation was deleted meanwhile."""
    evaluation = snapshot.get(EVALUATIONS, placed.entry.id)
    if evaluation is None:
        return None
    counts = count_waiting(snapshot, evaluation)
    node = snapshot.get(NODES, evaluation.reserved_node_id) if evaluation.reserved_node_id and shows_nodes else None
    return QueueEntry(
        place=placed.place,
        eval_id=evaluation.id,
        job_id=evaluation.job_id,
        namespace=evaluation.namespace,
        priority=evaluation.priority,
        waiting_since=evaluation.waiting_since_ns,
        unplaced=counts.unplaced,
        elements=counts.elements,
        requested_share=placed.entry.requested_share,
        failed_groups=evaluation.failed_tg_allocs,
        quota_limit_reached=evaluation.quota_limit_reached,
        waits_behind=evaluation.waits_behind,
        locks=_describe_locks(snapshot, evaluation) or None,
        reserved_node_id=evaluation.reserved_node_id,
        reserved_node_name="" if node is None else node.name,
    )


def _describe_locks(snapshot: Replica, evaluation: Evaluation) -> tuple[str, ...]:
    """Return a text for each step of the evaluation that waits for a lock."""
    return tuple(
        f"{wait.step} waits for {describe_held_lock(snapshot, (evaluation.namespace, wait.key), wait.slots)}"
        for wait in evaluation.lock_waits or ()
        if not wait.lacks_capacity
    )


def build_share_views(
    entries: Iterable[BlockedEntry], shares: Mapping[str, NamespaceShare], is_visible: Callable[[str], bool]
) -> tuple[NamespaceShareView, ...]:
    """Return the visible namespaces with waiting jobs, the one with the largest weighted share first."""
    counts: dict[str, int] = {}
    for entry in entries:
        counts[entry.namespace] = counts.get(entry.namespace, 0) + 1
    views = [
        NamespaceShareView(
            namespace=name, weight=shares[name].weight, used_share=shares[name].held_share, waiting=count
        )
        for name, count in counts.items()
        if is_visible(name)
    ]
    return tuple(sorted(views, key=lambda view: (-view.used_share / max(1, view.weight), view.namespace)))


# -- reasons -----------------------------------------------------------------------------------------------------------


class ReasonCounter:
    """Counts waiting evaluations by their reasons."""

    def __init__(self) -> None:
        self._counts: dict[tuple[QueueReasonKind, str], int] = {}
        self._longest: dict[tuple[QueueReasonKind, str], Evaluation] = {}

    def add(self, evaluation: Evaluation) -> None:
        """Count an evaluation that waits."""
        reason = find_wait_reason(evaluation)
        self._counts[reason] = self._counts.get(reason, 0) + 1
        longest = self._longest.get(reason)
        if longest is None or evaluation.waiting_since_ns < longest.waiting_since_ns:
            self._longest[reason] = evaluation

    def build_reasons(self) -> QueueReasons:
        """Return the reasons, that of most jobs first."""
        ordered = sorted(self._counts.items(), key=lambda item: (-item[1], item[0]))
        listed = ordered[:MAX_REASONS]
        count = sum(self._counts.values())
        return QueueReasons(
            reasons=tuple(self._build_reason(reason, number) for reason, number in listed),
            count=count,
            others=count - sum(number for _, number in listed),
        )

    def _build_reason(self, reason: tuple[QueueReasonKind, str], count: int) -> QueueReason:
        kind, name = reason
        longest = self._longest[reason]
        return QueueReason(
            kind=kind,
            name=name,
            count=count,
            job_id=longest.job_id,
            namespace=longest.namespace,
            waiting_since=longest.waiting_since_ns,
        )


def find_wait_reason(evaluation: Evaluation) -> tuple[QueueReasonKind, str]:
    """Return the most important reason why an evaluation waits: what it is, and its name.

    A resource of which suitable nodes have too little comes before a rule that excludes other nodes.
    """
    if evaluation.waits_behind:
        return QueueReasonKind.PARENT, evaluation.waits_behind
    if evaluation.quota_limit_reached:
        return QueueReasonKind.QUOTA, evaluation.quota_limit_reached
    if evaluation.waits_only_for_locks and evaluation.lock_waits:
        return QueueReasonKind.LOCK, evaluation.lock_waits[0].key
    metrics = (evaluation.failed_tg_allocs or {}).values()
    for metric in metrics:
        if metric.dimension_exhausted:
            return QueueReasonKind.RESOURCE, _find_most(metric.dimension_exhausted)
    for metric in metrics:
        if metric.constraint_filtered:
            return QueueReasonKind.CONSTRAINT, _find_most(metric.constraint_filtered)
    for metric in metrics:
        if not metric.nodes_evaluated:
            return QueueReasonKind.NODES, metric.node_pool
    return QueueReasonKind.OTHER, ""


def _find_most(counts: Mapping[str, int]) -> str:
    """Return the name of most nodes, of several the first by name."""
    return min(counts, key=lambda name: (-counts[name], name))
