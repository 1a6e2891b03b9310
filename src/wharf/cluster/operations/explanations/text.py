"""The words of an explanation: what a shortage of room, a deployment, a quota come to in a sentence. Nothing is looked up."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from wharf.cluster.scheduling.explanation.capacity_report import CapacityReport
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.explanations import GroupExplanation, PlacementExplanation, WaitReason
from wharf.contract.model.jobs.groups import TaskGroup


def describe_shortage(
    group: TaskGroup, unplaced: int, report: CapacityReport, *, quota_name: str, is_all_or_nothing: bool = False
) -> str:
    """`quota`: the one that is used up, if one is: then it is in vain that nodes have room. `all_at_once`: it is in vain as
    long as there is not room for all.
    """
    if report.fitting and quota_name:
        return f'{group.name} lacks {format_allocation_count(unplaced)}: nodes have room, and the quota "{quota_name}" has none'
    if report.fitting and is_all_or_nothing:
        return (
            f"{group.name} lacks {format_allocation_count(unplaced)}, of which none begins before there is room for all: "
            f"without AllAtOnce {report.fitting} of {report.nodes} nodes would take one now"
        )
    if report.fitting:
        return f"{group.name} lacks {format_allocation_count(unplaced)}, and room has come free for it"
    parts = [f'{each.nodes} by "{each.rule}"' for each in report.excluded]
    parts += [f"{each.nodes} have too {describe_dimension(each.dimension)}" for each in report.exhausted if each.unit]
    parts += [f"{each.nodes}: {each.dimension}" for each in report.exhausted if not each.unit]
    why = f" ({', '.join(parts)})" if parts else ""
    help_ = f"; {report.smallest_change}" if report.smallest_change else ""
    return f"{group.name} lacks {format_allocation_count(unplaced)}: {_no_node_of(report)} take one{why}{help_}"


def describe_dimension(dimension: str) -> str:
    """As behind "too": cores are counted, the others are amounts."""
    return f"few {dimension}" if dimension == "cores" else f"little {dimension}"


def _no_node_of(room: CapacityReport) -> str:
    if not room.nodes:
        return "no node can"
    other = "other " if room.served_nodes else ""
    if room.nodes == 1:
        return f"the {other or 'only '}node cannot"
    return f"none of {'the ' if other else ''}{other}{room.nodes} nodes can"


def describe_groups(explanations: Sequence[GroupExplanation]) -> str:
    """What one group lacks, in full; of several each tells it itself. Empty where none lacks anything."""
    if len(explanations) < 2:
        return explanations[0].text if explanations else ""
    *names, last = [each.group for each in explanations]
    return f"its groups {', '.join(names)} and {last} lack {format_allocation_count(sum(each.unplaced for each in explanations))}"


def describe_deployment(deployment: Deployment) -> tuple[WaitReason, str] | None:
    version = f"the deployment of version {deployment.job_version}"
    match deployment.status:
        case DeploymentStatus.PAUSED:
            return WaitReason.RESUMPTION, f"waits until {version} is resumed"
        case DeploymentStatus.FAILED:
            return WaitReason.CHANGE, f"goes no further: {version} failed ({deployment.status_description})"
        case DeploymentStatus.RUNNING:
            return describe_rollout(deployment, version)
    return None


def describe_rollout(deployment: Deployment, version: str) -> tuple[WaitReason, str] | None:
    groups = deployment.task_groups or {}
    unpromoted = {name: each for name, each in groups.items() if each.is_awaiting_promotion}
    if unpromoted and all(each.healthy_allocs >= each.desired_canaries for each in unpromoted.values()):
        return (
            WaitReason.PROMOTION,
            f"waits until {version} is promoted: the canaries of {', '.join(unpromoted)} are healthy",
        )
    late = [each for each in groups.items() if each[1].healthy_allocs < count_awaited_allocations(each[1])]
    if not late:
        return None
    words = ", ".join(f"{each.healthy_allocs} of {count_awaited_allocations(each)} of {name}" for name, each in late)
    deadlines = [each.require_progress_by for _, each in late if each.require_progress_by is not None]
    until = f", until {format_time(min(deadlines))} at the latest" if deadlines else ""
    return WaitReason.HEALTH, f"waits for the health of {version}: {words} are healthy{until}"


def format_time(time: datetime.datetime) -> str:
    """As `2026-11-21 12:45:03Z`."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def summarize_reasons(reasons: Mapping[str, str]) -> str:
    """The first of what is told by name; the others are as a rule the same."""
    name, why = next(iter(sorted(reasons.items())))
    return f"{name}, {why}" + (f"; and {len(reasons) - 1} more" if len(reasons) > 1 else "")


def count_awaited_allocations(group: DeploymentGroup) -> int:
    return group.desired_canaries if group.is_awaiting_promotion else group.desired_total


def is_delayed(evaluation: Evaluation) -> bool:
    return evaluation.wait_until is not None or evaluation.wait > 0


def describe_quota_shortage(evaluation: Evaluation) -> str:
    said = [
        f"{name}: {', '.join(metric.quota_exhausted)}"
        for name, metric in (evaluation.failed_tg_allocs or {}).items()
        if metric.quota_exhausted
    ]
    return "; ".join(said) or "it is used up"


def format_allocation_count(count: int) -> str:
    return "1 allocation" if count == 1 else f"{count} allocations"


def make_placement_explanation(allocation: Allocation) -> PlacementExplanation:
    metric = allocation.metrics
    return PlacementExplanation(
        alloc_id=allocation.id,
        name=allocation.name,
        node_id=allocation.node_id,
        node_name=allocation.node_name,
        nodes_evaluated=metric.nodes_evaluated if metric is not None else 0,
        nodes_filtered=metric.nodes_filtered if metric is not None else 0,
        scores=(metric.score_meta_data or ()) if metric is not None else (),
    )


TRIGGER_REASONS: Final = {
    EvaluationTrigger.JOB_REGISTER: "it was registered",
    EvaluationTrigger.JOB_DEREGISTER: "it was stopped",
    EvaluationTrigger.PERIODIC_JOB: "its time had come",
    EvaluationTrigger.NODE_DRAIN: "a node of it is drained",
    EvaluationTrigger.NODE_UPDATE: "a node changed",
    EvaluationTrigger.ALLOC_STOP: "an allocation was stopped by hand",
    EvaluationTrigger.ALLOC_RESCHEDULE: "something of it failed",
    EvaluationTrigger.ALLOC_FAILURE: "something of it failed",
    EvaluationTrigger.SCHEDULED: "it was time to look again",
    EvaluationTrigger.ROLLING_UPDATE: "the next part of its update is due",
    EvaluationTrigger.DEPLOYMENT_WATCHER: "its deployment went on",
    EvaluationTrigger.FAILED_FOLLOW_UP: "the evaluation before failed",
    EvaluationTrigger.MAX_PLAN_ATTEMPTS: "too much changed while it was placed",
    EvaluationTrigger.QUEUED_ALLOCS: "part of it found no room",
    EvaluationTrigger.PREEMPTION: "something of it was pushed aside",
    EvaluationTrigger.JOB_SCALING: "its count was changed",
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "a node was out of contact for too long",
    EvaluationTrigger.RECONNECT: "a node came back",
}
