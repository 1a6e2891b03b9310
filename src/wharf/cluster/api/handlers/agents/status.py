"""Endpoints about the agent that answers: who it is, how it is, and what may be asked of it. They pass no barrier.

Endpoints of regions.

Endpoints that tell who leads and who is there. They pass no barrier.

What members ask of each other's brains.
"""

import platform
from hmac import compare_digest
from typing import Final

import msgspec

from wharf.cluster.api.handlers.agents.health import check_engine_health
from wharf.cluster.api.handlers.agents.monitor import AgentMonitorActions
from wharf.cluster.api.relay.members import find_member
from wharf.cluster.api.requests.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, EncodedBody, ReadHandler
from wharf.cluster.operations import agents
from wharf.cluster.server.metrics import measure_process
from wharf.cluster.server.rpc.handlers.agents import GET_SERVER_METRICS, EmptyMessage
from wharf.cluster.server.rpc.http import SECRET_HEADER
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import LEADER, MEMBERS
from wharf.contract.model.acl import permissions
from wharf.contract.model.cluster import Member
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request, not_found
from wharf.contract.wire import agents as agents_wire
from wharf.contract.wire.times import format_time

REGION_READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


def list_region_names(server: Server) -> list[str]:
    """Our own, and those that requests are passed on to."""
    return sorted({server.identity.region, *server.relay.region_names})


def build_region_action_handlers(server: Server) -> dict[str, ActionHandler]:
    async def regions(_request: Request) -> ActionResult:
        return ActionResult(list_region_names(server))

    return {"region.list": regions}


STATUS_READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


class StatusActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_leader(self, _request: Request) -> ActionResult:
        return ActionResult(find_leader_address(self._server))

    async def list_peers(self, _request: Request) -> ActionResult:
        return ActionResult(sorted(member.address for member in self._server.replica.iter_all(MEMBERS)))


def find_leader_address(server: Server) -> str:
    """Empty when nobody leads."""
    leader = server.replica.get(LEADER)
    member = server.replica.get(MEMBERS, leader.member_id) if leader else None
    return member.address if member else ""


def build_status_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"status.leader": StatusActions(server).read_leader, "status.peers": StatusActions(server).list_peers}


READ_HANDLERS: Final[dict[str, ReadHandler]] = {}

DEPRECATED_JOIN_WARNING: Final = "anonymous server join is deprecated and will be removed in a future version of Wharf"


class AgentActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    # -- who and how -----------------------------------------------------------------------------------------------

    async def read_self(self, _request: Request) -> ActionResult:
        server, facts = self._server, self._server.agent.info
        own = server.replica.get(MEMBERS, server.identity.member_id)
        config = {**facts.configuration, "Version": {"Version": facts.version}}
        member = build_member_view(own) if own is not None else _unwritten(server)
        return ActionResult(agents_wire.AgentSelf(config=config, member=member, stats=self._stats()))

    def _stats(self) -> dict[str, dict[str, str]]:
        server, process = self._server, measure_process()
        leader = server.replica.get(LEADER)
        leads = leader is not None and leader.member_id == server.identity.member_id
        contact_ms = server.reader.last_contact_ms()
        return {
            "wharf": {
                "server": "true",
                "leader": _say(leads),
                "leader_addr": find_leader_address(server),
                "known_regions": str(len(list_region_names(server))),
            },
            "raft": {
                "state": "Leader" if leads else "Follower",
                "applied_index": str(server.replica.index),
                "last_contact": "never" if contact_ms is None else f"{contact_ms}ms",
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
        identity = self._server.identity
        found = sorted(self._server.replica.iter_all(MEMBERS), key=lambda member: member.name)
        return ActionResult(
            agents_wire.AgentMembers(
                server_name=identity.name,
                server_region=identity.region,
                server_dc=identity.datacenter,
                members=[build_member_view(member) for member in found],
            )
        )

    async def read_health(self, request: Request) -> ActionResult:
        asked, has_node = request.get_texts("type"), self._server.agent.info.has_node
        told = agents_wire.AgentHealth(
            client=_client_health(has_node=has_node) if "client" in asked or (not asked and has_node) else None,
            server=await self._server_health() if "server" in asked or not asked else None,
        )
        is_well = all(part is None or part.ok for part in (told.client, told.server))
        return ActionResult(told, status=200 if is_well else 500)

    async def _server_health(self) -> agents_wire.HealthReport:
        health = await check_engine_health(self._server.engine)
        is_well = self._server.reader.has_leader() and health.writable
        return agents_wire.HealthReport(is_well, "ok" if is_well else health.why or "no leader")

    # -- servers that know each other ------------------------------------------------------------------------------

    async def list_servers(self, _request: Request) -> ActionResult:
        if not self._server.agent.info.has_node:
            raise Refusal(RefusalCode.NOT_IMPLEMENTED, "Invalid method")
        known = {member.address for member in self._server.replica.iter_all(MEMBERS)}
        return ActionResult(sorted(known | set(self._server.agent.info.node_servers)))

    async def set_servers(self, request: Request) -> ActionResult:
        if not request.get_texts("address"):
            raise invalid_request("missing server address")
        if not self._server.agent.info.has_node:
            raise Refusal(RefusalCode.NOT_IMPLEMENTED, "Invalid method")
        raise Refusal(
            RefusalCode.NOT_IMPLEMENTED,
            "a node takes its servers from `client.servers` of the configuration: change it, and restart",
        )

    async def join_servers(self, request: Request) -> ActionResult:
        """Nothing needs to be done: whoever shares the log is a member."""
        asked = request.get_texts("address")
        if not asked:
            raise invalid_request("missing address to join")
        known = {member.address for member in self._server.replica.iter_all(MEMBERS)}
        strangers = [address for address in asked if address not in known]
        error = ""
        if strangers:
            error = (
                f"{', '.join(strangers)}: not a member; servers join by the log that [state] of the configuration names"
            )
        warning = "" if request.has_permission(permissions.WRITE_AGENT) else DEPRECATED_JOIN_WARNING
        return ActionResult(agents_wire.JoinResult(len(asked) - len(strangers), error, warning))

    async def force_member_leave(self, request: Request) -> ActionResult:
        name, prune = request.get_text("node"), request.get_text("prune")
        if not name:
            raise invalid_request("missing node to force leave")
        if prune and prune not in TRUE_WORDS | FALSE_WORDS:
            raise invalid_request("invalid prune value")
        member = find_member(self._server, name)
        if member is None:
            raise not_found(f"no server {name} is known")
        await self._server.writer.execute(
            lambda snapshot, _moment: agents.remove_member(snapshot, member.id, not_found_text=name, cause=request.id)
        )
        return ActionResult()

    async def reload_agent(self, _request: Request) -> ActionResult:
        await self._server.agent.reload()
        return ActionResult()

    # -- the scheduler ---------------------------------------------------------------------------------------------

    async def list_schedulers(self, _request: Request) -> ActionResult:
        identity = self._server.identity
        own = self._server.replica.get(MEMBERS, identity.member_id)
        told = await self._server.leader.call_member(identity.member_id, GET_SERVER_METRICS, EmptyMessage())
        status = "paused" if not told.brain.is_leading else "started"
        scheduler = agents_wire.SchedulerView(
            id=identity.member_id,
            enabled_schedulers=list(self._server.agent.info.enabled_schedulers),
            started=format_time(own.started_at if own else 0),
            status=status,
            workload_status="busy" if told.brain.busy else "idle",
        )
        return ActionResult(agents_wire.AgentSchedulers(server_id=identity.member_id, schedulers=[scheduler]))

    async def read_schedulers_config(self, _request: Request) -> ActionResult:
        enabled = list(self._server.agent.info.enabled_schedulers)
        return ActionResult(agents_wire.AgentSchedulersConfig(self._server.identity.member_id, 1, enabled))

    def build_handlers(self) -> dict[str, ActionHandler]:
        return {
            "agent.self": self.read_self,
            "agent.members": self.list_members,
            "agent.health": self.read_health,
            "agent.servers": self.list_servers,
            "agent.set_servers": self.set_servers,
            "agent.join": self.join_servers,
            "agent.force_leave": self.force_member_leave,
            "agent.reload": self.reload_agent,
            "agent.schedulers": self.list_schedulers,
            "agent.schedulers_config": self.read_schedulers_config,
        }


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {**AgentActions(server).build_handlers(), **AgentMonitorActions(server).build_handlers()}


def build_member_view(member: Member) -> agents_wire.AgentMember:
    """As others may see it: without what lets a member in, even the name of that."""
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
        },
    )


def _unwritten(server: Server) -> agents_wire.AgentMember:
    """Ourselves, while the log has no record of us."""
    identity = server.identity
    return build_member_view(
        Member(
            id=identity.member_id,
            name=identity.name,
            region=identity.region,
            datacenter=identity.datacenter,
            address=identity.address,
        )
    )


def _client_health(*, has_node: bool) -> agents_wire.HealthReport:
    return agents_wire.HealthReport(has_node, "ok" if has_node else "client not enabled")


def _say(is_so: bool) -> str:
    return "true" if is_so else "false"


MEMBER_READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


class MemberActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def serve_rpc(self, request: Request) -> ActionResult:
        """A question of another member for our brain. It is answered here or refused, never passed on."""
        given = request.headers.get(SECRET_HEADER.encode(), b"")
        secret = self._server.identity.door_secret.encode()
        if not secret or not compare_digest(given, secret):
            raise Refusal(RefusalCode.FORBIDDEN, "Permission denied")
        answered = await self._server.brain_transport.call(request.get_path_value("subject"), request.body)
        return ActionResult(EncodedBody(msgspec.msgpack.encode(answered)))


def build_member_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {"server.ask": MemberActions(server).serve_rpc}
