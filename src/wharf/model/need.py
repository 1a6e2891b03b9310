"""What an operation needs of its caller, by group of operations (reference 5.5, and the tables it points to).

An endpoint names one of these; `access.Rights.meet` answers whether a caller has it. A need is met if one of its
capabilities is there; those that name several parts of the cluster at once are joined by `Both`.
"""

import enum
from typing import Final, TypeAlias

import msgspec

from wharf.model.capability import (
    Capability,
    HostVolumeCapability,
    Level,
    OperatorCapability,
    PoolCapability,
    Scope,
    VariableCapability,
)


class Manner(enum.Enum):
    """How much an endpoint says of a token that does not hold. Clients know the texts (`access.denial`)."""

    CURT = "curt"  # Nearly all: one answer for every reason.
    TOKEN = "token"  # Reading one's own token or one by accessor.
    AGENT = "agent"  # Agent self, host, reload, and parsing of jobs.
    AGENT_SHORT = "agent-short"  # Agent schedulers, force-leave, keyring.


class Nothing(msgspec.Struct, frozen=True):
    """Open to everybody; the token is not even looked at."""


class AnyToken(msgspec.Struct, frozen=True):
    """Whoever is known may ask, also without a token: the answer holds only what the caller may see."""


class Management(msgspec.Struct, frozen=True):
    """A management token."""


class InNamespace(msgspec.Struct, frozen=True):
    """One of these, in the namespace of what is asked for."""

    any_of: tuple[Capability, ...]


class InSightOfNamespace(msgspec.Struct, frozen=True):
    """Any right in the namespace that is asked for."""


class OnVariable(msgspec.Struct, frozen=True):
    """This, for the path of the variable in its namespace."""

    capability: VariableCapability


class OnPool(msgspec.Struct, frozen=True):
    """This, for the node pool that is asked for."""

    capability: PoolCapability


class OnHostVolume(msgspec.Struct, frozen=True):
    """One of these, for the volume that is asked for."""

    any_of: tuple[HostVolumeCapability, ...]


class OfLevel(msgspec.Struct, frozen=True):
    """This level or a higher one, in a scope that has no labels."""

    scope: Scope
    level: Level


class OfOperator(msgspec.Struct, frozen=True):
    """This capability of operators."""

    capability: OperatorCapability


class Both(msgspec.Struct, frozen=True):
    """All of these."""

    needs: tuple["Need", ...]


class Either(msgspec.Struct, frozen=True):
    """One of these."""

    needs: tuple["Need", ...]


Need: TypeAlias = (
    Nothing | AnyToken | Management | InNamespace | InSightOfNamespace | OnVariable | OnPool | OnHostVolume | OfLevel
    | OfOperator | Both | Either
)  # fmt: skip


def _in_namespace(*any_of: Capability) -> InNamespace:
    return InNamespace(any_of)


C = Capability

NOTHING: Final = Nothing()
ANY_TOKEN: Final = AnyToken()
MANAGEMENT: Final = Management()

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
MARK_STABLE: Final = _in_namespace(C.SUBMIT_JOB, C.STABLE_JOB)
TAG_VERSION: Final = _in_namespace(C.SUBMIT_JOB, C.TAG_JOB_VERSION)
FORCE_PERIODIC: Final = _in_namespace(C.DISPATCH_JOB, C.SUBMIT_JOB, C.FORCE_PERIODIC_JOB)
DISPATCH_JOB: Final = _in_namespace(C.DISPATCH_JOB)
SCALE_JOB: Final = _in_namespace(C.SCALE_JOB, C.SUBMIT_JOB)
READ_JOB_SCALE: Final = _in_namespace(C.READ_JOB, C.READ_JOB_SCALING)
OVERRIDE_POLICY: Final = _in_namespace(C.SENTINEL_OVERRIDE)
"""Beside the need of the registration or plan that asks for it."""
MOUNT_READ_ONLY: Final = OnHostVolume((HostVolumeCapability.MOUNT_READ_ONLY, HostVolumeCapability.MOUNT_READ_WRITE))
MOUNT_READ_WRITE: Final = OnHostVolume((HostVolumeCapability.MOUNT_READ_WRITE,))
"""These two beside the need of the registration, for each volume of hosts that the job uses."""
MOUNT_CSI: Final = _in_namespace(C.CSI_MOUNT_VOLUME)

# -- what jobs run -------------------------------------------------------------------------------------------------

STEER_ALLOCATION: Final = _in_namespace(C.ALLOC_LIFECYCLE)  # Stop, restart, signal.
PAUSE_ALLOCATION: Final = _in_namespace(C.SUBMIT_JOB, C.PAUSE_ALLOCATION)
COLLECT_ALLOCATION: Final = _in_namespace(C.SUBMIT_JOB, C.GC_ALLOCATION)
EXEC: Final = _in_namespace(C.ALLOC_EXEC)  # Job actions too.
EXEC_ON_NODE: Final = Both((EXEC, _in_namespace(C.ALLOC_NODE_EXEC)))
"""Where the task's driver does not isolate its files from the node's."""
READ_LOGS: Final = _in_namespace(C.READ_LOGS, C.READ_FS)
READ_FILES: Final = _in_namespace(C.READ_FS)
FAIL_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.FAIL_DEPLOYMENT)
PAUSE_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.PAUSE_DEPLOYMENT)
PROMOTE_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.PROMOTE_DEPLOYMENT)
UNBLOCK_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.UNBLOCK_DEPLOYMENT)
CANCEL_DEPLOYMENT: Final = _in_namespace(C.SUBMIT_JOB, C.CANCEL_DEPLOYMENT)
SET_HEALTH: Final = _in_namespace(C.SUBMIT_JOB, C.SET_ALLOC_HEALTH_DEPLOYMENT)
DELETE_EVALUATIONS: Final = MANAGEMENT
DELETE_SERVICE: Final = _in_namespace(C.SUBMIT_JOB, C.DELETE_SERVICE_REGISTRATION)

# -- scaling policies, volumes, variables --------------------------------------------------------------------------

_OLD_SCALING_READERS: Final = Both((LIST_JOBS, READ_JOB))
LIST_SCALING_POLICIES: Final = Either((_in_namespace(C.LIST_SCALING_POLICIES), _OLD_SCALING_READERS))
READ_SCALING_POLICY: Final = Either((_in_namespace(C.READ_SCALING_POLICY), _OLD_SCALING_READERS))
LIST_HOST_VOLUMES: Final = _in_namespace(C.HOST_VOLUME_READ)
READ_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_READ)
CREATE_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_CREATE)
REGISTER_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_REGISTER)
DELETE_HOST_VOLUME: Final = _in_namespace(C.HOST_VOLUME_DELETE)
LIST_VARIABLES: Final = OnVariable(VariableCapability.LIST)
READ_VARIABLE: Final = OnVariable(VariableCapability.READ)
WRITE_VARIABLE: Final = OnVariable(VariableCapability.WRITE)
DESTROY_VARIABLE: Final = OnVariable(VariableCapability.DESTROY)

LIST_CSI_VOLUMES: Final = _in_namespace(C.CSI_LIST_VOLUME)
READ_CSI_VOLUME: Final = Both((_in_namespace(C.CSI_READ_VOLUME), OfLevel(Scope.PLUGIN, Level.READ)))
READ_NAMESPACE: Final = InSightOfNamespace()

# -- machines ------------------------------------------------------------------------------------------------------

READ_NODE: Final = OfLevel(Scope.NODE, Level.READ)  # Statistics too.
WRITE_NODE: Final = OfLevel(Scope.NODE, Level.WRITE)  # Drain, eligibility, purge, metadata, collection.
READ_POOL: Final = OnPool(PoolCapability.READ)
WRITE_POOL: Final = OnPool(PoolCapability.WRITE)
DELETE_POOL: Final = OnPool(PoolCapability.DELETE)
READ_NODES_OF_POOL: Final = Both((READ_NODE, READ_POOL))
LIST_JOBS_OF_POOL: Final = Both((LIST_JOBS, READ_POOL))

# -- the cluster ---------------------------------------------------------------------------------------------------

READ_AGENT: Final = OfLevel(Scope.AGENT, Level.READ)
WRITE_AGENT: Final = OfLevel(Scope.AGENT, Level.WRITE)
READ_OPERATOR: Final = OfLevel(Scope.OPERATOR, Level.READ)
WRITE_OPERATOR: Final = OfLevel(Scope.OPERATOR, Level.WRITE)
SAVE_SNAPSHOT: Final = OfOperator(OperatorCapability.SNAPSHOT_SAVE)
READ_KEYRING: Final = OfOperator(OperatorCapability.KEYRING_READ)
ROTATE_KEYRING: Final = OfOperator(OperatorCapability.KEYRING_ROTATE)
DELETE_KEY: Final = OfOperator(OperatorCapability.KEYRING_DELETE)
READ_QUOTA: Final = OfLevel(Scope.QUOTA, Level.READ)
WRITE_QUOTA: Final = OfLevel(Scope.QUOTA, Level.WRITE)
LIST_PLUGINS: Final = OfLevel(Scope.PLUGIN, Level.LIST)
READ_PLUGIN: Final = OfLevel(Scope.PLUGIN, Level.READ)
