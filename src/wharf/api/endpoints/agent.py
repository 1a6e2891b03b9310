"""Endpoints about the agent that answers: who it is, how it is, and what may be asked of it. They pass no barrier."""

import platform
from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.endpoints.agent_watching import AgentWatching
from wharf.api.endpoints.regions import region_names
from wharf.api.endpoints.status import leader_address
from wharf.api.health import health_of
from wharf.api.onward import member_called
from wharf.api.parameters import FALSE_WORDS, TRUE_WORDS
from wharf.api.request import Request
from wharf.model import need
from wharf.model.cluster import Member
from wharf.model.refusal import Code, Refusal, invalid, unknown
from wharf.operations import members
from wharf.server.answering.servers import FIGURES, Nothing
from wharf.server.process_figures import measure_process
from wharf.server.server import Server
from wharf.state.tables import LEADER, MEMBERS
from wharf.wire import agent_shapes as shapes
from wharf.wire.moments import say_moment

READS: Final[dict[str, Reading]] = {}

DEPRECATED_JOIN: Final = "anonymous server join is deprecated and will be removed in a future version of Wharf"


class Agent:
    def __init__(self, server: Server) -> None:
        self._server = server

    # -- who and how -----------------------------------------------------------------------------------------------

    async def about(self, _request: Request) -> Done:
        server, facts = self._server, self._server.agent.facts
        own = server.replica.get(MEMBERS, server.identity.member_id)
        config = {**facts.configuration, "Version": {"Version": facts.version}}
        member = shown_member(own) if own is not None else _unwritten(server)
        return Done(shapes.AgentSelf(config=config, member=member, stats=self._stats()))

    def _stats(self) -> dict[str, dict[str, str]]:
        server, process = self._server, measure_process()
        leader = server.replica.get(LEADER)
        leads = leader is not None and leader.member_id == server.identity.member_id
        contact_ms = server.reader.last_contact_ms()
        return {
            "wharf": {
                "server": "true",
                "leader": _say(leads),
                "leader_addr": leader_address(server),
                "known_regions": str(len(region_names(server))),
            },
            "raft": {
                "state": "Leader" if leads else "Follower",
                "applied_index": str(server.replica.index),
                "last_contact": "never" if contact_ms is None else f"{contact_ms}ms",
                "num_peers": str(max(0, server.replica.count(MEMBERS) - 1)),
            },
            "runtime": {
                "version": platform.python_version(),
                "arch": platform.machine(),
                "kernel.name": platform.system().lower(),
                "memory_bytes": str(process.resident_bytes),
                "cpu_seconds": f"{process.cpu_s:.2f}",
                "blocked_queries": str(server.reader.waiting_count),
            },
        }

    async def members(self, _request: Request) -> Done:
        identity = self._server.identity
        found = sorted(self._server.replica.all(MEMBERS), key=lambda member: member.name)
        return Done(
            shapes.AgentMembers(
                server_name=identity.name,
                server_region=identity.region,
                server_dc=identity.datacenter,
                members=[shown_member(member) for member in found],
            )
        )

    async def health(self, request: Request) -> Done:
        asked, has_node = request.texts("type"), self._server.agent.facts.has_node
        told = shapes.AgentHealth(
            client=_client_health(has_node=has_node) if "client" in asked or (not asked and has_node) else None,
            server=await self._server_health() if "server" in asked or not asked else None,
        )
        is_well = all(part is None or part.ok for part in (told.client, told.server))
        return Done(told, status=200 if is_well else 500)

    async def _server_health(self) -> shapes.HealthTold:
        health = await health_of(self._server.engine)
        is_well = self._server.reader.knows_leader() and health.writable
        return shapes.HealthTold(is_well, "ok" if is_well else health.why or "no leader")

    # -- servers that know each other ------------------------------------------------------------------------------

    async def servers(self, _request: Request) -> Done:
        if not self._server.agent.facts.has_node:
            raise Refusal(Code.NOT_OURS, "Invalid method")
        known = {member.address for member in self._server.replica.all(MEMBERS)}
        return Done(sorted(known | set(self._server.agent.facts.node_servers)))

    async def set_servers(self, request: Request) -> Done:
        if not request.texts("address"):
            raise invalid("missing server address")
        if not self._server.agent.facts.has_node:
            raise Refusal(Code.NOT_OURS, "Invalid method")
        raise Refusal(
            Code.NOT_OURS, "a node takes its servers from `client.servers` of the configuration: change it, and restart"
        )

    async def join(self, request: Request) -> Done:
        """Nothing needs to be done: whoever shares the log is a member."""
        asked = request.texts("address")
        if not asked:
            raise invalid("missing address to join")
        known = {member.address for member in self._server.replica.all(MEMBERS)}
        strangers = [address for address in asked if address not in known]
        error = ""
        if strangers:
            error = (
                f"{', '.join(strangers)}: not a member; servers join by the log that [state] of the configuration names"
            )
        warning = "" if request.may(need.WRITE_AGENT) else DEPRECATED_JOIN
        return Done(shapes.JoinResult(len(asked) - len(strangers), error, warning))

    async def force_leave(self, request: Request) -> Done:
        name, prune = request.text("node"), request.text("prune")
        if not name:
            raise invalid("missing node to force leave")
        if prune and prune not in TRUE_WORDS | FALSE_WORDS:
            raise invalid("invalid prune value")
        member = member_called(self._server, name)
        if member is None:
            raise unknown(f"no server {name} is known")
        await self._server.writer.write(
            lambda snapshot, _moment: members.forget(snapshot, member.id, missing=name, cause=request.id)
        )
        return Done()

    async def reload(self, _request: Request) -> Done:
        await self._server.agent.reload()
        return Done()

    # -- the scheduler ---------------------------------------------------------------------------------------------

    async def schedulers(self, _request: Request) -> Done:
        identity = self._server.identity
        own = self._server.replica.get(MEMBERS, identity.member_id)
        told = await self._server.leader.ask_member(identity.member_id, FIGURES, Nothing())
        status = "paused" if not told.brain.is_leading else "started"
        scheduler = shapes.SchedulerTold(
            id=identity.member_id,
            enabled_schedulers=list(self._server.agent.facts.enabled_schedulers),
            started=say_moment(own.started_at if own else 0),
            status=status,
            workload_status="busy" if told.brain.busy else "idle",
        )
        return Done(shapes.AgentSchedulers(server_id=identity.member_id, schedulers=[scheduler]))

    async def schedulers_config(self, _request: Request) -> Done:
        enabled = list(self._server.agent.facts.enabled_schedulers)
        return Done(shapes.AgentSchedulersConfig(self._server.identity.member_id, 1, enabled))

    def table(self) -> dict[str, Act]:
        return {
            "agent.self": self.about,
            "agent.members": self.members,
            "agent.health": self.health,
            "agent.servers": self.servers,
            "agent.set_servers": self.set_servers,
            "agent.join": self.join,
            "agent.force_leave": self.force_leave,
            "agent.reload": self.reload,
            "agent.schedulers": self.schedulers,
            "agent.schedulers_config": self.schedulers_config,
        }


def acts_of(server: Server) -> dict[str, Act]:
    return {**Agent(server).table(), **AgentWatching(server).table()}


def shown_member(member: Member) -> shapes.AgentMember:
    """As others may see it: without what lets a member in, even the name of that."""
    host, _, port = member.address.rpartition(":")
    return shapes.AgentMember(
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


def _unwritten(server: Server) -> shapes.AgentMember:
    """Ourselves, while the log has no record of us."""
    identity = server.identity
    return shown_member(
        Member(
            id=identity.member_id,
            name=identity.name,
            region=identity.region,
            datacenter=identity.datacenter,
            address=identity.address,
        )
    )


def _client_health(*, has_node: bool) -> shapes.HealthTold:
    return shapes.HealthTold(has_node, "ok" if has_node else "client not enabled")


def _say(is_so: bool) -> str:
    return "true" if is_so else "false"
