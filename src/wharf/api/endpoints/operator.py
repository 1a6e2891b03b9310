"""Endpoints for those who run the cluster: its configurations, its servers, its health, its snapshots."""

import asyncio
import re
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Final

import msgspec

from wharf.api.answers import Act, Done, Reading
from wharf.api.endpoints.snapshots import Snapshots
from wharf.api.health import health_of
from wharf.api.request import ReadOptions, Request
from wharf.model import autopilot
from wharf.model.autopilot import ServerHealth, ServerStanding
from wharf.model.cluster import Leader, Member
from wharf.model.durations import say_duration
from wharf.model.refusal import Code, Refusal, invalid
from wharf.model.scheduler_configuration import SchedulerConfiguration
from wharf.operations import members, operator
from wharf.server.answering.forethought import REBALANCE, ToRebalance
from wharf.server.answering.servers import HAND_OVER, STANDING, HandOver, Nothing
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import AUTOPILOT_CONFIGURATION, LEADER, MEMBERS, SCHEDULER_CONFIGURATION
from wharf.wire import operator_shapes, shapes
from wharf.wire.moments import say_moment

STANDING_WITHIN_S: Final = 3.0
TAKEN_OVER_WITHIN_S: Final = 8.0
NUMBER: Final = re.compile(r"[0-9]{1,19}")
UUID: Final = re.compile(r"[0-9a-fA-F]{8}-(?:[0-9a-fA-F]{4}-){3}[0-9a-fA-F]{12}")


def scheduler_read(replica: Replica, _request: Request, _options: ReadOptions) -> Found:
    found = replica.get(SCHEDULER_CONFIGURATION) or SchedulerConfiguration()
    told = operator_shapes.SchedulerConfigurationRead(
        scheduler_config=found, index=found.modify_index, known_leader=replica.get(LEADER) is not None
    )
    return Found(told, replica.last_change(SCHEDULER_CONFIGURATION), [watch.whole(SCHEDULER_CONFIGURATION)])


def autopilot_read(replica: Replica, _request: Request, _options: ReadOptions) -> Found:
    told = operator_shapes.shown_autopilot(operator.autopilot_configuration(replica))
    return Found(told, replica.last_change(AUTOPILOT_CONFIGURATION), [watch.whole(AUTOPILOT_CONFIGURATION)])


def raft_read(replica: Replica, _request: Request, _options: ReadOptions) -> Found:
    leader, index = replica.get(LEADER), replica.last_change(MEMBERS, LEADER)
    servers = [
        operator_shapes.RaftServer(
            id=member.id,
            node=f"{member.name}.{member.region}" if member.name else "(unknown)",
            address=member.address,
            leader=leader is not None and leader.member_id == member.id,
            voter=True,
        )
        for member in replica.all(MEMBERS)
    ]
    told = operator_shapes.RaftConfiguration(servers=servers, index=index)
    return Found(told, index, [watch.whole(MEMBERS), watch.whole(LEADER)])


READS: Final[dict[str, Reading]] = {
    "operator.scheduler": scheduler_read,
    "operator.autopilot": autopilot_read,
    "operator.raft": raft_read,
}


class Operator:
    def __init__(self, server: Server) -> None:
        self._server = server

    async def state(self, _request: Request) -> Done:
        replica = self._server.replica
        health = await health_of(self._server.engine)
        sizes = {name: replica.count(table) for name, table in replica.tables.items()}
        return Done(shapes.StateSizes(index=replica.index, tables=sizes, engine=msgspec.structs.asdict(health)))

    # -- configurations --------------------------------------------------------------------------------------------

    async def set_scheduler(self, request: Request) -> Done:
        expected = _expected(request)
        try:
            wanted = request.read_body(SchedulerConfiguration)
        except Refusal as refusal:
            if refusal.text == "Request body is empty":
                raise
            raise Refusal(refusal.code, f"Error parsing scheduler config: {refusal.text}") from refusal
        done = await self._server.writer.write(
            lambda snapshot, _moment: operator.set_scheduler_configuration(
                snapshot, wanted, expected=expected, cause=request.id
            )
        )
        reply = operator_shapes.SchedulerConfigurationWritten(updated=done.is_updated, index=done.index)
        return Done(reply, done.index)

    async def set_autopilot(self, request: Request) -> Done:
        expected = _expected(request)
        try:
            document = request.read_body(operator_shapes.AutopilotDocument)
        except Refusal as refusal:
            if refusal.text == "Request body is empty":
                raise
            raise Refusal(refusal.code, f"Error parsing autopilot config: {refusal.text}") from refusal
        wanted = operator_shapes.read_autopilot(document)
        done = await self._server.writer.write(
            lambda snapshot, _moment: operator.set_autopilot_configuration(
                snapshot, wanted, expected=expected, cause=request.id
            )
        )
        return Done(done.is_updated)

    async def rebalance(self, request: Request) -> Done:
        asked = ToRebalance(only_plan=request.flag("plan"), cause=request.id)
        told = await self._server.leader.ask(REBALANCE, asked)
        return Done(told)

    # -- servers ---------------------------------------------------------------------------------------------------

    async def remove_peer(self, request: Request) -> Done:
        if request.text("address"):
            raise invalid("removing a server by its address is not supported: use its id")
        member_id = request.text("id")
        if not member_id:
            raise invalid("Must specify the peer's ID to remove")
        missing = _not_a_server(member_id)
        done = await self._server.writer.write(
            lambda snapshot, _moment: members.forget(snapshot, member_id, missing=missing, cause=request.id)
        )
        return Done(None, done.index)

    async def transfer(self, request: Request) -> Done:
        """Answered when the other leads, as this server's replica sees it."""
        await self._server.writer.catch_up()
        heir = self._heir(request.query)
        leader = self._server.replica.get(LEADER)
        if leader is None:
            raise Refusal(Code.UNAVAILABLE, "No cluster leader")
        if leader.member_id == heir.id:
            raise invalid(f"{heir.name or heir.id} leads already")
        await self._server.leader.ask(HAND_OVER, HandOver(heir.id))
        now = await self._taken_over(leader.member_id, heir)
        if now.member_id != heir.id:
            raise Refusal(Code.CONFLICT, f"{heir.name} did not take the leadership over, and another leads now")
        return Done(None, now.modify_index)

    async def _taken_over(self, from_id: str, heir: Member) -> Leader:
        """The record of whoever leads next."""
        changed, replica = asyncio.Event(), self._server.replica
        subscription = replica.watches.subscribe([watch.whole(LEADER)], changed.set)
        try:
            async with asyncio.timeout(TAKEN_OVER_WITHIN_S):
                while True:
                    changed.clear()
                    subscription.rearm()
                    now = replica.get(LEADER)
                    if now is not None and not now.heir and now.member_id != from_id:
                        return now
                    await changed.wait()
        except TimeoutError:
            raise Refusal(Code.UNAVAILABLE, f"{heir.name} did not take the leadership over") from None
        finally:
            subscription.end()

    def _heir(self, query: Mapping[str, str]) -> Member:
        has_id, has_address = "id" in query, "address" in query
        if not has_id and not has_address:
            raise invalid("must specify id or address")
        if has_id and has_address:
            raise invalid("must specify either id or address")
        found = list(self._server.replica.all(MEMBERS))
        if has_id:
            wanted = query["id"]
            if not wanted:
                raise invalid("id must be non-empty")
            if not UUID.fullmatch(wanted) and all(member.id != wanted for member in found):
                raise invalid("id must be a uuid: uuid string is wrong length")
            matching = [member for member in found if member.id == wanted]
            what = "id"
        else:
            wanted = query["address"]
            if not wanted:
                raise invalid("address must be non-empty")
            if not _is_address(wanted):
                raise invalid("address must be in IP:port format: not an ip:port")
            matching = [member for member in found if member.address == wanted]
            what = "address"
        if not matching:
            raise invalid(f'{what} "{wanted}" was not found in the Raft configuration')
        return matching[0]

    async def health(self, _request: Request) -> Done:
        """Every server is asked at once; one that does not answer in time is not healthy."""
        server, replica = self._server, self._server.replica
        found = list(replica.all(MEMBERS))
        asking = [server.world.start(self._standing(member), name=f"standing of {member.name}") for member in found]
        standings = await asyncio.gather(*asking)
        log_health = await health_of(server.engine)
        judged = autopilot.assess(
            {member.id: standing for member, standing in zip(found, standings, strict=True)},
            newest_index=max([replica.index, *(standing.index for standing in standings if standing)]),
            configuration=operator.autopilot_configuration(replica),
            can_decide=server.reader.knows_leader() and log_health.writable,
            single_server=server.engine.single_server,
        )
        leader = replica.get(LEADER)
        leader_id = leader.member_id if leader else ""
        told = operator_shapes.AutopilotHealth(
            healthy=judged.is_healthy,
            failure_tolerance=judged.failures_tolerated,
            leader=leader_id,
            voters=[member.id for member in found],
            servers=[
                _shown_health(member, health, is_leader=member.id == leader_id)
                for member, health in zip(found, judged.servers, strict=True)
            ],
        )
        return Done(told, status=200 if judged.is_healthy else 429)

    async def _standing(self, member: Member) -> ServerStanding | None:
        try:
            async with asyncio.timeout(STANDING_WITHIN_S):
                return await self._server.leader.ask_member(member.id, STANDING, Nothing())
        except (Refusal, TimeoutError):
            return None

    async def license(self, _request: Request) -> Done:
        return Done(status=204)

    def table(self) -> dict[str, Act]:
        return {
            "operator.state": self.state,
            "operator.set_scheduler": self.set_scheduler,
            "operator.set_autopilot": self.set_autopilot,
            "operator.remove_peer": self.remove_peer,
            "operator.transfer": self.transfer,
            "operator.rebalance": self.rebalance,
            "operator.health": self.health,
            "operator.license": self.license,
        }


def acts_of(server: Server) -> dict[str, Act]:
    return {**Operator(server).table(), **Snapshots(server).table()}


def _expected(request: Request) -> int | None:
    """The version that the caller expects; None: whichever."""
    if "cas" not in request.query:
        return None
    given = request.query["cas"]
    if not NUMBER.fullmatch(given):
        raise invalid(f'Error parsing cas value: strconv.ParseUint: parsing "{given}": invalid syntax')
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


def _shown_health(member: Member, health: ServerHealth, *, is_leader: bool) -> operator_shapes.AutopilotServer:
    standing = health.standing or ServerStanding()
    contact_ns = standing.last_contact_ns
    return operator_shapes.AutopilotServer(
        id=member.id,
        name=f"{member.name}.{member.region}",
        address=member.address,
        serf_status=member.status,
        version=member.build,
        leader=is_leader,
        last_contact="never" if contact_ns is None else say_duration(contact_ns),
        last_term=standing.epoch,
        last_index=standing.index,
        healthy=not health.why_unhealthy,
        voter=True,
        stable_since=say_moment(member.started_at),
        why_unhealthy=health.why_unhealthy,
    )
