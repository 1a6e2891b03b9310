"""The body with which the engine makes a container, from what the job says and where the node puts it."""

from typing import Any, Final, NamedTuple

from wharf.node.drivers.docker.config import DockerConfig, MountConfig

ALLOCATION_LABEL: Final = "wharf.alloc_id"
TASK_LABEL: Final = "wharf.task"
# The name under which existing tools look.
COMPATIBLE_LABEL: Final = "com.hashicorp.nomad.alloc_id"
BYTES_PER_MB: Final = 1 << 20


class ContainerPort(NamedTuple):
    label: str
    host_ip: str
    value: int
    to: int  # Within the container; 0: the same.


class ContainerContext(NamedTuple):
    """What the node gives a task."""

    allocation_id: str
    task: str
    labels: dict[str, str]  # Of job, group, namespace and node: those that the operator wants shown.
    environment: dict[str, str]
    allocation_folder: str  # Seen as /alloc, /local and /secrets.
    local_folder: str
    secrets_folder: str
    memory_mb: int
    memory_max_mb: int
    cpu_mhz: int
    cpu_total_mhz: int
    cores: str  # As a cpuset; empty without reserved cores.
    ports: tuple[ContainerPort, ...]
    volumes: tuple[tuple[str, str, bool], ...]  # Host volumes: path, target, whether only read.
    user: str
    network: str  # The file of the namespace that it joins; empty: its own mode.
    files: tuple[tuple[str, str], ...] = ()  # Of the machine, with where it finds them.
    devices: tuple[tuple[str, str, str], ...] = ()  # Path, target, permissions.
    hostname: str = ""
    log_mb: int = 0  # What is kept of its output in all.


def make_container_name(place: ContainerContext) -> str:
    return f"{place.task}-{place.allocation_id}"


def build_container_body(
    config: DockerConfig, place: ContainerContext
) -> dict[str, Any]:  # JSON, as the engine names things.
    # In a network that it shares, ports are led to already.
    ports = [port for port in place.ports if port.label in config.ports and not place.network]
    labels = {ALLOCATION_LABEL: place.allocation_id, TASK_LABEL: place.task, COMPATIBLE_LABEL: place.allocation_id}
    body: dict[str, Any] = {
        "Image": config.image,
        "Env": [f"{name}={value}" for name, value in sorted(place.environment.items())],
        "Labels": {**place.labels, **config.labels, **labels},
        "User": place.user,
        "Tty": config.tty,
        "OpenStdin": config.interactive,
        "ExposedPorts": {f"{port.to or port.value}/{protocol}": {} for port in ports for protocol in ("tcp", "udp")},
        "HostConfig": _host(config, place, ports),
    }
    if config.command or config.args:
        body["Cmd"] = [*([config.command] if config.command else []), *config.args]
    if config.entrypoint is not None:
        body["Entrypoint"] = config.entrypoint
    named = {
        "WorkingDir": config.work_dir,
        "Hostname": config.hostname or place.hostname,
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


def _host(config: DockerConfig, place: ContainerContext, ports: list[ContainerPort]) -> dict[str, Any]:
    logging = config.logging
    log_type = (logging.type or logging.driver) if logging else ""
    # What the engine drops before it was read is lost, so it keeps as much as the node does.
    kept = {"max-file": "2", "max-size": f"{max(place.log_mb, 2)}m"}
    log_config = (logging.config if logging else {}) or ({} if log_type else kept)
    host: dict[str, Any] = {
        "Binds": _binds(config, place),
        "Mounts": [_mount(mount, place) for mount in (*config.mount, *config.mounts)],
        "LogConfig": {"Type": log_type or "json-file", "Config": log_config},
        "PortBindings": {
            f"{port.to or port.value}/{protocol}": [{"HostIp": port.host_ip, "HostPort": str(port.value)}]
            for port in ports
            for protocol in ("tcp", "udp")
        },
        "NetworkMode": f"ns:{place.network}" if place.network else config.network_mode,
        "Init": config.init,
        "Privileged": config.privileged,
        "ReadonlyRootfs": config.readonly_rootfs,
        # The node decides when a task is started again.
        "RestartPolicy": {"Name": "no"},
        **_resources(config, place),
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
        "Ulimits": [_ulimit(name, limit) for name, limit in sorted(config.ulimit.items())],
        "Devices": [
            {"PathOnHost": path, "PathInContainer": target, "CgroupPermissions": permissions}
            for path, target, permissions in (
                *(
                    (each.host_path, each.container_path or each.host_path, each.cgroup_permissions)
                    for each in config.devices
                ),
                *place.devices,
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
    # What the job leaves out is the engine's to choose.
    return host | {name: value for name, value in named.items() if value}


def _resources(config: DockerConfig, place: ContainerContext) -> dict[str, Any]:
    hard_mb = config.memory_hard_limit or place.memory_max_mb or place.memory_mb
    limits: dict[str, Any] = {"Memory": hard_mb * BYTES_PER_MB, "MemorySwap": hard_mb * BYTES_PER_MB}
    if hard_mb > place.memory_mb:
        limits["MemoryReservation"] = place.memory_mb * BYTES_PER_MB
    limits["CpuShares"] = max(place.cpu_mhz, 2)
    if config.cpu_hard_limit and place.cpu_total_mhz:
        limits["CpuPeriod"] = config.cpu_cfs_period
        limits["CpuQuota"] = max(place.cpu_mhz * config.cpu_cfs_period // place.cpu_total_mhz, 1_000)
    cpuset = config.cpuset_cpus or place.cores
    if cpuset:
        limits["CpusetCpus"] = cpuset
    if config.pids_limit:
        limits["PidsLimit"] = config.pids_limit
    return limits


def _binds(config: DockerConfig, place: ContainerContext) -> list[str]:
    binds = [
        f"{place.allocation_folder}:/alloc",
        f"{place.local_folder}:/local",
        f"{place.secrets_folder}:/secrets",
        *(f"{path}:{target}{':ro' if is_read_only else ''}" for path, target, is_read_only in place.volumes),
        *(f"{path}:{target}:ro" for path, target in place.files),
    ]
    for volume in config.volumes:
        source, _, rest = volume.partition(":")
        binds.append(f"{_within(source, place)}:{rest}")
    return binds


def _mount(mount: MountConfig, place: ContainerContext) -> dict[str, Any]:
    source = _within(mount.source, place) if mount.type == "bind" else mount.source
    made: dict[str, Any] = {"Type": mount.type, "Target": mount.target, "Source": source, "ReadOnly": mount.readonly}
    if mount.bind_options and mount.bind_options.propagation:
        made["BindOptions"] = {"Propagation": mount.bind_options.propagation}
    if mount.tmpfs_options:
        options = {"SizeBytes": mount.tmpfs_options.size, "Mode": mount.tmpfs_options.mode}
        # Said, a mode of nothing is a folder that nobody may enter.
        made["TmpfsOptions"] = {name: value for name, value in options.items() if value}
    if mount.volume_options:
        driver = mount.volume_options.driver_config
        made["VolumeOptions"] = {
            "NoCopy": mount.volume_options.no_copy,
            "Labels": mount.volume_options.labels,
            **({"DriverConfig": {"Name": driver.name, "Options": driver.options}} if driver else {}),
        }
    return made


def _within(source: str, place: ContainerContext) -> str:
    """A relative path is one of the task's folder; `config` has refused a way out of it."""
    task_folder = place.local_folder.rpartition("/")[0]
    is_named = not source.startswith((".", "/")) and "/" not in source
    return source if source.startswith("/") or is_named else f"{task_folder}/{source.removeprefix('./')}"


def _ulimit(name: str, limit: str) -> dict[str, Any]:
    soft, _, hard = limit.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
