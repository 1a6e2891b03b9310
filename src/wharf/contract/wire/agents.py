"""Endpoints and messages of agents: their members, health, logs, profiles and metrics; also leader, regions and API documents."""

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
    """A server in Nomad's format for cluster members."""

    name: str  # <server>.<region>
    addr: str = ""  # IP address or host name, without the port.
    port: int = 0
    tags: dict[str, str] = {}  # Facts about the server, such as its region, version and ID.
    status: str = "alive"  # `alive`, `leaving`, `left` or `failed`.
    protocol_min: int = 1  # The protocol numbers are constants: clients expect them, but only one protocol exists.
    protocol_max: int = 5
    protocol_cur: int = 2
    delegate_min: int = 2
    delegate_max: int = 5
    delegate_cur: int = 4


class AgentMembers(Record):
    """The servers of a region, and the name of the server that replies."""

    server_name: str  # The replying server.
    server_region: str
    server_dc: str = msgspec.field(name="ServerDC", default="")  # Its datacenter.
    members: list[AgentMember] = []


class AgentSelf(msgspec.Struct, frozen=True):
    """The configuration, the member record and the metrics of the replying agent."""

    config: dict[str, Any]  # The merged configuration, without secrets.
    member: AgentMember
    stats: dict[str, dict[str, str]]  # Metrics as text, by component and name.


class HealthReport(msgspec.Struct, frozen=True):
    """The health of the server or of the node of an agent."""

    ok: bool  # Whether it is healthy.
    message: str  # The reason if it is not; otherwise `ok`, or a warning such as a nearly full disk.


class AgentHealth(msgspec.Struct, frozen=True, omit_defaults=True):
    """The health of an agent. `client` is its node; a part that does not run or was not requested is None."""

    client: HealthReport | None = None
    server: HealthReport | None = None


class JoinResult(msgspec.Struct, frozen=True):
    """The result of a check whether servers are members."""

    num_joined: int  # How many of the addresses belong to members.
    error: str = ""  # Names the unknown addresses; empty if there are none.
    warning: str = ""  # A deprecation notice; empty if none applies.


class SchedulerView(msgspec.Struct, frozen=True):
    """The state of a server's scheduler process, in Nomad's format."""

    id: str  # The ID of its server.
    enabled_schedulers: list[str]  # Job types that it schedules.
    started: str  # When it started (RFC 3339).
    status: str  # `started` on the leader; `paused` on other servers.
    workload_status: str  # `busy` or `idle`.


class AgentSchedulers(msgspec.Struct, frozen=True):
    """The scheduler processes of one server: always one."""

    server_id: str
    schedulers: list[SchedulerView]


class AgentSchedulersConfig(msgspec.Struct, frozen=True):
    """The scheduler settings of one server."""

    server_id: str
    num_schedulers: int  # Always 1.
    enabled_schedulers: list[str]  # Job types that it schedules.


class AgentSchedulersRequest(msgspec.Struct, frozen=True):
    """A request to change the scheduler of one server. It may only name what the server has."""

    num_schedulers: int = 1
    enabled_schedulers: list[str] | None = None  # Job types; `None`: no change.


class HostData(Record):
    """The operating system, network, environment and disks of a machine."""

    os: str = msgspec.field(name="OS", default="")
    network: list[dict[str, str]] = []  # One object for each network interface.
    resolv_conf: str = ""  # Content of /etc/resolv.conf.
    hosts: str = ""  # Content of /etc/hosts.
    environment: dict[str, str] = {}  # Environment variables of the agent; secrets are redacted.
    disk: dict[str, dict[str, int]] = {}  # By mount point: sizes in bytes, by name.


class HostReport(Record):
    """A description of the machine of one agent."""

    agent_id: str
    host_data: HostData


class MonitorFrame(Record):
    """A part of a log stream. An empty object is a heartbeat."""

    data: str = ""  # Log lines, encoded as base64.


class Gauge(Record):
    """A metric with a single current value."""

    name: str
    value: float
    labels: dict[str, str]  # Label names and values that distinguish gauges of the same name.


class MetricSample(Record):
    """The aggregated values of one metric in one interval."""

    name: str
    count: int  # Number of values.
    rate: float  # Sum of the values per second.
    sum: float  # Sum of the values.
    min: float
    max: float
    mean: float
    stddev: float
    labels: dict[str, str]  # Label names and values that distinguish metrics of the same name.


class Metrics(Record):
    """The metrics of one interval, in the JSON format of Nomad's endpoint."""

    timestamp: str  # When the interval began.
    gauges: list[Gauge]
    points: list[Any]  # Always empty.
    counters: list[MetricSample]
    samples: list[MetricSample]


_NO_GOSSIP: Final = "not supported: servers find each other through the log and use HTTPS, so there are no gossip keys"

TARGET_AGENT_PARAMETERS: Final = (
    text("server_id", "Forward the request to this server: its ID or name, or `leader`."),
    text("node_id", "Forward the request to this node."),
)
_PROFILE_PARAMETERS: Final = (
    *TARGET_AGENT_PARAMETERS,
    text("seconds", "Duration of the measurement in seconds; 1 by default."),
    text("debug", "`0` for the format that `go tool pprof` reads, if the profile has it; otherwise the reply is text."),
)


def _define_local_write(name: str, path: str, **fields: Any) -> Endpoint:
    """Return a PUT endpoint that the replying server handles alone, without a write to the log."""
    return Endpoint(name=name, method="PUT", path=path, kind=EndpointKind.LOCAL, **fields)


def _define_profile(
    name: str, path: str, summary: str, *, parameters: tuple[Parameter, ...] = _PROFILE_PARAMETERS
) -> Endpoint:
    """Return the endpoint `agent.pprof.{name}`, which returns a profile of a process as text."""
    return define_local(
        f"agent.pprof.{name}", f"/v1/agent/pprof/{path}", need=permissions.WRITE_AGENT, summary=summary, reply_type=str,
        content_type="text/plain", parameters=parameters, refusal_statuses=(501,),
    )  # fmt: skip


ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "agent.self", "/v1/agent/self", need=permissions.READ_AGENT, denial_detail=DenialDetail.AGENT, reply_type=AgentSelf,
        summary="Read this agent's configuration without secrets, its member record and its metrics.",
    ),
    define_local(
        "agent.members", "/v1/agent/members", need=permissions.READ_NODE, summary="List the servers of this region.",
        reply_type=AgentMembers,
    ),
    define_local(
        "agent.health", "/v1/agent/health", need=permissions.PUBLIC_ACCESS, summary="Check the health of this agent; the status is 500 if it is not healthy.",
        reply_type=AgentHealth,
        parameters=(text_list("type", "`server` or `client`; both by default."),),
    ),
    define_local(
        "agent.servers", "/v1/agent/servers", need=permissions.READ_AGENT, reply_type=list[str],
        summary="List the servers that this agent's node uses.", refusal_statuses=(501,),
    ),
    _define_local_write(
        "agent.set_servers", "/v1/agent/servers", need=permissions.WRITE_AGENT,
        summary="Set the servers that this agent's node uses.",
        parameters=(text_list("address", "The HTTP address of a server; may be repeated."),), refusal_statuses=(501,),
    ),
    _define_local_write(
        "agent.join", "/v1/agent/join", need=permissions.ANY_TOKEN, reply_type=JoinResult,
        summary="Check whether servers are members. Servers join automatically through their shared log.",
        parameters=(text_list("address", "The HTTP address of a server; may be repeated."),),
    ),
    define_write(
        "agent.force_leave", "/v1/agent/force-leave", need=permissions.WRITE_AGENT, denial_detail=DenialDetail.AGENT_SHORT,
        summary="Remove a failed server from the list of servers. A running server returns to it.",
        parameters=(
            text("node", "The server's name or ID."),
            text("prune", "Accepted and ignored: nothing is stored of a server that left."),
        ),
    ),
    define_local(
        "agent.host", "/v1/agent/host", need=permissions.READ_AGENT, denial_detail=DenialDetail.AGENT, reply_type=HostReport,
        summary="Describe the machine of this agent. Needs `enable_debug` if access control is off.",
        parameters=TARGET_AGENT_PARAMETERS, refusal_statuses=(501,),
    ),
    _define_local_write(
        "agent.reload", "/v1/agent/reload", need=permissions.WRITE_AGENT, denial_detail=DenialDetail.AGENT,
        is_audited=True, summary="Reload the configuration.",
    ),
    define_local(
        "agent.monitor", "/v1/agent/monitor", need=permissions.READ_AGENT, reply_type=MonitorFrame, refusal_statuses=(501,),
        has_endless_reply=True,
        summary="Stream new log lines of all processes of this server, or of the agent of a node, until the client disconnects.",
        parameters=(
            text("log_level", "The minimum level: trace, debug, info, warn or error; info by default."),
            text("log_json", "Whether each line is a JSON object."),
            text("plain", "Whether lines are sent as plain text; otherwise each is sent in a JSON frame, as base64."),
            text("log_include_location", "Accepted and ignored: each line names its logger."),
            *TARGET_AGENT_PARAMETERS,
        ),
    ),
    define_local(
        "agent.monitor_export", "/v1/agent/monitor/export", need=permissions.READ_AGENT, reply_type=MonitorFrame,
        has_endless_reply=True,
        summary="Download the log file of this agent.", refusal_statuses=(501,),
        parameters=(
            text("on_disk", "Must be true: only the log file is supported."),
            text("service_name", "A unit of the system journal; not supported."),
            text("logs_since", "How far back to read the journal; 72h by default."),
            text("follow", "Whether to follow new lines; not supported for files."),
            text("plain", "Whether the file is sent as plain text; otherwise in JSON frames, as base64."),
            *TARGET_AGENT_PARAMETERS,
        ),
    ),
    _define_profile("cmdline", "cmdline", "Show the command line of the replying process.", parameters=TARGET_AGENT_PARAMETERS),
    _define_profile("profile", "profile", "Profile the replying process: folded stacks with sample counts."),
    define_local(
        "agent.pprof.trace", "/v1/agent/pprof/trace", need=permissions.WRITE_AGENT, summary="Execution trace: not supported.",
        parameters=_PROFILE_PARAMETERS, unsupported_reason="Python has no execution trace: use agent/pprof/profile or agent/pprof/goroutine",
    ),
    _define_profile("named", "{profile}", "Show the stacks of this server's processes (`goroutine`), or the memory that one allocates (`heap`, `allocs`)."),
    define_local(
        "agent.schedulers", "/v1/agent/schedulers", need=permissions.READ_AGENT, denial_detail=DenialDetail.AGENT_SHORT,
        summary="Describe the scheduler of this server.", reply_type=AgentSchedulers,
    ),
    define_local(
        "agent.schedulers_config", "/v1/agent/schedulers/config", need=permissions.READ_AGENT, denial_detail=DenialDetail.AGENT_SHORT,
        summary="Read the settings of this server's scheduler.", reply_type=AgentSchedulersConfig,
    ),
    _define_local_write(
        "agent.set_schedulers_config", "/v1/agent/schedulers/config", need=permissions.WRITE_AGENT,
        denial_detail=DenialDetail.AGENT_SHORT, body_type=AgentSchedulersRequest, reply_type=AgentSchedulersConfig,
        summary="Accept the settings that this server's scheduler has, and refuse others: they are part of the configuration.",
    ),
    define_local(
        "agent.gossip_keys", "/v1/agent/keyring/list", need=permissions.WRITE_AGENT, denial_detail=DenialDetail.AGENT_SHORT,
        summary="List gossip keys: not supported.", unsupported_reason=_NO_GOSSIP,
    ),
    _define_local_write(
        "agent.change_gossip_keys", "/v1/agent/keyring/{operation}", need=permissions.WRITE_AGENT, denial_detail=DenialDetail.AGENT_SHORT,
        summary="Change gossip keys: not supported.", unsupported_reason=_NO_GOSSIP,
    ),
)  # fmt: skip


METRICS_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "metrics.read", "/v1/metrics", need=permissions.PUBLIC_ACCESS, reply_type=Metrics, refusal_statuses=(404, 415),
        summary="Read metrics of the replying process and its server: the last finished interval, or totals since the "
        "start for Prometheus.",
        parameters=(
            text("format", "`prometheus` for its text format, if `telemetry.prometheus_metrics` is on."),
            duration("ago", "Read the interval that finished this long ago, if it is still stored."),
        ),
    ),
)  # fmt: skip


STATUS_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "status.leader",
        "/v1/status/leader",
        need=permissions.PUBLIC_ACCESS,
        summary="Return the address of the leader.",
        reply_type=str,
    ),
    define_local(
        "status.peers",
        "/v1/status/peers",
        need=permissions.PUBLIC_ACCESS,
        summary="Return the addresses of all servers.",
        reply_type=list[str],
    ),
)


REGION_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "region.list", "/v1/regions", need=permissions.PUBLIC_ACCESS, reply_type=list[str],
        summary="List the regions to which this server forwards requests, including its own.",
    ),
)  # fmt: skip


MEMBER_ROWS: Final[tuple[Endpoint, ...]] = (
    Endpoint(
        name="server.ask", method="PUT", path="/v1/server/ask/{subject}", kind=EndpointKind.LOCAL, need=permissions.PUBLIC_ACCESS,
        summary="Handle a request of another member to this server's brain (msgpack, with the member's secret).",
    ),
)  # fmt: skip


DOCUMENT_ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "document.openapi", "/v1/openapi.json", need=permissions.PUBLIC_ACCESS, reply_type=dict[str, Any],
        summary="Return this API as an OpenAPI 3.1 document.",
    ),
    define_local(
        "document.page", "/v1/docs", need=permissions.PUBLIC_ACCESS, reply_type=str, content_type="text/html",
        summary="Return this API as an HTML page.",
    ),
    define_local(
        "document.job_schema", "/v1/schema/job.json", need=permissions.PUBLIC_ACCESS, reply_type=dict[str, Any],
        summary="Return the JSON Schema of job files, for editors.",
    ),
)  # fmt: skip
