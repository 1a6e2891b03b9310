"""Apply what nodes report about their allocations.

Reports of a node are numbered (ADR 64). An outdated report is refused, and a repeated one changes nothing. A node
cannot change allocations of other nodes.
"""

from collections.abc import Collection, Sequence

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations import services
from wharf.cluster.operations.decision import Decision, DecisionContext, RefusedServices, WriteBuilder
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.nodes.writes import (
    NodeWriteResult,
    build_empty_decision,
    build_node_decision,
    get_node,
    make_node_evaluations,
)
from wharf.cluster.operations.record_history import add_record_history
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.scheduling.reconcile.interruption import was_interrupted
from wharf.cluster.scheduling.unreported_nodes import is_full_report_due
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import (
    ALLOCATIONS,
    EVALUATIONS,
    HIGH_REPORT_NUMBERS_ON_NODE,
    JOBS,
    NODE_POOLS,
    UNFINISHED_ALLOCATIONS_ON_NODE,
)
from wharf.contract.model.allocations.allocation import (
    INTERRUPTED_TEXT,
    REPORT_NUMBERS_PER_INDEX,
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    NetworkStatus,
)
from wharf.contract.model.allocations.logs import MAX_PACKED_BYTES
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.evaluations import Evaluation, EvaluationTrigger
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.jobs.step_outputs import ReportedOutputs, limit_outputs, pack_outputs
from wharf.contract.model.jobs.steps import MAX_OUTPUT_BYTES
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.refusal import Refusal, RefusalCode, RefusalReason, invalid_request
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.state_machines.machine import InvalidTransition, advance_state
from wharf.contract.model.state_machines.transitions import ALLOCATION_STATES, NODE_STATES
from wharf.contract.model.times import SECOND, to_datetime


class AllocationReport(msgspec.Struct, frozen=True):
    """What a node reports about one allocation. An empty or missing field does not change the stored one."""

    id: str  # The id of the allocation.
    client_status: ClientStatus  # The state of the allocation on its node.
    client_description: str = ""  # A text that explains the status.
    task_states: dict[str, TaskState] | None = None  # The states of its tasks by name.
    deployment_status: AllocDeploymentStatus | None = None  # The health of the allocation.
    network_status: NetworkStatus | None = None
    services: tuple[ServiceRegistration, ...] | None = None
    """The services that run now; None: the report does not cover services."""
    log_tails: bytes = b""  # The last log lines of its tasks, packed.
    outputs: ReportedOutputs | None = None  # The texts that its programs left for later steps.


def compute_first_report_number(snapshot: Replica, node: Node) -> int:
    """Return the number from which the node must number its reports: higher than any number that it has used.

    Stored numbers count too, because log indexes can repeat after an older copy of the log was restored unnoticed.
    """
    used_numbers = [each.report_number for each in snapshot.list_by_index(HIGH_REPORT_NUMBERS_ON_NODE, node.id)]
    return max((snapshot.index + 1) * REPORT_NUMBERS_PER_INDEX, node.reports_from + 1, max(used_numbers, default=0) + 1)


def apply_reports(
    snapshot: Replica,
    node_id: str,
    reports: Sequence[AllocationReport],
    context: DecisionContext,
    *,
    is_complete: bool,
    max_evaluations: int,
    report_number: int = 0,
) -> Decision[NodeWriteResult]:
    """Return the decision that stores a node's reports about its allocations and evaluates the affected jobs.

    `is_complete`: the node has now reported every allocation that it has. `report_number` is 0 if the node does not
    number its reports. Raises if the node is down or disconnected, or if the report is outdated.
    """
    stored_node = get_node(snapshot, node_id)
    if stored_node.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
        raise invalid_request(f"node {node_id} is {stored_node.status}; it must send a heartbeat before it reports")
    if report_number and report_number < stored_node.reports_from:
        raise make_outdated_error(report_number, f"the node's reports count from {stored_node.reports_from} on")
    builder = WriteBuilder(snapshot)
    triggers: dict[tuple[str, str], EvaluationTrigger] = {}
    invalid_transitions: list[InvalidTransition] = []
    refused_services: list[RefusedServices] = []
    is_occupying_again = False
    for report in {report.id: report for report in reports}.values():
        stored = snapshot.get(ALLOCATIONS, report.id)
        if stored is None or stored.node_id != node_id:
            continue
        if report_number and report_number < stored.report_number:
            raise make_outdated_error(report_number, f"allocation {stored.id} has report {stored.report_number}")
        if report_number and report_number == stored.report_number:
            continue  # This report was applied already.
        try:
            new = _add_report_changes(builder, stored, report, report_number, context, refused_services)
        except InvalidTransition as transition:  # A late or wrong report of one allocation; the others still apply.
            invalid_transitions.append(add_record_history(snapshot, transition))
            continue
        if new is None:
            continue
        is_occupying_again = is_occupying_again or (new.is_occupying and not stored.is_occupying)
        trigger = _choose_trigger(snapshot, stored, new)
        if trigger is EvaluationTrigger.ALLOC_FAILURE:
            triggers[new.namespace, new.job_id] = trigger
        elif trigger is not None:
            triggers.setdefault((new.namespace, new.job_id), trigger)
    evaluations = [
        make_evaluation(job, context, trigger)
        for key, trigger in triggers.items()
        if (job := snapshot.get(JOBS, *key)) is not None and not job.stop
    ]
    node = _complete_full_report(snapshot, stored_node, report_number, context) if is_complete else stored_node
    if is_occupying_again and node.status is stored_node.status:
        builder.changes.append(capacity_versions.write_node_version(node_id))
        builder.conditions += capacity_versions.expect_both_versions(snapshot, node_id)
    if node.status is not stored_node.status:
        node_evaluations = make_node_evaluations(snapshot, node, context, max_evaluations)
        evaluations += [each for each in node_evaluations if (each.namespace, each.job_id) not in triggers]
    return replace(
        _build_decision(builder, stored_node, node, evaluations),
        invalid_transitions=tuple(invalid_transitions),
        refused_services=tuple(refused_services),
    )


def _build_decision(
    builder: WriteBuilder, stored_node: Node, node: Node, evaluations: Sequence[Evaluation]
) -> Decision[NodeWriteResult]:
    """Return the decision that writes the changes of a report, the node if it changes, and these evaluations."""
    snapshot = builder.snapshot
    if node is not stored_node:
        return build_node_decision("node-reported", snapshot, node, evaluations, builder.changes, builder.conditions)
    if not builder.changes:
        return build_empty_decision(snapshot, node)
    for evaluation in evaluations:
        builder.put(EVALUATIONS, evaluation)
    must_report = is_full_report_due(snapshot, node)
    return Decision(
        builder.build("node-reported", Cause(CauseKind.NODE, node.id)),
        lambda index: NodeWriteResult(index, must_report=must_report),
    )


def _add_report_changes(
    builder: WriteBuilder,
    stored: Allocation,
    report: AllocationReport,
    report_number: int,
    context: DecisionContext,
    refused_services: list[RefusedServices],
) -> Allocation | None:
    """Add the changes of one report, also of services, to the write. Services that are refused are added to the list.

    Return the allocation as it will be stored, or `None` if it does not change. Raises `InvalidTransition` if the
    reported status cannot follow the stored one.
    """
    new = _apply_report(stored, report, context)
    if new is not None and new.client_status is not stored.client_status:
        new = _mark_interrupted(builder.snapshot, new)
    service_changes = services.build_service_changes(builder.snapshot, new or stored, report.services)
    builder.changes += service_changes.changes
    builder.conditions += service_changes.conditions
    if service_changes.refused_count:
        refused_services.append(RefusedServices(stored.id, service_changes.refused_count))
    if new is None and not (report_number and service_changes.changes):
        return None
    # Also if only services changed: an older copy of the report must be recognized as outdated.
    new = replace(new or stored, report_number=report_number or stored.report_number)
    builder.put(ALLOCATIONS, new)
    builder.require_unchanged_record(ALLOCATIONS, stored)
    return new


def _choose_trigger(snapshot: Replica, stored: Allocation, new: Allocation) -> EvaluationTrigger | None:
    """Return why the job must be evaluated after the change of its allocation from `stored` to `new`, or `None` if it
    need not be.
    """
    if new.array_attempt:
        return None  # One evaluation for all elements of a write is enough: the derived changes request it.
    if new.client_status is not stored.client_status and _needs_replacement(snapshot, new):
        return EvaluationTrigger.ALLOC_FAILURE
    if new.is_client_terminal and new.desired_status is DesiredStatus.EVICT:
        return EvaluationTrigger.PREEMPTION
    # The scheduler chooses between a reconnected allocation and its replacement.
    return EvaluationTrigger.RECONNECT if stored.client_status is ClientStatus.UNKNOWN else None


def make_outdated_error(number: int, reason: str) -> Refusal:
    """Return the error for a report with this number that is older than what is stored."""
    return Refusal(
        RefusalCode.INVALID,
        f"report {number} is outdated: {reason}; register again and number the report as the reply says",
        RefusalReason.OUTDATED_REPORT,
    )


def _complete_full_report(snapshot: Replica, node: Node, number: int, context: DecisionContext) -> Node:
    """Return the node after it has reported all its allocations, or the same object if nothing changes.

    `number` is the number of the report: reports with lower numbers are outdated from now on. An initializing node
    becomes ready.
    """
    if number > node.reports_from:
        node = replace(node, reports_from=number)
    if node.status is NodeStatus.INITIALIZING and snapshot.get(NODE_POOLS, node.node_pool) is not None:
        node = replace(
            node,
            status=advance_state(NODE_STATES, node.status, NodeStatus.READY, record_id=node.id),
            status_updated_at=context.now_ns // SECOND,
            last_alloc_update_index=WRITE_INDEX,
            last_missed_heartbeat_index=0,
        )
    return node


def _mark_interrupted(snapshot: Replica, reported: Allocation) -> Allocation:
    """Return the allocation, with a stop if its node stopped it before it had a result although it should run.

    That happens when the agent stops its tasks at its own end. The work of a finite job is not done then: it runs again.
    """
    job = snapshot.get(JOBS, reported.namespace, reported.job_id)
    if reported.desired_status is not DesiredStatus.RUN or job is None or not job.is_finite:
        return reported
    if not was_interrupted(reported, job.find_group(reported.task_group)):
        return reported
    return replace(reported, desired_status=DesiredStatus.STOP, desired_description=INTERRUPTED_TEXT)


def _needs_replacement(snapshot: Replica, reported: Allocation) -> bool:
    """Return whether the allocation failed, was interrupted, or completed although a service or system job should run
    without end.

    The latter happens after an older log was restored in which the allocation was not stopped yet.
    """
    if reported.client_status is ClientStatus.FAILED or reported.is_interrupted:
        return True
    if reported.client_status is not ClientStatus.COMPLETE or reported.desired_status is not DesiredStatus.RUN:
        return False
    job = snapshot.get(JOBS, reported.namespace, reported.job_id)
    return job is not None and job.type in (JobType.SERVICE, JobType.SYSTEM)


def build_omitted_reports(snapshot: Replica, node_id: str, reported_ids: Collection[str]) -> list[AllocationReport]:
    """Return a report for each lost allocation that a full report of its node did not mention (`reported_ids`).

    Such an allocation no longer runs. The report marks it as complete, so that a delayed report cannot revive it.
    """
    return [
        AllocationReport(id=allocation.id, client_status=ClientStatus.COMPLETE)
        for allocation in snapshot.list_by_index_sorted(UNFINISHED_ALLOCATIONS_ON_NODE, node_id)
        if allocation.client_status is ClientStatus.LOST and allocation.id not in reported_ids
    ]


def _apply_report(stored: Allocation, report: AllocationReport, context: DecisionContext) -> Allocation | None:
    """Return the allocation with the reported values, or `None` if nothing changed.

    Raises `InvalidTransition` if the reported status cannot follow the stored one.
    """
    new = replace(
        stored,
        client_status=advance_state(ALLOCATION_STATES, stored.client_status, report.client_status, record_id=stored.id),
        client_description=report.client_description or stored.client_description,
        task_states=report.task_states if report.task_states is not None else stored.task_states,
        network_status=report.network_status or stored.network_status,
        deployment_status=_merge_health(stored, report, context),
        log_tails=_choose_log_tails(stored, report),
        output_texts=_choose_output_texts(stored, report),
    )
    if new == stored:
        return None
    return replace(new, modify_time=context.now_ns)


def _choose_log_tails(stored: Allocation, report: AllocationReport) -> bytes:
    """Return the packed last log lines to store: those of the report if the allocation ended and they are small enough.

    Otherwise return the stored ones.
    """
    is_storable = report.client_status.is_terminal and len(report.log_tails) <= MAX_PACKED_BYTES
    return report.log_tails if report.log_tails and is_storable else stored.log_tails


def _choose_output_texts(stored: Allocation, report: AllocationReport) -> bytes:
    """Return the texts for later steps to store: those of the report that ends an allocation of an array.

    A later report about the same end changes nothing: the texts are stored with the result of the element by then.
    A lost allocation has not ended: its node may return and report how it did.
    """
    has_ended = stored.is_client_terminal and stored.client_status is not ClientStatus.LOST
    if report.outputs is None or not stored.array_attempt or has_ended or not report.client_status.is_terminal:
        return stored.output_texts
    return pack_outputs(limit_outputs(report.outputs, report.outputs.texts, MAX_OUTPUT_BYTES))


def _merge_health(
    stored: Allocation, report: AllocationReport, context: DecisionContext
) -> AllocDeploymentStatus | None:
    """Return the deployment status of the allocation with the reported health.

    The canary flag stays, because servers decide it. Health is stored without a deployment too: a drain waits until
    replacements are healthy.
    """
    current, reported_health = stored.deployment_status or AllocDeploymentStatus(), report.deployment_status
    if reported_health is None or reported_health.healthy is None or reported_health.healthy is current.healthy:
        return stored.deployment_status
    timestamp = reported_health.timestamp or to_datetime(context.now_ns)
    return replace(current, healthy=reported_health.healthy, timestamp=timestamp, modify_index=WRITE_INDEX)
