"""Register and purge nodes."""

from itertools import islice
from typing import Any, Final

from msgspec.structs import replace

from wharf.cluster.operations import volumes as host_volumes
from wharf.cluster.operations.decision import Decision, DecisionContext
from wharf.cluster.operations.evaluations import make_evaluation
from wharf.cluster.operations.nodes import reports
from wharf.cluster.operations.nodes.introductions import NodeAdmission, check_node_admission
from wharf.cluster.operations.nodes.status import update_contact_status
from wharf.cluster.operations.nodes.writes import NodeWriteResult as NodeWriteResult
from wharf.cluster.operations.nodes.writes import (
    add_node_message,
    build_empty_decision,
    build_node_decision,
    find_jobs_on_node,
    get_node,
    make_node_evaluations,
)
from wharf.cluster.operations.references import build_parent_conditions
from wharf.cluster.scheduling.fleet.node_class import compute_node_class
from wharf.cluster.scheduling.plans import capacity_versions
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import EVALUATIONS, NODE_POOLS, NODES
from wharf.contract.model.evaluations import EvaluationTrigger
from wharf.contract.model.log import WRITE_INDEX, Cause, CauseKind, Write
from wharf.contract.model.names import NODE_POOL_NAME_REGEX, is_valid_node_pool_name
from wharf.contract.model.node_pools import ALL_NODE_POOL
from wharf.contract.model.nodes.node import Node, add_new_node_events
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.times import SECOND

SERVER_OWNED_FIELDS: Final = (
    "drain",
    "drain_strategy",
    "scheduling_eligibility",
    "status",
    "status_description",
    "status_updated_at",
    "events",
    "last_drain",
    "last_missed_heartbeat_index",
    "last_alloc_update_index",
    "reports_from",
    "create_index",
    "modify_index",
)
"""Fields of the node record that a node cannot set itself."""


FEASIBILITY_FIELDS: Final = ("name", "datacenter", "node_class", "attributes", "meta", "host_volumes", "node_resources")
"""Fields that jobs can require. If one changes, the jobs of the node are evaluated again (scheduling.md 9.2)."""


def register_node(
    snapshot: Replica,
    reported: Node,
    context: DecisionContext,
    *,
    max_evaluations: int,
    admission: NodeAdmission | None = None,
) -> Decision[NodeWriteResult]:
    """Return the decision that stores what a node reports about itself, with its events.

    Fields that servers own are not changed. If the node's agent has restarted, it sends a `reports_from` above 0 and
    gets the number of its next report in the reply. Up to `max_evaluations` affected jobs are evaluated. Raises if the
    node has another secret than before, or if `admission` does not admit it; `None` admits every node.
    """
    if not reported.id or not reported.secret_digest:
        raise invalid_request("cannot register the node: it must send an ID and a secret")
    check_node_pool_name(reported.node_pool)
    stored = snapshot.get(NODES, reported.id)
    if stored is not None and stored.secret_digest != reported.secret_digest:
        raise Refusal(RefusalCode.FORBIDDEN, f"node {reported.id} is registered with another secret")
    if admission is not None:
        check_node_admission(snapshot, reported, admission.introduction)
    previous = stored if stored is not None else Node(id=reported.id, create_index=WRITE_INDEX)
    server_fields: dict[str, Any] = {name: getattr(previous, name) for name in SERVER_OWNED_FIELDS}
    node = add_new_node_events(
        replace(reported, **server_fields, computed_class=compute_node_class(reported)), reported.events
    )
    if reported.reports_from:
        node = replace(node, reports_from=reports.compute_first_report_number(snapshot, previous))
    if stored is None:
        has_pool = snapshot.get(NODE_POOLS, node.node_pool) is not None
        message = "Node registered" if has_pool else "Node registered but waiting for node pool to be created"
        node = add_node_message(replace(node, status_updated_at=context.now_ns // SECOND), message, context)
        parent_conditions = build_parent_conditions(snapshot, NODES, node)
        return build_node_decision("node-registered", snapshot, node, [], (), parent_conditions)
    node = update_contact_status(snapshot, node, context, message_when_down="Node re-registered")
    needs_evaluation = node.status is not stored.status or _make_feasibility_key(node) != _make_feasibility_key(stored)
    # Volumes beyond this limit are updated when the node registers again; `evaluate_remaining_jobs` handles further jobs.
    volumes, volume_conditions = host_volumes.build_volume_changes(
        snapshot, node, context, max_volumes=max(1, max_evaluations // 2)
    )
    if node == stored and not volumes:
        return build_empty_decision(snapshot, node)
    evaluation_limit = max(1, max_evaluations - len(volumes))
    evaluations = make_node_evaluations(snapshot, node, context, evaluation_limit) if needs_evaluation else []
    if node.node_pool != stored.node_pool:
        volume_conditions += build_parent_conditions(snapshot, NODES, node)
    return build_node_decision("node-registered", snapshot, node, evaluations, volumes, volume_conditions)


def check_node_pool_name(name: str) -> None:
    """Raise unless a node may be in a pool of this name: it must be valid, and not the pool that contains every node."""
    if name == ALL_NODE_POOL:
        raise invalid_request(
            f'node is not allowed to register in node pool "{ALL_NODE_POOL}": that pool contains every node'
        )
    if not is_valid_node_pool_name(name):
        raise invalid_request(f'invalid node pool name "{name}". Must match regex {NODE_POOL_NAME_REGEX}')


def _make_feasibility_key(node: Node) -> tuple[object, ...]:
    """Return everything that jobs can require of the node, to compare it with an earlier version of the node.

    Times of driver checks are left out.
    """
    drivers = {name: replace(info, update_time=None) for name, info in (node.drivers or {}).items()}
    return (drivers, *(getattr(node, name) for name in FEASIBILITY_FIELDS))


def purge_node(
    snapshot: Replica, node_id: str, context: DecisionContext, *, max_evaluations: int, cause: str = ""
) -> Decision[NodeWriteResult]:
    """Return the decision that deletes the node and evaluates up to `max_evaluations` of its jobs.

    The scheduler then marks its allocations as lost. `evaluate_remaining_jobs` evaluates the other jobs: it finds them
    by their allocations on a node that does not exist.
    """
    node = get_node(snapshot, node_id)
    jobs = islice(find_jobs_on_node(snapshot, node_id), max_evaluations)
    evaluations = [make_evaluation(job, context, EvaluationTrigger.NODE_UPDATE, node=node) for job in jobs]
    write = Write(
        "node-purged",
        Cause(CauseKind.REQUEST, cause),
        [
            NODES.build_delete(node_id),
            capacity_versions.delete_node_version(node_id),
            *map(EVALUATIONS.build_put, evaluations),
        ],
        [snapshot.build_key_condition(NODES, node_id), *capacity_versions.expect_both_versions(snapshot, node_id)],
    )
    ids = tuple(evaluation.id for evaluation in evaluations)
    return Decision(write, lambda index: NodeWriteResult(index, ids))
