"""Handlers of RPC methods on the leader's brain, one module per noun.

Each module declares its methods with their message types, and a class whose handlers run one operation and commit it
as leader. The rules are in `operations`.
"""

from wharf.cluster.server.brain import Brain
from wharf.cluster.server.node_channels import directory
from wharf.cluster.server.rpc.handlers import (
    acl,
    agents,
    allocations,
    deployments,
    dry_runs,
    evaluations,
    jobs,
    keyring,
    nodes,
    operator,
    variables,
)
from wharf.cluster.server.rpc.method import RpcRoute
from wharf.cluster.server.worker_process import WorkerProcess

__all__ = ["RpcRoute", "build_routes"]


def build_routes(brain: Brain, worker: WorkerProcess) -> tuple[RpcRoute, ...]:
    """Return every RPC method with its handler, except those in `rpc.leader`."""
    return (
        *agents.build_routes(brain),
        *deployments.build_routes(brain),
        *allocations.build_routes(brain),
        *evaluations.build_routes(brain),
        *jobs.build_routes(brain),
        *nodes.build_routes(brain),
        *operator.build_routes(brain),
        *acl.build_routes(brain),
        *keyring.build_routes(brain),
        *variables.build_routes(brain),
        *dry_runs.build_routes(brain, worker),
        *directory.build_routes(),
    )
