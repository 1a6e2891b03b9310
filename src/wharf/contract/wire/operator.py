"""Endpoints and messages for operators: scheduler configuration, rebalancing, autopilot, snapshots and garbage collection."""

from typing import Any, Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.operator.autopilot import AutopilotConfiguration
from wharf.contract.model.operator.rebalancing import Rebalancing
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.record import Record
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import DurationError, format_duration, parse_duration_ns
from wharf.contract.wire.endpoint import (
    Endpoint,
    EndpointKind,
    define_leader_write,
    define_local,
    define_read,
    define_write,
    flag,
    text,
    unsigned,
)


class SchedulerConfigurationReply(Record):
    """The scheduler configuration."""

    scheduler_config: SchedulerConfiguration
    index: int  # Log index of its last change.
    last_contact: int = 0  # Always 0; expected by Nomad's clients.
    known_leader: bool = False  # Whether the cluster has a leader.
    next_token: str = ""  # Always empty; expected by Nomad's clients.


class SchedulerConfigurationWriteReply(Record):
    """The reply to a write of the scheduler configuration."""

    updated: bool  # False if the stored configuration has another ModifyIndex than `cas`.
    index: int  # Log index of the write.


class RaftServer(Record):
    """A server of the region, in Nomad's format."""

    id: str
    node: str  # Name and region, such as `server1.global`.
    address: str
    leader: bool  # Whether it is the leader.
    voter: bool  # Always true.
    raft_protocol: str = "3"  # A constant for Nomad's clients; Wharf does not use Raft between servers.


class RaftConfiguration(Record):
    """The servers of the region, in Nomad's format."""

    servers: list[RaftServer]
    index: int  # Log index of the last change of a server.


class AutopilotConfigurationView(Record):
    """The autopilot configuration as requests and replies contain it: durations are text such as `200ms`.

    Requests may also use a number of nanoseconds. Only `last_contact_threshold`,
    `max_trailing_logs` and `cleanup_dead_servers` have an effect.
    """

    last_contact_threshold: str | int = ""  # A server without contact to the log for longer is unhealthy.
    server_stabilization_time: str | int = ""
    cleanup_dead_servers: bool = False  # Remove failed servers from the list of servers after 72 hours.
    max_trailing_logs: int = 0  # A server whose replica is more log entries behind is unhealthy.
    min_quorum: int = 0
    enable_redundancy_zones: bool = False
    disable_upgrade_migration: bool = False
    enable_custom_upgrades: bool = False
    create_index: int = 0  # Log index of its creation.
    modify_index: int = 0  # Log index of its last change.


def build_autopilot_view(record: AutopilotConfiguration) -> AutopilotConfigurationView:
    """Return the autopilot configuration in the form of replies: durations are text such as `200ms`."""
    return AutopilotConfigurationView(
        last_contact_threshold=format_duration(record.last_contact_threshold),
        server_stabilization_time=format_duration(record.server_stabilization_time),
        **{name: getattr(record, name) for name in _UNCONVERTED_FIELDS},
    )


def parse_autopilot_view(document: AutopilotConfigurationView) -> AutopilotConfiguration:
    """Return the submitted autopilot configuration as a record, with durations in ns.

    Raises `Refusal` if a duration is invalid.
    """
    return AutopilotConfiguration(
        last_contact_threshold=_parse_duration(document.last_contact_threshold),
        server_stabilization_time=_parse_duration(document.server_stabilization_time),
        **{name: getattr(document, name) for name in _UNCONVERTED_FIELDS},
    )


_UNCONVERTED_FIELDS = [
    name for name in AutopilotConfigurationView.__struct_fields__ if "threshold" not in name and "_time" not in name
]
"""The fields that are not durations; record and view have them unchanged."""


def _parse_duration(duration: str | int) -> int:
    """Return a submitted duration in ns. A number is already in ns, and an empty text is 0.

    Raises `Refusal` if the text is not a duration.
    """
    if isinstance(duration, int):
        return duration
    if duration == "":
        return 0
    try:
        return parse_duration_ns(duration)
    except DurationError:
        raise invalid_request(f'Error parsing autopilot config: time: invalid duration "{duration}"') from None


class AutopilotServer(Record):
    """The health of one server, in Nomad's format."""

    id: str
    name: str  # Name and region, such as `server1.global`.
    address: str
    serf_status: str  # `alive`, `leaving`, `left` or `failed`.
    version: str
    leader: bool
    last_contact: (
        str  # Time since its last contact with the log, such as `20ms`; `never`; if it failed, when (RFC 3339).
    )
    last_term: int  # The epoch of its log: it changes when the log is replaced by an older copy.
    last_index: int  # Log index that its replica has reached.
    healthy: bool
    voter: bool  # False if it failed.
    stable_since: str  # When it started (RFC 3339).
    why_unhealthy: str = ""  # The reason; empty if it is healthy.


class AutopilotHealth(Record):
    """The health of all servers, in Nomad's format."""

    healthy: bool  # Whether all servers are healthy.
    failure_tolerance: int  # How many servers may fail before the cluster is unavailable.
    leader: str  # The leader's ID; empty if there is no leader.
    voters: list[str]  # The IDs of all servers except failed ones.
    servers: list[AutopilotServer]


class StateSizes(Record):
    """The number of records in each table, and the state of the log."""

    index: int  # Log index of the replying server's replica.
    tables: dict[str, int]  # Number of records by table.
    engine: dict[str, Any]  # Facts about the log engine, by name.


class SnapshotFile(Record):
    """A snapshot that a server has saved on schedule."""

    name: str
    saved_at: int  # In ns since the epoch.
    size_bytes: int
    index: int = 0  # Log index of its state; only of the newest one.


class ScheduledSnapshots(Record):
    """The snapshots that a server saves by itself. Downloads by operators are not among them."""

    server_id: str
    interval: int  # In ns; 0: it saves none.
    keep: int  # How many it retains.
    folder: str
    snapshots: list[SnapshotFile]  # The newest first, 100 at most.
    problem: str = ""  # Why the folder cannot be read; empty if it can.


class AuditEntry(Record):
    """A line of the audit log: a request that writes, or the begin or end of a command in a task."""

    time: int  # In ns since the epoch, in steps of a millisecond.
    request_id: str = ""
    endpoint: str = ""  # Its name, such as `job.register`.
    method: str = ""
    path: str = ""  # Without the query and without secrets.
    region: str = ""
    namespace: str = ""
    accessor_id: str = ""  # The token of the caller, not its secret.
    token_name: str = ""
    source: str = ""  # The address of the caller.
    status: int = 0  # The HTTP status of the reply.
    index: int = 0  # Log index of the write; 0 if nothing was written.
    error: str = ""
    duration_ms: float = 0.0  # How long a command in a task ran.
    allocation_id: str = ""
    task: str = ""
    command: tuple[str, ...] = ()  # The words of a command in a task.
    exit_code: int | None = None


class AuditEntries(Record):
    """Entries of the audit log of one server, the newest first."""

    server_id: str
    entries: tuple[AuditEntry, ...]
    next_token: str = ""  # Selects older entries; empty if there are none.
    is_incomplete: bool = False
    """Whether the search stopped early because it had read 16 MB; `NextToken` continues there."""


DEFAULT_AUDIT_ENTRIES: Final = 100
MAX_AUDIT_ENTRIES: Final = 500
"""Limits the size of a reply: an entry can have some kilobytes."""
MAX_AUDIT_SEARCH_CHARS: Final = 200
_CONFIGURATION: Final = "/v1/operator/scheduler/configuration"
_AUTOPILOT: Final = "/v1/operator/autopilot/configuration"
_CAS_PARAMETER: Final = text("cas", "Write only if the stored document still has this ModifyIndex.")

ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "operator.state", "/v1/operator/state", need=permissions.READ_OPERATOR,
        summary="Show the number of records in each table and the state of the log.", reply_type=StateSizes,
    ),
    define_read(
        "operator.scheduler", _CONFIGURATION, need=permissions.READ_OPERATOR, summary="Read the scheduler configuration.",
        reply_type=SchedulerConfigurationReply,
    ),
    define_write(
        "operator.set_scheduler", _CONFIGURATION, need=permissions.WRITE_OPERATOR, body_type=SchedulerConfiguration,
        summary="Replace the scheduler configuration. NodeLimitForFeasibilityChecks is stored but has no effect: "
        "all nodes are checked.",
        reply_type=SchedulerConfigurationWriteReply, parameters=(_CAS_PARAMETER,),
    ),
    define_leader_write(
        "operator.rebalance", "/v1/operator/rebalance", need=permissions.WRITE_OPERATOR,
        summary="Move allocations to nodes where they score higher, within the limits of each group's migrate block.",
        reply_type=Rebalancing, parameters=(flag("plan", "Only report the moves and their gain."),),
    ),
    define_read(
        "operator.raft", "/v1/operator/raft/configuration", need=permissions.MANAGEMENT_TOKEN,
        summary="List the servers of the region, with the leader marked.", reply_type=RaftConfiguration,
    ),
    define_write(
        "operator.remove_peer", "/v1/operator/raft/peer", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Remove a failed server from the list of servers. A running server returns to it.",
        parameters=(text("id", "The server's ID."), text("address", "Not supported: use the ID.")),
    ),
    define_leader_write(
        "operator.transfer", "/v1/operator/raft/transfer-leadership", need=permissions.MANAGEMENT_TOKEN,
        summary="Transfer leadership to another server; the reply is sent when it leads.",
        parameters=(text("id", "The server's ID."), text("address", "Its address instead of its ID, as IP:port.")),
    ),
    define_read(
        "operator.autopilot", _AUTOPILOT, need=permissions.READ_OPERATOR, summary="Read the autopilot configuration, which defines when a server is healthy.",
        reply_type=AutopilotConfigurationView,
    ),
    define_write(
        "operator.set_autopilot", _AUTOPILOT, need=permissions.WRITE_OPERATOR, body_type=AutopilotConfigurationView,
        summary="Replace the autopilot configuration. Only LastContactThreshold, MaxTrailingLogs and CleanupDeadServers have an effect.",
        reply_type=bool, parameters=(_CAS_PARAMETER,),
    ),
    define_local(
        "operator.health", "/v1/operator/autopilot/health", need=permissions.READ_OPERATOR,
        summary="Show the health of all servers; the status is 429 if one is not healthy.", reply_type=AutopilotHealth,
        success_statuses=(200, 429),
    ),
    define_local(
        "operator.save_snapshot", "/v1/operator/snapshot", need=permissions.SAVE_SNAPSHOT, reply_type=bytes,
        content_type="application/x-gzip",
        summary="Download the whole state as a gzip archive. Secrets in it stay encrypted with the keyring.",
    ),
    define_local(
        "operator.snapshots", "/v1/operator/snapshots", need=permissions.READ_OPERATOR, reply_type=ScheduledSnapshots,
        summary="List the snapshots that a server has saved on schedule, the newest first.", refusal_statuses=(501,),
        parameters=(text("server_id", "Forward the request to this server: its ID or name, or `leader`."),),
    ),
    Endpoint(
        name="operator.restore_snapshot", method="PUT", path="/v1/operator/snapshot", kind=EndpointKind.LOCAL,
        need=permissions.MANAGEMENT_TOKEN, has_streamed_body=True, body_type=bytes, is_audited=True,
        summary="Replace the whole state with a snapshot. A damaged snapshot changes nothing.",
    ),
    define_local(
        "operator.audit", "/v1/operator/audit", need=permissions.MANAGEMENT_TOKEN, reply_type=AuditEntries,
        summary="Read the audit log of a server, the newest entries first.", refusal_statuses=(404, 501, 503),
        parameters=(
            text("search", "Words that an entry must have, such as `job.register` or the name of a token."),
            flag("failed", "Only requests that were refused or failed."),
            unsigned("limit", f"How many entries to return, at most {MAX_AUDIT_ENTRIES}; {DEFAULT_AUDIT_ENTRIES} by default."),
            text("next_token", "Continue with older entries: the `NextToken` of the previous reply."),
            text("server_id", "Forward the request to this server: its ID or name, or `leader`."),
        ),
    ),
    define_local(
        "operator.license", "/v1/operator/license", need=permissions.READ_OPERATOR,
        summary="Return 204: there is no license.", success_statuses=(204,),
    ),
    define_write(
        "operator.set_license", "/v1/operator/license", need=permissions.WRITE_OPERATOR, summary="Set a license: not supported.",
        unsupported_reason="not supported: every feature is free, so there is no license",
    ),
    define_write(
        "operator.utilization", "/v1/operator/utilization", need=permissions.WRITE_OPERATOR,
        summary="Utilization reports for licensing: not supported.", unsupported_reason="not supported: every feature is free, so utilization is not reported",
    ),
    define_local(
        "operator.vault_check", "/v1/operator/upgrade-check/vault-workload-identity", need=permissions.READ_OPERATOR,
        summary="Vault upgrade check: not supported.", unsupported_reason="not supported: secrets are built in, so Vault is not used",
    ),
)  # fmt: skip


SYSTEM_ROWS: Final[tuple[Endpoint, ...]] = (
    define_leader_write(
        "system.gc", "/v1/system/gc", is_put_only=True, need=permissions.MANAGEMENT_TOKEN,
        summary="Garbage-collect finished jobs, evaluations, allocations and nodes, regardless of age.",
    ),
    define_leader_write(
        "system.reconcile", "/v1/system/reconcile/summaries", is_put_only=True, need=permissions.MANAGEMENT_TOKEN,
        summary="Recompute the summaries of all jobs.",
    ),
)  # fmt: skip
