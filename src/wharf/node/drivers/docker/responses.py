"""The parts of the engine's responses that the driver reads. Missing fields have defaults, because engines differ."""

import msgspec


class EngineComponent(msgspec.Struct, rename="pascal"):
    """A part of the engine, such as the Podman engine."""

    name: str = ""


class EngineVersion(msgspec.Struct, rename="pascal"):
    """The response to a request for the engine's version."""

    version: str = ""
    api_version: str = ""
    os: str = ""
    arch: str = ""
    components: list[EngineComponent] | None = None

    @property
    def is_podman(self) -> bool:
        """Whether the engine is Podman."""
        return any("podman" in each.name.lower() for each in self.components or ())


class EngineInfo(msgspec.Struct, rename="pascal"):
    """The response to a request for the engine's details."""

    name: str = ""
    operating_system: str = ""
    os_type: str = msgspec.field(default="", name="OSType")
    cgroup_version: str = ""
    runtimes: dict[str, msgspec.Raw] = {}  # by name


class ImageConfig(msgspec.Struct, rename="pascal"):
    """The defaults that an image sets for its containers."""

    user: str = ""
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None


class ImageInfo(msgspec.Struct, rename="pascal"):
    """The details of an image."""

    id: str = ""
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None  # names with their digests
    size: int = 0  # in bytes
    config: ImageConfig | None = None


class ContainerState(msgspec.Struct, rename="pascal"):
    """The state of a container."""

    status: str = ""
    running: bool = False
    paused: bool = False
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    pid: int = 0  # on the host; 0: it does not run
    exit_code: int = 0
    error: str = ""  # why the engine could not run it
    started_at: str = ""
    finished_at: str = ""


class NetworkEndpoint(msgspec.Struct, rename="pascal"):
    """The address of a container in one network."""

    ip_address: str = msgspec.field(default="", name="IPAddress")


class ContainerNetwork(msgspec.Struct, rename="pascal"):
    """The network addresses of a container."""

    ip_address: str = msgspec.field(default="", name="IPAddress")
    networks: dict[str, NetworkEndpoint] | None = None  # by name


class ContainerConfig(msgspec.Struct, rename="pascal"):
    """The configuration with which a container was created."""

    image: str = ""
    labels: dict[str, str] | None = None
    tty: bool = False


class ContainerInfo(msgspec.Struct, rename="pascal"):
    """The details of one container."""

    id: str
    name: str = ""  # begins with a slash
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    config: ContainerConfig = msgspec.field(default_factory=ContainerConfig)
    network_settings: ContainerNetwork = msgspec.field(default_factory=ContainerNetwork)


class ContainerListItem(msgspec.Struct, rename="pascal"):
    """An element of the list of containers."""

    id: str
    names: list[str] | None = None
    state: str = ""
    labels: dict[str, str] | None = None


class CreatedObject(msgspec.Struct, rename="pascal"):
    """The response to a request that creates a container or a command."""

    id: str
    warnings: list[str] | None = None


class EventActor(msgspec.Struct):
    """The object of an event."""

    id: str = msgspec.field(name="ID", default="")


class EngineEvent(msgspec.Struct, rename="pascal"):
    """One event in the stream of events of containers."""

    action: str = ""  # such as `die`
    actor: EventActor = msgspec.field(default_factory=EventActor)


class ExecState(msgspec.Struct, rename="pascal"):
    """The state of a command in a container."""

    running: bool = False
    exit_code: int | None = None
    pid: int = 0  # on the host


class ErrorResponse(msgspec.Struct):
    """The body of a response with an error status."""

    message: str = ""
    cause: str = ""


class LayerProgress(msgspec.Struct, rename="camel"):
    """The downloaded and total bytes of one layer of an image."""

    current: int = 0  # downloaded bytes
    total: int = 0  # 0: unknown


class PullProgressLine(msgspec.Struct, rename="camel"):
    """A line in which the engine reports the progress of a pull.

    Docker reports layers by id, Podman sends text in `stream`.
    """

    status: str = ""
    id: str = ""  # of the layer
    progress_detail: LayerProgress | None = None  # of the layer
    error: str = ""
    stream: str = ""


class CpuThrottling(msgspec.Struct):
    """The number of times and the total time that a CPU limit stopped a container."""

    throttled_periods: int = 0
    throttled_time: int = 0  # nanoseconds


class CpuUsage(msgspec.Struct):
    """The CPU time that a container has used, in nanoseconds."""

    total_usage: int = 0
    usage_in_kernelmode: int = 0
    usage_in_usermode: int = 0


class CpuStats(msgspec.Struct):
    """The CPU statistics of a container."""

    cpu_usage: CpuUsage = msgspec.field(default_factory=CpuUsage)
    system_cpu_usage: int = 0  # of the whole machine, in nanoseconds
    online_cpus: int = 0
    throttling_data: CpuThrottling = msgspec.field(default_factory=CpuThrottling)


class MemoryStats(msgspec.Struct):
    """The memory statistics of a container, in bytes."""

    usage: int = 0
    max_usage: int = 0
    limit: int = 0
    stats: dict[str, int] | None = None  # counters of the control group, by name


class ContainerStats(msgspec.Struct):
    """The resource usage of a container."""

    cpu_stats: CpuStats = msgspec.field(default_factory=CpuStats)
    memory_stats: MemoryStats = msgspec.field(default_factory=MemoryStats)
