"""Invariants of a steady cluster: everything that can be done is done, and the rest is explained.

They are computed directly from the records, as all invariants are.
"""

from collections import Counter
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Final

from simulation.invariants import (
    find_canary_deployment_id,
    is_awaiting_promotion,
    is_desired_running,
    is_using_resources,
)
from simulation.job_order import find_awaited_job
from simulation.record_history import RecordHistory
from simulation.timeline import InvariantViolation
from wharf.cluster.operations.explanations.jobs import list_unexplained_jobs
from wharf.cluster.scheduling.blocked.reservation_policy import can_reserve_node, list_missed_reservations
from wharf.cluster.scheduling.cache import SchedulerCache
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    DEPLOYMENTS_OF_JOB,
    EVALUATIONS,
    EVALUATIONS_BY_STATUS,
    EVALUATIONS_OF_JOB,
    JOB_PURGES,
    JOB_SUMMARIES,
    JOBS,
    NODES,
)
from wharf.contract.model.allocations.allocation import Allocation, ClientStatus, DesiredStatus
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.evaluations import Evaluation, EvaluationStatus
from wharf.contract.model.jobs.job import Job, JobStatus, JobType
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.state_machines.transitions import DEPLOYMENT_STATES

RESERVATION_CHECKS_NS: Final = 45_000_000_000
"""The time in which a leader checks three times for evaluations that have waited too long."""


def require_steady_state(history: RecordHistory, now_ns: int) -> None:
    """Raise `InvariantViolation` if a cluster without faults still has something to do.

    `now_ns` is the time of the leader's clock.
    """
    replica = history.replica
    _require_reservations(replica, now_ns)
    for evaluation in replica.iter_all(EVALUATIONS):
        if evaluation.status is EvaluationStatus.PENDING and evaluation.wait_until is None:
            raise InvariantViolation(
                f"evaluation {evaluation.id} of {evaluation.job_id} is still pending", evaluation.id
            )
        if evaluation.status is EvaluationStatus.BLOCKED and not evaluation.failed_tg_allocs:
            raise InvariantViolation(f"evaluation {evaluation.id} is blocked without a reason", evaluation.id)
    for job in replica.iter_all(JOBS):
        _require_steady_job(history, job)
    _require_child_counts(replica)
    for purge in replica.iter_all(JOB_PURGES):
        raise InvariantViolation(f"the purge of {purge.job_id} is still in progress", purge.job_id)
    for allocation in replica.iter_all(ALLOCATIONS):
        if is_using_resources(allocation) and replica.get(JOBS, allocation.namespace, allocation.job_id) is None:
            raise InvariantViolation(
                f"{allocation.id} still uses resources, but its job {allocation.job_id} does not exist",
                allocation.id,
                allocation.job_id,
            )
    for node in replica.iter_all(NODES):
        _require_ended_drain(replica, node)
    unexplained = list_unexplained_jobs(replica)
    if unexplained:
        raise InvariantViolation(f"jobs without an explanation: {'; '.join(unexplained)}")


def _require_child_counts(replica: Replica) -> None:
    """Require that each summary counts the children that have not ended. Those that have ended may be deleted."""
    unended = Counter((job.namespace, job.parent_id, job.status) for job in replica.iter_all(JOBS))
    for summary in replica.iter_all(JOB_SUMMARIES):
        children = summary.children
        counted = (children.pending, children.running) if children is not None else (0, 0)
        expected = tuple(
            unended[summary.namespace, summary.job_id, status] for status in (JobStatus.PENDING, JobStatus.RUNNING)
        )
        if counted != expected:
            raise InvariantViolation(
                f"the summary of {summary.job_id} counts {counted} pending and running children instead of {expected}",
                summary.job_id,
            )


def _require_ended_drain(replica: Replica, node: Node) -> None:
    """Require that the drain of a node has ended, unless it would leave too few healthy allocations of a job.

    Then the replacements have no capacity, or a failed deployment prevents them until another version is registered.
    """
    if node.drain_strategy is None:
        return
    on_node = [a for a in replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if is_using_resources(a)]
    for allocation in on_node:
        evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, allocation.namespace, allocation.job_id)
        if any(e.status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING) for e in evaluations):
            return
        deployments = replica.list_by_index(DEPLOYMENTS_OF_JOB, allocation.namespace, allocation.job_id)
        if any(d.status is DeploymentStatus.FAILED for d in deployments):
            return
    raise InvariantViolation(
        f"the drain of {node.name} does not end; {len(on_node)} allocations are left", node.id, *(a.id for a in on_node)
    )


def _require_reservations(replica: Replica, now_ns: int) -> None:
    """Require a reserved node for each evaluation that has waited too long, if a reservation would help."""
    cache = SchedulerCache.from_snapshot(replica)
    waiting = replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    late = list_missed_reservations(replica, cache, waiting, now_ns, RESERVATION_CHECKS_NS)
    if late:
        raise InvariantViolation(f"evaluations wait without a reserved node: {'; '.join(late)}")


def has_reservation_due(replica: Replica) -> bool:
    """Return whether a blocked evaluation may get a reserved node when it has waited long enough."""
    waiting = replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    return any(can_reserve_node(replica, e) and not e.reserved_node_id for e in waiting)


def _require_steady_system_job(replica: Replica, job: Job, live: Sequence[Allocation], *, is_explained: bool) -> None:
    """Require one allocation of the current version on each eligible node, and no older versions anywhere.

    A drain that ignores system jobs leaves their allocations on the node. When it ends, the job is not evaluated, so they
    stay until something else evaluates the job.
    """
    for node in replica.iter_all(NODES):
        is_eligible = node.status == "ready" and node.scheduling_eligibility == "eligible" and not node.drain_strategy
        is_target = _is_eligible_for(node, job)
        on_node = [a for a in live if a.node_id == node.id]
        current = [a for a in on_node if a.job_version == job.version]
        if not is_eligible and node.last_drain is not None:
            continue
        min_count, max_count = (1 if is_target else 0), sum(group.count for group in job.groups)
        if not (min_count <= len(on_node) <= max_count and len(on_node) == len(current)) and not is_explained:
            raise InvariantViolation(
                f"system job {job.id} has {len(on_node)} allocations on {node.name}, {len(current)} in its current version",
                job.id,
                node.id,
            )


def _is_eligible_for(node: Node, job: Job) -> bool:
    """Return whether the node accepts allocations and is in one of the job's datacenters."""
    is_ready = node.status == "ready" and node.scheduling_eligibility == "eligible" and not node.drain_strategy
    return is_ready and any(fnmatchcase(node.datacenter, pattern) for pattern in job.datacenters or ())


def _require_steady_sysbatch_job(
    history: RecordHistory, job: Job, allocations: Sequence[Allocation], *, is_explained: bool
) -> None:
    """Require the current version on each node that was eligible during the job's last evaluation, and no older ones.

    It may run there, or have completed or failed. No node runs more than one allocation of a group. A node that became
    eligible later has no allocation: the job is not evaluated for it until the job is registered again.
    """
    replica = history.replica
    max_count = sum(group.count for group in job.groups)
    evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    completed = [
        evaluation
        for evaluation in evaluations
        if evaluation.status is EvaluationStatus.COMPLETE and evaluation.create_index >= job.job_modify_index
    ]
    last = max(completed, key=lambda evaluation: evaluation.modify_index, default=None)
    for node in replica.iter_all(NODES):
        on_node = [a for a in allocations if a.node_id == node.id]
        live = [a for a in on_node if is_desired_running(a)]
        if len(live) > max_count:
            raise InvariantViolation(
                f"sysbatch job {job.id} has {len(live)} allocations on {node.name}", job.id, node.id
            )
        if last is None or is_explained or not _was_eligible_during(history, node, job, last):
            continue
        older = [a for a in live if a.job_version != job.version]
        # An allocation that was lost before the evaluation may not have run, so it does not count.
        current = [
            a
            for a in on_node
            if a.job_version == job.version
            and (a.client_status is not ClientStatus.LOST or a.modify_index > last.create_index)
        ]
        if older or not current:
            raise InvariantViolation(
                f"sysbatch job {job.id} has {len(current)} allocations in its current version on {node.name}, and "
                f"{len(older)} in older versions",
                job.id, node.id,
            )  # fmt: skip


def _was_eligible_during(history: RecordHistory, node: Node, job: Job, evaluation: Evaluation) -> bool:
    """Return whether the node was eligible from the creation of the evaluation until its completion."""
    changed = [
        record
        for index, record in history.list_versions(NODES, node.id)
        if evaluation.create_index < index <= evaluation.modify_index
    ]
    records = [history.get_record(NODES, node.id, evaluation.create_index), *changed]
    return all(record is not None and _is_eligible_for(record, job) for record in records)


def _require_steady_job(history: RecordHistory, job: Job) -> None:
    """Require that the job has the allocations that it requests, or an explanation, and the status that follows."""
    replica = history.replica
    allocations = replica.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    deployments = replica.list_by_index(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
    live = [a for a in allocations if is_desired_running(a)]
    for allocation in allocations:
        if allocation.desired_status is not DesiredStatus.RUN and is_using_resources(allocation):
            raise InvariantViolation(f"{allocation.id} of {job.id} has not stopped", allocation.id, job.id)
    for allocation in live:
        node = replica.get(NODES, allocation.node_id)
        if allocation.client_status is not ClientStatus.RUNNING or node is None or node.status != "ready":
            raise InvariantViolation(
                f"{allocation.id} of {job.id} is {allocation.client_status} on {allocation.node_name}, which is "
                f"{node.status if node is not None else 'deleted'}",
                allocation.id, job.id, allocation.node_id,
            )  # fmt: skip
    if job.stop and live:
        raise InvariantViolation(
            f"job {job.id} is stopped and still has {len(live)} allocations", job.id, *(a.id for a in live)
        )
    is_blocked = any(evaluation.status is EvaluationStatus.BLOCKED for evaluation in evaluations)
    # In a steady cluster, a pending evaluation waits for its due time. It will evaluate the job again.
    is_pending = any(evaluation.status is EvaluationStatus.PENDING for evaluation in evaluations)
    if job.type == JobType.SERVICE:
        requested = 0 if job.stop else sum(group.count for group in job.groups)
        has_failed = any(
            d.status is DeploymentStatus.FAILED and d.job_version == job.version for d in deployments
        )  # Then nothing is placed until another version is registered. The deployment has the reason.
        # Canaries that were not promoted yet run beside the allocations that they replace. During a rollout, fewer
        # allocations than requested may run, until its deadlines.
        canaries = sum(find_canary_deployment_id(replica, a) != "" and is_awaiting_promotion(replica, a) for a in live)
        is_explained = is_blocked or is_pending or has_failed
        if len(live) != requested and not (is_explained and len(live) - canaries <= requested):
            raise InvariantViolation(
                f"job {job.id} requests {requested} allocations and has {len(live)}; no evaluation explains the difference",
                job.id,
            )
    if job.type == JobType.SYSTEM and not job.stop:
        is_unpromoted = any(
            d.is_awaiting_promotion or d.status is DeploymentStatus.FAILED
            for d in deployments
            if d.job_version == job.version
        )
        _require_steady_system_job(replica, job, live, is_explained=is_blocked or is_pending or is_unpromoted)
    if job.type == JobType.SYSBATCH and not job.stop and not job.is_parameterized:
        _require_steady_sysbatch_job(history, job, allocations, is_explained=is_blocked or is_pending)
    for deployment in deployments:
        # A deployment may wait for its promotion by an operator. All others must end.
        is_awaited = deployment.is_awaiting_promotion or is_blocked or is_pending
        if deployment.status is DeploymentStatus.RUNNING and not is_awaited:
            raise InvariantViolation(
                f"deployment {deployment.id} of {job.id} is still in progress", deployment.id, job.id
            )
    is_deploying = any(deployment.status not in DEPLOYMENT_STATES.terminal_states for deployment in deployments)
    was_evaluated = bool(evaluations or deployments)
    expected = _derive_status(
        job, live, is_open=is_blocked or is_pending, is_deploying=is_deploying, was_evaluated=was_evaluated
    )
    # A run in the queue of its flow, or with a need on another job, has neither allocations nor an evaluation.
    if job.status is not expected and not (job.is_run and find_awaited_job(replica, job)):
        raise InvariantViolation(f"job {job.id} has status {job.status}; its records imply {expected}", job.id)


def _derive_status(
    job: Job, live: Sequence[Allocation], *, is_open: bool, is_deploying: bool, was_evaluated: bool
) -> JobStatus:
    """Return the status that the job must have.

    `is_open`: an evaluation of the job is blocked or pending. `was_evaluated`: evaluations or deployments of the job are
    stored. A deployment can outlive all evaluations of its job, because it is the reason why the job has no allocations.
    """
    if job.type == JobType.SYSTEM or job.is_periodic or job.is_parameterized:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    if live or is_deploying:
        return JobStatus.RUNNING
    if is_open:
        return JobStatus.PENDING
    return JobStatus.DEAD if job.stop or was_evaluated else JobStatus.PENDING
