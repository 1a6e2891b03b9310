"""."""

from typing import Unpack

from wharf.contract.client.calls import ListOptions, ListSpec, ReadOptions, ReadSpec
from wharf.contract.client.methods import M, MethodGroup, list_method, read_method
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.wire import scaling


class ScalingMethods(MethodGroup[M]):
    @list_method("scaling.list")
    def list(
        self, *, job: str = "", type: str = "", **options: Unpack[ListOptions]
    ) -> ListSpec[scaling.ScalingPolicyStub]:
        return ListSpec(options, job=job, type=type)

    @read_method("scaling.read")
    def read(self, policy_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[ScalingPolicy]:
        return ReadSpec(options, policy_id)
