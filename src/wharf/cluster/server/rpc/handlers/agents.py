"""What a brain says of its server, leading or not; and the leader's word that another is to lead."""

from typing import Final

import msgspec

from wharf.cluster.server.brain import Brain, BrainMetrics
from wharf.cluster.server.metrics import ProcessMetrics, measure_process
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.contract.model.operator.autopilot import ServerLogStatus


class EmptyMessage(msgspec.Struct, frozen=True):
    """A question that needs no words."""


class TransferLeadershipRequest(msgspec.Struct, frozen=True):
    heir: str


class ServerMetrics(msgspec.Struct, frozen=True):
    brain: BrainMetrics
    process: ProcessMetrics


GET_SERVER_STATUS: Final = RpcMethod("server-standing", EmptyMessage, ServerLogStatus)
GET_SERVER_METRICS: Final = RpcMethod("server-figures", EmptyMessage, ServerMetrics)
TRANSFER_LEADERSHIP: Final = RpcMethod("hand-over", TransferLeadershipRequest, EmptyMessage)


class AgentHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def get_status(self, _question: EmptyMessage) -> ServerLogStatus:
        return await self._brain.measure_status()

    async def get_metrics(self, _question: EmptyMessage) -> ServerMetrics:
        return ServerMetrics(self._brain.collect_metrics(), measure_process())

    async def transfer_leadership(self, wanted: TransferLeadershipRequest) -> EmptyMessage:
        await self._brain.transfer_leadership(wanted.heir)
        return EmptyMessage()


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    servers = AgentHandlers(brain)
    return (
        (GET_SERVER_STATUS, servers.get_status),
        (GET_SERVER_METRICS, servers.get_metrics),
        (TRANSFER_LEADERSHIP, servers.transfer_leadership),
    )
