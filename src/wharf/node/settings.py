"""The settings of a node: what it offers, what it stores, what it permits tasks to do.

Field names are keys of configuration files; the texts are shown in `docs/configuration.md`. `NodeLocation` says where
the node and its folders are.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from wharf.contract.model.settings import Duration, SecretText, SettingInfo
from wharf.contract.model.times import MINUTE, SECOND
from wharf.node.sandbox.privileges import DEFAULT_CAPABILITIES

DEFAULT_SECURITY_OPTS: Final = ("no-new-privileges", "no-new-privileges:true", "no-new-privileges=true")
"""Values of `security_opt` that only take rights away from a container."""
SHUTDOWN_MARGIN_S: Final = 10.0
"""Seconds that a shutdown may take beyond the drain deadline and the longest kill timeout."""


class ReservedSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Resources that are reserved for the host and not assigned to tasks."""

    cpu: Annotated[int, SettingInfo("CPU, in MHz.", min_value=0)] = 0
    memory: Annotated[int, SettingInfo("Memory, in MB.", min_value=0)] = 0
    disk: Annotated[int, SettingInfo("Disk space, in MB.", min_value=0)] = 0
    cores: Annotated[str, SettingInfo("Cores, as a list of ranges: `0-2,7`.")] = ""
    reserved_ports: Annotated[str, SettingInfo("Ports, as a list of ranges: `22,80,8500-8600`.")] = ""


class HostVolumeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A folder of the host that jobs can mount."""

    path: Annotated[str, SettingInfo("The folder or file of the host.")] = ""
    read_only: Annotated[bool, SettingInfo("Whether tasks can only read it.")] = False


class HostNetworkSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A network of the host on which jobs can request ports."""

    cidr: Annotated[str, SettingInfo("The addresses of the network, such as `10.0.0.0/8`.")] = ""
    interface: Annotated[str, SettingInfo("The interface of the network; an alternative to `cidr`.")] = ""
    reserved_ports: Annotated[str, SettingInfo("Ports that are not assigned to tasks, as a list of ranges.")] = ""


class DrainOnShutdownSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Whether and how a node drains itself before it shuts down."""

    enabled: Annotated[
        bool, SettingInfo("Whether the node drains itself before it shuts down. The drain ends when the node is back.")
    ] = False
    deadline: Annotated[Duration, SettingInfo("The deadline of the drain.")] = Duration(60 * MINUTE)
    force: Annotated[bool, SettingInfo("Whether it stops all allocations at once instead.")] = False
    ignore_system_jobs: Annotated[bool, SettingInfo("Whether system jobs are left running.")] = False


class RawExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The driver `raw_exec`: programs of the host without a sandbox."""

    enabled: Annotated[
        bool,
        SettingInfo("Whether tasks may run programs of the host without a sandbox. On in `wharf dev`."),
    ] = False
    bounds_memory: Annotated[
        bool,
        SettingInfo(
            "Whether the kernel kills a task that uses more memory than its job requests, if the host supports that. "
            "Otherwise the request counts only for placement."
        ),
    ] = True


class ExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The driver `exec`: programs of the host in a sandbox."""

    allow_caps: Annotated[
        tuple[str, ...], SettingInfo("The capabilities that tasks may request; `all` permits every one.")
    ] = DEFAULT_CAPABILITIES
    allow_host_namespaces: Annotated[
        bool,
        SettingInfo(
            "Whether tasks may see the processes of the host (`pid_mode`) or use its shared memory (`ipc_mode`). Such a "
            "task can read the secrets of every task that runs as the same user; as root, it can kill the agent."
        ),
    ] = False
    default_pid_mode: Annotated[
        str, SettingInfo("Whether tasks see only their own processes (`private`) or those of the host (`host`).")
    ] = "private"
    default_ipc_mode: Annotated[
        str,
        SettingInfo(
            "Whether tasks have their own shared memory and message queues (`private`) or the host's (`host`)."
        ),
    ] = "private"
    pids_limit: Annotated[
        int, SettingInfo("How many processes and threads a task may have at one time; 0 sets no limit.", min_value=0)
    ] = 16_384


class DockerDriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The driver `docker`: containers."""

    socket: Annotated[
        str,
        SettingInfo(
            "The socket of the container engine, Docker or Podman.", default_text="the usual path of each engine"
        ),
    ] = ""
    volumes_enabled: Annotated[
        bool, SettingInfo("Whether tasks may mount folders of the host and volumes of the engine.")
    ] = False
    allow_privileged: Annotated[
        bool,
        SettingInfo(
            "Whether tasks may request a privileged container, and with that all devices, security options, kernel settings and "
            "namespaces of the host.",
        ),
    ] = False
    allow_caps: Annotated[
        tuple[str, ...], SettingInfo("The capabilities that tasks may request; `all` permits every one.")
    ] = DEFAULT_CAPABILITIES
    allow_runtimes: Annotated[tuple[str, ...], SettingInfo("The runtimes that tasks may request.")] = (
        "runc",
        "crun",
        "nvidia",
    )
    allow_devices: Annotated[
        tuple[str, ...],
        SettingInfo(
            "The devices of the host that tasks may request with `devices`, such as `/dev/fuse`; `all` permits every one. "
            "A task that can write to a disk of the host can become root there."
        ),
    ] = ()
    allow_security_opts: Annotated[
        tuple[str, ...],
        SettingInfo(
            "The values of `security_opt` that tasks may request, such as `apparmor=web`; `all` permits every one. Some "
            "values remove the protection of the host, such as `seccomp=unconfined`."
        ),
    ] = DEFAULT_SECURITY_OPTS
    extra_labels: Annotated[
        tuple[str, ...],
        SettingInfo(
            "Additional labels of containers: `job_name`, `job_id`, `task_group_name`, `task_name`, `namespace`, "
            "`node_id`, `node_name`."
        ),
    ] = ()


class DriversSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of each driver."""

    docker: Annotated[DockerDriverSettings, SettingInfo("Containers.")] = DockerDriverSettings()
    exec: Annotated[ExecSettings, SettingInfo("Programs of the host in a sandbox.")] = ExecSettings()
    raw_exec: Annotated[RawExecSettings, SettingInfo("Programs of the host without a sandbox.")] = RawExecSettings()


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All settings of a node."""

    enabled: Annotated[bool, SettingInfo("Whether this agent is a node: it runs tasks.")] = False
    servers: Annotated[
        tuple[str, ...],
        SettingInfo(
            "HTTP addresses of servers. The node uses one until it does not reply, then the next.",
            default_text="the server in the same agent",
        ),
    ] = ()
    intro_token: Annotated[
        SecretText, SettingInfo("The introduction token with which a new node registers while access control is on.")
    ] = SecretText()
    node_class: Annotated[str, SettingInfo("The node class, which constraints and spreads can use.")] = ""
    node_pool: Annotated[str, SettingInfo("The node pool that the node belongs to.")] = "default"
    meta: Annotated[dict[str, str], SettingInfo("Metadata of your choice, which constraints can use.")] = {}
    options: Annotated[
        dict[str, str], SettingInfo("Options for driver and device plugins (documentation page The node).")
    ] = {}
    fake_nodes: Annotated[
        int,
        SettingInfo(
            "How many fake nodes run beside the real one. They accept allocations and report them as running, "
            "but start nothing. For tests and measurements.",
            min_value=0,
            max_value=100_000,
        ),
    ] = 0
    alloc_dir: Annotated[
        str, SettingInfo("The folder for the folders of allocations.", default_text="`alloc` in the data folder")
    ] = ""
    state_dir: Annotated[
        str,
        SettingInfo(
            "The folder for the node's own state, such as its journal.", default_text="`node` in the data folder"
        ),
    ] = ""
    network_interface: Annotated[
        str, SettingInfo("The interface whose address tasks get.", default_text="the interface of the default route")
    ] = ""
    min_dynamic_port: Annotated[
        int, SettingInfo("The first port that is assigned to tasks.", min_value=1, max_value=65_535)
    ] = 20_000
    max_dynamic_port: Annotated[
        int, SettingInfo("The last port that is assigned to tasks.", min_value=1, max_value=65_535)
    ] = 32_000
    max_kill_timeout: Annotated[Duration, SettingInfo("The longest kill timeout that a task may request.")] = Duration(
        30 * SECOND
    )
    reserved: Annotated[ReservedSettings, SettingInfo("Resources that are reserved for the host itself.")] = (
        ReservedSettings()
    )
    gc_interval: Annotated[
        Duration, SettingInfo("How often the node checks whether folders of ended allocations must be removed.")
    ] = Duration(MINUTE)
    gc_disk_usage_threshold: Annotated[
        float, SettingInfo("Disk usage in percent from which folders of ended allocations are removed.")
    ] = 80.0
    gc_inode_usage_threshold: Annotated[
        float, SettingInfo("Inode usage in percent from which folders of ended allocations are removed.")
    ] = 70.0
    gc_parallel_destroys: Annotated[int, SettingInfo("How many folders are removed at a time.", min_value=1)] = 2
    gc_max_allocs: Annotated[
        int,
        SettingInfo(
            "How many folders of allocations a node may have before it removes those of ended ones.", min_value=1
        ),
    ] = 10_000
    log_tail_bytes: Annotated[
        int,
        SettingInfo(
            "How many bytes of the end of each log, `stdout` and `stderr` of every task, servers keep after the "
            "allocation has ended; 0 keeps nothing.",
            min_value=0,
            max_value=65_536,
        ),
    ] = 2_048
    chroot_env: Annotated[
        dict[str, str],
        SettingInfo(
            "Folders and files of the host that tasks of the driver `exec` can read, each with its path in the task.",
            default_text="`/bin`, `/etc`, `/lib`, `/lib32`, `/lib64`, `/run/resolvconf`, `/run/systemd/resolve`, `/sbin`, "
            "`/usr`, as far as they exist",
        ),
    ] = {}
    cni_path: Annotated[
        str,
        SettingInfo(
            "The folders of CNI plugins, separated by colons; `/usr/lib/cni` and `/usr/libexec/cni` are searched too."
        ),
    ] = "/opt/cni/bin"
    cni_config_dir: Annotated[
        str, SettingInfo("The folder of CNI network configurations; jobs request one with the network mode `cni/NAME`.")
    ] = "/opt/cni/config"
    bridge_network_name: Annotated[
        str, SettingInfo("The bridge for the network mode `bridge`; it is created when it is needed.")
    ] = "wharf"
    bridge_network_subnet: Annotated[str, SettingInfo("The addresses of the bridge network.")] = "172.26.64.0/20"
    host_volume: Annotated[
        dict[str, HostVolumeSettings], SettingInfo("Folders of the host that jobs can mount, by name.")
    ] = {}
    host_volumes_dir: Annotated[
        str,
        SettingInfo(
            "The folder for volumes that are created while the node runs.",
            default_text="`host_volumes` beside `state_dir`",
        ),
    ] = ""
    host_volume_plugin_dir: Annotated[
        str,
        SettingInfo(
            "The folder of plugins that create volumes, in addition to the built-in `mkdir`.",
            default_text="`host_volume_plugins` beside `state_dir`",
        ),
    ] = ""
    host_network: Annotated[
        dict[str, HostNetworkSettings], SettingInfo("Networks on which jobs can request ports, by name.")
    ] = {}
    disable_remote_exec: Annotated[
        bool, SettingInfo("Whether remote commands in tasks, such as `alloc exec`, are forbidden.")
    ] = False
    drivers: Annotated[DriversSettings, SettingInfo("The settings of each driver.")] = DriversSettings()
    finds_left_overs_by: Annotated[
        str,
        SettingInfo(
            "How the node finds processes that a task left behind: by control groups if it may create them (`auto`), or "
            "only by a mark in their environment (`mark`)."
        ),
    ] = "auto"
    reap_foreign: Annotated[
        bool,
        SettingInfo(
            "Whether the node ends supervisors, tasks, networks and containers of nodes whose data folder was deleted. "
            "Otherwise it only reports them."
        ),
    ] = False
    stop_on_shutdown: Annotated[
        bool,
        SettingInfo(
            "Whether the node stops its tasks when it shuts down. Otherwise they keep running, and the restarted node "
            "takes them over. On in `wharf dev`."
        ),
    ] = False
    drain_on_shutdown: Annotated[
        DrainOnShutdownSettings, SettingInfo("Whether and how the node drains itself before it shuts down.")
    ] = DrainOnShutdownSettings()

    @property
    def shutdown_drain_timeout_s(self) -> float:
        """The number of seconds that the drain may delay a shutdown; 0 if the node is not drained."""
        drain = self.drain_on_shutdown
        if not drain.enabled:
            return 0.0
        return (0.0 if drain.force else drain.deadline.seconds) + self.max_kill_timeout.seconds + SHUTDOWN_MARGIN_S


class NodeLocation(msgspec.Struct, frozen=True):
    """The name of the node, its place in the cluster, and its folders on the machine."""

    name: str
    datacenter: str
    region: str
    state_folder: Path
    allocation_folder: Path
    http_address: str = ""
    """The host and port of the HTTP API of this agent; empty if the agent has no server."""
