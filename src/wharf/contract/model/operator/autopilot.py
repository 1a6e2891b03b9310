"""Autopilot: Nomad's settings for the health of servers, and the health assessment of each server.

Wharf has no quorum of its own. Settings that only concern a quorum are stored and returned, but have no effect.
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
    """The settings for the health of servers. `last_contact_threshold`, `max_trailing_logs` and `cleanup_dead_servers` have an effect."""

    last_contact_threshold: int = 0  # ns; a server without contact for longer is unhealthy.
    server_stabilization_time: int = 0  # ns
    max_trailing_logs: int = 0  # A server that is further behind in the log is unhealthy.
    min_quorum: int = 0
    cleanup_dead_servers: bool = False  # Delete the records of servers that failed 72 hours ago.
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
"""Applies until an operator stores a configuration."""


def list_autopilot_problems(configuration: AutopilotConfiguration) -> list[str]:
    """Return an error text for each negative number in a submitted configuration; empty if it is valid."""
    numbers = {
        "LastContactThreshold": configuration.last_contact_threshold,
        "ServerStabilizationTime": configuration.server_stabilization_time,
        "MaxTrailingLogs": configuration.max_trailing_logs,
        "MinQuorum": configuration.min_quorum,
    }
    return [f"{name} cannot be negative" for name, number in numbers.items() if number < 0]


class ServerLogStatus(msgspec.Struct, frozen=True):
    """How far a server has read the log, as the server itself reports."""

    index: int = 0  # The last log index that it has read.
    epoch: int = 0  # The epoch of the log: raised when the log is replaced by an older copy.
    last_contact_ns: int | None = None  # Time since its last contact with the log; `None`: no contact yet.
    outage: str = ""  # Why the log does not reply, and since when, or why it accepts no writes; empty if it works.


class ServerHealth(msgspec.Struct, frozen=True):
    """The health of one server."""

    member_id: str
    log_status: ServerLogStatus | None
    """`None` if the server did not reply."""
    unhealthy_reason: str = ""  # Empty if the server is healthy.


class ClusterHealth(msgspec.Struct, frozen=True):
    """The health of all servers together and of each one."""

    is_healthy: bool
    failures_tolerated: int  # How many healthy servers may fail before the cluster stops working.
    servers: Sequence[ServerHealth]


def assess_cluster_health(
    log_statuses: dict[str, ServerLogStatus | None],
    *,
    newest_index: int,
    configuration: AutopilotConfiguration,
    can_decide: bool = True,
    is_single_server: bool = False,
) -> ClusterHealth:
    """Return the health of all servers, judged by the log status that each reported (`None`: no reply).

    `newest_index` is the newest log index. `can_decide` means that a leader exists and the log accepts writes. The
    cluster works as long as one server is healthy, because the log stores acknowledged writes, not the servers.
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
    """Return why a server is unhealthy, such as no contact with the log; empty if it is healthy."""
    if log_status is None:
        return "no reply"
    if log_status.outage:
        return log_status.outage
    if log_status.last_contact_ns is None:
        return "no contact with the log yet"
    if log_status.last_contact_ns > configuration.last_contact_threshold:
        return f"last contact with the log {log_status.last_contact_ns // MILLISECOND} ms ago"
    if newest_index - log_status.index > configuration.max_trailing_logs:
        return f"at log index {log_status.index}, {newest_index - log_status.index} behind"
    return ""
