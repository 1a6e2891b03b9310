"""Endpoints of scaling policies."""

from typing import Final

from wharf.model import need
from wharf.model.scaling import ScalingPolicy
from wharf.wire.endpoints.endpoint import Decides, Endpoint, Lists, reads, text
from wharf.wire.work_shapes import ScalingPolicyStub

ROWS: Final[tuple[Endpoint, ...]] = (
    reads(
        "scaling.list", "/v1/scaling/policies", need=need.LIST_SCALING_POLICIES, summary="List scaling policies.",
        lists=Lists(record=ScalingPolicy, reverses=False, filters=False, pages=False),
        returns=list[ScalingPolicyStub],
        parameters=(
            text("job", "Only those of the job with this id."),
            text("type", "Only those of this type, such as `horizontal`."),
        ),
    ),
    reads(
        "scaling.read", "/v1/scaling/policy/{policy_id}", need=need.READ_SCALING_POLICY, decides=Decides.OBJECT,
        summary="Read a scaling policy.", returns=ScalingPolicy,
    ),
)  # fmt: skip
