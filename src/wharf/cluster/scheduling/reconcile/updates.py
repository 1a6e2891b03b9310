"""What a new version of a job means for an allocation of an older one: nothing, a change in place, a replacement.

A group is compared by what its running tasks would notice. What is left out here can be changed under them.
"""

from typing import Any

import msgspec

from wharf.cluster.scheduling.resources.usage import get_group_demand
from wharf.contract.model.jobs.groups import Task, TaskGroup
from wharf.contract.model.jobs.job import Job
from wharf.contract.model.jobs.networks import NetworkResource, Port
from wharf.contract.model.jobs.services import Service


def is_destructive_update(old_job: Job, old: TaskGroup, new_job: Job, new: TaskGroup) -> bool:
    """Whether the tasks must be started anew to become the new version."""
    if old is new and old_job is new_job:
        return False
    return build_comparison_key(old_job, old) != build_comparison_key(new_job, new) or _is_mesh_changed(old, new)


def build_comparison_key(job: Job, group: TaskGroup) -> tuple[Any, ...]:
    """All of a group that its running tasks depend on; equal for versions that differ in place only."""
    restart = group.restart_policy
    return (
        group.ephemeral_disk,
        group.volumes or {},
        [_network(network) for network in group.networks or ()],
        group.consul,
        restart is not None and restart.render_templates,
        {task.name: _task(job, group, task) for task in group.tasks or ()},
        # Tasks that take other turns may take more together, and what an allocation holds never changes.
        get_group_demand(group),
    )


def _task(job: Job, group: TaskGroup, task: Task) -> tuple[Any, ...]:
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
            [_network(network) for network in resources.networks or ()],
        ),
    )


def _network(network: NetworkResource) -> tuple[Any, ...]:
    return (
        network.mode,
        network.mbits,
        network.hostname,
        network.dns,
        network.cni,
        [_port(port) for port in network.reserved_ports or ()],
        # The value of a dynamic port is the scheduler's, not the job's.
        [_port(msgspec.structs.replace(port, value=0)) for port in network.dynamic_ports or ()],
    )


def _port(port: Port) -> tuple[Any, ...]:
    return port.label, port.value, port.to, port.host_network, port.ignore_collision


def _is_mesh_changed(old: TaskGroup, new: TaskGroup) -> bool:
    """Of services that keep their names. One that comes with a sidecar brings a task, and that is noticed anyway."""
    stood = {service.name: _connect(service) for service in old.services or ()}
    return any(service.name in stood and stood[service.name] != _connect(service) for service in new.services or ())


def _connect(service: Service) -> Any:
    """A service of a mesh is part of the tasks: those have sidecars. Others are only told about."""
    return None if service.connect is None else (service.connect, service.port_label, service.cluster)
