"""What the cluster thinks of its servers: the peer's settings for that, and when a server counts as healthy.

Members live on leases of the log, so dead ones go by themselves and there is no quorum of ours to keep. Settings that
would only steer such a quorum are stored and shown, and nothing follows them.
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
    """A whole document. Followed here: the two bounds for health. Stored only: the others."""

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
"""In force until one is stored."""


def list_autopilot_problems(configuration: AutopilotConfiguration) -> list[str]:
    """Everything that is wrong with a configuration somebody wants to write."""
    numbers = {
        "LastContactThreshold": configuration.last_contact_threshold,
        "ServerStabilizationTime": configuration.server_stabilization_time,
        "MaxTrailingLogs": configuration.max_trailing_logs,
        "MinQuorum": configuration.min_quorum,
    }
    return [f"{name} cannot be negative" for name, number in numbers.items() if number < 0]


class ServerLogStatus(msgspec.Struct, frozen=True):
    """How a server stands in the log, as it says itself. `last_contact_ns` None: it had no proof of the log yet."""

    index: int = 0
    epoch: int = 0
    last_contact_ns: int | None = None


class ServerHealth(msgspec.Struct, frozen=True):
    """What is thought of one server, and why it is not healthy; empty when it is."""

    member_id: str
    log_status: ServerLogStatus | None
    """None when it did not answer."""
    unhealthy_reason: str = ""


class ClusterHealth(msgspec.Struct, frozen=True):
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
    """Judge every member by what it says of itself. `can_decide`: somebody leads, and the log takes writes.

    The log, not the number of our servers, keeps what was acknowledged: as long as one healthy server is left the
    cluster goes on, so all but one may fail.
    """
    servers = [
        ServerHealth(member_id, standing, _why_unhealthy(standing, newest_index, configuration))
        for member_id, standing in log_statuses.items()
    ]
    healthy = sum(not server.unhealthy_reason for server in servers)
    return ClusterHealth(
        is_healthy=can_decide and healthy == len(servers) and healthy > 0,
        failures_tolerated=0 if is_single_server else max(0, healthy - 1),
        servers=servers,
    )


def _why_unhealthy(standing: ServerLogStatus | None, newest_index: int, configuration: AutopilotConfiguration) -> str:
    if standing is None:
        return "it does not answer"
    if standing.last_contact_ns is None:
        return "it has not heard of the log yet"
    if standing.last_contact_ns > configuration.last_contact_threshold:
        return f"it heard of the log {standing.last_contact_ns // MILLISECOND} ms ago"
    if newest_index - standing.index > configuration.max_trailing_logs:
        return f"it stands at index {standing.index}, {newest_index - standing.index} behind"
    return ""
