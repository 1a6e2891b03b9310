"""Client methods for the use of the cluster."""

from typing import Unpack

from wharf.contract.client.calls import ReadOptions, ReadSpec
from wharf.contract.client.methods import M, MethodGroup, read_method
from wharf.contract.model.usage import ClusterUsage


class UsageMethods(MethodGroup[M]):
    """The methods of `client.usage`. Each describes a call, which the client then sends."""

    @read_method("cluster.usage")
    def read(self, *, order: str = "cpu", limit: int = 50, **options: Unpack[ReadOptions]) -> ReadSpec[ClusterUsage]:
        """Read the fullest nodes, the largest jobs, and what waits for capacity.

        `order` is `cpu`, `memory`, `allocations` or `name`. `limit` applies to each of the lists.
        """
        return ReadSpec(options, order=order, limit=limit)
