"""Reads of scaling policies. Policies are written with their jobs only."""

from typing import Final

from wharf.cluster.api.lists.listing import ALL_NAMESPACES, Listing, list_by_name, list_records
from wharf.cluster.api.requests.parameters import QueryOptions
from wharf.cluster.api.requests.request import Request
from wharf.cluster.api.results import MissingRecord, ReadHandler, find_record
from wharf.cluster.server.log.reader import ReadResult
from wharf.cluster.state import Replica
from wharf.cluster.state.tables import SCALING_POLICIES, SCALING_POLICIES_OF_JOB
from wharf.cluster.state.watches import watch_index
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.wire.scaling import ScalingPolicyStub


def list_scaling_policies(replica: Replica, request: Request, options: QueryOptions) -> Listing[ScalingPolicy]:
    """List the scaling policies of the namespace. The parameters `job`, `type` and `prefix` select some of them."""
    job_id, policy_type = request.get_text("job"), request.get_text("type")

    def is_selected(policy: ScalingPolicy) -> bool:
        return (
            options.namespace in (ALL_NAMESPACES, get_policy_namespace(policy))
            and (not job_id or (policy.target or {}).get("Job") == job_id)
            and (not policy_type or policy.type == policy_type)
            and policy.id.startswith(options.prefix)
        )

    if not job_id or options.namespace == ALL_NAMESPACES:
        return list_by_name(
            replica,
            SCALING_POLICIES,
            options,
            is_selected=is_selected,
            get_namespace=get_policy_namespace,
            build_view=_build_stub,
        )
    policies = replica.list_by_index(SCALING_POLICIES_OF_JOB, options.namespace, job_id)
    return list_records(
        filter(is_selected, policies),
        index=replica.get_last_change(SCALING_POLICIES),
        watched=[watch_index(SCALING_POLICIES_OF_JOB, options.namespace, job_id)],
        make_token=lambda policy: policy.id,
        get_namespace=get_policy_namespace,
        build_view=_build_stub,
    )


def get_policy_namespace(policy: ScalingPolicy) -> str:
    """Return the namespace of the job that the policy scales."""
    return (policy.target or {}).get("Namespace", "")


def _build_stub(policy: ScalingPolicy) -> ScalingPolicyStub:
    return ScalingPolicyStub(
        id=policy.id,
        enabled=policy.enabled,
        type=policy.type,
        target=policy.target,
        create_index=policy.create_index,
        modify_index=policy.modify_index,
    )


def read_scaling_policy(replica: Replica, request: Request, _options: QueryOptions) -> ReadResult:
    """Return the scaling policy, or a missing record. Raises `Refusal` if the caller may not read its namespace."""
    policy, index, watched = find_record(
        replica, SCALING_POLICIES, request.get_path_value("policy_id"), missing_text="policy not found"
    )
    if not isinstance(policy, MissingRecord):
        request.require_permission(namespace=get_policy_namespace(policy))
    return ReadResult(policy, index, watched)


READ_HANDLERS: Final[dict[str, ReadHandler]] = {
    "scaling.list": list_scaling_policies,
    "scaling.read": read_scaling_policy,
}
