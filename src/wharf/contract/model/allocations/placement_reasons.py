"""Why a group could not be placed, as texts from the metric of the failed placement."""

from collections.abc import Mapping
from typing import Final

from wharf.contract.model.allocations.metrics import AllocMetric

LOCK_PREFIX: Final = "lock "
"""Begins the text of a refusal by a lock, which is in the same field as those of a quota."""


NEVER_TEXT: Final = "can never run, more than the whole quota"
"""What a text of `AllocMetric.quota_exhausted` says if the quota is too small even if nothing else uses it."""


def format_shortage(dimension: str) -> str:
    """Return a text for a resource that nodes lack. Dimensions of ports, devices and volumes are texts already."""
    if dimension in ("cpu", "memory", "disk"):
        return f"too little {dimension}"
    return "too few cores" if dimension == "cores" else dimension


def is_lock_refusal(metric: AllocMetric) -> bool:
    """Return whether a group was not placed because the lock of its step is not free."""
    return any(text.startswith(LOCK_PREFIX) for text in metric.quota_exhausted or ())


def lacks_capacity(metric: AllocMetric) -> bool:
    """Return whether any node lacks only free resources. The rules of the job exclude all others."""
    return bool(metric.nodes_exhausted or metric.dimension_exhausted or metric.quota_exhausted)


def list_placement_failures(metric: AllocMetric) -> list[str]:
    """Return the reasons why a group could not be placed, one line each, those of the most nodes first."""
    found: list[str] = []
    # The scheduler considers no node if the quota already forbids the placement: then the number of nodes says nothing.
    if metric.nodes_evaluated == 0 and not metric.nodes_in_pool and not metric.quota_exhausted:
        found.append(f"no ready node in node pool {metric.node_pool or 'default'} and the job's datacenters")
    empty = sorted(name for name, count in (metric.nodes_available or {}).items() if not count)
    found += [f"no ready node in datacenter {name}" for name in empty]
    found += [
        f"{_count_nodes(count)} excluded: {rule.rstrip()}" for rule, count in _sort_by_count(metric.constraint_filtered)
    ]
    found += [
        f"{_count_nodes(count)} of class {name} excluded" for name, count in _sort_by_count(metric.class_filtered)
    ]
    found += [
        f"{format_shortage(dimension)} on {_count_nodes(count)}"
        for dimension, count in _sort_by_count(metric.dimension_exhausted)
    ]
    for text in metric.quota_exhausted or ():
        # A parent job's `max_running` and the lock of a step are reported in the same field; they are not a quota.
        found.append(text if text.startswith(("max_running ", LOCK_PREFIX)) else f"quota of the namespace: {text}")
    if not found and metric.nodes_exhausted:
        found.append(f"{_count_nodes(metric.nodes_exhausted)} full")
    return found or ["no node fits"]


def _sort_by_count(counts: Mapping[str, int] | None) -> list[tuple[str, int]]:
    """Return (name, count) pairs, largest count first, then by name."""
    return sorted((counts or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def _count_nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
