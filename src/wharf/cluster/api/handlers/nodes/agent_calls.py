"""Endpoints that a node agent executes: its metadata, statistics, garbage collection and identity.

The node is named by `node_id`; without one, it is the node of this server's own agent.
"""

import re
from typing import Final

from wharf.cluster.api.handlers.allocations.node_calls import NodeCaller
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import ActionHandler, ActionResult, require_record
from wharf.cluster.server.server import Server
from wharf.cluster.state.tables import NODES
from wharf.contract.model.body_limits import cut_echo
from wharf.contract.model.refusal import invalid_request
from wharf.contract.wire.nodes.messages import NodeIdentityRequest, NodeMetaApplyRequest

META_KEY_PATTERN: Final = re.compile(r"[a-zA-Z_][a-zA-Z0-9_-]*(?:\.[a-zA-Z_][a-zA-Z0-9_-]*)*")


class NodeAgentActions:
    """Forwards requests to the node agent that `node_id` names; by default that of this server's own agent."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._nodes = NodeCaller(server)

    async def call_agent(self, request: Request) -> ActionResult:
        """Have the node agent execute a request that needs no further checks, such as reading statistics."""
        return await self._call_agent(request, request.get_text("node_id"))

    async def apply_metadata(self, request: Request) -> ActionResult:
        """Have the node agent change the metadata of its node. Raises `Refusal` if a key is invalid."""
        body = request.decode_body(NodeMetaApplyRequest)
        if not body.meta:
            raise invalid_request("missing required Meta object")
        invalid_keys = [key for key in body.meta if not META_KEY_PATTERN.fullmatch(key)]
        if invalid_keys:
            raise invalid_request(
                f"invalid meta key {invalid_keys[0]!r}: use names of letters, digits, `_` and `-`, joined by dots"
            )
        return await self._call_agent(request, request.get_text("node_id") or body.node_id)

    async def renew_identity(self, request: Request) -> ActionResult:
        """Have the node agent request a new signed identity for its node."""
        body = request.decode_body(NodeIdentityRequest) if request.body else NodeIdentityRequest()
        return await self._call_agent(request, request.get_text("node_id") or body.node_id)

    async def _call_agent(self, request: Request, node_id: str) -> ActionResult:
        """Return the reply of the node agent.

        An empty id means the node of this server's own agent. Raises `Refusal`.
        """
        node_id = node_id or self._server.agent.info.node_id
        if not node_id:
            raise invalid_request("missing node ID: this agent runs no node; name one with `node_id`")
        await require_record(self._server, NODES, node_id, not_found_text=f"Unknown node {cut_echo(node_id)}")
        return await self._nodes.call_node(request, node_id)


def build_action_handlers(server: Server) -> dict[str, ActionHandler]:
    actions = NodeAgentActions(server)
    return {
        "client.metadata": actions.call_agent,
        "client.metadata_apply": actions.apply_metadata,
        "client.stats": actions.call_agent,
        "client.gc": actions.call_agent,
        "client.gc_now": actions.call_agent,
        "client.identity": actions.call_agent,
        "client.identity_renew": actions.renew_identity,
    }
