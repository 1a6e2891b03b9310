"""How the leader's brain answers what is asked of it: one module for each noun, joined here.

Each module declares its subjects with their forms, and a class that decides by one operation and commits as the leader
(`Brain.decide`). No rule of the domain stands here.
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


def build_routes(brain: Brain, sideline: WorkerProcess) -> tuple[RpcRoute, ...]:
    """Every subject with the method that answers it."""
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
        *dry_runs.build_routes(brain, sideline),
        *directory.build_routes(),
    )
