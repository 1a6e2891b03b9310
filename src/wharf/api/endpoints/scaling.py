"""Endpoints of scaling policies. They are written with their jobs, and by nobody else."""

from typing import Final

from wharf.api.answers import Act, Missing, Reading, one
from wharf.api.listing import EVERY_NAMESPACE, Listing, gathered
from wharf.api.request import ReadOptions, Request
from wharf.model.scaling import ScalingPolicy
from wharf.server.reading import Found
from wharf.server.server import Server
from wharf.state import Replica
from wharf.state import watches as watch
from wharf.state.tables import POLICIES_OF_JOB, SCALING_POLICIES
from wharf.wire.work_shapes import ScalingPolicyStub


def scaling_list(replica: Replica, request: Request, options: ReadOptions) -> Listing[ScalingPolicy]:
    job_id, kind = request.text("job"), request.text("type")
    if job_id and options.namespace != EVERY_NAMESPACE:
        found = replica.those(POLICIES_OF_JOB, options.namespace, job_id)
        watched = [watch.those(POLICIES_OF_JOB, options.namespace, job_id)]
    else:
        found = list(replica.all(SCALING_POLICIES))
        watched = [watch.whole(SCALING_POLICIES)]
    chosen = (
        policy
        for policy in found
        if options.namespace in (EVERY_NAMESPACE, namespace_of(policy))
        and (not job_id or (policy.target or {}).get("Job") == job_id)
        and (not kind or policy.type == kind)
        and policy.id.startswith(options.prefix)
    )
    return gathered(
        chosen,
        index=replica.last_change(SCALING_POLICIES),
        watched=watched,
        token_of=lambda policy: policy.id,
        namespace_of=namespace_of,
        shown=_stub,
    )


def namespace_of(policy: ScalingPolicy) -> str:
    """That of the job it scales."""
    return (policy.target or {}).get("Namespace", "")


def _stub(policy: ScalingPolicy) -> ScalingPolicyStub:
    return ScalingPolicyStub(
        id=policy.id,
        enabled=policy.enabled,
        type=policy.type,
        target=policy.target,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )


def scaling_read(replica: Replica, request: Request, _options: ReadOptions) -> Found:
    found, index, watched = one(replica, SCALING_POLICIES, request.value("policy_id"), missing="policy not found")
    if not isinstance(found, Missing):
        request.require(namespace=namespace_of(found))
    return Found(found, index, watched)


READS: Final[dict[str, Reading]] = {"scaling.list": scaling_list, "scaling.read": scaling_read}


def acts_of(_server: Server) -> dict[str, Act]:
    return {}
