"""Whether a new job version requires an allocation to be replaced, or allows an update in place.

Only the parts of a group on which running tasks depend are compared. Everything else can change without a restart.
"""

from typing import Any

import msgspec

from wharf.cluster.scheduling.reconcile.input import ReconcileInput
from wharf.contract.model.allocations.allocation import Allocation
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.services import Service
from wharf.contract.model.resource_usage import get_group_demand


def needs_destructive_update(reconcile_input: ReconcileInput, allocation: Allocation, group: TaskGroup) -> bool:
    """Return whether an allocation of an older job version must be replaced to run the new one.

    True if its version is no longer stored.
    """
    old_job = reconcile_input.find_job_version(allocation)
    old_group = old_job.find_group(allocation.task_group) if old_job is not None else None
    if old_job is None or old_group is None:
        return True
    return is_destructive_update(old_job, old_group, reconcile_input.job, group)


def is_destructive_update(old_job: Job, old: TaskGroup, new_job: Job, new: TaskGroup) -> bool:
    """Return whether the tasks of a group must be restarted to change from the old to the new job version."""
    if old is new and old_job is new_job:
        return False
    return build_comparison_key(old_job, old) != build_comparison_key(new_job, new) or _is_mesh_changed(old, new)


def build_comparison_key(job: Job, group: TaskGroup) -> tuple[Any, ...]:
    """Return the fields of the group whose change requires a restart of its tasks, as a tuple to compare.

    If the tuples of two versions are equal, an update in place is enough.
    """
    restart = group.restart_policy
    return (
        group.ephemeral_disk,
        group.volumes or {},
        [_build_network_key(network) for network in group.networks or ()],
        group.consul,
        restart is not None and restart.render_templates,
        {task.name: _build_task_key(job, group, task) for task in group.tasks or ()},
        # Tasks in other lifecycle phases may use more together, and an allocation's resources never change.
        get_group_demand(group),
    )


def _build_task_key(job: Job, group: TaskGroup, task: Task) -> tuple[Any, ...]:
    """Return the fields of the task whose change requires a restart of the task, as a tuple to compare."""
    resources = task.resources
    restart = task.restart_policy
    return (
        task.driver,
        task.user,
        task.config,
        task.env or {},
        task.artifacts or (),
        task.templates or (),
        task.vault,
        task.consul,
        task.secrets or (),
        task.identity,
        task.identities or (),
        task.csi_plugin_config,
        task.volume_mounts or (),
        task.log_config is not None and task.log_config.disabled,
        restart is not None and restart.render_templates,
        {**(job.meta or {}), **(group.meta or {}), **(task.meta or {})},
        resources is not None
        and (
            resources.cpu,
            resources.cores,
            resources.memory_mb,
            resources.memory_max_mb,
            resources.secrets_mb,
            resources.devices or (),
            resources.numa,
            [_build_network_key(network) for network in resources.networks or ()],
        ),
    )


def _build_network_key(network: NetworkResource) -> tuple[Any, ...]:
    """Return the fields of the network whose change requires a restart of tasks, as a tuple to compare."""
    return (
        network.mode,
        network.mbits,
        network.hostname,
        network.dns,
        network.cni,
        [_build_port_key(port) for port in network.reserved_ports or ()],
        # The value of a dynamic port is the scheduler's, not the job's.
        [_build_port_key(msgspec.structs.replace(port, value=0)) for port in network.dynamic_ports or ()],
    )


def _build_port_key(port: Port) -> tuple[Any, ...]:
    """Return the fields of the port whose change requires a restart of tasks, as a tuple to compare."""
    return port.label, port.value, port.to, port.host_network, port.ignore_collision


def _is_mesh_changed(old: TaskGroup, new: TaskGroup) -> bool:
    """Return whether the service mesh settings (`connect`) of a service that both versions have differ.

    New services are ignored: a new sidecar brings a task, which is compared anyway.
    """
    old_keys = {service.name: _build_mesh_key(service) for service in old.services or ()}
    return any(
        service.name in old_keys and old_keys[service.name] != _build_mesh_key(service)
        for service in new.services or ()
    )


def _build_mesh_key(service: Service) -> Any:
    """Return the service mesh settings that affect the service's tasks through sidecars.

    `None`: it is not in a mesh.
    """
    return None if service.connect is None else (service.connect, service.port_label, service.cluster)
