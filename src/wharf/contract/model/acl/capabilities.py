"""Capabilities that policies can grant, by their names in policies. `access` decides which capability covers which others."""

import enum


class PolicyLevel(enum.StrEnum):
    """A coarse level of access that a policy grants on a part of the cluster, such as `policy = "read"`.

    Not every part has every level.
    """

    DENY = "deny"  # No access, whatever other policies grant.
    LIST = "list"  # Only for plugins.
    READ = "read"
    WRITE = "write"
    SCALE = "scale"  # Grants rights only in namespaces.


class PolicyScope(enum.StrEnum):
    """The parts of the cluster to which a policy grants access; each is a block of the policy document."""

    NAMESPACE = "namespace"
    NODE_POOL = "node_pool"
    HOST_VOLUME = "host_volume"
    AGENT = "agent"
    NODE = "node"
    OPERATOR = "operator"
    QUOTA = "quota"
    PLUGIN = "plugin"  # CSI plugins.
    SENTINEL = "sentinel"  # Part of Nomad Enterprise; accepted without effect.


class Capability(enum.StrEnum):
    """A single right in a namespace, by its name in policies. `DENY` removes all rights."""

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
    """A single right on the variables under a path. `DENY` removes all rights."""

    DENY = "deny"
    LIST = "list"
    READ = "read"
    WRITE = "write"
    DESTROY = "destroy"


class NodePoolCapability(enum.StrEnum):
    """A single right on a node pool. `DENY` removes all rights."""

    DENY = "deny"
    READ = "read"
    WRITE = "write"
    DELETE = "delete"


class HostVolumeMountCapability(enum.StrEnum):
    """How jobs may mount a host volume. `DENY` removes all rights."""

    DENY = "deny"
    MOUNT_READ_ONLY = "mount-readonly"
    MOUNT_READ_WRITE = "mount-readwrite"


class OperatorCapability(enum.StrEnum):
    """A single right on the cluster itself, finer than the levels read and write of the scope `OPERATOR`."""

    DENY = "deny"
    LICENSE_READ = "license-read"
    SNAPSHOT_SAVE = "snapshot-save"
    KEYRING_READ = "keyring-read"
    KEYRING_ROTATE = "keyring-rotate"
    KEYRING_DELETE = "keyring-delete"
