"""The numbers that tell how a placement was decided, or why there was none (scheduling.md 3.5)."""

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
"""Scores kept in a metric: those of the best nodes."""

ALL_AT_ONCE_DIMENSION: Final = "not room for all at once"


def build_screening_metric(fleet: Fleet, screened: ScreeningResult, job: Job) -> AllocMetric:
    """What was looked at, and left out for good."""
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
        nodes_available=_available(fleet.datacenter[rows], fleet.datacenters.values),
        class_filtered=_classes(fleet, np.flatnonzero(screened.considered & ~screened.feasible)) or None,
        constraint_filtered=filtered or None,
    )


def add_scores(metric: AllocMetric, scores: Floats, shown: Callable[[int, float], NodeScore]) -> AllocMetric:
    """With the best nodes, best first."""
    best = find_best_positions(scores, MAX_REPORTED_SCORES)
    told = tuple(shown(at, score) for at, score in zip(best.tolist(), scores[best].tolist(), strict=True))
    return replace(metric, score_meta_data=told)


def add_failure_reasons(
    metric: AllocMetric, fleet: Fleet, candidates: Candidates, group: TaskGroup, reason: Callable[[int], str] | None
) -> AllocMetric:
    """With what the nodes that could, could not: what each lacks first, or why it may take no more of this job."""
    exhausted: dict[str, int] = {}
    filtered = dict(metric.constraint_filtered or {})
    classes_filtered = dict(metric.class_filtered or {})
    is_told = np.zeros(len(candidates), dtype=np.bool_)
    for at in range(len(candidates)):
        why = reason(at) if reason is not None else ""
        if why:
            is_told[at] = True
            filtered[why] = filtered.get(why, 0) + 1
    for name, number in _classes(fleet, candidates.rows[is_told]).items():
        classes_filtered[name] = classes_filtered.get(name, 0) + number
    is_full = np.zeros(len(candidates), dtype=np.bool_)
    for dimension, lacks in candidates.list_shortages():
        lacks_first = lacks & ~is_full & ~is_told
        number = int(lacks_first.sum())
        if number:
            exhausted[dimension] = exhausted.get(dimension, 0) + number
            is_full |= lacks_first
    return replace(
        metric,
        nodes_filtered=sum(filtered.values()),
        constraint_filtered=filtered or None,
        class_filtered=classes_filtered or None,
        nodes_exhausted=sum(exhausted.values()),
        class_exhausted=_classes(fleet, candidates.rows[is_full]) or None,
        dimension_exhausted=exhausted or None,
        resources_exhausted=_resources(group, exhausted) or None,
    )


def coalesce_failures(metric: AllocMetric, failures: int) -> AllocMetric:
    """The metric of one failure as that of so many alike."""
    if failures <= 1:
        return metric
    lacking = metric.resources_exhausted
    total = {
        task: replace(each, cpu=each.cpu * failures, memory_mb=each.memory_mb * failures)
        for task, each in (lacking or {}).items()
    }
    return replace(metric, coalesced_failures=failures - 1, resources_exhausted=total or None)


def build_all_at_once_metric(metric: AllocMetric) -> AllocMetric:
    """Of one that had room and waits for those that it begins with. `metric`: how it was placed."""
    with_room = metric.nodes_evaluated - metric.nodes_filtered
    exhausted = {ALL_AT_ONCE_DIMENSION: with_room} if with_room else None
    return replace(metric, score_meta_data=None, nodes_exhausted=with_room, dimension_exhausted=exhausted)


def build_node_metric(node: Node, job: Job, why: str, *, is_filtered: bool) -> AllocMetric:
    """Of one node, looked at alone."""
    classes = {node.node_class: 1} if node.node_class else None
    return AllocMetric(
        nodes_evaluated=1,
        nodes_filtered=int(is_filtered),
        nodes_in_pool=1,
        node_pool=job.node_pool,
        nodes_available={node.datacenter: 1},
        constraint_filtered={why: 1} if is_filtered and why else None,
        class_filtered=classes if is_filtered else None,
        nodes_exhausted=int(not is_filtered),
        class_exhausted=None if is_filtered else classes,
        dimension_exhausted=None if is_filtered else {why: 1},
    )


def merge_metrics(metrics: Sequence[AllocMetric]) -> AllocMetric:
    """Of several nodes, each of which was looked at alone."""
    first, *others = metrics
    for other in others:
        first = replace(
            first,
            **{name: getattr(first, name) + getattr(other, name) for name in _COUNTS},
            **{name: _added(getattr(first, name), getattr(other, name)) for name in _TALLIES},
        )
    return first


def add_node_failure(before: AllocMetric, metric: AllocMetric) -> AllocMetric:
    """Of several failures, each on a node of its own, with one more."""
    return replace(merge_metrics((before, metric)), coalesced_failures=before.coalesced_failures + 1)


_COUNTS: Final = ("nodes_evaluated", "nodes_filtered", "nodes_in_pool", "nodes_exhausted")
_TALLIES: Final = ("nodes_available", "class_filtered", "constraint_filtered", "class_exhausted", "dimension_exhausted")


def _added(ours: dict[str, int] | None, theirs: dict[str, int] | None) -> dict[str, int] | None:
    total = dict(ours or {})
    for name, number in (theirs or {}).items():
        total[name] = total.get(name, 0) + number
    return total or None


def _classes(fleet: Fleet, rows: Ints) -> dict[str, int]:
    """How many of the rows have each class that people gave to nodes."""
    found: dict[str, int] = {}
    by_kind = np.bincount(fleet.kind[rows], minlength=len(fleet.kind_examples))
    for kind in np.flatnonzero(by_kind):
        name = fleet.kind_examples[kind].node_class
        if name:
            found[name] = found.get(name, 0) + int(by_kind[kind])
    return found


def _available(codes: Codes, names: Sequence[str]) -> dict[str, int] | None:
    counts = np.bincount(codes, minlength=len(names))
    return {name: int(counts[code]) for code, name in enumerate(names) if counts[code]} or None


def _resources(group: TaskGroup, exhausted: dict[str, int]) -> dict[str, Resources]:
    """What each task asks for of what there was too little of."""
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
