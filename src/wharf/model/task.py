"""A task: one program of an allocation, run by a driver."""

from enum import StrEnum

from wharf.model.durations import SECOND
from wharf.model.identity import Consul, Secret, Vault, WorkloadIdentity
from wharf.model.placement import Affinity, Constraint
from wharf.model.policies import RestartPolicy
from wharf.model.record import Record
from wharf.model.resources import Resources
from wharf.model.scaling import ScalingPolicy
from wharf.model.service import Service
from wharf.model.template import Artifact, Template
from wharf.model.volume import VolumeMount


class LifecycleHook(StrEnum):
    """When a task runs that is not a main task."""

    PRESTART = "prestart"
    POSTSTART = "poststart"
    POSTSTOP = "poststop"


class Lifecycle(Record):
    """When a task runs beside the main tasks; a sidecar stays up as long as they do."""

    hook: str = ""
    sidecar: bool = False


class LogConfig(Record):
    """How much of a task's output is kept."""

    max_files: int = 10
    max_file_size_mb: int = 10
    disabled: bool = False


class DispatchPayload(Record):
    """Where the payload of a dispatched job is written, below the task's `local/`."""

    file: str = ""


class Action(Record):
    """A command that people may run inside a task, by name."""

    name: str = ""
    command: str = ""
    args: tuple[str, ...] | None = None


class CSIPluginConfig(Record):
    """Says that the task is a plugin for volumes."""

    id: str = ""
    type: str = ""
    mount_dir: str = "/csi"
    stage_publish_base_dir: str = "/local/csi"
    health_timeout: int = 30 * SECOND


class Task(Record):
    """One program of an allocation. `config` belongs to the driver and is handed through unread."""

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
    secrets: tuple[Secret, ...] | None = None
    actions: tuple[Action, ...] | None = None
    schedule: dict[str, object] | None = None
