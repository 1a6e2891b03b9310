"""The container of a run: its name, its labels, and the body of the engine's request to create it."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from wharf.contract.model.drivers.docker import DockerConfig, LoggingConfig, MountConfig
from wharf.contract.model.refusal import Refusal
from wharf.node.drivers.port import CannotStart, GivenDevice, GivenPort, TaskOrder
from wharf.node.files import ReadOnlyFolder
from wharf.node.node_mark import NodeMark

RUN_LABEL: Final = "wharf.run"
NODE_LABEL: Final = "wharf.node"
NODE_FOLDER_LABEL: Final = "wharf.node.folder"
"""The state folder of the node. If it is gone, an agent with another folder can remove the container."""
LOG_LABEL_NAMES: Final = ("wharf.log.folder", "wharf.log.task", "wharf.log.files", "wharf.log.bytes")
"""Labels with the log settings, so that a restarted agent can resume writing the logs."""
ALLOCATION_LABEL: Final = "wharf.alloc_id"
TASK_LABEL: Final = "wharf.task"
COMPATIBLE_LABEL: Final = "com.hashicorp.nomad.alloc_id"
"""The label that existing tools for Nomad search for."""
LOG_STREAMS: Final = ("stdout", "stderr")
PROTOCOLS: Final = ("tcp", "udp")
BYTES_PER_MB: Final = 1 << 20
LOG_BYTES_PER_MB: Final = 1_000_000
MIN_CPU_SHARES: Final = 2
"""The kernel's minimum."""
MIN_CPU_QUOTA_US: Final = 1_000
"""The kernel's minimum."""


def make_container_name(order: TaskOrder) -> str:
    """Return the container's name: task and allocation id."""
    return f"{order.task}-{order.allocation_id}"


def build_labels(order: TaskOrder, owner: NodeMark, operator_labels: Sequence[str]) -> dict[str, str]:
    """Return the labels with which the container is created: run, node and log settings of the task.

    The agent finds a container by them after a restart. Labels of the task whose names are in `operator_labels` are
    added.
    """
    log_settings = (
        str(order.log_folder) if not order.log.disabled else "",
        order.task,
        str(order.log.max_files),
        str(order.log.max_file_size_mb * LOG_BYTES_PER_MB),
    )
    return {
        **{name: value for name, value in order.labels.items() if name in operator_labels},
        RUN_LABEL: order.run,
        NODE_LABEL: owner.node_id,
        NODE_FOLDER_LABEL: owner.state_folder,
        **dict(zip(LOG_LABEL_NAMES, log_settings, strict=True)),
    }


def build_container_body(config: DockerConfig, order: TaskOrder, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the JSON body of the engine's request `POST /containers/create`.

    `labels` are those of the node. A label of the job overrides only those that the operator has selected.
    Raises CannotStart if a mount leads out of the task's folder.
    """
    network = order.network
    # In a shared network namespace, the node forwards the ports.
    ports = [port for port in order.given.ports if port.label in config.ports and network is None]
    required_labels = {
        ALLOCATION_LABEL: order.allocation_id,
        TASK_LABEL: order.task,
        COMPATIBLE_LABEL: order.allocation_id,
    }
    node_labels = {
        name: labels[name] for name in (RUN_LABEL, NODE_LABEL, NODE_FOLDER_LABEL, *LOG_LABEL_NAMES) if name in labels
    }
    body: dict[str, Any] = {
        "Image": config.image,
        "Env": [f"{name}={value}" for name, value in sorted(order.environment.items())],
        "Labels": {**labels, **config.labels, **node_labels, **required_labels},
        "User": order.user,
        "Tty": config.tty,
        "OpenStdin": config.interactive,
        "ExposedPorts": {f"{port.to or port.value}/{protocol}": {} for port in ports for protocol in PROTOCOLS},
        "HostConfig": _build_host_config(config, order, ports),
    }
    if config.command or config.args:
        body["Cmd"] = [*([config.command] if config.command else []), *config.args]
    if config.entrypoint is not None:
        body["Entrypoint"] = config.entrypoint
    optional = {
        "WorkingDir": config.work_dir,
        "Hostname": config.hostname or (network.hostname if network is not None else ""),
        "MacAddress": config.mac_address,
    }
    body |= {name: value for name, value in optional.items() if value}
    if config.healthchecks is not None and config.healthchecks.disable:
        body["Healthcheck"] = {"Test": ["NONE"]}
    mode = body["HostConfig"].get("NetworkMode", "")
    if config.network_aliases or config.ipv4_address or config.ipv6_address:
        address = {"IPv4Address": config.ipv4_address, "IPv6Address": config.ipv6_address}
        body["NetworkingConfig"] = {
            "EndpointsConfig": {mode: {"Aliases": config.network_aliases, "IPAMConfig": address}}
        }
    return body


def _build_host_config(config: DockerConfig, order: TaskOrder, ports: Sequence[GivenPort]) -> dict[str, Any]:
    """Return the object `HostConfig` of the request that creates the container.

    Keys that the job does not set are left out, so that the engine chooses their values.
    """
    network = order.network
    required: dict[str, Any] = {
        "Binds": _build_binds(config, order),
        "Mounts": [_build_mount(mount, order) for mount in (*config.mount, *config.mounts)],
        "LogConfig": _build_log_config(config.logging, order),
        "PortBindings": {
            f"{port.to or port.value}/{protocol}": [{"HostIp": port.host_ip, "HostPort": str(port.value)}]
            for port in ports
            for protocol in PROTOCOLS
        },
        "NetworkMode": f"ns:{network.namespace}" if network is not None else config.network_mode,
        "Init": config.init,
        "Privileged": config.privileged,
        "ReadonlyRootfs": config.readonly_rootfs,
        # The node decides about restarts.
        "RestartPolicy": {"Name": "no"},
        **_build_limits(config, order),
    }
    optional = {
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
        "Devices": _build_devices(config, order.given.devices),
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
    return required | {name: value for name, value in optional.items() if value}


def _build_log_config(logging: LoggingConfig | None, order: TaskOrder) -> dict[str, Any]:
    """Return the engine's log driver with its options, as `LogConfig` of the request.

    By default a JSON file that retains at least as much output as the node's own log files.
    """
    log_type = (logging.type or logging.driver) if logging else ""
    # The engine must retain as much output as the node, because output is lost if it is dropped before it is read.
    retained_mb = len(LOG_STREAMS) * order.log.max_files * order.log.max_file_size_mb
    default_options = {"max-file": "2", "max-size": f"{max(retained_mb, 2)}m"}
    options = (logging.config if logging else {}) or ({} if log_type else default_options)
    return {"Type": log_type or "json-file", "Config": options}


def _build_devices(config: DockerConfig, allocated: Sequence[GivenDevice]) -> list[dict[str, str]]:
    """Return the host devices from the job's config and those of the task's devices, as `Devices` of the request."""
    configured = [
        GivenDevice(device.host_path, device.container_path or device.host_path, device.cgroup_permissions)
        for device in config.devices
    ]
    return [
        {"PathOnHost": path, "PathInContainer": target, "CgroupPermissions": permissions}
        for path, target, permissions in (*configured, *allocated)
    ]


def _build_limits(config: DockerConfig, order: TaskOrder) -> dict[str, Any]:
    """Return the memory, CPU and process limits, as keys of `HostConfig` of the request."""
    resources = order.given
    hard_mb = config.memory_hard_limit or resources.memory_limit_mb
    limits: dict[str, Any] = {}
    if hard_mb:
        limits |= {"Memory": hard_mb * BYTES_PER_MB, "MemorySwap": hard_mb * BYTES_PER_MB}
    if not hard_mb or hard_mb > resources.memory_mb:
        limits["MemoryReservation"] = resources.memory_mb * BYTES_PER_MB
    limits["CpuShares"] = max(resources.cpu_mhz, MIN_CPU_SHARES)
    if config.cpu_hard_limit and resources.cpu_total_mhz:
        limits["CpuPeriod"] = config.cpu_cfs_period
        limits["CpuQuota"] = max(resources.cpu_mhz * config.cpu_cfs_period // resources.cpu_total_mhz, MIN_CPU_QUOTA_US)
    cpuset = config.cpuset_cpus or resources.cores
    if cpuset:
        limits["CpusetCpus"] = cpuset
    if config.pids_limit:
        limits["PidsLimit"] = config.pids_limit
    return limits


def _build_binds(config: DockerConfig, order: TaskOrder) -> list[str]:
    """Return the bind mounts of the container, each as `source:target[:ro]`.

    These are the folders of allocation and task, host volumes, network files and the volumes of the config.
    """
    files = order.network.files if order.network is not None else ()
    binds = [
        f"{order.shared_folder}:/alloc",
        f"{order.task_folder}/local:/local",
        f"{order.task_folder}/secrets:/secrets",
        *(f"{volume.path}:{volume.target}{':ro' if volume.is_read_only else ''}" for volume in order.given.volumes),
        *(f"{path}:{target}:ro" for path, target in files),
    ]
    for volume in config.volumes:
        source, _, rest = volume.partition(":")
        binds.append(f"{_resolve_source(source, order)}:{rest}")
    return binds


def _build_mount(mount: MountConfig, order: TaskOrder) -> dict[str, Any]:
    """Return the mount in the engine's format, as an element of `Mounts` of the request."""
    source = _resolve_source(mount.source, order) if mount.type == "bind" else mount.source
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


def _resolve_source(source: str, order: TaskOrder) -> str:
    """Return the source of a volume as the engine expects it: a host path, or the unchanged name of a volume.

    A relative path is in the task's folder; paths that lead out of it were rejected when the config was validated. Links
    are resolved. Raises CannotStart if one leads out.
    """
    is_named = not source.startswith((".", "/")) and "/" not in source
    if source.startswith("/") or is_named:
        return source
    if ".." in source.split("/"):  # The operator allows volumes outside of the allocation.
        return f"{order.task_folder}/{source}"
    # The engine runs as root and follows links. No process of the task runs now, so none can change the folder.
    try:
        return f"{order.task_folder}/{ReadOnlyFolder(order.task_folder).resolve(source)}"
    except Refusal as refusal:
        raise CannotStart(
            f"config: {source} cannot be mounted, because a link in it leads out of the task's folder: delete the link"
        ) from refusal


def _parse_ulimit(name: str, limit_text: str) -> dict[str, Any]:
    """Return the limit in the engine's format. `limit_text` is `soft:hard`, or one number for both."""
    soft, _, hard = limit_text.partition(":")
    return {"Name": name, "Soft": int(soft), "Hard": int(hard or soft)}
