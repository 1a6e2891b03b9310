"""What people ask of the leader about nodes: drain, evaluate, purge."""

from typing import Final

import msgspec

from wharf.cluster.operations.decision import Decision
from wharf.cluster.operations.nodes import drains, evaluations, registration
from wharf.cluster.operations.nodes.drains import DrainRequest
from wharf.cluster.operations.nodes.writes import NodeWriteResult
from wharf.cluster.server.brain import Brain
from wharf.cluster.server.rpc.method import RpcMethod, RpcRoute
from wharf.cluster.state import Replica
from wharf.contract.model.times import DecisionContext


class NodeRequest(msgspec.Struct, frozen=True):
    node_id: str
    cause: str = ""


DRAIN_NODE: Final = RpcMethod("drain-node", DrainRequest, NodeWriteResult)
EVALUATE_NODE: Final = RpcMethod("evaluate-node", NodeRequest, NodeWriteResult)
PURGE_NODE: Final = RpcMethod("purge-node", NodeRequest, NodeWriteResult)


class NodeHandlers:
    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def drain_node(self, wish: DrainRequest) -> NodeWriteResult:
        most = self._brain.max_evaluations
        return await self._brain.execute(
            lambda snapshot, moment: drains.update_drain(snapshot, wish, moment, max_evaluations=most)
        )

    async def evaluate_node(self, asked: NodeRequest) -> NodeWriteResult:
        """In as many writes as it takes: each job is looked at by itself."""
        ids: tuple[str, ...] = ()
        done: dict[tuple[str, str], None] = {}

        def look(snapshot: Replica, moment: DecisionContext) -> Decision[evaluations.NodeEvaluationResult]:
            most = self._brain.max_evaluations
            return evaluations.evaluate_node(
                snapshot, asked.node_id, moment, evaluated_jobs=done, max_evaluations=most, cause=asked.cause
            )

        while True:
            part = await self._brain.execute(look)
            ids += part.eval_ids
            done |= dict.fromkeys(part.job_keys)
            if part.is_complete:
                return NodeWriteResult(part.index, ids)

    async def purge_node(self, asked: NodeRequest) -> NodeWriteResult:
        most = self._brain.max_evaluations
        return await self._brain.execute(
            lambda snapshot, moment: registration.purge_node(
                snapshot, asked.node_id, moment, max_evaluations=most, cause=asked.cause
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    about = NodeHandlers(brain)
    return ((DRAIN_NODE, about.drain_node), (EVALUATE_NODE, about.evaluate_node), (PURGE_NODE, about.purge_node))
