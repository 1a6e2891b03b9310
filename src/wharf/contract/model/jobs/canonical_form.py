"""The canonical form of a job: every default is written out, and every empty list and map is None (jobs.md 2).

Canonicalizing twice changes nothing. Invalid values stay unchanged, so that validation can report what was submitted. An empty
text counts as not set; a number never does. Fields that a group inherits one by one were filled in by `inheritance`.
"""

from collections.abc import Callable
from operator import is_
from typing import Final, TypeVar

import msgspec

from wharf.contract.model.jobs import defaults
from wharf.contract.model.jobs.arrays import GroupArray
from wharf.contract.model.jobs.constraints import Spread
from wharf.contract.model.jobs.defaults import JobSettings
from wharf.contract.model.jobs.group_policies import DisconnectPolicy, ReconcileStrategy, RestartPolicy, UpdatePolicy
from wharf.contract.model.jobs.groups import CSIPluginConfig, Lifecycle, Task, TaskGroup
from wharf.contract.model.jobs.identities import (
    DEFAULT_AUDIENCE,
    DEFAULT_CLUSTER_NAME,
    DEFAULT_IDENTITY_NAME,
    Consul,
    Vault,
    WorkloadIdentity,
)
from wharf.contract.model.jobs.job import (
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
from wharf.contract.model.jobs.services import OnUpdate, Service, ServiceCheck, ServiceProvider, ServiceWeights
from wharf.contract.model.jobs.steps import Outputs
from wharf.contract.model.jobs.templates import Artifact, ChangeMode, ChangeScript, GetterMode, Template
from wharf.contract.model.jobs.volumes import MountOptions, VolumeMount, VolumeRequest, VolumeType
from wharf.contract.model.namespaces import DEFAULT_NAMESPACE
from wharf.contract.model.node_pools import DEFAULT_NODE_POOL
from wharf.contract.model.scaling import ScalingKind, ScalingPolicy
from wharf.contract.model.times import SECOND

VARIABLE_PREFIX: Final = "${"
"""The beginning of a variable such as `${TASK}` in the name of a service."""


def canonicalize_services(
    services: tuple[Service, ...] | None, *, job: Job, group: str, task: str | None
) -> tuple[Service, ...] | None:
    """Return the services of a task with every default written out, or of the group if `task` is `None`.

    The result is `None` if there are no services.
    """
    if not services:
        return None
    return tuple([_canonicalize_service(service, job, group, task) for service in services])


def _canonicalize_service(service: Service, job: Job, group: str, task: str | None) -> Service:
    """Return a service and its checks with every default written out. `task` is `None` for a service of the group."""
    provider = service.provider
    if provider in ("", ServiceProvider.CONSUL):
        provider = _choose_native_provider(service)  # Wharf has no Consul: record 0243.
    name = _build_service_name(service.name, job.name, group, task)
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
        weights=_canonicalize_weights(service.weights),
        identity=_canonicalize_identity(service.identity) if service.identity is not None else None,
    )
    if service.is_native:
        service = msgspec.structs.replace(service, namespace=job.namespace)
    checks = tuple([_canonicalize_check(check, service) for check in service.checks or ()])
    return msgspec.structs.replace(service, checks=checks or None)


def _choose_native_provider(service: Service) -> ServiceProvider:
    """Return `nomad`, or `wharf` if the service has a check that Nomad's rules allow only in Consul."""
    for check in service.checks or ():
        restart = check.check_restart or service.check_restart
        if (
            check.type in ("grpc", "script")
            or check.tls_server_name
            or check.success_before_passing > 0
            or check.failures_before_critical > 0
            or (check.on_update or service.on_update) == OnUpdate.IGNORE_WARNINGS
            or (restart is not None and restart.ignore_warnings)
        ):
            return ServiceProvider.WHARF
    return ServiceProvider.NOMAD


def _canonicalize_check(check: ServiceCheck, service: Service) -> ServiceCheck:
    """Return a health check with every default written out.

    Port and restart rule default to those of its service, which must already be canonical.
    """
    return msgspec.structs.replace(
        check,
        name=check.name or f'service: "{service.name}" check',
        port_label=check.port_label or service.port_label,
        on_update=check.on_update or service.on_update,
        check_restart=check.check_restart or service.check_restart,
        args=check.args or None,
        header=check.header or None,
        success_before_passing=max(0, check.success_before_passing),
        failures_before_critical=max(0, check.failures_before_critical),
        failures_before_warning=max(0, check.failures_before_warning),
    )


def _canonicalize_weights(weights: ServiceWeights | None) -> ServiceWeights | None:
    """Return weights of at least 1; `None` stays `None`. A job file that sets one weight has 0 for the other."""
    if weights is None:
        return None
    return ServiceWeights(passing=max(1, weights.passing), warning=max(1, weights.warning))


def _build_service_name(name: str, job_name: str, group: str, task: str | None) -> str:
    """Return the name of a service with its variables replaced.

    An empty name becomes `job-group` or `job-group-task`.
    """
    base = f"{job_name}-{group}" if task is None else f"{job_name}-{group}-{task}"
    name = name or base
    if VARIABLE_PREFIX not in name:
        return name
    values = {"${JOB}": job_name, "${TASKGROUP}": group, "${TASK}": task or "", "${BASE}": base}
    for variable, value in values.items():
        # A value that contains a variable is not inserted, because canonicalizing twice would change the name again.
        if VARIABLE_PREFIX not in value:
            name = name.replace(variable, value)
    return name


DEFAULT_CHANGE_SIGNAL: Final = "SIGHUP"
"""The signal that a task receives when its data has changed, if the job names none."""

S = TypeVar("S", bound=msgspec.Struct)


def canonicalize_job(job: Job, settings: JobSettings) -> Job:
    """Return the job with every default written out, and every empty list and map as `None`.

    Constraints that follow from the features of a group are not added here.
    """
    job = _replace_fields(
        job,
        name=job.name or job.id,
        namespace=job.namespace or DEFAULT_NAMESPACE,
        region=_get_region(job, settings),
        type=job.type or JobType.SERVICE,
        priority=job.priority or settings.default_priority,
        datacenters=job.datacenters or ("*",),
        node_pool=job.node_pool or settings.node_pool or DEFAULT_NODE_POOL,
        constraints=job.constraints or None,
        affinities=job.affinities or None,
        spreads=_canonicalize_spreads(job.spreads),
        task_groups=job.task_groups or None,
        update=_build_job_update(job),
        periodic=_canonicalize_periodic(job.periodic),
        parameterized_job=_canonicalize_parameterized(job.parameterized_job),
        meta=job.meta or None,
        ui=_canonicalize_ui(job.ui),
        payload=job.payload or None,
        depends=job.depends or None,
    )
    if job.task_groups is None:
        return job
    is_run = job.has_steps and job.type == JobType.BATCH
    return _replace_fields(
        job, task_groups=_apply_to_each(job.task_groups, lambda group: _canonicalize_group(group, job, is_run=is_run))
    )


def _replace_fields(record: S, **fields: object) -> S:
    """Return the record with these fields replaced.

    If no value changes, return the same object, so that an unchanged job costs no copies.
    """
    replaced = msgspec.structs.replace(record, **fields)
    return record if replaced == record else replaced


def _apply_to_each(records: tuple[S, ...], canonicalize: Callable[[S], S]) -> tuple[S, ...]:
    """Return the result of `canonicalize` for each record. If no record changes, return the same tuple."""
    canonical = tuple([canonicalize(record) for record in records])
    return records if all(map(is_, canonical, records)) else canonical


def _apply_to_each_or_none(records: tuple[S, ...] | None, canonicalize: Callable[[S], S]) -> tuple[S, ...] | None:
    """Return the result of `canonicalize` for each record, or `None` if there are no records."""
    return _apply_to_each(records, canonicalize) if records else None


def _get_region(job: Job, settings: JobSettings) -> str:
    """Return the region of a job.

    An empty region and the default region stand for the server's own; a job for several regions keeps the default.
    """
    if job.multiregion is not None:
        return DEFAULT_REGION
    return settings.region if job.region in ("", DEFAULT_REGION) else job.region


def _build_job_update(job: Job) -> UpdatePolicy | None:
    """Return the job's own update block, or `None` if the job type has no update block and it sets nothing.

    It holds only the two fields for rolling updates without deployments, `stagger` and `max_parallel`; all others are
    zero, because the groups have them. An invalid block is returned unchanged, so that validation can report it.
    """
    update = job.update
    if job.type not in defaults.UPDATE_POLICIES and job.type:
        return update if update is not None and update != EMPTY_UPDATE_POLICY else None
    update = update or defaults.UPDATE_POLICIES[JobType.SERVICE]
    return msgspec.structs.replace(EMPTY_UPDATE_POLICY, stagger=update.stagger, max_parallel=update.max_parallel)


EMPTY_UPDATE_POLICY: Final = UpdatePolicy(
    stagger=0, max_parallel=0, health_check="", min_healthy_time=0, healthy_deadline=0, progress_deadline=0
)
"""An update block in which every field is zero."""


def _canonicalize_periodic(periodic: Periodic | None) -> Periodic | None:
    """Return a periodic block with every default written out; `None` stays `None`."""
    if periodic is None:
        return None
    return _replace_fields(
        periodic,
        specs=periodic.specs or None,
        spec_type=periodic.spec_type or "cron",
        missed=periodic.missed or MissedLaunchPolicy.ONCE,
        time_zone=periodic.time_zone or "UTC",
    )


def _canonicalize_parameterized(parameterized: Parameterized | None) -> Parameterized | None:
    """Return a parameterized block with every default written out; `None` stays `None`."""
    if parameterized is None:
        return None
    return _replace_fields(
        parameterized,
        payload=parameterized.payload or "optional",
        meta_required=parameterized.meta_required or None,
        meta_optional=parameterized.meta_optional or None,
    )


def _canonicalize_ui(ui: UI | None) -> UI | None:
    """Return the block for the web interface with an empty list of links as `None`."""
    return None if ui is None else _replace_fields(ui, links=ui.links or None)


def _canonicalize_spreads(spreads: tuple[Spread, ...] | None) -> tuple[Spread, ...] | None:
    """Return the spreads with empty lists of targets as `None`; the result is `None` if there are no spreads."""
    if not spreads:
        return None
    return _apply_to_each(spreads, lambda spread: _replace_fields(spread, spread_target=spread.spread_target or None))


# ---- groups


def _canonicalize_group(group: TaskGroup, job: Job, *, is_run: bool) -> TaskGroup:
    """Return a group and its tasks with every default written out.

    Deprecated fields are replaced by the disconnect block.
    """
    disconnect = _build_disconnect(group)
    restart = _choose_restart_policy(group.restart_policy, job, group)
    group = _replace_fields(
        group,
        update=group.update or defaults.UPDATE_POLICIES.get(job.type),
        migrate=group.migrate or defaults.MIGRATE_POLICIES.get(job.type),
        restart_policy=_replace_fields(restart, mode=restart.mode or "fail"),
        reschedule_policy=group.reschedule_policy or defaults.RESCHEDULE_POLICIES.get(job.type),
        disconnect=disconnect,
        stop_after_client_disconnect=None,
        max_client_disconnect=None,
        prevent_reschedule_on_lost=False,
        constraints=group.constraints or None,
        affinities=group.affinities or None,
        spreads=_canonicalize_spreads(group.spreads),
        networks=_canonicalize_networks(group.networks),
        volumes=_canonicalize_volumes(group.volumes),
        services=canonicalize_services(group.services, job=job, group=group.name, task=None),
        scaling=_canonicalize_scaling(group.scaling, job, group),
        consul=_canonicalize_consul(group.consul, job),
        array=_canonicalize_array(group, is_run=is_run),
        depends=group.depends or None,
        outputs=_canonicalize_outputs(group.outputs),
        meta=group.meta or None,
        tasks=group.tasks or None,
    )
    if group.tasks is None:
        return group
    return _replace_fields(group, tasks=_apply_to_each(group.tasks, lambda task: _canonicalize_task(task, job, group)))


def _choose_restart_policy(policy: RestartPolicy | None, job: Job, group: TaskGroup) -> RestartPolicy:
    """Return the restart policy of a group or of a task of it. `policy` is its own one.

    Failures of a step with `Retry` are not hidden by restarts. The default counts as not set, because decoding fills it in.
    """
    default = defaults.get_restart_policy(job.type)
    if group.retry is not None and policy in (None, default):
        return defaults.NO_RESTARTS
    return policy or default


def _build_disconnect(group: TaskGroup) -> DisconnectPolicy | None:
    """Return the disconnect block of a group.

    If the group has none, the block is built from the three deprecated fields; `None` if these are not set either.
    """
    if group.disconnect is not None:
        return _replace_fields(group.disconnect, reconcile=group.disconnect.reconcile or ReconcileStrategy.BEST_SCORE)
    stop_after, lost_after = group.stop_after_client_disconnect, group.max_client_disconnect
    if stop_after is None and lost_after is None and not group.prevent_reschedule_on_lost:
        return None
    return DisconnectPolicy(
        lost_after=lost_after or 0, stop_on_client_after=stop_after, replace=not group.prevent_reschedule_on_lost
    )


def _canonicalize_array(group: TaskGroup, *, is_run: bool) -> GroupArray | None:
    """Return the array of a group with an empty list of items as `None`. A step without one becomes an array of one element.

    A step with another `Count` than 1 has none, so that validation reports it.
    """
    if group.array is not None:
        return _replace_fields(group.array, items=group.array.items or None)
    return GroupArray(size=1) if is_run and group.count == 1 else None


def _canonicalize_outputs(outputs: Outputs | None) -> Outputs | None:
    """Return the outputs of a step with empty lists as `None`."""
    return None if outputs is None else _replace_fields(outputs, text=outputs.text or None, keep=outputs.keep or None)


def _canonicalize_scaling(scaling: ScalingPolicy | None, job: Job, group: TaskGroup) -> ScalingPolicy | None:
    """Return the scaling policy of a group with every default written out; `None` stays `None`.

    Its target becomes the group.
    """
    if scaling is None:
        return None
    target = {"Namespace": job.namespace, "Job": job.id, "Group": group.name}
    return _replace_fields(
        scaling, type=scaling.type or ScalingKind.HORIZONTAL, target=target, policy=scaling.policy or None
    )


def _canonicalize_consul(consul: Consul | None, job: Job) -> Consul | None:
    """Return a Consul block with namespace and cluster filled in.

    Without a block, return one with the job's Consul namespace, or `None` if the job names none.
    """
    if consul is None:
        return Consul(namespace=job.consul_namespace) if job.consul_namespace else None
    return _replace_fields(
        consul, namespace=consul.namespace or job.consul_namespace, cluster=consul.cluster or DEFAULT_CLUSTER_NAME
    )


def _canonicalize_networks(networks: tuple[NetworkResource, ...] | None) -> tuple[NetworkResource, ...] | None:
    """Return the networks with every default written out, or `None` if there are no networks."""
    if not networks:
        return None
    return _apply_to_each(networks, _canonicalize_network)


def _canonicalize_network(network: NetworkResource) -> NetworkResource:
    """Return a network and its ports with every default written out."""
    return _replace_fields(
        network,
        dns=_canonicalize_dns(network.dns),
        reserved_ports=_canonicalize_ports(network.reserved_ports),
        dynamic_ports=_canonicalize_ports(network.dynamic_ports),
        cni=_canonicalize_cni(network.cni),
    )


def _canonicalize_dns(dns: DNS | None) -> DNS | None:
    """Return the DNS settings with empty lists as `None`, or `None` if they set nothing."""
    if dns is None or not (dns.servers or dns.searches or dns.options):
        return None
    return _replace_fields(dns, servers=dns.servers or None, searches=dns.searches or None, options=dns.options or None)


def _canonicalize_cni(cni: CNI | None) -> CNI | None:
    """Return the CNI block, or `None` if it has no arguments."""
    return cni if cni is not None and cni.args else None


def _canonicalize_ports(ports: tuple[Port, ...] | None) -> tuple[Port, ...] | None:
    """Return the ports with the default host network filled in, or `None` if there are no ports."""
    if not ports:
        return None
    return _apply_to_each(
        ports, lambda port: _replace_fields(port, host_network=port.host_network or DEFAULT_HOST_NETWORK)
    )


def _canonicalize_volumes(volumes: dict[str, VolumeRequest] | None) -> dict[str, VolumeRequest] | None:
    """Return the volume requests with every default written out, or `None` if there are none.

    Requests of an unknown type are dropped without an error (jobs.md 2.2).
    """
    known_volumes = {
        name: _replace_fields(
            request, name=request.name or name, mount_options=_canonicalize_mount_options(request.mount_options)
        )
        for name, request in (volumes or {}).items()
        if request.type in (VolumeType.HOST, VolumeType.CSI)
    }
    return known_volumes or None


def _canonicalize_mount_options(options: MountOptions | None) -> MountOptions | None:
    """Return the mount options with an empty list of flags as `None`, or `None` if they set nothing."""
    if options is None or not (options.fs_type or options.mount_flags):
        return None
    return _replace_fields(options, mount_flags=options.mount_flags or None)


# ---- tasks


EMPTY_LIFECYCLE: Final = Lifecycle()
"""A lifecycle block that sets nothing. The task is a main task, as without the block."""


def _canonicalize_task(task: Task, job: Job, group: TaskGroup) -> Task:
    """Return a task with every default written out.

    Its restart policy defaults to that of its group, then to that of the job type.
    """
    restart = _choose_restart_policy(task.restart_policy or group.restart_policy, job, group)
    return _replace_fields(
        task,
        config=task.config or None,
        env=task.env or None,
        meta=task.meta or None,
        constraints=task.constraints or None,
        affinities=task.affinities or None,
        services=canonicalize_services(task.services, job=job, group=group.name, task=task.name),
        vault=_canonicalize_vault(task.vault, job),
        consul=None if task.consul is None else _canonicalize_consul(task.consul, job),
        templates=_apply_to_each_or_none(task.templates, _canonicalize_template),
        artifacts=_apply_to_each_or_none(task.artifacts, _canonicalize_artifact),
        resources=_canonicalize_resources(task.resources),
        restart_policy=_replace_fields(restart, mode=restart.mode or "fail"),
        volume_mounts=_apply_to_each_or_none(task.volume_mounts, _canonicalize_volume_mount),
        lifecycle=None if task.lifecycle == EMPTY_LIFECYCLE else task.lifecycle,
        scaling_policies=task.scaling_policies or None,
        csi_plugin_config=_canonicalize_csi_plugin(task.csi_plugin_config),
        identity=_canonicalize_default_identity(task.identity),
        identities=_apply_to_each_or_none(task.identities, _canonicalize_identity),
        secrets=task.secrets or None,
        actions=_apply_to_each_or_none(task.actions, lambda action: _replace_fields(action, args=action.args or None)),
        schedule=task.schedule or None,
    )


def _canonicalize_resources(resources: Resources) -> Resources:
    """Return the resources of a task with every default written out.

    Its disk size is set to 0, because disk belongs to the group.
    """
    return _replace_fields(
        resources,
        disk_mb=0,
        networks=_canonicalize_networks(resources.networks),
        devices=_apply_to_each_or_none(resources.devices, _canonicalize_device),
        numa=_canonicalize_numa(resources.numa),
    )


def _canonicalize_device(device: RequestedDevice) -> RequestedDevice:
    """Return a requested device with empty lists as `None`."""
    return _replace_fields(device, constraints=device.constraints or None, affinities=device.affinities or None)


def _canonicalize_numa(numa: NUMA | None) -> NUMA | None:
    """Return the NUMA block with every default written out; `None` stays `None`."""
    return (
        None if numa is None else _replace_fields(numa, affinity=numa.affinity or "none", devices=numa.devices or None)
    )


def _canonicalize_template(template: Template) -> Template:
    """Return a template with every default written out. The change signal is converted to upper case."""
    mode = template.change_mode or ChangeMode.RESTART
    signal = template.change_signal.upper()
    return _replace_fields(
        template,
        change_mode=mode,
        change_signal=signal or (DEFAULT_CHANGE_SIGNAL if mode == ChangeMode.SIGNAL else ""),
        change_script=_canonicalize_change_script(template.change_script),
        perms=template.perms or "0644",
        left_delim=template.left_delim or "{{",
        right_delim=template.right_delim or "}}",
    )


def _canonicalize_change_script(script: ChangeScript | None) -> ChangeScript | None:
    """Return a change script with every default written out; `None` stays `None`."""
    if script is None:
        return None
    return _replace_fields(script, args=script.args or None, timeout=script.timeout or 5 * SECOND)


def _canonicalize_artifact(artifact: Artifact) -> Artifact:
    """Return an artifact with every default written out.

    Without a destination it is stored in the task's folder `local/`.
    """
    mode = artifact.getter_mode or GetterMode.ANY
    destination = artifact.relative_dest
    if not destination:
        destination = "local/" + (_get_file_name(artifact.getter_source) if mode == GetterMode.FILE else "")
    return _replace_fields(
        artifact,
        getter_mode=mode,
        relative_dest=destination,
        getter_options=artifact.getter_options or None,
        getter_headers=artifact.getter_headers or None,
    )


def _get_file_name(source: str) -> str:
    """Return the last part of the path of a URL, without its query: `app.tgz` for `https://host/files/app.tgz?v=1`."""
    return source.split("?", 1)[0].split("#", 1)[0].rstrip("/").rsplit("/", 1)[-1]


def _canonicalize_vault(vault: Vault | None, job: Job) -> Vault | None:
    """Return a Vault block with every default written out; `None` stays `None`.

    The change signal is converted to upper case.
    """
    if vault is None:
        return None
    return _replace_fields(
        vault,
        namespace=vault.namespace or job.vault_namespace,
        cluster=vault.cluster or DEFAULT_CLUSTER_NAME,
        change_mode=vault.change_mode or ChangeMode.RESTART,
        change_signal=(vault.change_signal or DEFAULT_CHANGE_SIGNAL).upper(),
    )


def _canonicalize_volume_mount(mount: VolumeMount) -> VolumeMount:
    """Return a volume mount with the default propagation mode filled in."""
    return _replace_fields(mount, propagation_mode=mount.propagation_mode or "private")


def _canonicalize_csi_plugin(plugin: CSIPluginConfig | None) -> CSIPluginConfig | None:
    """Return a CSI plugin block with every default written out; `None` stays `None`."""
    if plugin is None:
        return None
    return _replace_fields(
        plugin,
        mount_dir=plugin.mount_dir or "/csi",
        stage_publish_base_dir=plugin.stage_publish_base_dir or "/local/csi",
        health_timeout=plugin.health_timeout or 30 * SECOND,
    )


DEFAULT_IDENTITY: Final = WorkloadIdentity(name=DEFAULT_IDENTITY_NAME, audience=DEFAULT_AUDIENCE)
"""The identity of a task whose job declares none."""


def _canonicalize_default_identity(identity: WorkloadIdentity | None) -> WorkloadIdentity:
    """Return a task's default identity with every default written out.

    Without one, return `DEFAULT_IDENTITY`: every task has a default identity.
    """
    if identity is None:
        return DEFAULT_IDENTITY
    return _replace_fields(_canonicalize_identity(identity), audience=identity.audience or DEFAULT_AUDIENCE)


def _canonicalize_identity(identity: WorkloadIdentity) -> WorkloadIdentity:
    """Return an identity with every default written out, except for the audience.

    The change signal is converted to upper case.
    """
    return _replace_fields(
        identity,
        name=identity.name or DEFAULT_IDENTITY_NAME,
        audience=identity.audience or None,
        change_signal=identity.change_signal.upper(),
        extra_claims=identity.extra_claims or None,
    )
