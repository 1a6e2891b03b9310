"""What each endpoint answers. A reading handler is (replica, request, options) -> found; it never waits."""

from collections.abc import Callable, Iterable
from hmac import compare_digest
from typing import Any, Final

import msgspec

from wharf.api.request import ReadOptions, Request
from wharf.model.allocation import Allocation, AllocationStub, DesiredTransition
from wharf.model.changes import SEPARATOR
from wharf.model.job import Job
from wharf.model.node import Node, SchedulingEligibility
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.model.secret import secret_digest
from wharf.operations import jobs
from wharf.operations.nodes import AllocationReport
from wharf.server.asking import HEARTBEAT, REGISTER_NODE, REPORT, SET_ELIGIBILITY, Eligibility, NodeAlive, NodeReport
from wharf.server.peers import SECRET_HEADER
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica, Table, Watched
from wharf.state import watches as watch
from wharf.state.tables import (
    ALLOCATIONS,
    ALLOCATIONS_OF_JOB,
    ALLOCATIONS_ON_NODE,
    EVALUATIONS,
    EVALUATIONS_OF_JOB,
    JOB_VERSIONS,
    JOBS,
    LEADER,
    MEMBERS,
    NODES,
    SUMMARIES,
)
from wharf.wire import shapes

EVERY_NAMESPACE: Final = "*"
SECOND_NS: Final = 1_000_000_000

Reading = Callable[[Replica, Request, ReadOptions], Found]


class Missing(Refusal):
    """A read of what is not there: a 404 that carries an index, and may be waited on."""

    def __init__(self, text: str) -> None:
        super().__init__(Code.UNKNOWN, text)


# -- reads ---------------------------------------------------------------------------------------------------------


def _in_namespace(records: Iterable[Any], options: ReadOptions) -> list[Any]:
    if options.namespace == EVERY_NAMESPACE:
        return list(records)
    return [record for record in records if record.namespace == options.namespace]


def _list(replica: Replica, table: Table[Any], records: list[Any], options: ReadOptions) -> Found:
    if options.reverse:
        records.reverse()
    return Found(records, replica.last_change(table), [watch.whole(table)])


def _by_id(replica: Replica, table: Table[Any], options: ReadOptions) -> Iterable[Any]:
    """In order of creation; with a prefix, in order of id."""
    return replica.by_key(table, prefix=options.prefix) if options.prefix else replica.all(table)


def _one(replica: Replica, table: Table[Any], *key: str, missing: str) -> tuple[Any, int, list[Watched]]:
    record = replica.get(table, *key)
    index = replica.last_change(table) if record is None else record.modify_index
    return record if record is not None else Missing(missing), index, [watch.one(table, *key)]


def job_list(replica: Replica, _request: Request, options: ReadOptions) -> Found:
    everywhere = options.namespace == EVERY_NAMESPACE
    prefix = "" if everywhere else options.namespace + SEPARATOR + options.prefix
    stubs = [_job_stub(replica, job) for job in replica.by_key(JOBS, prefix=prefix, reverse=options.reverse)]
    if everywhere:
        stubs = [stub for stub in stubs if stub.id.startswith(options.prefix)]
    return Found(stubs, replica.last_change(JOBS, SUMMARIES), [watch.whole(JOBS), watch.whole(SUMMARIES)])


def _job_stub(replica: Replica, job: Job) -> shapes.JobStub:
    return shapes.JobStub(
        id=job.id,
        parent_id=job.parent_id,
        name=job.name,
        namespace=job.namespace,
        datacenters=job.datacenters or (),
        node_pool=job.node_pool,
        type=job.type,
        priority=job.priority,
        periodic=job.is_periodic,
        parameterized_job=job.is_parameterized,
        stop=job.stop,
        status=job.status,
        status_description=job.status_description,
        job_summary=replica.get(SUMMARIES, job.namespace, job.id),
        create_index=job.create_index,
        modify_index=job.modify_index,
        job_modify_index=job.job_modify_index,
        submit_time=job.submit_time,
    )


def job_read(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*_one(replica, JOBS, options.namespace, request.value("job_id"), missing="job not found"))


def job_summary(replica: Replica, request: Request, options: ReadOptions) -> Found:
    return Found(*_one(replica, SUMMARIES, options.namespace, request.value("job_id"), missing="job not found"))


def job_allocations(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = (options.namespace, request.value("job_id"))
    stubs = [_allocation_stub(replica, allocation) for allocation in replica.those(ALLOCATIONS_OF_JOB, *key)]
    return Found(stubs, replica.last_change(ALLOCATIONS), [watch.those(ALLOCATIONS_OF_JOB, *key)])


def job_evaluations(replica: Replica, request: Request, options: ReadOptions) -> Found:
    key = (options.namespace, request.value("job_id"))
    found = replica.those(EVALUATIONS_OF_JOB, *key)
    return Found(found, replica.last_change(EVALUATIONS), [watch.those(EVALUATIONS_OF_JOB, *key)])


def allocation_list(replica: Replica, _request: Request, options: ReadOptions) -> Found:
    found = _in_namespace(_by_id(replica, ALLOCATIONS, options), options)
    return _list(replica, ALLOCATIONS, [_allocation_stub(replica, allocation) for allocation in found], options)


def allocation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return Found(*_one(replica, ALLOCATIONS, request.value("alloc_id"), missing="alloc not found"))


def _allocation_stub(replica: Replica, allocation: Allocation) -> AllocationStub:
    job = replica.get(JOB_VERSIONS, *_version_key(allocation))
    given = {name: getattr(allocation, name) for name in STUB_FIELDS}
    given["desired_transition"] = allocation.desired_transition or DesiredTransition()
    return AllocationStub(job_type=job.type if job else "", **given)


STUB_FIELDS: Final = [
    name
    for name in AllocationStub.__struct_fields__
    if name in Allocation.__struct_fields__ and name not in ("allocated_resources", "desired_transition")
]


def _version_key(allocation: Allocation) -> tuple[str, str, str]:
    return allocation.namespace, allocation.job_id, f"{allocation.job_version:020d}"


def evaluation_list(replica: Replica, _request: Request, options: ReadOptions) -> Found:
    return _list(replica, EVALUATIONS, _in_namespace(_by_id(replica, EVALUATIONS, options), options), options)


def evaluation_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    return Found(*_one(replica, EVALUATIONS, request.value("eval_id"), missing="eval not found"))


def node_list(replica: Replica, _request: Request, options: ReadOptions) -> Found:
    found = [_shown(node) for node in replica.by_key(NODES, prefix=options.prefix, reverse=options.reverse)]
    return Found(found, replica.last_change(NODES), [watch.whole(NODES)])


def node_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    found, index, watched = _one(replica, NODES, request.value("node_id"), missing="node not found")
    return Found(_shown(found) if isinstance(found, Node) else found, index, watched)


def _shown(node: Node) -> Node:
    return msgspec.structs.replace(node, secret_digest="")


def node_allocations(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    node_id = request.value("node_id")
    found = replica.those(ALLOCATIONS_ON_NODE, node_id)
    return Found(found, replica.last_change(ALLOCATIONS), [watch.those(ALLOCATIONS_ON_NODE, node_id)])


def node_desired(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    """Allocation id to AllocModifyIndex, of all that the node must know: it fetches those that are new to it."""
    node_id = request.value("node_id")
    found = {a.id: a.alloc_modify_index for a in replica.those(ALLOCATIONS_ON_NODE, node_id)}
    return Found(found, max(found.values(), default=1), [watch.those(ALLOCATIONS_ON_NODE, node_id)])


READS: Final[dict[str, Reading]] = {
    "job.list": job_list,
    "job.read": job_read,
    "job.allocations": job_allocations,
    "job.evaluations": job_evaluations,
    "job.summary": job_summary,
    "allocation.list": allocation_list,
    "allocation.read": allocation_read,
    "evaluation.list": evaluation_list,
    "evaluation.read": evaluation_read,
    "node.list": node_list,
    "node.read": node_read,
    "node.allocations": node_allocations,
    "node.desired": node_desired,
}


# -- writes --------------------------------------------------------------------------------------------------------


class Packed(msgspec.Struct, frozen=True):
    """A body that is encoded already."""

    data: bytes


class Done(msgspec.Struct, frozen=True):
    """The reply's body, and the index for its header; 0: no header."""

    body: object
    index: int = 0


class Writes:
    """Handlers that write or ask the leader."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def job_register(self, request: Request) -> Done:
        asked = request.read_body(shapes.JobRegisterRequest)
        return await self._register(request, asked)

    async def job_update(self, request: Request) -> Done:
        asked = request.read_body(shapes.JobRegisterRequest)
        if asked.job is not None and asked.job.id != request.value("job_id"):
            raise invalid("Job ID does not match name")
        return await self._register(request, asked)

    async def _register(self, request: Request, asked: shapes.JobRegisterRequest) -> Done:
        if asked.job is None:
            raise invalid("Job must be specified")
        namespace = request.query.get("namespace") or asked.namespace or asked.job.namespace or "default"
        registration = jobs.Registration(
            job=msgspec.structs.replace(asked.job, namespace=namespace),
            enforce_index=asked.enforce_index,
            job_modify_index=asked.job_modify_index,
            eval_priority=asked.eval_priority,
            cause=request.id,
        )
        settings = self._server.job_settings
        done = await self._server.writer.write(
            lambda snapshot, moment: jobs.register(snapshot, registration, moment, settings)
        )
        reply = shapes.JobRegisterResponse(
            eval_id=done.eval_id,
            eval_create_index=done.eval_create_index,
            job_modify_index=done.job_modify_index,
            index=done.index,
        )
        return Done(reply, done.index)

    async def job_deregister(self, request: Request) -> Done:
        namespace, job_id = request.namespace, request.value("job_id")
        done = await self._server.writer.write(
            lambda snapshot, moment: jobs.deregister(snapshot, namespace, job_id, moment, cause=request.id)
        )
        reply = shapes.JobDeregisterResponse(
            eval_id=done.eval_id,
            eval_create_index=done.eval_create_index,
            job_modify_index=done.job_modify_index,
            index=done.index,
        )
        return Done(reply, done.index)

    async def node_eligibility(self, request: Request) -> Done:
        asked = request.read_body(shapes.EligibilityRequest)
        if asked.eligibility not in tuple(SchedulingEligibility):
            raise invalid(f'invalid scheduling eligibility "{asked.eligibility}"')
        wanted = Eligibility(request.value("node_id"), asked.eligibility == SchedulingEligibility.ELIGIBLE)
        written = await self._server.leader.ask(SET_ELIGIBILITY, wanted)
        return Done(_node_update(written.index, written.eval_ids), written.index)

    async def node_register(self, request: Request) -> Done:
        asked = request.read_body(shapes.NodeRegistration)
        if asked.node.id != request.value("node_id"):
            raise invalid("Node ID does not match request path")
        node = msgspec.structs.replace(asked.node, secret_digest=secret_digest(asked.secret_id))
        believed = await self._server.leader.ask(REGISTER_NODE, node)
        return Done(_node_update(believed.index, (), believed.ttl_s), believed.index)

    async def node_heartbeat(self, request: Request) -> Done:
        node = self._authenticated_node(request)
        believed = await self._server.leader.ask(HEARTBEAT, NodeAlive(node.id))
        return Done(_node_update(believed.index, (), believed.ttl_s), believed.index)

    async def node_fetch(self, request: Request) -> Done:
        """Whole allocations, with their jobs, for the ids that the node asks for."""
        node = self._authenticated_node(request)
        replica = self._server.replica
        found = []
        for allocation_id in request.read_body(shapes.DesiredRequest).ids:
            allocation = replica.get(ALLOCATIONS, allocation_id)
            if allocation is not None and allocation.node_id == node.id:
                job = replica.get(JOB_VERSIONS, *_version_key(allocation))
                given = {name: getattr(allocation, name) for name in shapes.DesiredWork.__struct_fields__}
                found.append(shapes.DesiredAllocation(allocation=shapes.DesiredWork(**given), job=job))
        return Done(found)

    async def node_report(self, request: Request) -> Done:
        node = self._authenticated_node(request)
        asked = request.read_body(shapes.NodeReportRequest)
        reports = tuple(
            AllocationReport(
                id=told.id,
                client_status=told.client_status,
                client_description=told.client_description,
                task_states=told.task_states,
                deployment_status=told.deployment_status,
                network_status=told.network_status,
            )
            for told in asked.allocations
        )
        written = await self._server.leader.ask(REPORT, NodeReport(node.id, reports))
        return Done(shapes.NodeReportResponse(index=written.index), written.index)

    def _authenticated_node(self, request: Request) -> Node:
        """The node that the path names, if the request carries its secret."""
        node = self._server.replica.get(NODES, request.value("node_id"))
        if node is None:
            raise unknown("node not found")
        given = request.headers.get(b"x-cluster-node-secret", b"").decode("latin-1")
        if secret_digest(given) != node.secret_digest:
            raise Refusal(Code.FORBIDDEN, "Permission denied")
        return node

    def table(self) -> dict[str, Callable[[Request], Any]]:
        return {
            "job.register": self.job_register,
            "job.update": self.job_update,
            "job.deregister": self.job_deregister,
            "node.eligibility": self.node_eligibility,
            "node.register": self.node_register,
            "node.heartbeat": self.node_heartbeat,
            "node.fetch": self.node_fetch,
            "node.report": self.node_report,
        }


def _node_update(index: int, eval_ids: tuple[str, ...], ttl_s: float = 0.0) -> shapes.NodeUpdateResponse:
    return shapes.NodeUpdateResponse(
        heartbeat_ttl=round(ttl_s * SECOND_NS), eval_ids=eval_ids or None, node_modify_index=index, index=index
    )


# -- this process --------------------------------------------------------------------------------------------------


class Locals:
    """Handlers about this server, without consistency."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def status_leader(self, _request: Request) -> Done:
        replica = self._server.replica
        leader = replica.get(LEADER)
        member = replica.get(MEMBERS, leader.member_id) if leader else None
        return Done(member.address if member else "")

    async def status_peers(self, _request: Request) -> Done:
        return Done([member.address for member in self._server.replica.all(MEMBERS)])

    async def agent_health(self, _request: Request) -> Done:
        health = await self._server.engine.health()
        known = self._server.reader.knows_leader()
        message = "ok" if known and health.writable else health.why or "no leader"
        return Done({"server": {"ok": known and health.writable, "message": message}})

    async def server_ask(self, request: Request) -> Done:
        """A question of another member for our brain. It is answered here or refused, never passed on."""
        given = request.headers.get(SECRET_HEADER.encode(), b"").decode("latin-1")
        if not self._server.identity.door_secret or not compare_digest(given, self._server.identity.door_secret):
            raise Refusal(Code.FORBIDDEN, "Permission denied")
        answered = await self._server.brain.ask(request.value("subject"), request.body)
        return Done(Packed(msgspec.msgpack.encode(answered)))

    async def agent_members(self, _request: Request) -> Done:
        identity = self._server.identity
        members = [msgspec.structs.replace(m, door_secret="") for m in self._server.replica.all(MEMBERS)]
        return Done({"ServerName": identity.name, "ServerRegion": identity.region, "Members": members})

    async def operator_state(self, _request: Request) -> Done:
        replica = self._server.replica
        health = await self._server.engine.health()
        sizes = {name: replica.count(table) for name, table in replica.tables.items()}
        return Done(shapes.StateSizes(index=replica.index, tables=sizes, engine=msgspec.structs.asdict(health)))

    def table(self) -> dict[str, Callable[[Request], Any]]:
        return {
            "server.ask": self.server_ask,
            "status.leader": self.status_leader,
            "status.peers": self.status_peers,
            "agent.health": self.agent_health,
            "agent.members": self.agent_members,
            "operator.state": self.operator_state,
        }
