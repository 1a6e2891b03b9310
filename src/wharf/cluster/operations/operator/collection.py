"""Garbage collection: delete records that ended long enough ago, such as evaluations with their allocations, jobs and
nodes.

Each call returns the next write, or nothing if none is left. Writes are independent, so an interrupted collection
continues with the next call (scheduling.md 1.6).
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.scheduling.feasibility.volumes import is_claim_holder
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.reconcile.deployment import list_needed_deployments
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ACL_TOKENS,
    ALLOCATIONS,
    ALLOCATIONS_OF_EVALUATION,
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    NODES,
    ONE_TIME_TOKENS,
    PERIODIC_LAUNCHES,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SCALING_POLICIES_OF_JOB,
    SUBMISSIONS_OF_JOB,
    VERSIONS_OF_JOB,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, Write
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import MAX_CLOCK_SKEW_NS, SECOND, has_passed, to_datetime

MAX_EARLY_ALLOCATIONS: Final = 1_000
"""Allocations of one job that are prepared at a time: no log takes more changes in one write."""

BATCH_SCHEDULER_TYPES: Final = (SchedulerType.BATCH, SchedulerType.SYSBATCH)
"""Types of evaluations whose records are retained longer."""


class CollectionKind(enum.StrEnum):
    """The kinds of records that garbage collection deletes, in this order: records that others refer to come last."""

    EVALUATIONS = "evaluations"  # With their allocations; except those of batch and sysbatch jobs.
    BATCH_EVALUATIONS = "batch-evaluations"  # Of batch and sysbatch jobs, with their allocations.
    JOBS = "jobs"  # Dead jobs with all their records.
    DEPLOYMENTS = "deployments"  # Deployments that have ended.
    ONE_TIME_TOKENS = "one-time-tokens"  # One-time tokens that have expired.
    TOKENS = "tokens"  # ACL tokens that have expired.
    NODES = "nodes"  # Nodes that are down.


class CollectionResult(msgspec.Struct, frozen=True):
    """The result of one write of a garbage collection."""

    index: int  # The log index of the write.
    deleted_count: int  # 0: nothing of this kind is left to collect.


class _RetentionPeriod(msgspec.Struct, frozen=True):
    """The time from which records are retained.

    It ends in the future: a record that is later was written before the clock was set back by more than the retention,
    and would otherwise be retained until the clock shows that time again.
    """

    start_ns: int
    end_ns: int

    def contains(self, time_ns: int) -> bool:
        """Return whether a record that ended at this time must be retained."""
        return self.start_ns < time_ns <= self.end_ns


class _Bundle(msgspec.Struct, frozen=True):
    """Records that are deleted together in one write."""

    deletions: tuple[DeleteRecord, ...]
    conditions: tuple[Condition, ...]  # The records must not change before the commit.
    parts: "tuple[_Bundle, ...]" = ()
    """If the bundle exceeds one write, these bundles may be deleted one by one before the rest."""


_Bundles: TypeAlias = Iterator[_Bundle]


def collect_garbage(
    snapshot: Replica,
    kind: CollectionKind,
    context: DecisionContext,
    *,
    retention_ns: int,
    max_changes: int,
    cause: Cause | None = None,
) -> Decision[CollectionResult]:
    """Return the decision that deletes records of one kind that ended more than `retention_ns` ago, as many as fit in
    one write.

    Records that must be deleted together and do not fit in any write are left, unless they can be deleted in parts.
    """
    now_ns = context.now_ns
    recent = _RetentionPeriod(now_ns - retention_ns, now_ns + retention_ns + MAX_CLOCK_SKEW_NS)
    deletions: list[DeleteRecord] = []
    conditions: dict[tuple[str, str], Condition] = {}
    for bundle in _fit_bundles(BUNDLE_FINDERS[kind](snapshot, recent), max_changes):
        if (
            len(deletions) + len(bundle.deletions) > max_changes
            or len(conditions) + len(bundle.conditions) > max_changes
        ):
            break
        deletions += bundle.deletions
        conditions |= {(condition.table, condition.key): condition for condition in bundle.conditions}
    if not deletions:
        return Decision(None, lambda index: CollectionResult(index, 0))
    write = Write(
        f"{kind.value}-collected", cause or Cause(CauseKind.TIMER, "collection"), deletions, list(conditions.values())
    )
    return Decision(write, lambda index: CollectionResult(index, len(deletions)))


def _fit_bundles(bundles: _Bundles, max_changes: int) -> _Bundles:
    """Yield, in order, each bundle (deletions that belong in one write) that fits in `max_changes`, else its parts."""
    for bundle in bundles:
        if max(len(bundle.deletions), len(bundle.conditions)) <= max_changes:
            yield bundle
        else:
            yield from bundle.parts


# -- evaluations and their allocations -----------------------------------------------------------------------------


def _iter_service_evaluations(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield deletions of old terminal evaluations, with their allocations, of all schedulers except batch ones.

    `recent`: they did not end in this period.
    """
    return _iter_evaluations_of_types(
        snapshot, recent, (SchedulerType.SERVICE, SchedulerType.SYSTEM, SchedulerType.CORE)
    )


def _iter_batch_evaluations(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield deletions of old terminal evaluations, with their allocations, of batch and sysbatch jobs.

    They are retained longer than others, because they record completed work.
    """
    return _iter_evaluations_of_types(snapshot, recent, BATCH_SCHEDULER_TYPES)


def _iter_evaluations_of_types(
    snapshot: Replica, recent: _RetentionPeriod, types: Collection[SchedulerType]
) -> _Bundles:
    """Yield deletions of the terminal evaluations of these schedulers that ended before the period `recent`, with
    allocations.

    An evaluation whose allocations are still needed stays; if only some of them are needed, the others may be deleted
    without it.
    """
    for evaluation in snapshot.iter_all(EVALUATIONS):
        if not evaluation.status.is_terminal or recent.contains(evaluation.modify_time) or evaluation.type not in types:
            continue
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        if _is_reason_of_job(snapshot, evaluation, job):
            continue
        allocations = snapshot.list_by_index_sorted(ALLOCATIONS_OF_EVALUATION, evaluation.id)
        collectable = [
            each
            for each in allocations
            if _is_collectable(each, job, recent) and not _holds_needed_data(snapshot, each, job)
        ]
        if _is_needed_by_job(evaluation, job):
            # Only allocations created before the last change of the job. The evaluation stays if others remain.
            assert job is not None, "an evaluation is kept only for a job that exists"
            collectable = [each for each in collectable if each.create_index < job.job_modify_index]
            if not collectable:
                continue
        if len(collectable) == len(allocations):
            yield _make_bundle(
                (EVALUATIONS.build_delete(evaluation.id), *(ALLOCATIONS.build_delete(each.id) for each in collectable)),
                (
                    snapshot.build_record_condition(EVALUATIONS, evaluation),
                    *(snapshot.build_record_condition(ALLOCATIONS, each) for each in collectable),
                ),
                _make_single_bundles(snapshot, collectable),
            )
        elif _is_needed_by_job(evaluation, job):
            yield from _make_single_bundles(snapshot, collectable)


def _is_reason_of_job(snapshot: Replica, evaluation: Evaluation, job: Job | None) -> bool:
    """Return whether a job does not change because this evaluation of it failed. Nothing else would say so."""
    if evaluation.status is not EvaluationStatus.FAILED or job is None or job.stop:
        return False
    others = snapshot.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    return all((each.create_index, each.id) <= (evaluation.create_index, evaluation.id) for each in others)


def _is_needed_by_job(evaluation: Evaluation, job: Job | None) -> bool:
    """Return whether this is an evaluation of a batch job that is not stopped and dead, so that its allocations are
    needed.

    They record which allocations of the job have completed.
    """
    if evaluation.type not in BATCH_SCHEDULER_TYPES or job is None:
        return False
    return not (job.status is JobStatus.DEAD and job.stop)


def _holds_needed_data(snapshot: Replica, allocation: Allocation, job: Job | None) -> bool:
    """Return whether the allocation holds the sticky volumes of a job that is not stopped.

    Its record says on which node they are, so it must not be deleted.
    """
    return job is not None and not job.stop and is_claim_holder(snapshot, allocation, job)


def _is_collectable(allocation: Allocation, job: Job | None, recent: _RetentionPeriod) -> bool:
    """Return whether the allocation ended before the period `recent` and may be deleted.

    A failed allocation is needed while its job may still reschedule it.
    """
    if not allocation.is_terminal or recent.contains(allocation.modify_time):
        return False
    if not allocation.is_client_terminal:
        return False  # The node has not reported yet that the allocation ended.
    if job is None or job.stop or job.status is JobStatus.DEAD or allocation.desired_status is DesiredStatus.STOP:
        return True
    if allocation.client_status is not ClientStatus.FAILED or allocation.next_allocation:
        return True
    group = job.find_group(allocation.task_group)
    policy = group.reschedule_policy if group is not None else None
    if policy is None or (policy.attempts == 0 and not policy.unlimited):
        return True
    if policy.unlimited:
        return False
    tracker = allocation.reschedule_tracker
    events = (tracker.events if tracker is not None else None) or ()
    # Recent failures still count against the attempts that the policy allows.
    return bool(events) and has_passed(events[-1].reschedule_time + policy.interval, policy.interval, recent.start_ns)


# -- jobs ----------------------------------------------------------------------------------------------------------


def _iter_dead_jobs(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield deletions of dead jobs with all their versions, evaluations and allocations.

    Jobs with a tagged version, an active deployment or a record that ended in the period `recent` are left out. Of a job
    with very many allocations, only allocations are deleted at first.
    """
    for job in snapshot.iter_all(JOBS):
        if job.status is not JobStatus.DEAD or recent.contains(job.submit_time) or not _is_finished(job):
            continue
        key = (job.namespace, job.id)
        versions = snapshot.list_by_index_sorted(VERSIONS_OF_JOB, *key)
        evaluations = snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, *key)
        allocations = snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, *key)
        if any(version.version_tag is not None for version in versions):
            continue
        if any(not each.status.is_terminal or recent.contains(each.modify_time) for each in evaluations):
            continue
        if any(not each.is_client_terminal or recent.contains(each.modify_time) for each in allocations):
            continue
        if any(deployment.is_active for deployment in snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key)):
            continue
        job_conditions = (snapshot.build_record_condition(JOBS, job),)
        if len(allocations) > MAX_EARLY_ALLOCATIONS:
            yield from _make_single_bundles(snapshot, allocations[:MAX_EARLY_ALLOCATIONS], conditions=job_conditions)
            continue
        yield _make_bundle(
            (
                *(EVALUATIONS.build_delete(each.id) for each in evaluations),
                *(ALLOCATIONS.build_delete(each.id) for each in allocations),
                *(JOB_VERSIONS.build_delete(*key, version.version) for version in versions),
                *(
                    JOB_SUBMISSIONS.build_delete(*key, each.version)
                    for each in snapshot.list_by_index_sorted(SUBMISSIONS_OF_JOB, *key)
                ),
                *(
                    SCALING_POLICIES.build_delete(each.id)
                    for each in snapshot.list_by_index_sorted(SCALING_POLICIES_OF_JOB, *key)
                ),
                *((SCALING_EVENTS.build_delete(*key),) if snapshot.get(SCALING_EVENTS, *key) is not None else ()),
                *((PERIODIC_LAUNCHES.build_delete(*key),) if snapshot.get(PERIODIC_LAUNCHES, *key) is not None else ()),
                JOB_SUMMARIES.build_delete(*key),
                JOBS.build_delete(*key),
            ),
            (
                snapshot.build_record_condition(JOBS, job),
                *(snapshot.build_record_condition(EVALUATIONS, each) for each in evaluations),
                *(snapshot.build_record_condition(ALLOCATIONS, each) for each in allocations),
            ),
            # The last write deletes the job itself. Its end does not depend on which allocations remain.
            _make_single_bundles(snapshot, allocations, conditions=job_conditions),
        )


def _is_finished(job: Job) -> bool:
    """Return whether the job will never run again: it is stopped, or a batch job that is neither periodic nor
    parameterized.
    """
    if job.is_periodic or job.is_parameterized:
        return job.stop
    return job.stop or job.is_finite


# -- other tables ----------------------------------------------------------------------------------------------------


def _iter_deployments(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield deletions of terminal deployments without active allocations that ended before the period `recent`.

    Those on which evaluations still rely are left out.
    """
    needed: dict[tuple[str, str], set[str]] = {}
    for deployment in snapshot.iter_all(DEPLOYMENTS):
        if deployment.is_active or recent.contains(deployment.modify_time):
            continue
        key = deployment.namespace, deployment.job_id
        job_allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
        if any(each.deployment_id == deployment.id and not each.is_terminal for each in job_allocations):
            continue
        if key not in needed:
            needed[key] = _list_needed_deployments(snapshot, *key)
        if deployment.id in needed[key]:
            continue
        yield _make_bundle(
            (DEPLOYMENTS.build_delete(deployment.id),), (snapshot.build_record_condition(DEPLOYMENTS, deployment),)
        )


def _list_needed_deployments(snapshot: Replica, namespace: str, job_id: str) -> set[str]:
    """Return the ids of the ended deployments of a job on which its next evaluation relies."""
    job = snapshot.get(JOBS, namespace, job_id)
    if job is None:
        return set()
    return list_needed_deployments(
        job,
        snapshot.list_by_index(DEPLOYMENTS_OF_JOB, namespace, job_id),
        lambda deployment: snapshot.get(JOB_VERSIONS, namespace, job_id, deployment.job_version),
    )


def _iter_one_time_tokens(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield the deletion of each one-time token that expired before the period `recent`."""
    expired_before = to_datetime(recent.start_ns)
    for token in snapshot.iter_all(ONE_TIME_TOKENS):
        if token.expires_at <= expired_before:
            yield _make_bundle(
                (ONE_TIME_TOKENS.build_delete(token.secret_digest),),
                (snapshot.build_record_condition(ONE_TIME_TOKENS, token),),
            )


def _iter_tokens(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield the deletion of each ACL token that expired before the period `recent`."""
    expired_before = to_datetime(recent.start_ns)
    for token in snapshot.iter_all(ACL_TOKENS):
        if token.expiration_time is not None and token.expiration_time <= expired_before:
            yield _make_bundle(
                (ACL_TOKENS.build_delete(token.accessor_id),), (snapshot.build_record_condition(ACL_TOKENS, token),)
            )


def _iter_down_nodes(snapshot: Replica, recent: _RetentionPeriod) -> _Bundles:
    """Yield deletions of nodes that have been down since before the period `recent`.

    Nodes with active allocations, or with data that a job still needs, are left out.
    """
    for node in snapshot.iter_all(NODES):
        if node.status is not NodeStatus.DOWN or recent.contains(node.status_updated_at * SECOND):
            continue
        allocations = snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id)
        if any(
            not each.is_terminal or _holds_needed_data(snapshot, each, _get_job(snapshot, each)) for each in allocations
        ):
            continue
        yield _make_bundle(
            (NODES.build_delete(node.id), capacity_versions.delete_node_version(node.id)),
            (snapshot.build_record_condition(NODES, node), *capacity_versions.expect_both_versions(snapshot, node.id)),
        )


def _get_job(snapshot: Replica, allocation: Allocation) -> Job | None:
    """Return the job of the allocation, or `None` if it no longer exists."""
    return snapshot.get(JOBS, allocation.namespace, allocation.job_id)


def _make_bundle(
    deletions: tuple[DeleteRecord, ...], conditions: tuple[Condition, ...], parts: tuple[_Bundle, ...] = ()
) -> _Bundle:
    """Return these deletions as one bundle, which is committed in one write.

    `parts` may be deleted one by one if the bundle exceeds a write.
    """
    return _Bundle(deletions, conditions, parts)


def _make_single_bundles(
    snapshot: Replica, allocations: Iterable[Allocation], *, conditions: tuple[Condition, ...] = ()
) -> tuple[_Bundle, ...]:
    """Return for each allocation a bundle that deletes only it, so that each can be deleted separately.

    `conditions` are added to each of them.
    """
    return tuple(
        _Bundle((ALLOCATIONS.build_delete(each.id),), (snapshot.build_record_condition(ALLOCATIONS, each), *conditions))
        for each in allocations
    )


BUNDLE_FINDERS: Final[dict[CollectionKind, Callable[[Replica, _RetentionPeriod], _Bundles]]] = {
    CollectionKind.EVALUATIONS: _iter_service_evaluations,
    CollectionKind.BATCH_EVALUATIONS: _iter_batch_evaluations,
    CollectionKind.JOBS: _iter_dead_jobs,
    CollectionKind.DEPLOYMENTS: _iter_deployments,
    CollectionKind.ONE_TIME_TOKENS: _iter_one_time_tokens,
    CollectionKind.TOKENS: _iter_tokens,
    CollectionKind.NODES: _iter_down_nodes,
}
"""By kind of record, the function that yields what may be deleted.

It takes the snapshot and a time in Unix nanoseconds.
"""
