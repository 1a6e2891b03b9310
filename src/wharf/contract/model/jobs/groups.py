"""Task groups and their tasks. The allocation of a group runs all of its tasks on one node."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

import msgspec

from wharf.contract.model.jobs import inheritance
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.constraints import Affinity, Constraint, Spread
from wharf.contract.model.jobs.group_policies import (
    DisconnectPolicy,
    EphemeralDisk,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.contract.model.jobs.identities import Consul, TaskSecret, Vault, WorkloadIdentity
from wharf.contract.model.jobs.networks import NetworkResource
from wharf.contract.model.jobs.resources import Resources
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.jobs.steps import Gate, Lock, Need, Outputs, StepRetry
from wharf.contract.model.jobs.templates import Artifact, Template
from wharf.contract.model.jobs.volumes import VolumeMount, VolumeRequest
from wharf.contract.model.record import Record
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.times import SECOND, DurationNs


class LifecycleHook(StrEnum):
    """When a task runs in relation to the main tasks of its group."""

    PRESTART = "prestart"  # Before they start.
    POSTSTART = "poststart"  # After they have started.
    POSTSTOP = "poststop"  # After they have ended.


class Lifecycle(Record):
    """The settings of a task that is not a main task."""

    hook: str = ""
    """When the task runs, compared with the main tasks of its group.

    Main tasks are those without a block `Lifecycle`.

    Values:
        prestart: before the main tasks start; they wait until it has ended, or, for a sidecar, until it
            runs
        poststart: after all main tasks have started
        poststop: after all main tasks have ended, such as to clean up
    Default: none; required
    Example: prestart
    """
    sidecar: bool = False
    """Whether the task runs as long as the main tasks, such as a proxy or a log shipper.

    Without it, the task runs to its end once. It has no effect with the hook `poststop`.
    """


class LogConfig(Record):
    """How much output of a task the node retains."""

    max_files: int = 10
    """How many files the node retains for each of stdout and stderr of the task.

    The oldest file is deleted when a new one begins.

    Unit: files
    Limits: at least 1; `MaxFiles` times `MaxFileSizeMB` must be less than the group's `EphemeralDisk.SizeMB`
    Example: 5
    """
    max_file_size_mb: int = 10
    """The size at which a log file is full and the next one begins.

    Unit: MB of 1,000,000 bytes
    Limits: at least 1; `MaxFiles` times `MaxFileSizeMB` must be less than the group's `EphemeralDisk.SizeMB`
    Example: 20
    """
    disabled: bool = False
    """Whether the output of the task is discarded.

    `wharf alloc logs` then shows nothing. Use it for programs that write their own log files.
    """

    only_when_submitted: ClassVar[Mapping[str, object]] = {"Enabled": bool}

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Replace the deprecated field `Enabled` by its opposite. Modifies and returns the JSON object."""
        is_enabled = submitted.pop("Enabled", None)
        if isinstance(is_enabled, bool):
            submitted.setdefault("Disabled", not is_enabled)
        return submitted


class DispatchPayload(Record):
    """Where a task finds the data that a caller sent with the dispatch of its job."""

    file: str = ""
    """The file that receives the payload of the dispatch, as a path below the task's folder `local/`.

    The node writes it before the task starts.

    Default: none; required
    Limits: a path inside of `local/`
    Example: input.json
    """


class TaskAction(Record):
    """A named command that users may run inside a task."""

    name: str = ""
    """The name of the action, by which `wharf job action` finds it.

    Default: none; required
    Limits: 1 to 128 characters without spaces; unique in the task
    Example: reload
    """
    command: str = ""
    """The program that is run inside the task.

    Default: none; required
    Example: /bin/kill
    """
    args: tuple[str, ...] | None = None
    """The arguments of the command.

    `${...}` references are replaced as in the configuration of the task.

    Default: none
    Example: ["-HUP", "1"]
    """


class CSIPluginConfig(Record):
    """The settings of a task that is a CSI plugin: a program that provides volumes."""

    id: str = ""
    """The ID of the plugin, which is the same on all nodes.

    Default: none; required
    Example: disks
    Effect: refused; use host volumes
    """
    type: str = ""
    """Which part of a plugin the task is.

    Values:
        node: mounts volumes on its node
        controller: attaches volumes to nodes
        monolith: both
    Default: none; required
    Example: node
    Effect: refused; use host volumes
    """
    mount_dir: str = "/csi"
    """The folder of the task in which the plugin creates its socket.

    Example: /csi
    Effect: refused; use host volumes
    """
    stage_publish_base_dir: str = "/local/csi"
    """The folder of the task in which the plugin mounts volumes.

    Example: /local/csi
    Effect: refused; use host volumes
    """
    health_timeout: DurationNs = 30 * SECOND
    """How long the plugin may take to become healthy.

    Example: 1m
    Effect: refused; use host volumes
    """


class Task(Record):
    """One program or container of an allocation, with its driver, configuration and resources."""

    name: str = ""
    """The name of the task, which is unique in its group.

    Log files, folders and commands use it.

    Default: none; required
    Limits: 1 to 240 UTF-8 bytes, without slashes, and not `alloc`
    Example: server
    """
    driver: str = ""
    """The driver that starts the task.

    A node without a working driver of this name does not run the group. `wharf node status NODE` lists the
    drivers of a node. A plugin can add further ones.

    Values:
        docker: a container of Docker or Podman
        exec: a program of the host in a sandbox
        raw_exec: a program of the host without isolation; an operator must enable it
        mock: no program; simulates a task for tests
    Other values: allowed
    Default: none; required
    Limits: a driver that the namespace allows
    Example: docker
    """
    user: str = ""
    """The user as whom the task runs.

    For `exec` and `raw_exec` it is a user of the node, for `docker` a user of the image.

    Default: the default of the driver: `nobody` for `exec`, the user of the agent for `raw_exec`, the user of
        the image for `docker`
    Example: www-data
    """
    config: dict[str, object] | None = None
    """The options of the driver: which program or image to run, and how.

    Each driver has options of its own. References such as `${NOMAD_PORT_http}` and `${attr.kernel.name}` are
    replaced on the node. An unknown option is an error.

    Default: none
    Example: {"command": "/bin/sleep", "args": ["infinity"]}
    """
    env: dict[str, str] | None = None
    """Environment variables of the task.

    References such as `${NOMAD_PORT_http}` are replaced on the node.

    Default: none
    Example: {"LOG_LEVEL": "info"}
    """
    services: tuple[Service, ...] | None = None
    """Services that the task offers.

    Use the services of the group for ports that no single task owns.
    """
    vault: Vault | None = None
    """How the task gets a token for Vault.

    Limits: must not be set
    Effect: refused; store secrets in variables, and read them with templates
    """
    consul: Consul | None = None
    """Which cluster of Consul the task uses.

    Effect: none, because Wharf does not use Consul; a submission returns a warning
    """
    templates: tuple[Template, ...] | None = None
    """Files that the node renders before the task starts, and again when their data change.

    Limits: different destinations
    """
    constraints: tuple[Constraint, ...] | None = None
    """Conditions that a node must satisfy to run the group of this task.

    `distinct_hosts` and `distinct_property` belong to the group or the job.
    """
    affinities: tuple[Affinity, ...] | None = None
    """Preferences for nodes, for the group of this task.

    Limits: not for `system` jobs
    """
    resources: Resources = Resources()
    """The processor time, memory and devices that the task needs.

    The scheduler places a group only on a node that has them free.
    """
    restart_policy: RestartPolicy | None = None
    """How often the node restarts the task after it has failed.

    Fields that are not set have the values of the group.

    Default: the policy of the group
    """
    dispatch_payload: DispatchPayload | None = None
    """The file in which the task finds the payload of a dispatched job."""
    lifecycle: Lifecycle | None = None
    """When the task runs, compared with the main tasks of the group.

    Without this block, the task is a main task. A group needs at least one main task.
    """
    meta: dict[str, str] | None = None
    """Metadata of your choice, which the task receives as environment variables (`NOMAD_META_<key>`).

    It is added to the metadata of the job and the group, and overrides values with the same key.

    Default: none
    Example: {"role": "primary"}
    """
    kill_timeout: DurationNs = 5 * SECOND
    """How long the task may take to end after it has received `KillSignal`.

    After this time the node kills it. A node shortens a longer time to its setting `client.max_kill_timeout`,
    by default 30s.

    Limits: at least 0s; for `service` jobs at most the group's `Update.ProgressDeadline`
    Example: 30s
    """
    kill_signal: str = ""
    """The signal that asks the task to end.

    Default: the default of the driver: `SIGINT` for `exec` and `raw_exec`, `SIGTERM` for `docker`
    Example: SIGTERM
    """
    log_config: LogConfig = LogConfig()
    """How much output of the task the node retains."""
    artifacts: tuple[Artifact, ...] | None = None
    """Files and folders that the node downloads before the task starts."""
    leader: bool = False
    """Whether the other tasks of the group are stopped when this task ends.

    Use it for the task to which the others only contribute.

    Limits: at most one task of a group
    """
    shutdown_delay: DurationNs = 0
    """How long the node waits between the removal of the task's services and its `KillSignal`.

    In this time clients stop using the services.

    Limits: at least 0s
    Example: 5s
    """
    volume_mounts: tuple[VolumeMount, ...] | None = None
    """Where the task sees the volumes that its group requests."""
    scaling_policies: tuple[ScalingPolicy, ...] | None = None
    """Limits for the processor time and memory of a task, for an autoscaler.

    Limits: must not be set
    Effect: refused; scale the group instead
    """
    kind: str = ""
    """The kind of Consul proxy that the task is; empty for other tasks.

    Example: connect-proxy:web
    Effect: none, because Wharf does not use Consul
    """
    csi_plugin_config: CSIPluginConfig | None = None
    """Declares the task as a CSI plugin, a program that provides volumes.

    Limits: must not be set
    Effect: refused; use host volumes
    """
    identity: WorkloadIdentity | None = None
    """The settings of the task's default identity: a token, signed by the servers, that states which task its
    bearer is.

    Every task has one; this block decides whether the task receives it as a file or variable. In HCL, it is the
    block `identity` without a name.

    Default: an identity for the cluster, which the task does not receive
    """
    identities: tuple[WorkloadIdentity, ...] | None = None
    """Further identities of the task, for services outside of the cluster.

    In HCL, they are the blocks `identity` with a name.

    Limits: different names
    """
    secrets: tuple[TaskSecret, ...] | None = None
    """Secrets of providers.

    Effect: none, because no provider of secrets exists: use a template with `variable`; a submission returns a warning
    """
    actions: tuple[TaskAction, ...] | None = None
    """Commands that users may run inside the task with `wharf job action`.

    Limits: different names
    """
    schedule: dict[str, object] | None = None
    """When the task is paused.

    Default: none
    Example: {"Cron": {"Start": "0 8 * * *", "End": "18", "Timezone": "UTC"}}
    Effect: none, because Wharf does not pause tasks by schedule
    """


class TaskGroup(Record):
    """Tasks that are placed together on one node, with their policies and shared resources.

    In canonical form, policies that the job type does not support are `None`.
    """

    name: str = ""
    """The name of the group, which is unique in the job.

    Default: none; required
    Limits: 1 to 256 UTF-8 bytes; unique in the job
    Example: api
    """
    count: int = 1
    """How many allocations of the group run at the same time.

    Each allocation runs all tasks of the group on one node. For `system` and `sysbatch` jobs it is the number
    for each node.

    Unit: allocations
    Default: `Scaling.Min` if the group has a scaling block, otherwise 1
    Limits: at least 0; at most 1 for `system` jobs; the counts of all groups together at most 50,000 (the
        setting `server.job_max_count`)
    Example: 3
    """
    array: GroupArray | None = None
    """Runs the group once for each element of an array, such as for each of 500 inputs.

    Each element is an allocation with an index of its own. Servers create the allocations while the array runs, not
    all at once.

    Limits: only for `batch` jobs; not with another `Count` than 1, with `Scaling` or `Disconnect`, or in a job with
        `AllAtOnce`
    """
    depends: tuple[Need, ...] | None = None
    """The steps that must have ended before this one begins.

    A job with a group that has this field or one of the seven after it is a run, and all of its groups are steps.

    Limits: only for `batch` jobs; at most 100 needs of a step and 1,000 of a job; at most 500 steps
    """
    condition: str = msgspec.field(default="", name="If")
    """A condition in the filter language. If it is false, the step is skipped.

    It is evaluated after all needs hold. It can use the parameters of the run (`meta.NAME`) and the texts that
    earlier steps left (`steps.GROUP.NAME`).

    Default: none; the step is not skipped
    Limits: at most 4,096 UTF-8 bytes; 65,536 for all steps of a job together
    Example: steps.build.version != ""
    """
    may_fail: bool = False
    """Whether the run goes on as if the step had succeeded when it fails."""
    final: bool = False
    """Whether the step runs however the steps that it needs ended, also after the run was canceled.

    It is for cleaning up. Without `Depends`, it begins after all steps that are not final. After a cancellation,
    `Flow.FinalTimeout` limits its time.

    Limits: not with `Gate`, nor with needs that have `When`, `Each`, `AtLeast` or `Optional`
    """
    gate: Gate | None = None
    """A question that a person must approve before the step begins.

    It is asked after all needs hold.
    """
    lock: Lock | None = None
    """Limits how many allocations with the same lock run at the same time, in all jobs of the namespace."""
    outputs: Outputs | None = None
    """What the step leaves for later ones: short texts and files."""
    retry: StepRetry | None = None
    """Which failures of the program are tried again, and how often.

    It replaces the blocks `Restart` and `Reschedule` of the group.
    """
    update: UpdatePolicy | None = None
    """How a new version of the group replaces the old one.

    Fields that are not set have the values of the job's block `Update`.

    Default: for `service` and `system` jobs, all defaults of the block; none for other types
    Limits: only for `service` and `system` jobs
    """
    migrate: MigratePolicy | None = None
    """How allocations of the group are moved off a node that is drained.

    Fields that are not set have the values of the job's block `Migrate`.

    Default: for `service` jobs, all defaults of the block; none for other types
    Limits: only for `service` jobs
    """
    constraints: tuple[Constraint, ...] | None = None
    """Conditions that a node must satisfy to run the group."""
    scaling: ScalingPolicy | None = None
    """The limits of the count, and settings for an autoscaler.

    Limits: not for `system` jobs
    """
    restart_policy: RestartPolicy | None = None
    """How often the node restarts a task of the group after it has failed.

    Tasks can override single fields.

    Default: the policy of the job type
    """
    disconnect: DisconnectPolicy | None = None
    """What happens to allocations of the group when their node loses contact to the servers."""
    tasks: tuple[Task, ...] | None = None
    """The tasks of the group.

    They run on the same node, start and stop together, and share the folder `/alloc` and the network.

    Default: none; required
    Limits: 1 to 1,000 items, with different names; at least one without `Lifecycle`
    """
    ephemeral_disk: EphemeralDisk = EphemeralDisk()
    """The disk space that the tasks of an allocation share, and whether its data follow the allocation to another
    node.
    """
    meta: dict[str, str] | None = None
    """Metadata of your choice, which tasks receive as environment variables (`NOMAD_META_<key>`).

    It overrides values of the job with the same key.

    Default: none
    Example: {"tier": "front"}
    """
    reschedule_policy: ReschedulePolicy | None = None
    """When and how often a failed allocation is replaced, usually on another node.

    Fields that are not set have the values of the job's block `Reschedule`.

    Default: the policy of the job type; none for `system` and `sysbatch` jobs
    Limits: not for `system` and `sysbatch` jobs
    """
    affinities: tuple[Affinity, ...] | None = None
    """Preferences for nodes.

    A node that matches gets a better score; others can still run the group.

    Limits: not for `system` jobs
    """
    spreads: tuple[Spread, ...] | None = None
    """How the allocations of the group are distributed over the values of a node attribute.

    Limits: not for `system` jobs
    """
    networks: tuple[NetworkResource, ...] | None = None
    """The network of the group, with its ports.

    Usually it is one. Services can use the ports of the first network.
    """
    consul: Consul | None = None
    """Which cluster of Consul the group uses.

    Effect: none, because Wharf does not use Consul; a submission returns a warning
    """
    services: tuple[Service, ...] | None = None
    """Services of the group, with their health checks.

    Limits: all services of a group and its tasks have the same provider
    """
    volumes: dict[str, VolumeRequest] | None = None
    """The volumes that the group requests, by name.

    In HCL, the label of a block `volume` is the name. Tasks mount them with `VolumeMounts`.
    """
    shutdown_delay: DurationNs | None = None
    """How long the node waits between the removal of the group's services and the stop of its tasks.

    In this time clients stop using the services.

    Default: 0s
    Limits: at least 0s
    Example: 5s
    """
    max_run_duration: DurationNs | None = None
    """How long an allocation may run.

    After this time the node stops it. Use it for batch work that may hang.

    Default: no limit
    Limits: more than 0s; only for `batch` and `sysbatch` jobs
    Example: 1h
    """
    # Deprecated; canonical form turns them into `disconnect`.
    stop_after_client_disconnect: DurationNs | None = None
    """After which time without contact the node stops the allocation itself.

    Default: none
    Example: 5m
    Deprecated: use `Disconnect.StopOnClientAfter`
    """
    max_client_disconnect: DurationNs | None = None
    """How long an allocation stays in the status unknown while its node is out of contact.

    Default: none
    Example: 1h
    Deprecated: use `Disconnect.LostAfter`
    """
    prevent_reschedule_on_lost: bool = False
    """Whether allocations of a lost node are not replaced.

    Deprecated: use `Disconnect.Replace`
    """

    @property
    def is_step(self) -> bool:
        """Whether the group has a field that only steps of a run have. It makes the job a run."""
        return bool(
            self.depends
            or self.condition
            or self.may_fail
            or self.final
            or self.gate is not None
            or self.lock is not None
            or self.outputs is not None
            or self.retry is not None
        )

    @property
    def total_count(self) -> int:
        """How many allocations the group needs in all, without replacements: its count, or the elements of its array."""
        return self.count if self.array is None else self.array.element_count

    @property
    def parallel_count(self) -> int:
        """How many allocations of the group may run at the same time."""
        return self.count if self.array is None else self.array.running_limit

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Fill in the count of a submitted group from the minimum of its scaling block, or the minimum from the count.

        Modifies and returns the JSON object.
        """
        return inheritance.complete_group(submitted)
