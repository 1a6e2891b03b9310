"""RPC handlers for operator actions on nodes: drain, evaluate, purge."""

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
    """A request for one node. `cause`: the id of the request."""

    node_id: str
    cause: str = ""


DRAIN_NODE: Final = RpcMethod("drain-node", DrainRequest, NodeWriteResult)
EVALUATE_NODE: Final = RpcMethod("evaluate-node", NodeRequest, NodeWriteResult)
PURGE_NODE: Final = RpcMethod("purge-node", NodeRequest, NodeWriteResult)


class NodeHandlers:
    """Handles RPC methods of nodes."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain

    async def drain_node(self, request: DrainRequest) -> NodeWriteResult:
        """Start, change or cancel a drain."""
        limit = self._brain.max_evaluations
        return await self._brain.execute(
            lambda snapshot, context: drains.update_drain(snapshot, request, context, max_evaluations=limit)
        )

    async def evaluate_node(self, request: NodeRequest) -> NodeWriteResult:
        """Create evaluations of all jobs on the node, in as many writes as needed."""
        ids: tuple[str, ...] = ()
        evaluated: dict[tuple[str, str], None] = {}

        def evaluate_some(snapshot: Replica, context: DecisionContext) -> Decision[evaluations.NodeEvaluationResult]:
            limit = self._brain.max_evaluations
            return evaluations.evaluate_node(
                snapshot, request.node_id, context, evaluated_jobs=evaluated, max_evaluations=limit, cause=request.cause
            )

        while True:
            result = await self._brain.execute(evaluate_some)
            ids += result.eval_ids
            evaluated |= dict.fromkeys(result.job_keys)
            if result.is_complete:
                return NodeWriteResult(result.index, ids)

    async def purge_node(self, request: NodeRequest) -> NodeWriteResult:
        """Delete a node."""
        limit = self._brain.max_evaluations
        return await self._brain.execute(
            lambda snapshot, context: registration.purge_node(
                snapshot, request.node_id, context, max_evaluations=limit, cause=request.cause
            )
        )


def build_routes(brain: Brain) -> tuple[RpcRoute, ...]:
    """Return the RPC methods of nodes with their handlers."""
    handlers = NodeHandlers(brain)
    return (
        (DRAIN_NODE, handlers.drain_node),
        (EVALUATE_NODE, handlers.evaluate_node),
        (PURGE_NODE, handlers.purge_node),
    )
