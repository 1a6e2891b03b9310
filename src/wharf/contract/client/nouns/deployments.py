"""Client methods for deployments."""

from collections.abc import Sequence
from typing import Unpack

from wharf.contract.client.calls import CallSpec, ListOptions, ListSpec, ReadOptions, ReadSpec, WriteOptions
from wharf.contract.client.methods import M, MethodGroup, call_method, list_method, read_method
from wharf.contract.model.allocations.allocation import AllocationStub
from wharf.contract.model.deployments import Deployment
from wharf.contract.wire import deployments


class DeploymentMethods(MethodGroup[M]):
    """The methods of `client.deployments`. Each describes a call, which the client then sends."""

    @list_method("deployment.list")
    def list(self, **options: Unpack[ListOptions]) -> ListSpec[Deployment]:
        """List deployments."""
        return ListSpec(options)

    @read_method("deployment.read")
    def read(self, deployment_id: str, **options: Unpack[ReadOptions]) -> ReadSpec[Deployment]:
        """Read the deployment with this ID."""
        return ReadSpec(options, deployment_id)

    @list_method("deployment.allocations")
    def allocations(self, deployment_id: str, **options: Unpack[ReadOptions]) -> ListSpec[AllocationStub]:
        """List the allocations of the deployment with this ID."""
        return ListSpec(options, deployment_id)

    @call_method("deployment.fail")
    def fail(
        self, deployment_id: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[deployments.DeploymentUpdateResponse]:
        """Mark a deployment as failed. If auto-revert is on, the job returns to its last stable version."""
        return CallSpec(options, deployment_id)

    @call_method("deployment.pause")
    def pause(
        self, deployment_id: str, *, pause: bool = True, **options: Unpack[WriteOptions]
    ) -> CallSpec[deployments.DeploymentUpdateResponse]:
        """Pause a deployment; `pause=False` resumes it."""
        body = deployments.DeploymentPauseRequest(deployment_id=deployment_id, pause=pause)
        return CallSpec(options, deployment_id, body=body)

    @call_method("deployment.promote")
    def promote(
        self, deployment_id: str, groups: Sequence[str] = (), **options: Unpack[WriteOptions]
    ) -> CallSpec[deployments.DeploymentUpdateResponse]:
        """Promote the canaries of these groups, or of all groups that have canaries."""
        body = deployments.DeploymentPromoteRequest(
            deployment_id=deployment_id, all=not groups, groups=tuple(groups) or None
        )
        return CallSpec(options, deployment_id, body=body)

    @call_method("deployment.unblock")
    def unblock(
        self, deployment_id: str, **options: Unpack[WriteOptions]
    ) -> CallSpec[deployments.DeploymentUpdateResponse]:
        """Unblock a deployment that waits for other regions."""
        return CallSpec(options, deployment_id, body=deployments.DeploymentUnblockRequest(deployment_id=deployment_id))

    @call_method("deployment.health")
    def set_health(
        self,
        deployment_id: str,
        *,
        healthy: Sequence[str] = (),
        unhealthy: Sequence[str] = (),
        **options: Unpack[WriteOptions],
    ) -> CallSpec[deployments.DeploymentUpdateResponse]:
        """Set the health of allocations of a deployment. `healthy` and `unhealthy` are allocation IDs."""
        body = deployments.DeploymentHealthRequest(
            deployment_id=deployment_id,
            healthy_allocation_ids=tuple(healthy),
            unhealthy_allocation_ids=tuple(unhealthy),
        )
        return CallSpec(options, deployment_id, body=body)
