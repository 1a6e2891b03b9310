"""Bodies for those who run the cluster, as they cross the wire.

Endpoints for those who run the cluster.

Endpoints that make the cluster tidy up at once.
"""

from typing import Any, Final

from wharf.contract.model.acl import permissions
from wharf.contract.model.operator.autopilot import AutopilotConfiguration
from wharf.contract.model.operator.rebalancing import Rebalancing
from wharf.contract.model.operator.scheduler_configuration import SchedulerConfiguration
from wharf.contract.model.record import Record
from wharf.contract.model.refusal import invalid_request
from wharf.contract.model.times import format_duration
from wharf.contract.wire.endpoint import (
    Endpoint,
    EndpointKind,
    define_leader_write,
    define_local,
    define_read,
    define_write,
    flag,
    text,
)
from wharf.contract.wire.times import DurationError, parse_duration_ns


class SchedulerConfigurationReply(Record):
    scheduler_config: SchedulerConfiguration
    index: int
    last_contact: int = 0
    known_leader: bool = False
    next_token: str = ""


class SchedulerConfigurationWriteReply(Record):
    updated: bool
    index: int


class RaftServer(Record):
    """A server of the region. `RaftProtocol` is there for clients; the log is kept by the engine, not by the servers."""

    id: str
    node: str
    address: str
    leader: bool
    voter: bool
    raft_protocol: str = "3"


class RaftConfiguration(Record):
    servers: list[RaftServer]
    index: int


class AutopilotConfigurationView(Record):
    """The configuration with its durations as text (`200ms`); whole nanoseconds are taken too."""

    last_contact_threshold: str | int = ""
    server_stabilization_time: str | int = ""
    cleanup_dead_servers: bool = False
    max_trailing_logs: int = 0
    min_quorum: int = 0
    enable_redundancy_zones: bool = False
    disable_upgrade_migration: bool = False
    enable_custom_upgrades: bool = False
    create_index: int = 0
    modify_index: int = 0


def build_autopilot_view(record: AutopilotConfiguration) -> AutopilotConfigurationView:
    return AutopilotConfigurationView(
        last_contact_threshold=format_duration(record.last_contact_threshold),
        server_stabilization_time=format_duration(record.server_stabilization_time),
        **{name: getattr(record, name) for name in _SAME},
    )


def parse_autopilot_view(document: AutopilotConfigurationView) -> AutopilotConfiguration:
    """Raises `Refusal`."""
    return AutopilotConfiguration(
        last_contact_threshold=_duration_ns(document.last_contact_threshold),
        server_stabilization_time=_duration_ns(document.server_stabilization_time),
        **{name: getattr(document, name) for name in _SAME},
    )


_SAME = [
    name for name in AutopilotConfigurationView.__struct_fields__ if "threshold" not in name and "_time" not in name
]


def _duration_ns(given: str | int) -> int:
    if isinstance(given, int):
        return given
    if given == "":
        return 0
    try:
        return parse_duration_ns(given)
    except DurationError:
        raise invalid_request(f'Error parsing autopilot config: time: invalid duration "{given}"') from None


class AutopilotServer(Record):
    id: str
    name: str
    address: str
    serf_status: str
    version: str
    leader: bool
    last_contact: str
    last_term: int
    last_index: int
    healthy: bool
    voter: bool
    stable_since: str
    why_unhealthy: str = ""


class AutopilotHealth(Record):
    healthy: bool
    failure_tolerance: int
    leader: str
    voters: list[str]
    servers: list[AutopilotServer]


class StateSizes(Record):
    """How many records each table holds, and where the log stands."""

    index: int
    tables: dict[str, int]
    engine: dict[str, Any]


_CONFIGURATION: Final = "/v1/operator/scheduler/configuration"
_AUTOPILOT: Final = "/v1/operator/autopilot/configuration"
_VERSION: Final = text("cas", "Write only if the stored document still has this ModifyIndex.")

ROWS: Final[tuple[Endpoint, ...]] = (
    define_local(
        "operator.state", "/v1/operator/state", need=permissions.READ_OPERATOR,
        summary="How many records each table holds, and how the log is.", reply_type=StateSizes,
    ),
    define_read(
        "operator.scheduler", _CONFIGURATION, need=permissions.READ_OPERATOR, summary="How the cluster is scheduled.",
        reply_type=SchedulerConfigurationReply,
    ),
    define_write(
        "operator.set_scheduler", _CONFIGURATION, need=permissions.WRITE_OPERATOR, body_type=SchedulerConfiguration,
        summary="Replace the whole document of how the cluster is scheduled. NodeLimitForFeasibilityChecks is kept and "
        "not followed: all nodes are looked at.",
        reply_type=SchedulerConfigurationWriteReply, parameters=(_VERSION,),
    ),
    define_leader_write(
        "operator.rebalance", "/v1/operator/rebalance", need=permissions.WRITE_OPERATOR,
        summary="Move what would stand better on another node, as many of each group at a time as its migrate block allows.",
        reply_type=Rebalancing, parameters=(flag("plan", "Only tell what would be moved, and what is gained."),),
    ),
    define_read(
        "operator.raft", "/v1/operator/raft/configuration", need=permissions.MANAGEMENT_TOKEN,
        summary="The servers of the region, and which of them leads.", reply_type=RaftConfiguration,
    ),
    define_write(
        "operator.remove_peer", "/v1/operator/raft/peer", method="DELETE", need=permissions.MANAGEMENT_TOKEN,
        summary="Forget a server that is gone. One that lives writes its record again.",
        parameters=(text("id", "The server's id."), text("address", "Not supported: use the id.")),
    ),
    define_leader_write(
        "operator.transfer", "/v1/operator/raft/transfer-leadership", need=permissions.MANAGEMENT_TOKEN,
        summary="Make another server the leader; answered when it leads.",
        parameters=(text("id", "The server's id."), text("address", "Or its address, as IP:port.")),
    ),
    define_read(
        "operator.autopilot", _AUTOPILOT, need=permissions.READ_OPERATOR, summary="When a server counts as healthy.",
        reply_type=AutopilotConfigurationView,
    ),
    define_write(
        "operator.set_autopilot", _AUTOPILOT, need=permissions.WRITE_OPERATOR, body_type=AutopilotConfigurationView,
        summary="Replace the whole document. Followed are LastContactThreshold and MaxTrailingLogs; the rest is kept.",
        reply_type=bool, parameters=(_VERSION,),
    ),
    define_local(
        "operator.health", "/v1/operator/autopilot/health", need=permissions.READ_OPERATOR,
        summary="The health of all servers; 429 where one is not healthy.", reply_type=AutopilotHealth,
        success_statuses=(200, 429),
    ),
    define_local(
        "operator.save_snapshot", "/v1/operator/snapshot", need=permissions.SAVE_SNAPSHOT, reply_type=bytes,
        content_type="application/x-gzip",
        summary="The whole state as one gzipped archive. Secrets in it need the keyring's key.",
    ),
    Endpoint(
        name="operator.restore_snapshot", method="PUT", path="/v1/operator/snapshot", kind=EndpointKind.LOCAL,
        need=permissions.MANAGEMENT_TOKEN, has_streamed_body=True, body_type=bytes, is_audited=True,
        summary="Replace the whole state by that of a snapshot. One that is damaged changes nothing.",
    ),
    define_local(
        "operator.license", "/v1/operator/license", need=permissions.READ_OPERATOR,
        summary="There is no licence to ask for: 204.", success_statuses=(204,),
    ),
    define_write(
        "operator.set_license", "/v1/operator/license", need=permissions.WRITE_OPERATOR, summary="Licensing: left out.",
        unsupported_reason="every feature is free: there is no licence",
    ),
    define_write(
        "operator.utilization", "/v1/operator/utilization", need=permissions.WRITE_OPERATOR,
        summary="Reports of utilization for licensing: left out.", unsupported_reason="every feature is free: nothing is reported",
    ),
    define_local(
        "operator.vault_check", "/v1/operator/upgrade-check/vault-workload-identity", need=permissions.READ_OPERATOR,
        summary="Vault: left out.", unsupported_reason="secrets are built in: nothing here uses Vault",
    ),
)  # fmt: skip


SYSTEM_ROWS: Final[tuple[Endpoint, ...]] = (
    define_leader_write(
        "system.gc", "/v1/system/gc", is_put_only=True, need=permissions.MANAGEMENT_TOKEN,
        summary="Collect whatever is over, regardless of its age.",
    ),
    define_leader_write(
        "system.reconcile", "/v1/system/reconcile/summaries", is_put_only=True, need=permissions.MANAGEMENT_TOKEN,
        summary="Count the summaries of all jobs anew.",
    ),
)  # fmt: skip
