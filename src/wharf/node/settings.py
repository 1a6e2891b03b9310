"""The settings of a node: what it offers, what it keeps, what it lets tasks do.

Who a node is, and where its things are.
"""

from pathlib import Path
from typing import Annotated, Final

import msgspec

from wharf.contract.model.settings import Duration, SecretText, SettingInfo
from wharf.contract.model.times import MINUTE, SECOND
from wharf.node.sandbox.privileges import DEFAULT_CAPABILITIES

SHUTDOWN_MARGIN_S: Final = 10.0
"""What a node that ends is given beyond its deadline, and beyond the longest time in which a task may end."""


class ReservedSettings(msgspec.Struct, frozen=True, kw_only=True):
    cpu: Annotated[int, SettingInfo("MHz.", min_value=0)] = 0
    memory: Annotated[int, SettingInfo("MB.", min_value=0)] = 0
    disk: Annotated[int, SettingInfo("MB.", min_value=0)] = 0
    cores: Annotated[str, SettingInfo("Cores, as a list of ranges: `0-2,7`.")] = ""
    reserved_ports: Annotated[str, SettingInfo("Ports, as a list of ranges: `22,80,8500-8600`.")] = ""


class HostVolumeSettings(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[str, SettingInfo("The folder or file of the host.")] = ""
    read_only: Annotated[bool, SettingInfo("Whether tasks may only read it.")] = False


class HostNetworkSettings(msgspec.Struct, frozen=True, kw_only=True):
    cidr: Annotated[str, SettingInfo("The network's addresses.")] = ""
    interface: Annotated[str, SettingInfo("Or the interface that it is on.")] = ""
    reserved_ports: Annotated[str, SettingInfo("Ports not given to tasks, as a list of ranges.")] = ""


class DrainOnShutdownSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, SettingInfo("Whether the node moves its work away before it ends. When it is back, work may come again.")
    ] = False
    deadline: Annotated[Duration, SettingInfo("How long that may take.")] = Duration(60 * MINUTE)
    force: Annotated[bool, SettingInfo("Whether it stops all at once instead of moving it.")] = False
    ignore_system_jobs: Annotated[bool, SettingInfo("Whether system jobs are left running.")] = False


class RawExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        SettingInfo("Whether tasks may run programs of the machine without walls around them. On in `wharf dev`."),
    ] = False
    bounds_memory: Annotated[
        bool,
        SettingInfo(
            "Whether the kernel ends a task that wants more memory than its job says, where the machine can do that. Else "
            "a task's memory counts where it is placed, and nowhere else."
        ),
    ] = True


class ExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    allow_caps: Annotated[
        tuple[str, ...], SettingInfo("The capabilities that tasks may ask for; `all`: every one.")
    ] = DEFAULT_CAPABILITIES
    default_pid_mode: Annotated[
        str, SettingInfo("Whether tasks see only their own processes (`private`) or those of the machine (`host`).")
    ] = "private"
    default_ipc_mode: Annotated[
        str,
        SettingInfo("Whether tasks have shared memory and queues of their own (`private`) or the machine's (`host`)."),
    ] = "private"
    pids_limit: Annotated[
        int, SettingInfo("How many processes and threads a task may have at one time. 0: any number.", min_value=0)
    ] = 16_384


class DockerDriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    socket: Annotated[
        str,
        SettingInfo(
            "The socket of the container engine, Docker's or Podman's.", default_text="where they put it themselves"
        ),
    ] = ""
    volumes_enabled: Annotated[
        bool, SettingInfo("Whether tasks may ask for folders of the machine and for volumes of the engine.")
    ] = False
    allow_privileged: Annotated[
        bool, SettingInfo("Whether tasks may ask for a privileged container, and for the machine's own namespaces.")
    ] = False
    allow_caps: Annotated[
        tuple[str, ...], SettingInfo("The capabilities that tasks may ask for; `all`: every one.")
    ] = DEFAULT_CAPABILITIES
    allow_runtimes: Annotated[tuple[str, ...], SettingInfo("The runtimes that tasks may ask for.")] = (
        "runc",
        "crun",
        "nvidia",
    )
    extra_labels: Annotated[
        tuple[str, ...],
        SettingInfo(
            "What more is written on containers: `job_name`, `job_id`, `task_group_name`, `task_name`, `namespace`, "
            "`node_id`, `node_name`."
        ),
    ] = ()


class DriversSettings(msgspec.Struct, frozen=True, kw_only=True):
    docker: Annotated[DockerDriverSettings, SettingInfo("Containers.")] = DockerDriverSettings()
    exec: Annotated[ExecSettings, SettingInfo("Programs of the machine, within walls.")] = ExecSettings()
    raw_exec: Annotated[RawExecSettings, SettingInfo("Programs of the machine, as they are.")] = RawExecSettings()


class NodeSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, SettingInfo("Whether this agent is a node: it runs tasks.")] = False
    servers: Annotated[
        tuple[str, ...],
        SettingInfo(
            "HTTP addresses of servers, used in turn: one until it does not answer, then the next.",
            default_text="the server in the same agent",
        ),
    ] = ()
    intro_token: Annotated[
        SecretText, SettingInfo("The token that a new node is introduced with where tokens are needed.")
    ] = SecretText()
    node_class: Annotated[str, SettingInfo("The class that constraints and spreads can name.")] = ""
    node_pool: Annotated[str, SettingInfo("The pool that the node is in.")] = "default"
    meta: Annotated[dict[str, str], SettingInfo("Free names and values that constraints can name.")] = {}
    options: Annotated[
        dict[str, str], SettingInfo("What plugins for drivers and devices are told (docs/node.md).")
    ] = {}
    fake_nodes: Annotated[
        int,
        SettingInfo(
            "How many fake nodes run beside the real one: they take work and say that it runs, and start "
            "nothing. For trying and measuring.",
            min_value=0,
            max_value=100_000,
        ),
    ] = 0
    alloc_dir: Annotated[
        str, SettingInfo("Where the folders of allocations are.", default_text="`alloc` in the data folder")
    ] = ""
    state_dir: Annotated[
        str, SettingInfo("Where the node remembers what it runs.", default_text="`node` in the data folder")
    ] = ""
    network_interface: Annotated[
        str, SettingInfo("The interface whose address tasks get.", default_text="that of the default route")
    ] = ""
    min_dynamic_port: Annotated[int, SettingInfo("The first port given to tasks.", min_value=1, max_value=65_535)] = (
        20_000
    )
    max_dynamic_port: Annotated[int, SettingInfo("The last port given to tasks.", min_value=1, max_value=65_535)] = (
        32_000
    )
    max_kill_timeout: Annotated[Duration, SettingInfo("The longest time that a task may ask for to end.")] = Duration(
        30 * SECOND
    )
    reserved: Annotated[ReservedSettings, SettingInfo("What is kept for the host itself.")] = ReservedSettings()
    gc_interval: Annotated[Duration, SettingInfo("How often folders of ended allocations are looked at.")] = Duration(
        MINUTE
    )
    gc_disk_usage_threshold: Annotated[
        float, SettingInfo("Percent of the disk in use from which they are removed.")
    ] = 80.0
    gc_inode_usage_threshold: Annotated[float, SettingInfo("Percent of inodes in use from which they are removed.")] = (
        70.0
    )
    gc_parallel_destroys: Annotated[int, SettingInfo("How many are removed at a time.", min_value=1)] = 2
    gc_max_allocs: Annotated[
        int, SettingInfo("How many allocations a node may keep before it removes.", min_value=1)
    ] = 50
    log_tail_bytes: Annotated[
        int,
        SettingInfo(
            "How much of the end of each log is kept on the servers when an allocation is over, where its files are gone: "
            "so much of what a task printed, and of its errors. 0: nothing.",
            min_value=0,
            max_value=65_536,
        ),
    ] = 2_048
    chroot_env: Annotated[
        dict[str, str],
        SettingInfo(
            "Folders and files of the host that tasks of the driver `exec` may read, each with the path at which they "
            "find it.",
            default_text="`/bin`, `/etc`, `/lib`, `/lib32`, `/lib64`, `/run/resolvconf`, `/run/systemd/resolve`, `/sbin`, "
            "`/usr`, where they are",
        ),
    ] = {}
    cni_path: Annotated[
        str,
        SettingInfo(
            "Where CNI plugins are, folders as in `PATH`; then it is looked in `/usr/lib/cni` and `/usr/libexec/cni`."
        ),
    ] = "/opt/cni/bin"
    cni_config_dir: Annotated[
        str, SettingInfo("Where networks of CNI are declared: jobs ask for them by the mode `cni/NAME`.")
    ] = "/opt/cni/config"
    bridge_network_name: Annotated[
        str, SettingInfo("The bridge of tasks in network mode `bridge`; it is made when it is needed.")
    ] = "wharf"
    bridge_network_subnet: Annotated[str, SettingInfo("Its addresses.")] = "172.26.64.0/20"
    host_volume: Annotated[
        dict[str, HostVolumeSettings], SettingInfo("Folders of the host that jobs may ask for, by name.")
    ] = {}
    host_volumes_dir: Annotated[
        str,
        SettingInfo(
            "Where volumes lie that are made while the node runs.", default_text="`host_volumes` beside `state_dir`"
        ),
    ] = ""
    host_volume_plugin_dir: Annotated[
        str,
        SettingInfo(
            "Programs that make volumes, beside the built-in `mkdir`.",
            default_text="`host_volume_plugins` beside `state_dir`",
        ),
    ] = ""
    host_network: Annotated[
        dict[str, HostNetworkSettings], SettingInfo("Networks that ports may be asked on, by name.")
    ] = {}
    disable_remote_exec: Annotated[bool, SettingInfo("Whether no command may be run in a task from outside.")] = False
    drivers: Annotated[DriversSettings, SettingInfo("The ways to run tasks.")] = DriversSettings()
    finds_left_overs_by: Annotated[
        str,
        SettingInfo(
            "How the node finds processes that a task left behind: by control groups where it may make them (`auto`), or "
            "only by a mark in their environment (`mark`)."
        ),
    ] = "auto"
    stop_on_shutdown: Annotated[
        bool,
        SettingInfo(
            "Whether the node stops its tasks when it ends; else they go on, and it finds them again. On in `wharf dev`."
        ),
    ] = False
    drain_on_shutdown: Annotated[
        DrainOnShutdownSettings, SettingInfo("What a node does with its work when it ends.")
    ] = DrainOnShutdownSettings()

    @property
    def shutdown_drain_timeout_s(self) -> float:
        """How long its end may be held up by moving its work away."""
        wanted = self.drain_on_shutdown
        if not wanted.enabled:
            return 0.0
        return (0.0 if wanted.force else wanted.deadline.seconds) + self.max_kill_timeout.seconds + SHUTDOWN_MARGIN_S


class NodeLocation(msgspec.Struct, frozen=True):
    name: str
    datacenter: str
    region: str
    state_folder: Path
    allocation_folder: Path
