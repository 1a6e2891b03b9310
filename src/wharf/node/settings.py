"""The settings of a node: what it offers, what it keeps, what it lets tasks do."""

from typing import Annotated, Final

import msgspec

from wharf.model.durations import MINUTE, SECOND
from wharf.model.setting import About, Duration, Secret
from wharf.node.walls.rights import ALLOWED

LEAVE_BEYOND_S: Final = 10.0
"""What a node that ends is given beyond its deadline, and beyond the longest time in which a task may end."""


class ReservedSettings(msgspec.Struct, frozen=True, kw_only=True):
    cpu: Annotated[int, About("MHz.", least=0)] = 0
    memory: Annotated[int, About("MB.", least=0)] = 0
    disk: Annotated[int, About("MB.", least=0)] = 0
    cores: Annotated[str, About("Cores, as a list of ranges: `0-2,7`.")] = ""
    reserved_ports: Annotated[str, About("Ports, as a list of ranges: `22,80,8500-8600`.")] = ""


class HostVolumeSettings(msgspec.Struct, frozen=True, kw_only=True):
    path: Annotated[str, About("The folder or file of the host.")] = ""
    read_only: Annotated[bool, About("Whether tasks may only read it.")] = False


class HostNetworkSettings(msgspec.Struct, frozen=True, kw_only=True):
    cidr: Annotated[str, About("The network's addresses.")] = ""
    interface: Annotated[str, About("Or the interface that it is on.")] = ""
    reserved_ports: Annotated[str, About("Ports not given to tasks, as a list of ranges.")] = ""


class DrainOnShutdownSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool, About("Whether the node moves its work away before it ends. When it is back, work may come again.")
    ] = False
    deadline: Annotated[Duration, About("How long that may take.")] = Duration(60 * MINUTE)
    force: Annotated[bool, About("Whether it stops all at once instead of moving it.")] = False
    ignore_system_jobs: Annotated[bool, About("Whether system jobs are left running.")] = False


class RawExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[
        bool,
        About("Whether tasks may run programs of the machine without walls around them. On in `wharf dev`."),
    ] = False
    bounds_memory: Annotated[
        bool,
        About(
            "Whether the kernel ends a task that wants more memory than its job says, where the machine can do that. Else "
            "a task's memory counts where it is placed, and nowhere else."
        ),
    ] = True


class ExecSettings(msgspec.Struct, frozen=True, kw_only=True):
    allow_caps: Annotated[tuple[str, ...], About("The capabilities that tasks may ask for; `all`: every one.")] = (
        ALLOWED
    )
    default_pid_mode: Annotated[
        str, About("Whether tasks see only their own processes (`private`) or those of the machine (`host`).")
    ] = "private"
    default_ipc_mode: Annotated[
        str, About("Whether tasks have shared memory and queues of their own (`private`) or the machine's (`host`).")
    ] = "private"
    pids_limit: Annotated[
        int, About("How many processes and threads a task may have at one time. 0: any number.", least=0)
    ] = 16_384


class DockerDriverSettings(msgspec.Struct, frozen=True, kw_only=True):
    socket: Annotated[
        str,
        About(
            "The socket of the container engine, Docker's or Podman's.", shown_default="where they put it themselves"
        ),
    ] = ""
    volumes_enabled: Annotated[
        bool, About("Whether tasks may ask for folders of the machine and for volumes of the engine.")
    ] = False
    allow_privileged: Annotated[
        bool, About("Whether tasks may ask for a privileged container, and for the machine's own namespaces.")
    ] = False
    allow_caps: Annotated[tuple[str, ...], About("The capabilities that tasks may ask for; `all`: every one.")] = (
        ALLOWED
    )
    allow_runtimes: Annotated[tuple[str, ...], About("The runtimes that tasks may ask for.")] = (
        "runc",
        "crun",
        "nvidia",
    )
    extra_labels: Annotated[
        tuple[str, ...],
        About(
            "What more is written on containers: `job_name`, `job_id`, `task_group_name`, `task_name`, `namespace`, "
            "`node_id`, `node_name`."
        ),
    ] = ()


class DriversSettings(msgspec.Struct, frozen=True, kw_only=True):
    docker: Annotated[DockerDriverSettings, About("Containers.")] = DockerDriverSettings()
    exec: Annotated[ExecSettings, About("Programs of the machine, within walls.")] = ExecSettings()
    raw_exec: Annotated[RawExecSettings, About("Programs of the machine, as they are.")] = RawExecSettings()


class ClientSettings(msgspec.Struct, frozen=True, kw_only=True):
    enabled: Annotated[bool, About("Whether this agent is a node: it runs tasks.")] = False
    servers: Annotated[
        tuple[str, ...],
        About(
            "HTTP addresses of servers, used in turn: one until it does not answer, then the next.",
            shown_default="the server in the same agent",
        ),
    ] = ()
    intro_token: Annotated[Secret, About("The token that a new node is introduced with where tokens are needed.")] = (
        Secret()
    )
    node_class: Annotated[str, About("The class that constraints and spreads can name.")] = ""
    node_pool: Annotated[str, About("The pool that the node is in.")] = "default"
    meta: Annotated[dict[str, str], About("Free names and values that constraints can name.")] = {}
    options: Annotated[dict[str, str], About("What plugins for drivers and devices are told (docs/node.md).")] = {}
    fake_nodes: Annotated[
        int,
        About(
            "How many fake nodes run beside the real one: they take work and say that it runs, and start "
            "nothing. For trying and measuring.",
            least=0,
            most=100_000,
        ),
    ] = 0
    alloc_dir: Annotated[
        str, About("Where the folders of allocations are.", shown_default="`alloc` in the data folder")
    ] = ""
    state_dir: Annotated[
        str, About("Where the node remembers what it runs.", shown_default="`node` in the data folder")
    ] = ""
    network_interface: Annotated[
        str, About("The interface whose address tasks get.", shown_default="that of the default route")
    ] = ""
    min_dynamic_port: Annotated[int, About("The first port given to tasks.", least=1, most=65_535)] = 20_000
    max_dynamic_port: Annotated[int, About("The last port given to tasks.", least=1, most=65_535)] = 32_000
    max_kill_timeout: Annotated[Duration, About("The longest time that a task may ask for to end.")] = Duration(
        30 * SECOND
    )
    reserved: Annotated[ReservedSettings, About("What is kept for the host itself.")] = ReservedSettings()
    gc_interval: Annotated[Duration, About("How often folders of ended allocations are looked at.")] = Duration(MINUTE)
    gc_disk_usage_threshold: Annotated[float, About("Percent of the disk in use from which they are removed.")] = 80.0
    gc_inode_usage_threshold: Annotated[float, About("Percent of inodes in use from which they are removed.")] = 70.0
    gc_parallel_destroys: Annotated[int, About("How many are removed at a time.", least=1)] = 2
    gc_max_allocs: Annotated[int, About("How many allocations a node may keep before it removes.", least=1)] = 50
    log_tail_bytes: Annotated[
        int,
        About(
            "How much of the end of each log is kept on the servers when an allocation is over, where its files are gone: "
            "so much of what a task printed, and of its errors. 0: nothing.",
            least=0,
            most=65_536,
        ),
    ] = 2_048
    chroot_env: Annotated[
        dict[str, str],
        About(
            "Folders and files of the host that tasks of the driver `exec` may read, each with the path at which they "
            "find it.",
            shown_default="`/bin`, `/etc`, `/lib`, `/lib32`, `/lib64`, `/run/resolvconf`, `/run/systemd/resolve`, `/sbin`, "
            "`/usr`, where they are",
        ),
    ] = {}
    cni_path: Annotated[
        str,
        About(
            "Where CNI plugins are, folders as in `PATH`; then it is looked in `/usr/lib/cni` and `/usr/libexec/cni`."
        ),
    ] = "/opt/cni/bin"
    cni_config_dir: Annotated[
        str, About("Where networks of CNI are declared: jobs ask for them by the mode `cni/NAME`.")
    ] = "/opt/cni/config"
    bridge_network_name: Annotated[
        str, About("The bridge of tasks in network mode `bridge`; it is made when it is needed.")
    ] = "wharf"
    bridge_network_subnet: Annotated[str, About("Its addresses.")] = "172.26.64.0/20"
    host_volume: Annotated[
        dict[str, HostVolumeSettings], About("Folders of the host that jobs may ask for, by name.")
    ] = {}
    host_volumes_dir: Annotated[
        str,
        About(
            "Where volumes lie that are made while the node runs.", shown_default="`host_volumes` beside `state_dir`"
        ),
    ] = ""
    host_volume_plugin_dir: Annotated[
        str,
        About(
            "Programs that make volumes, beside the built-in `mkdir`.",
            shown_default="`host_volume_plugins` beside `state_dir`",
        ),
    ] = ""
    host_network: Annotated[dict[str, HostNetworkSettings], About("Networks that ports may be asked on, by name.")] = {}
    disable_remote_exec: Annotated[bool, About("Whether no command may be run in a task from outside.")] = False
    drivers: Annotated[DriversSettings, About("The ways to run tasks.")] = DriversSettings()
    finds_left_overs_by: Annotated[
        str,
        About(
            "How the node finds processes that a task left behind: by control groups where it may make them (`auto`), or "
            "only by a mark in their environment (`mark`)."
        ),
    ] = "auto"
    stop_on_shutdown: Annotated[
        bool,
        About(
            "Whether the node stops its tasks when it ends; else they go on, and it finds them again. On in `wharf dev`."
        ),
    ] = False
    drain_on_shutdown: Annotated[DrainOnShutdownSettings, About("What a node does with its work when it ends.")] = (
        DrainOnShutdownSettings()
    )

    @property
    def leaves_within_s(self) -> float:
        """How long its end may be held up by moving its work away."""
        wanted = self.drain_on_shutdown
        if not wanted.enabled:
            return 0.0
        return (0.0 if wanted.force else wanted.deadline.s) + self.max_kill_timeout.s + LEAVE_BEYOND_S
