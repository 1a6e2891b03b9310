"""Restarts progress deadlines that no leader could watch, and records that this was done after a restore.

Which deadlines these are is decided in `controllers.deployments`. Those of drains are restarted by `nodes.drains`.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from wharf.cluster.operations.decision import Decision, WriteBuilder
from wharf.cluster.operations.deployments import restart_progress_deadlines
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import CLUSTER_FORMAT, DEPLOYMENTS
from wharf.contract.model.deployments import DeploymentStatus
from wharf.contract.model.log import Cause, CauseKind
from wharf.contract.model.times import DecisionContext

CAUSE = Cause(CauseKind.TIMER, "new term")


def restart_deployments(
    snapshot: Replica, context: DecisionContext, *, deployment_ids: Sequence[str]
) -> Decision[int] | None:
    """Return the decision that counts the progress deadlines of these deployments from now. The reply is their number.

    Deployments that no longer run are left out. Return `None` if none of them runs.
    """
    builder = WriteBuilder(snapshot)
    for deployment_id in deployment_ids:
        deployment = snapshot.get(DEPLOYMENTS, deployment_id)
        if deployment is not None and deployment.status is DeploymentStatus.RUNNING:
            builder.put(DEPLOYMENTS, restart_progress_deadlines(deployment, context))
            builder.require_unchanged_record(DEPLOYMENTS, deployment)
    return _build_decision("deployments-timed", builder)


def are_deadlines_restored(snapshot: Replica) -> bool:
    """Return whether the log was restored, and its deadlines were not restarted completely since."""
    stored = snapshot.get(CLUSTER_FORMAT)
    return stored is not None and stored.deadlines_epoch != snapshot.epoch


def record_restarted_deadlines(snapshot: Replica) -> Decision[int] | None:
    """Return the decision that records that all deadlines of the restored log were restarted; `None` if it is recorded.

    The log counts its epochs: each restore begins a new one.
    """
    stored = snapshot.get(CLUSTER_FORMAT)
    if stored is None or stored.deadlines_epoch == snapshot.epoch:
        return None
    builder = WriteBuilder(snapshot)
    builder.put(CLUSTER_FORMAT, replace(stored, deadlines_epoch=snapshot.epoch))
    builder.require_unchanged_record(CLUSTER_FORMAT, stored)
    return _build_decision("deadlines-restarted", builder)


def _build_decision(write_kind: str, builder: WriteBuilder) -> Decision[int] | None:
    """Return the decision of the collected changes, whose reply is their number, or `None` if there are none."""
    count = len(builder.changes)
    return Decision(builder.build(write_kind, CAUSE), lambda _index: count) if count else None
