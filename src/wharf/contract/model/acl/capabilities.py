"""Capabilities that policies can grant, by their names in policies. `access` decides which capability covers which others."""

import enum


class PolicyLevel(enum.StrEnum):
    """A coarse level of access: the `policy` of a scope. Not every scope has every level."""

    DENY = "deny"
    LIST = "list"
    READ = "read"
    WRITE = "write"
    SCALE = "scale"


class PolicyScope(enum.StrEnum):
    """The parts of the cluster to which policies apply."""

    NAMESPACE = "namespace"
    NODE_POOL = "node_pool"
    HOST_VOLUME = "host_volume"
    AGENT = "agent"
    NODE = "node"
    OPERATOR = "operator"
    QUOTA = "quota"
    PLUGIN = "plugin"
    SENTINEL = "sentinel"


class Capability(enum.StrEnum):
    """Capabilities in a namespace."""

    DENY = "deny"
    LIST_JOBS = "list-jobs"
    PARSE_JOB = "parse-job"
    READ_JOB = "read-job"
    SUBMIT_JOB = "submit-job"
    DISPATCH_JOB = "dispatch-job"
    SCALE_JOB = "scale-job"
    READ_LOGS = "read-logs"
    READ_FS = "read-fs"
    ALLOC_EXEC = "alloc-exec"
    ALLOC_NODE_EXEC = "alloc-node-exec"
    ALLOC_LIFECYCLE = "alloc-lifecycle"
    CSI_REGISTER_PLUGIN = "csi-register-plugin"
    CSI_WRITE_VOLUME = "csi-write-volume"
    CSI_READ_VOLUME = "csi-read-volume"
    CSI_LIST_VOLUME = "csi-list-volume"
    CSI_MOUNT_VOLUME = "csi-mount-volume"
    LIST_SCALING_POLICIES = "list-scaling-policies"
    READ_SCALING_POLICY = "read-scaling-policy"
    READ_JOB_SCALING = "read-job-scaling"
    SUBMIT_RECOMMENDATION = "submit-recommendation"
    SENTINEL_OVERRIDE = "sentinel-override"
    HOST_VOLUME_CREATE = "host-volume-create"
    HOST_VOLUME_REGISTER = "host-volume-register"
    HOST_VOLUME_READ = "host-volume-read"
    HOST_VOLUME_WRITE = "host-volume-write"
    HOST_VOLUME_DELETE = "host-volume-delete"
    # The parts of `submit-job`, which can be granted separately.
    REGISTER_JOB = "register-job"
    REVERT_JOB = "revert-job"
    DEREGISTER_JOB = "deregister-job"
    PURGE_JOB = "purge-job"
    EVALUATE_JOB = "evaluate-job"
    PLAN_JOB = "plan-job"
    TAG_JOB_VERSION = "tag-job-version"
    STABLE_JOB = "stable-job"
    FORCE_PERIODIC_JOB = "force-periodic-job"
    FAIL_DEPLOYMENT = "fail-deployment"
    PAUSE_DEPLOYMENT = "pause-deployment"
    PROMOTE_DEPLOYMENT = "promote-deployment"
    UNBLOCK_DEPLOYMENT = "unblock-deployment"
    CANCEL_DEPLOYMENT = "cancel-deployment"
    SET_ALLOC_HEALTH_DEPLOYMENT = "set-alloc-health-deployment"
    GC_ALLOCATION = "gc-allocation"
    PAUSE_ALLOCATION = "pause-allocation"
    DELETE_SERVICE_REGISTRATION = "delete-service-registration"


class VariableCapability(enum.StrEnum):
    """Capabilities on the variables under a path."""

    DENY = "deny"
    LIST = "list"
    READ = "read"
    WRITE = "write"
    DESTROY = "destroy"


class NodePoolCapability(enum.StrEnum):
    """Capabilities on a node pool."""

    DENY = "deny"
    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class HostVolumeMountCapability(enum.StrEnum):
    """Capabilities of jobs on a host volume."""

    DENY = "deny"
    MOUNT_READ_ONLY = "mount-readonly"
    MOUNT_READ_WRITE = "mount-readwrite"


class OperatorCapability(enum.StrEnum):
    """Capabilities on the cluster itself, finer than the levels of `operator`."""

    DENY = "deny"
    LICENSE_READ = "license-read"
    SNAPSHOT_SAVE = "snapshot-save"
    KEYRING_READ = "keyring-read"
    KEYRING_ROTATE = "keyring-rotate"
    KEYRING_DELETE = "keyring-delete"
