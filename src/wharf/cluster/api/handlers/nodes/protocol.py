"""Endpoints that node agents call: registration, heartbeats, whole assignments, reports and signed identities.

The caller proves that it is the node by the node's secret. The reads of node agents are in `assignments`, endpoints about
nodes for operators in `records`.
"""

import asyncio
import logging
import math
from typing import Final

import msgspec

from wharf.cluster.api.handlers.nodes.assignments import get_assignment_index
from wharf.cluster.api.handlers.nodes.records import build_node_change_result
from wharf.cluster.api.node_callers import authenticate_node, read_introduction
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult
from wharf.cluster.operations import node_pools
from wharf.cluster.operations.nodes.drains import DrainOptions, DrainRequest
from wharf.cluster.operations.nodes.introductions import NodeAdmission, check_node_admission
from wharf.cluster.operations.nodes.registration import check_node_pool_name
from wharf.cluster.operations.nodes.reports import AllocationReport
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.operations.step_outputs import collect_step_outputs
from wharf.cluster.server.rpc.handlers.nodes import (
    DRAIN_NODE,
    RECORD_NODE_REPORT,
    REGISTER_NODE,
    NodeLease,
    RecordNodeReportRequest,
    RegistrationRequest,
)
from wharf.cluster.server.security.identities import build_node_spec, build_workload_specs
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.lookups import find_allocation_job
from wharf.cluster.state.tables import ALLOCATIONS, CLUSTER_FORMAT, NODE_POOLS
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.allocations.names import parse_index
from wharf.contract.model.nodes.node import Node
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, no_leader
from wharf.contract.model.secrets import hash_secret
from wharf.contract.model.services import ServiceRegistration, find_registration_problem
from wharf.contract.model.times import SECOND
from wharf.contract.wire.credentials import read_token
from wharf.contract.wire.nodes import messages
from wharf.contract.wire.nodes.messages import (
    IdentitiesReply,
    IdentitiesRequest,
    NodeDrainRequest,
    NodeIdentityReply,
    SignedIdentity,
)

log = logging.getLogger(__name__)

MAX_WHOLE_JOBS: Final = 50
"""Allocations in one reply that repeats the job of each. The memory of the reply is limited by it: a job has up to 10 MB. A node
that repeats jobs halves its requests after a refusal.
"""
ASSIGNMENTS_PER_CHECK: Final = 50
"""Assignments that are built before the CPU time is checked: about a quarter of a millisecond."""
MAX_IDENTITY_NAMES: Final = 100
"""Limits the CPU time of one request: a signature takes about a millisecond."""
NO_LEADER_CACHE_S: Final = 1.0
"""How long a server refuses heartbeats without a call after it found no leader. Without a leader, all nodes repeat their
heartbeats at all servers, and each forwarded call would cost several times as much as the refusal."""
SHUTDOWN_DRAIN_MESSAGE: Final = "the node shuts down"
RETURN_DRAIN_MESSAGE: Final = "the node is back"


class NodeProtocolActions:
    """Executes requests of node agents that are more than a read of the replica."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._no_leader_until_s = -math.inf
        """Until this monotonic time, heartbeats are refused without a call of the leader."""

    async def register_node(self, request: Request) -> ActionResult:
        """Register the node or update its record, and create its node pool if needed. Return its heartbeat TTL.

        Raises `Refusal` if the node may not join.
        """
        registration = request.decode_body(messages.NodeRegistration)
        if registration.node.id != request.get_path_value("node_id"):
            raise invalid_request("Node ID does not match request path")
        node = msgspec.structs.replace(registration.node, secret_digest=hash_secret(registration.secret_id))
        admission = await self._check_admission(request, node)
        await self._ensure_pool(node, request)
        lease = await self._server.leader.call(
            REGISTER_NODE, RegistrationRequest(**msgspec.structs.asdict(node), admission=admission)
        )
        if not self._read_cluster_id():  # At the first start of a cluster, the replica may lag.
            await self._server.reader.catch_up()
        return _build_lease_result(lease, self._read_cluster_id())

    def _read_cluster_id(self) -> str:
        """Return the id of the cluster; empty if it has none yet."""
        record = self._server.replica.get(CLUSTER_FORMAT)
        return record.cluster_id if record is not None else ""

    async def _ensure_pool(self, node: Node, request: Request) -> None:
        """Create the node's pool if it does not exist.

        Pools are replicated from the authoritative region, so other regions do not create them.
        """
        check_node_pool_name(node.node_pool)
        own_region, authoritative = self._server.identity.region, self._server.access.settings.authoritative_region
        if authoritative in ("", own_region) and self._server.replica.get(NODE_POOLS, node.node_pool) is None:
            await self._server.writer.execute(
                lambda snapshot, _context: node_pools.ensure_node_pool(snapshot, node, cause=request.id)
            )

    async def _check_admission(self, request: Request, node: Node) -> NodeAdmission | None:
        """Return what admits the node; `None` without access control. Raises `Refusal` if it may not register.

        While access control is on, a node that is new or changes its name or pool needs a valid introduction token.
        """
        access = self._server.access
        if not access.settings.is_enabled:
            return None
        await self._server.reader.catch_up()
        introduction = read_introduction(self._server, request)
        has_token = bool(read_token(request.headers))
        check_node_admission(self._server.replica, node, introduction, has_token=has_token)
        return NodeAdmission(introduction)

    async def record_heartbeat(self, request: Request) -> ActionResult:
        """Record the node's heartbeat on the leader.

        Return the time until the next one, and what the node must report. Raises `Refusal`.
        """
        node = await authenticate_node(self._server, request)
        world = self._server.world
        if world.monotonic_s() < self._no_leader_until_s:
            raise no_leader()
        try:
            lease = await self._server.heartbeats.record(node.id)
        except Refusal as refusal:
            if refusal.code is RefusalCode.NO_LEADER:
                self._no_leader_until_s = world.monotonic_s() + NO_LEADER_CACHE_S
            raise
        return _build_lease_result(lease, self._read_cluster_id())

    async def fetch_assignments(self, request: Request) -> ActionResult:
        """Return the allocations of the node with the ids in the body, each with its job. Ids of others are omitted.

        If the node supports it, allocations of one job refer to the first of them instead of repeating the job. Each
        allocation is returned once, however often the body names it.
        """
        node = await authenticate_node(self._server, request)
        server, body = self._server, request.decode_body(messages.AssignmentsRequest)
        ids = tuple(dict.fromkeys(body.ids))
        if not body.shares_jobs and len(ids) > MAX_WHOLE_JOBS:
            raise invalid_request(
                f"too many ids: {len(ids)}; request up to {MAX_WHOLE_JOBS} at a time, or set SharesJobs"
            )
        work = server.make_list_work(request.caller.owner_key)
        assignments: list[messages.Assignment] = []
        first_ids: dict[tuple[str, str, int, int], str] = {}  # By job version, the first allocation of the reply.
        work.restart()
        for number, allocation_id in enumerate(ids, start=1):
            allocation = server.replica.get(ALLOCATIONS, allocation_id)
            if allocation is not None and allocation.node_id == node.id:
                assignments.append(
                    _build_assignment(server.replica, allocation, first_ids if body.shares_jobs else None)
                )
            if not number % ASSIGNMENTS_PER_CHECK and work.is_slice_over():
                await work.pause()
        return ActionResult(assignments)

    async def record_report(self, request: Request) -> ActionResult:
        """Pass the node's report about its allocations to the leader, which records it."""
        node = await authenticate_node(self._server, request)
        body = request.decode_body(messages.NodeReportRequest)
        problems: list[str] = []
        reports = tuple(
            AllocationReport(
                id=update.id,
                client_status=update.client_status,
                client_description=update.client_description,
                task_states=update.task_states,
                deployment_status=update.deployment_status,
                network_status=update.network_status,
                services=_select_valid_services(node, update, problems),
                log_tails=update.log_tails,
                outputs=update.outputs,
            )
            for update in body.allocations
        )
        if problems:
            log.warning(
                "refused service registrations of a node node=%s count=%d first=%s", node.id, len(problems), problems[0]
            )
        report = RecordNodeReportRequest(node.id, reports, body.report_id, body.is_whole, body.number)
        result = await self._server.leader.call(RECORD_NODE_REPORT, report)
        return ActionResult(
            messages.NodeReportResponse(index=result.index, must_report=result.must_report), result.index
        )

    async def set_shutdown_drain(self, request: Request) -> ActionResult:
        """Start the drain of a node that shuts down, or end that drain when the node is back.

        A drain that an operator started is not ended.
        """
        node = await authenticate_node(self._server, request)
        spec, last = request.decode_body(NodeDrainRequest).drain_spec, node.last_drain
        if spec is None and (last is None or (last.meta or {}).get("message") != SHUTDOWN_DRAIN_MESSAGE):
            # An operator started another drain meanwhile. It stays.
            return build_node_change_result(NodeWriteResult(node.modify_index))
        drain = DrainRequest(
            node_id=node.id,
            order=None if spec is None else DrainOptions(spec.deadline, spec.ignore_system_jobs),
            mark_eligible=spec is None,
            meta={"message": SHUTDOWN_DRAIN_MESSAGE if spec is not None else RETURN_DRAIN_MESSAGE},
            accessor_id=f"node:{node.id}",
            cause=request.id,
        )
        return build_node_change_result(await self._server.leader.call(DRAIN_NODE, drain))

    async def reject_plain_channel(self, request: Request) -> ActionResult:
        await authenticate_node(self._server, request)
        raise invalid_request("the node channel is a websocket: send the request with an upgrade")


def _build_assignment(
    replica: Replica, allocation: Allocation, first_ids: dict[tuple[str, str, int, int], str] | None
) -> messages.Assignment:
    """Return the assignment of an allocation, with its job.

    With `first_ids`, an assignment refers to the first one of the same job version, and repeats no job.
    """
    job = find_allocation_job(replica, allocation)
    job_of = ""
    if job is not None and first_ids is not None:
        version = (job.namespace, job.id, job.version, job.create_index)
        if (first_id := first_ids.setdefault(version, allocation.id)) != allocation.id:
            job, job_of = None, first_id
    if job is not None and job.has_arrays:
        job = job.without_array_items()
    fields = {name: getattr(allocation, name) for name in _COPIED_FIELDS}
    fields["step_outputs"] = _collect_step_outputs(replica, allocation)
    fields["alloc_modify_index"] = get_assignment_index(replica, allocation)
    return messages.Assignment(allocation=messages.AssignedAllocation(**fields), job=job, job_of=job_of)


_COPIED_FIELDS: Final = tuple(name for name in messages.AssignedAllocation.__struct_fields__ if name != "step_outputs")
"""The fields of an assigned allocation that are fields of the allocation itself."""


def _collect_step_outputs(replica: Replica, allocation: Allocation) -> dict[str, dict[str, str]] | None:
    """Return the texts of earlier steps that the allocation of a step receives; `None` if it receives none."""
    job = find_allocation_job(replica, allocation) if allocation.array_attempt else None
    group = job.find_group(allocation.task_group) if job is not None else None
    if job is None or group is None:
        return None
    return collect_step_outputs(replica, job, group, parse_index(allocation.name)) or None


def _select_valid_services(
    node: Node, update: messages.AllocationUpdate, problems: list[str]
) -> tuple[ServiceRegistration, ...] | None:
    """Return the reported services that can be stored, each with the allocation and the datacenter of the node.

    The others are left out, because the rest of the report does not depend on them. What is wrong with them is added
    to `problems`.
    """
    if update.services is None:
        return None
    valid = []
    for reported in update.services:
        registration = msgspec.structs.replace(reported, alloc_id=update.id, datacenter=node.datacenter)
        if problem := find_registration_problem(registration):
            problems.append(f"allocation {update.id}: {problem}")
        else:
            valid.append(registration)
    return tuple(valid)


def _build_lease_result(lease: NodeLease, cluster_id: str) -> ActionResult:
    """Return the reply to a registration or heartbeat: the TTL and what the node must report."""
    reply = messages.NodeUpdateResponse(
        heartbeat_ttl=round(lease.ttl_s * SECOND),
        node_modify_index=lease.index,
        index=lease.index,
        must_report=lease.must_report,
        reports_from=lease.reports_from,
        cluster_id=cluster_id,
    )
    return ActionResult(reply, lease.index)


class NodeIdentityActions:
    """Signs identities for nodes: their own, and those of the tasks that they run."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def sign_task_identities(self, request: Request) -> ActionResult:
        """Return the signed identities with the requested names for one task that runs on the node.

        Raises `Refusal`.
        """
        node = await authenticate_node(self._server, request)
        body = request.decode_body(IdentitiesRequest)
        if len(body.names) > MAX_IDENTITY_NAMES:
            raise invalid_request(
                f"too many identities: {len(body.names)}; request up to {MAX_IDENTITY_NAMES} at a time"
            )
        server = self._server
        if server.replica.get(ALLOCATIONS, body.alloc_id) is None:
            await server.reader.catch_up()  # The node received the assignment from another server.
        workloads = build_workload_specs(
            server.replica, node, body.alloc_id, body.task, body.names, region=server.identity.region
        )
        await server.access.ensure_active_key(server.replica, server.leader)
        identities = []
        for workload in workloads:
            context = server.writer.read_clock()
            signed = server.access.identity_signer.sign_workload(server.replica, workload, context)
            expires = _round_to_seconds(context.now_ns + workload.ttl_ns) if workload.ttl_ns else 0
            identities.append(SignedIdentity(name=workload.name, jwt=signed, issued=context.now_ns, expires=expires))
            await asyncio.sleep(0)  # A signature takes a millisecond; let other requests run in between.
        return ActionResult(IdentitiesReply(identities=tuple(identities)))

    async def sign_node_identity(self, request: Request) -> ActionResult:
        """Return a signed identity of the node itself, with the id of the key that signed it."""
        node = await authenticate_node(self._server, request)
        server = self._server
        await server.access.ensure_active_key(server.replica, server.leader)
        key = server.access.keyring.find_active_key(server.replica)
        if key is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "the keyring has no active key yet; retry in a few seconds")
        context = server.writer.read_clock()
        spec = build_node_spec(server.replica, node, region=server.identity.region)
        signed = server.access.identity_signer.sign_node(server.replica, spec, context)
        expires = _round_to_seconds(context.now_ns + spec.ttl_ns)
        identity = SignedIdentity(name="default", jwt=signed, issued=context.now_ns, expires=expires)
        return ActionResult(NodeIdentityReply(identity=identity, signing_key_id=key.key_id))


def _round_to_seconds(ns: int) -> int:
    """Return the time in nanoseconds, rounded down to whole seconds as in the claims of the identity."""
    return ns // SECOND * SECOND


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions, identities = NodeProtocolActions(server), NodeIdentityActions(server)
    return {
        "node.register": actions.register_node,
        "node.heartbeat": actions.record_heartbeat,
        "node.fetch": actions.fetch_assignments,
        "node.report": actions.record_report,
        "node.leave": actions.set_shutdown_drain,
        "node.channel": actions.reject_plain_channel,
        "node.identities": identities.sign_task_identities,
        "node.own_identity": identities.sign_node_identity,
    }
