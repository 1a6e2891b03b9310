"""What the engine answers, as far as we read it. What it leaves out has a default: engines differ."""

import msgspec


class Component(msgspec.Struct, rename="pascal"):
    name: str = ""


class Version(msgspec.Struct, rename="pascal"):
    version: str = ""
    api_version: str = ""
    os: str = ""
    arch: str = ""
    components: list[Component] | None = None

    @property
    def is_podman(self) -> bool:
        return any("podman" in each.name.lower() for each in self.components or ())


class Info(msgspec.Struct, rename="pascal"):
    name: str = ""
    operating_system: str = ""
    os_type: str = msgspec.field(default="", name="OSType")
    cgroup_version: str = ""
    runtimes: dict[str, msgspec.Raw] = {}


class ImageConfig(msgspec.Struct, rename="pascal"):
    user: str = ""
    entrypoint: list[str] | None = None
    cmd: list[str] | None = None


class Image(msgspec.Struct, rename="pascal"):
    id: str = ""
    repo_tags: list[str] | None = None
    repo_digests: list[str] | None = None
    size: int = 0
    config: ImageConfig | None = None


class State(msgspec.Struct, rename="pascal"):
    status: str = ""
    running: bool = False
    paused: bool = False
    oom_killed: bool = msgspec.field(default=False, name="OOMKilled")
    pid: int = 0
    exit_code: int = 0
    error: str = ""
    started_at: str = ""
    finished_at: str = ""


class Endpoint(msgspec.Struct, rename="pascal"):
    ip_address: str = msgspec.field(default="", name="IPAddress")


class Network(msgspec.Struct, rename="pascal"):
    ip_address: str = msgspec.field(default="", name="IPAddress")
    networks: dict[str, Endpoint] | None = None


class ContainerConfig(msgspec.Struct, rename="pascal"):
    image: str = ""
    labels: dict[str, str] | None = None
    tty: bool = False


class Container(msgspec.Struct, rename="pascal"):
    id: str
    name: str = ""
    state: State = msgspec.field(default_factory=State)
    config: ContainerConfig = msgspec.field(default_factory=ContainerConfig)
    network_settings: Network = msgspec.field(default_factory=Network)


class Listed(msgspec.Struct, rename="pascal"):
    id: str
    names: list[str] | None = None
    state: str = ""
    labels: dict[str, str] | None = None


class Created(msgspec.Struct, rename="pascal"):
    id: str
    warnings: list[str] | None = None


class WaitError(msgspec.Struct, rename="pascal"):
    message: str = ""


class Waited(msgspec.Struct, rename="pascal"):
    status_code: int = 0
    error: WaitError | None = None


class Exec(msgspec.Struct, rename="pascal"):
    running: bool = False
    exit_code: int | None = None
    pid: int = 0


class Refused(msgspec.Struct):
    message: str = ""
    cause: str = ""


class Layer(msgspec.Struct, rename="camel"):
    current: int = 0
    total: int = 0


class PullLine(msgspec.Struct, rename="camel"):
    """One line of a pull. Docker tells of layers by id, Podman in one stream of text."""

    status: str = ""
    id: str = ""
    progress_detail: Layer | None = None
    error: str = ""
    stream: str = ""


class Throttling(msgspec.Struct):
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
    throttling_data: Throttling = msgspec.field(default_factory=Throttling)


class MemoryStats(msgspec.Struct):
    usage: int = 0
    max_usage: int = 0
    limit: int = 0
    stats: dict[str, int] | None = None


class Stats(msgspec.Struct):
    cpu_stats: CpuStats = msgspec.field(default_factory=CpuStats)
    memory_stats: MemoryStats = msgspec.field(default_factory=MemoryStats)
