"""What is over and old enough to go: evaluations with their allocations, jobs, deployments, tokens, nodes.

Each call gives the next write that takes something away, or says that nothing is left. Every write stands alone, so a
collection that is broken off has done no harm, and the next one goes on where it ended (scheduling.md 1.6).
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.scheduling.feasibility.volumes import is_claim_holder
from wharf.cluster.scheduling.plans import capacity_versions
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
from wharf.contract.model.evaluations import Evaluation, SchedulerType
from wharf.contract.model.jobs.job import Job, JobStatus, JobType
from wharf.contract.model.log import Cause, CauseKind, Condition, DeleteRecord, Write
from wharf.contract.model.nodes.node import NodeStatus
from wharf.contract.model.times import to_datetime

SECOND_NS: Final = 1_000_000_000
MAX_EARLY_ALLOCATIONS: Final = 1_000
"""Allocations of one job that are prepared at once: no log takes more in one write."""

BATCH_SCHEDULER_TYPES: Final = (SchedulerType.BATCH, SchedulerType.SYSBATCH)


class CollectionKind(enum.StrEnum):
    """What is collected, in the order in which one makes room for the next."""

    EVALUATIONS = "evaluations"
    BATCH_EVALUATIONS = "batch-evaluations"
    JOBS = "jobs"
    DEPLOYMENTS = "deployments"
    ONE_TIME_TOKENS = "one-time-tokens"
    TOKENS = "tokens"
    NODES = "nodes"


class CollectionResult(msgspec.Struct, frozen=True):
    """`taken` records went; none: nothing of this kind is left to take."""

    index: int
    deleted_count: int


class _Bundle(msgspec.Struct, frozen=True):
    """What goes together. Where that is more than a write takes, `ahead` may go before the rest, piece by piece."""

    drops: tuple[DeleteRecord, ...]
    conditions: tuple[Condition, ...]
    ahead: "tuple[_Bundle, ...]" = ()


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
    """The next write that takes away what is over for longer than this. What fits no write stays."""
    before_ns = context.now_ns - retention_ns
    drops: list[DeleteRecord] = []
    conditions: dict[tuple[str, str], Condition] = {}
    for bundle in _fit_bundles(BUNDLE_FINDERS[kind](snapshot, before_ns), max_changes):
        if len(drops) + len(bundle.drops) > max_changes or len(conditions) + len(bundle.conditions) > max_changes:
            break
        drops += bundle.drops
        conditions |= {(condition.table, condition.key): condition for condition in bundle.conditions}
    if not drops:
        return Decision(None, lambda index: CollectionResult(index, 0))
    write = Write(
        f"{kind.value}-collected", cause or Cause(CauseKind.TIMER, "collection"), drops, list(conditions.values())
    )
    return Decision(write, lambda index: CollectionResult(index, len(drops)))


def _fit_bundles(bundles: _Bundles, max_changes: int) -> _Bundles:
    """Bundles that fit in a write, in their order."""
    for bundle in bundles:
        if max(len(bundle.drops), len(bundle.conditions)) <= max_changes:
            yield bundle
        else:
            yield from bundle.ahead


# -- evaluations and their allocations -----------------------------------------------------------------------------


def _evaluations(snapshot: Replica, before_ns: int) -> _Bundles:
    return _of_types(snapshot, before_ns, (SchedulerType.SERVICE, SchedulerType.SYSTEM, SchedulerType.CORE))


def _batch_evaluations(snapshot: Replica, before_ns: int) -> _Bundles:
    """Kept for longer: they tell what was done."""
    return _of_types(snapshot, before_ns, BATCH_SCHEDULER_TYPES)


def _of_types(snapshot: Replica, before_ns: int, types: Collection[SchedulerType]) -> _Bundles:
    for evaluation in snapshot.iter_all(EVALUATIONS):
        if not evaluation.status.is_terminal or evaluation.modify_time > before_ns or evaluation.type not in types:
            continue
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        allocations = snapshot.list_by_index_sorted(ALLOCATIONS_OF_EVALUATION, evaluation.id)
        going = [
            each for each in allocations if _is_collectable(each, job, before_ns) and not _is_claim(snapshot, each, job)
        ]
        if _is_kept_for_its_job(evaluation, job):
            # Only what ran before the job was changed last; the evaluation stays, unless that is all of it.
            assert job is not None, "only a job that is there keeps its evaluations"
            going = [each for each in going if each.create_index < job.job_modify_index]
            if not going:
                continue
        if len(going) == len(allocations):
            yield _bundle(
                (EVALUATIONS.build_delete(evaluation.id), *(ALLOCATIONS.build_delete(each.id) for each in going)),
                (
                    snapshot.build_record_condition(EVALUATIONS, evaluation),
                    *(snapshot.build_record_condition(ALLOCATIONS, each) for each in going),
                ),
                _one_by_one(snapshot, going),
            )
        elif _is_kept_for_its_job(evaluation, job):
            yield from _one_by_one(snapshot, going)


def _is_kept_for_its_job(evaluation: Evaluation, job: Job | None) -> bool:
    """What a batch job has done already is told by its allocations: they stay until the job is over and stopped."""
    if evaluation.type not in BATCH_SCHEDULER_TYPES or job is None:
        return False
    return not (job.status is JobStatus.DEAD and job.stop)


def _is_claim(snapshot: Replica, allocation: Allocation, job: Job | None) -> bool:
    """Whether it tells where the data of a job that is wanted lies."""
    return job is not None and not job.stop and is_claim_holder(snapshot, allocation, job)


def _is_collectable(allocation: Allocation, job: Job | None, before_ns: int) -> bool:
    if not allocation.is_terminal or allocation.modify_time > before_ns:
        return False
    if not allocation.is_client_terminal:
        return False  # Wanted gone, and its node has not said yet that it is.
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
    # Its past failures still count against the next attempt.
    return bool(events) and events[-1].reschedule_time + policy.interval <= before_ns


# -- jobs ----------------------------------------------------------------------------------------------------------


def _jobs(snapshot: Replica, before_ns: int) -> _Bundles:
    """Jobs that are over, whole: with versions, evaluations and allocations."""
    for job in snapshot.iter_all(JOBS):
        if job.status is not JobStatus.DEAD or job.submit_time > before_ns or not _ends_by_itself(job):
            continue
        key = (job.namespace, job.id)
        versions = snapshot.list_by_index_sorted(VERSIONS_OF_JOB, *key)
        evaluations = snapshot.list_by_index_sorted(EVALUATIONS_OF_JOB, *key)
        allocations = snapshot.list_by_index_sorted(ALLOCATIONS_OF_JOB, *key)
        if any(version.version_tag is not None for version in versions):
            continue
        if any(not each.status.is_terminal or each.modify_time > before_ns for each in evaluations):
            continue
        if any(not each.is_client_terminal or each.modify_time > before_ns for each in allocations):
            continue
        if any(deployment.is_active for deployment in snapshot.list_by_index(DEPLOYMENTS_OF_JOB, *key)):
            continue
        rests_on = (snapshot.build_record_condition(JOBS, job),)
        if len(allocations) > MAX_EARLY_ALLOCATIONS:
            yield from _one_by_one(snapshot, allocations[:MAX_EARLY_ALLOCATIONS], rests_on=rests_on)
            continue
        yield _bundle(
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
            # The job itself goes with what is left. That it is over holds whatever of it is there.
            _one_by_one(snapshot, allocations, rests_on=rests_on),
        )


def _ends_by_itself(job: Job) -> bool:
    """Whether it is over for good: stopped, or work that ends. A service without work may be wanted again."""
    if job.is_periodic or job.is_parameterized:
        return job.stop
    return job.stop or job.type in (JobType.BATCH, JobType.SYSBATCH)


# -- the others ----------------------------------------------------------------------------------------------------


def _deployments(snapshot: Replica, before_ns: int) -> _Bundles:
    for deployment in snapshot.iter_all(DEPLOYMENTS):
        if deployment.is_active or deployment.modify_time > before_ns:
            continue
        of_job = snapshot.list_by_index(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)
        if any(each.deployment_id == deployment.id and not each.is_terminal for each in of_job):
            continue
        yield _bundle(
            (DEPLOYMENTS.build_delete(deployment.id),), (snapshot.build_record_condition(DEPLOYMENTS, deployment),)
        )


def _one_time_tokens(snapshot: Replica, before_ns: int) -> _Bundles:
    at = to_datetime(before_ns)
    for token in snapshot.iter_all(ONE_TIME_TOKENS):
        if token.expires_at <= at:
            yield _bundle(
                (ONE_TIME_TOKENS.build_delete(token.secret_digest),),
                (snapshot.build_record_condition(ONE_TIME_TOKENS, token),),
            )


def _tokens(snapshot: Replica, before_ns: int) -> _Bundles:
    at = to_datetime(before_ns)
    for token in snapshot.iter_all(ACL_TOKENS):
        if token.is_expired(at):
            yield _bundle(
                (ACL_TOKENS.build_delete(token.accessor_id),), (snapshot.build_record_condition(ACL_TOKENS, token),)
            )


def _nodes(snapshot: Replica, before_ns: int) -> _Bundles:
    """Nodes that are down, once nothing that counts as running is on them, nor data that somebody comes back for."""
    for node in snapshot.iter_all(NODES):
        if node.status is not NodeStatus.DOWN or node.status_updated_at * SECOND_NS > before_ns:
            continue
        here = snapshot.list_by_index(ALLOCATIONS_ON_NODE, node.id)
        if any(not each.is_terminal or _is_claim(snapshot, each, _job_of(snapshot, each)) for each in here):
            continue
        yield _bundle(
            (NODES.build_delete(node.id), capacity_versions.delete_node_version(node.id)),
            (snapshot.build_record_condition(NODES, node), *capacity_versions.expect_both_versions(snapshot, node.id)),
        )


def _job_of(snapshot: Replica, allocation: Allocation) -> Job | None:
    return snapshot.get(JOBS, allocation.namespace, allocation.job_id)


def _bundle(
    drops: tuple[DeleteRecord, ...], conditions: tuple[Condition, ...], ahead: tuple[_Bundle, ...] = ()
) -> _Bundle:
    return _Bundle(drops, conditions, ahead)


def _one_by_one(
    snapshot: Replica, allocations: Iterable[Allocation], *, rests_on: tuple[Condition, ...] = ()
) -> tuple[_Bundle, ...]:
    return tuple(
        _Bundle((ALLOCATIONS.build_delete(each.id),), (snapshot.build_record_condition(ALLOCATIONS, each), *rests_on))
        for each in allocations
    )


BUNDLE_FINDERS: Final[dict[CollectionKind, Callable[[Replica, int], _Bundles]]] = {
    CollectionKind.EVALUATIONS: _evaluations,
    CollectionKind.BATCH_EVALUATIONS: _batch_evaluations,
    CollectionKind.JOBS: _jobs,
    CollectionKind.DEPLOYMENTS: _deployments,
    CollectionKind.ONE_TIME_TOKENS: _one_time_tokens,
    CollectionKind.TOKENS: _tokens,
    CollectionKind.NODES: _nodes,
}
