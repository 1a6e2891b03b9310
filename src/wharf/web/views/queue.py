"""The queue of jobs that wait for capacity: the order, the reasons, and the shares of namespaces."""

from collections.abc import Mapping
from typing import Final

import msgspec

from wharf.contract.model.allocations.metrics import AllocMetric
from wharf.contract.model.allocations.placement_reasons import format_shortage
from wharf.contract.model.waiting_queue import JobQueue, NamespaceShareView, QueueEntry, QueueReason, QueueReasonKind
from wharf.web.rendering import build_link, count_noun, format_age

PAGE_SIZE: Final = 100
MAX_REASONS: Final = 3
"""How many reasons of a job are shown. The page of the job has all."""


class QueueRow(msgspec.Struct, frozen=True):
    """A job that waits."""

    key: str
    place: int
    url: str
    job_id: str
    namespace: str
    priority: int
    waiting: str
    reasons: tuple[str, ...]
    quota_url: str
    reserved: str
    reserved_url: str
    age: str
    since_ns: int


class ShareRow(msgspec.Struct, frozen=True):
    """A namespace with waiting jobs."""

    name: str
    url: str
    weight: int
    used: str
    weighted: str
    waiting: int


class QueueView(msgspec.Struct, frozen=True):
    """The page of the queue."""

    sentence: str
    detail: str
    rows: tuple[QueueRow, ...]
    shares: tuple[ShareRow, ...]
    hidden: int
    """How many waiting jobs the person may not see; only known if the whole queue is on this page."""
    next_url: str
    first_url: str
    previous_url: str


def build_queue_view(queue: JobQueue, place: int, namespace: str, now_ns: int) -> QueueView:
    """Return one page of the queue, which begins at this place."""
    rows = tuple(_build_row(entry, now_ns) for entry in queue.entries)
    is_full = len(rows) >= PAGE_SIZE
    return QueueView(
        sentence=_build_sentence(queue.count),
        detail=_describe_pending(queue),
        rows=rows,
        shares=tuple(_build_share(share) for share in queue.shares),
        hidden=0 if namespace or is_full or place > 1 else queue.count - len(rows),
        next_url=build_link("queue", namespace=namespace, place=rows[-1].place + 1) if is_full else "",
        first_url=build_link("queue", namespace=namespace) if place > 1 else "",
        previous_url=build_link("queue", namespace=namespace, place=max(1, place - PAGE_SIZE)) if place > 1 else "",
    )


def _build_sentence(count: int) -> str:
    if not count:
        return "Nothing waits for capacity"
    return f"{count_noun(count, 'job waits', 'jobs wait')} for capacity"


def _describe_pending(queue: JobQueue) -> str:
    """Return what the scheduler still has to do; empty if that is nothing."""
    due = queue.pending - queue.delayed
    parts = []
    if due:
        parts.append(f"{count_noun(due, 'evaluation is', 'evaluations are')} being processed")
    if queue.delayed:
        parts.append(count_noun(queue.delayed, "is scheduled for later", "are scheduled for later"))
    return f"{', '.join(parts)}." if parts else ""


def _build_row(entry: QueueEntry, now_ns: int) -> QueueRow:
    return QueueRow(
        key=entry.eval_id,
        place=entry.place,
        url=build_link("jobs", entry.job_id, namespace=entry.namespace if entry.namespace != "default" else ""),
        job_id=entry.job_id,
        namespace=entry.namespace,
        priority=entry.priority,
        waiting=describe_waiting(entry),
        reasons=_list_reasons(entry),
        quota_url=build_link("quotas", entry.quota_limit_reached) if entry.quota_limit_reached else "",
        reserved=entry.reserved_node_name or entry.reserved_node_id[:8],
        reserved_url=build_link("nodes", entry.reserved_node_id) if entry.reserved_node_id else "",
        age=format_age(entry.waiting_since, now_ns),
        since_ns=entry.waiting_since,
    )


def describe_waiting(entry: QueueEntry) -> str:
    """Return how many elements of arrays and allocations of other groups wait; empty if the servers do not count them."""
    if not entry.unplaced:
        return ""
    if entry.elements == entry.unplaced:
        return count_noun(entry.unplaced, "element", "elements")
    if entry.elements:
        return f"{entry.unplaced:,} elements and allocations"
    return count_noun(entry.unplaced, "allocation", "allocations")


def _list_reasons(entry: QueueEntry) -> tuple[str, ...]:
    """Return why a job waits, the most important reasons first."""
    if entry.waits_behind:
        return (f"It starts when a running child of {entry.waits_behind} has ended.",)
    if entry.quota_limit_reached:
        text = describe_quota_wait(entry.quota_limit_reached, entry.failed_groups)
        return (f"{text[0].upper()}{text[1:]}.",)
    locks = [f"{text}." for text in entry.locks or ()]
    return tuple([*locks, *list_placement_failures(entry.failed_groups)][:MAX_REASONS])


def describe_quota_wait(quota: str, failed_groups: Mapping[str, AllocMetric] | None) -> str:
    """Return what of a quota does not suffice for the next allocation. A part of it can be free."""
    exhausted = dict.fromkeys(
        text for metric in (failed_groups or {}).values() for text in metric.quota_exhausted or ()
    )
    return f"the quota {quota} allows no more{': ' if exhausted else ''}{', '.join(exhausted)}"


def list_placement_failures(failed_groups: Mapping[str, AllocMetric] | None) -> tuple[str, ...]:
    """Return why no node takes another allocation of these groups, the most important reasons of each first."""
    return tuple(reason for name, metric in (failed_groups or {}).items() for reason in _describe(name, metric))


def _describe(group: str, metric: AllocMetric) -> list[str]:
    """Return why no node takes another allocation of a group."""
    lacks = sorted((metric.dimension_exhausted or {}).items(), key=lambda item: -item[1])
    excluded = sorted((metric.constraint_filtered or {}).items(), key=lambda item: -item[1])
    reasons = [
        f"{group}: {format_shortage(dimension)} on {count_noun(count, 'node', 'nodes')}" for dimension, count in lacks
    ]
    reasons += [
        f"{group}: {count_noun(count, 'node', 'nodes')} excluded by {rule.rstrip()}" for rule, count in excluded
    ]
    if not reasons and not metric.nodes_evaluated and not metric.quota_exhausted:
        pool = f" in the pool {metric.node_pool}" if metric.node_pool else ""
        reasons.append(f"{group}: no node{pool} is ready in its datacenters")
    return reasons


def describe_reason(reason: QueueReason) -> str:
    """Return what jobs that wait for this reason lack, as the end of a sentence that begins with them."""
    name = reason.name
    match reason.kind:
        case QueueReasonKind.RESOURCE:
            return f"for capacity: {format_shortage(name)} on the nodes that suit them"
        case QueueReasonKind.CONSTRAINT:
            return f"for a suitable node: most nodes are excluded by {name}"
        case QueueReasonKind.NODES:
            return f"for a node: none{f' in the pool {name}' if name else ''} is ready in their datacenters"
        case QueueReasonKind.QUOTA:
            return f"for capacity: the quota {name} allows no more"
        case QueueReasonKind.PARENT:
            return f"for running children of {name} to end"
        case QueueReasonKind.LOCK:
            return f"for the lock {name}"
    return "for capacity"


def _build_share(share: NamespaceShareView) -> ShareRow:
    return ShareRow(
        name=share.namespace,
        url=build_link("namespaces", share.namespace),
        weight=share.weight,
        used=format_percent(share.used_share),
        weighted=format_percent(share.used_share / max(1, share.weight)),
        waiting=share.waiting,
    )


def format_percent(share: float) -> str:
    """Return a share, 0.0 to 1.0, in percent."""
    return f"{100 * share:.1f} %"
