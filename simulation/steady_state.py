"""What must hold of a cluster that has come to rest: all that can be done is done, and the rest is explained.

Computed plainly from the records, as the invariants are.
"""

from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from typing import Any, Final

from simulation.invariants import (
    find_canary_deployment_id,
    is_awaiting_promotion,
    is_desired_running,
    is_using_resources,
)
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
"""Within so long a leader looks again who has waited too long, thrice over."""


def require_steady_state(history: RecordHistory, now_ns: int) -> None:
    """In a calm cluster, after a while, everything that can be done is done and the rest is explained.

    `now_ns`: by the leader's clock.
    """
    replica = history.replica
    _require_nodes_are_kept(replica, now_ns)
    for evaluation in replica.iter_all(EVALUATIONS):
        if evaluation.status is EvaluationStatus.PENDING and evaluation.wait_until is None:
            raise InvariantViolation(
                f"evaluation {evaluation.id} of {evaluation.job_id} is still pending", evaluation.id
            )
        if evaluation.status is EvaluationStatus.BLOCKED and not evaluation.failed_tg_allocs:
            raise InvariantViolation(f"evaluation {evaluation.id} is blocked and does not say why", evaluation.id)
    for job in replica.iter_all(JOBS):
        _require_rest_of_job(history, job)
    for purge in replica.iter_all(JOB_PURGES):
        raise InvariantViolation(f"the purge of {purge.job_id} does not come to an end", purge.job_id)
    for allocation in replica.iter_all(ALLOCATIONS):
        if is_using_resources(allocation) and replica.get(JOBS, allocation.namespace, allocation.job_id) is None:
            raise InvariantViolation(
                f"{allocation.id} is left of {allocation.job_id}, which is gone", allocation.id, allocation.job_id
            )
    for node in replica.iter_all(NODES):
        _require_rest_of_drain(replica, node)
    unanswered = list_unexplained_jobs(replica)
    if unanswered:
        raise InvariantViolation(f"nobody can tell a person why: {'; '.join(unanswered)}")


def _require_rest_of_drain(replica: Replica, node: Node) -> None:
    """A drain ends, but where it would leave too few well: what is missing has no room, or a failed deployment keeps
    it away until somebody registers another version."""
    if node.drain_strategy is None:
        return
    here = [each for each in replica.list_by_index(ALLOCATIONS_ON_NODE, node.id) if is_using_resources(each)]
    for allocation in here:
        evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, allocation.namespace, allocation.job_id)
        if any(each.status in (EvaluationStatus.BLOCKED, EvaluationStatus.PENDING) for each in evaluations):
            return
        deployments = replica.list_by_index(DEPLOYMENTS_OF_JOB, allocation.namespace, allocation.job_id)
        if any(each.status is DeploymentStatus.FAILED for each in deployments):
            return
    raise InvariantViolation(
        f"the drain of {node.name} does not end; {len(here)} are there", node.id, *(each.id for each in here)
    )


def _require_nodes_are_kept(replica: Replica, now_ns: int) -> None:
    """Who has waited for two minutes and a look is given a node, where one would help."""
    ground = SchedulerCache.from_snapshot(replica)
    waiting = replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    late = list_missed_reservations(replica, ground, waiting, now_ns, RESERVATION_CHECKS_NS)
    if late:
        raise InvariantViolation(f"small work may starve big work: {'; '.join(late)}")


def has_reservation_due(replica: Replica) -> bool:
    """Whether something waits for which a node may be kept when it has waited long enough."""
    waiting = replica.list_by_index_sorted(EVALUATIONS_BY_STATUS, EvaluationStatus.BLOCKED)
    return any(can_reserve_node(replica, each) and not each.reserved_node_id for each in waiting)


def _require_rest_of_system_job(replica: Replica, job: Job, live: Sequence[Allocation], *, is_explained: bool) -> None:
    """One of its version on each node that takes work and is in its reach; elsewhere none of an older version.

    A drain that ignores system jobs leaves them as they are, and when it ends nobody looks at them: whoever has them
    evaluated has them stopped.
    """
    for node in replica.iter_all(NODES):
        takes_work = node.status == "ready" and node.scheduling_eligibility == "eligible" and not node.drain_strategy
        is_wanted_here = _takes_work(node, job)
        here = [each for each in live if each.node_id == node.id]
        current = [each for each in here if each.job_version == job.version]
        if not takes_work and node.last_drain is not None:
            continue
        few, most = (1 if is_wanted_here else 0), sum(group.count for group in job.groups)
        if not (few <= len(here) <= most and len(here) == len(current)) and not is_explained:
            raise InvariantViolation(
                f"system job {job.id} has {len(here)} on {node.name}, {len(current)} of its version", job.id, node.id
            )


def _takes_work(node: Node, job: Job) -> bool:
    is_ready = node.status == "ready" and node.scheduling_eligibility == "eligible" and not node.drain_strategy
    return is_ready and any(fnmatchcase(node.datacenter, each) for each in job.datacenters or ())


def _require_rest_of_sysbatch_job(
    witness: RecordHistory, job: Job, allocations: Sequence[Allocation], *, is_explained: bool
) -> None:
    """Nowhere more than one of each group; and on each node that took work while the job was looked at last, it ran, runs
    or failed in its version, and in no older one.

    A node that takes work only since then has nothing: nobody looks at the job for it until somebody registers it again.
    """
    replica = witness.replica
    most = sum(group.count for group in job.groups)
    evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    looks = [
        each
        for each in evaluations
        if each.status is EvaluationStatus.COMPLETE and each.create_index >= job.job_modify_index
    ]
    last = max(looks, key=lambda each: each.modify_index, default=None)
    for node in replica.iter_all(NODES):
        here = [each for each in allocations if each.node_id == node.id]
        live = [each for each in here if is_desired_running(each)]
        if len(live) > most:
            raise InvariantViolation(f"sysbatch job {job.id} has {len(live)} on {node.name}", job.id, node.id)
        if last is None or is_explained or not _took_work_during(witness, node, job, last):
            continue
        older = [each for each in live if each.job_version != job.version]
        # What was lost before may have run or not; it is done again.
        told = [
            each
            for each in here
            if each.job_version == job.version
            and (each.client_status is not ClientStatus.LOST or each.modify_index > last.create_index)
        ]
        if older or not told:
            raise InvariantViolation(
                f"sysbatch job {job.id} has {len(told)} of its version on {node.name}, and {len(older)} older ones",
                job.id, node.id,
            )  # fmt: skip


def _took_work_during(witness: RecordHistory, node: Node, job: Job, look: Evaluation) -> bool:
    """From when the evaluation was made until it was done."""
    between = [
        record
        for index, record in witness.list_versions(NODES, node.id)
        if look.create_index < index <= look.modify_index
    ]
    stood = [witness.get_record(NODES, node.id, look.create_index), *between]
    return all(record is not None and _takes_work(record, job) for record in stood)


def _require_rest_of_job(witness: RecordHistory, job: Job) -> None:
    replica = witness.replica
    allocations = replica.list_by_index(ALLOCATIONS_OF_JOB, job.namespace, job.id)
    evaluations = replica.list_by_index(EVALUATIONS_OF_JOB, job.namespace, job.id)
    deployments = replica.list_by_index(DEPLOYMENTS_OF_JOB, job.namespace, job.id)
    live = [a for a in allocations if is_desired_running(a)]
    for allocation in allocations:
        if allocation.desired_status is not DesiredStatus.RUN and is_using_resources(allocation):
            raise InvariantViolation(
                f"{allocation.id} of {job.id} is to stop and has not stopped", allocation.id, job.id
            )
    for allocation in live:
        node = replica.get(NODES, allocation.node_id)
        if allocation.client_status is not ClientStatus.RUNNING or node is None or node.status != "ready":
            raise InvariantViolation(
                f"{allocation.id} of {job.id} is {allocation.client_status} on {allocation.node_name}, which is "
                f"{node.status if node is not None else 'gone'}",
                allocation.id, job.id, allocation.node_id,
            )  # fmt: skip
    if job.stop and live:
        raise InvariantViolation(f"job {job.id} is stopped and has {len(live)}", job.id, *(each.id for each in live))
    blocked = any(evaluation.status is EvaluationStatus.BLOCKED for evaluation in evaluations)
    # At rest, what is pending waits for its time; it looks at the job again, whatever that lacks now.
    waits = any(evaluation.status is EvaluationStatus.PENDING for evaluation in evaluations)
    if job.type == JobType.SERVICE:
        wanted = 0 if job.stop else sum(group.count for group in job.groups)
        has_failed = any(
            each.status is DeploymentStatus.FAILED and each.job_version == job.version for each in deployments
        )  # Then nothing new is placed until somebody registers another version; the deployment says why.
        # Canaries that nobody promoted yet run beside what they shall replace, and what goes on is less than is wanted
        # while a rollout exchanges it; its deadlines end that.
        trying = sum(
            find_canary_deployment_id(replica, each) != "" and is_awaiting_promotion(replica, each) for each in live
        )
        is_explained = blocked or waits or has_failed
        if len(live) != wanted and not (is_explained and len(live) - trying <= wanted):
            raise InvariantViolation(
                f"job {job.id} wants {wanted} and has {len(live)}, and no evaluation explains it", job.id
            )
    if job.type == JobType.SYSTEM and not job.stop:
        is_trying = any(
            each.is_awaiting_promotion or each.status is DeploymentStatus.FAILED
            for each in deployments
            if each.job_version == job.version
        )
        _require_rest_of_system_job(replica, job, live, is_explained=blocked or waits or is_trying)
    if job.type == JobType.SYSBATCH and not job.stop and not job.is_parameterized:
        _require_rest_of_sysbatch_job(witness, job, allocations, is_explained=blocked or waits)
    for deployment in deployments:
        # Who has canaries and nobody's word waits for a person, and says so; everything else has an end.
        is_awaited = deployment.is_awaiting_promotion or blocked or waits
        if deployment.status is DeploymentStatus.RUNNING and not is_awaited:
            raise InvariantViolation(
                f"deployment {deployment.id} of {job.id} does not come to an end", deployment.id, job.id
            )
    is_deploying = any(deployment.status not in DEPLOYMENT_STATES.terminal_states for deployment in deployments)
    expected = _status(job, live, blocked or waits, is_deploying, evaluations)
    if job.status is not expected:
        raise InvariantViolation(f"job {job.id} is {job.status}; by its records it is {expected}", job.id)


def _status(
    job: Job, live: Sequence[Allocation], is_open: bool, is_deploying: bool, evaluations: Iterable[Any]
) -> JobStatus:
    if job.type == JobType.SYSTEM or job.is_periodic or job.is_parameterized:
        return JobStatus.DEAD if job.stop else JobStatus.RUNNING
    if live or is_deploying:
        return JobStatus.RUNNING
    if is_open:
        return JobStatus.PENDING
    return JobStatus.DEAD if job.stop or any(True for _ in evaluations) else JobStatus.PENDING
