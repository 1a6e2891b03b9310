"""Dispatches RPC calls to the handlers of a brain."""

import asyncio
import logging
from typing import Final

import msgspec

from wharf.cluster.server.brain import Brain
from wharf.cluster.server.node_channels import directory
from wharf.cluster.server.rpc.handlers import (
    acl,
    agents,
    allocations,
    deployments,
    dry_runs,
    evaluations,
    flows,
    jobs,
    keyring,
    nodes,
    operator,
    variables,
)
from wharf.cluster.server.rpc.method import RpcReply, RpcRoute
from wharf.cluster.server.worker_process import InlineWorker, WorkerProcess
from wharf.contract.model.refusal import Refusal, RefusalCode

MAX_BYTES_PER_STEP: Final = 1_000_000
"""After the receipt of a larger request, other tasks run before it is decoded."""

log = logging.getLogger(__name__)

_encode = msgspec.msgpack.Encoder().encode


class RpcDispatcher:
    """Executes RPC calls: decodes the request, calls the handler of the method and encodes the reply.

    Always replies.
    """

    def __init__(self, brain: Brain, *, worker: WorkerProcess | None = None) -> None:
        """`worker`: runs long computations; without it they run in the brain's loop."""
        routes = _build_routes(brain, worker or InlineWorker())
        self._by_name = {method.name: (method, handler) for method, handler in routes}

    async def call(self, name: str, body: bytes) -> RpcReply:
        """Execute the method `name` with the encoded request `body`, and return its reply. Errors become refusals."""
        if name not in self._by_name:
            return RpcReply(
                code=RefusalCode.INVALID, text=f"unknown RPC method {name!r}: this server may run an older version"
            )
        method, handler = self._by_name[name]
        if len(body) > MAX_BYTES_PER_STEP:
            await asyncio.sleep(0)  # Its receipt took a few milliseconds already.
        try:
            request = method.decode_request(body)
        except msgspec.MsgspecError as error:
            return RpcReply(code=RefusalCode.INVALID, text=f"cannot decode the request of RPC method {name!r}: {error}")
        try:
            return RpcReply(_encode(await handler(request)))
        except Refusal as refusal:
            return RpcReply(
                code=refusal.code, text=refusal.text, reason=refusal.reason, retry_after_s=refusal.retry_after_s
            )
        except Exception:  # The caller must get a reply, or it waits until its timeout.
            log.exception("RPC call failed method=%s", name)
            return RpcReply(
                code=RefusalCode.OUTCOME_UNKNOWN, text=f"internal error in RPC method {name!r}; see the leader's log"
            )


def _build_routes(brain: Brain, worker: WorkerProcess) -> tuple[RpcRoute, ...]:
    """Return every RPC method of the brain with its handler."""
    return (
        *agents.build_routes(brain),
        *deployments.build_routes(brain),
        *allocations.build_routes(brain),
        *evaluations.build_routes(brain),
        *jobs.build_routes(brain),
        *flows.build_routes(brain),
        *nodes.build_routes(brain),
        *operator.build_routes(brain),
        *acl.build_routes(brain),
        *keyring.build_routes(brain),
        *variables.build_routes(brain),
        *dry_runs.build_routes(brain, worker),
        *directory.build_routes(),
    )
