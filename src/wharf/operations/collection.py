"""What is over and old enough to go: evaluations with their allocations, jobs, deployments, tokens, nodes.

Each call gives the next write that takes something away, or says that nothing is left. Every write stands alone, so a
collection that is broken off has done no harm, and the next one goes on where it ended (scheduling.md 1.6).
"""

import enum
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final, TypeAlias

import msgspec

from wharf.model.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.model.changes import Cause, CauseKind, Condition, Drop, Write
from wharf.model.evaluation import Evaluation, SchedulerType
from wharf.model.job import Job, JobStatus, JobType
from wharf.model.moment import to_time
from wharf.model.node import NodeStatus
from wharf.operations.decision import Decision, Moment
from wharf.scheduling import room_marks
from wharf.scheduling.claims import holds_claim
from wharf.state import Replica
from wharf.state.tables import (
    ACL_TOKENS,
    ALLOCATIONS,
    ALLOCATIONS_OF_EVALUATION,
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_VERSIONS,
    JOBS,
    NODES,
    ONE_TIME_TOKENS,
    PERIODIC_LAUNCHES,
    POLICIES_OF_JOB,
    SCALING_EVENTS,
    SCALING_POLICIES,
    SUBMISSIONS,
    SUBMISSIONS_OF_JOB,
    SUMMARIES,
    VERSIONS_OF_JOB,
)

SECOND_NS: Final = 1_000_000_000
AHEAD_MOST: Final = 1_000
"""Allocations of one job that are prepared at once: no log takes more in one write."""

BATCH_TYPES: Final = (SchedulerType.BATCH, SchedulerType.SYSBATCH)


class Collected(enum.StrEnum):
    """What is collected, in the order in which one makes room for the next."""

    EVALUATIONS = "evaluations"
    BATCH_EVALUATIONS = "batch-evaluations"
    JOBS = "jobs"
    DEPLOYMENTS = "deployments"
    ONE_TIME_TOKENS = "one-time-tokens"
    TOKENS = "tokens"
    NODES = "nodes"


class CollectionDone(msgspec.Struct, frozen=True):
    """`taken` records went; none: nothing of this kind is left to take."""

    index: int
    taken: int


class _Bundle(msgspec.Struct, frozen=True):
    """What goes together. Where that is more than a write takes, `ahead` may go before the rest, piece by piece."""

    drops: tuple[Drop, ...]
    conditions: tuple[Condition, ...]
    ahead: "tuple[_Bundle, ...]" = ()


_Bundles: TypeAlias = Iterator[_Bundle]


def collect(
    snapshot: Replica,
    kind: Collected,
    moment: Moment,
    *,
    older_than_ns: int,
    changes_max: int,
    cause: Cause | None = None,
) -> Decision[CollectionDone]:
    """The next write that takes away what is over for longer than this. What fits no write stays."""
    before_ns = moment.now_ns - older_than_ns
    drops: list[Drop] = []
    conditions: dict[tuple[str, str], Condition] = {}
    for bundle in _pieces(FINDERS[kind](snapshot, before_ns), changes_max):
        if len(drops) + len(bundle.drops) > changes_max or len(conditions) + len(bundle.conditions) > changes_max:
            break
        drops += bundle.drops
        conditions |= {(condition.table, condition.key): condition for condition in bundle.conditions}
    if not drops:
        return Decision(None, lambda index: CollectionDone(index, 0))
    write = Write(
        f"{kind.value}-collected", cause or Cause(CauseKind.TIMER, "collection"), drops, list(conditions.values())
    )
    return Decision(write, lambda index: CollectionDone(index, len(drops)))


def _pieces(bundles: _Bundles, changes_max: int) -> _Bundles:
    """Bundles that fit in a write, in their order."""
    for bundle in bundles:
        if max(len(bundle.drops), len(bundle.conditions)) <= changes_max:
            yield bundle
        else:
            yield from bundle.ahead


# -- evaluations and their allocations -----------------------------------------------------------------------------


def _evaluations(snapshot: Replica, before_ns: int) -> _Bundles:
    return _of_types(snapshot, before_ns, (SchedulerType.SERVICE, SchedulerType.SYSTEM, SchedulerType.CORE))


def _batch_evaluations(snapshot: Replica, before_ns: int) -> _Bundles:
    """Kept for longer: they tell what was done."""
    return _of_types(snapshot, before_ns, BATCH_TYPES)


def _of_types(snapshot: Replica, before_ns: int, types: Collection[SchedulerType]) -> _Bundles:
    for evaluation in snapshot.all(EVALUATIONS):
        if not evaluation.status.is_terminal or evaluation.modify_time > before_ns or evaluation.type not in types:
            continue
        job = snapshot.get(JOBS, evaluation.namespace, evaluation.job_id)
        allocations = snapshot.those_by_key(ALLOCATIONS_OF_EVALUATION, evaluation.id)
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
                (EVALUATIONS.drop(evaluation.id), *(ALLOCATIONS.drop(each.id) for each in going)),
                (
                    snapshot.unchanged(EVALUATIONS, evaluation),
                    *(snapshot.unchanged(ALLOCATIONS, each) for each in going),
                ),
                _one_by_one(snapshot, going),
            )
        elif _is_kept_for_its_job(evaluation, job):
            yield from _one_by_one(snapshot, going)


def _is_kept_for_its_job(evaluation: Evaluation, job: Job | None) -> bool:
    """What a batch job has done already is told by its allocations: they stay until the job is over and stopped."""
    if evaluation.type not in BATCH_TYPES or job is None:
        return False
    return not (job.status is JobStatus.DEAD and job.stop)


def _is_claim(snapshot: Replica, allocation: Allocation, job: Job | None) -> bool:
    """Whether it tells where the data of a job that is wanted lies."""
    return job is not None and not job.stop and holds_claim(snapshot, allocation, job)


def _is_collectable(allocation: Allocation, job: Job | None, before_ns: int) -> bool:
    if not allocation.is_terminal or allocation.modify_time > before_ns:
        return False
    if not allocation.is_client_terminal:
        return False  # Wanted gone, and its node has not said yet that it is.
    if job is None or job.stop or job.status is JobStatus.DEAD or allocation.desired_status is DesiredStatus.STOP:
        return True
    if allocation.client_status is not ClientStatus.FAILED or allocation.next_allocation:
        return True
    group = job.group(allocation.task_group)
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
    for job in snapshot.all(JOBS):
        if job.status is not JobStatus.DEAD or job.submit_time > before_ns or not _ends_by_itself(job):
            continue
        key = (job.namespace, job.id)
        versions = snapshot.those_by_key(VERSIONS_OF_JOB, *key)
        evaluations = snapshot.those_by_key(EVALUATIONS_OF_JOB, *key)
        allocations = snapshot.those_by_key(ALLOCATIONS_OF_JOB, *key)
        if any(version.version_tag is not None for version in versions):
            continue
        if any(not each.status.is_terminal or each.modify_time > before_ns for each in evaluations):
            continue
        if any(not each.is_client_terminal or each.modify_time > before_ns for each in allocations):
            continue
        if any(deployment.is_active for deployment in snapshot.those(DEPLOYMENTS_OF_JOB, *key)):
            continue
        rests_on = (snapshot.unchanged(JOBS, job),)
        if len(allocations) > AHEAD_MOST:
            yield from _one_by_one(snapshot, allocations[:AHEAD_MOST], rests_on=rests_on)
            continue
        yield _bundle(
            (
                *(EVALUATIONS.drop(each.id) for each in evaluations),
                *(ALLOCATIONS.drop(each.id) for each in allocations),
                *(JOB_VERSIONS.drop(*key, version.version) for version in versions),
                *(SUBMISSIONS.drop(*key, each.version) for each in snapshot.those_by_key(SUBMISSIONS_OF_JOB, *key)),
                *(SCALING_POLICIES.drop(each.id) for each in snapshot.those_by_key(POLICIES_OF_JOB, *key)),
                *((SCALING_EVENTS.drop(*key),) if snapshot.get(SCALING_EVENTS, *key) is not None else ()),
                *((PERIODIC_LAUNCHES.drop(*key),) if snapshot.get(PERIODIC_LAUNCHES, *key) is not None else ()),
                SUMMARIES.drop(*key),
                JOBS.drop(*key),
            ),
            (
                snapshot.unchanged(JOBS, job),
                *(snapshot.unchanged(EVALUATIONS, each) for each in evaluations),
                *(snapshot.unchanged(ALLOCATIONS, each) for each in allocations),
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
    for deployment in snapshot.all(DEPLOYMENTS):
        if deployment.is_active or deployment.modify_time > before_ns:
            continue
        of_job = snapshot.those(ALLOCATIONS_OF_JOB, deployment.namespace, deployment.job_id)
        if any(each.deployment_id == deployment.id and not each.is_terminal for each in of_job):
            continue
        yield _bundle((DEPLOYMENTS.drop(deployment.id),), (snapshot.unchanged(DEPLOYMENTS, deployment),))


def _one_time_tokens(snapshot: Replica, before_ns: int) -> _Bundles:
    at = to_time(before_ns)
    for token in snapshot.all(ONE_TIME_TOKENS):
        if token.expires_at <= at:
            yield _bundle((ONE_TIME_TOKENS.drop(token.secret_digest),), (snapshot.unchanged(ONE_TIME_TOKENS, token),))


def _tokens(snapshot: Replica, before_ns: int) -> _Bundles:
    at = to_time(before_ns)
    for token in snapshot.all(ACL_TOKENS):
        if token.is_expired(at):
            yield _bundle((ACL_TOKENS.drop(token.accessor_id),), (snapshot.unchanged(ACL_TOKENS, token),))


def _nodes(snapshot: Replica, before_ns: int) -> _Bundles:
    """Nodes that are down, once nothing that counts as running is on them, nor data that somebody comes back for."""
    for node in snapshot.all(NODES):
        if node.status is not NodeStatus.DOWN or node.status_updated_at * SECOND_NS > before_ns:
            continue
        here = snapshot.those(ALLOCATIONS_ON_NODE, node.id)
        if any(not each.is_terminal or _is_claim(snapshot, each, _job_of(snapshot, each)) for each in here):
            continue
        yield _bundle(
            (NODES.drop(node.id), room_marks.goes(node.id)),
            (snapshot.unchanged(NODES, node), *room_marks.rests_on_both(snapshot, node.id)),
        )


def _job_of(snapshot: Replica, allocation: Allocation) -> Job | None:
    return snapshot.get(JOBS, allocation.namespace, allocation.job_id)


def _bundle(drops: tuple[Drop, ...], conditions: tuple[Condition, ...], ahead: tuple[_Bundle, ...] = ()) -> _Bundle:
    return _Bundle(drops, conditions, ahead)


def _one_by_one(
    snapshot: Replica, allocations: Iterable[Allocation], *, rests_on: tuple[Condition, ...] = ()
) -> tuple[_Bundle, ...]:
    return tuple(
        _Bundle((ALLOCATIONS.drop(each.id),), (snapshot.unchanged(ALLOCATIONS, each), *rests_on))
        for each in allocations
    )


FINDERS: Final[dict[Collected, Callable[[Replica, int], _Bundles]]] = {
    Collected.EVALUATIONS: _evaluations,
    Collected.BATCH_EVALUATIONS: _batch_evaluations,
    Collected.JOBS: _jobs,
    Collected.DEPLOYMENTS: _deployments,
    Collected.ONE_TIME_TOKENS: _one_time_tokens,
    Collected.TOKENS: _tokens,
    Collected.NODES: _nodes,
}
