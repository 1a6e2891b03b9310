"""Task groups and their tasks. The allocation of a group runs all of its tasks on one node."""

from enum import StrEnum

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
    """When a task that is not a main task runs."""

    PRESTART = "prestart"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


class Lifecycle(Record):
    """When a task runs in relation to the main tasks. A sidecar runs as long as they do."""

    hook: str = ""
    sidecar: bool = False


class LogConfig(Record):
    """How much of a task's output is retained."""

    max_files: int = 10
    max_file_size_mb: int = 10
    disabled: bool = False


class DispatchPayload(Record):
    """Where the payload of a dispatched job is written, below the task's `local/`."""

    file: str = ""


class TaskAction(Record):
    """A named command that users may run inside a task."""

    name: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None


class CSIPluginConfig(Record):
    """Declares that the task is a CSI volume plugin."""

    id: str = ""
    type: str = ""
    mount_dir: str = "/csi"
    stage_publish_base_dir: str = "/local/csi"
    health_timeout: int = 30 * SECOND


class Task(Record):
    """One program of an allocation. `config` is passed to the driver without interpretation."""

    name: str = ""
    driver: str = ""
    user: str = ""
    config: dict[str, object] | None = None
    env: dict[str, str] | None = None
    services: tuple[Service, ...] | None = None
    vault: Vault | None = None
    consul: Consul | None = None
    templates: tuple[Template, ...] | None = None
    constraints: tuple[Constraint, ...] | None = None
    affinities: tuple[Affinity, ...] | None = None
    resources: Resources = Resources()
    restart_policy: RestartPolicy | None = None
    dispatch_payload: DispatchPayload | None = None
    lifecycle: Lifecycle | None = None
    meta: dict[str, str] | None = None
    kill_timeout: int = 5 * SECOND
    kill_signal: str = ""
    log_config: LogConfig = LogConfig()
    artifacts: tuple[Artifact, ...] | None = None
    leader: bool = False
    shutdown_delay: int = 0
    volume_mounts: tuple[VolumeMount, ...] | None = None
    scaling_policies: tuple[ScalingPolicy, ...] | None = None
    kind: str = ""
    csi_plugin_config: CSIPluginConfig | None = None
    identity: WorkloadIdentity | None = None
    identities: tuple[WorkloadIdentity, ...] | None = None
    secrets: tuple[TaskSecret, ...] | None = None
    actions: tuple[TaskAction, ...] | None = None
    schedule: dict[str, object] | None = None


class TaskGroup(Record):
    """Tasks that are placed together. In canonical form, policies that the job type does not support are None."""

    name: str = ""
    count: int = 1
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
    shutdown_delay: int | None = None
    max_run_duration: int | None = None
    # Deprecated; canonical form turns them into `disconnect`.
    stop_after_client_disconnect: int | None = None
    max_client_disconnect: int | None = None
    prevent_reschedule_on_lost: bool = False

    @classmethod
    def complete_submission(cls, submitted: dict[str, object]) -> dict[str, object]:
        """Fill in the count and the limits of scaling from each other."""
        return inheritance.complete_group(submitted)
