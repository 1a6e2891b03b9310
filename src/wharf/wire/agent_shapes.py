"""Bodies about agents, servers and regions, as they cross the wire."""

from typing import Any

import msgspec

from wharf.model.record import Record


class AgentMember(Record):
    """A server. The numbers of protocols are those that clients look at; there is one protocol."""

    name: str  # <server>.<region>
    addr: str = ""
    port: int = 0
    tags: dict[str, str] = {}
    status: str = "alive"
    protocol_min: int = 1
    protocol_max: int = 5
    protocol_cur: int = 2
    delegate_min: int = 2
    delegate_max: int = 5
    delegate_cur: int = 4


class AgentMembers(Record):
    server_name: str
    server_region: str
    server_dc: str = msgspec.field(name="ServerDC", default="")
    members: list[AgentMember] = []


class AgentSelf(msgspec.Struct, frozen=True):
    """`config`: the merged configuration, without secrets. `stats`: figures by part, as text."""

    config: dict[str, Any]
    member: AgentMember
    stats: dict[str, dict[str, str]]


class HealthTold(msgspec.Struct, frozen=True):
    ok: bool
    message: str


class AgentHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    client: HealthTold | None = None
    server: HealthTold | None = None


class JoinResult(msgspec.Struct, frozen=True):
    num_joined: int
    error: str = ""
    warning: str = ""


class SchedulerTold(msgspec.Struct, frozen=True):
    id: str
    enabled_schedulers: list[str]
    started: str
    status: str
    workload_status: str


class AgentSchedulers(msgspec.Struct, frozen=True):
    server_id: str
    schedulers: list[SchedulerTold]


class AgentSchedulersConfig(msgspec.Struct, frozen=True):
    server_id: str
    num_schedulers: int
    enabled_schedulers: list[str]


class HostData(Record):
    os: str = msgspec.field(name="OS", default="")
    network: list[dict[str, str]] = []
    resolv_conf: str = ""
    hosts: str = ""
    environment: dict[str, str] = {}
    disk: dict[str, dict[str, int]] = {}


class HostTold(Record):
    agent_id: str
    host_data: HostData


class MonitorFrame(Record):
    """A part of a stream: `{}` only says that it lives."""

    data: str = ""  # base64


class Gauge(Record):
    name: str
    value: float
    labels: dict[str, str]


class Sampled(Record):
    """Sums over one interval."""

    name: str
    count: int
    rate: float
    sum: float
    min: float
    max: float
    mean: float
    stddev: float
    labels: dict[str, str]


class Metrics(Record):
    timestamp: str
    gauges: list[Gauge]
    points: list[Any]
    counters: list[Sampled]
    samples: list[Sampled]
