"""Endpoints for those who run the cluster: its configurations, its servers, its health, its snapshots.

Endpoints that save and restore the whole state, as one archive.

Endpoints that make the cluster tidy up at once. They say nothing but that it is done.
"""

import asyncio
import re
from base64 import b64encode
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

import msgspec

from wharf.cluster.api.handlers.agents.health import check_engine_health
from wharf.cluster.api.requests.body import ClientDisconnected
from wharf.cluster.api.requests.request import QueryOptions, Request
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler, StreamedBody
from wharf.cluster.operations import agents
from wharf.cluster.operations.operator import configuration
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.agents import (
    GET_SERVER_STATUS,
    TRANSFER_LEADERSHIP,
    EmptyMessage,
    TransferLeadershipRequest,
)
from wharf.cluster.server.rpc.handlers.dry_runs import REBALANCE, RebalanceRequest
from wharf.cluster.server.rpc.handlers.operator import COLLECT_GARBAGE, RECONCILE_SUMMARIES, MaintenanceRequest
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state import watches as watch
from wharf.cluster.state.tables import AUTOPILOT_CONFIGURATION, LEADER, MEMBERS, SCHEDULER_CONFIGURATION
from wharf.contract.model.cluster import Leader, Member
from wharf.contract.model.operator import autopilot
from wharf.contract.model.operator.autopilot import ServerHealth, ServerLogStatus
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import Refusal, RefusalCode, invalid_request
from wharf.contract.model.times import format_duration
from wharf.contract.wire import operator as operator_wire
from wharf.contract.wire.times import format_time

SNAPSHOT_CONTENT_TYPE: Final = "application/x-gzip"


class SnapshotActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def save_snapshot(self, request: Request) -> ActionResult:
        if "stale" not in request.query:
            await self._server.reader.catch_up()
        saved = await self._server.agent.save_snapshot(self._server.engine)
        headers = [(b"digest", b"sha-256=" + b64encode(saved.sha256))]
        return ActionResult(StreamedBody(saved.parts, SNAPSHOT_CONTENT_TYPE, headers=headers), saved.index)

    async def restore_snapshot(self, request: Request) -> ActionResult:
        """The archive is taken in whole and checked whole; only then is anything replaced."""
        assert request.body_parts is not None, "the endpoint reads its body part by part"
        try:
            index = await self._server.agent.restore_snapshot(self._server.engine, request.body_parts)
        except ClientDisconnected:
            raise invalid_request("failed to restore from snapshot: the request ended before its body") from None
        await self._server.follower.wait_until_applied(index)
        return ActionResult(None, index)

    def build_handlers(self) -> dict[str, ActionHandler]:
        return {"operator.save_snapshot": self.save_snapshot, "operator.restore_snapshot": self.restore_snapshot}


STATUS_TIMEOUT_S: Final = 3.0
TRANSFER_TIMEOUT_S: Final = 8.0
UNSIGNED_PATTERN: Final = re.compile(r"[0-9]{1,19}")
UUID_PATTERN: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def read_scheduler_configuration(replica: Replica, _request: Request, _options: QueryOptions) -> ReadResult:
    found = replica.get(SCHEDULER_CONFIGURATION) or SchedulerConfiguration()
    told = operator_wire.SchedulerConfigurationReply(
        scheduler_config=found, index=found.modify_index, known_leader=replica.get(LEADER) is not None
    )
    return ReadResult(
        told, replica.get_last_change(SCHEDULER_CONFIGURATION), [watch.watch_table(SCHEDULER_CONFIGURATION)]
    )


def read_autopilot_configuration(replica: Replica, _request: Request, _options: QueryOptions) -> ReadResult:
    told = operator_wire.build_autopilot_view(configuration.get_autopilot_configuration(replica))
    return ReadResult(
        told, replica.get_last_change(AUTOPILOT_CONFIGURATION), [watch.watch_table(AUTOPILOT_CONFIGURATION)]
    )


def read_raft_configuration(replica: Replica, _request: Request, _options: QueryOptions) -> ReadResult:
    leader, index = replica.get(LEADER), replica.get_last_change(MEMBERS, LEADER)
    servers = [
        operator_wire.RaftServer(
            id=member.id,
            node=f"{member.name}.{member.region}" if member.name else "(unknown)",
            address=member.address,
            leader=leader is not None and leader.member_id == member.id,
            voter=True,
        )
        for member in replica.iter_all(MEMBERS)
    ]
    told = operator_wire.RaftConfiguration(servers=servers, index=index)
    return ReadResult(told, index, [watch.watch_table(MEMBERS), watch.watch_table(LEADER)])


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "operator.scheduler": read_scheduler_configuration,
    "operator.autopilot": read_autopilot_configuration,
    "operator.raft": read_raft_configuration,
}


class ClusterOperatorActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_state_sizes(self, _request: Request) -> ActionResult:
        replica = self._server.replica
        health = await check_engine_health(self._server.engine)
        sizes = {name: replica.count_records(table) for name, table in replica.tables.items()}
        return ActionResult(
            operator_wire.StateSizes(index=replica.index, tables=sizes, engine=msgspec.structs.asdict(health))
        )

    # -- configurations --------------------------------------------------------------------------------------------

    async def set_scheduler_configuration(self, request: Request) -> ActionResult:
        expected = _expected(request)
        try:
            wanted = request.decode_body(SchedulerConfiguration)
        except Refusal as refusal:
            if refusal.text == "Request body is empty":
                raise
            raise Refusal(refusal.code, f"Error parsing scheduler config: {refusal.text}") from refusal
        done = await self._server.writer.execute(
            lambda snapshot, _moment: configuration.set_scheduler_configuration(
                snapshot, wanted, expected_version=expected, cause=request.id
            )
        )
        reply = operator_wire.SchedulerConfigurationWriteReply(updated=done.is_updated, index=done.index)
        return ActionResult(reply, done.index)

    async def set_autopilot_configuration(self, request: Request) -> ActionResult:
        expected = _expected(request)
        try:
            document = request.decode_body(operator_wire.AutopilotConfigurationView)
        except Refusal as refusal:
            if refusal.text == "Request body is empty":
                raise
            raise Refusal(refusal.code, f"Error parsing autopilot config: {refusal.text}") from refusal
        wanted = operator_wire.parse_autopilot_view(document)
        done = await self._server.writer.execute(
            lambda snapshot, _moment: configuration.set_autopilot_configuration(
                snapshot, wanted, expected_version=expected, cause=request.id
            )
        )
        return ActionResult(done.is_updated)

    async def rebalance_cluster(self, request: Request) -> ActionResult:
        asked = RebalanceRequest(only_plan=request.get_flag("plan"), cause=request.id)
        told = await self._server.leader.call(REBALANCE, asked)
        return ActionResult(told)

    # -- servers ---------------------------------------------------------------------------------------------------

    async def remove_peer(self, request: Request) -> ActionResult:
        if request.get_text("address"):
            raise invalid_request("removing a server by its address is not supported: use its id")
        member_id = request.get_text("id")
        if not member_id:
            raise invalid_request("Must specify the peer's ID to remove")
        missing = _not_a_server(member_id)
        done = await self._server.writer.execute(
            lambda snapshot, _moment: agents.remove_member(
                snapshot, member_id, not_found_text=missing, cause=request.id
            )
        )
        return ActionResult(None, done.index)

    async def transfer_leadership(self, request: Request) -> ActionResult:
        """Answered when the other leads, as this server's replica sees it."""
        await self._server.writer.catch_up()
        heir = self._heir(request.query)
        leader = self._server.replica.get(LEADER)
        if leader is None:
            raise Refusal(RefusalCode.UNAVAILABLE, "No cluster leader")
        if leader.member_id == heir.id:
            raise invalid_request(f"{heir.name or heir.id} leads already")
        await self._server.leader.call(TRANSFER_LEADERSHIP, TransferLeadershipRequest(heir.id))
        now = await self._taken_over(leader.member_id, heir)
        if now.member_id != heir.id:
            raise Refusal(RefusalCode.CONFLICT, f"{heir.name} did not take the leadership over, and another leads now")
        return ActionResult(None, now.modify_index)

    async def _taken_over(self, from_id: str, heir: Member) -> Leader:
        """The record of whoever leads next."""
        changed, replica = asyncio.Event(), self._server.replica
        subscription = replica.watches.subscribe([watch.watch_table(LEADER)], changed.set)
        try:
            async with asyncio.timeout(TRANSFER_TIMEOUT_S):
                while True:
                    changed.clear()
                    subscription.rearm()
                    now = replica.get(LEADER)
                    if now is not None and not now.heir and now.member_id != from_id:
                        return now
                    await changed.wait()
        except TimeoutError:
            raise Refusal(RefusalCode.UNAVAILABLE, f"{heir.name} did not take the leadership over") from None
        finally:
            subscription.close()

    def _heir(self, query: Mapping[str, str]) -> Member:
        has_id, has_address = "id" in query, "address" in query
        if not has_id and not has_address:
            raise invalid_request("must specify id or address")
        if has_id and has_address:
            raise invalid_request("must specify either id or address")
        found = list(self._server.replica.iter_all(MEMBERS))
        if has_id:
            wanted = query["id"]
            if not wanted:
                raise invalid_request("id must be non-empty")
            if not UUID_PATTERN.fullmatch(wanted) and all(member.id != wanted for member in found):
                raise invalid_request("id must be a uuid: uuid string is wrong length")
            matching = [member for member in found if member.id == wanted]
            what = "id"
        else:
            wanted = query["address"]
            if not wanted:
                raise invalid_request("address must be non-empty")
            if not _is_address(wanted):
                raise invalid_request("address must be in IP:port format: not an ip:port")
            matching = [member for member in found if member.address == wanted]
            what = "address"
        if not matching:
            raise invalid_request(f'{what} "{wanted}" was not found in the Raft configuration')
        return matching[0]

    async def read_health(self, _request: Request) -> ActionResult:
        """Every server is asked at once; one that does not answer in time is not healthy."""
        server, replica = self._server, self._server.replica
        found = list(replica.iter_all(MEMBERS))
        asking = [
            server.world.start_task(self._standing(member), name=f"standing of {member.name}") for member in found
        ]
        standings = await asyncio.gather(*asking)
        log_health = await check_engine_health(server.engine)
        judged = autopilot.assess_cluster_health(
            {member.id: standing for member, standing in zip(found, standings, strict=True)},
            newest_index=max([replica.index, *(standing.index for standing in standings if standing)]),
            configuration=configuration.get_autopilot_configuration(replica),
            can_decide=server.reader.has_leader() and log_health.writable,
            is_single_server=server.engine.is_single_server,
        )
        leader = replica.get(LEADER)
        leader_id = leader.member_id if leader else ""
        told = operator_wire.AutopilotHealth(
            healthy=judged.is_healthy,
            failure_tolerance=judged.failures_tolerated,
            leader=leader_id,
            voters=[member.id for member in found],
            servers=[
                _shown_health(member, health, is_leader=member.id == leader_id)
                for member, health in zip(found, judged.servers, strict=True)
            ],
        )
        return ActionResult(told, status=200 if judged.is_healthy else 429)

    async def _standing(self, member: Member) -> ServerLogStatus | None:
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                return await self._server.leader.call_member(member.id, GET_SERVER_STATUS, EmptyMessage())
        except (Refusal, TimeoutError):
            return None

    async def read_license(self, _request: Request) -> ActionResult:
        return ActionResult(status=204)

    def build_handlers(self) -> dict[str, ActionHandler]:
        return {
            "operator.state": self.read_state_sizes,
            "operator.set_scheduler": self.set_scheduler_configuration,
            "operator.set_autopilot": self.set_autopilot_configuration,
            "operator.remove_peer": self.remove_peer,
            "operator.transfer": self.transfer_leadership,
            "operator.rebalance": self.rebalance_cluster,
            "operator.health": self.read_health,
            "operator.license": self.read_license,
        }


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    return {**ClusterOperatorActions(server).build_handlers(), **SnapshotActions(server).build_handlers()}


def _expected(request: Request) -> int | None:
    """The version that the caller expects; None: whichever."""
    if "cas" not in request.query:
        return None
    given = request.query["cas"]
    if not UNSIGNED_PATTERN.fullmatch(given):
        raise invalid_request(f'Error parsing cas value: strconv.ParseUint: parsing "{given}": invalid syntax')
    return int(given)


def _not_a_server(member_id: str) -> str:
    return f'id "{member_id}" was not found in the Raft configuration'


def _is_address(text: str) -> bool:
    host, colon, port = text.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return bool(colon) and port.isdigit()


def _shown_health(member: Member, health: ServerHealth, *, is_leader: bool) -> operator_wire.AutopilotServer:
    standing = health.log_status or ServerLogStatus()
    contact_ns = standing.last_contact_ns
    return operator_wire.AutopilotServer(
        id=member.id,
        name=f"{member.name}.{member.region}",
        address=member.address,
        serf_status=member.status,
        version=member.build,
        leader=is_leader,
        last_contact="never" if contact_ns is None else format_duration(contact_ns),
        last_term=standing.epoch,
        last_index=standing.index,
        healthy=not health.unhealthy_reason,
        voter=True,
        stable_since=format_time(member.started_at),
        why_unhealthy=health.unhealthy_reason,
    )


SYSTEM_READ_HANDLERS: Final[dict[str, ReadHandler]] = {}


class MaintenanceActions:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def collect_garbage(self, request: Request) -> ActionResult:
        await self._server.leader.call(COLLECT_GARBAGE, MaintenanceRequest(request.id))
        return ActionResult()

    async def reconcile_summaries(self, request: Request) -> ActionResult:
        await self._server.leader.call(RECONCILE_SUMMARIES, MaintenanceRequest(request.id))
        return ActionResult()


def build_system_action_handlers(server: Server) -> dict[str, ActionHandler]:
    tidy = MaintenanceActions(server)
    return {"system.gc": tidy.collect_garbage, "system.reconcile": tidy.reconcile_summaries}
