"""Client methods for scaling policies."""

from typing import Unpack

from wharf.contract.client.calls import ListOptions, ListSpec, ReadOptions, ReadSpec
from wharf.contract.client.methods import M, MethodGroup, list_method, read_method
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.wire import scaling


class ScalingMethods(MethodGroup[M]):
    """The methods of `client.scaling`. Each describes a call, which the client then sends."""

    @list_method("scaling.list")
    def list(
        self, *, job: str = "", type: str = "", **options: Unpack[ListOptions]
    ) -> ListSpec[scaling.ScalingPolicyStub]:
        """List scaling policies, optionally only those of one job or one type, such as `horizontal`."""
        return ListSpec(options, job=job, type=type)

    @read_method("scaling.read")
    def read(self, policy_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[ScalingPolicy]:
        """Read the scaling policy with this ID."""
        return ReadSpec(options, policy_id)
