"""What servers take over of what nodes say of their allocations.

A report is older or newer than another one of its node by its number (ADR 64): one that is older than what is known is
refused, and what was taken once changes nothing. What a node does not own, or what is over, it cannot change.
"""

from collections.abc import Collection, Sequence
from typing import Final

import msgspec
from msgspec.structs import replace

from wharf.cluster.operations import services
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.nodes.writes import (
    NodeWriteResult,
    build_empty_decision,
    build_node_decision,
    get_node,
    is_full_report_due,
    make_node_evaluations,
)
from wharf.cluster.operations.record_history import add_record_history
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import ALLOCATIONS, ALLOCATIONS_ON_NODE, EVALUATIONS, JOBS, NODE_POOLS
from wharf.contract.model.allocations.allocation import (
    Allocation,
    AllocDeploymentStatus,
    ClientStatus,
    DesiredStatus,
    NetworkStatus,
)
from wharf.contract.model.allocations.logs import MAX_PACKED_BYTES
from wharf.contract.model.allocations.task_states import TaskState
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.jobs.job import JobType
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Condition, DeleteRecord, PutRecord, Write
from wharf.contract.model.nodes.node import Node, NodeStatus
from wharf.contract.model.refusal import Refusal, invalid_request
from wharf.contract.model.services import ServiceRegistration
from wharf.contract.model.state_machines.machine import InvalidTransition, advance_state
from wharf.contract.model.state_machines.transitions import ALLOCATION_STATES, NODE_STATES
from wharf.contract.model.times import to_datetime

SECOND_NS: Final = 1_000_000_000
REPORT_NUMBERS_PER_INDEX: Final = 65_536
"""Each report that changes something moves the log's index on, and most do: none comes as far as the next beginning."""


class AllocationReport(msgspec.Struct, frozen=True):
    """What a node says of one allocation."""

    id: str
    client_status: ClientStatus
    client_description: str = ""
    task_states: dict[str, TaskState] | None = None
    deployment_status: AllocDeploymentStatus | None = None
    network_status: NetworkStatus | None = None
    services: tuple[ServiceRegistration, ...] | None = None
    """Those of it that run now; None: nothing is said of them."""
    log_tails: bytes = b""


def compute_first_report_number(snapshot: Replica, node: Node) -> int:
    """From where on the node is to number its reports: higher than every number that it ever used.

    Where an older copy of the log was put back and nobody saw it, indexes may repeat: so what is written down counts too.
    """
    known = [each.report_number for each in snapshot.list_by_index_sorted(ALLOCATIONS_ON_NODE, node.id)]
    return max((snapshot.index + 1) * REPORT_NUMBERS_PER_INDEX, node.reports_from + 1, max(known, default=0) + 1)


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
    """Take over what a node says of its allocations.

    `is_whole`: with this report the node has told of every allocation that it knows. `number`: 0 where the node gives none.
    """
    known = get_node(snapshot, node_id)
    if known.status in (NodeStatus.DOWN, NodeStatus.DISCONNECTED):
        raise invalid_request(f"node {node_id} is {known.status}; it must be heard of again before it reports")
    if report_number and report_number < known.reports_from:
        raise _outdated(report_number, f"the node's reports count from {known.reports_from} on")
    changes: list[PutRecord | DeleteRecord] = []
    conditions: list[Condition] = []
    ended: dict[tuple[str, str], EvaluationTrigger] = {}
    refused: list[InvalidTransition] = []
    occupies_again = False
    for told in {told.id: told for told in reports}.values():
        stored = snapshot.get(ALLOCATIONS, told.id)
        if stored is None or stored.node_id != node_id:
            continue
        if report_number and report_number < stored.report_number:
            raise _outdated(report_number, f"allocation {stored.id} is known by number {stored.report_number}")
        if report_number and report_number == stored.report_number:
            continue  # It was taken already.
        try:
            new = _reported(stored, told, context)
        except InvalidTransition as illegal:  # Late, or wrong. The others are true all the same.
            refused.append(add_record_history(snapshot, illegal))
            continue
        services_changed, rests_on = services.build_service_changes(snapshot, new or stored, told.services)
        changes += services_changed
        conditions += rests_on
        if new is None and not (report_number and services_changed):
            continue
        # Also where only services changed: what an older copy says of them is to be known as older.
        new = replace(new or stored, report_number=report_number or stored.report_number)
        changes.append(ALLOCATIONS.build_put(new))
        conditions.append(snapshot.build_record_condition(ALLOCATIONS, stored))
        occupies_again = occupies_again or (new.is_occupying and not stored.is_occupying)
        if new.client_status is not stored.client_status and _leaves_a_gap(snapshot, new):
            ended[new.namespace, new.job_id] = EvaluationTrigger.ALLOC_FAILURE
        elif new.is_client_terminal and new.desired_status is DesiredStatus.EVICT:
            ended.setdefault((new.namespace, new.job_id), EvaluationTrigger.PREEMPTION)
        elif stored.client_status is ClientStatus.UNKNOWN:  # Whoever took its place meanwhile is weighed against it.
            ended.setdefault((new.namespace, new.job_id), EvaluationTrigger.RECONNECT)
    evaluations = [
        make_evaluation(job, context, trigger)
        for key, trigger in ended.items()
        if (job := snapshot.get(JOBS, *key)) is not None and not job.stop
    ]
    node = _having_told_all(snapshot, known, report_number, context) if is_complete else known
    if occupies_again and node.status is known.status:
        changes.append(capacity_versions.write_node_version(node_id))
        conditions += capacity_versions.expect_both_versions(snapshot, node_id)
    if node is not known:
        of_node = (
            make_node_evaluations(snapshot, node, context, max_evaluations) if node.status is not known.status else []
        )
        evaluations += [each for each in of_node if (each.namespace, each.job_id) not in ended]
        written = build_node_decision("node-reported", snapshot, node, evaluations, changes, conditions)
        return replace(written, invalid_transitions=tuple(refused))
    if not changes:
        return replace(build_empty_decision(node), invalid_transitions=tuple(refused))
    changes += [EVALUATIONS.build_put(evaluation) for evaluation in evaluations]
    must_report = is_full_report_due(node)
    return Decision(
        Write("node-reported", Cause(CauseKind.NODE, node_id), changes, conditions),
        lambda index: NodeWriteResult(index, must_report=must_report),
        tuple(refused),
    )


def _outdated(number: int, why: str) -> Refusal:
    return invalid_request(
        f"report {number} is older than what is known: {why}; register, and make it anew from where that tells"
    )


def _having_told_all(snapshot: Replica, node: Node, number: int, context: DecisionContext) -> Node:
    """The node after a whole report; itself where nothing changes. What is numbered lower is older, of whatever it speaks."""
    if number > node.reports_from:
        node = replace(node, reports_from=number)
    if node.status is NodeStatus.INITIALIZING and snapshot.get(NODE_POOLS, node.node_pool) is not None:
        node = replace(
            node,
            status=advance_state(NODE_STATES, node.status, NodeStatus.READY, record_id=node.id),
            status_updated_at=context.now_ns // SECOND_NS,
            last_alloc_update_index=WRITE_INDEX,
            last_missed_heartbeat_index=0,
        )
    return node


def _leaves_a_gap(snapshot: Replica, reported: Allocation) -> bool:
    """Whether what was reported asks for another in its place: it failed, or it ended although it shall go on for ever.

    The latter is heard after a log was restored that does not know yet that the allocation was stopped.
    """
    if reported.client_status is ClientStatus.FAILED:
        return True
    if reported.client_status is not ClientStatus.COMPLETE or reported.desired_status is not DesiredStatus.RUN:
        return False
    job = snapshot.get(JOBS, reported.namespace, reported.job_id)
    return job is not None and job.type in (JobType.SERVICE, JobType.SYSTEM)


def build_omitted_reports(snapshot: Replica, node_id: str, reported_ids: Collection[str]) -> list[AllocationReport]:
    """What a node's whole report leaves out of that which was given up as lost: it surely runs no more.

    Said outright, it is over for good: a report that was under way since before cannot bring it back.
    """
    return [
        AllocationReport(id=allocation.id, client_status=ClientStatus.COMPLETE)
        for allocation in snapshot.list_by_index_sorted(ALLOCATIONS_ON_NODE, node_id)
        if allocation.client_status is ClientStatus.LOST and allocation.id not in reported_ids
    ]


def _reported(stored: Allocation, told: AllocationReport, context: DecisionContext) -> Allocation | None:
    """The allocation as reported, or None where that is nothing new. Raises InvalidTransition."""
    new = replace(
        stored,
        client_status=advance_state(ALLOCATION_STATES, stored.client_status, told.client_status, record_id=stored.id),
        client_description=told.client_description or stored.client_description,
        task_states=told.task_states if told.task_states is not None else stored.task_states,
        network_status=told.network_status or stored.network_status,
        deployment_status=_health_as_told(stored, told, context),
        log_tails=_tails_as_told(stored, told),
    )
    if new == stored:
        return None
    return replace(new, modify_time=context.now_ns)


def _tails_as_told(stored: Allocation, told: AllocationReport) -> bytes:
    """What was kept stays, when a node says no more of it: its files may be gone."""
    is_fit = told.client_status.is_terminal and len(told.log_tails) <= MAX_PACKED_BYTES
    return told.log_tails if told.log_tails and is_fit else stored.log_tails


def _health_as_told(
    stored: Allocation, told: AllocationReport, context: DecisionContext
) -> AllocDeploymentStatus | None:
    """Whether it is healthy, its node decides; whether it is a canary, it does not. What is in no deployment is judged
    too: a drain waits for what took the place of what it moved."""
    stands, given = stored.deployment_status or AllocDeploymentStatus(), told.deployment_status
    if given is None or given.healthy is None or given.healthy is stands.healthy:
        return stored.deployment_status
    timestamp = given.timestamp or to_datetime(context.now_ns)
    return replace(stands, healthy=given.healthy, timestamp=timestamp, modify_index=WRITE_INDEX)
