"""A task group: the tasks that are placed together on one node, and how many times."""

from wharf.model import inheritance
from wharf.model.identity import Consul
from wharf.model.network import NetworkResource
from wharf.model.placement import Affinity, Constraint, Spread
from wharf.model.policies import (
    DisconnectPolicy,
    EphemeralDisk,
    MigratePolicy,
    ReschedulePolicy,
    RestartPolicy,
    UpdatePolicy,
)
from wharf.model.record import Record
from wharf.model.scaling import ScalingPolicy
from wharf.model.service import Service
from wharf.model.task import Task
from wharf.model.volume import VolumeRequest


class TaskGroup(Record):
    """Tasks that live and die together. Policies that the type of the job does not have are None in canonical form."""

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
    def complete_submission(cls, given: dict[str, object]) -> dict[str, object]:
        """The count and the bounds of scaling."""
        return inheritance.complete_group(given)
