"""RPC handlers for probes, for a server's own status and metrics, and for leadership transfer."""

from typing import Final

import msgspec

from wharf.cluster.server.brain import Brain, BrainMetrics
from wharf.cluster.server.metrics import ProcessMetrics, measure_process
from wharf.cluster.server.rpc.method import PING, EmptyMessage, RpcMethod, RpcRoute
from wharf.contract.model.operator.autopilot import ServerLogStatus


class TransferLeadershipRequest(msgspec.Struct, frozen=True):
    """A request to the leader to give its leadership to another member."""

    heir: str
    """The id of the member that should lead."""


class ServerMetrics(msgspec.Struct, frozen=True):
    """The leader's queue lengths and the resource usage of the brain process of one server."""

    brain: BrainMetrics
    process: ProcessMetrics


GET_SERVER_STATUS: Final = RpcMethod("server-standing", EmptyMessage, ServerLogStatus)
GET_SERVER_METRICS: Final = RpcMethod("server-figures", EmptyMessage, ServerMetrics)
TRANSFER_LEADERSHIP: Final = RpcMethod("hand-over", TransferLeadershipRequest, EmptyMessage)


class AgentHandlers:
    """Handles the calls that concern this server: its status, its metrics and a transfer of its leadership."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def ping(self, request: EmptyMessage) -> EmptyMessage:
        return request

    async def get_status(self, _request: EmptyMessage) -> ServerLogStatus:
        return await self._brain.measure_status()

    async def get_metrics(self, _request: EmptyMessage) -> ServerMetrics:
        return ServerMetrics(self._brain.collect_metrics(), measure_process())

    async def transfer_leadership(self, request: TransferLeadershipRequest) -> EmptyMessage:
        await self._brain.transfer_leadership(request.heir)
        return EmptyMessage()


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of servers with their handlers."""
    handlers = AgentHandlers(brain)
    return (
        (PING, handlers.ping),
        (GET_SERVER_STATUS, handlers.get_status),
        (GET_SERVER_METRICS, handlers.get_metrics),
        (TRANSFER_LEADERSHIP, handlers.transfer_leadership),
    )
