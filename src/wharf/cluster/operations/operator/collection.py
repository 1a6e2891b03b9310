"""Garbage collection: delete records that ended long enough ago, such as evaluations with their allocations, jobs and
nodes.

Each call returns the next write, or nothing if none is left. Writes are independent, so an interrupted collection
continues with the next call (scheduling.md 1.6).
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations.acl.sessions import is_ended
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.jobs.arrays import list_attempt_deletions
from wharf.cluster.operations.jobs.job_outcomes import make_job_result
from wharf.cluster.scheduling.capacity.locks import may_hold_lock
from wharf.cluster.scheduling.feasibility.volumes import is_claim_holder
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.reconcile.deployment import list_needed_deployments
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import list_attempts
from wharf.cluster.state.tables import (
    ACL_TOKENS,
    ALLOCATIONS,
    ALLOCATIONS_OF_EVALUATION,
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    ARRAY_ATTEMPTS,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_RESULTS,
    JOB_SUBMISSIONS,
    JOB_SUMMARIES,
    JOB_VERSIONS,
    JOBS,
    NODES,
    ONE_TIME_TOKENS,
    PAGE_SESSIONS,
    PERIODIC_LAUNCHES,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SCALING_POLICIES_OF_JOB,
    SUBMISSIONS_OF_JOB,
    VERSIONS_OF_JOB,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus, SchedulerType
from wharf.contract.model.jobs.array_attempts import ArrayAttempt, CancelCause
from wharf.contract.model.jobs.job import Job, JobStatus
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import HOUR, MAX_CLOCK_SKEW_NS, SECOND, has_passed, to_datetime

MAX_EARLY_ALLOCATIONS: Final = 1_000
"""Allocations of one job that are prepared at a time: no log takes more changes in one write."""

ALLOCATIONS_PER_WEIGHT: Final = 10
"""Ten allocations take about as much memory as a job with its version, evaluation and summary."""

JOB_RESULT_RETENTION_NS: Final = 30 * 24 * HOUR
"""How long it is known how a deleted job ended, for jobs that need it."""

MAX_JOB_RESULTS: Final = 20_000
"""Results of deleted jobs that are retained. They take 10 MB of memory."""

MAX_RESULTS_PER_BUNDLE: Final = 20
"""Results of elements that are deleted in one write, if an attempt has too many of them for one."""

BATCH_SCHEDULER_TYPES: Final = (SchedulerType.BATCH, SchedulerType.SYSBATCH)
"""Types of evaluations whose records are retained longer."""


class CollectionKind(enum.StrEnum):
    """The kinds of records that garbage collection deletes, in this order: records that others refer to come last."""

    EVALUATIONS = "evaluations"  # With their allocations; except those of batch and sysbatch jobs.
    BATCH_EVALUATIONS = "batch-evaluations"  # Of batch and sysbatch jobs, with their allocations.
    JOBS = "jobs"  # Dead jobs with all their records, except how they ended.
    JOB_RESULTS = "job-results"  # How deleted jobs ended.
    DEPLOYMENTS = "deployments"  # Deployments that have ended.
    ONE_TIME_TOKENS = "one-time-tokens"  # One-time tokens that have expired.
    PAGE_SESSIONS = "page-sessions"  # Sessions of browsers that have ended.
    TOKENS = "tokens"  # ACL tokens that have expired.
    NODES = "nodes"  # Nodes that are down.


class ResultRetention(msgspec.Struct, frozen=True):
    """How long the records of ended batch work are retained, beyond the time of other records (decision 285).

    Nodes delete the files of an allocation with its record, so these records lead users to their results.
    """

    retention_ns: int
    max_weight: int
    """Limits the memory of these records: the sum of 1 for each job or evaluation, and 1 more for each ten allocations."""


NO_RESULTS: Final = ResultRetention(retention_ns=0, max_weight=0)


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


def _build_period(now_ns: int, retention_ns: int) -> _RetentionPeriod:
    return _RetentionPeriod(now_ns - retention_ns, now_ns + retention_ns + MAX_CLOCK_SKEW_NS)


class _Retention(msgspec.Struct, frozen=True):
    """Which records are retained: all that ended recently, and some results of batch work that ended before."""

    now_ns: int
    recent: _RetentionPeriod
    results: _RetentionPeriod
    max_result_weight: int


class _BatchResult(msgspec.Struct, frozen=True):
    """A batch job or an evaluation of one that has ended."""

    key: tuple[str, ...]
    owner: tuple[str, str]  # The job, or the parent of which it is a child.
    ended_ns: int
    allocation_count: int

    @property
    def weight(self) -> int:
        return 1 + self.allocation_count // ALLOCATIONS_PER_WEIGHT


def _choose_retained(results: Iterable[_BatchResult], retention: _Retention) -> frozenset[tuple[str, ...]]:
    """Return the keys of the results that are retained: the newest of each owner, as many as the limit permits.

    Owners have equal shares, so a job that runs every minute does not displace the results of others.
    """
    weight_by_owner: dict[tuple[str, str], int] = {}
    ranked: list[tuple[int, int, tuple[str, ...], int]] = []
    retainable = [each for each in results if retention.results.contains(each.ended_ns)]
    for each in sorted(retainable, key=lambda each: (-each.ended_ns, each.key)):
        weight_of_newer = weight_by_owner.get(each.owner, 0)
        weight_by_owner[each.owner] = weight_of_newer + each.weight
        ranked.append((weight_of_newer + each.weight, -each.ended_ns, each.key, each.weight))
    retained: set[tuple[str, ...]] = set()
    total = 0
    for _, _, key, weight in sorted(ranked):
        total += weight
        if total > retention.max_result_weight:
            break
        retained.add(key)
    return frozenset(retained)


class _Bundle(msgspec.Struct, frozen=True):
    """Records that are deleted together in one write, and what is stored about them."""

    deletions: tuple[DeleteRecord | PutRecord, ...]
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
    results: ResultRetention = NO_RESULTS,
    cause: Cause | None = None,
) -> Decision[CollectionResult]:
    """Return the decision that deletes records of one kind that ended more than `retention_ns` ago, as many as fit in
    one write.

    `results`: which records of batch work are retained longer. Records that must be deleted together and do not fit in any write are left, unless they can be deleted in parts.
    """
    now_ns = context.now_ns
    retention = _Retention(
        now_ns, _build_period(now_ns, retention_ns), _build_period(now_ns, results.retention_ns), results.max_weight
    )
    deletions: list[DeleteRecord | PutRecord] = []
    conditions: dict[tuple[str, str], Condition] = {}
    for bundle in _fit_bundles(BUNDLE_FINDERS[kind](snapshot, retention), max_changes):
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


class _EndedEvaluation(msgspec.Struct, frozen=True):
    """An evaluation that may be deleted with its allocations, or whose allocations may be deleted one by one."""

    evaluation: Evaluation
    collectable: tuple[Allocation, ...]
    is_whole: bool  # Whether the evaluation and all its allocations may be deleted; otherwise only these.


def _iter_service_evaluations(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield deletions of old terminal evaluations, with their allocations, of all schedulers except batch ones."""
    types = (SchedulerType.SERVICE, SchedulerType.SYSTEM, SchedulerType.CORE)
    for ended in _iter_ended_evaluations(snapshot, retention.recent, types):
        yield from _make_evaluation_bundles(snapshot, ended)


def _iter_batch_evaluations(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield deletions of old terminal evaluations, with their allocations, of batch and sysbatch jobs.

    They are retained longer than others, because they record completed work.
    """
    found = list(_iter_ended_evaluations(snapshot, retention.recent, BATCH_SCHEDULER_TYPES))
    retained = _choose_retained((_describe_result(snapshot, each) for each in found), retention)
    for ended in found:
        if (ended.evaluation.id,) not in retained:
            yield from _make_evaluation_bundles(snapshot, ended)


def _describe_result(snapshot: Replica, ended: _EndedEvaluation) -> _BatchResult:
    evaluation = ended.evaluation
    job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
    return _BatchResult(
        (evaluation.id,),
        (evaluation.namespace, (job.parent_id if job is not None else "") or evaluation.job_id),
        max((evaluation.modify_time, *(each.modify_time for each in ended.collectable))),
        len(ended.collectable),
    )


def _iter_ended_evaluations(
    snapshot: Replica, recent: _RetentionPeriod, types: Collection[SchedulerType]
) -> Iterator[_EndedEvaluation]:
    """Yield the terminal evaluations of these schedulers that ended before the period `recent`, with allocations.

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
            if _is_collectable(snapshot, each, job, recent) and not _holds_needed_data(snapshot, each, job)
        ]
        is_needed = _is_needed_by_job(evaluation, job)
        if is_needed:
            # Only allocations created before the last change of the job. The evaluation stays if others remain.
            assert job is not None, "an evaluation is kept only for a job that exists"
            collectable = [each for each in collectable if each.create_index < job.job_modify_index]
            if not collectable:
                continue
        is_whole = len(collectable) == len(allocations)
        if is_whole or is_needed:
            yield _EndedEvaluation(evaluation, tuple(collectable), is_whole)


def _make_evaluation_bundles(snapshot: Replica, ended: _EndedEvaluation) -> _Bundles:
    """Yield the deletion of an evaluation with its allocations, or of the allocations that are not needed."""
    evaluation, collectable = ended.evaluation, ended.collectable
    if not ended.is_whole:
        yield from _make_single_bundles(snapshot, collectable)
        return
    yield _make_bundle(
        (EVALUATIONS.build_delete(evaluation.id), *(ALLOCATIONS.build_delete(each.id) for each in collectable)),
        (
            snapshot.build_record_condition(EVALUATIONS, evaluation),
            *(snapshot.build_record_condition(ALLOCATIONS, each) for each in collectable),
        ),
        _make_single_bundles(snapshot, collectable),
    )


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


def _is_collectable(snapshot: Replica, allocation: Allocation, job: Job | None, recent: _RetentionPeriod) -> bool:
    """Return whether the allocation ended before the period `recent` and may be deleted.

    A failed allocation is needed while its job may still reschedule it.
    """
    if not allocation.is_terminal or recent.contains(allocation.modify_time):
        return False
    if not allocation.is_client_terminal or may_hold_lock(snapshot, allocation):
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


def _iter_dead_jobs(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield deletions of dead jobs with all their versions, evaluations and allocations.

    Jobs with a tagged version, an active deployment or a record that ended recently, and retained batch jobs, are left
    out. Of a job with very many allocations, only allocations are deleted at first.
    """
    recent = retention.recent
    retained = _choose_retained(_iter_ended_batch_jobs(snapshot, recent), retention)
    for job in snapshot.iter_all(JOBS):
        key = (job.namespace, job.id)
        if key in retained or not _may_collect(job, recent):
            continue
        versions = snapshot.list_by_index_sorted(VERSIONS_OF_JOB, *key)
        evaluations = snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, *key)
        allocations = snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, *key)
        if any(version.version_tag is not None for version in versions):
            continue
        if any(not each.status.is_terminal or recent.contains(each.modify_time) for each in evaluations):
            continue
        if any(not each.is_client_terminal or recent.contains(each.modify_time) for each in allocations):
            continue
        if any(may_hold_lock(snapshot, each) for each in allocations):
            continue
        if any(deployment.is_active for deployment in snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key)):
            continue
        job_conditions = (snapshot.build_record_condition(JOBS, job),)
        result = make_job_result(snapshot, job, retention.now_ns, is_collected=True)
        results = (result,) if result is not None else ()
        result_conditions = tuple(snapshot.build_key_condition(JOB_RESULTS, *key) for _ in results)
        if len(allocations) > MAX_EARLY_ALLOCATIONS:
            # How the job ended does not follow from what remains, so it is stored first.
            yield from (_Bundle((each,), (*job_conditions, *result_conditions)) for each in results)
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
                *_list_attempt_deletions(snapshot, job),
                *((SCALING_EVENTS.build_delete(*key),) if snapshot.get(SCALING_EVENTS, *key) is not None else ()),
                *((PERIODIC_LAUNCHES.build_delete(*key),) if snapshot.get(PERIODIC_LAUNCHES, *key) is not None else ()),
                JOB_SUMMARIES.build_delete(*key),
                JOBS.build_delete(*key),
                *results,
            ),
            (
                snapshot.build_record_condition(JOBS, job),
                *result_conditions,
                *(snapshot.build_record_condition(EVALUATIONS, each) for each in evaluations),
                *(snapshot.build_record_condition(ALLOCATIONS, each) for each in allocations),
            ),
            # The last write deletes the job itself. Its end does not depend on which allocations remain.
            (
                *(_Bundle((each,), (*job_conditions, *result_conditions)) for each in results),
                *_make_attempt_bundles(snapshot, job, job_conditions),
                *_make_single_bundles(snapshot, allocations, conditions=job_conditions),
            ),
        )


def _list_attempt_deletions(snapshot: Replica, job: Job) -> list[DeleteRecord]:
    """Return the changes that delete the results of the arrays of a job."""
    return [change for attempt in list_attempts(snapshot, job) for change in list_attempt_deletions(snapshot, attempt)]


def _make_attempt_bundles(snapshot: Replica, job: Job, conditions: tuple[Condition, ...]) -> tuple[_Bundle, ...]:
    """Return for each attempt of the arrays of a job a bundle that deletes it with its results, the newest first.

    The older ones then show how the elements ended before: no element seems to be open.
    """
    return tuple(
        bundle
        for attempt in reversed(list_attempts(snapshot, job))
        for bundle in _make_parts_of_attempt(snapshot, attempt, conditions)
    )


def _make_parts_of_attempt(
    snapshot: Replica, attempt: ArrayAttempt, conditions: tuple[Condition, ...]
) -> Iterator[_Bundle]:
    """Yield bundles that delete an attempt: its results, some at a time, and the attempt with the last ones.

    An element without a result is open, so an attempt with many results is canceled before the first of them is deleted.
    """
    changes = list_attempt_deletions(snapshot, attempt)
    if len(changes) <= MAX_RESULTS_PER_BUNDLE:
        yield _Bundle(tuple(changes), (snapshot.build_record_condition(ARRAY_ATTEMPTS, attempt), *conditions))
        return
    groups = {
        name: part if part.cancel_cause else replace(part, cancel_cause=CancelCause.STOPPED)
        for name, part in attempt.groups.items()
    }
    if groups != attempt.groups:
        canceled = ARRAY_ATTEMPTS.build_put(replace(attempt, groups=groups))
        yield _Bundle((canceled,), (snapshot.build_record_condition(ARRAY_ATTEMPTS, attempt), *conditions))
        return  # The next write deletes the first results.
    for start in range(0, len(changes), MAX_RESULTS_PER_BUNDLE):
        yield _Bundle(tuple(changes[start : start + MAX_RESULTS_PER_BUNDLE]), conditions)


def _may_collect(job: Job, recent: _RetentionPeriod) -> bool:
    """Return whether a job is dead and finished, and was submitted before the period `recent`."""
    return job.status is JobStatus.DEAD and not recent.contains(job.submit_time) and _is_finished(job)


def _iter_ended_batch_jobs(snapshot: Replica, recent: _RetentionPeriod) -> Iterator[_BatchResult]:
    """Yield the dead batch jobs that ended before the period `recent`."""
    for job in snapshot.iter_all(JOBS):
        if not job.is_finite or not _may_collect(job, recent):
            continue
        key = (job.namespace, job.id)
        evaluations = snapshot.list_by_index(EVALUATIONS_OF_JOB, *key)
        allocations = snapshot.list_by_index(ALLOCATIONS_OF_JOB, *key)
        times = (*(each.modify_time for each in evaluations), *(each.modify_time for each in allocations))
        ended_ns = max((job.submit_time, *times))
        if not recent.contains(ended_ns):
            yield _BatchResult(key, (job.namespace, job.parent_id or job.id), ended_ns, len(allocations))


def _is_finished(job: Job) -> bool:
    """Return whether the job will never run again: it is stopped, or a batch job that is neither periodic nor
    parameterized.
    """
    if job.is_periodic or job.is_parameterized:
        return job.stop
    return job.stop or job.is_finite


# -- other tables ----------------------------------------------------------------------------------------------------


def _iter_job_results(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield the deletion of each result of a deleted job that is old, and of the oldest ones if there are too many.

    A collection that a user requests does not shorten their time, because other jobs may wait for them.
    """
    recent = _build_period(retention.now_ns, JOB_RESULT_RETENTION_NS)
    results = sorted(snapshot.iter_all(JOB_RESULTS), key=lambda each: (each.delete_time, each.namespace, each.job_id))
    surplus = len(results) - MAX_JOB_RESULTS
    for position, result in enumerate(results):
        if position < surplus or not recent.contains(result.delete_time):
            yield _make_bundle(
                (JOB_RESULTS.build_delete(result.namespace, result.job_id),),
                (snapshot.build_record_condition(JOB_RESULTS, result),),
            )


def _iter_deployments(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield deletions of terminal deployments without active allocations that ended before the recent period.

    Those on which evaluations still rely are left out.
    """
    needed: dict[tuple[str, str], set[str]] = {}
    for deployment in snapshot.iter_all(DEPLOYMENTS):
        if deployment.is_active or retention.recent.contains(deployment.modify_time):
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


def _iter_one_time_tokens(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield the deletion of each one-time token that expired before the recent period."""
    expired_before = to_datetime(retention.recent.start_ns)
    for token in snapshot.iter_all(ONE_TIME_TOKENS):
        if token.expires_at <= expired_before:
            yield _make_bundle(
                (ONE_TIME_TOKENS.build_delete(token.secret_digest),),
                (snapshot.build_record_condition(ONE_TIME_TOKENS, token),),
            )


def _iter_page_sessions(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield the deletion of each session that expired before the recent period, or whose token is gone."""
    for session in snapshot.iter_all(PAGE_SESSIONS):
        if is_ended(snapshot, session, retention.recent.start_ns):
            yield _make_bundle(
                (PAGE_SESSIONS.build_delete(session.secret_digest),),
                (snapshot.build_record_condition(PAGE_SESSIONS, session),),
            )


def _iter_tokens(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield the deletion of each ACL token that expired before the recent period."""
    expired_before = to_datetime(retention.recent.start_ns)
    for token in snapshot.iter_all(ACL_TOKENS):
        if token.expiration_time is not None and token.expiration_time <= expired_before:
            yield _make_bundle(
                (ACL_TOKENS.build_delete(token.accessor_id),), (snapshot.build_record_condition(ACL_TOKENS, token),)
            )


def _iter_down_nodes(snapshot: Replica, retention: _Retention) -> _Bundles:
    """Yield deletions of nodes that have been down since before the recent period.

    Nodes with active allocations, with lost ones that hold a lock, or with data that a job still needs, are left out.
    """
    for node in snapshot.iter_all(NODES):
        if node.status is not NodeStatus.DOWN or retention.recent.contains(node.status_updated_at * SECOND):
            continue
        allocations = snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id)
        if any(
            not each.is_terminal
            or may_hold_lock(snapshot, each)
            or _holds_needed_data(snapshot, each, _get_job(snapshot, each))
            for each in allocations
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
    deletions: tuple[DeleteRecord | PutRecord, ...], conditions: tuple[Condition, ...], parts: tuple[_Bundle, ...] = ()
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


BUNDLE_FINDERS: Final[dict[CollectionKind, Callable[[Replica, _Retention], _Bundles]]] = {
    CollectionKind.EVALUATIONS: _iter_service_evaluations,
    CollectionKind.BATCH_EVALUATIONS: _iter_batch_evaluations,
    CollectionKind.JOBS: _iter_dead_jobs,
    CollectionKind.JOB_RESULTS: _iter_job_results,
    CollectionKind.DEPLOYMENTS: _iter_deployments,
    CollectionKind.ONE_TIME_TOKENS: _iter_one_time_tokens,
    CollectionKind.PAGE_SESSIONS: _iter_page_sessions,
    CollectionKind.TOKENS: _iter_tokens,
    CollectionKind.NODES: _iter_down_nodes,
}
"""By kind of record, the function that yields what may be deleted.

It takes the snapshot and which records are retained.
"""
