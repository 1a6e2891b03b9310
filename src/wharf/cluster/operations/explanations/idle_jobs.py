"""Explain a job for which nothing is in progress: it runs as requested, has ended, or waits for a launch or a user."""

import datetime
from typing import Final

from wharf.cluster.operations.explanations.arrays import describe_ended_arrays
from wharf.cluster.operations.explanations.job_facts import JobFacts, get_creation_order
from wharf.cluster.operations.explanations.runs import describe_ended_run
from wharf.cluster.operations.explanations.text import (
    describe_namespace_option,
    format_allocation_count,
    format_time,
    summarize_reasons,
)
from wharf.cluster.operations.jobs.periodic import list_next_launches
from wharf.cluster.state.tables import JOB_SUMMARIES, PERIODIC_LAUNCHES
from wharf.contract.model.allocations.allocation import ClientStatus
from wharf.contract.model.allocations.failure_reasons import describe_failure
from wharf.contract.model.evaluations import EvaluationStatus
from wharf.contract.model.explanations import WaitCondition, WaitReason
from wharf.contract.model.jobs.job import JobStatus
from wharf.contract.model.jobs.periodic import MAX_SCHEDULES, list_cron_specs
from wharf.contract.model.times import MINUTE, to_datetime

FAILED_CLIENT_STATUSES: Final = (ClientStatus.FAILED, ClientStatus.LOST)


def describe_idle_state(facts: JobFacts) -> WaitCondition:
    """Return the state of a job for which nothing is in progress.

    It runs as requested, has ended, waits for a launch or dispatch, or stays unchanged until a user acts.
    """
    job = facts.job
    if facts.arrays and not facts.live and all(not each.counts.waiting for each in facts.arrays):
        if facts.run is not None:
            return describe_ended_run(job, facts.run)
        return describe_ended_arrays(job, facts.arrays)
    if job.stop:
        children = _describe_children(facts)
        what = f"launches no more children{children}" if children else "has no running allocation"
        return WaitCondition(waits_for=WaitReason.NOTHING, text=f"is stopped and {what}")
    if job.is_parameterized:
        return WaitCondition(waits_for=WaitReason.DISPATCH, text=f"waits to be dispatched{_describe_children(facts)}")
    if job.is_periodic:
        return _describe_next_launch(facts)
    failed = facts.evaluations[-1] if facts.evaluations else None
    if failed is not None and failed.status is EvaluationStatus.FAILED:
        text = f"does not change, because its last evaluation failed: {failed.status_description}"
        return WaitCondition(waits_for=WaitReason.CHANGE, text=text, eval_id=failed.id)
    missing = sum(facts.unplaced.values())
    if not missing:
        return WaitCondition(waits_for=WaitReason.NOTHING, text=_describe_steady_state(facts))
    failed_allocations = sorted(
        (each for each in facts.allocations if each.client_status in FAILED_CLIENT_STATUSES), key=get_creation_order
    )
    reasons = {each.name: failure_text for each in failed_allocations if (failure_text := describe_failure(each))}
    reason_text = f" ({summarize_reasons(reasons)})" if reasons else ""
    if job.status is JobStatus.DEAD and failed_allocations:
        remedy = f"correct the job and submit it with `wharf job run{describe_namespace_option(job.namespace)} FILE`"
        text = f"has failed, and its policies allow no further attempt{reason_text}; {remedy}"
        return WaitCondition(waits_for=WaitReason.CHANGE, text=text, advice=(remedy,))
    if job.status is JobStatus.DEAD:
        text = (
            f"is dead and lacks {format_allocation_count(missing)}: the records of its last attempts were collected; "
            "evaluate the job, or register it again"
        )
        return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
    if failed_allocations:
        text = f"lacks {format_allocation_count(missing)} that failed as often as its policies allow{reason_text}"
        return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
    if not any(group.count for group in job.groups):
        return WaitCondition(waits_for=WaitReason.NOTHING, text="requests no allocation")
    return WaitCondition(
        waits_for=WaitReason.UNKNOWN,
        text=f"lacks {format_allocation_count(missing)} and no evaluation is pending: evaluate the job, and report this as a bug",
    )


def _describe_next_launch(facts: JobFacts) -> WaitCondition:
    """Return when a periodic job is launched next, or why it is not launched."""
    job = facts.job
    last_launch = facts.snapshot.get(PERIODIC_LAUNCHES, job.namespace, job.id)
    if not job.is_active_periodic:
        return WaitCondition(waits_for=WaitReason.CHANGE, text="is periodic but not enabled")
    note = _describe_children(facts) + _describe_unused_schedules(facts)
    found = []
    if last_launch is not None:
        found = list_next_launches(job, _limit_last_launch(last_launch.launch, facts.now_ns), max_launches=1)
    if not found:
        text = f"is launched on request only, because its schedule has no launch time left{note}"
        return WaitCondition(waits_for=WaitReason.CHANGE, text=text)
    return WaitCondition(waits_for=WaitReason.LAUNCH, text=f"is launched next at {format_time(found[0])}{note}")


def _limit_last_launch(launch: datetime.datetime, now_ns: int | None) -> datetime.datetime:
    """Return the time of the last launch, or the nearest time of the last minute.

    A launch in the future was recorded before the clock was set back. Launches that were missed happen at once or never.
    """
    if now_ns is None:
        return launch
    return min(max(launch, to_datetime(now_ns - MINUTE)), to_datetime(now_ns))


def _describe_unused_schedules(facts: JobFacts) -> str:
    """Return how many cron expressions of the job are ignored, or an empty text if none is."""
    periodic = facts.job.periodic
    count = len(list_cron_specs(periodic)) if periodic is not None else 0
    if count <= MAX_SCHEDULES:
        return ""
    return f"; only the first {MAX_SCHEDULES} of its {count} cron expressions are used, split the job"


def _describe_children(facts: JobFacts) -> str:
    """Return how many children of the job are running and pending, or an empty text if there are none."""
    summary = facts.snapshot.get(JOB_SUMMARIES, facts.job.namespace, facts.job.id)
    children = summary.children if summary is not None else None
    if children is None or not children.running + children.pending:
        return ""
    counts = ((children.running, "running"), (children.pending, "pending"))
    texts = [f"{count} {status}" for count, status in counts if count]
    return f"; its children: {', '.join(texts)}"


def _describe_steady_state(facts: JobFacts) -> str:
    """Return how the job runs or has ended, in case no allocation is missing."""
    if facts.live:
        return f"runs as requested: {format_allocation_count(len(facts.live))}"
    # The work of an interrupted allocation runs again, in another one.
    complete = [
        each for each in facts.allocations if each.client_status is ClientStatus.COMPLETE and not each.is_interrupted
    ]
    # Those that ended by themselves after a stop are done. A killed one runs again in the next evaluation.
    stopped = sorted(
        (each for each in complete if each.is_server_terminal and not each.next_allocation), key=get_creation_order
    )
    ended = len(complete) - len(stopped)
    if stopped and facts.job.is_finite:
        completed_text = f"{format_allocation_count(ended)} completed, and " if ended else ""
        outcome = f"{completed_text}{format_allocation_count(len(stopped))} {'was' if len(stopped) == 1 else 'were'} stopped before completion"
        return f"is dead: {outcome} ({summarize_reasons({each.name: each.desired_description or 'stopped on request' for each in stopped})})"
    if complete:
        return f"is done: {format_allocation_count(len(complete))} completed"
    return "requests no allocation that could run now"
