"""Task groups and their tasks. The allocation of a group runs all of its tasks on one node."""

from collections.abc import Mapping
from enum import StrEnum
from typing import ClassVar

from wharf.contract.model.jobs import inheritance
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
from wharf.contract.model.jobs.templates import Artifact, Template
from wharf.contract.model.jobs.volumes import VolumeMount, VolumeRequest
from wharf.contract.model.record import Record
from wharf.contract.model.scaling import ScalingPolicy
from wharf.contract.model.times import SECOND


class LifecycleHook(StrEnum):
    """When a task runs in relation to the main tasks of its group."""

    PRESTART = "prestart"  # Before they start.
    POSTSTART = "poststart"  # After they have started.
    POSTSTOP = "poststop"  # After they have ended.


class Lifecycle(Record):
    """The settings of a task that is not a main task."""

    hook: str = ""  # A `LifecycleHook`.
    sidecar: bool = False  # Runs as long as the main tasks, instead of to its end.


class LogConfig(Record):
    """How much output of a task the node retains."""

    max_files: int = 10  # For stdout and stderr each.
    max_file_size_mb: int = 10
    disabled: bool = False  # Retain no output.

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

    file: str = ""  # A path below the task's folder `local/`.


class TaskAction(Record):
    """A named command that users may run inside a task."""

    name: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None


class CSIPluginConfig(Record):
    """The settings of a task that is a CSI plugin: a program that provides volumes."""

    id: str = ""  # The ID of the plugin.
    type: str = ""  # "node", "controller" or "monolith".
    mount_dir: str = "/csi"  # Where the plugin puts its socket.
    stage_publish_base_dir: str = "/local/csi"  # Where it mounts volumes.
    health_timeout: int = 30 * SECOND  # ns


class Task(Record):
    """One program or container of an allocation, with its driver, configuration and resources."""

    name: str = ""
    driver: str = ""
    user: str = ""
    config: dict[str, object] | None = None  # Passed to the driver without interpretation.
    env: dict[str, str] | None = None
    services: tuple[Service, ...] | None = None
    vault: Vault | None = None
    consul: Consul | None = None
    templates: tuple[Template, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None
    affinities: tuple[Affinity, ...] | None = None
    resources: Resources = Resources()
    restart_policy: RestartPolicy | None = None  # Null before canonicalization.
    dispatch_payload: DispatchPayload | None = None
    lifecycle: Lifecycle | None = None  # Null: a main task.
    meta: dict[str, str] | None = None
    kill_timeout: int = 5 * SECOND  # ns between the kill signal and the kill.
    kill_signal: str = ""  # Empty: the default of the driver.
    log_config: LogConfig = LogConfig()
    artifacts: tuple[Artifact, ...] | None = None
    leader: bool = False  # The other tasks are stopped when it ends.
    shutdown_delay: int = 0  # ns between the end of its services and its stop.
    volume_mounts: tuple[VolumeMount, ...] | None = None
    scaling_policies: tuple[ScalingPolicy, ...] | None = None
    kind: str = ""  # The kind of Consul proxy that it is; empty for other tasks.
    csi_plugin_config: CSIPluginConfig | None = None
    identity: WorkloadIdentity | None = None  # The default identity.
    identities: tuple[WorkloadIdentity, ...] | None = None  # Additional ones.
    secrets: tuple[TaskSecret, ...] | None = None
    actions: tuple[TaskAction, ...] | None = None
    schedule: dict[str, object] | None = None  # Accepted without effect.


class TaskGroup(Record):
    """Tasks that are placed together on one node, with their policies and shared resources.

    In canonical form, policies that the job type does not support are `None`.
    """

    name: str = ""
    count: int = 1  # How many allocations should run.
    update: UpdatePolicy | None = None
    migrate: MigratePolicy | None = None
    constraints: tuple[Constraint, ...] | None = None
    scaling: ScalingPolicy | None = None
    restart_policy: RestartPolicy | None = None
    disconnect: DisconnectPolicy | None = None
    tasks: tuple[Task, ...] | None = None
    ephemeral_disk: EphemeralDisk = EphemeralDisk()
    meta: dict[str, str] | None = None
    reschedule_policy: ReschedulePolicy | None = None
    affinities: tuple[Affinity, ...] | None = None
    spreads: tuple[Spread, ...] | None = None
    networks: tuple[NetworkResource, ...] | None = None
    consul: Consul | None = None
    services: tuple[Service, ...] | None = None
    volumes: dict[str, VolumeRequest] | None = None
    shutdown_delay: int | None = None  # ns between the end of its services and the stop of its tasks.
    max_run_duration: int | None = None  # ns after which the allocation is stopped.
    # Deprecated; canonical form turns them into `disconnect`.
    stop_after_client_disconnect: int | None = None
    max_client_disconnect: int | None = None
    prevent_reschedule_on_lost: bool = False

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Fill in the count of a submitted group from the minimum of its scaling block, or the minimum from the count.

        Modifies and returns the JSON object.
        """
        return inheritance.complete_group(submitted)
