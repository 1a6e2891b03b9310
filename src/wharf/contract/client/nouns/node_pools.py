"""Client methods for node pools."""

from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.node_pools import NodePool
from wharf.contract.wire.jobs import messages as job_messages
from wharf.contract.wire.nodes import messages


class NodePoolMethods(MethodGroup[M]):
    """The methods of `client.node_pools`. Each describes a call, which the client then sends."""

    @list_method("node_pool.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[NodePool]:
        """List the node pools that the caller may read."""
        return ListSpec(options)

    @read_method("node_pool.read")
    def read(self, name: str, **options: Unpack[ReadOptions]) -> ReadSpec[NodePool]:
        """Read the node pool with this name."""
        return ReadSpec(options, name)

    @call_method("node_pool.store")
    def store(self, pool: NodePool, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create the node pool, or replace the one with its name."""
        return CallSpec(options, body=pool)

    @call_method("node_pool.update")
    def update(self, name: str, pool: NodePool, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Create or replace the node pool with this name."""
        return CallSpec(options, name, body=pool)

    @call_method("node_pool.delete")
    def delete(self, name: str, **options: Unpack[WriteOptions]) -> CallSpec[None]:
        """Delete the node pool with this name, which must not be in use."""
        return CallSpec(options, name)

    @list_method("node_pool.nodes")
    def nodes(
        self, name: str, *, resources: bool = False, os: bool = False, **options: Unpack[ListOptions]
    ) -> ListSpec[messages.NodeListStub]:
        """List the nodes of a pool. `resources` and `os` select whether these fields are included."""
        return ListSpec(options, name, resources=resources, os=os)

    @list_method("node_pool.jobs")
    def jobs(self, name: str, *, meta: bool = False, **options: Unpack[ListOptions]) -> ListSpec[job_messages.JobStub]:
        """List the jobs of a pool. `meta`: include the metadata of each job."""
        return ListSpec(options, name, meta=meta)
