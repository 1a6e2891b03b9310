"""Autopilot: Nomad's settings for the health of servers, and the health assessment of each server.

Members are on leases in the log, so dead ones disappear without autopilot, and Wharf has no quorum of its own. Settings
that only concern a quorum are stored and returned, but have no effect.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from wharf.contract.model.record import Record
from wharf.contract.model.times import MILLISECOND, SECOND

DEFAULT_CONTACT_THRESHOLD_NS: Final = 200 * MILLISECOND
DEFAULT_STABILIZATION_NS: Final = 10 * SECOND
DEFAULT_MAX_TRAILING_LOGS: Final = 250


class AutopilotConfiguration(Record):
    """The configuration document. Only the contact threshold and the maximum of trailing logs have an effect."""

    last_contact_threshold: int = 0  # ns
    server_stabilization_time: int = 0  # ns
    max_trailing_logs: int = 0
    min_quorum: int = 0
    cleanup_dead_servers: bool = False
    enable_redundancy_zones: bool = False
    disable_upgrade_migration: bool = False
    enable_custom_upgrades: bool = False
    create_index: int = 0
    modify_index: int = 0


DEFAULT_AUTOPILOT_CONFIGURATION: Final = AutopilotConfiguration(
    last_contact_threshold=DEFAULT_CONTACT_THRESHOLD_NS,
    server_stabilization_time=DEFAULT_STABILIZATION_NS,
    max_trailing_logs=DEFAULT_MAX_TRAILING_LOGS,
    cleanup_dead_servers=True,
)
"""Used until a configuration is stored."""


def list_autopilot_problems(configuration: AutopilotConfiguration) -> list[str]:
    """Return everything that is wrong with a submitted configuration."""
    numbers = {
        "LastContactThreshold": configuration.last_contact_threshold,
        "ServerStabilizationTime": configuration.server_stabilization_time,
        "MaxTrailingLogs": configuration.max_trailing_logs,
        "MinQuorum": configuration.min_quorum,
    }
    return [f"{name} cannot be negative" for name, number in numbers.items() if number < 0]


class ServerLogStatus(msgspec.Struct, frozen=True):
    """How far a server has read the log, as it reports itself.

    `last_contact_ns` is the time since its last contact with the log, or `None` if it had none yet.
    """

    index: int = 0
    epoch: int = 0
    last_contact_ns: int | None = None


class ServerHealth(msgspec.Struct, frozen=True):
    """The health of one server. `unhealthy_reason` is empty if the server is healthy."""

    member_id: str
    log_status: ServerLogStatus | None
    """`None` if the server did not reply."""
    unhealthy_reason: str = ""


class ClusterHealth(msgspec.Struct, frozen=True):
    """The health of all servers, and how many more of them may fail."""

    is_healthy: bool
    failures_tolerated: int
    servers: Sequence[ServerHealth]


def assess_cluster_health(
    log_statuses: dict[str, ServerLogStatus | None],
    *,
    newest_index: int,
    configuration: AutopilotConfiguration,
    can_decide: bool = True,
    is_single_server: bool = False,
) -> ClusterHealth:
    """Return the health of every member, judged by the status that it reports.

    `can_decide`: a leader exists, and the log accepts writes. The log stores acknowledged writes, not the servers. The cluster
    works as long as one server is healthy, so all healthy servers but one may fail.
    """
    servers = [
        ServerHealth(member_id, log_status, _find_unhealthy_reason(log_status, newest_index, configuration))
        for member_id, log_status in log_statuses.items()
    ]
    healthy = sum(not server.unhealthy_reason for server in servers)
    return ClusterHealth(
        is_healthy=can_decide and healthy == len(servers) and healthy > 0,
        failures_tolerated=0 if is_single_server else max(0, healthy - 1),
        servers=servers,
    )


def _find_unhealthy_reason(
    log_status: ServerLogStatus | None, newest_index: int, configuration: AutopilotConfiguration
) -> str:
    """Return why a server is unhealthy; empty if it is healthy."""
    if log_status is None:
        return "no reply"
    if log_status.last_contact_ns is None:
        return "no contact with the log yet"
    if log_status.last_contact_ns > configuration.last_contact_threshold:
        return f"last contact with the log {log_status.last_contact_ns // MILLISECOND} ms ago"
    if newest_index - log_status.index > configuration.max_trailing_logs:
        return f"at log index {log_status.index}, {newest_index - log_status.index} behind"
    return ""
