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
"""The exhausted dimension of nodes on which one allocation of an all-at-once job fits, but not the whole job."""


def build_screening_metric(fleet: Fleet, screened: ScreeningResult, job: Job) -> AllocMetric:
    """Return the metric of a feasibility check: how many nodes were checked, and why nodes were filtered out.

    `screened` is the result of the check. Nodes that are not ready, or not in the pool and datacenters of the job, are
    not counted. The metric is stored in `screened`, because many evaluations use one cached result.
    """
    if screened.metric is not None:
        return screened.metric
    rows = np.flatnonzero(screened.considered)
    by_reason = np.bincount(screened.reason_codes[rows], minlength=len(screened.reasons))
    filtered = {
        reason: int(by_reason[code])
        for code, reason in enumerate(screened.reasons.values)
        if code > FEASIBLE and by_reason[code]
    }
    screened.metric = AllocMetric(
        nodes_evaluated=len(rows),
        nodes_filtered=sum(filtered.values()),
        nodes_in_pool=len(rows),
        node_pool=job.node_pool,
        nodes_available=_count_by_datacenter(fleet.datacenter[rows], fleet.datacenters.values),
        class_filtered=_count_node_classes(fleet, np.flatnonzero(screened.considered & ~screened.feasible)) or None,
        constraint_filtered=filtered or None,
    )
    return screened.metric


def add_scores(metric: AllocMetric, scores: Floats, build_score: Callable[[int, float], NodeScore]) -> AllocMetric:
    """Return the metric with the scores of up to `MAX_REPORTED_SCORES` best nodes, best first.

    `scores` has one entry for each candidate position. `build_score` receives a position and its score, and returns the
    record that the metric stores.
    """
    best = find_best_positions(scores, MAX_REPORTED_SCORES)
    node_scores = tuple(build_score(at, score) for at, score in zip(best.tolist(), scores[best].tolist(), strict=True))
    return replace(metric, score_meta_data=node_scores)


def add_failure_reasons(
    metric: AllocMetric,
    fleet: Fleet,
    candidates: Candidates,
    group: TaskGroup,
    explain_exclusion: Callable[[int], str] | None,
) -> AllocMetric:
    """Return the metric with the reasons why no candidate (feasible node) can take the allocation.

    `explain_exclusion` receives a candidate position. It returns why a distinct constraint or a missing volume excludes
    this node, or an empty text. `None`: the group has no such check.

    Each node counts once. An excluded node counts as filtered, under its reason. Another node counts as exhausted,
    under the first dimension that it lacks, such as `cpu`.
    """
    exhausted: dict[str, int] = {}
    filtered = dict(metric.constraint_filtered or {})
    classes_filtered = dict(metric.class_filtered or {})
    is_excluded = np.zeros(len(candidates), dtype=np.bool_)
    for position in range(len(candidates)):
        exclusion = explain_exclusion(position) if explain_exclusion is not None else ""
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


def coalesce_failures(metric: AllocMetric, failure_count: int) -> AllocMetric:
    """Return the metric of one failed placement as the metric of `failure_count` failures for the same reason.

    The missing CPU and memory are those of all failures together.
    """
    if failure_count <= 1:
        return metric
    requested = metric.resources_exhausted
    total = {
        task: replace(resources, cpu=resources.cpu * failure_count, memory_mb=resources.memory_mb * failure_count)
        for task, resources in (requested or {}).items()
    }
    return replace(metric, coalesced_failures=failure_count - 1, resources_exhausted=total or None)


def build_all_at_once_metric(metric: AllocMetric) -> AllocMetric:
    """Return the failure metric of an allocation that fits, but waits until its whole all-at-once job fits.

    `metric` is the metric of its tentative placement. Its scores are removed. The nodes that were not filtered out
    count as exhausted, under `ALL_AT_ONCE_DIMENSION`.
    """
    fitting = metric.nodes_evaluated - metric.nodes_filtered
    exhausted = {ALL_AT_ONCE_DIMENSION: fitting} if fitting else None
    return replace(metric, score_meta_data=None, nodes_exhausted=fitting, dimension_exhausted=exhausted)


def build_node_metric(node: Node, job: Job, reason: str, *, is_filtered: bool) -> AllocMetric:
    """Return the failure metric of one node that was checked alone.

    With `is_filtered`, `reason` is the requirement that the node does not meet. Otherwise it is the dimension that is
    exhausted, such as `cpu`.
    """
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
    """Return one metric for several nodes that were checked alone. Counts are added up.

    Fields that are not counts are those of the first metric. `metrics` must not be empty.
    """
    total, *remaining = metrics
    for metric in remaining:
        total = replace(
            total,
            **{name: getattr(total, name) + getattr(metric, name) for name in _COUNT_FIELDS},
            **{name: _add_counts(getattr(total, name), getattr(metric, name)) for name in _MAPPING_FIELDS},
        )
    return total


def add_node_failure(before: AllocMetric, metric: AllocMetric) -> AllocMetric:
    """Return the metric `before`, which covers failures on other nodes, with the failure of one more node added."""
    return replace(merge_metrics((before, metric)), coalesced_failures=before.coalesced_failures + 1)


_COUNT_FIELDS: Final = ("nodes_evaluated", "nodes_filtered", "nodes_in_pool", "nodes_exhausted")
"""Fields of `AllocMetric` that are node counts."""
_MAPPING_FIELDS: Final = (
    "nodes_available",
    "class_filtered",
    "constraint_filtered",
    "class_exhausted",
    "dimension_exhausted",
)
"""Fields of `AllocMetric` that map a name to a node count."""


def _add_counts(first: dict[str, int] | None, second: dict[str, int] | None) -> dict[str, int] | None:
    """Return the two mappings with the counts of equal keys added up, or `None` if both are empty."""
    total = dict(first or {})
    for name, number in (second or {}).items():
        total[name] = total.get(name, 0) + number
    return total or None


def _count_node_classes(fleet: Fleet, rows: Ints) -> dict[str, int]:
    """Return the number of nodes in these fleet rows by `node_class`, a name that operators may give to nodes.

    Nodes without a `node_class` are not counted. The rows are counted by node kind first: all nodes of one kind have
    the same `node_class`, and thousands of nodes have few kinds.
    """
    found: dict[str, int] = {}
    by_kind = np.bincount(fleet.kind[rows], minlength=len(fleet.kind_examples))
    for kind in np.flatnonzero(by_kind):
        name = fleet.kind_examples[kind].node_class
        if name:
            found[name] = found.get(name, 0) + int(by_kind[kind])
    return found


def _count_by_datacenter(codes: Codes, names: Sequence[str]) -> dict[str, int] | None:
    """Return the number of nodes by datacenter, or `None` if there are no nodes.

    `codes` holds the code of each node's datacenter; the code is the index into `names`.
    """
    counts = np.bincount(codes, minlength=len(names))
    return {name: int(counts[code]) for code, name in enumerate(names) if counts[code]} or None


def _list_requested_resources(group: TaskGroup, exhausted: dict[str, int]) -> dict[str, Resources]:
    """Return the requested CPU (MHz) and memory (MB) by task name, as far as `exhausted` names these dimensions.

    The mapping is empty if neither CPU nor memory is exhausted.
    """
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
