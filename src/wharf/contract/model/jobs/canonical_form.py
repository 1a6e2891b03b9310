"""The canonical form of services and their checks (jobs.md 2.7): names worked out, checks inheriting from the service.

The canonical form of a job: every default written out, every empty list and map None (jobs.md 2).

The canonical form of a canonical job is itself. Nothing is judged here: what is wrong stays as it is, so that
validation can speak about what was given. Words that are empty count as not given; numbers never do. What a group
inherits field by field was settled when the job was read (`inheritance`).
"""

from collections.abc import Callable
from operator import is_
from typing import Final, TypeVar

import msgspec

from wharf.contract.model.jobs import defaults
from wharf.contract.model.jobs.constraints import Spread
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReconcileStrategy, UpdatePolicy
from wharf.contract.model.jobs.groups import CSIPluginConfig, Task, TaskGroup
from wharf.contract.model.jobs.identities import (
    DEFAULT_CLUSTER_NAME,
    DEFAULT_IDENTITY_NAME,
    Consul,
    Vault,
    WorkloadIdentity,
)
from wharf.contract.model.jobs.job import (
    DEFAULT_NAMESPACE,
    DEFAULT_NODE_POOL,
    DEFAULT_REGION,
    UI,
    Job,
    JobType,
    MissedLaunchPolicy,
    Parameterized,
    Periodic,
)
from wharf.contract.model.jobs.networks import CNI, DEFAULT_HOST_NETWORK, DNS, NetworkResource, Port
from wharf.contract.model.jobs.resources import NUMA, RequestedDevice, Resources
from wharf.contract.model.jobs.services import OnUpdate, Service, ServiceCheck, ServiceProvider
from wharf.contract.model.jobs.templates import Artifact, ChangeMode, ChangeScript, GetterMode, Template
from wharf.contract.model.jobs.volumes import MountOptions, VolumeMount, VolumeRequest, VolumeType
from wharf.contract.model.scaling import ScalingKind, ScalingPolicy
from wharf.contract.model.times import SECOND

VARIABLE_PREFIX: Final = "${"


def canonicalize_services(
    services: tuple[Service, ...] | None, *, job: Job, group: str, task: str | None
) -> tuple[Service, ...] | None:
    """The services of a group (task None) or of a task."""
    if not services:
        return None
    return tuple([_service(service, job, group, task) for service in services])


def _service(service: Service, job: Job, group: str, task: str | None) -> Service:
    provider = service.provider or ServiceProvider.CONSUL
    name = _service_name(service.name, job.name, group, task)
    on_update = service.on_update or OnUpdate.REQUIRE_HEALTHY
    service = msgspec.structs.replace(
        service,
        name=name,
        provider=provider,
        task_name=task if task is not None and not service.task_name else service.task_name,
        address_mode=service.address_mode or "auto",
        on_update=on_update,
        cluster=service.cluster or DEFAULT_CLUSTER_NAME,
        tags=service.tags or None,
        canary_tags=service.canary_tags or None,
        meta=service.meta or None,
        canary_meta=service.canary_meta or None,
        tagged_addresses=service.tagged_addresses or None,
        connect=service.connect or None,
    )
    if service.is_native:
        service = msgspec.structs.replace(service, namespace=job.namespace)
    checks = tuple([_check(check, service) for check in service.checks or ()])
    return msgspec.structs.replace(service, checks=checks or None)


def _check(check: ServiceCheck, service: Service) -> ServiceCheck:
    return msgspec.structs.replace(
        check,
        name=check.name or f'service: "{service.name}" check',
        port_label=check.port_label or service.port_label,
        on_update=check.on_update or service.on_update,
        check_restart=check.check_restart or service.check_restart,
        args=check.args or None,
        header=check.header or None,
    )


def _service_name(name: str, job: str, group: str, task: str | None) -> str:
    base = f"{job}-{group}" if task is None else f"{job}-{group}-{task}"
    name = name or base
    if VARIABLE_PREFIX not in name:
        return name
    values = {"${JOB}": job, "${TASKGROUP}": group, "${TASK}": task or "", "${BASE}": base}
    for hole, value in values.items():
        # A value with a hole of its own is left alone: filling it later would make another name each time.
        if VARIABLE_PREFIX not in value:
            name = name.replace(hole, value)
    return name


DEFAULT_JOB_SETTINGS: Final = JobSettings()
# Whom the token that every task gets is made out to: the cluster itself.
DEFAULT_AUDIENCE: Final = ("wharf",)
DEFAULT_CHANGE_SIGNAL: Final = "SIGHUP"

S = TypeVar("S", bound=msgspec.Struct)


def canonicalize_job(job: Job, settings: JobSettings = DEFAULT_JOB_SETTINGS) -> Job:
    """The job with every default written out. Constraints that its parts imply are added by `implied`, not here."""
    job = _with(
        job,
        name=job.name or job.id,
        namespace=job.namespace or DEFAULT_NAMESPACE,
        region=_region(job, settings),
        type=job.type or JobType.SERVICE,
        priority=job.priority or settings.default_priority,
        datacenters=job.datacenters or ("*",),
        node_pool=job.node_pool or settings.node_pool or DEFAULT_NODE_POOL,
        constraints=job.constraints or None,
        affinities=job.affinities or None,
        spreads=_spreads(job.spreads),
        task_groups=job.task_groups or None,
        update=_update_of_job(job),
        periodic=_periodic(job.periodic),
        parameterized_job=_parameterized(job.parameterized_job),
        meta=job.meta or None,
        ui=_ui(job.ui),
        payload=job.payload or None,
    )
    if job.task_groups is None:
        return job
    return _with(job, task_groups=_each(job.task_groups, lambda group: _group(group, job)))


def _with(record: S, **fields: object) -> S:
    """The record with these fields, the same object where nothing changes."""
    changed = {
        name: value for name, value in fields.items() if value is not (old := getattr(record, name)) and value != old
    }
    return msgspec.structs.replace(record, **changed) if changed else record


def _each(records: tuple[S, ...], make: Callable[[S], S]) -> tuple[S, ...]:
    """Each one made canonical; the same tuple where nothing changes."""
    made = tuple([make(record) for record in records])
    return records if all(map(is_, made, records)) else made


def _each_or_none(records: tuple[S, ...] | None, make: Callable[[S], S]) -> tuple[S, ...] | None:
    return _each(records, make) if records else None


def _region(job: Job, settings: JobSettings) -> str:
    if job.multiregion is not None:
        return DEFAULT_REGION
    return settings.region if job.region in ("", DEFAULT_REGION) else job.region


def _update_of_job(job: Job) -> UpdatePolicy | None:
    """The job keeps only what the old rolling update needs; the rest lives in the groups."""
    update = job.update
    if job.type not in defaults.UPDATE_POLICIES and job.type:
        return update if update is not None and update != EMPTY_UPDATE_POLICY else None
    update = update or defaults.UPDATE_POLICIES[JobType.SERVICE]
    return msgspec.structs.replace(EMPTY_UPDATE_POLICY, stagger=update.stagger, max_parallel=update.max_parallel)


EMPTY_UPDATE_POLICY: Final = UpdatePolicy(
    stagger=0, max_parallel=0, health_check="", min_healthy_time=0, healthy_deadline=0, progress_deadline=0
)


def _periodic(periodic: Periodic | None) -> Periodic | None:
    if periodic is None:
        return None
    return _with(
        periodic,
        specs=periodic.specs or None,
        spec_type=periodic.spec_type or "cron",
        missed=periodic.missed or MissedLaunchPolicy.ONCE,
        time_zone=periodic.time_zone or "UTC",
    )


def _parameterized(parameterized: Parameterized | None) -> Parameterized | None:
    if parameterized is None:
        return None
    return _with(
        parameterized,
        payload=parameterized.payload or "optional",
        meta_required=parameterized.meta_required or None,
        meta_optional=parameterized.meta_optional or None,
    )


def _ui(ui: UI | None) -> UI | None:
    return None if ui is None else _with(ui, links=ui.links or None)


def _spreads(spreads: tuple[Spread, ...] | None) -> tuple[Spread, ...] | None:
    if not spreads:
        return None
    return _each(spreads, lambda spread: _with(spread, spread_target=spread.spread_target or None))


# ---- groups


def _group(group: TaskGroup, job: Job) -> TaskGroup:
    disconnect = _disconnect(group)
    restart = group.restart_policy or defaults.get_restart_policy(job.type)
    group = _with(
        group,
        update=group.update or defaults.UPDATE_POLICIES.get(job.type),
        migrate=group.migrate or defaults.MIGRATE_POLICIES.get(job.type),
        restart_policy=_with(restart, mode=restart.mode or "fail"),
        reschedule_policy=group.reschedule_policy or defaults.RESCHEDULE_POLICIES.get(job.type),
        disconnect=disconnect,
        stop_after_client_disconnect=None,
        max_client_disconnect=None,
        prevent_reschedule_on_lost=False,
        constraints=group.constraints or None,
        affinities=group.affinities or None,
        spreads=_spreads(group.spreads),
        networks=_networks(group.networks),
        volumes=_volumes(group.volumes),
        services=canonicalize_services(group.services, job=job, group=group.name, task=None),
        scaling=_scaling(group.scaling, job, group),
        consul=_consul(group.consul, job),
        meta=group.meta or None,
        tasks=group.tasks or None,
    )
    if group.tasks is None:
        return group
    return _with(group, tasks=_each(group.tasks, lambda task: _task(task, job, group)))


def _disconnect(group: TaskGroup) -> DisconnectPolicy | None:
    """The three old fields say the same as a block does; where there is a block, it counts."""
    if group.disconnect is not None:
        return _with(group.disconnect, reconcile=group.disconnect.reconcile or ReconcileStrategy.BEST_SCORE)
    stop_after, lost_after = group.stop_after_client_disconnect, group.max_client_disconnect
    if stop_after is None and lost_after is None and not group.prevent_reschedule_on_lost:
        return None
    return DisconnectPolicy(
        lost_after=lost_after or 0, stop_on_client_after=stop_after, replace=not group.prevent_reschedule_on_lost
    )


def _scaling(scaling: ScalingPolicy | None, job: Job, group: TaskGroup) -> ScalingPolicy | None:
    if scaling is None:
        return None
    target = {"Namespace": job.namespace, "Job": job.id, "Group": group.name}
    return _with(scaling, type=scaling.type or ScalingKind.HORIZONTAL, target=target, policy=scaling.policy or None)


def _consul(consul: Consul | None, job: Job) -> Consul | None:
    if consul is None:
        return Consul(namespace=job.consul_namespace) if job.consul_namespace else None
    return _with(
        consul, namespace=consul.namespace or job.consul_namespace, cluster=consul.cluster or DEFAULT_CLUSTER_NAME
    )


def _networks(networks: tuple[NetworkResource, ...] | None) -> tuple[NetworkResource, ...] | None:
    if not networks:
        return None
    return _each(networks, _network)


def _network(network: NetworkResource) -> NetworkResource:
    return _with(
        network,
        dns=_dns(network.dns),
        reserved_ports=_ports(network.reserved_ports),
        dynamic_ports=_ports(network.dynamic_ports),
        cni=_cni(network.cni),
    )


def _dns(dns: DNS | None) -> DNS | None:
    if dns is None or not (dns.servers or dns.searches or dns.options):
        return None
    return _with(dns, servers=dns.servers or None, searches=dns.searches or None, options=dns.options or None)


def _cni(cni: CNI | None) -> CNI | None:
    return cni if cni is not None and cni.args else None


def _ports(ports: tuple[Port, ...] | None) -> tuple[Port, ...] | None:
    if not ports:
        return None
    return _each(ports, lambda port: _with(port, host_network=port.host_network or DEFAULT_HOST_NETWORK))


def _volumes(volumes: dict[str, VolumeRequest] | None) -> dict[str, VolumeRequest] | None:
    """Requests of an unknown type are dropped without a word, as the reference says (jobs.md 2.2)."""
    kept = {
        name: _with(request, name=request.name or name, mount_options=_mount_options(request.mount_options))
        for name, request in (volumes or {}).items()
        if request.type in (VolumeType.HOST, VolumeType.CSI)
    }
    return kept or None


def _mount_options(options: MountOptions | None) -> MountOptions | None:
    if options is None or not (options.fs_type or options.mount_flags):
        return None
    return _with(options, mount_flags=options.mount_flags or None)


# ---- tasks


def _task(task: Task, job: Job, group: TaskGroup) -> Task:
    restart = task.restart_policy or group.restart_policy or defaults.get_restart_policy(job.type)
    return _with(
        task,
        config=task.config or None,
        env=task.env or None,
        meta=task.meta or None,
        constraints=task.constraints or None,
        affinities=task.affinities or None,
        services=canonicalize_services(task.services, job=job, group=group.name, task=task.name),
        vault=_vault(task.vault, job),
        consul=None if task.consul is None else _consul(task.consul, job),
        templates=_each_or_none(task.templates, _template),
        artifacts=_each_or_none(task.artifacts, _artifact),
        resources=_resources(task.resources),
        restart_policy=_with(restart, mode=restart.mode or "fail"),
        volume_mounts=_each_or_none(task.volume_mounts, _volume_mount),
        scaling_policies=task.scaling_policies or None,
        csi_plugin_config=_csi_plugin(task.csi_plugin_config),
        identity=_identity(task.identity),
        identities=_each_or_none(task.identities, _named_identity),
        secrets=task.secrets or None,
        actions=_each_or_none(task.actions, lambda action: _with(action, args=action.args or None)),
        schedule=task.schedule or None,
    )


def _resources(resources: Resources) -> Resources:
    return _with(
        resources,
        disk_mb=0,
        networks=_networks(resources.networks),
        devices=_each_or_none(resources.devices, _device),
        numa=_numa(resources.numa),
    )


def _device(device: RequestedDevice) -> RequestedDevice:
    return _with(device, constraints=device.constraints or None, affinities=device.affinities or None)


def _numa(numa: NUMA | None) -> NUMA | None:
    return None if numa is None else _with(numa, affinity=numa.affinity or "none", devices=numa.devices or None)


def _template(template: Template) -> Template:
    mode = template.change_mode or ChangeMode.RESTART
    signal = template.change_signal.upper()
    return _with(
        template,
        change_mode=mode,
        change_signal=signal or (DEFAULT_CHANGE_SIGNAL if mode == ChangeMode.SIGNAL else ""),
        change_script=_change_script(template.change_script),
        perms=template.perms or "0644",
        left_delim=template.left_delim or "{{",
        right_delim=template.right_delim or "}}",
    )


def _change_script(script: ChangeScript | None) -> ChangeScript | None:
    if script is None:
        return None
    return _with(script, args=script.args or None, timeout=script.timeout or 5 * SECOND)


def _artifact(artifact: Artifact) -> Artifact:
    mode = artifact.getter_mode or GetterMode.ANY
    destination = artifact.relative_dest
    if not destination:
        destination = "local/" + (_file_name(artifact.getter_source) if mode == GetterMode.FILE else "")
    return _with(
        artifact,
        getter_mode=mode,
        relative_dest=destination,
        getter_options=artifact.getter_options or None,
        getter_headers=artifact.getter_headers or None,
    )


def _file_name(source: str) -> str:
    """The last part of the source's path."""
    return source.split("?", 1)[0].split("#", 1)[0].rstrip("/").rsplit("/", 1)[-1]


def _vault(vault: Vault | None, job: Job) -> Vault | None:
    if vault is None:
        return None
    return _with(
        vault,
        namespace=vault.namespace or job.vault_namespace,
        cluster=vault.cluster or DEFAULT_CLUSTER_NAME,
        change_mode=vault.change_mode or ChangeMode.RESTART,
        change_signal=(vault.change_signal or DEFAULT_CHANGE_SIGNAL).upper(),
    )


def _volume_mount(mount: VolumeMount) -> VolumeMount:
    return _with(mount, propagation_mode=mount.propagation_mode or "private")


def _csi_plugin(plugin: CSIPluginConfig | None) -> CSIPluginConfig | None:
    if plugin is None:
        return None
    return _with(
        plugin,
        mount_dir=plugin.mount_dir or "/csi",
        stage_publish_base_dir=plugin.stage_publish_base_dir or "/local/csi",
        health_timeout=plugin.health_timeout or 30 * SECOND,
    )


DEFAULT_IDENTITY: Final = WorkloadIdentity(name=DEFAULT_IDENTITY_NAME, audience=DEFAULT_AUDIENCE)


def _identity(identity: WorkloadIdentity | None) -> WorkloadIdentity:
    """Every task has an identity of its own, also one that asked for none."""
    if identity is None:
        return DEFAULT_IDENTITY
    return _with(_named_identity(identity), audience=identity.audience or DEFAULT_AUDIENCE)


def _named_identity(identity: WorkloadIdentity) -> WorkloadIdentity:
    return _with(
        identity,
        name=identity.name or DEFAULT_IDENTITY_NAME,
        audience=identity.audience or None,
        change_signal=identity.change_signal.upper(),
        extra_claims=identity.extra_claims or None,
    )
