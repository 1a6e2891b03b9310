"""Endpoints for operators: scheduler and autopilot configuration, servers, cluster health, audit log and garbage collection."""

import asyncio
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final, TypeVar

import msgspec

from wharf.cluster.api.handlers.agents.health import check_engine_health
from wharf.cluster.api.handlers.agents.server_list import LAST_CONTACT_TAG, list_known_members
from wharf.cluster.api.relay.members import relay_to_named_member
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.requests.values import UUID_PATTERN
from wharf.cluster.api.results import ActionHandler, ActionResult, ReadHandler
from wharf.cluster.operations import agents
from wharf.cluster.operations.operator import configuration
from wharf.cluster.server.agent_interface import AuditQuery
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.server.rpc.handlers.agents import (
    GET_SERVER_STATUS,
    TRANSFER_LEADERSHIP,
    TransferLeadershipRequest,
)
from wharf.cluster.server.rpc.handlers.dry_runs import REBALANCE, RebalanceRequest
from wharf.cluster.server.rpc.handlers.operator import COLLECT_GARBAGE, RECONCILE_SUMMARIES, MaintenanceRequest
from wharf.cluster.server.rpc.method import EmptyMessage
from wharf.cluster.server.server import Server
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import AUTOPILOT_CONFIGURATION, LEADER, MEMBERS, SCHEDULER_CONFIGURATION
from wharf.cluster.state.watches import watch_table
from wharf.contract.model.cluster import Leader, Member, MemberStatus
from wharf.contract.model.operator import autopilot
from wharf.contract.model.operator.autopilot import ServerHealth, ServerLogStatus
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.refusal import NO_LEADER_TEXT, Refusal, RefusalCode, RefusalReason, invalid_request
from wharf.contract.model.times import format_duration
from wharf.contract.wire import operator as operator_wire
from wharf.contract.wire.times import format_time

T = TypeVar("T")

STATUS_TIMEOUT_S: Final = 2.0
"""A server that does not report its status within this time is unhealthy. The whole reply must take less than the 2.5 s in which
a client with several servers expects a reply of each, also while a server is frozen or the log does not reply."""
TRANSFER_TIMEOUT_S: Final = 8.0
"""How long to wait until the new leader leads."""
UNSIGNED_PATTERN: Final = re.compile(r"[0-9]{1,19}")


def read_scheduler_configuration(replica: Replica, _request: Request, _options: QueryOptions) -> ReadResult:
    """Return the scheduler configuration, or the default one if none was stored."""
    record = replica.get(SCHEDULER_CONFIGURATION) or SchedulerConfiguration()
    reply = operator_wire.SchedulerConfigurationReply(
        scheduler_config=record, index=record.modify_index, known_leader=replica.get(LEADER) is not None
    )
    return ReadResult(reply, replica.get_last_change(SCHEDULER_CONFIGURATION), [watch_table(SCHEDULER_CONFIGURATION)])


def read_autopilot_configuration(replica: Replica, _request: Request, _options: QueryOptions) -> ReadResult:
    view = operator_wire.build_autopilot_view(configuration.get_autopilot_configuration(replica))
    return ReadResult(view, replica.get_last_change(AUTOPILOT_CONFIGURATION), [watch_table(AUTOPILOT_CONFIGURATION)])


def read_raft_configuration(replica: Replica, _request: Request, _options: QueryOptions) -> ReadResult:
    """Return the servers of the region, in the format of Nomad's Raft configuration."""
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
    reply = operator_wire.RaftConfiguration(servers=servers, index=index)
    return ReadResult(reply, index, [watch_table(MEMBERS), watch_table(LEADER)])


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "operator.scheduler": read_scheduler_configuration,
    "operator.autopilot": read_autopilot_configuration,
    "operator.raft": read_raft_configuration,
}


class ClusterOperatorActions:
    """Changes the cluster's configurations and servers, and reports its health."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def read_state_sizes(self, _request: Request) -> ActionResult:
        """Return the number of records of each table, and the health and size of the log."""
        replica = self._server.replica
        health = await check_engine_health(self._server)
        sizes = {name: replica.count_records(table) for name, table in replica.tables.items()}
        return ActionResult(
            operator_wire.StateSizes(index=replica.index, tables=sizes, engine=msgspec.structs.asdict(health))
        )

    async def list_audit_entries(self, request: Request) -> ActionResult:
        """Return entries of the audit log of this server or of the one that the request names. Raises `Refusal`."""
        limit = request.get_number("limit", default=operator_wire.DEFAULT_AUDIT_ENTRIES)
        search = request.get_text("search")
        if not 0 < limit <= operator_wire.MAX_AUDIT_ENTRIES:
            raise invalid_request(f"limit is {limit}; it must be a number from 1 to {operator_wire.MAX_AUDIT_ENTRIES}")
        if len(search) > operator_wire.MAX_AUDIT_SEARCH_CHARS:
            raise invalid_request(
                f"search has {len(search):,} characters; {operator_wire.MAX_AUDIT_SEARCH_CHARS} are allowed"
            )
        if (relayed := await relay_to_named_member(self._server, request)) is not None:
            return relayed
        query = AuditQuery(limit, search, request.get_flag("failed"), request.get_text("next_token"))
        page = await self._server.agent.read_audit_log(query)
        return ActionResult(
            operator_wire.AuditEntries(
                server_id=self._server.identity.member_id,
                entries=tuple(page.entries),
                next_token=page.next_token,
                is_incomplete=page.is_incomplete,
            )
        )

    # -- configurations --------------------------------------------------------------------------------------------

    async def set_scheduler_configuration(self, request: Request) -> ActionResult:
        """Replace the scheduler configuration. With `cas`, only if its ModifyIndex equals that number."""
        expected_version = _parse_expected_version(request)
        desired = _decode_configuration(request, SchedulerConfiguration, name="scheduler")
        result = await self._server.writer.execute(
            lambda snapshot, _context: configuration.set_scheduler_configuration(
                snapshot, desired, expected_version=expected_version, cause=request.id
            )
        )
        reply = operator_wire.SchedulerConfigurationWriteReply(updated=result.is_updated, index=result.index)
        return ActionResult(reply, result.index)

    async def set_autopilot_configuration(self, request: Request) -> ActionResult:
        """Replace the autopilot configuration.

        With `cas`, only if its ModifyIndex equals that number. Return whether it did.
        """
        expected_version = _parse_expected_version(request)
        view = _decode_configuration(request, operator_wire.AutopilotConfigurationView, name="autopilot")
        desired = operator_wire.parse_autopilot_view(view)
        result = await self._server.writer.execute(
            lambda snapshot, _context: configuration.set_autopilot_configuration(
                snapshot, desired, expected_version=expected_version, cause=request.id
            )
        )
        return ActionResult(result.is_updated)

    async def rebalance_cluster(self, request: Request) -> ActionResult:
        rebalance = RebalanceRequest(only_plan=request.get_flag("plan"), cause=request.id, owner=request.owner)
        result = await self._server.leader.call(REBALANCE, rebalance)
        return ActionResult(result)

    # -- servers ---------------------------------------------------------------------------------------------------

    async def remove_peer(self, request: Request) -> ActionResult:
        """Remove the failed server with the requested id from the list. Raises `Refusal` if it is unknown or alive."""
        if request.get_text("address"):
            raise invalid_request("removing a server by its address is not supported: use its id")
        member_id = request.get_text("id")
        if not member_id:
            raise invalid_request("Must specify the peer's ID to remove")
        not_found_text = f'id "{member_id}" was not found in the Raft configuration'
        result = await self._server.writer.execute(
            lambda snapshot, _context: agents.remove_member(
                snapshot, member_id, not_found_text=not_found_text, cause=request.id
            )
        )
        return ActionResult(None, result.index)

    async def transfer_leadership(self, request: Request) -> ActionResult:
        """Make the requested server the leader. Return once this server's replica shows it as the leader.

        Raises `Refusal` if another server became the leader, or none in time.
        """
        await self._server.writer.catch_up()
        successor = self._find_successor(request.query)
        leader = self._server.replica.get(LEADER)
        if leader is None:
            raise Refusal(RefusalCode.UNAVAILABLE, NO_LEADER_TEXT)
        if leader.member_id == successor.id:
            raise invalid_request(f"{successor.name or successor.id} is already the leader")
        await self._server.leader.call(TRANSFER_LEADERSHIP, TransferLeadershipRequest(successor.id))
        new_leader = await self._wait_for_new_leader(leader.member_id, successor)
        if new_leader.member_id != successor.id:
            raise Refusal(
                RefusalCode.CONFLICT,
                f"leadership not transferred: another server than {successor.name} is the leader now",
            )
        return ActionResult(None, new_leader.modify_index)

    async def _wait_for_new_leader(self, former_id: str, successor: Member) -> Leader:
        """Wait until another member than `former_id` is the leader and return its leader record.

        Raises `Refusal` after `TRANSFER_TIMEOUT_S`. `successor` is only named in the error.
        """
        changed, replica = asyncio.Event(), self._server.replica
        subscription = replica.watches.subscribe([watch_table(LEADER)], changed.set)
        try:
            async with asyncio.timeout(TRANSFER_TIMEOUT_S):
                while True:
                    changed.clear()
                    subscription.rearm()
                    leader = replica.get(LEADER)
                    if leader is not None and not leader.heir and leader.member_id != former_id:
                        return leader
                    await changed.wait()
        except TimeoutError:
            raise Refusal(
                RefusalCode.UNAVAILABLE,
                f"leadership not transferred: {successor.name} did not become the leader within {TRANSFER_TIMEOUT_S:g} s",
            ) from None
        finally:
            subscription.close()

    def _find_successor(self, query: Mapping[str, str]) -> Member:
        """Return the member that the query names by `id` or `address`.

        Raises `Refusal` unless it names exactly one member.
        """
        has_id, has_address = "id" in query, "address" in query
        if not has_id and not has_address:
            raise invalid_request("must specify id or address")
        if has_id and has_address:
            raise invalid_request("must specify either id or address")
        members = list(self._server.replica.iter_all(MEMBERS))
        if has_id:
            value = query["id"]
            if not value:
                raise invalid_request("id must be non-empty")
            if not UUID_PATTERN.fullmatch(value) and all(member.id != value for member in members):
                raise invalid_request("id must be a uuid: uuid string is wrong length")
            matching = [member for member in members if member.id == value]
            field = "id"
        else:
            value = query["address"]
            if not value:
                raise invalid_request("address must be non-empty")
            if not _is_address(value):
                raise invalid_request("address must be in IP:port format: not an ip:port")
            matching = [member for member in members if member.address == value]
            field = "address"
        if not matching:
            raise invalid_request(f'{field} "{value}" was not found in the Raft configuration')
        return matching[0]

    async def read_health(self, _request: Request) -> ActionResult:
        """Request the status of all servers at the same time and return the health of each. The status is 429 if
        unhealthy.

        A server that does not reply in time, or ended without leaving, is unhealthy.
        """
        server, replica = self._server, self._server.replica
        members = list_known_members(replica)
        log_check = server.world.start_task(check_engine_health(server), name="health of the log")
        tasks = [
            server.world.start_task(self._read_status(member), name=f"status of {member.name}") for member in members
        ]
        statuses, log_health = await asyncio.gather(*tasks), await log_check
        assessment = autopilot.assess_cluster_health(
            {member.id: status for member, status in zip(members, statuses, strict=True)},
            newest_index=max([replica.index, *(status.index for status in statuses if status)]),
            configuration=configuration.get_autopilot_configuration(replica),
            can_decide=server.reader.has_leader() and log_health.writable,
            is_single_server=server.engine.is_single_server,
        )
        leader = replica.get(LEADER) if server.reader.has_leader() else None
        leader_id = leader.member_id if leader else ""
        reply = operator_wire.AutopilotHealth(
            healthy=assessment.is_healthy,
            failure_tolerance=assessment.failures_tolerated,
            leader=leader_id,
            voters=[member.id for member in members if member.status is not MemberStatus.FAILED],
            servers=[
                _build_server_view(member, health, is_leader=member.id == leader_id)
                for member, health in zip(members, assessment.servers, strict=True)
            ],
        )
        return ActionResult(reply, status=200 if assessment.is_healthy else 429)

    async def _read_status(self, member: Member) -> ServerLogStatus | None:
        """Return the status that the member reports, or `None` if it cannot be reached in time or has ended."""
        if member.status is MemberStatus.FAILED:
            return None
        try:
            async with asyncio.timeout(STATUS_TIMEOUT_S):
                return await self._server.leader.call_member(member.id, GET_SERVER_STATUS, EmptyMessage())
        except (Refusal, TimeoutError):
            return None

    async def read_license(self, _request: Request) -> ActionResult:
        return ActionResult(status=204)


def _parse_expected_version(request: Request) -> int | None:
    """Return the ModifyIndex that the configuration must have (`cas`), or `None` without `cas`. Raises `Refusal`."""
    if "cas" not in request.query:
        return None
    text = request.query["cas"]
    if not UNSIGNED_PATTERN.fullmatch(text):
        raise invalid_request(f'Error parsing cas value: strconv.ParseUint: parsing "{text}": invalid syntax')
    return int(text)


def _decode_configuration(request: Request, body_type: type[T], *, name: str) -> T:
    """Return the decoded body. Raises a `Refusal` with `name` in its text, such as "Error parsing scheduler config".

    The refusal of an empty body has its usual text.
    """
    try:
        return request.decode_body(body_type)
    except Refusal as refusal:
        if refusal.reason is RefusalReason.EMPTY_BODY:
            raise
        raise Refusal(refusal.code, f"Error parsing {name} config: {refusal.text}") from refusal


def _is_address(text: str) -> bool:
    """Return whether the text is an IP address and a port, such as `10.0.0.1:4646`."""
    host, colon, port = text.rpartition(":")
    try:
        ip_address(host.strip("[]"))
    except ValueError:
        return False
    return bool(colon) and port.isdigit()


def _build_server_view(member: Member, health: ServerHealth, *, is_leader: bool) -> operator_wire.AutopilotServer:
    """Return the health of one server."""
    status = health.log_status or ServerLogStatus()
    contact_ns, is_failed = status.last_contact_ns, member.status is MemberStatus.FAILED
    return operator_wire.AutopilotServer(
        id=member.id,
        name=f"{member.name}.{member.region}",
        address=member.address,
        serf_status=member.status,
        version=member.build,
        leader=is_leader,
        last_contact=(member.tags or {}).get(LAST_CONTACT_TAG, "never")
        if contact_ns is None
        else format_duration(contact_ns),
        last_term=status.epoch,
        last_index=status.index,
        healthy=not health.unhealthy_reason,
        voter=not is_failed,
        stable_since=format_time(member.started_at),
        why_unhealthy="ended without leaving the cluster" if is_failed else health.unhealthy_reason,
    )


class MaintenanceActions:
    """Starts maintenance work on the leader now. The replies have no body."""

    def __init__(self, server: Server) -> None:
        self._server = server

    async def collect_garbage(self, request: Request) -> ActionResult:
        await self._server.leader.call(COLLECT_GARBAGE, MaintenanceRequest(request.id))
        return ActionResult()

    async def reconcile_summaries(self, request: Request) -> ActionResult:
        await self._server.leader.call(RECONCILE_SUMMARIES, MaintenanceRequest(request.id))
        return ActionResult()


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions, maintenance = ClusterOperatorActions(server), MaintenanceActions(server)
    return {
        "operator.state": actions.read_state_sizes,
        "operator.audit": actions.list_audit_entries,
        "operator.set_scheduler": actions.set_scheduler_configuration,
        "operator.set_autopilot": actions.set_autopilot_configuration,
        "operator.remove_peer": actions.remove_peer,
        "operator.transfer": actions.transfer_leadership,
        "operator.rebalance": actions.rebalance_cluster,
        "operator.health": actions.read_health,
        "operator.license": actions.read_license,
        "system.gc": maintenance.collect_garbage,
        "system.reconcile": maintenance.reconcile_summaries,
    }
