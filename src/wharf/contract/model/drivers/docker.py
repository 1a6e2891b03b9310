"""The options of a task with the driver `docker`, as job files name them. The driver checks them against the node's settings."""

import msgspec

from wharf.contract.model.drivers.programs import DurationOption


class AuthConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The block `auth` of a task's configuration: credentials for the registry."""

    username: str = ""
    """The user name at the registry.

    Default: none
    Example: deploy
    """
    password: str = ""
    """The password or token at the registry.

    Use a variable of the job file, so that it is not part of the file.

    Default: none
    Example: ${var.registry_token}
    """
    email: str = ""
    """The e-mail address of the user, which some registries require.

    Default: none
    Example: deploy@example.com
    """
    server_address: str = ""
    """The address of the registry.

    Default: the registry in the name of the image
    Example: registry.example.com
    """


class LoggingConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The block `logging` of a task's configuration: the engine's log driver and its options."""

    type: str = ""
    """The log driver of the engine.

    The node reads the output from the engine, so the driver must be one whose output the engine can return.

    Default: `json-file`
    Example: journald
    """
    driver: str = ""
    """Another name of the option `type`.

    Default: none
    Example: journald
    Deprecated: use `type`
    """
    config: dict[str, str] = {}
    """Options of the log driver.

    `path` is refused unless the node sets `allow_privileged`.

    Default: for `json-file`, as much output as the task's log files hold
    Example: {"max-size": "50m"}
    """


class DeviceConfig(msgspec.Struct, forbid_unknown_fields=True):
    """A block `devices` of a task's configuration: a host device for the container."""

    host_path: str
    """The device file on the node.

    Default: none; required
    Limits: a device that the node's setting `allow_devices` contains
    Example: /dev/fuse
    """
    container_path: str = ""
    """The device file in the container.

    Default: the same as `host_path`
    Example: /dev/fuse
    """
    cgroup_permissions: str = "rwm"
    """What the container may do with the device: letters of `r` (read), `w` (write) and `m` (create device files).

    Example: r
    """


class BindOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The block `bind_options` of a mount."""

    propagation: str = ""
    """Whether mounts that are made later below the folder are visible on the other side, such as `rprivate`,
    `rslave` or `rshared`.

    Default: the default of the engine
    Example: rslave
    """


class TmpfsOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The block `tmpfs_options` of a mount."""

    size: int = 0
    """The largest size of the file system.

    Unit: bytes
    Default: no limit, besides the memory of the task
    Example: 67108864
    """
    mode: int = 0
    """The permissions of the folder, as a decimal number: 1777 in octal is 1023.

    Default: the default of the engine
    Example: 1023
    """


class VolumeDriverConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The block `driver_config` of a mount's volume: the volume driver and its options."""

    name: str = ""
    """The name of the engine's volume driver.

    Default: the default of the engine
    Example: local
    """
    options: dict[str, str] = {}
    """Options of the volume driver.

    Default: none
    Example: {"type": "nfs"}
    """


class VolumeOptions(msgspec.Struct, forbid_unknown_fields=True):
    """The block `volume_options` of a mount."""

    no_copy: bool = False
    """Whether the files that the image has at `target` are not copied into a new volume."""
    labels: dict[str, str] = {}
    """Labels of a new volume.

    Default: none
    Example: {"team": "shop"}
    """
    driver_config: VolumeDriverConfig | None = None
    """The volume driver of a new volume, with its options."""


class MountConfig(msgspec.Struct, forbid_unknown_fields=True):
    """A block `mount` of a task's configuration: a volume, host folder or tmpfs in the container."""

    target: str
    """The path in the container.

    Default: none; required
    Example: /etc/app
    """
    type: str = "volume"
    """What is mounted.

    Values:
        volume: a named volume of the engine; the node must allow it
        bind: a folder or file; one outside of the task's folder only if the node allows it
        tmpfs: a new file system in memory
    Example: bind
    """
    source: str = ""
    """The name of the volume, or the path of the folder or file.

    A relative path begins in the folder of the task.

    Default: none
    Example: local/app
    """
    readonly: bool = False
    """Whether the container may only read it."""
    bind_options: BindOptions | None = None
    """Options of the type `bind`."""
    volume_options: VolumeOptions | None = None
    """Options of the type `volume`."""
    tmpfs_options: TmpfsOptions | None = None
    """Options of the type `tmpfs`."""


class HealthChecksConfig(msgspec.Struct, forbid_unknown_fields=True):
    """The block `healthchecks`: whether to disable the image's health check."""

    disable: bool = False
    """Whether the health check of the image is not run.

    Checks of services are not affected.
    """


class DockerConfig(msgspec.Struct):
    """The options of a task that runs in a container of Docker or Podman."""

    image: str = ""
    """The image, with its registry, and a tag or digest.

    Without a tag, it is `latest`.

    Default: none; required
    Example: nginx:1.27
    """
    command: str = ""
    """The program to run, instead of the command of the image.

    Default: the command of the image
    Example: /app/server
    """
    args: list[str] = []
    """The arguments of the program.

    Without `command`, they replace the command of the image and are passed to its entry point.

    Default: none
    Example: ["--port", "8080"]
    """
    entrypoint: list[str] | None = None
    """The entry point, instead of that of the image.

    An empty list removes it.

    Default: the entry point of the image
    Example: ["/bin/sh", "-c"]
    """
    work_dir: str = ""
    """The working folder in the container.

    Default: the working folder of the image
    Example: /app
    """
    hostname: str = ""
    """The host name of the container.

    Default: the host name of the group's network, otherwise the ID of the container
    Example: web
    """
    init: bool = False
    """Whether a small init program is process 1 of the container.

    It removes ended processes and passes on signals.
    """
    interactive: bool = False
    """Whether standard input of the container stays open."""
    tty: bool = False
    """Whether the container has a terminal.

    Its output is then stdout only.
    """
    ports: list[str] = []
    """The labels of the ports that are opened for the container.

    Each one must be a port of the group's network. In the network modes `bridge` and `cni/…` the node forwards
    the ports itself, and this option has no effect.

    Default: none
    Limits: labels of ports of the group
    Example: ["http"]
    """
    network_mode: str = ""
    """The network of the engine, such as `bridge` or `host`.

    It has no effect if the group has a network of its own.

    Default: the default of the engine
    Limits: not the network of another container, unless the node sets `allow_privileged`
    Example: host
    """
    network_aliases: list[str] = []
    """Further names of the container in a network of the engine.

    Default: none
    Example: ["web"]
    """
    ipv4_address: str = ""
    """A fixed IPv4 address in a network of the engine.

    Default: chosen by the engine
    Example: 172.18.0.10
    """
    ipv6_address: str = ""
    """A fixed IPv6 address in a network of the engine.

    Default: chosen by the engine
    Example: fd00::10
    """
    mac_address: str = ""
    """A fixed MAC address.

    Default: chosen by the engine
    Example: 02:42:ac:11:00:02
    """
    extra_hosts: list[str] = []
    """Further entries of `/etc/hosts`, each as `name:address`.

    Default: none
    Example: ["db:10.0.0.5"]
    """
    dns_servers: list[str] = []
    """The addresses of the name servers.

    Default: those of the engine
    Example: ["10.0.0.2"]
    """
    dns_search_domains: list[str] = []
    """The domains in which names without a dot are searched.

    Default: those of the engine
    Example: ["example.internal"]
    """
    dns_options: list[str] = []
    """Options of the resolver.

    Default: those of the engine
    Example: ["ndots:2"]
    """
    volumes: list[str] = []
    """Folders and files to mount, each as `source:target` or `source:target:ro`.

    A relative source begins in the folder of the task. Other sources need the node's setting `volumes_enabled`;
    a group's host volume (`VolumeMounts`) does not.

    Default: none
    Example: ["local/app:/etc/app:ro"]
    """
    volume_driver: str = ""
    """The engine's volume driver for named volumes in `volumes`.

    Default: the default of the engine
    Example: local
    """
    mount: list[MountConfig] = []
    """Volumes, folders and file systems in memory to mount, with more options than `volumes` has.

    In HCL, it is a block that can be repeated.
    """
    mounts: list[MountConfig] = []
    """Another name of the option `mount`.

    Both together are added up.
    """
    storage_opt: dict[str, str] = {}
    """Options of the engine's storage driver.

    Default: none
    Example: {"size": "10G"}
    """
    devices: list[DeviceConfig] = []
    """Device files of the node for the container.

    Devices that servers assign (`Resources.Devices`) need no entry.

    Limits: devices that the node's setting `allow_devices` contains
    """
    auth: AuthConfig | None = None
    """The credentials for the registry of the image."""
    auth_soft_fail: bool = False
    """Whether the image is pulled without credentials if the registry refuses them."""
    force_pull: bool = False
    """Whether the image is pulled at each start.

    Otherwise an image that the engine has is used, unless its tag is `latest`.
    """
    image_pull_timeout: DurationOption = DurationOption("5m")
    """How long the pull of the image may take.

    Type: duration
    Example: 10m
    """
    load: str = ""
    """An archive with the image (`docker save`), as a path in the folder of the task.

    The image is loaded from it and not pulled. An artifact can provide the archive.

    Default: none
    Limits: inside of the folder of the task
    Example: local/app.tar
    """
    labels: dict[str, str] = {}
    """Labels of the container.

    Default: none
    Limits: no name that begins with `wharf.run`, `wharf.node` or `wharf.log.`
    Example: {"team": "shop"}
    """
    logging: LoggingConfig | None = None
    """The log driver of the engine with its options.

    It limits what the engine retains, not what the node retains: `LogConfig` of the task does that.
    """
    ulimit: dict[str, str] = {}
    """Limits of the processes, by name: `soft:hard`, or one number for both.

    Default: those of the engine
    Limits: one number, or two with a colon
    Example: {"nofile": "4096:8192"}
    """
    sysctl: dict[str, str] = {}
    """Settings of the kernel for the container, by name.

    Default: none
    Limits: settings that a container has for itself; others need the node's setting `allow_privileged`
    Example: {"net.core.somaxconn": "1024"}
    """
    cap_add: list[str] = []
    """Capabilities that the container has in addition, such as `net_admin`.

    Default: none
    Limits: those that the node's setting `allow_caps` contains
    Example: ["net_bind_service"]
    """
    cap_drop: list[str] = []
    """Capabilities that the container does not have.

    `all` removes all of them.

    Default: none
    Example: ["all"]
    """
    privileged: bool = False
    """Whether the container has all privileges on the host.

    Limits: only if the node sets `allow_privileged`
    """
    security_opt: list[str] = []
    """Security options of the engine.

    Default: none
    Limits: those that the node's setting `allow_security_opts` contains
    Example: ["no-new-privileges"]
    """
    readonly_rootfs: bool = False
    """Whether the container may only read its image.

    `/alloc`, `/local` and `/secrets` stay writable.
    """
    group_add: list[str] = []
    """Further groups of the user in the container, by name or number.

    Default: none
    Example: ["audio"]
    """
    memory_hard_limit: int = 0
    """The memory at which the kernel kills the container, above the reserved memory (`Resources.MemoryMB`).

    Use `Resources.MemoryMaxMB` instead, which the scheduler knows.

    Unit: MiB
    Default: `Resources.MemoryMaxMB`, otherwise `Resources.MemoryMB`
    Example: 512
    """
    cpu_hard_limit: bool = False
    """Whether the container may use no more than its share of the processor (`Resources.CPU`), even if the node is
    idle.
    """
    cpu_cfs_period: int = 100_000
    """The period in which `cpu_hard_limit` is applied.

    Unit: microseconds
    Example: 50000
    """
    cpuset_cpus: str = ""
    """The cores on which the container may run, as ranges.

    Use `Resources.Cores` instead, with which the scheduler reserves cores.

    Default: the cores of `Resources.Cores`, otherwise all
    Example: 0-3
    """
    pids_limit: int = 0
    """How many processes and threads the container may have.

    Unit: processes
    Default: the limit of the engine
    Example: 200
    """
    oom_score_adj: int = 0
    """How likely the kernel kills the container when the node has no memory left; a higher number is more likely.

    Limits: 0 to 1,000; from -1,000 if the node sets `allow_privileged`
    Example: 500
    """
    shm_size: int = 0
    """The size of `/dev/shm`.

    Unit: bytes
    Default: the default of the engine
    Example: 67108864
    """
    pid_mode: str = ""
    """The process namespace of the container; `host` shares that of the node.

    Default: a namespace of its own
    Limits: not shared, unless the node sets `allow_privileged`
    Example: private
    """
    ipc_mode: str = ""
    """The namespace of shared memory; `host` shares that of the node.

    Default: a namespace of its own
    Limits: not shared, unless the node sets `allow_privileged`
    Example: private
    """
    uts_mode: str = ""
    """The namespace of the host name; `host` shares that of the node.

    Default: a namespace of its own
    Limits: not shared, unless the node sets `allow_privileged`
    Example: private
    """
    userns_mode: str = ""
    """The namespace of users; `host` shares that of the node.

    Default: the default of the engine
    Limits: not shared, unless the node sets `allow_privileged`
    Example: keep-id
    """
    cgroupns: str = ""
    """The namespace of control groups; `host` shares that of the node.

    Default: the default of the engine
    Limits: not shared, unless the node sets `allow_privileged`
    Example: private
    """
    runtime: str = ""
    """The runtime with which the engine starts the container.

    Default: the default of the engine
    Limits: those that the node's setting `allow_runtimes` contains: `runc`, `crun` and `nvidia` by default
    Example: crun
    """
    healthchecks: HealthChecksConfig | None = None
    """What happens with the health check of the image."""
    container_exists_attempts: int = 5
    """How many times the node tries to create the container while another one has its name.

    Unit: attempts
    Limits: values below 1 count as 1
    Example: 3
    """
