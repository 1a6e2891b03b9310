"""Endpoints about this agent, the servers of the region, the leader and the regions. They read without a barrier."""

import asyncio
import platform
from hmac import compare_digest
from typing import Final

import msgspec

from wharf.cluster.api.handlers.agents.folder_checks import FolderChecks
from wharf.cluster.api.handlers.agents.health import (
    check_engine_health,
    find_audit_problem,
    find_brain_problem,
    find_disk_problem,
    find_node_problem,
)
from wharf.cluster.api.handlers.agents.server_list import list_known_members
from wharf.cluster.api.relay.members import find_member
from wharf.cluster.api.requests.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody
from wharf.cluster.engines.port import LogHealth
from wharf.cluster.operations import agents
from wharf.cluster.server.metrics import measure_process
from wharf.cluster.server.rpc.handlers.agents import GET_SERVER_METRICS
from wharf.cluster.server.rpc.method import EmptyMessage
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.model.acl import permissions
from wharf.contract.model.cluster import Member, MemberStatus
from wharf.contract.model.refusal import (
    Refusal,
    RefusalCode,
    RefusalReason,
    invalid_request,
    not_found,
    permission_denied,
)
from wharf.contract.wire import agents as agents_wire
from wharf.contract.wire.credentials import SERVER_SECRET_HEADER
from wharf.contract.wire.errors import REASON_HEADER
from wharf.contract.wire.times import format_time

DEPRECATED_JOIN_WARNING: Final = "anonymous server join is deprecated and will be removed in a future version of Wharf"


RAFT_VERSION: Final = "3"
"""The tag `raft_vsn` of members. Clients compare it with the versions that they support; Wharf has no Raft protocol."""


class AgentActions:
    """Reports about this agent and the other servers, and the few changes that an agent accepts over HTTP."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._folder_checks = FolderChecks()
        self._health_task: asyncio.Task[tuple[agents_wire.HealthReport, agents_wire.HealthReport]] | None = None

    # -- this agent ------------------------------------------------------------------------------------------------

    async def read_self(self, _request: Request) -> ActionResult:
        """Return the configuration, the member record and the statistics of this agent."""
        server, info = self._server, self._server.agent.info
        own = server.replica.get(MEMBERS, server.identity.member_id)
        config = {**info.configuration, "Version": {"Version": info.version}}
        count = len(list_known_members(server.replica))
        member = build_member_view(own, count) if own is not None else _build_own_member_view(server)
        return ActionResult(agents_wire.AgentSelf(config=config, member=member, stats=self._build_stats()))

    def _build_stats(self) -> dict[str, dict[str, str]]:
        """Return the statistics of this server by section, with Nomad's names where Nomad has them."""
        server, process, info = self._server, measure_process(), self._server.agent.info
        is_leader, has_contact = server.is_leader(), server.reader.last_contact_ms() is not None
        client = {"client": {"node_id": info.node_id}} if info.node_id else {}
        return {
            **client,
            "wharf": {
                "server": "true",
                "leader": "true" if is_leader else "false",
                "leader_addr": find_leader_address(server),
                "known_regions": str(len(list_region_names(server))),
            },
            "raft": {
                "state": "Leader" if is_leader else "Follower",
                "applied_index": str(server.replica.index),
                "last_contact": f"{server.get_leader_contact_ms()}ms" if has_contact else "never",
                "num_peers": str(max(0, server.replica.count_records(MEMBERS) - 1)),
            },
            "runtime": {
                "version": platform.python_version(),
                "arch": platform.machine(),
                "kernel.name": platform.system().lower(),
                "memory_bytes": str(process.resident_bytes),
                "cpu_seconds": f"{process.cpu_s:.2f}",
                "blocked_queries": str(server.reader.waiter_count),
            },
        }

    async def list_members(self, _request: Request) -> ActionResult:
        """Return the servers of the region, by name. Servers that ended without leaving are included as failed."""
        identity = self._server.identity
        members = list_known_members(self._server.replica)
        return ActionResult(
            agents_wire.AgentMembers(
                server_name=identity.name,
                server_region=identity.region,
                server_dc=identity.datacenter,
                members=[build_member_view(member, len(members)) for member in members],
            )
        )

    async def read_health(self, request: Request) -> ActionResult:
        """Report the health of the requested parts (`client`, `server`), by default of all that this agent has.

        The status is 500 if a part is unhealthy.
        """
        parts, has_node = request.get_texts("type"), self._server.agent.info.has_node
        health = agents_wire.AgentHealth(
            client=await self._read_client_health() if "client" in parts or (not parts and has_node) else None,
            server=await self._read_server_health(request) if "server" in parts or not parts else None,
        )
        is_healthy = all(part is None or part.ok for part in (health.client, health.server))
        return ActionResult(health, status=200 if is_healthy else 500)

    async def _read_client_health(self) -> agents_wire.HealthReport:
        """Return whether this agent has a node whose disks have space and whose task supervisor answers.

        A nearly full disk is a warning.
        """
        info = self._server.agent.info
        if not info.has_node:
            return agents_wire.HealthReport(False, "client not enabled")
        (is_full, problem), node_problem = await asyncio.gather(
            find_disk_problem(self._folder_checks, info.node_folders),
            find_node_problem(self._folder_checks, info.node_folders),
        )
        if node_problem and not is_full:
            return agents_wire.HealthReport(False, node_problem)
        return agents_wire.HealthReport(not is_full, problem or "ok")

    async def _read_server_health(self, request: Request) -> agents_wire.HealthReport:
        """Return whether a leader is known, the log is writable and the scheduler process answers.

        Only a caller who may read the agent learns the addresses of a lost store.

        A log whose disk is nearly full is healthy, and so is a server with a certificate that ends soon or has ended; the
        message then warns.

        Requests that arrive during a check share its result, so that many of them cost one check.
        """
        task = self._health_task
        if task is None or task.done():
            task = self._health_task = self._server.world.start_task(self._check_server_health(), name="health")
        report, public_report = await asyncio.shield(task)
        if report == public_report:
            return report
        return report if self._server.access.may_see_store(request.headers) else public_report

    async def _check_server_health(self) -> tuple[agents_wire.HealthReport, agents_wire.HealthReport]:
        """Check the log and the scheduler process at the same time.

        Return the report, and the report without the addresses of the store.
        """
        health, brain_problem, audit_problem, certificate_problem = await asyncio.gather(
            check_engine_health(self._server),
            find_brain_problem(self._server),
            find_audit_problem(self._folder_checks, self._server.agent.info.audit_folder),
            self._server.agent.find_certificate_problem(),
        )
        other_warning = audit_problem or certificate_problem
        return (
            self._build_server_report(health, health.why, brain_problem, other_warning),
            self._build_server_report(health, health.public_why or health.why, brain_problem, other_warning),
        )

    def _build_server_report(
        self, health: LogHealth, why: str, brain_problem: str, other_warning: str
    ) -> agents_wire.HealthReport:
        """Return the report of this server. `why`: why the log is not writable, or what it warns of."""
        problem = why or "the log is not writable" if not health.writable else brain_problem
        if not problem and not self._server.reader.has_leader():
            problem = "no leader"
        return agents_wire.HealthReport(not problem, problem or why or other_warning or "ok")

    # -- servers ---------------------------------------------------------------------------------------------------

    async def list_servers(self, _request: Request) -> ActionResult:
        """Return the addresses of all servers that the node of this agent knows. Raises `Refusal` if it has no node."""
        if not self._server.agent.info.has_node:
            raise Refusal(RefusalCode.NOT_IMPLEMENTED, "Invalid method")
        addresses = {member.address for member in self._server.replica.iter_all(MEMBERS)}
        return ActionResult(sorted(addresses | set(self._server.agent.info.node_servers)))

    async def set_servers(self, request: Request) -> ActionResult:
        """Refuse the request: the servers of a node are set only in its configuration."""
        if not request.get_texts("address"):
            raise invalid_request("missing server address")
        if not self._server.agent.info.has_node:
            raise Refusal(RefusalCode.NOT_IMPLEMENTED, "Invalid method")
        raise Refusal(
            RefusalCode.NOT_IMPLEMENTED,
            "the servers of a node are set by `client.servers` of its configuration: change it and restart the agent",
        )

    async def join_servers(self, request: Request) -> ActionResult:
        """Report which addresses are members. There is nothing to join: all servers with the same log are members."""
        addresses = request.get_texts("address")
        if not addresses:
            raise invalid_request("missing address to join")
        members = list(self._server.replica.iter_all(MEMBERS))
        unknown = [address for address in addresses if not any(_is_address_of(address, member) for member in members)]
        error = ""
        if unknown:
            error = (
                f"{', '.join(unknown)}: not a member; a server joins by using the same log, "
                "set in [state] of its configuration"
            )
        warning = "" if request.has_permission(permissions.WRITE_AGENT) else DEPRECATED_JOIN_WARNING
        return ActionResult(agents_wire.JoinResult(len(addresses) - len(unknown), error, warning))

    async def force_member_leave(self, request: Request) -> ActionResult:
        """Remove the failed server with this name or id from the list of servers. Raises `Refusal` if it is alive."""
        name, prune = request.get_text("node"), request.get_text("prune")
        if not name:
            raise invalid_request("missing node to force leave")
        if prune and prune not in TRUE_WORDS | FALSE_WORDS:
            raise invalid_request("invalid prune value")
        member = find_member(self._server, name) or _find_failed_server(self._server, name)
        if member is None:
            raise not_found(f"unknown server {name}")
        await self._server.writer.execute(
            lambda snapshot, _context: agents.remove_member(snapshot, member.id, not_found_text=name, cause=request.id)
        )
        return ActionResult()

    async def reload_agent(self, _request: Request) -> ActionResult:
        await self._server.agent.reload()
        return ActionResult()

    # -- the scheduler ---------------------------------------------------------------------------------------------

    async def list_schedulers(self, _request: Request) -> ActionResult:
        """Return the scheduler process of this server with its state."""
        identity = self._server.identity
        own = self._server.replica.get(MEMBERS, identity.member_id)
        metrics = await self._server.leader.call_member(identity.member_id, GET_SERVER_METRICS, EmptyMessage())
        status = "paused" if not metrics.brain.is_leading else "started"
        scheduler = agents_wire.SchedulerView(
            id=identity.member_id,
            enabled_schedulers=list(self._server.agent.info.enabled_schedulers),
            started=format_time(own.started_at if own else 0),
            status=status,
            workload_status="busy" if metrics.brain.busy else "idle",
        )
        return ActionResult(agents_wire.AgentSchedulers(server_id=identity.member_id, schedulers=[scheduler]))

    async def read_schedulers_config(self, _request: Request) -> ActionResult:
        enabled = list(self._server.agent.info.enabled_schedulers)
        return ActionResult(agents_wire.AgentSchedulersConfig(self._server.identity.member_id, 1, enabled))

    async def set_schedulers_config(self, request: Request) -> ActionResult:
        """Accept a request for the scheduler that this server has. Raises `Refusal` for any other one."""
        body = request.decode_body(agents_wire.AgentSchedulersRequest)
        enabled = self._server.agent.info.enabled_schedulers
        if body.num_schedulers != 1:
            raise invalid_request(
                f"Invalid request: num_schedulers is {body.num_schedulers}, but each server has one scheduler process: use 1"
            )
        if body.enabled_schedulers is not None and set(body.enabled_schedulers) != set(enabled):
            raise invalid_request(
                "Invalid request: enabled_schedulers differs from the configuration of this server: change "
                f"server.enabled_schedulers there, or use {', '.join(enabled)}"
            )
        return await self.read_schedulers_config(request)


def _find_failed_server(server: Server, name: str) -> Member | None:
    """Return the failed server that `name` names as `find_member` understands it; `None` if there is none."""
    for member in list_known_members(server.replica):
        if member.status is MemberStatus.FAILED and name in (member.id, member.name, f"{member.name}.{member.region}"):
            return member
    return None


def _is_address_of(address: str, member: Member) -> bool:
    """Return whether a join request names this member: by its address, with or without the scheme and the port."""
    plain = address.removeprefix("https://").removeprefix("http://").rstrip("/")
    return plain in (member.address, member.address.rpartition(":")[0])


def build_member_view(member: Member, member_count: int) -> agents_wire.AgentMember:
    """Return the member as callers see it, without secrets.

    `member_count` is the number of servers. It is shown where Nomad shows how many servers a cluster expects at its
    start; a single server has the tag `bootstrap` instead.
    """
    host, _, port = member.address.rpartition(":")
    return agents_wire.AgentMember(
        name=f"{member.name}.{member.region}",
        addr=host.strip("[]"),
        port=int(port) if port.isdigit() else 0,
        status=member.status,
        tags={
            **(member.tags or {}),
            "id": member.id,
            "role": "wharf",
            "region": member.region,
            "dc": member.datacenter,
            "build": member.build,
            "vsn": str(member.newest_format),
            "port": port,
            "rpc_addr": host.strip("[]"),
            "raft_vsn": RAFT_VERSION,
            **({"bootstrap": "1"} if member_count == 1 else {"expect": str(member_count)}),
        },
    )


def _build_own_member_view(server: Server) -> agents_wire.AgentMember:
    """Return the view of this server while the log has no record of it yet."""
    identity = server.identity
    return build_member_view(
        Member(
            id=identity.member_id,
            name=identity.name,
            region=identity.region,
            datacenter=identity.datacenter,
            address=identity.address,
        ),
        member_count=1,
    )


class ClusterStatusActions:
    """Reports the leader, the servers and the regions, and executes RPC calls of other members."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_leader(self, _request: Request) -> ActionResult:
        """Return the address of the leader. If this server cannot reach its store, a header of the reply says so."""
        headers = ((REASON_HEADER.encode(), RefusalReason.STORE_UNREACHABLE.encode()),)
        return ActionResult(
            find_leader_address(self._server), headers=headers if self._server.reader.describe_outage() else ()
        )

    async def list_peers(self, _request: Request) -> ActionResult:
        return ActionResult(sorted(member.address for member in self._server.replica.iter_all(MEMBERS)))

    async def list_regions(self, _request: Request) -> ActionResult:
        return ActionResult(list_region_names(self._server))

    async def serve_rpc(self, request: Request) -> ActionResult:
        """Pass an RPC call of another member to this server's brain and return the reply.

        Raises `Refusal` unless the caller presents this server's secret. Calls are never relayed further.
        """
        presented = request.headers.get(SERVER_SECRET_HEADER, b"")
        secret = self._server.identity.door_secret.encode()
        if not secret or not compare_digest(presented, secret):
            raise permission_denied(
                "only servers of this cluster may call this endpoint: the secret of the server is wrong"
            )
        reply = await self._server.brain_transport.call(request.get_path_value("subject"), request.body)
        return ActionResult(EncodedBody(msgspec.msgpack.encode(reply)))


def find_leader_address(server: Server) -> str:
    """Return the address of the leader; "" if there is none, or if this server cannot know it without its store."""
    if not server.reader.has_leader():
        return ""
    leader = server.replica.get(LEADER)
    member = server.replica.get(MEMBERS, leader.member_id) if leader else None
    return member.address if member else ""


def list_region_names(server: Server) -> list[str]:
    """Return the names of this region and of those that requests can be relayed to."""
    return sorted({server.identity.region, *server.relay.region_names})


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions, cluster = AgentActions(server), ClusterStatusActions(server)
    return {
        "agent.self": actions.read_self,
        "agent.members": actions.list_members,
        "agent.health": actions.read_health,
        "agent.servers": actions.list_servers,
        "agent.set_servers": actions.set_servers,
        "agent.join": actions.join_servers,
        "agent.force_leave": actions.force_member_leave,
        "agent.reload": actions.reload_agent,
        "agent.schedulers": actions.list_schedulers,
        "agent.schedulers_config": actions.read_schedulers_config,
        "agent.set_schedulers_config": actions.set_schedulers_config,
        "status.leader": cluster.read_leader,
        "status.peers": cluster.list_peers,
        "region.list": cluster.list_regions,
        "server.ask": cluster.serve_rpc,
    }
