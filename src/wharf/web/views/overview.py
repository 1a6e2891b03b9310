"""The first page: what needs a person, in sentences with links."""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from wharf.contract.model.allocations.placement_reasons import lacks_capacity
from wharf.contract.model.deployments import Deployment
from wharf.contract.model.evaluations import Evaluation
from wharf.contract.model.jobs.run_views import RunStub
from wharf.contract.model.waiting_queue import QueueEntry, QueueReasons
from wharf.contract.wire.flows import RunState
from wharf.contract.wire.jobs.messages import JobStub
from wharf.contract.wire.jobs.states import AllocationCounts, count_allocations, is_parent
from wharf.contract.wire.limits import LimiterStatus
from wharf.contract.wire.nodes.messages import NodeListStub
from wharf.web.rendering import build_link, count_noun, format_age
from wharf.web.views.jobs import JobRow, build_job_row
from wharf.web.views.people import Names, name_author
from wharf.web.views.queue import describe_quota_wait, describe_reason, describe_waiting, list_placement_failures
from wharf.web.views.quotas import QuotaRow
from wharf.web.views.states import Tone, describe_job, describe_node

MAX_TROUBLES_OF_A_KIND = 5
MAX_RECORDS: Final = 100
"""How many records of each kind of trouble are read. A page shows five, and how many more there are."""
MAX_RECENT_JOBS = 8
MAX_LIMITS = 3


class Trouble(msgspec.Struct, frozen=True):
    """Something that may need a person: a sentence with a link."""

    tone: Tone
    text: str
    url: str
    detail: str = ""


class Overview(msgspec.Struct, frozen=True):
    """The first page."""

    sentence: str
    missing: str
    """Which parts could not be read, and why; empty if all were."""
    troubles: tuple[Trouble, ...]
    recent: tuple[JobRow, ...]


def build_overview(
    waiting: list[Evaluation],
    deployments: list[Deployment],
    nodes: list[NodeListStub],
    failed_jobs: list[JobStub],
    recent: list[JobStub],
    leader: str,
    limits: LimiterStatus,
    quotas: Sequence[QuotaRow],
    now_ns: int,
    *,
    has_ready_nodes: bool,
    reasons: QueueReasons | None = None,
    queue: Sequence[QueueEntry] = (),
    unfinished_jobs: Sequence[JobStub] = (),
    gated_runs: Sequence[RunStub] = (),
    missing: str = "",
    names: Names | None = None,
) -> Overview:
    """Return the first page. The lists hold the records that were asked for: waiting work, rollouts, nodes in trouble.

    `reasons` counts all waiting work. A few waiting jobs are named one by one, more of them by their reasons.
    `queue` has the entries of the few.
    `failed_jobs` are jobs that have ended, some of which may be complete. `recent` are the jobs that changed last. `limits` has the rules with what they refused in the last hour. `unfinished_jobs` are services that have not ended. `missing` says which parts could not be read, and why. `names` are those of tokens that drain nodes.
    """
    failed_rollouts = [each for each in deployments if str(each.status) == "failed"]
    known = {(each.namespace, each.job_id) for each in waiting}
    known |= {(each.namespace, each.job_id) for each in failed_rollouts}
    troubles = [
        *_list_failed(failed_jobs),
        *_list_failing(
            (job for job in unfinished_jobs if (job.namespace, job.id) not in known),
            is_cut=len(unfinished_jobs) >= MAX_RECORDS,
        ),
        *(
            _list_waiting(waiting, queue, now_ns)
            if reasons is None or reasons.count <= MAX_TROUBLES_OF_A_KIND
            else _list_reasons(reasons, now_ns)
        ),
        *_list_gated(gated_runs),
        *_list_rollouts(deployments),
        *_list_nodes(nodes, names or {}),
        *_list_quotas(quotas),
        *_list_limits(limits),
    ]
    if not has_ready_nodes:
        troubles.insert(0, Trouble(Tone.BAD, "No node is ready, so no work can start.", build_link("nodes")))
    if not leader:
        troubles.insert(
            0, Trouble(Tone.BAD, "The cluster has no leader, so nothing is scheduled.", build_link("servers"))
        )
    troubles.sort(key=lambda trouble: trouble.tone is not Tone.BAD)  # What failed comes before what waits.
    return Overview(
        sentence=_build_sentence(len(troubles), is_complete=not missing),
        missing=missing,
        troubles=tuple(troubles),
        recent=tuple(build_job_row(job, now_ns) for job in recent),
    )


def _build_sentence(count: int, *, is_complete: bool) -> str:
    if count:
        return f"{count_noun(count, 'thing needs', 'things need')} attention."
    return "All is well." if is_complete else "Not everything could be read."


def _count_more(count: int, singular: str, plural: str, *, is_cut: bool) -> str:
    """Return how many more objects there are. `is_cut`: not all of them were read."""
    return f"{'At least ' if is_cut else ''}{count_noun(count, singular, plural)}"


def _list_failing(jobs: Iterable[JobStub], *, is_cut: bool) -> list[Trouble]:
    """Return a sentence for each service that lacks allocations because they fail, although it has not ended."""
    failing = [(job, counts) for job in jobs if _is_failing(job, counts := count_allocations(job))]
    troubles = [
        Trouble(
            Tone.BAD,
            f"{job.id} runs {counts.running} of {count_noun(counts.requested, 'allocation', 'allocations')}, and its allocations fail",
            build_link("jobs", job.id, namespace="" if job.namespace == "default" else job.namespace),
            f"{count_noun(counts.failed + counts.lost, 'allocation', 'allocations')} failed or lost so far",
        )
        for job, counts in failing[:MAX_TROUBLES_OF_A_KIND]
    ]
    if len(failing) > MAX_TROUBLES_OF_A_KIND:
        more = len(failing) - MAX_TROUBLES_OF_A_KIND
        text = f"{_count_more(more, 'more service fails', 'more services fail', is_cut=is_cut)} in this way"
        troubles.append(Trouble(Tone.BAD, text, build_link("jobs", filter='Status != "dead" and Type == "service"')))
    return troubles


def _is_failing(job: JobStub, counts: AllocationCounts) -> bool:
    """Return whether a service lacks allocations because some failed. It starts again after a pause, or has given up.

    A service whose update starts allocations beside running ones is not meant, although some of it failed in the past.
    """
    lacks = counts.running + counts.starting < counts.requested or (counts.requested and not counts.running)
    return bool(counts.failed + counts.lost and lacks) and not is_parent(job)


def _list_waiting(evaluations: list[Evaluation], queue: Sequence[QueueEntry], now_ns: int) -> list[Trouble]:
    """Return a sentence for each job that waits for capacity, the longest wait first."""
    entries = {entry.eval_id: entry for entry in queue}
    ordered = sorted(evaluations, key=lambda evaluation: evaluation.waiting_since_ns)
    return [
        Trouble(
            Tone.WAIT,
            f"{evaluation.job_id} waits {_describe_missing(evaluation, entries.get(evaluation.id))}",
            build_link("jobs", evaluation.job_id, namespace=evaluation.namespace),
            _describe_wait(evaluation, now_ns),
        )
        for evaluation in ordered[:MAX_TROUBLES_OF_A_KIND]
    ]


def _describe_missing(evaluation: Evaluation, entry: QueueEntry | None) -> str:
    """Return for what a job waits, as the end of a sentence that begins with it. `entry` is its entry of the queue."""
    if evaluation.waits_behind:
        return f"for a running child of {evaluation.waits_behind} to end"
    if evaluation.waits_only_for_locks and evaluation.lock_waits:
        return f"for the lock {evaluation.lock_waits[0].key}"
    metrics = (evaluation.failed_tg_allocs or {}).values()
    needed = "a suitable node" if metrics and not any(map(lacks_capacity, metrics)) else "capacity"
    waiting = describe_waiting(entry) if entry is not None else ""
    return f"for {needed} for {waiting}" if waiting else f"for {needed}"


def _list_reasons(reasons: QueueReasons, now_ns: int) -> list[Trouble]:
    """Return a sentence for each reason why jobs wait, that of most jobs first."""
    url = build_link("queue")
    troubles = [
        Trouble(
            Tone.WAIT,
            f"{count_noun(each.count, 'job waits', 'jobs wait')} {describe_reason(each)}",
            url,
            f"{each.job_id} waits longest, for {format_age(each.waiting_since, now_ns)}",
        )
        for each in reasons.reasons[:MAX_TROUBLES_OF_A_KIND]
    ]
    others = reasons.others + sum(each.count for each in reasons.reasons[MAX_TROUBLES_OF_A_KIND:])
    if others:
        text = f"{count_noun(others, 'more job waits', 'more jobs wait')} for other reasons"
        troubles.append(Trouble(Tone.WAIT, text, url))
    return troubles


def _describe_wait(evaluation: Evaluation, now_ns: int) -> str:
    """Return how long a job has waited, and the most important reason."""
    waited = f"for {format_age(evaluation.waiting_since_ns, now_ns)}"
    if evaluation.quota_limit_reached:
        return f"{waited}: {describe_quota_wait(evaluation.quota_limit_reached, evaluation.failed_tg_allocs)}"
    reasons = list_placement_failures(evaluation.failed_tg_allocs)
    return f"{waited}: {reasons[0]}" if reasons else waited


def _list_quotas(quotas: Sequence[QuotaRow]) -> list[Trouble]:
    """Return a sentence for each quota that is used up."""
    troubles = []
    for quota in quotas:
        full = [each for each in quota.amounts if each.capacity and each.requested >= each.capacity]
        if full:
            parts = [f"{each.requested:,} of {each.capacity:,} {each.unit}".strip() for each in full]
            names = " and ".join(each.name for each in full)
            troubles.append(
                Trouble(Tone.WAIT, f"The quota {quota.name} is used up: {names}", quota.url, ", ".join(parts))
            )
    if len(troubles) > MAX_TROUBLES_OF_A_KIND:
        text = count_noun(len(troubles) - MAX_TROUBLES_OF_A_KIND, "more quota is", "more quotas are")
        troubles = [*troubles[:MAX_TROUBLES_OF_A_KIND], Trouble(Tone.WAIT, f"{text} used up", build_link("quotas"))]
    return troubles


def _list_limits(limits: LimiterStatus) -> list[Trouble]:
    """Return a sentence for each of the rate limits that refuse most, and one if an operator has switched them off."""
    url = build_link("limits")
    if limits.off_until:
        return [Trouble(Tone.WAIT, "An operator has switched all rate limits off", url)]
    refusing = sorted((rule for rule in limits.rules if rule.refused), key=lambda rule: -rule.refused)
    callers = len({each.caller for each in limits.limited})
    detail = f"{count_noun(callers, 'caller is', 'callers are')} limited now" if callers else ""
    return [
        Trouble(
            Tone.WAIT,
            f"The limit {rule.name} has refused {count_noun(rule.refused, 'request', 'requests')} in the last hour",
            url,
            detail if not position else "",
        )
        for position, rule in enumerate(refusing[:MAX_LIMITS])
    ]


def _list_failed(jobs: list[JobStub]) -> list[Trouble]:
    """Return a sentence for each job that failed, the newest first."""
    failed = [job for job in jobs if describe_job(job).tone is Tone.BAD]
    failed.sort(key=lambda job: -job.modify_index)
    troubles = []
    for job in failed[:MAX_TROUBLES_OF_A_KIND]:
        counts = count_allocations(job)
        number = count_noun(counts.failed + counts.lost, "allocation", "allocations")
        has_attempts = counts.failed + counts.lost + counts.complete > job.group_count_sum > 0
        url = build_link("jobs", job.id, namespace="" if job.namespace == "default" else job.namespace)
        detail = f"{number} failed or lost{', in all attempts together' if has_attempts else ''}"
        troubles.append(Trouble(Tone.BAD, f"{job.id} failed", url, detail))
    if len(failed) > MAX_TROUBLES_OF_A_KIND:
        more, is_cut = len(failed) - MAX_TROUBLES_OF_A_KIND, len(jobs) >= MAX_RECORDS
        text = _count_more(more, "more job failed", "more jobs failed", is_cut=is_cut)
        troubles.append(Trouble(Tone.BAD, text, build_link("jobs", filter='Status == "dead"')))
    return troubles


def _list_gated(runs: Sequence[RunStub]) -> list[Trouble]:
    """Return a sentence for each run of which a step waits for approval."""
    troubles = []
    for run in runs[:MAX_TROUBLES_OF_A_KIND]:
        url = build_link("jobs", run.job_id, namespace="" if run.namespace == "default" else run.namespace)
        troubles.append(Trouble(Tone.WAIT, f"The run {run.job_id} waits for approval", url, run.text))
    if len(runs) > MAX_TROUBLES_OF_A_KIND:
        url = build_link("flows", state=RunState.GATED.value)
        troubles.append(Trouble(Tone.WAIT, "More runs wait for approval", url))
    return troubles


def _list_rollouts(deployments: list[Deployment]) -> list[Trouble]:
    """Return a sentence for each rollout that failed or waits for a person."""
    troubles = []
    for deployment in deployments:
        url = build_link("jobs", deployment.job_id, namespace=deployment.namespace)
        if str(deployment.status) == "failed":
            text = f"The rollout of version {deployment.job_version} of {deployment.job_id} failed"
            troubles.append(Trouble(Tone.BAD, text, url, deployment.status_description))
        elif deployment.is_awaiting_promotion:
            text = f"The new version {deployment.job_version} of {deployment.job_id} waits for promotion"
            troubles.append(Trouble(Tone.BUSY, text, url))
        elif str(deployment.status) == "paused":
            troubles.append(Trouble(Tone.WAIT, f"The rollout of {deployment.job_id} is paused", url))
    if len(troubles) > MAX_TROUBLES_OF_A_KIND:
        more, is_cut = len(troubles) - MAX_TROUBLES_OF_A_KIND, len(deployments) >= MAX_RECORDS
        text = _count_more(more, "more rollout needs", "more rollouts need", is_cut=is_cut)
        troubles = [*troubles[:MAX_TROUBLES_OF_A_KIND], Trouble(Tone.WAIT, f"{text} attention", build_link("jobs"))]
    return troubles


DRAIN_STATES: Final = ("draining", "drained")


def _list_nodes(nodes: list[NodeListStub], names: Names) -> list[Trouble]:
    """Return a sentence for each node that is away or ineligible."""
    troubles = []
    for node in nodes[:MAX_TROUBLES_OF_A_KIND]:
        state = describe_node(node)
        drain = node.last_drain
        author = name_author(drain.accessor_id, names) if drain and state.text in DRAIN_STATES else None
        troubles.append(
            Trouble(
                state.tone,
                f"Node {node.name} is {state.text}{f' by {author.text}' if author else ''}",
                build_link("nodes", node.id),
                node.status_description,
            )
        )
    if len(nodes) > MAX_TROUBLES_OF_A_KIND:
        more, is_cut = len(nodes) - MAX_TROUBLES_OF_A_KIND, len(nodes) >= MAX_RECORDS
        text = _count_more(more, "more node needs attention", "more nodes need attention", is_cut=is_cut)
        troubles.append(Trouble(Tone.WAIT, text, build_link("nodes", filter='Status != "ready"')))
    return troubles
