"""Bodies about agents, servers and regions, as they cross the wire.

Endpoints about one agent: what it is, how it does, what it logs, what its processes do just now.

Endpoints of figures.

Endpoints that tell who leads and who is there.

Endpoints of regions.

What members ask of each other's brains, as msgpack. They prove who they are by the door's secret.

Endpoints that describe this API.
"""

from typing import Any, Final

import msgspec

from wharf.contract.model.acl import permissions
from wharf.contract.model.acl.permissions import DenialDetail
from wharf.contract.model.record import Record
from wharf.contract.wire.endpoint import (
    Endpoint,
    EndpointKind,
    Parameter,
    define_local,
    define_write,
    duration,
    text,
    text_list,
)


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


class HealthReport(msgspec.Struct, frozen=True):
    ok: bool
    message: str


class AgentHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    client: HealthReport | None = None
    server: HealthReport | None = None


class JoinResult(msgspec.Struct, frozen=True):
    num_joined: int
    error: str = ""
    warning: str = ""


class SchedulerView(msgspec.Struct, frozen=True):
    id: str
    enabled_schedulers: list[str]
    started: str
    status: str
    workload_status: str


class AgentSchedulers(msgspec.Struct, frozen=True):
    server_id: str
    schedulers: list[SchedulerView]


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


class HostReport(Record):
    agent_id: str
    host_data: HostData


class MonitorFrame(Record):
    """A part of a stream: `{}` only says that it lives."""

    data: str = ""  # base64


class Gauge(Record):
    name: str
    value: float
    labels: dict[str, str]


class MetricSample(Record):
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
    counters: list[MetricSample]
    samples: list[MetricSample]


_NO_GOSSIP: Final = "servers find each other through the log and talk over HTTPS: there is no gossip, and no key for it"
_ONE_SCHEDULER: Final = "one process schedules on each server; its settings are those of the configuration's [server]"

TARGET_AGENT_PARAMETERS: Final = (
    text("server_id", "Pass the request on to this server: its id or name, or `leader`."),
    text("node_id", "Pass the request on to this node."),
)
_PPROF: Final = (*TARGET_AGENT_PARAMETERS, text("seconds", "How long to look; 1 where it is not given."))


def _does(name: str, path: str, **more: Any) -> Endpoint:
    """A PUT that this server does itself."""
    return Endpoint(name=name, method="PUT", path=path, kind=EndpointKind.LOCAL, **more)


def _pprof(name: str, path: str, summary: str, *, parameters: tuple[Parameter, ...] = _PPROF) -> Endpoint:
    return define_local(
        f"agent.pprof.{name}", f"/v1/agent/pprof/{path}", need=permissions.WRITE_AGENT, summary=summary, reply_type=str,
        content_type="text/plain", parameters=parameters, refusal_statuses=(501,),
    )  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "agent.self", "/v1/agent/self", need=permissions.READ_AGENT, manner=DenialDetail.AGENT, reply_type=AgentSelf,
        summary="This agent: its configuration without secrets, itself as a member, figures.",
    ),
    define_local(
        "agent.members", "/v1/agent/members", need=permissions.READ_NODE, summary="List the servers of this region.",
        reply_type=AgentMembers,
    ),
    define_local(
        "agent.health", "/v1/agent/health", need=permissions.PUBLIC_ACCESS, summary="Whether this agent is well; 500 where it is not.",
        reply_type=AgentHealth,
        parameters=(text_list("type", "`server` or `client`; both where it is not given."),),
    ),
    define_local(
        "agent.servers", "/v1/agent/servers", need=permissions.READ_AGENT, reply_type=list[str],
        summary="The servers that the node of this agent knows.", refusal_statuses=(501,),
    ),
    _does(
        "agent.set_servers", "/v1/agent/servers", need=permissions.WRITE_AGENT,
        summary="Name the servers that the node of this agent uses.",
        parameters=(text_list("address", "The HTTP address of a server; may be repeated."),), refusal_statuses=(501,),
    ),
    _does(
        "agent.join", "/v1/agent/join", need=permissions.ANY_TOKEN, reply_type=JoinResult,
        summary="Whether servers are members. They join by themselves, through the log that they share.",
        parameters=(text_list("address", "The HTTP address of a server; may be repeated."),),
    ),
    define_write(
        "agent.force_leave", "/v1/agent/force-leave", need=permissions.WRITE_AGENT, manner=DenialDetail.AGENT_SHORT,
        summary="Forget a server that is gone. One that lives writes its record again.",
        parameters=(
            text("node", "The server's name, or its id."),
            text("prune", "Taken and passed over: nothing is kept of a server that left."),
        ),
    ),
    define_local(
        "agent.host", "/v1/agent/host", need=permissions.READ_AGENT, manner=DenialDetail.AGENT, reply_type=HostReport,
        summary="The machine that this agent runs on. Needs `enable_debug` where access control is off.",
        parameters=TARGET_AGENT_PARAMETERS, refusal_statuses=(501,),
    ),
    _does(
        "agent.reload", "/v1/agent/reload", need=permissions.WRITE_AGENT, manner=DenialDetail.AGENT,
        is_audited=True, summary="Read the configuration again.",
    ),
    define_local(
        "agent.monitor", "/v1/agent/monitor", need=permissions.READ_AGENT, reply_type=MonitorFrame, refusal_statuses=(501,),
        summary="Lines of the log of all processes of this server, as they are written, for as long as you listen.",
        parameters=(
            text("log_level", "The least level: trace, debug, info, warn or error; info where it is not given."),
            text("log_json", "Whether each line is a JSON object."),
            text("plain", "Whether lines come as plain text; else each comes in a JSON frame, as base64."),
            text("log_include_location", "Taken and passed over: each line names its logger."),
            *TARGET_AGENT_PARAMETERS,
        ),
    ),
    define_local(
        "agent.monitor_export", "/v1/agent/monitor/export", need=permissions.READ_AGENT, reply_type=MonitorFrame,
        summary="The log file of this agent.", refusal_statuses=(501,),
        parameters=(
            text("on_disk", "Whether the log file is asked for."),
            text("service_name", "A unit of the system's journal; not served."),
            text("logs_since", "How far back, for the journal; 72h where it is not given."),
            text("follow", "Whether to go on with new lines; not served for files."),
            text("plain", "Whether the file comes as plain text; else in JSON frames, as base64."),
            *TARGET_AGENT_PARAMETERS,
        ),
    ),
    _pprof("cmdline", "cmdline", "The command line of the process that answers.", parameters=TARGET_AGENT_PARAMETERS),
    _pprof("profile", "profile", "Where the process that answers spends its time: folded stacks with counts."),
    define_local(
        "agent.pprof.trace", "/v1/agent/pprof/trace", need=permissions.WRITE_AGENT, summary="A trace of execution: left out.",
        parameters=_PPROF, unsupported_reason="Python has no execution trace: use agent/pprof/profile or agent/pprof/goroutine",
    ),
    _pprof("named", "{profile}", "`goroutine`: the stacks of all tasks and threads of all processes of this server."),
    define_local(
        "agent.schedulers", "/v1/agent/schedulers", need=permissions.READ_AGENT, manner=DenialDetail.AGENT_SHORT,
        summary="The scheduler of this server.", reply_type=AgentSchedulers,
    ),
    define_local(
        "agent.schedulers_config", "/v1/agent/schedulers/config", need=permissions.READ_AGENT, manner=DenialDetail.AGENT_SHORT,
        summary="The settings of this server's scheduler.", reply_type=AgentSchedulersConfig,
    ),
    _does(
        "agent.set_schedulers_config", "/v1/agent/schedulers/config", need=permissions.WRITE_AGENT,
        manner=DenialDetail.AGENT_SHORT, summary="Change the settings of this server's scheduler: left out.",
        unsupported_reason=_ONE_SCHEDULER,
    ),
    define_local(
        "agent.gossip_keys", "/v1/agent/keyring/list", need=permissions.WRITE_AGENT, manner=DenialDetail.AGENT_SHORT,
        summary="Keys of gossip: left out.", unsupported_reason=_NO_GOSSIP,
    ),
    _does(
        "agent.change_gossip_keys", "/v1/agent/keyring/{operation}", need=permissions.WRITE_AGENT, manner=DenialDetail.AGENT_SHORT,
        summary="Change keys of gossip: left out.", unsupported_reason=_NO_GOSSIP,
    ),
)  # fmt: skip


METRICS_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "metrics.read", "/v1/metrics", need=permissions.PUBLIC_ACCESS, reply_type=Metrics, refusal_statuses=(404, 415),
        summary="Figures of the process that answers and of its server: the last finished interval, or all since the "
        "start for Prometheus.",
        parameters=(
            text("format", "`prometheus` for its text form, where `telemetry.prometheus_metrics` is on."),
            duration("ago", "The interval that had finished so long ago, as long as it is kept."),
        ),
    ),
)  # fmt: skip


STATUS_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "status.leader",
        "/v1/status/leader",
        need=permissions.PUBLIC_ACCESS,
        summary="The address of the leader.",
        reply_type=str,
    ),
    define_local(
        "status.peers",
        "/v1/status/peers",
        need=permissions.PUBLIC_ACCESS,
        summary="The addresses of all servers.",
        reply_type=list[str],
    ),
)


REGION_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "region.list", "/v1/regions", need=permissions.PUBLIC_ACCESS, reply_type=list[str],
        summary="The names of all regions that this server passes requests on to, its own included.",
    ),
)  # fmt: skip


MEMBER_ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="server.ask", method="PUT", path="/v1/server/ask/{subject}", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="A question of another member for this server's brain.",
    ),
)  # fmt: skip


DOCUMENT_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "document.openapi", "/v1/openapi.json", need=permissions.PUBLIC_ACCESS, reply_type=dict[str, Any],
        summary="This API as an OpenAPI 3.1 document.",
    ),
    define_local(
        "document.page", "/v1/docs", need=permissions.PUBLIC_ACCESS, reply_type=str, content_type="text/html",
        summary="This API as a page to read.",
    ),
)  # fmt: skip
