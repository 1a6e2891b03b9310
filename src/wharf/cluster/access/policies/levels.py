"""Which capabilities a policy level stands for, and which capabilities include others (reference 5.4)."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final, TypeVar

from wharf.contract.model.acl.capabilities import (
    Capability,
    HostVolumeMountCapability,
    NodePoolCapability,
    OperatorCapability,
    PolicyLevel,
    VariableCapability,
)

K = TypeVar("K", bound=StrEnum)
C = Capability

_READ: Final = (
    C.LIST_JOBS, C.PARSE_JOB, C.READ_JOB, C.CSI_LIST_VOLUME, C.CSI_READ_VOLUME, C.READ_JOB_SCALING,
    C.LIST_SCALING_POLICIES, C.READ_SCALING_POLICY, C.HOST_VOLUME_READ,
)  # fmt: skip

NAMESPACE_LEVELS: Final[Mapping[PolicyLevel, tuple[Capability, ...]]] = MappingProxyType({
    PolicyLevel.DENY: (C.DENY,),
    PolicyLevel.READ: _READ,
    PolicyLevel.WRITE: (
        *_READ,
        C.SCALE_JOB, C.SUBMIT_JOB, C.DISPATCH_JOB, C.READ_LOGS, C.READ_FS, C.ALLOC_EXEC, C.ALLOC_LIFECYCLE,
        C.CSI_MOUNT_VOLUME, C.CSI_WRITE_VOLUME, C.SUBMIT_RECOMMENDATION, C.HOST_VOLUME_CREATE,
    ),
    PolicyLevel.SCALE: (
        C.LIST_SCALING_POLICIES, C.READ_SCALING_POLICY, C.READ_JOB_SCALING, C.SCALE_JOB, C.READ_JOB,
        C.SUBMIT_RECOMMENDATION,
    ),
})  # fmt: skip

POOL_LEVELS: Final[Mapping[PolicyLevel, tuple[NodePoolCapability, ...]]] = MappingProxyType({
    PolicyLevel.DENY: (NodePoolCapability.DENY,),
    PolicyLevel.READ: (NodePoolCapability.READ,),
    PolicyLevel.WRITE: (NodePoolCapability.DELETE, NodePoolCapability.READ, NodePoolCapability.WRITE),
})  # fmt: skip

HOST_VOLUME_LEVELS: Final[Mapping[PolicyLevel, tuple[HostVolumeMountCapability, ...]]] = MappingProxyType({
    PolicyLevel.DENY: (HostVolumeMountCapability.DENY,),
    PolicyLevel.READ: (HostVolumeMountCapability.MOUNT_READ_ONLY,),
    PolicyLevel.WRITE: (HostVolumeMountCapability.MOUNT_READ_ONLY, HostVolumeMountCapability.MOUNT_READ_WRITE),
})  # fmt: skip

_OPERATOR_READ: Final = (OperatorCapability.LICENSE_READ, OperatorCapability.KEYRING_READ)

# Scopes without labels, except `plugin`, accept the level `scale`, which grants nothing there.
OPERATOR_LEVELS: Final[Mapping[PolicyLevel, tuple[OperatorCapability, ...]]] = MappingProxyType({
    PolicyLevel.DENY: (OperatorCapability.DENY,),
    PolicyLevel.READ: _OPERATOR_READ,
    PolicyLevel.WRITE: (
        *_OPERATOR_READ,
        OperatorCapability.SNAPSHOT_SAVE, OperatorCapability.KEYRING_ROTATE, OperatorCapability.KEYRING_DELETE,
    ),
    PolicyLevel.SCALE: (),
})  # fmt: skip

UNLABELLED_LEVELS: Final = (PolicyLevel.DENY, PolicyLevel.READ, PolicyLevel.WRITE, PolicyLevel.SCALE)
PLUGIN_LEVELS: Final = (PolicyLevel.DENY, PolicyLevel.LIST, PolicyLevel.READ, PolicyLevel.WRITE)

NAMESPACE_COVERS: Final[Mapping[Capability, tuple[Capability, ...]]] = MappingProxyType({
    C.SUBMIT_JOB: (
        C.REGISTER_JOB, C.REVERT_JOB, C.DEREGISTER_JOB, C.PURGE_JOB, C.EVALUATE_JOB, C.PLAN_JOB, C.TAG_JOB_VERSION,
        C.STABLE_JOB, C.FORCE_PERIODIC_JOB, C.FAIL_DEPLOYMENT, C.PAUSE_DEPLOYMENT, C.PROMOTE_DEPLOYMENT,
        C.UNBLOCK_DEPLOYMENT, C.CANCEL_DEPLOYMENT, C.SET_ALLOC_HEALTH_DEPLOYMENT, C.GC_ALLOCATION, C.PAUSE_ALLOCATION,
        C.DELETE_SERVICE_REGISTRATION,
    ),
    C.HOST_VOLUME_WRITE: (
        C.HOST_VOLUME_REGISTER, C.HOST_VOLUME_CREATE, C.HOST_VOLUME_DELETE, C.HOST_VOLUME_READ,
    ),
    C.HOST_VOLUME_REGISTER: (C.HOST_VOLUME_CREATE, C.HOST_VOLUME_READ),
    C.HOST_VOLUME_CREATE: (C.HOST_VOLUME_READ,),
})  # fmt: skip

VARIABLE_COVERS: Final[Mapping[VariableCapability, tuple[VariableCapability, ...]]] = MappingProxyType({
    VariableCapability.READ: (VariableCapability.LIST,),
})  # fmt: skip


def expand_capabilities(capabilities: Iterable[K], covers: Mapping[K, tuple[K, ...]]) -> frozenset[K]:
    """Return the capabilities and all that they include."""
    expanded = set(capabilities)
    return frozenset(expanded.union(*(covers[capability] for capability in expanded if capability in covers)))
