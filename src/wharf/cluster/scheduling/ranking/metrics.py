"""Builds the metrics that say how a placement was decided or why it failed (scheduling.md 3.5)."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from msgspec.structs import replace

from wharf.cluster.scheduling.feasibility.checker import FEASIBLE, ScreeningResult
from wharf.cluster.scheduling.fleet.columns import Codes, Floats, Ints
from wharf.cluster.scheduling.fleet.fleet import Fleet
from wharf.cluster.scheduling.ranking.candidates import Candidates
from wharf.cluster.scheduling.ranking.scoring import find_best_positions
from wharf.contract.model.allocations.metrics import AllocMetric, NodeScore
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.nodes.node import Node

MAX_REPORTED_SCORES: Final = 5
"""Limits the size of a metric: only the scores of this many best nodes are stored."""

ALL_AT_ONCE_DIMENSION: Final = "not room for all at once"


def build_screening_metric(fleet: Fleet, screened: ScreeningResult, job: Job) -> AllocMetric:
    """Return the metric of the feasibility check: how many nodes were evaluated and filtered."""
    rows = np.flatnonzero(screened.considered)
    by_reason = np.bincount(screened.reason_codes[rows], minlength=len(screened.reasons))
    filtered = {
        reason: int(by_reason[code])
        for code, reason in enumerate(screened.reasons.values)
        if code > FEASIBLE and by_reason[code]
    }
    return AllocMetric(
        nodes_evaluated=len(rows),
        nodes_filtered=sum(filtered.values()),
        nodes_in_pool=len(rows),
        node_pool=job.node_pool,
        nodes_available=_count_by_datacenter(fleet.datacenter[rows], fleet.datacenters.values),
        class_filtered=_count_node_classes(fleet, np.flatnonzero(screened.considered & ~screened.feasible)) or None,
        constraint_filtered=filtered or None,
    )


def add_scores(metric: AllocMetric, scores: Floats, build_score: Callable[[int, float], NodeScore]) -> AllocMetric:
    """Return the metric with the scores of the best nodes, best first."""
    best = find_best_positions(scores, MAX_REPORTED_SCORES)
    node_scores = tuple(build_score(at, score) for at, score in zip(best.tolist(), scores[best].tolist(), strict=True))
    return replace(metric, score_meta_data=node_scores)


def add_failure_reasons(
    metric: AllocMetric, fleet: Fleet, candidates: Candidates, group: TaskGroup, explain: Callable[[int], str] | None
) -> AllocMetric:
    """Return the metric with the reasons why no feasible node can take the allocation.

    Each node counts once: under its distinct constraint if one excludes it, else under the first dimension that it
    lacks.
    """
    exhausted: dict[str, int] = {}
    filtered = dict(metric.constraint_filtered or {})
    classes_filtered = dict(metric.class_filtered or {})
    is_excluded = np.zeros(len(candidates), dtype=np.bool_)
    for position in range(len(candidates)):
        exclusion = explain(position) if explain is not None else ""
        if exclusion:
            is_excluded[position] = True
            filtered[exclusion] = filtered.get(exclusion, 0) + 1
    for name, number in _count_node_classes(fleet, candidates.rows[is_excluded]).items():
        classes_filtered[name] = classes_filtered.get(name, 0) + number
    is_counted = np.zeros(len(candidates), dtype=np.bool_)
    for dimension, is_short in candidates.list_shortages():
        lacks_first = is_short & ~is_counted & ~is_excluded
        number = int(lacks_first.sum())
        if number:
            exhausted[dimension] = exhausted.get(dimension, 0) + number
            is_counted |= lacks_first
    return replace(
        metric,
        nodes_filtered=sum(filtered.values()),
        constraint_filtered=filtered or None,
        class_filtered=classes_filtered or None,
        nodes_exhausted=sum(exhausted.values()),
        class_exhausted=_count_node_classes(fleet, candidates.rows[is_counted]) or None,
        dimension_exhausted=exhausted or None,
        resources_exhausted=_list_requested_resources(group, exhausted) or None,
    )


def coalesce_failures(metric: AllocMetric, failures: int) -> AllocMetric:
    """Return the metric of one failure as the metric of this many equal failures."""
    if failures <= 1:
        return metric
    requested = metric.resources_exhausted
    total = {
        task: replace(each, cpu=each.cpu * failures, memory_mb=each.memory_mb * failures)
        for task, each in (requested or {}).items()
    }
    return replace(metric, coalesced_failures=failures - 1, resources_exhausted=total or None)


def build_all_at_once_metric(metric: AllocMetric) -> AllocMetric:
    """Return the failure metric of an allocation that fits but waits for the rest of its all-at-once group.

    `metric` is the metric of its tentative placement.
    """
    fitting = metric.nodes_evaluated - metric.nodes_filtered
    exhausted = {ALL_AT_ONCE_DIMENSION: fitting} if fitting else None
    return replace(metric, score_meta_data=None, nodes_exhausted=fitting, dimension_exhausted=exhausted)


def build_node_metric(node: Node, job: Job, reason: str, *, is_filtered: bool) -> AllocMetric:
    """Return the failure metric of one node that was checked alone."""
    classes = {node.node_class: 1} if node.node_class else None
    return AllocMetric(
        nodes_evaluated=1,
        nodes_filtered=int(is_filtered),
        nodes_in_pool=1,
        node_pool=job.node_pool,
        nodes_available={node.datacenter: 1},
        constraint_filtered={reason: 1} if is_filtered and reason else None,
        class_filtered=classes if is_filtered else None,
        nodes_exhausted=int(not is_filtered),
        class_exhausted=None if is_filtered else classes,
        dimension_exhausted=None if is_filtered else {reason: 1},
    )


def merge_metrics(metrics: Sequence[AllocMetric]) -> AllocMetric:
    """Return the sum of the metrics of nodes that were checked alone."""
    total, *remaining = metrics
    for metric in remaining:
        total = replace(
            total,
            **{name: getattr(total, name) + getattr(metric, name) for name in _COUNT_FIELDS},
            **{name: _add_counts(getattr(total, name), getattr(metric, name)) for name in _MAPPING_FIELDS},
        )
    return total


def add_node_failure(before: AllocMetric, metric: AllocMetric) -> AllocMetric:
    """Return the metric of several failures, each on its own node, with one more failure added."""
    return replace(merge_metrics((before, metric)), coalesced_failures=before.coalesced_failures + 1)


_COUNT_FIELDS: Final = ("nodes_evaluated", "nodes_filtered", "nodes_in_pool", "nodes_exhausted")
_MAPPING_FIELDS: Final = (
    "nodes_available",
    "class_filtered",
    "constraint_filtered",
    "class_exhausted",
    "dimension_exhausted",
)


def _add_counts(first: dict[str, int] | None, second: dict[str, int] | None) -> dict[str, int] | None:
    """Return the sums of both mappings, or `None` if there are none."""
    total = dict(first or {})
    for name, number in (second or {}).items():
        total[name] = total.get(name, 0) + number
    return total or None


def _count_node_classes(fleet: Fleet, rows: Ints) -> dict[str, int]:
    """Return how many of the rows have each node class that operators assigned."""
    found: dict[str, int] = {}
    by_kind = np.bincount(fleet.kind[rows], minlength=len(fleet.kind_examples))
    for kind in np.flatnonzero(by_kind):
        name = fleet.kind_examples[kind].node_class
        if name:
            found[name] = found.get(name, 0) + int(by_kind[kind])
    return found


def _count_by_datacenter(codes: Codes, names: Sequence[str]) -> dict[str, int] | None:
    """Return how many nodes are in each datacenter."""
    counts = np.bincount(codes, minlength=len(names))
    return {name: int(counts[code]) for code, name in enumerate(names) if counts[code]} or None


def _list_requested_resources(group: TaskGroup, exhausted: dict[str, int]) -> dict[str, Resources]:
    """Return what each task requests of the exhausted dimensions."""
    if not ("cpu" in exhausted or "memory" in exhausted):
        return {}
    return {
        task.name: Resources(
            cpu=task.resources.cpu if "cpu" in exhausted else 0,
            memory_mb=task.resources.memory_mb if "memory" in exhausted else 0,
        )
        for task in group.tasks or ()
        if task.resources is not None
    }
