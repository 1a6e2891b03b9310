"""Permissions: what an operation requires of its caller (reference 5.5, and the tables it points to).

Each endpoint names one permission; `access.Rights` decides whether a caller has it. A permission with several capabilities
needs only one of them. `AllPermissions` combines requirements on several parts of the cluster.
"""

import enum
from typing import Final, TypeAlias

import msgspec

from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    PolicyScope,
    VariableCapability,
)


class DenialDetail(enum.Enum):
    """How precisely a reply explains that a token is invalid. Clients match the texts, so endpoints differ."""

    GENERIC = "curt"  # The default: the same text for every reason.
    TOKEN = "token"  # Used by the endpoints that read the caller's own token, or a token by its accessor.
    AGENT = "agent"  # Used by the endpoints agent self, host and reload, and for parsing jobs.
    AGENT_SHORT = "agent-short"  # Used by the endpoints agent schedulers, force-leave and keyring.


class PublicAccess(msgspec.Struct, frozen=True):
    """The permission of an endpoint that anyone may call: no token is needed or checked."""


class AnyToken(msgspec.Struct, frozen=True):
    """The permission of an endpoint that accepts any valid token, or no token.

    Its reply contains only what the caller may see.
    """


class ManagementToken(msgspec.Struct, frozen=True):
    """The permission of an endpoint that requires a management token, which has all rights."""


class NamespacePermission(msgspec.Struct, frozen=True):
    """Requires at least one of these capabilities in the namespace of the requested object."""

    capabilities: tuple[Capability, ...]


class AnyNamespacePermission(msgspec.Struct, frozen=True):
    """Requires any capability in the requested namespace, whichever it is."""


class VariablePermission(msgspec.Struct, frozen=True):
    """Requires this capability on the path of the requested variable, in its namespace."""

    capability: VariableCapability


class NodePoolPermission(msgspec.Struct, frozen=True):
    """Requires this capability on the requested node pool."""

    capability: NodePoolCapability


class HostVolumePermission(msgspec.Struct, frozen=True):
    """Requires at least one of these capabilities on the requested host volume."""

    capabilities: tuple[HostVolumeMountCapability, ...]


class LevelPermission(msgspec.Struct, frozen=True):
    """Requires this level of access, or a higher one, in a part of the cluster.

    Only parts without named objects have such permissions, such as `PolicyScope.NODE`.
    """

    scope: PolicyScope
    level: PolicyLevel


class OperatorPermission(msgspec.Struct, frozen=True):
    """Requires this capability on the cluster itself, such as saving a snapshot."""

    capability: OperatorCapability


class AllPermissions(msgspec.Struct, frozen=True):
    """Requires all of these permissions."""

    permissions: tuple["Permission", ...]


class AnyPermission(msgspec.Struct, frozen=True):
    """Requires at least one of these permissions."""

    permissions: tuple["Permission", ...]


Permission: TypeAlias = (
    PublicAccess | AnyToken | ManagementToken | NamespacePermission | AnyNamespacePermission | VariablePermission | NodePoolPermission | HostVolumePermission | LevelPermission
    | OperatorPermission | AllPermissions | AnyPermission
)  # fmt: skip


def _in_namespace(*capabilities: Capability) -> NamespacePermission:
    """Return a permission that requires at least one of these capabilities in the requested object's namespace."""
    return NamespacePermission(capabilities)


C = Capability

PUBLIC_ACCESS: Final = PublicAccess()
ANY_TOKEN: Final = AnyToken()
MANAGEMENT_TOKEN: Final = ManagementToken()

# -- jobs ----------------------------------------------------------------------------------------------------------

LIST_JOBS: Final = _in_namespace(C.LIST_JOBS)
READ_JOB: Final = _in_namespace(C.READ_JOB)  # Also evaluations, allocations, deployments, statuses, services.
VALIDATE_JOB: Final = _in_namespace(C.READ_JOB)
PARSE_JOB: Final = _in_namespace(C.PARSE_JOB, C.SUBMIT_JOB)
REGISTER_JOB: Final = _in_namespace(C.SUBMIT_JOB, C.REGISTER_JOB)
PLAN_JOB: Final = _in_namespace(C.SUBMIT_JOB, C.PLAN_JOB)
STOP_JOB: Final = _in_namespace(C.SUBMIT_JOB, C.PURGE_JOB, C.DEREGISTER_JOB)
PURGE_JOB: Final = _in_namespace(C.SUBMIT_JOB, C.PURGE_JOB)
REVERT_JOB: Final = _in_namespace(C.SUBMIT_JOB, C.REVERT_JOB)
EVALUATE_JOB: Final = _in_namespace(C.SUBMIT_JOB, C.EVALUATE_JOB)
MARK_JOB_STABLE: Final = _in_namespace(C.SUBMIT_JOB, C.STABLE_JOB)
TAG_JOB_VERSION: Final = _in_namespace(C.SUBMIT_JOB, C.TAG_JOB_VERSION)
FORCE_PERIODIC_LAUNCH: Final = _in_namespace(C.DISPATCH_JOB, C.SUBMIT_JOB, C.FORCE_PERIODIC_JOB)
DISPATCH_JOB: Final = _in_namespace(C.DISPATCH_JOB)
SCALE_JOB: Final = _in_namespace(C.SCALE_JOB, C.SUBMIT_JOB)
READ_JOB_SCALING: Final = _in_namespace(C.READ_JOB, C.READ_JOB_SCALING)
OVERRIDE_POLICY: Final = _in_namespace(C.SENTINEL_OVERRIDE)
"""Required in addition to the permission of the registration or plan that requests the override."""
MOUNT_HOST_VOLUME_READ_ONLY: Final = HostVolumePermission(
    (HostVolumeMountCapability.MOUNT_READ_ONLY, HostVolumeMountCapability.MOUNT_READ_WRITE)
)
MOUNT_HOST_VOLUME_READ_WRITE: Final = HostVolumePermission((HostVolumeMountCapability.MOUNT_READ_WRITE,))
"""One of these two is required in addition to the permission of the registration, for each host volume of the job."""
MOUNT_CSI_VOLUME: Final = _in_namespace(C.CSI_MOUNT_VOLUME)

# -- allocations and deployments -------------------------------------------------------------------------------------------------

CONTROL_ALLOCATION: Final = _in_namespace(C.ALLOC_LIFECYCLE)  # Stop, restart, signal.
PAUSE_ALLOCATION: Final = _in_namespace(C.SUBMIT_JOB, C.PAUSE_ALLOCATION)
COLLECT_ALLOCATION: Final = _in_namespace(C.SUBMIT_JOB, C.GC_ALLOCATION)
EXEC_IN_TASK: Final = _in_namespace(C.ALLOC_EXEC)  # Job actions too.
EXEC_ON_NODE: Final = AllPermissions((EXEC_IN_TASK, _in_namespace(C.ALLOC_NODE_EXEC)))
"""Required if the task's driver does not isolate the file system of the task from the node's."""
READ_LOGS: Final = _in_namespace(C.READ_LOGS, C.READ_FS)
READ_FILES: Final = _in_namespace(C.READ_FS)
FAIL_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.FAIL_DEPLOYMENT)
PAUSE_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.PAUSE_DEPLOYMENT)
PROMOTE_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.PROMOTE_DEPLOYMENT)
UNBLOCK_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.UNBLOCK_DEPLOYMENT)
CANCEL_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.CANCEL_DEPLOYMENT)
SET_ALLOCATION_HEALTH: Final = _in_namespace(C.SUBMIT_JOB, C.SET_ALLOC_HEALTH_DEPLOYMENT)
DELETE_EVALUATIONS: Final = MANAGEMENT_TOKEN
DELETE_SERVICE: Final = _in_namespace(C.SUBMIT_JOB, C.DELETE_SERVICE_REGISTRATION)

# -- scaling policies, volumes, variables --------------------------------------------------------------------------

_JOB_READERS: Final = AllPermissions((LIST_JOBS, READ_JOB))
LIST_SCALING_POLICIES: Final = AnyPermission((_in_namespace(C.LIST_SCALING_POLICIES), _JOB_READERS))
READ_SCALING_POLICY: Final = AnyPermission((_in_namespace(C.READ_SCALING_POLICY), _JOB_READERS))
LIST_HOST_VOLUMES: Final = _in_namespace(C.HOST_VOLUME_READ)
READ_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_READ)
CREATE_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_CREATE)
REGISTER_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_REGISTER)
DELETE_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_DELETE)
LIST_VARIABLES: Final = VariablePermission(VariableCapability.LIST)
READ_VARIABLE: Final = VariablePermission(VariableCapability.READ)
WRITE_VARIABLE: Final = VariablePermission(VariableCapability.WRITE)
DESTROY_VARIABLE: Final = VariablePermission(VariableCapability.DESTROY)

LIST_CSI_VOLUMES: Final = _in_namespace(C.CSI_LIST_VOLUME)
READ_CSI_VOLUME: Final = AllPermissions(
    (_in_namespace(C.CSI_READ_VOLUME), LevelPermission(PolicyScope.PLUGIN, PolicyLevel.READ))
)
READ_NAMESPACE: Final = AnyNamespacePermission()

# -- nodes ------------------------------------------------------------------------------------------------------

READ_NODE: Final = LevelPermission(PolicyScope.NODE, PolicyLevel.READ)  # Statistics too.
WRITE_NODE: Final = LevelPermission(
    PolicyScope.NODE, PolicyLevel.WRITE
)  # Drain, eligibility, purge, metadata, collection.
READ_NODE_POOL: Final = NodePoolPermission(NodePoolCapability.READ)
WRITE_NODE_POOL: Final = NodePoolPermission(NodePoolCapability.WRITE)
DELETE_NODE_POOL: Final = NodePoolPermission(NodePoolCapability.DELETE)
READ_NODE_POOL_NODES: Final = AllPermissions((READ_NODE, READ_NODE_POOL))
LIST_NODE_POOL_JOBS: Final = AllPermissions((LIST_JOBS, READ_NODE_POOL))

# -- the cluster ---------------------------------------------------------------------------------------------------

READ_AGENT: Final = LevelPermission(PolicyScope.AGENT, PolicyLevel.READ)
WRITE_AGENT: Final = LevelPermission(PolicyScope.AGENT, PolicyLevel.WRITE)
READ_OPERATOR: Final = LevelPermission(PolicyScope.OPERATOR, PolicyLevel.READ)
WRITE_OPERATOR: Final = LevelPermission(PolicyScope.OPERATOR, PolicyLevel.WRITE)
SAVE_SNAPSHOT: Final = OperatorPermission(OperatorCapability.SNAPSHOT_SAVE)
READ_KEYRING: Final = OperatorPermission(OperatorCapability.KEYRING_READ)
ROTATE_KEYRING: Final = OperatorPermission(OperatorCapability.KEYRING_ROTATE)
DELETE_KEY: Final = OperatorPermission(OperatorCapability.KEYRING_DELETE)
READ_QUOTA: Final = LevelPermission(PolicyScope.QUOTA, PolicyLevel.READ)
WRITE_QUOTA: Final = LevelPermission(PolicyScope.QUOTA, PolicyLevel.WRITE)
LIST_PLUGINS: Final = LevelPermission(PolicyScope.PLUGIN, PolicyLevel.LIST)
READ_PLUGIN: Final = LevelPermission(PolicyScope.PLUGIN, PolicyLevel.READ)
