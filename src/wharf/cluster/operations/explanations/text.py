"""Texts of explanations: shortages, deployments, quotas and triggers in one sentence each. Reads no state."""

import datetime
from collections.abc import Mapping, Sequence
from typing import Final

from wharf.cluster.scheduling.explanation.capacity_report import CapacityReport
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.deployments import Deployment, DeploymentGroup, DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.explanations import Exclusion, GroupExplanation, PlacementExplanation, WaitReason
from wharf.contract.model.jobs.groups import TaskGroup
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE
from wharf.contract.model.times import to_datetime


def describe_shortage(
    group: TaskGroup, unplaced: int, report: CapacityReport, *, quota_name: str, is_all_or_nothing: bool = False
) -> str:
    """Return why `unplaced` allocations of a group cannot be placed, and the smallest change that would help.

    `quota_name` is the used-up quota, or empty. `is_all_or_nothing`: free resources help only if all allocations fit.
    """
    lack = f"{group.name} lacks {format_allocation_count(unplaced)}"
    if group.array is not None and group.total_count > 1:
        lack = f"{group.name} has {count_waiting_elements(unplaced)}"
    if report.fitting and quota_name:
        return f'{lack}: nodes have free resources, but the quota "{quota_name}" is used up'
    if report.fitting and is_all_or_nothing:
        return (
            f"{lack}, none of which starts until all can be placed: "
            f"without AllAtOnce {report.fitting} of {report.nodes} nodes could run one now"
        )
    if report.fitting:
        return f"{lack}, and enough resources are free now"
    parts = [each.describe() for each in report.excluded[len(report.unconsidered) :]]
    parts += [
        f"{each.nodes} {'has' if each.nodes == 1 else 'have'} too {describe_dimension(each.dimension)}"
        for each in report.exhausted
        if each.unit
    ]
    parts += [f"{each.nodes}: {each.dimension}" for each in report.exhausted if not each.unit]
    reasons_text = f" ({', '.join(parts)})" if parts else ""
    parts = [
        f"{lack}: {_describe_no_node(report)} run one{reasons_text}",
        *(_describe_unconsidered(each, "other " if report.nodes else "") for each in report.unconsidered),
        report.smallest_change,
    ]
    return "; ".join(part for part in parts if part)


def _describe_unconsidered(exclusion: Exclusion, other: str) -> str:
    """Return which nodes are not counted, and why, such as "1 other node is left out: node is draining (node-3)"."""
    number = f"1 {other}node is" if exclusion.nodes == 1 else f"{exclusion.nodes} {other}nodes are"
    more = ", …" if exclusion.nodes > len(exclusion.examples) else ""
    names = f" ({', '.join(exclusion.examples)}{more})" if exclusion.examples else ""
    return f"{number} left out: {exclusion.rule}{names}"


def describe_dimension(dimension: str) -> str:
    """Return the dimension after "few" or "little", so that it follows the word "too": "few cores", "little memory"."""
    return f"few {dimension}" if dimension == "cores" else f"little {dimension}"


def _describe_no_node(report: CapacityReport) -> str:
    """Return the start of a sentence that says that no node can run an allocation, such as "none of 3 nodes can"."""
    if not report.nodes:
        return "no node can"
    other = "other " if report.served_nodes else ""
    if report.nodes == 1:
        return f"the {other or 'only '}node cannot"
    return f"none of {'the ' if other else ''}{other}{report.nodes} nodes can"


def describe_groups(explanations: Sequence[GroupExplanation]) -> str:
    """Return the shortage of one group in full, or, for several groups, their names and the total of missing
    allocations.

    Return an empty text if no group is given.
    """
    if len(explanations) < 2:
        return explanations[0].text if explanations else ""
    *names, last = [each.group for each in explanations]
    total = sum(each.unplaced for each in explanations)
    subject = f"its groups {', '.join(names)} and {last}"
    arrays = [each for each in explanations if each.is_array and each.wanted > 1]
    if len(arrays) == len(explanations):
        return f"{subject} have {count_waiting_elements(total)}"
    noun = "elements and allocations" if arrays else "allocations"
    return f"{subject} lack {total} {noun}"


def describe_deployment(deployment: Deployment) -> tuple[WaitReason, str] | None:
    """Return what a deployment waits for, as a reason and a text, or `None` if it waits for nothing."""
    version = f"the deployment of version {deployment.job_version}"
    match deployment.status:
        case DeploymentStatus.PAUSED:
            return WaitReason.RESUMPTION, f"waits until {version} is resumed"
        case DeploymentStatus.FAILED:
            when = f" at {format_time(to_datetime(deployment.modify_time))}" if deployment.modify_time else ""
            return WaitReason.CHANGE, f"does not continue: {version} failed{when} ({deployment.status_description})"
        case DeploymentStatus.RUNNING:
            return describe_rollout(deployment, version)
    return None


def describe_rollout(deployment: Deployment, version: str) -> tuple[WaitReason, str] | None:
    """Return what a running deployment waits for, promotion or health, as a reason and a text, or `None`.

    `version` names the deployment in the text.
    """
    groups = deployment.task_groups or {}
    unpromoted = {name: each for name, each in groups.items() if each.is_awaiting_promotion}
    if unpromoted and all(each.healthy_allocs >= each.desired_canaries for each in unpromoted.values()):
        return (
            WaitReason.PROMOTION,
            f"waits until {version} is promoted: the canaries of {', '.join(unpromoted)} are healthy",
        )
    unfinished = [each for each in groups.items() if each[1].healthy_allocs < count_awaited_allocations(each[1])]
    if not unfinished:
        return None
    progress_text = ", ".join(
        f"{each.healthy_allocs} of {count_awaited_allocations(each)} of {name}" for name, each in unfinished
    )
    deadlines = [each.require_progress_by for _, each in unfinished if each.require_progress_by is not None]
    deadline_text = f"; deadline {format_time(min(deadlines))}" if deadlines else ""
    return WaitReason.HEALTH, f"waits until {version} is healthy: {progress_text} are healthy{deadline_text}"


def format_time(time: datetime.datetime) -> str:
    """Return the time in UTC as text, such as `2026-11-21 12:45:03Z`."""
    return time.astimezone(datetime.UTC).strftime("%Y-%m-%d %H:%M:%SZ")


def summarize_reasons(reasons: Mapping[str, str]) -> str:
    """Return the first name with its reason, and the number of other names, which usually have the same reason.

    `reasons` maps names, for example of allocations, to texts; it is not empty.
    """
    name, reasons_text = next(iter(sorted(reasons.items())))
    return f"{name}, {reasons_text}" + (f"; and {len(reasons) - 1} more" if len(reasons) > 1 else "")


def count_awaited_allocations(group: DeploymentGroup) -> int:
    """Return how many healthy allocations the deployment requires of the group now: its canaries before promotion."""
    return group.desired_canaries if group.is_awaiting_promotion else group.desired_total


def is_delayed(evaluation: Evaluation) -> bool:
    """Return whether the evaluation has a due time or a delay, and so is not processed at once."""
    return evaluation.wait_until is not None or evaluation.wait > 0


def describe_quota_shortage(evaluation: Evaluation) -> str:
    """Return which dimensions of the quota are used up, for each group that the evaluation could not place."""
    texts = [
        f"{name}: {', '.join(metric.quota_exhausted)}"
        for name, metric in (evaluation.failed_tg_allocs or {}).items()
        if metric.quota_exhausted
    ]
    return "; ".join(texts) or "it is used up"


def describe_namespace_option(namespace: str) -> str:
    """Return the option of commands that names the namespace, with a leading space; empty for the default one."""
    return f" --namespace {namespace}" if namespace != DEFAULT_NAMESPACE else ""


def count_waiting_elements(count: int) -> str:
    """Return the number of waiting elements of arrays with these words."""
    return "1 waiting element" if count == 1 else f"{count} waiting elements"


def format_allocation_count(count: int) -> str:
    """Return the number with the word "allocation" or "allocations"."""
    return "1 allocation" if count == 1 else f"{count} allocations"


def make_placement_explanation(allocation: Allocation) -> PlacementExplanation:
    """Return where the allocation was placed, how many nodes were evaluated, and their scores."""
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
    EvaluationTrigger.JOB_REGISTER: "the job was registered",
    EvaluationTrigger.JOB_DEREGISTER: "the job was stopped",
    EvaluationTrigger.PERIODIC_JOB: "its launch time was reached",
    EvaluationTrigger.NODE_DRAIN: "one of its nodes is being drained",
    EvaluationTrigger.NODE_UPDATE: "a node changed",
    EvaluationTrigger.ALLOC_STOP: "a user stopped an allocation",
    EvaluationTrigger.ALLOC_RESCHEDULE: "an allocation failed",
    EvaluationTrigger.ALLOC_FAILURE: "an allocation failed",
    EvaluationTrigger.SCHEDULED: "its scheduled evaluation was due",
    EvaluationTrigger.ROLLING_UPDATE: "the next step of its update is due",
    EvaluationTrigger.DEPLOYMENT_WATCHER: "its deployment continued",
    EvaluationTrigger.FAILED_FOLLOW_UP: "the previous evaluation failed",
    EvaluationTrigger.MAX_PLAN_ATTEMPTS: "its plans met too many conflicts",
    EvaluationTrigger.QUEUED_ALLOCS: "not all allocations could be placed",
    EvaluationTrigger.PREEMPTION: "an allocation was preempted",
    EvaluationTrigger.JOB_SCALING: "its count was changed",
    EvaluationTrigger.MAX_DISCONNECT_TIMEOUT: "a node was out of contact for too long",
    EvaluationTrigger.RECONNECT: "a node reconnected",
}
"""The second half of the sentence "the job was evaluated because ...", by the evaluation's trigger."""
