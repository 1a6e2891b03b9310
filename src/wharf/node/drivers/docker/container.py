"""Builds the JSON body of the engine's request to create a container, from the job's config and the node's context."""

from typing import Any, Final, NamedTuple

from wharf.node.drivers.docker.config import DockerConfig, MountConfig

ALLOCATION_LABEL: Final = "wharf.alloc_id"
TASK_LABEL: Final = "wharf.task"
# The label that existing tools for Nomad search for.
COMPATIBLE_LABEL: Final = "com.hashicorp.nomad.alloc_id"
BYTES_PER_MB: Final = 1 << 20


class ContainerPort(NamedTuple):
    """A host port that is allocated to the task."""

    label: str
    host_ip: str
    value: int
    to: int  # Port in the container; 0: the same as on the host.


class ContainerContext(NamedTuple):
    """What the node adds to a task's config: identity, folders, resources, network."""

    allocation_id: str
    task: str
    labels: dict[str, str]  # Labels of job, group, namespace and node that the operator selected.
    environment: dict[str, str]
    allocation_folder: str  # This and the next two are mounted at /alloc, /local and /secrets.
    local_folder: str
    secrets_folder: str
    memory_mb: int
    memory_max_mb: int
    cpu_mhz: int
    cpu_total_mhz: int
    cores: str  # Reserved cores as a cpuset; empty: none.
    ports: tuple[ContainerPort, ...]
    volumes: tuple[tuple[str, str, bool], ...]  # Host volumes: path, target, whether only read.
    user: str
    network: str  # The file of the network namespace to join; empty: the config's network mode.
    files: tuple[tuple[str, str], ...] = ()  # Host files with their paths in the container.
    devices: tuple[tuple[str, str, str], ...] = ()  # Path, target, permissions.
    hostname: str = ""
    log_mb: int = 0  # Size limit of all log files of the task.


def make_container_name(context: ContainerContext) -> str:
    """Return the container's name: task and allocation id."""
    return f"{context.task}-{context.allocation_id}"


def build_container_body(config: DockerConfig, context: ContainerContext) -> dict[str, Any]:
    """Return the JSON body of the engine's request `POST /containers/create`."""
    # In a shared network namespace, the node forwards the ports.
    ports = [port for port in context.ports if port.label in config.ports and not context.network]
    labels = {
        ALLOCATION_LABEL: context.allocation_id,
        TASK_LABEL: context.task,
        COMPATIBLE_LABEL: context.allocation_id,
    }
    body: dict[str, Any] = {
        "Image": config.image,
        "Env": [f"{name}={value}" for name, value in sorted(context.environment.items())],
        "Labels": {**context.labels, **config.labels, **labels},
        "User": context.user,
        "Tty": config.tty,
        "OpenStdin": config.interactive,
        "ExposedPorts": {f"{port.to or port.value}/{protocol}": {} for port in ports for protocol in ("tcp", "udp")},
        "HostConfig": _build_host_config(config, context, ports),
    }
    if config.command or config.args:
        body["Cmd"] = [*([config.command] if config.command else []), *config.args]
    if config.entrypoint is not None:
        body["Entrypoint"] = config.entrypoint
    named = {
        "WorkingDir": config.work_dir,
        "Hostname": config.hostname or context.hostname,
        "MacAddress": config.mac_address,
    }
    body |= {name: value for name, value in named.items() if value}
    if config.healthchecks is not None and config.healthchecks.disable:
        body["Healthcheck"] = {"Test": ["NONE"]}
    mode = body["HostConfig"].get("NetworkMode", "")
    if config.network_aliases or config.ipv4_address or config.ipv6_address:
        address = {"IPv4Address": config.ipv4_address, "IPv6Address": config.ipv6_address}
        body["NetworkingConfig"] = {
            "EndpointsConfig": {mode: {"Aliases": config.network_aliases, "IPAMConfig": address}}
        }
    return body


def _build_host_config(config: DockerConfig, context: ContainerContext, ports: list[ContainerPort]) -> dict[str, Any]:
    """Return the `HostConfig` of the request. Keys that the job does not set are left to the engine's defaults."""
    logging = config.logging
    log_type = (logging.type or logging.driver) if logging else ""
    # The engine must retain as much output as the node, because output is lost if it is dropped before it is read.
    default_log_options = {"max-file": "2", "max-size": f"{max(context.log_mb, 2)}m"}
    log_config = (logging.config if logging else {}) or ({} if log_type else default_log_options)
    host: dict[str, Any] = {
        "Binds": _build_binds(config, context),
        "Mounts": [_build_mount(mount, context) for mount in (*config.mount, *config.mounts)],
        "LogConfig": {"Type": log_type or "json-file", "Config": log_config},
        "PortBindings": {
            f"{port.to or port.value}/{protocol}": [{"HostIp": port.host_ip, "HostPort": str(port.value)}]
            for port in ports
            for protocol in ("tcp", "udp")
        },
        "NetworkMode": f"ns:{context.network}" if context.network else config.network_mode,
        "Init": config.init,
        "Privileged": config.privileged,
        "ReadonlyRootfs": config.readonly_rootfs,
        # The node decides about restarts.
        "RestartPolicy": {"Name": "no"},
        **_build_limits(config, context),
    }
    named = {
        "CapAdd": config.cap_add,
        "CapDrop": config.cap_drop,
        "Dns": config.dns_servers,
        "DnsSearch": config.dns_search_domains,
        "DnsOptions": config.dns_options,
        "ExtraHosts": config.extra_hosts,
        "GroupAdd": config.group_add,
        "SecurityOpt": config.security_opt,
        "Sysctls": config.sysctl,
        "StorageOpt": config.storage_opt,
        "Ulimits": [_parse_ulimit(name, limit) for name, limit in sorted(config.ulimit.items())],
        "Devices": [
            {"PathOnHost": path, "PathInContainer": target, "CgroupPermissions": permissions}
            for path, target, permissions in (
                *(
                    (each.host_path, each.container_path or each.host_path, each.cgroup_permissions)
                    for each in config.devices
                ),
                *context.devices,
            )
        ],
        "PidMode": config.pid_mode,
        "IpcMode": config.ipc_mode,
        "UTSMode": config.uts_mode,
        "UsernsMode": config.userns_mode,
        "CgroupnsMode": config.cgroupns,
        "Runtime": config.runtime,
        "VolumeDriver": config.volume_driver,
        "ShmSize": config.shm_size,
        "OomScoreAdj": config.oom_score_adj,
    }
    # The engine chooses the value of missing keys.
    return host | {name: value for name, value in named.items() if value}


def _build_limits(config: DockerConfig, context: ContainerContext) -> dict[str, Any]:
    """Return the memory, CPU and process limits."""
    hard_mb = config.memory_hard_limit or context.memory_max_mb or context.memory_mb
    limits: dict[str, Any] = {"Memory": hard_mb * BYTES_PER_MB, "MemorySwap": hard_mb * BYTES_PER_MB}
    if hard_mb > context.memory_mb:
        limits["MemoryReservation"] = context.memory_mb * BYTES_PER_MB
    limits["CpuShares"] = max(context.cpu_mhz, 2)
    if config.cpu_hard_limit and context.cpu_total_mhz:
        limits["CpuPeriod"] = config.cpu_cfs_period
        limits["CpuQuota"] = max(context.cpu_mhz * config.cpu_cfs_period // context.cpu_total_mhz, 1_000)
    cpuset = config.cpuset_cpus or context.cores
    if cpuset:
        limits["CpusetCpus"] = cpuset
    if config.pids_limit:
        limits["PidsLimit"] = config.pids_limit
    return limits


def _build_binds(config: DockerConfig, context: ContainerContext) -> list[str]:
    """Return the bind mounts as `source:target[:ro]`."""
    binds = [
        f"{context.allocation_folder}:/alloc",
        f"{context.local_folder}:/local",
        f"{context.secrets_folder}:/secrets",
        *(f"{path}:{target}{':ro' if is_read_only else ''}" for path, target, is_read_only in context.volumes),
        *(f"{path}:{target}:ro" for path, target in context.files),
    ]
    for volume in config.volumes:
        source, _, rest = volume.partition(":")
        binds.append(f"{_resolve_source(source, context)}:{rest}")
    return binds


def _build_mount(mount: MountConfig, context: ContainerContext) -> dict[str, Any]:
    """Return one element of `Mounts`."""
    source = _resolve_source(mount.source, context) if mount.type == "bind" else mount.source
    engine_mount: dict[str, Any] = {
        "Type": mount.type,
        "Target": mount.target,
        "Source": source,
        "ReadOnly": mount.readonly,
    }
    if mount.bind_options and mount.bind_options.propagation:
        engine_mount["BindOptions"] = {"Propagation": mount.bind_options.propagation}
    if mount.tmpfs_options:
        options = {"SizeBytes": mount.tmpfs_options.size, "Mode": mount.tmpfs_options.mode}
        # A mode of 0 must be left out: it would deny access to everybody.
        engine_mount["TmpfsOptions"] = {name: value for name, value in options.items() if value}
    if mount.volume_options:
        driver = mount.volume_options.driver_config
        engine_mount["VolumeOptions"] = {
            "NoCopy": mount.volume_options.no_copy,
            "Labels": mount.volume_options.labels,
            **({"DriverConfig": {"Name": driver.name, "Options": driver.options}} if driver else {}),
        }
    return engine_mount


def _resolve_source(source: str, context: ContainerContext) -> str:
    """Return the host path of a volume's source.

    A relative path is in the task's folder; `config` has rejected paths that lead out of it.
    """
    task_folder = context.local_folder.rpartition("/")[0]
    is_named = not source.startswith((".", "/")) and "/" not in source
    return source if source.startswith("/") or is_named else f"{task_folder}/{source.removeprefix('./')}"


def _parse_ulimit(name: str, limit: str) -> dict[str, Any]:
    """Convert `soft:hard`, or one number for both."""
    soft, _, hard = limit.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
