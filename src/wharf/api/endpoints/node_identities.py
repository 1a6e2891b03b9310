"""Identities that nodes have signed: of the tasks that they run, and their own. Whoever asks shows the node's secret."""

import asyncio
from typing import Final

from wharf.api.answers import Act, Done, Reading
from wharf.api.endpoints.node_agents import NodeSpeech
from wharf.api.request import Request
from wharf.model.durations import SECOND
from wharf.model.refusal import Code, Refusal, invalid
from wharf.server.server import Server
from wharf.server.workload_identities import node_to_sign, workloads_to_sign
from wharf.state.tables import ALLOCATIONS
from wharf.wire.identity_shapes import IdentitiesReply, IdentitiesRequest, NodeIdentityReply, SignedIdentity

NAMES_MAX: Final = 100

READS: Final[dict[str, Reading]] = {}


class NodeIdentities:
    def __init__(self, server: Server) -> None:
        self._server = server
        self._speech = NodeSpeech(server)

    async def of_task(self, request: Request) -> Done:
        node = await self._speech.authenticated_now(request)
        asked = request.read_body(IdentitiesRequest)
        if len(asked.names) > NAMES_MAX:
            raise invalid(f"{len(asked.names)} identities are too many; ask for {NAMES_MAX} at a time")
        server = self._server
        if server.replica.get(ALLOCATIONS, asked.alloc_id) is None:
            await server.reader.catch_up()  # A server that lags: the node was told by another one.
        workloads = workloads_to_sign(
            server.replica, node, asked.alloc_id, asked.task, asked.names, region=server.identity.region
        )
        await server.access.begin_ring(server.replica, server.leader)
        found = []
        for workload in workloads:
            moment = server.writer.moment()
            signed = server.access.identities.sign_workload(server.replica, workload, moment)
            expires = _in_whole_seconds(moment.now_ns + workload.ttl_ns) if workload.ttl_ns else 0
            found.append(SignedIdentity(name=workload.name, jwt=signed, issued=moment.now_ns, expires=expires))
            await asyncio.sleep(0)  # Each takes a millisecond: others have their turn between two.
        return Done(IdentitiesReply(identities=tuple(found)))

    async def of_node(self, request: Request) -> Done:
        node = await self._speech.authenticated_now(request)
        server = self._server
        await server.access.begin_ring(server.replica, server.leader)
        key = server.access.keyring.active_key(server.replica)
        if key is None:
            raise Refusal(Code.UNAVAILABLE, "the keyring has no active key yet; ask again in a moment")
        moment = server.writer.moment()
        wanted = node_to_sign(server.replica, node, region=server.identity.region)
        signed = server.access.identities.sign_node(server.replica, wanted, moment)
        expires = _in_whole_seconds(moment.now_ns + wanted.ttl_ns)
        identity = SignedIdentity(name="default", jwt=signed, issued=moment.now_ns, expires=expires)
        return Done(NodeIdentityReply(identity=identity, signing_key_id=key.key_id))


def _in_whole_seconds(ns: int) -> int:
    """As the claim says it."""
    return ns // SECOND * SECOND


def acts_of(server: Server) -> dict[str, Act]:
    identities = NodeIdentities(server)
    return {"node.identities": identities.of_task, "node.own_identity": identities.of_node}
