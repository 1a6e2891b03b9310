"""The parts of the engine's responses that the driver reads. Missing fields have defaults, because engines differ."""

import msgspec


class EngineComponent(msgspec.Struct, rename="pascal"):
    name: str = ""


class EngineVersion(msgspec.Struct, rename="pascal"):
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
    name: str = ""
    operating_system: str = ""
    os_type: str = msgspec.field(default="", name="OSType")
    cgroup_version: str = ""
    runtimes: dict[str, msgspec.Raw] = {}


class ImageConfig(msgspec.Struct, rename="pascal"):
    user: str = ""
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None


class ImageInfo(msgspec.Struct, rename="pascal"):
    id: str = ""
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0
    config: ImageConfig | None = None


class ContainerState(msgspec.Struct, rename="pascal"):
    status: str = ""
    running: bool = False
    paused: bool = False
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    started_at: str = ""
    finished_at: str = ""


class NetworkEndpoint(msgspec.Struct, rename="pascal"):
    ip_address: str = msgspec.field(default="", name="IPAddress")


class ContainerNetwork(msgspec.Struct, rename="pascal"):
    ip_address: str = msgspec.field(default="", name="IPAddress")
    networks: dict[str, NetworkEndpoint] | None = None


class ContainerConfig(msgspec.Struct, rename="pascal"):
    image: str = ""
    labels: dict[str, str] | None = None
    tty: bool = False


class ContainerInfo(msgspec.Struct, rename="pascal"):
    id: str
    name: str = ""
    state: ContainerState = msgspec.field(default_factory=ContainerState)
    config: ContainerConfig = msgspec.field(default_factory=ContainerConfig)
    network_settings: ContainerNetwork = msgspec.field(default_factory=ContainerNetwork)


class ContainerListItem(msgspec.Struct, rename="pascal"):
    id: str
    names: list[str] | None = None
    state: str = ""
    labels: dict[str, str] | None = None


class CreatedObject(msgspec.Struct, rename="pascal"):
    id: str
    warnings: list[str] | None = None


class WaitError(msgspec.Struct, rename="pascal"):
    message: str = ""


class WaitResult(msgspec.Struct, rename="pascal"):
    status_code: int = 0
    error: WaitError | None = None


class ExecState(msgspec.Struct, rename="pascal"):
    running: bool = False
    exit_code: int | None = None
    pid: int = 0


class ErrorResponse(msgspec.Struct):
    message: str = ""
    cause: str = ""


class LayerProgress(msgspec.Struct, rename="camel"):
    current: int = 0
    total: int = 0


class PullProgressLine(msgspec.Struct, rename="camel"):
    """One line of a pull's progress. Docker reports layers by id, Podman a stream of text."""

    status: str = ""
    id: str = ""
    progress_detail: LayerProgress | None = None
    error: str = ""
    stream: str = ""


class CpuThrottling(msgspec.Struct):
    throttled_periods: int = 0
    throttled_time: int = 0


class CpuUsage(msgspec.Struct):
    total_usage: int = 0
    usage_in_kernelmode: int = 0
    usage_in_usermode: int = 0


class CpuStats(msgspec.Struct):
    cpu_usage: CpuUsage = msgspec.field(default_factory=CpuUsage)
    system_cpu_usage: int = 0
    online_cpus: int = 0
    throttling_data: CpuThrottling = msgspec.field(default_factory=CpuThrottling)


class MemoryStats(msgspec.Struct):
    usage: int = 0
    max_usage: int = 0
    limit: int = 0
    stats: dict[str, int] | None = None


class ContainerStats(msgspec.Struct):
    cpu_stats: CpuStats = msgspec.field(default_factory=CpuStats)
    memory_stats: MemoryStats = msgspec.field(default_factory=MemoryStats)
