"""Endpoints and messages of scaling policies."""

from typing import Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.record import Record
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.wire.endpoint import Endpoint, ListFeatures, ScopeSource, define_read, text


class ScalingPolicyStub(Record):
    """A scaling policy in a list."""

    id: str
    enabled: bool = True
    type: str = ""  # Such as `horizontal`.
    target: dict[str, str] | None = None  # `Namespace`, `Job` and `Group` that the policy scales.
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


ROWS: Final[tuple[Endpoint, ...]] = (
    define_read(
        "scaling.list", "/v1/scaling/policies", need=permissions.LIST_SCALING_POLICIES, summary="List scaling policies.",
        list_features=ListFeatures(record=ScalingPolicy, can_reverse=False, can_filter=False, has_pages=False, filtering_parameters=("job", "type")),
        reply_type=list[ScalingPolicyStub],
        parameters=(
            text("job", "Only policies of the job with this ID."),
            text("type", "Only policies of this type, such as `horizontal`."),
        ),
    ),
    define_read(
        "scaling.read", "/v1/scaling/policy/{policy_id}", need=permissions.READ_SCALING_POLICY, scope_source=ScopeSource.OBJECT,
        summary="Read a scaling policy.", reply_type=ScalingPolicy,
    ),
)  # fmt: skip
