"""Why work has no place: the figures of a placement that failed, as sentences."""

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wharf.model.evaluation import Evaluation
    from wharf.model.metric import AllocMetric


def why_not_placed(metric: "AllocMetric") -> list[str]:
    """One line a reason, the widest first."""
    found: list[str] = []
    # Nobody looks for a node for what a quota forbids.
    if metric.nodes_evaluated == 0 and not metric.nodes_in_pool and not metric.quota_exhausted:
        found.append(f"there is no ready node in the pool {metric.node_pool or 'default'}")
    empty = sorted(name for name, count in (metric.nodes_available or {}).items() if not count)
    found += [f"there is no ready node in the datacenter {name}" for name in empty]
    found += [f"{_nodes(count)} kept out by {what}" for what, count in _largest(metric.constraint_filtered)]
    found += [f"{_nodes(count)} of class {what} kept out" for what, count in _largest(metric.class_filtered)]
    found += [f"too little {what} on {_nodes(count)}" for what, count in _largest(metric.dimension_exhausted)]
    for what in metric.quota_exhausted or ():
        # Of children that wait for each other it is their parent that says so.
        found.append(what if what.startswith("max_running ") else f"the quota of its namespace: {what}")
    if not found and metric.nodes_exhausted:
        found.append(f"{_nodes(metric.nodes_exhausted)} full")
    return found or ["no node fits"]


def unplaced_of(evaluations: Iterable["Evaluation"]) -> "Mapping[str, AllocMetric]":
    """By group: what waits for room now. Empty where nothing does."""
    newest = sorted(evaluations, key=lambda one: one.modify_index, reverse=True)
    waiting = {one.id for one in newest if one.status == "blocked"}
    for one in newest:
        if one.failed_tg_allocs and (one.id in waiting or one.blocked_eval in waiting):
            return one.failed_tg_allocs
    return {}


def unplaced_lines(unplaced: "Mapping[str, AllocMetric]") -> list[str]:
    from wharf.cli.tables import dim

    lines: list[str] = []
    for group, metric in sorted(unplaced.items()):
        lines.append(f"{group}: {metric.coalesced_failures + 1} not placed")
        lines += [f"  {dim('·')} {reason}" for reason in why_not_placed(metric)]
    return lines


def _largest(figures: Mapping[str, int] | None) -> list[tuple[str, int]]:
    return sorted((figures or {}).items(), key=lambda entry: (-entry[1], entry[0]))


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"
